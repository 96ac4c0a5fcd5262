"""Extract the `Profile` of a trace, run, ops table, block events, probe result or profile.

A source with single operations is first written as one file of placed operations in order of time
(`write_ios`), from which all figures are computed. Memory is bounded by the number of objects, not
of rows. A figure that the source does not hold is null.

First fit places the objects in one address space, in two passes over a trace:

    pass 1: for each object, find its largest extent, and whether it is read before it is written
            (such objects exist from the start)
    pass 2: place the existing objects; allocate an extent at a write, free it at a delete

Source: own reasoning; first fit as in Knuth, The Art of Computer Programming 1, section 2.5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict, TypeVar, Unpack

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.locality import MAX_OPS, place_locality
from kvdistill.profile.profile import (
    FORMAT,
    AddressSpace,
    ArrivalProfile,
    BurstSequence,
    Concurrency,
    DataProfile,
    DepthProfile,
    DirectionProfile,
    Dispersion,
    Idle,
    InFlight,
    Origin,
    Profile,
    SizeCount,
    SourceKind,
    SourceOperations,
    equal_mass_zones,
)
from kvdistill.profile.streams import BUCKETS, MAX_PROCESSES, fit_streams
from kvdistill.queries.database import Row, connect, literal, query, query_table, write_query
from kvdistill.queries.window import (
    DELETE,
    READ,
    WRITE,
    Columns,
    find_busiest_window,
    find_tier_place,
    ordered_rows,
    tier_rows,
)
from kvtrace.core import duckdb, pa, pq, tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import read_json
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata, computing_notes
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.parameters import named
from kvtrace.core.row_check import DENSE_SLACK
from kvtrace.core.run.figures import LimitCause
from kvtrace.core.run.probe_file import DirectionFigures, ProbeFile
from kvtrace.core.run.run_file import find_run, list_runs_below, refuse_unfinished_runs
from kvtrace.core.schema import BLOCKS, MOST, OPS, TRACE
from kvtrace.core.statistics import Slot, bounds
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import NS_PER_US, format_count

Key = TypeVar("Key")
SOURCE_KINDS = "a trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json"
_IN_FOLDER = ("ops.parquet", "blocks.parquet", "trace.parquet", "probe.json", "profile.json")


def distil_source(
    path: Path, tier: str | None, limit: Limit, scratch: Path, folder: TemporaryFolder | None = None
) -> Distilled:
    """Extract the profile of the source at `path`, within `limit`.

    `tier` may be null if there is only one. Temporary files go into the folder `scratch`; `folder`,
    if given, keeps it alive. Memory is bounded by the number of objects, not of rows.

    ConfigError if the tier does not exist or is ambiguous, or an option does not apply to the
    source. TraceError if the file is missing, damaged or of another kind, or the tier has no reads
    or writes.
    """
    file = file_of(path)
    if file.suffix == ".json":
        if str(limit):
            raise ConfigError(f"{named('limit')}: {file} holds statistics only, and no operations")
        return _with_operations(_read_profile(file, tier), None, Limit(), path, tier, folder)
    table = tables.open_table(file).table
    if table not in (TRACE, OPS, BLOCKS):
        raise TraceError(
            f"holds the table {table.name}, which has no I/O; use {SOURCE_KINDS}", path=file
        )
    source = (
        _trace_source(file, tier)
        if table is TRACE
        else (_ops_source if table is OPS else _blocks_source)(file, tier, scratch)
    )
    limit = find_busiest_window(limit, lambda: source.rows(Limit()))
    operations_name = (
        f"the window (--from, --to, --busiest, --limit) of {source.operations_name}"
        if str(limit)
        else source.operations_name
    )
    ios = scratch / "ios.parquet"
    try:
        if source.kind is SourceKind.BLOCKS:
            space, stray_deletes = write_placed_rows(
                lambda: source.rows(limit), ios, operations_name
            )
        else:
            objects = survey(lambda: source.extents(limit))
            space, stray_deletes = place_objects(
                lambda: source.rows(limit), objects, ios, operations_name
            )
    except TraceError as error:
        if error.path is None:
            raise TraceError(str(error), path=file) from None
        raise
    (scratch / _ORDERED).unlink(missing_ok=True)
    origin = Origin(
        kind=source.kind,
        file=file.name,
        model=source.meta.model_name,
        limit=str(limit),
        notes=[*source.meta.notes, *source.notes],
        **{name: getattr(source.meta, name) for name in _META_FIELDS},
    )
    # Flushes are counted for the whole source only, so they are unknown within a window.
    flushes = None if str(limit) else source.flushes
    profile = profile_of(
        ios,
        scratch,
        origin=origin,
        tier=source.tier,
        space=space,
        data=source.data,
        stray_delete_ops=stray_deletes,
        flush_ops=flushes,
    )
    return _with_operations(profile, ios, limit, path, tier, folder)


def _with_operations(
    profile: Profile,
    ios: Path | None,
    limit: Limit,
    path: Path,
    tier: str | None,
    folder: TemporaryFolder | None,
) -> Distilled:
    """Set the file of `profile`'s operations, and return both."""
    operations = SourceOperations(ios, limit, path.absolute(), tier, folder)
    profile.keep_operations(operations)
    return with_operations(profile)


def with_operations(profile: Profile) -> Distilled:
    """Return `profile` with its operations, if this process has them."""
    operations = profile.operations
    if operations is None:
        return Distilled(profile, None)
    return Distilled(profile, operations.ios, operations.limit, operations.source, operations.tier)


def _read_profile(file: Path, tier: str | None) -> Profile:
    """Read a profile.json, or build the profile of a probe.json."""
    content = read_json(file, object)
    if not isinstance(content, dict) or "origin" not in content:
        profile = distil_probe(file)
    else:
        if (form := content.get("format")) != FORMAT:
            raise TraceError(
                f"a profile of format {form}; this version reads format {FORMAT}: extract it again",
                path=file,
            )
        profile = read_json(file, Profile, misfit="not a profile of kvdistill: {}")
    if tier is not None and tier != profile.tier:
        raise ConfigError(f"{named('tier', tier)}: {file} is of {profile.tier}")
    return profile


def file_of(path: Path) -> Path:
    """Return the file or trace dataset to read for the source at `path`, which may be a folder.

    ConfigError if the folder holds none.
    """
    if not path.is_dir() or tables.is_dataset(path):
        return path
    refuse_unfinished_runs(path)
    for name in _IN_FOLDER:
        if (path / name).is_file():
            return path / name
    raise ConfigError(
        f"{path}: none of {', '.join(_IN_FOLDER)} in this folder{list_runs_below(path)}"
    )


EXTENT_COLUMNS = ("object_id", "offset_bytes", "length_bytes")
"""The columns, besides time and operation, that tell the extents of objects."""
_COLUMNS = (*EXTENT_COLUMNS, "request_id", "stage")
_MOST_BURSTS_IN_ORDER = 4096
"""Up to so many bursts, a profile holds their order: more would make it a file of megabytes."""
_FOREVER = (1 << 62, -(1 << 62))
_REPLAYER_LIMITS = (LimitCause.REPLAYER, LimitCause.DATA, LimitCause.PROCESSOR, LimitCause.MEMORY)
_ORDERED = "ordered.parquet"
_META_FIELDS = ("program", "version", "config_sha256", "preset", "seed", "is_simulated")


@dataclass(frozen=True, slots=True)
class Distilled:
    """A profile and its operations.

    `ios` is Parquet as `write_ios` writes it; null if only figures are known.
    """

    profile: Profile
    ios: Path | None
    limit: Limit = Limit()  # noqa: RUF009 - frozen
    """The window of the source that was read."""
    source: Path | None = None
    """The file or folder that was distilled; null if that is not known."""
    tier: str | None = None
    """The tier that was asked for."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The operations of one tier or disk, in order of time, with facts from its file."""

    kind: SourceKind
    meta: Metadata
    tier: str
    rows: Callable[[Limit], Iterator[Columns]]
    """The rows within a limit, with all columns."""
    extents: Callable[[Limit], Iterator[Columns]]
    """The rows within a limit, with the columns of `EXTENT_COLUMNS` at least."""
    notes: Sequence[str] = ()
    data: DataProfile | None = None
    flushes: int | None = None

    @property
    def operations_name(self) -> str:
        """The tier or device by name, for error messages."""
        return f"{'device' if self.kind is SourceKind.BLOCKS else 'tier'} {self.tier!r}"


def view_ios(db: duckdb.DuckDBPyConnection, ios: Path) -> None:
    """Create the view `ios` in `db`; its column `row` orders operations of one instant."""
    db.execute(
        f"CREATE VIEW ios AS SELECT *, file_row_number AS row FROM read_parquet({literal(ios)})"
    )


def _view_bursts(db: duckdb.DuckDBPyConnection) -> None:
    """Create the view `bursts` of the view `ios`: reads and writes that arrive together.

    Arrivals of one microsecond are one: fio's logs have no finer times, and no drive tells them
    apart. `gap` is the time since the burst before, null for the first one.
    """
    db.execute(
        "CREATE VIEW bursts AS SELECT min(ts_ns) AS start_ns, count(*) AS burst,"
        " start_ns - lag(start_ns) OVER (ORDER BY start_ns) AS gap"
        f" FROM ios WHERE op <> 2 AND io_bytes > 0 GROUP BY ts_ns // {NS_PER_US}"
    )


class SourceFacts(TypedDict, total=False):
    """Fields of a profile that cannot be computed from its operations."""

    origin: Origin
    tier: str
    space: AddressSpace | None
    data: DataProfile | None
    stray_delete_ops: int
    flush_ops: int | None


def profile_of(ios: Path, scratch: Path, **facts: Unpack[SourceFacts]) -> Profile:
    """Return the profile of the operations at `ios`, which must hold a read or write.

    `facts` supplies the fields that cannot be computed from the operations.
    """
    with connect(scratch) as db:
        view_ios(db, ios)
        totals = query(db, "profile_totals")[0]
        describe = Directions(db, totals["start_ns"], totals["end_ns"]).describe
        stages = query(db, "profile_concurrency")[0]
        start, span = totals["start_ns"], totals["end_ns"] - totals["start_ns"]
        arrivals = _arrivals(db, start, span)
        depth, idle = _depth_and_idle(db, totals)
        first = (
            column.to_numpy() for column in query_table(db, "profile_first", most=MAX_OPS).columns
        )
        return Profile(
            start_ns=start,
            span_ns=span,
            deletes_beyond_ns=totals["whole_ns"] - span,
            deletes_start_ns=totals["delete_start_ns"] - start if totals["delete_ops"] else 0,
            deletes_span_ns=(
                totals["delete_end_ns"] - totals["delete_start_ns"]
                if totals["delete_ops"]
                else None
            ),
            read=describe(READ, has_zones=False),
            write=describe(WRITE, has_zones=False),
            delete_ops=totals["delete_ops"],
            delete_bytes=totals["delete_bytes"],
            empty_ops=totals["empty_ops"],
            concurrency=None if stages["max_stage_ops"] is None else Concurrency(**stages),
            arrivals=arrivals,
            depth=depth,
            idle=idle,
            locality=place_locality(*first, is_whole=totals["ops"] <= MAX_OPS),
            streams=[] if arrivals is None else fit_streams(db, start, describe),
            **facts,
        )


class Directions:
    """The reads and the writes of parts of the view `ios`."""

    def __init__(self, db: duckdb.DuckDBPyConnection, first_ns: int, last_ns: int) -> None:
        """Describe the operations in `db`, whose first and last times are given."""
        self._db = db
        self._first_ns, self._last_ns = first_ns, last_ns
        self._sizes: dict[tuple[int | None, ...], list[Row]] = {}

    def describe(
        self,
        op: int,
        from_ns: int = _FOREVER[1],
        to_ns: int = _FOREVER[0],
        process: int | None = None,
        has_zones: bool = True,
    ) -> DirectionProfile:
        """Return the profile of the operations `op` of `process`, or of all, within two times."""
        if from_ns <= self._first_ns and to_ns >= self._last_ns:
            from_ns, to_ns = _FOREVER[1], _FOREVER[0]
        filters = {"op": op, "from_ns": from_ns, "to_ns": to_ns, "process": process}
        key = tuple(filters.values())
        if key not in self._sizes:
            self._sizes[key] = query(self._db, "profile_sizes", **filters)
        rows = self._sizes[key]
        zones = []
        if has_zones:
            starts = query_table(
                self._db, "profile_addresses", granule_bytes=GRANULE_BYTES, **filters
            )
            zones = equal_mass_zones(
                starts["start"].to_numpy(), starts["moved_bytes"].to_numpy(), GRANULE_BYTES
            )
        is_padded = any(row["io_bytes"] != row["length_bytes"] for row in rows)
        return DirectionProfile(
            ops=sum(row["ops"] for row in rows),
            object_bytes=sum(row["length_bytes"] * row["ops"] for row in rows),
            io_bytes=sum(row["io_bytes"] * row["ops"] for row in rows),
            sizes=_count_sizes(rows, "io_bytes"),
            lengths=_count_sizes(rows, "length_bytes") if is_padded else None,
            zones=zones,
        )


def _count_sizes(rows: Sequence[Row], name: str) -> list[SizeCount]:
    """Return the operations of each size in the column `name` of the rows of profile_sizes."""
    counts = Counter[int]()
    for row in rows:
        counts[row[name]] += row["ops"]
    return [SizeCount(length, ops) for length, ops in sorted(counts.items())]


def _arrivals(db: duckdb.DuckDBPyConnection, start_ns: int, span_ns: int) -> ArrivalProfile | None:
    """Return the arrival figures of reads and writes; null if all share one microsecond."""
    if not span_ns:
        return None
    bucket_ns = -(-(span_ns + 1) // BUCKETS)
    # A bucket without operations has no row.
    rows_by_bucket = {
        row["bucket"]: row
        for row in query(db, "profile_rates", start_ns=start_ns, bucket_ns=bucket_ns)
    }
    buckets = [rows_by_bucket.get(bucket, {}) for bucket in range(max(rows_by_bucket) + 1)]
    names = ("read_ops", "write_ops", "read_bytes", "write_bytes")
    _view_bursts(db)
    rows, windows = query(db, "profile_gaps"), query(db, "profile_windows", start_ns=start_ns)
    bursts, gaps = (
        [row for row in rows if row["measure"] == measure] for measure in ("burst", "gap")
    )
    if not gaps:
        return None
    slots = (
        [Slot(*bounds(row["slot"]), row["instants"]) for row in rows] for rows in (bursts, gaps)
    )
    instants = sum(row["instants"] for row in bursts)
    return ArrivalProfile(
        bucket_ns=bucket_ns,
        **{name: [row.get(name, 0) for row in buckets] for name in names},
        instants=instants,
        bursts=next(slots),
        gaps=next(slots),
        gap_mean_ns=sum(row["total"] for row in gaps) / sum(row["instants"] for row in gaps),
        sequence=_burst_sequence(db) if instants <= _MOST_BURSTS_IN_ORDER else None,
        dispersion=Dispersion(**{row["name"]: row["dispersion"] for row in windows}),
    )


def _burst_sequence(db: duckdb.DuckDBPyConnection) -> BurstSequence:
    """Return all bursts of the view `bursts`, in order."""
    rows = query(db, "profile_bursts")
    return BurstSequence(
        ops=[row["burst"] for row in rows], gaps_ns=[row["gap"] for row in rows[1:]]
    )


def _depth_and_idle(
    db: duckdb.DuckDBPyConnection, busy: Row
) -> tuple[DepthProfile | None, Idle | None]:
    rows = query(db, "profile_in_flight") if busy["timed"] else []
    total = sum(row["total_ns"] for row in rows)
    if not total:
        return None, None
    never: Row = {"stretches": 0, "total_ns": 0, "p50_ns": None}
    idle = next((row for row in rows if row["in_flight"] == 0), never)
    depth = DepthProfile(
        mean=sum(row["in_flight"] * row["total_ns"] for row in rows) / total,
        read_mean=busy["read_ns"] / total,
        write_mean=busy["write_ns"] / total,
        max=rows[-1]["in_flight"],
        shares=[InFlight(row["in_flight"], row["total_ns"] / total) for row in rows],
        timed_share=busy["timed"] / busy["ops"],
    )
    return depth, Idle(**{name: idle[name] for name in Idle.__struct_fields__})


_NO_OFFSETS = "a replay's ops hold no offsets: operations are assumed at the start of their object"
_WARM_UP = "the run's warm-up is included"
_PACKED = "addresses are compacted: unused ranges of 1 MiB and more are removed"


def _trace_source(file: Path, tier: str | None) -> _Source:
    """Return the operations of a trace on `tier`."""
    reader = tables.open_table(file, TRACE)
    names = [t.name for t in reader.meta.tiers]
    if not tier and len(names) != 1:
        raise ConfigError(
            f"{file}: choose a tier of {', '.join(names)}, such as {named('tier', names[-1])}"
        )
    name = tier or names[0]
    rows = partial(tier_rows, reader, find_tier_place(reader.meta, name))
    return _Source(
        SourceKind.TRACE,
        reader.meta,
        name,
        partial(rows, columns=_COLUMNS),
        partial(rows, columns=EXTENT_COLUMNS),
    )


def _ops_source(ops: Path, tier: str | None, scratch: Path) -> _Source:
    """Return the operations that a replay completed on `tier`, ordered by submission."""
    meta = tables.open_checked(ops, OPS).meta
    run, ordered = find_run(ops.parent), scratch / _ORDERED
    # An import writes its trace next to its ops, row by row; a replay's trace may be anywhere.
    trace, offsets = ops.with_name("trace.parquet"), "SELECT -1 AS row, 0 AS offset_bytes"
    if has_offsets := meta.program == "kvdistill" and trace.is_file():
        offsets = f"SELECT file_row_number AS row, offset_bytes FROM read_parquet({literal(trace)})"
    with connect(scratch) as db:
        _create_view(db, ops)
        db.execute(f"CREATE VIEW offsets AS {offsets}")
        tier_rows_used = query(db, "measured_tiers")
        name, tier_row = _choose_tier(
            tier, [meta.tiers[row["tier"]].name for row in tier_rows_used], tier_rows_used, ops
        )
        _number_objects(db)
        write_query(db, "measured_ops", ordered, tier=tier_row["tier"])
    omitted_note = (
        f"{format_count(tier_row['left_ops'])} reads and writes failed or were not reached, and are"
        " omitted"
    )
    notes = [
        *([omitted_note] if tier_row["left_ops"] else []),
        *([] if has_offsets else [_NO_OFFSETS]),
    ]
    notes += [_WARM_UP] if run is not None and run.summary.warmup is not None else []
    notes += [] if run is None else computing_notes(run.trace.metadata.notes)
    judgement = None if run is None else run.summary.judgement
    if judgement is not None and judgement.tier == name and judgement.cause in _REPLAYER_LIMITS:
        notes.append(
            f"the host, not {name}, was the bottleneck of the run ({judgement.reason}): fio may be"
            " faster"
        )
    data = None
    if run is not None and run.data is not None:
        shape = run.data.shape
        dedup, compress = (1.0, 1.0) if shape is None else (shape.dedup_ratio, shape.compress_ratio)
        data = DataProfile(dedup_ratio=dedup, compress_ratio=compress)
    rows = partial(ordered_rows, ordered)
    return _Source(SourceKind.OPS, meta, name, rows, rows, notes, data)


def _blocks_source(blocks: Path, device: str | None, scratch: Path) -> _Source:
    """Return the reads, writes and discards issued to `device`, which is the profile's tier."""
    meta, ordered = tables.open_checked(blocks, BLOCKS).meta, scratch / _ORDERED
    with connect(scratch) as db:
        _create_view(db, blocks)
        names = [row["device"] for row in query(db, "measured_devices")]
        name, _index = _choose_tier(device, names, names, blocks)
        processes, left_ops = _processes(db, name)
        write_query(db, "measured_blocks", ordered, device=name, processes=processes)
        flushes = query(db, "measured_flushes", device=name, processes=processes)[0]["flushes"]
    notes = (
        [f"{format_count(left_ops)} requests of processes with very little I/O are omitted"]
        if left_ops
        else []
    )
    rows = partial(ordered_rows, ordered)
    return _Source(
        SourceKind.BLOCKS,
        meta,
        name,
        rows,
        rows,
        [_PACKED, *notes],
        flushes=flushes,
    )


def _processes(db: duckdb.DuckDBPyConnection, device: str) -> tuple[list[int] | None, int]:
    """Return the processes of the workload on `device` (null: all), and the others' operations."""
    rows = query(db, "measured_processes", device=device)
    workload_processes = [row["process"] for row in rows if row["is_of_workload"]]
    if (
        not workload_processes
        or len(workload_processes) == len(rows)
        or len(workload_processes) > MAX_PROCESSES
    ):
        return None, 0
    return workload_processes, sum(row["ops"] for row in rows if not row["is_of_workload"])


def _create_view(db: duckdb.DuckDBPyConnection, path: Path) -> None:
    if not path.name.endswith(".parquet"):
        raise ConfigError(
            f"{path}: not a Parquet file; convert it first: kvtrace convert trace.csv.zst"
            " trace.parquet"
        )
    db.execute(f"CREATE VIEW measured AS SELECT * FROM read_parquet({literal(path)})")


def _number_objects(db: duckdb.DuckDBPyConnection) -> None:
    """Renumber the objects of the view `measured` densely, unless they are dense already.

    Arrays by object then take memory in proportion to the rows. A window of a long trace may have
    numbers far above its rows, and a damaged trace any numbers.
    """
    ((rows, max_object_id),) = db.execute(
        "SELECT count(*), max(object_id) FROM measured"
    ).fetchall()
    if not rows or max_object_id <= rows + DENSE_SLACK:
        return
    db.execute("ALTER VIEW measured RENAME TO unnumbered")
    db.execute(
        "CREATE TABLE numbers AS SELECT object_id, row_number() OVER (ORDER BY object_id) - 1 AS"
        " number FROM (SELECT DISTINCT object_id FROM unnumbered)"
    )
    db.execute(
        "CREATE VIEW measured AS SELECT unnumbered.* REPLACE (number AS object_id) "
        "FROM unnumbered JOIN numbers USING (object_id)"
    )


def _choose_tier(
    tier: str | None, names: list[str], keys: Sequence[Key], path: Path
) -> tuple[str, Key]:
    if not names:
        raise TraceError("no read or write completed, so there is no I/O to profile", path=path)
    if tier is None and len(names) == 1:
        return names[0], keys[0]
    if tier not in names:
        problem = (
            f"no tier or device {tier!r} has I/O here" if tier else "choose a tier with --tier"
        )
        raise ConfigError(f"{path}: {problem}: {', '.join(names)}")
    return tier, keys[names.index(tier)]


_PROBE_NOTES = (
    "requests of the block layer, after splits and merges: not objects of the application",
    (
        "histograms hold no arrivals, offsets, reuse or phases; blocks.parquet does (probe without"
        " --histograms-only)"
    ),
)


def distil_probe(path: Path) -> Profile:
    """Return the profile of the probe.json at `path`.

    TraceError if it is another file, or holds no reads or writes.
    """
    probe = read_json(path, ProbeFile, misfit="not a probe.json of kvreplay probe: {}")
    if probe.program is None or probe.version is None or probe.config_sha256 is None:
        raise TraceError(
            "not a probe.json of kvreplay probe: program, version or config_sha256 is missing",
            path=path,
        )
    if probe.duration_ns is None:
        reason = (
            "holds no duration and no exact sizes (bpftrace prints neither), so a job would have no rate"
            " and no sizes"
        )
        raise TraceError(
            f"{reason}; use a result of kvreplay probe, or an imported blkparse text", path=path
        )
    for direction, figures in probe.block.directions.items():
        if direction != "flush" and None in (figures.issued, figures.issued_bytes):
            raise TraceError(
                f"not a probe.json of kvreplay probe: {direction} requests were not counted",
                path=path,
            )
    read, write, discard, flush = map(
        probe.block.directions.get, ("read", "write", "discard", "flush")
    )
    if not _issued(read) + _issued(write):
        raise TraceError("no reads or writes, so there is no I/O to profile", path=path)
    return Profile(
        origin=Origin(
            kind=SourceKind.PROBE,
            file=path.name,
            limit="",
            is_simulated=False,
            notes=list(_PROBE_NOTES),
            program=probe.program,
            version=probe.version,
            config_sha256=probe.config_sha256,
            preset=None,
            seed=None,
            model=None,
        ),
        tier=", ".join(probe.devices) or "all disks",
        start_ns=0,
        span_ns=probe.duration_ns,
        read=_probe_direction(read),
        write=_probe_direction(write),
        delete_ops=_issued(discard),
        delete_bytes=0 if discard is None else discard.issued_bytes or 0,
        stray_delete_ops=0,
        flush_ops=None if flush is None else flush.completed,
        empty_ops=0,
        depth=_depth_by_rate(read, write, probe.duration_ns),
        streams=[],
        space=None,
        concurrency=None,
        arrivals=None,
        idle=None,
        locality=None,
        data=None,
    )


def _issued(figures: DirectionFigures | None) -> int:
    return 0 if figures is None else figures.issued or 0


def _probe_direction(figures: DirectionFigures | None) -> DirectionProfile:
    sizes = [
        SizeCount(size.bytes, size.count)
        for size in ([] if figures is None else figures.block_sizes)
        if size.bytes
    ]
    total = sum(size.io_bytes * size.ops for size in sizes)
    return DirectionProfile(
        ops=sum(size.ops for size in sizes),
        object_bytes=total,
        io_bytes=total,
        sizes=sizes,
        zones=[],
    )


def _depth_by_rate(
    read: DirectionFigures | None, write: DirectionFigures | None, duration_ns: int
) -> DepthProfile | None:
    """Return the queue depth by Little's law: rate times mean time queued and in the device.

    Null if no request was timed.
    """
    busy_ns, directions = (
        [0.0, 0.0],
        [(index, figures) for index, figures in enumerate((read, write)) if figures is not None],
    )
    for index, figures in directions:
        if not duration_ns or (figures.issued and figures.d2c.mean_ns is None):
            return None
        busy_ns[index] = sum(
            (times.mean_ns or 0) * times.count for times in (figures.d2c, figures.q2d)
        )
    return DepthProfile(
        mean=sum(busy_ns) / duration_ns,
        read_mean=busy_ns[0] / duration_ns,
        write_mean=busy_ns[1] / duration_ns,
        max=max(
            (
                depth.in_flight
                for _, figures in directions
                for depth in figures.in_flight_at_dispatch
            ),
            default=0,
        ),
        shares=[],
        timed_share=sum(figures.d2c.count for _, figures in directions)
        / (_issued(read) + _issued(write)),
    )


ROW_GROUP_ROWS = 1 << 17


def write_ios(path: Path, batches: Iterable[Columns], operations_name: str) -> None:
    """Write batches of placed operations, in order of time, as Parquet.

    Columns: ts_ns, op (code), address and io_bytes (whole sectors or pages; 0 for a delete),
    length_bytes, request_id and stage (-1 for null), completed_ns (null if not timed), process (-1
    if unknown). A missing column is null.

    TraceError, which names `operations_name`, if there is no read or write.
    """
    names = "ts_ns op address io_bytes length_bytes request_id stage completed_ns process"
    schema = pa.schema(
        dict.fromkeys(names.split(), pa.int64()) | {"op": pa.int8(), "stage": pa.int32()}
    )
    rows = moving = deletes = 0
    # Some fifteen queries read the file: what unpacks fast matters more than its size.
    with pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False) as out:
        for batch in batches:
            rows += (count := len(batch["op"]))
            deletes += int((is_delete := batch["op"] == DELETE).sum())
            moving += int(((batch["io_bytes"] > 0) & ~is_delete).sum())
            # An unknown completion time is NaN.
            defaults = dict.fromkeys(schema.names, np.full(count, -1)) | {
                "completed_ns": np.full(count, np.nan)
            }
            columns = defaults | batch
            arrays = {
                field.name: pa.array(columns[field.name], field.type, from_pandas=True)
                for field in schema
            }
            out.write_table(pa.table(arrays, schema=schema), row_group_size=ROW_GROUP_ROWS)
    if not moving:
        but = "" if not rows else ", only deletes" if deletes == rows else " that moved data"
        raise TraceError(
            f"{operations_name} has no reads or writes{but}, so there is no I/O to profile"
        )


GRANULE_BYTES = 4096
"""Objects are aligned and padded to this: a page, and the largest common sector."""

_SPACE_BYTES = 1 << 62
_TOTALS = np.dtype(
    [
        (name, I8)
        for name in (
            "live_bytes",
            "peak_bytes",
            "live_objects",
            "peak_objects",
            "span_bytes",
            "stray_deletes",
        )
    ]
)
_ROWS = {"op": I1, "object_id": I8, "offset_bytes": I8, "length_bytes": I8}
_space_open = function("space_open", int, int, int, returns=int)
_space_close = function("space_close", int)
_survey = function("placement_survey", int, *_ROWS.values(), I8, I1, I8, returns=int)
_place_prior = function("placement_prior", int, int, I8, I8, I8, _TOTALS, returns=bool)
_place = function(
    "placement_rows", int, int, *_ROWS.values(), I8, int, I8, _TOTALS, I8, I8, returns=bool
)


@dataclass(frozen=True, slots=True)
class Objects:
    """Figures of a tier's objects after the first pass, indexed by object id."""

    reserved_bytes: NDArray[np.int64]
    """Largest extent of each object, in whole granules; 0 if never read or written."""
    prior: NDArray[np.int64]
    """Ids of objects read before they are written, in order of their first read."""


def survey(rows: Rows) -> Objects:
    """Make the first pass over `rows`."""
    ends = np.zeros(1 << 16, dtype=np.int64)
    states = np.zeros(1 << 16, dtype=np.int8)
    prior: list[NDArray[np.int64]] = []
    for batch in rows():
        objects = batch["object_id"]
        columns, first_reads = _row_columns(batch), np.empty(len(objects), dtype=np.int64)
        if objects.max() >= len(ends):
            extra = max(int(objects.max()) + 1 - len(ends), len(ends))
            ends, states = np.pad(ends, (0, extra)), np.pad(states, (0, extra))
        count = _survey(len(objects), *columns, ends, states, first_reads)
        prior.append(first_reads[:count].copy())
    reserved = -(-ends // GRANULE_BYTES) * GRANULE_BYTES
    _require_fits(reserved.sum(dtype=np.float64) <= MOST)
    return Objects(reserved, np.concatenate(prior) if prior else np.empty(0, np.int64))


def _require_fits(fits: bool) -> None:
    if not fits:
        raise TraceError("the objects together are longer than 2^62 bytes", column="offset_bytes")


def _row_columns(batch: Columns) -> list[NDArray[np.int64]]:
    return [np.ascontiguousarray(batch[name], dtype) for name, dtype in _ROWS.items()]


Rows = Callable[[], Iterator[Columns]]


def first_read_ns(trace: Path, tier: str | None, from_ns: int = 0) -> int | None:
    """Return when the first read of `tier` at or after `from_ns` is; null if nothing is read then.

    Both are counted from the tier's first operation, as the begin of a window is.
    """
    first_ns: int | None = None
    for batch in _trace_source(trace, tier).rows(Limit()):
        ts_ns = batch["ts_ns"]
        if first_ns is None and len(ts_ns):
            first_ns = int(ts_ns[0])
        reads_ns = ts_ns[batch["op"] == READ] - (first_ns or 0)
        reads_ns = reads_ns[reads_ns >= from_ns]
        if len(reads_ns):
            return int(reads_ns[0])
    return None


def place_objects(
    rows: Rows, objects: Objects, ios: Path, operations_name: str
) -> tuple[AddressSpace, int]:
    """Place the `objects` of `rows` by first fit, and write the operations to `ios`.

    Returns the address space after the last operation, and the number of deletes of objects that
    did not exist. `operations_name` names the rows in errors.

    TraceError if the rows are damaged, no free extent is large enough, or none is a read or write.
    """
    totals = np.zeros(1, _TOTALS)
    write_ios(ios, _placed(rows, objects, totals), operations_name)
    live_bytes, peak_bytes, _, peak_objects, span_bytes, stray_deletes = totals[0].tolist()
    space = AddressSpace(
        span_bytes=span_bytes,
        peak_reserved_bytes=peak_bytes,
        peak_live_objects=peak_objects,
        prior_objects=len(objects.prior),
        prior_bytes=int(objects.reserved_bytes[objects.prior].sum()),
        end_live_bytes=live_bytes,
    )
    return space, stray_deletes


def _placed(rows: Rows, objects: Objects, totals: NDArray[np.void]) -> Iterator[Columns]:
    """Yield each batch of `rows` with `address` and `io_bytes` in bytes; count in `totals`.

    The address of a delete is -1.
    """
    reserved = objects.reserved_bytes
    base = np.full(len(reserved), -1, dtype=np.int64)
    space = _space_open(_SPACE_BYTES, GRANULE_BYTES, 0)
    try:
        _require_fits(
            _place_prior(space, len(objects.prior), objects.prior, reserved, base, totals)
        )
        for batch in rows():
            count = len(batch["op"])
            address, io_bytes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
            state = (reserved, len(reserved), base, totals)
            _require_fits(_place(space, count, *_row_columns(batch), *state, address, io_bytes))
            yield batch | {"address": address, "io_bytes": io_bytes}
    finally:
        _space_close(space)


def write_placed_rows(rows: Rows, ios: Path, operations_name: str) -> tuple[AddressSpace, int]:
    """Write `rows`, which hold addresses, to `ios`; returns and raises as `place_objects`."""
    end = 0

    def batches() -> Iterator[Columns]:
        nonlocal end
        for batch in rows():
            end = max(end, int((batch["address"] + batch["length_bytes"]).max()))
            yield batch

    write_ios(ios, batches(), operations_name)
    return AddressSpace(span_bytes=end, peak_reserved_bytes=end, prior_objects=0, prior_bytes=0), 0
