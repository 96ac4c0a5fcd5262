"""CLOCK: as FIFO, but a slot that was used is spared once for it, and becomes the newest."""

from __future__ import annotations

from kvtrace.sim.policies.fifo import on_insert, on_remove
from kvtrace.sim.policies.queues import link_first, note_of, operation, queue_of, unlink
from kvtrace.sim.records import World

__all__ = ["choose", "on_hit", "on_insert", "on_remove"]


@operation
def on_hit(world: World, t: int, slot: int, _: int) -> int:
    """Note that it was used."""
    note_of(world, t, slot).count = 1
    return 0


@operation
def choose(world: World, t: int, _incoming: int, _: int) -> int:
    """Return the oldest slot that was not used since it last became the newest, or the first."""
    slot = queue_of(world, t, 0).tail
    while note_of(world, t, slot).count:
        note_of(world, t, slot).count = 0
        unlink(world, t, slot, 0)
        link_first(world, t, slot, 0)
        slot = queue_of(world, t, 0).tail
    return slot
