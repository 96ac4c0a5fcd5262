"""Page-aligned I/O buffers, on huge pages where the kernel gives them.

One for each I/O in flight.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvtrace.core import np

FIRST_BYTES = 128 << 20
"""Bytes of growing buffers that are touched and registered with a ring before a run begins."""
_LOOKED_EACH_S = 0.002
_AHEAD = 4
"""How many buffers are touched for each in use.

As a backlog grows by gigabytes a second, the kernel has to keep up.
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

    Of one that grows, the first are, and the others when more are needed; beyond `most`, none.
    """

    def __init__(
        self, count: int, slot_bytes: int, *, is_growing: bool = False, most: int | None = None
    ) -> None:
        """Map the buffers.

        `slot_bytes` must be a multiple of PAGE_BYTES, `most` are filled at all (None: all).
        """
        if slot_bytes % PAGE_BYTES:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {PAGE_BYTES}")
        self.count, self.slot_bytes, self.nbytes = count, slot_bytes, count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + first
        self._view = memoryview(self._map)[first : first + self.nbytes]
        self._most = count if most is None else min(count, max(1, most))
        self.first = (
            min(self._most, max(1, FIRST_BYTES // slot_bytes)) if is_growing else self._most
        )
        """How many are touched from the beginning on."""
        self.used: int | None = None
        """How many were in use at once, at most; None before any job."""
        self.touched = 0
        """How many are touched by now."""
        self.grow(self.first)

    def view(self, address: int, nbytes: int) -> memoryview:
        """Return `nbytes` from `address` on, which lie in a buffer."""
        at = address - self.address
        return self._view[at : at + nbytes]

    @property
    def usable(self) -> int:
        """How many may be in use: all, once those that are ever filled are touched."""
        return self.count if self.touched == self._most else self.touched

    def grow(self, count: int) -> None:
        """Touch the first `count` buffers."""
        count = min(count, self._most)
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
    """While the context lasts touch buffers as `used` reports them in use, and release touched ones
    by `let_use`.

    A thread touches more before they are needed, where some are not touched: the kernel would
    otherwise, in the time of an I/O, or while data is made.
    """
    is_over = threading.Event()

    def look() -> None:
        while arena.usable < arena.count and not is_over.wait(_LOOKED_EACH_S):
            while arena.usable < min(arena.count, _AHEAD * used()) and not is_over.is_set():
                arena.grow(arena.touched + max(1, _STEP_BYTES // arena.slot_bytes))
                let_use(arena.usable)

    thread = threading.Thread(target=look, name="kvreplay-grow", daemon=True)
    if arena.usable < arena.count:
        try:
            thread.start()
        except RuntimeError:
            # The system starts no more threads: others will miss theirs, too.
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
