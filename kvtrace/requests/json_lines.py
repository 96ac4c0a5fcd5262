"""JSON files as typed rows: an object a line, or documents over several lines."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np

from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.text import as_utf8, read_bounded, utf8_lines
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.requests import MAX_BLOCK_ID, MAX_TOKENS
from kvtrace.requests.source_files import sha256_of

# 64 bits of ns go from 1678 to 2262.
_CLOCK = re.compile(r"(?:19|20|21)\d\d-\d\d-\d\d([T ][0-9:.]+)?")

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_ID)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**31)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=2**43)]

T = TypeVar("T")

_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ZONE = re.compile(r"(?:Z|([+-])([01]\d)(?::?([0-5]\d))?)$")
_BLANKS = re.compile(r"\s+")


class JsonLines(Generic[T]):
    """The lines of one file as `T`, with the SHA-256 of all lines read so far."""

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        name_fields: bool = False,
        may_be_indented: bool = False,
    ) -> None:
        """Read `path`, a `kind` (a msgspec struct) a line; blank lines are skipped.

        With `name_fields`, `fields` collects the names in the first thousand lines, including those
        that `T` lacks. With `may_be_indented`, the file may instead be documents over several lines
        each, or arrays of documents.
        """
        need_file(path)
        self.path = path
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)
        self._digest = hashlib.sha256()
        self.fields: set[str] = set()
        self._named_lines = 1000 if name_fields else 0
        self._may_be_indented = may_be_indented

    @property
    def sha256(self) -> str:
        """The SHA-256 of the lines read so far, in hexadecimal."""
        with self.path.open("rb") as file:
            start = file.read(4)
        # Lines of a file with a byte order mark were converted, and differ from its bytes.
        is_converted = as_utf8(start) != start
        return sha256_of(self.path) if is_converted else self._digest.hexdigest()

    def fault(self, message: str, number: int, column: str | None) -> TraceError:
        """Return a TraceError about the field `column` of line `number`."""
        return TraceError(message, path=self.path, row=number, column=column)

    def check_ids(
        self, ids: int, tokens: int, block_tokens: int, number: int, *, may_lack_last: bool = True
    ) -> None:
        """Raise TraceError for line `number` unless the number of `ids` fits its `tokens`.

        The id of a partial last block may be missing.
        """
        blocks_needed = -(-tokens // block_tokens)
        if ids != blocks_needed and not (may_lack_last and ids == tokens // block_tokens):
            problem = f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} need {blocks_needed}"
            raise self.fault(
                f"{problem}; another block size? ({named_parameter('block_tokens')})",
                number,
                "hash_ids",
            )

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line, decoded, and its number, from 1.

        Raises:
            TraceError: for a line that is not a `T`.
        """
        if self._may_be_indented and not self._has_a_document_a_line():
            yield from self._whole_file()
            return
        for number, line in enumerate(utf8_lines(self.path), 1):
            self._digest.update(line)
            if line.strip():
                decoded = decode_json(line, self._decoder, self.path, row=number)
                if number <= self._named_lines:
                    names: dict[str, msgspec.Raw] = decode_json(line, _NAMES, self.path, row=number)
                    self.fields.update(names)
                yield number, decoded

    def _has_a_document_a_line(self) -> bool:
        """Return whether the first line that is not blank is a JSON object of its own."""
        for line in utf8_lines(self.path):
            if text := line.strip():
                try:
                    return isinstance(
                        msgspec.json.decode(text, type=msgspec.Raw), msgspec.Raw
                    ) and (text.startswith(b"{"))
                except (msgspec.DecodeError, RecursionError):
                    return False
        return True

    def _whole_file(self) -> Iterator[tuple[int, T]]:
        """Yield the documents of a file that is read at once; an array holds one an element."""
        text = as_utf8(read_bounded(self.path))
        self._digest.update(text)
        number = 0
        for document in _json_documents(text):
            if document.startswith(b"["):
                items = decode_json(document, list[self._kind], self.path)  # type: ignore[name-defined]
            else:
                items = [decode_json(document, self._decoder, self.path)]
                if number < self._named_lines:
                    names: dict[str, msgspec.Raw] = decode_json(document, _NAMES, self.path)
                    self.fields.update(names)
            for item in items:
                number += 1
                yield number, item


def _json_documents(text: bytes) -> Iterator[bytes]:
    """Yield the JSON documents that follow each other in `text`; the last one may be damaged."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        rest, begin = text.decode(errors="replace").strip(), 0
        while begin < len(rest):
            try:
                _, end = json.JSONDecoder().raw_decode(rest, begin)
            except (ValueError, RecursionError):
                end = len(rest)
            yield rest[begin:end].encode()
            gap = _BLANKS.match(rest, end)
            begin = end if gap is None else gap.end()
    else:
        yield text.strip()


def wall_ns(text: str, lines: JsonLines[Any], number: int, column: str) -> int:
    """Return the ns since 1970 of the ISO time `text`; without a zone it is taken as UTC.

    TraceError, with its position, if it is not a time.
    """
    zone = _ZONE.search(text, 11)
    plain = text if zone is None else text[: zone.start()]
    offset_s = 0
    if zone is not None and zone[1]:
        offset_s = (int(zone[2]) * 60 + int(zone[3] or 0)) * (-60 if zone[1] == "-" else 60)
    try:
        # NumPy accepts zones with a warning, and takes "NaT" and an empty text for times.
        local = np.datetime64(plain if _CLOCK.fullmatch(plain) else "none", "ns")
        return int(local.astype(np.int64)) - offset_s * NS_PER_S
    except (ValueError, OverflowError):
        raise lines.fault(f"{text!r} is not a time", number, column) from None
