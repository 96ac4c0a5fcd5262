"""The op log of sai3-bench and s3dlio, and the per-request CSV of MinIO's warp, both ways.

Both are zstd TSV of one row an operation, known by the header in the first line, and differ by warp's `last_byte` and
`cat`; everything else stands in `#` lines. Times are RFC 3339 with up to nanoseconds; empty is what was not measured.
GET, PUT and DELETE are our reads, writes and deletes; LIST and STAT have no place in our tables. A log is written from
a trace, by due time, or from a run, by submission.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvdistill.formats.formats import Account, Format, Imported, ImportOptions
from kvdistill.formats.text import INPUT, finish, first_line, leave_out, load, one
from kvdistill.queries.database import connect, write_query
from kvdistill.queries.views import register
from kvdistill.queries.window import DELETE, ERROR, OK, READ, WRITE, found_window, ordered_rows, place_of, tier_rows
from kvtrace import __version__
from kvtrace.core.errors import TraceError
from kvtrace.core.files import aside
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.parquet import DENSE_SLACK
from kvtrace.core.run.run_file import OPS_FILE, find_run
from kvtrace.core.schema import OBJECTS, OPS, TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.core.units import NS_PER_S, format_bytes, format_count

if TYPE_CHECKING:
    import duckdb


TIER = "s3"
"""What an import calls the store, unless it is told."""
COMMON = tuple(
    "idx thread op client_id n_objects bytes endpoint file error start first_byte end duration_ns".split()  # noqa: SIM905 - thirteen names
)
CLIENT = "kvdistill"
ZSTD_LEVEL = 3
_BATCH_ROWS = 1 << 17
_VERBS = {READ: "GET", WRITE: "PUT", DELETE: "DELETE"}
NEEDED = ("op", "bytes", "file", "start")
_ALIASES = {"operation": "op", "t_start": "start"}
_US_PER_S = 1_000_000
_TIME = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?(Z|[+-]\d{2}:?\d{2})$"
_SPREAD = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: multiplying by it scatters consecutive numbers."""


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
    """The op logs that were written."""

    files: list[str]
    """One a host, to replay at the same time."""
    populate_files: list[str]
    """One a host, to replay before: the objects that the trace reads before it writes them; none if there are none."""
    gets: int
    puts: int
    deletes: int
    populated: int
    lost: list[str]


def write_oplogs(
    source: Path, tier: str, outdir: Path, style: Style, *, endpoint: str, hosts: int, limit: Limit, argv: Sequence[str]
) -> OpLog:
    """Write the operations of `tier` of a trace or run up to `limit` into `outdir`, partitioned over `hosts` logs.

    An object is always in the log of one host, so hosts need not wait for each other. Times are the source's, from the
    Unix epoch, or from when it was recorded if it says so.

    Raises:
        TraceError: the file is damaged, has no operations on the tier, or a name that no log can hold.
        ConfigError: there is no such tier.

    """
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, ExitStack() as stack:
        done = operations(source, tier, limit, Path(scratch))
        found = surveyed(done)
        if not sum(found.rows.values()):
            raise TraceError(f"tier {tier!r} has no operations: there is nothing to log", path=done.file)
        keys, sizes = named_objects(done.objects, found.extent)
        lines = _Lines(endpoint, keys, done.first_unix_ns)
        logs = [_Log(stack, outdir / name, style) for name in file_names("oplog", style, hosts)]
        partial, partial_bytes = 0, 0
        for part in done.parts():
            short = (sizes[part["object_id"]] - part["length_bytes"])[(part["op"] == READ) & (part["length_bytes"] > 0)]
            partial, partial_bytes = partial + int((short > 0).sum()), partial_bytes + int(short.sum())
            for host, log in enumerate(logs):
                log.write(lines.of(part, _shard(part["object_id"], hosts) == host))
        prior = found.is_prior.nonzero()[0]
        names = file_names("populate", style, hosts) if len(prior) else []
        before = [_Log(stack, outdir / name, style) for name in names]
        for host, log in enumerate(before):
            log.write(lines.populating(prior[_shard(prior, hosts) == host], sizes))
        lost = losses(found, (partial, partial_bytes), done)
        if style is Style.WARP and not done.is_measured:
            lost.append("warp analyze refuses rows without ends; what replays warp's CSV needs only starts")
        for log in (*logs, *before):
            log.comment([f"{CLIENT} {__version__}: {' '.join(argv)}", *origin_lines(done, tier, limit), *lost])
    return OpLog(
        files=[log.path.name for log in logs],
        populate_files=names,
        gets=found.rows[READ],
        puts=found.rows[WRITE],
        deletes=found.rows[DELETE],
        populated=len(prior),
        lost=lost,
    )


def file_names(stem: str, style: Style, hosts: int) -> list[str]:
    """Return the names of the logs: numbered from 1 if there are several hosts."""
    suffix = ".tsv.zst" if style is Style.SAI3 else ".csv.zst"
    return [f"{stem}{suffix}"] if hosts == 1 else [f"{stem}-{n}-of-{hosts}{suffix}" for n in range(1, hosts + 1)]


def _shard(object_id: Any, hosts: int) -> Any:
    """Return the host of each object, by a hash, so that no pattern of numbers lands on one host."""
    scattered = object_id.astype(np.uint64) * np.uint64(_SPREAD)
    return (scattered >> np.uint64(32)) % np.uint64(hosts)


class _Lines:
    """Makes rows of a log from rows of a trace or run."""

    def __init__(self, endpoint: str, keys: Any, first_unix_ns: int) -> None:
        self._endpoint, self._keys, self._first_unix_ns = endpoint, keys, first_unix_ns

    def of(self, part: dict[str, Any], chosen: Any) -> Any:
        """Return the chosen rows of `part`, without `idx`."""
        part = {name: values[chosen] for name, values in part.items()}
        # A delete moves nothing; warp would count its bytes as throughput.
        part["length_bytes"][part["op"] == DELETE] = 0
        return self._frame(part)

    def populating(self, objects: Any, sizes: Any) -> Any:
        """Return a PUT of each of `objects`, all at the first instant."""
        count = len(objects)
        return self._frame(
            {
                "ts_ns": np.zeros(count, np.int64),
                "op": np.full(count, WRITE, np.int8),
                "object_id": objects,
                "length_bytes": sizes[objects],
            }
        )

    def _frame(self, part: dict[str, Any]) -> Any:
        import polars as pl

        frame = pl.DataFrame({name: part[name] for name in ("ts_ns", "op", "length_bytes")})
        empty = pl.lit("")
        ended, error = empty, empty
        took: Any = empty
        if "end_ns" in part:
            frame = frame.with_columns(pl.Series("end_ns", part["end_ns"]), pl.Series("error", part["error"]))
            is_known = pl.col("end_ns") >= 0
            ended = pl.when(is_known).then(self._time("end_ns")).otherwise(empty)
            took = pl.when(is_known).then((pl.col("end_ns") - pl.col("ts_ns")).cast(pl.String)).otherwise(empty)
            error = pl.col("error")
        return frame.select(
            pl.lit(0).alias("thread"),
            pl.col("op").cast(pl.Int8).replace_strict(_VERBS, return_dtype=pl.String),
            pl.lit(CLIENT).alias("client_id"),
            pl.lit(1).alias("n_objects"),
            pl.col("length_bytes").alias("bytes"),
            pl.lit(self._endpoint).alias("endpoint"),
            self._keys.gather(part["object_id"]).alias("file"),
            error.alias("error"),
            self._time("ts_ns").alias("start"),
            empty.alias("first_byte"),
            empty.alias("last_byte"),
            ended.alias("end"),
            took.alias("duration_ns"),
            pl.lit(0).alias("cat"),
        )

    def _time(self, name: str) -> Any:
        import polars as pl

        moment = pl.from_epoch(pl.col(name) + self._first_unix_ns, time_unit="ns")
        return moment.dt.strftime("%Y-%m-%dT%H:%M:%S%.9fZ")


class _Log:
    """One log being written; all logs appear when all are whole."""

    def __init__(self, stack: ExitStack, path: Path, style: Style) -> None:
        self.path, self._columns, self._rows = path, style.columns, 0
        self._out = stack.enter_context(_zstd(path))
        self._out.write("\t".join(self._columns).encode() + b"\n")

    def write(self, frame: Any) -> None:
        import polars as pl

        for part in frame.iter_slices(_BATCH_ROWS):
            text = io.BytesIO()
            numbered = part.with_columns(pl.int_range(self._rows, self._rows + len(part)).alias("idx"))
            numbered.select(self._columns).write_csv(text, include_header=False, separator="\t", quote_style="never")
            self._out.write(text.getbuffer())
            self._rows += len(part)

    def comment(self, lines: Sequence[str]) -> None:
        self._out.write("".join(f"# {line}\n" for line in lines).encode())


@contextmanager
def _zstd(path: Path) -> Iterator[Any]:
    import zstandard

    with (
        aside(path) as temporary,
        temporary.open("wb") as file,
        zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file) as out,
    ):
        yield out


def read(files: Sequence[Path], options: ImportOptions, db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one log, or the logs of several hosts that ran at the same time, merged by time.

    Raises:
        TraceError: a file has no such header, is damaged, or has no operation that our tables hold.

    """
    account = Account()
    db.execute(INPUT)
    has_ends = False
    for number, path in enumerate(files):
        columns = [_ALIASES.get(name.strip().lower(), name.strip().lower()) for name in first_line(path).split("\t")]
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            raise TraceError(
                f"its first line is no header of an op log: {', '.join(missing)} is missing; "
                "the columns are parted by tabs",
                path=path,
                row=1,
            )
        if len(set(columns)) < len(columns):
            raise TraceError("a column is named twice", path=path, row=1)
        if unknown := [name for name in columns if name not in Style.WARP.columns]:
            account.notes.append(f"{path.name}: unknown columns are left out: {', '.join(unknown)}")
        quote = '"' if options.format is Format.WARP else ""
        load(db, path, columns, account, delimiter="\t", skip=1, quote=quote, comment="#")
        _parse(db, columns)
        # Delete rows of `raw` that are no read, write or delete, and count them.
        for reason, condition in (
            ("no operation", "coalesce(op, '') = ''"),
            ("LIST and STAT have no place in our tables", "op IN ('LIST', 'STAT', 'HEAD')"),
            ("an operation that is not known", "op NOT IN ('GET', 'PUT', 'DELETE')"),
            ("no object name", "file IS NULL"),
            ("a start that is no RFC 3339 time", "start_ns IS NULL"),
            ("bytes that are no whole number", "bytes IS NULL OR bytes < 0"),
        ):
            leave_out(db, path, account, reason, condition)
        db.execute(
            f"INSERT INTO input SELECT {number}, line, CASE op WHEN 'GET' THEN {READ} WHEN 'PUT' THEN {WRITE} "
            f"ELSE {DELETE} END, file, 0, bytes, start_ns, if(end_ns >= start_ns, end_ns, NULL), "
            f"if(is_failed, {ERROR}, {OK}), NULL FROM raw"
        )
        (ended,) = one(db, "SELECT count(*) FROM raw WHERE end_ns >= start_ns")
        has_ends |= bool(ended)
        (several,) = one(db, "SELECT count(*) FROM raw WHERE n_objects > 1")
        if several:
            account.notes.append(
                f"{several:,} rows are operations on several objects: each counts as one, on the object that it names"
            )
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


def _parse(db: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
    """Replace the text columns of `raw` by typed ones; null where the text has no such value."""

    def column(name: str) -> str:
        return f'"{name}"' if name in columns else "NULL"

    took, count = (f"TRY_CAST({column(name)} AS BIGINT)" for name in ("duration_ns", "n_objects"))
    db.execute(
        "CREATE OR REPLACE TABLE raw AS SELECT line, upper(op) AS op, nullif(file, '') AS file, "
        f"TRY_CAST(coalesce(nullif(bytes, ''), '0') AS BIGINT) AS bytes, {_ns('start')} AS start_ns, "
        f"coalesce({_ns('end') if 'end' in columns else 'NULL'}, {_ns('start')} + {took}) AS end_ns, "
        f"coalesce({column('error')}, '') <> '' AS is_failed, {count} AS n_objects FROM raw"
    )


def _ns(name: str) -> str:
    """Return SQL for the Unix ns of a time, null if it is none: DuckDB's own types hold its zone or its nanoseconds."""
    seconds = f'epoch_us(TRY_CAST("{name}" AS TIMESTAMPTZ)) // 1000000'
    fraction = f"CAST(rpad(regexp_extract(\"{name}\", '\\.(\\d+)', 1), 9, '0') AS BIGINT)"
    return f"if(regexp_matches(\"{name}\", '{_TIME}'), {seconds} * {NS_PER_S} + {fraction}, NULL)"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one tier of a trace or run, and where they come from."""

    file: Path
    meta: Metadata
    objects: Path
    """Where their names are, if they are anywhere."""
    first_unix_ns: int
    """When time 0 was; 0 if nothing says so."""
    is_measured: bool
    parts: Callable[[], Iterator[dict[str, Any]]]
    """Yields rows in order of time, as numpy arrays: `ts_ns`, `op` (code), `length_bytes`, those of `COLUMNS` and, if
    measured, `end_ns` (-1 if unknown) and `error` (empty if there was none)."""


def can_log(path: Path) -> bool:
    """Return whether `path` holds single operations on objects: a trace, a run's folder or its ops."""
    if path.is_dir():
        return (path / OPS_FILE).is_file()
    return path.suffix != ".json" and open_table(path).table in (TRACE, OPS)


def operations(path: Path, tier: str, limit: Limit, scratch: Path) -> Operations:
    """Return the operations of `tier` at `path`, a trace, a run's folder or its ops, up to `limit`.

    Raises:
        TraceError: the file is damaged or holds another table.
        ConfigError: there is no such tier.

    """
    file = path / OPS_FILE if path.is_dir() else path
    reader = open_table(file)
    if reader.table not in (TRACE, OPS):
        raise TraceError(f"holds the table {reader.table.name}; an op log is written from a trace or a run", path=file)
    place = place_of(reader.meta, tier)
    limit = found_window(limit, lambda: tier_rows(reader, place, Limit(), ())) if reader.table is TRACE else limit
    known_ns = (reader.meta.source or {}).get("first_unix_ns")
    if reader.table is TRACE:
        return Operations(
            file,
            reader.meta,
            objects_path(file),
            known_ns or 0,
            is_measured=False,
            parts=lambda: tier_rows(reader, place, limit, COLUMNS),
        )
    ordered = scratch / "oplog.parquet"
    with connect(scratch) as db:
        register(db, [file], scratch)
        ((rows, most),) = db.execute("SELECT count(*), max(object_id) FROM ops").fetchall()
        if rows and most > rows + DENSE_SLACK:
            raise TraceError(
                f"{most} is no dense number from 0, in a file of {rows} rows", path=file, column="object_id"
            )
        write_query(db, "oplog_ops", ordered, tier=reader.meta.tiers[place.tier].name)
    limit = found_window(limit, lambda: ordered_rows(ordered, Limit()))
    # A run has no names of its own; an imported one lies beside the trace that has.
    objects = objects_path(file.with_name("trace.parquet"))
    return Operations(
        file,
        reader.meta,
        objects,
        known_ns or _started_ns(file),
        is_measured=True,
        parts=lambda: ordered_rows(ordered, limit),
    )


def _started_ns(ops: Path) -> int:
    """Return when the run of `ops` began, as its run.json says to the microsecond; 0 if it does not."""
    run = find_run(ops.parent)
    started = None if run is None else run.started_utc
    try:
        at = datetime.fromisoformat(started) if started else None
    except ValueError:
        return 0
    return 0 if at is None else round(at.timestamp() * _US_PER_S) * 1000


COLUMNS = ("object_id", "offset_bytes", "request_id", "rank")
"""Columns that `survey` needs beside those that every window of a trace has."""
_NEVER = -1
_FORBIDDEN = '[\t\n\r"]'


@dataclass(slots=True)
class Survey:
    """Facts of a tier's objects after one pass over its rows; arrays are by object id."""

    last_op: Any
    """The code of the last operation seen; -1 if there was none."""
    extent: Any
    """The furthest byte that was read or written."""
    is_prior: Any
    """Read before it was written: it existed from the start."""
    rows: dict[int, int] = field(default_factory=lambda: dict.fromkeys((READ, WRITE, DELETE), 0))
    gone_reads: int = 0
    gone_deletes: int = 0
    partial_writes: int = 0
    requests: int = 0
    ranks: int = 0


def survey(parts: Iterable[dict[str, Any]]) -> Survey:
    """Return the facts of the objects in `parts`, rows as `tier_rows` yields them with `COLUMNS`."""
    found = Survey(np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, bool))
    for part in parts:
        objects, ops = part["object_id"], part["op"]
        count = int(objects.max()) + 1
        if count > len(found.last_op):
            more = max(count, 2 * len(found.last_op)) - len(found.last_op)
            found.last_op = np.concatenate([found.last_op, np.full(more, _NEVER, np.int8)])
            found.extent = np.concatenate([found.extent, np.zeros(more, np.int64)])
            found.is_prior = np.concatenate([found.is_prior, np.zeros(more, bool)])
        moves = ops != DELETE
        np.maximum.at(found.extent, objects[moves], (part["offset_bytes"] + part["length_bytes"])[moves])
        before = _previous(found, objects, ops)
        # What failed in a run may have failed because nothing was there.
        was_there = (ops == READ) & (part["error"] == "") if "error" in part else ops == READ
        found.is_prior[objects[(before == _NEVER) & was_there]] = True
        found.gone_reads += int(((before == DELETE) & (ops == READ)).sum())
        found.gone_deletes += int((((before == DELETE) | (before == _NEVER)) & (ops == DELETE)).sum())
        found.partial_writes += int(((ops == WRITE) & (part["offset_bytes"] > 0)).sum())
        found.requests += int((part["request_id"] >= 0).sum())
        found.ranks += int((part["rank"] > 0).sum())
        for code in found.rows:
            found.rows[code] += int((ops == code).sum())
    return found


def _previous(found: Survey, objects: Any, ops: Any) -> Any:
    """Return the operation before each row on the same object, -1 if it is the first; note the last ones."""
    order = np.argsort(objects, kind="stable")
    of, did = objects[order], ops[order]
    is_first = np.ones(len(of), dtype=bool)
    is_first[1:] = of[1:] != of[:-1]
    before = np.empty(len(of), dtype=np.int8)
    before[1:] = did[:-1]
    before[is_first] = found.last_op[of[is_first]]
    is_last = np.append(is_first[1:], True)
    found.last_op[of[is_last]] = did[is_last]
    result = np.empty(len(of), dtype=np.int8)
    result[order] = before
    return result


def surveyed(done: Operations) -> Survey:
    """Survey the objects of `done`; a TraceError names its file."""
    try:
        return survey(done.parts())
    except TraceError as error:
        if error.path is None:
            raise TraceError(str(error), path=done.file) from None
        raise


def named_objects(path: Path, extent: Any) -> tuple[Any, Any]:
    """Return the names (polars; `object/ID` where `path` has none) and sizes of objects that reach to `extent`."""
    import polars as pl

    count = len(extent)
    known = pl.DataFrame(
        {"object_id": [], "key": [], "size_bytes": []},
        schema={
            "object_id": pl.Int64,
            "key": pl.String,
            "size_bytes": pl.Int64,
        },
    )
    if path.exists():
        parts = [pl.DataFrame(pl.from_arrow(b)) for b in open_table(path, OBJECTS).batches(known.columns)]
        known = pl.concat([known, *parts]).filter(pl.col("object_id") < count)
    bad = known.filter(pl.col("key").str.contains(_FORBIDDEN))
    if len(bad):
        raise TraceError(
            f"the name of object {bad['object_id'][0]} has a tab, line break or quote: no log can hold it",
            path=path,
            column="key",
        )
    sizes = np.zeros(count, dtype=np.int64)
    sizes[known["object_id"].to_numpy()] = known["size_bytes"].fill_null(0).to_numpy()
    every = pl.DataFrame({"object_id": pl.int_range(count, eager=True)})
    joined = every.join(known, on="object_id", how="left", maintain_order="left")
    return joined.select(pl.coalesce("key", pl.format("object/{}", "object_id")))["key"], np.maximum(sizes, extent)


def losses(found: Survey, partial: tuple[int, int], done: Operations) -> list[str]:
    """Return what an op log cannot express of `done`; `partial`: reads of a part of an object, and bytes not read."""
    lost = []
    if found.requests:
        lost.append(
            f"the request and stage of {format_count(found.requests)} operations: each is issued by its time, none "
            "waits for another"
        )
    if partial[0]:
        lost.append(
            f"{format_count(partial[0])} reads of a part: a GET reads the whole object, {format_bytes(partial[1])} more"
        )
    if found.partial_writes:
        lost.append(
            f"{format_count(found.partial_writes)} writes that do not start at 0: a PUT of their length replaces the "
            "object"
        )
    if found.gone_reads:
        lost.append(f"{format_count(found.gone_reads)} reads of deleted objects will fail")
    if found.gone_deletes:
        lost.append(f"{format_count(found.gone_deletes)} deletes of objects that are not there")
    if found.ranks:
        lost.append(f"the rank of {format_count(found.ranks)} operations")
    if not done.objects.exists():
        lost.append("names: objects are called object/ID, since the source does not name them")
    if done.is_measured:
        lost.append("phases, and where in its object an operation began")
    else:
        lost.append("phases; and ends, which a trace does not have")
    return lost


def origin_lines(done: Operations, tier: str, limit: Limit) -> list[str]:
    """Return the lines of a log that name its source."""
    meta = done.meta
    made = f"written by {meta.program} {meta.version}, configuration SHA-256 {meta.config_sha256 or 'unknown'}"
    lines = [f"tier {tier} of {done.file.name}, {made}"]
    if str(limit):
        lines.append(f"only part of the tier: the first {limit}")
    if meta.is_simulated:
        lines.append("its times are a simulation's, not a device's")
    return lines
