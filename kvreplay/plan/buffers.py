"""Page-aligned I/O buffers, on huge pages where the kernel gives them.

One for each I/O in flight.
"""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from pathlib import Path

from kvtrace.core import np

REGISTERED_BYTES = 128 << 20
"""Bytes of an open loop's buffers that are registered with a ring: the kernel pins them."""
PAGE_BYTES = 4096
"""Requests to drives are multiples of this; the pages of some kernels are larger."""
HUGE_PAGE_BYTES = 2 << 20
_MAP_NORESERVE = 0x4000
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14."""


class Arena:
    """`count` buffers of `slot_bytes` in one anonymous mapping, touched before a run begins.

    So a run takes as much memory at its start as at its end, however many I/Os are in flight.
    Beyond the `most` that are ever filled, none is touched.
    """

    def __init__(
        self, count: int, slot_bytes: int, *, is_open_loop: bool = False, most: int | None = None
    ) -> None:
        """Map the buffers, and touch those that are filled.

        `slot_bytes` must be a multiple of PAGE_BYTES, `most` are filled at all (None: all).
        """
        if slot_bytes % PAGE_BYTES:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {PAGE_BYTES}")
        self.count, self.slot_bytes, self.nbytes = count, slot_bytes, count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + first
        self._view = memoryview(self._map)[first : first + self.nbytes]
        self.touched = count if most is None else min(count, max(1, most))
        """How many are touched, the first of all."""
        registered = max(1, REGISTERED_BYTES // slot_bytes) if is_open_loop else self.touched
        self.registered = min(self.touched, registered)
        """How many a ring may register."""
        self.used: int | None = None
        """How many were in use at once, at most; None before any job."""
        touch(self.address, self.touched * slot_bytes)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return `nbytes` from `address` on, which lie in a buffer."""
        at = address - self.address
        return self._view[at : at + nbytes]


def touch(address: int, nbytes: int) -> None:
    """Fault in `nbytes` from `address` on, keeping their content; the GIL is released."""
    start, end = address // mmap.PAGESIZE * mmap.PAGESIZE, address + nbytes
    if (
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(start), ctypes.c_size_t(end - start), _POPULATE_WRITE
        )
        != 0
    ):
        # One byte of each page, as it is.
        pages = np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))[
            :: mmap.PAGESIZE
        ]
        pages |= 0


def address_of(buffer: memoryview) -> int:
    """Return where `buffer` lies."""
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def map_aligned(nbytes: int) -> tuple[mmap.mmap, int]:
    """Return a mapping, and where in it `nbytes` begin at a huge page.

    Huge pages are asked for all of them.

    What lies before and behind is never touched and takes no memory, but for what fills the last
    huge page: a single buffer of 1 MiB in small pages would reach the device in parts.
    """
    # Addresses that are never used need no memory promised.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    whole = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, whole + HUGE_PAGE_BYTES, flags=flags)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % HUGE_PAGE_BYTES
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them refuses; nothing is lost.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE, first, whole)
    return mapping, first


def huge_bytes(address: int) -> int | None:
    """Return how many bytes of the mapping at `address` lie on huge pages.

    Null where the kernel does not say.
    """
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    is_there = False
    for line in lines:
        span = line.split(" ", 1)[0]
        if "-" in span and ":" not in span:
            low, high = (int(part, 16) for part in span.split("-"))
            is_there = low <= address < high
        elif is_there and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return None


def small_page_bytes(arena: Arena) -> int | None:
    """Return how much of `arena` that was touched lies on small pages.

    Null where the kernel does not say.
    """
    huge = huge_bytes(arena.address)
    return None if huge is None else max(0, arena.touched * arena.slot_bytes - huge)
