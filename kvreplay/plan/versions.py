"""Which version of its object a write brings, so that its data can be made and checked."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.plan.chains import Dense
from kvtrace.core.compiled import njit
from kvtrace.core.schema import TRACE, Op, Phase, enum_code

WRITE, DELETE = enum_code(TRACE, "op", Op.WRITE), enum_code(TRACE, "op", Op.DELETE)


def among(*phases: Phase) -> Any:
    """Return bool a phase's code: whether it is one of `phases`."""
    return np.isin(np.arange(len(Phase)), [enum_code(TRACE, "phase", phase) for phase in phases])


_COPIES = among(Phase.PROMOTE, Phase.STORE, Phase.DEMOTE)
"""By phase: whether a write of it copies what another tier holds."""


def versions(op: Any, tier: Any, objects: Dense, phase: Any) -> Any:
    """Return 1, 2, … for the writes of each object in row order, 0 for other rows.

    A demotion, a promotion or a write-through moves what another tier holds: if that tier is replayed and touched the
    object last, the write has the object's newest version; 0 is what was there before the run.
    """
    copies = np.zeros(len(op), bool) if phase is None else _COPIES[phase]
    version = np.zeros(len(op), np.int32)
    newest, touched = np.zeros(objects.count, np.int32), np.full(objects.count, -1, np.int8)
    _count_versions(op, tier, objects.numbers, copies, newest, touched, version)
    return version


@njit
def _count_versions(op: Any, tier: Any, keys: Any, copies: Any, newest: Any, touched: Any, version: Any) -> None:
    for row in range(len(op)):
        key = keys[row]
        if op[row] == WRITE:
            if not copies[row] or touched[key] < 0 or touched[key] == tier[row]:
                newest[key] += 1
            version[row] = newest[key]
        if op[row] != DELETE:
            touched[key] = tier[row]
