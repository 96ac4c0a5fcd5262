"""Which objects a tier takes at all: filters that spare a drive the writes of what nobody reads again.

What is stored, and what a faster tier gives up, is offered to a tier; it takes it or not, by how often it has been
offered or used. What a promotion copies up was asked for, and passes; so does what is there before the start.
"""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import forced, inner, njit
from kvtrace.sim.policies.queues import victim
from kvtrace.sim.records import FREQUENCY, NTH_OFFER, PACKED_BITS, TINYLFU, World
from kvtrace.sim.tiers.copies import place_of
from kvtrace.sim.tiers.rows import packed
from kvtrace.sim.tiers.slots import loosen

MOST = 2**30
"""A count goes no higher."""


@forced
def has_room(world: World, t: int, size: int) -> bool:
    """Return whether `size` more bytes fit tier `t`; an object it takes may fill an empty tier past its limit."""
    tier = world.tiers[t]
    return tier.used == 0 or tier.used + size <= tier.limit


@forced
def admits(world: World, t: int, slot: int, now: int) -> bool:
    """Return whether tier `t` takes `slot`, which is offered to it; ask once, for that is counted."""
    return not world.knobs.filtered & (1 << t) or _passes(world, t, slot, now)


@inner
def _passes(world: World, t: int, slot: int, now: int) -> bool:
    tier, size = world.tiers[t], world.slots[slot].size
    if tier.admission == TINYLFU:
        count = refer(world, t, slot)
        passes = has_room(world, t, size) or count > _recent(world, t, victim(world, t, slot))
    else:
        passes = _offered(world, t, slot, now) >= tier.admission_count
    if not passes:
        tier.refused += 1
        tier.refused_bytes += size
        loosen(world, slot)
    return passes


@inner
def _offered(world: World, t: int, slot: int, now: int) -> int:
    """Count an offer of `slot`; return what that makes.

    For nth-offer it is one more. For frequency it is twice as much, and each `decay_ns` takes one off; what has come
    down to nothing begins at 1.
    """
    tier, seen = world.tiers[t], world.frequencies[_count_of(world, t, world.slots[slot].object)]
    count: int = seen.count
    if tier.admission == NTH_OFFER:
        count += 1
    elif tier.admission == FREQUENCY:
        since = now // tier.decay_ns if tier.decay_ns else 0
        count = max(0, count - (since - seen.since))
        count = 2 * count if count else 1
        seen.since = since
    seen.count = min(count, MOST)
    return count


@inner
def refer(world: World, t: int, entry: int) -> int:
    """Count a use or an offer of the object of `entry` if the tier goes by TinyLFU; return how often it had any.

    All counts are halved as often as a window of bytes was referred to.
    """
    tier = world.tiers[t]
    if tier.admission != TINYLFU:
        return 0
    number = world.slots[entry].object if entry >= 0 else packed(entry) >> PACKED_BITS
    size = world.slots[entry].size if entry >= 0 else world.knobs.chunk_bytes
    seen = world.frequencies[_count_of(world, t, number)]
    count: int = (seen.count >> min(31, tier.halvings - seen.since)) + 1
    seen.count, seen.since = min(count, MOST), tier.halvings
    tier.referred += size
    if tier.referred >= tier.window:
        tier.referred //= 2
        tier.halvings += 1
        count >>= 1
    return count


@inner
def _recent(world: World, t: int, slot: int) -> int:
    """Return how often the object of `slot` was referred to, as refer counts."""
    seen = world.frequencies[_count_of(world, t, world.slots[slot].object)]
    count: int = seen.count >> min(31, world.tiers[t].halvings - seen.since)
    return count


@inner
def _count_of(world: World, t: int, number: int) -> int:
    """Return where in World.frequencies it is counted how often object `number` was offered to tier `t`, or used there.

    Where nodes or racks count for themselves, a place has a count only of what came to it.
    """
    fleet, tiers = world.fleet, len(world.tiers)
    if len(fleet.counted) == 0:
        return number * tiers + t
    place = place_of(world, t) if fleet.scoped & (1 << t) else 0
    key = ((number + 1) * (2 * fleet.count + 1) + place) * tiers + t
    at = _slot_of(fleet.counted, key)
    if fleet.counted[at] == 0:
        fleet.counted[at] = key
        world.control.counts += 1
    return at


@inner
def _slot_of(counted: Any, key: int) -> int:
    """Return where `key` stands in `counted`, whose length is a power of two, or the free place where it would."""
    mask = len(counted) - 1
    at = key * 0x1E3779B97F4A7C15
    at = (at ^ (at >> 32)) & mask
    while counted[at] not in (0, key):
        at = (at + 1) & mask
    return at


@inner
def forget_counts(world: World, t: int) -> None:
    """Forget how often objects were offered to tier `t`, which is at hand, or used there."""
    fleet, tiers = world.fleet, len(world.tiers)
    world.tiers[t].referred = 0
    if len(fleet.counted) == 0:
        for i in range(t, len(world.frequencies), tiers):
            world.frequencies[i].count = 0
        return
    places = 2 * fleet.count + 1
    for i in range(len(fleet.counted)):
        key = fleet.counted[i]
        if key % tiers == t and key // tiers % places == place_of(world, t):
            world.frequencies[i].count = 0


@njit
def count_again(counted: Any, frequencies: Any, old_counted: Any, old_frequencies: Any) -> None:
    """Put all counts into larger tables, which are empty."""
    for i in range(len(old_counted)):
        if old_counted[i]:
            at = _slot_of(counted, old_counted[i])
            counted[at] = old_counted[i]
            frequencies[at].count, frequencies[at].since = old_frequencies[i].count, old_frequencies[i].since
