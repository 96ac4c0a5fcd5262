"""An object's own file in compiled code: what it is called, and a whole operation on it by plain calls of the system.

All functions take the address of a FILES.
"""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
from numba.core import types

from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import array_at, inner, int32s, int64s, uint8s
from kvtrace.core.structures import record_at

_FIELDS = (
    # Addresses of an object's name with a zero at its end, of its DIGITs, of the directories' descriptors, and of
    # uint8 an object: its directory; 0 where there is one. `spread` is the hash's multiplier.
    "name name_bytes digits digit_count spread directories drive_of read_flags write_flags is_synced"
)
FILES = np.dtype([(name, np.int64) for name in _FIELDS.split()])
"""How the files of a tier are named and opened; `is_synced`: 1 if what was written is synchronized before the close."""
DIGIT = np.dtype([("at", np.int64), ("shift", np.int64), ("of_hash", np.int64)])
"""A hexadecimal digit of a name: how far left it lies in the object's id, or in its hash."""
MODE = 0o600
"""Of new files."""
_LOW_BITS, _LOW_DIGIT = (1 << 32) - 1, 15
_TEN, _ZERO, _LETTERS = 10, ord("0"), ord("a") - 10

files_at, _digits_at = record_at(FILES), array_at(DIGIT)
_openat: Any = types.ExternalFunction("openat", types.int32(types.int32, types.int64, types.int32, types.int32))
_unlinkat: Any = types.ExternalFunction("unlinkat", types.int32(types.int32, types.int64, types.int32))
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_pwrite: Any = types.ExternalFunction("pwrite", types.int64(types.int32, types.int64, types.int64, types.int64))
_fdatasync: Any = types.ExternalFunction("fdatasync", types.int32(types.int32))
_close: Any = types.ExternalFunction("close", types.int32(types.int32))
_errno_at: Any = types.ExternalFunction("__errno_location", types.int64())


@inner
def write_name(address: int, object_id: int, name: int) -> int:
    """Write the path of an object's file to `name`; return the descriptor of the directory that it is relative to."""
    files = files_at(address)
    template, text = uint8s(files.name), uint8s(name)
    for i in range(files.name_bytes):
        text[i] = template[i]
    # As `layout.mixed`.
    product = (object_id + 1) * files.spread
    hashed = product ^ (product >> 32 & _LOW_BITS)
    digits = _digits_at(files.digits)
    for i in range(files.digit_count):
        number = object_id
        if digits[i].of_hash:
            number = hashed
        digit = number >> digits[i].shift & _LOW_DIGIT
        text[digits[i].at] = digit + (_ZERO if digit < _TEN else _LETTERS)
    drive = int(uint8s(files.drive_of)[object_id]) if files.drive_of else 0
    directory: int = int64s(files.directories)[drive]
    return directory


@inner
def do_file(address: int, op: int, object_id: int, name: int, target: int, start: int, length: int) -> Any:
    """Do all of an operation on an object's file; return how much was moved, or an error as a negative number.

    `name` is room for its path, `target` where the data is or goes. A delete returns `length`.
    """
    files, result = files_at(address), length
    directory = write_name(address, object_id, name)
    if op == DELETE:
        return -_errno() if _unlinkat(directory, name, 0) < 0 else result
    fd = _opened(directory, name, files.write_flags if op == WRITE else files.read_flags)
    if fd < 0:
        return fd
    result = _pwrite(fd, target, length, start) if op == WRITE else _pread(fd, target, length, start)
    if result < 0 or (op == WRITE and files.is_synced and _fdatasync(fd) < 0):
        result = -_errno()
    if _close(fd) < 0 and result >= 0:
        result = -_errno()
    return result


@inner
def _opened(directory: int, name: int, how: int) -> Any:
    """Return a descriptor, or an error as a negative number; a signal is not one."""
    while True:
        fd = int(_openat(directory, name, how, MODE))
        if fd >= 0:
            return fd
        if _errno() != errno.EINTR:
            return -_errno()


@inner
def _errno() -> int:
    """Return why the last call failed."""
    return int(int32s(_errno_at())[0])
