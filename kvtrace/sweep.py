"""Hits against capacity: for one cache simulated at given capacities, and for LRU at every capacity in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.compiled import njit
from kvtrace.store import LIMIT, LIVE, TAIL, USED, link_first, new_slots, new_tiers, touch, unlink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvtrace.geometry import Chains


def lru_hits(chains: Chains, capacities: Sequence[int | None]) -> list[int]:
    """Return, for each capacity in objects (None: unlimited), the hits of an LRU cache over `chains` in order.

    Each request touches its objects in order: one that is there becomes the most recent, one that is not is
    inserted and the least recent leaves if there are now too many. Hits are the leading run of each request:
    the objects found there before the first that is not.
    """
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


@dataclass(frozen=True, slots=True)
class LruCurve:
    """What an LRU cache of c objects does, for every c from 0 to all of them: arrays indexed by c."""

    references: int
    hits: NDArray[np.int64]
    """References in the leading run of their request."""
    inserts: NDArray[np.int64]
    """References that were not there, and were inserted."""


def lru_curve(chains: Chains) -> LruCurve:
    """Return hits and inserts of LRU over `chains` at every capacity, exactly, in one pass.

    LRU is a stack algorithm: a cache of c objects holds those whose stack distance (the number of distinct
    objects since, itself included) is at most c. A reference is in the leading run if that is so of it and of
    all before it in its request, that is, if the largest distance so far is at most c. (Mattson et al., 1970.)
    """
    count = len(chains.tokens)
    leading, own = _distances(chains.offsets, chains.slots, count)
    hits, present = np.cumsum(leading[:-1]), np.cumsum(own[:-1])
    return LruCurve(len(chains.slots), hits, len(chains.slots) - present)


@njit
def _distances(offsets: Any, chain: Any, count: int) -> tuple[Any, Any]:
    """Return how many references have each stack distance, as the largest so far in their request and by itself.

    Index count + 1 is a first reference. A Fenwick tree over positions counts the objects used since.
    """
    n = len(chain)
    tree = np.zeros(n + 1, np.int32)
    last = np.full(count, -1, np.int64)
    leading, own = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    live = 0
    for request in range(len(offsets) - 1):
        largest = 0
        for i in range(offsets[request], offsets[request + 1]):
            slot = chain[i]
            at = last[slot]
            if at < 0:
                distance = count + 1
                live += 1
            else:
                before = 0
                j = at + 1
                while j > 0:
                    before += tree[j]
                    j -= j & -j
                distance = live - before + 1
                j = at + 1
                while j <= n:
                    tree[j] -= 1
                    j += j & -j
            j = i + 1
            while j <= n:
                tree[j] += 1
                j += j & -j
            last[slot] = i
            largest = max(largest, distance)
            own[distance] += 1
            leading[largest] += 1
    return leading, own
