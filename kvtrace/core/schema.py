"""The contract between the programs: every table, its columns, their Arrow types, units and
meanings.

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
"""Raised when a column is added, or when its name, type or meaning changes. A reader refuses
versions that it does not know.

A file has the lowest version that has its columns. Version 2 added `node` and `stream`, which a
file may lack.
"""

MOST: Final = 1 << 62
"""The largest number in any table."""
MOST_BYTES: Final = 1 << 50
"""The largest length of an operation, and size of an object."""
_MOST_OF = {"bytes": MOST_BYTES, "512-byte sectors": MOST >> 9}


class Op(StrEnum):
    """The operation on an object."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Phase(StrEnum):
    """The reason for an operation."""

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
        "before the start: written for later reads, or removed to make room for such writes"
    ),
    Phase.LOAD: "cached KV read for a request, before its prefill",
    Phase.PROMOTE: "copied to a faster tier because a request loaded it",
    Phase.PREFILL: "newly computed KV written to the tier it is computed in or first placed in",
    Phase.STORE: "newly computed KV written through to a slower tier",
    Phase.DECODE: "read or written during decode",
    Phase.DEMOTE: "moved to a slower tier to make room: a read, a write and a delete",
    Phase.EVICT: "deleted to make room",
    Phase.RETRIEVE: "document KV read for retrieval-augmented generation",
    Phase.OTHER: "any other reason, from an imported source",
    Phase.SAVE: "a part of a training checkpoint written",
    Phase.RESTORE: "a part of a training checkpoint read back, after a failure",
    Phase.COLLECT: ("live data of a bucket, read and rewritten so that the bucket can be freed"),
    Phase.LOSE: "lost with its node or drive: no longer readable, although nothing deleted it",
}


class Outcome(StrEnum):
    """The outcome of a replayed operation."""

    OK = "ok"
    ERROR = "error"
    SHORT = "short"
    SKIPPED = "skipped"
    CORRUPT = "corrupt"


class RequestKind(StrEnum):
    """The kind of user that sent a request."""

    CHATBOT = "chatbot"
    CODING = "coding"
    DOCUMENT = "document"
    TRACE = "trace"


class Qos(StrEnum):
    """The service class of a request."""

    INTERACTIVE = "interactive"
    RESPONSIVE = "responsive"
    BATCH = "batch"


class CacheEvent(StrEnum):
    """An event of an engine's cache."""

    STORED = "stored"
    REMOVED = "removed"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `type` is the name of an Arrow type, or `enum` with the closed set in `values`."""

    name: str
    type: str
    unit: str
    meaning: str
    nullable: bool = False
    values: tuple[str, ...] = ()
    least: int | None = 0
    """The smallest number in the column; null if there is no limit."""
    limit: int | None = None
    """The largest number, if it is not the largest of the column's unit, such as the bytes of many
    operations.
    """
    since: int = 1
    """The version of the schema that added the column."""
    default: int | None = None
    """For an extra column: the value of every row in a file without the column."""

    @property
    def most(self) -> int:
        """The largest number in the column.

        It is far above the values of any device, and small enough for sums in 64 bits.
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
    """Columns that a file has only if they carry information. A file without them is read with
    their defaults.
    """

    def column(self, name: str) -> Column:
        """Return the column called `name`, including extra columns; KeyError if there is none."""
        for column in (*self.columns, *self.extras):
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def names(self) -> list[str]:
        """The column names, in order, without extra columns."""
        return [column.name for column in self.columns]

    def version(self, extras: tuple[str, ...]) -> int:
        """Return the lowest version of the schema that has the columns and the `extras`."""
        return max([c.since for c in self.columns] + [self.column(name).since for name in extras])


# Laid out as tables: a column a line.
# fmt: off
REQUESTS: Final = Table("requests", "The requests of users, one row per request, in order of arrival.", (
    Column("arrival_ns", "int64", "ns", "when the request arrived, from the start of the source"),
    Column("request_id", "int64", "id", "dense number of the request, from 0"),
    Column("session_id", "int64", "id", "the conversation it belongs to; null if the source has none", nullable=True),
    Column("turn", "int32", "count", "turn of its conversation, from 0; null if unknown", nullable=True),
    Column("input_tokens", "int64", "tokens", "prompt length, including the conversation's history"),
    Column("output_tokens", "int64", "tokens", "tokens generated"),
    Column("block_ids", "list<int64>", "id",
           "the prompt's prefix chain: an equal id means an equal prefix up to and including that block; "
           "null if the source has none", nullable=True),
    Column("qos", "enum", "class", "the service class; null if unknown", nullable=True, values=tuple(Qos)),
    Column("kind", "enum", "class", "the kind of user", values=tuple(RequestKind)),
), extras=(
    Column("first_token_ns", "int64", "ns",
           "the simulated time from its arrival to its first token (TTFT); null if it got none; absent if nothing "
           "takes time", nullable=True, since=2),
    Column("time_per_token_ns", "int64", "ns",
           "the simulated time from its first token to its last, over the decode steps between (TPOT, its mean "
           "inter-token latency); null without such a step; absent if nothing takes time", nullable=True, since=2),
))

TRACE: Final = Table("trace", "The operations on objects, one row per operation, in order of time.", (
    Column("ts_ns", "int64", "ns", "when the operation is due, from the start of the trace; never decreases"),
    Column("op", "enum", "class", "the operation", values=tuple(Op)),
    Column("tier", "int8", "index", "index into the tier list of the metadata, fastest first"),
    Column("phase", "enum", "class", "the reason for the operation", values=tuple(Phase)),
    Column("object_id", "int64", "id", "dense number of the object, from 0; the objects table names it"),
    Column("offset_bytes", "int64", "bytes", "offset in the object"),
    Column("length_bytes", "int64", "bytes", "bytes read, written or, for a delete, freed"),
    Column("request_id", "int64", "id", "the request it serves; null for background work", nullable=True),
    Column("stage", "int32", "index",
           "operations of one request with the same stage may run in parallel; a stage starts when the stage "
           "before it has completed; null for background work", nullable=True),
    Column("rank", "int16", "index", "tensor-parallel rank"),
), extras=(
    Column("node", "int32", "index",
           "the serving node that performs it; absent if there is only one", since=2, default=0),
    Column("stream", "int16", "index",
           "the placement stream of a write, which the preset chooses by the data's lifetime or owner; null "
           "without a stream; absent if the preset places no data", nullable=True, since=2),
    Column("whole_row", "int64", "index",
           "the row in the complete trace, in the part that one rank replays; absent in a "
           "complete trace", since=2, default=0),
))

OBJECTS: Final = Table("objects", "The objects of a trace, in order of object_id.", (
    Column("object_id", "int64", "id", "dense number of the object, from 0"),
    Column("key", "string", "name", "the object's name in a store; unique within a trace, no spaces"),
    Column("kind", "enum", "class",
           "the kind of content", values=("chunk", "turn", "layer", "document", "other", "prompt",
                                                              "checkpoint")),
    Column("size_bytes", "int64", "bytes", "its full size; null if unknown", nullable=True),
))

OPS: Final = Table("ops", "The measurements of a replay, one row per trace row, in trace order.", (
    Column("row", "int64", "index",
           "the replayed trace row, from 0: the row of the complete trace, also with --window and "
           "for a rank; repeats with --duration have the same rows again"),
    Column("op", "enum", "class", "the operation", values=tuple(Op)),
    Column("tier", "int8", "index", "index into the tier list of the metadata"),
    Column("phase", "enum", "class", "the reason for the operation, from the trace", values=tuple(Phase)),
    Column("object_id", "int64", "id", "the object, from the trace"),
    Column("request_id", "int64", "id", "the request, from the trace; null for background work", nullable=True),
    Column("scheduled_ns", "int64", "ns",
           "due time, from the start of the run; null in a closed loop", nullable=True),
    Column("submitted_ns", "int64", "ns", "first submission to the tier; null if never submitted", nullable=True),
    Column("completed_ns", "int64", "ns", "last completion; null if it never completed", nullable=True),
    Column("bytes", "int64", "bytes",
           "object bytes transferred, without padding; null if it was not performed", nullable=True),
    Column("io_bytes", "int64", "bytes",
           "bytes requested from the tier, including padding; null if the tier transfers none", nullable=True),
    Column("outcome", "enum", "class", "the outcome", values=tuple(Outcome)),
    Column("engine", "enum", "class", "the I/O path; sim: no data transferred, times from a model; "
           "other: another program, imported",
           values=("threads", "uring", "memory", "gpu", "sim", "none", "other", "gds", "s3dlio",
                   "minio", "s3torchconnector")),
), extras=(
    Column("node", "int32", "index",
           "the serving node, from the trace; absent if there is only one", since=2, default=0),
    Column("retries", "int32", "count",
           "repeated requests to the object store; absent if they are not counted", since=2, default=0),
))

SERVED: Final = Table("served", "The storage times of each request of a replay: requests.parquet of a run.", (
    Column("request_id", "int64", "id", "the request, from the trace"),
    Column("scheduled_ns", "int64", "ns",
           "due time of its first replayed operation, from the start of the run; null in a closed loop",
           nullable=True),
    Column("submitted_ns", "int64", "ns", "its first submission; null if there was none", nullable=True),
    Column("completed_ns", "int64", "ns", "its last completion; null if there was none", nullable=True),
    Column("storage_ns", "int64", "ns",
           "time during which at least one of its operations was in flight; null if none completed", nullable=True),
    Column("qos", "enum", "class", "the service class; null without the requests table", nullable=True,
           values=tuple(Qos)),
    Column("first_token_ns", "int64", "ns",
           "TTFT: the replayed loads, or the modelled ones on simulated tiers, plus the computing time that the "
           "trace models; null if it models none, or if a load was not replayed", nullable=True),
    Column("operations", "int64", "count", "operations that completed"),
    Column("unfinished", "int64", "count", "operations that failed or were not reached"),
    Column("not_replayed", "int64", "count", "operations on tiers that were skipped or simulated"),
    Column("hits", "int64", "count", "completed reads of cached KV for it (phases load and retrieve)"),
    Column("hit_bytes", "int64", "bytes", "bytes of these reads", limit=MOST),
    Column("read_bytes", "int64", "bytes", "bytes of all completed reads", limit=MOST),
    Column("written_bytes", "int64", "bytes", "bytes of all completed writes", limit=MOST),
))

SERIES: Final = Table("series", "The figures of each second of a replay, one row per second, tier, drive and op.", (
    Column("second", "int64", "s",
           "whole seconds from the start of the run; seconds without a completion or an error have no row"),
    Column("tier", "int8", "index", "index into the tier list of the metadata"),
    Column("drive", "int16", "index", "index into the tier's drives in run.json; null if it has only one",
           nullable=True),
    Column("op", "enum", "class", "the operation", values=tuple(Op)),
    Column("operations", "int64", "count", "operations that completed in it; null if unknown", nullable=True),
    Column("errors", "int64", "count", "operations submitted in it that failed; null if unknown", nullable=True),
    Column("bytes", "int64", "bytes", "object bytes of the completed operations; 0 for deletes; null if unknown",
           nullable=True, limit=MOST),
    Column("mean_ns", "int64", "ns", "mean latency of the completed operations; null without any", nullable=True),
    Column("p99_ns", "int64", "ns", "p99 latency by nearest rank; null with fewer than 100 operations", nullable=True),
    Column("max_ns", "int64", "ns", "maximum latency; null without completed operations", nullable=True),
))

BLOCKS: Final = Table("blocks", "The requests of the block layer, one row per request.", (
    Column("insert_ns", "int64", "ns",
           "time of queuing, from the start of the run; null if no insert was traced", nullable=True,
           least=None),
    Column("issue_ns", "int64", "ns", "time of issue to the device; null if not traced", nullable=True, least=None),
    Column("complete_ns", "int64", "ns",
           "time of completion by the device; null if not traced", nullable=True, least=None),
    Column("device", "string", "name", "the device that did the I/O"),
    Column("sector", "int64", "512-byte sectors", "first sector"),
    Column("bytes", "int64", "bytes", "length", limit=(1 << 32) - 1),
    Column("rwbs", "string", "flags", "the kernel's operation flags"),
    Column("pid", "int32", "id", "the process that queued it; null if unknown", nullable=True),
    Column("comm", "string", "name", "that process's name; null if unknown", nullable=True),
    Column("error", "int32", "errno",
           "error of the completion, 0 for success; null without a completion", nullable=True,
           least=None),
))

EVENTS: Final = Table("events",
    "The events that an engine's KV cache published, one row per event, as `kvtrace record` "
                      "received them.", (
    Column("ts_ns", "int64", "ns", "time of publication by the engine, since 1970"),
    Column("sequence", "int64", "id", "the engine's number of the message that contained it"),
    Column("rank", "int16", "index", "the data-parallel rank; null if the engine does not name it", nullable=True),
    Column("event", "enum", "class", "the event", values=tuple(CacheEvent)),
    Column("medium", "string", "name",
           "the engine's name of the medium: GPU, CPU, STORAGE; null if it does not name it",
           nullable=True),
    Column("block_ids", "list<int64>", "id",
           "the blocks, in order, as dense numbers of the engine's hashes; null if all were cleared", nullable=True),
    Column("parent_id", "int64", "id", "the block before the first; null if there is none", nullable=True),
    Column("block_tokens", "int32", "tokens", "tokens of a stored block; null for other events", nullable=True),
    Column("group", "int32", "index", "the engine's group of layers; null if it has only one", nullable=True),
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
    """Return rows of `table` and its `extras` as a record batch that shares the memory of arrays.

    A column is a NumPy array, an Arrow array or a list. A NumPy array has the codes of a closed
    set, and -1 for null. A column that is missing is null.
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
    """Return rows of the objects table: their `ids`, `keys` and `sizes` in bytes, all of one
    `kind`.
    """
    kinds = [enum_code(OBJECTS, "kind", kind)] * len(keys)
    return batch_of(OBJECTS, {"object_id": ids, "key": keys, "kind": kinds, "size_bytes": sizes})


def numbers(column: Any, kind: Any = "i8") -> Any:
    """Return a column of an Arrow batch as a NumPy array of type `kind`.

    Values of a closed set are their codes, and nulls are -1.
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
STUDY: Final = Table("study",
    "The results of each configuration of a study, one row per configuration, in the order of "
                     "the grid. Every figure is simulated.", (
    Column("configuration", "int64", "index", "number of the configuration in the study, from 0"),
    Column("knob.*", "string", "as given",
           "its value of an option or knob of the study, one column each; int64 or float64 if all values are "
           "such numbers; null if a configuration has none", nullable=True),
    Column("command", "string", "name", "the command that simulates this configuration only"),
    Column("error", "string", "name",
           "why the simulation failed; null if it succeeded; all figures of a failed one are null", nullable=True),
    Column("requests", "int64", "count", "requests that were looked up", nullable=True),
    Column("lookups", "int64", "count",
           "objects that they looked up; repeated lookups of restarted requests count again", nullable=True),
    Column("hit_ratio", "float64", "share of 1",
           "lookups that hit in any tier; null without lookups", nullable=True),
    Column("input_tokens", "int64", "tokens", "tokens of their prompts", nullable=True),
    Column("recomputed_tokens", "int64", "tokens", "prompt tokens that were computed because no tier had them",
           nullable=True),
    Column("output_tokens", "int64", "tokens", "tokens generated", nullable=True),
    Column("span_ns", "int64", "ns", "simulated time over which rates are computed", nullable=True),
    *(Column(f"first_token_{name}_ns", "int64", "ns", f"{words} of the modelled TTFT; null if "
             "nothing takes time, or with too few requests", nullable=True)
      for name, words in (("p50", "median"), ("p95", "p95"), ("p99", "p99"))),
    Column("imbalance", "float64", "ratio",
           "requests of the busiest node that computes prompts / mean of these nodes; null for one node", nullable=True),
    Column("duplicate_bytes", "int64", "bytes",
           "bytes of all copies but the first of each object, at the end; null for one node", nullable=True,
           limit=MOST),
    Column("capacity_bytes", "int64", "bytes", "capacity of all tiers of all nodes; null if one has no bound",
           nullable=True, limit=MOST),
    Column("price", "float64", "as given", "price of the tiers that have one; null without prices, or without a bound",
           nullable=True),
    Column("tier.*.instances", "int64", "count", "number of instances: one, or in a fleet one per node or per rack; "
           "rates and bytes are sums over all instances", nullable=True),
    Column("tier.*.capacity_bytes", "int64", "bytes", "capacity of each instance; null without a bound",
           nullable=True, limit=MOST),
    Column("tier.*.hit_ratio", "float64", "share of 1", "share of lookups that hit in this tier", nullable=True),
    Column("tier.*.read_bytes", "int64", "bytes", "bytes read from the tier", nullable=True, limit=MOST),
    Column("tier.*.written_bytes", "int64", "bytes",
           "bytes written to the tier, including those populated before the start",
           nullable=True, limit=MOST),
    *(Column(f"tier.*.{name}", "float64", unit, f"{words}{end}", nullable=True)
      for field, unit, words in (
          ("read_bytes_per_s", "bytes/s", "bytes read from the tier per second"),
          ("write_bytes_per_s", "bytes/s", "bytes written to the tier per second"),
          ("reads_per_s", "1/s", "objects read from the tier per second"),
          ("writes_per_s", "1/s", "objects written to the tier per second"))
      for name, end in (
          (field, ", mean over the span"),
          (f"p99_second_{field}", ", p99 over seconds; null with fewer than 100 seconds"))),
    Column("tier.*.drive_writes_per_day", "float64", "1/day",
           "DWPD of the slowest tier: writes of its capacity, or of the given drive size, per day, on "
           "average over its instances",
           nullable=True),
    Column("tier.*.life_years", "float64", "years", "life of each drive of the slowest tier, at the given endurance",
           nullable=True),
))
# fmt: on


def study_table(names: Mapping[str, Mapping[str, str]]) -> Table:
    """Return the study table with its starred columns, such as `knob.*`, replaced by named ones.

    `names` maps the part before the star, such as `knob`, to the names that replace the star and
    their types. The type "" is the starred column's own.
    """
    columns: list[Column] = []
    for family, grouped in groupby(STUDY.columns, lambda column: column.name.partition(".*")[0]):
        family_columns = list(grouped)
        if "*" not in family_columns[0].name:
            columns += family_columns
            continue
        for name, type_ in names.get(family, {}).items():
            for column in family_columns:
                full_name = column.name.replace("*", name, 1)
                columns.append(replace(column, name=full_name, type=type_ or column.type))
    return replace(STUDY, columns=tuple(columns))
