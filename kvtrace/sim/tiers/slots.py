"""The slots of objects: taken when an object is named, given back when nobody can ask for it any more.

In a fleet an object's slot is of what all nodes share; what a node or a rack has is a copy with a slot of its own. The
object's slot then says where the object is live as the node at hand sees it, once that has looked (`see`).
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.fleet.move import move
from kvtrace.sim.policies.queues import forget
from kvtrace.sim.records import NONE, PACKED_BITS, World
from kvtrace.sim.tiers.copies import add_copy, find_copy, place_of, remove_copy
from kvtrace.sim.tiers.rows import live_in, member_of, packed


@forced
def renew(world: World, slot: int) -> None:
    """Forget what was in flight, and copied, of the object that `slot` held before."""
    if len(world.pins):
        world.pins[slot].offer, world.pins[slot].until_ns = 0, 0
    if world.fleet.scoped:
        copy = world.fleet.copies[slot]
        copy.node_copy, copy.rack_copy, copy.first = NONE, NONE, NONE


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
    renew(world, slot)
    world.contexts[home] = slot
    return slot


@forced
def see(world: World, entry: int) -> None:
    """Let the slot of an entry's object say where it is live for the node at hand."""
    if world.fleet.scoped and entry >= 0:
        _see(world, entry)


@inner
def see_all(world: World, n: int) -> None:
    """See all of `chain[:n]`."""
    if world.fleet.scoped:
        for i in range(n):
            if world.chain[i] >= 0:
                _see(world, world.chain[i])


@inner
def _see(world: World, slot: int) -> None:
    fleet, what, copy = world.fleet, world.slots[slot], world.fleet.copies[slot]
    live, node = what.live & ~fleet.scoped, 1 + world.control.node
    copy.node_copy, copy.rack_copy = NONE, NONE
    if copy.first != NONE:
        # Most have one copy: no need to look that up.
        first = copy.first
        copy.node_copy = first if world.slots[first].place == node else find_copy(world, what.object, node)
        if copy.node_copy != NONE:
            live |= world.slots[copy.node_copy].live
        if fleet.racked:
            copy.rack_copy = find_copy(world, what.object, 1 + fleet.count + world.control.node // fleet.rack_nodes)
            if copy.rack_copy != NONE:
                live |= world.slots[copy.rack_copy].live
    what.live = live


@forced
def object_of(world: World, t: int, member: int) -> int:
    """Return the object's own slot of what tier `t` lists."""
    if world.fleet.scoped & (1 << t):
        member = world.slots[member].home
        _see(world, member)
    return member


@forced
def incoming_of(world: World, t: int, slot: int) -> int:
    """Return what will stand for the object of `slot` in tier `t`, to which it comes."""
    return own(world, t, slot) if world.fleet.scoped & (1 << t) else slot


@inner
def own(world: World, t: int, slot: int) -> int:
    """Return the copy of `slot` at the place of tier `t`, made if there is none; if it stays unused it goes again."""
    copy = member_of(world, t, slot)
    if copy != NONE:
        return copy
    control = world.control
    control.free -= 1
    copy = world.free[control.free]
    what, of = world.slots[copy], world.slots[slot]
    what.object, what.size, what.home, what.place = of.object, of.size, slot, place_of(world, t)
    what.held, what.live, what.seen = 0, 0, 0
    renew(world, copy)
    if world.knobs.keeps_age:
        world.ages[copy] = world.ages[slot]
    add_copy(world, copy)
    if world.fleet.racked & (1 << t):
        world.fleet.copies[slot].rack_copy = copy
    else:
        world.fleet.copies[slot].node_copy = copy
    loosen(world, copy)
    return copy


@forced
def _is_needed(world: World, slot: int) -> bool:
    """Return whether a tier that may give it up has the object of `slot`, or there is a copy of it."""
    live = world.slots[slot].live & ~world.knobs.endless & ~world.fleet.scoped
    return live != 0 or (world.fleet.scoped != 0 and world.fleet.copies[slot].first != NONE)


@inner
def loosen(world: World, slot: int) -> None:
    """Note that no tier may give `slot` up any more, if so: others may still look at it in this step."""
    what, control = world.slots[slot], world.control
    if what.is_loose:
        return
    if what.place > 0 or (world.knobs.is_packed and not _is_needed(world, slot)):
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
        if what.place > 0:
            if what.live | what.held == 0 and not (world.knobs.keeps_ghosts and world.slots[what.home].held):
                _discard(world, slot)
                if world.slots[what.home].held:
                    loosen(world, what.home)
                else:
                    release(world, what.home)
        elif what.held and what.home != NONE and not _is_needed(world, slot):
            live = what.live & ~world.fleet.scoped
            world.contexts[what.home] = packed(what.object << PACKED_BITS | what.seen << (PACKED_BITS - 1) | live)
            what.held, what.live = 0, 0
            world.free[control.free] = slot
            control.free += 1


@inner
def _discard(world: World, slot: int) -> None:
    """Give back the slot of a copy."""
    control = world.control
    remove_copy(world, slot)
    if len(world.notes):
        # What a policy remembers is in the lists of the copy's own place.
        here, place = control.node, world.slots[slot].place - 1
        move(world, place if place < world.fleet.count else (place - world.fleet.count) * world.fleet.rack_nodes)
        forget(world, slot)
        move(world, here)
    world.slots[slot].live, world.slots[slot].place = 0, 0
    world.free[control.free] = slot
    control.free += 1


@inner
def let_go(world: World, member: int) -> None:
    """Give back, if it may be, what a tier listed and gives up together with others: an object's slot or a copy."""
    if world.slots[member].place > 0:
        loosen(world, member)
    else:
        release(world, member)


@inner
def release(world: World, slot: int) -> None:
    """Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers it.

    A tier that never gives anything up does not need what nobody can ask for: so memory does not grow with it.
    """
    what, control = world.slots[slot], world.control
    if what.held == 0 and world.fleet.scoped:
        # What one place may still give up may go to another that never does: until then, that is known to have it.
        copy: int = world.fleet.copies[slot].first
        while copy != NONE and world.slots[copy].live & ~world.knobs.endless == 0 and world.slots[copy].held == 0:
            copy = world.fleet.copies[copy].older
        copy = world.fleet.copies[slot].first if copy == NONE else NONE
        while copy != NONE:
            older = world.fleet.copies[copy].older
            if not world.slots[copy].is_loose:
                _discard(world, copy)
            copy = older
    if what.held == 0 and not _is_needed(world, slot):
        what.live = 0
        if len(world.notes):
            forget(world, slot)
        world.free[control.free] = slot
        control.free += 1
