"""Checks the rows of a table as they are read, whatever the format of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from kvtrace.core import pa, pc
from kvtrace.core.errors import TraceError, first_line
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import MOST, OPS, TRACE, Column, Table, arrow_schema

_UNSUMMED_COLUMNS = ("offset_bytes", "size_bytes")
"""Columns in bytes that are nowhere added up, so that their sum has no limit."""
DENSE_SLACK = 1 << 24
"""How far the largest object number of a trace may exceed its number of rows.

Objects are numbered densely. Arrays by object number would take too much memory if a damaged file
could name any number.
"""


def max_object_number(rows: int, object_count: int) -> int:
    """Return the largest object number that a trace of `rows` rows may have.

    Objects are numbered in the order in which requests name them. An object that no tier stored
    has a number but no row in the trace, so the number of rows does not bound the numbers. The
    objects table, if the trace has one, lists all objects: `object_count` is its number of rows.
    """
    return max(rows + DENSE_SLACK, object_count - 1)


class RowCheck:
    """Checks the rows of one table as they are read, from Parquet or CSV.

    It checks types, nulls, closed sets, ranges and text. Readers yield only rows that passed, so
    that the code that works with rows need not check them again.
    """

    def __init__(self, table: Table, meta: Metadata, path: Path, object_count: int = 0) -> None:
        """Check rows of `table` as `meta` describes it; errors name `path`.

        `object_count` is the number of rows of a trace's objects table.
        """
        self.row = 0
        self._table, self._meta, self._path = table, meta, path
        self._max_object_number = max_object_number(meta.rows or 0, object_count)
        self.totals: dict[str, float] = {}
        """The sum of the values so far, by name of each column in bytes."""

    def start_at(self, row: int) -> RowCheck:
        """Return a check of the rows of the same file from the row `row` on."""
        check = copy(self)
        check.row, check.totals = row, {}
        return check

    def start_file(self, path: Path) -> RowCheck:
        """Return a check of the rows of `path`, the next of several files that hold the table."""
        check = self.start_at(0)
        check._path = path  # noqa: SLF001 - of this class
        return check

    def advance(self, check: RowCheck) -> None:
        """Count the rows of `check`, which started where this one stands.

        TraceError if a column in bytes then adds up to more than 4 EiB.
        """
        self._add_totals(check)
        self.row = check.row

    def omit(self, rows: int) -> None:
        """Count `rows` rows that are not read."""
        self.row += rows

    def advance_file(self, check: RowCheck) -> None:
        """Count the rows of `check`, which has checked a file, as `advance` does."""
        self._add_totals(check)
        self.row += check.row

    def _add_totals(self, check: RowCheck) -> None:
        for name, total in check.totals.items():
            self._add_total(self._table.column(name), total)

    def check_batch(self, columns: Mapping[str, Any], names: Sequence[str]) -> pa.RecordBatch:
        """Return the next rows with the columns `names` in the exact types of the table.

        `columns` are arrays by column name. A name that is not among them is an extra column, which
        gets its default. TraceError for a null, value or text that its column may not hold.
        """
        arrays = {
            name: self._checked_array(array, self._table.column(name))
            for name, array in columns.items()
        }
        extra_names = tuple(column.name for column in self._table.extras)
        table_schema = arrow_schema(self._table, extra_names)
        schema = pa.schema([table_schema.field(name) for name in names])
        rows = len(next(iter(arrays.values())))
        for field in schema:
            if field.name not in arrays:
                default = pa.scalar(self._table.column(field.name).default, field.type)
                arrays[field.name] = pa.repeat(default, rows)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
        self.row += batch.num_rows
        return batch

    def _checked_array(self, array: pa.Array, column: Column) -> pa.Array:
        """Return the values of `column` in its exact type; TraceError for one it may not hold."""
        if array.null_count and not column.nullable:
            index = _first_true(array.is_null())
            raise self._error_at(index, column, "empty, but this column must have a value")
        if column.type.startswith("int"):
            self._check_integers(array, column)
            return array
        if column.type == "float64":
            if not pc.all(pc.is_finite(array)).as_py() and array.null_count < len(array):
                index = pc.index(pc.is_finite(array), pa.scalar(value=False)).as_py()
                raise self._error_at(index, column, f"{array[index]} is no number")
            return array
        is_coded = column.type == "enum" and pa.types.is_dictionary(array.type)
        if is_coded and _has_exact_codes(array, column):
            return pa.DictionaryArray.from_arrays(
                array.indices.cast(pa.int8()), array.dictionary, safe=False
            )
        try:
            # Arrow does not check the text of a file. This call finds bytes that are not UTF-8.
            array.validate(full=True)
        except pa.ArrowException as error:
            message = f"damaged from here on: {first_line(error)}"
            raise self._error_at(0, column, message) from None
        return self._encode_values(array, column) if column.type == "enum" else array

    def _check_integers(self, array: pa.Array, column: Column) -> None:
        """Check the range of whole numbers, and the sum of those in bytes."""
        smallest, largest = pc.min_max(array).as_py().values()
        if smallest is None:
            return
        self._check_range(array, column, smallest, largest)
        if column.unit == "bytes" and column.name not in _UNSUMMED_COLUMNS:
            self._sum_bytes(array, column, largest)

    def _check_range(self, array: pa.Array, column: Column, smallest: int, largest: int) -> None:
        """Raise TraceError if a whole number is out of range; the extremes are those of `array`."""
        minimum, maximum, problem = column.least, column.most, "out of range"
        if self._table in (TRACE, OPS) and column.name == "tier":
            tier_names = [tier.name for tier in self._meta.tiers]
            maximum = len(tier_names) - 1
            problem = f"no tier: the metadata names {', '.join(tier_names) or 'none'}"
        elif self._table is TRACE and column.name == "object_id":
            maximum = self._max_object_number
            problem = f"not a dense number from 0, in a file of {self._meta.rows or 0} rows"
        is_too_small = minimum is not None and smallest < minimum
        if is_too_small or largest > maximum:
            is_wrong = pc.greater(array, maximum)
            allowed = f"at most {maximum}"
            if minimum is not None:
                is_wrong = pc.or_(pc.less(array, minimum), is_wrong)
                allowed = f"from {minimum} to {maximum}"
            index = _first_true(is_wrong)
            raise self._error_at(index, column, f"{array[index]} is {problem} ({allowed})")

    def _sum_bytes(self, array: pa.Array, column: Column, largest: int) -> None:
        """Add the bytes of `array` to the sum of `column`; TraceError if that is over 4 EiB."""
        if largest * len(array) > MOST:
            # The sum might not fit 64 bits: each row of a batch may have a PiB.
            array = array.cast("float64", safe=False)
        self._add_total(column, pc.sum(array).as_py())

    def _add_total(self, column: Column, total: float) -> None:
        """Add `total` to the sum of `column`; TraceError if that is more than 4 EiB."""
        self.totals[column.name] = self.totals.get(column.name, 0) + total
        if self.totals[column.name] > MOST:
            raise self._error_at(0, column, "all up to these rows add up to over 4 EiB")

    def _encode_values(self, array: pa.Array, column: Column) -> pa.Array:
        """Return texts as codes of the column's closed set; TraceError for a text not in it."""
        values = pa.array(column.values, pa.string())
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        codes = pc.index_in(array.dictionary, values)
        indices = codes.take(array.indices).cast(pa.int8())
        if indices.null_count > array.null_count:
            index = _first_true(pc.and_(indices.is_null(), array.is_valid()))
            message = (
                f"unknown value {array[index].as_py()!r};"
                f" it must be one of {', '.join(column.values)}"
            )
            raise self._error_at(index, column, message)
        if indices.null_count and not column.nullable:
            raise self._error_at(0, column, "empty, but this column must have a value")
        return pa.DictionaryArray.from_arrays(indices, values)

    def _error_at(self, index: int, column: Column, message: str) -> TraceError:
        """Return the error of one cell; `index` is its row within the batch."""
        return TraceError(message, path=self._path, row=self.row + index, column=column.name)


def _has_exact_codes(array: pa.Array, column: Column) -> bool:
    """Return whether the codes of `array` are the column's own, as in files that kvtrace wrote."""
    if not array.dictionary.equals(pa.array(column.values, pa.string())):
        return False
    smallest, largest = pc.min_max(array.indices).as_py().values()
    return smallest is None or (smallest >= 0 and largest < len(column.values))


def _first_true(mask: pa.Array) -> int:
    """Return the index of the first true value."""
    return int(pc.index(mask, pa.scalar(value=True)).as_py())
