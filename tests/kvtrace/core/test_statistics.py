from __future__ import annotations

import math

import pytest

from kvtrace.core.statistics import UNKNOWN, differing, ratio


def test_the_interval_is_welchs_over_logarithms():
    # Logarithms -d, 0, d and L - d, L, L + d: variances d^2, standard error sqrt(2 d^2 / 3), 4 degrees of freedom,
    # whose t at 97.5 % is 2.776445.
    d, ratio_of = 0.01, 1.05
    a = [math.exp(x) for x in (-d, 0, d)]
    b = [ratio_of * x for x in a]
    found = ratio(a, b)
    half = 2.776445 * math.sqrt(2 * d * d / 3)
    assert found.value == pytest.approx(1.05)
    assert found.low == pytest.approx(1.05 * math.exp(-half), rel=1e-6)
    assert found.high == pytest.approx(1.05 * math.exp(half), rel=1e-6)
    assert found.differs is True
    assert ratio(a, [1.01 * x for x in a]).differs is False


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
