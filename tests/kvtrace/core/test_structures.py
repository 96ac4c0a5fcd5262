from __future__ import annotations

import numpy as np
import pytest

from kvtrace.core.compiled import inner, njit
from kvtrace.core.structures import Structure, number, part, record, table

TIER = np.dtype([("limit", "i8"), ("seen", "i2"), ("share", "f8")], align=True)
CLOCK = np.dtype([("now", "i8"), ("last", "i4")], align=True)


class Columns(Structure):
    ts_ns = table("i8")
    op = table("i1")


class World(Structure):
    seed = number()
    clock = record(CLOCK)
    tiers = table(TIER)
    chain = table("i4")
    columns = part(Columns)


@inner
def see(world, t, size):
    tier = world.tiers[t]
    tier.seen |= 1 << t
    tier.share += 0.5
    world.clock.last += 1
    return tier.limit >= size


@njit
def run(world, size):
    fitting = 0
    for t in range(len(world.tiers)):
        fitting += see(world, t, size) + see(world, 0, 1)
        world.chain[t] = fitting
        world.columns.ts_ns[t], world.columns.op[t] = world.clock.now, t
    return fitting + world.seed * 1000


def made():
    world = World(seed=7, tiers=np.zeros(3, TIER), chain=np.zeros(3))
    world.tiers["limit"], world.clock["now"] = [5, 10, 20], 44
    world.columns.ts_ns, world.columns.op = np.zeros(3), np.zeros(3)
    return world


def test_compiled_code_works_on_what_python_sees():
    world = made()
    assert run(world, 7) == 7005
    assert world.tiers["seen"].tolist() == [1, 2, 4]
    assert world.tiers["share"].tolist() == [2.0, 0.5, 0.5]
    assert world.clock.tolist() == (44, 6)
    assert (world.chain.tolist(), world.chain.dtype) == ([1, 3, 5], np.int32)
    assert (world.columns.ts_ns.tolist(), world.columns.op.tolist()) == ([44] * 3, [0, 1, 2])


def test_a_table_can_be_replaced_between_calls():
    world = made()
    world.tiers, world.seed = np.zeros(1, TIER), 0
    assert run(world, 7) == 0
    assert world.tiers["seen"].tolist() == [1]


def test_an_inner_function_has_one_signature_and_is_not_for_python():
    run(made(), 7)
    assert len(see.signatures) <= 1
    with pytest.raises(TypeError, match="only there for compiled code"):
        see(made(), 0, 1)


def test_what_is_no_field_is_refused():
    with pytest.raises(TypeError, match="World has no field 'tier'"):
        World(tier=1)
    with pytest.raises(AttributeError, match="columns is a part: set its fields"):
        made().columns = 1
