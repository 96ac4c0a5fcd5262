"""How often a window may have to be repeated to last as long as --runtime says; a plan is made before the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvreplay.config.memory import ROW_BYTES
from kvreplay.native.rows import READ, WRITE
from kvreplay.plan.pacing import Pacer, Repeated
from kvreplay.plan.window import Facts, TraceWindow
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.ram import available_bytes
from kvreplay.tiers.tier import StorageTier, Tier, modelled
from kvtrace.core.tables import Reader
from kvtrace.core.units import NS_PER_S

MOST_BYTES_PER_S, MOST_OPERATIONS_PER_S = 16e9, 5e6
"""What a closed loop is thought to reach on storage, and anywhere, at most: a plan for more is memory for nothing."""
MEMORY_PART = 8
"""A plan of repeats takes this part of the memory that is available."""


def repeats_of(reader: Reader, window: TraceWindow, pacer: Pacer, tiers: Sequence[Tier | None], runtime_ns: int) -> int:
    """Return how often `window` is to be planned so that it lasts for `runtime_ns`."""
    if pacer.speed is not None:
        return int(runtime_ns * pacer.speed) // Repeated(reader, window.rows, 1).period_ns + 1
    facts = window.facts
    # By the models of tiers that take time, each direction one after the other.
    served_ns = max((_served_ns(facts, tier, at) for at, tier in enumerate(tiers)), default=0.0)
    is_stored = np.array([isinstance(tier, StorageTier | ObjectTier) for tier in tiers])
    moved = int(facts.kinds["bytes"][is_stored][:, [READ, WRITE]].sum())
    once_s = max(moved / MOST_BYTES_PER_S, facts.rows / MOST_OPERATIONS_PER_S, served_ns / NS_PER_S)
    available = available_bytes()
    room = 1 << 24 if available is None else available // MEMORY_PART // ROW_BYTES
    return max(1, min(int(runtime_ns / NS_PER_S / once_s) + 1, room // window.rows))


def _served_ns(facts: Facts, tier: Tier | None, at: int) -> float:
    """Return the least time that the model of `tier` takes for its operations; 0 without one."""
    service = getattr(tier, "service", None) if modelled(tier) else None
    if service is None:
        return 0.0
    longest = 0.0
    for op, rate in ((READ, service.read_bytes_per_s), (WRITE, service.write_bytes_per_s)):
        kind = facts.kinds[at, op]
        share_ns = service.latency_ns // service.concurrency if service.concurrency else 0
        longest = max(longest, float(kind["bytes"]) * (NS_PER_S / rate), float(kind["rows"]) * share_ns)
    return longest
