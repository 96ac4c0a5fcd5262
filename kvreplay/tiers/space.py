"""The space of one file or device: its header block, and extents, the lowest free one that is long enough.

The header says that the target is ours and how far it has been written: by it a later run knows the leftovers of a
killed one, and need not write again what is already written. Extents are given and taken back in C (`native/space.c`).
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.native.library import library
from kvtrace.core.units import format_bytes


class Space:
    """Where each object lies in `size_bytes`; the engine's threads share it."""

    def __init__(self, size_bytes: int, unit_bytes: int, reserved_bytes: int) -> None:
        """Hand out whole units of `unit_bytes`; the first `reserved_bytes`, whole units too, are never handed out."""
        self._lib, self._size_bytes = library(), size_bytes
        self._lib.space_open.restype = ctypes.c_void_p
        self._lib.space_reserve.restype = self._lib.space_find.restype = ctypes.c_int64
        sizes = map(ctypes.c_int64, (size_bytes, unit_bytes, reserved_bytes))
        self.address = int(self._lib.space_open(*sizes))
        """Of the structure."""

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._lib.space_close(ctypes.c_void_p(self.address))

    def expect(self, grown: Mapping[int, int]) -> None:
        """Note the final length of objects that grow: their extents are made that long."""
        for object_id, length in grown.items():
            self._call("space_expect", object_id, length)

    def _call(self, name: str, *numbers: int) -> int:
        return int(getattr(self._lib, name)(ctypes.c_void_p(self.address), *map(ctypes.c_int64, numbers)))

    def reserve(self, object_id: int, length: int) -> int:
        """Hand out an extent of `length` bytes, rounded up; return where it begins, or minus an errno.

        An object that has one as long keeps it. ENOSPC: no free extent is long enough; EFBIG: it has a shorter one.
        """
        return self._call("space_reserve", object_id, length)

    def reserve_all(self, objects: Any, lengths: Any) -> Any:
        """Reserve an extent for each of `objects` (int64 both)."""
        import numpy as np

        ids, wanted = (np.ascontiguousarray(each, np.int64) for each in (objects, lengths))
        starts = np.empty(len(ids), np.int64)
        places = [ctypes.c_void_p(each.ctypes.data) for each in (ids, wanted, starts)]
        self._lib.space_reserve_all(ctypes.c_void_p(self.address), *places, ctypes.c_int64(len(ids)))
        return starts

    def start(self, object_id: int) -> int:
        """Return where an object begins, or minus ENOENT."""
        return int(self._lib.space_find(ctypes.c_void_p(self.address), ctypes.c_int64(object_id), None))

    def release(self, object_id: int) -> int:
        """Take an object's extent back; return 0, or minus ENOENT."""
        return self._call("space_release", object_id)

    def _facts(self) -> tuple[int, int, int]:
        found = [ctypes.c_int64() for _ in range(3)]
        self._lib.space_facts(ctypes.c_void_p(self.address), *map(ctypes.byref, found))
        objects, live_bytes, highest_bytes = (each.value for each in found)
        return objects, live_bytes, highest_bytes

    @property
    def highest_bytes(self) -> int:
        """The end of the highest byte that was ever handed out."""
        return self._facts()[2]

    def why_no_room(self, object_id: int) -> str:
        """Return why an object finds no extent, and what to do."""
        objects, live_bytes, _ = self._facts()
        if self.start(object_id) >= 0:
            return f"object {object_id} has a shorter extent"
        return (
            f"no free extent is long enough: {objects:,} objects hold {format_bytes(live_bytes)} of "
            f"{format_bytes(self._size_bytes)}; name a larger target"
        )


_MAGIC = b"Written by kvreplay: this file or device is its own and will be overwritten.\n"
_CRC_BYTES = 4
HEADER_BYTES = 4096
"""Of a file's header; a device's is one of its blocks if those are longer."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The header block of a preallocated target."""

    filled_bytes: int
    """From the start on, all of it has been written since it was allocated or discarded."""


def encode_header(header: Header, block_bytes: int) -> bytes:
    """Return `header` as a block of `block_bytes`; a checksum over all of it ends it."""
    body = (_MAGIC + msgspec.json.encode(header) + b"\n").ljust(block_bytes - _CRC_BYTES, b"\0")
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def read_header(path: Path) -> Header | None:
    """Return the header of the file at `path`; None if it has none of ours."""
    try:
        with path.open("rb") as file:
            return decode_header(file.read(HEADER_BYTES))
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
