"""Private anonymous memory on huge pages where the kernel gives them, and whether it did.

Python's own anonymous mappings are shared, which huge pages on request do not reach.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from pathlib import Path

HUGE_PAGE_BYTES = 2 << 20


def map_aligned(nbytes: int) -> tuple[mmap.mmap, int]:
    """Return a mapping, and where in it `nbytes` begin at a huge page; whole huge pages of them are asked for.

    What lies before and behind is never touched and takes no memory.
    """
    import numpy as np

    mapping = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = -np.frombuffer(mapping, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES
    whole = nbytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them refuses; nothing is lost.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE, first, whole)
    return mapping, first


def huge_bytes(address: int) -> int | None:
    """Return how many bytes of the mapping at `address` lie on huge pages; null where the kernel does not say."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    is_it = False
    for line in lines:
        span = line.split(" ", 1)[0]
        if "-" in span and ":" not in span:
            low, high = (int(part, 16) for part in span.split("-"))
            is_it = low <= address < high
        elif is_it and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return None
