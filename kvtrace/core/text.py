"""Text files in UTF-8 or UTF-16; a byte order mark at their start tells the encoding.

PowerShell writes UTF-16, Excel writes UTF-8 with a mark. All functions here return UTF-8 without a
mark.
"""

from __future__ import annotations

import codecs
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from kvtrace.core.errors import TraceError
from kvtrace.core.reading_forecast import ReadingForecast

_UTF8_MARK = codecs.BOM_UTF8
_START_BYTES, _CHUNK_BYTES = 1 << 16, 1 << 20
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def is_utf16(start: bytes) -> bool:
    """Return whether a file is UTF-16; `start` are its first bytes."""
    return start.startswith(_UTF16_MARKS)


def has_byte_order_mark(path: Path) -> bool:
    """Return whether a file begins with the mark of UTF-8 or UTF-16."""
    with path.open("rb") as file:
        start = file.read(len(_UTF8_MARK))
    return start.startswith(_UTF8_MARK) or is_utf16(start)


def as_utf8(data: bytes) -> bytes:
    """Return text, or the start of a text, as UTF-8 without a byte order mark.

    `data` begins with the first byte of the file.
    """
    if is_utf16(data):
        return data.decode("utf-16", errors="replace").encode()
    return data.removeprefix(_UTF8_MARK)


LINE_BYTES = 64 << 20
"""Largest line of a text file.

A prompt of a million tokens, logged as text and as numbers, takes 12 MiB.
"""
DOCUMENT_BYTES = 4 << 30
"""Largest file that is read at once."""


def utf8_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file as UTF-8, with their line ends.

    TraceError for a line of more than LINE_BYTES; the remainder of such a line is not read.
    OutOfMemory if what the caller keeps of the lines will not fit into memory.
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
        forecast = ReadingForecast(path)
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            _check_line(len(line), path, number)
            yield line if number > 1 else line.removeprefix(_UTF8_MARK)
            forecast.add_line(len(line))


def _check_line(length: int, path: Path, number: int) -> None:
    """Raise TraceError if the line `number` of `path` is too long."""
    if length > LINE_BYTES:
        limit = f"{LINE_BYTES >> 20} MiB"
        raise TraceError(
            f"this line is longer than {limit}: not a text file", path=path, row=number
        )


def read_bounded(path: Path) -> bytes:
    """Return the content of a text file that must be read at once.

    TraceError if it is not text, is larger than DOCUMENT_BYTES, or is neither a regular file nor a
    pipe. A pipe is not read beyond that size.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise TraceError("not a regular file", path=path)
    with path.open("rb") as file:
        start = file.read(_START_BYTES)
        if b"\0" in start and not is_utf16(start):
            raise TraceError("its first 64 KiB hold NUL bytes: not a text file", path=path)
        chunks, length = [start], len(start)
        # One read of DOCUMENT_BYTES would allocate that much memory even for a small file.
        while chunk := file.read(_CHUNK_BYTES):
            chunks.append(chunk)
            length += len(chunk)
            if length > DOCUMENT_BYTES:
                raise TraceError(f"larger than {DOCUMENT_BYTES >> 30} GiB", path=path)
    return b"".join(chunks)


def open_utf8(path: Path) -> BinaryIO | Path:
    """Return a source from which a file can be read as UTF-8.

    It is the path itself, or, if the file is UTF-16, its text in memory.
    """
    with path.open("rb") as file:
        start = file.read(2)
        if not is_utf16(start):
            return path
    return io.BytesIO(as_utf8(read_bounded(path)))
