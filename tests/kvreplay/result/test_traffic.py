"""What a device moved against what was asked of it."""

from __future__ import annotations

import pytest

from kvreplay.result.figures import Traffic

MIB = 1 << 20


@pytest.mark.parametrize(
    ("moved", "is_alone", "said"),
    [
        (200, True, None),
        (191, True, None),
        (189, True, "moved 198 MB for the 210 MB of its reads (0.94 of it); likely causes: holes"),
        (13, False, "moved 13.6 MB for the 210 MB of its reads (0.07 of it); likely causes: holes"),
        (235, True, None),
        (
            240,
            True,
            "moved 252 MB for the 210 MB of its reads (1.20 of it); likely causes: another program",
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
    assert said is None or f"WARNING: the device beneath nvme {said}" in found[0]


def test_little_traffic_is_not_judged() -> None:
    assert (
        list(
            Traffic(
                ["nvme"], True, {"read": MIB - 1, "write": 0}, {"read": 0, "write": 0}
            ).warnings()
        )
        == []
    )
