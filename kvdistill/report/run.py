"""What a replay measured, by the named queries over its `ops`, its warm-up left out as in its own summary."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.profile.database import connect, query
from kvdistill.profile.locality import reuse_rows, run_reuse
from kvdistill.profile.spread import bins, summarize
from kvdistill.report.layers import Layers, layers
from kvdistill.report.probe import ProbeReport, probe_report
from kvdistill.report.subject import Subject, named, subject_of, writes_per_day
from kvdistill.report.views import read_json, register
from kvtrace.core import tables
from kvtrace.core.schema import OPS
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.units import parse_duration_ns

if TYPE_CHECKING:
    import duckdb

CLOSENESS = "closeness.json"
_NS_PER_S = 1e9
_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")
PARTS = [100, 200, *range(500, 9501, 500), 9700, 9800, 9900, 9950, 9990, 9999, 10_000]
"""The points of a distribution, in ten-thousandths."""


_TIMES = """
CREATE VIEW times AS
SELECT * FROM (
    SELECT tier, op::VARCHAR AS op, 'latency' AS measure, completed_ns - submitted_ns AS time_ns, outcome, engine
    FROM measured
    UNION ALL
    SELECT tier, op::VARCHAR, 'lateness', submitted_ns - scheduled_ns, outcome, engine FROM measured
)
WHERE outcome = 'ok' AND engine <> 'sim' AND time_ns IS NOT NULL
"""
"""Latencies and lateness of what completed well; simulated tiers have no such times."""


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay measured; rows of its tables as the named queries return them, with `tier` a name."""

    subject: Subject
    run: dict[str, Any] | None
    """The run's own summary, `run.json`; null if it is missing."""
    figures: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    lateness: list[dict[str, Any]]
    distributions: list[dict[str, Any]]
    """Latency and lateness at chosen shares of the operations."""
    sizes: list[dict[str, Any]]
    size_bins: list[dict[str, Any]]
    bucket_ns: int | None
    """How long one stretch of `over_time` and `heat` is; null if nothing took time."""
    over_time: list[dict[str, Any]]
    """What completed in each stretch, from the first submission that counts."""
    heat: list[dict[str, Any]]
    """Operations by when they completed and by latency, in powers of two."""
    writes_per_day: list[dict[str, Any]]
    reuse: list[dict[str, Any]]
    """By tier: how far apart accesses to an object were, in bytes of others; `bins` by powers of two."""
    probe: ProbeReport | None
    """What the block layer saw; null without probes."""
    layers: Layers | None
    """The operations beside the calls and block requests beneath; null without probes."""
    closeness: dict[str, Any] | None
    """How close jobs distilled from this come, if `kvdistill fio --check` ran here; null otherwise."""


def run_report(ops: Path, manifest: Path, buckets: int) -> RunReport:
    """Return the report of the run whose table is `ops` and whose summary is at `manifest`."""
    meta = tables.open_table(ops, OPS).meta
    names = [tier.name for tier in meta.tiers]
    run = read_json(manifest)
    with tempfile.TemporaryDirectory(prefix="kvdistill-") as scratch, connect(Path(scratch)) as db:
        register(db, [ops], Path(scratch))
        _leave_out(db, run)
        span = query(db, "run_span")[0]
        span_ns = None if span["first_ns"] is None else span["last_ns"] - span["first_ns"]
        bucket_ns = span_ns // buckets + 1 if span_ns else None
        figures = [_rates(row) for row in named(query(db, "run_figures"), names)]
        stretches = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns}
        over_time = query(db, "run_over_time", buckets=buckets, **stretches) if bucket_ns else []
        heat = query(db, "run_heat", **stretches) if bucket_ns else []
        sizes = named(query(db, "run_sizes"), names)
        points = named(query(db, "run_distributions", parts=PARTS), names)
        found = _percentiles(named(query(db, "run_times"), names), points)

        def times(measure: str) -> list[dict[str, Any]]:
            return [row for name, row in found if name == measure]

        return RunReport(
            subject=subject_of(ops, meta),
            run=run,
            figures=figures,
            latency=times("latency"),
            lateness=times("lateness"),
            distributions=points,
            sizes=summarize(sizes),
            size_bins=bins(sizes),
            bucket_ns=bucket_ns,
            over_time=named(over_time, names),
            heat=named(heat, names),
            writes_per_day=writes_per_day({f["tier"]: f["io_bytes"] for f in figures if _wears(f)}, span_ns, meta),
            reuse=reuse_rows(names, run_reuse(tables.open_table(ops, OPS), len(names))),
            probe=probe_report(ops.parent, buckets),
            layers=layers(ops.parent) if _is_probed(run) else None,
            closeness=read_json(ops.with_name(CLOSENESS)),
        )


def _percentiles(rows: list[dict[str, Any]], points: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return (measure, row) with the percentiles that `points` hold; null where there are too few operations."""
    known = {(p["measure"], p["tier"], p["op"], p["share"]): p["time_ns"] for p in points}
    result = []
    for row in rows:
        key = (row["measure"], row["tier"], row["op"])
        found = {f"{name}_ns": known.get((*key, part / 10_000)) for name, part in QUANTILES.items()}
        named_row = {"tier": row["tier"], "op": row["op"], "count": row["count"], "mean_ns": row["mean_ns"]}
        result.append((row["measure"], named_row | found | {"max_ns": row["max_ns"]}))
    return result


def _is_probed(run: dict[str, Any] | None) -> bool:
    """Return whether the run itself started the probes: others' times are by another clock, which tells nothing."""
    probes = (run or {}).get("probes")
    return isinstance(probes, dict) and probes.get("is_measured") is True


def _wears(figures: dict[str, Any]) -> bool:
    return bool(figures["op"] == "write" and figures["io_bytes"] and figures["engine"] not in ("memory", "gpu"))


def _leave_out(db: duckdb.DuckDBPyConnection, run: dict[str, Any] | None) -> None:
    """Make the view `measured`: `ops` without the warm-up, which no figure of run.json counts either."""
    summary = (run or {}).get("summary")
    warmup = summary.get("warmup") if isinstance(summary, dict) else None
    asked = warmup.get("asked") if isinstance(warmup, dict) else None
    condition = "true"
    if isinstance(asked, str):
        rows = _ROWS.fullmatch(asked)
        started = "coalesce(scheduled_ns, submitted_ns)"
        condition = (
            f"row >= {int(rows.group(1))}"
            if rows
            else f"({started} IS NULL OR {started} >= {parse_duration_ns(asked)})"
        )
    db.execute(f"CREATE VIEW measured AS SELECT * FROM ops WHERE {condition}")  # noqa: S608 - whole numbers
    db.execute(_TIMES)


def _rates(row: dict[str, Any]) -> dict[str, Any]:
    span_ns = row["span_ns"] if row["engine"] != "sim" else None
    moves = row["op"] != "delete" and row["bytes"] is not None
    return row | {
        "bandwidth_bytes_per_s": row["bytes"] * _NS_PER_S / span_ns if span_ns and moves else None,
        "operations_per_s": row["operations"] * _NS_PER_S / span_ns if span_ns else None,
    }
