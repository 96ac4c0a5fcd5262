"""FIFO: the one written first leaves first. Policies of one list share what it does."""

from __future__ import annotations

from kvtrace.sim.policies.queues import enter, leave, note_of, operation, queue_of
from kvtrace.sim.records import World


@operation
def on_hit(_world: World, _t: int, _slot: int, _: int) -> int:
    """Do nothing: a use does not count."""
    return 0


@operation
def on_insert(world: World, t: int, slot: int, _now: int) -> int:
    """Put it first; it was not used."""
    note_of(world, t, slot).count = 0
    enter(world, t, slot, 0)
    return 0


@operation
def choose(world: World, t: int, _incoming: int, _: int) -> int:
    """Return the last."""
    return int(queue_of(world, t, 0).tail)


@operation
def on_remove(world: World, t: int, slot: int, _is_evicted: int) -> int:
    """Take it out."""
    leave(world, t, slot)
    return 0
