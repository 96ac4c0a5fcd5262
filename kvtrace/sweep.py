"""Hits against capacity for one cache alone: the ground truth that a trace's reuse can be checked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.compiled import njit
from kvtrace.store import LIMIT, LIVE, TAIL, USED, link_first, new_slots, new_tiers, touch, unlink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.geometry import Chains


def lru_hits(chains: Chains, capacities: Sequence[int | None]) -> list[int]:
    """Return, for each capacity in objects (None: unlimited), the hits of an LRU cache over `chains` in order.

    Each request touches its objects in order: one that is there becomes the most recent, one that is not is
    inserted and the least recent leaves if there are now too many. Hits are the leading run of each request:
    the objects found there before the first that is not.
    """
    import numpy as np

    count = len(chains.tokens)
    hits = []
    for capacity in capacities:
        tiers = new_tiers([count if capacity is None else capacity], [1])
        hits.append(int(_hits(chains.offsets, chains.slots, tiers, new_slots(np.ones(count), 1, are_held=True))))
    return hits


@njit
def _hits(offsets: Any, chain: Any, tiers: Any, slots: Any) -> int:
    hits = 0
    for request in range(len(offsets) - 1):
        is_leading = True
        for i in range(offsets[request], offsets[request + 1]):
            slot = chain[i]
            if slots[slot, LIVE]:
                touch(tiers, slots, 0, slot)
                hits += is_leading
                continue
            is_leading = False
            link_first(tiers, slots, 0, slot)
            slots[slot, LIVE] = 1
            tiers[0, USED] += 1
            if tiers[0, USED] > tiers[0, LIMIT]:
                victim = tiers[0, TAIL]
                unlink(tiers, slots, 0, victim)
                slots[victim, LIVE] = 0
                tiers[0, USED] -= 1
    return hits
