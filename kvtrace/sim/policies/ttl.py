"""TTL: what is written expires a fixed time later, read or not, and the rest is as FIFO."""

from __future__ import annotations

from kvtrace.sim.policies.fifo import choose, on_hit, on_remove
from kvtrace.sim.policies.queues import enter, note_of, operation
from kvtrace.sim.records import World

__all__ = ["choose", "on_hit", "on_insert", "on_remove"]


@operation
def on_insert(world: World, t: int, slot: int, now: int) -> int:
    """Put it first, and note when it expires."""
    note_of(world, t, slot).count = now + world.tiers[t].ttl_ns
    enter(world, t, slot, 0)
    return 0
