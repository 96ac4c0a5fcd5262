"""Hits and inserts against capacity: of one cache at given capacities, and of LRU at every capacity in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.compiled import allocating, inner, njit
from kvtrace.curves.optimal import OPTIMAL, optimal_uses
from kvtrace.curves.uses import Uses
from kvtrace.sim.chains import Chains
from kvtrace.sim.empty import new_links, new_slots, new_tiers
from kvtrace.sim.policies.policies import Policy
from kvtrace.sim.policies.queues import expiry_ns, on_hit, on_insert, on_remove, queue_of, victim
from kvtrace.sim.records import NONE, UNBOUNDED, World
from kvtrace.sim.setup import set_policies

if TYPE_CHECKING:
    from numpy.typing import NDArray


def lru_hits(chains: Chains, capacities: Sequence[int | None]) -> list[int]:
    """Return, for each capacity in objects (None: unlimited), the hits of an LRU cache over `chains` in order."""
    return policy_hits(chains, capacities, Policy.LRU)


def policy_hits(chains: Chains, capacities: Sequence[int | None], policy: str, **options: Any) -> list[int]:
    """Return the hits of `policy_uses`, which has the same arguments."""
    return [uses.hits for uses in policy_uses(chains, capacities, policy, **options)]


def policy_uses(
    chains: Chains,
    capacities: Sequence[int | None],
    policy: str,
    *,
    sizes: NDArray[np.int64] | None = None,
    arrival_ns: NDArray[np.int64] | None = None,
    ttl_ns: int = 0,
) -> list[Uses]:
    """Return, for each capacity (None: unlimited), what a cache with `policy` does with `chains` in order.

    Capacities are in objects, or in whatever `sizes` gives for each object. Each request touches its objects in
    order: one that is there is used, one that is not is inserted, after as many as must have left; one larger than
    the cache is not inserted. Hits are the leading run of each request: the objects found there before the first
    that is not. Only TTL looks at `arrival_ns`, the time of each request, and `ttl_ns`. OPTIMAL is Belady's optimum,
    for objects of one size.
    """
    if policy == OPTIMAL:
        if sizes is not None:
            raise ValueError("the optimum is known for objects of one size only")
        return optimal_uses(chains, capacities)
    policy = Policy(policy)
    if policy is Policy.TTL and (arrival_ns is None or ttl_ns <= 0):
        raise ValueError(f"ttl needs arrival_ns, and ttl_ns(={ttl_ns}) > 0")
    count = len(chains.tokens)
    sizes = np.ones(count, np.int64) if sizes is None else sizes
    arrival_ns = np.zeros(len(chains.offsets) - 1, np.int64) if arrival_ns is None else arrival_ns
    found = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        if policy is Policy.LRU:
            found.append(Uses(*_lru(chains.offsets, chains.slots, sizes, limit, np.full(count, NONE))))
            continue
        world = World(offsets=chains.offsets, chains=chains.slots, arrival_ns=arrival_ns, slots=new_slots(sizes))
        world.tiers, world.queues = new_tiers([limit], [limit])
        world.links, world.notes = new_links(count, 1, has_policies=True)
        world.tiers["ttl_ns"] = ttl_ns
        set_policies(world, [policy])
        found.append(Uses(*_uses(world)))
    return found


@njit
def _lru(offsets: Any, chain: Any, sizes: Any, limit: int, last: Any) -> tuple[int, int]:
    """Return hits and inserts of LRU, without lists: the references themselves are the queue.

    An object is live if `last` holds where it was last used. The least recent one is found by going on through the
    references from where the one before was found, past those whose object was used again since, or has left.
    """
    hits, inserts, used, oldest = 0, 0, 0, 0
    for request in range(len(offsets) - 1):
        is_leading = True
        for i in range(offsets[request], offsets[request + 1]):
            slot = chain[i]
            if last[slot] != NONE:
                last[slot] = i
                hits += is_leading
                continue
            is_leading = False
            size = sizes[slot]
            if size > limit:
                continue
            while used + size > limit:
                leaving = chain[oldest]
                if last[leaving] == oldest:
                    last[leaving] = NONE
                    used -= sizes[leaving]
                oldest += 1
            last[slot] = i
            used += size
            inserts += 1
    return hits, inserts


@inner
def _take_out(world: World, slot: int, is_evicted: int) -> None:
    on_remove(world, 0, slot, is_evicted)
    world.slots[slot].live = 0
    world.tiers[0].used -= world.slots[slot].size


@njit
def _uses(world: World) -> tuple[int, int]:
    """Return hits and inserts of the one tier, which all chains go through in order."""
    hits, inserts, tier = 0, 0, world.tiers[0]
    for request in range(len(world.offsets) - 1):
        now, is_leading = world.arrival_ns[request], True
        _expire(world, now)
        for i in range(world.offsets[request], world.offsets[request + 1]):
            slot = world.chains[i]
            what = world.slots[slot]
            if what.live:
                on_hit(world, 0, slot)
                hits += is_leading
                continue
            is_leading = False
            if what.size > tier.limit:
                continue
            while tier.used + what.size > tier.limit:
                _take_out(world, victim(world, 0, slot), 1)
            on_insert(world, 0, slot, now)
            what.live = 1
            tier.used += what.size
            inserts += 1
    return hits, inserts


@inner
def _expire(world: World, now: int) -> None:
    while expiry_ns(world, 0) <= now:
        _take_out(world, queue_of(world, 0, 0).tail, 0)


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
