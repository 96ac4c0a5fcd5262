"""The compiled decode: an entry is read again as tokens are generated, and the request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.ask import leave, make_objects
from kvtrace.sim.records import NONE
from kvtrace.sim.store import store_generated
from kvtrace.sim.tiers import DECODE as DECODE_PHASE
from kvtrace.sim.tiers import fastest, read, touch
from kvtrace.sim.world import (
    ASK,
    DECODE_MISSES,
    DECODE_ONLY,
    DECODE_START,
    DECODED,
    END,
    ENTRY,
    HISTORY,
    INPUT,
    LENGTH,
    NEW,
    NEW_TOKENS,
    NOW,
    OUTPUT,
    PREFILL_ONLY,
    REQUEST,
    RETRIEVED_TOKENS,
    SHARED,
    STAGE,
    STEP,
    TURN,
    USERS,
)
from kvtrace.users.synthetic import think_ns

if TYPE_CHECKING:
    from kvtrace.sim.world import World


@njit
def decode(world: World, actor: int) -> int:
    """Read the turn's own entry again as tokens are generated; return the time to the next such step."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    done = me[DECODED]
    if done >= _reads(world, actor) or me[ENTRY] == NONE:
        me[STEP] = END
        if knobs.stores_generated and knobs.chunk_tokens and knobs.source == USERS:
            tokens = me[INPUT] - me[RETRIEVED_TOKENS] + me[OUTPUT]
            me[NEW] = tokens // knobs.chunk_tokens - me[SHARED] - me[LENGTH]
        return max(0, me[DECODE_START] + me[OUTPUT] * knobs.decode_ns_per_token - control[NOW])
    tiers, slots, rows = world.tiers, world.slots, world.rows
    t = fastest(tiers, slots, me[ENTRY])
    served = control[NOW]
    if t == NONE:
        world.total[DECODE_MISSES] += 1
    else:
        touch(tiers, slots, t, me[ENTRY])
        served = read(tiers, slots, rows, control, t, me[ENTRY], control[NOW], DECODE_PHASE, me[REQUEST], me[STAGE])
        me[STAGE] += 1
    me[DECODED] = done + 1
    if done + 1 == _reads(world, actor):
        return served - control[NOW]
    # The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens tokens. (On its own,
    # decoding has loaded the entry already, and begins with such a run.)
    run = done + 1 if knobs.mode == DECODE_ONLY else done
    due = me[DECODE_START] + run * knobs.decode_read_tokens * knobs.decode_ns_per_token
    return max(due, served) - control[NOW]


@njit
def _reads(world: World, actor: int) -> int:
    """Return how often the request's entry is read while it is decoded."""
    me, knobs = world.actors[actor], world.knobs
    is_long = 0 < knobs.prefill_only_from_tokens <= me[NEW_TOKENS]
    if not knobs.decode_read_tokens or knobs.mode == PREFILL_ONLY or is_long:
        return 0
    runs: int = -(-me[OUTPUT] // knobs.decode_read_tokens)
    return runs if knobs.mode == DECODE_ONLY else 1 + runs


@njit
def end(world: World, actor: int) -> int:
    """End a request: a user thinks, for the time returned; a file's actor is idle again."""
    me = world.actors[actor]
    if world.knobs.source != USERS:
        leave(world, actor)
        free = len(world.idle) - 1
        world.idle[world.idle[free]] = actor
        world.idle[free] += 1
        return NONE
    if me[NEW]:
        make_objects(world, actor)
        store_generated(world, actor, DECODE_PHASE)
    me[HISTORY] = me[INPUT] - me[RETRIEVED_TOKENS] + me[OUTPUT]
    me[TURN] += 1
    me[STEP] = ASK
    return max(1, think_ns(world.users, world.knobs.seed, actor))
