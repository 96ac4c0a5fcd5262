"""JSONL files as typed rows, each error placed by file, line and field: shared by the JSONL sources."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.requests.requests import need_file

T = TypeVar("T")

NAMED_LINES = 1000
_NAMES = msgspec.json.Decoder(dict[str, msgspec.Raw])


class JsonLines(Generic[T]):
    """The lines of one file as `T`; `sha256` is of all that was read so far."""

    def __init__(self, path: Path, kind: type[T], *, name_fields: bool = False) -> None:
        """Read `path`, a `kind` (a msgspec struct) a line; blank lines are skipped.

        With `name_fields`, `fields` are the names that the first thousand lines use, those that no `T` has included.
        """
        need_file(path)
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._digest = hashlib.sha256()
        self.fields: set[str] = set()
        self._named_lines = NAMED_LINES if name_fields else 0

    @property
    def sha256(self) -> str:
        """The SHA-256 of the lines read so far, in hexadecimal."""
        return self._digest.hexdigest()

    def fault(self, message: str, number: int, column: str | None) -> TraceError:
        """Return a TraceError about the field `column` of line `number`."""
        return TraceError(message, path=self.path, row=number, column=column)

    def misfit(self, ids: int, tokens: int, block_tokens: int, wanted: int, number: int) -> TraceError:
        """Return a TraceError for line `number`, whose `tokens` need `wanted` block ids, not `ids`."""
        needs = f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} need {wanted}"
        return self.fault(f"{needs}; another block size? (--block-tokens)", number, "hash_ids")

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each line and its number, from 1; TraceError for one that is no `T`."""
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                self._digest.update(text)
                if text.strip():
                    decoded = decode_json(text, self._decoder, self.path, row=number)
                    if number <= self._named_lines:
                        names = decode_json(text, _NAMES, self.path, row=number)
                        self.fields.update(names)
                    yield number, decoded


def unused_notes(fields: set[str], used: type[msgspec.Struct]) -> list[str]:
    """Return the note that names the `fields` of a file's rows that `used` has not; nothing if it has all."""
    left = sorted(fields.difference(used.__struct_fields__))
    return [f"fields of the file that are not used: {', '.join(left)}"] if left else []
