"""The report of a run: figures by the named queries over its `ops`, the warm-up left out as in run.json."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.check.check import Closeness, find_closeness
from kvdistill.profile.distributions import bins, summarize
from kvdistill.profile.locality import reuse_rows, run_reuse
from kvdistill.queries.database import connect, distributions, figures, measured_views, named_tiers, query
from kvdistill.queries.views import register
from kvdistill.report.layers import Layers, layers
from kvdistill.report.probe import ProbeReport, probe_report
from kvdistill.report.subject import Subject, subject_of, writes_per_day
from kvtrace.core import tables
from kvtrace.core.run.run_file import RunFile, find_run
from kvtrace.core.schema import OPS
from kvtrace.core.statistics import Endurance

CLOSENESS = "closeness.json"
PARTS = [100, 200, *range(500, 9501, 500), 9700, 9800, 9900, 9950, 9990, 9999, 10_000]
"""The points of a distribution, in ten-thousandths."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay measured; rows of its tables as the named queries return them, with `tier` a name.

    What needs single operations is empty for an import of figures alone.
    """

    subject: Subject
    run: RunFile | None
    """The run's own summary, `run.json`; null if it is missing."""
    figures: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    """Service time: completion - submission."""
    response: list[dict[str, Any]] = []
    """Response time: completion - due time; empty in a closed loop."""
    lateness: list[dict[str, Any]] = []
    distributions: list[dict[str, Any]] = []
    """Latency, response time and lateness at chosen shares of the operations."""
    sizes: list[dict[str, Any]] = []
    size_bins: list[dict[str, Any]] = []
    bucket_ns: int | None = None
    """How long one stretch of `over_time` and `heat` is; null if nothing took time."""
    over_time: list[dict[str, Any]] = []
    """What moved in each stretch, by the time in flight, and what completed, from the first submission that counts."""
    heat: list[dict[str, Any]] = []
    """Operations by when they completed and by their time, in powers of two: the response time in an open loop, else
    the service time."""
    writes_per_day: list[dict[str, Any]] = []
    reuse: list[dict[str, Any]] = []
    """By tier: how far apart accesses to an object were, in bytes of others; `bins` by powers of two."""
    probe: ProbeReport | None = None
    """What the block layer saw; null without probes."""
    layers: Layers | None = None
    """The operations beside the calls and block requests beneath; null without probes."""
    closeness: Closeness | None = None
    """How close jobs distilled from this come, if `kvdistill fio --check` ran here; null otherwise."""


def run_report(ops: Path, buckets: int, endurance: Endurance | None = None) -> RunReport:
    """Return the report of the run whose table is `ops`, with run.json beside it if there is one."""
    meta = tables.open_table(ops, OPS).meta
    names = [tier.name for tier in meta.tiers]
    run = find_run(ops.parent)
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [ops], Path(scratch))
        warmup = None if run is None else run.summary.warmup
        measured_views(db, None if warmup is None else warmup.asked)
        span = query(db, "run_span")[0]
        span_ns = None if span["first_ns"] is None else span["last_ns"] - span["first_ns"]
        bucket_ns = span_ns // buckets + 1 if span_ns else None
        counted = figures(db, names)
        stretches = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns}
        over_time = query(db, "run_over_time", buckets=buckets, **stretches) if bucket_ns else []
        heat = query(db, "run_heat", **stretches) if bucket_ns else []
        sizes = named_tiers(query(db, "run_sizes"), names)
        points, times = distributions(db, names, PARTS)
        return RunReport(
            subject=subject_of(ops, meta),
            run=run,
            figures=counted,
            latency=times["latency"],
            response=times["response"],
            lateness=times["lateness"],
            distributions=points,
            sizes=summarize(sizes),
            size_bins=bins(sizes),
            bucket_ns=bucket_ns,
            over_time=named_tiers(over_time, names),
            heat=named_tiers(heat, names),
            writes_per_day=writes_per_day(
                {f["tier"]: f["io_bytes"] for f in counted if _wears(f)}, span_ns, meta, endurance
            ),
            reuse=reuse_rows(names, run_reuse(tables.open_table(ops, OPS), len(names))),
            probe=probe_report(ops.parent, buckets),
            layers=layers(ops.parent) if _is_probed(run) else None,
            closeness=find_closeness(ops.with_name(CLOSENESS)),
        )


def _is_probed(run: RunFile | None) -> bool:
    """Return whether the run itself started the probes: others' times are by another clock, which tells nothing."""
    return run is not None and run.probes is not None and run.probes.is_measured


def _wears(figures: dict[str, Any]) -> bool:
    return bool(figures["op"] == "write" and figures["io_bytes"] and figures["engine"] not in ("memory", "gpu"))
