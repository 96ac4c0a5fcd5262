"""The compiled store: what was computed is written to the tiers that the placement says."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.ask import gather, home_of
from kvtrace.sim.fleet.transfer import hand_over
from kvtrace.sim.load import is_stepwise
from kvtrace.sim.records import DECODE, DECODE_ONLY, NONE, PREFILL_ONLY, UNBOUNDED, World
from kvtrace.sim.tiers.admission import admits
from kvtrace.sim.tiers.offers import takes_offer
from kvtrace.sim.tiers.room import lower_tier, make_room_by_demotion
from kvtrace.sim.tiers.rows import DECODE as DECODE_PHASE
from kvtrace.sim.tiers.rows import POPULATE, PREFILL, begin_stage, in_stage
from kvtrace.sim.tiers.rows import STORE as STORE_PHASE
from kvtrace.sim.tiers.slots import give_slot, see_all
from kvtrace.sim.tiers.staging import store_staged
from kvtrace.sim.tiers.tiers import fastest, follow, touch, write
from kvtrace.sim.tiers.waiting import takes


@inner
def populate(world: World) -> None:
    """Write the next item that is there before the start; after a node's last, no tier is busy with any of it."""
    item, control = world.items[world.control.populated], world.control
    n = item.objects
    for i in range(n):
        world.chain[i] = item.first + i
    control.offer = 0
    see_all(world, n)
    _place(world, 0, n, 0, NONE, POPULATE, POPULATE)
    control.populated += 1
    if control.populated == len(world.items):
        for t in range(len(world.tiers)):
            tier = world.tiers[t]
            tier.read_busy_ns, tier.write_busy_ns = 0, 0
            tier.populated_bytes = tier.written_bytes
        control.populating += 1
        while control.populating < world.fleet.count and not world.fleet.nodes[control.populating].is_up:
            control.populating += 1
        if control.populating < world.fleet.count:
            control.populated = world.knobs.prompts


@inner
def store(world: World, actor: int) -> int:
    """Write the objects that were computed; return the time that the prompt's next step takes to compute."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    n = gather(world, actor)
    found = n - me.new
    first = found + _computed(world, actor) - me.refused
    if knobs.offers_hits and me.computed == 0 and knobs.mode != DECODE_ONLY:
        first = 0
    me.computed = min(me.missed_tokens, me.computed + knobs.offer_tokens if is_stepwise(world, actor) else UNBOUNDED)
    is_last = me.computed == me.missed_tokens
    end = n if is_last else found + _computed(world, actor)
    _give_slots(world, actor, first, end)
    control.known = found
    if me.retrieved_objects + (0 if knobs.is_prefix else me.shared) and knobs.mode != DECODE_ONLY:
        lost = _keep_lost(world, actor)
        for i in range(me.new):
            world.chain[lost + i] = world.chain[found + i]
        first, end, control.known = 0, lost + me.new, 0
    _offer(world, actor, first, end, PREFILL, STORE_PHASE)
    if not is_last:
        return min(knobs.offer_tokens, me.missed_tokens - me.computed) * knobs.prefill_ns_per_token
    if len(world.first_token) and not me.answered:
        first_token = world.first_token[control.answered]
        first_token.with_cache_ns = control.now - me.asked_ns
        first_token.without_cache_ns = me.queued_ns + me.input * knobs.prefill_ns_per_token
        control.answered += 1
    me.answered = 1
    me.new, me.decoded, me.served_ns, me.first_step = 0, 0, 0, NONE
    world.fleet.nodes[me.node].prefilling_tokens -= me.missed_tokens
    world.fleet.nodes[me.node].waiting -= 1
    if world.fleet.entrances < world.fleet.count:
        me.served_ns = control.now + hand_over(world, actor)
    me.step = DECODE
    return 0


@inner
def _computed(world: World, actor: int) -> int:
    """Return how many of the request's new objects are computed: none is, before the end, if they are turns."""
    me = world.actors[actor]
    return min(me.new, me.computed // world.knobs.chunk_tokens) if me.computed > 0 else 0


@inner
def _give_slots(world: World, actor: int, first: int, n: int) -> None:
    """Have slots in `chain[first:n]`, the last ones of the actor's request: what is in a tier needs one."""
    for i in range(first, n):
        if world.chain[i] < 0:
            world.chain[i] = give_slot(world, home_of(world, actor, i))


@inner
def _keep_lost(world: World, actor: int) -> int:
    """Move the shared objects that must be stored to the front of `chain`; return how many.

    They are documents that are in no tier, and without prefix match likewise a system prompt, or any such prompt if
    nothing was looked up. (A prefix match has put the prompt among the new objects.)
    """
    me, knobs, chain = world.actors[actor], world.knobs, world.chain
    lost = 0
    documents = me.retrieved_objects
    for i in range(documents if knobs.is_prefix else documents + me.shared):
        if knobs.mode == PREFILL_ONLY or fastest(world, chain[i]) == NONE:
            chain[lost] = chain[i]
            lost += 1
    return lost


@inner
def store_rest(world: World, actor: int) -> None:
    """As a request ends, write what was refused of its prompt, and the objects that generated tokens have filled."""
    me = world.actors[actor]
    n = gather(world, actor)
    first = n - me.new - me.refused
    _give_slots(world, actor, first, n)
    world.control.known = 0
    if me.refused:
        _offer(world, actor, first, n, PREFILL, STORE_PHASE)
    else:
        _offer(world, actor, first, n, DECODE_PHASE, DECODE_PHASE)
    me.new, me.refused = 0, 0


@inner
def _offer(world: World, actor: int, first: int, n: int, first_phase: int, rest_phase: int) -> None:
    """Write `chain[first:n]`, as many at a time as a step computes; what is refused is offered with the next ones."""
    me, knobs, control = world.actors[actor], world.knobs, world.control
    each, at, end = n - first, first, first
    if knobs.offer_tokens > 0 and me.retrieved_objects:
        each = max(1, knobs.offer_tokens // knobs.chunk_tokens)
    if n == first:
        me.offer = 0
    while end < n:
        end = min(n, end + each)
        control.offer = me.offer
        me.stage += _place(world, at, end, me.stage, me.request, first_phase, rest_phase)
        me.offer = control.offer
        if not control.is_refused:
            at = end
    me.refused = min(n - at, me.new) if me.retrieved_objects else n - at


@inner
def _place(world: World, first: int, n: int, stage: int, request: int, first_phase: int, rest_phase: int) -> int:
    """Write `chain[first:n]`; return the stages used."""
    used: int = 0
    if world.knobs.is_write_back:
        used = _store_down(world, first, n, stage, request, first_phase)
    elif world.knobs.staging:
        used = store_staged(world, first, n, stage, request, first_phase, rest_phase)
    else:
        used = _store_through(world, first, n, stage, request, first_phase, rest_phase)
    return used


@inner
def _store_down(world: World, first: int, n: int, stage: int, request: int, phase: int) -> int:
    """Write each new object to the fastest tier that takes it, which moves others down; return the stages used."""
    chain, now = world.chain, world.control.now
    begin_stage(world)
    at = stage
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(world, 0, world.slots[slot].size)
        held_in = fastest(world, slot)
        if t == NONE:
            world.total.unplaced += 1
            continue
        if held_in == t or (held_in != NONE and world.knobs.is_exclusive):
            # Computed again though it is still there: an engine does not store it twice.
            follow(world, held_in, i)
            touch(world, held_in, slot)
            continue
        t = _admitting(world, t, slot, held_in, now, phase)
        if t != NONE and t == held_in:
            follow(world, t, i)
            touch(world, t, slot)
        elif t != NONE:
            make_room_by_demotion(world, t, slot, now)
            follow(world, t, i)
            at = in_stage(world, at, t, world.tiers[t].request_writes)
            write(world, t, slot, now, phase, request, at)
    return at - stage + world.control.is_staged


@inner
def _admitting(world: World, t: int, slot: int, held_in: int, now: int, phase: int) -> int:
    """Return the fastest tier from `t` on that admits `slot`, or `held_in` if that is faster, or NONE."""
    while t not in (NONE, held_in) and phase != POPULATE and not admits(world, t, slot, now):
        t = lower_tier(world, t + 1, world.slots[slot].size)
    return t


@inner
def _store_through(
    world: World, first: int, n: int, stage: int, request: int, first_phase: int, rest_phase: int
) -> int:
    """Write each new object to the first tier that takes it, and a stage later to all below; return the stages used."""
    chain, now, control = world.chain, world.control.now, world.control
    open_tiers = _take_whole(world, first, n)
    begin_stage(world)
    at = stage
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(world, 0, world.slots[slot].size)
        if t == NONE:
            world.total.unplaced += 1
        elif world.slots[slot].live & (1 << t):
            if i >= control.known:
                follow(world, t, i)
                touch(world, t, slot)
        elif t < open_tiers and takes(world, t, slot, now, first_phase):
            follow(world, t, i)
            at = in_stage(world, at, t, world.tiers[t].request_writes)
            write(world, t, slot, now, first_phase, request, at)
    at += control.is_staged
    begin_stage(world)
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(world, 0, world.slots[slot].size) + 1
        while 0 < t < open_tiers:
            if not world.slots[slot].live & (1 << t) and takes(world, t, slot, now, first_phase):
                follow(world, t, i)
                at = in_stage(world, at, t, world.tiers[t].request_writes)
                write(world, t, slot, now, rest_phase, request, at)
            t += 1
    return at - stage + control.is_staged


@inner
def _take_whole(world: World, first: int, n: int) -> int:
    """Let the tier that takes offers whole make room for `chain[first:n]`; return the tier from which on all refuse."""
    control, total, t = world.control, world.total, 0
    previous, control.offer, control.is_refused = control.offer, 0, 0
    while t < len(world.tiers) and not world.tiers[t].is_whole:
        t += 1
    if t == len(world.tiers):
        return t
    total.offers += 1
    if takes_offer(world, t, first, n, previous, control.now):
        control.offer = control.offers
        return len(world.tiers)
    control.is_refused = 1
    total.refused_offers += 1
    total.refused_objects += n - first
    return t
