"""Chunks of models with several kinds of layers: an object for each group, read as it is needed."""

from __future__ import annotations

import random
from collections import Counter

import polars as pl
import pytest
from conftest import run_cli
from oracle import Oracle
from simulated import preset_of, requests_of, simulate
from test_oracle import SEMANTICS, WINDOWS

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import bytes_per_token_per_rank, pieces, stored_ranks
from kvtrace.sim.presets.preset import Entry, LayerGroups, Match, Placement, load_preset
from kvtrace.sim.presets.tier import Recency
from kvtrace.sim.simulation import Load, sizes_of

MB = 10**6
GROUP_BYTES = 393_216
"""16 tokens of 12 layers of gpt-oss-20b."""
BLOCKS = 512
"""Blocks of a prompt of 8,192 tokens."""
WINDOW_BLOCKS = 8


def test_vllm_promotes_what_it_reads_of_a_windowed_model(tmp_path):
    # Two prompts of 512 blocks, then the first again and one block more. GPU and DRAM hold 534
    # blocks of both groups: 22 blocks of the first prompt are left, as the last 512 displaced it.
    log, trace = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    prompts = [range(BLOCKS), range(1000, 1000 + BLOCKS), [*range(BLOCKS), 5000]]
    log.write_text("".join(
        f'{{"timestamp": {60_000 * n}, "input_length": {16 * len(ids)}, "output_length": 1,'
        f' "hash_ids": {list(ids)}}}\n'
        for n, ids in enumerate(prompts)
    ))  # fmt: skip
    run_cli(
        "kvtrace", "gen", log, "--source", "mooncake", "--block-tokens", 16, "--preset", "vllm-fs",
        "--model", "gpt-oss-20b", "--gpu", "instant", "--set", f"tiers.gpu.capacity={420 * MB}",
        "--set", f"tiers.cpu.capacity={420 * MB}", "-o", trace,
    )  # fmt: skip
    rows = pl.read_parquet(trace).with_columns(pl.col("op", "phase").cast(pl.String))
    assert rows["length_bytes"].unique().to_list() == [GROUP_BYTES]
    counts = {
        (op, tier, phase): count
        for op, tier, phase, count in rows.group_by("op", "tier", "phase").len().iter_rows()
    }
    loaded = BLOCKS - 22 + WINDOW_BLOCKS  # those of the window twice: once of each group
    assert counts["read", 2, "load"] == loaded
    assert counts["write", 1, "promote"] == counts["write", 0, "promote"] == loaded
    assert counts["write", 2, "store"] == 2 * (2 * BLOCKS + 1)
    assert loaded * GROUP_BYTES == pytest.approx(195.8 * MB, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "counts"),
    [
        ("gpt-oss-20b", [("growing", 1), ("sliding", 1)]),
        ("gemma3-27b", [("growing", 1), ("sliding", 6)]),  # 10 layers, and 52 in sixes of 10
        ("llama4-scout", [("growing", 1), ("chunked", 3)]),
        ("llama3.1-8b", []),
    ],
)
def test_groups_have_as_many_layers_as_the_smallest_kind(model, counts):
    sizes = sizes_of(load_preset("vllm-fs"), find_model(model), 1)
    kinds = Counter(["growing", "sliding", "chunked", "state"][k] for k in sizes.groups["kind"])
    assert list(kinds.items()) == counts
    assert len(set(sizes.groups["bytes"].tolist())) == (1 if counts else 0)


def test_a_preset_of_one_object_reads_and_promotes_it_whole():
    requests = requests_of([(0, 20, 0, range(5)), (1, 4, 0, [9]), (2, 20, 0, range(5))])
    preset = preset_of(0, 84, None)
    assert preset.layer_groups is LayerGroups.ONE
    _, rows, *_ = simulate(preset, Load(requests=requests), WINDOWS)
    moved = Counter()
    for _, op, tier, phase, _, length, *_ in rows:
        moved[op, tier, phase] += length
    assert moved["read", 2, "load"] == moved["write", 1, "promote"] > 0


def random_preset(draw):
    """Return a preset of groups and requests that are walks down one tree."""
    rows, names, now = [], {}, 0
    for _ in range(draw.randint(2, 14)):
        walk = [draw.randint(0, 1) for _ in range(draw.randint(0, 6))]
        now += draw.choice([0, 0, 1, 3, 40])
        ids = [names.setdefault(tuple(walk[: i + 1]), len(names)) for i in range(len(walk))]
        spare = draw.randint(0, 3) if ids else 0
        rows.append((now, len(ids) * 4 - spare, draw.randint(0, 7), ids))
    capacities = [
        draw.choice([None, 0, draw.randint(20, 200), draw.randint(50, 400)])
        for _ in range(draw.randint(1, 3))
    ]
    entry, _, placement, promotion = draw.choice([s for s in SEMANTICS if s[0] is Entry.CHUNK])
    preset = preset_of(
        *capacities, entry=entry, match=draw.choice([Match.PREFIX, Match.PREFIX_BY_TIER]),
        placement=placement, promotion=promotion, chunk_tokens=draw.choice([1, 2, 4, 8]),
        layer_groups=LayerGroups.KIND, is_gpu=draw.choice([True, False]),
        recency=draw.choice(list(Recency)), offer_tokens=draw.choice([0, 0, 4, 9]),
        offers_hits=placement is Placement.WRITE_THROUGH and draw.choice([True, False]),
        pad_bytes=draw.choice([1, 3, 16]), min_load_tokens=draw.choice([0, 0, 5, 9]),
        prefill_ns_per_token=draw.choice([0, 1]), decode_ns_per_token=draw.choice([0, 2]),
        prefill_in_turn=draw.choice([True, False]),
    )  # fmt: skip
    return preset, requests_of(rows)


@pytest.mark.parametrize("seed", range(150))
def test_groups_move_what_plain_python_says(seed):
    draw = random.Random(seed)  # noqa: S311 - a fixed draw
    preset, requests = random_preset(draw)
    ranks = draw.choice([1, 2])
    per_rank, stored = bytes_per_token_per_rank(WINDOWS, ranks), stored_ranks(WINDOWS, ranks)
    oracle = Oracle(preset, requests, per_rank * stored, stored, pieces=pieces(WINDOWS, ranks))
    expected = oracle.run()
    simulation, rows, *_ = simulate(preset, Load(requests=requests), WINDOWS, ranks=ranks)
    assert rows == expected
    stats = simulation.stats()
    assert sum(tier.hits for tier in stats.tiers) == oracle.hits
    assert stats.lookups == oracle.lookups


def test_groups_exclude_objects_of_single_layers():
    with pytest.raises(ConfigError, match="layer_groups"):
        load_preset("vllm-fs", ["layers_per_object=1"])
