"""The lists that a tier keeps its slots in, most recent first, and the bytes of each."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import inlined, njit
from kvtrace.sim.records import HEAD, LINKS, NONE, PLACE, POLICY_FIELDS, QUEUE_BYTES, SIZE, TAIL


@inlined
def unlink(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    """Take `slot` out of list `queue` of tier `t`."""
    before, after = slots[slot, LINKS + 2 * t], slots[slot, LINKS + 2 * t + 1]
    if before == NONE:
        tiers[t, HEAD + 2 * queue] = after
    else:
        slots[before, LINKS + 2 * t + 1] = after
    if after == NONE:
        tiers[t, TAIL + 2 * queue] = before
    else:
        slots[after, LINKS + 2 * t] = before


@inlined
def link_first(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    """Put `slot` first in list `queue` of tier `t`."""
    head = tiers[t, HEAD + 2 * queue]
    slots[slot, LINKS + 2 * t] = NONE
    slots[slot, LINKS + 2 * t + 1] = head
    if head == NONE:
        tiers[t, TAIL + 2 * queue] = slot
    else:
        slots[head, LINKS + 2 * t] = slot
    tiers[t, HEAD + 2 * queue] = slot


@inlined
def own(tiers: Any, t: int) -> int:
    """Return from which column on a slot holds what the policy of tier `t` needs."""
    return LINKS + 2 * len(tiers) + POLICY_FIELDS * t


@njit
def enter(tiers: Any, slots: Any, t: int, slot: int, queue: int) -> None:
    """Put `slot` first in list `queue`, and count its bytes there."""
    link_first(tiers, slots, t, slot, queue)
    slots[slot, own(tiers, t) + PLACE] = queue
    tiers[t, QUEUE_BYTES + queue] += slots[slot, SIZE]


@njit
def leave(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Take `slot` out of the list it is in."""
    queue = slots[slot, own(tiers, t) + PLACE]
    unlink(tiers, slots, t, slot, queue)
    slots[slot, own(tiers, t) + PLACE] = NONE
    tiers[t, QUEUE_BYTES + queue] -= slots[slot, SIZE]
