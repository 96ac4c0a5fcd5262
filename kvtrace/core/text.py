"""Text files whose byte order mark names their encoding: PowerShell writes UTF-16, Excel a mark.

Everything here returns UTF-8 without a mark.
"""

from __future__ import annotations

import codecs
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvtrace.core.errors import TraceError

_UTF8_MARK = codecs.BOM_UTF8
_START_BYTES, _PIECE_BYTES = 1 << 16, 1 << 20
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_utf16(start: bytes) -> bool:
    """Return whether a file that begins with `start` is UTF-16."""
    return start.startswith(_UTF16_MARKS)


def has_byte_order_mark(path: Path) -> bool:
    """Return whether a file begins with the mark of UTF-8 or UTF-16."""
    with path.open("rb") as file:
        start = file.read(len(_UTF8_MARK))
    return start.startswith(_UTF8_MARK) or is_utf16(start)


def as_utf8(data: bytes) -> bytes:
    """Return text, or the start of a text, as UTF-8 without a byte order mark."""
    if is_utf16(data):
        return data.decode("utf-16", errors="replace").encode()
    return data.removeprefix(_UTF8_MARK)


LINE_BYTES = 64 << 20
"""A line of a text file is no longer.

A prompt of a million tokens, logged as text and as numbers, takes 12 MiB.
"""
DOCUMENT_BYTES = 4 << 30
"""A file that is read at once is no longer."""


def utf8_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file as UTF-8, with their line ends.

    TraceError for a line of more than LINE_BYTES, before more of it is read.
    """
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if is_utf16(start):
            with io.TextIOWrapper(file, encoding="utf-16", errors="replace") as text:
                number = 0
                while text_line := text.readline(LINE_BYTES + 1):
                    number += 1
                    _check_line(len(text_line), path, number)
                    yield text_line.encode()
            return
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            _check_line(len(line), path, number)
            yield line if number > 1 else line.removeprefix(_UTF8_MARK)


def _check_line(length: int, path: Path, number: int) -> None:
    if length > LINE_BYTES:
        limit = f"{LINE_BYTES >> 20} MiB"
        raise TraceError(
            f"this line is longer than {limit}: not a text file", path=path, row=number
        )


def read_bounded(path: Path) -> bytes:
    """Return the content of a file that must be read at once.

    TraceError if it is larger than DOCUMENT_BYTES, or neither a regular file nor a pipe. A pipe is
    read no further than that.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise TraceError("not a regular file", path=path)
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
        if b"\0" in start and not is_utf16(start):
            raise TraceError("its first 64 KiB hold NUL bytes: not a text file", path=path)
        parts, length = [start], len(start)
        # In pieces: Python takes memory for as much as is asked for.
        while piece := file.read(_PIECE_BYTES):
            parts.append(piece)
            length += len(piece)
            if length > DOCUMENT_BYTES:
                raise TraceError(f"larger than {DOCUMENT_BYTES >> 30} GiB", path=path)
    return b"".join(parts)


def open_utf8(path: Path) -> BinaryIO | Path:
    """Return what reads a file as UTF-8: the path itself, or for UTF-16 its text in memory."""
    with path.open("rb") as file:
        start = file.read(2)
        if not is_utf16(start):
            return path
    return io.BytesIO(as_utf8(read_bounded(path)))
