"""Check before a replay that the process will have the memory it needs.

libc and NumPy do not survive a shortage of memory, so a command calls `check_memory` first.
"""

from __future__ import annotations

import resource

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.memory import require_memory
from kvtrace.core.units import format_bytes

PROCESS_BYTES = 192 << 20
"""Resident memory of the program itself, in a replay of no rows."""


PROCESS_ADDRESS_BYTES = 7 << 28
"""Its address space, including libraries, and stacks and pools of its threads."""


ROW_BYTES = 150
"""Memory of a row: its entry in the ring and its results."""


def check_memory(rows: int = 0, buffers_bytes: int = 0) -> None:
    """Check that a replay of `rows` rows with `buffers_bytes` of I/O buffers fits.

    Tiers in memory check theirs later.

    OutOfMemory, with both figures, if it does not fit.
    """
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    extra = rows * ROW_BYTES + buffers_bytes
    needs = (
        f"{rows:,} rows, {format_bytes(buffers_bytes)} of buffers" if extra else "before any row"
    )
    less = ", or replay less with --limit" if rows else ""
    if limit not in (resource.RLIM_INFINITY, -1) and PROCESS_ADDRESS_BYTES + extra > limit:
        raise OutOfMemory(
            f"the replay needs about {format_bytes(PROCESS_ADDRESS_BYTES + extra)} of address space"
            f" ({needs}), but this process may have {format_bytes(limit)} (ulimit -v); raise that"
            f" limit{less}"
        )
    require_memory(PROCESS_BYTES + extra, "the replay", f"free some{less}", needs)
