"""Say what a trace holds or what a run measured, by the named queries: numbers first, for people or as JSON."""

from __future__ import annotations

import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.database import connect, query, register
from kvtrace.core import traceio
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.schema import OPS, TRACE

if TYPE_CHECKING:
    from kvtrace.core.metadata import Metadata

RUN, RUN_OPS = "run.json", "ops.parquet"
BUCKETS = 24
TOP_SIZES = 5
_WHOLE = 10_000
_SIZE_QUANTILES = {"p50_bytes": 5000, "p99_bytes": 9900}
_NS_PER_S = 1e9


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What is reported on, and where it came from; null where the file does not say."""

    file: str
    table: str
    rows: int | None
    program: str
    version: str
    argv: list[str]
    preset: str | None
    seed: int | None
    config_sha256: str
    model: str | None
    source: dict[str, Any] | None
    is_simulated: bool
    notes: list[str]


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace holds; rows of its tables as the named queries return them, with `tier` a name."""

    subject: Subject
    span_ns: int | None
    requests: int
    tiers: list[dict[str, Any]]
    """name, capacity_bytes, peak and end live bytes, hits and hit ratio (null if the trace does not say)."""
    operations: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    bucket_ns: int | None
    """How long one stretch of `over_time` is; null if all rows share one instant."""
    over_time: list[dict[str, Any]]


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay measured."""

    subject: Subject
    run: dict[str, Any] | None
    """The run's own summary, `run.json`; null if it is missing."""
    figures: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    lateness: list[dict[str, Any]]


def report(path: Path) -> TraceReport | RunReport:
    """Return the report of the trace file or run folder at `path`.

    Raises:
        ConfigError: the folder holds no run.
        TraceError: the file is damaged or holds no trace or ops.

    """
    if path.is_dir():
        if not (path / RUN_OPS).is_file():
            raise ConfigError(f"{path}: no run of kvreplay in this folder ({RUN_OPS} is missing)")
        return _run_report(path / RUN_OPS, path / RUN)
    try:
        reader = traceio.open_table(path, TRACE)
    except TraceError as error:
        if "holds the table 'ops'" in str(error):
            return _run_report(path, path.with_name(RUN))
        raise
    return _trace_report(path, reader.meta)


def _subject(path: Path, meta: Metadata) -> Subject:
    name = (meta.model or {}).get("name")
    return Subject(
        file=path.name, table=meta.table, rows=meta.rows, program=meta.program, version=meta.version, argv=meta.argv,
        preset=meta.preset, seed=meta.seed, config_sha256=meta.config_sha256,
        model=name if isinstance(name, str) else None, source=meta.source, is_simulated=meta.is_simulated,
        notes=meta.notes,
    )  # fmt: skip


def _trace_report(path: Path, meta: Metadata) -> TraceReport:
    names = [tier.name for tier in meta.tiers]
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [path], Path(scratch))
        span = query(db, "trace_span")[0]
        first, last = span["first_ns"], span["last_ns"]
        span_ns = None if first is None else last - first
        buckets = BUCKETS if span_ns else 1
        bucket_ns = (span_ns or 0) // buckets + 1
        over_time = (
            [] if first is None else query(db, "trace_over_time", first_ns=first, bucket_ns=bucket_ns, buckets=buckets)
        )
        return TraceReport(
            subject=_subject(path, meta), span_ns=span_ns, requests=span["requests"],
            tiers=_tiers(meta, query(db, "trace_live")), operations=_named(query(db, "trace_operations"), names),
            sizes=_sizes(_named(query(db, "trace_sizes"), names)), bucket_ns=bucket_ns if span_ns else None,
            over_time=_named(over_time, names),
        )  # fmt: skip


def _named(rows: list[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    return [row | {"tier": names[row["tier"]] if 0 <= row["tier"] < len(names) else str(row["tier"])} for row in rows]


def _tiers(meta: Metadata, live: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counted = {t.get("name"): t for t in (meta.stats or {}).get("tiers") or [] if isinstance(t, dict)}
    found = {row["tier"]: row for row in live}
    return [
        {
            "name": tier.name, "capacity_bytes": tier.capacity_bytes,
            "peak_live_bytes": found.get(i, {}).get("peak_live_bytes"),
            "end_live_bytes": found.get(i, {}).get("end_live_bytes"),
            "hits": counted.get(tier.name, {}).get("hits"),
            "hit_ratio": counted.get(tier.name, {}).get("hit_ratio"),
        }
        for i, tier in enumerate(meta.tiers)
    ]  # fmt: skip


def _sizes(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarise exact distributions: the most common sizes, and percentiles where there are enough operations."""
    result = []
    for (tier, op), group in groupby(rows, key=lambda row: (row["tier"], row["op"])):
        sizes = [(row["length_bytes"], row["ops"]) for row in group]
        total = sum(ops for _size, ops in sizes)
        top = sorted(sizes, key=lambda pair: (-pair[1], pair[0]))[:TOP_SIZES]
        result.append(
            {"tier": tier, "op": op, "ops": total, "distinct": len(sizes), "min_bytes": sizes[0][0]}
            | {name: _percentile(sizes, total, part) for name, part in _SIZE_QUANTILES.items()}
            | {
                "max_bytes": sizes[-1][0],
                "mean_bytes": sum(size * ops for size, ops in sizes) / total,
                "top": [{"length_bytes": size, "ops": ops, "share": ops / total} for size, ops in top],
            }
        )
    return result


def _percentile(sizes: list[tuple[int, int]], total: int, part: int) -> int | None:
    """Return the nearest-rank percentile (`part` in ten-thousandths) of ascending (size, count) pairs, or null."""
    if total * (_WHOLE - part) < _WHOLE:
        return None
    rank, done = -(-total * part // _WHOLE), 0
    for size, count in sizes:
        done += count
        if done >= rank:
            return size
    raise AssertionError


def _run_report(ops: Path, manifest: Path) -> RunReport:
    meta = traceio.open_table(ops, OPS).meta
    names = [tier.name for tier in meta.tiers]
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [ops], Path(scratch))
        figures = [_rates(row) for row in _named(query(db, "run_figures"), names)]
        return RunReport(
            subject=_subject(ops, meta), run=_manifest(manifest), figures=figures,
            latency=_named(query(db, "run_latency"), names), lateness=_named(query(db, "run_lateness"), names),
        )  # fmt: skip


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    span_ns = row["span_ns"] if row["engine"] != "sim" else None
    moves = row["op"] != "delete" and row["bytes"] is not None
    return row | {
        "bandwidth_bytes_per_s": row["bytes"] * _NS_PER_S / span_ns if span_ns and moves else None,
        "operations_per_s": row["operations"] * _NS_PER_S / span_ns if span_ns else None,
    }


def _manifest(path: Path) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise TraceError(f"not JSON: {error}", path=path) from None
    return found if isinstance(found, dict) else None
