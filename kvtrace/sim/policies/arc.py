"""ARC: those used once and those used more often share the tier as the misses of either suggest."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.compiled import njit
from kvtrace.sim.policies.queues import leave, own
from kvtrace.sim.records import COUNT, LIMIT, NONE, PLACE, QUEUE_BYTES, SIZE, TAIL, TARGET

T1, T2, B1, B2, WAS_B1, WAS_B2 = range(6)
"""Its lists. What is about to be inserted, and was a ghost, is in none of them."""


@njit
def recall(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; do so once."""
    place = slots[slot, own(tiers, t) + PLACE]
    if place in (B1, B2):
        recent, frequent = tiers[t, QUEUE_BYTES + B1], tiers[t, QUEUE_BYTES + B2]
        target = tiers[t, TARGET : TARGET + 1].view(np.float64)
        if place == B1:
            step = slots[slot, SIZE] * max(1.0, frequent / recent)
            target[0] = min(target[0] + step, float(tiers[t, LIMIT]))
        else:
            step = slots[slot, SIZE] * max(1.0, recent / frequent)
            target[0] = max(target[0] - step, 0.0)
        leave(tiers, slots, t, slot)
        slots[slot, own(tiers, t) + PLACE] = WAS_B1 if place == B1 else WAS_B2


@njit
def queue_of(tiers: Any, slots: Any, t: int, slot: int) -> int:
    """Return the list that `slot` is inserted into."""
    recall(tiers, slots, t, slot)
    return T1 if slots[slot, own(tiers, t) + PLACE] == NONE else T2


@njit
def victim(tiers: Any, slots: Any, t: int, incoming: int) -> int:
    """Return ARC's victim; its count says that it is not to become a ghost (case IV A, T1 alone fills the tier)."""
    first, limit = own(tiers, t), tiers[t, LIMIT]
    recall(tiers, slots, t, incoming)
    origin = slots[incoming, first + PLACE]
    recent, frequent = tiers[t, QUEUE_BYTES + T1], tiers[t, QUEUE_BYTES + T2]
    ghosts_recent, ghosts_frequent = tiers[t, QUEUE_BYTES + B1], tiers[t, QUEUE_BYTES + B2]
    if origin not in (WAS_B1, WAS_B2):
        if recent + ghosts_recent + slots[incoming, SIZE] > limit:
            if ghosts_recent > 0:
                leave(tiers, slots, t, tiers[t, TAIL + 2 * B1])
            elif recent > 0:
                slots[tiers[t, TAIL + 2 * T1], first + COUNT] = 1
                return tiers[t, TAIL + 2 * T1]
        elif recent + ghosts_recent + frequent + ghosts_frequent - limit >= limit and ghosts_frequent > 0:
            leave(tiers, slots, t, tiers[t, TAIL + 2 * B2])
    target = tiers[t, TARGET : TARGET + 1].view(np.float64)[0]
    if frequent == 0 or (recent > 0 and (recent > target or (recent == target and origin == WAS_B2))):
        return tiers[t, TAIL + 2 * T1]
    return tiers[t, TAIL + 2 * T2]
