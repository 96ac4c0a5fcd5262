"""The compiled simulation loop: requests arrive, load what is cached, store what is not, and decode.

One loop serves both a file of requests (arrivals at their times, or after those that they follow) and synthetic users
(the next turn waits for the last). It is resumable: when a buffer is full or slots run out it returns to Python,
between the steps of a request, and goes on from there. Who acts next is in a binary heap by time and then by actor.
"""

from __future__ import annotations

from kvtrace.core.compiled import inner, njit
from kvtrace.sim.ask import arrive, ask
from kvtrace.sim.decode import decode, end
from kvtrace.sim.fleet.move import move
from kvtrace.sim.fleet.strike import happen
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
    FREQUENCIES_FULL,
    LOAD,
    NONE,
    PROMOTE,
    ROWS_FULL,
    SLOTS_FULL,
    STORE,
    UNBOUNDED,
    World,
)
from kvtrace.sim.schedule import call_followers, first_due, next_arrival_ns, pop, pop_decoding, push, take_arrival
from kvtrace.sim.store import populate, store
from kvtrace.sim.tiers.slots import pack
from kvtrace.sim.tiers.waiting import catch_up

HAPPENS = NONE - 3
"""Instead of an actor: something happens to the fleet."""


@njit
def run(world: World) -> int:
    """Simulate until the end (DONE) or until Python must make room."""
    control, knobs = world.control, world.knobs
    while control.populated < len(world.items):
        n = world.items[control.populated].objects
        move(world, control.populating)
        code = _room_for(world, n, n, 0)
        if code != DONE:
            return code
        populate(world)
        pack(world)
    while True:
        actor = control.pending
        if actor == NONE:
            actor = _next_actor(world)
            if actor == NONE:
                return DONE
            if actor == HAPPENS:
                code = happen(world)
                if code != DONE:
                    return code
                continue
            if actor < 0:
                return ACTORS_FULL if actor == NONE - 1 else CONTEXTS_FULL
            control.pending = actor
        if knobs.expires or knobs.polls or knobs.queued:
            code = catch_up(world, control.now)
            if code != DONE:
                return code
        code = _room(world, actor)
        if code != DONE:
            return code
        delay = _act(world, actor)
        pack(world)
        if delay != 0:
            control.pending = NONE
        if delay > 0 and control.now + delay < knobs.until_ns:
            push(world.heap, control.heap_size, control.now + delay, actor)
            control.heap_size += 1


@inner
def _act(world: World, actor: int) -> int:
    """Do the actor's next step; return how long it waits then, WAITS, or NONE if it is done for good."""
    step = world.actors[actor].step
    delay: int = 0
    if step > LOAD:
        move(world, world.actors[actor].node)
    if step == ASK:
        delay = ask(world, actor)
    elif step == LOAD:
        delay = load(world, actor)
    elif step == PROMOTE:
        delay = promote(world, actor)
    elif step == STORE:
        delay = store(world, actor)
    elif step == DECODE:
        delay = decode(world, actor)
    else:
        delay = end(world, actor)
    return delay


@inner
def _next_actor(world: World) -> int:
    """Return the actor whose turn it is, or HAPPENS, and set the time; NONE at the end, less if too few are idle."""
    control, first = world.control, world.heap[0]
    arrival_ns = next_arrival_ns(world)
    due: int = first.when if control.heap_size > 0 else UNBOUNDED
    node = first_due(world)
    batch = world.fleet.batches[node]
    is_decoding = batch.due_ns < due or (batch.due_ns == due < UNBOUNDED and batch.first < first.actor)
    if is_decoding:
        due = batch.due_ns
    # Without an end, what happens after the last request does not.
    next_ns = min(due, arrival_ns, world.knobs.until_ns)
    if control.happen_ns <= next_ns < UNBOUNDED and control.happen_ns < world.knobs.until_ns:
        control.now = control.happen_ns
        return HAPPENS
    if due < UNBOUNDED and due <= arrival_ns:
        control.now = due
        if is_decoding:
            move(world, node)
            return pop_decoding(world)
        control.heap_size -= 1
        return pop(world.heap, control.heap_size + 1)
    if arrival_ns >= world.knobs.until_ns:
        return NONE
    if control.idle == 0:
        return NONE - 1
    if world.knobs.source == CONVERSATIONS and control.idle_contexts == 0:
        control.need = 0
        return NONE - 2
    control.idle -= 1
    actor: int = world.idle[control.idle]
    control.now = arrival_ns
    request = take_arrival(world)
    arrive(world, actor, request)
    if world.knobs.follows:
        call_followers(world, request, 1)
    return actor


@inner
def _room(world: World, actor: int) -> int:
    """Return DONE if the actor's next step surely fits the buffers, else what is full; `need` is how much it takes."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    shared = me.retrieved_objects + me.shared
    n = shared + me.length + me.new
    # What has no slot may need one to be copied, or written again.
    made = n if knobs.is_packed and me.step in (PROMOTE, STORE) else 0
    if me.step in (LOAD, END):
        # Which of a chain's objects are new is not known yet.
        made = me.length if knobs.source == CHAINS else me.new
        if knobs.source != CHAINS and me.length + me.new > knobs.context_width:
            control.need = me.length + me.new
            return CONTEXTS_FULL
    is_sent = world.fleet.entrances < world.fleet.count
    writes_all = knobs.promotion or knobs.staging or knobs.offers_hits or me.refused or is_sent
    return _room_for(world, n, n if writes_all else shared + me.new, made)


@inner
def _room_for(world: World, n: int, written: int, made: int) -> int:
    """Return DONE if there is room for a step with `n` objects, of which it may write `written` and make `made`."""
    control, knobs = world.control, world.knobs
    if n > len(world.chain):
        control.need = n
        return CHAIN_FULL
    tiers, fleet = len(world.tiers), world.fleet
    # Every object is read once and written once to each tier. In each that gives anything up, that displaces at most as
    # many bytes, and one largest object and what lies between its marks a tier more, but no object twice; each
    # displaced one takes three rows (read, write, delete).
    displaced_bytes, displacing = (written + tiers) * control.max_size, 0
    for t in range(tiers):
        if not knobs.endless & (1 << t):
            displaced_bytes += world.tiers[t].limit - world.tiers[t].low
            displacing += 1
    displaced = min(displaced_bytes // max(1, control.min_size), len(world.slots)) + written + tiers
    if knobs.filtered:
        # Each object has a count, or each that comes to a place that counts for itself: those tables stay half empty.
        counts = (control.next_object + made) * tiers
        if len(fleet.counted):
            counts = 2 * (control.counts + 2 * tiers * (n + displaced))
        if counts > len(world.frequencies):
            control.need = counts
            return FREQUENCIES_FULL
    slots = made
    if fleet.scoped:
        # Each may be copied by the node and by its rack, which may also take what the node gives up.
        slots += 2 * (n + tiers) + (displaced if knobs.is_write_back else 0)
        if fleet.entrances < fleet.count:
            slots += 2 * (n + tiers) + displaced
    if control.free < slots:
        control.need = slots
        return SLOTS_FULL
    control.need = knobs.ranks * knobs.layers * ((1 + tiers) * n + 3 * displacing * displaced + 8)
    if fleet.entrances < fleet.count:
        # The link's rows, and what they displace at the node that takes them.
        control.need = 2 * control.need + 4 * knobs.ranks * knobs.layers * n
    is_room = (
        control.rows + control.need <= len(world.rows.ts_ns)
        and control.made + made <= len(world.made_size)
        and (len(world.users) == 0 or control.logged < len(world.log))
        and (len(world.first_token) == 0 or control.answered < len(world.first_token))
        and (len(world.found) == 0 or control.found < len(world.found))
    )
    return DONE if is_room else ROWS_FULL
