"""Our files as SQL sees them: a view a table of the contract, and `runs`, `tiers` and `probes` made of their JSON.

Each row's `origin` is the folder of its run, or its file. Below the views: one tier's rows of a trace within a window,
as numpy arrays, for what SQL does not do.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from kvdistill.queries.database import BATCH_ROWS, literal
from kvtrace.core import files as core_files
from kvtrace.core import parquet, tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.probe_file import find_probe
from kvtrace.core.run.run_file import PROBE_FILE, RUN_FILE, find_run, refuse_cut_off
from kvtrace.core.schema import BLOCKS, OBJECTS, OPS, SERIES, SERVED, TABLES, TRACE, Table, arrow_schema, enum_code
from kvtrace.core.tables import Reader

if TYPE_CHECKING:
    import duckdb


READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
OK, ERROR = (enum_code(OPS, "outcome", value) for value in ("ok", "error"))
"""Codes of `op` and `outcome` in the tables."""
_PATTERN = set("*?[")
_OF_A_RUN = (OPS, SERVED, SERIES, BLOCKS)
_COUNTS = (
    "queued int64, issued int64, issued_bytes int64, completed int64, completed_bytes int64, errors int64, "
    "requeues int64, requests_merged int64, bios int64, bio_bytes int64, bios_merged int64, splits int64, "
    "ends_not_seen int64, lost_events int64, lost_requests int64"
)
_RUNS = (
    "origin string, trace string, status string, verdict string, started string, wall_ns int64, operations int64, "
    "errors int64, in_flight_mean float64, loop string, speed float64, engine string, queue_depth int64, "
    "io_bytes int64, kernel string, cpu_model string, version string"
)
FACTS: dict[str, dict[str, str]] = {
    view: dict(column.split() for column in columns.split(", "))
    for view, columns in (
        ("runs", _RUNS),
        ("tiers", "origin string, tier int8, name string, capacity_bytes int64"),
        ("probes", f"origin string, direction string, {_COUNTS}"),
    )
}
"""Columns of the views that no table of the contract is behind, with their Arrow types."""


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
                {"origin": origin, "tier": index, "name": tier.name, "capacity_bytes": tier.capacity_bytes}
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
            schema = pa.schema([(column, getattr(pa, kind)()) for column, kind in FACTS[name].items()])
            target = scratch / f"{name}.facts.parquet"
            pq.write_table(pa.Table.from_pylist(rows, schema), target)
            found[name] = {target: ""}
    return [_view(name, files) for name, files in sorted(found.items())]


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


def _view(name: str, files: dict[Path, str]) -> View:
    # Rows of one instant are in order, too.
    row = ", file_row_number AS row" if name == TRACE.name else ""
    parts = [
        f"SELECT *{row}{_absent(name, file)}{f', {literal(origin)} AS origin' if origin else ''} "
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
            out.write_batch(batch, row_group_size=parquet.BATCH_ROWS)
    return target


def _run_facts(folder: Path) -> Iterable[dict[str, Any]]:
    run = find_run(folder)
    if run is None or run.program != "kvreplay":
        return
    summary = run.summary
    yield {
        "origin": str(folder),
        "trace": run.trace.file,
        "status": run.status,
        "started": run.started_utc,
        "version": run.version,
        "verdict": summary.verdict,
        "wall_ns": summary.wall_ns,
        "operations": summary.operations,
        "errors": summary.errors,
        "in_flight_mean": summary.in_flight_mean,
        "loop": run.pacing.loop,
        "speed": run.pacing.speed,
        "engine": run.engine.name,
        "queue_depth": run.engine.queue_depth,
        "io_bytes": run.engine.io_bytes,
        "kernel": run.host.get("kernel"),
        "cpu_model": run.host.get("cpu_model"),
    }


def _probe_facts(folder: Path) -> Iterable[dict[str, Any]]:
    probe = find_probe(folder)
    if probe is None:
        return
    for direction, counts in probe["block"]["directions"].items():
        yield {"origin": str(folder), "direction": direction} | {
            name: counts.get(name) for name in FACTS["probes"] if name not in ("origin", "direction")
        }


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in `path`; null without such a file or if it holds something else."""
    found = core_files.read_json(path, object) if path.is_file() else None
    return found if isinstance(found, dict) else None


@dataclass(frozen=True, slots=True)
class TierPlace:
    """A tier of a trace by its index; in a fleet, where nodes have their own, that of some nodes."""

    tier: int
    nodes: range | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `holds` reads."""
        return ("tier",) if self.nodes is None else ("tier", "node")

    def holds(self, batch: Any) -> Any:
        """Return which rows of `batch` are of it."""
        is_here = batch.column("tier").to_numpy() == self.tier
        if self.nodes is not None:
            node = batch.column("node").to_numpy()
            is_here &= (node >= self.nodes.start) & (node < self.nodes.stop)
        return is_here


def place_of(meta: Metadata, name: str) -> TierPlace:
    """Return the tier called `name`, or, as `nvme@3`, the one that node 3 of a fleet uses.

    ConfigError with the tiers there are if there is none, or if `name` does not say of which node.
    """
    names = [tier.name for tier in meta.tiers]
    tier, at, node = (name, "", "") if name in names else name.rpartition("@")
    if tier not in names or (at and not node.isdecimal()):
        raise ConfigError(f"no tier {name!r} in this trace; it has {', '.join(names) or 'none'}")
    index, each = names.index(tier), meta.tiers[names.index(tier)].instance_nodes
    if each is UNSET:
        if at:
            raise ConfigError(f"tier {tier!r} of this trace is one for all: take {tier}, not {name}")
        return TierPlace(index)
    nodes = int((meta.fleet or {}).get("nodes", 1 << 31))
    if not at or int(node) >= nodes:
        raise ConfigError(
            f"of tier {tier!r} there are {meta.instances(meta.tiers[index])}: say of which node, as {tier}@0"
        )
    first = int(node) // each * each
    return TierPlace(index, range(first, first + each))


def tier_rows(reader: Reader, place: TierPlace, limit: Limit, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `place` within `limit`, in order, as numpy arrays by column name.

    `op` is its code in the contract; nulls of `request_id` and `stage` are -1. TraceError if time goes back.
    """
    needed = ["ts_ns", "op", "length_bytes", *columns]
    names = [name for name in TRACE.names if name in needed]
    window, last, row = RowWindow(limit), None, 0
    for batch in reader.batches([*names, *place.columns]):
        ts = batch.column("ts_ns").to_numpy()
        keep = np.flatnonzero(place.holds(batch))
        back = np.flatnonzero(np.diff(ts) < 0)
        if last is not None and len(ts) and ts[0] < last:
            raise TraceError("time goes back here; sort the trace by ts_ns", row=row, column="ts_ns")
        if len(back):
            raise TraceError("time goes back here; sort the trace by ts_ns", row=row + int(back[0]) + 1, column="ts_ns")
        last, row = (ts[-1] if len(ts) else last), row + len(ts)
        if not len(keep):
            continue
        part = window.take({name: _numpy(batch.column(name))[keep] for name in names})
        if part is not None:
            yield part
        if window.is_over:
            return


class RowWindow:
    """Takes rows in order of time from a limit's beginning up to its end."""

    def __init__(self, limit: Limit) -> None:
        """Take rows up to `limit`, its time from the first row on."""
        self._limit = limit
        self._seen = self._moved = 0
        self._first: int | None = None
        self.is_over = False

    def take(self, part: dict[str, Any]) -> dict[str, Any] | None:
        """Return the rows of `part` (ts_ns, op, length_bytes and more) within the limit; null if there are none."""
        limit = self._limit
        if self._first is None and len(part["op"]):
            self._first = int(part["ts_ns"][0]) + limit.begin_ns
        if limit.begin_ns and self._first is not None:
            begin = int(np.searchsorted(part["ts_ns"], self._first))
            part = {name: values[begin:] for name, values in part.items()}
        count = len(part["op"])
        total = self._moved + np.cumsum(np.where(part["op"] == DELETE, 0, part["length_bytes"]))
        stop = min(
            count,
            count if limit.rows is None else limit.rows - self._seen,
            count
            if limit.span_ns is None or self._first is None
            else int(np.searchsorted(part["ts_ns"], self._first + limit.span_ns)),
            count if limit.moved_bytes is None else int(np.searchsorted(total, limit.moved_bytes, "right")),
        )
        self.is_over = stop < count
        self._seen, self._moved = self._seen + stop, int(total[-1]) if count else self._moved
        return {name: values[:stop] for name, values in part.items()} if stop else None


def ordered_rows(path: Path, limit: Limit) -> Iterator[dict[str, Any]]:
    """Yield the rows of the Parquet file `path`, in order of time, within `limit`, as numpy arrays by name."""
    import pyarrow.parquet as pq

    window = RowWindow(limit)
    for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH_ROWS, use_threads=False):
        columns = zip(batch.schema.names, batch.columns, strict=True)
        kept = window.take({name: column.to_numpy(zero_copy_only=False) for name, column in columns})
        if kept is not None:
            yield kept
        if window.is_over:
            return


_STEPS = 20
"""A busiest window begins at a multiple of this part of its length."""


def found_window(limit: Limit, rows: Callable[[], Iterator[dict[str, Any]]]) -> Limit:
    """Return `limit` with its busiest window found among all `rows`; unchanged if it asks for none."""
    length = limit.busiest_ns
    if length is None:
        return limit
    step = max(1, length // _STEPS)
    first, moved = None, np.zeros(0, dtype=np.int64)
    for part in rows():
        if not len(part["op"]):
            continue
        first = int(part["ts_ns"][0]) if first is None else first
        at = (part["ts_ns"] - first) // step
        found = np.bincount(at, np.where(part["op"] == DELETE, 0, part["length_bytes"])).astype(np.int64)
        moved = np.pad(moved, (0, max(0, len(found) - len(moved))))
        moved[: len(found)] += found
    done = np.concatenate([[0], np.cumsum(moved)])
    begins = np.arange(max(1, len(moved) - _STEPS + 1))
    best = int((done[np.minimum(begins + _STEPS, len(moved))] - done[begins]).argmax())
    return replace(limit, begin_ns=best * step, busiest_ns=None).within(Limit(span_ns=length))


def _numpy(array: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return array.indices.to_numpy()
    if array.null_count:
        array = array.fill_null(-1)
    return array.to_numpy(zero_copy_only=False)
