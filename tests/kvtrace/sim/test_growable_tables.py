"""Tables that grow where they lie, or elsewhere if somebody looks at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvtrace.native.records import World
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
