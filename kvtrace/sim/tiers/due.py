"""When a tier does something by itself: what it holds expires, it makes room at times, it stores what waits."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.queues import expiry_ns
from kvtrace.sim.records import UNBOUNDED, World


@inner
def due_ns(world: World, t: int) -> int:
    """Return when tier `t`, as it is at hand, next does something by itself, or UNBOUNDED."""
    when: int = expiry_ns(world, t)
    if world.tiers[t].poll_ns:
        when = min(when, world.tiers[t].poll_ns)
    return min(when, _store_ns(world, t))


@inner
def _store_ns(world: World, t: int) -> int:
    """Return when tier `t` takes from its queue next, or UNBOUNDED."""
    tier, when = world.tiers[t], UNBOUNDED
    if world.control.gone & (1 << t):
        return when
    if tier.heartbeat_ns:
        if tier.beat_ns:
            when = tier.beat_ns
    elif tier.waiting:
        when = max(tier.write_busy_ns, world.offers[tier.queue_first + tier.queue_head].since)
    return when


@inner
def note_due(world: World, place: int, tiers: int) -> None:
    """Note when those of `tiers`, a bit each, that are at hand and put away at `place` next do something."""
    due = UNBOUNDED
    for t in range(len(world.tiers)):
        if tiers & (1 << t):
            due = min(due, due_ns(world, t))
    world.fleet.due[place] = due
    world.control.due_ns = min(world.control.due_ns, due)
