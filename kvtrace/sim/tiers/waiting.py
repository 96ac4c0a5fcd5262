"""What tiers do by themselves, each at its time: what expires goes, room is made at times, and what waits is stored.

What waits is in a queue, from which the slowest tier takes at each heartbeat, or whenever it is free. In a fleet the
tiers of other nodes and racks are put away until one of them is due (Fleet.due).
"""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.fleet.move import move
from kvtrace.sim.policies.queues import expiry_ns, queue_of
from kvtrace.sim.records import DONE, NONE, ROWS_FULL, SLOTS_FULL, UNBOUNDED, World
from kvtrace.sim.tiers.admission import admits
from kvtrace.sim.tiers.buckets import bytes_beside, collect_for, write_bucket
from kvtrace.sim.tiers.due import due_ns
from kvtrace.sim.tiers.garbage import evict
from kvtrace.sim.tiers.room import make_room, poll
from kvtrace.sim.tiers.rows import POPULATE, STORE, member_of
from kvtrace.sim.tiers.slots import incoming_of, loosen, release, see
from kvtrace.sim.tiers.tiers import write


@inner
def takes(world: World, t: int, slot: int, now: int, phase: int) -> bool:
    """Return whether tier `t` takes `slot` now, and then has room for it; what it takes later waits."""
    if world.slots[slot].size > world.tiers[t].largest or _waits(world, t, slot):
        return False
    takes_it = phase == POPULATE or admits(world, t, slot, now)
    if takes_it and world.knobs.queued & (1 << t):
        _wait(world, t, slot, now)
        takes_it = False
    return takes_it and make_room(world, t, slot, now)


@inner
def _waits(world: World, t: int, slot: int) -> bool:
    """Return whether `slot` waits for tier `t` already."""
    member = member_of(world, t, slot) if world.knobs.queued & (1 << t) else NONE
    return member != NONE and world.slots[member].held & (2 << t) != 0


@inner
def _wait(world: World, t: int, slot: int, now: int) -> None:
    """Put `slot` into the queue of tier `t`, or drop it if that is full."""
    tier, what = world.tiers[t], world.slots[slot]
    is_too_large = tier.bucket_objects and _part(world, slot) > tier.bucket_bytes
    if is_too_large or tier.waiting == tier.queue_limit:
        tier.dropped += 1
        tier.dropped_bytes += what.size
        return
    place = world.offers[tier.queue_first + (tier.queue_head + tier.waiting) % tier.queue_limit]
    place.slot, place.since, place.node = slot, now, world.control.node
    world.slots[incoming_of(world, t, slot)].held |= 2 << t
    tier.waiting += 1
    if tier.heartbeat_ns and not tier.beat_ns:
        tier.beat_ns = (now // tier.heartbeat_ns + 1) * tier.heartbeat_ns


@inner
def _part(world: World, slot: int) -> int:
    """Return the bytes of each object of `slot`."""
    part: int = world.slots[slot].size // (world.knobs.ranks * world.knobs.layers)
    return part


@inner
def catch_up(world: World, now: int) -> int:
    """Do what is due until now, each at its time, and of one time place by place; return what is full, to go on from.

    Of places, nodes come first, then racks, then what all share; of a place, the faster tiers.
    """
    control, fleet = world.control, world.fleet
    while True:
        t, when = _first_here(world)
        if control.due_ns <= min(now, when):
            place = _first_elsewhere(world)
            is_first = control.due_ns < when or (control.due_ns == when and place < _place_of(world, t))
            if is_first and control.due_ns <= now:
                move(world, place if place < fleet.count else (place - fleet.count) * fleet.rack_nodes)
                continue
        if when > now:
            return DONE
        code = _do(world, t, when)
        if code != DONE:
            return code


@inner
def _first_here(world: World) -> tuple[int, int]:
    """Return which tier at hand does something next by itself, and when; 0 and UNBOUNDED if none does.

    Tiers are in the order of their places: a node's own, its rack's, what all share.
    """
    first, when = 0, UNBOUNDED
    for t in range(len(world.tiers)):
        due = due_ns(world, t)
        if due < when:
            first, when = t, due
    return first, when


@inner
def _first_elsewhere(world: World) -> int:
    """Return the place that is not at hand where something is due first, and note in control.due_ns when."""
    due, first = world.fleet.due, 0
    for place in range(len(due)):
        if due[place] < due[first]:
            first = place
    world.control.due_ns = due[first]
    return first


@inner
def _place_of(world: World, t: int) -> int:
    """Return the place of tier `t`, which is at hand, as Fleet.due counts them; what all share comes after them."""
    fleet, bit, place = world.fleet, 1 << t, len(world.fleet.due)
    if fleet.racked & bit:
        place = fleet.count + world.control.node // fleet.rack_nodes
    elif fleet.scoped & bit:
        place = world.control.node
    return place


@inner
def _acting(world: World, t: int) -> int:
    """Return the node that does what tier `t` does by itself: of those that share it, the first that is up."""
    fleet, here, first, end = world.fleet, world.control.node, 0, world.fleet.count
    if fleet.racked & (1 << t):
        first = here // fleet.rack_nodes * fleet.rack_nodes
        end = min(end, first + fleet.rack_nodes)
    elif fleet.scoped & (1 << t):
        return here
    for node in range(first, end):
        if fleet.nodes[node].is_up:
            return node
    return first


@inner
def _do(world: World, t: int, when: int) -> int:
    """Do what is due in tier `t`, or a part of it, as far as there is room; return what is full, or DONE."""
    control, tier, need = world.control, world.tiers[t], 2 * world.knobs.ranks * world.knobs.layers
    move(world, _acting(world, t))
    is_expiry = expiry_ns(world, t) == when
    if is_expiry or 0 < tier.poll_ns == when:
        if control.rows + need > len(world.rows.ts_ns):
            control.need = need
            return ROWS_FULL
        if is_expiry:
            evict(world, t, queue_of(world, t, 0).tail, when)
        else:
            poll(world, t)
        return DONE
    code = _room(world, t)
    if code == DONE and tier.collect_share > 0:
        code = collect_for(world, t, _next_bucket(world, t), when)
    if code == DONE:
        if tier.bucket_objects:
            _store_bucket(world, t, when)
        else:
            _store_first(world, t, when)
        if tier.waiting == 0:
            tier.beat_ns = 0
    return code


@inner
def _room(world: World, t: int) -> int:
    """Return DONE if one object or bucket, and what it displaces, surely fit the buffers; else what is full."""
    control, knobs, tier = world.control, world.knobs, world.tiers[t]
    displaced: int = tier.buckets
    if not tier.bucket_objects:
        bytes_ = tier.limit - tier.low + 2 * control.max_size if not knobs.endless & (1 << t) else 0
        displaced = min(len(world.slots), bytes_ // max(1, control.min_size) + 1)
    # A bucket has a slot of its own, and what is stored at a place one of its copy there.
    slots = 1 + max(1, tier.bucket_objects)
    if control.free < slots:
        control.need = slots
        return SLOTS_FULL
    need = knobs.ranks * knobs.layers * (2 * displaced + 2)
    if control.rows + need > len(world.rows.ts_ns) or control.made + 2 > len(world.made_size):
        control.need = max(2, need)
        return ROWS_FULL
    return DONE


@inner
def take_first(world: World, t: int) -> int:
    """Take the oldest from the queue of tier `t`; return its slot if the tier above still has it, else NONE.

    That is the tier above of the node that offered it, which is then at hand.
    """
    tier = world.tiers[t]
    offer = world.offers[tier.queue_first + tier.queue_head]
    slot: int = offer.slot
    tier.queue_head = (tier.queue_head + 1) % tier.queue_limit
    tier.waiting -= 1
    move(world, offer.node)
    see(world, slot)
    what, member = world.slots[slot], member_of(world, t, slot)
    world.slots[member].held &= ~(2 << t)
    if member != slot:
        loosen(world, member)
    if what.live & (1 << (t - 1)):
        return slot
    tier.lost += 1
    tier.lost_bytes += what.size
    if what.held == 0:
        release(world, slot)
    return NONE


@inner
def _store_first(world: World, t: int, now: int) -> None:
    """Store the oldest of what waits, if it is still there."""
    slot = take_first(world, t)
    if slot != NONE and make_room(world, t, slot, now):
        write(world, t, slot, now, STORE, NONE, NONE)


@inner
def _store_bucket(world: World, t: int, now: int) -> None:
    """Store the oldest of what waits as a bucket, of what is still there; wait on if that is too little for one."""
    tier, taken, node = world.tiers[t], _bucketful(world, t), world.control.node
    if taken == 0:
        tier.beat_ns = 0
        return
    count: int = 0
    for _ in range(taken):
        slot = take_first(world, t)
        if slot != NONE:
            world.chain[count] = incoming_of(world, t, slot)
            count += 1
    move(world, node)
    if count and not write_bucket(world, t, 0, count, now):
        tier.dropped += count
        for i in range(count):
            tier.dropped_bytes += world.slots[world.chain[i]].size


@inner
def _next_bucket(world: World, t: int) -> int:
    """Return the bytes of the bucket that tier `t` stores next, with the file beside it; 0 if there is none yet."""
    tier = world.tiers[t]
    size: int = 0
    for n in range(_bucketful(world, t)):
        slot: int = world.offers[tier.queue_first + (tier.queue_head + n) % tier.queue_limit].slot
        see(world, slot)
        if world.slots[slot].live & (1 << (t - 1)):
            size += world.slots[slot].size + bytes_beside(world, t)
    return size


@inner
def _bucketful(world: World, t: int) -> int:
    """Return how many of what waits for tier `t` make a bucket, the oldest first; 0 if they do not fill one."""
    tier = world.tiers[t]
    size: int = 0
    for n in range(tier.waiting):
        slot = world.offers[tier.queue_first + (tier.queue_head + n) % tier.queue_limit].slot
        size += _part(world, slot)
        if size > tier.bucket_bytes:
            return n
        if n + 1 == tier.bucket_objects or size == tier.bucket_bytes:
            return n + 1
    return 0
