"""Buckets: objects that a tier writes together as one file, reads by offset, and deletes together.

A bucket has a slot of its own, which stands for it in the lists of its tier's policy; its members are live in the tier
but in none of its lists, unless buckets are collected: then it is they that are in the lists. Beside it is a small file
that says what it holds. Each rank, and each group of layers, has a bucket of its own: they differ in nothing but their
numbers.
"""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.queues import on_insert, victim
from kvtrace.sim.records import DONE, NONE, ROWS_FULL, World
from kvtrace.sim.tiers.garbage import evict, fill
from kvtrace.sim.tiers.room import make_room
from kvtrace.sim.tiers.rows import STORE, is_endless
from kvtrace.sim.tiers.slots import renew


@inner
def write_bucket(world: World, t: int, first: int, count: int, now: int) -> bool:
    """Write the `count` objects from `chain[first]` on as a bucket of tier `t`; False if it takes none so large."""
    control, tier = world.control, world.tiers[t]
    size: int = 0
    for i in range(first, first + count):
        size += world.slots[world.chain[i]].size + bytes_beside(world, t)
    control.free -= 1
    slot: int = world.free[control.free]
    what = world.slots[slot]
    what.object, what.size, what.home = control.next_object, size, NONE
    what.held, what.live, what.seen = 1, 0, 0
    renew(world, slot)
    if not make_room(world, t, slot, now):
        what.held = 0
        world.free[control.free] = slot
        control.free += 1
        return False
    tier.buckets += 1
    fill(world, t, slot, first, count, now, STORE)
    if not is_endless(world, t):
        if tier.collect_share > 0:
            for i in range(first, first + count):
                on_insert(world, t, world.chain[i], now)
        else:
            on_insert(world, t, slot, now)
    return True


@inner
def bytes_beside(world: World, t: int) -> int:
    """Return what an object adds to a bucket and to its file beside, of all ranks and layers, but for its own bytes."""
    tier, parts = world.tiers[t], world.knobs.ranks * world.knobs.layers
    size: int = parts * (tier.bucket_key_bytes + tier.bucket_meta_bytes)
    return size


@inner
def collect_for(world: World, t: int, size: int, now: int) -> int:
    """Make room in tier `t` for a bucket of `size` bytes by collecting others; return what is full, to go on from."""
    tier, control = world.tiers[t], world.control
    if size > tier.largest:
        return DONE
    if tier.goal == NONE and tier.used > 0 and tier.used + size > tier.limit:
        tier.goal = tier.low
    while tier.goal != NONE and tier.used > 0 and tier.used + size > tier.goal:
        need = world.knobs.ranks * world.knobs.layers * (tier.bucket_objects + 4)
        if control.rows + need > len(world.rows.ts_ns) or control.made + 2 > len(world.made_size):
            control.need = need
            return ROWS_FULL
        evict(world, t, victim(world, t, NONE), now)
    tier.goal = NONE
    return DONE
