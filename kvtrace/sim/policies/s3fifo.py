"""S3-FIFO: new slots pass through a tenth of the tier, and stay if used twice there, or asked for again soon after."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import njit
from kvtrace.sim.policies.queues import enter, leave, link_first, own, unlink
from kvtrace.sim.records import COUNT, HAS_EVICTED, LIMIT, NONE, PLACE, QUEUE_BYTES, SIZE, TAIL

SMALL, MAIN, GHOST, WAS_GHOST = range(4)
"""Its lists. What is about to be inserted, and was a ghost, is in none of them."""

MOVES_AT, COUNTS_TO = 2, 3


@njit
def recall(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; do so once."""
    place = own(tiers, t) + PLACE
    if slots[slot, place] == GHOST:
        leave(tiers, slots, t, slot)
        slots[slot, place] = WAS_GHOST


@njit
def queue_of(tiers: Any, slots: Any, t: int, slot: int) -> int:
    """Return the list that `slot` is inserted into."""
    recall(tiers, slots, t, slot)
    is_small_full = tiers[t, QUEUE_BYTES + SMALL] >= tiers[t, LIMIT] // 10
    is_main = slots[slot, own(tiers, t) + PLACE] == WAS_GHOST or (is_small_full and not tiers[t, HAS_EVICTED])
    return MAIN if is_main else SMALL


@njit
def victim(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    """Return the slot that makes room for `incoming`; those used in the small queue move to the main one."""
    count = own(tiers, t) + COUNT
    recall(tiers, slots, t, incoming)
    tiers[t, HAS_EVICTED] = 1
    if tiers[t, QUEUE_BYTES + MAIN] <= tiers[t, LIMIT] - tiers[t, LIMIT] // 10:
        slot = tiers[t, TAIL + 2 * SMALL]
        while slot != NONE and slots[slot, count] >= MOVES_AT:
            leave(tiers, slots, t, slot)
            enter(tiers, slots, t, slot, MAIN)
            slots[slot, count] = 0
            slot = tiers[t, TAIL + 2 * SMALL]
        if slot != NONE:
            return slot
    slot = tiers[t, TAIL + 2 * MAIN]
    while slots[slot, count]:
        slots[slot, count] = min(slots[slot, count], COUNTS_TO) - 1
        unlink(tiers, slots, t, slot, MAIN)
        link_first(tiers, slots, t, slot, MAIN)
        slot = tiers[t, TAIL + 2 * MAIN]
    return slot


@njit
def remember(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot` the newest ghost, unless it is larger than all ghosts may be."""
    room = tiers[t, LIMIT] - (tiers[t, LIMIT] + 9) // 10
    size = slots[slot, SIZE]
    if size <= room:
        while tiers[t, QUEUE_BYTES + GHOST] + size > room:
            leave(tiers, slots, t, tiers[t, TAIL + 2 * GHOST])
        enter(tiers, slots, t, slot, GHOST)
