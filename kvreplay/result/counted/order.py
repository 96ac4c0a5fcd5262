"""What depends on the order of operations in time: how many were in flight at once, and time that they covered.

Operations come in the order of their rows, and wait here until so many others have come that hardly one can follow
that was submitted before them; then they are looked at in the order of their submission.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.tables import sift_down, sift_up
from kvreplay.result.counted.count import FLIGHT
from kvtrace.core.compiled import inner, njit

WAITING = 1 << 19
"""Operations that may wait: one that comes more than half of this behind one that was submitted after it comes late."""
MOST_LEVELS = 1_000_000
"""Operations of a tier, those submitted first, whose service times are set against what was in flight."""
_MOST_WAITS = 1 << 17
_HEAP_AT_FIRST = 256
_LOOKED_AT = -1
ORDER = np.dtype([(n, "i8") for n in ("reached_ns", "late", "waits", "waits_floor_ns", "waited_ns")])
"""The last submission that was looked at; how many came late; how many spans of waiting are apart, from when on they
are known, and the time that all cover."""
TIER = np.dtype([(n, "i8") for n in ("covered_ns", "until_ns", "levels", "has_levels")])
"""The time that operations of a tier covered, and until when; how many are kept for levels, if any are to be."""
LEVEL = np.dtype([("submitted_ns", "i8"), ("completed_ns", "i8"), ("length_op", "i8")])
SPAN = np.dtype([("from_ns", "i8"), ("to_ns", "i8")])


class InOrder:
    """Operations that completed well, in the order of their submission."""

    def __init__(self, tier_of: Any, groups_of: Any, has_levels: Any, *, is_open: bool) -> None:
        """Look at operations of kinds whose tiers are `tier_of`.

        `groups_of` says what else each kind is counted with, -1 for nothing; `has_levels`, by tier, of which levels are
        asked; waiting before submission is followed if it `is_open`.
        """
        self.flights, self.fill = np.empty(WAITING, FLIGHT), np.zeros(1, np.int64)
        self._tier_of, self._groups_of, self._is_open = tier_of, groups_of, is_open
        self._state = np.zeros(1, ORDER)
        self._state["reached_ns"] = -1
        self._tiers = np.zeros(len(has_levels), TIER)
        self._tiers["has_levels"] = has_levels
        self._levels = np.empty((len(has_levels), MOST_LEVELS), LEVEL)
        self._waits = np.empty(_MOST_WAITS, SPAN)
        groups = len(tier_of) + int(groups_of.max(initial=-1)) + 1
        self._heaps = np.empty((groups, _HEAP_AT_FIRST), np.int64)
        self._in_flight, self._most = np.zeros(groups, np.int64), np.zeros(groups, np.int64)

    def flush(self, *, is_last: bool = False) -> None:
        """Look at the half that was submitted first, at all of them if they are the last."""
        count = int(self.fill[0])
        flights = self.flights[:count]
        order = np.argsort(np.ascontiguousarray(flights["submitted_ns"]), kind="stable")
        taken = count if is_last else count // 2
        at = 0
        while at < taken:
            at = _look(
                at, taken, flights, order, self._is_open, self._tier_of, self._groups_of, self._state, self._tiers,
                self._levels, self._waits, self._heaps, self._in_flight, self._most,
            )  # fmt: skip
            if at < taken:
                self._heaps = np.hstack([self._heaps, np.empty_like(self._heaps)])
        self.fill[0] = _keep(flights) if taken < count else 0

    def most_at_once(self, at: int) -> int | None:
        """Return how many of kind `at` were in flight at once; null if some came too late to tell."""
        return None if self._state["late"][0] else int(self._most[at])

    def most_of_group(self, group: int) -> int | None:
        """Return the same of all kinds of a group."""
        return self.most_at_once(len(self._tier_of) + group)

    def covered_ns(self, tier: int) -> int:
        """Return how much time operations of `tier` covered together."""
        return int(self._tiers["covered_ns"][tier])

    @property
    def waited_ns(self) -> int:
        """Time in which at least one operation that could have gone was not submitted.

        What is further back than the last 65,536 gaps between such times is not added to any more.
        """
        return int(self._state["waited_ns"][0])

    def levels(self, tier: int) -> Any:
        """Return LEVEL of the first operations of `tier` that moved anything."""
        return self._levels[tier][: self._tiers["levels"][tier]]


@inner
def _begin(heaps: Any, in_flight: Any, most: Any, group: int, start_ns: int, end_ns: int) -> None:
    """Begin an operation: those that ended until then are in flight no more. The heap has its ends, the first on top.

    An operation that ends as another starts does not overlap it.
    """
    heap, count = heaps[group], in_flight[group]
    while count and heap[0] <= start_ns:
        count -= 1
        sift_down(heap, count, 0, heap[count])
    if end_ns > start_ns:
        sift_up(heap, count, end_ns)
        count += 1
    in_flight[group] = count
    most[group] = max(most[group], count)


@inner
def _wait(whole: Any, waits: Any, from_ns: int, to_ns: int) -> None:
    """Add the span of an operation's waiting, which ends no sooner than any before it."""
    count, from_ns = whole.waits, max(from_ns, whole.waits_floor_ns)
    if to_ns <= from_ns:
        return
    while count and waits[count - 1].to_ns >= from_ns:
        count -= 1
        whole.waited_ns -= waits[count].to_ns - waits[count].from_ns
        from_ns = min(from_ns, waits[count].from_ns)
    if count == len(waits):
        half = count // 2
        whole.waits_floor_ns = waits[half - 1].to_ns
        for i in range(half, count):
            waits[i - half] = waits[i]
        count -= half
    waits[count].from_ns, waits[count].to_ns = from_ns, to_ns
    whole.waited_ns += to_ns - from_ns
    whole.waits = count + 1


# Long: what one look at an operation tells.
@njit
def _look(
    begin: int,
    end: int,
    flights: Any,
    order: Any,
    is_open: bool,
    tier_of: Any,
    groups_of: Any,
    state: Any,
    tiers: Any,
    levels: Any,
    waits: Any,
    heaps: Any,
    in_flight: Any,
    most: Any,
) -> int:
    """Look at operations in `order`; return the first that was not, because a heap is full."""
    whole = state[0]
    for i in range(begin, end):
        flight = flights[order[i]]
        start_ns, end_ns, kind = flight.submitted_ns, flight.completed_ns, flight.kind
        group = groups_of[kind]
        if in_flight[kind] == heaps.shape[1] or (group >= 0 and in_flight[len(tier_of) + group] == heaps.shape[1]):
            return i
        is_late = start_ns < whole.reached_ns
        whole.late += is_late
        whole.reached_ns = max(whole.reached_ns, start_ns)
        _begin(heaps, in_flight, most, kind, start_ns, end_ns)
        if group >= 0:
            _begin(heaps, in_flight, most, len(tier_of) + group, start_ns, end_ns)
        tier = tiers[tier_of[kind]]
        if end_ns > tier.until_ns:
            tier.covered_ns += end_ns - max(start_ns, tier.until_ns)
            tier.until_ns = end_ns
        if tier.has_levels and flight.length_op >= 0 and tier.levels < MOST_LEVELS:
            level = levels[tier_of[kind]][tier.levels]
            level.submitted_ns, level.completed_ns, level.length_op = start_ns, end_ns, flight.length_op
            tier.levels += 1
        if is_open and not is_late:
            _wait(whole, waits, flight.free_ns, start_ns)
        flight.kind = _LOOKED_AT
    return end


@njit
def _keep(flights: Any) -> int:
    """Put the operations that were not looked at first, in their order; return how many they are."""
    kept = 0
    for i in range(len(flights)):
        if flights[i].kind != _LOOKED_AT:
            flights[kept] = flights[i]
            kept += 1
    return kept
