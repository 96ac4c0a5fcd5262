"""The compiled simulation loop: requests arrive, load what is cached, store what is not, and decode.

One loop serves both a file of requests (arrivals at their times) and synthetic users (the next turn waits
for the last). It is resumable: when a buffer is full or slots run out it returns to Python, between the
steps of a request, and goes on from there. Who acts next is in a binary heap by time and then by actor.
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner, njit
from kvtrace.sim.ask import arrive, ask
from kvtrace.sim.decode import decode, end
from kvtrace.sim.load import load, promote
from kvtrace.sim.records import (
    ACTORS_FULL,
    ASK,
    CHAIN_FULL,
    CHAINS,
    CONTEXTS_FULL,
    CONVERSATIONS,
    DECODE,
    DONE,
    END,
    LOAD,
    NONE,
    PROMOTE,
    ROWS_FULL,
    SLOTS_FULL,
    STORE,
    World,
)
from kvtrace.sim.store import populate, store
from kvtrace.sim.tiers import expire


@njit
def run(world: World) -> int:
    """Simulate until the end (DONE) or until Python must make room."""
    control, knobs = world.control, world.knobs
    while control.populated < len(world.items):
        n = world.items[control.populated].objects
        code = _room_for(world, n, n, 0)
        if code != DONE:
            return code
        populate(world)
    while True:
        actor = control.pending
        if actor == NONE:
            actor = _next_actor(world)
            if actor == NONE:
                return DONE
            if actor < 0:
                return ACTORS_FULL if actor == NONE - 1 else CONTEXTS_FULL
            control.pending = actor
        if knobs.expires and not expire(world, control.now):
            control.need = knobs.ranks * knobs.layers
            return ROWS_FULL
        code = _room(world, actor)
        if code != DONE:
            return code
        delay = _act(world, actor)
        if delay == NONE:
            control.pending = NONE
        elif delay > 0:
            control.pending = NONE
            if control.now + delay < knobs.until_ns:
                push(world, control.now + delay, actor)


@inner
def _act(world: World, actor: int) -> int:
    """Do the actor's next step; return how long it waits then, or NONE if it is done for good."""
    step = world.actors[actor].step
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


@inner
def _next_actor(world: World) -> int:
    """Return the actor whose turn it is, and set the time; NONE at the end, less if no actor or context is idle."""
    control = world.control
    index = control.arrived
    is_left = index < len(world.arrival_ns) and index < world.knobs.max_requests
    if control.heap_size > 0 and (not is_left or world.heap[0].time_ns <= world.arrival_ns[index]):
        control.now = world.heap[0].time_ns
        return pop(world)
    if not is_left or world.arrival_ns[index] >= world.knobs.until_ns:
        return NONE
    if control.idle == 0:
        return NONE - 1
    if world.knobs.source == CONVERSATIONS and control.idle_contexts == 0:
        control.need = 0
        return NONE - 2
    control.idle -= 1
    actor: int = world.idle[control.idle]
    control.now = world.arrival_ns[index]
    control.arrived = index + 1
    arrive(world, actor, index)
    return actor


@inner
def _room(world: World, actor: int) -> int:
    """Return DONE if the actor's next step surely fits the buffers, else what is full; `need` is how much it takes."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    shared = me.retrieved_objects + me.shared
    n = shared + me.length + me.new
    made = 0
    if me.step in (LOAD, END):
        # Which of a chain's objects are new is not known yet.
        made = me.length if knobs.source == CHAINS else me.new
        if knobs.source != CHAINS and me.length + me.new > knobs.context_width:
            control.need = me.length + me.new
            return CONTEXTS_FULL
    return _room_for(world, n, n if knobs.promotion else shared + me.new, made)


@inner
def _room_for(world: World, n: int, written: int, made: int) -> int:
    """Return DONE if there is room for a step with `n` objects, of which it may write `written` and make `made`."""
    control, knobs = world.control, world.knobs
    if n > len(world.chain):
        control.need = n
        return CHAIN_FULL
    if control.free < made:
        control.need = made
        return SLOTS_FULL
    tiers = len(world.tiers)
    # Every object is read once and written once to each tier. That displaces at most as many bytes from each,
    # and one largest object and what lies between its marks a tier more, but no object twice; each displaced one
    # takes three rows (read, write, delete).
    displaced_bytes = (written + tiers) * control.max_size
    for t in range(tiers):
        displaced_bytes += world.tiers[t].limit - world.tiers[t].low
    displaced = min(displaced_bytes // max(1, control.min_size), len(world.slots)) + written + tiers
    control.need = knobs.ranks * knobs.layers * ((1 + tiers) * n + 3 * tiers * displaced + 8)
    is_room = (
        control.rows + control.need <= len(world.rows.ts_ns)
        and control.made + made <= len(world.made_size)
        and (len(world.users) == 0 or control.logged < len(world.log))
        and (len(world.first_token) == 0 or control.answered < len(world.first_token))
    )
    return DONE if is_room else ROWS_FULL


@inner
def push(world: World, time_ns: int, actor: int) -> None:
    """Schedule `actor` at `time_ns`; ties go by actor number."""
    heap, control = world.heap, world.control
    i = control.heap_size
    control.heap_size = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if heap[up].time_ns < time_ns or (heap[up].time_ns == time_ns and heap[up].actor < actor):
            break
        _set(world, i, heap[up].time_ns, heap[up].actor)
        i = up
    _set(world, i, time_ns, actor)


@inner
def pop(world: World) -> int:
    """Take the first of the schedule; return its actor."""
    heap, control = world.heap, world.control
    n = control.heap_size - 1
    control.heap_size = n
    first: int = heap[0].actor
    time_ns, actor = heap[n].time_ns, heap[n].actor
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        if child + 1 < n and _is_before(world, child + 1, heap[child].time_ns, heap[child].actor):
            child += 1
        if not _is_before(world, child, time_ns, actor):
            break
        _set(world, i, heap[child].time_ns, heap[child].actor)
        i = child
    _set(world, i, time_ns, actor)
    return first


@forced
def _is_before(world: World, i: int, time_ns: int, actor: int) -> bool:
    event = world.heap[i]
    return event.time_ns < time_ns or (event.time_ns == time_ns and event.actor < actor)


@forced
def _set(world: World, i: int, time_ns: int, actor: int) -> None:
    world.heap[i].time_ns, world.heap[i].actor = time_ns, actor
