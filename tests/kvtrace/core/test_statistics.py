from __future__ import annotations

import numpy as np
import pytest

from kvtrace.core.statistics import UNKNOWN, _student, differing, ratio

# Student's t that 5 % exceed to both sides, by degrees of freedom, and 1.25 % (5 % over 4): a
# printed table's.
STUDENT = {
    (1, 1): 12.706,
    (2, 1): 4.3027,
    (4, 1): 2.7764,
    (8, 1): 2.3060,
    (198, 1): 1.9720,
    (4, 4): 4.3147,
}


def test_an_interval_is_welchs_on_logarithms():
    # By hand: powers of 2, so that the logarithms of a are -1, 0, 1 and those of b 2, 3, 4 (in
    # bits), each of variance 1 and error 1/3; the error of their difference is sqrt(2/3), with 4
    # degrees of freedom.
    a, b = [1.0, 2.0, 4.0], [16.0, 8.0, 32.0]
    found = ratio(a, b)
    reach = STUDENT[4, 1] * (2 / 3) ** 0.5
    assert (found.value, found.differs) == (8.0, True)
    assert (found.low, found.high) == (
        pytest.approx(2 ** (3 - reach), 1e-4),
        pytest.approx(2 ** (3 + reach), 1e-4),
    )
    # Four intervals that hold together are wider each.
    reach = STUDENT[4, 4] * (2 / 3) ** 0.5
    together = ratio(a, b, 4)
    assert (together.low, together.differs) == (pytest.approx(2 ** (3 - reach), 1e-4), False)
    # Where one side does not vary, the other's degrees of freedom are all: 2.
    found = ratio([1.0, 1.0, 1.0], b)
    assert found.low == pytest.approx(2 ** (4 - STUDENT[2, 1] / 3**0.5), 1e-4)


def test_students_t_is_the_tables():
    for (freedom, together), value in STUDENT.items():
        assert _student(freedom, together) == pytest.approx(value, 1e-4)


def test_a_ratio_lies_in_its_interval_though_the_means_do_not():
    # One slow trial of three: the geometric means differ by a third, the medians by half a percent.
    found = ratio([100.0, 101.0, 99.0], [100.5, 240.0, 99.8])
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(1.005)
    assert found.differs is False
    # Two trials that have nothing in common give an interval that says so, and is finite.
    wide = ratio([1e-9, 1e9], [1e9, 1e-9])
    assert 0 < wide.low < 1e-50
    assert 1e50 < wide.high < float("inf")


@pytest.mark.parametrize("trials", [2, 3, 4, 5, 9])
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(trials):
    # Logarithms of noise with a long tail, as latencies have; the true ratio of the medians is 1.3.
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(400):
        a, b = (np.exp(0.05 * rng.standard_exponential(trials)) for _ in range(2))
        found = ratio(a.tolist(), (1.3 * b).tolist())
        held += found.low <= 1.3 <= found.high
    assert held / 400 >= 0.94


def test_how_many_trials_a_small_difference_takes():
    # By hand: the interval of n trials a side reaches t(2 n - 2) sqrt(2 / n) times the logarithms'
    # deviation; 5 % is 4.879 hundredths. With one of 1 hundredth 2 trials reach 4.303, with one of
    # 2 hundredths 3 reach 4.534, with one of 10 hundredths (a table's t(64) = 1.998, t(66) = 1.997)
    # 33 reach 4.918 and 34 reach 4.843.
    for deviation, needed in ((0.01, 2), (0.02, 3), (0.1, 34), (1.0, None)):
        a = np.exp(deviation * np.array([-1.0, 0.0, 1.0])).tolist()
        assert ratio(a, a).trials_needed == needed
    assert ratio([2.0, 2.0], [3.0, 3.0]).trials_needed == 2
    assert ratio([2.0], [3.0, 3.0]).trials_needed is None


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
    sides = [
        {"a": 1, "b": {"c": 2, "d": 3}},
        {"a": 1, "b": {"c": 4, "d": 3}, "e": None},
        {"a": 1, "b": {"c": 2}},
    ]
    assert differing(sides) == {"b.c": [2, 4, 2], "b.d": [3, 3, None]}
