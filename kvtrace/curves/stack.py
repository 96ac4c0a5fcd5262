"""Hits and inserts against capacity: of one cache at given capacities, and of LRU at every capacity in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.native.library import I4, I8, StructAt, function
from kvtrace.curves.optimal import OPTIMAL, optimal_uses
from kvtrace.curves.uses import Uses
from kvtrace.native.records import NONE, UNBOUNDED, World
from kvtrace.sim.chains import Chains
from kvtrace.sim.empty import new_links, new_slots, new_tiers
from kvtrace.sim.policies import Policy
from kvtrace.sim.setup import set_policies

if TYPE_CHECKING:
    from numpy.typing import NDArray


_use_lru = function("use_lru", I8, int, I4, I8, int, I8, I8)
_use_tier = function("use_tier", StructAt, I8)
_find_distances = function("find_distances", I8, int, I4, int, int, I4, I8, I8, I8)


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
        limit, uses = UNBOUNDED if capacity is None else capacity, np.zeros(2, np.int64)
        if policy is Policy.LRU:
            last, requests = np.full(count, NONE), len(chains.offsets) - 1
            _use_lru(chains.offsets, requests, chains.slots, sizes, limit, last, uses)
            found.append(Uses(*uses.tolist()))
            continue
        world = World(offsets=chains.offsets, chains=chains.slots, arrival_ns=arrival_ns, slots=new_slots(sizes))
        world.tiers, world.queues = new_tiers([limit], [limit])
        world.links, world.notes = new_links(count, 1, has_policies=True)
        world.tiers["ttl_ns"] = ttl_ns
        set_policies(world, [policy])
        _use_tier(world, uses)
        found.append(Uses(*uses.tolist()))
    return found


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
    count, references, requests = len(chains.tokens), len(chains.slots), len(chains.offsets) - 1
    # By distance: of references, as the largest so far in their request and by itself; the last is that of first ones.
    leading, own = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    tree, last = np.zeros(references + 1, np.int32), np.full(count, NONE)
    _find_distances(chains.offsets, requests, chains.slots, references, count, tree, last, leading, own)
    hits, present = np.cumsum(leading[:-1]), np.cumsum(own[:-1])
    return LruCurve(len(chains.slots), hits, len(chains.slots) - present)
