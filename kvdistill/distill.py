"""Distil one tier of a trace into a `Profile`, and keep its placed operations for what replays them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kvdistill.database import connect, literal, query, query_table
from kvdistill.profile import Concurrency, Direction, Origin, Profile, SizeCount, Space
from kvdistill.window import tier_index, tier_rows
from kvtrace.core import traceio
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import TRACE, enum_code

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.core.limit import Limit
    from kvtrace.core.metadata import Metadata

_COLUMNS = ("object_id", "offset_bytes", "length_bytes", "request_id", "stage")
_DELETE = enum_code(TRACE, "op", "delete")
ROW_GROUP_ROWS = 1 << 17


@dataclass(frozen=True, slots=True)
class Distilled:
    """A profile and its operations: `ios` is Parquet with ts_ns, op (code), address, io_bytes, in order."""

    profile: Profile
    ios: Path


def distil(trace: Path, tier: str, limit: Limit, scratch: Path) -> Distilled:
    """Distil `tier` of the trace at `trace` up to `limit`; temporary files go into the folder `scratch`.

    Memory is bounded by the number of objects, not of rows.

    Raises:
        TraceError: the file is damaged, or the tier has no reads or writes.
        ConfigError: there is no such tier.

    """
    from kvdistill.placement import place, survey

    reader = traceio.open_table(trace, TRACE)
    index = tier_index(reader.meta, tier)

    def rows() -> Any:
        return tier_rows(reader, index, limit, _COLUMNS)

    ios = scratch / "ios.parquet"
    try:
        objects = survey(rows)
        with _IoWriter(ios) as sink:
            placement = place(rows, objects, sink.write)
    except TraceError as error:
        if error.path is None:
            raise TraceError(str(error), path=trace) from None
        raise
    if not sink.moving_rows:
        what = "no reads or writes" + (", only deletes" if sink.rows else "")
        raise TraceError(f"tier {tier!r} has {what}: there is no job to write", path=trace)
    space = Space(
        span_bytes=placement.span_bytes, peak_live_bytes=placement.peak_live_bytes,
        prior_objects=placement.prior_objects, prior_bytes=placement.prior_bytes,
    )  # fmt: skip
    return Distilled(_profile(reader.meta, trace, tier, limit, ios, space, placement.stray_deletes, scratch), ios)


class _IoWriter:
    """Writes placed operations to Parquet."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.rows = self.moving_rows = 0
        self._schema = pa.schema(
            [("ts_ns", pa.int64()), ("op", pa.int8()), ("address", pa.int64()), ("io_bytes", pa.int64()),
             ("length_bytes", pa.int64()), ("request_id", pa.int64()), ("stage", pa.int32())]
        )  # fmt: skip
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", compression_level=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._writer.close()

    def write(self, part: dict[str, Any]) -> None:
        import pyarrow as pa

        self.rows += len(part["op"])
        self.moving_rows += int((part["io_bytes"] > 0).sum())
        table = pa.table({name: part[name] for name in self._schema.names}, schema=self._schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def _profile(
    meta: Metadata, trace: Path, tier: str, limit: Limit, ios: Path, space: Space, strays: int, scratch: Path
) -> Profile:
    with connect(scratch) as db:
        db.execute(f"CREATE VIEW ios AS SELECT * FROM read_parquet({literal(ios)})")  # noqa: S608 - quoted
        totals = query(db, "profile_totals")[0]
        depth = query(db, "profile_concurrency")[0]
        return Profile(
            origin=_origin(meta, trace, limit), tier=tier,
            start_ns=totals["start_ns"], span_ns=totals["end_ns"] - totals["start_ns"],
            read=_direction(db, "read"), write=_direction(db, "write"),
            delete_ops=totals["delete_ops"], delete_bytes=totals["delete_bytes"], stray_delete_ops=strays,
            empty_ops=totals["empty_ops"], space=space,
            concurrency=None if depth["max_stage_ops"] is None else Concurrency(**depth),
        )  # fmt: skip


def _direction(db: Any, op: str) -> Direction:
    from kvdistill.zones import equal_mass_zones
    from kvtrace.core.allocator import GRANULE_BYTES

    code = enum_code(TRACE, "op", op)
    sizes = query(db, "profile_sizes", op=code)
    lengths = [SizeCount(row["length_bytes"], row["ops"]) for row in query(db, "profile_lengths", op=code)]
    starts = query_table(db, "profile_starts", op=code, granule_bytes=GRANULE_BYTES)
    return Direction(
        ops=sum(row["ops"] for row in sizes),
        object_bytes=sum(row["object_bytes"] for row in sizes),
        io_bytes=sum(row["io_bytes"] * row["ops"] for row in sizes),
        sizes=[SizeCount(row["io_bytes"], row["ops"]) for row in sizes],
        lengths=lengths if any(row["io_bytes"] * row["ops"] != row["object_bytes"] for row in sizes) else None,
        zones=equal_mass_zones(starts["start"].to_numpy(), starts["moved_bytes"].to_numpy(), GRANULE_BYTES),
    )


def _origin(meta: Metadata, trace: Path, limit: Limit) -> Origin:
    name = (meta.model or {}).get("name")
    return Origin(
        file=trace.name, program=meta.program, version=meta.version, config_sha256=meta.config_sha256,
        preset=meta.preset, seed=meta.seed, model=name if isinstance(name, str) else None,
        is_simulated=meta.is_simulated, limit=str(limit), notes=meta.notes,
    )  # fmt: skip
