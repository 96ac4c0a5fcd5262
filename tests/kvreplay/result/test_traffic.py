"""What a device moved against what was asked of it."""

from __future__ import annotations

import pytest
from phrases import shows

from kvreplay.result.figures import Traffic

MIB = 1 << 20


@pytest.mark.parametrize(
    ("moved", "is_alone", "said"),
    [
        (200, True, None),
        (191, True, None),
        (189, True, "198 MB … 210 MB … 0.94 … holes"),
        (13, False, "13.6 MB … 210 MB … 0.07 … holes"),
        (235, True, None),
        (
            240,
            True,
            "252 MB … 210 MB … 1.20 … another program",
        ),
        (2400, False, None),
        (None, True, None),
    ],
)
def test_too_little_and_too_much_are_warned_of(
    moved: int | None, is_alone: bool, said: str | None
) -> None:
    counted = None if moved is None else moved * MIB
    found = list(
        Traffic(
            ["nvme"], is_alone, {"read": 200 * MIB, "write": 0}, {"read": counted, "write": 0}
        ).warnings()
    )
    assert len(found) == (said is not None)
    assert said is None or shows(found[0], f"WARNING: … nvme … {said}")


def test_little_traffic_is_not_judged() -> None:
    assert (
        list(
            Traffic(
                ["nvme"], True, {"read": MIB - 1, "write": 0}, {"read": 0, "write": 0}
            ).warnings()
        )
        == []
    )
