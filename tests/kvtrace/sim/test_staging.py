"""Tiers that stage, that are asked in turn, and that make room only at times: worked by hand."""

from __future__ import annotations

import msgspec
import pytest
from phrases import pattern
from simulated import ONE_BYTE, brief, preset_of, requests_of, rows_of, simulate

from kvtrace.core.errors import ConfigError
from kvtrace.llm.shape import Latent
from kvtrace.sim.presets.preset import Match, Promotion, load_preset
from kvtrace.sim.presets.tier import Recency, TierSetting
from kvtrace.sim.simulation import Load

DISK = TierSetting("disk")


def tiers(pool, below=DISK, **fields):
    """Return a preset of chunks of four bytes in two tiers."""
    return msgspec.structs.replace(preset_of(1), tiers=(pool, below), **fields)


def test_a_prompt_over_the_staging_tier_is_stored_in_part():
    preset = tiers(TierSetting("pool", 8, staging=True))
    requests = requests_of([(0, 12, 0, [0, 1, 2]), (10, 12, 0, [0, 1, 2])])
    assert brief(rows_of(preset, requests)) == [
        "write 0 prefill 0 4 0/0",
        "write 0 prefill 1 4 0/0",
        "write 1 store 0 4 0/1",
        "write 1 store 1 4 0/1",
        # What is found makes room for the rest, but only now.
        "read 0 load 0 4 1/0",
        "read 0 load 1 4 1/0",
        "delete 0 evict 0 4",
        "write 0 prefill 2 4 1/1",
        "write 1 store 2 4 1/2",
    ]


@pytest.mark.parametrize(
    ("staging", "pool", "stalled"), [(True, 8, 1), (False, 8, 2), (False, 12, 0), (True, 12, 0)]
)
def test_requests_that_load_more_than_a_tier_holds_are_counted(staging, pool, stalled):
    # Three chunks, loaded twice. A pool of two that stages has stored two of them below; the second
    # request finds these and stores the third, which the last one finds, too: its three do not fit.
    # Without staging all are below at once.
    requests = requests_of([(at, 12, 0, [0, 1, 2]) for at in (0, 10, 20)])
    simulation, *_ = simulate(
        tiers(TierSetting("pool", pool, staging=staging, loads_whole=True)), Load(requests=requests)
    )
    assert simulation.stats().stalled_requests == stalled
    rows_alike = [
        rows_of(tiers(TierSetting("pool", pool, staging=staging, loads_whole=is_whole)), requests)
        for is_whole in (0, 1)
    ]
    assert rows_alike[0] == rows_alike[1]


def test_loads_backwards_leave_the_first_object_the_most_recent():
    pool = TierSetting("pool", 8, staging=True, loads_backwards=True)
    requests = requests_of([(0, 12, 0, [0, 1, 2]), (10, 12, 0, [0, 1, 2])])
    assert "delete 0 evict 1 4" in brief(rows_of(tiers(pool), requests))


@pytest.mark.parametrize(
    ("match", "read_from"), [(Match.PREFIX, [1, 0, 0]), (Match.PREFIX_BY_TIER, [1, 1, 1])]
)
def test_behind_a_gap_a_tier_asked_in_turn_is_not_asked_again(match, read_from):
    # The second prompt takes the room of the first one's first chunk.
    requests = requests_of([(0, 12, 0, [0, 1, 2]), (10, 4, 0, [3]), (20, 12, 0, [0, 1, 2])])
    preset = tiers(TierSetting("pool", 12), match=match, promotion=Promotion.NEVER)
    assert [tier for _, op, tier, *_ in rows_of(preset, requests) if op == "read"] == read_from


def test_reads_from_below_take_staging_room_but_are_not_stored():
    requests = requests_of([(0, 8, 0, [0, 1]), (10, 8, 0, [2, 3]), (20, 4, 0, [0])])
    preset = tiers(TierSetting("pool", 8, staging=True), promotion=Promotion.NEVER)
    assert brief(rows_of(preset, requests))[-2:] == ["read 1 load 0 4 2/0", "delete 0 evict 2 4"]


def test_what_any_tier_holds_is_not_stored_again():
    # Chunk 0 makes room for chunk 2 in both tiers, so that chunk 1, which both hold, is computed
    # again.
    requests = requests_of([(0, 8, 0, [0, 1]), (10, 4, 0, [2]), (20, 8, 0, [0, 1])])
    pool, disk = TierSetting("pool", 8, staging=True), TierSetting("disk", 8)
    # Buffers for both take all of the pool, and the disk gives up chunk 1 for chunk 0.
    assert brief(rows_of(tiers(pool, disk), requests))[8:] == [
        "delete 0 evict 1 4",
        "delete 0 evict 2 4",
        "write 0 prefill 0 4 2/0",
        "write 0 prefill 1 4 2/0",
        "delete 1 evict 1 4",
        "write 1 store 0 4 2/1",
        "delete 1 evict 2 4",
        "write 1 store 1 4 2/1",
    ]
    assert brief(rows_of(tiers(pool, disk, skip_held=True), requests))[8:] == [
        "delete 0 evict 1 4",
        "write 0 prefill 0 4 2/0",
        "delete 1 evict 1 4",
        "write 1 store 0 4 2/1",
    ]


def test_room_is_made_at_intervals_and_the_excess_is_refused():
    pool = TierSetting(
        "pool", 20, high_watermark=0.8, evict_every="10ns", evict_share=0.5, staging=True
    )
    requests = requests_of([
        (1, 16, 0, [0, 1, 2, 3]),  # fills it to its mark
        (15, 16, 0, [4, 5, 6, 7]),  # half went at 10, and 12 of 20 bytes are left
        (16, 12, 0, [8, 9, 10]),
    ])  # fmt: skip
    rows = rows_of(tiers(pool), requests)
    assert [(row[0], row[1], row[4]) for row in rows if row[2] == 0 and row[0] >= 10] == [
        (10, "delete", 0), (10, "delete", 1), (16, "write", 8), (16, "write", 9), (16, "write", 10),
    ]  # fmt: skip
    assert not [row for row in rows if row[6] == 1]


def test_a_share_of_very_much_is_a_share():
    # 16 of 20 chunks of 1 TiB: more than 64 bits hold, times a million.
    large = msgspec.structs.replace(
        ONE_BYTE, groups=(Latent(layers=1, latent_dim=2**38, rope_dim=0),)
    )
    pool = TierSetting("pool", 20 << 40, high_watermark=0.8, evict_every="10ns", evict_share=0.75)
    requests = requests_of([(1, 64, 0, list(range(16))), (11, 4, 0, [16])])
    rows = rows_of(tiers(pool), requests, large)
    assert [row[4] for row in rows if row[:3] == (10, "delete", 0)] == list(range(12))


def test_staging_evicts_above_its_mark_down_to_its_low_mark():
    pool = TierSetting("pool", 20, high_watermark=0.8, low_watermark=0.4, evict_every="10ns")
    requests = requests_of(
        [(1, 12, 0, [0, 1, 2]), (11, 4, 0, [3]), (12, 4, 0, [4]), (35, 4, 0, [5])]
    )
    rows = [(row[0], row[1], row[4]) for row in rows_of(tiers(pool), requests) if row[2] == 0]
    assert [row for row in rows if row[1] == "delete"] == [
        (20, "delete", 0),
        (20, "delete", 1),
        (20, "delete", 2),
    ]


def test_between_the_times_it_makes_just_enough_room_if_so_said():
    pool = TierSetting(
        "pool", 20, high_watermark=0.8, low_watermark=0.4, evict_every="10ns", fits_at_once=True
    )
    requests = requests_of([(1, 20, 0, [0, 1, 2, 3, 4]), (5, 4, 0, [5]), (35, 4, 0, [6])])
    rows = [(row[0], row[1], row[4]) for row in rows_of(tiers(pool), requests) if row[2] == 0]
    # 5 finds it full: one chunk goes. At 10 it goes down to two.
    assert [row for row in rows if row[1] == "delete"] == [
        (5, "delete", 0),
        *((10, "delete", n) for n in (1, 2, 3)),
    ]
    assert [row for row in rows if row[1] == "write"][-2:] == [(5, "write", 5), (35, "write", 6)]


@pytest.mark.parametrize(
    ("recency", "deleted"), [(Recency.HEAD_FIRST, [2, 1]), (Recency.TAIL_FIRST_AT_END, [3, 2])]
)
def test_at_its_end_a_session_counts_all_its_chunks_as_used(recency, deleted):
    """What was stored came behind what was loaded.

    A session's end puts the whole prompt in order again.
    """
    backwards = {
        "staging": True,
        "loads_backwards": True,
        "stores_backwards": True,
        "recency": recency,
    }
    pool = TierSetting(
        "pool", 20, high_watermark=0.8, evict_every="10ns", evict_share=0.5, **backwards
    )
    requests = requests_of([(1, 12, 0, [0, 1, 2]), (2, 16, 0, [0, 1, 2, 3]), (11, 4, 0, [9])])
    assert [
        row[4] for row in rows_of(tiers(pool), requests) if row[:2] == (10, "delete")
    ] == deleted


def test_lmcache_mp_goes_from_80_to_64_percent():
    preset = load_preset("lmcache-mp", ["tiers.gpu.capacity=0", "tiers.cpu.capacity=400"])
    preset = msgspec.structs.replace(preset, chunk_tokens=4)
    requests = requests_of(
        [(n, 40, 0, list(range(10 * n, 10 * n + 10))) for n in range(8)] + [(10**9, 4, 0, [99])]
    )
    deleted = [row[4] for row in rows_of(preset, requests) if row[1] == "delete"]
    # 16 of 80 chunks: the first prompt, its last chunk first, and the last six of the second.
    assert deleted == [*range(9, -1, -1), *range(19, 13, -1)]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("tiers.cpu.policy=clock", "staging … clock"),
        ("placement=write-back", "staging … placement=write-through"),
        ("tiers.nvme.staging=true", "one tier … 2"),
        ("tiers.nvme.evict_share=0.5", "evict_share needs evict_every"),
        ("tiers.nvme.stores_backwards=true", "stores_backwards … staging"),
        ("tiers.nvme.evict_every=1us", "1ms"),
        ("recency=tail-first", "loads_backwards needs recency=head-first"),
    ],
)
def test_what_does_not_go_together_is_refused(setting, why):
    with pytest.raises(ConfigError, match=pattern(why)):
        load_preset("lmcache-disk", [setting])
