"""Tables of the simulation that begin small, and move as they grow.

For where rows are compared with plain Python.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvtrace.sim import simulation

NONSENSE = 0x5A
WRITTEN_FIRST = ("links", "copy_links")
"""Tables whose entries are written before they are read: it does not matter what they begin as."""


def extend(_rooms, owner, name, more, pool=0):  # noqa: ARG001
    """Make a table longer, elsewhere.

    Where it was, what still looks there finds nothing that makes sense.
    """
    before = getattr(owner, name)
    added = np.zeros(more, before.dtype)
    if name in WRITTEN_FIRST:
        added.view(np.uint8)[:] = NONSENSE
    setattr(owner, name, np.concatenate([before, added]))
    before.view(np.uint8)[:] = NONSENSE
    return getattr(owner, name)[len(before) :]


@pytest.fixture(autouse=True, scope="module")
def moving_tables():
    """Import it into a module, all of whose tests are to run so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation.GrowableTables, "extend", extend)
        patch.setattr(simulation, "ROOM", 1)
        yield
