"""The compiled hand-over of a computed prompt: from a node that prefills, over the link, to one that decodes."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.ask import gather, home_of
from kvtrace.sim.fleet.move import move
from kvtrace.sim.records import NONE, World
from kvtrace.sim.routers.candidates import is_fresher, is_open
from kvtrace.sim.tiers.room import make_room, make_room_by_demotion
from kvtrace.sim.tiers.rows import DELETE, EVICT, LOAD, PROMOTE, READ, STORE, WRITE, emit, live_in, size_of
from kvtrace.sim.tiers.slots import give_slot, see_all
from kvtrace.sim.tiers.tiers import follow, write


@inner
def hand_over(world: World, actor: int) -> int:
    """Send what the decoding node lacks of the request's prompt to it; return the time that takes.

    It is written to the link, read from it, and put into the node's fastest tier. The node that sends is one server.
    """
    me, fleet, now = world.actors[actor], world.fleet, world.control.now
    sender, taker = me.node, _taker(world)
    n = gather(world, actor)
    for i in range(n):
        if world.chain[i] < 0:
            world.chain[i] = give_slot(world, home_of(world, actor, i))
    move(world, taker)
    see_all(world, n)
    sent: int = 0
    for i in range(n):
        world.where[i] = 1 - (live_in(world, world.chain[i]) & 1)
        # What stands twice in a prompt goes once.
        for k in range(i if world.where[i] and me.retrieved_objects else 0):
            if world.chain[k] == world.chain[i]:
                world.where[i] = 0
        sent += world.where[i] * size_of(world, world.chain[i])
    _leave(world, actor, sender, taker)
    if sent == 0:
        return 0
    move(world, sender)
    _emit_all(world, n, WRITE, STORE, me.request, me.stage)
    move(world, taker)
    see_all(world, n)
    _emit_all(world, n, READ, LOAD, me.request, me.stage + 1)
    _emit_all(world, n, DELETE, EVICT, NONE, NONE)
    me.stage += 2
    if _keep(world, n, me.request, me.stage):
        me.stage += 1
    node = fleet.nodes[sender]
    node.sent_bytes += sent
    if fleet.link_bytes_per_us == 0:
        return 0
    node.link_busy_ns = max(node.link_busy_ns, now) + sent * 1000 // fleet.link_bytes_per_us
    return node.link_busy_ns - now


@inner
def _taker(world: World) -> int:
    """Return the decoding node with the fewest requests; of several, the one that has had the fewest."""
    found, nodes = NONE, world.fleet.nodes
    for k in range(world.fleet.entrances, world.fleet.count):
        is_less = found == NONE or nodes[k].outstanding < nodes[found].outstanding
        is_next = is_less or (nodes[k].outstanding == nodes[found].outstanding and is_fresher(world, k, found))
        if is_open(world, k) and is_next:
            found = k
    return found


@inner
def _leave(world: World, actor: int, sender: int, taker: int) -> None:
    """Let the actor's request be served by `taker` from now on."""
    me, nodes = world.actors[actor], world.fleet.nodes
    nodes[sender].outstanding -= 1
    nodes[sender].active_tokens -= me.input
    nodes[taker].outstanding += 1
    nodes[taker].active_tokens += me.input
    nodes[taker].requests += 1
    nodes[taker].turns += 1
    me.node = taker


@inner
def _emit_all(world: World, n: int, op: int, phase: int, request: int, stage: int) -> None:
    """Append rows of the link, which is the tier after all others, for what of `chain[:n]` is sent."""
    for i in range(n):
        if world.where[i]:
            slot = world.chain[i]
            emit(world, world.control.now, op, len(world.tiers), phase, slot, size_of(world, slot), request, stage)


@inner
def _keep(world: World, n: int, request: int, stage: int) -> int:
    """Put what was sent into the node's fastest tier; return whether any of it found room."""
    now, is_any = world.control.now, 0
    for i in range(n):
        slot = world.chain[i]
        if world.where[i] and world.slots[slot].size <= world.tiers[0].largest:
            if world.knobs.is_write_back:
                make_room_by_demotion(world, 0, slot, now)
            if not world.slots[slot].live & 1 and make_room(world, 0, slot, now):
                follow(world, 0, i)
                write(world, 0, slot, now, PROMOTE, request, stage)
                is_any = 1
    return is_any
