"""Which rows of a plan a warm-up leaves out."""

from __future__ import annotations

import pytest

from kvreplay.engine.limits import check_warmup
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.row_ring import NONE, READ, RowRing
from kvreplay.plan.window import Facts
from kvtrace.core.errors import ConfigError
from kvtrace.core.metrics.warmup import parse_warmup


@pytest.mark.parametrize(
    ("warmup", "closed", "paced"),
    [
        ("8", [False, True, True, True], [False, True, True, True]),
        # In a closed loop by when it was submitted; what never was counts as well.
        ("5us", [False, False, True, True], [False, True, True, True]),
    ],
)
def test_rows_and_time_are_left_out(warmup: str, closed: list[bool], paced: list[bool]) -> None:
    columns = {"op": [READ] * 4, "trace_row": [7, 8, 9, 10], "due_ns": [0, 5000, 6000, 9000]}
    for is_open_loop, expected in ((False, closed), (True, paced)):
        rows = RowRing.of(columns, is_open_loop=is_open_loop).all
        rows["submitted_ns"] = [100, 4999, 5000, NONE]
        found = parse_warmup(warmup)
        assert found is not None
        assert found.is_measured(rows).tolist() == expected


@pytest.mark.parametrize(("text", "pacer", "is_all"), [
    ("10", Pacer(), True), ("9", Pacer(), False), ("1us", Pacer(), False),
    ("501ns", Pacer(2.0), True), ("500ns", Pacer(2.0), False),
])  # fmt: skip
def test_a_warm_up_of_all_that_is_replayed_is_refused(
    text: str, pacer: Pacer, is_all: bool
) -> None:
    facts = Facts(3, None, 9, 1000, (), is_bulk=False, objects=1)
    if not is_all:
        check_warmup(parse_warmup(text), text, 20, facts, pacer)
        return
    with pytest.raises(ConfigError, match=f"warmup={text}.*20 rows"):
        check_warmup(parse_warmup(text), text, 20, facts, pacer)
