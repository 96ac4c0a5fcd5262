"""Tiers that store objects compressed or quantised: bytes by hand, and the same as more room."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from conftest import run_cli
from simulated import preset_of, requests_of, rows_of, simulate
from whole import read_table

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.llm.catalogue import find_model
from kvtrace.sim.presets.preset import Entry, load_preset
from kvtrace.sim.simulation import Load

CHUNK = 256 * 24_576
"""Bytes of 256 tokens of tiny-1b: 6 MiB."""
PROMPTS = [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def with_shares(preset, *shares, **last):
    """Return `preset` whose tiers store these shares, the last with these other knobs."""
    tiers = [
        msgspec.structs.replace(tier, stored_share=share)
        for tier, share in zip(preset.tiers, shares, strict=True)
    ]
    tiers[-1] = msgspec.structs.replace(tiers[-1], **last)
    return msgspec.structs.replace(preset, tiers=tuple(tiers))


def every_second(chains=PROMPTS):
    return requests_of([(n * 10**9, 4 * len(ids), 1, ids) for n, ids in enumerate(chains)])


def kinds_of(rows):
    """Count rows by operation, tier and length."""
    return Counter((row[1], row[2], row[5]) for row in rows)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        # Four whole chunks fit: the second prompt displaces the first.
        (1.0, {("write", 0, 4): 12, ("delete", 0, 4): 8}),
        # Eight halves fit: the third prompt is read.
        (0.5, {("write", 0, 2): 8, ("read", 0, 2): 4}),
        # Of three quarters, 3 bytes, five fit: the third displaces three, and finds its first.
        (0.75, {("write", 0, 3): 12, ("delete", 0, 3): 7}),
        # Part of a byte is not stored, but one byte is.
        (0.1, {("write", 0, 1): 8, ("read", 0, 1): 4}),
    ],
)
def test_bytes_of_a_tier_that_stores_a_share(share, expected):
    preset = with_shares(preset_of(16), share)
    simulation, rows, _, object_bytes = simulate(preset, Load(requests=every_second()))
    assert kinds_of(rows) == expected
    assert set(object_bytes) == {4}
    [tier] = simulation.stats().tiers
    moved = Counter()
    for (op, _, length), count in expected.items():
        moved[op] += length * count
    assert (tier.read_bytes, tier.written_bytes, tier.deleted_bytes) == (
        moved["read"], moved["write"], moved["delete"],
    )  # fmt: skip
    assert tier.live_bytes == moved["write"] - moved["delete"]


def test_only_the_tier_that_packs_has_fewer_bytes():
    # Above the packing tier, in which prompts of 16 B take 8 B, one holds a prompt whole.
    preset = with_shares(preset_of(16, None), 1.0, 0.5)
    rows = rows_of(preset, every_second())
    assert kinds_of(rows) == {
        ("write", 0, 4): 8 + 4,  # the third prompt is promoted
        ("write", 1, 2): 8,
        ("read", 1, 2): 4,
        ("delete", 0, 4): 8,
    }


@pytest.mark.parametrize("preset_name", ["lmcache-mp", "vllm-fs", "sglang-hicache", "kvbm"])
def test_a_half_is_twice_the_room(preset_name):
    model = find_model("tiny-1b")
    half = load_preset(preset_name, ["tiers.nvme.stored_share=0.5", "tiers.nvme.capacity=24MiB"])
    whole = load_preset(preset_name, ["tiers.nvme.capacity=48MiB"])
    tokens = half.chunk_tokens
    chains = [[n % 3 * 7 + k for k in range(4)] for n in range(12)]
    requests = requests_of(
        [(n * 10**9, tokens * 4, 1, ids) for n, ids in enumerate(chains)], block_tokens=tokens
    )
    packed, plain = (
        simulate(preset, Load(requests=requests), model)[1] for preset in (half, whole)
    )
    last = len(half.tiers) - 1
    assert [(row[:5], row[5] * (2 if row[2] == last else 1)) for row in packed] == [
        (row[:5], row[5]) for row in plain
    ]


def test_half_the_bytes_take_half_the_time():
    def ttft_ns(share):
        preset = with_shares(preset_of(0, None), 1.0, share, read_bandwidth="1MB")
        requests = every_second([[0, 1, 2, 3]] * 2)
        simulation = simulate(preset, Load(requests=requests))[0]
        return simulation.request_times()[0].tolist()

    # 16 B, and 8 B, at 1 MB/s.
    assert [ttft_ns(1.0), ttft_ns(0.5)] == [[0, 16_000], [0, 8_000]]


def test_a_trace_of_shares_is_valid(tmp_path):
    log, trace = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    lines = [
        {"timestamp": 1000 * n, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for n, ids in enumerate(PROMPTS)
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run_cli(
        "kvtrace", "gen", log, "--source", "mooncake", "--block-tokens", 256, "--preset", "llm-d-fs",
        "--model", "tiny-1b", "--gpu", "instant", "--set", "tiers.gpu.capacity=0", "-o", trace,
        "--set", "tiers.nvme.stored_share=0.3",
    )  # fmt: skip
    run_cli("kvtrace", "validate", trace)
    sizes = set(read_table(trace, TRACE).column("length_bytes").to_pylist())
    assert sizes == {CHUNK * 3 // 10}
    objects = read_table(Path(tmp_path / "t.objects.parquet"), OBJECTS)
    assert set(objects.column("size_bytes").to_pylist()) == {CHUNK}


def test_groups_whose_share_is_no_whole_number_are_refused():
    # 16 tokens of full layers take 327,680 B, those of windows ten times as much.
    gemma = find_model("gemma4-26b")
    preset = load_preset("vllm-fs", ["tiers.nvme.stored_share=0.123", "layer_groups=kind"])
    with pytest.raises(ConfigError, match="whole number of bytes"):
        simulate(preset, Load(requests=every_second()), gemma)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry": Entry.TURN}, "stored_share needs entry=chunk"),
        ({"partial_chunks": True}, "stored_share needs entry=chunk"),
    ],
)
def test_shares_need_objects_of_whole_chunks(change, message):
    settings = [f"{name}={value}".lower() for name, value in change.items()]
    with pytest.raises(ConfigError, match=message):
        load_preset("llm-d-fs", ["tiers.nvme.stored_share=0.5", *settings])


def test_shares_exclude_buckets():
    with pytest.raises(ConfigError, match="stored_share excludes bucket_objects"):
        load_preset("mooncake-store", ["tiers.nvme.stored_share=0.5"])


def test_gpu_memory_holds_whole_objects():
    with pytest.raises(ConfigError, match="whole in GPU memory"):
        load_preset("vllm-fs", ["tiers.gpu.stored_share=0.5"])
