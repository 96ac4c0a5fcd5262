"""Read and write the op log of sai3-bench and s3dlio, and the per-request CSV of MinIO's warp.

Both are zstd TSV with one row an operation and a header in the first line. warp's has two more
columns, `last_byte` and `cat`. Comments are `#` lines. Times are RFC 3339 with up to nanoseconds; an
unmeasured field is empty. GET, PUT and DELETE are reads, writes and deletes; LIST and STAT cannot be
stored in the tables. A log is written from a trace, by due time, or from a run, by submission.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvdistill.formats.formats import Account, Format, Imported, ImportOptions
from kvdistill.formats.importing import (
    INPUT,
    TRACE_FILE,
    fetch_row,
    finish,
    first_lines,
    leave_out,
    load,
)
from kvdistill.queries.database import (
    BATCH_ROWS,
    connect,
    literal,
    named,
    query,
    register,
    write_query,
)
from kvdistill.queries.window import (
    DELETE,
    ERROR,
    OK,
    READ,
    WRITE,
    find_busiest_window,
    find_tier_place,
    ordered_rows,
    tier_rows,
)
from kvtrace import __version__
from kvtrace.core import duckdb, pa, pq, zstandard
from kvtrace.core.errors import TraceError
from kvtrace.core.files import aside
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.run_file import OPS_FILE, find_run
from kvtrace.core.schema import MOST_BYTES, OPS, TRACE
from kvtrace.core.tables import Reader, is_dataset, objects_path, open_table
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import NS_PER_S, counted, format_bytes

TIER = "s3"
"""Default name of the tier of an import."""
COMMON = tuple(
    "idx thread op client_id n_objects bytes endpoint file error start first_byte end duration_ns".split()  # noqa: SIM905 - thirteen names
)
ZSTD_LEVEL = 3
NEEDED = ("op", "bytes", "file", "start")
_ALIASES = {"operation": "op", "t_start": "start"}
_US_PER_S = 1_000_000
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:?\d{2})$"
_CLOCK_ERROR_NS = 100
"""How far the difference of two times may be from a duration by another clock, beside its half."""
_EARLIEST_UNIX_NS = 10**17
"""March 1973: smaller numbers count from the log's own zero."""
_COLUMNS = ("object_id", "offset_bytes", "request_id", "rank")
"""Columns of a trace in addition to those that every window has."""
_FORBIDDEN = '[\t\n\r"]'


class Style(StrEnum):
    """The tool that reads the log."""

    SAI3 = "sai3"
    WARP = "warp"

    @property
    def columns(self) -> tuple[str, ...]:
        """The header, in order."""
        if self is Style.SAI3:
            return COMMON
        end = COMMON.index("end")
        return (*COMMON[:end], "last_byte", *COMMON[end:], "cat")


class OpLog(msgspec.Struct, frozen=True, kw_only=True):
    """The op logs written."""

    files: list[str]
    """One log a host; their replays start together."""
    populate_files: list[str]
    """One log a host, to replay first: PUTs of the objects that are read before they are written.

    Empty if there are no such objects.
    """
    gets: int
    puts: int
    deletes: int
    populated: int
    lost: list[str]


def write_oplogs(
    source: Path,
    tier: str,
    outdir: Path,
    style: Style,
    *,
    endpoint: str,
    hosts: int,
    limit: Limit,
    argv: Sequence[str],
) -> OpLog:
    """Write the operations of `tier` of a trace or run within `limit` as one log a host.

    All operations of an object are in the log of one host, so hosts need no synchronisation. Times
    are the source's, from its recording date, or else from the Unix epoch.

    TraceError if the file is damaged, has no operations on the tier, or has a name that a log
    cannot hold. ConfigError if the tier does not exist.
    """
    with (
        temporary_folder(".kvdistill-", outdir) as folder,
        ExitStack() as stack,
    ):
        db = stack.enter_context(connect(folder))
        file = source if _is_one_table(source) else source / OPS_FILE
        reader = open_table(file)
        is_measured = reader.table is OPS
        # A run holds no names of objects; an imported one has its trace, with names, next to it.
        objects = objects_path(file.with_name(TRACE_FILE) if is_measured else file)
        has_names = objects.exists()
        register(
            db, [*([file] if is_measured else []), *([objects] if has_names else [])], Path(folder)
        )
        if not _load_operations(db, file, reader, tier, limit, Path(folder)):
            raise TraceError(
                f"tier {tier!r} has no operations, so there is nothing to write", path=file
            )
        if not has_names:
            db.execute("CREATE TABLE objects (object_id BIGINT, key VARCHAR, size_bytes BIGINT)")
        _name_objects(db, objects)
        (totals,) = query(db, "oplog_totals")
        lost = losses(totals, has_names=has_names, is_measured=is_measured)
        if style is Style.WARP and not is_measured:
            lost.append(
                "warp analyze rejects rows without end times; tools that replay the CSV need start times only"
            )
        head = [
            f"kvdistill {__version__}: {' '.join(argv)}",
            *origin_lines(file, reader.meta, tier, limit),
            *lost,
        ]
        values = {
            "endpoint": endpoint,
            "first_unix_ns": _first_unix_ns(file, reader),
            "hosts": hosts,
        }
        files = file_names("oplog", style, hosts)
        populate_files = file_names("populate", style, hosts) if totals["populated"] else []
        for names, rows in ((files, "done"), (populate_files, "prior")):
            db.execute(f"CREATE OR REPLACE VIEW logged AS FROM {rows}")
            for host, name in enumerate(names):
                plain = stack.enter_context(stack.enter_context(aside(outdir / name)).open("wb"))
                out = stack.enter_context(
                    zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(plain)
                )
                _write_log(out, db, style, head, values | {"host": host})
    counts = {name: totals[name] for name in ("gets", "puts", "deletes", "populated")}
    return OpLog(files=files, populate_files=populate_files, lost=lost, **counts)


def file_names(stem: str, style: Style, hosts: int) -> list[str]:
    """Return the names of the logs: numbered from 1 if there are several hosts."""
    suffix = ".tsv.zst" if style is Style.SAI3 else ".csv.zst"
    return (
        [f"{stem}{suffix}"]
        if hosts == 1
        else [f"{stem}-{number}-of-{hosts}{suffix}" for number in range(1, hosts + 1)]
    )


def _write_log(
    out: BinaryIO,
    db: duckdb.DuckDBPyConnection,
    style: Style,
    head: Sequence[str],
    values: dict[str, object],
) -> None:
    """Write the view `logged` of one host as a log: header, one line an operation, provenance."""
    columns = ", ".join(f'"{name}"' for name in style.columns)
    lines = f"SELECT concat_ws(chr(9), {columns}) FROM ({named('oplog_lines')})"
    rows = (
        batch.column(0).to_pylist()
        for batch in db.sql(lines, params=values).to_arrow_reader(BATCH_ROWS)
    )
    for lines_of_part in chain(
        [["\t".join(style.columns)]], rows, [[f"# {line}" for line in head]]
    ):
        text = "".join(f"{line}\n" for line in lines_of_part)
        out.write(text.encode())


_NO_OPERATIONS = {
    "no operation": "coalesce(op, '') = ''",
    "LIST and STAT cannot be stored in a kvtrace table": "op IN ('LIST', 'STAT', 'HEAD')",
    "an unknown operation": "op NOT IN ('GET', 'PUT', 'DELETE')",
    "no object name": "file IS NULL",
    "a start that is neither an RFC 3339 time nor whole ns": "start_ns IS NULL",
    "whole times that are not in ns, since their difference is not duration_ns": "has_other_unit",
    "bytes that are not a whole number up to 1 PiB": f"coalesce(bytes, -1) NOT BETWEEN 0 AND {MOST_BYTES}",
}


_MAX_COLUMNS = 256
"""Of an op log; those of warp and sai3 have 15 at most."""


def read(files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one log, or the logs of several hosts that ran at the same time, merged by time.

    TraceError if a file has another header, is damaged, or has no operation for the tables.
    """
    account = Account()
    db.execute(INPUT)
    for number, path in enumerate(files):
        columns = [
            _ALIASES.get(name.strip(), name.strip())
            for name in first_lines(path)[0].lower().split("\t")
        ]
        if missing := [name for name in NEEDED if name not in columns]:
            raise TraceError(
                f"its first line is not a header of an op log: {', '.join(missing)} is missing; "
                "columns are separated by tabs",
                path=path,
                row=1,
            )
        if len(columns) > _MAX_COLUMNS:
            raise TraceError(f"has {len(columns)} columns: not an op log", path=path, row=1)
        if len(set(columns)) < len(columns):
            raise TraceError("a column is named twice", path=path, row=1)
        if unknown := [name for name in columns if name not in Style.WARP.columns]:
            account.notes.append(f"{path.name}: unknown columns are ignored: {', '.join(unknown)}")
        quote = '"' if options.format is Format.WARP else ""
        load(db, path, columns, account, delimiter="\t", skip=1, quote=quote)
        # A comment begins with `#`; a name may contain it elsewhere.
        account.rows_read -= fetch_row(
            db, "DELETE FROM raw WHERE starts_with(struct_extract_at(raw, 2), '#')"
        )[0]
        _parse(db, columns)
        # Reject rows that are not a read, write or delete.
        leave_out(db, path, account, _NO_OPERATIONS)
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE op WHEN 'GET' THEN {READ} WHEN 'PUT'"
            f" THEN {WRITE} ELSE {DELETE} END, file, 0, bytes, start_ns, if(end_ns >= start_ns,"
            f" end_ns, NULL), if(is_failed, {ERROR}, {OK}), NULL FROM raw"
        )
        if multi_object_rows := fetch_row(db, "SELECT count(*) FROM raw WHERE n_objects > 1")[0]:
            account.notes.append(
                f"{counted(multi_object_rows, 'row')} of operations on several objects: each counts as one"
                " operation on the named object"
            )
    ended_rows, endless_rows = fetch_row(
        db, "SELECT count(end_ns), count(*) - count(end_ns) FROM input"
    )
    rows, first_ns = finish(db, files, account, is_measured=bool(ended_rows))
    if ended_rows and endless_rows:
        account.notes.append(
            f"{counted(endless_rows, 'operation')} without an end time, so their times are null"
        )
    if not ended_rows:
        account.notes.append("no operation has an end time, so there is a trace but no run")
    account.notes += [
        "a delete frees the size of the largest operation on its object: the log holds no object size",
        (
            "the log holds no requests, stages, phases and ranks; threads and times to the first byte"
            " are dropped"
        ),
    ]
    has_date = first_ns >= _EARLIEST_UNIX_NS
    if not has_date:
        account.notes.append("times are ns since the log's own zero: it has no date")
    return Imported(
        account, rows, [options.tier or TIER], first_unix_ns=first_ns if has_date else None
    )


def _parse(db: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Convert the text columns of `raw` to their types; null if a text is invalid."""

    def column(name: str) -> str:
        return f'"{name}"' if name in columns else "NULL"

    duration, count = (
        f"TRY_CAST({column(name)} AS BIGINT)" for name in ("duration_ns", "n_objects")
    )
    start, end = column("start"), column("end")
    measured = f"(TRY_CAST({end} AS BIGINT) - TRY_CAST({start} AS BIGINT))"
    db.execute(
        "CREATE OR REPLACE TABLE raw AS SELECT line, upper(op) AS op, nullif(file, '') AS file,"
        f" TRY_CAST(coalesce(nullif(bytes, ''), '0') AS BIGINT) AS bytes, {_ns('start')} AS"
        f" start_ns, coalesce({_ns('end') if 'end' in columns else 'NULL'}, TRY({_ns('start')} +"
        f" {duration})) AS end_ns, coalesce({column('error')}, '') <> '' AS is_failed, {count} AS"
        f" n_objects, coalesce(abs({measured} - {duration}) > {duration} // 2 + {_CLOCK_ERROR_NS},"
        " false) AS has_other_unit FROM raw"
    )


def _ns(name: str) -> str:
    """Return SQL for the time in ns of a text column; null if it is not a time.

    It is an RFC 3339 time, or whole ns since 1970 or since any other time. No time type of DuckDB
    has both a zone and nanoseconds.
    """
    seconds = f'epoch_us(TRY_CAST("{name}" AS TIMESTAMPTZ)) // 1000000'
    fraction = f"CAST(rpad(regexp_extract(\"{name}\", '\\.(\\d+)', 1), 9, '0') AS BIGINT)"
    # The year 10,000 and later do not fit 64 bits of ns.
    time_ns = f"TRY({seconds} * {NS_PER_S} + {fraction})"
    return (
        f"CASE WHEN regexp_matches(\"{name}\", '{_TIME}') THEN {time_ns}"
        f' WHEN regexp_matches("{name}", \'^\\d+$\') THEN TRY_CAST("{name}" AS BIGINT) END'
    )


def _is_one_table(path: Path) -> bool:
    """Return whether `path` is a file or a trace dataset, and not the folder of a run."""
    return is_dataset(path) or not path.is_dir()


def can_log(path: Path) -> bool:
    """Return whether `path` holds operations on objects: a trace, a run's folder or its ops."""
    if not _is_one_table(path):
        return (path / OPS_FILE).is_file()
    return path.suffix != ".json" and open_table(path).table in (TRACE, OPS)


def _load_operations(
    db: duckdb.DuckDBPyConnection,
    file: Path,
    reader: Reader,
    tier: str,
    limit: Limit,
    scratch: Path,
) -> int:
    """Create the view `done` of the operations of `tier` within `limit`, in order of time.

    Returns their number. A run's operations come from the view `ops`. `op` is a code; `end_ns` is -1
    if unknown; `error` is empty without one.

    TraceError if the file holds another table, or its time goes back. ConfigError if the tier does
    not exist.
    """
    if reader.table not in (TRACE, OPS):
        raise TraceError(
            f"holds the table {reader.table.name}; an op log is written from a trace or a run",
            path=file,
        )
    place = find_tier_place(reader.meta, tier)
    if reader.table is TRACE:
        rows = partial(tier_rows, reader, place, columns=_COLUMNS)
    else:
        ordered = scratch / "ordered.parquet"
        write_query(db, "oplog_ops", ordered, tier=reader.meta.tiers[place.tier].name)
        rows = partial(ordered_rows, ordered)
    count, out, done_path = 0, None, scratch / "done.parquet"
    with ExitStack() as stack:
        try:
            for columns in rows(limit=find_busiest_window(limit, partial(rows, limit=Limit()))):
                batch = pa.RecordBatch.from_pydict(columns)
                out = out or stack.enter_context(pq.ParquetWriter(done_path, batch.schema))
                out.write_batch(batch)
                count += len(batch)
        except TraceError as error:
            raise TraceError(str(error), path=file) from None
    if count:
        ends = ", -1::BIGINT AS end_ns, '' AS error" if reader.table is TRACE else ""
        db.execute(
            f"CREATE VIEW done AS SELECT *, file_row_number AS row{ends} FROM"
            f" read_parquet({literal(done_path)})"
        )
    return count


def _name_objects(db: duckdb.DuckDBPyConnection, objects: Path) -> None:
    """Create the table `named` of the objects of `done`, and the view `prior`.

    `prior` has a write of each object that existed from the start. An object without a name in the
    view `objects` is called `object/ID`. The file of that view is `objects`.
    """
    db.execute(named("oplog_objects"))
    db.execute(
        f"CREATE VIEW prior AS SELECT object_id, object_id AS row, 0 AS ts_ns, {WRITE} AS op,"
        " size_bytes AS length_bytes, -1 AS end_ns, '' AS error FROM named WHERE is_prior"
    )
    (bad,) = fetch_row(
        db, f"SELECT min(object_id) FROM named WHERE regexp_matches(name, '{_FORBIDDEN}')"
    )
    if bad is not None:
        raise TraceError(
            f"the name of object {bad} contains a tab, line break or quote, which a log cannot hold",
            path=objects,
            column="key",
        )


def _first_unix_ns(file: Path, reader: Reader) -> int:
    """Return the Unix time of the trace's time 0.

    It is recorded in the table, or is the start in run.json; 0 if neither is known.
    """
    recorded_ns = (reader.meta.source or {}).get("first_unix_ns")
    run = None if recorded_ns or reader.table is TRACE else find_run(file.parent)
    if run is None or not run.started_utc:
        return recorded_ns or 0
    try:
        return round(datetime.fromisoformat(run.started_utc).timestamp() * _US_PER_S) * 1000
    except ValueError:
        return 0


_LOSSES = {
    "requests": (
        "operation",
        "without request and stage: each is issued at its time, and none waits for another",
    ),
    "partial_reads": ("read", "of part of an object: a GET reads the whole object, {} more"),
    "partial_writes": (
        "write",
        "not starting at offset 0: a PUT of the same length replaces the object",
    ),
    "gone_reads": ("read", "of deleted objects will fail"),
    "gone_deletes": ("delete", "of objects that do not exist"),
    "ranks": ("operation", "without rank"),
}


def losses(totals: dict[str, int], *, has_names: bool, is_measured: bool) -> list[str]:
    """Return the features of the operations that an op log cannot express.

    `totals` counts the affected operations by the names in `_LOSSES`.
    """
    unread = format_bytes(totals["unread_bytes"])
    lost = [
        f"{counted(totals[name], op)} {description.format(unread)}"
        for name, (op, description) in _LOSSES.items()
        if totals[name]
    ]
    if not has_names:
        lost.append("names: the source has none, so objects are called object/ID")
    is_in_object = "phases, and offsets within objects"
    return [
        *lost,
        is_in_object if is_measured else "phases; and end times, which a trace does not have",
    ]


def origin_lines(file: Path, meta: Metadata, tier: str, limit: Limit) -> list[str]:
    """Return the lines of a log that name its source."""
    provenance = (
        f"written by {meta.program} {meta.version}, configuration SHA-256"
        f" {meta.config_sha256 or 'unknown'}"
    )
    lines = [f"tier {tier} of {file.name}, {provenance}"]
    if str(limit):
        lines.append(f"window of the tier: {limit}")
    if meta.is_simulated:
        lines.append("times are simulated, not measured")
    return lines
