"""The presets against the engines' own code: which objects each request of a real trace moved."""

from __future__ import annotations

import json

import adversarial
import numpy as np
import pytest
from conftest import TRACES
from engine_runs import (
    CONVERSATION,
    DISK,
    ENGINES,
    TOKEN_BYTES,
    begun,
    blocks_that_differ,
    first_had,
    moved,
    queued,
    recorded,
    recorded_slots,
    simulated,
    slots_taken,
    write_alike,
)
from simulated import kvtrace
from whole import read_table

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.sim.simulation import Simulation

pytestmark = pytest.mark.traces

OPERATIONS = ("write", "read", "delete")
THREADS = 6


def bounded(tokens, *objects):
    """Return the settings that make GPU, CPU and disk hold so many `objects` of `tokens`."""
    tiers = zip(("gpu", "cpu", "nvme"), objects, strict=False)
    return [f"tiers.{tier}.capacity={count * tokens * TOKEN_BYTES}B" for tier, count in tiers]


def test_sglang_moves_the_same_pages_in_the_same_order(monkeypatch, tmp_path):
    theirs = recorded("sglang/sglang-0.5.23-files8192-200-ops")
    rows = simulated(monkeypatch, tmp_path, "sglang-hicache", 200, bounded(64, 0, 0, 8192))
    ours = moved(rows, first_had(200, 64))
    for request in range(200):
        for operation in OPERATIONS:
            assert ours[request][operation, DISK] == theirs[request][operation], (
                operation,
                request,
            )
    assert sum(len(did["delete"]) for did in theirs.values()) == 33_661


THREE_FS = [
    "tiers.nvme.low_watermark=1",
    "tiers.nvme.request_reads=128",
    "tiers.nvme.request_writes=128",
]
NIXL = ["tiers.nvme.request_reads=64", "tiers.nvme.request_writes=64"]
"""What docs/concepts/tiers-and-presets.md says of HiCache's backends of these names."""


@pytest.mark.first(name=1)
@pytest.mark.parametrize(("name", "sizes", "done"), [
    ("3fs8192-200", [*bounded(64, 0, 0, 8192), *THREE_FS], (41_778, 1_592, 33_586)),
    ("3fs768-adversarial", [*bounded(64, 0, 0, 768), *THREE_FS], (2_398, 4_663, 1_630)),
    ("nixl-200", [*bounded(64, 0, 0, 0)[:2], *NIXL], (40_794, 2_576, 0)),
])  # fmt: skip
def test_sglangs_3fs_and_nixl_move_the_same_pages_in_order(
    monkeypatch, tmp_path, name, sizes, done
):
    path = tmp_path / "hard.jsonl" if "adversarial" in name else TRACES / CONVERSATION
    count = adversarial.write(path) if "adversarial" in name else 200
    theirs = recorded(f"sglang/sglang-0.5.23-{name}-ops")
    rows = simulated(monkeypatch, tmp_path, "sglang-hicache", count, sizes, trace=path)
    ours = moved(rows, first_had(count, 64, path))
    for request in range(count):
        for operation in OPERATIONS:
            assert ours[request][operation, DISK] == theirs[request][operation], (
                operation,
                request,
            )
    assert (
        tuple(sum(len(did[of]) for did in theirs.values()) for of in ("write", "read", "delete"))
        == done
    )


@pytest.mark.parametrize(("model", "files"), [("deepseek-v3", 1), ("llama3.1-70b", 8)])
def test_sglang_has_a_file_a_page_and_rank_or_one_for_latents(monkeypatch, tmp_path, model, files):
    row = {"timestamp": 0, "input_length": 640, "output_length": 1, "hash_ids": [0, 1]}
    source, out = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    source.write_text(json.dumps(row) + "\n")
    options = [
        "--source",
        "mooncake",
        "--preset",
        "sglang-hicache",
        "--model",
        model,
        "--tp",
        8,
        "-o",
        out,
    ]
    assert kvtrace(monkeypatch, "gen", source, *options) == 0
    table = read_table(out, TRACE)
    pages = [
        op
        for op, tier in zip(table["op"].to_pylist(), table["tier"].to_pylist(), strict=True)
        if tier == DISK
    ]
    assert pages == ["write"] * (10 * files)


def test_two_ranks_of_sglang_each_read_a_latent_that_one_wrote(monkeypatch, tmp_path):
    trace, most = tmp_path / "hard.jsonl", 12 << 20
    count = adversarial.write(trace)
    settings = [*bounded(64, 0, 0), f"tiers.nvme.capacity={most}B"]
    rows = simulated(
        monkeypatch,
        tmp_path,
        "sglang-hicache",
        count,
        settings,
        trace=trace,
        ranks=2,
        is_latent=True,
    )
    ours, real = (
        moved(rows, first_had(count, 64, trace)),
        recorded("sglang/sglang-0.5.23-two-ranks-latent-ops"),
    )
    for request in range(count):
        for operation in OPERATIONS:
            assert sorted(ours[request][operation, DISK]) == sorted(real[request][operation]), (
                operation,
                request,
            )
    assert tuple(sum(len(did[of]) for did in real.values()) for of in OPERATIONS) == (
        2_398,
        2 * 4_663,
        1_638,
    )


@pytest.mark.parametrize(
    ("name", "trace", "cpu", "disk", "done", "reads"),
    [
        ("cpu512-disk4096-300", CONVERSATION, 512, 4096, (15_913, 24, 11_817), list),
        # A pool of 128 chunks: 17 of the prompts are larger, and LMCache stores of each what the
        # pool holds.
        ("cpu128-disk4096-200", CONVERSATION, 128, 4096, (8_405, 40, 4_309), sorted),
        # Conversations that go on: prefixes in pieces in DRAM and on disk. Threads that read
        # shuffle the order.
        (
            "turns-cpu256-disk1024-160",
            ENGINES / "lmcache" / "turns.jsonl",
            256,
            1024,
            (1_485, 590, 461),
            sorted,
        ),
    ],
)
def test_lmcache_writes_reads_and_deletes_the_same_chunks(
    monkeypatch, tmp_path, name, trace, cpu, disk, done, reads
):
    count = int(name.rpartition("-")[2])
    theirs = recorded(f"lmcache/lmcache-0.5.6-{name}-ops")
    rows = simulated(
        monkeypatch, tmp_path, "lmcache-disk", count, bounded(256, 0, cpu, disk), trace=trace
    )
    ours = moved(rows, first_had(count, 256, trace))
    for request in range(count):
        did, does = theirs[request], ours[request]
        assert reads(does["read", DISK]) == reads(did["read"]), request
        assert sorted(does["write", DISK]) == sorted(did["write"]), request
        # Six threads write a prompt's chunks, so that which of it are the oldest is chance by so
        # many places.
        gone, to_go = does["delete", DISK], did["delete"]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS, request
    assert (
        tuple(sum(len(did[operation]) for did in theirs.values()) for operation in OPERATIONS)
        == done
    )


def test_lmcache_ranks_move_their_chunks_of_hard_traffic(monkeypatch, tmp_path):
    trace, ranks = tmp_path / "hard.jsonl", 2
    count = adversarial.write(trace)
    # Each rank has a pool of 64 chunks and a disk of 144, its own.
    settings = bounded(256, 0, 64 * ranks, 144 * ranks)
    rows = simulated(
        monkeypatch, tmp_path, "lmcache-disk", count, settings, trace=trace, ranks=ranks
    )
    ours = moved(rows, first_had(count, 256, trace, ranks))
    real = recorded("lmcache/lmcache-0.5.6-two-ranks-adversarial-ops")
    for request in range(count):
        for operation in ("write", "read"):
            assert sorted(ours[request][operation, DISK]) == sorted(real[request][operation]), (
                operation,
                request,
            )
        gone, to_go = ours[request]["delete", DISK], real[request]["delete"]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS * ranks, request
    assert tuple(sum(len(did[of]) for did in real.values()) for of in OPERATIONS) == (
        1_962,
        678,
        1_674,
    )
    assert {place % ranks for did in real.values() for of in did.values() for _, place in of} == {
        0,
        1,
    }


@pytest.mark.first(name=1)
@pytest.mark.parametrize(
    ("name", "counts", "is_ordered"),
    [
        ("vllm033-fs-cpu2048-100-ops", "vllm-fs-100-033", True),
        ("vllm033-cpu4096-300-ops", "vllm-offload-cpu-300-033", True),
        # 0.32.0 deletes what prompts larger than the tier displace in an order of its own, request
        # by request the same.
        ("vllm032-cpu4096-300-ops", "vllm-offload-cpu-300", False),
        ("vllm032-fs-cpu2048-100-ops", "vllm-fs-100", False),
    ],
)
def test_vllm_stores_evicts_and_loads_the_same_blocks_in_order(
    monkeypatch, tmp_path, name, counts, is_ordered
):
    golden = json.loads((ENGINES / "counts" / f"{counts}.json").read_text())
    requests = range(golden["requests"])
    rows = simulated(monkeypatch, tmp_path, golden["preset"], len(requests), golden["settings"])
    ours, real = moved(rows, first_had(len(requests), 16)), recorded(f"vllm/{name}")
    for n in requests:
        assert blocks_that_differ(real[n], ours[n], is_ordered=is_ordered) == [], n
    assert sum(len(real[n]["evict"]) for n in requests) > 90_000


@pytest.mark.first(version=1, ranks=1)
@pytest.mark.parametrize(
    ("ranks", "is_latent", "row"), [(1, False, 4096), (2, False, 8192), (2, True, 4096)]
)
@pytest.mark.parametrize("version", ["033", "032"])
@pytest.mark.parametrize(("preset", "name", "done"), [
    ("vllm-offload-cpu", "cpu2048", {"032": (16_085, 12_254, 14_037), "033": (15_962, 12_393, 13_914)}),
    # Of files it brings up what it needs in rounds, and so gives up, and reads again, much of two
    # of the prompts.
    ("vllm-fs", "fs-cpu2048", {"032": (16_508, 20_695, 14_460), "033": (16_508, 20_695, 14_460)}),
])  # fmt: skip
def test_vllm_moves_the_same_blocks_of_hard_traffic(
    monkeypatch, tmp_path, version, preset, name, done, ranks, is_latent, row
):
    # Of any ranks: a block is one row of whole pages, here of 2,560 bytes of each rank, or a latent
    # of as many.
    trace, kv = (
        tmp_path / "hard.jsonl",
        {"ranks": ranks, "is_latent": is_latent, "token_bytes": 160},
    )
    count = adversarial.write(trace)
    settings = ["recency=at-end"] if version == "032" else []
    settings += ["tiers.gpu.capacity=0", f"tiers.cpu.capacity={2048 * row}B"]
    rows = simulated(monkeypatch, tmp_path, preset, count, settings, trace=trace, **kv)
    ours, real = (
        moved(rows, first_had(count, 16, trace)),
        recorded(f"vllm/vllm{version}-{name}-adversarial-ops"),
    )
    for n in range(count):
        assert (
            blocks_that_differ(real[n], ours[n], is_ordered=False, in_rounds=preset == "vllm-fs")
            == []
        ), n
    totals = (("promote", "store"), ("load",), ("evict",))
    assert (
        tuple(sum(len(did[kind]) for did in real.values() for kind in kinds) for kinds in totals)
        == done[version]
    )


@pytest.mark.first(name=1)
@pytest.mark.parametrize(("name", "trace", "blocks", "done"), [
    ("cpu1536-sessions", adversarial.sessions, 1536, (39_838, 49_076, 38_302)),
    ("cpu2048-adversarial", adversarial.prompts, 2048, (2_182, 4_561, 134)),
    ("cpu4096-300", None, 4096, (106_986, 9_984, 102_890)),
])  # fmt: skip
def test_session_aware_eviction_evicts_the_blocks_of_vllm(
    monkeypatch, tmp_path, name, trace, blocks, done
):
    """Of pull request 50422, in the order in which it gives them up."""
    path = TRACES / CONVERSATION if trace is None else tmp_path / "r.jsonl"
    count = 300 if trace is None else adversarial.write(path, trace)
    settings = [
        "tiers.gpu.capacity=0",
        f"tiers.cpu.capacity={blocks * 16 * TOKEN_BYTES}B",
        "tiers.cpu.policy=sae",
    ]
    rows = simulated(monkeypatch, tmp_path, "vllm-offload-cpu", count, settings, trace=path)
    ours, real = moved(rows, first_had(count, 16, path)), recorded(f"vllm/vllm029-sae-{name}-ops")
    for n in range(count):
        assert blocks_that_differ(real[n], ours[n], is_ordered=True) == [], n
    assert (
        tuple(sum(len(did[kind]) for did in real.values()) for kind in ("store", "load", "evict"))
        == done
    )


@pytest.mark.first(slots=1)
@pytest.mark.parametrize(("slots", "reads"), [(32768, 295), (4096, 0)])
def test_vllm_writes_and_reads_the_same_slots_of_its_disk_file(monkeypatch, tmp_path, slots, reads):
    longest = write_alike(tmp_path / "requests.jsonl", CONVERSATION, 150, output=1)
    # Its GPU held the longest prompt, and of the slots one is never used.
    gpu, block = longest // 16 + 2, 2 * 16 * TOKEN_BYTES
    settings = [f"tiers.gpu.capacity={gpu * block}B", f"tiers.nvme.capacity={(slots - 1) * block}B"]
    rows = simulated(
        monkeypatch,
        tmp_path,
        "vllm-disk",
        150,
        settings,
        layers=2,
        trace=str(tmp_path / "requests.jsonl"),
    )
    ours, real = slots_taken(rows, disk=1), recorded_slots(f"vllm/vllm032-disk{slots}-150-slots")
    for n in range(150):
        # Its last two writes of a step come in the order of two buffers, not of the prompt.
        assert sorted(ours[n]["write"]) == sorted(real[n]["write"]), n
        assert ours[n]["read"] == real[n]["read"], n
    assert sum(len(did["read"]) for did in real.values()) == reads
    assert sum(len(did["write"]) for did in real.values()) > 150_000


STEP, BLOCK = 2048, 16


@pytest.mark.first(name=0)
@pytest.mark.parametrize(("name", "gpu", "cpu", "token_ns", "found"), [
    ("gpu4096-together", 4096, 0, 51_200, 2_281_232),
    ("gpu32768-alike", 32768, 0, 129_371, 253_040),
    ("gpu8192-cpu65536-alike", 8192, 65536, 64_686, 651_568),
])  # fmt: skip
def test_vllms_scheduler_finds_as_much_for_prompts_that_wait(
    monkeypatch, tmp_path, name, gpu, cpu, token_ns, found
):
    """Under a virtual clock, at which the GPU takes 1.5 or 3 times as long for all tokens as they
    take to come.
    """
    trace, count = tmp_path / "r.jsonl", 400
    if "together" in name:
        assert adversarial.write(trace, adversarial.together) == count
    else:
        write_alike(trace, CONVERSATION, count, output=1)
    settings = [*bounded(BLOCK, gpu, cpu), "recency=at-end", f"offer_tokens={STEP}"]
    settings += [
        f"prefill_ns_per_token={token_ns}",
        "prefill_attention=[]",
        "decode_ns_per_token=0",
    ]
    simulated(monkeypatch, tmp_path, "vllm-offload-cpu", count, settings, trace=trace, gpu="h100")
    ours, real = (
        begun(trace, tmp_path / "t.parquet", token_ns, STEP, BLOCK),
        queued(f"vllm/vllm032-queue-{name}")[token_ns],
    )
    tokens = [json.loads(line)["input_length"] for line in trace.read_text().splitlines()]
    # Of a prompt of whole blocks that the GPU has vLLM computes the last block again, we its last
    # token.
    hits = [
        ours[n][1] if cpu else min(ours[n][1], (tokens[n] - 1) // BLOCK * BLOCK)
        for n in range(count)
    ]
    differ = [n for n in range(count) if hits[n] != real[n][1]]
    later = [ours[n][0] - real[n][0] for n in range(count) if ours[n][0] >= 0]
    assert sum(tokens for _, tokens in real.values()) == found
    if cpu:
        # In vLLM a load takes a step, and prompts behind it come before it; at the edge of DRAM
        # other blocks are lost.
        assert len(differ) <= 5
        assert sum(hits) == pytest.approx(found, rel=0.03)
        assert sum(later) / len(later) == pytest.approx(
            0, abs=0.02 * max(waited for waited, _ in real.values())
        )
    else:
        assert differ == []
        # Steps of vLLM are shared: the next prompt begins in the step that ends the one before it.
        assert max(map(abs, later)) <= STEP * token_ns


@pytest.mark.first(blocks=1)
@pytest.mark.parametrize(
    ("blocks", "step", "token_ns", "rel", "more"),
    [
        (65_536, 2048, 36_000, 0.04, 0),
        (16_384, 2048, 21_560, 0.04, 0),
        (262_144, 2048, 21_560, 0.03, 0),
        (262_144, 2048, 36_000, 0.15, 0),
        (262_144, 8192, 21_560, 0.06, 0),
        (65_536, 2048, 21_560, 0.05, 0.04),
        (16_384, 2048, 12_000, 0.05, 0),
    ],
)
def test_prompts_and_answers_share_a_gpu_as_in_vllms_scheduler(
    monkeypatch, tmp_path, blocks, step, token_ns, rel, more
):
    """Under a virtual clock, with 7 ms a step for the weights and 56 ns for a token of cache.

    The GPU holds the caches of all requests, of half of them, or of some twenty at a time. Where it
    holds half, and prompts come as fast as they are computed, vLLM preempts requests, which are
    computed again, and ours finds 4 % more; without the blocks of answers it was 14 %.
    """
    real = queued(f"vllm/vllm032-answers-gpu{blocks}-step{step}")[token_ns]
    trace, count, seen = tmp_path / "r.jsonl", len(real), {}
    write_alike(trace, CONVERSATION, count)
    outputs = [json.loads(line)["output_length"] for line in trace.read_text().splitlines()]
    settings = [
        *bounded(BLOCK, blocks, 0),
        "recency=at-end",
        f"offer_tokens={step}",
        f"step_tokens={step}",
    ]
    settings += [
        f"prefill_ns_per_token={token_ns}",
        "prefill_attention=[]",
        "decode_ns_per_token=7000000",
    ]
    settings.append(f"decode_bandwidth={TOKEN_BYTES * 10**9 // 56}B")
    whole = Simulation.stats

    def stats(simulation):
        seen["first_ns"] = np.concatenate(simulation._first_tokens)["ttft_ns"].mean()
        seen["found"] = simulation.world.total.input_tokens - simulation.world.total.missed_tokens
        return whole(simulation)

    monkeypatch.setattr(Simulation, "stats", stats)
    simulated(monkeypatch, tmp_path, "vllm-offload-cpu", count, settings, trace=trace, gpu="h100")
    stats = open_table(tmp_path / "t.parquet", TRACE).meta.stats
    found = sum(found for _, found, _, _ in real.values())
    assert found <= seen["found"] <= (1 + more) * found
    assert seen["first_ns"] == pytest.approx(
        sum(first for _, _, first, _ in real.values()) / count, rel=rel
    )
    generating_ns = sum(last - first for _, _, first, last in real.values())
    # The first token is the prompt's.
    assert stats["decode"]["mean_ns_per_token"] == pytest.approx(
        generating_ns / (sum(outputs) - count), rel=0.03
    )
