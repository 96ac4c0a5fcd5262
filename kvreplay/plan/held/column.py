"""Columns as long as the longest trace, of which memory holds only what is in use.

A column is a mapping of its full length: an address a row for compiled code, and no memory until a row is written.
What is behind is given back to the kernel, page by page, and reads as 0 from then on. Tables that must be kept whole
lie in a file without a name where they are large, so that the kernel may write them out.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.errors import DeviceError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

_NORESERVE = 0x4000
"""MAP_NORESERVE of Linux: the length of the mapping counts as address space only."""
_PAGE = mmap.PAGESIZE
FILE_BYTES = 64 << 20
"""A table that is longer lies in a file."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mremap.restype = _libc.mmap.restype = ctypes.c_void_p
_MOVED = 1 | 2 | 4
"""MREMAP_MAYMOVE, MREMAP_FIXED and MREMAP_DONTUNMAP (since Linux 5.7): no other thread's mapping may come between."""
_AGAIN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE | 0x10
"""What `column` maps, with MAP_FIXED."""
_FAILED = ctypes.c_void_p(-1).value


def column(rows: int, dtype: DTypeLike) -> Any:
    """Return an array of `rows` zeros that takes memory where it is written."""
    kind = np.dtype(dtype)
    length = max(1, rows) * kind.itemsize
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    return np.frombuffer(mmap.mmap(-1, length, flags=flags), kind, rows)


def table(rows: int, dtype: DTypeLike) -> Any:
    """Return an array of `rows` zeros that the kernel may write out to the temporary folder if it is large.

    Raises:
        DeviceError: the folder takes no file.

    """
    kind = np.dtype(dtype)
    length = max(1, rows) * kind.itemsize
    if length <= FILE_BYTES:
        return column(rows, kind)
    try:
        with tempfile.TemporaryFile() as file:
            os.truncate(file.fileno(), length)
            return np.frombuffer(mmap.mmap(file.fileno(), length), kind, rows)
    except OSError as error:
        folder = tempfile.gettempdir()
        message = f"{folder}: a table of {length:,} bytes finds no place there; set TMPDIR"
        raise DeviceError(f"{message} ({error.strerror or error})") from None


def give_back(array: Any, start: int, end: int) -> int:
    """Give the memory of the rows from `start` to before `end` back, whole pages; return up to which row it was.

    All rows before `start` must have been given back, or never be read again.
    """
    place, size = array.ctypes.data, array.itemsize
    first, last = (at * size // _PAGE * _PAGE for at in (start, end))
    if last > first:
        _libc.madvise(place + first, last - first, mmap.MADV_DONTNEED)
    return last // size


def hand_on(array: Any, start: int, end: int, by: int, *, is_emptied: bool) -> None:
    """Give the memory of the rows from `start` to before `end`, as `give_back` does, to those `by` further on.

    They must not have been touched; `by` is a multiple of the page's bytes. They hold what stood there unless it
    `is_emptied`: to move a page and to write 0 there takes a tenth of what the kernel takes for a new one.
    """
    place, size = array.ctypes.data, array.itemsize
    first, last = (at * size // _PAGE * _PAGE for at in (start, end))
    length, to = last - first, first + by * size
    if last <= first:
        return
    if to + length > array.nbytes or _libc.mremap(place + first, length, length, _MOVED, place + to) == _FAILED:
        give_back(array, start, end)
        return
    # The kernel takes what was moved and what lies beside it for mappings of their own, of which it has some 65,000.
    if _libc.mmap(place + first, length, mmap.PROT_READ | mmap.PROT_WRITE, _AGAIN, -1, 0) == _FAILED:
        raise MemoryError(os.strerror(ctypes.get_errno()))
    if is_emptied:
        ctypes.memset(place + to, 0, length)


def let_go(array: Any) -> None:
    """Let the kernel have the memory of a `table`; what stands in it stays, and comes back as it is looked at."""
    if array.nbytes > FILE_BYTES:
        _libc.madvise(array.ctypes.data, array.nbytes, mmap.MADV_DONTNEED)
