"""What C and Python must agree on: the sizes and places of what they share."""

from __future__ import annotations

from kvreplay.plan.row_ring import RowRing


def test_a_ring_of_rows_is_a_power_of_two_with_the_last_rows():
    rows = RowRing(5000, 2048)
    assert len(rows.ring) == 2048
    rows.ring["trace_row"] = range(2048)
    assert rows.within(2040, 2060)["trace_row"].tolist() == list(range(2040, 2048)), (
        "up to where it begins again"
    )
    assert rows.within(2048 + 3, 2048 + 5)["trace_row"].tolist() == [3, 4]
    assert len(RowRing(3).ring) == 1024
