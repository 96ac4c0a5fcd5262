"""The first block of a file or device that is ours: says so, and how far it has been written.

By it a later run knows the leftovers of a killed one, and need not write again what is already written.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"Written by kvreplay: this file or device is its own and will be overwritten.\n"
_CRC_BYTES = 4
BLOCK_BYTES = 4096
"""Of a file's header; a device's is one of its blocks if those are longer."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a target of ours says of itself."""

    filled_bytes: int
    """From the start on, all of it has been written since it was allocated or discarded."""


def encode(header: Header, block_bytes: int) -> bytes:
    """Return `header` as a block of `block_bytes`; a checksum over all of it ends it."""
    body = (_MAGIC + msgspec.json.encode(header) + b"\n").ljust(block_bytes - _CRC_BYTES, b"\0")
    return body + zlib.crc32(body).to_bytes(_CRC_BYTES, "little")


def read(path: Path, block_bytes: int = BLOCK_BYTES) -> Header | None:
    """Return the header of the file at `path`; None if it has none of ours."""
    try:
        with path.open("rb") as file:
            return decode(file.read(block_bytes))
    except OSError:
        return None


def decode(block: bytes) -> Header | None:
    """Return the header in `block`; None if it is not ours, or changed since."""
    body, crc = block[:-_CRC_BYTES], block[-_CRC_BYTES:]
    if not body.startswith(_MAGIC) or zlib.crc32(body) != int.from_bytes(crc, "little"):
        return None
    try:
        return msgspec.json.decode(body[len(_MAGIC) :].rstrip(b"\0"), type=Header)
    except msgspec.MsgspecError:
        return None
