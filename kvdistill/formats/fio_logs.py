"""Read fio's logs of latencies and of windows of time.

- Latency logs (`write_lat_log`) have one line an I/O, at its completion: ms, latency in ns, direction, bytes, then
  offset (`log_offset`), priority and, from fio 3.38, issue time in ns (`log_issue_time`; 0 in logs of total latency).
- Logs of windows hold no single I/O and become a series by the second: `*_bw.N.log` and `*_iops.N.log`, the rate since
  the previous line in KiB/s and 1/s; `*_lat.N.log` and `*_clat.N.log` with `log_avg_msec`, mean latencies without a
  count; `*_clat_hist.N.log` (`write_hist_log`), the count of each latency bin since the previous line.
  With `log_window_value=both` the maximum follows the mean. fio has 64 bins for each power of two of
  nanoseconds; `log_hist_coarseness` joins 2, 4, ... of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.formats import (
    FIO_TIER,
    Account,
    Imported,
    ImportOptions,
    Rows,
)
from kvdistill.formats.importing import INPUT, fetch_row, finish, first_lines, leave_out, load
from kvdistill.queries.database import named
from kvdistill.queries.window import OK, READ, WRITE
from kvtrace.core import duckdb, pl
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.run.figures import Distribution, Figures, Summary
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE
from kvtrace.core.schema import MOST, MOST_BYTES, SERIES
from kvtrace.core.statistics import QUANTILES, at_rank, bounds, nearest_rank
from kvtrace.core.units import NS_PER_MS, per_second

_OWN_START = (
    "the times of each job count from its own start, even in one file (per_job_logs=0): jobs with a"
    " startdelay or stonewall wrongly overlap here (log_unix_epoch=1 would give absolute times)"
)
_NAME = re.compile(r"(?P<prefix>.*)_(?P<kind>lat|clat|slat|bw|iops|clat_hist)(?P<job>\.\d+)?\.log")


def read_logs(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the logs of the jobs of one run, merged by time.

    I/Os come from logs of total latency, or else of completion latency.

    ConfigError if no file is a log of latencies, bandwidth or IOPS. TraceError if a file is
    damaged.
    """
    account = Account()
    tier = options.tier or FIO_TIER
    for path in files:
        need_file(path)
    kinds = {
        path: match["kind"] if (match := _NAME.fullmatch(path.name)) else None for path in files
    }
    # Logs of submission latencies are empty with every synchronous engine.
    readable_logs = [path for path, kind in kinds.items() if kind not in (None, "slat")]
    empty_logs = [path for path in readable_logs if not path.stat().st_size]
    if 0 < len(empty_logs) < len(readable_logs):
        account.notes.append(
            f"empty, of jobs without operations: {', '.join(path.name for path in empty_logs)}"
        )
        kinds = {path: kind for path, kind in kinds.items() if path not in empty_logs}
    windows = {path: Window(kind) for path, kind in kinds.items() if kind in tuple(Window)}
    # Logs of submission latency (slat) add nothing.
    op_logs = [path for path, kind in kinds.items() if kind == "lat"]
    completion_logs = [
        path.with_name("_clat".join(path.name.rsplit("_lat", 1))) for path in op_logs
    ]
    if op_logs and all(
        path in kinds and len(log_columns(path)[0]) == len(COLUMNS) for path in completion_logs
    ):
        op_logs = completion_logs
        account.notes.append(
            "latencies are completion latencies: logs of total latency have no issue times"
        )
    completion_only = [
        path
        for path, kind in kinds.items()
        if kind == "clat" and _job_of(path) not in map(_job_of, op_logs)
    ]
    if completion_only:
        account.notes.append("latencies are completion latencies, without submission")
        account.notes[-1] += f" ({', '.join(path.name for path in completion_only)})" * bool(
            op_logs
        )
        op_logs += completion_only
    unread = [
        path.name
        for path, kind in kinds.items()
        if path not in op_logs and kind not in tuple(Window)
    ]
    if not op_logs and len(unread) == len(kinds):
        raise ConfigError(
            f"{unread[0]}: no file is a log of latencies, bandwidth or IOPS; name fio's logs,"
            " such as *_lat.1.log, *_bw.1.log or *_iops.1.log"
        )
    if unread:
        account.notes.append(
            f"not read, because they add nothing to the other logs: {', '.join(unread)}"
        )
    mean_logs = [path for path in op_logs if log_columns(path)[1]]
    windows |= dict.fromkeys(mean_logs, Window.MEANS)
    op_logs = [path for path in op_logs if path not in mean_logs]
    rows = _operations(db, op_logs, account) if op_logs else []
    summary = None
    if windows:
        series, summary = window_series(db, windows, tier, account)
        rows.append(series)
    jobs = {_job_of(path) for path in (*op_logs, *windows)}
    if len(jobs) > 1 or not all(number for _, number in jobs):
        account.notes.append(_OWN_START)
    # With I/Os, the summary is computed from them.
    return Imported(account, rows, [tier], summary=None if op_logs else summary)


def logged_latencies(path: Path) -> list[NDArray[np.int64]]:
    """Return the columns of a latency log: ms, latency in ns, direction, bytes, offset."""
    if path.stat().st_size == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(LEAST + 1)]
    frame = pl.read_csv(path, has_header=False, infer_schema=False)
    numbers = frame.select(
        pl.col(name).str.strip_chars().cast(pl.Int64) for name in frame.columns[: LEAST + 1]
    )
    return [numbers[name].to_numpy() for name in numbers.columns]


def _operations(
    db: duckdb.DuckDBPyConnection, files: Sequence[Path], account: Account
) -> list[Rows]:
    """Return the tables of the I/Os in latency logs."""
    db.execute(INPUT)
    has_offsets = True
    for number, path in enumerate(files):
        load(db, path, log_columns(path)[0], account, delimiter=",")
        reject_invalid_lines(db, path, account)
        leave_out(db, path, account, {"transfers no bytes": "CAST(bytes AS BIGINT) = 0"})
        offset_column, issue_column = _layout(db)
        invalid = " OR ".join(
            not_whole_number(name) for name in (offset_column, issue_column) if name is not None
        )
        leave_out(db, path, account, {"no whole numbers": invalid or "false"})
        has_offsets &= offset_column is not None
        start = (
            f"CAST({issue_column} AS BIGINT)"
            if issue_column
            else "CAST(ms AS BIGINT) * 1000000 - CAST(value AS BIGINT)"
        )
        offset = f"CAST({offset_column} AS BIGINT)" if offset_column else "0"
        op = f"CASE CAST(direction AS BIGINT) WHEN 0 THEN {READ} ELSE {WRITE} END"
        end = f"{start} + CAST(value AS BIGINT)"
        db.execute(
            f"INSERT INTO input SELECT {number}, line, {op}, $name, {offset}, CAST(bytes AS"
            f" BIGINT), {start}, {end}, {OK}, CAST(bytes AS BIGINT) FROM raw",
            {"name": _job_of(path)[0]},
        )
        if issue_column is None:
            account.notes.append(f"{path.name}: times are whole milliseconds, latencies are exact")
    rows, _first_ns = finish(db, files, account, is_measured=True)
    if not has_offsets:
        rows = [table for table in rows if table.file == OPS_FILE]
        account.notes.append(
            "no offsets (log_offset=1 was not set), so there are measured operations but no trace"
        )
    account.notes.append(
        "an object's size is the farthest byte used; the log has no requests and due times"
    )
    return rows


def _layout(db: duckdb.DuckDBPyConnection) -> tuple[str | None, str | None]:
    """Return the columns of the offset and the issue time; null if the log has none.

    The columns after the fourth are recognised by their values: a priority is hexadecimal, or 0 or 1
    in all rows. An issue time that fio did not record looks the same.
    """
    columns = db.table("raw").columns
    extra_columns = [name for name in COLUMNS[LEAST:] if name in columns]

    def is_priority(name: str) -> bool:
        number = f"CASE WHEN {name} LIKE '%0x%' THEN 0 ELSE TRY_CAST({name} AS BIGINT) END"
        (largest,) = fetch_row(db, f"SELECT max({number}) FROM raw")
        return largest is None or largest <= 1

    if len(extra_columns) == 3:  # noqa: PLR2004 - offset, priority, issue time
        return extra_columns[0], None if is_priority(extra_columns[2]) else extra_columns[2]
    if len(extra_columns) == 2:  # noqa: PLR2004 - offset and priority, or priority and issue time
        is_issue = is_priority(extra_columns[0]) and not is_priority(extra_columns[1])
        return (None, extra_columns[1]) if is_issue else (extra_columns[0], None)
    # Before priorities were logged, a fifth column was the offset.
    return extra_columns[0] if extra_columns and not is_priority(extra_columns[0]) else None, None


COLUMNS = ("ms", "value", "direction", "bytes", "c5", "c6", "c7")
"""Columns of fio's logs except histograms; the content of the last three depends on options."""
LEAST = 4
_DIRECTIONS, _LOOKED_AT = ("0", "1", "2"), 1000
_OPERATIONS = ("read", "write")
_KIB = 1024
_YEAR_MS = 366 * 86_400_000
_MAX_VALUES = {"ms": MOST // 1_000_000, "value": MOST, "bytes": MOST_BYTES, "direction": 1 << 30}
_PART_BITS = 6
"""Low bits of the number of a latency bin: its position within a power of two."""
_BINS = 29 << _PART_BITS
_MOST_COARSENESS = 6


class Window(StrEnum):
    """The figure that a log has for each window of time; the value is the suffix of its name."""

    BANDWIDTH = "bw"
    RATES = "iops"
    MEANS = "means"
    """Mean latencies; the name of the file does not distinguish them from single latencies."""
    HISTOGRAMS = "clat_hist"


def log_columns(path: Path) -> tuple[Sequence[str], bool]:
    """Return the columns of the log at `path`, and whether it holds means of windows.

    In a log of means, no line has the bytes of an I/O. With log_window_value=both, the maximum of a
    window takes the place of the direction.

    TraceError if the columns are not those of a log of fio.
    """
    lines = [
        [field.strip() for field in line.split(",")] for line in first_lines(path)[:_LOOKED_AT]
    ]
    count = len(lines[0])
    long_lines = [fields for fields in lines if len(fields) > LEAST + 1]
    has_both_values = all(fields[3] in _DIRECTIONS and fields[4] == "0" for fields in long_lines)
    names: tuple[str, ...] = COLUMNS
    if (
        long_lines
        and has_both_values
        and not all(fields[2] in _DIRECTIONS for fields in long_lines)
    ):
        names = (*COLUMNS[:2], "largest", *COLUMNS[2:])
    index = names.index("direction")
    least = LEAST + (index - COLUMNS.index("direction"))
    if not least <= count <= len(names):
        raise TraceError(
            f"has {count} columns, where a log of fio has {least} to {len(names)}", path=path, row=0
        )
    sizes = [
        fields[index + 1]
        for fields in lines
        if len(fields) > index + 1 and fields[index] in ("0", "1")
    ]
    return names[:count], bool(sizes) and all(size == "0" for size in sizes)


def not_whole_number(name: str) -> str:
    """Return an SQL condition: the text column `name` is not a whole number in its range."""
    return (
        f"coalesce(TRY_CAST({name} AS BIGINT), -1) NOT BETWEEN 0 AND {_MAX_VALUES.get(name, MOST)}"
    )


def reject_invalid_lines(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    account: Account,
    numbers: Sequence[str] = COLUMNS[:LEAST],
    extra_condition: str = "",
) -> None:
    """Reject lines of `raw` that are not reads or writes, or have invalid `numbers`.

    `extra_condition` is a further SQL condition for invalid numbers.
    """
    reasons = {
        "no whole numbers": " OR ".join(
            [*map(not_whole_number, numbers), *([extra_condition] if extra_condition else [])]
        ),
        "trims free part of a file, not an object": "CAST(direction AS BIGINT) = 2",
        "an unknown direction": "CAST(direction AS BIGINT) > 2",
    }
    leave_out(db, path, account, reasons)


def _insert_rates(
    db: duckdb.DuckDBPyConnection, kind: Window, amount: str, columns: str, begin: str = "before"
) -> None:
    """Append to `rates` the amount of each line of `raw` over the time since the previous line.

    `columns` is SQL for its typed columns.
    """
    db.execute(
        f"CREATE OR REPLACE VIEW lines AS SELECT *, {_START} AS zero_ms FROM (SELECT line,"
        f" {columns} FROM raw)"
    )
    db.execute(
        f"INSERT INTO rates SELECT '{kind}', direction, {begin}, ms, {amount} FROM"
        f" ({named('import_windows')})"
    )


def window_series(
    db: duckdb.DuckDBPyConnection, files: dict[Path, Window], tier: str, account: Account
) -> tuple[Rows, Summary]:
    """Return the series of `files`, summed over jobs, and the total figures."""
    db.execute(
        "CREATE TABLE rates (kind VARCHAR, op TINYINT, from_ms BIGINT, to_ms BIGINT, amount DOUBLE)"
    )
    counts: dict[int, NDArray[np.int64]] = {}
    kinds_by_job: dict[tuple[str, ...], set[Window]] = defaultdict(set)
    for path, kind in files.items():
        kinds_by_job[_job_of(path)].add(kind)
    for path, kind in files.items():
        if kind is Window.HISTOGRAMS:
            # Logs of rates already count these I/Os.
            missing = {Window.RATES, Window.BANDWIDTH} - kinds_by_job[_job_of(path)]
            _enter_histograms(db, path, account, counts, missing)
            kinds_by_job[_job_of(path)] |= missing
        else:
            _enter(db, path, kind, account)
    for kind, quantity in ((Window.BANDWIDTH, "bytes"), (Window.RATES, "operations")):
        if 0 < sum(kind in kinds for kinds in kinds_by_job.values()) < len(kinds_by_job):
            account.notes.append(f"{quantity} are omitted: only some of the jobs have logs of them")
            db.execute("DELETE FROM rates WHERE kind = $kind", {"kind": str(kind)})
    (huge_rows,) = fetch_row(db, f"DELETE FROM rates WHERE amount > {MOST}")
    account.leave_out("an amount that 64 bits cannot hold", huge_rows, "in one of the logs")
    account.rows_kept -= huge_rows
    if not fetch_row(db, "SELECT count(*) FROM rates")[0]:
        raise TraceError("holds no rates", path=next(iter(files)))
    # Absolute times count from the first line; lines more than a year later are rejected.
    (first_ms,) = fetch_row(db, "SELECT min(to_ms) FROM rates")
    if first_ms > _YEAR_MS:
        account.notes.append(
            "times are absolute (log_unix_epoch): they count from the first line, and means before it"
            " are lost"
        )
        db.execute(
            f"UPDATE rates SET from_ms = greatest(from_ms - {first_ms}, 0), to_ms = to_ms - {first_ms}"
        )
    (late_rows,) = fetch_row(db, f"DELETE FROM rates WHERE to_ms > {_YEAR_MS}")
    account.leave_out("a time over a year after the start", late_rows, "in one of the logs")
    account.rows_kept -= late_rows
    rows = Rows(SERIES_FILE, SERIES, f"FROM ({named('import_series')}) ORDER BY second, op")
    return rows, _summary_of_windows(db, tier, counts)


def _job_of(path: Path) -> tuple[str, str]:
    """Return the name and number of the job that wrote the log; the number is "" for all jobs."""
    match = _NAME.fullmatch(path.name)
    return (match["prefix"], match["job"] or "") if match else (path.name, "")


def _enter(db: duckdb.DuckDBPyConnection, path: Path, kind: Window, account: Account) -> None:
    """Append the lines of `path` to `rates`: amounts, or means times their durations."""
    load(db, path, log_columns(path)[0], account, delimiter=",")
    reject_invalid_lines(db, path, account)
    rows, averages = fetch_row(
        db, "SELECT count(*), count(*) FILTER (CAST(bytes AS BIGINT) = 0) FROM raw"
    )
    account.rows_kept += rows
    if kind is Window.MEANS:
        account.notes.append(
            f"{path.name} holds mean latencies of windows (log_avg_msec; maxima with log_max_value), not"
            " I/Os: a second's mean weights its windows by time, because the log has no counts"
        )
    elif averages:
        account.notes.append(
            f"{path.name} holds mean rates: amounts are rate times time, after a pause those of one"
            " window; I/O after its last line is missing"
        )
    # A line is one I/O (with bytes), or a mean over the time since the previous line.
    numbers = ", ".join(f"CAST({name} AS BIGINT) AS {name}" for name in COLUMNS[:LEAST])
    amount_of_one, unit = {
        Window.BANDWIDTH: ("bytes", _KIB / 1000),
        Window.RATES: ("1", 1 / 1000),
    }.get(kind, ("value", 1))
    begin_column = "before" if kind is Window.MEANS else "began"
    amount = f"if(bytes > 0, {amount_of_one}, value::DOUBLE * {unit} * (ms - {begin_column}))"
    _insert_rates(db, kind, amount, numbers, f"if(bytes > 0, ms, {begin_column})")


_START = f"if(ms > {_YEAR_MS}, ms, 0)"
"""SQL for the start of the first window: 0, or the line itself with log_unix_epoch."""


def _enter_histograms(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    account: Account,
    counts: dict[int, NDArray[np.int64]],
    missing: set[Window],
) -> None:
    """Append the bins of each line of `path` to `counts`.

    The kinds of amounts that other logs lack (`missing`) are appended to `rates`.
    """
    bins = first_lines(path)[0].count(",") - 2
    coarseness = next(
        (shift for shift in range(_MOST_COARSENESS + 1) if bins == _BINS >> shift), None
    )
    if coarseness is None:
        raise TraceError(
            f"has {bins} latency bins, where fio from 2.99 on writes {_BINS}, or 1/2, 1/4, ...",
            path=path,
        )
    names = ["ms", "direction", "bytes", *(f"b{number}" for number in range(bins))]
    load(db, path, names, account, delimiter=",")
    db.execute(
        "CREATE OR REPLACE TABLE raw AS SELECT line, ms, direction, bytes,"
        f" list_transform([{', '.join(names[3:])}], lambda n: coalesce(TRY_CAST(n AS BIGINT), -1))"
        " AS bins FROM raw"
    )
    reject_invalid_lines(
        db, path, account, names[:3], f"list_min(bins) < 0 OR list_max(bins) > {1 << 40}"
    )
    account.rows_kept += fetch_row(db, "SELECT count(*) FROM raw")[0]
    account.notes.append(
        f"{path.name} holds histograms of completion latencies, not I/Os: a percentile is the upper"
        f" edge of its bin, 1/{64 >> coarseness} of a power of two wide; I/O after its last line is"
        " missing"
    )
    (distinct_sizes,) = fetch_row(
        db,
        "SELECT max(sizes) FROM (SELECT count(DISTINCT bytes) AS sizes FROM raw GROUP BY"
        " direction)",
    )
    if Window.BANDWIDTH in missing:
        # A line has the size of its last I/O only.
        treatment = (
            "computed from the size of the last I/O of each window"
            if distinct_sizes == 1
            else "omitted: I/Os differ in size"
        )
        account.notes.append(f"{path.name}: bytes are {treatment}")
        missing -= {Window.BANDWIDTH} if distinct_sizes != 1 else set()
    for kind in sorted(missing):
        amount = "list_sum(bins)" + (" * bytes::DOUBLE" if kind is Window.BANDWIDTH else "")
        _insert_rates(
            db, kind, amount, "ms::BIGINT AS ms, direction::TINYINT AS direction, bytes, bins"
        )
    for op in (0, 1):
        # Lists, because a column for each bin would be 1,856 columns of a query.
        for (row,) in db.execute(
            f"SELECT bins FROM raw WHERE CAST(direction AS BIGINT) = {op}"
        ).fetchall():
            fine_counts = counts.setdefault(op, np.zeros(_BINS, dtype=np.int64))
            fine_counts[(np.arange(bins) + 1 << coarseness) - 1] += np.array(row, dtype=np.int64)


def _summary_of_windows(
    db: duckdb.DuckDBPyConnection, tier: str, counts: dict[int, NDArray[np.int64]]
) -> Summary:
    """Return the total figures; null without a log of them."""
    # Rates are over the time of their own logs; a log of latencies may be longer.
    totals = db.execute(
        "SELECT op, TRY_CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT),"
        " TRY_CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT), coalesce(max(to_ms) FILTER (kind"
        " <> 'means'), max(to_ms)) FROM rates GROUP BY op ORDER BY op"
    ).fetchall()
    figures = []
    for op, operations, bytes_transferred, span_ms in totals:
        figures.append(
            Figures(
                tier=tier,
                op=_OPERATIONS[op],
                engine="other",
                is_simulated=False,
                operations=operations,
                bytes=bytes_transferred,
                io_bytes=bytes_transferred,
                span_ns=span_ms * NS_PER_MS,
                bandwidth_bytes_per_s=per_second(bytes_transferred, span_ms * NS_PER_MS),
                operations_per_s=per_second(operations, span_ms * NS_PER_MS),
                latency=_distribution(counts.get(op)),
            )
        )
    counts_known = [row.operations for row in figures if row.operations is not None]
    return Summary(
        verdict="imported from fio-log",
        figures=figures,
        wall_ns=max((row.span_ns or 0 for row in figures), default=None),
        operations=sum(counts_known) if counts_known else None,
    )


def _distribution(counts: NDArray[np.int64] | None) -> Distribution:
    """Return percentiles from bins (upper edges); a distribution without values if there are none."""
    if counts is None or not counts.sum():
        return Distribution(0)
    total = int(counts.sum())
    bins = [
        (bounds(index, _PART_BITS)[1] - 1, count)
        for index, count in enumerate(counts.tolist())
        if count
    ]
    points: dict[str, Any] = {
        f"{name}_ns": at_rank(bins, nearest_rank(total, ten_thousandths))
        for name, ten_thousandths in QUANTILES.items()
    }
    return Distribution(total, **points)
