"""Draw operations with the reuse distances of a `Profile`, by an LRU stack model, for any length of run.

Sizes, mix, bursts, gaps and reuse distances have the profile's distributions; which operation follows which is chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import DirectionProfile, Profile
from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.statistics import Slot, slot_of
from kvtrace.core.units import NS_PER_S, format_count

MAX_OPS = 2_000_000
"""The most operations that are drawn, which bounds memory and the logs."""
_GRANULE_BYTES = 4096
_EXACT_SIZES = 256
_FIRST_US = 1
_model = function("reuse_model_place", int, I8, I8, int, I8, I8, I8, returns=int)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Operations in order of time; `us` from 1."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    span_bytes: int
    """Where the highest of them ends."""


def draw(profile: Profile, runtime_ns: int, seed: int) -> Drawn:
    """Draw `runtime_ns` of operations; the same seed draws the same.

    Raises:
        ConfigError: the profile does not know arrivals or reuse, or these are too many operations.

    """
    if profile.locality is None or profile.arrivals is None:
        raise ConfigError(
            f"{profile.origin.file} does not say when operations came and how soon places were used again, which the "
            "reuse job draws from; take a trace, a run or block events that last longer than an instant"
        )
    share = runtime_ns / profile.span_ns
    ops = {True: max(0, round(profile.read.ops * share)), False: max(0, round(profile.write.ops * share))}
    count = max(1, sum(ops.values()))
    if count > MAX_OPS:
        raise ConfigError(
            f"{format_count(count)} operations are more than the reuse job draws ({format_count(MAX_OPS)}); take less "
            "with --max-duration"
        )
    rng = np.random.default_rng(seed)
    is_read = np.zeros(count, dtype=np.bool_)
    is_read[: ops[True]] = True
    rng.shuffle(is_read)
    length, distance = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for direction, reuse, which in (
        (profile.read, profile.locality.read, is_read),
        (profile.write, profile.locality.write, ~is_read),
    ):
        n = int(which.sum())
        if n:
            length[which] = _sizes(direction, n, rng)
            # `count` reuse distances in bytes; -1 for a first use.
            known = sum(slot.count for slot in reuse.distances)
            result = np.full(n, -1, dtype=np.int64)
            again = round(n * known / (known + reuse.first_ops))
            result[:again] = _from_slots(reuse.distances, again, rng)
            rng.shuffle(result)
            distance[which] = result
    # Which operations may share places: those of one size, or of about one if there are very many sizes.
    sizes, index = np.unique(length, return_inverse=True)
    classes = index if len(sizes) <= _EXACT_SIZES else np.unique(slot_of(length), return_inverse=True)[1]
    reserved = np.zeros(int(classes.max()) + 1, dtype=np.int64)
    np.maximum.at(reserved, classes, -(-length // _GRANULE_BYTES) * _GRANULE_BYTES)
    offset, span_bytes = _place(classes, distance, reserved, np.bincount(classes))
    return Drawn(_times(profile, count, runtime_ns, rng), is_read, offset, length, span_bytes)


def _sizes(direction: DirectionProfile, count: int, rng: np.random.Generator) -> Any:
    """Return `count` sizes in the exact shares of `direction`, by largest remainder, in random order."""
    weights = np.array([size.ops for size in direction.sizes], dtype=np.float64) * count / direction.ops
    shares = np.floor(weights).astype(np.int64)
    rest = np.argsort(-(weights - shares), kind="stable")[: count - int(shares.sum())]
    shares[rest] += 1
    sizes = np.repeat(np.array([size.io_bytes for size in direction.sizes]), shares)
    rng.shuffle(sizes)
    return sizes


def _from_slots(slots: Sequence[Slot], count: int, rng: np.random.Generator) -> Any:
    """Return `count` values with the distribution of `slots`, even within each, stratified."""
    if not count:
        return np.empty(0, dtype=np.int64)
    done = np.cumsum([slot.count for slot in slots])
    at = (np.arange(count) + rng.random(count)) / count * done[-1]
    index = np.minimum(np.searchsorted(done, at, "right"), len(slots) - 1)
    low, below = (np.array([getattr(slot, name) for slot in slots]) for name in ("low", "below"))
    values = low[index] + np.floor(rng.random(count) * (below - low)[index]).astype(np.int64)
    rng.shuffle(values)
    return values


def _times(profile: Profile, count: int, runtime_ns: int, rng: np.random.Generator) -> Any:
    """Return when each of `count` operations is due, in microseconds: bursts of the profile's sizes, at its gaps."""
    arrivals = profile.arrivals
    assert arrivals is not None
    mean = count / max(1, round(count * arrivals.instants / profile.ops))
    bursts = _from_slots(arrivals.bursts, 2 * int(count / mean) + 8, rng)
    bursts = bursts[: int(np.searchsorted(np.cumsum(bursts), count)) + 1]
    gaps = _from_slots(arrivals.gaps, len(bursts) - 1, rng).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(gaps)])
    if starts[-1] > 0:
        starts *= runtime_ns / starts[-1]
    return (_FIRST_US + np.repeat(starts, bursts)[:count] * (1_000_000 / NS_PER_S)).astype(np.int64)


def _place(classes: Any, distance: Any, reserved: Any, uses: Any) -> tuple[NDArray[np.int64], int]:
    """Return an address for each operation, and the end of the highest.

    Of each class, `reserved` are a place's bytes and `uses` its operations.
    """
    kinds, distances, bytes_, ops = (np.ascontiguousarray(part, I8) for part in (classes, distance, reserved, uses))
    address = np.empty(len(kinds), dtype=np.int64)
    return address, int(_model(len(kinds), kinds, distances, len(ops), bytes_, ops, address))
