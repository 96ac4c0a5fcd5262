"""The presets against what the engines' own code did, request by request
(tests/golden/engines/counts).
"""

from __future__ import annotations

import json

import pytest
from engine_runs import CPU, DISK, ENGINES, counted, simulated

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

BY_BLOCK = {"vllm-offload-cpu-300", "vllm-offload-cpu-300-033", "vllm-fs-100", "vllm-fs-100-033"}
"""What test_engines.py compares block by block."""
LONG = {"vllm-fs-300", "vllm-offload-cpu-16384-300"}
COUNTS = [
    pytest.param(path.stem, marks=[pytest.mark.full] if path.stem in BY_BLOCK | LONG else [])
    for path in sorted((ENGINES / "counts").glob("*.json"))
]
OP = {"writes": "write", "reads": "read", "deletes": "delete"}
TIERS = {"": DISK, "cpu": CPU, "fs": DISK}
LAYERWISE = [(95, 508, 512), (97, 508, 512), (119, 508, 512), (123, 500, 512)]
UNFULL_READS = [(48, 22, 20), (119, 29, 19), (142, 30, 23)]
UNFULL_DELETES = [
    (102, 18, 17),
    (105, 13, 14),
    (112, 19, 18),
    (113, 5, 6),
    (142, 14, 13),
    (144, 2, 3),
]
DIFFERS = {
    "lmcache-layerwise-150": {"writes": LAYERWISE, "reads": [], "deletes": LAYERWISE},
    "lmcache-disk-unfull-turns-160": {
        "writes": [],
        "reads": UNFULL_READS,
        "deletes": UNFULL_DELETES,
    },
}
"""Where the preset is known not to be equal.

Requests, what the engine did, what we do. Layerwise, LMCache reads from disk into buffers of one
layer, and gives up single layers for them: what is left of their chunks takes room that no store
gets back. Our pool gives up whole chunks. With chunks of unlike sizes LMCache's pool has gaps that
no chunk fits, and so gives up more; ours is an amount of bytes (test_partial_chunks.py).
"""


def column(counts, name):
    """Return what a golden's column `name` says, of the simulation, request by request."""
    if name == "loads":  # to the GPU, from wherever
        return [found["read", CPU] + found["read", DISK] for found in counts]
    tier, _, op = name.rpartition("_")
    return [found[OP[op], TIERS[tier]] for found in counts]


@pytest.mark.traces
@pytest.mark.parametrize("name", COUNTS)
def test_counts_equal_the_engines(monkeypatch, tmp_path, name):
    golden = json.loads((ENGINES / "counts" / f"{name}.json").read_text())
    trace = ENGINES / golden["trace"]
    options = {
        "layers": golden.get("layers", 1),
        "trace": trace if trace.exists() else golden["trace"],
    }
    rows = simulated(
        monkeypatch, tmp_path, golden["preset"], golden["requests"], golden["settings"], **options
    )
    found = counted(rows)
    counts = [found[request] for request in range(golden["requests"])]
    real = dict(zip(golden["columns"], zip(*golden["per_request"], strict=True), strict=True))
    wrong = {}
    for what, expected in real.items():
        ours = column(counts, what)
        wrong[what] = [
            (n, a, b) for n, (a, b) in enumerate(zip(expected, ours, strict=True)) if a != b
        ]
    stats = open_table(tmp_path / "t.parquet", TRACE).meta.stats
    counted_once = {
        "file_lookups": stats["tiers"][-1].get("file_lookups"),
        "offers": stats.get("offers", {}).get("count"),
    }
    for what, ours in counted_once.items():
        assert golden.get(what, ours) == ours, what
    known = DIFFERS.get(name, {what: [] for what in real})
    assert wrong == known, {what: (len(found), found[:5]) for what, found in wrong.items() if found}
