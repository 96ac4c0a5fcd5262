"""How a drive is told which writes belong together: what the kernel offers, and what a target takes of it.

A file's writes carry a hint of how long they live (fcntl F_SET_RW_HINT, linux/fcntl.h); each write to a block device
may name a stream (io_uring, from Linux 6.16 on), which the NVMe driver gives to a drive with FDP as a placement handle.
"""

from __future__ import annotations

import fcntl
import struct
import tempfile
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kvreplay.tiers.host import block_device, sys_text

F_GET_RW_HINT, F_SET_RW_HINT = 1035, 1036
LIFETIMES = ("short", "medium", "long", "extreme")
_SHORT = 2
"""Of RWH_WRITE_LIFE_SHORT, the first that says anything; the others of LIFETIMES follow."""
_HINT = struct.Struct("=Q")
_MOST_STREAMS = 255
"""What the field of a request holds."""
HINTED, STREAMED = "F_SET_RW_HINT", "io_uring write_stream"


@runtime_checkable
class PlacingTier(Protocol):
    """A tier on drives that may be told which writes belong together."""

    write_streams: int
    """How many streams each request of a ring may name; 0: none."""

    def place(self) -> None:
        """Take note, before `open`, that writes have streams."""


@runtime_checkable
class HintingTier(Protocol):
    """A tier whose own methods write, and that gives what they open the hint of a stream."""

    def begin_in(self, stream: int, object_id: int) -> Any:
        """Return a handle for writing the object as part of `stream`, as `begin` does."""


def placing(tier: object) -> PlacingTier | None:
    """Return `tier` if it may be told of streams, else None."""
    return tier if isinstance(tier, PlacingTier) else None


def set_hint(fd: int, stream: int) -> None:
    """Give the open file the lifetime that stands for `stream`; OSError if its filesystem takes none."""
    fcntl.fcntl(fd, F_SET_RW_HINT, _HINT.pack(_SHORT + stream % len(LIFETIMES)))


def hint_of(fd: int) -> str | None:
    """Return the lifetime that an open file has; None without."""
    (hint,) = _HINT.unpack(fcntl.fcntl(fd, F_GET_RW_HINT, _HINT.pack(0)))
    return LIFETIMES[hint - _SHORT] if hint >= _SHORT else None


def why_no_hint(directory: str) -> str | None:
    """Return why files in `directory` take no hint; None if they do."""
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            set_hint(file.fileno(), 0)
        except OSError as error:
            return f"F_SET_RW_HINT: {error.strerror}"
    return None


def device_streams(device: Path) -> int:
    """Return how many write streams the kernel offers on a block device; 0 if none, or if it knows of none."""
    disk = block_device(device)
    text = None if disk is None else sys_text(disk / "queue" / "max_write_streams")
    return min(_MOST_STREAMS, int(text)) if text else 0


def facts(applied: str | None, count: int = 0, why_not: str | None = None) -> dict[str, Any]:
    """Return what run.json says of a tier's streams: how they were passed on, as how many, or why not."""
    numbers = {
        HINTED: f"stream n has the lifetime n modulo {count} of {', '.join(LIFETIMES)}",
        STREAMED: f"stream n is write stream 1 + n modulo {count}",
        None: None,
    }
    return {"applied": applied, "streams": count or None, "numbers": numbers[applied], "why_not": why_not}
