"""DuckDB connections with bounded memory, views of tables, and named queries in `sql`.

The views `measured` and `measured_requests` omit the warm-up of a run, as its run.json does.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from kvtrace.core import duckdb, pa, parquet_tables, pq, tables
from kvtrace.core.errors import ConfigError, KvError, OutOfMemory
from kvtrace.core.files import at
from kvtrace.core.memory import available_bytes
from kvtrace.core.run.probe_file import find_probe
from kvtrace.core.run.run_file import (
    PROBE_FILE,
    RUN_FILE,
    RunFile,
    find_run,
    refuse_unfinished_runs,
)
from kvtrace.core.schema import (
    BLOCKS,
    OBJECTS,
    OPS,
    SERIES,
    SERVED,
    TABLES,
    TRACE,
    Table,
    arrow_schema,
)
from kvtrace.core.signals import stopped_by_signals
from kvtrace.core.tables import DatasetReader
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import format_bytes, parse_duration_ns

if TYPE_CHECKING:
    from kvdistill.queries.dataset_view import DatasetView

Row = dict[str, Any]
"""A row of a query's result by column name; the query determines columns and types."""
MEMORY_SHARE = 0.5
"""DuckDB's share of the memory that is available when a connection is opened."""
_UNKNOWN_AVAILABLE_BYTES = 2 << 30
"""Available memory where the system does not tell it."""
_MIN_MEMORY_BYTES = 64 << 20
"""Memory without which DuckDB cannot read a file."""
BATCH_ROWS = 1 << 17
PERCENTILE = """
CREATE MACRO percentile(x, q) AS CASE WHEN count(x) * (1 - q) >= 1 THEN quantile_disc(x, q) END
"""
"""The SQL aggregate `percentile(x, q)`: nearest rank, null with fewer than 1 / (1 - q) values.

statistics.py has the same rule. `q` is a literal such as 0.99, which DuckDB keeps exact.
"""
SLOT = """
CREATE MACRO slot(x) AS CASE WHEN x < 32 THEN x
    ELSE ((length(ltrim(bin(x), '0')) - 5) << 4) + (x >> (length(ltrim(bin(x), '0')) - 5)) END
"""
"""The SQL function `slot(x)`: the histogram slot of `x`, as `slot_of` in statistics.py."""


@contextmanager
def connect(scratch: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with bounded memory that spills to a folder in `scratch`.

    Without `scratch`, the folder is in the system's place for temporary files.
    """
    with temporary_folder("kvdistill-", scratch) as folder:
        limit_bytes = memory_limit_bytes()
        connection = open_connection(folder, limit_bytes)
        try:
            with stopped_by_signals(connection.interrupt), _naming_damage(connection):
                yield connection
        except duckdb.OutOfMemoryException as error:
            # This operator cannot spill.
            first_line = str(error).strip().split("\n")[0]
            reason = (
                f"a query needs more than {format_bytes(limit_bytes)} of memory, half of what is"
                f" available, and cannot spill to disk: {first_line}"
            )
            raise OutOfMemory(reason) from None
        finally:
            connection.close()


@contextmanager
def _naming_damage(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Replace any error that follows from a damaged dataset by the error that names the damage."""
    try:
        yield
    except Exception:
        if (damage := damage_of(connection)) is not None:
            raise damage from None
        raise


def damage_of(connection: duckdb.DuckDBPyConnection) -> KvError | None:
    """Return the error of a dataset that a query of `connection` could not read; None if there is
    none.

    DuckDB says of it only that a stream failed.
    """
    views = _dataset_views.get(connection, ())
    return next((view.error for view in views if view.error is not None), None)


_dataset_views: WeakKeyDictionary[duckdb.DuckDBPyConnection, list[DatasetView]] = (
    WeakKeyDictionary()
)
"""The trace datasets that each connection reads."""


def memory_limit_bytes() -> int:
    """Return the memory that a query may use: half of what this process can still allocate."""
    available = available_bytes()
    share = (_UNKNOWN_AVAILABLE_BYTES if available is None else available) * MEMORY_SHARE
    return max(int(share), _MIN_MEMORY_BYTES)


def open_connection(scratch: Path, limit_bytes: int | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection with the macros, on all processors, that spills into `scratch`.

    `limit_bytes` is the memory that it may use; without it, half of what is available.
    """
    limit_bytes = memory_limit_bytes() if limit_bytes is None else limit_bytes
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{limit_bytes >> 10}KiB",
        "threads": len(os.sched_getaffinity(0)),
        "temp_directory": str(scratch / "spill"),
    }
    connection = duckdb.connect(":memory:", config=settings)
    with suppress(
        duckdb.InvalidInputException
    ):  # a notebook without ipywidgets has no progress bar
        connection.execute("SET enable_progress_bar = false")
    connection.execute(PERCENTILE)
    connection.execute(SLOT)
    return connection


def literal(value: object) -> str:
    """Return `value` as an SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def query(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> list[Row]:
    """Return the rows of a query in `kvdistill/queries/sql`; `values` fill its `$name` parameters."""
    rows: list[Row] = query_table(connection, name, **values).to_pylist()
    return rows


def query_table(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> pa.Table:
    """Return the result of the named query as an Arrow table."""
    return connection.sql(named(name), params=values or None).to_arrow_table()


def count_sizes(connection: duckdb.DuckDBPyConnection, *, has_deletes: bool) -> None:
    """Create the table `size_counts` of the view `measured`, which the queries of sizes read."""
    # DuckDB takes no parameters in a statement that creates a table.
    statement = named("run_size_counts").replace("$has_deletes", str(has_deletes).lower())
    connection.execute(f"CREATE TEMP TABLE size_counts AS {statement}")


def write_query(
    connection: duckdb.DuckDBPyConnection, name: str, path: Path, **values: object
) -> None:
    """Write the result of the named query to the Parquet file `path`, in its order, batch by batch."""
    reader = connection.sql(named(name), params=values).to_arrow_reader(BATCH_ROWS)
    with pq.ParquetWriter(path, reader.schema, compression="zstd", compression_level=1) as out:
        for batch in reader:
            out.write_batch(batch)


def named(name: str) -> str:
    """Return the text of the named query."""
    return (
        resources.files("kvdistill.queries")
        .joinpath("sql", f"{name}.sql")
        .read_text(encoding="utf-8")
    )


_NUMBERED_OPS = "numbered_ops"
"""The view of `ops` with each operation's position in its file, by which a warm-up counts rows."""
_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")


def _measured_views(
    names: Sequence[str], runs: Sequence[tuple[Path, RunFile]]
) -> Iterator[tuple[str, str]]:
    """Yield name and SQL of the views of `ops` and `served` without the warm-up of each run.

    A `--warmup` is a number of rows or a time.
    """
    cases = ""
    for folder, warmup in (
        (folder, run.summary.warmup.asked) for folder, run in runs if run.summary.warmup is not None
    ):
        rows, started = _ROWS.fullmatch(warmup), "coalesce(scheduled_ns, submitted_ns)"
        condition = (
            f"position >= {rows[1]}"
            if rows
            else f"coalesce({started} >= {parse_duration_ns(warmup)}, true)"
        )
        cases += f" WHEN {literal(folder)} THEN {condition}"
    is_measured = f"CASE origin{cases} ELSE true END"
    if "ops" in names:
        measured = f"SELECT * EXCLUDE (position) FROM {_NUMBERED_OPS} WHERE {is_measured}"
        yield "measured", measured if cases else "FROM ops"
    if "served" in names and ("ops" in names or not cases):
        without_warmup = (
            f"ANTI JOIN (SELECT origin, request_id FROM {_NUMBERED_OPS} WHERE NOT {is_measured})"
            " USING (origin, request_id)"
        )
        yield "measured_requests", f"FROM served {without_warmup if cases else ''}"


_PATTERN = set("*?[")
_RUN_TABLES = (OPS, SERVED, SERIES, BLOCKS)
_COUNTS = (
    "queued int64, issued int64, issued_bytes int64, completed int64, completed_bytes int64, errors"
    " int64, requeues int64, requests_merged int64, bios int64, bio_bytes int64, bios_merged int64,"
    " splits int64, ends_not_seen int64, lost_events int64, lost_requests int64"
)
_RUNS = (
    "origin string, trace string trace.file, status string, verdict string summary.verdict, started"
    " string started_utc, wall_ns int64 summary.wall_ns, operations int64 summary.operations,"
    " errors int64 summary.errors, in_flight_mean float64 summary.in_flight_mean, loop string"
    " pacing.loop, speed float64 pacing.speed, engine string engine.name, queue_depth int64"
    " engine.queue_depth, io_bytes int64 engine.io_bytes, kernel string host.kernel, cpu_model"
    " string host.cpu_model, version string"
)
FACTS: dict[str, dict[str, list[str]]] = {
    view: {name: kind_and_place for name, *kind_and_place in map(str.split, columns.split(", "))}
    for view, columns in (
        ("runs", _RUNS),
        ("tiers", "origin string, tier string, place int8, capacity_bytes int64"),
        ("probes", f"origin string, direction string, {_COUNTS}"),
    )
}
"""Columns of the views that no table of the trace schema backs: Arrow type and source.

The source is a path in run.json or in a probe's counts, if it differs from the column's name.
"""


@contextmanager
def opened(paths: Sequence[Path | str]) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with the views of `paths` (see `register`)."""
    with temporary_folder("kvdistill-") as scratch, connect(scratch) as db:
        register(db, paths, scratch)
        yield db


def register(
    db: duckdb.DuckDBPyConnection, paths: Sequence[Path | str], scratch: Path
) -> dict[str, Sequence[Path]]:
    """Create views in `db` of the tables in `paths`: files, patterns, or folders (recursive).

    Returns the files that each view reads, by view name.

    Several files of one table are one view. A trace adds its objects table, and a table of a run
    adds the facts of the run. CSV and facts are first written to `scratch` as Parquet.

    TraceError if a file is missing, damaged or not a table of kvtrace. ConfigError if a folder
    holds no table, or no file matches a pattern.
    """
    files_by_view: dict[str, dict[Path, str]] = {}
    datasets: dict[Path, DatasetReader] = {}
    tiers: dict[str, list[Row]] = {}
    folders: dict[Path, None] = {}
    for path in dict.fromkeys(file for path_given in paths for file in files_in(Path(path_given))):
        if path.name in (RUN_FILE, PROBE_FILE):
            folders[path.parent] = None
            continue
        reader = (
            tables.open_verified(path)
            if path.name.endswith(".parquet")
            else tables.open_table(path)
        )
        if isinstance(reader, DatasetReader):
            datasets[path] = reader
        is_of_run = reader.table in _RUN_TABLES
        if is_of_run:
            folders[path.parent] = None
        origin = str(path.parent) if is_of_run else tables.given_path(path)
        _add_file(files_by_view, reader.table, path, origin, scratch)
        tiers.setdefault(
            origin,
            [
                {
                    "origin": origin,
                    "tier": tier.name,
                    "place": index,
                    "capacity_bytes": tier.capacity_bytes,
                }
                for index, tier in enumerate(reader.meta.tiers)
            ],
        )
        objects = tables.objects_path(path)
        if reader.table is TRACE and objects.is_file():
            if objects.name.endswith(".parquet"):
                tables.open_verified(objects, OBJECTS)
            _add_file(files_by_view, OBJECTS, objects, origin, scratch)
    runs = [(folder, run) for folder in folders if (run := find_run(folder)) is not None]
    probes = (
        (folder, probe.block.directions)
        for folder in folders
        if (probe := find_probe(folder)) is not None
    )
    facts = {
        "runs": [_facts_of_document(run, "runs") | {"origin": str(folder)} for folder, run in runs],
        "tiers": [row for rows in tiers.values() for row in rows],
        "probes": [
            _facts_of_document(counts, "probes") | {"origin": str(folder), "direction": direction}
            for folder, directions in probes
            for direction, counts in directions.items()
        ],
    }
    for name, rows in facts.items():
        if rows:
            schema = pa.schema(
                [(column, getattr(pa, kind)()) for column, (kind, *_) in FACTS[name].items()]
            )
            target = scratch / f"{name}.facts.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema), target)
            files_by_view[name] = {target: ""}
    _create_views(db, files_by_view, datasets, tiers)
    measured = dict(_measured_views(list(files_by_view), runs))
    for name, text in measured.items():
        db.execute(f"CREATE VIEW {name} AS {text}")
    return {name: list(files_by_view[name]) for name in sorted(files_by_view)} | dict.fromkeys(
        measured, ()
    )


def _create_views(
    db: duckdb.DuckDBPyConnection,
    files_by_view: dict[str, dict[Path, str]],
    datasets: dict[Path, DatasetReader],
    tiers: dict[str, list[Row]],
) -> None:
    """Create a view of the files of each table, and one of numbered operations."""
    rows_of = {
        path: _register_dataset(db, reader, f"dataset_{index}")
        for index, (path, reader) in enumerate(datasets.items())
    }
    for name, files in sorted(files_by_view.items()):
        db.execute(_view_statement(name, files, rows_of, tiers))
        if name == OPS.name:
            db.execute(_view_statement(name, files, rows_of, tiers, _NUMBERED_OPS))


def _register_dataset(db: duckdb.DuckDBPyConnection, reader: DatasetReader, name: str) -> _Rows:
    """Let `db` read the rows of a trace dataset under `name`."""
    # The module is a part of Arrow, which other sources do not need.
    from kvdistill.queries.dataset_view import DatasetView

    view = DatasetView(reader)
    _dataset_views.setdefault(db, []).append(view)
    db.register(name, view)
    return _Rows(name, frozenset(reader.extras))


class _Rows(NamedTuple):
    """The rows of one table in an SQL statement."""

    source: str
    """What follows FROM."""
    extras: frozenset[str]
    """The extra columns among them."""
    numbering: str = ""
    """The row number, with the comma in front of it; empty if it is a column already."""


def files_in(path: Path) -> list[Path]:
    """Return the tables at `path`: the file, the matches of a pattern, or those in a folder.

    A trace dataset is one of them, as its folder.
    """
    if not path.exists() and _PATTERN & set(str(path)):
        matches = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute too
        if not matches:
            raise ConfigError(f"{path}: no file matches this pattern")
        return [file for match in matches for file in files_in(match)]
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for folder in {candidate.parent for candidate in path.rglob("*")}
        for file in _tables_in(folder)
    )
    if not files:
        refuse_unfinished_runs(path)
        raise ConfigError(
            f"{path}: no kvtrace table in this folder (*{' or *'.join(tables.SUFFIXES)})"
        )
    return files


def _tables_in(folder: Path) -> Iterator[Path]:
    """Yield the tables in `folder` itself: those of a trace dataset, or files."""
    if tables.is_dataset(folder):
        yield folder
        if (requests := tables.requests_path(folder)).is_file():
            yield requests
        return
    for entry in folder.iterdir():
        is_table = entry.name in (RUN_FILE, PROBE_FILE) or entry.name.endswith(tables.SUFFIXES)
        if is_table and not entry.name.startswith("."):
            yield entry


def _view_statement(
    name: str,
    files: dict[Path, str],
    datasets: dict[Path, _Rows],
    tiers: dict[str, list[Row]],
    view: str | None = None,
) -> str:
    """Return the statement that creates the view of a table's `files`, called `view` or `name`.

    Those of `files` that are in `datasets` have their rows there.
    """
    # The row number orders operations of one instant.
    row = ", file_row_number AS row" if name == TRACE.name else ""
    if view == _NUMBERED_OPS:
        row = ", file_row_number AS position"
    ranked = sorted((row["place"], row["tier"]) for rows in tiers.values() for row in rows)
    names = ", ".join(literal(tier) for tier in dict.fromkeys(tier for _place, tier in ranked))
    enum = f"ENUM({names})" if names else "VARCHAR"
    tier_names = {
        origin: f" REPLACE ({_tier_name(rows, enum)} AS tier)" for origin, rows in tiers.items()
    }
    tier_names[""] = f" REPLACE (tier::{enum} AS tier)"
    if name != "tiers" and (
        name not in TABLES or all(column.name != "tier" for column in TABLES[name].columns)
    ):
        tier_names = dict.fromkeys(tier_names, "")
    extras, selects = TABLES[name].extras if name in TABLES else (), []
    for file, origin in files.items():
        rows = datasets.get(file)
        if rows is None:
            present = frozenset[str](pq.read_schema(file).names if extras else ())
            rows = _Rows(f"read_parquet({literal(file)})", present, row)
        # A missing extra column has its default.
        absent = "".join(
            f", CAST({'NULL' if column.default is None else column.default} AS {column.type}) AS {column.name}"
            for column in extras
            if column.name not in rows.extras
        )
        origin_column = f", {literal(origin)} AS origin" if origin else ""
        selects.append(
            f"SELECT *{tier_names[origin]}{rows.numbering}{absent}{origin_column} FROM {rows.source}"
        )
    return f"CREATE VIEW {view or name} AS {' UNION ALL BY NAME '.join(selects)}"


def _tier_name(tiers: list[Row], enum: str) -> str:
    """Return the SQL expression of the name of a row's tier, of the type `enum`.

    Its branches are constants of that type, because a cast of a name in each row takes longer than
    a whole query.
    """
    branches = [f"WHEN {row['place']} THEN {literal(row['tier'])}::{enum}" for row in tiers]
    return f"CASE tier {' '.join(branches)} END" if branches else f"NULL::{enum}"


def _add_file(
    files_by_view: dict[str, dict[Path, str]], table: Table, path: Path, origin: str, scratch: Path
) -> None:
    """Add the file at `path`, as Parquet under a name that DuckDB does not take for a pattern."""
    file, copy = path, scratch / f"{len(list(scratch.iterdir()))}.parquet"
    if path.is_dir():
        pass  # a dataset, which DuckDB does not open itself
    elif not path.name.endswith(".parquet"):
        file, reader = copy, tables.open_table(path, table)
        with pq.ParquetWriter(file, arrow_schema(table, reader.extras), compression="zstd") as out:
            for batch in reader.batches():
                out.write_batch(batch, row_group_size=parquet_tables.BATCH_ROWS)
    elif _PATTERN & set(str(path)):
        file = copy
        file.symlink_to(path.resolve())
    files_by_view.setdefault(table.name, {}).setdefault(file, origin)


def _facts_of_document(document: object, view: str) -> Row:
    paths = {name: (path or [name])[0].split(".") for name, (_kind, *path) in FACTS[view].items()}
    return {name: at(document, *path) for name, path in paths.items()}
