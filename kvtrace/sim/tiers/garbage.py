"""What leaves a tier: an object, a bucket with all that is in it, or what is dead of a bucket, by collecting the rest.

A bucket that is collected keeps its slot and gets a number of its own: what lives in it is read, the bucket deleted,
and what was read written again, in the order in which it lay.
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import on_remove
from kvtrace.sim.records import NONE, PACKED_BITS, World
from kvtrace.sim.tiers.rows import COLLECT, DELETE, EVICT, LOSE, READ, WRITE, emit, packed
from kvtrace.sim.tiers.slots import let_go, object_of, release
from kvtrace.sim.tiers.tiers import drop, serve_read, serve_write


@inner
def evict(world: World, t: int, slot: int, now: int) -> None:
    """Delete from tier `t` what its policy gave up: an object, or a bucket with all that is in it."""
    if not world.knobs.bucketed & (1 << t):
        drop(world, t, object_of(world, t, slot), now, EVICT)
        return
    on_remove(world, t, slot, 1)
    if world.tiers[t].collect_share > 0:
        _give_up(world, t, slot, now)
        return
    member = world.members[slot].older
    while member != NONE:
        older = world.members[member].older
        world.slots[member].live &= ~(1 << t)
        let_go(world, member)
        member = older
    _delete(world, t, slot, now, EVICT)
    _free(world, t, slot)


@inner
def lose(world: World, t: int, slot: int, now: int) -> None:
    """Delete from tier `t` what it lists as `slot`, as lost: an object, or the whole bucket that it is or is in."""
    if not world.knobs.bucketed & (1 << t):
        drop(world, t, object_of(world, t, slot), now, LOSE)
        return
    is_by_object = world.tiers[t].collect_share > 0
    bucket: int = world.members[slot].bucket if is_by_object else slot
    if not is_by_object:
        on_remove(world, t, bucket, 0)
    member = world.members[bucket].older
    while member != NONE:
        older = world.members[member].older
        if is_by_object:
            on_remove(world, t, member, 0)
        world.slots[member].live &= ~(1 << t)
        let_go(world, member)
        member = older
    _delete(world, t, bucket, now, LOSE)
    _free(world, t, bucket)


@inner
def _give_up(world: World, t: int, slot: int, now: int) -> None:
    """Let the object `slot` be dead in its bucket, which is collected if too little of it still lives."""
    tier, mine = world.tiers[t], world.members[slot]
    bucket, older, newer = mine.bucket, mine.older, mine.newer
    if newer == NONE:
        world.members[bucket].older = older
    else:
        world.members[newer].older = older
    if older != NONE:
        world.members[older].newer = newer
    all_of = world.members[bucket]
    all_of.bucket -= _bytes_in_bucket(world, t, slot)
    world.slots[slot].live &= ~(1 << t)
    let_go(world, slot)
    if all_of.bucket < tier.collect_share * all_of.offset:
        _collect(world, t, bucket, now)


@forced
def _bytes_in_bucket(world: World, t: int, slot: int) -> int:
    """Return the bytes of an object in its bucket, of all ranks and layers: its own, and what stands before it."""
    size: int = world.slots[slot].size + world.knobs.ranks * world.knobs.layers * world.tiers[t].bucket_key_bytes
    return size


@inner
def _collect(world: World, t: int, bucket: int, now: int) -> None:
    """Write what lives of a bucket as one of its own, in its slot, or free the slot if nothing does."""
    count, member = 0, world.members[bucket].older
    while member != NONE:
        count += 1
        member = world.members[member].older
    # The end of `chain` is free: what is to be stored lies at its start.
    at = len(world.chain)
    first, member = at - count, world.members[bucket].older
    while member != NONE:
        at -= 1
        world.chain[at] = member
        member = world.members[member].older
    for i in range(first, first + count):
        size = world.slots[world.chain[i]].size
        world.tiers[t].read_bytes += size
        emit(world, now, READ, t, COLLECT, world.chain[i], size, NONE, NONE)
        serve_read(world, t, size, now)
    _delete(world, t, bucket, now, EVICT)
    if count == 0:
        _free(world, t, bucket)
        return
    fill(world, t, bucket, first, count, now, COLLECT)
    world.tiers[t].collected_bytes += world.slots[bucket].size


@inner
def fill(world: World, t: int, slot: int, first: int, count: int, now: int, phase: int) -> None:
    """Write `count` objects from `chain[first]` on as the bucket `slot`, which gets the next number."""
    tier, what, members = world.tiers[t], world.slots[slot], world.members
    offset: int = 0
    whole: int = 0
    members[slot].older = NONE
    for i in range(first, first + count):
        member = world.chain[i]
        offset += tier.bucket_key_bytes
        last = members[slot].older
        members[member].bucket, members[member].offset = slot, offset
        members[member].older, members[member].newer = last, NONE
        if last != NONE:
            members[last].newer = member
        members[slot].older = member
        world.slots[member].live |= 1 << t
        offset += world.slots[member].size // (world.knobs.ranks * world.knobs.layers)
        whole += _bytes_in_bucket(world, t, member)
    meta = world.knobs.ranks * world.knobs.layers * count * tier.bucket_meta_bytes
    members[slot].bucket = members[slot].offset = whole
    what.object, what.size, what.live = world.control.next_object, whole + meta, 1 << t
    _name(world, whole)
    if meta:
        _name(world, meta)
    tier.used += what.size
    tier.written_bytes += what.size
    serve_write(world, t, what.size, now)
    _emit_both(world, now, WRITE, t, phase, slot)


@inner
def _name(world: World, size: int) -> None:
    """Give the next number to an object of `size` bytes that is a bucket, or the file beside one."""
    control = world.control
    world.made_size[control.made], world.made_kind[control.made] = size, 1
    control.made += 1
    control.next_object += 1


@inner
def _delete(world: World, t: int, slot: int, now: int, phase: int) -> None:
    """Delete a bucket and the file beside it; its slot stays."""
    tier, what = world.tiers[t], world.slots[slot]
    tier.used -= what.size
    tier.deleted_bytes += what.size
    _emit_both(world, now, DELETE, t, phase, slot)


@inner
def _free(world: World, t: int, slot: int) -> None:
    world.tiers[t].buckets -= 1
    world.slots[slot].held, world.slots[slot].live = 0, 0
    release(world, slot)


@forced
def _emit_both(world: World, now: int, op: int, t: int, phase: int, slot: int) -> None:
    """Append rows for a bucket, and for the file beside it if it has one."""
    size, meta = world.members[slot].offset, world.slots[slot].size - world.members[slot].offset
    emit(world, now, op, t, phase, slot, size, NONE, NONE)
    if meta:
        emit(world, now, op, t, phase, packed((world.slots[slot].object + 1) << PACKED_BITS), meta, NONE, NONE)
