"""S3-FIFO: new slots pass through a tenth of the tier, and stay if used twice there, or asked for again soon after."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.queues import enter, leave, link_first, note_of, operation, queue_of, unlink
from kvtrace.sim.records import NONE, World

KEEPS_GHOSTS = True
SMALL, MAIN, GHOST, WAS_GHOST = range(4)
"""Its lists. What is about to be inserted, and was a ghost, is in none of them."""

MOVES_AT, COUNTS_TO = 2, 3


@inner
def _recall(world: World, t: int, slot: int) -> None:
    """Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; do so once."""
    note = note_of(world, t, slot)
    if note.place == GHOST:
        leave(world, t, slot)
        note.place = WAS_GHOST


@inner
def _remember(world: World, t: int, slot: int) -> None:
    """Make `slot` the newest ghost, unless it is larger than all ghosts may be."""
    limit, size, ghosts = world.tiers[t].limit, world.slots[slot].size, queue_of(world, t, GHOST)
    room = limit - (limit + 9) // 10
    if size <= room:
        while ghosts.bytes + size > room:
            leave(world, t, ghosts.tail)
        enter(world, t, slot, GHOST)


@operation
def on_hit(world: World, t: int, slot: int, _: int) -> int:
    """Count the use."""
    note_of(world, t, slot).count += 1
    return 0


@operation
def on_insert(world: World, t: int, slot: int, _now: int) -> int:
    """Put it into the small queue; into the main one if it was a ghost, or before anything ever had to leave."""
    _recall(world, t, slot)
    note, tier = note_of(world, t, slot), world.tiers[t]
    note.count = 0
    is_small_full = queue_of(world, t, SMALL).bytes >= tier.limit // 10
    is_main = note.place == WAS_GHOST or (is_small_full and not tier.has_evicted)
    enter(world, t, slot, MAIN if is_main else SMALL)
    return 0


@operation
def choose(world: World, t: int, incoming: int, _: int) -> int:
    """Return the slot that makes room for `incoming`; those used in the small queue move to the main one."""
    _recall(world, t, incoming)
    tier, small, main = world.tiers[t], queue_of(world, t, SMALL), queue_of(world, t, MAIN)
    tier.has_evicted = 1
    if main.bytes <= tier.limit - tier.limit // 10:
        slot = small.tail
        while slot != NONE and note_of(world, t, slot).count >= MOVES_AT:
            leave(world, t, slot)
            enter(world, t, slot, MAIN)
            note_of(world, t, slot).count = 0
            slot = small.tail
        if slot != NONE:
            return slot
    slot = main.tail
    while note_of(world, t, slot).count:
        note_of(world, t, slot).count = min(note_of(world, t, slot).count, COUNTS_TO) - 1
        unlink(world, t, slot, MAIN)
        link_first(world, t, slot, MAIN)
        slot = main.tail
    return slot


@operation
def on_remove(world: World, t: int, slot: int, is_evicted: int) -> int:
    """Take it out; what is evicted from the small queue becomes a ghost."""
    place = note_of(world, t, slot).place
    leave(world, t, slot)
    if place == SMALL and is_evicted:
        _remember(world, t, slot)
    return 0


@operation
def forget(world: World, t: int, slot: int, _: int) -> int:
    """Take it off the ghosts."""
    if note_of(world, t, slot).place == GHOST:
        leave(world, t, slot)
    return 0
