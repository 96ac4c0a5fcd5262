"""The answer of a study, from results made by hand.

The best, the cheapest, Pareto's front, what a knob does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from phrases import show_each, shows

from kvtrace.core.simulation_stats import TimeToFirstToken
from kvtrace.curves.points import Rates, SecondRate, Simulated, TierDemand
from kvtrace.curves.size import Target
from kvtrace.studies.document import (
    collect_findings,
    document,
    first_line,
    front,
    measure_sensitivities,
)
from kvtrace.studies.run import Failed, rows_of
from kvtrace.studies.study import Configuration, Study

GIB = 2**30


def result(hit_ratio, capacity_bytes, p99_ns=None):
    rates = Rates(*[SecondRate(1.0, 2.0)] * 4)
    tier = TierDemand("nvme", capacity_bytes, 10, hit_ratio, 1, 2, 3, 0, rates, 0.5, None)
    times = {f"{name}_ns": p99_ns for name in ("p50", "p95", "p99", "p99_9", "p99_99")}
    first_token = None
    if p99_ns is not None:
        fields = {"requests": 9, "with_cache": times, "without_offload": times}
        first_token = msgspec.convert(fields, TimeToFirstToken)
    return Simulated(
        requests=9, lookups=100, hit_ratio=hit_ratio, saved_tokens=40, input_tokens=100, output_tokens=7, span_ns=10**9,
        tiers=[tier], first_token=first_token, live_bytes=[5], stalled_requests=0, largest_load_bytes=0, load_ns=10**9,
    )  # fmt: skip


def study(rows, price=None):
    """Return the study of (knobs, result)s, and its rows."""
    found = Study(
        Path("s.toml"),
        [Configuration(n, knobs, ()) for n, (knobs, _) in enumerate(rows)],
        price or {},
    )
    return found, rows_of(found, {n: of for n, (_, of) in enumerate(rows) if of is not None})


def test_the_best_and_the_cheapest_that_is_good_enough():
    made = study(
        [
            ({"a": 1}, result(0.5, 1 * GIB)),
            ({"a": 2}, result(0.62, 4 * GIB)),
            ({"a": 3}, result(0.61, 2 * GIB)),
            ({"a": 4}, result(0.62, 3 * GIB)),
        ],
        price={"nvme": 10 / GIB},
    )
    assert shows(
        first_line(collect_findings(*made, Target(0.6))),
        "62.0 % … a=4, price 30 … 60 %: a=3 (61.0 %, price 20)",
    )
    assert shows(first_line(collect_findings(*made, Target(0.7))), "70 %: none")
    assert [of.number for of in collect_findings(*made, Target(0.6)).candidates] == [2, 3, 1, 0]
    assert [of.number for of in collect_findings(*made, None).candidates] == [3, 1, 2, 0]


def test_what_has_no_tier_with_a_price_costs_nothing():
    """Its price was not known, so that it was never the cheapest."""
    made = study([({"a": 1}, result(0.7, 4 * GIB)), ({"a": 2}, Failed("no"))], price={"tape": 1.0})
    assert [row.price for row in made[1]] == [0.0, None]
    assert shows(first_line(collect_findings(*made, Target(0.6))), "60 %: a=1 (70.0 %, price 0)")


def test_without_prices_the_smallest():
    made = study([({"a": 1}, result(0.7, None)), ({"a": 2}, result(0.65, 2 * GIB))])
    assert shows(
        first_line(collect_findings(*made, Target(0.6))),
        "70.0 % … a=1 … 60 %: a=2 (65.0 %, 2.15 GB",
    )
    assert shows(first_line(collect_findings(*made, Target(0.7))), "70 %: … unlimited")


def test_a_time_to_the_first_token():
    made = study(
        [({"a": 1}, result(0.7, 4 * GIB, 10**9)), ({"a": 2}, result(0.6, 2 * GIB, 3 * 10**9))]
    )
    line = first_line(collect_findings(*made, Target(None, ("p99_ns", 2 * 10**9))))
    assert shows(line, "p99 2.00 s … a=1 (70.0 %, 4.29 GB")


def test_an_unreachable_time_names_the_nearest_unknown_nothing():
    made = study(
        [({"a": 1}, result(0.7, 4 * GIB, 3 * 10**9)), ({"a": 2}, result(0.6, 2 * GIB, 2 * 10**9))]
    )
    line = first_line(collect_findings(*made, Target(None, ("p99_ns", 10**9))))
    assert shows(line, "p99 1.00 s … none … a=2")
    untimed = study([({"a": 1}, result(0.7, GIB))])
    line = first_line(collect_findings(*untimed, Target(None, ("p99_ns", 10**9))))
    assert shows(line, "p99 1.00 s … unknown")


def test_seeds_are_averaged():
    rows = [
        ({"a": a, "seed": s}, result(ratio, GIB))
        for a, s, ratio in ((1, 1, 0.2), (1, 2, 0.6), (2, 1, 0.5))
    ]
    line = first_line(collect_findings(*study(rows), None))
    assert shows(line, "50.0 % … a=2, 1.07 GB")
    rows[2] = ({"a": 2, "seed": 1}, result(0.3, GIB))
    assert shows(
        first_line(collect_findings(*study(rows), None)), "40.0 % (20.0 … 60.0 … 2 seeds) … a=1"
    )
    # The same configuration twice is no second seed.
    rows = [({"a": 1}, result(0.4, GIB))] * 2
    assert shows(first_line(collect_findings(*study(rows), None)), "40.0 % … 1.07 GB")


def test_paretos_front():
    points = [(1, 0.2), (2, 0.5), (2, 0.4), (3, 0.5), (4, 0.9), (5, 0.8)]
    made = collect_findings(
        *study([({"a": n}, result(y, x * GIB)) for n, (x, y) in enumerate(points)]), None
    )
    assert [of.number for of in front(made.candidates, lambda of: of.hit_ratio)] == [0, 1, 4]


def test_what_a_knob_does_is_counted_where_all_else_is_equal():
    rows = [({"a": a, "b": b}, result(ratio, GIB)) for a, b, ratio in (
        (1, "x", 0.1), (1, "y", 0.2), (2, "x", 0.5), (2, "y", 0.4), (3, "x", 0.9))]  # fmt: skip
    rows.append(({"a": 3, "b": "y"}, Failed("no room")))
    a, b = measure_sensitivities(*study(rows))
    # With b=y there is no result for a=3, so that only b=x says what a does.
    assert (a.key, a.means, a.groups) == ("a", {"1": 0.1, "2": 0.5, "3": 0.9}, 1)
    assert a.swing == a.most == pytest.approx(0.8)
    # a=1 and a=2 have both; means of x are 0.3, of y 0.3.
    assert (b.groups, b.swing, b.most) == (2, pytest.approx(0), pytest.approx(0.1))


def test_failures_and_what_is_not_done_are_said_first():
    rows = [({"a": 1}, result(0.5, GIB)), ({"a": 2}, Failed("no room")), ({"a": 3}, None)]
    shown = document(collect_findings(*study(rows), None), "s.toml", is_page=True)
    assert show_each(shown.warnings, ["PARTIAL: 2 … 3", "1 … 2 configurations … no room"])
    assert shown.chapters[-1].tables[0].rows == [[1, "2", "no room"]]
