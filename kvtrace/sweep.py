"""Hits against capacity: for one cache simulated at given capacities, and for LRU at every capacity in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.compiled import allocating, inlined, njit
from kvtrace.geometry import Chains
from kvtrace.hierarchy import Policy
from kvtrace.policies import first_expiry, has_policies, on_hit, on_insert, on_remove, victim
from kvtrace.state import LIMIT, LIVE, NONE, SIZE, TAIL, TTL_NS, UNBOUNDED, USED, new_slots, new_tiers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

HASH_VALUES = 2**24


def lru_hits(chains: Chains, capacities: Sequence[int | None]) -> list[int]:
    """Return, for each capacity in objects (None: unlimited), the hits of an LRU cache over `chains` in order."""
    return policy_hits(chains, capacities, Policy.LRU)


def policy_hits(
    chains: Chains,
    capacities: Sequence[int | None],
    policy: Policy,
    *,
    sizes: NDArray[np.int64] | None = None,
    arrival_ns: NDArray[np.int64] | None = None,
    ttl_ns: int = 0,
) -> list[int]:
    """Return, for each capacity (None: unlimited), the hits of a cache with `policy` over `chains` in order.

    Capacities are in objects, or in whatever `sizes` gives for each object. Each request touches its objects in
    order: one that is there is used, one that is not is inserted, after as many as must have left; one larger than
    the cache is not inserted. Hits are the leading run of each request: the objects found there before the first
    that is not. Only TTL looks at `arrival_ns`, the time of each request, and `ttl_ns`.
    """
    if policy is Policy.TTL and (arrival_ns is None or ttl_ns <= 0):
        raise ValueError(f"ttl needs arrival_ns, and ttl_ns(={ttl_ns}) > 0")
    count = len(chains.tokens)
    sizes = np.ones(count, np.int64) if sizes is None else sizes
    arrival_ns = np.zeros(len(chains.offsets) - 1, np.int64) if arrival_ns is None else arrival_ns
    hits = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        tiers = new_tiers([limit], [limit], [list(Policy).index(policy)])
        tiers[0, TTL_NS] = ttl_ns
        slots = new_slots(sizes, tiers, are_held=True)
        hits.append(int(_hits(chains.offsets, chains.slots, arrival_ns, tiers, slots)))
    return hits


@inlined
def _take_out(tiers: Any, slots: Any, slot: int, is_evicted: int) -> None:
    on_remove(tiers, slots, 0, slot, is_evicted)
    slots[slot, LIVE] = 0
    tiers[0, USED] -= slots[slot, SIZE]


@njit
def _hits(offsets: Any, chain: Any, arrival_ns: Any, tiers: Any, slots: Any) -> int:
    hits = 0
    for request in range(len(offsets) - 1):
        now = 0
        if has_policies(tiers):
            now = arrival_ns[request]
            _expire(tiers, slots, now)
        is_leading = True
        for i in range(offsets[request], offsets[request + 1]):
            slot = chain[i]
            if slots[slot, LIVE]:
                on_hit(tiers, slots, 0, slot)
                hits += is_leading
                continue
            is_leading = False
            size = slots[slot, SIZE]
            if size > tiers[0, LIMIT]:
                continue
            while tiers[0, USED] + size > tiers[0, LIMIT]:
                _take_out(tiers, slots, victim(tiers, slots, 0, slot), 1)
            on_insert(tiers, slots, 0, slot, now)
            slots[slot, LIVE] = 1
            tiers[0, USED] += size
    return hits


@njit
def _expire(tiers: Any, slots: Any, now: int) -> None:
    t, when = first_expiry(tiers, slots)
    while t != NONE and when <= now:
        _take_out(tiers, slots, tiers[0, TAIL], 0)
        t, when = first_expiry(tiers, slots)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hits of a cache of `capacity` objects, as a sample of the objects suggests."""

    capacity: int
    hits: float
    """Of all references, estimated."""
    sampling_rate: float
    """The share of the objects that was simulated."""
    sampled_references: int


def sampled_hits(
    chains: Chains, capacities: Sequence[int], policy: Policy, *, rate: float = 0.1, seed: int = 0
) -> list[Estimate]:
    """Estimate the hits of a cache with `policy` at each capacity in objects, from a share `rate` of the objects.

    An object is in the sample if a hash of its number and `seed` is below the rate, and so are then all references
    to it, served by a cache smaller by the rate (spatial sampling: Waldspurger et al., SHARDS, FAST 2015). If the
    sample has more references than its share, or fewer, that is for a few much used objects, which nearly always
    hit: so the difference is taken off the hits, or added (the same paper's SHARDS-adj). A leading run is that of the
    sampled objects of a request, which is longer than the true one where a cache keeps later objects of a prompt
    and not earlier ones.
    """
    if policy is Policy.TTL:
        raise ValueError("ttl depends on time, not on capacity alone: use policy_hits")
    if not 0 < rate <= 1:
        raise ValueError(f"rate(={rate}) must be in (0, 1]")
    sample, share = _sample(chains, rate, seed)
    references, expected = len(sample.slots), len(chains.slots) * share
    found = policy_hits(sample, [max(1, round(c * share)) for c in capacities], policy)
    hits = [min(max((h + expected - references) / share, 0.0), float(len(chains.slots))) for h in found]
    return [Estimate(c, h, share, references) for c, h in zip(capacities, hits, strict=True)]


def _sample(chains: Chains, rate: float, seed: int) -> tuple[Chains, float]:
    """Return the references to a share of the objects, and that share as it is among 2^24 hash values."""
    mixed = np.arange(len(chains.tokens), dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    below = max(1, round(rate * HASH_VALUES))
    is_chosen = mixed % np.uint64(HASH_VALUES) < below
    kept = is_chosen[chains.slots]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[chains.offsets]
    number = np.cumsum(is_chosen) - 1
    chosen = Chains(offsets, number[chains.slots[kept]].astype(np.int32), chains.tokens[is_chosen], chains.new)
    return chosen, below / HASH_VALUES


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


@allocating
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
