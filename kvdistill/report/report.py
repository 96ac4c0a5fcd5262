"""The report of a trace or of a folder: figures by the named queries, as JSON or for a document."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from kvdistill.check.check import Closeness, find_closeness
from kvdistill.profile.distributions import bins, summarize
from kvdistill.profile.locality import LiveBytes, reuse_rows, trace_locality
from kvdistill.queries.database import connect, named_tiers, query
from kvdistill.queries.views import read_json, register
from kvdistill.report.probe import ProbeReport, probe_report
from kvdistill.report.run import CLOSENESS, RunReport, run_report
from kvdistill.report.subject import Subject, hit_ratio, subject_of, writes_per_day
from kvtrace.core import tables
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.run_file import OPS_FILE, PROBE_FILE, RunFile, find_run, refuse_cut_off
from kvtrace.core.run.sweep_file import LoadSweep, find_sweep
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import Endurance

__all__ = ["BUCKETS", "JobsReport", "ProbeReport", "Report", "RunReport", "SweepReport", "TraceReport", "report"]

PROFILE = "profile.json"
TRACE_FILE = "trace.parquet"
"""What an import of an op log or an iolog leaves in its folder."""
BUCKETS = 48


class SweepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace came to at rising loads: the content of sweep.json."""

    name: str
    """The folder's."""
    sweep: LoadSweep


class JobsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How close jobs that `kvdistill fio --check` ran come to their source: the content of its files."""

    name: str
    closeness: Closeness
    profile: dict[str, Any] | None


Report: TypeAlias = "TraceReport | RunReport | SweepReport | ProbeReport | JobsReport"


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace holds; rows of its tables as the named queries return them, with `tier` a name."""

    subject: Subject
    span_ns: int | None
    requests: int
    tiers: list[dict[str, Any]]
    """name, capacity_bytes, peak and end live bytes, hits and hit ratio (null if the trace does not say)."""
    reuse: list[dict[str, Any]]
    """By tier: how far apart accesses to an object are, in bytes of others; `bins` by powers of two."""
    hit_ratio: float | None = None
    """Of all tiers together; null if the trace does not say."""
    operations: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    size_bins: list[dict[str, Any]]
    bucket_ns: int | None
    """How long one stretch of `over_time` is; null if all rows share one instant."""
    over_time: list[dict[str, Any]]
    writes_per_day: list[dict[str, Any]]
    first_token: dict[str, int | None] | None = None
    """Modelled, by percentile; null if the trace models no computing."""
    fleet: dict[str, Any] | None = None
    """What the simulation counted of several nodes; null of one alone."""
    events: dict[str, Any] | None = None
    """What it counted around what happened to them; null where nothing did."""


def report(path: Path, buckets: int = BUCKETS, endurance: Endurance | None = None) -> Report:
    """Return the report of the trace, or the folder of a run, a probe, checked jobs or an import, at `path`.

    Time is in `buckets` equal stretches; `endurance` is what a drive may be written.

    Raises:
        ConfigError: the folder holds nothing to report.
        TraceError: the file is damaged or holds no trace or ops.

    """
    if path.is_dir():
        return _folder_report(path, buckets, endurance)
    try:
        reader = tables.open_table(path, TRACE)
    except TraceError as error:
        if "holds the table 'ops'" in str(error):
            return run_report(path, buckets, endurance)
        raise
    return _trace_report(path, reader.meta, buckets, endurance)


def _folder_report(path: Path, buckets: int, endurance: Endurance | None) -> Report:
    refuse_cut_off(path)
    if (path / OPS_FILE).is_file():
        return run_report(path / OPS_FILE, buckets, endurance)
    run = find_run(path)
    if run is not None:
        return summary_report(run)
    sweep = find_sweep(path)
    if sweep is not None:
        return SweepReport(name=path.resolve().name, sweep=sweep)
    probe = probe_report(path, buckets)
    if probe is not None:
        return probe
    closeness = find_closeness(path / CLOSENESS)
    if closeness is not None:
        return JobsReport(name=path.resolve().name, closeness=closeness, profile=read_json(path / PROFILE))
    if (path / TRACE_FILE).is_file():
        return report(path / TRACE_FILE, buckets, endurance)
    raise ConfigError(
        f"{path}: no run of kvreplay in this folder ({OPS_FILE} is missing), no {PROBE_FILE}, {CLOSENESS} or "
        f"{TRACE_FILE}"
    )


def _trace_report(path: Path, meta: Metadata, buckets: int, endurance: Endurance | None) -> TraceReport:
    names = [tier.name for tier in meta.tiers]
    walked = trace_locality(tables.open_table(path, TRACE), len(names), path)
    # What nodes have apart is not one place: how far apart accesses are, and what is live, is of each by itself.
    is_one = [tier.instance_nodes is msgspec.UNSET for tier in meta.tiers]
    live = [of if one else None for of, one in zip(walked.live, is_one, strict=True)]
    reuse = [of if one else None for of, one in zip(walked.reuse, is_one, strict=True)]
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [path], Path(scratch))
        span = query(db, "trace_span")[0]
        first, last = span["first_ns"], span["last_ns"]
        span_ns = None if first is None else last - first
        buckets = buckets if span_ns else 1
        bucket_ns = (span_ns or 0) // buckets + 1
        over_time = (
            [] if first is None else query(db, "trace_over_time", first_ns=first, bucket_ns=bucket_ns, buckets=buckets)
        )
        operations, sizes = (
            named_tiers(query(db, "trace_operations"), names),
            named_tiers(query(db, "trace_sizes"), names),
        )
        return TraceReport(
            subject=subject_of(path, meta),
            span_ns=span_ns,
            requests=span["requests"],
            tiers=_tiers(meta, live),
            hit_ratio=hit_ratio(meta),
            reuse=reuse_rows(names, reuse),
            fleet=meta.fleet,
            events=meta.events,
            operations=operations,
            sizes=summarize(sizes),
            size_bins=bins(sizes),
            bucket_ns=bucket_ns if span_ns else None,
            over_time=named_tiers(over_time, names),
            writes_per_day=writes_per_day(_written(operations), span_ns, meta, endurance),
            first_token=_first_token(meta),
        )


def _first_token(meta: Metadata) -> dict[str, int | None] | None:
    found = (meta.stats or {}).get("first_token")
    times = found.get("with_cache") if isinstance(found, dict) else None
    return times if isinstance(times, dict) else None


def _written(operations: list[dict[str, Any]]) -> dict[str, int]:
    written: dict[str, int] = {}
    for row in operations:
        if row["op"] == "write":
            written[row["tier"]] = written.get(row["tier"], 0) + row["bytes"]
    return written


def _tiers(meta: Metadata, live: list[LiveBytes | None]) -> list[dict[str, Any]]:
    counted = {t.get("name"): t for t in (meta.stats or {}).get("tiers") or [] if isinstance(t, dict)}
    return [
        {
            "name": tier.name,
            "capacity_bytes": tier.capacity_bytes,
            "peak_live_bytes": None if found is None else found.peak,
            "end_live_bytes": None if found is None else found.end,
            "hits": counted.get(tier.name, {}).get("hits"),
            "hit_ratio": counted.get(tier.name, {}).get("hit_ratio"),
        }
        for tier, found in zip(meta.tiers, live, strict=True)
    ]


_FIGURES = ("tier", "op", "engine", "operations", "errors", "corrupt", "bytes", "io_bytes", "span_ns")
_RATES = ("bandwidth_bytes_per_s", "operations_per_s")


def summary_report(run: RunFile) -> RunReport:
    """Return the report of a run whose operations were not kept: an import of figures alone, such as fio's JSON."""
    found = [msgspec.to_builtins(figures) for figures in run.summary.figures]
    return RunReport(
        subject=Subject(
            file=run.trace.file,
            table="run",
            rows=None,
            program=run.program,
            version=run.version,
            argv=run.argv,
            preset=None,
            seed=None,
            config_sha256=run.config_sha256,
            model=None,
            source=run.trace.metadata.source,
            is_simulated=False,
            notes=run.notes,
        ),
        run=run,
        figures=[{n: f[n] for n in (*_FIGURES, *_RATES)} | {"rows": None, "skipped": None} for f in found],
        latency=[{"tier": f["tier"], "op": f["op"]} | f["latency"] for f in found if f["latency"]["count"]],
        response=[{"tier": f["tier"], "op": f["op"]} | f["response"] for f in found if f["response"]],
    )
