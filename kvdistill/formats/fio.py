"""What fio writes, read into our tables.

Its JSON result, its logs of latencies and of windows of time, its iologs.

- JSON (`--output-format=json` or `json+`) becomes the figures of a run.json. fio keeps histograms, not I/Os:
  percentiles are those that it printed or, with json+, those of its bins.
- Latency logs (`write_lat_log`) have one line an I/O, at its completion: ms, latency in ns, direction, bytes, then
  offset (`log_offset`), priority and, from fio 3.38, issue time in ns (`log_issue_time`; 0 in logs of total latency).
- Logs of windows hold no single I/O and become a series by the second: `*_bw.N.log` and `*_iops.N.log`, the rate since
  the line before in KiB/s and 1/s; `*_lat.N.log` and `*_clat.N.log` with `log_avg_msec`, mean latencies without a
  count; `*_clat_hist.N.log` (`write_hist_log`), the count of each latency bin since the line before. With
  `log_window_value=both` the largest value stands behind the mean. fio has 64 bins for each power of two of
  nanoseconds; `log_hist_coarseness` joins 2, 4, ... of them.
- Iologs (`write_iolog`): a file is an object, and an operation keeps its offset; trims and syncs have no place in our
  tables, since a trim frees a part of a file, where our delete frees an object. Version 2 holds no times but those of
  its `wait` lines, in ms from the start; version 3 begins each line with a time in microseconds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.formats import (
    ABSOLUTE,
    RELATIVE,
    Account,
    Imported,
    ImportOptions,
    Rows,
)
from kvdistill.formats.importing import INPUT, finish, first_lines, leave_out, load, one
from kvdistill.queries.database import named
from kvdistill.queries.window import OK, READ, WRITE
from kvtrace.core import duckdb, pl
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.run.figures import Distribution, Figures, Summary
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE
from kvtrace.core.schema import MOST, MOST_BYTES, SERIES
from kvtrace.core.statistics import QUANTILES, at_rank, bounds, nearest_rank
from kvtrace.core.units import NS_PER_MS, per_second

TIER = "fio"
_OWN_START = (
    "each job's log counts from that job's own start, also in one file of several jobs"
    " (per_job_logs=0): jobs with a startdelay, or behind a stonewall, overlap each other here"
    " (log_unix_epoch=1 gives dates)"
)
_NAME = re.compile(r"(?P<prefix>.*)_(?P<kind>lat|clat|slat|bw|iops|clat_hist)(?P<job>\.\d+)?\.log")


def read_logs(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the logs of the jobs of one run, merged by time.

    I/Os from total latencies, else completion latencies.

    ConfigError if no file is a log of latencies, bandwidth or IOPS. TraceError if a file is
    damaged.
    """
    account = Account()
    tier = options.tier or TIER
    for path in files:
        need_file(path)
    kinds = {
        path: found["kind"] if (found := _NAME.fullmatch(path.name)) else None for path in files
    }
    # Logs of submission latencies are empty with every synchronous engine.
    read = [path for path, kind in kinds.items() if kind not in (None, "slat")]
    silent = [path for path in read if not path.stat().st_size]
    if 0 < len(silent) < len(read):
        account.notes.append(
            f"empty, of jobs without operations: {', '.join(path.name for path in silent)}"
        )
        kinds = {path: kind for path, kind in kinds.items() if path not in silent}
    windows = {path: Window(kind) for path, kind in kinds.items() if kind in tuple(Window)}
    # Submission latencies say nothing more.
    chosen = [path for path, kind in kinds.items() if kind == "lat"]
    timed = [path.with_name("_clat".join(path.name.rsplit("_lat", 1))) for path in chosen]
    if chosen and all(path in kinds and len(columns_of(path)[0]) == len(COLUMNS) for path in timed):
        chosen = timed
        account.notes.append(
            "latencies are completion latencies: logs of total latency have no issue times"
        )
    alone = [
        path
        for path, kind in kinds.items()
        if kind == "clat" and _job_of(path) not in map(_job_of, chosen)
    ]
    if alone:
        account.notes.append("latencies are completion latencies: submission is not in them")
        account.notes[-1] += f" ({', '.join(path.name for path in alone)})" * bool(chosen)
        chosen += alone
    others = [
        path.name
        for path, kind in kinds.items()
        if path not in chosen and kind not in tuple(Window)
    ]
    if not chosen and len(others) == len(kinds):
        raise ConfigError(
            f"{others[0]}: no log of latencies, bandwidth or IOPS is among the files; name those"
            " that fio wrote, such as *_lat.1.log, *_bw.1.log or *_iops.1.log"
        )
    if others:
        account.notes.append(
            f"not read, since they add nothing to the other logs: {', '.join(others)}"
        )
    means = [path for path in chosen if columns_of(path)[1]]
    windows |= dict.fromkeys(means, Window.MEANS)
    chosen = [path for path in chosen if path not in means]
    rows = _operations(db, chosen, account) if chosen else []
    summary = None
    if windows:
        series, summary = window_series(db, windows, tier, account)
        rows.append(series)
    jobs = {_job_of(path) for path in (*chosen, *windows)}
    if len(jobs) > 1 or not all(number for _, number in jobs):
        account.notes.append(_OWN_START)
    # With I/Os, the summary is theirs.
    return Imported(account, rows, [tier], summary=None if chosen else summary)


def logged_latencies(path: Path) -> list[NDArray[np.int64]]:
    """Return the columns of a latency log with offsets as numpy arrays.

    Ms, latency ns, direction, bytes and offset.
    """
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
        load(db, path, columns_of(path)[0], account, delimiter=",")
        leave_out_odd(db, path, account)
        leave_out(db, path, account, {"moves nothing": "CAST(bytes AS BIGINT) = 0"})
        placed, issued = _layout(db)
        odd = " OR ".join(unlike(name) for name in (placed, issued) if name is not None)
        leave_out(db, path, account, {"no whole numbers": odd or "false"})
        has_offsets &= placed is not None
        start = (
            f"CAST({issued} AS BIGINT)"
            if issued
            else "CAST(ms AS BIGINT) * 1000000 - CAST(value AS BIGINT)"
        )
        offset = f"CAST({placed} AS BIGINT)" if placed else "0"
        op = f"CASE CAST(direction AS BIGINT) WHEN 0 THEN {READ} ELSE {WRITE} END"
        end = f"{start} + CAST(value AS BIGINT)"
        db.execute(
            f"INSERT INTO input SELECT {number}, line, {op}, $name, {offset}, CAST(bytes AS"
            f" BIGINT), {start}, {end}, {OK}, CAST(bytes AS BIGINT) FROM raw",
            {"name": _job_of(path)[0]},
        )
        if issued is None:
            account.notes.append(f"{path.name}: times are whole milliseconds, latencies are exact")
    rows, _first_ns = finish(db, files, account, is_measured=True)
    if not has_offsets:
        rows = [table for table in rows if table.file == OPS_FILE]
        account.notes.append(
            "no offsets (log_offset=1 was not set): what was measured is here, but no trace of it"
        )
    account.notes.append(
        "the size of an object is the furthest byte used; requests and due times are not in the log"
    )
    return rows


def _layout(db: duckdb.DuckDBPyConnection) -> tuple[str | None, str | None]:
    """Return which columns hold the offset and the issue time; null where the log has none.

    What the columns after the fourth are is found out: a priority is hexadecimal, or 0 or 1 in all
    rows, and so is an issue time that fio did not note.
    """
    columns = db.table("raw").columns
    more = [name for name in COLUMNS[LEAST:] if name in columns]

    def is_priority(name: str) -> bool:
        number = f"CASE WHEN {name} LIKE '%0x%' THEN 0 ELSE TRY_CAST({name} AS BIGINT) END"
        (most,) = one(db, f"SELECT max({number}) FROM raw")
        return most is None or most <= 1

    if len(more) == 3:  # noqa: PLR2004 - offset, priority, issue time
        return more[0], None if is_priority(more[2]) else more[2]
    if len(more) == 2:  # noqa: PLR2004 - offset and priority, or priority and issue time
        is_issue = is_priority(more[0]) and not is_priority(more[1])
        return (None, more[1]) if is_issue else (more[0], None)
    # Before priorities were logged, a fifth column was the offset.
    return more[0] if more and not is_priority(more[0]) else None, None


COLUMNS = ("ms", "value", "direction", "bytes", "c5", "c6", "c7")
"""Of every log of fio but histograms; what the last three hold depends on its options."""
LEAST = 4
_DIRECTIONS, _LOOKED_AT = ("0", "1", "2"), 1000
_OPERATIONS = ("read", "write")
_KIB = 1024
_YEAR_MS = 366 * 86_400_000
_MOST = {"ms": MOST // 1_000_000, "value": MOST, "bytes": MOST_BYTES, "direction": 1 << 30}
_PART_BITS = 6
"""Of a latency bin's number: its place within a power of two."""
_BINS = 29 << _PART_BITS
_MOST_COARSENESS = 6


class Window(StrEnum):
    """What a log has of each window of time, by the suffix of its name."""

    BANDWIDTH = "bw"
    RATES = "iops"
    MEANS = "means"
    """Of latencies: a name does not tell them from single ones."""
    HISTOGRAMS = "clat_hist"


def columns_of(path: Path) -> tuple[Sequence[str], bool]:
    """Return the columns of the log at `path`, and whether it holds means of windows.

    No line has the bytes of an I/O.

    With log_window_value=both a window's largest value stands where else the direction does.

    TraceError if fio writes no such log.
    """
    lines = [
        [field.strip() for field in line.split(",")] for line in first_lines(path)[:_LOOKED_AT]
    ]
    count = len(lines[0])
    both = [fields for fields in lines if len(fields) > LEAST + 1]
    is_both = all(fields[3] in _DIRECTIONS and fields[4] == "0" for fields in both)
    names: tuple[str, ...] = COLUMNS
    if both and is_both and not all(fields[2] in _DIRECTIONS for fields in both):
        names = (*COLUMNS[:2], "largest", *COLUMNS[2:])
    if not LEAST <= count <= len(names):
        raise TraceError(
            f"has {count} columns, where a log of fio has {LEAST} to {len(names)}", path=path, row=0
        )
    at = names.index("direction")
    sizes = [
        fields[at + 1] for fields in lines if len(fields) > at + 1 and fields[at] in ("0", "1")
    ]
    return names[:count], bool(sizes) and all(size == "0" for size in sizes)


def unlike(name: str) -> str:
    """Return SQL that is true where the text column `name` is no whole number in its range."""
    return f"coalesce(TRY_CAST({name} AS BIGINT), -1) NOT BETWEEN 0 AND {_MOST.get(name, MOST)}"


def leave_out_odd(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    account: Account,
    numbers: Sequence[str] = COLUMNS[:LEAST],
    odd: str = "",
) -> None:
    """Delete the lines of `raw` that are no reads or writes in whole `numbers`, or are `odd`, and
    count them.
    """
    reasons = {
        "no whole numbers": " OR ".join([*map(unlike, numbers), *([odd] if odd else [])]),
        "trims free a part of a file, not an object": "CAST(direction AS BIGINT) = 2",
        "a direction that is not known": "CAST(direction AS BIGINT) > 2",
    }
    leave_out(db, path, account, reasons)


def _insert_rates(
    db: duckdb.DuckDBPyConnection, kind: Window, amount: str, columns: str, begin: str = "before"
) -> None:
    """Append to `rates` what each line of `raw`, by its typed `columns`, says of the time since the
    line before it.
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
    """Return the series of `files`, all jobs added up, and the figures of the whole."""
    db.execute(
        "CREATE TABLE rates (kind VARCHAR, op TINYINT, from_ms BIGINT, to_ms BIGINT, amount DOUBLE)"
    )
    counts: dict[int, NDArray[np.int64]] = {}
    told: dict[tuple[str, ...], set[Window]] = defaultdict(set)
    for path, kind in files.items():
        told[_job_of(path)].add(kind)
    for path, kind in files.items():
        if kind is Window.HISTOGRAMS:
            # Logs of rates count the same I/Os.
            missing = {Window.RATES, Window.BANDWIDTH} - told[_job_of(path)]
            _enter_histograms(db, path, account, counts, missing)
            told[_job_of(path)] |= missing
        else:
            _enter(db, path, kind, account)
    for kind, what in ((Window.BANDWIDTH, "bytes"), (Window.RATES, "operations")):
        if 0 < sum(kind in of for of in told.values()) < len(told):
            account.notes.append(
                f"{what} are left out: only some of the jobs have logs that say them"
            )
            db.execute("DELETE FROM rates WHERE kind = $kind", {"kind": str(kind)})
    if not one(db, "SELECT count(*) FROM rates")[0]:
        raise TraceError("holds no rate", path=next(iter(files)))
    # Let dates count from the first line; leave out what is then more than a year later.
    (first,) = one(db, "SELECT min(to_ms) FROM rates")
    if first > _YEAR_MS:
        account.notes.append(
            "times are dates (log_unix_epoch): they count from the first line here; what means say"
            " of before is absent"
        )
        db.execute(
            f"UPDATE rates SET from_ms = greatest(from_ms - {first}, 0), to_ms = to_ms - {first}"
        )
    (late,) = one(db, f"DELETE FROM rates WHERE to_ms > {_YEAR_MS}")
    account.leave_out("a time a year after the start", late, "in one of the logs")
    account.rows_kept -= late
    rows = Rows(SERIES_FILE, SERIES, f"FROM ({named('import_series')}) ORDER BY second, op")
    return rows, _summary_of_windows(db, tier, counts)


def _job_of(path: Path) -> tuple[str, str]:
    """Return which job of a run wrote the log at `path`.

    Its name and number; "" for a log of all jobs.
    """
    found = _NAME.fullmatch(path.name)
    return (found["prefix"], found["job"] or "") if found else (path.name, "")


def _enter(db: duckdb.DuckDBPyConnection, path: Path, kind: Window, account: Account) -> None:
    """Append what each line of `path` says to `rates`: an amount, or a mean times its time."""
    load(db, path, columns_of(path)[0], account, delimiter=",")
    leave_out_odd(db, path, account)
    kept, averages = one(
        db, "SELECT count(*), count(*) FILTER (CAST(bytes AS BIGINT) = 0) FROM raw"
    )
    account.rows_kept += kept
    if kind is Window.MEANS:
        account.notes.append(
            f"{path.name} holds mean latencies of windows (log_avg_msec; the longest, with"
            " log_max_value), no I/Os: a second's mean is that of its windows, each by its time,"
            " since the log has no counts"
        )
    elif averages:
        account.notes.append(
            f"{path.name} holds mean rates: amounts are rate times time, after a pause that of one"
            " window; what came after its last line is absent"
        )
    # One I/O counts as itself; a mean counts for the time since the line before.
    numbers = ", ".join(f"CAST({name} AS BIGINT) AS {name}" for name in COLUMNS[:LEAST])
    each, unit = {Window.BANDWIDTH: ("bytes", _KIB / 1000), Window.RATES: ("1", 1 / 1000)}.get(
        kind, ("value", 1)
    )
    began = "before" if kind is Window.MEANS else "began"
    amount = f"if(bytes > 0, {each}, value::DOUBLE * {unit} * (ms - {began}))"
    _insert_rates(db, kind, amount, numbers, f"if(bytes > 0, ms, {began})")


_START = f"if(ms > {_YEAR_MS}, ms, 0)"
"""SQL for when the first window began.

Fio's start, or unknown where the log has the date (log_unix_epoch).
"""


def _enter_histograms(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    account: Account,
    counts: dict[int, NDArray[np.int64]],
    missing: set[Window],
) -> None:
    """Append the bins of each line of `path` to `counts`, and to `rates` the kinds of amounts
    `missing` elsewhere.
    """
    bins = first_lines(path)[0].count(",") - 2
    coarseness = next((c for c in range(_MOST_COARSENESS + 1) if bins == _BINS >> c), None)
    if coarseness is None:
        raise TraceError(
            f"has {bins} latency bins, where fio from 2.99 on writes {_BINS}, or 1/2, 1/4, ...",
            path=path,
        )
    names = ["ms", "direction", "bytes", *(f"b{n}" for n in range(bins))]
    load(db, path, names, account, delimiter=",")
    db.execute(
        "CREATE OR REPLACE TABLE raw AS SELECT line, ms, direction, bytes,"
        f" list_transform([{', '.join(names[3:])}], lambda n: coalesce(TRY_CAST(n AS BIGINT), -1))"
        " AS bins FROM raw"
    )
    leave_out_odd(db, path, account, names[:3], f"list_min(bins) < 0 OR list_max(bins) > {1 << 40}")
    account.rows_kept += one(db, "SELECT count(*) FROM raw")[0]
    account.notes.append(
        f"{path.name} holds histograms of completion latencies, no I/Os: a percentile is the"
        f" longest time of its bin, 1/{64 >> coarseness} of a power of two wide; what came after"
        " its last line is absent"
    )
    (most,) = one(
        db,
        "SELECT max(sizes) FROM (SELECT count(DISTINCT bytes) AS sizes FROM raw GROUP BY"
        " direction)",
    )
    if Window.BANDWIDTH in missing:
        # A line has the size of its last I/O only.
        told = (
            "as if I/Os were as large as the last of each window"
            if most == 1
            else "left out: I/Os differ in size"
        )
        account.notes.append(f"{path.name}: bytes are {told}")
        missing -= {Window.BANDWIDTH} if most != 1 else set()
    for kind in sorted(missing):
        amount = "list_sum(bins)" + (" * bytes::DOUBLE" if kind is Window.BANDWIDTH else "")
        _insert_rates(
            db, kind, amount, "ms::BIGINT AS ms, direction::TINYINT AS direction, bytes, bins"
        )
    for op in (0, 1):
        # As text: a column a bin would be 1,856 columns of a query.
        for (row,) in db.execute(
            f"SELECT bins FROM raw WHERE CAST(direction AS BIGINT) = {op}"
        ).fetchall():
            fine = counts.setdefault(op, np.zeros(_BINS, dtype=np.int64))
            fine[(np.arange(bins) + 1 << coarseness) - 1] += np.array(row, dtype=np.int64)


def _summary_of_windows(
    db: duckdb.DuckDBPyConnection, tier: str, counts: dict[int, NDArray[np.int64]]
) -> Summary:
    """Return the figures over the whole time; null where no log says."""
    # Rates are over the time that their own logs cover: one of latencies may go on for longer.
    totals = db.execute(
        "SELECT op, CAST(round(sum(amount) FILTER (kind = 'iops')) AS BIGINT),"
        " CAST(round(sum(amount) FILTER (kind = 'bw')) AS BIGINT), coalesce(max(to_ms) FILTER (kind"
        " <> 'means'), max(to_ms)) FROM rates GROUP BY op ORDER BY op"
    ).fetchall()
    figures = []
    for op, operations, moved, span_ms in totals:
        figures.append(
            Figures(
                tier=tier,
                op=_OPERATIONS[op],
                engine="other",
                is_simulated=False,
                operations=operations,
                bytes=moved,
                io_bytes=moved,
                span_ns=span_ms * NS_PER_MS,
                bandwidth_bytes_per_s=per_second(moved, span_ms * NS_PER_MS),
                operations_per_s=per_second(operations, span_ms * NS_PER_MS),
                latency=_distribution(counts.get(op)),
            )
        )
    known = [f.operations for f in figures if f.operations is not None]
    return Summary(
        verdict="imported from fio-log",
        figures=figures,
        wall_ns=max((f.span_ns or 0 for f in figures), default=None),
        operations=sum(known) if known else None,
    )


def _distribution(counts: NDArray[np.int64] | None) -> Distribution:
    """Return the percentiles that bins give, each value the longest of its bin.

    Nothing without bins.
    """
    if counts is None or not counts.sum():
        return Distribution(0)
    total = int(counts.sum())
    bins = [
        (bounds(at, _PART_BITS)[1] - 1, count) for at, count in enumerate(counts.tolist()) if count
    ]
    points = {
        f"{name}_ns": at_rank(bins, nearest_rank(total, part)) for name, part in QUANTILES.items()
    }
    return Distribution(total, **points)


_HEAD = re.compile(r"fio version ([23]) iolog\s*")
_FILE_ACTIONS = "'add', 'open', 'close'"
_IO = "'read', 'write'"


def read_iolog(
    files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import one log, or the logs of jobs that ran at the same time, merged by time.

    TraceError if a file is no iolog, is damaged, or has no read or write.
    """
    account = Account()
    db.execute(INPUT)
    for number, path in enumerate(files):
        found = _HEAD.fullmatch(first_lines(path)[0])
        if found is None:
            raise TraceError(
                "its first line is not 'fio version 2 iolog' or 'fio version 3 iolog'",
                path=path,
                row=1,
            )
        version = int(found[1])
        names = ["name", "action", "offset_bytes", "length_bytes"]
        load(
            db,
            path,
            ["us", *names] if version == RELATIVE else names,
            account,
            delimiter=" ",
            skip=1,
        )
        actions, waits = one(
            db,
            f"SELECT count(*) FILTER (action IN ({_FILE_ACTIONS})), count(*) FILTER (action ="
            " 'wait') FROM raw",
        )
        account.rows_read -= actions + waits
        no_place = " OR ".join(
            f"coalesce(TRY_CAST({n} AS BIGINT), -1) < 0" for n in ("offset_bytes", "length_bytes")
        )
        reasons = {
            "syncs cannot be stored in a kvtrace table": (
                "action IN ('sync', 'datasync', 'sync_file_range')"
            ),
            "trims free a part of a file, not an object": "action = 'trim'",
            "an action that is not known": (
                f"coalesce(action, '') NOT IN ('wait', 'read', 'write', {_FILE_ACTIONS})"
            ),
            "no offset and length in whole bytes": f"action IN ({_IO}) AND ({no_place})",
        }
        if version == RELATIVE:
            reasons["no time in whole microseconds"] = "coalesce(TRY_CAST(us AS BIGINT), -1) < 0"
        leave_out(db, path, account, reasons)
        # With `us`, the time in microseconds.
        waited = "CASE WHEN action = 'wait' THEN TRY_CAST(offset_bytes AS BIGINT) END"
        timed = f"SELECT *, 1000 * coalesce(max({waited}) OVER (ORDER BY line), 0) AS us FROM raw"
        if version == RELATIVE:
            timed = "SELECT * REPLACE (CAST(us AS BIGINT) AS us) FROM raw"
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE action WHEN 'read' THEN {READ} ELSE"
            f" {WRITE} END, name, CAST(offset_bytes AS BIGINT), CAST(length_bytes AS BIGINT), us *"
            f" 1000, NULL, {OK}, NULL FROM ({timed}) WHERE action IN ({_IO})"
        )
        if version == ABSOLUTE:
            told = "its times are those of its wait lines, in ms from the start"
            told = told if waits else "it has no times, so all operations share one instant"
            account.notes.append(f"{path.name} is of version 2: {told}")
    rows, _first_ns = finish(db, files, account, is_measured=False)
    account.notes.append(
        "requests, stages and phases are not in the log; the size of a file is the furthest byte"
        " used"
    )
    return Imported(account, rows, [options.tier or TIER])


class PlacedOperations(TypedDict):
    """Reads and writes in order of time, one value an operation."""

    us: NDArray[np.int64]
    """When each is due, in microseconds."""
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]


def logged_ios(path: Path) -> PlacedOperations:
    """Return the I/Os of a log of version 3, as fio writes one, in order."""
    lines = pl.Series(path.read_text(encoding="utf-8").splitlines()[1:], dtype=pl.String)
    # Those of other actions than reads and writes are shorter.
    ios = lines.str.extract_groups(
        r"^(?<us>\d+) \S+ (?<action>\w+) (?<offset>\d+) (?<length>\d+)$"
    ).struct.unnest()
    us, offset, length = (
        ios[name].drop_nulls().cast(pl.Int64).to_numpy() for name in ("us", "offset", "length")
    )
    is_read = (ios["action"].drop_nulls() == "read").to_numpy()
    return {"us": us, "is_read": is_read, "offset": offset, "length": length}
