"""LFU: one list by count, the least used last, and of those used as often the one that has been so for longest.

Those of one count are a group, which knows its most recent slot, so that a slot can go past all of its group.
"""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.fifo import choose
from kvtrace.sim.policies.queues import link_of, note_of, operation, queue_of, unlink
from kvtrace.sim.records import NONE, World

__all__ = ["choose", "on_hit", "on_insert", "on_remove"]


@operation
def on_insert(world: World, t: int, slot: int, _now: int) -> int:
    """Note that `slot` is used for the first time."""
    note_of(world, t, slot).count = 1
    last = queue_of(world, t, 0).tail
    if last != NONE and note_of(world, t, last).count == 1:
        group = note_of(world, t, last).place
        _link_above(world, t, slot, note_of(world, t, group).top)
    else:
        group = _new_group(world, t)
        _link_above(world, t, slot, NONE)
    _join_group(world, t, slot, group)
    return 0


@operation
def on_hit(world: World, t: int, slot: int, _: int) -> int:
    """Note that `slot` is used once more."""
    note = note_of(world, t, slot)
    place = note_of(world, t, note.place).top
    above = link_of(world, t, place).newer
    note.count += 1
    is_group = above != NONE and note_of(world, t, above).count == note.count
    if is_group:
        place = note_of(world, t, note_of(world, t, above).place).top
    _leave_group(world, t, slot)
    if place != slot:
        unlink(world, t, slot, 0)
        _link_above(world, t, slot, place)
    group = note_of(world, t, above).place if is_group else _new_group(world, t)
    _join_group(world, t, slot, group)
    return 0


@operation
def on_remove(world: World, t: int, slot: int, _is_evicted: int) -> int:
    """Take it out of its group and of the list."""
    _leave_group(world, t, slot)
    unlink(world, t, slot, 0)
    note_of(world, t, slot).place = NONE
    return 0


@inner
def _link_above(world: World, t: int, slot: int, below: int) -> None:
    """Put `slot` next to `below`, on the more used side; NONE is below all."""
    queue, link = queue_of(world, t, 0), link_of(world, t, slot)
    above = queue.tail if below == NONE else link_of(world, t, below).newer
    link.newer, link.older = above, below
    if above == NONE:
        queue.head = slot
    else:
        link_of(world, t, above).older = slot
    if below == NONE:
        queue.tail = slot
    else:
        link_of(world, t, below).newer = slot


@inner
def _new_group(world: World, t: int) -> int:
    tier = world.tiers[t]
    group = tier.free_group
    if group == NONE:
        group = tier.groups
        tier.groups += 1
    else:
        tier.free_group = note_of(world, t, group).top
    note_of(world, t, group).members = 0
    return group


@inner
def _join_group(world: World, t: int, slot: int, group: int) -> None:
    note_of(world, t, slot).place = group
    note_of(world, t, group).top = slot
    note_of(world, t, group).members += 1


@inner
def _leave_group(world: World, t: int, slot: int) -> None:
    tier, number = world.tiers[t], note_of(world, t, slot).place
    group = note_of(world, t, number)
    group.members -= 1
    if group.members == 0:
        group.top = tier.free_group
        tier.free_group = number
    elif group.top == slot:
        group.top = link_of(world, t, slot).older
