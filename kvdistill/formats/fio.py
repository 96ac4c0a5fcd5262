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
from typing import Annotated, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.formats import (
    ABSOLUTE,
    RELATIVE,
    Account,
    Imported,
    ImportedFacts,
    ImportOptions,
    Rows,
)
from kvdistill.formats.importing import INPUT, finish, first_lines, leave_out, load, one
from kvdistill.queries.database import named
from kvdistill.queries.window import OK, READ, WRITE
from kvtrace.core import duckdb, pl
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.core.metadata import Count
from kvtrace.core.run.figures import Distribution, Figures, Summary
from kvtrace.core.run.run_builder import COMPLETE
from kvtrace.core.run.run_file import OPS_FILE, SERIES_FILE, EngineNote
from kvtrace.core.schema import MOST, MOST_BYTES, SERIES
from kvtrace.core.statistics import QUANTILES, at_rank, bounds, nearest_rank
from kvtrace.core.units import NS_PER_MS, counted, per_second

_WHOLE = 100
_NEEDED = ("io_bytes", "bw_bytes", "iops", "runtime", "lat_ns")
"""What fio has of each direction since its version 3."""
_Ms = Annotated[int, msgspec.Meta(ge=0, le=MOST // NS_PER_MS)]


class _Times(msgspec.Struct):
    """Latencies, so far as they are read; any field may be missing or null."""

    mean: float | None = None
    max: Count | None = None
    N: Count | None = None
    percentile: dict[str, Count | None] | None = None
    bins: dict[str, Count | None] | None = None


class _Moved(msgspec.Struct):
    """What a job did in one direction."""

    total_ios: Count | None = None
    io_bytes: Count | None = None
    bw_bytes: float | None = None
    iops: float | None = None
    runtime: _Ms | None = None
    lat_ns: _Times | None = None
    clat_ns: _Times | None = None


class _Job(msgspec.Struct, rename={"options": "job options"}):
    jobname: str | None = None
    error: int | None = None
    total_err: Count | None = None
    job_runtime: _Ms | None = None
    job_start: Count | None = None
    """In ms of the Unix clock; fio has it from 3.36 on."""
    groupid: int | None = None
    hostname: str | None = None
    """Of its client."""
    read: _Moved | None = None
    write: _Moved | None = None
    trim: _Moved | None = None
    sync: _Moved | None = None
    options: dict[str, str | None] | None = None


class _Result(msgspec.Struct, rename={"version": "fio version", "options": "global options"}):
    """fio's result, so far as it is read, with the types that it must have."""

    jobs: list[_Job | None] = []
    client_stats: list[_Job | None] = []
    """In place of `jobs`, the jobs of every client (`--client`), then their sum."""
    version: str | None = None
    options: dict[str, str | None] | None = None


def read_results(
    files: Sequence[Path], options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import the results of one run of fio; each job is a tier of its name.

    TraceError if a file holds no result of fio 3 or later.
    """
    results = [_result_of(path) for path in files]
    jobs = [
        (path, result, job)
        for path, result in zip(files, results, strict=True)
        for job in result.jobs
        if job
    ]
    account = Account()
    figures: list[Figures] = []
    kinds: set[str] = set()
    errors = []
    names = _tier_names([job for *_, job in jobs], options.tier)
    for (path, _, job), tier in zip(jobs, names, strict=True):
        if job.error:
            errors.append(f"job {job.jobname} of {path.name} ended with error {job.error}")
        for op, found in {
            "read": job.read,
            "write": job.write,
            "trim": job.trim,
            "sync": job.sync,
        }.items():
            if found is None or not found.total_ios:
                continue
            account.rows_read += 1
            if op in _OPS:
                figures.append(_job_figures(job, op, found, tier, kinds, path))
            else:
                whose = f"{counted(found.total_ios, op)} of job {job.jobname} in {path.name}"
                account.notes.append(f"counted in no figure: {whose}")
    if not figures:
        raise TraceError(
            "holds no job that read or wrote (unified_rw_reporting=mixed does not separate them)",
            path=files[0],
        )
    account.rows_kept = len(figures)
    notes = [
        "fio's percentiles are of histograms whose bins are at most 1/64 of their value wide",
        "each job is a tier of its name",
        "bandwidth and rates are over each job's own run time",
    ]
    if "clat_ns" in kinds:
        notes.append(
            "latency is fio's completion latency, without submission (lat_percentiles=1 would give"
            " the whole)"
        )
        notes[-1] += ", but the whole of jobs with lat_percentiles=1" * ("lat_ns" in kinds)
    account.notes += notes
    tiers = list(dict.fromkeys(f.tier for f in figures))
    # A job that ended with an error had one at least; only continue_on_error counts them.
    failed = sum(job.total_err or bool(job.error) for *_, job in jobs)
    asked = [(result.options or {}) | (job.options or {}) for _, result, job in jobs]
    return Imported(
        account,
        [],
        tiers,
        summary=Summary(
            verdict="imported from fio-json",
            figures=figures,
            wall_ns=_wall_ns([job for *_, job in jobs], asked),
            operations=sum(f.operations or 0 for f in figures),
            errors=failed,
        ),
        facts=_run_facts(asked, errors),
        config={
            "fio": {"version": results[0].version, "jobs": dict(zip(names, asked, strict=True))}
        },
    )


def _wall_ns(jobs: list[_Job], asked: list[dict[str, str | None]]) -> int | None:
    """Return from when the first of `jobs` began to when the last one ended.

    Null where fio does not say.

    Of a group (group_reporting) job_runtime is that of its jobs added up, a direction's runtime
    that of the longest.
    """
    lasted = []
    for job in jobs:
        moved = [
            of.runtime for of in (job.read, job.write, job.trim) if of is not None and of.runtime
        ]
        lasted.append(min(job.job_runtime or 0, max(moved, default=MOST)))
    starts = [job.job_start for job in jobs if job.job_start is not None]
    if len(starts) == len(jobs):
        wall_ms = max(start + ms for start, ms in zip(starts, lasted, strict=True)) - min(starts)
    else:
        # What stands behind a stonewall is a group of its own.
        is_together = len({job.groupid for job in jobs}) == 1 and not any(
            "startdelay" in of for of in asked[1:]
        )
        wall_ms = max(lasted) if is_together else 0
    return wall_ms * NS_PER_MS or None


def _result_of(path: Path) -> _Result:
    need_file(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    # fio writes warnings before the JSON to the same file, and other formats; with
    # --status-interval the last is whole.
    found = re.findall(r"^\{.*?(?:^\}$|\Z)", text, re.MULTILINE | re.DOTALL)
    misfit = "not fio's JSON: {} (fio --output-format=json writes it)"
    result = decode_json(found[-1].encode() if found else b"", _Result, path, misfit=misfit)
    result.jobs += [job for job in result.client_stats if job and job.jobname != "All clients"]
    return result


def _tier_names(jobs: list[_Job], tier: str | None) -> list[str]:
    """Return a name for each job.

    Its own, with its host if there are several, or `tier`; made to differ.
    """
    names: list[str] = []
    has_hosts = len({job.hostname for job in jobs if job.hostname}) > 1
    for job in jobs:
        own = "fio" if job.jobname is None else job.jobname
        own += f" on {job.hostname}" if has_hosts and job.hostname else ""
        name = own if tier is None else tier if len(jobs) == 1 else f"{tier} {own}"
        same = sum(n == name or n.startswith(f"{name} #") for n in names)
        names.append(f"{name} #{same + 1}" if same else name)
    return names


def _job_figures(
    job: _Job, op: str, found: _Moved, tier: str, kinds: set[str], path: Path
) -> Figures:
    is_timed = bool(found.runtime)
    latency, missing = (
        _latency(found, kinds),
        [name for name in _NEEDED if getattr(found, name) is None],
    )
    if missing or latency is None:
        lacks = missing[0] if missing else "its latencies"
        raise TraceError(f"not of fio 3 or later: {op} of a job lacks {lacks!r}", path=path)
    return Figures(
        tier=tier,
        op=op,
        engine="other",
        is_simulated=False,
        operations=found.total_ios,
        errors=None if job.error or job.total_err else 0,
        bytes=found.io_bytes,
        io_bytes=found.io_bytes,
        span_ns=(found.runtime or 0) * NS_PER_MS,
        bandwidth_bytes_per_s=found.bw_bytes if is_timed else None,
        operations_per_s=found.iops if is_timed else None,
        latency=latency,
    )


def _latency(found: _Moved, kinds: set[str]) -> Distribution | None:
    """Return a distribution, all of one kind.

    Total latency if fio has its percentiles, else completion latency.

    Null without both.
    """
    total = found.lat_ns
    is_total = total is not None and (total.percentile, total.bins) != (None, None)
    times = total if is_total else found.clat_ns
    if times is None:
        return None
    kinds.add("lat_ns" if is_total else "clat_ns")
    count = (found.total_ios or 0) if times.N is None else times.N
    if not count:
        return Distribution(0)
    bins = sorted((int(v), n or 0) for v, n in (times.bins or {}).items() if v.isdecimal())
    points: dict[str, float | None] = {}
    for name, part in QUANTILES.items():
        # fio's own, else that of the bin which holds it.
        printed, rank = (
            (times.percentile or {}).get(f"{part / _WHOLE:.6f}"),
            nearest_rank(count, part),
        )
        points[f"{name}_ns"] = at_rank(bins, rank) if rank is None or printed is None else printed
    distribution = Distribution(count, times.mean, max_ns=times.max)
    return msgspec.structs.replace(distribution, **points)


def _run_facts(options: list[dict[str, str | None]], errors: list[str]) -> ImportedFacts:
    def same(name: str) -> str | None:
        """Return the option that all jobs share, else null."""
        values = {option.get(name) for option in options}
        return values.pop() if len(values) == 1 else None

    depth = same("iodepth")
    return ImportedFacts(
        status="partial" if errors else COMPLETE,
        reason="; ".join(errors) or None,
        engine=EngineNote(
            name=same("ioengine") or "other",
            queue_depth=int(depth) if depth is not None and depth.isdigit() else None,
            io_bytes=None,
        ),
    )


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
_OPS = ("read", "write")
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
                op=_OPS[op],
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
