"""Page-aligned I/O buffers, on huge pages where the kernel gives them.

Their memory follows queue depth and I/O size, not objects.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_AHEAD_PIECES, _AHEAD_FILLS = 32, 16
"""What is made before a write is submitted, at least: I/Os (a whole chunk of 256 tokens of an 8B model) and buffers.

Much more would not stay in the processor's caches until it is written.
"""
SHORT_BYTES = 256 << 10
"""Data shorter than this is made by who submits: to wake a thread for it would take as long."""
_FILL_BYTES = (SHORT_BYTES, 1 << 20)
"""A buffer of data that threads make is at least so long, and at most if I/Os are shorter: one wakes up for each."""
_SHORT_FILL_BYTES, _SHORT_AHEAD_BYTES = 64 << 10, 16 << 20
"""Of a buffer that who submits fills, if I/Os are shorter; and what of one long write is made before it begins."""
SHORT_STOCK = 48
"""Buffers that hold the data of as many short writes, beyond those in flight: more would not stay in the caches."""
_SMALL_BYTES = 72 << 20
"""What all buffers of data may take, before they are made as short as they can be."""

FIRST_BYTES = 128 << 20
"""What is touched of the buffers of reads, and of data, that grow, before a run begins; and registered with a ring."""
_EARLY_DEPTH, _EARLY_BYTES = 32, FIRST_BYTES
"""What is made before its row is due: as at this depth, or so much."""
_LOOKED_EACH_S = 0.002


def pieces_a_fill(depth: int, io_bytes: int) -> int:
    """Return how many I/Os of one write share a buffer of data."""
    if io_bytes < SHORT_BYTES:
        return max(1, _SHORT_FILL_BYTES // io_bytes)
    least, fill = _FILL_BYTES
    while fill > least and fill * (2 * depth + 2) > _SMALL_BYTES:
        fill //= 2
    return max(1, fill // io_bytes)


def fills_ahead(depth: int, io_bytes: int) -> int:
    """Return how many buffers of data are made before their operations are submitted."""
    if io_bytes < SHORT_BYTES:
        return max(depth + SHORT_STOCK, _SHORT_AHEAD_BYTES // (io_bytes * pieces_a_fill(depth, io_bytes)))
    return max(depth, _AHEAD_FILLS, _AHEAD_PIECES // pieces_a_fill(depth, io_bytes))


def early_fills(depth: int, io_bytes: int) -> int:
    """Return how many of them may be for rows that are not due yet: a burst's, but not all that memory has room for."""
    few = fills_ahead(min(depth, _EARLY_DEPTH), io_bytes)
    return min(fills_ahead(depth, io_bytes), max(few, _EARLY_BYTES // (io_bytes * pieces_a_fill(depth, io_bytes))))


def write_slots(depth: int, io_bytes: int) -> int:
    """Return how many buffers of data an engine has: half of them for rows that are not due yet."""
    return 2 * fills_ahead(depth, io_bytes) + 2


def buffer_bytes(depth: int, io_bytes: int) -> int:
    """Return what the buffers of either engine take."""
    return (depth + write_slots(depth, io_bytes) * pieces_a_fill(depth, io_bytes)) * io_bytes


class Moved(NamedTuple):
    """Rows of one operation and the bytes that they move."""

    rows: int
    moved_bytes: int

    def most(self, slot_bytes: int) -> int:
        """Return how many buffers of `slot_bytes` they fill at most; each may begin and end within one."""
        return 2 * self.rows + self.moved_bytes // slot_bytes


def arenas(
    depth: int, io_bytes: int, *, is_growing: bool = False, asked: tuple[Moved, Moved] | None = None
) -> tuple[Arena, Arena]:
    """Return the buffers of an engine: for reads, and for the data of writes; `is_growing` is as for `Arena`.

    `asked` are the reads and writes to come: buffers that they cannot fill are never touched. None: not known.
    """
    slot_bytes = io_bytes * pieces_a_fill(depth, io_bytes)
    sizes = (depth, io_bytes), (write_slots(depth, io_bytes), slot_bytes)
    most = (None, None) if asked is None else [of.most(size) for of, (_, size) in zip(asked, sizes, strict=True)]
    reads, writes = (Arena(*of, is_growing=is_growing, most=n) for of, n in zip(sizes, most, strict=True))
    return reads, writes


class Arena:
    """`count` buffers of `slot_bytes` in one anonymous mapping, touched before they are used.

    Of one that grows, the first are, and the others when more are needed; beyond `most`, none.
    """

    def __init__(self, count: int, slot_bytes: int, *, is_growing: bool = False, most: int | None = None) -> None:
        """Map the buffers; `slot_bytes` must be a multiple of the page size, `most` are filled at all (None: all)."""
        if slot_bytes % mmap.PAGESIZE:
            raise ValueError(f"slot_bytes(={slot_bytes}) must be a multiple of {mmap.PAGESIZE}")
        self.nbytes = count * slot_bytes
        # Huge pages cut a 4 MiB request from four to one at the device.
        self._map, first = map_aligned(self.nbytes)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        whole = memoryview(self._map)
        self.views = [whole[first + i * slot_bytes : first + (i + 1) * slot_bytes] for i in range(count)]
        self.places = [(base + first + i * slot_bytes, slot_bytes) for i in range(count)]
        """Address and size of each buffer, for the kernel; valid as long as the arena is."""
        self._most = count if most is None else min(count, max(1, most))
        self.first = min(self._most, max(1, FIRST_BYTES // slot_bytes)) if is_growing else self._most
        """How many are touched from the beginning on."""
        self.used: int | None = None
        """How many were in use at once, at most; None before any job."""
        self.touched = 0
        """How many are touched by now."""
        self._slot_bytes = slot_bytes
        self.grow(self.first)

    @property
    def used_bytes(self) -> int | None:
        """The bytes of as many as were in use at once, at most."""
        return None if self.used is None else self.used * self._slot_bytes

    @property
    def touched_bytes(self) -> int:
        """The bytes of those that are touched by now."""
        return self.touched * self._slot_bytes

    @property
    def is_whole(self) -> bool:
        """Whether all that are ever filled are touched."""
        return self.touched == self._most

    def grow(self, count: int) -> None:
        """Touch the first `count` buffers."""
        count = min(count, self._most)
        if count > self.touched:
            touch(self.places[self.touched][0], (count - self.touched) * self._slot_bytes)
            self.touched = count

    def keep_ahead(self, used: int) -> None:
        """Touch twice as many as were in use at once: `used`."""
        if 2 * used > self.touched:
            self.grow(2 * used)


@contextmanager
def growing(
    both: tuple[Arena, Arena], used: Callable[[], tuple[int, int]], let_use: Callable[[int], None]
) -> Iterator[None]:
    """Note how many buffers are in use at once, at most, which `used` tells; `let_use` those of reads that are touched.

    A thread touches more before they are needed, where some are not touched: the kernel would otherwise, in the time
    of an I/O, or while data is made.
    """
    reads = both[0]
    is_over = threading.Event()

    def usable() -> int:
        return len(reads.places) if reads.is_whole else reads.touched

    def look() -> None:
        while not (all(arena.is_whole for arena in both) or is_over.wait(_LOOKED_EACH_S)):
            for arena, count in zip(both, used(), strict=True):
                arena.keep_ahead(count)
                let_use(usable())

    thread = threading.Thread(target=look, name="kvreplay-grow", daemon=True)
    if not all(arena.is_whole for arena in both):
        try:
            thread.start()
        except RuntimeError:
            # The system starts no more threads: others will miss theirs, too.
            reads.grow(len(reads.places))
    let_use(usable())
    try:
        yield
    finally:
        is_over.set()
        if thread.ident is not None:
            thread.join()
        for arena, count in zip(both, used(), strict=True):
            arena.used = max(arena.used or 0, count)


HUGE_PAGE_BYTES = 2 << 20
_MAP_NORESERVE = 0x4000
_POPULATE_WRITE = 23
"""MADV_POPULATE_WRITE, since Linux 5.14."""


def touch(address: int, nbytes: int) -> None:
    """Have the kernel give memory to `nbytes` from `address` on; what lies there stays, and other threads run."""
    start, end = address // mmap.PAGESIZE * mmap.PAGESIZE, address + nbytes
    if ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _POPULATE_WRITE) != 0:
        import numpy as np

        # One byte of each page, as it is.
        pages = np.ctypeslib.as_array((ctypes.c_uint8 * (end - start)).from_address(start))[:: mmap.PAGESIZE]
        pages |= 0


def map_aligned(nbytes: int) -> tuple[mmap.mmap, int]:
    """Return a mapping, and where in it `nbytes` begin at a huge page; huge pages are asked for all of them.

    What lies before and behind is never touched and takes no memory, but for what fills the last huge page: a single
    buffer of 1 MiB in small pages would reach the device in parts.
    """
    import numpy as np

    # Addresses that are never used need no memory promised.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    whole = -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    mapping = mmap.mmap(-1, whole + HUGE_PAGE_BYTES, flags=flags)
    first = -np.frombuffer(mapping, dtype=np.uint8).ctypes.data % HUGE_PAGE_BYTES
    if whole and hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them refuses; nothing is lost.
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE, first, whole)
    return mapping, first


def huge_bytes(address: int) -> int | None:
    """Return how many bytes of the mapping at `address` lie on huge pages; null where the kernel does not say."""
    spans = _huge_spans()
    return None if spans is None else next((huge for low, high, huge in spans if low <= address < high), None)


def small_page_bytes(buffers: Iterable[Arena]) -> int | None:
    """Return how much of `buffers` that was touched lies on small pages; null where the kernel does not say."""
    arenas, spans = list(buffers), _huge_spans()
    if spans is None:
        return None
    # Neighbouring mappings may be one to the kernel.
    held = [span for span in spans if any(span[0] <= arena.places[0][0] < span[1] for arena in arenas)]
    return max(0, sum(arena.touched_bytes for arena in arenas) - sum(huge for *_, huge in held))


def _huge_spans() -> list[tuple[int, int, int]] | None:
    """Return the first byte, the one after the last, and the bytes on huge pages of each of our mappings."""
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    found, at = [], (0, 0)
    for line in lines:
        span = line.split(" ", 1)[0]
        if "-" in span and ":" not in span:
            low, high = (int(part, 16) for part in span.split("-"))
            at = (low, high)
        elif line.startswith("AnonHugePages:"):
            found.append((*at, int(line.split()[1]) * 1024))
    return found
