"""The slots of objects: taken when an object is named, given back when nobody can ask for it any more."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import forget
from kvtrace.sim.records import NONE, PACKED_BITS, World
from kvtrace.sim.tiers.rows import live_in, packed


@forced
def unpin(world: World, slot: int) -> None:
    """Forget what was in flight of the object that `slot` held before."""
    if len(world.pins):
        world.pins[slot].offer, world.pins[slot].until_ns = 0, 0


@inner
def give_slot(world: World, home: int) -> int:
    """Return the slot of the object that `contexts[home]` stands for; it takes one if it has none."""
    entry: int = world.contexts[home]
    if entry >= 0:
        return entry
    control, known = world.control, packed(entry)
    control.free -= 1
    slot: int = world.free[control.free]
    what = world.slots[slot]
    what.object, what.size, what.home, what.held = known >> PACKED_BITS, world.knobs.chunk_bytes, home, 1
    what.live, what.seen = live_in(world, entry), known >> (PACKED_BITS - 1) & 1
    unpin(world, slot)
    world.contexts[home] = slot
    return slot


@inner
def loosen(world: World, slot: int) -> None:
    """Note that no tier may give `slot` up any more, if so: others may still look at it in this step."""
    what, control = world.slots[slot], world.control
    if world.knobs.is_packed and not what.is_loose and what.live & ~world.knobs.endless == 0:
        what.is_loose = 1
        world.loose[control.loose] = slot
        control.loose += 1


@inner
def pack(world: World) -> None:
    """Take the slots of those objects that need none: what an entry can hold is all that is known of them."""
    control = world.control
    while control.loose > 0:
        control.loose -= 1
        slot = world.loose[control.loose]
        what = world.slots[slot]
        what.is_loose = 0
        if what.held and what.home != NONE and what.live & ~world.knobs.endless == 0:
            known = what.object << PACKED_BITS | what.seen << (PACKED_BITS - 1) | what.live
            world.contexts[what.home] = packed(known)
            what.held, what.live = 0, 0
            world.free[control.free] = slot
            control.free += 1


@inner
def release(world: World, slot: int) -> None:
    """Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers it.

    A tier that never gives anything up does not need what nobody can ask for: so memory does not grow with it.
    """
    what, control = world.slots[slot], world.control
    if what.held == 0 and what.live & ~world.knobs.endless == 0:
        what.live = 0
        if len(world.notes):
            forget(world, slot)
        world.free[control.free] = slot
        control.free += 1
