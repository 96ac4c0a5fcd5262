"""Hits against capacity for one cache alone: the ground truth that a trace's reuse can be checked with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

from kvtrace.store import NONE, Tiers, link_first, new_tiers, touch, unlink

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
        tiers = new_tiers([count if capacity is None else capacity], [1], count)
        hits.append(int(_hits(chains.offsets, chains.slots, tiers, np.zeros(count, dtype=np.int8))))
    return hits


@njit(cache=True, nogil=True)
def _hits(offsets: Any, slots: Any, tiers: Tiers, is_live: Any) -> int:
    hits = 0
    for request in range(len(offsets) - 1):
        is_leading = True
        for i in range(offsets[request], offsets[request + 1]):
            slot = slots[i]
            if is_live[slot]:
                touch(tiers, 0, slot)
                hits += is_leading
                continue
            is_leading = False
            link_first(tiers, 0, slot)
            is_live[slot] = 1
            tiers.used[0] += 1
            if tiers.used[0] > tiers.limit[0]:
                victim = tiers.tail[0]
                if victim != NONE:
                    unlink(tiers, 0, victim)
                    is_live[victim] = 0
                    tiers.used[0] -= 1
    return hits
