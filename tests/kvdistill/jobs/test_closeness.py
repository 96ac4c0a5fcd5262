from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phrases import Saying, shows

from kvdistill.jobs.check import _excuse_device_splits
from kvdistill.jobs.closeness import (  # fmt: skip
    CheckedRun,
    ClosenessPair,
    ObservedRun,
    Stream,
    compare,
    device_figures,
    distributions_of,
    figures_of,
    gaps_us,
    job_figures,
    ks_distance,
    mrc_error,
    sampling_error,
    size_tv,
)
from kvdistill.jobs.job import FioMode, JobOptions
from kvdistill.jobs.second_replay import judge_again, misses_depth
from kvdistill.jobs.verdicts import (
    BYTE_RATE,
    IO_RATE,
    Compared,
    Side,
    StreamFigures,
    Verdict,
    explain_misses,
    judge,
)
from kvdistill.profile.locality import BLOCK_BYTES, block_accesses, block_locality
from kvdistill.profile.profile import (
    DepthProfile,
    InFlight,
    Loop,
    Origin,
    Pacing,
    Profile,
    SourceKind,
)
from kvdistill.profile.streams import empty_direction
from kvtrace.core.statistics import bounds


def stream(rows: list[tuple[int, str, int, int]], resolution_us: int = 1) -> Stream:
    us, ops, offset, length = zip(*rows, strict=True)
    return Stream(
        np.array(us), np.array([o == "read" for o in ops]), np.array(offset), np.array(length),
        np.arange(len(us)), resolution_us,
    )  # fmt: skip


PROFILE = Profile(
    origin=Origin(
        kind=SourceKind.BLOCKS, file="blocks.parquet", program="kvreplay", version="0", config_sha256="", preset=None,
        seed=None, model=None, is_simulated=False, limit="", notes=[],
    ),
    tier="vda", start_ns=0, span_ns=10**10, read=empty_direction(), write=empty_direction(), delete_ops=0, delete_bytes=0,
    stray_delete_ops=0, empty_ops=0, space=None, concurrency=None, arrivals=None, depth=None, idle=None,
    locality=None, streams=[], data=None,
)  # fmt: skip
SOURCE = stream(
    [
        (0, "read", 0, 4096),
        (1000, "read", 0, 8192),
        (2000, "write", 0, 4096),
        (4000, "write", 0, 4096),
    ]
)


def test_the_distance_to_itself_is_nothing():
    found = job_figures("same", SOURCE, SOURCE, is_replay=True, mean_depth=None)
    assert (found.size_tv, found.gap_ks, found.end_slip, found.has_same_ios) == (0, 0, 0, True)
    assert found.mean_depth is None
    assert found.ios_per_s == 1000
    missed = {v.name for v in judge(found, figures_of("source", SOURCE)) if not v.passes}
    # Nobody looked at the device.
    assert missed == {"queue depth", "seen at the device"}


def test_size_distances_by_hand():
    # Reads: half 4 KiB and half 8 KiB against all 8 KiB; writes are alike. Reads are half of the
    # source.
    other = stream([(0, "read", 0, 8192), (1, "write", 0, 4096)])
    assert size_tv(other, SOURCE) == 0.25
    only_reads = stream([(0, "read", 0, 4096), (1, "read", 0, 8192)])
    assert size_tv(only_reads, SOURCE) == 0.5, "a direction that is missing is all wrong"


def test_ks_by_hand():
    assert ks_distance(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 4])) == 0
    assert ks_distance(np.array([1, 1, 5, 5]), np.array([1, 5, 5, 5])) == 0.25
    assert ks_distance(np.array([0]), np.array([], dtype=np.int64)) is None
    # Moved by up to 2, the 3 of one can be the 5 of the other, but the 1 cannot.
    assert ks_distance(np.array([1, 3]), np.array([5, 5]), tolerance=2) == 0.5
    assert ks_distance(np.array([5, 5]), np.array([1, 3]), tolerance=2) == 0.5
    assert ks_distance(np.array([1, 3]), np.array([5, 5]), tolerance=4) == 0


def test_gaps_are_compared_as_finely_as_both_are_known():
    coarse = stream(
        [
            (0, "read", 0, 4096),
            (1000, "read", 0, 8192),
            (2000, "write", 0, 4096),
            (4000, "write", 0, 4096),
        ],
        1000,
    )
    fine = stream(
        [
            (1, "read", 0, 4096),
            (1300, "read", 0, 8192),
            (2100, "write", 0, 4096),
            (4999, "write", 0, 4096),
        ]
    )
    found = job_figures("x", coarse, fine, is_replay=True, mean_depth=None)
    assert (found.gap_ks, found.gap_resolution_us) == (0, 1000)


def test_lateness_and_other_io_fail_their_targets():
    late = stream(
        [
            (0, "read", 0, 4096),
            (1000, "read", 0, 8192),
            (2000, "write", 0, 4096),
            (4080, "write", 0, 4096),
        ]
    )
    found = job_figures("late", late, SOURCE, is_replay=True, mean_depth=None)
    assert found.end_slip == pytest.approx(0.02)
    assert (found.late_p50_us, found.late_p99_us) == (0, None)
    failed = {v.name for v in judge(found, figures_of("s", SOURCE)) if v.passes is False}
    assert failed == {"I/Os a second", "bytes a second", "end of the replay"}
    found_late = judge(msgspec.structs.replace(found, late_p50_us=200_000), figures_of("s", SOURCE))
    why = "200 ms"
    assert all(shows(v.reason, why) for v in found_late if v.name in failed)
    # One of its three gaps is another: 4 arrivals tell no more.
    (gap,) = (
        v for v in judge(found, figures_of("s", SOURCE)) if v.name == "gaps between arrivals, KS"
    )
    assert (gap.value, gap.passes) == (pytest.approx(1 / 3), None)
    other = stream(
        [
            (0, "read", 4096, 4096),
            (1000, "read", 0, 8192),
            (2000, "write", 0, 4096),
            (4000, "write", 0, 4096),
        ]
    )
    assert job_figures("o", other, SOURCE, is_replay=True, mean_depth=None).has_same_ios is False


def test_the_same_ios_in_another_order_are_the_same():
    order = [1, 0, 3, 2]
    swapped = Stream(
        SOURCE.us, SOURCE.is_read[order], SOURCE.offset[order], SOURCE.length[order], SOURCE.arrival
    )
    assert job_figures("o", swapped, SOURCE, is_replay=True, mean_depth=None).has_same_ios is True


def test_gaps_are_between_arrivals_at_their_first_io():
    two = Stream(
        np.array([0, 70, 1000, 1005]), np.ones(4, dtype=bool), np.zeros(4, dtype=np.int64), np.full(4, 512),
        np.array([0, 0, 1, 1]),
    )  # fmt: skip
    assert gaps_us(two).tolist() == [1000]


def test_what_chance_explains_neither_passes_nor_fails():
    # 4 draws of reads and writes, half and half: two standard deviations are as much as the share
    # itself.
    drawn = stream(
        [
            (0, "read", 0, 4096),
            (1000, "read", 0, 8192),
            (2000, "read", 0, 4096),
            (4000, "write", 0, 4096),
        ]
    )
    found = job_figures("d", drawn, SOURCE, is_replay=False, mean_depth=None)
    assert found.read_share == 0.75
    first = judge(found, figures_of("s", SOURCE), sampling_error(SOURCE, 4, 1 << 31))[0]
    assert (first.value, first.passes, first.reason) == (0.5, None, Saying("4 operations"))
    # SamplingError falls with the square root of the draws, down to the bound of 1.5 %.
    chance = sampling_error(SOURCE, 4, 1 << 31)
    assert first.operations_factor == pytest.approx((chance.read_share / 0.015) ** 2)
    many = sampling_error(SOURCE, round(4 * first.operations_factor), 1 << 31)
    assert many.read_share == pytest.approx(0.015, rel=1e-3)
    settled = judge(found, figures_of("s", SOURCE))[0]
    assert (settled.passes, settled.operations_factor) == (False, None)


def test_splits_by_the_device_do_not_fail_a_drawn_job():
    def pair(mode: FioMode, size_tv: float, passes: bool | None) -> ClosenessPair:
        figures = msgspec.structs.replace(figures_of("j", SOURCE, Side.DEVICE), size_tv=size_tv)
        found = Verdict("block-size mismatch", "<= 1.5 %", size_tv, passes)
        return ClosenessPair(
            job=mode.job, window="all", source=figures, fio=figures, verdicts=[found]
        )

    exact, near, far = (
        pair(FioMode.REPLAY, 0.004, True),
        pair(FioMode.STAT, 0.018, False),
        pair(FioMode.REUSE, 0.02, False),
    )
    found = {each.job: each.verdicts[0] for each in _excuse_device_splits([near, exact, far])}
    assert found[FioMode.STAT.job].passes is None
    assert shows(found[FioMode.STAT.job].reason, "0.4 %")
    assert (found[FioMode.REUSE.job].passes, found[FioMode.REPLAY.job].passes) == (False, True)
    # Without the exact replay, or where that was not seen at the device, nothing is known of it.
    assert _excuse_device_splits([near, far])[0].verdicts[0].passes is False


def compared(figures: StreamFigures, source: StreamFigures, **fields: object) -> Compared:
    return Compared(
        **{
            "mode": FioMode.REPLAY,
            "figures": figures,
            "source": source,
            "issued": 1000,
            "is_replayed": True,
            "has_lanes": False,
            "has_null_engine": False,
            "has_closed_loop": False,
            "is_target_too_slow": False,
            "replayed_gap_ks": None,
        }
        | fields
    )


def test_a_split_at_an_extent_is_not_a_miss():
    def side(requests: int) -> StreamFigures:
        return msgspec.structs.replace(
            figures_of("j", SOURCE, Side.DEVICE),
            requests=requests,
            ios_per_s=requests / 5,
            has_same_ios=True,
        )

    missed = [
        Verdict("I/Os a second", "within 1.5 %", -0.0196, False),
        Verdict("block-size mismatch", "<= 1.5 %", 0.03, False),
        Verdict("bytes a second", "within 1.5 %", 0.02, False),
        Verdict("read share", "within 1.5 %", 0.0196, False),
    ]
    # 20 of 1,000 I/Os became two requests each in kvreplay's file: a size mismatch of at most 4 %.
    found = explain_misses(missed, compared(side(1000), side(1020)))
    assert [(each.value, each.passes) for each in found] == [
        (0, True),
        (0.03, None),
        (0.02, False),
        (0, True),
    ]
    # Without a split, or if one I/O in ten is split, the misses stand.
    assert explain_misses(missed, compared(side(1000), side(1000))) == missed
    assert explain_misses(missed, compared(side(1000), side(1100))) == missed


@pytest.mark.parametrize(
    ("replayed", "passes"), [(0.02, None), (0.011, None), (0.009, False), (0.0, False)]
)
def test_gaps_are_judged_by_those_that_kvreplay_kept(replayed, passes):
    # 101 arrivals: one late arrival changes 2 of 100 gaps.
    side = msgspec.structs.replace(figures_of("j", SOURCE, Side.DEVICE), arrivals=101)
    missed = Verdict("gaps between arrivals, KS", "<= 0.03", 0.031, False)
    found = explain_misses([missed], compared(side, side, replayed_gap_ks=replayed))
    assert found[0].passes is passes


@pytest.mark.parametrize(
    ("job", "first", "second", "passes", "value"),
    [
        (13.0, 10.0, 11.0, True, 13 / 11 - 1),  # the replays are within 25 % of each other
        (10.5, 10.0, 11.0, True, 0.0),
        (13.0, 10.0, 14.0, None, 0.3),  # they are not: the disk does not repeat
        (20.0, 10.0, 14.0, False, 1.0),  # further off than 25 % from both
    ],
)
def test_a_missed_depth_is_judged_by_two_replays(job, first, second, passes, value):
    assert judged_again([job], first, second) == (passes, pytest.approx(value))


@pytest.mark.parametrize(
    ("jobs", "first", "second", "passes", "value"),
    [
        ([27.0, 10.5], 10.0, 11.0, None, 1.7),  # the disk was slow in the first run alone
        ([13.0, 11.5], 10.0, 10.0, True, 0.15),
        ([27.0, 25.0], 10.0, 11.0, False, 1.7),  # the job is deeper both times
        ([5.0, 7.0], 10.0, 11.0, False, -0.5),
        ([5.0, 9.0], 10.0, 11.0, None, -0.5),
    ],
)
def test_a_missed_depth_is_judged_by_two_runs(jobs, first, second, passes, value):
    assert judged_again(jobs, first, second) == (passes, pytest.approx(value))


def judged_again(jobs: list[float], first: float, second: float) -> tuple[bool | None, float]:
    """Return the verdict on a depth with a target of 25 %, by the runs of a job and two replays."""

    def side(depth: float) -> StreamFigures:
        return msgspec.structs.replace(figures_of("j", SOURCE, Side.DEVICE), mean_depth=depth)

    missed = Verdict("queue depth", "within 25 %", jobs[0] / first - 1, False)
    replay = FioMode.REPLAY.job
    pair = ClosenessPair(
        job=replay, window="all", source=side(first), fio=side(jobs[0]), verdicts=[missed]
    )
    assert misses_depth(pair)
    second_runs = {replay: side(jobs[1])} if len(jobs) > 1 else {}
    found = judge_again([pair], side(second), second_runs)
    return found[0].verdicts[0].passes, found[0].verdicts[0].value


def test_chance_of_equal_operations_follows_the_binomial():
    rows = 10_000
    ops = Stream(
        np.arange(rows),
        np.arange(rows) % 4 == 0,
        np.arange(rows),
        np.full(rows, 4096),
        np.arange(rows),
    )
    chance = sampling_error(ops, 2500, 1 << 31)
    assert chance.operations == 2500
    assert chance.read_share == pytest.approx(2 * (0.75 / 0.25 / 2500) ** 0.5, rel=0.15)
    # The number of draws is that of chance, too; all have one size.
    for found in (chance.ios_per_s, chance.bytes_per_s, chance.mean_depth):
        assert found == pytest.approx(2 * 2500**-0.5, rel=0.15)
    assert chance.size_tv == 0
    # Of a hundred times as many, more than are drawn, a tenth.
    assert sampling_error(ops, 250_000, 1 << 31).read_share == pytest.approx(
        chance.read_share / 10, rel=0.25
    )


def test_few_operations_of_many_parts_are_few():
    """25 operations of 1 or 300 parts are 3,760 requests, and yet 25 draws.

    The same requests one by one are 3,760.
    """
    length = np.where(np.arange(25) % 2, 300, 1) << 20
    few = Stream(np.arange(25), np.arange(25) % 2 == 0, np.arange(25), length, np.arange(25))
    as_few = sampling_error(few, 25, 1 << 20)
    parts = np.repeat(np.arange(25), length >> 20)
    many = Stream(
        parts, few.is_read[parts], parts, np.full(len(parts), 1 << 20), np.arange(len(parts))
    )
    as_many = sampling_error(many, len(parts), 1 << 20)
    assert as_few.ios_per_s > 10 * as_many.ios_per_s
    assert as_few.read_share > 0.7, "the share of 13 reads in 3,613 hangs on the 12 long writes"
    assert as_few.mean_depth > as_few.bytes_per_s > 0.3
    assert (as_few.size_tv, as_many.size_tv) == (0, 0)


@pytest.mark.parametrize(("is_null", "pace"), [(True, "closed"), (True, "even"), (False, "closed")])
def test_a_closed_loop_on_the_null_engine_is_not_timed(tmp_path, is_null, pace):
    """It goes as fast as operations that take no time: I/Os were 228 times as many, and FAILED."""
    loop = SimpleNamespace(loop=Loop(Pacing(pace)))
    source = msgspec.structs.replace(PROFILE, streams=[loop])
    options = JobOptions(modes=[FioMode.STAT], has_check=True, has_null_check=is_null)
    distilled = SimpleNamespace(profile=source, ios=tmp_path)
    run = CheckedRun(FioMode.STAT, distilled, "the whole window", 0, tmp_path, options, None, None)
    quick = stream([(n, "read" if n % 2 else "write", 0, 4096) for n in range(4000)])
    figures = job_figures("stat", quick, SOURCE, is_replay=False, mean_depth=None)
    found = compare(
        run, ObservedRun({}, None, ""), SOURCE, figures, sampling_error(quick, 10**9, 1 << 31)
    )
    rate = next(v for v in found.verdicts if v.name == "I/Os a second")
    said = Saying("closed loop")
    assert (rate.passes, rate.reason) == (
        (None, said) if is_null and pace == "closed" else (False, None)
    )


def test_gaps_shorter_than_their_resolution_are_not_compared():
    coarse, fine = (
        stream([(i * step, "read", 0, 4096) for i in range(9)], 1000) for step in (100, 120)
    )
    assert job_figures("x", coarse, fine, is_replay=True, mean_depth=None).gap_ks is None


def test_one_instant_has_no_rate_and_no_gaps():
    burst = stream([(5, "read", 0, 4096), (5, "read", 0, 4096)])
    source = figures_of("burst", burst)
    assert (source.ios_per_s, source.bytes_per_s) == (None, None)
    found = job_figures("x", SOURCE, burst, is_replay=False, mean_depth=None)
    assert found.gap_ks is None
    assert [v.passes for v in judge(found, source, sampling_error(burst, 4, 1 << 31))][1:3] == [
        None,
        None,
    ]


def test_locality_by_hand():
    # Blocks 0 1 2 0 0 1: two others between the first pair, none in the second, two before block 1.
    offsets = np.array([0, 1, 2, 0, 0, 1]) * BLOCK_BYTES
    assert block_accesses(offsets, np.full(6, 4096)).tolist() == [0, 1, 2, 0, 0, 1]
    # The hottest tenth of three is the one that half of the accesses go to.
    found = block_locality(offsets, np.full(6, 4096))
    assert (found.hot10_share, found.reuse_p50_blocks) == (0.5, 2)
    # Of six, one hits in a cache of one block and of two; all three that come back, in one of
    # three.
    assert (found.hit_ratios * 6).tolist() == [1, 1, 3]
    # One operation over a block's edge touches both.
    assert block_accesses(np.array([BLOCK_BYTES - 512]), np.array([1024])).tolist() == [0, 1]
    never = block_locality(offsets[:3], np.full(3, 4096))
    assert (never.reuse_p50_blocks, never.hit_ratios.tolist()) == (None, [0, 0, 0])
    assert block_locality(offsets[:0], offsets[:0]) is None


def test_the_error_of_the_miss_ratio_curve_by_hand():
    # Two blocks in turn, and each of them twice: in a cache of one block half of the second hit, in
    # larger ones as many of both. Over sizes of one and two that is half of 4 in 8.
    turns, pairs = (stream([(i, "read", BLOCK_BYTES * at, 4096) for i, at in enumerate(order)])
                    for order in ([0, 1] * 4, [0, 0, 1, 1] * 2))  # fmt: skip
    assert (turns.blocks.hit_ratios * 8).tolist() == [0, 6]
    assert (pairs.blocks.hit_ratios * 8).tolist() == [4, 6]
    assert mrc_error(turns, pairs) == mrc_error(pairs, turns) == 0.25
    assert mrc_error(turns, turns) == 0
    # A cache of three blocks holds all of another: from two on, `turns` stays as it is.
    three = stream([(i, "read", BLOCK_BYTES * (i % 3), 4096) for i in range(6)])
    assert mrc_error(three, turns) == pytest.approx((0 + 0.75 + 0.25) / 3)
    found, source = (
        job_figures("x", turns, pairs, is_replay=True, mean_depth=None),
        figures_of("s", pairs),
    )
    row = next(v for v in judge(found, source) if v.name == "miss-ratio curve")
    assert (row.value, row.passes) == (0.25, False)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=300))
def test_hit_ratios_are_those_of_an_lru_cache(blocks):
    curve = block_locality(np.array(blocks) * BLOCK_BYTES, np.full(len(blocks), 4096)).hit_ratios
    for slot, ratio in enumerate(curve.tolist()):
        size, cache, hits = bounds(slot)[1], [], 0
        for block in blocks:
            hits += block in cache
            cache = [block, *(other for other in cache if other != block)][:size]
        assert ratio * len(blocks) == pytest.approx(hits)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=120))
def test_reuse_is_the_count_of_distinct_blocks_between(blocks):
    expected = []
    for i, block in enumerate(blocks):
        if block in blocks[:i]:
            before = i - 1 - blocks[:i][::-1].index(block)
            expected.append(len(set(blocks[before + 1 : i])))
    found = block_locality(np.array(blocks) * BLOCK_BYTES, np.full(len(blocks), 4096))
    assert found.reuse_p50_blocks == (float(np.median(expected)) if expected else None)


def test_what_the_device_sees_in_parts_is_refused():
    # 1 MiB reads at 200/s, which arrive as 1016 and 8 KiB: fio's own side is all the same.
    us = np.arange(2000) * 5000
    whole = Stream(us, np.ones(2000, bool), us * 400, np.full(2000, 1 << 20), np.arange(2000))
    parts = np.tile([1016 << 10, 8 << 10], 2000)
    split = Stream(
        np.repeat(us, 2), np.ones(4000, bool), np.repeat(us * 400, 2), parts, np.arange(4000)
    )
    logged = job_figures("replay", whole, whole, is_replay=True, mean_depth=None)
    assert logged.size_tv == 0
    for stream, passes in ((whole, True), (split, False)):
        found = device_figures("replay", logged, stream, PROFILE, whole, has_gaps=True)
        verdict = {v.name: v.passes for v in judge(found, figures_of("s", whole))}
        assert verdict["block-size mismatch"] is passes
        assert verdict["I/Os a second"] is passes
        assert "seen at the device" not in verdict
    # Nobody may say that it passes who has not looked.
    unseen = {v.name: v.passes for v in judge(logged, figures_of("s", whole))}
    assert unseen["seen at the device"] is None


def test_concurrency_is_weighted_by_time():
    depth = DepthProfile(
        mean=1.5, read_mean=1.5, write_mean=0, max=9, timed_share=1,
        shares=[InFlight(0, 0.25), InFlight(1, 0.5), InFlight(3, 0.245), InFlight(9, 0.005)],
    )  # fmt: skip
    found = figures_of("s", SOURCE, profile=msgspec.structs.replace(PROFILE, depth=depth))
    assert (found.mean_depth, found.in_flight_p99, found.idle_share) == (1.5, 3, 0.25)


def test_one_late_arrival_of_a_short_replay_is_no_miss():
    """It changes the gaps on both sides of it: two of 27; a third is a miss."""
    found = msgspec.structs.replace(
        job_figures("same", SOURCE, SOURCE, is_replay=True, mean_depth=None), arrivals=28
    )
    source = msgspec.structs.replace(figures_of("source", SOURCE), arrivals=28)
    judged = {}
    for gaps in (1, 2, 3):
        late = msgspec.structs.replace(found, gap_ks=gaps / 27)
        (judged[gaps],) = (v.passes for v in judge(late, source) if v.name.startswith("gaps"))
    assert judged == {1: None, 2: None, 3: False}


@pytest.mark.parametrize(("is_too_slow", "passes"), [(True, None), (False, False)])
def test_a_target_that_is_too_slow_is_no_miss_of_the_job(is_too_slow, passes):
    source = figures_of("j", SOURCE, Side.ASKED)
    slow = msgspec.structs.replace(
        source, ios_per_s=source.ios_per_s / 4, bytes_per_s=source.bytes_per_s / 4
    )
    verdicts = explain_misses(
        judge(slow, source, has_lanes=True),
        compared(slow, source, is_replayed=False, has_lanes=True, is_target_too_slow=is_too_slow),
    )
    rates = [each for each in verdicts if each.name in (IO_RATE, BYTE_RATE)]
    assert [each.passes for each in rates] == [passes, passes]
    assert all(("slower" in (each.reason or "")) == is_too_slow for each in rates)
    # A job that is faster than its source is wrong, whatever the target.
    fast = msgspec.structs.replace(source, ios_per_s=source.ios_per_s * 4)
    verdicts = explain_misses(
        judge(fast, source, has_lanes=True),
        compared(fast, source, is_replayed=False, has_lanes=True, is_target_too_slow=is_too_slow),
    )
    assert [each.passes for each in verdicts if each.name == IO_RATE] == [False]


def test_distributions_are_by_nearest_rank():
    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    stream = Stream(
        us=column(0, 0, 10, 40),
        is_read=np.ones(4, dtype=bool),
        offset=column(0, 1, 2, 3) << 20,
        length=column(4096, 8192, 8192, 65536),
        arrival=column(0, 0, 1, 2),
    )
    found = distributions_of(stream)
    by_share = dict(zip(found.shares, zip(found.io_bytes, found.gap_ns, strict=True), strict=True))
    # Two gaps, of 10 and 30 us: the I/Os of one arrival have none.
    assert by_share[0.0] == (4096, 10_000)
    assert by_share[0.5] == (8192, 10_000)
    assert by_share[0.99] == (65536, 30_000)
    none = column()
    empty = Stream(us=none, is_read=none.astype(bool), offset=none, length=none, arrival=none)
    assert distributions_of(empty) is None
