"""Distil measurements: a replay's operations, or block requests, as placed operations with their completions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvdistill.profile.distil import Distilled, Placed, origin_of, place_objects, profile_of, require_moving
from kvdistill.profile.operations import IoWriter
from kvdistill.profile.profile import AddressSpace, DataProfile, SourceKind
from kvdistill.queries.database import connect, literal, named, query
from kvdistill.queries.window import RowWindow, found_window
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import Limit
from kvtrace.core.metadata import computing_notes
from kvtrace.core.parquet import DENSE_SLACK
from kvtrace.core.run.run_file import RunFile, find_run
from kvtrace.core.schema import BLOCKS, OPS
from kvtrace.core.units import format_count

_BATCH_ROWS = 1 << 17
_NO_OFFSETS = "operations are taken from the start of their object: a replay's ops hold no offsets"
_WARM_UP = "the run's warm-up is part of this"
_PACKED = "addresses are packed: stretches of 1 MiB that nothing touched are left out"
_MIN_SHARE, _MIN_OPS = 0.002, 20
"""A process with less, of operations and of bytes, is left out."""
_MIN_TENTHS, _MANY_SHARE = 3, 0.05
"""So is one that is there in fewer tenths of the time and does less."""
MAX_PROCESSES = 8
"""More are one crowd, of which none is left out."""


def distil_ops(ops: Path, tier: str | None, limit: Limit, scratch: Path) -> Distilled:
    """Distil the operations of `tier` that a replay completed, by when they were submitted.

    Raises:
        TraceError: the file is damaged, or the tier has no completed reads or writes.
        ConfigError: there is no such tier, or several to choose from.

    """
    meta = tables.checked(ops, OPS).meta
    run = find_run(ops.parent)
    with connect(scratch) as db:
        _view(db, ops)
        used = [row["tier"] for row in query(db, "measured_tiers")]
        name, index = _chosen(tier, [meta.tiers[i].name for i in used], used, ops)
        _number(db)
        ordered = scratch / "ordered.parquet"
        _order(db, "measured_ops", ordered, tier=index)
    limit = found_window(limit, lambda: _rows(ordered, Limit()))
    ios = scratch / "ios.parquet"
    placement, arrivals = place_objects(lambda: _rows(ordered, limit), ios, ops, name)
    ordered.unlink()
    notes = [_NO_OFFSETS, *([_WARM_UP] if run is not None and run.summary.warmup is not None else [])]
    if run is not None:
        notes += computing_notes(run.trace.metadata.notes)
    origin = origin_of(meta, ops, limit, SourceKind.OPS, *notes)
    placed = Placed(origin, name, arrivals, placement.space, placement.stray_deletes, _data(run))
    return Distilled(profile_of(ios, placed, scratch), ios, limit)


def distil_blocks(blocks: Path, device: str | None, limit: Limit, scratch: Path) -> Distilled:
    """Distil the reads, writes and discards that `device` was issued; the tier is the device.

    Raises:
        TraceError: the file is damaged, or the device had no reads or writes.
        ConfigError: there is no such device, or several to choose from.

    """
    meta = tables.checked(blocks, BLOCKS).meta
    with connect(scratch) as db:
        _view(db, blocks)
        names = [row["device"] for row in query(db, "measured_devices")]
        name, _index = _chosen(device, names, names, blocks)
        ordered = scratch / "ordered.parquet"
        processes, left_ops = _processes(db, name)
        _order(db, "measured_blocks", ordered, device=name, processes=processes)
    limit = found_window(limit, lambda: _rows(ordered, Limit()))
    ios = scratch / "ios.parquet"
    end = 0
    with IoWriter(ios) as sink:
        for part in _rows(ordered, limit):
            sink.write(part)
            end = max(end, int((part["address"] + part["length_bytes"]).max()))
    ordered.unlink()
    require_moving(sink, blocks, f"device {name!r}")
    space = AddressSpace(span_bytes=end, peak_live_bytes=end, prior_objects=0, prior_bytes=0)
    left = [f"{format_count(left_ops)} requests of processes that did very little are left out"] if left_ops else []
    origin = origin_of(meta, blocks, limit, SourceKind.BLOCKS, _PACKED, *left)
    return Distilled(profile_of(ios, Placed(origin, name, sink.arrivals, space), scratch), ios, limit)


def _processes(db: Any, device: str) -> tuple[list[int] | None, int]:
    """Return the processes that `device` is distilled for, null for all, and the reads and writes of the others.

    A program's start and end, and a neighbour's, are no part of a workload.
    """
    rows = query(db, "measured_processes", device=device)
    ops, moved = sum(row["ops"] for row in rows), sum(row["moved_bytes"] for row in rows)
    kept = [
        row
        for row in rows
        if row["ops"] >= _MIN_OPS
        and (row["tenths"] >= _MIN_TENTHS or row["ops"] >= _MANY_SHARE * ops)
        and (row["ops"] >= _MIN_SHARE * ops or row["moved_bytes"] >= _MIN_SHARE * moved)
    ]
    if not kept or len(kept) == len(rows) or len(kept) > MAX_PROCESSES:
        return None, 0
    return [row["process"] for row in kept], ops - sum(row["ops"] for row in kept)


def _view(db: Any, path: Path) -> None:
    if not path.name.endswith(".parquet"):
        raise ConfigError(f"{path}: only Parquet is distilled here; kvtrace convert makes it of CSV")
    db.execute(f"CREATE VIEW measured AS SELECT * FROM read_parquet({literal(path)})")


def _number(db: Any) -> None:
    """Give the objects of `measured` dense numbers, unless they have: the rows then bound what is kept by number.

    Those of a part of a long trace may be numbered far above its rows, and those of a damaged one anyhow.
    """
    ((rows, most),) = db.execute("SELECT count(*), max(object_id) FROM measured").fetchall()
    if not rows or most <= rows + DENSE_SLACK:
        return
    db.execute("ALTER VIEW measured RENAME TO unnumbered")
    db.execute(
        "CREATE TABLE numbers AS SELECT object_id, row_number() OVER (ORDER BY object_id) - 1 AS number "
        "FROM (SELECT DISTINCT object_id FROM unnumbered)"
    )
    db.execute(
        "CREATE VIEW measured AS SELECT unnumbered.* REPLACE (number AS object_id) "
        "FROM unnumbered JOIN numbers USING (object_id)"
    )


def _order(db: Any, name: str, target: Path, **values: object) -> None:
    """Write the result of the named query to `target`."""
    import pyarrow.parquet as pq

    reader = db.sql(named(name), params=values).to_arrow_reader(_BATCH_ROWS)
    with pq.ParquetWriter(target, reader.schema, compression="zstd", compression_level=1) as out:
        for batch in reader:
            out.write_batch(batch)


def _chosen(wanted: str | None, names: list[str], keys: list[Any], path: Path) -> tuple[str, Any]:
    if not names:
        raise TraceError("no read or write completed: there is no job to write", path=path)
    if wanted is None and len(names) == 1:
        return names[0], keys[0]
    if wanted not in names:
        what = f"no tier or device {wanted!r} did I/O here" if wanted else "say which with --tier"
        raise ConfigError(f"{path}: {what}; there is {', '.join(names)}")
    return wanted, keys[names.index(wanted)]


def _rows(ordered: Path, limit: Limit) -> Iterator[dict[str, Any]]:
    """Yield the rows of `ordered` within `limit`, as numpy arrays by column name."""
    import pyarrow.parquet as pq

    window = RowWindow(limit)
    for batch in pq.ParquetFile(ordered).iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        part = {name: _numpy(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        kept = window.take(part)
        if kept is not None:
            yield kept
        if window.is_over:
            return


def _numpy(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _data(run: RunFile | None) -> DataProfile | None:
    """Return the ratios of the run's data; null if run.json does not tell."""
    if run is None or run.data is None:
        return None
    shape = run.data.shape
    return (
        DataProfile(dedup_ratio=1.0, compress_ratio=1.0)
        if shape is None
        else DataProfile(dedup_ratio=shape.dedup_ratio, compress_ratio=shape.compress_ratio)
    )
