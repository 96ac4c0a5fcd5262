"""CLOCK: as FIFO, but a slot that was used is spared once for it, and becomes the newest."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import njit
from kvtrace.sim.policies.queues import link_first, own, unlink
from kvtrace.sim.records import COUNT, TAIL


@njit
def victim(tiers: Any, slots: Any, t: int) -> int:
    """Return the oldest slot that was not used since it last became the newest, or the first."""
    own_count = own(tiers, t) + COUNT
    slot = tiers[t, TAIL]
    while slots[slot, own_count]:
        slots[slot, own_count] = 0
        unlink(tiers, slots, t, slot, 0)
        link_first(tiers, slots, t, slot, 0)
        slot = tiers[t, TAIL]
    return slot
