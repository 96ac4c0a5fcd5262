"""The compiled steps of what happens to a fleet: nodes go and come, drives and the store lose what they hold or reach.

What is lost leaves its tier by rows of phase `lose`, for nobody can read it any more: so a trace stays one that can be
checked and replayed. What is under way at a node that is lost begins again, at once, as a request that comes then.
"""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.fleet.incidents import EMPTIED, GONE, JOINED, LOST
from kvtrace.sim.fleet.move import move
from kvtrace.sim.policies.queues import call, queue_of
from kvtrace.sim.records import DONE, LOAD, NONE, QUEUES, ROWS_FULL, UNBOUNDED, World
from kvtrace.sim.schedule import disband, push
from kvtrace.sim.tiers.admission import forget_counts
from kvtrace.sim.tiers.garbage import lose
from kvtrace.sim.tiers.slots import pack
from kvtrace.sim.tiers.waiting import catch_up, take_first


@inner
def happen(world: World) -> int:
    """Do the step that is due; return DONE or what is full, to go on from."""
    control, step = world.control, world.happenings[world.control.happened]
    code = catch_up(world, control.now)
    if code == DONE and step.kind == EMPTIED:
        code = _empty(world, step.place, step.tier)
    elif code == DONE and step.kind == LOST:
        code = _lose_node(world, step.place)
    elif code == DONE and step.kind == JOINED:
        _join(world, step.place)
    elif code == DONE:
        _set_reach(world, step.tier, step.kind == GONE)
    if code == DONE:
        pack(world)
        control.happened += 1
        control.happen_ns = UNBOUNDED
        if control.happened < len(world.happenings):
            control.happen_ns = world.happenings[control.happened].when
    return code


@inner
def _empty(world: World, node: int, t: int) -> int:
    """Lose all that tier `t` of `node` holds, and what its policy remembers; return DONE or what is full."""
    move(world, node)
    control, tier, need = world.control, world.tiers[t], 2 * world.knobs.ranks * world.knobs.layers
    for number in range(QUEUES):
        while queue_of(world, t, number).tail != NONE:
            if control.rows + need > len(world.rows.ts_ns):
                control.need = need
                return ROWS_FULL
            slot: int = queue_of(world, t, number).tail
            if world.slots[slot].live & (1 << t):
                if len(world.pins):
                    world.pins[slot].until_ns = 0
                lose(world, t, slot, control.now)
            else:
                call(tier.forget, world, t, slot, 0)
    tier.target, tier.has_evicted, tier.hand, tier.goal, tier.behind = 0.0, 0, NONE, NONE, 0
    return DONE


@inner
def _lose_node(world: World, node: int) -> int:
    """Lose what the node's own tiers hold, and let its requests begin again; return DONE or what is full."""
    fleet, control = world.fleet, world.control
    what = fleet.nodes[node]
    if not what.is_up:
        return DONE
    for t in range(len(world.tiers)):
        if fleet.own & (1 << t):
            code = _empty(world, node, t)
            if code != DONE:
                return code
            tier = world.tiers[t]
            tier.read_busy_ns, tier.write_busy_ns = control.now, control.now
            while tier.waiting > 0:
                take_first(world, t)
            tier.beat_ns = 0
            if world.knobs.filtered & (1 << t):
                forget_counts(world, t)
    move(world, node)
    what.is_up, what.outstanding, what.waiting = 0, 0, 0
    what.prefilling_tokens, what.active_tokens = 0, 0
    what.prefill_busy_ns, what.link_busy_ns = control.now, control.now
    control.open -= int(node < fleet.entrances)
    disband(world)
    _fail_over(world, node)
    return DONE


@inner
def _fail_over(world: World, node: int) -> None:
    """Let the requests that are on `node` begin again, now."""
    control, count = world.control, 0
    for i in range(control.heap_size):
        when, actor = world.heap[i].when, world.heap[i].actor
        if not _is_on(world, actor, node):
            push(world.heap, count, when, actor)
            count += 1
    for actor in range(len(world.actors)):
        if _is_on(world, actor, node):
            me = world.actors[actor]
            me.step, me.new, me.first_step = LOAD, 0, NONE
            me.restarts += 1
            push(world.heap, count, control.now, actor)
            count += 1
    control.heap_size = count


@inner
def _is_on(world: World, actor: int, node: int) -> bool:
    """Return whether the actor's request is being served by `node`."""
    me = world.actors[actor]
    on_it: bool = me.node == node and me.step > LOAD
    return on_it


@inner
def _join(world: World, node: int) -> None:
    """Let `node` serve, its tiers empty."""
    nodes = world.fleet.nodes
    if nodes[node].is_up:
        return
    least, others = nodes[node].turns, 0
    for k in range(world.fleet.count):
        if nodes[k].is_up and (others == 0 or nodes[k].turns < least):
            least = nodes[k].turns
            others += 1
    nodes[node].is_up, nodes[node].turns = 1, max(nodes[node].turns, least)
    world.control.open += int(node < world.fleet.entrances)


@inner
def _set_reach(world: World, t: int, is_gone: bool) -> None:
    """Put tier `t` out of reach, or back; without a queue, what is to be stored there is not."""
    control, tier, now = world.control, world.tiers[t], world.control.now
    if is_gone:
        control.gone, control.gone_largest = 1 << t, tier.largest
        if not world.knobs.queued & (1 << t):
            tier.largest = -1
        return
    control.gone, tier.largest = 0, control.gone_largest
    if world.knobs.queued & (1 << t):
        tier.write_busy_ns = max(tier.write_busy_ns, now)
        if tier.beat_ns and tier.beat_ns < now:
            tier.beat_ns = -(-now // tier.heartbeat_ns) * tier.heartbeat_ns
