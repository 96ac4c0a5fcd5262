"""Estimate hits and inserts against capacity from a share of the objects, where the whole takes too long.

An object is in a sample if its hash says so, and so are then all references to it, served by a cache smaller by the
same share (spatial sampling: Waldspurger et al., SHARDS, FAST 2015).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.curves.stack import LruCurve, policy_uses
from kvtrace.curves.uses import Uses
from kvtrace.sim.chains import Chains
from kvtrace.sim.policies import Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

HASH_VALUES = 2**24
SAMPLES = 4
# Of Student's t with SAMPLES - 1 degrees of freedom: 95 % of all values lie within.
T95 = 3.182


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a cache of `capacity` objects does with all references, as samples of the objects suggest."""

    capacity: int
    hits: float
    inserts: float
    hits_error: float
    """How far `hits` may be off, either way, estimated; 0 if all objects were simulated."""
    inserts_error: float
    sampling_rate: float
    """The share of the objects in each sample."""
    sampled_references: int
    """Of all samples together."""


def estimate(
    chains: Chains, capacities: Sequence[int], policy: str, lru: LruCurve, *, rate: float, seed: int = 0
) -> list[Estimate]:
    """Estimate what a cache with `policy` does at each capacity in objects, from samples of a share `rate` each.

    `lru` is what LRU does with the same references, which is known exactly. Samples that hold too few of the much
    used objects, or too many, are wrong on LRU in nearly the same way, and so that is taken off. The error is the
    larger of what was taken off and of the half-width of the 95 % confidence interval of the mean of SAMPLES
    samples. A leading run is that of the sampled objects of a request, which is longer than the true one where a
    cache keeps later objects of a prompt and not earlier ones; of that, too, what LRU has is taken off.
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
    samples = [sample_of(chains, below, seed + i) for i in range(SAMPLES)]
    share, references = below / HASH_VALUES, sum(len(s.slots) for s in samples)
    most = (float(lru.hits[-1]), float(lru.references - lru.inserts[-1]))
    values = []
    for policy_ in (policy, Policy.LRU):
        of_policy = [_scaled(s, len(chains.slots), share, capacities, policy_) for s in samples]
        values.append(np.array(of_policy))
    at = np.array(capacities)
    exact = np.stack([lru.hits[at], lru.references - lru.inserts[at]], axis=1)
    ours, theirs = (v.mean(axis=0) for v in values)
    spread = (values[0] - values[1]).std(axis=0, ddof=1) * T95 / np.sqrt(SAMPLES)
    error = np.maximum(spread, np.abs(exact - theirs))
    mean = np.clip(ours + exact - theirs, 0.0, most)
    return [
        Estimate(c, float(m[0]), lru.references - float(m[1]), float(e[0]), float(e[1]), share, references)
        for c, m, e in zip(capacities, mean, error, strict=True)
    ]


def _scaled(
    sample: Chains, references: int, share: float, capacities: Sequence[int], policy: str
) -> NDArray[np.float64]:
    """Return [capacities, 2]: of all `references`, those in a leading run and those that were there.

    If a sample has more references than its share, or fewer, that is for a few much used objects, which nearly always
    hit: so the difference is taken off both, or added (the same paper's SHARDS-adj).
    """
    found: list[Uses] = policy_uses(sample, [max(1, round(c * share)) for c in capacities], policy)
    missing = references * share - len(sample.slots)
    there = [(u.hits + missing, len(sample.slots) - u.inserts + missing) for u in found]
    scaled: NDArray[np.float64] = np.array(there) / share
    return scaled


def sample_of(chains: Chains, below: int, seed: int) -> Chains:
    """Return the references to the objects whose hash is one of the first `below` of HASH_VALUES."""
    mixed = np.arange(len(chains.tokens), dtype=np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    is_chosen = mixed % np.uint64(HASH_VALUES) < below
    kept = is_chosen[chains.slots]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[chains.offsets]
    number = np.cumsum(is_chosen) - 1
    return Chains(offsets, number[chains.slots[kept]].astype(np.int32), chains.tokens[is_chosen])
