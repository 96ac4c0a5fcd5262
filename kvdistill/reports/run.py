"""The report of a run: figures from its ops table, without the warm-up, and its document.

It also holds the figures of requests: service classes, TTFT, criteria.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from kvdistill.jobs.check import CLOSENESS, Closeness, find_closeness
from kvdistill.profile.locality import tier_reuse
from kvdistill.queries.database import Row, count_sizes, opened, query
from kvdistill.queries.recorded import figure_rows, operation_times
from kvdistill.reports.jobs import closeness_chapter
from kvdistill.reports.probe import (
    Layers,
    ProbeReport,
    layer_chapter,
    layers,
    probe_chapter,
    probe_report,
)
from kvdistill.reports.tables import (
    Key,
    Report,
    Subject,
    by,
    heat_tables,
    of_objects,
    of_rows,
    origin,
    pictures_of,
    quantiles,
    rate_tables,
    reuse_tables,
    size_tables,
    subject_of,
    unit_of,
    wear_table,
    workload_of,
    writes_per_day,
)
from kvtrace.core import tables
from kvtrace.core.document.document import (
    TIME_COLUMNS,
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
from kvtrace.core.document.run_chapters import checkpoint_sentence, checkpoint_tables, ranks_tables
from kvtrace.core.files import at
from kvtrace.core.metrics.ops_table import record_ops
from kvtrace.core.metrics.warmup import parse_warmup
from kvtrace.core.run.figures import Distribution, Mlperf, RequestFigures, Serving, ServingTimes
from kvtrace.core.run.run_file import RanksNote, RunFile, find_run
from kvtrace.core.schema import OPS
from kvtrace.core.statistics import Endurance
from kvtrace.core.units import counted, format_count, format_duration

QUANTILE_POINTS = [100, 200, *range(500, 9501, 500), 9700, 9800, 9900, 9950, 9990, 9999, 10_000]
"""The points of a distribution, in ten-thousandths."""


class RunReport(Report, frozen=True, kw_only=True):
    """The figures of a replay: rows of the named queries, with the names of tiers.

    Figures that need single operations are empty for an import of figures only.
    """

    kind = "run"
    subject: Subject
    run: RunFile | None
    """The run's own summary, `run.json`; null if it is missing."""
    figures: list[Row]
    latency: list[Row]
    """Service time: completion - submission."""
    response: list[Row] = msgspec.field(default_factory=list)
    """Response time: completion - due time; empty in a closed loop."""
    lateness: list[Row] = msgspec.field(default_factory=list)
    distributions: list[Row] = msgspec.field(default_factory=list)
    """Latency, response time and lateness at chosen shares of the operations."""
    sizes: list[Row] = msgspec.field(default_factory=list)
    size_bins: list[Row] = msgspec.field(default_factory=list)
    bucket_ns: int | None = None
    """Length of one window of `over_time` and `heat`; null without a time span."""
    over_time: list[Row] = msgspec.field(default_factory=list)
    """Bytes (spread over the time in flight) and completed operations by window.

    Windows start at the first measured submission.
    """
    heat: list[Row] = msgspec.field(default_factory=list)
    """Operations by completion time and latency, in powers of two.

    Latency is the response time in an open loop, else the service time.
    """
    writes_per_day: list[Row] = msgspec.field(default_factory=list)
    reuse: list[Row] = msgspec.field(default_factory=list)
    """Reuse distances by tier, in distinct bytes of other objects; `bins` by powers of two."""
    probe: ProbeReport | None = None
    """The report of the block-layer probes; null without probes."""
    layers: Layers | None = None
    """Operations with the system calls and block requests beneath them; null without probes."""
    closeness: Closeness | None = None
    """Closeness of jobs to this run; null unless `kvdistill fio --check` ran here."""

    @property
    def is_partial(self) -> bool:
        """Whether the run was cut off."""
        return self.run is not None and self.run.status == "partial"

    @property
    def is_simulated(self) -> bool:
        """Whether all tiers that were not skipped were simulated."""
        return self.run is not None and {row["engine"] for row in self.figures} - {"none"} == {
            "sim"
        }

    # Long, because it lists all chapters.
    def document(self) -> Document:
        """Return the document: verdict, drive, six figures and warnings, then folded details."""
        run = self.run
        verdict, checkpoints = (
            ("Run without run.json", None)
            if run is None
            else (run.summary.verdict, run.checkpoints)
        )
        if checkpoints is not None:
            verdict = f"{checkpoint_sentence(checkpoints)}; {verdict}"
        if self.is_partial:
            verdict = f"PARTIAL: {verdict}"
        notes = [_NO_SUMMARY, *self.subject.notes]
        if run is not None:
            notes = run.notes + [
                f"trace: {note}" for note in run.trace.metadata.notes if note not in run.notes
            ]
        # An imported run lacks most of them.
        facts = {
            name: value
            for name, value in _facts(self).items()
            if (value.value if isinstance(value, Cell) else value) is not None
        }
        is_open = bool(self.response)
        heat_maps = heat_tables(
            self.heat, self.bucket_ns, "Response time" if is_open else "Latency"
        )
        deletes = [table for table in heat_maps if table.title.endswith("delete")]
        rates = rate_tables(self.over_time, self.bucket_ns, _IN_FLIGHT)
        latency, response = _distributions_of(self, "latency"), _distributions_of(self, "response")
        times = [
            _times_table("Latency", self.latency),
            *([_times_table("Response time", self.response)] if is_open else []),
            *(response if is_open else latency),
        ]
        lateness = _distributions_of(self, "lateness")
        lateness_tables = (
            [_times_table("Lateness", self.lateness), *lateness] if self.lateness else []
        )
        ranks = None if run is None or not isinstance(run.ranks, RanksNote) else run.ranks
        spec = [
            ReportColumn("tier"),
            ReportColumn("op"),
            ReportColumn("engine"),
            ReportColumn("rows", unit=Unit.COUNT),
            ReportColumn("operations", "completed", Unit.COUNT),
            ReportColumn("errors", unit=Unit.COUNT),
            ReportColumn("corrupt", "of them corrupt", Unit.COUNT),
            ReportColumn("skipped", unit=Unit.COUNT),
            ReportColumn("bytes", unit=Unit.BYTES),
            ReportColumn("io_bytes", "with padding", Unit.BYTES),
            ReportColumn("span_ns", "in", Unit.NS),
            ReportColumn("operations_per_s", "ops/s", Unit.PER_S),
            ReportColumn("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
        ]
        note = (
            "Rates: completed operations over the time from their first submission to their last"
            " completion."
        )
        if run is not None and (run.program, self.subject.table) == ("kvdistill", "run"):
            note = "Rates: over the time span that the imported tool reports, in the column 'in'."
        operations = table_of("Operations", Sheet.PERFORMANCE, spec, self.figures, note, keys=2)
        device_rows = (
            []
            if run is None
            else [
                {"tier": name} | asdict(facts_of_name)
                for name, facts_of_name in run.device_io.items()
            ]
        )
        spec = [
            ReportColumn("tier"),
            ReportColumn("read_bytes", "read", Unit.BYTES),
            ReportColumn("written_bytes", "written", Unit.BYTES),
        ]
        note = "I/O of the device during the run, by all programs."
        device = table_of("Device", Sheet.DEVICE, spec, device_rows, note)
        columns = [
            ReportColumn(facts_of_name, facts_of_name.removeprefix("is_").replace("_", " "))
            for facts_of_name in ("name", *_TARGET)
        ]
        drives = (
            []
            if run is None
            else [
                dict.fromkeys(_TARGET) | {"name": name} | facts_of_name
                for name, facts_of_name in run.drives()
            ]
        )
        targets = [table_of("Targets", Sheet.PARAMETERS, columns, drives)] if drives else []
        chapters = [
            *([] if ranks is None else [Chapter("Ranks", ranks_tables(ranks))]),
            *(
                []
                if checkpoints is None
                else [Chapter("Checkpoints", checkpoint_tables(checkpoints))]
            ),
            Chapter("Tiers", [operations, *_hits(run), *rates]),
            Chapter("Latency", [*times, *(table for table in heat_maps if table not in deletes)]),
            Chapter("Requests, QoS and criteria", [*request_tables(run), *_throughput(run)]),
            Chapter("Wear", [wear_table(self.writes_per_day, _WEAR), device]),
            *([] if self.layers is None else [layer_chapter(self.layers)]),
            *([] if self.closeness is None else [closeness_chapter(self.closeness)]),
            *([] if self.probe is None else [probe_chapter(self.probe)]),
            Chapter(
                "Service time and lateness" if is_open else "Lateness",
                [*(latency if is_open else []), *lateness_tables],
            ),
            Chapter("Deletes over time", deletes),
            Chapter("Sizes", size_tables(self.sizes, self.size_bins)),
            Chapter("Reuse", reuse_tables(self.reuse)),
            Chapter("Run and targets", [*targets, parameters("Run", Sheet.PARAMETERS, facts)]),
        ]
        tier, measure = _tier_under_test(self), "Response time" if is_open else "Latency"
        return Document(
            name=self.subject.file if run is None else run.trace.file,
            headline=verdict,
            subject=_subject(run),
            notes=notes,
            warnings=self.warnings(),
            highlights=_highlights(self),
            chapters=chapters,
            about=_about(self),
            pictures=pictures_of(chapters, f"Bandwidth of {tier}", f"{measure} on {tier}"),
        )

    def of_model(self) -> RunReport:
        """Return a report with the modelled figures of a simulated run, for comparisons.

        In the run itself they do not count as measured.
        """
        report = self if self.run is None else summary_report(self.run)
        return msgspec.structs.replace(
            report, figures=[row | {"engine": "model"} for row in report.figures]
        )

    def failed(self) -> tuple[int, int, str]:
        """Return failed count, total count and unit: operations, or requests of a benchmark."""
        if self.run is not None and isinstance(serving := self.run.serving, Serving):
            failed = serving.failed_requests or 0
            return failed, failed + (serving.requests or 0), "requests"
        failed = sum(row["errors"] or 0 for row in self.figures)
        return failed, failed + sum(row["operations"] or 0 for row in self.figures), "operations"

    def warnings(self) -> list[str]:
        """Return the warnings to read before any figure."""
        run = self.run
        warnings = [] if run is None or not self.is_partial else [f"PARTIAL: {run.reason}"]
        if run is not None and run.summary.fell_behind:
            warnings.append(
                "The replay fell behind the trace: its latencies are those of an overload"
            )
        failed, corrupt = (
            sum(row[name] or 0 for row in self.figures) for name in ("errors", "corrupt")
        )
        warnings += [f"{counted(failed, 'operation')} FAILED"] if failed else []
        verb = "was a CORRUPT read" if corrupt == 1 else "were CORRUPT reads"
        warnings += [f"{corrupt:,} of them {verb}"] if corrupt else []
        is_served = run is not None and isinstance(run.serving, Serving)
        if all(row["operations"] == 0 for row in self.figures) and not is_served:
            warnings.append("no operation completed")
        if all(row["engine"] in ("sim", "none") for row in self.figures) and self.figures:
            warnings.append("no bytes transferred: all tiers were simulated or skipped")
        return warnings

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield times and rates of requests, operations and block-layer requests."""
        yield (
            ("", "", "wall_ns"),
            None if self.run is None or self.is_simulated else self.run.summary.wall_ns,
        )
        yield from ((("", "", name), value) for name, value in _request_figures(self.run))
        # Simulated and skipped tiers have no measured figures.
        measured_rows = [row for row in self.figures if row["engine"] not in ("none", "sim")]
        yield from of_rows(
            measured_rows,
            ("bandwidth_bytes_per_s", "operations_per_s", "operations", "errors", "bytes"),
        )
        for measure in ("latency", "response", "lateness"):
            yield from of_rows(getattr(self, measure), _PERCENTILES, f"{measure}_")
        yield from of_objects(self)
        if self.probe is not None:
            yield from self.probe.compared()

    def settings(self) -> dict[str, object]:
        """Return the settings of the trace and of its replay."""
        run, settings = self.run, self.subject.settings()
        if run is None:
            return settings | {"config_sha256": self.subject.config_sha256}
        run_settings = {
            "engine.name": run.engine.name,
            "host": run.host,
            "window.rows": run.window.rows,
        }
        if run.trace.sha256 is not None and not settings["load"]:
            settings["load"] = {"file": run.trace.file, "sha256": run.trace.sha256[:12]}
        return settings | {"trace": run.trace.file} | run.config | run_settings


_PERCENTILES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")


def _request_figures(run: RunFile | None) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of requests, from a serving benchmark or else from the replay."""
    if run is None:
        return
    if isinstance(run.serving, Serving):
        for name in SERVING_FIGURES:
            yield name, getattr(run.serving, name)
        for name in SERVING_TIMES:
            times = getattr(run.serving, name)
            for field in ServingTimes.__struct_fields__:
                if times is not None and field != "count":
                    yield f"{name}_{field}", getattr(times, field)
    elif run.requests is not None and run.requests.first_token is not None:
        yield "requests", run.requests.requests
        for field in _PERCENTILES:
            yield f"first_token_{field}", getattr(run.requests.first_token, field)


def run_report(ops: Path, buckets: int, endurance: Endurance | None = None) -> RunReport:
    """Return the report of the run with the table `ops`, and with its run.json if there is one."""
    meta = tables.open_table(ops, OPS).meta
    run = find_run(ops.parent)
    warmup = None if run is None or run.summary.warmup is None else run.summary.warmup.asked
    recording = record_ops(ops, parse_warmup(warmup))
    times = operation_times(recording, QUANTILE_POINTS)
    with opened([ops]) as db:
        span = query(db, "run_span")[0]
        span_ns = None if span["first_ns"] is None else span["last_ns"] - span["first_ns"]
        bucket_ns = span_ns // buckets + 1 if span_ns else None
        figures = figure_rows(recording)
        windows = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns}
        over_time = (
            query(db, "run_over_time", start_ns=0, buckets=buckets, **windows) if bucket_ns else []
        )
        heat = query(db, "run_heat", **windows) if bucket_ns else []
        count_sizes(db, has_deletes=False)
        is_probed = run is not None and run.probes is not None and run.probes.is_measured
        return RunReport(
            subject=subject_of(ops, meta),
            run=run,
            figures=figures,
            **times.summaries,
            distributions=times.points,
            sizes=query(db, "run_sizes"),
            size_bins=query(db, "run_size_bins"),
            bucket_ns=bucket_ns,
            over_time=over_time,
            heat=heat,
            writes_per_day=writes_per_day(
                {
                    row["tier"]: row["io_bytes"]
                    for row in figures
                    if row["op"] == "write"
                    and row["io_bytes"]
                    and row["engine"] not in ("memory", "gpu")
                },
                span_ns,
                meta,
                endurance,
            ),
            reuse=tier_reuse(db, [tier.name for tier in meta.tiers]),
            probe=probe_report(ops.parent, buckets),
            layers=layers(ops.parent) if is_probed else None,
            closeness=find_closeness(ops.with_name(CLOSENESS)),
        )


_SUMMARY_FIGURES = (
    *("tier", "op", "engine", "operations", "errors", "corrupt", "bytes", "io_bytes", "span_ns"),
    *("bandwidth_bytes_per_s", "operations_per_s"),
)


def summary_report(run: RunFile) -> RunReport:
    """Return the report of a run without an ops table, such as an import of fio's JSON."""
    figure_rows_ = [msgspec.to_builtins(figures) for figures in run.summary.figures]
    return RunReport(
        subject=Subject(
            file=run.trace.file,
            table="run",
            source=run.trace.metadata.source,
            is_simulated=False,
            **{
                name: getattr(run, name)
                for name in ("program", "version", "argv", "config_sha256", "notes")
            },
        ),
        run=run,
        figures=[
            {name: row[name] for name in _SUMMARY_FIGURES} | {"rows": None, "skipped": None}
            for row in figure_rows_
        ],
        latency=[
            {"tier": row["tier"], "op": row["op"]} | row["latency"]
            for row in figure_rows_
            if row["latency"]["count"]
        ],
        response=[
            {"tier": row["tier"], "op": row["op"]} | row["response"]
            for row in figure_rows_
            if row["response"]
        ],
    )


_MAX_HIGHLIGHTS = 6
"""Number of highlighted figures."""
_IN_FLIGHT = (
    "An operation's bytes are spread over the time in which it was in flight; it counts when it"
    " completes."
)
_WEAR = (
    "At this run's rate, which represents production only for an open loop at speed 1 that is on"
    " time. Padding is included; write amplification inside the drive is not."
)
_NO_SUMMARY = "run.json is missing: settings, device and notes of the run are unknown"
_TARGET = (
    "target",
    "engine",
    "is_direct",
    "filesystem",
    "device",
    "device_model",
    "device_firmware",
    "scheduler",
)


def _about(report: RunReport) -> str:
    """Return drive, model and workload, as far as known."""
    run = report.run
    facts = (
        {}
        if run is None
        else next((facts for name, facts in run.drives() if name == _tier_under_test(report)), {})
    )
    drive = facts.get("device_model") or facts.get("device") or facts.get("target")
    target = (
        drive
        if drive is None or not facts.get("filesystem")
        else f"{drive} ({facts['filesystem']})"
    )
    meta = None if run is None else run.trace.metadata
    parts_of_answer = (
        (target, report.subject.model)
        if meta is None
        else (target, meta.model_name, workload_of(meta))
    )
    return ", ".join(str(text) for text in parts_of_answer if text)


def _tier_under_test(report: RunReport) -> str | None:
    """Return the tier under test: the last (slowest) tier that transferred bytes."""
    return next(
        (
            row["tier"]
            for row in reversed(report.figures)
            if row["bandwidth_bytes_per_s"] is not None
        ),
        None,
    )


def _subject(run: RunFile | None) -> list[str]:
    """Return one line for each drive of the run, and one for the load."""
    if run is None:
        return []
    lines = []
    for name, facts in run.drives():
        target_parts = [
            facts.get("target") or facts.get("engine"),
            facts.get("filesystem"),
            facts.get("device"),
        ]
        target_parts += [
            facts.get("device_model"),
            facts.get("device_firmware"),
            facts.get("engine"),
        ]
        description = ", ".join(str(text) for text in dict.fromkeys(target_parts) if text)
        lines.append(f"{name}: {description}{' (simulated)' if facts.get('is_simulated') else ''}")
    loop = {
        "open": "open loop",
        "closed": "closed loop",
    }
    speed_text = (
        f" at speed {run.pacing.speed:g}" if run.pacing.loop == "open" and run.pacing.speed else ""
    )
    loop_text = loop.get(run.pacing.loop or "", "")
    load_parts = [
        run.trace.file,
        f"{loop_text}{speed_text}",
        format_duration(run.summary.wall_ns) if run.summary.wall_ns else "",
    ]
    return [*lines, ", ".join(text for text in load_parts if text)]


def _highlights(report: RunReport) -> list[Highlight]:
    """Return the highlighted figures of the tier under test."""
    name = _tier_under_test(report)
    if name is None:
        return []
    highlights = [
        Highlight(
            f"{row['op']} bandwidth, {name}",
            row["bandwidth_bytes_per_s"],
            Unit.BYTES_PER_S,
            "" if row["operations"] is None else counted(row["operations"], "operation"),
        )
        for row in report.figures
        if row["tier"] == name and row["bandwidth_bytes_per_s"] is not None
    ]
    # In an open loop, latency is the response time, which includes waiting for submission.
    measure, times = (
        ("response", report.response) if report.response else ("latency", report.latency)
    )
    highlights += [
        _tail(f"{row['op']} {measure}", f", {name}", row, "")
        for row in times
        if row["tier"] == name and row["op"] != "delete"
    ]
    requests = None if report.run is None else report.run.requests
    if requests is not None and requests.first_token is not None and requests.first_token.count:
        highlights.append(_tail("TTFT", "", asdict(requests.first_token), "requests, modelled"))
    hit_rate = None if report.run is None else report.run.trace.metadata.hit_ratio
    if hit_rate is not None:
        highlights.append(
            Highlight(
                "hit rate, all tiers", hit_rate, Unit.SHARE, "of the trace's lookups, simulated"
            )
        )
    for row in report.writes_per_day:
        if row["tier"] == name and row["years_of_life"] is not None:
            highlights.append(
                Highlight(
                    f"drive life, {name}",
                    row["years_of_life"],
                    Unit.YEARS,
                    "at this rate, see Wear",
                )
            )
    lateness_rows = [row for row in report.lateness if row["tier"] == name]
    if lateness_rows:
        highlights.append(
            Highlight(f"max lateness, {name}", max(row["max_ns"] for row in lateness_rows), Unit.NS)
        )
    return highlights[:_MAX_HIGHLIGHTS]


def _tail(measure: str, tier_text: str, row: Row, unit_text: str) -> Highlight:
    """Return the highest percentile up to p99 that has enough operations."""
    name = next(
        (
            candidate
            for candidate in ("p99_ns", "p95_ns", "p50_ns", "max_ns")
            if row[candidate] is not None
        ),
        "max_ns",
    )
    percentile = name.removesuffix("_ns")
    return Highlight(
        f"{measure} {percentile}{tier_text}",
        row[name],
        Unit.NS,
        f"of {format_count(row['count'])} {unit_text}".strip(),
    )


def _facts(report: RunReport) -> dict[str, object]:
    fact = partial(at, report.run)
    return origin(report.subject) | {
        "source": fact("trace", "file"),
        "trace made by": " ".join(fact("trace", "metadata", "argv") or ()) or None,
        "status": fact("status"),
        "started": fact("started_utc"),
        "wall time": Cell(fact("summary", "wall_ns"), Unit.NS),
        "loop": fact("pacing", "loop"),
        "speed": fact("pacing", "speed"),
        "on time": fact("summary", "pace", "kept_pace"),
        "queue depth": Cell(fact("engine", "queue_depth"), Unit.COUNT),
        "engine": fact("engine", "name"),
        "largest I/O": Cell(fact("engine", "io_bytes"), Unit.IO_BYTES),
        "whole trace": fact("window", "is_whole_trace"),
        "limit": fact("window", "limit"),
        "warm-up": fact("config", "warmup"),
        "data": fact("data", "note"),
        "processor": fact("host", "cpu_model"),
        "processors": Cell(fact("host", "cpus"), Unit.COUNT),
        "kernel": fact("host", "kernel"),
    }


def _hits(run: RunFile | None) -> list[ReportTable]:
    tiers = at(run, "trace", "metadata", "stats", "tiers")
    if run is None or not tiers:
        return []
    capacity = {tier.name: tier.capacity_bytes for tier in run.trace.metadata.tiers}
    rows = [
        {"hits": None, "hit_ratio": None, **tier, "capacity_bytes": capacity.get(tier.get("name"))}
        for tier in tiers
    ]
    total = run.trace.metadata.hit_ratio
    if total is not None:
        hits = sum(row["hits"] or 0 for row in rows)
        rows.append({"name": "in total", "capacity_bytes": None, "hits": hits, "hit_ratio": total})
    columns = [
        ReportColumn("name", "tier"),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("hits", unit=Unit.COUNT),
        ReportColumn("hit_ratio", "hit rate", Unit.SHARE),
    ]
    note = "Of all lookups in the simulation of the whole trace, not of this run."
    return [table_of("Hits by tier", Sheet.SUMMARY, columns, rows, note)]


def _times_table(title: str, rows: list[Row]) -> ReportTable:
    columns = [
        ReportColumn("tier"),
        ReportColumn("op"),
        ReportColumn("count", "operations", Unit.COUNT),
        *TIME_COLUMNS,
        ReportColumn("max_ns", "max", Unit.NS),
    ]
    note = {
        "Latency": ("Service time: submission to completion, over all completed operations."),
        "Response time": ("Due time to completion, which includes waiting for submission."),
        "Lateness": "Due time to submission; a closed loop has none.",
    }[title]
    return table_of(title, Sheet.PERFORMANCE, columns, rows, note, keys=2)


def _distributions_of(report: RunReport, measure: str) -> list[ReportTable]:
    """Return the distribution of `measure`, one table and curve a tier."""
    name, tables = "Response time" if measure == "response" else measure.capitalize(), []
    note = (
        f"{name} that the given share of operations did not exceed (nearest rank); - if too few"
        " operations."
    )
    for tier, rows in by(
        [row for row in report.distributions if row["measure"] == measure], "tier"
    ):
        title = f"{name} distribution: {tier}"
        tables.append(
            quantiles(title, f"{name} on {tier}", rows, "op", "{}_ns", name.lower(), note)
        )
    return tables


def _throughput(run: RunFile | None) -> list[ReportTable]:
    if run is None or run.mlperf is None:
        return []
    throughput, rates = (
        run.mlperf.throughput,
        ("storage_throughput_tokens_per_s", "wall_clock_throughput_tokens_per_s"),
    )
    facts = {
        name: Cell(getattr(throughput, name), unit_of(name))
        for name in ("tokens", "storage_io_ns", *rates)
    }
    note = throughput.reason or (
        "Tokens of the trace's requests, divided by the total latency of storage operations, and by"
        " the wall time of the replay. The replay itself generates no tokens."
    )
    return [parameters("Throughput as MLPerf defines it", Sheet.PERFORMANCE, facts, note)]


SERVING_FIGURES = (
    *("requests", "failed_requests", "input_tokens", "output_tokens"),
    *("requests_per_s", "input_tokens_per_s", "output_tokens_per_s"),
)
"""Figures of a serving benchmark."""
SERVING_TIMES = {
    "first_token": "to the first token",
    "inter_token": "between two tokens",
    "output_token": "a token after the first, by answer",
    "answer": "to the last token",
}
_TARGETS = ("p95", "p99", "p99_9", "p99_99")


def request_tables(run: RunFile | None) -> list[ReportTable]:
    """Return the tables of requests, service classes and criteria of `run`."""
    requests, mlperf = (None, None) if run is None else (run.requests, run.mlperf)
    if run is not None and isinstance(run.serving, Serving):
        serving = run.serving
        figures = {
            name.replace("_", " "): Cell(getattr(serving, name), unit_of(name))
            for name in SERVING_FIGURES
        }
        columns = [
            ReportColumn("measure"),
            ReportColumn("count", unit=Unit.COUNT),
            ReportColumn("mean_ns", "mean", Unit.NS),
            ReportColumn("p50_ns", "p50", Unit.NS),
            ReportColumn("p90_ns", "p90", Unit.NS),
            ReportColumn("p95_ns", "p95", Unit.NS),
            ReportColumn("p99_ns", "p99", Unit.NS),
            ReportColumn("p99_9_ns", "p99.9", Unit.NS),
            ReportColumn("max_ns", "max", Unit.NS),
        ]
        rows = _time_rows(
            {ttft_note: getattr(serving, name) for name, ttft_note in SERVING_TIMES.items()}
        )
        note = f"As measured by {serving.benchmark}, at the engine's API."
        times = table_of("Times of requests", Sheet.QOS, columns, rows, note)
        return [parameters("Requests", Sheet.QOS, figures), times]
    tables = []
    if requests is not None:
        columns = [
            ReportColumn("measure"),
            ReportColumn("count", "requests", Unit.COUNT),
            *TIME_COLUMNS,
            ReportColumn("max_ns", "max", Unit.NS),
        ]
        ttft, ttft_name = requests.first_token, "TTFT, modelled"
        rows = _time_rows(
            {"storage time": requests.storage, "response time": requests.response, ttft_name: ttft}
        )
        ttft_note = (
            requests.first_token_definition
            if ttft is not None
            else requests.first_token_reason or "not known"
        )
        note = (
            "Storage time: time with at least one operation of the request in flight. Response time"
            " (open loop): time with at least one operation due and not completed."
        )
        tables = [table_of("Requests", Sheet.QOS, columns, rows, f"{note} TTFT: {ttft_note}.")]
    tables += _classes(requests, mlperf)
    if mlperf is None or not mlperf.criteria:
        no_criteria = {"criteria": "not measured in this run"}
        return [*tables, parameters("Criteria of MLPerf", Sheet.QOS, no_criteria)]
    rows = [
        asdict(criterion)
        | {
            value: Cell(getattr(criterion, value), unit_of(criterion.name, Unit.SHARE))
            for value in ("measured", "threshold")
        }
        for criterion in mlperf.criteria
    ]
    note = (
        "Criteria of the benchmark program, not rules for a submission. Latencies must be below"
        " their thresholds, other figures above."
    )
    columns = [
        ReportColumn("name", "criterion"),
        ReportColumn("verdict"),
        ReportColumn("measured"),
        ReportColumn("threshold"),
        ReportColumn("definition"),
    ]
    return [*tables, table_of("Criteria of MLPerf", Sheet.QOS, columns, rows, note)]


def _time_rows(times: dict[str, Distribution | ServingTimes | None]) -> list[Row]:
    return [
        {"measure": name} | asdict(times_of_measure)
        for name, times_of_measure in times.items()
        if times_of_measure is not None
    ]


def _classes(request_figures: RequestFigures | None, mlperf: Mlperf | None) -> list[ReportTable]:
    if request_figures is None or not request_figures.classes:
        reason = (
            mlperf.qos_reason if mlperf else None
        ) or "the run has no service classes of requests"
        return [parameters("Classes of service", Sheet.QOS, {"QoS": f"not measured: {reason}"})]
    note = mlperf.qos_definition.strip() if mlperf else ""
    columns = [
        ReportColumn("qos", "class"),
        ReportColumn("count", "requests", Unit.COUNT),
        ReportColumn("share_within_p95_target", "within p95 target", Unit.SHARE),
        ReportColumn("verdict"),
    ]
    classes = [
        asdict(of_class) | {"count": of_class.storage.count} for of_class in request_figures.classes
    ]
    text = f"{note[:1].upper()}{note[1:]}." if note else ""
    class_table = table_of("Classes of service", Sheet.QOS, columns, classes, text)
    columns = [
        ReportColumn("qos", "class"),
        ReportColumn("percentile"),
        ReportColumn("reached_ns", "measured", Unit.NS),
        ReportColumn("target_ns", "target", Unit.NS),
        ReportColumn("verdict"),
    ]
    rows = []
    for of_class in request_figures.classes:
        times = of_class.storage if of_class.response is None else of_class.response
        for name in _TARGETS:
            reached, target = getattr(times, f"{name}_ns"), of_class.targets_ns.get(name)
            is_known = reached is not None and target is not None
            verdict = ("pass" if reached <= target else "fail") if is_known else "not measured"
            rows.append([of_class.qos, name.replace("_", "."), reached, target, verdict])
    measure_note = "Measured: the response time in an open loop, else the storage time."
    return [
        class_table,
        table_of("Latency targets of the classes", Sheet.QOS, columns, rows, measure_note, keys=2),
    ]
