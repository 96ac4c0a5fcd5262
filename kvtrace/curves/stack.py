"""Hits and inserts of one cache by capacity: LRU at every capacity in one pass, others simulated.

LRU by stack distance (Mattson et al., Evaluation techniques for storage hierarchies, 1970):

    for each reference: distance = distinct objects since the last one to the object, plus 1
    prefix distance = largest distance so far in its request
    a cache of c objects holds the object if distance <= c, and it is a hit if prefix distance <= c

Belady's optimum (L. A. Belady, IBM Systems Journal, 1966), which no policy exceeds:

    for each reference: next = time of the next reference to the object
    a missing object that is used again is inserted
    a full cache evicts the object with the latest next use, which may be the incoming one

Objects have one size. Prompts are prefixes, so a later block is never used before an earlier one:
the optimum evicts later blocks first, and all its hits are in the leading run of a request.

Spatial sampling estimates both if a full pass takes too long (Waldspurger et al., SHARDS, FAST
2015):

    an object is in a sample if its hash is below a threshold; so are all references to it
    simulate a cache that is smaller by the same share; scale the results up
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
    """References in the leading run of hits of their request."""
    inserts: int
    """References that missed and were inserted."""


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

    None is an unlimited capacity. Capacities are in objects, or in the unit of `sizes`. Each request
    references its objects in order: a present one is used, a missing one is inserted after the
    evictions that it needs; one larger than the cache is not inserted. Hits are the leading run of
    present objects of each request. Only TTL uses `arrival_ns` (time of each request) and `ttl_ns`.
    OPTIMAL is Belady's optimum, for objects of one size.
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
    uses_by_capacity = []
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
        world.knobs.linked_tiers = 1
        world.tiers["ttl_ns"] = ttl_ns
        set_policies(world, [policy])
        _use_tier(world, uses)
        uses_by_capacity.append(Uses(*uses.tolist()))
    return uses_by_capacity


@dataclass(frozen=True, slots=True)
class LruCurve:
    """Hits and inserts of LRU by capacity; arrays indexed by objects, from 0 to all of them."""

    references: int
    hits: NDArray[np.int64]
    """References in the leading run of their request."""
    inserts: NDArray[np.int64]
    """References that missed and were inserted."""


def lru_curve(chains: Chains) -> LruCurve:
    """Return hits and inserts of LRU over `chains` at every capacity, exactly, in one pass.

    The module describes the algorithm.
    """
    count, references, requests = len(chains.tokens), len(chains.slots), len(chains.offsets) - 1
    # References by prefix distance, and by distance; the last entry counts first references.
    by_prefix_distance, by_distance = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    tree, last = np.zeros(references + 1, np.int32), np.full(count, NONE)
    _find_distances(
        chains.offsets,
        requests,
        chains.slots,
        references,
        count,
        tree,
        last,
        by_prefix_distance,
        by_distance,
    )
    hits, present = np.cumsum(by_prefix_distance[:-1]), np.cumsum(by_distance[:-1])
    return LruCurve(len(chains.slots), hits, len(chains.slots) - present)


OPTIMAL: Final = "optimal"
"""Name of the optimum among the policies."""

_find_following = function("curve_next_references", I4, int, I8, I8)
_use_optimally = function("curve_use_optimal", I8, int, I4, I8, I1, EVENT, int, I8)


def optimal_uses(
    chains: Chains, capacities: Sequence[int | None], *, until_request: int | None = None
) -> list[Uses]:
    """Return hits and inserts of Belady's optimal cache over `chains`, for each capacity.

    Capacities are in objects; None is unlimited. Only the first `until_request` requests are
    counted if it is given; the cache knows the uses of all.
    """
    references, count = len(chains.slots), len(chains.tokens)
    following = np.empty(references, np.int64)
    _find_following(chains.slots, references, np.full(count, NONE), following)
    uses_by_capacity = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        live, heap, uses = (
            np.zeros(count, np.int8),
            np.empty(references, EVENT),
            np.zeros(2, np.int64),
        )
        requests = len(chains.offsets) - 1 if until_request is None else until_request
        _use_optimally(chains.offsets, requests, chains.slots, following, live, heap, limit, uses)
        uses_by_capacity.append(Uses(*uses.tolist()))
    return uses_by_capacity


_sample_chains = function("curve_sample_chains", I8, int, I4, int, int, int, int, I4, I8, I4)
HASH_VALUES = 2**24
SAMPLES = 4
# Student's t with SAMPLES - 1 degrees of freedom, two-sided 95 %.
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
    """Estimate the uses of a cache with `policy` at each capacity, from samples of a share `rate`.

    `lru` is the exact result of LRU, which serves as a control variate:

        bias = result of LRU in the samples - exact result of LRU
        estimate = mean result of the policy in the samples - bias
        error = max(|bias|, half-width of the 95 % interval of the mean of SAMPLES samples)

    Samples with too few or too many of the hot objects are wrong for LRU in nearly the same way. So
    are leading runs, which are longer among sampled objects if a cache keeps later objects of a
    prompt but not earlier ones. Source: own reasoning.
    """
    if policy == Policy.TTL:
        raise ValueError("ttl depends on time, not on capacity alone: use policy_uses")
    if not 0 < rate <= 1:
        raise ValueError(f"rate(={rate}) must be in (0, 1]")
    below = max(1, round(rate * HASH_VALUES))
    if below == HASH_VALUES:
        exact_uses = policy_uses(chains, capacities, policy)
        return [
            Estimate(capacity, uses.hits, uses.inserts, 0.0, 0.0, 1.0, len(chains.slots))
            for capacity, uses in zip(capacities, exact_uses, strict=True)
        ]
    samples = [sample_chains(chains, below, seed) for seed in range(SAMPLES)]
    share, references = below / HASH_VALUES, sum(len(sample.slots) for sample in samples)
    # The optimum does not insert objects that are not used again, so LRU has another bias there.
    has_lru_bias = np.array([1, policy != OPTIMAL])
    max_references = (
        float(lru.hits[-1]),
        lru.references - float(lru.inserts[-1]) * has_lru_bias[1],
    )
    sampling = len(chains.slots), share, capacities
    values = [
        np.array([_scaled_references(sample, *sampling, policy_name) for sample in samples])
        for policy_name in (policy, Policy.LRU)
    ]
    places = np.array(capacities)
    exact = np.stack([lru.hits[places], lru.references - lru.inserts[places]], axis=1)
    sampled_policy, sampled_lru = (sample_values.mean(axis=0) for sample_values in values)
    spread = (values[0] - values[1] * has_lru_bias).std(axis=0, ddof=1) * T95 / np.sqrt(SAMPLES)
    error = np.maximum(spread, np.abs(exact - sampled_lru))
    mean = np.clip(sampled_policy + (exact - sampled_lru) * has_lru_bias, 0.0, max_references)
    return [
        Estimate(
            capacity,
            float(means[0]),
            lru.references - float(means[1]),
            float(errors[0]),
            float(errors[1]),
            share,
            references,
        )
        for capacity, means, errors in zip(capacities, mean, error, strict=True)
    ]


def _scaled_references(
    sample: Chains, references: int, share: float, capacities: Sequence[int], policy: str
) -> NDArray[np.float64]:
    """Return the estimated hits and present references, of shape [capacities, 2].

    A sample with more or fewer references than its share differs by a few hot objects, which nearly
    always hit. So the difference is corrected in both (SHARDS-adj of the same paper).
    """
    sample_uses: list[Uses] = policy_uses(
        sample, [max(1, round(capacity * share)) for capacity in capacities], policy
    )
    missing = references * share - len(sample.slots)
    present = [
        (uses.hits + missing, len(sample.slots) - uses.inserts + missing) for uses in sample_uses
    ]
    scaled: NDArray[np.float64] = np.array(present) / share
    return scaled


def sample_chains(chains: Chains, below: int, seed: int) -> Chains:
    """Return the references to objects with a hash below `below` (of HASH_VALUES)."""
    requests, objects = len(chains.offsets) - 1, len(chains.tokens)
    offsets, slots, number = (
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
        slots,
    )
    return Chains(offsets, slots[: offsets[-1]].copy(), chains.tokens[number != NONE])
