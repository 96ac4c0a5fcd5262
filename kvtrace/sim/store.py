"""The compiled store: what was computed is written to the tiers that the placement says."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.ask import gather, home_of
from kvtrace.sim.records import DECODE, DECODE_ONLY, NONE, PREFILL_ONLY, World
from kvtrace.sim.tiers.admission import admits
from kvtrace.sim.tiers.room import lower_tier, make_room_by_demotion
from kvtrace.sim.tiers.rows import POPULATE, PREFILL
from kvtrace.sim.tiers.rows import STORE as STORE_PHASE
from kvtrace.sim.tiers.slots import give_slot
from kvtrace.sim.tiers.staging import store_staged
from kvtrace.sim.tiers.tiers import fastest, follow, touch, write
from kvtrace.sim.tiers.waiting import takes


@inner
def populate(world: World) -> None:
    """Write the next item that is there before the start; after the last, no tier is busy with any of it."""
    item, control = world.items[world.control.populated], world.control
    n = item.objects
    for i in range(n):
        world.chain[i] = item.first + i
    _place(world, 0, n, 0, NONE, POPULATE, POPULATE)
    control.populated += 1
    if control.populated == len(world.items):
        for t in range(len(world.tiers)):
            tier = world.tiers[t]
            tier.read_busy_ns, tier.write_busy_ns = 0, 0
            tier.populated_bytes = tier.written_bytes


@inner
def store(world: World, actor: int) -> None:
    """Write the objects that were computed."""
    me, control = world.actors[actor], world.control
    if len(world.first_token):
        first_token = world.first_token[control.answered]
        first_token.with_cache_ns = control.now - me.asked_ns
        first_token.without_cache_ns = me.queued_ns + me.input * world.knobs.prefill_ns_per_token
        control.answered += 1
    n = gather(world, actor)
    first = n - me.new
    _give_slots(world, actor, first, n)
    if me.retrieved_objects + me.shared and world.knobs.mode != DECODE_ONLY:
        lost = _keep_lost(world, actor)
        for i in range(me.new):
            world.chain[lost + i] = world.chain[first + i]
        first, n = 0, lost + me.new
    _store_new(world, actor, first, n, PREFILL, STORE_PHASE)
    me.decoded, me.served_ns, me.first_step = 0, 0, NONE
    me.step = DECODE


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
def store_generated(world: World, actor: int, phase: int) -> None:
    """Write the objects that generated tokens have filled."""
    n = gather(world, actor)
    first = n - world.actors[actor].new
    _give_slots(world, actor, first, n)
    _store_new(world, actor, first, n, phase, phase)


@inner
def _store_new(world: World, actor: int, first: int, n: int, first_phase: int, rest_phase: int) -> None:
    me = world.actors[actor]
    me.stage += _place(world, first, n, me.stage, me.request, first_phase, rest_phase)
    me.new = 0


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
    is_any = 0
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
            write(world, t, slot, now, phase, request, stage)
            is_any = 1
    return is_any


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
    chain, now = world.chain, world.control.now
    is_first, is_lower = 0, 0
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(world, 0, world.slots[slot].size)
        if t == NONE:
            world.total.unplaced += 1
        elif world.slots[slot].live & (1 << t):
            follow(world, t, i)
            touch(world, t, slot)
        elif takes(world, t, slot, now, first_phase):
            follow(world, t, i)
            write(world, t, slot, now, first_phase, request, stage)
            is_first = 1
    for i in range(first, n):
        slot = chain[i]
        t = lower_tier(world, 0, world.slots[slot].size) + 1
        while 0 < t < len(world.tiers):
            if not world.slots[slot].live & (1 << t) and takes(world, t, slot, now, first_phase):
                follow(world, t, i)
                write(world, t, slot, now, rest_phase, request, stage + is_first)
                is_lower = 1
            t += 1
    return is_first + is_lower
