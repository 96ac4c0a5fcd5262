"""The compiled look-up: what of a request's objects is cached, its reads, and what they copy to faster tiers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.ask import find_objects, gather, make_objects, set_entry
from kvtrace.sim.records import HIT_BYTES, HITS, LARGEST, LAYERS, LIVE, NONE, OBJECT, READ_BYTES, SEEN, SIZE
from kvtrace.sim.tiers import LOAD as LOAD_PHASE
from kvtrace.sim.tiers import PROMOTE as PROMOTE_PHASE
from kvtrace.sim.tiers import (
    READ,
    RETRIEVE,
    drop,
    emit,
    emit_layer,
    fastest,
    make_room,
    make_room_by_demotion,
    serve,
    touch,
    write,
)
from kvtrace.sim.world import (
    CHAINS,
    CHUNKED,
    DECODE_ONLY,
    DOCUMENT_HITS,
    DOCUMENT_LOOKUPS,
    INPUT,
    INPUT_TOKENS,
    LENGTH,
    LOOKUP_BYTES,
    LOOKUPS,
    MISSED_TOKENS,
    NEW,
    NOW,
    OUTPUT,
    OUTPUT_TOKENS,
    PIECE_BYTES,
    PIECE_KIND,
    PIECE_WINDOW,
    PREFILL_ONLY,
    PROMOTE,
    PROMPT_HITS,
    PROMPT_LOOKUPS,
    REACHED,
    REQUEST,
    REQUESTS,
    RETRIEVED_OBJECTS,
    SECOND_TOUCH,
    SHARED,
    SLIDING,
    STAGE,
    STATE,
    STEP,
    STORE,
    TEMPORARY,
)

if TYPE_CHECKING:
    from kvtrace.sim.world import World


@njit
def load(world: World, actor: int) -> int:
    """Read what is cached of the request; return the time until all of it is there."""
    me, knobs, control, total = world.actors[actor], world.knobs, world.control, world.total
    own = me[LENGTH]
    if knobs.source == CHAINS:
        find_objects(world, actor)
    else:
        make_objects(world, actor)
    n = gather(world, actor)
    set_entry(world, actor, n)
    total[REQUESTS] += 1
    total[INPUT_TOKENS] += me[INPUT]
    total[OUTPUT_TOKENS] += me[OUTPUT]
    known = me[RETRIEVED_OBJECTS] + me[SHARED] + own
    end, done, hit_tokens = 0, control[NOW], 0
    me[REACHED] = 0
    if knobs.mode != PREFILL_ONLY:
        end = _look_up(world, me[RETRIEVED_OBJECTS], known)
        me[REACHED] = end
        done, hit_tokens = _read_hits(world, actor, end)
        _count_lookups(world, actor, n if knobs.is_prefix else known)
    # What a prefix match leaves, or a turn adds, is what is computed and stored.
    me[NEW], me[MISSED_TOKENS] = n - (end if knobs.is_prefix else known), max(0, me[INPUT] - hit_tokens)
    if knobs.mode == DECODE_ONLY:
        me[NEW], me[MISSED_TOKENS] = 0, 0
    me[STEP] = PROMOTE
    return done - control[NOW]


@njit
def _look_up(world: World, first: int, known: int) -> int:
    """Find where each of `chain[:known]` is live, into `where`; return how many of them may be used.

    The first `first` are documents, each by itself; from there on it is as the preset says.
    """
    tiers, slots, chain, where, knobs = world.tiers, world.slots, world.chain, world.where, world.knobs
    for i in range(first):
        where[i] = fastest(tiers, slots, chain[i])
    end, in_fastest = first, -1
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
    if len(pieces) == 1 or chunk_tokens == 0 or i < 0:
        return stored
    size = 0
    for p in range(len(pieces)):
        window = pieces[p, PIECE_WINDOW]
        needed = end
        if pieces[p, PIECE_KIND] == SLIDING:
            needed = -(-window // chunk_tokens)
        elif pieces[p, PIECE_KIND] == CHUNKED:
            needed = end - end * chunk_tokens // window * window // chunk_tokens
        elif pieces[p, PIECE_KIND] == STATE:
            needed = 1
        if i >= end - needed:
            size += pieces[p, PIECE_BYTES]
    return size


@njit
def _read_hits(world: World, actor: int, end: int) -> tuple[int, int]:
    """Read each of `chain[:end]` where it is; return when the last is read, and the tokens that saves.

    Documents come first, in a stage of their own. Then objects of one group of layers are a stage: the first layers
    can be used while the next are read.
    """
    me, knobs = world.actors[actor], world.knobs
    tiers, slots, rows, control, chain, where = (
        world.tiers, world.slots, world.rows, world.control, world.chain, world.where,
    )  # fmt: skip
    now, documents, request = control[NOW], me[RETRIEVED_OBJECTS], me[REQUEST]
    done, hits, hit_bytes, document_hits = now, 0, 0, 0
    for i in range(end):
        t = where[i]
        if t != NONE:
            slot = chain[i]
            size = _read_size(world, slots[slot, SIZE], i - documents, end - documents)
            touch(tiers, slots, t, slot)
            tiers[t, READ_BYTES] += size
            tiers[t, HITS] += 1
            tiers[t, HIT_BYTES] += size
            hits += 1
            hit_bytes += size
            served = serve(tiers, t, 0, size, now)
            done = max(done, served)
            if i < documents:
                document_hits += 1
                emit(rows, control, now, READ, t, RETRIEVE, slots[slot, OBJECT], size, request, 0)
    stage = 1 if document_hits else 0
    layers = control[LAYERS] if hits > document_hits else 0
    for layer in range(layers):
        for i in range(documents, end):
            t = where[i]
            if t != NONE:
                slot = chain[i]
                size = _read_size(world, slots[slot, SIZE], i - documents, end - documents)
                emit_layer(
                    rows, control, now, READ, t, LOAD_PHASE, slots[slot, OBJECT], size, request, stage + layer, layer
                )
    me[STAGE] = stage + layers
    return done, hits * knobs.chunk_tokens if knobs.chunk_tokens else hit_bytes // knobs.bytes_per_token


@njit
def _count_lookups(world: World, actor: int, looked_up: int) -> None:
    me, total, slots, chain, where = world.actors[actor], world.total, world.slots, world.chain, world.where
    total[LOOKUPS] += looked_up
    for i in range(looked_up):
        total[LOOKUP_BYTES] += slots[chain[i], SIZE]
    documents, shared = me[RETRIEVED_OBJECTS], me[SHARED] if world.knobs.mode != DECODE_ONLY else 0
    if documents + shared == 0:
        return
    total[DOCUMENT_LOOKUPS] += documents
    total[PROMPT_LOOKUPS] += shared
    for i in range(min(me[REACHED], documents + shared)):
        if where[i] != NONE:
            total[DOCUMENT_HITS if i < documents else PROMPT_HITS] += 1


@njit
def promote(world: World, actor: int) -> int:
    """Copy what was loaded to faster tiers, as the promotion says; return the time the rest takes to compute."""
    me, knobs = world.actors[actor], world.knobs
    if knobs.promotion and me[REACHED]:
        gather(world, actor)
        for i in range(me[REACHED]):
            world.where[i] = fastest(world.tiers, world.slots, world.chain[i])
        me[STAGE] += _copy_up(world, me[REACHED], me[STAGE], me[REQUEST])
    me[STEP] = STORE
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
        if knobs.is_exclusive and source > 0 and not slots[slot, LIVE] & (1 << source):
            # A promotion before it demoted or evicted it: it is not in its tier to be moved from there.
            source = 0
        t = 0 if knobs.promotion == TEMPORARY and source > 0 else source - 1
        while knobs.is_exclusive and t > 0 and size > tiers[t, LARGEST]:
            t -= 1
        if knobs.is_exclusive and t >= 0 and size <= tiers[t, LARGEST]:
            drop(tiers, slots, free, rows, control, source, slot, now, PROMOTE_PHASE)
        while t >= 0:
            if knobs.is_write_back and size <= tiers[t, LARGEST]:
                make_room_by_demotion(tiers, slots, free, rows, control, world.wanted, t, slot, now)
            if make_room(tiers, slots, free, rows, control, t, slot, now):
                write(tiers, slots, rows, control, t, slot, now, PROMOTE_PHASE, request, stage)
                is_any = 1
            t = -1 if knobs.is_exclusive else t - 1
    return is_any
