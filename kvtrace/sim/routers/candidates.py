"""What routers share: which nodes they may choose, and which of two if all else is equal; what of a prompt each has."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.records import NONE, World


@forced
def is_open(world: World, node: int) -> int:
    """Return whether `node` is up, and may be sent requests."""
    up: int = world.fleet.nodes[node].is_up
    return up


@inner
def count_open(world: World) -> int:
    """Return how many nodes may be sent requests."""
    count = 0
    for node in range(world.fleet.entrances):
        count += is_open(world, node)
    return count


@inner
def is_fresher(world: World, one: int, other: int) -> bool:
    """Return whether node `one` has served fewer requests than `other`; NONE has served more than any."""
    return other == NONE or world.fleet.nodes[one].turns < world.fleet.nodes[other].turns


@inner
def measure(world: World, actor: int, n: int) -> None:
    """Find, for each node, of how many of the request's first objects it has a copy in tiers of its own, in `runs`."""
    fleet, first = world.fleet, world.actors[actor].retrieved_objects
    for node in range(2 * fleet.count):
        fleet.runs[node] = 0
    is_any, i = fleet.scoped != 0, first
    while is_any and i < n and world.chain[i] >= 0:
        is_any = False
        copy: int = fleet.copies[world.chain[i]].first
        while copy != NONE:
            node = world.slots[copy].place - 1
            if node < fleet.count and world.slots[copy].live != 0 and fleet.runs[node] == i - first:
                fleet.runs[node] += 1
                fleet.runs[fleet.count + node] += world.slots[copy].size
                is_any = True
            copy = fleet.copies[copy].older
        i += 1


@inner
def found_tokens(world: World, actor: int, node: int) -> int:
    """Return how many tokens of the request's prompt `node` has, as `measure` found."""
    fleet, knobs, tokens = world.fleet, world.knobs, 0
    if knobs.chunk_tokens:
        tokens = fleet.runs[node] * knobs.chunk_tokens
    else:
        tokens = fleet.runs[fleet.count + node] // knobs.bytes_per_token
    return min(tokens, world.actors[actor].input)
