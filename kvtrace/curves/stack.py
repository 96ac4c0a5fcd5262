"""Compute hits and inserts of one cache by capacity, for LRU at every capacity in one pass.

No policy can exceed Belady's optimum, which knows all references beforehand: a full cache gives up
what is used next the latest, the incoming object included, which is then not stored; what is not
used again is not stored at all (L. A. Belady, IBM Systems Journal, 1966; R. L. Mattson et al.,
1970). Objects are of one size. Prompts are prefixes, so that a later block of a prompt is never
used before an earlier one: the optimum gives up the later ones first, and all that it finds is in
the leading run of a request.

Where the whole takes too long, samples of the objects estimate both. An object is in a sample if
its hash says so, and so are then all references to it, served by a cache smaller by the same share
(spatial sampling: Waldspurger et al., SHARDS, FAST 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.native.library import I1, I4, I8, StructAt, function
from kvtrace.native.records import EVENT, NONE, UNBOUNDED, World
from kvtrace.sim.chains import Chains
from kvtrace.sim.policies import Policy
from kvtrace.sim.simulation import new_links, new_slots, new_tiers, set_policies


@dataclass(frozen=True, slots=True)
class Uses:
    """Hits and inserts of one cache over all references."""

    hits: int
    """References in the leading run of their request."""
    inserts: int
    """References that were not there, and were inserted."""


_use_tier = function("curve_use_tier", StructAt, I8)
_find_distances = function("curve_stack_distances", I8, int, I4, int, int, I4, I8, I8, I8)


def policy_uses(
    chains: Chains,
    capacities: Sequence[int | None],
    policy: str,
    *,
    sizes: NDArray[np.int64] | None = None,
    arrival_ns: NDArray[np.int64] | None = None,
    ttl_ns: int = 0,
) -> list[Uses]:
    """Return hits and inserts of a cache with `policy` over `chains`, for each capacity.

    None is an unlimited capacity.
    Capacities are in objects, or in whatever `sizes` gives for each object. Each request touches
    its objects in order: one that is there is used, one that is not is inserted, after as many as
    must have left; one larger than the cache is not inserted. Hits are the leading run of each
    request: the objects found there before the first that is not. Only TTL looks at `arrival_ns`,
    the time of each request, and `ttl_ns`. OPTIMAL is Belady's optimum, for objects of one size.
    """
    if policy == OPTIMAL:
        if sizes is not None:
            raise ValueError("the optimum is known for objects of one size only")
        return optimal_uses(chains, capacities)
    policy = Policy(policy)
    if policy is Policy.TTL and (arrival_ns is None or ttl_ns <= 0):
        raise ValueError(f"ttl needs arrival_ns, and ttl_ns(={ttl_ns}) > 0")
    count = len(chains.tokens)
    if policy is Policy.LRU and sizes is None:
        curve = lru_curve(chains)
        places = [count if capacity is None else min(capacity, count) for capacity in capacities]
        return [Uses(int(curve.hits[place]), int(curve.inserts[place])) for place in places]
    sizes = np.ones(count, np.int64) if sizes is None else sizes
    arrival_ns = np.zeros(len(chains.offsets) - 1, np.int64) if arrival_ns is None else arrival_ns
    found = []
    for capacity in capacities:
        limit, uses = UNBOUNDED if capacity is None else capacity, np.zeros(2, np.int64)
        world = World(
            offsets=chains.offsets,
            chains=chains.slots,
            arrival_ns=arrival_ns,
            slots=new_slots(sizes),
        )
        world.tiers, world.lists = new_tiers([limit], [limit])
        world.links, world.notes = new_links(count, 1, has_policies=True)
        world.tiers["ttl_ns"] = ttl_ns
        set_policies(world, [policy])
        _use_tier(world, uses)
        found.append(Uses(*uses.tolist()))
    return found


@dataclass(frozen=True, slots=True)
class LruCurve:
    """Hits and inserts of LRU by capacity; arrays indexed by objects, from 0 to all of them."""

    references: int
    hits: NDArray[np.int64]
    """References in the leading run of their request."""
    inserts: NDArray[np.int64]
    """References that were not there, and were inserted."""


def lru_curve(chains: Chains) -> LruCurve:
    """Return hits and inserts of LRU over `chains` at every capacity, exactly, in one pass.

    LRU is a stack algorithm: a cache of c objects holds those whose stack distance (the number of
    distinct objects since, itself included) is at most c. A reference is in the leading run if that
    is so of it and of all before it in its request, that is, if the largest distance so far is at
    most c. (Mattson et al., 1970.)
    """
    count, references, requests = len(chains.tokens), len(chains.slots), len(chains.offsets) - 1
    # By distance: of references, as the largest so far in their request and by itself; the last is
    # that of first ones.
    leading, own = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    tree, last = np.zeros(references + 1, np.int32), np.full(count, NONE)
    _find_distances(
        chains.offsets, requests, chains.slots, references, count, tree, last, leading, own
    )
    hits, present = np.cumsum(leading[:-1]), np.cumsum(own[:-1])
    return LruCurve(len(chains.slots), hits, len(chains.slots) - present)


OPTIMAL: Final = "optimal"
"""Name of the optimum among the policies."""

_find_following = function("curve_next_references", I4, int, I8, I8)
_use_optimally = function("curve_use_optimal", I8, int, I4, I8, I1, EVENT, int, I8)


def optimal_uses(chains: Chains, capacities: Sequence[int | None]) -> list[Uses]:
    """Return hits and inserts of Belady's optimal cache over `chains`, for each capacity.

    Capacities are in objects; None is unlimited.
    """
    references, count = len(chains.slots), len(chains.tokens)
    following = np.empty(references, np.int64)
    _find_following(chains.slots, references, np.full(count, NONE), following)
    found = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        live, heap, uses = (
            np.zeros(count, np.int8),
            np.empty(references, EVENT),
            np.zeros(2, np.int64),
        )
        requests = len(chains.offsets) - 1
        _use_optimally(chains.offsets, requests, chains.slots, following, live, heap, limit, uses)
        found.append(Uses(*uses.tolist()))
    return found


_sample_chains = function("curve_sample_chains", I8, int, I4, int, int, int, int, I4, I8, I4)
HASH_VALUES = 2**24
SAMPLES = 4
# Of Student's t with SAMPLES - 1 degrees of freedom: 95 % of all values lie within.
T95 = 3.182


@dataclass(frozen=True, slots=True)
class Estimate:
    """Hits and inserts of a cache of `capacity` objects, estimated from samples of the objects."""

    capacity: int
    hits: float
    inserts: float
    hits_error: float
    """Estimated error of `hits`, either way; 0 if all objects were simulated."""
    inserts_error: float
    sampling_rate: float
    """The share of the objects in each sample."""
    sampled_references: int
    """References in all samples together."""


def estimate(
    chains: Chains, capacities: Sequence[int], policy: str, lru: LruCurve, *, rate: float
) -> list[Estimate]:
    """Estimate what a cache with `policy` does at each capacity in objects, from samples of a share
    `rate` each.

    `lru` is what LRU does with the same references, which is known exactly. Samples that hold too
    few of the much used objects, or too many, are wrong on LRU in nearly the same way, and so that
    is taken off. The error is the larger of what was taken off and of the half-width of the 95 %
    confidence interval of the mean of SAMPLES samples. A leading run is that of the sampled objects
    of a request, which is longer than the true one where a cache keeps later objects of a prompt
    and not earlier ones; of that, too, what LRU has is taken off.
    """
    if policy == Policy.TTL:
        raise ValueError("ttl depends on time, not on capacity alone: use policy_uses")
    if not 0 < rate <= 1:
        raise ValueError(f"rate(={rate}) must be in (0, 1]")
    below = max(1, round(rate * HASH_VALUES))
    if below == HASH_VALUES:
        found = policy_uses(chains, capacities, policy)
        return [
            Estimate(c, u.hits, u.inserts, 0.0, 0.0, 1.0, len(chains.slots))
            for c, u in zip(capacities, found, strict=True)
        ]
    samples = [sample_of(chains, below, seed) for seed in range(SAMPLES)]
    share, references = below / HASH_VALUES, sum(len(s.slots) for s in samples)
    # The optimum does not store what is not used again: of what it inserts LRU tells nothing.
    told = np.array([1, policy != OPTIMAL])
    most = (float(lru.hits[-1]), lru.references - float(lru.inserts[-1]) * told[1])
    of = len(chains.slots), share, capacities
    values = [np.array([_scaled(s, *of, each) for s in samples]) for each in (policy, Policy.LRU)]
    at = np.array(capacities)
    exact = np.stack([lru.hits[at], lru.references - lru.inserts[at]], axis=1)
    ours, theirs = (v.mean(axis=0) for v in values)
    spread = (values[0] - values[1] * told).std(axis=0, ddof=1) * T95 / np.sqrt(SAMPLES)
    error = np.maximum(spread, np.abs(exact - theirs))
    mean = np.clip(ours + (exact - theirs) * told, 0.0, most)
    return [
        Estimate(
            c,
            float(m[0]),
            lru.references - float(m[1]),
            float(e[0]),
            float(e[1]),
            share,
            references,
        )
        for c, m, e in zip(capacities, mean, error, strict=True)
    ]


def _scaled(
    sample: Chains, references: int, share: float, capacities: Sequence[int], policy: str
) -> NDArray[np.float64]:
    """Return the estimated references in a leading run, and present ones: [capacities, 2].

    If a sample has more references than its share, or fewer, that is for a few much used objects,
    which nearly always hit: so the difference is taken off both, or added (the same paper's
    SHARDS-adj).
    """
    found: list[Uses] = policy_uses(sample, [max(1, round(c * share)) for c in capacities], policy)
    missing = references * share - len(sample.slots)
    there = [(u.hits + missing, len(sample.slots) - u.inserts + missing) for u in found]
    scaled: NDArray[np.float64] = np.array(there) / share
    return scaled


def sample_of(chains: Chains, below: int, seed: int) -> Chains:
    """Return the references to the objects whose hash is one of the first `below` of HASH_VALUES."""
    requests, objects = len(chains.offsets) - 1, len(chains.tokens)
    offsets, kept, number = (
        np.empty_like(chains.offsets),
        np.empty_like(chains.slots),
        np.empty(objects, np.int32),
    )
    _sample_chains(
        chains.offsets,
        requests,
        chains.slots,
        objects,
        seed,
        below,
        HASH_VALUES,
        number,
        offsets,
        kept,
    )
    return Chains(offsets, kept[: offsets[-1]].copy(), chains.tokens[number != NONE])
