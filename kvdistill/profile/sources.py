"""Distil any source to a `Profile`.

A trace, a run or its ops, block events, a probe's result, a profile.

A source with single operations first becomes one file of placed operations in order of time
(`write_ios`), from which all figures are computed. Memory is bounded by the number of objects, not
of rows. What a source does not tell is null.

Objects lie in one address space by first fit, which takes two passes over a trace. The first learns
how long each gets and which are read before they are written (those exist from the start); the
second allocates and frees extents.
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
    Concurrency,
    DataProfile,
    DepthProfile,
    DirectionProfile,
    Dispersion,
    Idle,
    InFlight,
    Origin,
    Profile,
    ScratchFolder,
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
    found_window,
    ordered_rows,
    place_of,
    tier_rows,
)
from kvtrace.core import duckdb, pa, pq, tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import read_json
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import Metadata, computing_notes
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.run.figures import LimitCause
from kvtrace.core.run.probe_file import DirectionFigures, ProbeFile
from kvtrace.core.run.run_file import find_run, refuse_cut_off, runs_below
from kvtrace.core.schema import BLOCKS, MOST, OPS, TRACE
from kvtrace.core.statistics import Slot, bounds
from kvtrace.core.tables import DENSE_SLACK
from kvtrace.core.units import format_count

Key = TypeVar("Key")
WHAT = "a trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json"
_IN_FOLDER = ("ops.parquet", "blocks.parquet", "trace.parquet", "probe.json", "profile.json")


def distil_source(
    path: Path, tier: str | None, limit: Limit, scratch: Path, folder: ScratchFolder | None = None
) -> Distilled:
    """Distil the source at `path`, up to `limit`; `tier` may be null where there is only one.

    Temporary files go into the folder `scratch`, which lasts as long as `folder` is held if that is
    given. Memory is bounded by the number of objects, not of rows.

    ConfigError if there is no such tier, several to choose from, or an option that the source has
    no use for. TraceError if the file is missing, damaged or none that can be distilled, or the
    tier has no reads or writes.
    """
    file = file_of(path)
    if file.suffix == ".json":
        if str(limit):
            raise ConfigError(
                f"--limit: {file} has statistics alone, no operations to take the first of"
            )
        return _kept(_profile_in(file, tier), None, Limit(), path, tier, folder)
    table = tables.open_table(file).table
    if table not in (TRACE, OPS, BLOCKS):
        raise TraceError(f"holds the table {table.name}, which has no I/O; take {WHAT}", path=file)
    source = (
        _of_trace(file, tier)
        if table is TRACE
        else (_of_ops if table is OPS else _of_blocks)(file, tier, scratch)
    )
    limit = found_window(limit, lambda: source.rows(Limit()))
    whose = (
        f"what --from, --to, --busiest and --limit leave of {source.whose}"
        if str(limit)
        else source.whose
    )
    ios = scratch / "ios.parquet"
    try:
        place = lie if source.kind is SourceKind.BLOCKS else place_objects
        space, stray_deletes = place(lambda: source.rows(limit), ios, whose)
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
        **{name: getattr(source.meta, name) for name in _OF_META},
    )
    # A part of the events has a part of the flushes: which, is not looked at.
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
    return _kept(profile, ios, limit, path, tier, folder)


def _kept(
    profile: Profile,
    ios: Path | None,
    limit: Limit,
    path: Path,
    tier: str | None,
    folder: ScratchFolder | None,
) -> Distilled:
    """Return `profile` with its operations, of which it knows where they are."""
    operations = SourceOperations(ios, limit, path.absolute(), tier, folder)
    profile.keep_operations(operations)
    return distilled_of(profile)


def distilled_of(profile: Profile) -> Distilled:
    """Return `profile` with its operations, if this process has them."""
    found = profile.operations
    if found is None:
        return Distilled(profile, None)
    return Distilled(profile, found.ios, found.limit, found.source, found.tier)


def _profile_in(file: Path, tier: str | None) -> Profile:
    """Return the profile that a JSON file is, or that of a probe's histograms."""
    content = read_json(file, object)
    if not isinstance(content, dict) or "origin" not in content:
        profile = distil_probe(file)
    else:
        if (form := content.get("format")) != FORMAT:
            raise TraceError(
                f"a profile of format {form}, which this version does not know", path=file
            )
        profile = read_json(file, Profile, misfit="no profile of kvdistill: {}")
    if tier is not None and tier != profile.tier:
        raise ConfigError(f"--tier {tier}: {file} is of {profile.tier}")
    return profile


def file_of(path: Path) -> Path:
    """Return the file that is distilled of the source at `path`, which may be a folder.

    ConfigError if it has none.
    """
    if not path.is_dir():
        return path
    refuse_cut_off(path)
    for name in _IN_FOLDER:
        if (path / name).is_file():
            return path / name
    raise ConfigError(f"{path}: none of {', '.join(_IN_FOLDER)} in this folder{runs_below(path)}")


_COLUMNS = ("object_id", "offset_bytes", "length_bytes", "request_id", "stage")
_FOREVER = (1 << 62, -(1 << 62))
_OF_THE_REPLAY = (LimitCause.REPLAYER, LimitCause.DATA, LimitCause.PROCESSOR, LimitCause.MEMORY)
_ORDERED = "ordered.parquet"
_OF_META = ("program", "version", "config_sha256", "preset", "seed", "is_simulated")


@dataclass(frozen=True, slots=True)
class Distilled:
    """A profile and its operations.

    `ios` is Parquet as `write_ios` writes it; null if only figures are known.
    """

    profile: Profile
    ios: Path | None
    limit: Limit = Limit()  # noqa: RUF009 - frozen
    """The window of the source that it is of."""
    source: Path | None = None
    """The file or folder that was distilled; null if that is not known."""
    tier: str | None = None
    """The tier that was asked for."""


@dataclass(frozen=True, slots=True)
class _Source:
    """The operations of one tier or disk, in order of time, and what else its file says."""

    kind: SourceKind
    meta: Metadata
    tier: str
    rows: Callable[[Limit], Iterator[Columns]]
    notes: Sequence[str] = ()
    data: DataProfile | None = None
    flushes: int | None = None

    @property
    def whose(self) -> str:
        """What it is of, for errors."""
        return f"{'device' if self.kind is SourceKind.BLOCKS else 'tier'} {self.tier!r}"


def view_ios(db: duckdb.DuckDBPyConnection, ios: Path) -> None:
    """Make `db`'s view `ios`, whose `row` says in which order operations of one instant are."""
    db.execute(
        f"CREATE VIEW ios AS SELECT *, file_row_number AS row FROM read_parquet({literal(ios)})"
    )


class SourceFacts(TypedDict, total=False):
    """Fields of a profile that its operations do not tell."""

    origin: Origin
    tier: str
    space: AddressSpace | None
    data: DataProfile | None
    stray_delete_ops: int
    flush_ops: int | None


def profile_of(ios: Path, scratch: Path, **facts: Unpack[SourceFacts]) -> Profile:
    """Return the profile of the operations at `ios`, which must hold a read or write.

    `facts` are the fields that the operations do not tell.
    """
    with connect(scratch) as db:
        describe = partial(_direction_profile, db)
        view_ios(db, ios)
        totals = query(db, "profile_totals")[0]
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


def _direction_profile(
    db: duckdb.DuckDBPyConnection,
    op: int,
    from_ns: int = _FOREVER[1],
    to_ns: int = _FOREVER[0],
    process: int | None = None,
    has_zones: bool = True,
) -> DirectionProfile:
    which = {"op": op, "from_ns": from_ns, "to_ns": to_ns, "process": process}
    rows = query(db, "profile_sizes", **which)

    def counted(name: str) -> list[SizeCount]:
        found = Counter[int]()
        for row in rows:
            found[row[name]] += row["ops"]
        return [SizeCount(length, ops) for length, ops in sorted(found.items())]

    zones = []
    if has_zones:
        starts = query_table(db, "profile_starts", granule_bytes=GRANULE_BYTES, **which)
        zones = equal_mass_zones(
            starts["start"].to_numpy(), starts["moved_bytes"].to_numpy(), GRANULE_BYTES
        )
    is_padded = any(row["io_bytes"] != row["length_bytes"] for row in rows)
    return DirectionProfile(
        ops=sum(row["ops"] for row in rows),
        object_bytes=sum(row["length_bytes"] * row["ops"] for row in rows),
        io_bytes=sum(row["io_bytes"] * row["ops"] for row in rows),
        sizes=counted("io_bytes"),
        lengths=counted("length_bytes") if is_padded else None,
        zones=zones,
    )


def _arrivals(db: duckdb.DuckDBPyConnection, start_ns: int, span_ns: int) -> ArrivalProfile | None:
    """Return when reads and writes came; null if all share one instant."""
    if not span_ns:
        return None
    bucket_ns = -(-(span_ns + 1) // BUCKETS)
    # A bucket without a row is one in which nothing came.
    held = {
        row["bucket"]: row
        for row in query(db, "profile_rates", start_ns=start_ns, bucket_ns=bucket_ns)
    }
    whole = [held.get(bucket, {}) for bucket in range(max(held) + 1)]
    names = ("read_ops", "write_ops", "read_bytes", "write_bytes")
    found, windows = query(db, "profile_gaps"), query(db, "profile_windows", start_ns=start_ns)
    bursts, gaps = (
        [row for row in found if row["measure"] == measure] for measure in ("burst", "gap")
    )
    slots = (
        [Slot(*bounds(row["slot"]), row["instants"]) for row in rows] for rows in (bursts, gaps)
    )
    return ArrivalProfile(
        bucket_ns=bucket_ns,
        **{name: [row.get(name, 0) for row in whole] for name in names},
        instants=sum(row["instants"] for row in bursts),
        bursts=next(slots),
        gaps=next(slots),
        gap_mean_ns=sum(row["total"] for row in gaps) / sum(row["instants"] for row in gaps),
        dispersion=Dispersion(**{row["name"]: row["dispersion"] for row in windows}),
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


_NO_OFFSETS = "operations are taken from the start of their object: a replay's ops hold no offsets"
_WARM_UP = "the run's warm-up is part of this"
_PACKED = "addresses are compacted: unused stretches of 1 MiB are left out"


def _of_trace(file: Path, tier: str | None) -> _Source:
    """Return what a trace asks of `tier`."""
    reader = tables.open_table(file, TRACE)
    names = [t.name for t in reader.meta.tiers]
    if not tier and len(names) != 1:
        raise ConfigError(f"{file}: say which tier with --tier; there is {', '.join(names)}")
    name = tier or names[0]
    rows = partial(tier_rows, reader, place_of(reader.meta, name), columns=_COLUMNS)
    return _Source(SourceKind.TRACE, reader.meta, name, rows)


def _of_ops(ops: Path, tier: str | None, scratch: Path) -> _Source:
    """Return what a replay completed on `tier`, by when it was submitted."""
    meta = tables.checked(ops, OPS).meta
    run, ordered = find_run(ops.parent), scratch / _ORDERED
    # An import may have its trace beside it, row by row; that of a replay may lie anywhere.
    trace, offsets = ops.with_name("trace.parquet"), "SELECT -1 AS row, 0 AS offset_bytes"
    if has_offsets := meta.program == "kvdistill" and trace.is_file():
        offsets = f"SELECT file_row_number AS row, offset_bytes FROM read_parquet({literal(trace)})"
    with connect(scratch) as db:
        _view_measured(db, ops)
        db.execute(f"CREATE VIEW offsets AS {offsets}")
        used = query(db, "measured_tiers")
        name, of = _chosen(tier, [meta.tiers[row["tier"]].name for row in used], used, ops)
        _number_objects(db)
        write_query(db, "measured_ops", ordered, tier=of["tier"])
    left = (
        f"{format_count(of['left_ops'])} reads and writes failed or were not reached: they are"
        " left out"
    )
    notes = [*([left] if of["left_ops"] else []), *([] if has_offsets else [_NO_OFFSETS])]
    notes += [_WARM_UP] if run is not None and run.summary.warmup is not None else []
    notes += [] if run is None else computing_notes(run.trace.metadata.notes)
    judged = None if run is None else run.summary.judgement
    if judged is not None and judged.tier == name and judged.cause in _OF_THE_REPLAY:
        notes.append(
            f"kvreplay's host, not {name}, was the limit of the run ({judged.reason}): fio may be"
            " faster"
        )
    data = None
    if run is not None and run.data is not None:
        shape = run.data.shape
        dedup, compress = (1.0, 1.0) if shape is None else (shape.dedup_ratio, shape.compress_ratio)
        data = DataProfile(dedup_ratio=dedup, compress_ratio=compress)
    return _Source(SourceKind.OPS, meta, name, partial(ordered_rows, ordered), notes, data)


def _of_blocks(blocks: Path, device: str | None, scratch: Path) -> _Source:
    """Return the reads, writes and discards that `device` was issued; the tier is the device."""
    meta, ordered = tables.checked(blocks, BLOCKS).meta, scratch / _ORDERED
    with connect(scratch) as db:
        _view_measured(db, blocks)
        names = [row["device"] for row in query(db, "measured_devices")]
        name, _index = _chosen(device, names, names, blocks)
        processes, left_ops = _processes(db, name)
        write_query(db, "measured_blocks", ordered, device=name, processes=processes)
        flushes = query(db, "measured_flushes", device=name, processes=processes)[0]["flushes"]
    left = (
        [f"{format_count(left_ops)} requests of processes that did very little are left out"]
        if left_ops
        else []
    )
    return _Source(
        SourceKind.BLOCKS,
        meta,
        name,
        partial(ordered_rows, ordered),
        [_PACKED, *left],
        flushes=flushes,
    )


def _processes(db: duckdb.DuckDBPyConnection, device: str) -> tuple[list[int] | None, int]:
    """Return the processes that `device` is distilled for, null for all, and the reads and writes
    of the others.
    """
    rows = query(db, "measured_processes", device=device)
    kept = [row["process"] for row in rows if row["is_of_workload"]]
    if not kept or len(kept) == len(rows) or len(kept) > MAX_PROCESSES:
        return None, 0
    return kept, sum(row["ops"] for row in rows if not row["is_of_workload"])


def _view_measured(db: duckdb.DuckDBPyConnection, path: Path) -> None:
    if not path.name.endswith(".parquet"):
        raise ConfigError(
            f"{path}: not a Parquet file; convert it first: kvtrace convert trace.csv.zst"
            " trace.parquet"
        )
    db.execute(f"CREATE VIEW measured AS SELECT * FROM read_parquet({literal(path)})")


def _number_objects(db: duckdb.DuckDBPyConnection) -> None:
    """Give the objects of `measured` dense numbers, unless they have.

    The rows then bound what is kept by number.

    Those of a part of a long trace may be numbered far above its rows, and those of a damaged one
    anyhow.
    """
    ((rows, most),) = db.execute("SELECT count(*), max(object_id) FROM measured").fetchall()
    if not rows or most <= rows + DENSE_SLACK:
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


def _chosen(tier: str | None, names: list[str], keys: Sequence[Key], path: Path) -> tuple[str, Key]:
    if not names:
        raise TraceError("no read or write completed: there is no job to write", path=path)
    if tier is None and len(names) == 1:
        return names[0], keys[0]
    if tier not in names:
        what = f"no tier or device {tier!r} did I/O here" if tier else "say which with --tier"
        raise ConfigError(f"{path}: {what}; there is {', '.join(names)}")
    return tier, keys[names.index(tier)]


_PROBE_NOTES = (
    "requests of the block layer, after splits and merges: not the objects that were asked for",
    (
        "histograms hold no order: no arrivals, places, reuse or phases; blocks.parquet does (probe"
        " without --histograms-only)"
    ),
)


def distil_probe(path: Path) -> Profile:
    """Return the profile of the probe.json at `path`.

    TraceError if it is none, or holds no reads or writes.
    """
    probe = read_json(path, ProbeFile, misfit="no probe.json of kvreplay probe: {}")
    if probe.program is None or probe.version is None or probe.config_sha256 is None:
        raise TraceError(
            "no probe.json of kvreplay probe: it does not say what wrote it, and how", path=path
        )
    if probe.duration_ns is None:
        why = (
            "holds no duration and no exact sizes (bpftrace prints neither), so a job has no rate"
            " and no sizes"
        )
        raise TraceError(
            f"{why}; distil what kvreplay probe or an imported blkparse text holds", path=path
        )
    for name, of in probe.block.directions.items():
        if name != "flush" and None in (of.issued, of.issued_bytes):
            raise TraceError(
                f"no probe.json of kvreplay probe: it did not count its {name} requests", path=path
            )
    read, write, discard, flush = map(
        probe.block.directions.get, ("read", "write", "discard", "flush")
    )
    if not _issued(read) + _issued(write):
        raise TraceError("no reads or writes: there is no job to write", path=path)
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


def _issued(moved: DirectionFigures | None) -> int:
    return 0 if moved is None else moved.issued or 0


def _probe_direction(moved: DirectionFigures | None) -> DirectionProfile:
    sizes = [
        SizeCount(size.bytes, size.count)
        for size in ([] if moved is None else moved.block_sizes)
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
    """Return the depth by Little's law.

    Mean time queued and in the device times the rate; null where none was seen.
    """
    busy, known = (
        [0.0, 0.0],
        [(at, moved) for at, moved in enumerate((read, write)) if moved is not None],
    )
    for at, moved in known:
        if not duration_ns or (moved.issued and moved.d2c.mean_ns is None):
            return None
        busy[at] = sum((times.mean_ns or 0) * times.count for times in (moved.d2c, moved.q2d))
    return DepthProfile(
        mean=sum(busy) / duration_ns,
        read_mean=busy[0] / duration_ns,
        write_mean=busy[1] / duration_ns,
        max=max(
            (d.in_flight for _, moved in known for d in moved.in_flight_at_dispatch), default=0
        ),
        shares=[],
        timed_share=sum(moved.d2c.count for _, moved in known) / (_issued(read) + _issued(write)),
    )


ROW_GROUP_ROWS = 1 << 17


def write_ios(path: Path, parts: Iterable[Columns], whose: str) -> None:
    """Write placed operations, which must be in order of time.

    Columns: ts_ns, op (code), address and io_bytes (whole sectors or pages; 0 for a delete),
    length_bytes, request_id and stage (-1 for null), completed_ns (null if not timed), process (-1
    if unknown); what is left out is null.

    TraceError if none of them, which are those of `whose`, is a read or write.
    """
    names = "ts_ns op address io_bytes length_bytes request_id stage completed_ns process"
    schema = pa.schema(
        dict.fromkeys(names.split(), pa.int64()) | {"op": pa.int8(), "stage": pa.int32()}
    )
    rows = moving = deletes = 0
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as out:
        for part in parts:
            rows += (count := len(part["op"]))
            deletes += int((is_delete := part["op"] == DELETE).sum())
            moving += int(((part["io_bytes"] > 0) & ~is_delete).sum())
            # A time that is not known comes as NaN.
            absent = dict.fromkeys(schema.names, np.full(count, -1)) | {
                "completed_ns": np.full(count, np.nan)
            }
            whole = absent | part
            columns = {
                field.name: pa.array(whole[field.name], field.type, from_pandas=True)
                for field in schema
            }
            out.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)
    if not moving:
        but = "" if not rows else ", only deletes" if deletes == rows else " that moved data"
        raise TraceError(f"{whose} has no reads or writes{but}: there is no job to write")


GRANULE_BYTES = 4096
"""Objects begin at multiples of this and are as long: a page, and the largest common sector."""

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
    """Facts of a tier's objects after the first pass, by object id."""

    reserved_bytes: NDArray[np.int64]
    """Longest extent ever touched, in whole granules; 0 if never read or written."""
    prior: NDArray[np.int64]
    """Objects read before they are written, in order of their first read."""


def survey(rows: Rows) -> Objects:
    """Return the facts of the objects in `rows`."""
    ends = np.zeros(1 << 16, dtype=np.int64)
    known = np.zeros(1 << 16, dtype=np.int8)
    prior: list[NDArray[np.int64]] = []
    for part in rows():
        objects = part["object_id"]
        columns, found = _row_columns(part), np.empty(len(objects), dtype=np.int64)
        if objects.max() >= len(ends):
            more = max(int(objects.max()) + 1 - len(ends), len(ends))
            ends, known = np.pad(ends, (0, more)), np.pad(known, (0, more))
        count = _survey(len(objects), *columns, ends, known, found)
        prior.append(found[:count].copy())
    reserved = -(-ends // GRANULE_BYTES) * GRANULE_BYTES
    _require_fits(reserved.sum(dtype=np.float64) <= MOST)
    return Objects(reserved, np.concatenate(prior) if prior else np.empty(0, np.int64))


def _require_fits(fits: bool) -> None:
    if not fits:
        raise TraceError("the objects together are longer than 2^62 bytes", column="offset_bytes")


def _row_columns(part: Columns) -> list[NDArray[np.int64]]:
    return [np.ascontiguousarray(part[name], dtype) for name, dtype in _ROWS.items()]


Rows = Callable[[], Iterator[Columns]]


def place_objects(rows: Rows, ios: Path, whose: str) -> tuple[AddressSpace, int]:
    """Place the objects of `rows`, which are those of `whose`, by first fit.

    Write the operations to `ios`.

    Returns the address space after the last one, and the deletes of objects that were not there.

    TraceError if the rows cannot be, no free extent is large enough, or none of them is a read or
    write.
    """
    objects, totals = survey(rows), np.zeros(1, _TOTALS)
    write_ios(ios, _placed(rows, objects, totals), whose)
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
        for part in rows():
            count = len(part["op"])
            address, io_bytes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
            of = (reserved, len(reserved), base, totals)
            _require_fits(_place(space, count, *_row_columns(part), *of, address, io_bytes))
            yield part | {"address": address, "io_bytes": io_bytes}
    finally:
        _space_close(space)


def lie(rows: Rows, ios: Path, whose: str) -> tuple[AddressSpace, int]:
    """Write `rows`, which say where they lie, to `ios`.

    Return and raise what `place_objects` does.
    """
    end = 0

    def parts() -> Iterator[Columns]:
        nonlocal end
        for part in rows():
            end = max(end, int((part["address"] + part["length_bytes"]).max()))
            yield part

    write_ios(ios, parts(), whose)
    return AddressSpace(span_bytes=end, peak_reserved_bytes=end, prior_objects=0, prior_bytes=0), 0
