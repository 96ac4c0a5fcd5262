"""fio's latency logs (`write_lat_log`): one line an I/O, at its completion in whole milliseconds.

Columns: ms, latency ns, direction, bytes, then offset (`log_offset`), priority and, from fio 3.38, issue time in ns
(`log_issue_time`). A log of averages (`log_avg_msec`) has no I/Os, and neither have bandwidth and IOPS logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvdistill.importers import Account, Imported
from kvdistill.importers.rows import INPUT, OK, OPS_FILE, READ, WRITE, finish
from kvdistill.importers.text import first_line, leave_out, load, one
from kvtrace.core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from kvdistill.importers import Options

TIER = "fio"
_NAME = re.compile(r"(?P<prefix>.*)_(?P<kind>lat|clat|slat|bw|iops|clat_hist)(?:\.\d+)?\.log")
_COLUMNS = ("ms", "value", "direction", "bytes", "c5", "c6", "c7")
_LEAST, _MOST = 4, len(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns hold the offset and the issue time; null where the log has none."""

    offset: str | None
    issue: str | None


def read(files: Sequence[Path], options: Options, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the latency logs of the jobs of one run, merged by time: total latencies, else completion latencies.

    Raises:
        ConfigError: no file is a log of latencies.
        TraceError: a file is damaged, or has averages and no I/Os.

    """
    account = Account()
    db.execute(INPUT)
    chosen = _chosen(files, account)
    has_offsets = True
    for number, path in enumerate(chosen):
        found = _NAME.fullmatch(path.name)
        load(db, path, _COLUMNS[: _width(path)], account, delimiter=",")
        _leave_out(db, path, account)
        layout = _layout(db)
        has_offsets &= layout.offset is not None
        _insert(db, number, found["prefix"] if found else path.name, layout)
        if layout.issue is None:
            account.notes.append(f"{path.name}: times are whole milliseconds, latencies are exact")
    rows, _first_ns = finish(db, chosen, is_measured=True)
    (account.kept,) = one(db, "SELECT count(*) FROM input")
    if not has_offsets:
        rows = [table for table in rows if table.file == OPS_FILE]
        account.notes.append("no offsets (log_offset=1 was not set): what was measured is here, but no trace of it")
    account.notes.append("the size of an object is the furthest byte used; requests and due times are not in the log")
    return Imported(account, rows, [options.tier or TIER])


def _chosen(files: Sequence[Path], account: Account) -> list[Path]:
    """Return the logs of total latencies, else of completion latencies; the others say nothing more of an I/O."""
    kinds = {path: found["kind"] if (found := _NAME.fullmatch(path.name)) else None for path in files}
    for kind in ("lat", "clat"):
        chosen = [path for path in files if kinds[path] == kind]
        if not chosen:
            continue
        if kind == "clat":
            account.notes.append("latencies are completion latencies: submission is not in them")
        others = [path.name for path in files if path not in chosen]
        if others:
            account.notes.append(f"not read, since they have no I/Os of their own: {', '.join(others)}")
        return chosen
    raise ConfigError(
        f"{files[0]}: no log of latencies is among the files; name those of write_lat_log, *_lat.*.log (bandwidth and "
        "IOPS logs hold rates, not I/Os; `import fio-json` has them)"
    )


def _width(path: Path) -> int:
    count = first_line(path).count(",") + 1
    if not _LEAST <= count <= _MOST:
        raise TraceError(f"has {count} columns, where a latency log of fio has {_LEAST} to {_MOST}", path=path, row=0)
    return count


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    numbers = " OR ".join(f"coalesce(TRY_CAST({name} AS BIGINT), -1) < 0" for name in _COLUMNS[:_LEAST])
    leave_out(db, path, account, "no whole numbers", numbers)
    averaged, every = one(db, "SELECT count(*) FILTER (CAST(bytes AS BIGINT) = 0), count(*) FROM raw")
    if averaged and averaged == every:
        raise TraceError("holds averages (log_avg_msec), not I/Os: set log_avg_msec=0, or import fio's JSON", path=path)
    leave_out(db, path, account, "trims free a part of a file, not an object", "CAST(direction AS BIGINT) = 2")
    leave_out(db, path, account, "a direction that is not known", "CAST(direction AS BIGINT) > 2")


def _layout(db: duckdb.DuckDBPyConnection) -> Layout:
    """Tell the columns after the fourth apart: a priority is hexadecimal, or 0 or 1 in all rows."""
    columns = [
        row[0] for row in db.execute("SELECT column_name FROM duckdb_columns() WHERE table_name = 'raw'").fetchall()
    ]
    more = [name for name in _COLUMNS[_LEAST:] if name in columns]

    def is_priority(name: str) -> bool:
        number = f"CASE WHEN {name} LIKE '%0x%' THEN 0 ELSE TRY_CAST({name} AS BIGINT) END"
        (most,) = one(db, f"SELECT max({number}) FROM raw")  # noqa: S608 - ours
        return most is None or most <= 1

    if len(more) == 3:  # noqa: PLR2004 - offset, priority, issue time
        return Layout(more[0], more[2])
    if len(more) == 2:  # noqa: PLR2004 - offset and priority, or priority and issue time
        is_issue = is_priority(more[0]) and not is_priority(more[1])
        return Layout(None, more[1]) if is_issue else Layout(more[0], None)
    # Before priorities were logged, a fifth column was the offset.
    return Layout(more[0] if more and not is_priority(more[0]) else None, None)


def _insert(db: duckdb.DuckDBPyConnection, number: int, name: str, layout: Layout) -> None:
    start = (
        f"CAST({layout.issue} AS BIGINT)" if layout.issue
        else "CAST(ms AS BIGINT) * 1000000 - CAST(value AS BIGINT)"
    )  # fmt: skip
    offset = f"CAST({layout.offset} AS BIGINT)" if layout.offset else "0"
    op = f"CASE CAST(direction AS BIGINT) WHEN 0 THEN {READ} ELSE {WRITE} END"
    end = f"{start} + CAST(value AS BIGINT)"
    db.execute(
        f"INSERT INTO input SELECT {number}, line, {op}, $name, {offset}, CAST(bytes AS BIGINT), {start}, {end}, {OK}, "  # noqa: S608 - ours
        "CAST(bytes AS BIGINT) FROM raw", {"name": name},
    )  # fmt: skip
