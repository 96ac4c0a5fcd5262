"""fio's latency logs (`write_lat_log`): one line an I/O, at its completion in whole milliseconds.

Columns: ms, latency ns, direction, bytes, then offset (`log_offset`), priority and, from fio 3.38, issue time in ns
(`log_issue_time`). Bandwidth and IOPS logs become a series by the second; averages of latencies (`log_avg_msec`) have
no place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from kvdistill.formats.formats import Account, Imported, ImportOptions, Rows
from kvdistill.formats.rows import INPUT, OK, READ, WRITE, finish
from kvdistill.formats.text import first_line, leave_out, load, one
from kvdistill.queries.database import named
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE
from kvtrace.core.schema import SERIES, arrow_schema, enum_array
from kvtrace.core.units import NS_PER_S

TIER = "fio"
_NAME = re.compile(r"(?P<prefix>.*)_(?P<kind>lat|clat|slat|bw|iops|clat_hist)(?:\.\d+)?\.log")


@dataclass(frozen=True, slots=True)
class LogLayout:
    """Which columns hold the offset and the issue time; null where the log has none."""

    offset: str | None
    issue: str | None


def read(files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the logs of the jobs of one run, merged by time: I/Os from total latencies, else completion latencies.

    Raises:
        ConfigError: no file is a log of latencies, bandwidth or IOPS.
        TraceError: a file is damaged, or has averages of latencies and no I/Os.

    """
    account = Account()
    tier = options.tier or TIER
    kinds = {path: found["kind"] if (found := _NAME.fullmatch(path.name)) else None for path in files}
    rates = {path: kind for path, kind in kinds.items() if kind in RATES}
    chosen = _chosen(kinds, account)
    rows: list[Rows] = []
    summary = None
    if chosen:
        rows += _operations(db, chosen, account)
    if rates:
        series, summary = rate_series(db, rates, tier, account)
        rows.append(series)
        # With I/Os, the summary is theirs.
        summary = None if chosen else summary
    return Imported(account, rows, [tier], summary=summary)


def logged_latencies(path: Path) -> list[Any]:
    """Return the columns of a latency log with offsets as numpy arrays: ms, latency ns, direction, bytes and offset."""
    import polars as pl

    if path.stat().st_size == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(LEAST + 1)]
    frame = pl.read_csv(path, has_header=False, infer_schema=False)
    numbers = frame.select(pl.col(name).str.strip_chars().cast(pl.Int64) for name in frame.columns[: LEAST + 1])
    return [numbers[name].to_numpy() for name in numbers.columns]


def _operations(db: duckdb.DuckDBPyConnection, files: Sequence[Path], account: Account) -> list[Rows]:
    """Return the tables of the I/Os in latency logs."""
    db.execute(INPUT)
    has_offsets = True
    for number, path in enumerate(files):
        found = _NAME.fullmatch(path.name)
        load(db, path, COLUMNS[: width(path)], account, delimiter=",")
        _leave_out(db, path, account)
        layout = _layout(db)
        has_offsets &= layout.offset is not None
        _insert(db, number, found["prefix"] if found else path.name, layout)
        if layout.issue is None:
            account.notes.append(f"{path.name}: times are whole milliseconds, latencies are exact")
    rows, _first_ns = finish(db, files, is_measured=True)
    (count,) = one(db, "SELECT count(*) FROM input")
    account.kept += count
    if not has_offsets:
        rows = [table for table in rows if table.file == OPS_FILE]
        account.notes.append("no offsets (log_offset=1 was not set): what was measured is here, but no trace of it")
    account.notes.append("the size of an object is the furthest byte used; requests and due times are not in the log")
    return rows


def _chosen(kinds: dict[Path, str | None], account: Account) -> list[Path]:
    """Return the logs of total latencies, else of completion latencies; submission latencies say nothing more."""
    chosen = [path for path, kind in kinds.items() if kind == "lat"]
    if not chosen:
        chosen = [path for path, kind in kinds.items() if kind == "clat"]
        if chosen:
            account.notes.append("latencies are completion latencies: submission is not in them")
    others = [path.name for path, kind in kinds.items() if path not in chosen and kind not in RATES]
    if not chosen and len(others) == len(kinds):
        raise ConfigError(
            f"{others[0]}: no log of latencies, bandwidth or IOPS is among the files; name those that fio wrote, "
            "such as *_lat.1.log, *_bw.1.log or *_iops.1.log"
        )
    if others:
        account.notes.append(f"not read, since they tell no more of an I/O: {', '.join(others)}")
    return chosen


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    numbers = " OR ".join(f"coalesce(TRY_CAST({name} AS BIGINT), -1) < 0" for name in COLUMNS[:LEAST])
    leave_out(db, path, account, "no whole numbers", numbers)
    averaged, every = one(db, "SELECT count(*) FILTER (CAST(bytes AS BIGINT) = 0), count(*) FROM raw")
    if averaged and averaged == every:
        raise TraceError("holds averages (log_avg_msec), not I/Os: set log_avg_msec=0, or import fio's JSON", path=path)
    leave_out(db, path, account, "trims free a part of a file, not an object", "CAST(direction AS BIGINT) = 2")
    leave_out(db, path, account, "a direction that is not known", "CAST(direction AS BIGINT) > 2")


def _layout(db: duckdb.DuckDBPyConnection) -> LogLayout:
    """Tell the columns after the fourth apart: a priority is hexadecimal, or 0 or 1 in all rows."""
    columns = [
        row[0] for row in db.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'raw'").fetchall()
    ]
    more = [name for name in COLUMNS[LEAST:] if name in columns]

    def is_priority(name: str) -> bool:
        number = f"CASE WHEN {name} LIKE '%0x%' THEN 0 ELSE TRY_CAST({name} AS BIGINT) END"
        (most,) = one(db, f"SELECT max({number}) FROM raw")
        return most is None or most <= 1

    if len(more) == 3:  # noqa: PLR2004 - offset, priority, issue time
        return LogLayout(more[0], more[2])
    if len(more) == 2:  # noqa: PLR2004 - offset and priority, or priority and issue time
        is_issue = is_priority(more[0]) and not is_priority(more[1])
        return LogLayout(None, more[1]) if is_issue else LogLayout(more[0], None)
    # Before priorities were logged, a fifth column was the offset.
    return LogLayout(more[0] if more and not is_priority(more[0]) else None, None)


def _insert(db: duckdb.DuckDBPyConnection, number: int, name: str, layout: LogLayout) -> None:
    start = (
        f"CAST({layout.issue} AS BIGINT)" if layout.issue else "CAST(ms AS BIGINT) * 1000000 - CAST(value AS BIGINT)"
    )
    offset = f"CAST({layout.offset} AS BIGINT)" if layout.offset else "0"
    op = f"CASE CAST(direction AS BIGINT) WHEN 0 THEN {READ} ELSE {WRITE} END"
    end = f"{start} + CAST(value AS BIGINT)"
    db.execute(
        f"INSERT INTO input SELECT {number}, line, {op}, $name, {offset}, CAST(bytes AS BIGINT), {start}, {end}, {OK}, "
        "CAST(bytes AS BIGINT) FROM raw",
        {"name": name},
    )


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
            f"INSERT INTO rates SELECT '{kind}', direction, if(bytes > 0, ms, before), ms, "
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
    latency = {"count": 0} | dict.fromkeys(("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns"))
    for op, operations, moved, span_ms in totals:
        seconds = span_ms / 1000 or None
        figures.append(
            {
                "tier": tier,
                "op": _OPS[op],
                "engine": "other",
                "is_simulated": False,
                "planned": None,
                "operations": operations,
                "errors": None,
                "corrupt": 0,
                "bytes": moved,
                "io_bytes": moved,
                "span_ns": span_ms * NS_PER_S // 1000,
                "bandwidth_bytes_per_s": None if moved is None or seconds is None else moved / seconds,
                "operations_per_s": None if operations is None or seconds is None else operations / seconds,
                "in_flight_mean": None,
                "latency": latency,
                "lateness": None,
            }
        )
    known = [f["operations"] for f in figures if f["operations"] is not None]
    return {
        "verdict": "imported from fio-log",
        "wall_ns": max((f["span_ns"] for f in figures), default=None),
        "operations": sum(known) if known else None,
        "errors": None,
        "not_reached": None,
        "pace": None,
        "in_flight_mean": None,
        "warmup": None,
        "skipped_rows": {},
        "figures": figures,
    }


def _batches(db: duckdb.DuckDBPyConnection) -> Iterator[Any]:
    import pyarrow as pa

    schema = arrow_schema(SERIES)
    for batch in db.sql("SELECT * FROM series ORDER BY second, op").to_arrow_reader(1 << 17):
        count = batch.num_rows
        columns = {
            "second": batch.column("second"),
            "tier": pa.array(np.zeros(count, dtype=np.int8)),
            "op": enum_array(SERIES, "op", batch.column("op").to_numpy()),
            "operations": batch.column("operations"),
            "bytes": batch.column("bytes"),
        }
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(count, field.type)
            for field in schema
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
