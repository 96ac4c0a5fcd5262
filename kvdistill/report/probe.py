"""What the block-layer probes of `kvreplay` found: `probe.json`, and `blocks.parquet` if requests were kept."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.queries.database import connect, query
from kvdistill.queries.views import register
from kvtrace.core.run.probe_file import find_probe, probe_answer
from kvtrace.core.run.run_file import BLOCKS_FILE

TIMES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "longest_below_ns")
COUNTS = (
    "queued issued completed errors issued_bytes completed_bytes bios bios_merged splits requests_merged requeues "
    "lost_events lost_requests ends_not_seen"
)
ZONES = 40
_MIB = 1 << 20


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the probes found; rows of tables, null where not measured."""

    name: str
    filter: dict[str, Any]
    """Whose requests, on which disks, how long."""
    duration_ns: int | None
    argv: list[str]
    version: str | None
    answer: str
    """What the device was asked for, in one line; empty where nothing was seen."""
    layers: list[dict[str, Any]]
    """Times by layer (application, q2d, requeued, d2c) and kind of operation."""
    latency_bins: list[dict[str, Any]]
    """The same in powers of two."""
    directions: list[dict[str, Any]]
    """What the block layer was asked for, and did, by direction."""
    sizes: list[dict[str, Any]]
    in_flight: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    """What the application asked for, by system call."""
    bucket_ns: int | None
    zone_bytes: int | None
    heat: list[dict[str, Any]]
    """Requests by time and place on the disk; empty without their events."""


def probe_report(folder: Path, buckets: int) -> ProbeReport | None:
    """Return the report of probe.json in `folder`; null if there is none.

    Raises:
        TraceError: probe.json is damaged, or not of this version.

    """
    found = find_probe(folder)
    if found is None:
        return None
    directions = found["block"]["directions"]
    application = found.get("application") or {}
    times = [("application", kind, h) for kind, h in (application.get("times") or {}).items()]
    layers = ("q2d", "requeued", "d2c")
    times += [(layer, name, d[layer]) for layer in layers for name, d in directions.items() if d.get(layer)]
    zone_bytes, bucket_ns, heat = _heat(folder / BLOCKS_FILE, buckets)
    return ProbeReport(
        name=folder.resolve().name,
        filter=found.get("config") or {},
        duration_ns=found.get("duration_ns"),
        argv=found.get("argv") or [],
        version=found.get("version"),
        answer=probe_answer(found),
        layers=[_times(*each) for each in times if each[2]["count"]],
        latency_bins=[
            {"layer": layer, "op": name, "low_ns": bin_["from"], "count": bin_["count"]}
            for layer, name, h in times
            for bin_ in h["log2_ns"]
        ],
        directions=[{"op": name} | {c: d.get(c) for c in COUNTS.split()} for name, d in directions.items()],
        sizes=[{"op": name, **size} for name, d in directions.items() for size in d["block_sizes"]],
        in_flight=[{"op": name, **depth} for name, d in directions.items() for depth in d["in_flight_at_dispatch"]],
        calls=application.get("calls") or [],
        bucket_ns=bucket_ns,
        zone_bytes=zone_bytes,
        heat=heat,
    )


def _times(layer: str, op: str, histogram: dict[str, Any]) -> dict[str, Any]:
    return {"layer": layer, "op": op, "count": histogram["count"]} | {name: histogram[name] for name in TIMES}


def _heat(blocks: Path, buckets: int) -> tuple[int | None, int | None, list[dict[str, Any]]]:
    """Return how much of a disk and how long a cell of the map is, and the cells."""
    if not blocks.is_file():
        return None, None, []
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [blocks], Path(scratch))
        span = query(db, "blocks_span")[0]
        if not span["requests"] or span["last_ns"] <= span["first_ns"]:
            return None, None, []
        bucket_ns = (span["last_ns"] - span["first_ns"]) // buckets + 1
        zone_bytes = -(-(span["high_bytes"] - span["low_bytes"] + 1) // ZONES // _MIB) * _MIB or _MIB
        stretches = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns, "zone_bytes": zone_bytes}
        return zone_bytes, bucket_ns, query(db, "blocks_heat", **stretches)
