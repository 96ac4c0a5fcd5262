"""Tables that grow where they lie, or elsewhere if somebody looks at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvtrace.native.records import World
from kvtrace.sim import simulation
from kvtrace.sim.simulation import GrowableTables


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_stands_in_a_table_stays_when_it_grows(is_seen: bool) -> None:
    owner, tables, views = World(idle=np.arange(3)), GrowableTables(), list[Any]()
    for more in (5, 100_000, 1, 300_000):
        count = len(owner.idle)
        added = tables.extend(owner, "idle", more)
        assert len(added) == more
        assert not added.any()
        added[:] = np.arange(count, count + more)
        del added
        if is_seen:
            # As a frame that waits to be collected has it.
            views.append(owner.idle)
        assert (owner.idle == np.arange(count + more)).all()
    for view in views:
        assert (view == np.arange(len(view))).all()


def test_free_memory_is_looked_at_before_the_reserve_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = list[int]()
    monkeypatch.setattr(simulation, "check_memory", looks.append)
    owners = [World(idle=np.arange(3)) for _ in range(2)]
    tables = [GrowableTables() for _ in owners]
    item_bytes = owners[0].idle.dtype.itemsize
    unseen_bytes = 0
    for n in range(200):
        looks.clear()
        added = 1000 + 2000 * (n % 50)
        tables[n % 2].extend(owners[n % 2], "idle", added)
        unseen_bytes = 0 if looks else unseen_bytes + added * item_bytes
        # All simulations take from one reserve.
        assert unseen_bytes < simulation._RESERVE_BYTES / 4
        assert all(need > simulation._RESERVE_BYTES for need in looks)
    assert 2 * len(owners[0].idle) * item_bytes > simulation._RESERVE_BYTES / 4
