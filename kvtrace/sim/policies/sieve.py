"""SIEVE: a hand goes from old to new, over and over, past those used since it last came by."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import njit
from kvtrace.sim.policies.queues import own
from kvtrace.sim.records import COUNT, HAND, LINKS, NONE, TAIL


@njit
def victim(tiers: Any, slots: Any, t: int) -> int:
    """Return the slot where the hand stops, the first that was not used since it last came by."""
    own_count = own(tiers, t) + COUNT
    slot = tiers[t, HAND]
    if slot == NONE:
        slot = tiers[t, TAIL]
    while slots[slot, own_count]:
        slots[slot, own_count] = 0
        slot = slots[slot, LINKS + 2 * t]
        if slot == NONE:
            slot = tiers[t, TAIL]
    tiers[t, HAND] = slot
    return slot


@njit
def pass_by(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Move the hand on if it is at `slot`, which leaves."""
    if tiers[t, HAND] == slot:
        tiers[t, HAND] = slots[slot, LINKS + 2 * t]
