"""The rows of an op log: from a trace, by due time, or from a run, by submission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from kvdistill.queries.database import connect, named
from kvdistill.queries.views import register
from kvdistill.queries.window import RowWindow, found_window, place_of, tier_rows
from kvtrace.core.errors import TraceError
from kvtrace.core.files import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.parquet import DENSE_SLACK
from kvtrace.core.run.run_file import OPS_FILE, find_run
from kvtrace.core.schema import OBJECTS, OPS, TRACE, enum_code
from kvtrace.core.tables import objects_path, open_table
from kvtrace.core.units import format_bytes, format_count

_US_PER_S = 1_000_000
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one tier of a trace or run, and where they come from."""

    file: Path
    meta: Metadata
    objects: Path
    """Where their names are, if they are anywhere."""
    first_unix_ns: int
    """When time 0 was; 0 if nothing says so."""
    is_measured: bool
    parts: Callable[[], Iterator[dict[str, Any]]]
    """Yields rows in order of time, as numpy arrays: `ts_ns`, `op` (code), `length_bytes`, those of `COLUMNS` and, if
    measured, `end_ns` (-1 if unknown) and `error` (empty if there was none)."""


def can_log(path: Path) -> bool:
    """Return whether `path` holds single operations on objects: a trace, a run's folder or its ops."""
    if path.is_dir():
        return (path / OPS_FILE).is_file()
    return path.suffix != ".json" and open_table(path).table in (TRACE, OPS)


def operations(path: Path, tier: str, limit: Limit, scratch: Path) -> Operations:
    """Return the operations of `tier` at `path`, a trace, a run's folder or its ops, up to `limit`.

    Raises:
        TraceError: the file is damaged or holds another table.
        ConfigError: there is no such tier.

    """
    file = path / OPS_FILE if path.is_dir() else path
    reader = open_table(file)
    if reader.table not in (TRACE, OPS):
        raise TraceError(f"holds the table {reader.table.name}; an op log is written from a trace or a run", path=file)
    place = place_of(reader.meta, tier)
    limit = found_window(limit, lambda: tier_rows(reader, place, Limit(), ())) if reader.table is TRACE else limit
    known_ns = (reader.meta.source or {}).get("first_unix_ns")
    if reader.table is TRACE:
        return Operations(
            file,
            reader.meta,
            objects_path(file),
            known_ns or 0,
            is_measured=False,
            parts=lambda: tier_rows(reader, place, limit, COLUMNS),
        )
    ordered = scratch / "oplog.parquet"
    with connect(scratch) as db:
        register(db, [file], scratch)
        ((rows, most),) = db.execute("SELECT count(*), max(object_id) FROM ops").fetchall()
        if rows and most > rows + DENSE_SLACK:
            raise TraceError(
                f"{most} is no dense number from 0, in a file of {rows} rows", path=file, column="object_id"
            )
        _write(db.sql(named("oplog_ops"), params={"tier": place.tier}), ordered)
    limit = found_window(limit, lambda: _measured(ordered, Limit()))
    # A run has no names of its own; an imported one lies beside the trace that has.
    objects = objects_path(file.with_name("trace.parquet"))
    return Operations(
        file,
        reader.meta,
        objects,
        known_ns or _started_ns(file),
        is_measured=True,
        parts=lambda: _measured(ordered, limit),
    )


def _write(relation: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    reader = relation.to_arrow_reader(_BATCH_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=1) as out:
        for batch in reader:
            out.write_batch(batch)


def _measured(ordered: Path, limit: Limit) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    window = RowWindow(limit)
    for batch in pq.ParquetFile(ordered).iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        part = {
            name: column.to_numpy(zero_copy_only=False)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        kept = window.take(part)
        if kept is not None:
            yield kept
        if window.is_over:
            return


def _started_ns(ops: Path) -> int:
    """Return when the run of `ops` began, as its run.json says to the microsecond; 0 if it does not."""
    run = find_run(ops.parent)
    started = None if run is None else run.started_utc
    try:
        at = datetime.fromisoformat(started) if started else None
    except ValueError:
        return 0
    return 0 if at is None else round(at.timestamp() * _US_PER_S) * 1000


READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
COLUMNS = ("object_id", "offset_bytes", "request_id", "rank")
"""Columns that `survey` needs beside those that every window of a trace has."""
_NEVER = -1
_FORBIDDEN = '[\t\n\r"]'


@dataclass(slots=True)
class Survey:
    """Facts of a tier's objects after one pass over its rows; arrays are by object id."""

    last_op: Any
    """The code of the last operation seen; -1 if there was none."""
    extent: Any
    """The furthest byte that was read or written."""
    is_prior: Any
    """Read before it was written: it existed from the start."""
    rows: dict[int, int] = field(default_factory=lambda: dict.fromkeys((READ, WRITE, DELETE), 0))
    gone_reads: int = 0
    gone_deletes: int = 0
    partial_writes: int = 0
    requests: int = 0
    ranks: int = 0


def survey(parts: Iterable[dict[str, Any]]) -> Survey:
    """Return the facts of the objects in `parts`, rows as `tier_rows` yields them with `COLUMNS`."""
    found = Survey(np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, bool))
    for part in parts:
        objects, ops = part["object_id"], part["op"]
        _grow(found, int(objects.max()) + 1)
        moves = ops != DELETE
        np.maximum.at(found.extent, objects[moves], (part["offset_bytes"] + part["length_bytes"])[moves])
        before = _previous(found, objects, ops)
        # What failed in a run may have failed because nothing was there.
        was_there = (ops == READ) & (part["error"] == "") if "error" in part else ops == READ
        found.is_prior[objects[(before == _NEVER) & was_there]] = True
        found.gone_reads += int(((before == DELETE) & (ops == READ)).sum())
        found.gone_deletes += int((((before == DELETE) | (before == _NEVER)) & (ops == DELETE)).sum())
        found.partial_writes += int(((ops == WRITE) & (part["offset_bytes"] > 0)).sum())
        found.requests += int((part["request_id"] >= 0).sum())
        found.ranks += int((part["rank"] > 0).sum())
        for code in found.rows:
            found.rows[code] += int((ops == code).sum())
    return found


def _grow(found: Survey, count: int) -> None:
    if count > len(found.last_op):
        more = max(count, 2 * len(found.last_op)) - len(found.last_op)
        found.last_op = np.concatenate([found.last_op, np.full(more, _NEVER, np.int8)])
        found.extent = np.concatenate([found.extent, np.zeros(more, np.int64)])
        found.is_prior = np.concatenate([found.is_prior, np.zeros(more, bool)])


def _previous(found: Survey, objects: Any, ops: Any) -> Any:
    """Return the operation before each row on the same object, -1 if it is the first; note the last ones."""
    order = np.argsort(objects, kind="stable")
    of, did = objects[order], ops[order]
    is_first = np.ones(len(of), dtype=bool)
    is_first[1:] = of[1:] != of[:-1]
    before = np.empty(len(of), dtype=np.int8)
    before[1:] = did[:-1]
    before[is_first] = found.last_op[of[is_first]]
    is_last = np.append(is_first[1:], True)
    found.last_op[of[is_last]] = did[is_last]
    result = np.empty(len(of), dtype=np.int8)
    result[order] = before
    return result


def surveyed(done: Operations) -> Survey:
    """Return the facts of the objects of `done`; a TraceError names the file."""
    try:
        return survey(done.parts())
    except TraceError as error:
        if error.path is None:
            raise TraceError(str(error), path=done.file) from None
        raise


def named_objects(path: Path, extent: Any) -> tuple[Any, Any]:
    """Return the names (polars; `object/ID` where `path` has none) and sizes of objects that reach to `extent`."""
    import polars as pl

    count = len(extent)
    known = pl.DataFrame(
        {"object_id": [], "key": [], "size_bytes": []},
        schema={
            "object_id": pl.Int64,
            "key": pl.String,
            "size_bytes": pl.Int64,
        },
    )
    if path.exists():
        parts = [pl.DataFrame(pl.from_arrow(b)) for b in open_table(path, OBJECTS).batches(known.columns)]
        known = pl.concat([known, *parts]).filter(pl.col("object_id") < count)
    bad = known.filter(pl.col("key").str.contains(_FORBIDDEN))
    if len(bad):
        raise TraceError(
            f"the name of object {bad['object_id'][0]} has a tab, line break or quote: no log can hold it",
            path=path,
            column="key",
        )
    sizes = np.zeros(count, dtype=np.int64)
    sizes[known["object_id"].to_numpy()] = known["size_bytes"].fill_null(0).to_numpy()
    every = pl.DataFrame({"object_id": pl.int_range(count, eager=True)})
    joined = every.join(known, on="object_id", how="left", maintain_order="left")
    return joined.select(pl.coalesce("key", pl.format("object/{}", "object_id")))["key"], np.maximum(sizes, extent)


def losses(found: Survey, partial: tuple[int, int], done: Operations) -> list[str]:
    """Return what an op log cannot express of `done`; `partial`: reads of a part of an object, and bytes not read."""
    lost = []
    if found.requests:
        lost.append(
            f"the request and stage of {format_count(found.requests)} operations: each is issued by its time, none "
            "waits for another"
        )
    if partial[0]:
        lost.append(
            f"{format_count(partial[0])} reads of a part: a GET reads the whole object, {format_bytes(partial[1])} more"
        )
    if found.partial_writes:
        lost.append(
            f"{format_count(found.partial_writes)} writes that do not start at 0: a PUT of their length replaces the "
            "object"
        )
    if found.gone_reads:
        lost.append(f"{format_count(found.gone_reads)} reads of deleted objects will fail")
    if found.gone_deletes:
        lost.append(f"{format_count(found.gone_deletes)} deletes of objects that are not there")
    if found.ranks:
        lost.append(f"the rank of {format_count(found.ranks)} operations")
    if not done.objects.exists():
        lost.append("names: objects are called object/ID, since the source does not name them")
    if done.is_measured:
        lost.append("phases, and where in its object an operation began")
    else:
        lost.append("phases; and ends, which a trace does not have")
    return lost


def origin_lines(done: Operations, tier: str, limit: Limit) -> list[str]:
    """Return the lines of a log that name its source."""
    meta = done.meta
    made = f"written by {meta.program} {meta.version}, configuration SHA-256 {meta.config_sha256 or 'unknown'}"
    lines = [f"tier {tier} of {done.file.name}, {made}"]
    if str(limit):
        lines.append(f"only part of the tier: the first {limit}")
    if meta.is_simulated:
        lines.append("its times are a simulation's, not a device's")
    return lines
