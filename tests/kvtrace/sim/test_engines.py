"""The presets against the engines' own code: which objects each request of a real trace moved."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from engine_runs import CONVERSATION, CPU, DISK, ENGINES, TOKEN_BYTES, first_had, moved, recorded, simulated

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


@pytest.mark.parametrize(
    ("name", "trace", "cpu", "disk", "done", "reads"),
    [
        ("cpu512-disk4096-300", CONVERSATION, 512, 4096, (15_913, 24, 11_817), list),
        # A pool of 128 chunks: 17 of the prompts are larger, and LMCache stores of each what the pool holds.
        ("cpu128-disk4096-200", CONVERSATION, 128, 4096, (8_405, 40, 4_309), sorted),
        # Conversations that go on: prefixes in pieces in DRAM and on disk. Threads that read shuffle the order.
        ("turns-cpu256-disk1024-160", ENGINES / "lmcache" / "turns.jsonl", 256, 1024, (1_485, 590, 461), sorted),
    ],
)
def test_lmcache_writes_reads_and_deletes_the_same_chunks(monkeypatch, tmp_path, name, trace, cpu, disk, done, reads):
    count = int(name.rpartition("-")[2])
    theirs = recorded(f"lmcache/lmcache-0.5.6-{name}-ops")
    rows = simulated(monkeypatch, tmp_path, "lmcache-disk", count, bounded(256, 0, cpu, disk), trace=trace)
    ours = moved(rows, first_had(count, 256, trace))
    for request in range(count):
        did, does = theirs[request], ours[request]
        assert reads(does["read", DISK]) == reads(did["read"]), request
        assert sorted(does["write", DISK]) == sorted(did["write"]), request
        # Six threads write a prompt's chunks, so that which of it are the oldest is chance by so many places.
        gone, to_go = does["delete", DISK], did["delete"]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS, request
    assert tuple(sum(len(did[operation]) for did in theirs.values()) for operation in OPERATIONS) == done


@pytest.mark.parametrize(
    ("name", "counts", "larger"),
    [
        ("vllm032-cpu4096-300-ops", "vllm-offload-cpu-300", 0),
        ("vllm032-fs-cpu2048-100-ops", "vllm-fs-100", 0),
        # Prompts larger than the tier: vLLM makes room for 512 blocks at a time, and not by those of the step before.
        ("vllm033-cpu4096-300-ops", "vllm-offload-cpu-300-033", 48),
    ],
)
def test_vllm_gives_up_and_loads_the_same_blocks(monkeypatch, tmp_path, name, counts, larger):
    golden = json.loads((ENGINES / "counts" / f"{counts}.json").read_text())
    requests = range(golden["requests"])
    rows = simulated(monkeypatch, tmp_path, golden["preset"], len(requests), golden["settings"])
    ours, real = moved(rows, first_had(len(requests), 16)), recorded(f"vllm/{name}")
    loaded = {n: Counter(ours[n]["read", CPU] + ours[n]["read", DISK]) for n in requests}
    assert [n for n in requests if loaded[n] != Counter(real[n]["load"])] == []
    differ = [n for n in requests if Counter(ours[n]["delete", CPU]) != Counter(real[n]["evict"])]
    assert len(differ) == larger
    assert sum(len(real[n]["evict"]) for n in requests) == sum(len(ours[n]["delete", CPU]) for n in requests) > 90_000
