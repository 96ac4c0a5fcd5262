"""LMCache's traces (`.lct`): a header, and then a record for each call or event.

The file is frames of a 4-byte big-endian length and so many bytes of MessagePack. The level of a
trace says what its records are: calls of the storage manager ("storage"), or tasks of the adapter
of the second level ("l2").
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import place_of
from kvtrace.core.json_types import JsonObject

MAGIC: Final = b"LMCT"
_FORMAT: Final = 1
_LENGTH: Final = struct.Struct(">I")
_MOST_BYTES: Final = 1 << 28

_Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**31)]


class TraceHeader(msgspec.Struct, tag="header"):
    """The first frame of a trace."""

    magic: bytes
    format_version: int
    level: str
    t_wall_start: _Seconds = 0.0
    """Unix time of the start, from which the times of records count."""


class TraceRecord(msgspec.Struct, tag="record"):
    """One call or event."""

    t_mono: _Seconds
    qualname: str
    args: JsonObject


class LmcacheTrace:
    """The records of one trace."""

    def __init__(self, path: Path, level: str) -> None:
        """Read the trace at `path`, which must be of `level`."""
        need_file(path)
        self.path = path
        self._level = level
        self._digest = hashlib.sha256()
        self.header = TraceHeader(MAGIC, _FORMAT, level)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the frames read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[tuple[int, TraceRecord]]:
        """Yield the records with their numbers, from 1.

        Raises:
            TraceError: if the header is of another format or level, or a record is damaged.
        """
        header_decoder = msgspec.msgpack.Decoder(TraceHeader)
        record_decoder = msgspec.msgpack.Decoder(TraceRecord)
        for number, frame in enumerate(self._frames()):
            try:
                if number:
                    yield number, record_decoder.decode(frame)
                else:
                    self.header = header_decoder.decode(frame)
                    self._check_header()
            except msgspec.ValidationError as error:
                message, place = place_of(error)
                raise TraceError(message, path=self.path, row=number, column=place) from None
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise TraceError(f"not MessagePack: {error}", path=self.path, row=number) from None

    def _check_header(self) -> None:
        header = self.header
        if (header.magic, header.format_version, header.level) == (MAGIC, _FORMAT, self._level):
            return
        text = f"magic {header.magic!r}, format {header.format_version}, level {header.level!r}"
        advice = "; read traces of level 'l2' with kvdistill import lmcache-l2"
        raise TraceError(
            f"{text}, expected LMCT, {_FORMAT} and {self._level}"
            f"{advice if header.level == 'l2' else ''}",
            path=self.path,
        )

    def _frames(self) -> Iterator[bytes]:
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            number = bytes_read = 0
            while prefix := file.read(_LENGTH.size):
                is_whole = len(prefix) == _LENGTH.size
                length = _LENGTH.unpack(prefix)[0] if is_whole else _MOST_BYTES + 1
                bytes_read += _LENGTH.size + length
                if length > _MOST_BYTES or bytes_read > size:
                    raise TraceError(
                        "the file ends within this record, or is damaged",
                        path=self.path,
                        row=number,
                    )
                frame = file.read(length)
                self._digest.update(prefix)
                self._digest.update(frame)
                yield frame
                number += 1


def untagged(value: Any) -> Any:
    """Return `value` without the tags that LMCache wraps its own types in.

    A tagged value is {"__t__": type, "v": value}.
    """
    if isinstance(value, dict):
        if "__t__" in value:
            return untagged(value.get("v"))
        return {name: untagged(inner) for name, inner in value.items()}
    return [untagged(inner) for inner in value] if isinstance(value, list) else value
