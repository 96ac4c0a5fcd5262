"""The space of one file or device: its header block, and extents, the lowest free one that is long enough.

The header says that the target is ours and how far it has been written: by it a later run knows the leftovers of a
killed one, and need not write again what is already written.
"""

from __future__ import annotations

import errno
import threading
import zlib
from array import array
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.allocator import FreeSpace, give, take
from kvtrace.core.compiled import njit
from kvtrace.core.units import format_bytes

_FEW = 1024
_NOWHERE = -1


class Space:
    """Where each object lies in `size_bytes`; called from many threads."""

    def __init__(self, size_bytes: int, unit_bytes: int, reserved_bytes: int) -> None:
        """Hand out whole units of `unit_bytes`; the first `reserved_bytes`, whole units too, are never handed out."""
        from kvtrace.core import allocator

        if unit_bytes % allocator.GRANULE_BYTES:
            raise ValueError(f"unit_bytes(={unit_bytes}) must be a multiple of {allocator.GRANULE_BYTES}")
        self._allocator, self._size_bytes, self._unit_bytes = allocator, size_bytes, unit_bytes
        self._free = allocator.new_space(_FEW)
        self._lock = threading.Lock()
        # By object id: 16 bytes each, where a dictionary takes 150.
        self._starts, self._lengths = array("q"), array("q")
        self._objects = self._live_bytes = 0
        self.highest_bytes = 0
        """The end of the highest byte that was ever handed out."""
        # Both are compiled at their first call, which must not lie in a run.
        allocator.release(self._free, self._allocate(unit_bytes), unit_bytes)
        self._allocate(reserved_bytes)

    def _allocate(self, length: int) -> int:
        return int(self._allocator.allocate(self._free, length))

    def start(self, object_id: int) -> int:
        """Return where an object begins; FileNotFoundError if it is not there."""
        start = self._starts[object_id] if object_id < len(self._starts) else _NOWHERE
        if start < 0:
            raise FileNotFoundError(errno.ENOENT, f"object {object_id} is not there")
        return start

    def starts(self, objects: int) -> Any:
        """Return int64 for each of `objects`: where it begins, or a negative number."""
        import numpy as np

        found = np.full(objects, _NOWHERE, np.int64)
        with self._lock:
            count = min(objects, len(self._starts))
            found[:count] = self._starts[:count]
        return found

    def extent(self, object_id: int) -> tuple[int, int]:
        """Return where an object begins and how long it is; FileNotFoundError if it is not there."""
        return self.start(object_id), self._lengths[object_id]

    def reserve(self, object_id: int, length: int) -> None:
        """Hand out an extent of `length` bytes, rounded up; an object that has one as long keeps it.

        Raises:
            OSError: no free extent is long enough, or the object has a shorter one.

        """
        length = -(-length // self._unit_bytes) * self._unit_bytes
        with self._lock:
            self._make_room(object_id)
            if self._starts[object_id] >= 0:
                if self._lengths[object_id] < length:
                    raise OSError(errno.EFBIG, f"object {object_id} has {self._lengths[object_id]} bytes, not {length}")
                return
            start = self._allocate(length)
            if start + length > self._size_bytes:
                self._allocator.release(self._free, start, length)
                raise OSError(errno.ENOSPC, self._full(length))
            self._starts[object_id], self._lengths[object_id] = start, length
            self._objects += 1
            self._live_bytes += length
            self.highest_bytes = max(self.highest_bytes, start + length)

    def reserve_all(self, objects: Any, lengths: Any) -> tuple[Any, list[tuple[int, OSError]]]:
        """Do what `reserve` does for each of `objects` (int64).

        Returns where they begin (int64; negative: nowhere), and the index of each that failed, and why.
        """
        import numpy as np

        wanted, failed, done = -(-lengths // self._unit_bytes) * self._unit_bytes, [], 0
        begins = np.full(len(objects), _NOWHERE, np.int64)
        while done < len(objects):
            with self._lock:
                self._make_room(int(objects[done:].max()), len(objects) - done)
                starts, known = (np.frombuffer(numbers, np.int64) for numbers in (self._starts, self._lengths))
                counts = np.zeros(3, np.int64)
                done = _reserve_all(self._free, starts, known, objects, wanted, begins, done, self._size_bytes, counts)
                # The array cannot grow as long as someone looks at it.
                del starts, known
                self._objects += int(counts[0])
                self._live_bytes += int(counts[1])
                self.highest_bytes = max(self.highest_bytes, int(counts[2]))
            if done < len(objects):
                try:
                    self.reserve(int(objects[done]), int(lengths[done]))
                except OSError as error:
                    failed.append((done, error))
                done += 1
        return begins, failed

    def _make_room(self, object_id: int, more: int = 1) -> None:
        if object_id >= len(self._starts):
            nowhere = array("q", [_NOWHERE]) * (object_id + 1 - len(self._starts) + len(self._starts) // 2)
            self._starts.extend(nowhere)
            self._lengths.extend(nowhere)
        # There can be one free extent more than objects, and the allocator takes two for itself on the way.
        while self._objects + more + 3 > self._free.room:
            self._free.grow()

    def _full(self, length: int) -> str:
        return (
            f"no free extent of {format_bytes(length)}: {self._objects:,} objects hold "
            f"{format_bytes(self._live_bytes)} of {format_bytes(self._size_bytes)}; name a larger target"
        )

    def release(self, object_id: int) -> None:
        """Take an object's extent back; FileNotFoundError if it has none."""
        with self._lock:
            start, length = self.extent(object_id)
            self._starts[object_id] = _NOWHERE
            self._allocator.release(self._free, start, length)
            self._objects -= 1
            self._live_bytes -= length


@njit
def _reserve_all(
    free: FreeSpace,
    starts: Any,
    lengths: Any,
    objects: Any,
    wanted: Any,
    begins: Any,
    first: int,
    size_bytes: int,
    counts: Any,
) -> int:
    """Hand out extents of `wanted` bytes to `objects` from `first` on, up to one that fails; return how far it went.

    `begins` takes where they begin. `counts` (int64) are added to: new objects, their bytes; the highest end.
    """
    for i in range(first, len(objects)):
        one, length = objects[i], wanted[i]
        if starts[one] >= 0:
            if lengths[one] < length:
                return i
            begins[i] = starts[one]
            continue
        start = take(free, length)
        if start + length > size_bytes:
            give(free, start, length)
            return i
        starts[one], lengths[one], begins[i] = start, length, start
        counts[0] += 1
        counts[1] += length
        counts[2] = max(counts[2], start + length)
    return len(objects)


_MAGIC = b"Written by kvreplay: this file or device is its own and will be overwritten.\n"
_CRC_BYTES = 4
HEADER_BYTES = 4096
"""Of a file's header; a device's is one of its blocks if those are longer."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a target of ours says of itself."""

    filled_bytes: int
    """From the start on, all of it has been written since it was allocated or discarded."""


def encode_header(header: Header, block_bytes: int) -> bytes:
    """Return `header` as a block of `block_bytes`; a checksum over all of it ends it."""
    body = (_MAGIC + msgspec.json.encode(header) + b"\n").ljust(block_bytes - _CRC_BYTES, b"\0")
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def read_header(path: Path, block_bytes: int = HEADER_BYTES) -> Header | None:
    """Return the header of the file at `path`; None if it has none of ours."""
    try:
        with path.open("rb") as file:
            return decode_header(file.read(block_bytes))
    except OSError:
        return None


def decode_header(block: bytes) -> Header | None:
    """Return the header in `block`; None if it is not ours, or changed since."""
    body, crc = block[:-_CRC_BYTES], block[-_CRC_BYTES:]
    if not body.startswith(_MAGIC) or zlib.crc32(body) != int.from_bytes(crc, "little"):
        return None
    try:
        return msgspec.json.decode(body[len(_MAGIC) :].rstrip(b"\0"), type=Header)
    except msgspec.MsgspecError:
        return None
