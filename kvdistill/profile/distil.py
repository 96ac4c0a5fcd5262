"""Distil a trace, a run's operations or block events into a `Profile`, and keep the placed operations.

Each source becomes one file of placed operations in order of time (`ios.IoWriter`); all figures come from that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvdistill.profile.arrivals import BUCKETS, ArrivalCounter
from kvdistill.profile.operations import READ, WRITE, IoWriter
from kvdistill.profile.placement import ObjectPlacement
from kvdistill.profile.profile import (
    AddressSpace,
    Concurrency,
    DataProfile,
    DepthProfile,
    DirectionProfile,
    Idle,
    InFlight,
    IoStream,
    Origin,
    Profile,
    SizeCount,
    SourceKind,
)
from kvdistill.queries.database import connect, literal, query, query_table
from kvdistill.queries.window import found_window, place_of, tier_rows
from kvtrace.core import tables
from kvtrace.core.errors import TraceError
from kvtrace.core.files import Limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import TRACE

_COLUMNS = ("object_id", "offset_bytes", "length_bytes", "request_id", "stage")
_FOREVER = (1 << 62, -(1 << 62))


@dataclass(frozen=True, slots=True)
class Distilled:
    """A profile and its operations: `ios` is Parquet as `IoWriter` writes it; null if only figures are known."""

    profile: Profile
    ios: Path | None
    limit: Limit = Limit()  # noqa: RUF009 - frozen
    """The window of the source that it is of."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Operations in one address space, and the facts of their source."""

    origin: Origin
    tier: str
    arrivals: ArrivalCounter
    space: AddressSpace
    stray_deletes: int = 0
    data: DataProfile | None = None


def distil(trace: Path, tier: str, limit: Limit, scratch: Path) -> Distilled:
    """Distil `tier` of the trace at `trace` up to `limit`; temporary files go into the folder `scratch`.

    Memory is bounded by the number of objects, not of rows.

    Raises:
        TraceError: the file is damaged, or the tier has no reads or writes.
        ConfigError: there is no such tier.

    """
    reader = tables.open_table(trace, TRACE)
    place = place_of(reader.meta, tier)
    limit = found_window(limit, lambda: tier_rows(reader, place, Limit(), ()))

    def rows() -> Iterator[dict[str, Any]]:
        return tier_rows(reader, place, limit, _COLUMNS)

    ios = scratch / "ios.parquet"
    placement, arrivals = place_objects(rows, ios, trace, tier)
    origin = origin_of(reader.meta, trace, limit, SourceKind.TRACE)
    placed = Placed(origin, tier, arrivals, placement.space, placement.stray_deletes)
    return Distilled(profile_of(ios, placed, scratch), ios, limit)


def place_objects(
    rows: Callable[[], Iterator[dict[str, Any]]], ios: Path, source: Path, tier: str
) -> tuple[ObjectPlacement, ArrivalCounter]:
    """Place the objects of `rows` by first fit and write the operations to `ios`.

    Raises:
        TraceError: the rows cannot be, or none of them is a read or write.

    """
    from kvdistill.profile.placement import place, survey

    try:
        objects = survey(rows)
        with IoWriter(ios) as sink:
            placement = place(rows, objects, sink.write)
    except TraceError as error:
        if error.path is None:
            raise TraceError(str(error), path=source) from None
        raise
    require_moving(sink, source, f"tier {tier!r}")
    return placement, sink.arrivals


def require_moving(sink: IoWriter, source: Path, whose: str) -> None:
    """Raise TraceError unless `sink` took a read or write."""
    if not sink.moving_rows:
        what = "no reads or writes" + (", only deletes" if sink.rows else "")
        raise TraceError(f"{whose} has {what}: there is no job to write", path=source)


def view_ios(db: Any, ios: Path) -> None:
    """Make `db`'s view `ios`, whose `row` says in which order operations of one instant are."""
    db.execute(f"CREATE VIEW ios AS SELECT *, file_row_number AS row FROM read_parquet({literal(ios)})")


def profile_of(ios: Path, placed: Placed, scratch: Path) -> Profile:
    """Return the profile of the operations at `ios`, which must hold a read or write."""
    from kvdistill.profile.locality import place_locality

    with connect(scratch) as db:
        view_ios(db, ios)
        totals = query(db, "profile_totals")[0]
        stages = query(db, "profile_concurrency")[0]
        start, span = totals["start_ns"], totals["end_ns"] - totals["start_ns"]
        bucket_ns = max(1, -(-(span + 1) // BUCKETS))
        arrivals = placed.arrivals.result(query(db, "profile_rates", start_ns=start, bucket_ns=bucket_ns), bucket_ns)
        depth, idle = _in_flight(db)
        return Profile(
            origin=placed.origin,
            tier=placed.tier,
            start_ns=start,
            span_ns=span,
            read=_direction(db, READ, has_zones=False),
            write=_direction(db, WRITE, has_zones=False),
            delete_ops=totals["delete_ops"],
            delete_bytes=totals["delete_bytes"],
            stray_delete_ops=placed.stray_deletes,
            empty_ops=totals["empty_ops"],
            space=placed.space,
            concurrency=None if stages["max_stage_ops"] is None else Concurrency(**stages),
            arrivals=arrivals,
            depth=depth,
            idle=idle,
            locality=place_locality(ios),
            streams=[] if arrivals is None else _streams(db, start),
            data=placed.data,
        )


def _streams(db: Any, start_ns: int) -> list[IoStream]:
    from kvdistill.profile.streams import fit_streams

    def describe(op: int, from_ns: int, to_ns: int, process: int | None, has_zones: bool) -> DirectionProfile:
        return _direction(db, op, from_ns, to_ns, process, has_zones=has_zones)

    return fit_streams(db, start_ns, describe, has_places=True)


def _direction(
    db: Any,
    op: int,
    from_ns: int = _FOREVER[1],
    to_ns: int = _FOREVER[0],
    process: int | None = None,
    *,
    has_zones: bool = True,
) -> DirectionProfile:
    from kvdistill.profile.distributions import equal_mass_zones
    from kvdistill.profile.placement import GRANULE_BYTES

    which = {"op": op, "from_ns": from_ns, "to_ns": to_ns, "process": process}
    sizes = query(db, "profile_sizes", **which)
    is_padded = any(row["io_bytes"] * row["ops"] != row["object_bytes"] for row in sizes)
    lengths = query(db, "profile_lengths", **which) if is_padded else []
    zones = []
    if has_zones:
        starts = query_table(db, "profile_starts", granule_bytes=GRANULE_BYTES, **which)
        zones = equal_mass_zones(starts["start"].to_numpy(), starts["moved_bytes"].to_numpy(), GRANULE_BYTES)
    return DirectionProfile(
        ops=sum(row["ops"] for row in sizes),
        object_bytes=sum(row["object_bytes"] for row in sizes),
        io_bytes=sum(row["io_bytes"] * row["ops"] for row in sizes),
        sizes=[SizeCount(row["io_bytes"], row["ops"]) for row in sizes],
        lengths=[SizeCount(row["length_bytes"], row["ops"]) for row in lengths] if is_padded else None,
        zones=zones,
    )


def _in_flight(db: Any) -> tuple[DepthProfile | None, Idle | None]:
    busy = query(db, "profile_busy")[0]
    rows = query(db, "profile_in_flight") if busy["timed"] else []
    total = sum(row["total_ns"] for row in rows)
    if not total:
        return None, None
    idle = next((row for row in rows if row["in_flight"] == 0), None)
    depth = DepthProfile(
        mean=sum(row["in_flight"] * row["total_ns"] for row in rows) / total,
        read_mean=busy["read_ns"] / total,
        write_mean=busy["write_ns"] / total,
        max=rows[-1]["in_flight"],
        shares=[InFlight(row["in_flight"], row["total_ns"] / total) for row in rows],
        timed_share=busy["timed"] / busy["ops"],
    )
    if idle is None:
        return depth, Idle(stretches=0, total_ns=0, p50_ns=None)
    return depth, Idle(stretches=idle["stretches"], total_ns=idle["total_ns"], p50_ns=idle["p50_ns"])


def origin_of(meta: Metadata, source: Path, limit: Limit, kind: SourceKind, *notes: str) -> Origin:
    """Return where the table at `source` came from."""
    name = (meta.model or {}).get("name")
    return Origin(
        kind=kind,
        file=source.name,
        program=meta.program,
        version=meta.version,
        config_sha256=meta.config_sha256,
        preset=meta.preset,
        seed=meta.seed,
        model=name if isinstance(name, str) else None,
        is_simulated=meta.is_simulated,
        limit=str(limit),
        notes=[*meta.notes, *notes],
    )
