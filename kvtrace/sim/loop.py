"""The compiled simulation loop: requests arrive, load what is cached, store what is not, and decode.

One loop serves both a file of requests (arrivals at their times) and synthetic users (the next turn waits
for the last). It is resumable: when a buffer is full or slots run out it returns to Python, between the
steps of a request, and goes on from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.ask import arrive, ask
from kvtrace.sim.decode import decode, end
from kvtrace.sim.heap import pop, push
from kvtrace.sim.load import load, promote
from kvtrace.sim.records import EXPIRES, FREE_COUNT, LAYERS, LIMIT, LOW, NONE, RANKS, ROW_COUNT
from kvtrace.sim.store import populate, store
from kvtrace.sim.tiers import expire
from kvtrace.sim.world import (
    ACTORS_FULL,
    ANSWERED,
    ARRIVED,
    ASK,
    CHAIN_FULL,
    CHAINS,
    CONTEXTS_FULL,
    CONVERSATIONS,
    DECODE,
    DONE,
    END,
    HEAP_SIZE,
    ITEM_OBJECTS,
    LENGTH,
    LOAD,
    LOGGED,
    MADE,
    MAX_SIZE,
    MIN_SIZE,
    NEED,
    NEW,
    NOW,
    PENDING,
    POPULATED,
    PROMOTE,
    RETRIEVED_OBJECTS,
    ROWS_FULL,
    SHARED,
    SLOTS_FULL,
    STEP,
    STORE,
)

if TYPE_CHECKING:
    from kvtrace.sim.world import World


@njit
def run(world: World) -> int:
    """Simulate until the end (DONE) or until Python must make room."""
    control, knobs = world.control, world.knobs
    while control[POPULATED] < len(world.items):
        n = world.items[control[POPULATED], ITEM_OBJECTS]
        code = _room_for(world, n, n, 0)
        if code != DONE:
            return code
        populate(world)
    while True:
        actor = control[PENDING]
        if actor == NONE:
            actor = _next_actor(world)
            if actor == NONE:
                return DONE
            if actor < 0:
                return ACTORS_FULL if actor == NONE - 1 else CONTEXTS_FULL
            control[PENDING] = actor
        if control[EXPIRES] and not expire(world.tiers, world.slots, world.free, world.rows, control, control[NOW]):
            control[NEED] = control[RANKS] * control[LAYERS]
            return ROWS_FULL
        code = _room(world, actor)
        if code != DONE:
            return code
        delay = _act(world, actor)
        if delay == NONE:
            control[PENDING] = NONE
        elif delay > 0:
            control[PENDING] = NONE
            if control[NOW] + delay < knobs.until_ns:
                push(world, control[NOW] + delay, actor)


@njit
def _act(world: World, actor: int) -> int:
    """Do the actor's next step; return how long it waits then, or NONE if it is done for good."""
    step = world.actors[actor, STEP]
    delay: int = 0
    if step == ASK:
        delay = ask(world, actor)
    elif step == LOAD:
        delay = load(world, actor)
    elif step == PROMOTE:
        delay = promote(world, actor)
    elif step == STORE:
        store(world, actor)
    elif step == DECODE:
        delay = decode(world, actor)
    else:
        delay = end(world, actor)
    return delay


@njit
def _next_actor(world: World) -> int:
    """Return the actor whose turn it is, and set NOW; NONE at the end, less if no actor or context is idle."""
    control = world.control
    index = control[ARRIVED]
    is_left = index < len(world.arrival_ns) and index < world.knobs.max_requests
    if control[HEAP_SIZE] > 0 and (not is_left or world.heap_ns[0] <= world.arrival_ns[index]):
        control[NOW] = world.heap_ns[0]
        return pop(world)
    if not is_left or world.arrival_ns[index] >= world.knobs.until_ns:
        return NONE
    free = len(world.idle) - 1
    if world.idle[free] == 0:
        return NONE - 1
    if world.knobs.source == CONVERSATIONS and world.idle_contexts[len(world.idle_contexts) - 1] == 0:
        control[NEED] = 0
        return NONE - 2
    world.idle[free] -= 1
    actor: int = world.idle[world.idle[free]]
    control[NOW] = world.arrival_ns[index]
    control[ARRIVED] = index + 1
    arrive(world, actor, index)
    return actor


@njit
def _room(world: World, actor: int) -> int:
    """Return DONE if the actor's next step surely fits the buffers, else what is full; NEED says how much it takes."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    shared = me[RETRIEVED_OBJECTS] + me[SHARED]
    n = shared + me[LENGTH] + me[NEW]
    made = 0
    if me[STEP] == LOAD or me[STEP] == END:
        # Which of a chain's objects are new is not known yet.
        made = me[LENGTH] if knobs.source == CHAINS else me[NEW]
        if knobs.source != CHAINS and me[LENGTH] + me[NEW] > world.contexts.shape[1]:
            control[NEED] = me[LENGTH] + me[NEW]
            return CONTEXTS_FULL
    return _room_for(world, n, n if knobs.promotion else shared + me[NEW], made)


@njit
def _room_for(world: World, n: int, written: int, made: int) -> int:
    """Return DONE if there is room for a step with `n` objects, of which it may write `written` and make `made`."""
    control = world.control
    if n > len(world.chain):
        control[NEED] = n
        return CHAIN_FULL
    if control[FREE_COUNT] < made:
        control[NEED] = made
        return SLOTS_FULL
    tiers = len(world.tiers)
    # Every object is read once and written once to each tier. That displaces at most as many bytes from each,
    # and one largest object and what lies between its marks a tier more, but no object twice; each displaced one
    # takes three rows (read, write, delete).
    displaced_bytes = (written + tiers) * control[MAX_SIZE]
    for t in range(tiers):
        displaced_bytes += world.tiers[t, LIMIT] - world.tiers[t, LOW]
    displaced = min(displaced_bytes // max(1, control[MIN_SIZE]), len(world.slots)) + written + tiers
    control[NEED] = control[RANKS] * control[LAYERS] * ((1 + tiers) * n + 3 * tiers * displaced + 8)
    is_room = (
        control[ROW_COUNT] + control[NEED] <= world.rows.shape[1]
        and control[MADE] + made <= len(world.made_size)
        and (len(world.users) == 0 or control[LOGGED] < len(world.log))
        and (len(world.first_ns) == 0 or control[ANSWERED] < len(world.first_ns))
    )
    return DONE if is_room else ROWS_FULL
