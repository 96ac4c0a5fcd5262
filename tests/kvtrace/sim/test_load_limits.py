"""What LMCache's multi-process server loads: which prompts it looks up, and how many at once."""

from __future__ import annotations

import msgspec
import pytest
from simulated import preset_of, requests_of, rows_of

from kvtrace.core.errors import ConfigError
from kvtrace.sim.presets.preset import Promotion, load_preset


def reads_of(preset, chains):
    """Return when each request reads which bytes from the last tier, of prompts that come again.

    They come every two seconds, and then all together.
    """
    again_ns = 100 * 10**9
    rows = [(n * 2 * 10**9, 4 * len(ids), 1, ids) for n, ids in enumerate(chains)]
    rows += [(again_ns, 4 * len(ids), 1, ids) for ids in chains]
    last = len(preset.tiers) - 1
    return [
        (row[0] - again_ns, row[6] - len(chains), row[5])
        for row in rows_of(preset, requests_of(rows))
        if row[1] == "read" and row[2] == last
    ]


def pool_of(capacity: int, **knobs):
    """Return a GPU without room, a pool that is emptied each second, and a drive of 1 MB/s."""
    preset = preset_of(0, capacity, None, promotion=Promotion.TEMPORARY)
    gpu, pool, drive = preset.tiers
    pool = msgspec.structs.replace(
        pool, staging=True, evict_every="1s", evict_share=1.0, high_watermark=4 / capacity, **knobs
    )
    drive = msgspec.structs.replace(drive, read_bandwidth="1MB")
    return msgspec.structs.replace(preset, tiers=(gpu, pool, drive))


THREE = [[1], [2], [3]]
"""Prompts of one chunk, 4 B, which the drive reads in 4 us."""


@pytest.mark.parametrize(
    ("knobs", "starts_us"),
    [
        # All at once; the drive serves one after the other.
        ({}, [0, 0, 0]),
        ({"loads_at_once": 1}, [0, 4, 8]),
        ({"loads_at_once": 2}, [0, 0, 4]),
        ({"loads_at_once": 3}, [0, 0, 0]),
        # Buffers of 4 B reach a quarter of 15 B, and those of two requests a half.
        ({"loads_share": 0.25}, [0, 4, 8]),
        ({"loads_share": 0.5}, [0, 0, 4]),
        ({"loads_share": 0.6}, [0, 0, 0]),
    ],
)
def test_requests_wait_for_the_loads_of_others(knobs, starts_us):
    reads = reads_of(pool_of(15, **knobs), THREE)
    assert reads == [(1000 * start, n, 4) for n, start in enumerate(starts_us)]


def test_a_prompt_waits_until_all_of_it_has_room():
    # 12 B of the second prompt have no room beside the buffers of the first, 8 of 16 B.
    reads = reads_of(pool_of(16, loads_share=1.0), [[1, 2], [3, 4, 5]])
    assert reads == [(0, 0, 4), (0, 0, 4)] + [(8000, 1, 4)] * 3
    reads = reads_of(pool_of(20, loads_share=1.0), [[1, 2], [3, 4, 5]])
    assert reads == [(0, 0, 4), (0, 0, 4)] + [(0, 1, 4)] * 3


def test_buffers_of_loads_leave_no_room_for_others():
    # Without a limit each finds the pool of 8 B empty. With one, the third is not read but
    # computed: the buffers of the first two fill it.
    prompts = [[1], [2], [3]]
    assert len(reads_of(pool_of(8), prompts)) == 3
    assert [n for _, n, _ in reads_of(pool_of(8, loads_at_once=9), prompts)] == [0, 1]


@pytest.mark.parametrize(
    ("tokens", "read_chunks"), [(0, 1 + 2 + 3), (8, 2 + 3), (9, 3), (12, 3), (13, 0)]
)
def test_short_prompts_are_computed_without_a_lookup(tokens, read_chunks):
    preset = msgspec.structs.replace(pool_of(64), min_lookup_tokens=tokens)
    reads = reads_of(preset, [[1], [2, 3], [4, 5, 6]])
    assert len(reads) == read_chunks


def test_what_is_computed_again_is_not_stored_twice():
    preset = msgspec.structs.replace(pool_of(64), min_lookup_tokens=100)
    prompts = requests_of([(at, 8, 1, [1, 2]) for at in (0, 10 * 10**9)])
    writes = [row for row in rows_of(preset, prompts) if row[1] == "write" and row[2] == 2]
    assert len(writes) == 2


def test_the_preset_has_the_limit_of_its_version():
    assert load_preset("lmcache-mp").tiers[1].loads_at_once == 8
    assert load_preset("lmcache-raw-block").tiers[1].loads_at_once == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["tiers.cpu.loads_at_once=2"], "loads_at_once needs staging"),
        (["tiers.cpu.loads_share=0.5"], "loads_share needs staging"),
    ],
)
def test_limits_need_a_tier_of_buffers(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_preset("vllm-fs", settings)


def test_limits_need_a_queue_and_a_capacity():
    with pytest.raises(ConfigError, match="need prefill_in_turn"):
        load_preset("lmcache-mp", ["prefill_in_turn=false"])
    with pytest.raises(ConfigError, match="loads_share needs a capacity"):
        load_preset("lmcache-mp", ["tiers.cpu.loads_share=0.5", "tiers.cpu.capacity=unlimited"])
