"""Page-aligned I/O buffers, one for each I/O in flight, on huge pages if the kernel has them."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtrace.core import np

FIRST_BYTES = 128 << 20
"""Bytes of growing buffers that are touched, and registered with an io_uring, before a run."""
_POLL_S = 0.002
_AHEAD = 4
"""Number of buffers touched for each buffer in use.

A backlog may grow by gigabytes per second, and the kernel has to keep up.
"""
_STEP_BYTES = 32 << 20
"""Bytes that are touched in one step; only touched bytes are used."""
PAGE_BYTES = 4096
"""Requests to drives are multiples of this; the pages of some kernels are larger."""
HUGE_PAGE_BYTES = 2 << 20
_MAP_NORESERVE = 0x4000
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14."""


class Arena:
    """`count` buffers of `slot_bytes` in one anonymous mapping, touched before they are used.

    A growing arena touches some buffers first, and more when they are needed, up to `max_touched`.
    """

    def __init__(
        self,
        count: int,
        slot_bytes: int,
        *,
        is_growing: bool = False,
        max_touched: int | None = None,
    ) -> None:
        """Map the buffers.

        `slot_bytes` must be a multiple of PAGE_BYTES. At most `max_touched` buffers are ever touched; None
        stands for all.
        """
        if slot_bytes % PAGE_BYTES:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {PAGE_BYTES}")
        self.count, self.slot_bytes, self.nbytes = count, slot_bytes, count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + first
        self._view = memoryview(self._map)[first : first + self.nbytes]
        self._max_touched = count if max_touched is None else min(count, max(1, max_touched))
        self.first = (
            min(self._max_touched, max(1, FIRST_BYTES // slot_bytes))
            if is_growing
            else self._max_touched
        )
        """Number of buffers touched at the beginning."""
        self.used: int | None = None
        """Maximum number of buffers in use at once; None before any job."""
        self.touched = 0
        """Number of buffers touched so far."""
        self.grow(self.first)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return a view of the `nbytes` at `address`, which lie in a buffer."""
        offset = address - self.address
        return self._view[offset : offset + nbytes]

    @property
    def usable(self) -> int:
        """The number of buffers that may be in use: all, once the maximum is touched."""
        return self.count if self.touched == self._max_touched else self.touched

    def grow(self, count: int) -> None:
        """Touch the first `count` buffers."""
        count = min(count, self._max_touched)
        if count > self.touched:
            touch(
                self.address + self.touched * self.slot_bytes,
                (count - self.touched) * self.slot_bytes,
            )
            self.touched = count


@contextmanager
def growing(
    arena: Arena, used: Callable[[], int], let_use: Callable[[int], None]
) -> Iterator[None]:
    """While the context lasts, touch buffers ahead of their use, and release them by `let_use`.

    `used` returns the number of buffers in use. A thread touches buffers before they are needed;
    otherwise page faults would take time from I/Os and from the generation of data.
    """
    is_over = threading.Event()

    def look() -> None:
        while arena.usable < arena.count and not is_over.wait(_POLL_S):
            while arena.usable < min(arena.count, _AHEAD * used()) and not is_over.is_set():
                arena.grow(arena.touched + max(1, _STEP_BYTES // arena.slot_bytes))
                let_use(arena.usable)

    thread = threading.Thread(target=look, name="kvreplay-grow", daemon=True)
    if arena.usable < arena.count:
        try:
            thread.start()
        except RuntimeError:
            # The system starts no more threads, so touch all buffers now.
            arena.grow(arena.count)
    let_use(arena.usable)
    try:
        yield
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        arena.used = max(arena.used or 0, used())


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
