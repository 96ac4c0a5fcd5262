"""ARC: those used once and those used more often share the tier as the misses of either suggest."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.queues import enter, leave, note_of, operation, queue_of
from kvtrace.sim.records import NONE, World

KEEPS_GHOSTS = True
T1, T2, B1, B2, WAS_B1, WAS_B2 = range(6)
"""Its lists. What is about to be inserted, and was a ghost, is in none of them."""


@inner
def _recall(world: World, t: int, slot: int) -> None:
    """Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; do so once."""
    note, tier, size = note_of(world, t, slot), world.tiers[t], world.slots[slot].size
    place = note.place
    if place in (B1, B2):
        recent, frequent = queue_of(world, t, B1).bytes, queue_of(world, t, B2).bytes
        if place == B1:
            tier.target = min(tier.target + size * max(1.0, frequent / recent), float(tier.limit))
        else:
            tier.target = max(tier.target - size * max(1.0, recent / frequent), 0.0)
        leave(world, t, slot)
        note.place = WAS_B1 if place == B1 else WAS_B2


@operation
def on_hit(world: World, t: int, slot: int, _: int) -> int:
    """Make it the most recent of those used more often."""
    leave(world, t, slot)
    enter(world, t, slot, T2)
    return 0


@operation
def on_insert(world: World, t: int, slot: int, _now: int) -> int:
    """Make it the most recent of those used once, or, if it was a ghost, more often."""
    _recall(world, t, slot)
    note = note_of(world, t, slot)
    note.count = 0
    enter(world, t, slot, T1 if note.place == NONE else T2)
    return 0


@operation
def choose(world: World, t: int, incoming: int, _: int) -> int:
    """Return ARC's victim; its count says that it is not to become a ghost (case IV A, T1 alone fills the tier)."""
    _recall(world, t, incoming)
    tier, origin, size = world.tiers[t], note_of(world, t, incoming).place, world.slots[incoming].size
    t1, t2, b1, b2 = queue_of(world, t, T1), queue_of(world, t, T2), queue_of(world, t, B1), queue_of(world, t, B2)
    recent, frequent = t1.bytes, t2.bytes
    if origin not in (WAS_B1, WAS_B2):
        if recent + b1.bytes + size > tier.limit:
            if b1.bytes > 0:
                leave(world, t, b1.tail)
            elif recent > 0:
                note_of(world, t, t1.tail).count = 1
                return int(t1.tail)
        elif recent + b1.bytes + frequent + b2.bytes - tier.limit >= tier.limit and b2.bytes > 0:
            leave(world, t, b2.tail)
    if frequent == 0 or (recent > 0 and (recent > tier.target or (recent == tier.target and origin == WAS_B2))):
        return int(t1.tail)
    return int(t2.tail)


@operation
def on_remove(world: World, t: int, slot: int, is_evicted: int) -> int:
    """Take it out; what is evicted becomes a ghost, unless `choose` said otherwise."""
    note = note_of(world, t, slot)
    place = note.place
    leave(world, t, slot)
    if is_evicted and not note.count:
        enter(world, t, slot, B1 if place == T1 else B2)
    return 0


@operation
def forget(world: World, t: int, slot: int, _: int) -> int:
    """Take it off the ghosts."""
    if note_of(world, t, slot).place in (B1, B2):
        leave(world, t, slot)
    return 0
