"""Hit-ratio curves: hits, and bytes read and written, against the capacity of one tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.curves.stack import OPTIMAL, Estimate, LruCurve, estimate, lru_curve, optimal_uses
from kvtrace.llm.shape import ModelShape, bytes_per_token
from kvtrace.requests.requests import Requests
from kvtrace.sim.chains import chunk_chains
from kvtrace.sim.policies import Policy

# Default references of one sample; 20 points then take seconds.
SAMPLED_REFERENCES = 1_000_000
# The optimum is computed next to another policy up to this many references over all capacities,
# which takes a second or two.
OPTIMAL_REFERENCES = 20_000_000
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The figures of one tier of `capacity_bytes` over the whole trace; errors are 0 if exact."""

    capacity_objects: int
    capacity_bytes: int
    hits: int
    hit_ratio: float
    hit_ratio_error: float
    optimal_hit_ratio: float | None
    """Upper bound of all policies at this capacity (Belady); null if not computed."""
    read_bytes: int
    """Bytes served from this tier."""
    passed_bytes: int
    """Bytes that only an unlimited tier would serve: left to the tier below or recomputed."""
    written_bytes: int
    """Bytes stored into this tier: every object that missed."""
    written_bytes_error: int


@dataclass(frozen=True, slots=True)
class SufficientCapacity:
    """The capacity that reaches a share of all possible hits; null if no simulated one does."""

    share_of_hits: float
    capacity_objects: int | None
    capacity_bytes: int | None
    is_at_most: bool
    """Whether a smaller capacity may suffice."""


@dataclass(frozen=True, slots=True)
class HitCurve:
    """A curve of points, and the capacities that reach given shares of all possible hits.

    These capacities are exact for LRU, which is known at every capacity. For another policy they
    are the first sufficient point, so a smaller one may suffice (`is_at_most`); null if none does.
    """

    policy: str
    sampling_rate: float
    """Share of the objects in each sample; 1 if all were simulated."""
    object_tokens: int
    object_bytes: int
    requests: int
    references: int
    points: list[CurvePoint]
    enough: list[SufficientCapacity]


def check_policy(name: str) -> str:
    """Return the policy `name`, as in "LRU" or "S3-FIFO"; "belady" is another name of the optimum.

    Raises:
        ConfigError: if no policy of one cache has this name.

    """
    plain_name = name.lower().replace("-", "")
    # SAE evicts by requests, not by references, so it needs a full simulation.
    policy_names = [str(policy) for policy in Policy if policy is not Policy.SAE]
    if plain_name in ("belady", OPTIMAL):
        return OPTIMAL
    if plain_name not in policy_names:
        known_names = ", ".join([*policy_names, OPTIMAL])
        raise ConfigError(f"unknown policy {name!r}; known are {known_names}")
    return plain_name


def sweep(
    requests: Requests,
    model: ModelShape,
    chunk_tokens: int | None,
    points: int,
    policy: str = Policy.LRU,
    sample: float | None = None,
    *,
    objects: Sequence[int] | None = None,
) -> HitCurve:
    """Return `points` log-spaced points from one object to all, or points at capacities `objects`.

    LRU is exact, in one pass. Another policy is simulated at each point, with samples of a share
    `sample` of the objects; by default all, or the share with a million references. Objects are
    chunks of `chunk_tokens` tokens, by default the source's blocks, of all ranks and layers
    together. As in `gen`, only full chunks are stored: the partial block at the end of a prompt is
    no object. Bytes count every layer for every token.
    """
    requests.check_shared()
    if chunk_tokens is None and not requests.block_tokens:
        raise ConfigError(
            f"the source has no block ids: set the tokens of a chunk with {named('chunk_tokens')}"
        )
    if policy == Policy.TTL:
        raise ConfigError(
            f"{named('policy', 'ttl')}: it depends on time more than on capacity; use kvtrace sim"
        )
    if policy == Policy.LRU and sample is not None:
        raise ConfigError(
            f"{named('sample', f'{sample:g}')}: lru is exact in one pass, and needs no sample"
        )
    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(
            f"{named('sample', f'{sample:g}')}: must be > 0 and at most 1 (all objects)"
        )
    tokens = chunk_tokens or requests.block_tokens
    chains = chunk_chains(requests, tokens)
    size = tokens * bytes_per_token(model)
    curve, count = lru_curve(chains), len(chains.tokens)
    if not count:
        raise ConfigError(f"no prompt fills a chunk of {tokens} tokens, so nothing would be cached")
    if objects is None:
        spaced = np.round(np.geomspace(1, count, max(2, points))).astype(np.int64)
        capacities = [int(capacity) for capacity in np.unique(spaced)]
    else:
        # A capacity beyond all objects has no further hits.
        capacities = [min(capacity, count) for capacity in objects]
    if policy == Policy.LRU:
        exact = (0.0, 0.0, 1.0, curve.references)
        estimates = [
            Estimate(capacity, int(curve.hits[capacity]), int(curve.inserts[capacity]), *exact)
            for capacity in capacities
        ]
    else:
        rate = sample or min(1.0, SAMPLED_REFERENCES / curve.references)
        estimates = estimate(chains, capacities, policy, curve, rate=rate)
    max_hits = int(curve.hits[-1])
    curve_points = [_point(estimated, curve.references, max_hits, size) for estimated in estimates]
    if policy == OPTIMAL:
        curve_points = [replace(point, optimal_hit_ratio=point.hit_ratio) for point in curve_points]
    elif curve.references * len(capacities) <= OPTIMAL_REFERENCES:
        optimal = optimal_uses(chains, capacities)
        curve_points = [
            replace(point, optimal_hit_ratio=bound.hits / curve.references)
            for point, bound in zip(curve_points, optimal, strict=True)
        ]
    enough = [_capacity_for_share(curve, curve_points, share, size, policy) for share in SHARES]
    return HitCurve(
        policy,
        estimates[0].sampling_rate,
        tokens,
        size,
        len(requests),
        curve.references,
        curve_points,
        enough,
    )


def _point(estimated: Estimate, references: int, max_hits: int, size: int) -> CurvePoint:
    hits = round(estimated.hits)
    return CurvePoint(
        estimated.capacity,
        estimated.capacity * size,
        hits,
        hits / references,
        estimated.hits_error / references,
        None,
        hits * size,
        (max_hits - hits) * size,
        round(estimated.inserts) * size,
        round(estimated.inserts_error) * size,
    )


def _capacity_for_share(
    curve: LruCurve, points: list[CurvePoint], share: float, size: int, policy: str
) -> SufficientCapacity:
    hits_wanted = int(np.ceil(share * int(curve.hits[-1])))
    if policy == Policy.LRU:
        capacity: int | None = int(np.searchsorted(curve.hits, hits_wanted))
    else:
        capacity = next(
            (point.capacity_objects for point in points if point.hits >= hits_wanted), None
        )
    capacity_bytes = None if capacity is None else capacity * size
    return SufficientCapacity(share, capacity, capacity_bytes, policy != Policy.LRU)
