"""What several ranks do with a latent, which is the same on each.

One stores and reads it for all, or each does.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import ONE_BYTE, TWO_HEADS, brief, kvtrace, preset_of, requests_of, rows_of, simulate
from test_oracle import SEMANTICS, presets, request_lists
from whole import read_table

from kvtrace.core.schema import TRACE
from kvtrace.llm.shape import KvDtype, Latent, ModelShape
from kvtrace.sim.presets.tier import TierSetting
from kvtrace.sim.simulation import Load

TWO_BYTES = ModelShape(
    source="test", groups=(Latent(layers=1, latent_dim=2, rope_dim=0),),
    kv_dtype=KvDtype.INT8, max_context_tokens=131072
)  # fmt: skip
"""On each rank as much as TWO_HEADS has on each of two."""


def with_tiers(preset, **fields):
    """Return `preset` with these knobs of every tier."""
    tiers = tuple(msgspec.structs.replace(tier, **fields) for tier in preset.tiers)
    return msgspec.structs.replace(preset, tiers=tiers)


@settings(max_examples=100, deadline=None)
@given(
    preset=st.sampled_from(SEMANTICS).flatmap(presets),
    requests=request_lists(),
    ranks=st.integers(1, 3),
)
def test_each_read_is_one_of_each_rank_where_a_tier_says_so(preset, requests, ranks):
    once = rows_of(preset, requests, ONE_BYTE, ranks=ranks)
    each = with_tiers(preset, each_rank_reads=True)
    # What a row says last is its rank.
    expected = [
        (*row[:-1], rank) for row in once for rank in (range(ranks) if row[1] == "read" else [0])
    ]
    for room in (1, 4096):
        simulation, rows, _, _ = simulate(
            each, Load(requests=requests), ONE_BYTE, ranks=ranks, rows=room
        )
        assert rows == expected
        for t, tier in enumerate(simulation.stats().tiers):
            assert tier.read_bytes == sum(row[5] for row in rows if row[1:3] == ("read", t))
    # What each rank stores of its own heads, each reads: nothing to say twice.
    assert rows_of(each, requests, TWO_HEADS, ranks=2) == rows_of(
        preset, requests, TWO_HEADS, ranks=2
    )


@settings(max_examples=100, deadline=None)
@given(preset=st.sampled_from(SEMANTICS).flatmap(presets), requests=request_lists())
def test_a_latent_stored_by_each_rank_moves_as_equal_heads_do(preset, requests):
    each = with_tiers(msgspec.structs.replace(preset, each_rank_stores=True), each_rank_reads=True)
    assert rows_of(each, requests, TWO_BYTES, ranks=2) == rows_of(
        preset, requests, TWO_HEADS, ranks=2
    )
    assert rows_of(each, requests, TWO_HEADS, ranks=2) == rows_of(
        preset, requests, TWO_HEADS, ranks=2
    )


@pytest.mark.parametrize(
    ("bandwidth", "each_rank_reads", "written_ns"),
    [("1MB", False, 104_000), ("1MB", True, 108_000), ("1600kB", False, 102_500)],
)
def test_each_rank_s_read_takes_time(bandwidth, each_rank_reads, written_ns):
    # 4 B at 1 or 1.6 B/us, once or by both ranks; then the second request stores its second chunk.
    tier = TierSetting("nvme", read_bandwidth=bandwidth, each_rank_reads=each_rank_reads)
    preset = msgspec.structs.replace(preset_of(None), tiers=(tier,))
    requests = requests_of([(0, 4, 1, [0]), (100_000, 8, 1, [0, 1])])
    rows = rows_of(preset, requests, ONE_BYTE, ranks=2)
    assert brief(rows) == [
        "write 0 prefill 0 4 0/0",
        *["read 0 load 0 4 1/0"] * (1 + each_rank_reads),
        "write 0 prefill 1 4 1/1",
    ]
    assert rows[-1][0] == written_ns


def test_one_read_after_the_other_each_by_all_ranks():
    # 8 us and a latency of 10 us, twice; then the third chunk is stored.
    tier = TierSetting(
        "nvme", read_bandwidth="1MB", latency="10us", request_reads=1, each_rank_reads=True
    )
    preset = msgspec.structs.replace(preset_of(None), tiers=(tier,))
    rows = rows_of(
        preset, requests_of([(0, 8, 1, [0, 1]), (100_000, 12, 1, [0, 1, 2])]), ONE_BYTE, ranks=2
    )
    assert [(row[0], row[1]) for row in rows[2:]] == [*[(100_000, "read")] * 4, (136_000, "write")]


EMPTY = {
    "sglang-hicache": ("tiers.gpu.capacity=0", "tiers.cpu.capacity=0"),
    "vllm-fs": ("tiers.gpu.capacity=0", "tiers.cpu.capacity=0", "tiers.cpu.whole_offers=false"),
    "vllm-disk": ("tiers.gpu.capacity=0",),
}
"""So that what is found is found on storage."""


@pytest.mark.parametrize(
    ("preset", "model", "writes", "reads"),
    [
        # Ten pages of 64 tokens or forty blocks of 16, one copy for all ranks, or one of each.
        ("sglang-hicache", "deepseek-v3", 10, 10 * 8),
        ("sglang-hicache", "llama3.1-70b", 10 * 8, 10 * 8),
        ("vllm-fs", "deepseek-v3", 40, 40),
        ("vllm-fs", "llama3.1-70b", 40, 40),
        ("vllm-disk", "deepseek-v3", 40 * 8, 40 * 8),
        ("vllm-disk", "llama3.1-70b", 40 * 8, 40 * 8),
    ],
)
def test_eight_ranks_read_and_write_as_often_as_the_engines(
    monkeypatch, tmp_path, preset, model, writes, reads
):
    source, out = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    row = '{"timestamp": %d, "input_length": 641, "output_length": 1, "hash_ids": [0, 1]}\n'
    source.write_text(row % 0 + row % 1000)
    options = ["--source", "mooncake", "--preset", preset, "--model", model, "--tp", 8, "-o", out]
    options += [part for setting in EMPTY[preset] for part in ("--set", setting)]
    assert kvtrace(monkeypatch, "gen", source, *options) == 0
    table = read_table(out, TRACE)
    disk = max(table["tier"].to_pylist())
    done = [
        op
        for op, tier in zip(table["op"].to_pylist(), table["tier"].to_pylist(), strict=True)
        if tier == disk
    ]
    assert (done.count("write"), done.count("read")) == (writes, reads)
