"""fio's latency logs (`write_lat_log`): one line an I/O, at its completion in whole milliseconds.

Columns: ms, latency ns, direction, bytes, then offset (`log_offset`), priority and, from fio 3.38, issue time in ns
(`log_issue_time`). Logs of whole windows of time (`log_avg_msec`, `log_hist_msec`) are no I/Os: see fio_windows.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.formats.fio_windows import (
    COLUMNS,
    LEAST,
    Window,
    holds_means,
    leave_out_odd,
    unlike,
    width,
    window_series,
)
from kvdistill.formats.formats import Account, Imported, ImportOptions, Rows
from kvdistill.formats.rows import INPUT, OK, READ, WRITE, finish
from kvdistill.formats.text import leave_out, load, one
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import OPS_FILE

if TYPE_CHECKING:
    import duckdb

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
        TraceError: a file is damaged.

    """
    account = Account()
    tier = options.tier or TIER
    kinds = {path: found["kind"] if (found := _NAME.fullmatch(path.name)) else None for path in files}
    windows = {path: Window(kind) for path, kind in kinds.items() if kind in tuple(Window)}
    chosen = _chosen(kinds, account)
    means = [path for path in chosen if holds_means(path)]
    windows |= dict.fromkeys(means, Window.MEANS)
    chosen = [path for path in chosen if path not in means]
    rows: list[Rows] = []
    summary = None
    if chosen:
        rows += _operations(db, chosen, account)
    if windows:
        series, summary = window_series(db, windows, tier, account)
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
        for name in (layout.offset, layout.issue):
            if name is not None:
                leave_out(db, path, account, "no whole numbers", unlike(name))
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
    others = [path.name for path, kind in kinds.items() if path not in chosen and kind not in tuple(Window)]
    if not chosen and len(others) == len(kinds):
        raise ConfigError(
            f"{others[0]}: no log of latencies, bandwidth or IOPS is among the files; name those that fio wrote, "
            "such as *_lat.1.log, *_bw.1.log or *_iops.1.log"
        )
    if others:
        account.notes.append(f"not read, since they tell no more of an I/O: {', '.join(others)}")
    return chosen


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    leave_out_odd(db, path, account)
    leave_out(db, path, account, "moves nothing", "CAST(bytes AS BIGINT) = 0")


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
