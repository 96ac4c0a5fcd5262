"""What waits to be stored: a queue that the slowest tier takes from at each heartbeat, or whenever it is free."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.records import DONE, NONE, ROWS_FULL, SLOTS_FULL, UNBOUNDED, World
from kvtrace.sim.tiers.admission import admits
from kvtrace.sim.tiers.buckets import bytes_beside, collect_for, write_bucket
from kvtrace.sim.tiers.room import expire, make_room, poll
from kvtrace.sim.tiers.rows import POPULATE, STORE
from kvtrace.sim.tiers.slots import release
from kvtrace.sim.tiers.tiers import write


@inner
def takes(world: World, t: int, slot: int, now: int, phase: int) -> bool:
    """Return whether tier `t` takes `slot` now, and then has room for it; what it takes later waits."""
    what = world.slots[slot]
    if what.size > world.tiers[t].largest or what.held & (2 << t):
        return False
    takes_it = phase == POPULATE or admits(world, t, slot, now)
    if takes_it and world.knobs.queued & (1 << t):
        _wait(world, t, slot, now)
        takes_it = False
    return takes_it and make_room(world, t, slot, now)


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
    place.slot, place.since = slot, now
    what.held |= 2 << t
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
    """Do what is due until `now`, each at its time: expiry, room made at times, what waits; return what is full."""
    while True:
        t = len(world.tiers) - 1
        when = _due(world, t)
        until = min(now, when)
        if (world.knobs.expires and not expire(world, until)) or (world.knobs.polls and not poll(world, until)):
            world.control.need = 2 * world.knobs.ranks * world.knobs.layers
            return ROWS_FULL
        if when > now:
            return DONE
        code = _room(world, t)
        if code == DONE and world.tiers[t].collect_share > 0:
            code = collect_for(world, t, _next_bucket(world, t), when)
        if code != DONE:
            return code
        if world.tiers[t].bucket_objects:
            _store_bucket(world, t, when)
        else:
            _store_first(world, t, when)
        if world.tiers[t].waiting == 0:
            world.tiers[t].beat_ns = 0


@inner
def _due(world: World, t: int) -> int:
    """Return when tier `t` takes from its queue next, or UNBOUNDED."""
    tier = world.tiers[t]
    when: int = UNBOUNDED
    if world.control.gone & (1 << t):
        return when
    if tier.heartbeat_ns:
        if tier.beat_ns:
            when = tier.beat_ns
    elif tier.waiting:
        when = max(tier.write_busy_ns, world.offers[tier.queue_first + tier.queue_head].since)
    return when


@inner
def _room(world: World, t: int) -> int:
    """Return DONE if one object or bucket, and what it displaces, surely fit the buffers; else what is full."""
    control, knobs, tier = world.control, world.knobs, world.tiers[t]
    displaced: int = tier.buckets
    if not tier.bucket_objects:
        bytes_ = tier.limit - tier.low + 2 * control.max_size if not knobs.endless & (1 << t) else 0
        displaced = min(len(world.slots), bytes_ // max(1, control.min_size) + 1)
    if control.free < 1:
        control.need = 1
        return SLOTS_FULL
    need = knobs.ranks * knobs.layers * (2 * displaced + 2)
    if control.rows + need > len(world.rows.ts_ns) or control.made + 2 > len(world.made_size):
        control.need = max(2, need)
        return ROWS_FULL
    return DONE


@inner
def take_first(world: World, t: int) -> int:
    """Take the oldest from the queue of tier `t`; return its slot if the tier above still has it, else NONE."""
    tier = world.tiers[t]
    slot: int = world.offers[tier.queue_first + tier.queue_head].slot
    tier.queue_head = (tier.queue_head + 1) % tier.queue_limit
    tier.waiting -= 1
    what = world.slots[slot]
    what.held &= ~(2 << t)
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
    tier, taken = world.tiers[t], _bucketful(world, t)
    if taken == 0:
        tier.beat_ns = 0
        return
    count: int = 0
    for _ in range(taken):
        slot = take_first(world, t)
        if slot != NONE:
            world.chain[count] = slot
            count += 1
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
        what = world.slots[world.offers[tier.queue_first + (tier.queue_head + n) % tier.queue_limit].slot]
        if what.live & (1 << (t - 1)):
            size += what.size + bytes_beside(world, t)
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
