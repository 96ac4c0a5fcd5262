"""Page-aligned I/O buffers, one for each I/O in flight, on huge pages if the kernel has them."""

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
    Beyond the `max_filled` that are ever filled, none is touched.
    """

    def __init__(
        self,
        count: int,
        slot_bytes: int,
        *,
        is_open_loop: bool = False,
        max_filled: int | None = None,
    ) -> None:
        """Map the buffers, and touch those that are filled.

        `slot_bytes` must be a multiple of PAGE_BYTES. `max_filled` buffers are ever filled; None
        stands for all.
        """
        if slot_bytes % PAGE_BYTES:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {PAGE_BYTES}")
        self.count, self.slot_bytes, self.nbytes = count, slot_bytes, count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + first
        self._view = memoryview(self._map)[first : first + self.nbytes]
        self.touched = count if max_filled is None else min(count, max(1, max_filled))
        """How many are touched, the first of all."""
        registered = max(1, REGISTERED_BYTES // slot_bytes) if is_open_loop else self.touched
        self.registered = min(self.touched, registered)
        """How many a ring may register."""
        self.used: int | None = None
        """How many were in use at once, at most; None before any job."""
        touch(self.address, self.touched * slot_bytes)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return a view of the `nbytes` at `address`, which lie in a buffer."""
        offset = address - self.address
        return self._view[offset : offset + nbytes]


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
    """Return the address of `buffer`."""
    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


def map_aligned(nbytes: int) -> tuple[mmap.mmap, int]:
    """Return a mapping of at least `nbytes`, and the offset in it of the first huge page.

    Huge pages are requested for all bytes from there on, rounded up to whole huge pages: a buffer
    of 1 MiB on small pages would reach the device in several requests. The rest of the mapping is
    never touched and uses no memory.
    """
    # Without a reservation, addresses that are never used count against no limit.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    rounded_bytes = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, rounded_bytes + HUGE_PAGE_BYTES, flags=flags)
    first = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % HUGE_PAGE_BYTES
    if rounded_bytes and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses, and small pages do.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE, first, rounded_bytes)
    return mapping, first


def huge_bytes(address: int) -> int | None:
    """Return the bytes of the mapping at `address` that lie on huge pages.

    None if the kernel does not report them.
    """
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    is_there = False
    for line in lines:
        span = line.split(" ", 1)[0]
        if "-" in span and ":" not in span:
            low, high = (int(bound, 16) for bound in span.split("-"))
            is_there = low <= address < high
        elif is_there and line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return None


def small_page_bytes(arena: Arena) -> int | None:
    """Return the touched bytes of `arena` on small pages; None if the kernel does not report them."""
    huge = huge_bytes(arena.address)
    return None if huge is None else max(0, arena.touched * arena.slot_bytes - huge)
