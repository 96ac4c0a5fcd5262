"""Text files whose byte order mark names their encoding: PowerShell writes UTF-16, Excel a mark.

Everything here returns UTF-8 without a mark.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_UTF8_MARK = codecs.BOM_UTF8
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


def utf8_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file as UTF-8, with their line ends."""
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if is_utf16(start):
            with io.TextIOWrapper(file, encoding="utf-16", errors="replace") as text:
                for text_line in text:
                    yield text_line.encode()
            return
        for number, line in enumerate(file):
            yield line if number else line.removeprefix(_UTF8_MARK)


def open_utf8(path: Path) -> BinaryIO | Path:
    """Return what reads a file as UTF-8: the path itself, or for UTF-16 its text in memory."""
    with path.open("rb") as file:
        start = file.read(2)
        if not is_utf16(start):
            return path
        file.seek(0)
        return io.BytesIO(as_utf8(file.read()))
