"""Buckets: objects that a tier writes together as one file, reads by offset, and deletes together.

A bucket has a slot of its own, which stands for it in the lists of its tier's policy; its members are live in the tier
but in none of its lists. Beside it is a small file that says what it holds. Each rank, and each group of layers, has a
bucket of its own: they differ in nothing but their numbers.
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import on_insert
from kvtrace.sim.records import NONE, PACKED_BITS, World
from kvtrace.sim.tiers.room import make_room
from kvtrace.sim.tiers.rows import STORE, WRITE, emit, is_endless, packed
from kvtrace.sim.tiers.tiers import serve_write


@forced
def _emit_both(world: World, now: int, op: int, t: int, phase: int, slot: int) -> None:
    """Append rows for a bucket, and for the file beside it if it has one."""
    size, meta = world.members[slot].offset, world.slots[slot].size - world.members[slot].offset
    emit(world, now, op, t, phase, slot, size, NONE, NONE)
    if meta:
        emit(world, now, op, t, phase, packed((world.slots[slot].object + 1) << PACKED_BITS), meta, NONE, NONE)


@inner
def write_bucket(world: World, t: int, first: int, count: int, now: int) -> bool:
    """Write the `count` objects from `chain[first]` on as a bucket of tier `t`; False if it takes none so large."""
    control, tier, parts = world.control, world.tiers[t], world.knobs.ranks * world.knobs.layers
    size: int = 0
    for i in range(first, first + count):
        size += world.slots[world.chain[i]].size + parts * tier.bucket_key_bytes
    meta = parts * count * tier.bucket_meta_bytes
    control.free -= 1
    slot: int = world.free[control.free]
    what = world.slots[slot]
    what.object, what.size, what.home = control.next_object, size + meta, NONE
    what.held, what.live, what.seen = 1, 0, 0
    if not make_room(world, t, slot, now):
        what.held = 0
        world.free[control.free] = slot
        control.free += 1
        return False
    _name(world, size)
    if meta:
        _name(world, meta)
    if not is_endless(world, t):
        on_insert(world, t, slot, now)
    what.live = 1 << t
    tier.used += what.size
    tier.buckets += 1
    tier.written_bytes += what.size
    serve_write(world, t, what.size, now)
    members = world.members
    members[slot].offset, members[slot].older = size, NONE
    offset: int = 0
    for i in range(first, first + count):
        member = world.chain[i]
        offset += tier.bucket_key_bytes
        members[member].bucket, members[member].offset, members[member].older = slot, offset, members[slot].older
        members[slot].older = member
        world.slots[member].live |= 1 << t
        offset += world.slots[member].size // parts
    _emit_both(world, now, WRITE, t, STORE, slot)
    return True


@inner
def _name(world: World, size: int) -> None:
    """Give the next number to an object of `size` bytes that is a bucket, or the file beside one."""
    control = world.control
    world.made_size[control.made], world.made_kind[control.made] = size, 1
    control.made += 1
    control.next_object += 1
