"""Copies from memory to memory, by threads of compiled code: none of them waits for the interpreter, or for a drive.

One thread puts copies into a ring and takes them off when they are done, in order; the others take the next one each.
They sleep when there is none. All functions take the address of a COPIES.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numba.core import types

from kvtrace.core.compiled import array_at, inner, int64s, intrinsic, njit
from kvtrace.core.structures import fields_of, record_at

RING = 64
"""Copies under way or done and not taken, at most: more than come between two looks of who puts them."""
_LOW = RING // 4
"""With so few left, who puts more is woken."""
MOST_THREADS = 8
"""Few threads come near a socket's bandwidth, and more would only take processors."""
_NS_PER_S = 10**9
_CLOCK_MONOTONIC = 1

_ENTRY_FIELDS = (
    # Addresses and length of the copy; where to note when it began (0: nowhere), and when it was done.
    "to source length began_at done_ns "
    # Whose it is, and its buffer of data: what who put it wants back.
    "flight slot "
    "is_last is_done"
)
ENTRY = np.dtype([(name, np.int64) for name in _ENTRY_FIELDS.split()])
"""A copy; the last of its operation is told at once."""
_COPIES_FIELDS = (
    "entries put claimed taken "
    # Threads add one to `sleeps` before they sleep on `fd`; `wakes` counts what woke them.
    "sleeps wakes fd threads "
    # Where the flag of who puts lies, which is not 0 while it sleeps, and the descriptor that wakes it.
    "asleep_at bell_fd start_ns "
    # Set by who puts: it has more, for which there was no room.
    "has_more is_stopping "
    # Where reads are copied to: a place, its size, and how far it has come.
    "sink sink_bytes sink_at "
    # What threads slept, together.
    "slept_ns"
)
COPIES = np.dtype([(name, np.int64) for name in _COPIES_FIELDS.split()])
"""What those who copy share with who puts."""

copies_at, entries_at = record_at(COPIES), array_at(ENTRY)
_CLAIMED, _SLEEPS, _SLEPT = (8 * _COPIES_FIELDS.split().index(name) for name in ("claimed", "sleeps", "slept_ns"))
_memcpy: Any = types.ExternalFunction("memcpy", types.int64(*[types.int64] * 3))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))
_eventfd_read: Any = types.ExternalFunction("eventfd_read", types.int32(types.int32, types.int64))
_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))


@intrinsic
def fence(typing: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Keep reads and writes before it apart from those after it."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def _add(typing: Any, address: Any, number: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Add to the int64 at an address as one step; return what it was."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        kind = context.get_value_type(types.int64)
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), code


@intrinsic
def _swap(typing: Any, address: Any, expected: Any, number: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Put a number in place of the one expected at an address, as one step; return whether that was there."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - the same
        kind = context.get_value_type(types.int64)
        pointer = builder.inttoptr(arguments[0], kind.as_pointer())
        found = builder.cmpxchg(pointer, arguments[1], arguments[2], "seq_cst", "seq_cst")
        return builder.zext(builder.extract_value(found, 1), kind)

    return types.int64(types.int64, types.int64, types.int64), code


@inner
def _now(address: int, clock: int) -> int:
    """Return the time since the run's start; `clock` is the caller's own place for a timespec."""
    _clock_gettime(_CLOCK_MONOTONIC, clock)
    time = int64s(clock)
    return time[0] * _NS_PER_S + time[1] - copies_at(address).start_ns


@inner
def room(address: int) -> int:
    """Return how many more copies may be put."""
    copies = copies_at(address)
    return RING - (copies.put - copies.taken)


@inner
def put(address: int, to: int, source: int, length: int, began_at: int, flight: int, slot: int, is_last: bool) -> None:
    """Put a copy, for which there must be room; it is done as soon as a thread is awake."""
    copies = copies_at(address)
    entry = entries_at(copies.entries)[copies.put % RING]
    entry.to, entry.source, entry.length, entry.began_at = to, source, length, began_at
    entry.flight, entry.slot, entry.is_last, entry.is_done = flight, slot, is_last, 0
    fence()
    copies.put += 1


@inner
def to_sink(address: int, length: int) -> int:
    """Return where the next read is copied to: a place used again only after all others."""
    copies = copies_at(address)
    if copies.sink_at + length > copies.sink_bytes:
        copies.sink_at = 0
    place = copies.sink + copies.sink_at
    copies.sink_at += length
    return place


@inner
def wake(address: int, has_more: bool, spared: int) -> None:
    """Wake those who sleep, as many as copies wait for, but for `spared` in whose place the caller copies.

    With `has_more`, for which there was no room, the caller will be woken before all are done.
    """
    copies = copies_at(address)
    copies.has_more = has_more
    fence()
    idle = min(copies.put - copies.claimed, copies.sleeps - copies.wakes) - spared
    if idle > 0:
        copies.wakes += idle
        _eventfd_write(copies.fd, idle)


@inner
def sleepers(address: int) -> int:
    """Return how many threads sleep."""
    copies = copies_at(address)
    return copies.sleeps - copies.wakes


@inner
def is_next_done(address: int) -> bool:
    """Return whether the copy that is taken next is done."""
    copies = copies_at(address)
    return copies.taken != copies.put and entries_at(copies.entries)[copies.taken % RING].is_done != 0


@inner
def next_of(address: int) -> Any:
    """Return the copy (ENTRY) that is taken next, which is done."""
    copies = copies_at(address)
    return entries_at(copies.entries)[copies.taken % RING]


@inner
def take(address: int) -> None:
    """Take the copy that is done."""
    copies_at(address).taken += 1


@inner
def copy_next(address: int, clock: int) -> bool:
    """Do the next copy, if there is one; wake who puts them if it has something to do then."""
    copies = copies_at(address)
    number = copies.claimed
    fence()
    while number != copies.put and not _swap(address + _CLAIMED, number, number + 1):
        number = copies.claimed
        fence()
    if number == copies.put:
        return False
    entries = entries_at(copies.entries)
    entry = entries[number % RING]
    if entry.began_at:
        int64s(entry.began_at)[0] = _now(address, clock)
    _memcpy(entry.to, entry.source, entry.length)
    entry.done_ns = _now(address, clock)
    is_told = entry.is_last != 0
    fence()
    entry.is_done = 1
    fence()
    # What was done before its turn waits for this one.
    is_told = is_told or (number + 1 != copies.put and entries[(number + 1) % RING].is_done != 0)
    is_told = is_told or (copies.has_more != 0 and copies.put - copies.claimed <= _LOW)
    asleep = int64s(copies.asleep_at)
    if is_told and asleep[0]:
        asleep[0] = 0
        _eventfd_write(copies.bell_fd, 1)
    return True


@njit
def serve(address: int, clock: int) -> None:
    """Do copies until the end is said."""
    copies = copies_at(address)
    while not copies.is_stopping:
        if copy_next(address, clock):
            continue
        _add(address + _SLEEPS, 1)
        # If there is one by now, the thread does not sleep, and will be woken once in vain.
        if copies.put == copies.claimed and not copies.is_stopping:
            began = _now(address, clock)
            _eventfd_read(copies.fd, clock)
            _add(address + _SLEPT, _now(address, clock) - began)


def copy_threads() -> int:
    """Return how many threads copy: half of the processors that we may use, so that drives and data have the rest."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // 2))


class Copiers:
    """The threads that copy, and what they share with who puts copies."""

    def __init__(self, sink: tuple[int, int]) -> None:
        """Start no thread yet; reads are copied to `sink`: address and bytes."""
        self.threads = copy_threads()
        self._kept = [np.zeros(1, COPIES), np.zeros(RING, ENTRY), np.zeros((self.threads, 2), np.int64)]
        copies, entries, self._clocks = self._kept
        self.copies = fields_of(copies)
        self.address = int(copies.ctypes.data)
        self.copies.entries, self.copies.threads = int(entries.ctypes.data), self.threads
        self.copies.sink, self.copies.sink_bytes = sink
        self.copies.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._running: list[threading.Thread] = []

    @property
    def is_busy(self) -> bool:
        """Whether a copy was put and not taken."""
        return bool(self.copies.put != self.copies.taken)

    def start(self, asleep_at: int, bell_fd: int) -> None:
        """Start the threads; whoever puts copies is woken by `bell_fd` if the int64 at `asleep_at` is not 0."""
        self.copies.asleep_at, self.copies.bell_fd = asleep_at, bell_fd
        for clock in self._clocks:
            thread = threading.Thread(
                target=serve, args=(self.address, int(clock.ctypes.data)), name="kvreplay-copy", daemon=True
            )
            thread.start()
            self._running.append(thread)

    def awake_ns(self, wall_ns: int) -> int:
        """Return how long the threads, which have ended, were not asleep in a run of `wall_ns`, together."""
        return max(0, self.threads * wall_ns - int(self.copies.slept_ns))

    def close(self) -> None:
        """End the threads after the copies they are at."""
        self.copies.is_stopping = 1
        os.eventfd_write(self.copies.fd, len(self._running) + 1)
        for thread in self._running:
            thread.join()
        os.close(self.copies.fd)
