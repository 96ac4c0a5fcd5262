"""How much DRAM and NVMe a workload needs: hits, and bytes read and written, against the capacity of an LRU tier."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.plots import panels
from kvtrace.core.units import format_bytes
from kvtrace.geometry import block_chains, chunk_chains
from kvtrace.models import bytes_per_token
from kvtrace.sweep import lru_curve

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.models import ModelShape
    from kvtrace.sources import Requests
    from kvtrace.sweep import LruCurve

SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Point:
    """What one LRU tier of `capacity_bytes` does with the whole trace."""

    capacity_objects: int
    capacity_bytes: int
    hits: int
    hit_ratio: float
    read_bytes: int
    """Served from this tier."""
    passed_bytes: int
    """That a tier without bounds would serve, and this one leaves to the tier below, or to be computed again."""
    written_bytes: int
    """Stored into this tier: every object that was not there."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A curve of points, and the capacity at which given shares of all possible hits are reached."""

    object_tokens: int
    object_bytes: int
    requests: int
    references: int
    points: list[Point]
    enough: list[dict[str, Any]]


def sweep(requests: Requests, model: ModelShape, chunk_tokens: int | None, points: int) -> Sweep:
    """Return `points` points from one object to all of them, log-spaced, exactly and in one pass.

    Objects are chunks of `chunk_tokens` tokens, or by default the source's own blocks, of all ranks and layers
    together. Bytes charge every layer for every token.
    """
    if chunk_tokens is None and not requests.block_tokens:
        raise ConfigError("the source names no blocks: say how many tokens a chunk has, with --chunk-tokens")
    chains = block_chains(requests) if chunk_tokens is None else chunk_chains(requests, chunk_tokens)
    tokens = chunk_tokens or requests.block_tokens
    size = tokens * bytes_per_token(model)
    curve, count = lru_curve(chains), len(chains.tokens)
    if not count:
        raise ConfigError(f"no prompt fills a chunk of {tokens} tokens: nothing would be cached")
    capacities = np.unique(np.round(np.geomspace(1, count, max(2, points))).astype(np.int64))
    return Sweep(
        tokens, size, len(requests), curve.references, [_point(curve, int(c), size) for c in capacities],
        [_enough(curve, share, size) for share in SHARES],
    )  # fmt: skip


def _point(curve: LruCurve, capacity: int, size: int) -> Point:
    hits, most = int(curve.hits[capacity]), int(curve.hits[-1])
    return Point(
        capacity, capacity * size, hits, hits / curve.references, hits * size, (most - hits) * size,
        int(curve.inserts[capacity]) * size,
    )  # fmt: skip


def _enough(curve: LruCurve, share: float, size: int) -> dict[str, Any]:
    wanted = int(np.ceil(share * int(curve.hits[-1])))
    capacity = int(np.searchsorted(curve.hits, wanted))
    return {"share_of_hits": share, "capacity_objects": capacity, "capacity_bytes": capacity * size}


def plot(found: Sweep, path: Path, title: str) -> None:
    """Draw hit ratio and bytes against capacity to `path` (svg, png or pdf), with matplotlib."""
    gib = [p.capacity_bytes / 2**30 for p in found.points]
    with panels(path, title) as (ratio, moved):
        ratio.plot(gib, [100 * p.hit_ratio for p in found.points], marker=".")
        ratio.set(ylabel="hits, % of references", ylim=(0, None))
        for name, label in (
            ("read_bytes", "read from it"),
            ("passed_bytes", "left to the tier below"),
            ("written_bytes", "written to it"),
        ):
            moved.plot(gib, [getattr(p, name) / 2**40 for p in found.points], marker=".", label=label)
        moved.set(xlabel="capacity, GiB", ylabel="TiB over the trace", xscale="log", ylim=(0, None))
        moved.legend()


def rows(found: Sweep) -> list[list[str]]:
    """Return the points as rows of a table, with a bar for the hit ratio."""
    return [
        [
            format_bytes(p.capacity_bytes), f"{p.capacity_objects:,}", f"{100 * p.hit_ratio:.1f} %",
            format_bytes(p.read_bytes), format_bytes(p.passed_bytes), format_bytes(p.written_bytes),
            ("█" * round(20 * p.hits / max(1, found.points[-1].hits))).ljust(20),
        ]
        for p in found.points
    ]  # fmt: skip


def as_json(found: Sweep) -> dict[str, Any]:
    """Return the sweep as plain values."""
    return asdict(found)
