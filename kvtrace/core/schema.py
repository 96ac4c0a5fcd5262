"""The contract between the programs.

Every table, its columns, their Arrow types, units and meanings.

This module is the only source. `schemas/*.json` and `schemas/README.md` are generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby
from typing import Any, Final

from kvtrace.core import np, pa
from kvtrace.core.json_types import JsonObject

SCHEMA_VERSION: Final = 2
"""Raised when a column comes or changes its name, type or meaning.

A reader refuses versions it does not know.

A file has the lowest version that has its columns. Version 2: `node` and `stream`, which a file may
lack.
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


PHASE_MEANINGS: Final[dict[str, str]] = {
    Phase.POPULATE: (
        "before the start: written for later reads to find it, and what made room for that"
    ),
    Phase.LOAD: "cached KV read for a request, before its prefill",
    Phase.PROMOTE: "copied to a faster tier because a request loaded it",
    Phase.PREFILL: "newly computed KV written to the tier it is computed in or first placed in",
    Phase.STORE: "newly computed KV written through to a slower tier",
    Phase.DECODE: "read or written while tokens are generated",
    Phase.DEMOTE: "moved to a slower tier to make room: read, write, delete",
    Phase.EVICT: "deleted to make room",
    Phase.RETRIEVE: "document KV read for retrieval-augmented generation",
    Phase.OTHER: "a reason that the imported source gives and this set does not know",
    Phase.SAVE: "a part of a training checkpoint written",
    Phase.RESTORE: "a part of a training checkpoint read back, after a failure",
    Phase.COLLECT: (
        "what lives of a bucket, read and written again so that the rest of it can be freed"
    ),
    Phase.LOSE: "lost with its node or drive: nobody deletes it, but nobody can read it any more",
}


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
    least: int | None = 0
    """The smallest number that it may hold; null if any."""
    limit: int | None = None
    """The largest, where it is not that of its unit, such as bytes of many operations."""
    since: int = 1
    """The version of the schema that brought it."""
    default: int | None = None
    """Of an extra column: what every row of a file without it has."""

    @property
    def most(self) -> int:
        """The largest number that it may hold.

        Far above any device's, and low enough to reckon with in 64 bits.
        """
        most = _MOST_OF.get(self.unit, MOST) if self.limit is None else self.limit
        return min(most, (1 << int(self.type.removeprefix("int")) - 1) - 1)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the contract."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    extras: tuple[Column, ...] = ()
    """Columns that a file has only where they say something.

    One that lacks them is read with their defaults.
    """

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


# Laid out as tables: a column a line.
# fmt: off
REQUESTS: Final = Table("requests", "What users asked, one row a request, in order of arrival.", (
    Column("arrival_ns", "int64", "ns", "when the request arrived, from the start of the source"),
    Column("request_id", "int64", "id", "dense number of the request, from 0"),
    Column("session_id", "int64", "id", "the conversation it belongs to; null if the source has none", nullable=True),
    Column("turn", "int32", "count", "which turn of its conversation, from 0; null if unknown", nullable=True),
    Column("input_tokens", "int64", "tokens", "prompt length, the conversation's history included"),
    Column("output_tokens", "int64", "tokens", "tokens generated"),
    Column("block_ids", "list<int64>", "id",
           "the prompt's prefix chain: an equal id means an equal prefix up to and including that block; "
           "null where the source has none", nullable=True),
    Column("qos", "enum", "class", "the service class; null if unknown", nullable=True, values=tuple(Qos)),
    Column("kind", "enum", "class", "the kind of user", values=tuple(RequestKind)),
))

TRACE: Final = Table("trace", "One row an operation on an object, in the order in which they happen.", (
    Column("ts_ns", "int64", "ns", "when the operation is due, from the start of the trace; never decreases"),
    Column("op", "enum", "class", "what is done", values=tuple(Op)),
    Column("tier", "int8", "index", "index into the tier list of the metadata, fastest first"),
    Column("phase", "enum", "class", "why it is done", values=tuple(Phase)),
    Column("object_id", "int64", "id", "dense number of the object, from 0; the objects table names it"),
    Column("offset_bytes", "int64", "bytes", "where in the object it starts"),
    Column("length_bytes", "int64", "bytes", "how much is read, written or, for a delete, freed"),
    Column("request_id", "int64", "id", "the request it serves; null for background work", nullable=True),
    Column("stage", "int32", "index",
           "operations of one request with the same stage may run together; a stage starts when the one "
           "before it has completed; null for background work", nullable=True),
    Column("rank", "int16", "index", "tensor-parallel rank"),
), extras=(
    Column("node", "int32", "index", "the serving node that does it; absent where there is one", since=2, default=0),
    Column("stream", "int16", "index",
           "the stream that a write belongs to, as the preset places data by its lifetime or owner; null where it "
           "belongs to none; absent where nothing is placed", nullable=True, since=2),
    Column("whole_row", "int64", "index", "its row in the whole trace, in the part that one rank replays; absent in a "
           "whole trace", since=2, default=0),
))

OBJECTS: Final = Table("objects", "What each object_id of a trace stands for, in order of object_id.", (
    Column("object_id", "int64", "id", "dense number of the object, from 0"),
    Column("key", "string", "name", "the object's name in a store; unique within a trace, no spaces"),
    Column("kind", "enum", "class", "what it holds", values=("chunk", "turn", "layer", "document", "other", "prompt",
                                                              "checkpoint")),
    Column("size_bytes", "int64", "bytes", "its full size; null if unknown", nullable=True),
))

OPS: Final = Table("ops", "What a replay measured, one row a trace row, in trace order.", (
    Column("row", "int64", "index", "the trace row it replays, from 0: with --window and of a rank, too, the row of the "
           "whole trace; repeats of --duration name the same rows again"),
    Column("op", "enum", "class", "what was done", values=tuple(Op)),
    Column("tier", "int8", "index", "index into the tier list of the metadata"),
    Column("phase", "enum", "class", "why, from the trace", values=tuple(Phase)),
    Column("object_id", "int64", "id", "the object, from the trace"),
    Column("request_id", "int64", "id", "the request, from the trace; null for background work", nullable=True),
    Column("scheduled_ns", "int64", "ns",
           "when it was due, from the start of the run; null in a closed loop", nullable=True),
    Column("submitted_ns", "int64", "ns", "first submission to the tier; null if never submitted", nullable=True),
    Column("completed_ns", "int64", "ns", "last completion; null if it never completed", nullable=True),
    Column("bytes", "int64", "bytes", "object bytes moved, without padding; null if not done", nullable=True),
    Column("io_bytes", "int64", "bytes",
           "bytes asked of the tier, padding included; null where the tier moves none", nullable=True),
    Column("outcome", "enum", "class", "how it ended", values=tuple(Outcome)),
    Column("engine", "enum", "class", "which path did it; sim: nothing moved, times are a model's; "
           "other: a program that is not ours, imported",
           values=("threads", "uring", "memory", "gpu", "sim", "none", "other", "gds", "s3dlio",
                   "minio", "s3torchconnector")),
), extras=(
    Column("node", "int32", "index", "the serving node, from the trace; absent where there is one", since=2, default=0),
    Column("retries", "int32", "count", "its requests sent again; absent where none are counted", since=2, default=0),
))

SERVED: Final = Table("served", "What storage did for each request of a replay: requests.parquet of a run.", (
    Column("request_id", "int64", "id", "the request, from the trace"),
    Column("scheduled_ns", "int64", "ns",
           "when its first replayed operation was due, from the start of the run; null in a closed loop",
           nullable=True),
    Column("submitted_ns", "int64", "ns", "its first submission; null if there was none", nullable=True),
    Column("completed_ns", "int64", "ns", "its last completion; null if there was none", nullable=True),
    Column("storage_ns", "int64", "ns",
           "time in which at least one of its operations was in flight; null if none completed", nullable=True),
    Column("qos", "enum", "class", "the service class; null without the requests table", nullable=True,
           values=tuple(Qos)),
    Column("first_token_ns", "int64", "ns",
           "time to the first token: its loads as replayed, on simulated tiers as modelled, plus the computing time "
           "that the trace models; null where it models none or a load was not replayed", nullable=True),
    Column("operations", "int64", "count", "operations that completed"),
    Column("unfinished", "int64", "count", "operations that failed or were not reached"),
    Column("not_replayed", "int64", "count", "operations on tiers that were skipped or simulated"),
    Column("hits", "int64", "count", "completed reads of cached KV for it (phases load and retrieve)"),
    Column("hit_bytes", "int64", "bytes", "what these read", limit=MOST),
    Column("read_bytes", "int64", "bytes", "all that completed reads brought", limit=MOST),
    Column("written_bytes", "int64", "bytes", "all that completed writes took", limit=MOST),
))

SERIES: Final = Table("series", "What a replay did in each second, one row a second, tier, drive and op.", (
    Column("second", "int64", "s", "whole seconds from the start of the run; seconds without an end have no row"),
    Column("tier", "int8", "index", "index into the tier list of the metadata"),
    Column("drive", "int16", "index", "index into the tier's drives in run.json; null where it has one",
           nullable=True),
    Column("op", "enum", "class", "what was done", values=tuple(Op)),
    Column("operations", "int64", "count", "operations that completed in it; null if unknown", nullable=True),
    Column("errors", "int64", "count", "operations submitted in it that failed; null if unknown", nullable=True),
    Column("bytes", "int64", "bytes", "object bytes of those that completed; 0 for deletes; null if unknown",
           nullable=True, limit=MOST),
    Column("mean_ns", "int64", "ns", "their mean latency; null if there are none", nullable=True),
    Column("p99_ns", "int64", "ns", "their p99 by nearest rank; null with fewer than 100", nullable=True),
    Column("max_ns", "int64", "ns", "their longest; null if there are none", nullable=True),
))

BLOCKS: Final = Table("blocks", "Requests as the block layer saw them, one row a request.", (
    Column("insert_ns", "int64", "ns", "queued, from the start of the run; null if no insert was seen", nullable=True,
           least=None),
    Column("issue_ns", "int64", "ns", "issued to the device; null if not seen", nullable=True, least=None),
    Column("complete_ns", "int64", "ns", "completed by the device; null if not seen", nullable=True, least=None),
    Column("device", "string", "name", "the device that did the I/O"),
    Column("sector", "int64", "512-byte sectors", "first sector"),
    Column("bytes", "int64", "bytes", "length", limit=(1 << 32) - 1),
    Column("rwbs", "string", "flags", "the kernel's operation flags"),
    Column("pid", "int32", "id", "the process that queued it; null if unknown", nullable=True),
    Column("comm", "string", "name", "that process's name; null if unknown", nullable=True),
    Column("error", "int32", "errno", "the completion's error, 0 for success; null if none came", nullable=True,
           least=None),
))

EVENTS: Final = Table("events", "What an engine's KV cache said that it did, one row an event, as `kvtrace record` "
                      "heard it.", (
    Column("ts_ns", "int64", "ns", "when the engine published it, since 1970"),
    Column("sequence", "int64", "id", "the engine's number of the message that brought it"),
    Column("rank", "int16", "index", "the data-parallel rank; null if the engine does not say", nullable=True),
    Column("event", "enum", "class", "what was done", values=tuple(CacheEvent)),
    Column("medium", "string", "name", "where, as the engine calls it: GPU, CPU, STORAGE; null if it does not say",
           nullable=True),
    Column("block_ids", "list<int64>", "id",
           "the blocks, in order, as dense numbers of the engine's hashes; null where all were cleared", nullable=True),
    Column("parent_id", "int64", "id", "the block before the first; null if there is none", nullable=True),
    Column("block_tokens", "int32", "tokens", "tokens of a stored block; null for other events", nullable=True),
    Column("group", "int32", "index", "the engine's group of layers; null if it has one", nullable=True),
    Column("session", "string", "name", "the session that the engine names; null if it does not", nullable=True),
))
# fmt: on

TABLES: Final[dict[str, Table]] = {
    t.name: t for t in (REQUESTS, TRACE, OBJECTS, OPS, SERVED, SERIES, BLOCKS, EVENTS)
}


@cache
def arrow_schema(table: Table, extras: tuple[str, ...] = ()) -> pa.Schema:
    """Return the Arrow schema of `table` and its `extras`.

    Closed sets are dictionaries of int8 codes.
    """
    types: JsonObject = {
        **{f"int{bits}": getattr(pa, f"int{bits}")() for bits in (8, 16, 32, 64)},
        **{name: getattr(pa, name)() for name in ("float64", "string")},
        "list<int64>": pa.list_(pa.int64()),
        "enum": pa.dictionary(pa.int8(), pa.string()),
    }
    columns = [*table.columns, *(table.column(name) for name in extras)]
    return pa.schema([pa.field(c.name, types[c.type], nullable=c.nullable) for c in columns])


def enum_array(table: Table, column: str, codes: Any, nulls: Any = None) -> pa.DictionaryArray:
    """Return the dictionary array of int8 `codes` into the closed set of `column`.

    `nulls` is a boolean mask.
    """
    names = pa.array(table.column(column).values, pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8(), mask=nulls), names)


def batch_of(
    table: Table, columns: Mapping[str, Any], extras: tuple[str, ...] = ()
) -> pa.RecordBatch:
    """Return rows of `table` and its `extras`, by column, as a record batch that shares the memory
    of arrays.

    A column is an array of NumPy (of a closed set its codes; where it may be null, it is so at -1),
    one of Arrow, or a list. One that is not there is null.
    """
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
    """Return rows of the table objects.

    `ids`, their `keys` and `sizes` in bytes, all of one `kind`.
    """
    kinds = [enum_code(OBJECTS, "kind", kind)] * len(keys)
    return batch_of(OBJECTS, {"object_id": ids, "key": keys, "kind": kinds, "size_bytes": sizes})


def numbers(column: Any, kind: Any = "i8") -> Any:
    """Return a column of an Arrow batch as NumPy's type `kind`.

    Those of a closed set by their codes, nulls as -1.
    """
    column = getattr(column, "indices", column)
    if column.null_count:
        column = column.fill_null(-1)
    return column.to_numpy(zero_copy_only=False).astype(kind, copy=False)


def enum_code(table: Table, column: str, value: str) -> int:
    """Return the code of `value` in the closed set of `column`."""
    return table.column(column).values.index(value)


# Laid out as a table: a column a line.
# fmt: off
STUDY: Final = Table("study", "What came of each configuration of a study, one row a configuration, in the order of "
                     "the grid. Every figure is simulated.", (
    Column("configuration", "int64", "index", "which configuration of the study, from 0"),
    Column("knob.*", "string", "as given",
           "what it was asked for, a column an option or knob of the study; int64 or float64 where all its values are "
           "such numbers; null where a configuration has none", nullable=True),
    Column("command", "string", "name", "the command that simulates it alone"),
    Column("error", "string", "name", "why it failed; null if it did not: then all its figures are", nullable=True),
    Column("requests", "int64", "count", "requests that were looked up", nullable=True),
    Column("lookups", "int64", "count", "objects that they looked up, anew if they began again", nullable=True),
    Column("hit_ratio", "float64", "share of 1", "look-ups that hit in any tier; null without look-ups", nullable=True),
    Column("input_tokens", "int64", "tokens", "tokens of their prompts", nullable=True),
    Column("recomputed_tokens", "int64", "tokens", "prompt tokens that no tier had, and that were computed",
           nullable=True),
    Column("output_tokens", "int64", "tokens", "tokens generated", nullable=True),
    Column("span_ns", "int64", "ns", "virtual time that rates refer to", nullable=True),
    *(Column(f"first_token_{name}_ns", "int64", "ns", f"{words} of the modelled times to the first token; null if "
             "nothing takes time, or too few requests tell", nullable=True)
      for name, words in (("p50", "median"), ("p95", "p95"), ("p99", "p99"))),
    Column("imbalance", "float64", "ratio",
           "requests of the busiest node that computes prompts over their mean; null of one node", nullable=True),
    Column("duplicate_bytes", "int64", "bytes",
           "what nodes hold at the end beside the first copy of each object; null of one node", nullable=True,
           limit=MOST),
    Column("capacity_bytes", "int64", "bytes", "all tiers of all nodes together; null if one has no bound",
           nullable=True, limit=MOST),
    Column("price", "float64", "as given", "what the tiers with a price cost; null without prices, or without a bound",
           nullable=True),
    Column("tier.*.instances", "int64", "count", "how many of it there are: one, or in a fleet one a node, or a rack; "
           "its rates and bytes are of all together", nullable=True),
    Column("tier.*.capacity_bytes", "int64", "bytes", "how much each of them holds; null without a bound",
           nullable=True, limit=MOST),
    Column("tier.*.hit_ratio", "float64", "share of 1", "look-ups that hit in it", nullable=True),
    Column("tier.*.read_bytes", "int64", "bytes", "read from it", nullable=True, limit=MOST),
    Column("tier.*.written_bytes", "int64", "bytes", "written to it, what was populated before the start included",
           nullable=True, limit=MOST),
    *(Column(f"tier.*.{name}", "float64", unit, f"{words}{end}", nullable=True)
      for field, unit, words in (
          ("read_bytes_per_s", "bytes/s", "read from it a second"),
          ("write_bytes_per_s", "bytes/s", "written to it a second"),
          ("reads_per_s", "1/s", "objects read from it a second"),
          ("writes_per_s", "1/s", "objects written to it a second"))
      for name, end in (
          (field, ", mean over the span"),
          (f"p99_second_{field}", ", in the second that 1 % of all exceed; null with fewer than 100 seconds"))),
    Column("tier.*.drive_writes_per_day", "float64", "1/day",
           "of the slowest tier: how often its capacity, or the drive size that is stated, is written a day, on "
           "average over its instances",
           nullable=True),
    Column("tier.*.life_years", "float64", "years", "of the slowest tier: how long each lasts at the endurance stated",
           nullable=True),
))
# fmt: on


def study_table(names: Mapping[str, Mapping[str, str]]) -> Table:
    """Return the table with a column for each name, in the place of those called after it, such as
    `knob.*`.

    `names` has by such a name, `knob`, what stands for the star, and of which type that is; "" is
    the column's own.
    """
    columns: list[Column] = []
    for family, of in groupby(STUDY.columns, lambda column: column.name.partition(".*")[0]):
        listed = list(of)
        if "*" not in listed[0].name:
            columns += listed
            continue
        for name, type_ in names.get(family, {}).items():
            columns += [
                replace(c, name=c.name.replace("*", name, 1), type=type_ or c.type) for c in listed
            ]
    return replace(STUDY, columns=tuple(columns))
