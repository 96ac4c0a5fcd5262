"""The compiled store: what was computed is written to the tiers that the placement says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.core.compiled import njit
from kvtrace.sim.ask import gather
from kvtrace.sim.records import LIVE, NONE, POPULATED_BYTES, READ_BUSY_NS, SIZE, WRITE_BUSY_NS, WRITTEN_BYTES
from kvtrace.sim.tiers import POPULATE, PREFILL, fastest, lower_tier, make_room, make_room_by_demotion, touch, write
from kvtrace.sim.tiers import STORE as STORE_PHASE
from kvtrace.sim.world import (
    ANSWERED,
    ASKED_NS,
    DECODE,
    DECODE_ONLY,
    DECODE_START,
    DECODED,
    INPUT,
    ITEM_FIRST,
    ITEM_OBJECTS,
    NEW,
    NOW,
    POPULATED,
    PREFILL_ONLY,
    REQUEST,
    RETRIEVED_OBJECTS,
    SHARED,
    STAGE,
    STEP,
    UNPLACED,
)

if TYPE_CHECKING:
    from kvtrace.sim.world import World


@njit
def populate(world: World) -> None:
    """Write the next item that is there before the start; after the last, no tier is busy with any of it."""
    item, control, tiers = world.items[world.control[POPULATED]], world.control, world.tiers
    n = item[ITEM_OBJECTS]
    for i in range(n):
        world.chain[i] = item[ITEM_FIRST] + i
    _place(world, 0, n, 0, NONE, POPULATE, POPULATE)
    control[POPULATED] += 1
    if control[POPULATED] == len(world.items):
        for t in range(len(tiers)):
            tiers[t, READ_BUSY_NS], tiers[t, WRITE_BUSY_NS] = 0, 0
            tiers[t, POPULATED_BYTES] = tiers[t, WRITTEN_BYTES]


@njit
def store(world: World, actor: int) -> None:
    """Write the objects that were computed."""
    me, control = world.actors[actor], world.control
    if len(world.first_ns):
        world.first_ns[control[ANSWERED], 0] = control[NOW] - me[ASKED_NS]
        world.first_ns[control[ANSWERED], 1] = me[INPUT] * world.knobs.prefill_ns_per_token
        control[ANSWERED] += 1
    n = gather(world, actor)
    first = n - me[NEW]
    if me[RETRIEVED_OBJECTS] + me[SHARED] and world.knobs.mode != DECODE_ONLY:
        lost = _keep_lost(world, actor)
        for i in range(me[NEW]):
            world.chain[lost + i] = world.chain[first + i]
        first, n = 0, lost + me[NEW]
    _store_new(world, actor, first, n, PREFILL, STORE_PHASE)
    me[DECODED], me[DECODE_START] = 0, control[NOW]
    me[STEP] = DECODE


@njit
def _keep_lost(world: World, actor: int) -> int:
    """Move the shared objects that must be stored to the front of `chain`; return how many.

    They are documents that are in no tier, and without prefix match likewise a system prompt, or any such prompt if
    nothing was looked up. (A prefix match has put the prompt among the new objects.)
    """
    me, knobs, chain = world.actors[actor], world.knobs, world.chain
    lost = 0
    documents = me[RETRIEVED_OBJECTS]
    for i in range(documents if knobs.is_prefix else documents + me[SHARED]):
        if knobs.mode == PREFILL_ONLY or fastest(world.tiers, world.slots, chain[i]) == NONE:
            chain[lost] = chain[i]
            lost += 1
    return lost


@njit
def store_generated(world: World, actor: int, phase: int) -> None:
    """Write the objects that generated tokens have filled."""
    n = gather(world, actor)
    _store_new(world, actor, n - world.actors[actor, NEW], n, phase, phase)


@njit
def _store_new(world: World, actor: int, first: int, n: int, first_phase: int, rest_phase: int) -> None:
    me = world.actors[actor]
    me[STAGE] += _place(world, first, n, me[STAGE], me[REQUEST], first_phase, rest_phase)
    me[NEW] = 0


@njit
def _place(world: World, first: int, n: int, stage: int, request: int, first_phase: int, rest_phase: int) -> int:
    """Write `chain[first:n]`; return the stages used."""
    used: int = 0
    if world.knobs.is_write_back:
        used = _store_down(world, first, n, stage, request, first_phase)
    else:
        used = _store_through(world, first, n, stage, request, first_phase, rest_phase)
    return used


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
