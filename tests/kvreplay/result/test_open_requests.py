"""Requests under way.

Their tables grow with how many there are at once, not with how many there were.
"""

from __future__ import annotations

import numpy as np

from kvtrace.core.metrics.requests import OpenRequests


def test_room_for_requests_does_not_grow_when_others_are_over() -> None:
    requests = OpenRequests(np.zeros(1, bool), np.zeros(16, bool), is_open_loop=False)

    def sizes() -> list[int]:
        return [array.nbytes for array in requests._shared.arrays.values()]

    before = sizes()
    for _ in range(40):
        # As where no data moves: no request ever has a span in flight.
        assert not len(requests.pop(1 << 40))
        requests.make_room()
    assert sizes() == before
