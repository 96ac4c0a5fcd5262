"""The report of a trace: figures from the named queries, and its document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from msgspec import UNSET

from kvdistill.profile.locality import tier_reuse
from kvdistill.profile.trace_scan import TraceScan, Windows
from kvdistill.queries.database import Row, count_sizes, opened, query
from kvdistill.reports.tables import (
    BANDWIDTHS,
    Key,
    Report,
    Subject,
    by,
    by_two,
    of_objects,
    of_rows,
    origin,
    pictures_of,
    rate_tables,
    reuse_tables,
    size_tables,
    steps_chart,
    subject_of,
    wear_table,
    writes_per_day,
)
from kvtrace.core import tables
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    Highlight,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.document.fleet_chapters import (
    event_lines,
    event_tables,
    fleet_headline,
    fleet_tables,
    storage_table,
)
from kvtrace.core.files import at
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import TRACE
from kvtrace.core.simulation_stats import FleetStats, IncidentStats
from kvtrace.core.statistics import Endurance
from kvtrace.core.units import counted


class TraceReport(Report, frozen=True, kw_only=True):
    """The figures of a trace: rows of the named queries, with the names of tiers."""

    kind = "trace"
    subject: Subject
    span_ns: int | None
    requests: int
    tiers: list[Row]
    """name, capacity_bytes, peak and end live bytes, hits and hit rate (null if unknown)."""
    reuse: list[Row]
    """Reuse distances by tier, in distinct bytes of other objects; `bins` by powers of two."""
    hit_ratio: float | None = None
    """Hit rate of all tiers together; null if unknown."""
    operations: list[Row]
    sizes: list[Row]
    size_bins: list[Row]
    bucket_ns: int | None
    """Length of one window of `over_time`; null if all rows share one instant."""
    over_time: list[Row]
    writes_per_day: list[Row]
    """DWPD by tier, without data populated before the start."""
    first_token: dict[str, int | None] | None = None
    """Modelled TTFT by percentile; null if the trace models no compute."""
    fleet: FleetStats | None = None
    """Counters of a simulated fleet; null for a single node."""
    events: IncidentStats | None = None
    """Counters around events of the fleet; null without events."""

    def document(self) -> Document:
        """Return the document."""
        subject = self.subject
        facts = origin(subject) | {
            "time span": Cell(self.span_ns, Unit.NS),
            "requests": Cell(self.requests, Unit.COUNT),
        }
        has_rates = self.span_ns != 0 or any(row["span_ns"] for row in self.writes_per_day)
        notes = [
            *subject.notes,
            *([] if has_rates else ["all rows share one instant, so there are no rates"]),
        ]
        origin_text = "simulated" if self.subject.is_simulated else "of real I/O"
        operations_text, requests_text = (
            counted(self.subject.rows or 0, "operation"),
            counted(self.requests, "request"),
        )
        headline = (
            f"Trace, {origin_text}: {operations_text} for"
            f" {requests_text}{f'; {fleet_headline(self.fleet)}' if self.fleet else ''}"
        )
        columns = [
            ReportColumn("tier"),
            ReportColumn("op"),
            ReportColumn("phase"),
            ReportColumn("ops", "operations", Unit.COUNT),
            ReportColumn("bytes", unit=Unit.BYTES),
            ReportColumn("objects", unit=Unit.COUNT),
        ]
        operations = table_of("Operations", Sheet.PERFORMANCE, columns, self.operations, keys=3)
        events, wear_note = [], "Excludes write amplification inside the drive."
        written_bytes = sum(row["bytes"] for row in self.operations if row["op"] == "write")
        if written_bytes > sum(row["written_bytes"] for row in self.writes_per_day):
            wear_note += " Data populated before the start is omitted."
        if self.events:
            course, *other_tables = _event_course(self.events)
            event_tables_shown = [course, *event_tables(self.events), *other_tables]
            events.append(Chapter("Events", event_tables_shown, event_lines(self.events)))
        unmeasured = (("QoS", Sheet.QOS, "latency"), ("Device", Sheet.DEVICE, "block layer"))
        absent_tables = [
            parameters(title, sheet, {name: _NOT_MEASURED}) for title, sheet, name in unmeasured
        ]
        chapters = [
            *([Chapter("Fleet", fleet_tables(self.fleet))] if self.fleet else []),
            *events,
            Chapter("Tiers and operations", [_tiers(self), operations]),
            Chapter(
                "Over time",
                rate_tables(
                    self.over_time, self.bucket_ns, "Times are of the trace, not of a run."
                ),
            ),
            Chapter("Wear", [wear_table(self.writes_per_day, wear_note, is_trace=True)]),
            Chapter("Sizes", size_tables(self.sizes, self.size_bins)),
            Chapter("Reuse", reuse_tables(self.reuse)),
            Chapter("Provenance", [parameters("Origin", Sheet.PARAMETERS, facts)]),
            Chapter("Not in a trace", absent_tables),
        ]
        tier = self.tiers[-1]["name"] if self.tiers else ""
        return Document(
            name=subject.file,
            headline=headline,
            notes=notes,
            highlights=_highlights(self),
            chapters=chapters,
            about=", ".join(
                str(part) for part in (subject.model, subject.preset, facts["source"]) if part
            ),
            pictures=pictures_of(
                chapters, "Hits over time", f"Bandwidth of {tier}", f"Reuse distance on {tier}"
            )[:2],
        )

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield spans, hit rates, and operations and bytes by tier and operation."""
        for name in ("span_ns", "requests", "hit_ratio"):
            yield ("", "", name), getattr(self, name)
        for name, value in (self.first_token or {}).items():
            yield ("", "", f"first_token_{name}"), value
        tiers = [row | {"tier": row["name"], "op": ""} for row in self.tiers]
        yield from of_rows(tiers, ("hit_ratio", "peak_live_bytes"))
        for (tier, op), rows in by_two(self.operations, "tier", "op"):
            for column, name in (("ops", "operations"), ("bytes", "bytes")):
                yield (tier, op, name), sum(row[column] for row in rows)
        yield from of_objects(self)

    def settings(self) -> dict[str, object]:
        """Return the settings of the simulation."""
        return self.subject.settings() | {"config_sha256": self.subject.config_sha256}


def trace_report(
    path: Path, meta: Metadata, buckets: int, endurance: Endurance | None
) -> TraceReport:
    """Return the report of the trace at `path`; raises the same errors as `report`."""
    with opened([path]) as db:
        # A trace is untimed: operations complete when they are due.
        db.execute(
            "CREATE VIEW ops AS SELECT tier, op, object_id, length_bytes AS bytes, ts_ns AS"
            " submitted_ns, ts_ns AS completed_ns, 'ok' AS outcome, '' AS engine FROM trace"
        )
        db.execute("CREATE VIEW measured AS FROM ops")
        count_sizes(db, has_deletes=True)
        span = query(db, "trace_span")[0]
        first, last = span["first_ns"], span["last_ns"]
        span_ns = None if first is None else last - first
        buckets = buckets if span_ns else 1
        bucket_ns = (span_ns or 0) // buckets + 1
        scan = TraceScan(
            tables.open_table(path, TRACE), path, Windows(first or 0, bucket_ns, buckets)
        )
        # A tier with an instance on each node has no common address space.
        live = {
            tier.name: live_and_peak
            for tier, live_and_peak in zip(meta.tiers, scan.live_bytes, strict=True)
            if tier.instance_nodes is UNSET
        }
        operations = scan.operations()
        ttft = at(meta.stats, "first_token", "with_cache")
        writes = by([row for row in operations if row["op"] == "write"], "tier")
        simulated = {
            tier_counters.get("name"): tier_counters
            for tier_counters in (meta.stats or {}).get("tiers") or []
            if isinstance(tier_counters, dict)
        }
        populated_bytes = {
            name: counters.get("populated_bytes") or 0 for name, counters in simulated.items()
        }
        written_bytes = {
            tier: max(0, sum(row["bytes"] for row in rows) - populated_bytes.get(tier, 0))
            for tier, rows in writes
        }
        tiers = []
        for tier in meta.tiers:
            peak, end = live.get(tier.name) or (None, None)
            sizes = {
                "capacity_bytes": tier.capacity_bytes,
                "peak_live_bytes": peak,
                "end_live_bytes": end,
            }
            hits = {name: simulated.get(tier.name, {}).get(name) for name in ("hits", "hit_ratio")}
            tiers.append({"name": tier.name} | sizes | hits)
        return TraceReport(
            subject=subject_of(path, meta),
            span_ns=span_ns,
            requests=span["requests"],
            tiers=tiers,
            hit_ratio=meta.hit_ratio,
            reuse=tier_reuse(db, list(live), scan.accesses()),
            fleet=meta.fleet,
            events=meta.events,
            operations=operations,
            sizes=query(db, "run_sizes"),
            size_bins=query(db, "run_size_bins"),
            bucket_ns=bucket_ns if span_ns else None,
            over_time=scan.over_time(),
            writes_per_day=writes_per_day(
                written_bytes, _simulated_ns(meta, span_ns, last), meta, endurance, is_trace=True
            ),
            first_token=ttft if isinstance(ttft, dict) else None,
        )


def _simulated_ns(meta: Metadata, span_ns: int | None, last_ns: int | None) -> int | None:
    """Return the time that the rows of a trace span.

    A simulation spans from its start to its configured duration, or to its last row if a request
    file or `max_requests` ended it earlier.
    """
    if not meta.is_simulated or last_ns is None:
        return span_ns
    duration_ns, max_requests = meta.config.get("duration_ns"), meta.config.get("max_requests")
    is_cut = "file" in (meta.source or {}) or (
        max_requests is not None and at(meta.stats, "requests") == max_requests
    )
    return last_ns if is_cut or not isinstance(duration_ns, int) else max(last_ns, duration_ns)


_NOT_MEASURED = "not measured: a trace lists operations, and holds no device times"


def _event_course(events: IncidentStats) -> list[ReportTable]:
    """Return tables and charts over time: hits and load of the slowest tier, then other tiers."""
    seconds, course, store = events.step_ns / 1e9, events.over_time, events.tiers[-1]
    rows = []
    columns = (
        course.lookups,
        course.local_hits,
        course.shared_hits,
        course.computed_tokens,
    )
    load = (store.read_bytes, store.written_bytes)
    for step, (lookups, local, shared, computed, read, written) in enumerate(
        zip(*columns, *load, strict=True)
    ):
        hits_by_kind = {
            "hit_ratio": local + shared,
            "local_hit_ratio": local,
            "shared_hit_ratio": shared,
        }
        rates = {
            "computed_per_s": computed,
            "read_bytes_per_s": read,
            "written_bytes_per_s": written,
        }
        rows.append(
            {"from_ns": step * events.step_ns}
            | {name: hits / lookups if lookups else None for name, hits in hits_by_kind.items()}
            | {name: count / seconds for name, count in rates.items()}
        )
    spec = [
        ReportColumn("from_ns", "from", Unit.NS),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("local_hit_ratio", "own tiers", Unit.SHARE),
        ReportColumn("shared_hit_ratio", "shared tiers", Unit.SHARE),
        ReportColumn("computed_per_s", "tokens computed/s", Unit.PER_S),
        ReportColumn("read_bytes_per_s", f"read from {store.name}", Unit.BYTES_PER_S),
        ReportColumn("written_bytes_per_s", "written to it", Unit.BYTES_PER_S),
    ]
    marks: list[tuple[float, str]] = []
    for event in (event for event in events.around if event.is_reached):
        name = event.event.partition(":")[2]
        marks.append((float(event.at_ns), name))
        if event.at_ns < event.over_ns <= events.end_ns:
            marks.append((float(event.over_ns), f"{name} is over"))
    chart = partial(steps_chart, rows=rows, step_ns=events.step_ns, marks=tuple(marks))
    shares = {
        "all": "hit_ratio",
        "own tiers": "local_hit_ratio",
        "shared tiers": "shared_hit_ratio",
    }
    load_title, tokens = f"Load of {store.name} over time", {"tokens": "computed_per_s"}
    charts = (
        chart("Hits over time", Unit.SHARE, lines=shares, y_title="hit rate", y_end=1.0),
        chart(load_title, Unit.BYTES_PER_S, lines=BANDWIDTHS),
        chart(
            "Tokens computed a second over time",
            Unit.PER_S,
            lines=tokens,
            y_title="tokens computed",
        ),
    )
    title = "over time, with the events"
    return [
        table_of(title, Sheet.HISTOGRAMS, spec, rows, "Simulated.", charts=charts),
        *(storage_table(events, index) for index in range(len(events.tiers) - 2, -1, -1)),
    ]


def _highlights(report: TraceReport) -> list[Highlight]:
    highlights = [Highlight("time span", report.span_ns, Unit.NS, "simulated time")]
    if report.hit_ratio is not None:
        highlights.append(
            Highlight(
                "hit rate, all tiers", report.hit_ratio, Unit.SHARE, "of all lookups, simulated"
            )
        )
    for tier in (tier for tier in report.tiers[-1:] if tier["hit_ratio"] is not None):
        label = f"hit rate of {tier['name']}"
        highlights.append(
            Highlight(label, tier["hit_ratio"], Unit.SHARE, "of all lookups, simulated")
        )
    for row in report.writes_per_day[-1:]:
        name = row["tier"]
        for op, label in (("read", "read from"), ("write", "written to")):
            total_bytes = sum(
                row_of_tier["bytes"]
                for row_of_tier in report.operations
                if (row_of_tier["tier"], row_of_tier["op"]) == (name, op)
            )
            highlights.append(Highlight(f"{label} {name}", total_bytes, Unit.BYTES))
        if row["years_of_life"] is not None:
            highlights.append(
                Highlight(
                    f"drive life, {name}",
                    row["years_of_life"],
                    Unit.YEARS,
                    "at this rate, see Wear",
                )
            )
    return highlights


def _tiers(report: TraceReport) -> ReportTable:
    columns = [
        ReportColumn("name", "tier"),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("peak_live_bytes", "peak live", Unit.BYTES),
        ReportColumn("end_live_bytes", "live at end", Unit.BYTES),
        ReportColumn("hits", unit=Unit.COUNT),
        ReportColumn("hit_ratio", "hit rate", Unit.SHARE),
    ]
    note = "Hits are counted by the simulation, over all lookups."
    if report.fleet:
        note += (
            " The capacity of a tier with an instance on each node is that of one instance; its live"
            " bytes are not shown."
        )
    total = {
        "name": "in total",
        **dict.fromkeys(("capacity_bytes", "peak_live_bytes", "end_live_bytes")),
    }
    total |= {
        "hits": sum(tier["hits"] or 0 for tier in report.tiers),
        "hit_ratio": report.hit_ratio,
    }
    rows = [*report.tiers, *([total] if report.hit_ratio is not None else [])]
    return table_of("Tiers", Sheet.SUMMARY, columns, rows, note)
