"""Whether a replay fits the memory that it may have, before it starts: numba and libc do not outlive a shortage."""

from __future__ import annotations

import resource

from kvreplay.tiers.ram import available_bytes
from kvtrace.core.errors import OutOfMemory
from kvtrace.core.units import format_bytes

PROCESS_BYTES = 256 << 20
"""What the programs' own code takes resident, in a replay of nothing."""
PROCESS_ADDRESS_BYTES = 11 << 28
"""The address space of the same: with libraries, compiled code, and stacks and pools of its threads."""
ROW_BYTES = 150
"""What a planned row takes at most while it is compiled and recorded."""


def check_memory(rows: int = 0, buffers_bytes: int = 0) -> None:
    """Check that a replay of `rows` rows with `buffers_bytes` of I/O buffers fits; tiers of RAM check theirs later.

    Raises:
        OutOfMemory: it does not, with both figures.

    """
    extra = rows * ROW_BYTES + buffers_bytes
    parts = f"{rows:,} rows, {format_bytes(buffers_bytes)} of buffers" if extra else "before any row"
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit not in (resource.RLIM_INFINITY, -1) and PROCESS_ADDRESS_BYTES + extra > limit:
        raise OutOfMemory(
            f"the replay needs about {format_bytes(PROCESS_ADDRESS_BYTES + extra)} of address space ({parts}), but "
            f"this process may have {format_bytes(limit)} (ulimit -v); raise that limit{_less(rows)}"
        )
    available = available_bytes()
    if available is not None and PROCESS_BYTES + extra > available:
        raise OutOfMemory(
            f"the replay needs about {format_bytes(PROCESS_BYTES + extra)} of memory ({parts}), but only "
            f"{format_bytes(available)} is available; free some{_less(rows)}"
        )


def _less(rows: int) -> str:
    return ", or replay less with --limit" if rows else ""
