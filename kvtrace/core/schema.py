"""The contract between the programs: every table, its columns, their Arrow types, units and meanings.

They stand in schema.toml, the only source: `schemas/*.json` and `schemas/README.md` are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.core.config import load_toml

if TYPE_CHECKING:
    import pyarrow as pa


SCHEMA_VERSION: Final = 2
"""Raised when a column comes or changes its name, type or meaning; a reader refuses versions it does not know.

A file has the lowest version that has its columns. Version 2: `node` and `stream`, which a file may lack.
"""

MOST: Final = 1 << 62
"""No number of the tables is larger."""
MOST_BYTES: Final = 1 << 50
"""No operation is longer, and no object."""
_MOST_OF = {"bytes": MOST_BYTES, "512-byte sectors": MOST >> 9}


class Op(StrEnum):
    """What an operation does to an object."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Phase(StrEnum):
    """Why an operation happened."""

    POPULATE = "populate"
    LOAD = "load"
    PROMOTE = "promote"
    PREFILL = "prefill"
    STORE = "store"
    DECODE = "decode"
    DEMOTE = "demote"
    EVICT = "evict"
    RETRIEVE = "retrieve"
    OTHER = "other"
    SAVE = "save"
    RESTORE = "restore"
    COLLECT = "collect"
    LOSE = "lose"


class Outcome(StrEnum):
    """How a replayed operation ended."""

    OK = "ok"
    ERROR = "error"
    SHORT = "short"
    SKIPPED = "skipped"
    CORRUPT = "corrupt"


class RequestKind(StrEnum):
    """Which kind of user a request came from."""

    CHATBOT = "chatbot"
    CODING = "coding"
    DOCUMENT = "document"
    TRACE = "trace"


class Qos(StrEnum):
    """The service class a request asks for."""

    INTERACTIVE = "interactive"
    RESPONSIVE = "responsive"
    BATCH = "batch"


class CacheEvent(StrEnum):
    """What an engine's cache says that it did."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: `type` is an Arrow type's name, or `enum` with the closed set in `values`."""

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = False
    values: tuple[str, ...] = ()
    is_signed: bool = False
    """Whether it may hold any number; else the smallest is 0."""
    limit: int | None = None
    """The largest, where it is not that of its unit, such as bytes of many operations."""
    since: int = 1
    """The version of the schema that brought it."""
    default: int | None = None
    """Of an extra column: what every row of a file without it has."""

    @property
    def least(self) -> int | None:
        """The smallest number that it may hold; null if any."""
        return None if self.is_signed else 0

    @property
    def most(self) -> int:
        """The largest number that it may hold: far above any device's, and low enough to reckon with in 64 bits."""
        most = _MOST_OF.get(self.unit, MOST) if self.limit is None else self.limit
        return min(most, (1 << int(self.type.removeprefix("int")) - 1) - 1)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the contract."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    extras: tuple[Column, ...] = ()
    """Columns that a file has only where they say something; one that lacks them is read with their defaults."""

    def column(self, name: str) -> Column:
        """Return the column called `name`, extra ones included; KeyError if there is none."""
        for column in (*self.columns, *self.extras):
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def names(self) -> list[str]:
        """The column names, in order, without extra ones."""
        return [column.name for column in self.columns]

    def version(self, extras: tuple[str, ...]) -> int:
        """Return the lowest version of the schema that has the columns and these extra ones."""
        return max([c.since for c in self.columns] + [self.column(name).since for name in extras])


_CONTRACT: Final = load_toml(Path(__file__).with_name("schema.toml"))
_ENUMS: Final = {kind.__name__: tuple(kind) for kind in (Op, Phase, Outcome, RequestKind, Qos, CacheEvent)}
PHASE_MEANINGS: Final[dict[str, str]] = _CONTRACT["phases"]


def _table(name: str) -> Table:
    """Return the table `name` of schema.toml."""

    def columns(rows: list[dict[str, Any]]) -> tuple[Column, ...]:
        return tuple(
            Column(**row | {"values": _ENUMS.get(str(of := row.get("values", ())), tuple(of))}) for row in rows
        )

    of = _CONTRACT["tables"][name]
    return Table(name, of["meaning"], columns(of["columns"]), columns(of.get("extras", [])))


REQUESTS: Final = _table("requests")
TRACE: Final = _table("trace")
OBJECTS: Final = _table("objects")
OPS: Final = _table("ops")
SERVED: Final = _table("served")
SERIES: Final = _table("series")
BLOCKS: Final = _table("blocks")
EVENTS: Final = _table("events")
STUDY: Final = _table("study")
TABLES: Final[dict[str, Table]] = {t.name: t for t in (REQUESTS, TRACE, OBJECTS, OPS, SERVED, SERIES, BLOCKS, EVENTS)}


@cache
def arrow_schema(table: Table, extras: tuple[str, ...] = ()) -> pa.Schema:
    """Return the Arrow schema of `table` and its `extras`; closed sets are dictionaries of int8 codes."""
    import pyarrow as pa

    types: dict[str, Any] = {
        **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
        **{name: getattr(pa, name)() for name in ("float64", "string")},
        "list<int64>": pa.list_(pa.int64()),
        "enum": pa.dictionary(pa.int8(), pa.string()),
    }
    columns = [*table.columns, *(table.column(name) for name in extras)]
    return pa.schema([pa.field(c.name, types[c.type], nullable=c.nullable) for c in columns])


def enum_array(table: Table, column: str, codes: Any, nulls: Any = None) -> pa.DictionaryArray:
    """Return the dictionary array of int8 `codes` into the closed set of `column`; `nulls` is a boolean mask."""
    import pyarrow as pa

    names = pa.array(table.column(column).values, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8(), mask=nulls), names)


def batch_of(table: Table, columns: Mapping[str, Any], extras: tuple[str, ...] = ()) -> pa.RecordBatch:
    """Return rows of `table` and its `extras`, by column, as a record batch that shares the memory of arrays.

    A column is an array of NumPy (of a closed set its codes; where it may be null, it is so at -1), one of Arrow, or
    a list. One that is not there is null.
    """
    import numpy as np
    import pyarrow as pa

    rows, arrays, schema = len(next(iter(columns.values()))), [], arrow_schema(table, extras)
    for field in schema:
        values = columns.get(field.name)
        nulls = values == -1 if field.nullable and isinstance(values, np.ndarray) else None
        if values is None:
            array = pa.nulls(rows, field.type)
        elif isinstance(values, pa.Array):
            array = values
        elif pa.types.is_dictionary(field.type):
            array = enum_array(table, field.name, values, nulls)
        else:
            array = pa.array(values, field.type, mask=nulls)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def objects_batch(ids: Any, keys: Any, kind: str, sizes: Any) -> pa.RecordBatch:
    """Return rows of the table objects: `ids`, their `keys` and `sizes` in bytes, all of one `kind`."""
    kinds = [enum_code(OBJECTS, "kind", kind)] * len(keys)
    return batch_of(OBJECTS, {"object_id": ids, "key": keys, "kind": kinds, "size_bytes": sizes})


def numbers(column: Any, kind: Any = "i8") -> Any:
    """Return a column of an Arrow batch as NumPy's type `kind`: those of a closed set by their codes, nulls as -1."""
    column = getattr(column, "indices", column)
    if column.null_count:
        column = column.fill_null(-1)
    return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def enum_code(table: Table, column: str, value: str) -> int:
    """Return the code of `value` in the closed set of `column`."""
    return table.column(column).values.index(value)


def study_table(names: Mapping[str, Mapping[str, str]]) -> Table:
    """Return the table with a column for each name, in the place of those called after it, such as `knob.*`.

    `names` has by such a name, `knob`, what stands for the star, and of which type that is; "" is the column's own.
    """
    columns: list[Column] = []
    for family, of in groupby(STUDY.columns, lambda column: column.name.partition(".*")[0]):
        listed = list(of)
        if "*" not in listed[0].name:
            columns += listed
            continue
        for name, type_ in names.get(family, {}).items():
            columns += [replace(c, name=c.name.replace("*", name, 1), type=type_ or c.type) for c in listed]
    return replace(STUDY, columns=tuple(columns))
