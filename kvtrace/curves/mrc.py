"""How much DRAM and NVMe a workload needs.

Hits, and bytes read and written, against the capacity of one tier.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.curves.stack import OPTIMAL, Estimate, LruCurve, estimate, lru_curve, optimal_uses
from kvtrace.model.shape import ModelShape, bytes_per_token
from kvtrace.requests.requests import Requests
from kvtrace.sim.chains import chunk_chains
from kvtrace.sim.policies import Policy

# Of one sample, if the user says nothing: 20 points then take seconds.
SAMPLED_REFERENCES = 1_000_000
# Of all capacities together, up to which the optimum is worked out beside another policy: a second
# or two.
OPTIMAL_REFERENCES = 20_000_000
SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What one tier of `capacity_bytes` does with the whole trace.

    Errors are estimates, 0 where all is exact.
    """

    capacity_objects: int
    capacity_bytes: int
    hits: int
    hit_ratio: float
    hit_ratio_error: float
    optimal_hit_ratio: float | None
    """What no policy can exceed at this capacity (Belady); null where it was not worked out."""
    read_bytes: int
    """Served from this tier."""
    passed_bytes: int
    """That a tier without bounds would serve, and this one leaves to the tier below, or to be
    computed again.
    """
    written_bytes: int
    """Stored into this tier: every object that was not there."""
    written_bytes_error: int


@dataclass(frozen=True, slots=True)
class HitCurve:
    """A curve of points, and the capacity at which given shares of all possible hits are reached.

    LRU is known at every capacity, so that these are exact; of another policy they are the first
    points that do, so that less may do as well (`is_at_most`); null if none does.
    """

    policy: str
    sampling_rate: float
    """The share of the objects in each sample; 1: all were simulated, and nothing is estimated."""
    object_tokens: int
    object_bytes: int
    requests: int
    references: int
    points: list[CurvePoint]
    enough: list[dict[str, Any]]


def sweep(
    requests: Requests,
    model: ModelShape,
    chunk_tokens: int | None,
    points: int,
    policy: str = Policy.LRU,
    sample: float | None = None,
) -> HitCurve:
    """Return `points` points from one object to all of them, log-spaced.

    LRU is exact, in one pass. Another policy is simulated at each point, with samples of a share
    `sample` of the objects; by default with all, or as many as make a million references. Objects
    are chunks of `chunk_tokens` tokens, or by default the source's own blocks, of all ranks and
    layers together. As in `gen`, only full chunks are stored: a block that a prompt ends in is no
    object. Bytes charge every layer for every token.
    """
    requests.check_shared()
    if chunk_tokens is None and not requests.block_tokens:
        raise ConfigError(
            "the source names no blocks: say how many tokens a chunk has, with --chunk-tokens"
        )
    if policy == Policy.TTL:
        raise ConfigError(
            "--policy ttl: what it keeps depends on time more than on capacity; use kvtrace sim"
        )
    if policy == Policy.LRU and sample is not None:
        raise ConfigError(f"--sample {sample:g}: lru is exact in one pass, and needs no sample")
    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(f"--sample {sample:g}: must be > 0, and at most 1, which is all")
    tokens = chunk_tokens or requests.block_tokens
    chains = chunk_chains(requests, tokens)
    size = tokens * bytes_per_token(model)
    curve, count = lru_curve(chains), len(chains.tokens)
    if not count:
        raise ConfigError(f"no prompt fills a chunk of {tokens} tokens: nothing would be cached")
    capacities = [
        int(c) for c in np.unique(np.round(np.geomspace(1, count, max(2, points))).astype(np.int64))
    ]
    if policy == Policy.LRU:
        exact = (0.0, 0.0, 1.0, curve.references)
        found = [Estimate(c, int(curve.hits[c]), int(curve.inserts[c]), *exact) for c in capacities]
    else:
        rate = sample or min(1.0, SAMPLED_REFERENCES / curve.references)
        found = estimate(chains, capacities, policy, curve, rate=rate)
    most = int(curve.hits[-1])
    made = [_point(e, curve.references, most, size) for e in found]
    if policy == OPTIMAL:
        made = [replace(p, optimal_hit_ratio=p.hit_ratio) for p in made]
    elif curve.references * len(capacities) <= OPTIMAL_REFERENCES:
        best = optimal_uses(chains, capacities)
        made = [
            replace(p, optimal_hit_ratio=b.hits / curve.references)
            for p, b in zip(made, best, strict=True)
        ]
    enough = [_enough(curve, made, share, size, policy) for share in SHARES]
    return HitCurve(
        policy, found[0].sampling_rate, tokens, size, len(requests), curve.references, made, enough
    )


def _point(found: Estimate, references: int, most: int, size: int) -> CurvePoint:
    hits = round(found.hits)
    return CurvePoint(
        found.capacity,
        found.capacity * size,
        hits,
        hits / references,
        found.hits_error / references,
        None,
        hits * size,
        (most - hits) * size,
        round(found.inserts) * size,
        round(found.inserts_error) * size,
    )


def _enough(
    curve: LruCurve, points: list[CurvePoint], share: float, size: int, policy: str
) -> dict[str, Any]:
    wanted = int(np.ceil(share * int(curve.hits[-1])))
    if policy == Policy.LRU:
        capacity: int | None = int(np.searchsorted(curve.hits, wanted))
    else:
        capacity = next((p.capacity_objects for p in points if p.hits >= wanted), None)
    return {
        "share_of_hits": share,
        "capacity_objects": capacity,
        "capacity_bytes": None if capacity is None else capacity * size,
        "is_at_most": policy != Policy.LRU,
    }
