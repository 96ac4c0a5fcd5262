"""Our files as SQL sees them: a view a table of the contract, and `runs`, `tiers` and `probes` made of their JSON.

Each row's `origin` is the folder of its run, or its file. A `tier` is its name, and tiers are in order, fastest first.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdistill.queries.database import literal
from kvtrace.core import files as core_files
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.probe_file import find_probe
from kvtrace.core.run.run_file import PROBE_FILE, RUN_FILE, find_run, refuse_cut_off
from kvtrace.core.schema import BLOCKS, OBJECTS, OPS, SERIES, SERVED, TABLES, TRACE, Table, arrow_schema

if TYPE_CHECKING:
    import duckdb


_PATTERN = set("*?[")
_OF_A_RUN = (OPS, SERVED, SERIES, BLOCKS)
_COUNTS = (
    "queued int64, issued int64, issued_bytes int64, completed int64, completed_bytes int64, errors int64, "
    "requeues int64, requests_merged int64, bios int64, bio_bytes int64, bios_merged int64, splits int64, "
    "ends_not_seen int64, lost_events int64, lost_requests int64"
)
_RUNS = (
    "origin string, trace string trace.file, status string, verdict string summary.verdict, "
    "started string started_utc, wall_ns int64 summary.wall_ns, operations int64 summary.operations, "
    "errors int64 summary.errors, in_flight_mean float64 summary.in_flight_mean, loop string pacing.loop, "
    "speed float64 pacing.speed, engine string engine.name, queue_depth int64 engine.queue_depth, "
    "io_bytes int64 engine.io_bytes, kernel string host.kernel, cpu_model string host.cpu_model, version string"
)
FACTS: dict[str, dict[str, list[str]]] = {
    view: {name: kind_and_place for name, *kind_and_place in map(str.split, columns.split(", "))}
    for view, columns in (
        ("runs", _RUNS),
        ("tiers", "origin string, tier string, place int8, capacity_bytes int64"),
        ("probes", f"origin string, direction string, {_COUNTS}"),
    )
}
"""Columns of the views that no table of the contract is behind: their Arrow types, and where they stand in run.json, or
among a probe's counts, if not under their names."""


@dataclass(frozen=True, slots=True)
class View:
    """One view: its name, the SQL that makes it, and the files that this reads."""

    name: str
    statement: str
    files: list[Path]


def register(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path | str], scratch: Path) -> list[View]:
    """Make the views of `paths` in `connection`; return them. Raises what `views_of` raises."""
    views = views_of(paths, scratch)
    for view in views:
        connection.execute(view.statement)
    return views


def views_of(paths: Sequence[Path | str], scratch: Path) -> list[View]:
    """Return the views of the tables in `paths`: files, patterns, or folders with all below them.

    Several files of one table are one view. A trace brings its objects table with it, a table of a run the run's
    facts. CSV is first written to Parquet in `scratch`, as are facts.

    Raises:
        TraceError: a file is missing, damaged or none of ours.
        ConfigError: a folder holds no table, or no file fits a pattern.

    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, dict[Path, str]] = {}
    tiers: dict[str, list[dict[str, Any]]] = {}
    folders: dict[Path, None] = {}
    for path in dict.fromkeys(file for given in paths for file in files_in(Path(given))):
        if path.name in (RUN_FILE, PROBE_FILE):
            folders[path.parent] = None
            continue
        reader = tables.checked(path) if path.name.endswith(".parquet") else tables.open_table(path)
        is_of_run = reader.table in _OF_A_RUN
        if is_of_run:
            folders[path.parent] = None
        origin = str(path.parent if is_of_run else path)
        _add(found, reader.table, path, origin, scratch)
        tiers.setdefault(
            origin,
            [
                {"origin": origin, "tier": tier.name, "place": index, "capacity_bytes": tier.capacity_bytes}
                for index, tier in enumerate(reader.meta.tiers)
            ],
        )
        objects = tables.objects_path(path)
        if reader.table is TRACE and objects.is_file():
            if objects.name.endswith(".parquet"):
                tables.checked(objects, OBJECTS)
            _add(found, OBJECTS, objects, origin, scratch)
    facts = {
        "runs": [row for folder in folders for row in _run_facts(folder)],
        "tiers": [row for rows in tiers.values() for row in rows],
        "probes": [row for folder in folders for row in _probe_facts(folder)],
    }
    for name, rows in facts.items():
        if rows:
            schema = pa.schema([(column, getattr(pa, kind)()) for column, (kind, *_) in FACTS[name].items()])
            target = scratch / f"{name}.facts.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema), target)
            found[name] = {target: ""}
    return [_view(name, files, tiers) for name, files in sorted(found.items())]


def files_in(path: Path) -> list[Path]:
    """Return the files of ours that `path` names: itself, those that fit it, or those below it."""
    if not path.exists() and _PATTERN & set(str(path)):
        fitting = [Path(name) for name in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - absolute too
        if not fitting:
            raise ConfigError(f"{path}: no file fits this pattern")
        return [file for each in fitting for file in files_in(each)]
    if not path.is_dir():
        return [path]
    files = sorted(
        f
        for f in path.rglob("*")
        if (f.name in (RUN_FILE, PROBE_FILE) or f.name.endswith(tables.SUFFIXES)) and not f.name.startswith(".")
    )
    if not files:
        refuse_cut_off(path)
        raise ConfigError(f"{path}: no table of ours in this folder (*{' or *'.join(tables.SUFFIXES)})")
    return files


def _view(name: str, files: dict[Path, str], tiers: dict[str, list[dict[str, Any]]]) -> View:
    # Rows of one instant are in order, too.
    row = ", file_row_number AS row" if name == TRACE.name else ""
    ranked = sorted((row["place"], row["tier"]) for rows in tiers.values() for row in rows)
    enum = f"ENUM({', '.join(literal(tier) for tier in dict.fromkeys(tier for _place, tier in ranked))})"
    named = {
        origin: f" REPLACE ([{', '.join(literal(row['tier']) for row in rows)}][tier + 1]::{enum} AS tier)"
        for origin, rows in tiers.items()
    }
    named[""] = f" REPLACE (tier::{enum} AS tier)"
    if name != "tiers" and (name not in TABLES or all(column.name != "tier" for column in TABLES[name].columns)):
        named = dict.fromkeys(named, "")
    parts = [
        f"SELECT *{named[origin]}{row}{_absent(name, file)}{f', {literal(origin)} AS origin' if origin else ''} "
        f"FROM read_parquet({literal(file)})"
        for file, origin in files.items()
    ]
    return View(name, f"CREATE VIEW {name} AS {' UNION ALL BY NAME '.join(parts)}", list(files))


def _absent(name: str, file: Path) -> str:
    """Return the extra columns of the table `name` that `file` lacks, with their defaults, as SQL."""
    extras = TABLES[name].extras if name in TABLES else ()
    if not extras:
        return ""
    import pyarrow.parquet as pq

    present = set(pq.read_schema(file).names)
    return "".join(
        f", CAST({'NULL' if c.default is None else c.default} AS {c.type}) AS {c.name}"
        for c in extras
        if c.name not in present
    )


def _add(found: dict[str, dict[Path, str]], table: Table, path: Path, origin: str, scratch: Path) -> None:
    is_parquet = path.name.endswith(".parquet")
    file = _unpatterned(path, scratch) if is_parquet else _as_parquet(path, table, scratch)
    found.setdefault(table.name, {}).setdefault(file, origin)


def _unpatterned(path: Path, scratch: Path) -> Path:
    """Return a name of the file at `path` that DuckDB does not read as a pattern."""
    if not _PATTERN & set(str(path)):
        return path
    link = scratch / f"link.{len(list(scratch.iterdir()))}.parquet"
    link.symlink_to(path.resolve())
    return link


def _as_parquet(path: Path, table: Table, scratch: Path) -> Path:
    import pyarrow.parquet as pq

    target = scratch / f"csv.{len(list(scratch.iterdir()))}.parquet"
    reader = tables.open_table(path, table)
    with pq.ParquetWriter(target, arrow_schema(table, reader.extras), compression="zstd") as out:
        for batch in reader.batches():
            out.write_batch(batch, row_group_size=tables.BATCH_ROWS)
    return target


def _run_facts(folder: Path) -> Iterable[dict[str, Any]]:
    run = find_run(folder)
    if run is None or run.program != "kvreplay":
        return
    yield _found(run, "runs") | {"origin": str(folder)}


def _probe_facts(folder: Path) -> Iterable[dict[str, Any]]:
    probe = find_probe(folder)
    if probe is None:
        return
    for direction, counts in probe.block.directions.items():
        yield _found(counts, "probes") | {"origin": str(folder), "direction": direction}


def _found(whole: object, view: str) -> dict[str, Any]:
    places = {name: (place or [name])[0].split(".") for name, (_kind, *place) in FACTS[view].items()}
    return {name: at(whole, *path) for name, path in places.items()}


def at(value: Any, *names: str) -> Any:
    """Return the value at the path `names` in nested objects; null if there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; null without such a file or if it holds something else."""
    found = core_files.read_json(path, object) if path.is_file() else None
    return found if isinstance(found, dict) else None
