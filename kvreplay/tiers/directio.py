"""Support of direct I/O and write hints on a target, confirmed by trying them.

A file's writes carry a hint of how long their data lives (fcntl F_SET_RW_HINT, linux/fcntl.h). Each
write to a block device may name a stream (io_uring, from Linux 6.16 on), which the NVMe driver
passes on to the drive.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kvreplay.tiers.host import is_on_drive, queue_number
from kvtrace.core.errors import DeviceError

ALIGNMENT = 4096
# linux/stat.h, since Linux 6.1: where struct statx holds the mask and the two alignments.
_STATX_DIOALIGN = 0x2000
_STATX_BYTES = 256
_DIO_MEM_ALIGN, _DIO_OFFSET_ALIGN = 152, 156
_AT_EMPTY_PATH = 0x1000


@dataclass(frozen=True, slots=True)
class DirectIo:
    """The kernel's report on direct I/O to one file of the target."""

    is_confirmed: bool
    """Whether the open file's flags have O_DIRECT, an aligned write and read succeeded, and a drive
    lies beneath.
    """
    memory_alignment_bytes: int | None
    """From statx; null if the kernel does not report it."""
    offset_alignment_bytes: int | None


def statx_alignment(fd: int) -> tuple[int, int] | None:
    """Return the memory and offset alignment that statx reports for `fd`; None if it does not."""
    statx = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if statx is None:
        return None
    result = (ctypes.c_char * _STATX_BYTES)()
    if statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, result) != 0:
        return None
    raw = bytes(result)
    if not int.from_bytes(raw[:4], "little") & _STATX_DIOALIGN:
        return None
    memory, offset = (
        int.from_bytes(raw[start : start + 4], "little")
        for start in (_DIO_MEM_ALIGN, _DIO_OFFSET_ALIGN)
    )
    return memory, offset


_ADVICE = "name another target, or use --buffered (I/O then goes through the page cache)"


def probe(directory: Path, target: str) -> DirectIo:
    """Write and read one block of a file in `directory` with O_DIRECT.

    DeviceError if that is refused.
    """
    path = directory / "probe.kv"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise refused(target, error) from None
    try:
        return confirm(fd, target, os.urandom(ALIGNMENT))
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


def refused(target: str, error: OSError) -> DeviceError:
    """Return the error for a target that cannot be opened with O_DIRECT."""
    if error.errno != errno.EINVAL:
        return DeviceError(f"{target}: {error.strerror}")
    return DeviceError(f"{target}: its filesystem refuses O_DIRECT ({error.strerror}); {_ADVICE}")


def confirm(fd: int, target: str, content: bytes) -> DirectIo:
    """Write `content`, whole blocks, to the start of a file open with O_DIRECT and read it back.

    DeviceError if that fails, or the kernel says that it was not direct.
    """
    try:
        reported = statx_alignment(fd)
        if reported is not None and (reported[1] == 0 or max(reported) > len(content)):
            raise DeviceError(
                f"{target}: direct I/O needs an alignment we do not use {reported}; {_ADVICE}"
            )
        with mmap.mmap(-1, len(content)) as block, mmap.mmap(-1, len(content)) as read_back:
            block[:] = content
            os.pwrite(fd, block, 0)
            bytes_read = os.preadv(fd, [read_back], 0)
            is_same = bytes_read == len(content) and read_back[:] == content
        is_direct = bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)
    except OSError as error:
        raise DeviceError(
            f"{target}: direct I/O fails there ({error.strerror}); {_ADVICE}"
        ) from None
    if not (is_same and is_direct):
        raise DeviceError(f"{target}: O_DIRECT was accepted but has no effect; {_ADVICE}")
    # Filesystems in memory accept the flag too, without any effect.
    return DirectIo(is_on_drive(Path(f"/proc/self/fd/{fd}").resolve()), *(reported or (None, None)))


def allocate(fd: int, length: int) -> None:
    """Give an open file `length` bytes of space, without writing any.

    If the filesystem does not support that, set only the length.
    """
    # Not posix_fallocate: if the filesystem does not allocate, that writes to each block instead.
    call = ctypes.CDLL(None, use_errno=True).fallocate
    if call(fd, 0, ctypes.c_int64(0), ctypes.c_int64(length)) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EOPNOTSUPP, errno.ENOSYS):
        raise OSError(code, os.strerror(code))
    os.ftruncate(fd, length)


F_SET_RW_HINT = 1036
LIFETIMES = ("short", "medium", "long", "extreme")
_SHORT = 2
"""RWH_WRITE_LIFE_SHORT, the first hint with a meaning; the others of LIFETIMES follow it."""
_MAX_STREAMS = 255
"""The largest stream number that the field of a request holds."""
HINTED, STREAMED = "F_SET_RW_HINT", "io_uring write_stream"


def why_no_hint(directory: str) -> str | None:
    """Return why files in `directory` take no hint; None if they do."""
    with tempfile.TemporaryFile(dir=directory) as file:
        try:
            fcntl.fcntl(file, F_SET_RW_HINT, struct.pack("=Q", _SHORT))
        except OSError as error:
            return f"F_SET_RW_HINT: {error.strerror}"
    return None


def device_streams(device: Path) -> int:
    """Return the number of write streams that the kernel offers on a block device.

    0 if it offers none, or is too old to report them.
    """
    return min(_MAX_STREAMS, queue_number(device, "max_write_streams") or 0)


def facts(mechanism: str, count: int, why_not: str | None) -> dict[str, object]:
    """Return the facts of a tier's streams for run.json.

    They are the mechanism and the number of streams passed on, or the reason why none were.
    """
    applied = None if why_not else mechanism
    numbers = {
        HINTED: f"stream n has the lifetime n modulo {count} of {', '.join(LIFETIMES)}",
        STREAMED: f"stream n is write stream 1 + n modulo {count}",
        None: None,
    }
    return {
        "applied": applied,
        "streams": count if applied else None,
        "numbers": numbers[applied],
        "why_not": why_not,
    }
