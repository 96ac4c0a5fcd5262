"""The op log of sai3-bench and s3dlio, and the per-request CSV of MinIO's warp: zstd TSV, columns known by the header.

Times are RFC 3339 with up to nanoseconds. GET, PUT and DELETE become reads, writes and deletes; LIST and STAT have no
place in our tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdistill.importers import Account, Format, Imported
from kvdistill.importers.rows import DELETE, ERROR, INPUT, OK, READ, WRITE, finish
from kvdistill.importers.text import first_line, leave_out, load, one
from kvtrace.core.errors import TraceError
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from kvdistill.importers import Options

TIER = "s3"
NEEDED = ("op", "bytes", "file", "start")
USED = (*NEEDED, "end", "duration_ns", "error", "n_objects")
KNOWN = (*USED, "idx", "thread", "client_id", "endpoint", "first_byte", "last_byte", "cat")
_ALIASES = {"operation": "op", "t_start": "start"}
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:?\d{2})$"


def read(files: Sequence[Path], options: Options, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one log, or the logs of several hosts that ran at the same time, merged by time.

    Raises:
        TraceError: a file has no such header, is damaged, or has no operation that our tables hold.

    """
    account = Account()
    db.execute(INPUT)
    has_ends = False
    for number, path in enumerate(files):
        columns = _header(path)
        account.notes += _about_columns(path, columns)
        quote = '"' if options.format is Format.WARP else ""
        load(db, path, columns, account, delimiter="\t", skip=1, quote=quote, comment="#")
        _leave_out(db, path, account)
        has_ends |= _insert(db, number, columns)
        account.notes += _about_rows(db, columns)
    rows, first_ns = finish(db, files, is_measured=has_ends)
    account.kept, endless = one(db, "SELECT count(*), count(*) FILTER (end_ns IS NULL) FROM input")
    if has_ends and endless:
        account.notes.append(f"{endless:,} operations have no end: their times are null")
    if not has_ends:
        account.notes.append("no operation has an end: nothing was measured, so there is a trace and no run")
    account.notes += [
        "deletes free the largest operation on their object: the log does not say how large it was",
        "requests, stages, phases and ranks are not in the log; threads and times to the first byte are not kept",
    ]
    return Imported(account, rows, [options.tier or TIER], first_unix_ns=first_ns)


def _header(path: Path) -> list[str]:
    names = [_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in first_line(path).split("\t")]
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise TraceError(
            f"its first line is no header of an op log: {', '.join(missing)} is missing; "
            "the columns are parted by tabs", path=path, row=1,
        )  # fmt: skip
    if len(set(names)) < len(names):
        raise TraceError("a column is named twice", path=path, row=1)
    return names


def _about_columns(path: Path, columns: Sequence[str]) -> list[str]:
    unknown = [name for name in columns if name not in KNOWN]
    return [f"{path.name}: unknown columns are left out: {', '.join(unknown)}"] if unknown else []


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    """Delete what is no operation of ours from `raw`, and count it."""
    for reason, condition in (
        ("no operation", "op IS NULL OR op = ''"),
        ("LIST and STAT have no place in our tables", "upper(op) IN ('LIST', 'STAT', 'HEAD')"),
        ("an operation that is not known", "upper(op) NOT IN ('GET', 'PUT', 'DELETE')"),
        ("no object name", "file IS NULL OR file = ''"),
        (
            "a start that is no RFC 3339 time",
            f"start IS NULL OR NOT regexp_matches(start, '{_TIME}') OR TRY_CAST(start AS TIMESTAMPTZ) IS NULL",
        ),
        ("bytes that are no whole number", "coalesce(bytes, '') <> '' AND coalesce(TRY_CAST(bytes AS BIGINT), -1) < 0"),
    ):
        leave_out(db, path, account, reason, condition)


def _insert(db: duckdb.DuckDBPyConnection, number: int, columns: Sequence[str]) -> bool:
    """Append `raw` to `input`; return whether it says when operations ended."""
    end = "NULL"
    if "end" in columns:
        end = f"CASE WHEN regexp_matches({_quoted('end')}, '{_TIME}') THEN {_ns('end')} END"
    if "duration_ns" in columns:
        end = f"coalesce({end}, start_ns + TRY_CAST(duration_ns AS BIGINT))"
    failed = "coalesce(error, '') <> ''" if "error" in columns else "false"
    db.execute(
        f"INSERT INTO input SELECT {number}, line, CASE upper(op) WHEN 'GET' THEN {READ} WHEN 'PUT' THEN {WRITE} "  # noqa: S608 - ours
        f"ELSE {DELETE} END, file, 0, coalesce(TRY_CAST(bytes AS BIGINT), 0), start_ns, "
        f"CASE WHEN {end} >= start_ns THEN {end} END, CASE WHEN {failed} THEN {ERROR} ELSE {OK} END, NULL "
        f"FROM (SELECT *, {_ns('start')} AS start_ns FROM raw)"
    )
    (ended,) = one(db, f"SELECT count(*) FROM input WHERE file = {number} AND end_ns IS NOT NULL")  # noqa: S608 - ours
    return bool(ended)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _ns(name: str) -> str:
    """Return SQL for the Unix ns of a time: DuckDB's own types hold either its zone or its nanoseconds."""
    column = _quoted(name)
    fraction = f"rpad(regexp_extract({column}, '\\.(\\d+)', 1), 9, '0')"
    return f"(epoch_us(TRY_CAST({column} AS TIMESTAMPTZ)) // 1000000 * {NS_PER_S} + CAST({fraction} AS BIGINT))"


def _about_rows(db: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> list[str]:
    if "n_objects" not in columns:
        return []
    (several,) = one(db, "SELECT count(*) FROM raw WHERE TRY_CAST(n_objects AS BIGINT) > 1")
    if not several:
        return []
    return [f"{several:,} rows are operations on several objects: each counts as one, on the object that it names"]
