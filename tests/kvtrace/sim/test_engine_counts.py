"""The presets against what the engines' own code did, request by request (tests/golden/engines/counts)."""

from __future__ import annotations

import gzip
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


DIFFERS = {
    "lmcache-layerwise-150": "LMCache does not copy disk hits up to the CPU pool, whose cap counts objects of layers",
}
"""Where the preset is known not to be equal."""


@pytest.mark.traces
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.xfail(strict=True, reason=DIFFERS[n])) if n in DIFFERS else n for n in COUNTS],
)
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


def blocks_moved(monkeypatch, tmp_path, golden):
    """Return for each request which blocks the CPU tier gave up, and which were loaded to the GPU, in order.

    A block is named as in the golden: by the request that stored it first, and its place in that request's prompt.
    """
    simulated(monkeypatch, tmp_path, golden)
    table = read_table(tmp_path / "t.parquet", TRACE)
    rows = list(zip(*(table[name].to_pylist() for name in ("op", "tier", "request_id", "object_id")), strict=True))
    stored, known = defaultdict(list), set()
    for op, tier, request, number in rows:
        if op == "write" and tier == 1 and number not in known:
            known.add(number)
            stored[request].append(number)
    lengths = [json.loads(line)["input_length"] for line in (TRACES / golden["trace"]).read_text().splitlines()]
    names = {}
    for request, numbers in stored.items():
        first = lengths[request] // 16 - len(numbers)
        names |= {number: (request, first + place) for place, number in enumerate(numbers)}
    found, waiting = defaultdict(lambda: defaultdict(list)), []
    for op, tier, request, number in rows:
        waiting.append((op, tier, number))
        if request is not None:
            for what, where, block in waiting:
                if what == "delete" and where == 1:
                    found[request]["evict"].append(names[block])
                elif what == "read":
                    found[request]["load"].append(names[block])
            waiting = []
    return found


def recorded(name):
    """Return the same of what vLLM did: a line is operation, request, first block, step between blocks, how many."""
    found = defaultdict(lambda: defaultdict(list))
    for line in gzip.decompress((ENGINES / "vllm" / f"{name}.txt.gz").read_bytes()).decode().splitlines():
        op, request, block, step, count = line.split()
        writer, place = map(int, block.split(":"))
        found[int(request)][op] += [(writer, place + int(step) * i) for i in range(int(count))]
    return found


@pytest.mark.traces
@pytest.mark.parametrize(
    ("name", "counts", "larger"),
    [
        ("vllm032-cpu4096-300-ops", "vllm-offload-cpu-300", 0),
        ("vllm032-fs-cpu2048-100-ops", "vllm-fs-100", 0),
        # Prompts larger than the tier: vLLM makes room for 512 blocks at a time, and not by those of the step before.
        ("vllm033-cpu4096-300-ops", "vllm-offload-cpu-300-033", 48),
    ],
)
def test_the_same_blocks_are_given_up_and_loaded(monkeypatch, tmp_path, name, counts, larger):
    golden = json.loads((ENGINES / "counts" / f"{counts}.json").read_text())
    ours, real = blocks_moved(monkeypatch, tmp_path, golden), recorded(name)
    requests = range(golden["requests"])
    assert [n for n in requests if Counter(ours[n]["load"]) != Counter(real[n]["load"])] == []
    differ = [n for n in requests if Counter(ours[n]["evict"]) != Counter(real[n]["evict"])]
    assert len(differ) == larger
    assert sum(len(real[n]["evict"]) for n in requests) == sum(len(ours[n]["evict"]) for n in requests) > 90_000
