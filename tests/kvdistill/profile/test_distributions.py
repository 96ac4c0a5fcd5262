from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdistill.jobs.fio_stat import poisson
from kvdistill.profile.profile import (
    MAX_ENTRIES,
    AddressZone,
    DirectionProfile,
    SizeCount,
    cut_long,
    equal_mass_zones,
    percentages,
    split_sizes,
)


def direction(*sizes: tuple[int, int]) -> DirectionProfile:
    total = sum(s * n for s, n in sizes)
    return DirectionProfile(
        ops=sum(n for _, n in sizes), object_bytes=total, io_bytes=total,
        sizes=[SizeCount(s, n) for s, n in sizes], zones=[],
    )  # fmt: skip


def test_largest_remainder_by_hand():
    # 1/7 is 14 and 2/7, 2/7 is 28 and 4/7, 4/7 is 57 and 1/7: the one point left goes to the
    # second.
    assert percentages([1, 2, 4]) == [14, 29, 57]
    assert percentages([1, 1, 1]) == [34, 33, 33]
    assert percentages([999, 1]) == [100, 0]
    with pytest.raises(ValueError, match="weights"):
        percentages([0, 0])


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=80).filter(any))
def test_percentages_are_whole_and_within_one_of_exact(weights):
    shares = percentages(weights)
    assert sum(shares) == 100
    assert all(abs(s - 100 * w / sum(weights)) < 1 for s, w in zip(shares, weights, strict=True))


def test_few_sizes_stay_exact():
    exact = direction((4096, 30), (131072, 50), (1048576, 20))
    split = split_sizes(exact)
    assert str(split) == "4096/30:131072/50:1048576/20"
    assert (split.mismatch_share, split.mean_bytes) == (0, exact.io_bytes / exact.ops)


def test_what_rounding_moves_is_said():
    # 0.4 % of long operations cannot be said in whole percent.
    split = split_sizes(direction((4096, 996), (1 << 20, 4)))
    assert str(split) == "4096/100"
    assert split.mismatch_share == pytest.approx(0.004)
    assert split.mean_bytes == 4096


@given(
    st.lists(
        st.tuples(st.integers(1, 4000), st.integers(1, 50)),
        min_size=70,
        max_size=300,
        unique_by=lambda p: p[0],
    )
)
def test_many_sizes_keep_the_mean(pairs):
    sizes = sorted((512 * s, n) for s, n in pairs)
    exact = direction(*sizes)
    split = split_sizes(exact)
    assert len(split.entries) <= MAX_ENTRIES
    assert sum(percent for _, percent in split.entries) == 100
    assert all(size % 512 == 0 for size, _ in split.entries)
    assert split.mean_bytes == pytest.approx(exact.io_bytes / exact.ops, abs=256)


def test_a_common_size_among_many_keeps_its_share():
    split = split_sizes(direction(*((512 * i, 1) for i in range(1, 101)), (1 << 20, 300)))
    assert dict(split.entries)[1 << 20] == 75


def test_long_operations_are_cut_like_a_replay_does():
    cut = cut_long(direction((4096, 5), (10 << 20, 2)), 4 << 20)
    assert cut.sizes == [SizeCount(4096, 5), SizeCount(2 << 20, 2), SizeCount(4 << 20, 4)]
    assert (cut.ops, cut.io_bytes) == (11, 5 * 4096 + 20 * (1 << 20))


def test_even_mass_makes_even_zones():
    starts = np.arange(200, dtype=np.int64) * 8192
    zones = equal_mass_zones(starts, np.ones(200, dtype=np.int64), 4096)
    # Each zone ends with the granule of its second object.
    assert zones[0] == AddressZone(1, 8192 + 4096)
    assert zones[1:] == [AddressZone(1, 16384)] * 99


def test_a_hot_place_gets_a_zone_of_its_own():
    # 10 %, 60 %, 30 % of the bytes start at granules 0, 10 and 20.
    zones = equal_mass_zones(np.array([0, 40960, 81920]), np.array([1, 6, 3]), 4096)
    expected = [(10, 4096), (0, 36864), (60, 4096), (0, 36864), (30, 4096)]
    assert zones == [AddressZone(*zone) for zone in expected]


@given(
    st.lists(
        st.tuples(st.integers(0, 5000), st.integers(1, 10**9)),
        min_size=1,
        max_size=300,
        unique_by=lambda p: p[0],
    )
)
def test_zones_cover_every_start_with_its_share(pairs):
    pairs.sort()
    starts = np.array([4096 * a for a, _ in pairs], dtype=np.int64)
    mass = np.array([m for _, m in pairs], dtype=np.int64)
    zones = equal_mass_zones(starts, mass, 4096)
    assert sum(z.percent for z in zones) == 100
    ends = np.cumsum([z.span_bytes for z in zones])
    assert ends[-1] <= starts[-1] + 4096
    shares = (
        np.bincount(np.searchsorted(ends, starts, "right"), mass, minlength=len(zones) + 1)
        / mass.sum()
    )
    said = np.array([z.percent for z in zones] + [0]) / 100
    assert np.abs(np.cumsum(shares) - np.cumsum(said)).max() <= 0.02


@pytest.mark.parametrize(
    ("ops_per_s", "expected"),
    [
        (495.2, (1, 495)),
        (3.4, None),  # 3 or 4 would be 12 % off
        (0.01, None),
        # 1,000,000 // 30,000 is 33 µs, 1 % fast; half of it is 66 µs, the same; 10,000 is 100 µs
        (30_000, (3, 10_000)),
    ],
)
def test_a_rate_takes_the_form_that_fio_keeps(ops_per_s, expected):
    rate = poisson(ops_per_s)
    assert (rate and rate[:2]) == expected
    if rate is not None:
        assert rate[2] == pytest.approx(ops_per_s, rel=0.005)
