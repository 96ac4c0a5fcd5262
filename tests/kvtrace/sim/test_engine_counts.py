"""The presets against what the engines' own code did, request by request (tests/golden/engines/counts)."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from conftest import TRACES
from simulated import kvtrace

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import read_table

ENGINES = Path(__file__).resolve().parents[2] / "golden" / "engines"
COUNTS = sorted(path.stem for path in (ENGINES / "counts").glob("*.json"))
OP = {"writes": "write", "reads": "read", "deletes": "delete"}


def simulated(monkeypatch, tmp_path, golden):
    """Return for each request of a golden how often each tier was read, written and deleted from."""
    model = json.loads((ENGINES / "tinier-config.json").read_text())
    config, out = tmp_path / "config.json", tmp_path / "t.parquet"
    config.write_text(json.dumps(model | {"num_hidden_layers": golden.get("layers", 1)}))
    settings = [part for setting in golden["settings"] for part in ("--set", setting)]
    options = ["--source", "mooncake", "--max-requests", golden["requests"], "--preset", golden["preset"]]
    options += [*settings, "--model", config, "--gpu", "instant"]
    assert kvtrace(monkeypatch, "gen", TRACES / golden["trace"], *options, "-o", out) == 0
    rows = read_table(out, TRACE)
    columns = [rows[name].to_pylist() for name in ("op", "tier", "request_id")]
    counts, waiting, request = defaultdict(Counter), Counter(), 0
    for op, tier, of in zip(*columns, strict=True):
        # What makes room has no request: it is of the write after it.
        waiting[op, tier] += 1
        if of is not None:
            request = of
            counts[request].update(waiting)
            waiting.clear()
    counts[request].update(waiting)
    return counts


def column(counts, name, tiers):
    """Return what a golden's column `name` says, of the simulation, request by request."""
    if name == "loads":  # to the GPU, from wherever
        return [found["read", tiers["cpu"]] + found["read", tiers["fs"]] for found in counts]
    tier, _, op = name.rpartition("_")
    return [found[OP[op], tiers[tier or "nvme"]] for found in counts]


@pytest.mark.traces
@pytest.mark.parametrize("name", COUNTS)
def test_counts_equal_the_engines(monkeypatch, tmp_path, name):
    golden = json.loads((ENGINES / "counts" / f"{name}.json").read_text())
    found = simulated(monkeypatch, tmp_path, golden)
    counts = [found[request] for request in range(golden["requests"])]
    tiers = {"cpu": 1, "nvme": 2, "fs": 2}
    real = dict(zip(golden["columns"], zip(*golden["per_request"], strict=True), strict=True))
    wrong = {}
    for what, expected in real.items():
        ours = column(counts, what, tiers)
        wrong[what] = [(n, a, b) for n, (a, b) in enumerate(zip(expected, ours, strict=True)) if a != b]
    assert not any(wrong.values()), {what: (len(found), found[:5]) for what, found in wrong.items() if found}
