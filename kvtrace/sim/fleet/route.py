"""The compiled routing of requests: which node serves the next one, and what that does to it."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.fleet.incidents import JOINED
from kvtrace.sim.fleet.move import move
from kvtrace.sim.policies.queues import call
from kvtrace.sim.records import NONE, World
from kvtrace.sim.tiers.slots import see_all


@inner
def route(world: World, actor: int, n: int) -> None:
    """Send the actor's request, whose `n` objects are in `chain`, to the node that the router says."""
    me, fleet = world.actors[actor], world.fleet
    me.node = call(fleet.router, world, actor, n, 0)
    node = fleet.nodes[me.node]
    node.outstanding += 1
    node.waiting += 1
    node.active_tokens += me.input
    node.requests += 1
    node.turns += 1
    node.input_tokens += me.input
    move(world, me.node)
    see_all(world, n)


@inner
def account(world: World, actor: int, end: int, looked_up: int) -> None:
    """Count what the node of the actor's request found: `chain[:end]`, of so many objects `looked_up`."""
    me, fleet = world.actors[actor], world.fleet
    node = fleet.nodes[me.node]
    node.lookups += looked_up
    node.prefilling_tokens += me.missed_tokens
    node.computed_tokens += me.missed_tokens
    for i in range(end):
        t = world.where[i]
        if t != NONE:
            if fleet.scoped & ~fleet.racked & (1 << t):
                node.local_hits += 1
            else:
                node.shared_hits += 1


@inner
def note_found(world: World, actor: int, end: int, looked_up: int) -> None:
    """Note what the actor's request found: `chain[:end]`, of so many objects `looked_up`."""
    me, control = world.actors[actor], world.control
    note = world.found[control.found]
    control.found += 1
    note.ts_ns, note.lookups, note.computed_tokens = control.now, looked_up, me.missed_tokens
    note.restarted = int(me.restarts > 0)
    note.local_hits, note.shared_hits = 0, 0
    for i in range(end):
        t = world.where[i]
        if t != NONE:
            if world.fleet.own & (1 << t):
                note.local_hits += 1
            else:
                note.shared_hits += 1


@inner
def until_open(world: World) -> int:
    """Return how long it is until a node joins that may be sent requests; NONE if none ever does."""
    control = world.control
    for i in range(control.happened, len(world.happenings)):
        step = world.happenings[i]
        if step.kind == JOINED and step.place < world.fleet.entrances:
            return step.when - control.now
    return NONE
