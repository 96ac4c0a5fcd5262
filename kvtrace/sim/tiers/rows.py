"""The rows that operations cause, and what an entry of a context stands for: a slot, or an object that needs none."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.sim.records import PACKED_BITS, World

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
LOAD, PROMOTE, PREFILL, STORE, DECODE, DEMOTE, EVICT, POPULATE, RETRIEVE, COLLECT, LOSE = (
    enum_code(TRACE, "phase", phase)
    for phase in (
        *(Phase.LOAD, Phase.PROMOTE, Phase.PREFILL, Phase.STORE, Phase.DECODE, Phase.DEMOTE, Phase.EVICT),
        *(Phase.POPULATE, Phase.RETRIEVE, Phase.COLLECT, Phase.LOSE),
    )
)


@forced
def is_endless(world: World, t: int) -> int:
    """Return whether tier `t` never gives anything up: which it would give up first is not kept."""
    return world.knobs.endless & (1 << t)


@forced
def packed(what: int) -> int:
    """Return what an entry that is no slot stands for, or such an entry."""
    return -2 - what


@forced
def live_in(world: World, entry: int) -> int:
    """Return a bit for each tier in which the object of an entry of World.contexts, or of a slot, is live."""
    return world.slots[entry].live if entry >= 0 else packed(entry) & ((1 << (PACKED_BITS - 1)) - 1)


@forced
def found_in(world: World, entry: int) -> int:
    """Return a bit for each tier in which the object of an entry is found: where it is live, if that is in reach."""
    return live_in(world, entry) & ~world.control.gone


@forced
def member_of(world: World, t: int, slot: int) -> int:
    """Return which slot stands for the object of `slot` in tier `t`: its own or a copy, NONE if there is none."""
    if world.fleet.scoped & (1 << t):
        copy = world.fleet.copies[slot]
        slot = copy.rack_copy if world.fleet.racked & (1 << t) else copy.node_copy
    return slot


@forced
def size_of(world: World, entry: int) -> int:
    """Return the bytes of the object of an entry, all ranks together."""
    return world.slots[entry].size if entry >= 0 else world.knobs.chunk_bytes


@forced
def begin_stage(world: World) -> None:
    """Begin a stage that has no operations yet."""
    world.control.is_staged = 0
    for t in range(len(world.tiers)):
        world.tiers[t].staged = 0


@forced
def in_stage(world: World, stage: int, t: int, limit: int) -> int:
    """Return the stage of one more operation in tier `t`: the next if it runs only `limit` (0: all) of them at once."""
    if limit > 0:
        if world.tiers[t].staged == limit:
            stage += 1
            begin_stage(world)
        world.tiers[t].staged += 1
    world.control.is_staged = 1
    return stage


@inner
def emit_layer(
    world: World, now: int, op: int, t: int, phase: int, entry: int, size: int, request: int, stage: int, layer: int
) -> None:
    """Append a row for each rank's object of one group of layers of `entry`; `size` is of all its objects."""
    rows, ranks, layers = world.rows, world.knobs.ranks, world.knobs.layers
    first: int = world.control.rows
    number = world.slots[entry].object if entry >= 0 else packed(entry) >> PACKED_BITS
    if op == READ and world.knobs.bucketed & (1 << t):
        member = entry if world.slots[entry].place > 0 else member_of(world, t, entry)
        number = world.slots[world.members[member].bucket].object
        for i in range(first, first + ranks):
            world.row_offsets[i] = world.members[member].offset
    world.control.rows = first + ranks
    if world.fleet.count > 1:
        for i in range(first, first + ranks):
            world.fleet.row_nodes[i] = world.control.node
    for rank in range(ranks):
        i = first + rank
        rows.ts_ns[i] = now
        rows.op[i] = op
        rows.tier[i] = t
        rows.phase[i] = phase
        rows.object_id[i] = (number * ranks + rank) * layers + layer
        rows.length_bytes[i] = size // (ranks * layers)
        rows.request_id[i] = request
        rows.stage[i] = stage
        rows.rank[i] = rank


@forced
def emit(world: World, now: int, op: int, t: int, phase: int, entry: int, size: int, request: int, stage: int) -> None:
    """Append one row for each object of an entry or a slot; request NONE is background work."""
    for layer in range(world.knobs.layers):
        emit_layer(world, now, op, t, phase, entry, size, request, stage, layer)
