"""The compiled simulation loop: requests arrive, load what is cached, store what is not, and decode.

One loop serves both a file of requests (arrivals at their times) and synthetic users (the next turn waits
for the last). It is resumable: when a buffer is full or slots run out it returns to Python, between the
steps of a request, and goes on from there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kvtrace.compiled import njit
from kvtrace.sources.synthetic import KIND, QOS, next_turn, think_ns
from kvtrace.state import (
    EXPIRES,
    FREE_COUNT,
    HELD,
    HIT_BYTES,
    HITS,
    LARGEST,
    LAYERS,
    LIMIT,
    LIVE,
    LOW,
    NONE,
    OBJECT,
    RANKS,
    READ_BYTES,
    ROW_COUNT,
    SEEN,
    SIZE,
    STORE_CONTROLS,
)
from kvtrace.store import (
    DECODE,
    LOAD,
    PREFILL,
    PROMOTE,
    READ,
    STORE,
    drop,
    emit_layer,
    expire,
    fastest,
    lower_tier,
    make_room,
    make_room_by_demotion,
    read,
    release,
    serve,
    touch,
    write,
)

DONE, ROWS_FULL, SLOTS_FULL, ACTORS_FULL, CONTEXT_FULL = range(5)
"""Why the loop returned."""

# What an actor (a user, or a request in flight) does next.
_ASK, _LOAD, _PROMOTE, _STORE, _DECODE, _END = range(6)

SECOND_TOUCH, TEMPORARY = 2, 3

# Columns of World.pieces, and the kinds as models.PieceKind orders them.
PIECE_BYTES, PIECE_KIND, PIECE_WINDOW = range(3)
_GROWING, _SLIDING, _CHUNKED, _STATE = range(4)

# An actor's fields, columns of an int64 matrix.
(
    STEP, REQUEST, SESSION, TURN, INPUT, OUTPUT, NEW_TOKENS, FIRST, LENGTH, NEW, STAGE, DECODED, DECODE_START,
    HISTORY, ASKED_NS, REACHED, MISSED_TOKENS, ACTOR_FIELDS,
) = range(18)  # fmt: skip

# Fields of World.control.
(
    PENDING, NOW, ARRIVED, HEAP_SIZE, NEXT_REQUEST, NEXT_SESSION, NEXT_OBJECT, MADE, LOGGED, NEED, MIN_SIZE, MAX_SIZE,
    ANSWERED, CONTROLS,
) = range(STORE_CONTROLS, STORE_CONTROLS + 14)  # fmt: skip

# Fields of World.total.
REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS, LOOKUPS, LOOKUP_BYTES, DECODE_MISSES, UNPLACED, TOTALS = range(8)


class Knobs(NamedTuple):
    """What the preset and the model say, as numbers."""

    is_prefix: int
    is_write_back: int
    promotion: int
    """0 never, 1 always, SECOND_TOUCH, or TEMPORARY: to the fastest tier only."""
    is_exclusive: int
    """What is promoted leaves the tier it was in."""
    min_load_tokens: int
    stores_generated: int
    chunk_tokens: int
    """0: one object a turn."""
    chunk_bytes: int
    """Of all ranks and layers together, padding included."""
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
    """All state of a simulation, as int64 arrays; state.py says what tiers, slots and rows hold."""

    tiers: Any
    slots: Any
    free: Any
    """A stack of unused slots; control[FREE_COUNT] of them."""
    rows: Any
    knobs: Knobs
    pieces: Any
    """[pieces, 3]: what a chunk consists of: bytes of all ranks, kind, window in tokens."""
    control: Any
    total: Any
    users: Any
    """[users, synthetic.FIELDS]; empty with a file."""
    contexts: Any
    """int32[users, chunks]: the slots of each user's conversation, in order, LENGTH of them; empty with a file."""
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
    first_ns: Any
    """[rows, 2]: time to the first token since the last flush, with and without the cache; empty if not modelled."""
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
        if control[EXPIRES] and not expire(world.tiers, world.slots, world.free, world.rows, control, control[NOW]):
            control[NEED] = control[RANKS] * control[LAYERS]
            return ROWS_FULL
        code = _room(world, actor)
        if code != DONE:
            return code
        step = world.actors[actor, STEP]
        delay = 0
        if step == _ASK:
            delay = _ask(world, actor)
        elif step == _LOAD:
            delay = _load(world, actor)
        elif step == _PROMOTE:
            delay = _promote(world, actor)
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
    me[STEP], me[REQUEST], me[STAGE], me[ASKED_NS] = _LOAD, index, 0, control[NOW]
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
    if len(world.users) and me[STEP] in (_LOAD, _END):
        if control[FREE_COUNT] < me[NEW]:
            control[NEED] = me[NEW]
            return SLOTS_FULL
        if n > world.contexts.shape[1]:
            control[NEED] = n
            return CONTEXT_FULL
    tiers = len(world.tiers)
    # Every object is read once and written once to each tier. That displaces at most as many bytes from each,
    # and one largest object and what lies between its marks a tier more, but no object twice; each displaced one
    # takes three rows (read, write, delete).
    size = knobs.chunk_bytes if knobs.chunk_tokens else me[NEW_TOKENS] * knobs.bytes_per_token
    displaced_bytes = n * size + tiers * control[MAX_SIZE]
    for t in range(tiers):
        displaced_bytes += world.tiers[t, LIMIT] - world.tiers[t, LOW]
    displaced = min(displaced_bytes // max(1, control[MIN_SIZE]), len(world.slots)) + n + tiers
    control[NEED] = control[RANKS] * control[LAYERS] * ((1 + tiers) * n + 3 * tiers * displaced + 8)
    is_room = (
        control[ROW_COUNT] + control[NEED] <= world.rows.shape[1]
        and (len(world.users) == 0 or control[MADE] + me[NEW] <= len(world.made_size))
        and (len(world.users) == 0 or control[LOGGED] < len(world.log))
        and (len(world.first_ns) == 0 or control[ANSWERED] < len(world.first_ns))
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
    size = knobs.chunk_bytes if knobs.chunk_tokens else me[NEW_TOKENS] * knobs.bytes_per_token
    control[MIN_SIZE] = min(control[MIN_SIZE], size)
    control[MAX_SIZE] = max(control[MAX_SIZE], size)
    line = world.log[control[LOGGED]]
    control[LOGGED] += 1
    line[0], line[1], line[2], line[3] = control[NOW], me[REQUEST], me[SESSION], me[TURN]
    line[4], line[5], line[6], line[7] = (
        me[INPUT],
        me[OUTPUT],
        world.users[user, QOS],
        world.users[user, KIND],
    )
    me[STAGE], me[ASKED_NS] = 0, control[NOW]
    me[STEP] = _LOAD
    return 0


@njit
def _leave_conversation(world: World, user: int) -> None:
    me, slots = world.actors[user], world.slots
    for i in range(me[LENGTH]):
        slot = world.contexts[user, i]
        slots[slot, HELD] = 0
        release(world.tiers, slots, world.free, world.control, slot)
    me[LENGTH], me[TURN], me[HISTORY] = 0, 0, 0


@njit
def _make_objects(world: World, user: int) -> None:
    """Take slots for the new objects of a user's turn and append them to the conversation."""
    me, knobs, slots, control = world.actors[user], world.knobs, world.slots, world.control
    size = knobs.chunk_bytes if knobs.chunk_tokens else me[NEW_TOKENS] * knobs.bytes_per_token
    for i in range(me[NEW]):
        control[FREE_COUNT] -= 1
        slot = world.free[control[FREE_COUNT]]
        slots[slot, OBJECT] = control[NEXT_OBJECT]
        control[NEXT_OBJECT] += 1
        slots[slot, SIZE] = size
        slots[slot, LIVE], slots[slot, HELD], slots[slot, SEEN] = 0, 1, 0
        world.contexts[user, me[LENGTH] + i] = slot
        world.made_size[control[MADE]] = size
        control[MADE] += 1
    me[LENGTH] += me[NEW]


@njit
def _gather(world: World, actor: int) -> int:
    """Copy the slots of the actor's prompt, in order, to `chain`; return how many."""
    me = world.actors[actor]
    n = me[LENGTH]
    for i in range(n):
        world.chain[i] = world.contexts[actor, i] if len(world.users) else world.file_chain[me[FIRST] + i]
    return n


@njit
def _load(world: World, actor: int) -> int:
    """Read what is cached of the prompt; return the time until all of it is there."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    known = me[LENGTH] if len(world.users) else me[LENGTH] - me[NEW]
    if len(world.users):
        _make_objects(world, actor)
    n = _gather(world, actor)
    end = _look_up(world, known)
    done, hit_tokens = _read_hits(world, actor, end)
    _count_request(world, actor, n if knobs.is_prefix else known)
    me[REACHED], me[MISSED_TOKENS] = end, max(0, me[INPUT] - hit_tokens)
    # What a prefix match leaves, or a turn adds, is what is stored.
    me[NEW] = n - (end if knobs.is_prefix else known)
    me[STEP] = _PROMOTE
    return done - control[NOW]


@njit
def _look_up(world: World, known: int) -> int:
    """Find where each of `chain[:known]` is live, into `where`; return how many of them may be used."""
    tiers, slots, chain, where, knobs = world.tiers, world.slots, world.chain, world.where, world.knobs
    end, in_fastest = 0, -1
    while end < known:
        found = fastest(tiers, slots, chain[end])
        where[end] = found
        if found == NONE and knobs.is_prefix:
            break
        if found != 0 and in_fastest < 0:
            in_fastest = end
        end += 1
    if in_fastest >= 0 and (end - in_fastest) * knobs.chunk_tokens < knobs.min_load_tokens:
        # Not worth a load from below: the engine computes these again.
        end = in_fastest
    return end


@njit
def _read_size(world: World, stored: int, i: int, end: int) -> int:
    """Return how much of chunk `i` of a prefix of `end` chunks is read: windowed layers need only the last ones."""
    pieces, chunk_tokens = world.pieces, world.knobs.chunk_tokens
    if len(pieces) == 1 or chunk_tokens == 0:
        return stored
    size = 0
    for p in range(len(pieces)):
        window = pieces[p, PIECE_WINDOW]
        needed = end
        if pieces[p, PIECE_KIND] == _SLIDING:
            needed = -(-window // chunk_tokens)
        elif pieces[p, PIECE_KIND] == _CHUNKED:
            needed = end - end * chunk_tokens // window * window // chunk_tokens
        elif pieces[p, PIECE_KIND] == _STATE:
            needed = 1
        if i >= end - needed:
            size += pieces[p, PIECE_BYTES]
    return size


@njit
def _read_hits(world: World, actor: int, end: int) -> tuple[int, int]:
    """Read each of `chain[:end]` where it is; return when the last is read, and the tokens that saves.

    Objects of one group of layers are a stage: the first layers can be used while the next are read.
    """
    me, knobs = world.actors[actor], world.knobs
    tiers, slots, rows, control, chain, where = (
        world.tiers, world.slots, world.rows, world.control, world.chain, world.where,
    )  # fmt: skip
    now = control[NOW]
    done, hits, hit_bytes = now, 0, 0
    for i in range(end):
        t = where[i]
        if t != NONE:
            slot = chain[i]
            size = _read_size(world, slots[slot, SIZE], i, end)
            touch(tiers, slots, t, slot)
            tiers[t, READ_BYTES] += size
            tiers[t, HITS] += 1
            tiers[t, HIT_BYTES] += size
            hits += 1
            hit_bytes += size
            served = serve(tiers, t, 0, size, now)
            done = max(done, served)
    layers = control[LAYERS] if hits else 0
    for layer in range(layers):
        for i in range(end):
            t = where[i]
            if t != NONE:
                slot = chain[i]
                size = _read_size(world, slots[slot, SIZE], i, end)
                emit_layer(rows, control, now, READ, t, LOAD, slots[slot, OBJECT], size, me[REQUEST], layer, layer)
    me[STAGE] = layers
    return done, hits * knobs.chunk_tokens if knobs.chunk_tokens else hit_bytes // knobs.bytes_per_token


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
def _promote(world: World, actor: int) -> int:
    """Copy what was loaded to faster tiers, as the promotion says; return the time the rest takes to compute."""
    me, knobs = world.actors[actor], world.knobs
    if knobs.promotion and me[REACHED]:
        _gather(world, actor)
        for i in range(me[REACHED]):
            world.where[i] = fastest(world.tiers, world.slots, world.chain[i])
        me[STAGE] += _copy_up(world, me[REACHED], me[STAGE], me[REQUEST])
    me[STEP] = _STORE
    return me[MISSED_TOKENS] * knobs.prefill_ns_per_token


@njit
def _copy_up(world: World, end: int, stage: int, request: int) -> int:
    """Copy each of `chain[:end]` from the tier in `where` to faster ones; return 1 if anything was, else 0."""
    tiers, slots, free, rows, control = world.tiers, world.slots, world.free, world.rows, world.control
    chain, where, knobs, now = world.chain, world.where, world.knobs, world.control[NOW]
    is_any = 0
    for i in range(end):
        slot, source = chain[i], where[i]
        size = slots[slot, SIZE]
        if knobs.promotion == SECOND_TOUCH and source > 0:
            slots[slot, SEEN] ^= 1
            if slots[slot, SEEN]:
                source = 0
        t = 0 if knobs.promotion == TEMPORARY and source > 0 else source - 1
        while knobs.is_exclusive and t > 0 and size > tiers[t, LARGEST]:
            t -= 1
        if knobs.is_exclusive and t >= 0 and size <= tiers[t, LARGEST]:
            drop(tiers, slots, free, rows, control, source, slot, now, PROMOTE)
        while t >= 0:
            if knobs.is_write_back and size <= tiers[t, LARGEST]:
                make_room_by_demotion(tiers, slots, free, rows, control, world.wanted, t, slot, now)
            if make_room(tiers, slots, free, rows, control, t, slot, now):
                write(tiers, slots, rows, control, t, slot, now, PROMOTE, request, stage)
                is_any = 1
            t = -1 if knobs.is_exclusive else t - 1
    return is_any


@njit
def _store(world: World, actor: int) -> None:
    """Write the objects that were computed, to the tiers that the placement says."""
    me, control = world.actors[actor], world.control
    if len(world.first_ns):
        world.first_ns[control[ANSWERED], 0] = control[NOW] - me[ASKED_NS]
        world.first_ns[control[ANSWERED], 1] = me[INPUT] * world.knobs.prefill_ns_per_token
        control[ANSWERED] += 1
    _store_new(world, actor, PREFILL, STORE)
    me[DECODED], me[DECODE_START] = 0, control[NOW]
    me[STEP] = _DECODE


@njit
def _store_new(world: World, actor: int, first_phase: int, rest_phase: int) -> None:
    """Write the actor's last NEW objects."""
    me = world.actors[actor]
    n = _gather(world, actor)
    first = n - me[NEW]
    if world.knobs.is_write_back:
        me[STAGE] += _store_down(world, first, n, me[STAGE], me[REQUEST], first_phase)
    else:
        me[STAGE] += _store_through(world, first, n, me[STAGE], me[REQUEST], first_phase, rest_phase)
    me[NEW] = 0


@njit
def _store_down(world: World, first: int, n: int, stage: int, request: int, phase: int) -> int:
    """Write each new object to the fastest tier that takes it, which moves others down; return the stages used."""
    tiers, slots, free, rows, control = world.tiers, world.slots, world.free, world.rows, world.control
    chain, now = world.chain, world.control[NOW]
    is_any = 0
    for i in range(first, n):
        slot = chain[i]
        size = slots[slot, SIZE]
        t = lower_tier(tiers, 0, size)
        held_in = fastest(tiers, slots, slot)
        if t == NONE:
            world.total[UNPLACED] += 1
        elif held_in == t or (held_in != NONE and world.knobs.is_exclusive):
            # Computed again though it is still there: an engine does not store it twice.
            touch(tiers, slots, held_in, slot)
        else:
            make_room_by_demotion(tiers, slots, free, rows, control, world.wanted, t, slot, now)
            write(tiers, slots, rows, control, t, slot, now, phase, request, stage)
            is_any = 1
    return is_any


@njit
def _store_through(
    world: World, first: int, n: int, stage: int, request: int, first_phase: int, rest_phase: int
) -> int:
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
            touch(tiers, slots, t, slot)
        elif make_room(tiers, slots, free, rows, control, t, slot, now):
            write(tiers, slots, rows, control, t, slot, now, first_phase, request, stage)
            is_first = 1
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(tiers, 0, slots[slot, SIZE]) + 1
        while 0 < t < len(tiers):
            if not slots[slot, LIVE] & (1 << t) and make_room(tiers, slots, free, rows, control, t, slot, now):
                write(tiers, slots, rows, control, t, slot, now, rest_phase, request, stage + is_first)
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
        if knobs.stores_generated and knobs.chunk_tokens and len(world.users):
            me[NEW] = (me[INPUT] + me[OUTPUT]) // knobs.chunk_tokens - me[LENGTH]
        return max(0, me[DECODE_START] + me[OUTPUT] * knobs.decode_ns_per_token - control[NOW])
    last = me[LENGTH] - 1
    slot = world.contexts[actor, last] if len(world.users) else world.file_chain[me[FIRST] + last]
    tiers, slots, rows = world.tiers, world.slots, world.rows
    t = fastest(tiers, slots, slot)
    served = control[NOW]
    if t == NONE:
        world.total[DECODE_MISSES] += 1
    else:
        touch(tiers, slots, t, slot)
        served = read(tiers, slots, rows, control, t, slot, control[NOW], DECODE, me[REQUEST], me[STAGE])
        me[STAGE] += 1
    me[DECODED] = done + 1
    if done + 1 == reads:
        return served - control[NOW]
    # The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens tokens.
    due = me[DECODE_START] + done * knobs.decode_read_tokens * knobs.decode_ns_per_token
    return max(due, served) - control[NOW]


@njit
def _end(world: World, actor: int) -> int:
    """End a request: a user thinks, for the time returned; a file's actor is idle again."""
    me = world.actors[actor]
    if len(world.users) == 0:
        free = len(world.idle) - 1
        world.idle[world.idle[free]] = actor
        world.idle[free] += 1
        return NONE
    if me[NEW]:
        _make_objects(world, actor)
        _store_new(world, actor, DECODE, DECODE)
    me[HISTORY] = me[INPUT] + me[OUTPUT]
    me[TURN] += 1
    me[STEP] = _ASK
    return max(1, think_ns(world.users, world.knobs.seed, actor))
