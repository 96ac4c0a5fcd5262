"""CSV files of requests by column name, as Arrow columns, each error placed by file, line and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.core.csv import csv_fault
from kvtrace.core.errors import TraceError
from kvtrace.requests.requests import MAX_TOKENS, Ints, need_file

# The first data row is on line 2.
FIRST_LINE = 2
_BLOCK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """The columns read from one CSV, Arrow chunked arrays by name, and the names of those that were not."""

    path: Path
    arrays: dict[str, Any]
    others: tuple[str, ...]

    def tokens(self, name: str) -> Ints:
        """Return the token counts of column `name`; TraceError if one is negative or too large."""
        values: Ints = self.arrays[name].to_numpy()
        self.refuse(name, (values < 0) | (values > MAX_TOKENS), values, f"must be from 0 to {MAX_TOKENS} tokens")
        return values

    def refuse(self, name: str, is_wrong: Any, values: Any, why: str) -> None:
        """Raise TraceError for the first row of column `name` that `is_wrong`, a boolean array."""
        wrong = np.flatnonzero(is_wrong)
        if len(wrong):
            raise TraceError(f"{values[wrong[0]]} {why}", path=self.path, row=int(wrong[0]) + FIRST_LINE, column=name)


def header_of(path: Path) -> list[str]:
    """Return the names in the first line of the CSV at `path`; TraceError if it is empty or no text."""
    need_file(path)
    with path.open("rb") as file:
        line = file.readline(1 << 16)
    if not line.strip():
        raise TraceError("empty: it has no header", path=path)
    try:
        names = line.decode("utf-8-sig").strip().split(",")
    except UnicodeDecodeError:
        raise TraceError("not a text file", path=path, row=1) from None
    return [name.strip().strip('"') for name in names]


def read_columns(path: Path, required: Mapping[str, Any], optional: Mapping[str, Any]) -> CsvColumns:
    """Return the columns of the CSV at `path`, whose names and Arrow types are `required` or `optional`.

    No required cell may be empty; a cell of an optional column may. Memory is that of the columns.

    Raises:
        TraceError: the header lacks a required name or has one twice, or a line does not fit.

    """
    names = header_of(path)
    _check_header(path, names, list(required))
    wanted = {**required, **{n: t for n, t in optional.items() if n in names}}
    chunks = _read(path, names, wanted)
    for name in required:
        array = chunks[name]
        if array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy())[0])
            raise TraceError("empty, but it must have a value", path=path, row=row + FIRST_LINE, column=name)
    return CsvColumns(path, chunks, tuple(n for n in names if n not in wanted))


def in_time_order(times: Ints) -> tuple[Ints | None, int]:
    """Return the order that sorts `times`, equal ones staying as they are, and how many times went backwards.

    The order is None if they are sorted already.
    """
    backwards = int(np.count_nonzero(np.diff(times) < 0))
    return (np.argsort(times, kind="stable") if backwards else None), backwards


def _check_header(path: Path, names: Sequence[str], required: Sequence[str]) -> None:
    missing = [name for name in required if name not in names]
    if missing:
        raise TraceError(
            f"the header has no {' nor '.join(map(repr, missing))}; it reads {','.join(names)[:200]}", path=path, row=1
        )
    twice = [name for name in names if name and names.count(name) > 1]
    if twice:
        raise TraceError(f"the header names {twice[0]!r} twice", path=path, row=1)


def _read(path: Path, names: list[str], types: Mapping[str, Any]) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import csv

    batches = []
    try:
        with csv.open_csv(
            path,
            # Without threads an error names its row.
            read_options=csv.ReadOptions(column_names=names, skip_rows=1, use_threads=False, block_size=_BLOCK_BYTES),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True
            ),
        ) as reader:
            batches.extend(reader)
    except pa.ArrowInvalid as error:
        if "Empty CSV file" in str(error):
            raise TraceError("holds no request", path=path) from None
        raise _fault(error, names, path) from None
    if not batches:
        raise TraceError("holds no request", path=path)
    table = pa.Table.from_batches(batches)
    return {name: table.column(name) for name in types}


def _fault(error: Exception, names: list[str], path: Path) -> TraceError:
    """Return Arrow's `error`, its first sentence only, at its line (Arrow counts the skipped header as a row)."""
    first = str(error).split(". ", maxsplit=1)[0].split("\n", maxsplit=1)[0]
    return csv_fault(ValueError(first), names, path, 1)
