"""fio's bandwidth and IOPS logs, as a series by the second.

With `log_avg_msec` a line holds the mean rate since the line before, which is spread over the seconds it spans;
without, it is one I/O, which counts where it ended. Bandwidth logs give bytes, IOPS logs operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.formats.formats import Account, Rows
from kvdistill.formats.rows import SERIES_FILE
from kvdistill.formats.text import first_line, leave_out, load, one
from kvdistill.profile.database import named
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import SERIES, arrow_schema, enum_array
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

RATES = ("bw", "iops")
COLUMNS = ("ms", "value", "direction", "bytes", "c5", "c6", "c7")
"""Of every log of fio; what the last three hold depends on its options."""
LEAST = 4
_OPS = ("read", "write")
_KIB = 1024


def width(path: Path) -> int:
    """Return how many columns the log at `path` has; TraceError if fio writes no such log."""
    count = first_line(path).count(",") + 1
    if not LEAST <= count <= len(COLUMNS):
        raise TraceError(f"has {count} columns, where a log of fio has {LEAST} to {len(COLUMNS)}", path=path, row=0)
    return count


def rate_series(
    db: duckdb.DuckDBPyConnection, files: dict[Path, str], tier: str, account: Account
) -> tuple[Rows, dict[str, Any]]:
    """Return the series of `files`, each with its kind, all jobs added up, and the figures of the whole."""
    db.execute("CREATE TABLE rates (kind VARCHAR, op TINYINT, from_ms BIGINT, to_ms BIGINT, amount DOUBLE)")
    for path, kind in files.items():
        load(db, path, COLUMNS[: width(path)], account, delimiter=",")
        unlike = " OR ".join(f"coalesce(TRY_CAST({name} AS BIGINT), -1) < 0" for name in COLUMNS[:LEAST])
        leave_out(db, path, account, "no whole numbers", unlike)
        leave_out(db, path, account, "trims free a part of a file, not an object", "CAST(direction AS BIGINT) = 2")
        leave_out(db, path, account, "a direction that is not known", "CAST(direction AS BIGINT) > 2")
        kept, averages = one(db, "SELECT count(*), count(*) FILTER (CAST(bytes AS BIGINT) = 0) FROM raw")
        account.kept += kept
        if averages:
            account.notes.append(
                f"{path.name} holds mean rates: amounts are rate times time; what came after its last line is absent"
            )
        # One I/O counts as itself; a mean counts for the time since the line before.
        numbers = ", ".join(f"CAST({name} AS BIGINT) AS {name}" for name in COLUMNS[:LEAST])
        each, unit = ("bytes", _KIB) if kind == "bw" else ("1", 1)
        db.execute(
            f"INSERT INTO rates SELECT '{kind}', direction, if(bytes > 0, ms, before), ms, "  # noqa: S608 - ours
            f"if(bytes > 0, {each}, value * {unit} / 1000 * (ms - before)) FROM ("
            "SELECT *, lag(ms, 1, 0) OVER (PARTITION BY direction ORDER BY line) AS before FROM ("
            f"SELECT line, {numbers} FROM raw))"
        )
    if not one(db, "SELECT count(*) FROM rates")[0]:
        raise TraceError("holds no rate", path=next(iter(files)))
    db.execute(f"CREATE TABLE series AS {named('import_series')}")
    return Rows(SERIES_FILE, SERIES, lambda: _batches(db)), _summary(db, tier)


def _summary(db: duckdb.DuckDBPyConnection, tier: str) -> dict[str, Any]:
    """Return figures of the whole time, null where no log tells; latencies are in none of these logs."""
    totals = db.execute(
        "SELECT op, CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT), "
        "CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT), max(to_ms) FROM rates GROUP BY op ORDER BY op"
    ).fetchall()
    figures = []
    latency = {"count": 0} | dict.fromkeys(
        ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
    )  # fmt: skip
    for op, operations, moved, span_ms in totals:
        seconds = span_ms / 1000 or None
        figures.append({
            "tier": tier, "op": _OPS[op], "engine": "other", "is_simulated": False, "planned": None,
            "operations": operations, "errors": None, "corrupt": 0, "bytes": moved, "io_bytes": moved,
            "span_ns": span_ms * NS_PER_S // 1000,
            "bandwidth_bytes_per_s": None if moved is None or seconds is None else moved / seconds,
            "operations_per_s": None if operations is None or seconds is None else operations / seconds,
            "in_flight_mean": None, "latency": latency, "lateness": None,
        })  # fmt: skip
    known = [f["operations"] for f in figures if f["operations"] is not None]
    return {
        "verdict": "imported from fio-log", "wall_ns": max((f["span_ns"] for f in figures), default=None),
        "operations": sum(known) if known else None, "errors": None, "not_reached": None, "pace": None,
        "in_flight_mean": None, "warmup": None, "skipped_rows": {}, "figures": figures,
    }  # fmt: skip


def _batches(db: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    import numpy as np
    import pyarrow as pa

    schema = arrow_schema(SERIES)
    for batch in db.sql("SELECT * FROM series ORDER BY second, op").to_arrow_reader(1 << 17):
        count = batch.num_rows
        columns = {
            "second": batch.column("second"), "tier": pa.array(np.zeros(count, dtype=np.int8)),
            "op": enum_array(SERIES, "op", batch.column("op").to_numpy()),
            "operations": batch.column("operations"), "bytes": batch.column("bytes"),
        }  # fmt: skip
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
