"""Where an op log's rows come from: a trace says when operations are due, a run when they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from kvdistill.formats.store_survey import COLUMNS
from kvdistill.profile.database import connect, named
from kvdistill.profile.window import Window, tier_index, tier_rows
from kvdistill.report.views import RUN, read_json, register
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.tables import objects_path, open_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvtrace.core.limit import Limit
    from kvtrace.core.metadata import Metadata

_US_PER_S = 1_000_000
_BATCH_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one tier."""

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
        return (path / "ops.parquet").is_file()
    return path.suffix != ".json" and open_table(path).table in (TRACE, OPS)


def operations(path: Path, tier: str, limit: Limit, scratch: Path) -> Operations:
    """Return the operations of `tier` at `path`, a trace, a run's folder or its ops, up to `limit`.

    Raises:
        TraceError: the file is damaged or holds another table.
        ConfigError: there is no such tier.

    """
    file = path / "ops.parquet" if path.is_dir() else path
    reader = open_table(file)
    if reader.table not in (TRACE, OPS):
        raise TraceError(f"holds the table {reader.table.name}; an op log is written from a trace or a run", path=file)
    index = tier_index(reader.meta, tier)
    known_ns = (reader.meta.source or {}).get("first_unix_ns")
    if reader.table is TRACE:
        return Operations(
            file, reader.meta, objects_path(file), known_ns or 0, is_measured=False,
            parts=lambda: tier_rows(reader, index, limit, COLUMNS),
        )  # fmt: skip
    ordered = scratch / "oplog.parquet"
    with connect(scratch) as db:
        register(db, [file], scratch)
        _write(db.sql(named("oplog_ops"), params={"tier": index}), ordered)
    # A run has no names of its own; an imported one lies beside the trace that has.
    objects = objects_path(file.with_name("trace.parquet"))
    return Operations(
        file, reader.meta, objects, known_ns or _started_ns(file), is_measured=True,
        parts=lambda: _measured(ordered, limit),
    )  # fmt: skip


def _write(relation: Any, path: Path) -> None:
    import pyarrow.parquet as pq

    reader = relation.to_arrow_reader(_BATCH_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=1) as out:
        for batch in reader:
            out.write_batch(batch)


def _measured(ordered: Path, limit: Limit) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    window = Window(limit)
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
    started = (read_json(ops.with_name(RUN)) or {}).get("started_utc")
    try:
        at = datetime.fromisoformat(started) if started else None
    except ValueError:
        return 0
    return 0 if at is None else round(at.timestamp() * _US_PER_S) * 1000
