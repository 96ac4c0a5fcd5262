"""A bounded arena of page-aligned I/O buffers: memory follows queue depth and I/O size, not objects."""

from __future__ import annotations

import mmap
from contextlib import suppress


class Arena:
    """`count` buffers of `slot_bytes` in one anonymous mapping, touched before they are used."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        """Map the buffers; `slot_bytes` must be a multiple of the page size."""
        if slot_bytes % mmap.PAGESIZE:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {mmap.PAGESIZE}")
        self._map = mmap.mmap(-1, count * slot_bytes)
        # Huge pages cut a 4 MiB request from four to one at the device; without them nothing is lost.
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):
                self._map.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, count * slot_bytes, mmap.PAGESIZE):
            self._map[page] = 0
        whole = memoryview(self._map)
        self.views = [whole[i * slot_bytes : (i + 1) * slot_bytes] for i in range(count)]
        self.nbytes = count * slot_bytes
