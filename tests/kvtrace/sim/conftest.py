"""Where rows are compared with plain Python's, tables of the simulation are small at first, and move as they grow."""

from __future__ import annotations

import numpy as np
import pytest

from kvtrace.sim import empty, setup

MOVING = {"test_oracle", "test_oracle_users", "test_fleet_oracle", "test_queues", "test_incidents"}


def extend(_rooms, owner, name, more):
    """Make a table longer, elsewhere; where it was, what still looks there finds nothing that makes sense."""
    before = getattr(owner, name)
    setattr(owner, name, np.concatenate([before, np.zeros(more, before.dtype)]))
    before.view(np.uint8)[:] = 0x5A
    return getattr(owner, name)[len(before) :]


@pytest.fixture(autouse=True, scope="module")
def _moving_tables(request):
    if request.module.__name__.rpartition(".")[2] not in MOVING:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(empty.Rooms, "extend", extend)
        patch.setattr(setup, "ROOM", 1)
        yield
