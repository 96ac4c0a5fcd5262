"""The compiled look-up: what of a request's objects is cached, its reads, and what they copy to faster tiers."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.ask import collect, find_objects, gather, home_of, make_objects, set_entry
from kvtrace.sim.fleet.route import account, note_found, route, until_open
from kvtrace.sim.records import (
    CHAINS,
    CHUNKED,
    DECODE_ONLY,
    NONE,
    PREFILL_ONLY,
    PROMOTE,
    SECOND_TOUCH,
    SLIDING,
    STATE,
    STORE,
    TEMPORARY,
    World,
)
from kvtrace.sim.tiers.room import make_room, make_room_by_demotion
from kvtrace.sim.tiers.rows import LOAD as LOAD_PHASE
from kvtrace.sim.tiers.rows import PROMOTE as PROMOTE_PHASE
from kvtrace.sim.tiers.rows import READ, RETRIEVE, begin_stage, emit, emit_layer, in_stage, live_in, size_of
from kvtrace.sim.tiers.slots import give_slot
from kvtrace.sim.tiers.staging import cut_reads, stage_reads
from kvtrace.sim.tiers.tiers import begin_reads, drop, fastest, fastest_from, follow, pin, serve_in_turn, touch, write


@inner
def load(world: World, actor: int) -> int:
    """Read what is cached of the request; return the time until all of it is there."""
    me, knobs, control, total = world.actors[actor], world.knobs, world.control, world.total
    if control.open == 0:
        return until_open(world)
    # What it made as it was first served is its own, and new to no other try.
    own = me.length - (me.made if me.restarts and not knobs.is_prefix else 0)
    if knobs.source == CHAINS:
        find_objects(world, actor)
    else:
        me.made = me.made if me.restarts else me.new
        make_objects(world, actor)
    n = collect(world, actor)
    if world.fleet.count > 1:
        route(world, actor, n)
    me.queued_ns = max(0, world.fleet.nodes[me.node].prefill_busy_ns - control.now)
    set_entry(world, actor, n)
    if me.restarts == 0:
        total.requests += 1
        total.input_tokens += me.input
        total.output_tokens += me.output
    known = me.retrieved_objects + me.shared + own
    end, done, hit_tokens, looked_up = 0, control.now, 0, 0
    me.reached, me.computed, me.refused, me.offer = 0, 0, 0, 0
    if knobs.mode != PREFILL_ONLY:
        end = _look_up(world, me.retrieved_objects, known)
        me.reached = end
        done, hit_tokens = _read_hits(world, actor, end)
        looked_up = n if knobs.is_prefix else known
        _count_lookups(world, actor, looked_up)
    # What a prefix match leaves, or a turn adds, is what is computed and stored.
    me.new, me.missed_tokens = n - (end if knobs.is_prefix else known), max(0, me.input - hit_tokens)
    if knobs.mode == DECODE_ONLY:
        me.new, me.missed_tokens = 0, 0
    if world.fleet.count > 1:
        account(world, actor, end, looked_up)
    if len(world.found):
        note_found(world, actor, end, looked_up)
    me.step = PROMOTE
    return done - control.now


@inner
def _look_up(world: World, first: int, known: int) -> int:
    """Find where each of `chain[:known]` is live, into `where`; return how many of them may be used.

    The first `first` are documents, each by itself; from there on it is as the preset says.
    """
    chain, where, knobs = world.chain, world.where, world.knobs
    for i in range(first):
        where[i] = fastest(world, chain[i])
    end, in_fastest, of = first, -1, 0
    while end < known:
        found = fastest_from(world, chain[end], of)
        where[end] = found
        if knobs.is_by_tier:
            of = max(of, found)
        if found == NONE and knobs.is_prefix:
            break
        if found != 0 and in_fastest < 0:
            in_fastest = end
        end += 1
    if in_fastest >= 0 and (end - in_fastest) * knobs.chunk_tokens < knobs.min_load_tokens:
        # Not worth a load from below: the engine computes these again.
        end = in_fastest
    return cut_reads(world, first, end) if knobs.staging else end


@inner
def _read_size(world: World, stored: int, i: int, end: int) -> int:
    """Return how much of chunk `i` of a prefix of `end` chunks is read: windowed layers need only the last ones."""
    pieces, chunk_tokens = world.pieces, world.knobs.chunk_tokens
    if len(pieces) == 1 or chunk_tokens == 0 or i < 0:
        return stored
    size = 0
    for p in range(len(pieces)):
        piece, needed = pieces[p], end
        if piece.kind == SLIDING:
            needed = -(-piece.window // chunk_tokens)
        elif piece.kind == CHUNKED:
            needed = end - end * chunk_tokens // piece.window * piece.window // chunk_tokens
        elif piece.kind == STATE:
            needed = 1
        if i >= end - needed:
            size += piece.bytes
    return size


@inner
def _read_hits(world: World, actor: int, end: int) -> tuple[int, int]:
    """Read each of `chain[:end]` where it is; return when the last is read, and the tokens that saves.

    Documents come first, in a stage of their own. Then objects of one group of layers are a stage: the first layers
    can be used while the next are read.
    """
    me, knobs, chain, where = world.actors[actor], world.knobs, world.chain, world.where
    now, documents, request = world.control.now, me.retrieved_objects, me.request
    done, hits, hit_bytes, document_hits = now, 0, 0, 0
    stage = me.stage
    begin_reads(world, now)
    begin_stage(world)
    for i in range(end):
        t = where[i]
        if t != NONE:
            entry, tier = chain[i], world.tiers[t]
            size = _read_size(world, size_of(world, entry), i - documents, end - documents)
            if not tier.loads_backwards:
                follow(world, t, i)
                touch(world, t, entry)
            tier.read_bytes += size
            tier.hits += 1
            tier.hit_bytes += size
            hits += 1
            hit_bytes += size
            read_by = serve_in_turn(world, t, size, now)
            pin(world, entry, read_by)
            done = max(done, read_by)
            if i < documents:
                document_hits += 1
                stage = in_stage(world, stage, t, tier.request_reads)
                emit(world, now, READ, t, RETRIEVE, entry, size, request, stage)
    if knobs.loads_backwards:
        _touch_backwards(world, end)
    stage += world.control.is_staged
    layers = knobs.layers if hits > document_hits else 0
    for layer in range(layers):
        begin_stage(world)
        for i in range(documents, end):
            t = where[i]
            if t != NONE:
                size = _read_size(world, size_of(world, chain[i]), i - documents, end - documents)
                stage = in_stage(world, stage, t, world.tiers[t].request_reads)
                emit_layer(world, now, READ, t, LOAD_PHASE, chain[i], size, request, stage, layer)
        stage += world.control.is_staged
    me.stage = stage
    return done, hits * knobs.chunk_tokens if knobs.chunk_tokens else hit_bytes // knobs.bytes_per_token


@inner
def _touch_backwards(world: World, end: int) -> None:
    """Note that those of `chain[:end]` were used that are in tiers where the last of them counts as used first."""
    for i in range(end - 1, -1, -1):
        t = world.where[i]
        if t != NONE and world.tiers[t].loads_backwards:
            touch(world, t, world.chain[i])


@inner
def _count_lookups(world: World, actor: int, looked_up: int) -> None:
    me, total, chain, where = world.actors[actor], world.total, world.chain, world.where
    total.lookups += looked_up
    if world.knobs.looks_past_miss:
        _count_past_miss(world, actor)
    for i in range(looked_up):
        total.lookup_bytes += size_of(world, chain[i])
    documents, shared = me.retrieved_objects, me.shared if world.knobs.mode != DECODE_ONLY else 0
    if documents + shared == 0:
        return
    total.document_lookups += documents
    total.prompt_lookups += shared
    for i in range(min(me.reached, documents + shared)):
        if where[i] != NONE:
            if i < documents:
                total.document_hits += 1
            else:
                total.prompt_hits += 1


@inner
def _count_past_miss(world: World, actor: int) -> None:
    """Count what tiers look up that do not stop at a miss: all that the first tier lacks, but for faster ones' own."""
    me, chain, control = world.actors[actor], world.chain, world.control
    n = me.retrieved_objects + me.shared + me.length
    first = 0
    while first < n and live_in(world, chain[first]) & 1:
        first += 1
    for t in range(len(world.tiers)):
        if world.tiers[t].looks_past_miss and not control.gone & (1 << t):
            faster = ((1 << t) - 1) & ~1
            for i in range(first, n):
                if not live_in(world, chain[i]) & faster:
                    world.tiers[t].looked_up += 1


@inner
def promote(world: World, actor: int) -> int:
    """Copy what was loaded to faster tiers, as the promotion says; return the time the rest takes to compute."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    if (knobs.promotion or knobs.staging) and me.reached:
        gather(world, actor)
        of = 0
        for i in range(me.reached):
            world.where[i] = fastest_from(world, world.chain[i], of)
            if knobs.is_by_tier and i >= me.retrieved_objects:
                of = max(of, world.where[i])
            if knobs.promotion and world.where[i] > 0 and world.chain[i] < 0:
                world.chain[i] = give_slot(world, home_of(world, actor, i))
        staged = me.reached
        if knobs.staging:
            staged = cut_reads(world, me.retrieved_objects, me.reached)
            staged = stage_reads(world, staged, control.now)
        if knobs.promotion:
            me.stage += _copy_up(world, me.reached, staged, me.stage, me.request)
    me.step = STORE
    took_ns = _compute(world, me.missed_tokens * knobs.prefill_ns_per_token)
    if is_stepwise(world, actor):
        took_ns -= max(0, me.missed_tokens - knobs.offer_tokens) * knobs.prefill_ns_per_token
    return took_ns


@forced
def is_stepwise(world: World, actor: int) -> bool:
    """Return whether the actor's request stores as it computes: not with documents, which are not in prompt order."""
    return world.knobs.offer_tokens > 0 and world.actors[actor].retrieved_objects == 0


@inner
def _compute(world: World, took_ns: int) -> int:
    """Return how long it is until a prompt that takes so long is computed; in turn, the others come before it."""
    control, total, node = world.control, world.total, world.fleet.nodes[world.control.node]
    node.computing_ns += took_ns
    if took_ns == 0 or not world.knobs.prefill_in_turn:
        return took_ns
    start = max(node.prefill_busy_ns, control.now)
    total.prefills += 1
    total.waiting_ns += start - control.now
    node.prefill_busy_ns = start + took_ns
    return node.prefill_busy_ns - control.now


@inner
def _source(world: World, slot: int, found: int) -> int:
    """Return the tier that `slot`, which was found in tier `found`, is copied up from; 0 or less if it is not."""
    if found <= 0:
        return found
    what, knobs, source = world.slots[slot], world.knobs, found
    if knobs.promotion == SECOND_TOUCH:
        what.seen ^= 1
        if what.seen:
            source = 0
    if knobs.is_exclusive and not what.live & (1 << source):
        # A promotion before it demoted or evicted it: it is not in its tier to be moved from there.
        source = 0
    return source


@inner
def _copy_up(world: World, end: int, staged: int, stage: int, request: int) -> int:
    """Copy each of `chain[:end]` from the tier in `where` to faster ones; return the stages used.

    The first `staged` ones have buffers in the staging tier, if there is one; the others do not come to it.
    """
    chain, where, knobs, now = world.chain, world.where, world.knobs, world.control.now
    staging = knobs.staging - 1
    begin_stage(world)
    at = stage
    for i in range(end):
        slot, source = chain[i], _source(world, chain[i], where[i])
        if source <= 0:
            continue
        size = world.slots[slot].size
        t = 0 if knobs.promotion == TEMPORARY else source - 1
        while knobs.is_exclusive and t > 0 and size > world.tiers[t].largest:
            t -= 1
        if knobs.is_exclusive and t >= 0 and size <= world.tiers[t].largest:
            drop(world, source, slot, now, PROMOTE_PHASE)
        while t >= 0:
            if knobs.is_write_back and size <= world.tiers[t].largest:
                make_room_by_demotion(world, t, slot, now)
            has_place = not world.slots[slot].live & (1 << t)
            if t == staging and source > t:
                has_place = has_place and i < staged
            elif has_place:
                has_place = make_room(world, t, slot, now)
            if has_place:
                follow(world, t, i)
                at = in_stage(world, at, t, world.tiers[t].request_writes)
                write(world, t, slot, now, PROMOTE_PHASE, request, at)
            t = -1 if knobs.is_exclusive else t - 1
    return at - stage + world.control.is_staged
