"""The op log of sai3-bench and s3dlio, and the per-request CSV of MinIO's warp: zstd TSV, columns known by the header.

Times are RFC 3339 with up to nanoseconds. GET, PUT and DELETE become reads, writes and deletes; LIST and STAT have no
place in our tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvdistill.formats.formats import Account, Format, Imported
from kvdistill.formats.rows import DELETE, ERROR, INPUT, OK, READ, WRITE, finish
from kvdistill.formats.text import first_line, leave_out, load, one
from kvtrace.core.errors import TraceError
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import duckdb

    from kvdistill.formats.formats import Options

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
        _parse(db, columns)
        _leave_out(db, path, account)
        has_ends |= _insert(db, number)
        account.notes += _about_rows(db)
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


def _parse(db: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Replace the text in `raw` by values, each looked at once; null where it is none."""

    def column(name: str) -> str:
        return f'"{name}"' if name in columns else "NULL"

    took, count = (f"TRY_CAST({column(name)} AS BIGINT)" for name in ("duration_ns", "n_objects"))
    db.execute(
        "CREATE OR REPLACE TABLE raw AS SELECT line, upper(op) AS op, nullif(file, '') AS file, "  # noqa: S608 - ours
        f"TRY_CAST(coalesce(nullif(bytes, ''), '0') AS BIGINT) AS bytes, {_ns('start')} AS start_ns, "
        f"coalesce({_ns('end') if 'end' in columns else 'NULL'}, {_ns('start')} + {took}) AS end_ns, "
        f"coalesce({column('error')}, '') <> '' AS is_failed, {count} AS n_objects FROM raw"
    )


def _leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account) -> None:
    """Delete what is no operation of ours from `raw`, and count it."""
    for reason, condition in (
        ("no operation", "coalesce(op, '') = ''"),
        ("LIST and STAT have no place in our tables", "op IN ('LIST', 'STAT', 'HEAD')"),
        ("an operation that is not known", "op NOT IN ('GET', 'PUT', 'DELETE')"),
        ("no object name", "file IS NULL"),
        ("a start that is no RFC 3339 time", "start_ns IS NULL"),
        ("bytes that are no whole number", "bytes IS NULL OR bytes < 0"),
    ):
        leave_out(db, path, account, reason, condition)


def _insert(db: duckdb.DuckDBPyConnection, number: int) -> bool:
    """Append `raw` to `input`; return whether it says when operations ended."""
    db.execute(
        f"INSERT INTO input SELECT {number}, line, CASE op WHEN 'GET' THEN {READ} WHEN 'PUT' THEN {WRITE} "  # noqa: S608 - ours
        f"ELSE {DELETE} END, file, 0, bytes, start_ns, if(end_ns >= start_ns, end_ns, NULL), "
        f"if(is_failed, {ERROR}, {OK}), NULL FROM raw"
    )
    (ended,) = one(db, "SELECT count(*) FROM raw WHERE end_ns >= start_ns")
    return bool(ended)


def _ns(name: str) -> str:
    """Return SQL for the Unix ns of a time, null if it is none: DuckDB's own types hold its zone or its nanoseconds."""
    seconds = f'epoch_us(TRY_CAST("{name}" AS TIMESTAMPTZ)) // 1000000'
    fraction = f"CAST(rpad(regexp_extract(\"{name}\", '\\.(\\d+)', 1), 9, '0') AS BIGINT)"
    return f"if(regexp_matches(\"{name}\", '{_TIME}'), {seconds} * {NS_PER_S} + {fraction}, NULL)"


def _about_rows(db: duckdb.DuckDBPyConnection) -> list[str]:
    (several,) = one(db, "SELECT count(*) FROM raw WHERE n_objects > 1")
    if not several:
        return []
    return [f"{several:,} rows are operations on several objects: each counts as one, on the object that it names"]
