"""Rows that a gateway or an observability tool exported, as JSON or as CSV.

JSON is an object a line, an array of objects, or a page of an API: an object whose `data` are the
rows, or whose `observations` are, where it is a whole trace. A CSV has a header; a cell that begins
as JSON (an object, or a text in quotes) is decoded.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from kvtrace.core.files import decode_json, place_of
from kvtrace.core.text import LINE_BYTES, utf8_lines
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.json_lines import JsonLines, wall_ns
from kvtrace.requests.requests import MAX_CLOCK_NS, MAX_TOKENS
from kvtrace.requests.source_files import start_of

T = TypeVar("T", bound=msgspec.Struct)
CountOrFloat = Annotated[float, msgspec.Meta(ge=0, le=MAX_TOKENS)]
"""A count of tokens; pandas writes a column with a gap as floats: 17.0."""
_SHOWN_MODELS: Final = 5


class ExportedRows(JsonLines[T]):
    """The rows of an export as `T`, a struct whose `data` is a list of `T` in a page of an API."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        """Read the export at `path`."""
        super().__init__(path, kind, may_be_indented=True)
        self.is_page = False

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Yield each row with its number, from 1; in a CSV that is the line at which it ends.

        Raises:
            TraceError: for a row that is not a `T`.
        """
        if start_of(self.path).text[:1] not in (b"{", b"["):
            yield from self._rows_of_csv()
            return
        for number, row in super().__iter__():
            page: list[T] | None = getattr(row, "data", None)
            whole: list[T] | None = getattr(row, "observations", None)
            self.is_page |= page is not None
            if page is None and whole is None:
                yield number, row
            else:
                yield from enumerate(page or whole or [], 1)

    def _rows_of_csv(self) -> Iterator[tuple[int, T]]:
        # A cell may hold a whole prompt, over several lines.
        csv.field_size_limit(LINE_BYTES)
        cells = csv.reader(self._text_lines())
        names = [name.strip() for name in next(cells, [])]
        wanted = {field.encode_name for field in msgspec.structs.fields(self._kind)}
        while True:
            try:
                row = next(cells, None)
            except csv.Error as error:
                raise self.fault(f"not CSV: {error}", cells.line_num, None) from None
            if row is None:
                return
            if len(row) != len(names):
                if not row:
                    continue
                problem = f"{len(row)} cells, but the header has {len(names)}"
                raise self.fault(problem, cells.line_num, None)
            fields = {
                name: self._value(cell, cells.line_num)
                for name, cell in zip(names, row, strict=True)
                if cell and name in wanted
            }
            try:
                yield cells.line_num, msgspec.convert(fields, self._kind, strict=False)
            except msgspec.ValidationError as error:
                message, field = place_of(error)
                raise self.fault(message, cells.line_num, field) from None

    def _text_lines(self) -> Iterator[str]:
        for number, line in enumerate(utf8_lines(self.path), 1):
            self._digest.update(line)
            try:
                yield line.decode()
            except UnicodeDecodeError:
                raise self.fault("not UTF-8", number, None) from None

    def _value(self, cell: str, number: int) -> object:
        """Return the value of a cell of line `number`; objects and quoted texts are JSON."""
        if not cell.startswith(("{", '"')):
            return cell
        # ClickHouse, from which Langfuse exports, writes the keys of a map in single quotes.
        cell = cell.replace("'", '"') if cell.startswith("{'") else cell
        return decode_json(cell, msgspec.json.Decoder(), self.path, row=number)

    def count(self, value: float | None, number: int, column: str) -> int:
        """Return a count of tokens that may be written as a float; None is 0.

        Raises:
            TraceError: if it is not a whole number.
        """
        if value is not None and not float(value).is_integer():
            raise self.fault(f"{value!r} is not a count", number, column)
        return int(value or 0)

    def time_ns(self, time: float | str, number: int, column: str) -> int:
        """Return the ns since 1970 of `time`, in seconds or as an ISO text of UTC."""
        try:
            seconds = float(time)
        except ValueError:
            return wall_ns(str(time), self, number, column)
        if not 0 <= seconds <= MAX_CLOCK_NS / NS_PER_S:
            raise self.fault(f"{time!r} is not a time", number, column)
        # The product of a time of today and 10^9 is rounded to 256 ns.
        return int(seconds) * NS_PER_S + round(seconds % 1 * NS_PER_S)


def models_note(models: Counter[str]) -> list[str]:
    """Return a note if the requests of an export are of several models."""
    if len(models) < 2:  # noqa: PLR2004 - several
        return []
    names = [f"{name or 'unnamed'} ({count})" for name, count in models.most_common(_SHOWN_MODELS)]
    rest = len(models) - len(names)
    text = ", ".join(names) + (f" and {rest} more" if rest else "")
    return [f"requests of {len(models)} models are read as requests of one: {text}"]
