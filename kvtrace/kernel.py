"""The compiled simulation loop: requests arrive, load what is cached, store what is not, and decode.

One loop serves both a file of requests (arrivals at their times) and synthetic users (the next turn waits
for the last). It is resumable: when a buffer is full or slots run out it returns to Python, between the
steps of a request, and goes on from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvtrace.compiled import njit
from kvtrace.sources.synthetic import KIND, QOS, next_turn, think_ns
from kvtrace.store import (
    DECODE,
    FOLLOWING,
    FREE_COUNT,
    HELD,
    HIT_BYTES,
    HITS,
    LIVE,
    LOAD,
    NONE,
    OBJECT,
    PREFILL,
    PROMOTE,
    RANKS,
    ROW_COUNT,
    SIZE,
    STORE,
    STORE_CONTROLS,
    fastest,
    lower_tier,
    make_room,
    make_room_by_demotion,
    read,
    release,
    touch,
    write,
)

DONE, ROWS_FULL, SLOTS_FULL, ACTORS_FULL = range(4)
"""Why the loop returned."""

# What an actor (a user, or a request in flight) does next.
_ASK, _LOAD, _STORE, _DECODE, _END = range(5)

# An actor's fields, columns of an int64 matrix.
(
    STEP, REQUEST, SESSION, TURN, INPUT, OUTPUT, NEW_TOKENS, FIRST, LAST, LENGTH, NEW, STAGE, DECODED, DECODE_START,
    HISTORY, ACTOR_FIELDS,
) = range(16)  # fmt: skip

# Fields of World.control.
(
    PENDING, NOW, ARRIVED, HEAP_SIZE, NEXT_REQUEST, NEXT_SESSION, NEXT_OBJECT, MADE, LOGGED, NEED, MIN_SIZE, MAX_SIZE,
    CONTROLS,
) = range(STORE_CONTROLS, STORE_CONTROLS + 13)  # fmt: skip

# Fields of World.total.
REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, LOOKUPS, LOOKUP_BYTES, DECODE_MISSES, UNPLACED, TOTALS = range(8)


class Knobs(NamedTuple):
    """What the preset and the model say, as numbers."""

    is_prefix: int
    is_waterfall: int
    promotes: int
    chunk_tokens: int
    """0: one object a turn."""
    decode_read_tokens: int
    prefill_only_from_tokens: int
    prefill_ns_per_token: int
    decode_ns_per_token: int
    bytes_per_token: int
    """Of all ranks together."""
    max_context_tokens: int
    seed: int
    until_ns: int
    max_requests: int


class World(NamedTuple):
    """All state of a simulation, as int64 arrays; store.py says what tiers, slots and rows hold."""

    tiers: Any
    slots: Any
    free: Any
    """A stack of unused slots; control[FREE_COUNT] of them."""
    rows: Any
    knobs: Knobs
    control: Any
    total: Any
    users: Any
    """[users, synthetic.FIELDS]; empty with a file."""
    actors: Any
    """[actors, ACTOR_FIELDS]; actor n is user n."""
    idle: Any
    """[actors + 1]: a stack of unused actors; its size is the last element."""
    heap_ns: Any
    heap_actor: Any
    arrival_ns: Any
    """[requests]; empty with users. The rest of the file's columns follow."""
    input_tokens: Any
    output_tokens: Any
    offsets: Any
    file_chain: Any
    file_new: Any
    made_size: Any
    """[rows]: sizes of the objects that users made since the last flush."""
    log: Any
    """[rows, 8]: requests of users since the last flush, columns as in the requests table, no blocks."""
    chain: Any
    """Scratch: the slots of one request."""
    where: Any
    """Scratch: the tier in which each was found."""
    wanted: Any
    """Scratch of make_room_by_demotion."""


@njit
def push(world: World, time_ns: int, actor: int) -> None:
    """Schedule `actor` at `time_ns`; ties go by actor number."""
    times, who = world.heap_ns, world.heap_actor
    i = world.control[HEAP_SIZE]
    world.control[HEAP_SIZE] = i + 1
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < time_ns or (times[up] == time_ns and who[up] < actor):
            break
        times[i], who[i] = times[up], who[up]
        i = up
    times[i], who[i] = time_ns, actor


@njit
def pop(world: World) -> int:
    """Take the first of the schedule; return its actor."""
    times, who = world.heap_ns, world.heap_actor
    n = world.control[HEAP_SIZE] - 1
    world.control[HEAP_SIZE] = n
    first = who[0]
    time_ns, actor = times[n], who[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (times[right] < times[child] or (times[right] == times[child] and who[right] < who[child])):
            child = right
        if time_ns < times[child] or (time_ns == times[child] and actor < who[child]):
            break
        times[i], who[i] = times[child], who[child]
        i = child
    times[i], who[i] = time_ns, actor
    return first


@njit
def run(world: World) -> int:
    """Simulate until the end (DONE) or until Python must make room."""
    control, knobs = world.control, world.knobs
    while True:
        actor = control[PENDING]
        if actor == NONE:
            actor = _next_actor(world)
            if actor == NONE:
                return DONE
            if actor < 0:
                return ACTORS_FULL
            control[PENDING] = actor
        code = _room(world, actor)
        if code != DONE:
            return code
        step = world.actors[actor, STEP]
        delay = 0
        if step == _ASK:
            delay = _ask(world, actor)
        elif step == _LOAD:
            delay = _load(world, actor)
        elif step == _STORE:
            _store(world, actor)
        elif step == _DECODE:
            delay = _decode(world, actor)
        else:
            delay = _end(world, actor)
        if delay == NONE:
            control[PENDING] = NONE
        elif delay > 0:
            control[PENDING] = NONE
            if control[NOW] + delay < knobs.until_ns:
                push(world, control[NOW] + delay, actor)


@njit
def _next_actor(world: World) -> int:
    """Return the actor whose turn it is, and set NOW; NONE at the end, less than that if none is idle."""
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
    world.idle[free] -= 1
    actor = world.idle[world.idle[free]]
    control[NOW] = world.arrival_ns[index]
    control[ARRIVED] = index + 1
    me = world.actors[actor]
    me[STEP], me[REQUEST], me[STAGE] = _LOAD, index, 0
    me[INPUT], me[OUTPUT] = world.input_tokens[index], world.output_tokens[index]
    me[FIRST], me[LENGTH] = world.offsets[index], world.offsets[index + 1] - world.offsets[index]
    me[NEW] = world.file_new[index]
    me[NEW_TOKENS] = me[INPUT]
    if me[NEW]:
        me[NEW_TOKENS] = (
            world.slots[world.file_chain[world.offsets[index + 1] - 1], SIZE] // world.knobs.bytes_per_token
        )
    return actor


@njit
def _room(world: World, actor: int) -> int:
    """Return DONE if the actor's next step surely fits the buffers, else what is full; NEED says how much it takes."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    n = me[LENGTH] + me[NEW]
    if len(world.users) and me[STEP] == _LOAD and control[FREE_COUNT] < me[NEW]:
        control[NEED] = me[NEW]
        return SLOTS_FULL
    tiers = len(world.tiers)
    # Every object is read once and written once to each tier. That displaces at most as many bytes from each,
    # and one largest object a tier more, but no object twice; each displaced one takes three rows (read, write,
    # delete).
    size = me[NEW_TOKENS] if knobs.chunk_tokens == 0 else knobs.chunk_tokens
    displaced_bytes = n * size * knobs.bytes_per_token + tiers * control[MAX_SIZE]
    displaced = min(displaced_bytes // max(1, control[MIN_SIZE]), len(world.slots)) + n + tiers
    control[NEED] = control[RANKS] * ((1 + tiers) * n + 3 * tiers * displaced + 8)
    is_room = (
        control[ROW_COUNT] + control[NEED] <= world.rows.shape[1]
        and (len(world.users) == 0 or control[MADE] + me[NEW] <= len(world.made_size))
        and (len(world.users) == 0 or control[LOGGED] < len(world.log))
    )
    return DONE if is_room else ROWS_FULL


@njit
def _ask(world: World, user: int) -> int:
    """Plan the next turn of a user, its conversation, tokens and objects; return NONE if no more may ask."""
    me, knobs, control = world.actors[user], world.knobs, world.control
    if control[NEXT_REQUEST] >= knobs.max_requests:
        return NONE
    turn = next_turn(world.users, knobs.seed, user, me[TURN], me[HISTORY], knobs.max_context_tokens)
    if turn.is_new_conversation:
        _leave_conversation(world, user)
        me[SESSION] = control[NEXT_SESSION]
        control[NEXT_SESSION] += 1
    me[NEW_TOKENS], me[OUTPUT] = turn.new_tokens, turn.output_tokens
    me[INPUT] = me[HISTORY] + turn.new_tokens
    me[NEW] = me[INPUT] // knobs.chunk_tokens - me[LENGTH] if knobs.chunk_tokens else 1
    me[REQUEST] = control[NEXT_REQUEST]
    control[NEXT_REQUEST] += 1
    size = knobs.chunk_tokens or me[NEW_TOKENS]
    control[MIN_SIZE] = min(control[MIN_SIZE], size * knobs.bytes_per_token)
    control[MAX_SIZE] = max(control[MAX_SIZE], size * knobs.bytes_per_token)
    line = world.log[control[LOGGED]]
    control[LOGGED] += 1
    line[0], line[1], line[2], line[3] = control[NOW], me[REQUEST], me[SESSION], me[TURN]
    line[4], line[5], line[6], line[7] = (
        me[INPUT],
        me[OUTPUT],
        world.users[user, QOS],
        world.users[user, KIND],
    )
    me[STAGE] = 0
    me[STEP] = _LOAD
    return 0


@njit
def _leave_conversation(world: World, user: int) -> None:
    me, slots = world.actors[user], world.slots
    slot = me[FIRST]
    while slot != NONE:
        following = slots[slot, FOLLOWING]
        slots[slot, HELD] = 0
        release(slots, world.free, world.control, slot)
        slot = following
    me[FIRST], me[LAST], me[LENGTH], me[TURN], me[HISTORY] = NONE, NONE, 0, 0, 0


@njit
def _make_objects(world: World, user: int) -> None:
    """Take slots for the new objects of a user's turn and append them to the conversation."""
    me, knobs, slots, control = world.actors[user], world.knobs, world.slots, world.control
    tokens = knobs.chunk_tokens or me[NEW_TOKENS]
    for _ in range(me[NEW]):
        control[FREE_COUNT] -= 1
        slot = world.free[control[FREE_COUNT]]
        slots[slot, OBJECT] = control[NEXT_OBJECT]
        control[NEXT_OBJECT] += 1
        slots[slot, SIZE] = tokens * knobs.bytes_per_token
        slots[slot, LIVE], slots[slot, HELD], slots[slot, FOLLOWING] = 0, 1, NONE
        if me[LAST] == NONE:
            me[FIRST] = slot
        else:
            slots[me[LAST], FOLLOWING] = slot
        me[LAST] = slot
        world.made_size[control[MADE]] = slots[slot, SIZE]
        control[MADE] += 1


@njit
def _gather(world: World, actor: int) -> int:
    """Copy the slots of the actor's prompt, in order, to `chain`; return how many."""
    me, slots, chain = world.actors[actor], world.slots, world.chain
    if len(world.users) == 0:
        n = me[LENGTH]
        chain[:n] = world.file_chain[me[FIRST] : me[FIRST] + n]
        return n
    n = 0
    slot = me[FIRST]
    while slot != NONE:
        chain[n] = slot
        n += 1
        slot = slots[slot, FOLLOWING]
    return n


@njit
def _load(world: World, actor: int) -> int:
    """Read what is cached of the prompt, promote it, and return the time the rest takes to compute."""
    me, knobs = world.actors[actor], world.knobs
    tiers, slots, rows, control, chain, where = (
        world.tiers, world.slots, world.rows, world.control, world.chain, world.where,
    )  # fmt: skip
    now, request = control[NOW], me[REQUEST]
    known = me[LENGTH] if len(world.users) else me[LENGTH] - me[NEW]
    if len(world.users):
        _make_objects(world, actor)
        me[LENGTH] += me[NEW]
    n = _gather(world, actor)
    end = 0
    while end < known:
        found = fastest(tiers, slots, chain[end])
        where[end] = found
        if found == NONE and knobs.is_prefix:
            break
        end += 1
    hit_bytes, stage = 0, 0
    for i in range(end):
        t = where[i]
        if t != NONE:
            slot = chain[i]
            read(tiers, slots, rows, control, t, slot, now, LOAD, request, 0)
            tiers[t, HITS] += 1
            tiers[t, HIT_BYTES] += slots[slot, SIZE]
            hit_bytes += slots[slot, SIZE]
            stage = 1
    if knobs.promotes:
        stage += _promote(world, end, stage, request)
    _count_request(world, actor, n if knobs.is_prefix else known)
    me[STAGE], me[STEP] = stage, _STORE
    # What a prefix match leaves, or a turn adds, is what is stored.
    me[NEW] = n - (end if knobs.is_prefix else known)
    missed = me[INPUT] - hit_bytes // knobs.bytes_per_token
    return max(0, missed) * knobs.prefill_ns_per_token


@njit
def _count_request(world: World, actor: int, looked_up: int) -> None:
    me, total, slots, chain = world.actors[actor], world.total, world.slots, world.chain
    total[REQUESTS] += 1
    total[INPUT_TOKENS] += me[INPUT]
    total[OUTPUT_TOKENS] += me[OUTPUT]
    total[LOOKUPS] += looked_up
    for i in range(looked_up):
        total[LOOKUP_BYTES] += slots[chain[i], SIZE]


@njit
def _promote(world: World, end: int, stage: int, request: int) -> int:
    """Copy each of `chain[:end]` from where it was read to every faster tier; return 1 if anything was, else 0."""
    tiers, slots, free, rows, control = world.tiers, world.slots, world.free, world.rows, world.control
    chain, where, now = world.chain, world.where, world.control[NOW]
    is_any = 0
    for i in range(end):
        slot = chain[i]
        t = where[i] - 1
        while t >= 0:
            if make_room(tiers, slots, free, rows, control, t, slots[slot, SIZE], now):
                write(tiers, slots, rows, control, t, slot, now, PROMOTE, request, stage)
                is_any = 1
            t -= 1
    return is_any


@njit
def _store(world: World, actor: int) -> None:
    """Write the objects that were computed, to the tiers that the placement says."""
    me = world.actors[actor]
    n = _gather(world, actor)
    first = n - me[NEW]
    if world.knobs.is_waterfall:
        me[STAGE] += _store_waterfall(world, first, n, me[STAGE], me[REQUEST])
    else:
        me[STAGE] += _store_through(world, first, n, me[STAGE], me[REQUEST])
    me[NEW] = 0
    me[DECODED], me[DECODE_START] = 0, world.control[NOW]
    me[STEP] = _DECODE


@njit
def _store_waterfall(world: World, first: int, n: int, stage: int, request: int) -> int:
    """Write each new object to the fastest tier that takes it, which moves others down; return the stages used."""
    tiers, slots, free, rows, control = world.tiers, world.slots, world.free, world.rows, world.control
    chain, now = world.chain, world.control[NOW]
    is_any = 0
    for i in range(first, n):
        slot = chain[i]
        held_in = fastest(tiers, slots, slot)
        if held_in != NONE:
            touch(tiers, slots, held_in, slot)
            continue
        t = lower_tier(tiers, 0, slots[slot, SIZE])
        if t == NONE:
            world.total[UNPLACED] += 1
            continue
        make_room_by_demotion(tiers, slots, free, rows, control, world.wanted, t, slots[slot, SIZE], now)
        write(tiers, slots, rows, control, t, slot, now, PREFILL, request, stage)
        is_any = 1
    return is_any


@njit
def _store_through(world: World, first: int, n: int, stage: int, request: int) -> int:
    """Write each new object to the first tier that takes it, and a stage later to all below; return the stages used."""
    tiers, slots, free, rows, control = world.tiers, world.slots, world.free, world.rows, world.control
    chain, now = world.chain, world.control[NOW]
    is_first, is_lower = 0, 0
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(tiers, 0, slots[slot, SIZE])
        if t == NONE:
            world.total[UNPLACED] += 1
        elif slots[slot, LIVE] & (1 << t):
            # Computed again though it is still there: an engine does not store it twice.
            touch(tiers, slots, t, slot)
        elif make_room(tiers, slots, free, rows, control, t, slots[slot, SIZE], now):
            write(tiers, slots, rows, control, t, slot, now, PREFILL, request, stage)
            is_first = 1
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(tiers, 0, slots[slot, SIZE]) + 1
        while 0 < t < len(tiers):
            if not slots[slot, LIVE] & (1 << t) and make_room(
                tiers, slots, free, rows, control, t, slots[slot, SIZE], now
            ):
                write(tiers, slots, rows, control, t, slot, now, STORE, request, stage + is_first)
                is_lower = 1
            t += 1
    return is_first + is_lower


@njit
def _decode(world: World, actor: int) -> int:
    """Read the turn's own entry again as tokens are generated; return the time to the next such step."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    reads = 0
    if knobs.decode_read_tokens and not (
        knobs.prefill_only_from_tokens and me[NEW_TOKENS] >= knobs.prefill_only_from_tokens
    ):
        reads = 1 + -(-me[OUTPUT] // knobs.decode_read_tokens)
    done = me[DECODED]
    if done >= reads or me[LENGTH] == 0:
        me[STEP] = _END
        return me[DECODE_START] + me[OUTPUT] * knobs.decode_ns_per_token - control[NOW]
    slot = world.file_chain[me[FIRST] + me[LENGTH] - 1] if len(world.users) == 0 else me[LAST]
    tiers, slots, rows = world.tiers, world.slots, world.rows
    t = fastest(tiers, slots, slot)
    if t == NONE:
        world.total[DECODE_MISSES] += 1
    else:
        read(tiers, slots, rows, control, t, slot, control[NOW], DECODE, me[REQUEST], me[STAGE])
        me[STAGE] += 1
    me[DECODED] = done + 1
    if done + 1 == reads:
        return 0
    # The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens tokens.
    due = me[DECODE_START] + done * knobs.decode_read_tokens * knobs.decode_ns_per_token
    return due - control[NOW]


@njit
def _end(world: World, actor: int) -> int:
    """End a request: a user thinks, for the time returned; a file's actor is idle again."""
    me = world.actors[actor]
    if len(world.users) == 0:
        free = len(world.idle) - 1
        world.idle[world.idle[free]] = actor
        world.idle[free] += 1
        return NONE
    me[HISTORY] = me[INPUT] + me[OUTPUT]
    me[TURN] += 1
    me[STEP] = _ASK
    return max(1, think_ns(world.users, world.knobs.seed, actor))
