from __future__ import annotations

import numpy as np
import pytest

from kvtrace.core.statistics import UNKNOWN, differing, ratio


def test_few_trials_span_the_ratios_of_all_pairs():
    # By hand: least of one side over greatest of the other, and the reverse. The median of three drawn trials is the
    # least in 7 of 27 draws, so that both extremes meet in 7 % of resamples, more than the tail of the interval.
    found = ratio([99.0, 100.0, 104.0], [118.0, 120.0, 121.0])
    assert (found.value, found.low, found.high, found.differs) == (1.2, 118 / 104, 121 / 99, True)
    assert ratio([99.0, 100.0, 104.0], [101.0, 103.0, 98.0]).differs is False
    two = ratio([1.0, 2.0], [3.0, 5.0])
    assert (two.value, two.low, two.high) == (4 / 1.5, 3 / 2, 5 / 1)
    five = ratio([1.0, 2.0, 3.0, 4.0, 5.0], [10.0, 20.0, 30.0, 40.0, 50.0])
    assert (five.low, five.high) == (10 / 5, 50 / 1)


def test_more_trials_leave_the_extremes_out():
    a = [100.0 + i for i in range(20)]
    found = ratio(a, [1.5 * x for x in a])
    assert found.value == pytest.approx(1.5)
    assert 1.5 * 100 / 119 < found.low < 1.5 < found.high < 1.5 * 119 / 100


def test_the_ratio_lies_within_its_interval_though_the_means_lie_elsewhere():
    # One slow trial of three: the geometric means differ by a third, the medians by half a percent.
    found = ratio([100.0, 101.0, 99.0], [100.5, 240.0, 99.8])
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1.005)
    assert found.differs is False


@pytest.mark.parametrize(("trials", "least"), [(2, 0.6), (3, 0.86), (4, 0.95), (5, 0.97), (9, 0.95)])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(trials, least):
    # Logarithms of noise with a long tail, as latencies have; the true ratio of the medians is 1.3.
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        a, b = (np.exp(0.05 * rng.standard_exponential(trials)) for _ in range(2))
        found = ratio(a.tolist(), (1.3 * b).tolist())
        held += found.low <= 1.3 <= found.high
    assert held / 200 >= least


def test_an_interval_is_the_same_at_every_call():
    a, b = [float(x) for x in range(10, 22)], [float(x) for x in range(11, 23)]
    assert ratio(a, b) == ratio(a, b)


def test_one_trial_has_a_ratio_but_no_interval():
    found = ratio([2.0], [3.0, 4.0, 5.0])
    assert (found.value, found.low, found.high, found.differs) == (2.0, None, None, None)


def test_trials_that_agree_exactly_are_exact():
    assert ratio([2.0, 2.0], [3.0, 3.0]).differs is True
    same = ratio([2.0, 2.0], [2.0, 2.0])
    assert (same.low, same.high, same.differs) == (1.0, 1.0, False)


def test_what_is_not_known_is_null():
    assert ratio([], [1.0]) == UNKNOWN
    assert ratio([1.0, None], [1.0]) == UNKNOWN
    assert ratio([0.0, 0.0], [1.0]) == UNKNOWN
    # No logarithm of none: a ratio, no interval.
    zero = ratio([1.0, 2.0], [0.0, 1.0])
    assert (zero.value, zero.low) == (1 / 3, None)


def test_settings_that_differ():
    sides = [{"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 4, "d": 3}, "e": None}, {"a": 1, "b": {"c": 2}}]
    assert differing(sides) == {"b.c": [2, 4, 2], "b.d": [3, 3, None]}
