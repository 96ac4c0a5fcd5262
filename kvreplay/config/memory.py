"""Whether a replay fits the memory that it may have, before it starts: libc and NumPy do not outlive a shortage."""

from __future__ import annotations

import resource
from collections.abc import Callable

from kvreplay.tiers.ram import available_bytes
from kvtrace.core.errors import OutOfMemory
from kvtrace.core.units import format_bytes

PROCESS_BYTES = 192 << 20
"""What the programs' own code takes resident, in a replay of nothing."""
PROCESS_ADDRESS_BYTES = 7 << 28
"""The address space of the same: with libraries, and stacks and pools of its threads."""
ROW_BYTES = 150
"""What a row takes while it is in the ring, and what is made of it as it ends."""


def check_memory(rows: int = 0, buffers_bytes: int = 0) -> None:
    """Check that a replay of `rows` rows with `buffers_bytes` of I/O buffers fits; tiers of RAM check theirs later.

    Raises:
        OutOfMemory: it does not, with both figures.

    """
    row_check(buffers_bytes)(rows)


def row_check(buffers_bytes: int) -> Callable[[int], None]:
    """Return `check_memory` for a number of rows that is not known yet, by the memory that is available now."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    available = available_bytes()

    def check(rows: int) -> None:
        extra = rows * ROW_BYTES + buffers_bytes
        parts = f"{rows:,} rows, {format_bytes(buffers_bytes)} of buffers" if extra else "before any row"
        if limit not in (resource.RLIM_INFINITY, -1) and PROCESS_ADDRESS_BYTES + extra > limit:
            raise OutOfMemory(
                f"the replay needs about {format_bytes(PROCESS_ADDRESS_BYTES + extra)} of address space ({parts}), but "
                f"this process may have {format_bytes(limit)} (ulimit -v); raise that limit{_less(rows)}"
            )
        if available is not None and PROCESS_BYTES + extra > available:
            raise OutOfMemory(
                f"the replay needs about {format_bytes(PROCESS_BYTES + extra)} of memory ({parts}), but only "
                f"{format_bytes(available)} is available; free some{_less(rows)}"
            )

    return check


def _less(rows: int) -> str:
    return ", or replay less with --limit" if rows else ""
