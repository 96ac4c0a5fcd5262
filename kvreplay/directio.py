"""Whether O_DIRECT is really in force on a directory: tried, read back from the kernel, never assumed."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.core.errors import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

ALIGNMENT = 4096
# linux/stat.h, since Linux 6.1: where struct statx holds the mask and the two alignments.
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_DIO_MEM_ALIGN, _DIO_OFFSET_ALIGN = 152, 156
_AT_EMPTY_PATH = 0x1000


@dataclass(frozen=True, slots=True)
class DirectIo:
    """What the kernel says of direct I/O on one file of the target."""

    is_confirmed: bool
    """O_DIRECT stands in the open file's flags, and an aligned write and read went through."""
    memory_alignment_bytes: int | None
    """From statx; null where the kernel does not tell."""
    offset_alignment_bytes: int | None


def statx_alignment(fd: int) -> tuple[int, int] | None:
    """Return the memory and offset alignment that statx reports for `fd`; None where it does not."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    result = (ctypes.c_char * _STATX_BYTES)()
    if statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, result) != 0:
        return None
    raw = bytes(result)
    if not int.from_bytes(raw[:4], "little") & _STATX_DIOALIGN:
        return None
    memory, offset = (int.from_bytes(raw[at : at + 4], "little") for at in (_DIO_MEM_ALIGN, _DIO_OFFSET_ALIGN))
    return memory, offset


def probe(directory: Path, target: str) -> DirectIo:
    """Write and read one block of a file in `directory` with O_DIRECT; DeviceError if that is refused."""
    advice = "name a directory on another filesystem, or say --buffered (the page cache will then answer)"
    path = directory / "probe.kv"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DeviceError(f"{target}: its filesystem refuses O_DIRECT ({error.strerror}); {advice}") from None
    try:
        reported = statx_alignment(fd)
        if reported is not None and (reported[1] == 0 or max(reported) > ALIGNMENT):
            raise DeviceError(f"{target}: direct I/O needs an alignment we do not use {reported}; {advice}")
        with mmap.mmap(-1, ALIGNMENT) as block:
            block[:] = os.urandom(ALIGNMENT)
            os.pwrite(fd, block, 0)
            with mmap.mmap(-1, ALIGNMENT) as back:
                came = os.preadv(fd, [back], 0)
                is_same = came == ALIGNMENT and back[:] == block[:]
        is_direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
        if not (is_same and is_direct):
            raise DeviceError(f"{target}: O_DIRECT was taken but is not in force; {advice}")
    except OSError as error:
        raise DeviceError(f"{target}: direct I/O fails there ({error.strerror}); {advice}") from None
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
    return DirectIo(is_direct, *(reported or (None, None)))
