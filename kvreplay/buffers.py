"""A bounded arena of page-aligned I/O buffers: memory follows queue depth and I/O size, not objects."""

from __future__ import annotations

import ctypes
import mmap

from kvreplay.hugepages import map_aligned

FILL_BYTES = 256 << 10
"""Data is made for this much at least: for less, starting the generator costs more than it makes."""


def pieces_a_fill(io_bytes: int) -> int:
    """Return how many I/Os of one write share a buffer of data."""
    return max(1, FILL_BYTES // io_bytes)


class Arena:
    """`count` buffers of `slot_bytes` in one anonymous mapping, touched before they are used."""

    def __init__(self, count: int, slot_bytes: int) -> None:
        """Map the buffers; `slot_bytes` must be a multiple of the page size."""
        if slot_bytes % mmap.PAGESIZE:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {mmap.PAGESIZE}")
        self.nbytes = count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in range(first, first + self.nbytes, mmap.PAGESIZE):
            self._map[page] = 0
        whole = memoryview(self._map)
        self.views = [whole[first + i * slot_bytes : first + (i + 1) * slot_bytes] for i in range(count)]
        self.places = [(base + first + i * slot_bytes, slot_bytes) for i in range(count)]
        """Address and size of each buffer, for the kernel; valid as long as the arena is."""
