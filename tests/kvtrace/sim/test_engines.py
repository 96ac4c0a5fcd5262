"""The presets against the engines' own code: which objects each request of a real trace moved."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from engine_runs import CPU, DISK, ENGINES, TOKEN_BYTES, first_had, moved, recorded, simulated

pytestmark = pytest.mark.traces

OPERATIONS = ("write", "read", "delete")
THREADS = 6


def bounded(tokens, *objects):
    """Return the settings that make GPU, CPU and disk hold so many `objects` of `tokens`."""
    tiers = zip(("gpu", "cpu", "nvme"), objects, strict=True)
    return [f"tiers.{tier}.capacity={count * tokens * TOKEN_BYTES}" for tier, count in tiers]


def test_sglang_writes_reads_and_deletes_the_same_pages_in_the_same_order(monkeypatch, tmp_path):
    theirs = recorded("sglang/sglang-0.5.23-files8192-200-ops")
    rows = simulated(monkeypatch, tmp_path, "sglang-hicache", 200, bounded(64, 0, 0, 8192))
    ours = moved(rows, first_had(200, 64))
    for request in range(200):
        for operation in OPERATIONS:
            assert ours[request][operation, DISK] == theirs[request][operation], (operation, request)
    assert sum(len(did["delete"]) for did in theirs.values()) == 33_661


def test_lmcache_writes_reads_and_deletes_the_same_chunks(monkeypatch, tmp_path):
    theirs = recorded("lmcache/lmcache-0.5.6-cpu512-disk4096-300-ops")
    rows = simulated(monkeypatch, tmp_path, "lmcache-disk", 300, bounded(256, 0, 512, 4096))
    ours = moved(rows, first_had(300, 256))
    for request in range(300):
        did, done = theirs[request], ours[request]
        assert done["read", DISK] == did["read"], request
        assert sorted(done["write", DISK]) == sorted(did["write"]), request
        # Six threads write a prompt's chunks, so that which of it are the oldest is chance by so many places.
        gone, to_go = done["delete", DISK], did["delete"]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS, request
    assert sum(len(did["delete"]) for did in theirs.values()) == 11_817


@pytest.mark.parametrize(
    ("name", "counts", "is_ordered"),
    [
        # 0.32.0 deletes what prompts larger than the tier displace in an order of its own, request by request the same.
        ("vllm032-cpu4096-300-ops", "vllm-offload-cpu-300", False),
        ("vllm032-fs-cpu2048-100-ops", "vllm-fs-100", False),
        ("vllm033-cpu4096-300-ops", "vllm-offload-cpu-300-033", True),
        ("vllm033-fs-cpu2048-100-ops", "vllm-fs-100-033", True),
    ],
)
def test_vllm_stores_gives_up_and_loads_the_same_blocks_in_the_same_order(
    monkeypatch, tmp_path, name, counts, is_ordered
):
    golden = json.loads((ENGINES / "counts" / f"{counts}.json").read_text())
    requests = range(golden["requests"])
    rows = simulated(monkeypatch, tmp_path, golden["preset"], len(requests), golden["settings"])
    ours, real = moved(rows, first_had(len(requests), 16)), recorded(f"vllm/{name}")
    for n in requests:
        did, done = real[n], ours[n]
        assert done["write", CPU] == did["promote"] + did["store"], n
        assert done["read", CPU] + done["read", DISK] == did["load"], n
        assert done["read", DISK] == did["promote"], n
        assert Counter(done["delete", CPU]) == Counter(did["evict"]), n
        assert done["delete", CPU] == did["evict"] or not is_ordered, n
    assert sum(len(real[n]["evict"]) for n in requests) > 90_000
