"""The report of a run.

Figures by the named queries over its `ops`, the warm-up left out as in run.json; its document.

Whole requests are in it, too: classes of service, time to the first token, health criteria.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from kvdistill.jobs.check import CLOSENESS, Closeness, find_closeness
from kvdistill.profile.locality import tier_reuse
from kvdistill.queries.database import Row, opened, query
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
from kvtrace.core.document.chapters import checkpoint_sentence, checkpoint_tables, ranks_tables
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
from kvtrace.core.files import at
from kvtrace.core.metrics.ops_table import record_ops
from kvtrace.core.metrics.warmup import parse_warmup
from kvtrace.core.run.figures import Distribution, Mlperf, RequestFigures, Serving, ServingTimes
from kvtrace.core.run.run_file import RanksNote, RunFile, find_run
from kvtrace.core.schema import OPS
from kvtrace.core.statistics import Endurance
from kvtrace.core.units import counted, format_count, format_duration

PARTS = [100, 200, *range(500, 9501, 500), 9700, 9800, 9900, 9950, 9990, 9999, 10_000]
"""The points of a distribution, in ten-thousandths."""


class RunReport(Report, frozen=True, kw_only=True):
    """What a replay measured.

    Rows of its tables as the named queries return them, with `tier` a name.

    What needs single operations is empty for an import of figures alone.
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
    """How long one stretch of `over_time` and `heat` is; null if nothing took time."""
    over_time: list[Row] = msgspec.field(default_factory=list)
    """What moved in each stretch, by the time in flight, and what completed, from the first
    submission that counts.
    """
    heat: list[Row] = msgspec.field(default_factory=list)
    """Operations by when they completed and by their time, in powers of two.

    The response time in an open loop, else the service time.
    """
    writes_per_day: list[Row] = msgspec.field(default_factory=list)
    reuse: list[Row] = msgspec.field(default_factory=list)
    """By tier.

    How far apart accesses to an object were, in bytes of others; `bins` by powers of two.
    """
    probe: ProbeReport | None = None
    """What the block layer saw; null without probes."""
    layers: Layers | None = None
    """The operations beside the calls and block requests beneath; null without probes."""
    closeness: Closeness | None = None
    """How close jobs distilled from this come, if `kvdistill fio --check` ran here.

    Null otherwise.
    """

    @property
    def is_partial(self) -> bool:
        """Whether it was cut off."""
        return self.run is not None and self.run.status == "partial"

    @property
    def is_simulated(self) -> bool:
        """Whether all tiers that were not skipped were simulated."""
        return self.run is not None and {row["engine"] for row in self.figures} - {"none"} == {
            "sim"
        }

    # Long: a chapter each.
    def document(self) -> Document:
        """Return the document.

        What was found, on what, six figures, warnings; details last and folded.
        """
        run = self.run
        verdict, saved = (
            ("Run, without its summary", None)
            if run is None
            else (run.summary.verdict, run.checkpoints)
        )
        if saved is not None:
            verdict = f"{checkpoint_sentence(saved)}; {verdict}"
        if self.is_partial:
            verdict = f"PARTIAL: {verdict}"
        notes = [_NO_SUMMARY, *self.subject.notes]
        if run is not None:
            notes = run.notes + [
                f"trace: {note}" for note in run.trace.metadata.notes if note not in run.notes
            ]
        # An imported run has few of them.
        facts = {
            n: v
            for n, v in _facts(self).items()
            if (v.value if isinstance(v, Cell) else v) is not None
        }
        is_open = bool(self.response)
        maps = heat_tables(self.heat, self.bucket_ns, "Response time" if is_open else "Latency")
        deletes = [table for table in maps if table.title.endswith("delete")]
        rates = rate_tables(self.over_time, self.bucket_ns, _IN_FLIGHT)
        latency, response = _distributions_of(self, "latency"), _distributions_of(self, "response")
        times = [
            _times_table("Latency", self.latency),
            *([_times_table("Response time", self.response)] if is_open else []),
            *(response if is_open else latency),
        ]
        lateness = _distributions_of(self, "lateness")
        waits = [_times_table("Lateness", self.lateness), *lateness] if self.lateness else []
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
            note = "Rates: over the time that the imported tool counted, in the column 'in'."
        done = table_of("Operations", Sheet.PERFORMANCE, spec, self.figures, note, keys=2)
        moved = (
            []
            if run is None
            else [{"tier": name} | asdict(of) for name, of in run.device_io.items()]
        )
        spec = [
            ReportColumn("tier"),
            ReportColumn("read_bytes", "read", Unit.BYTES),
            ReportColumn("written_bytes", "written", Unit.BYTES),
        ]
        note = "What the device beneath did meanwhile, for all programs."
        device = table_of("Device", Sheet.DEVICE, spec, moved, note)
        columns = [
            ReportColumn(of, of.removeprefix("is_").replace("_", " ")) for of in ("name", *_TARGET)
        ]
        drives = (
            []
            if run is None
            else [dict.fromkeys(_TARGET) | {"name": name} | of for name, of in run.drives()]
        )
        targets = [table_of("On what it ran", Sheet.PARAMETERS, columns, drives)] if drives else []
        chapters = [
            *([] if ranks is None else [Chapter("Ranks", ranks_tables(ranks))]),
            *([] if saved is None else [Chapter("Checkpoints", checkpoint_tables(saved))]),
            Chapter("Tiers", [done, *_hits(run), *rates]),
            Chapter("Latency", [*times, *(table for table in maps if table not in deletes)]),
            Chapter("Requests, QoS and criteria", [*request_tables(run), *_throughput(run)]),
            Chapter("Wear", [wear_table(self.writes_per_day, _WEAR), device]),
            *([] if self.layers is None else [layer_chapter(self.layers)]),
            *([] if self.closeness is None else [closeness_chapter(self.closeness)]),
            *([] if self.probe is None else [probe_chapter(self.probe)]),
            Chapter(
                "Service time and lateness" if is_open else "Lateness",
                [*(latency if is_open else []), *waits],
            ),
            Chapter("Deletes over time", deletes),
            Chapter("Sizes", size_tables(self.sizes, self.size_bins)),
            Chapter("Reuse", reuse_tables(self.reuse)),
            Chapter(
                "What was run, and on what", [*targets, parameters("Run", Sheet.PARAMETERS, facts)]
            ),
        ]
        tier, measure = _tested(self), "Response time" if is_open else "Latency"
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
        """Return the figures that the tiers' models gave a simulated run, which none of its rows
        count as measured.
        """
        found = self if self.run is None else summary_report(self.run)
        return msgspec.structs.replace(
            found, figures=[row | {"engine": "model"} for row in found.figures]
        )

    def failed(self) -> tuple[int, int, str]:
        """Return how many failed, of how many, and of what.

        Operations, or the requests of a serving benchmark.
        """
        if self.run is not None and isinstance(served := self.run.serving, Serving):
            failed = served.failed_requests or 0
            return failed, failed + (served.requests or 0), "requests"
        failed = sum(row["errors"] or 0 for row in self.figures)
        return failed, failed + sum(row["operations"] or 0 for row in self.figures), "operations"

    def warnings(self) -> list[str]:
        """Return what a reader must know of the run before any figure."""
        run = self.run
        found = [] if run is None or not self.is_partial else [f"PARTIAL: {run.reason}"]
        if run is not None and run.summary.fell_behind:
            found.append("The replay fell behind the trace: its times are those of an overload")
        failed, corrupt = (
            sum(row[name] or 0 for row in self.figures) for name in ("errors", "corrupt")
        )
        found += [f"{counted(failed, 'operation')} FAILED"] if failed else []
        were = "was a CORRUPT read" if corrupt == 1 else "were CORRUPT reads"
        found += [f"{corrupt:,} of them {were}"] if corrupt else []
        is_served = run is not None and isinstance(run.serving, Serving)
        if all(row["operations"] == 0 for row in self.figures) and not is_served:
            found.append("no operation completed")
        if all(row["engine"] in ("sim", "none") for row in self.figures) and self.figures:
            found.append("nothing moved: all tiers were simulated or skipped")
        return found

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield times and rates, of requests, operations and the layers beneath."""
        yield (
            ("", "", "wall_ns"),
            None if self.run is None or self.is_simulated else self.run.summary.wall_ns,
        )
        yield from ((("", "", name), value) for name, value in _of_requests(self.run))
        # What nothing moved for has no figures of its own.
        moved = [row for row in self.figures if row["engine"] not in ("none", "sim")]
        yield from of_rows(
            moved, ("bandwidth_bytes_per_s", "operations_per_s", "operations", "errors", "bytes")
        )
        for measure in ("latency", "response", "lateness"):
            yield from of_rows(getattr(self, measure), _PERCENTILES, f"{measure}_")
        yield from of_objects(self)
        if self.probe is not None:
            yield from self.probe.compared()

    def settings(self) -> dict[str, object]:
        """Return what the trace was made with, and how it was replayed."""
        run, made = self.run, self.subject.settings()
        if run is None:
            return made | {"config_sha256": self.subject.config_sha256}
        more = {"engine.name": run.engine.name, "host": run.host, "window.rows": run.window.rows}
        if run.trace.sha256 is not None and not made["load"]:
            made["load"] = {"file": run.trace.file, "sha256": run.trace.sha256[:12]}
        return made | {"trace": run.trace.file} | run.config | more


_PERCENTILES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")


def _of_requests(run: RunFile | None) -> Iterator[tuple[str, float | None]]:
    """Yield the figures of whole requests.

    As a serving benchmark measured them, else as a replay computed them.
    """
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
    """Return the report of the run whose table is `ops`, with the run.json in its folder if there
    is one.
    """
    meta = tables.open_table(ops, OPS).meta
    run = find_run(ops.parent)
    asked = None if run is None or run.summary.warmup is None else run.summary.warmup.asked
    recording = record_ops(ops, parse_warmup(asked))
    times = operation_times(recording, PARTS)
    with opened([ops]) as db:
        span = query(db, "run_span")[0]
        span_ns = None if span["first_ns"] is None else span["last_ns"] - span["first_ns"]
        bucket_ns = span_ns // buckets + 1 if span_ns else None
        done = figure_rows(recording)
        stretches = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns}
        over_time = (
            query(db, "run_over_time", start_ns=0, buckets=buckets, **stretches)
            if bucket_ns
            else []
        )
        heat = query(db, "run_heat", **stretches) if bucket_ns else []
        is_probed = run is not None and run.probes is not None and run.probes.is_measured
        return RunReport(
            subject=subject_of(ops, meta),
            run=run,
            figures=done,
            **times.summaries,
            distributions=times.points,
            sizes=query(db, "run_sizes", has_deletes=False),
            size_bins=query(db, "run_size_bins", has_deletes=False),
            bucket_ns=bucket_ns,
            over_time=over_time,
            heat=heat,
            writes_per_day=writes_per_day(
                {
                    f["tier"]: f["io_bytes"]
                    for f in done
                    if f["op"] == "write" and f["io_bytes"] and f["engine"] not in ("memory", "gpu")
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
    """Return the report of a run whose operations were not kept.

    An import of figures alone, such as fio's JSON.
    """
    found = [msgspec.to_builtins(figures) for figures in run.summary.figures]
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
            {name: f[name] for name in _SUMMARY_FIGURES} | {"rows": None, "skipped": None}
            for f in found
        ],
        latency=[
            {"tier": f["tier"], "op": f["op"]} | f["latency"]
            for f in found
            if f["latency"]["count"]
        ],
        response=[
            {"tier": f["tier"], "op": f["op"]} | f["response"] for f in found if f["response"]
        ],
    )


_MOST = 6
"""Figures that stand first."""
_IN_FLIGHT = (
    "An operation's bytes are spread over the time in which it was in flight; it counts when it"
    " completes."
)
_WEAR = (
    "At this run's rate, which is the service's only if it kept pace at speed 1. Padding counts;"
    " what the drive writes inside does not."
)
_NO_SUMMARY = "run.json is missing: how the run was made, its device and its notes are unknown"
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
    """Return the drive, the model and the workload, as far as they are known."""
    run = report.run
    facts = (
        {}
        if run is None
        else next((facts for name, facts in run.drives() if name == _tested(report)), {})
    )
    drive = facts.get("device_model") or facts.get("device") or facts.get("target")
    where = (
        drive
        if drive is None or not facts.get("filesystem")
        else f"{drive} ({facts['filesystem']})"
    )
    meta = None if run is None else run.trace.metadata
    said = (
        (where, report.subject.model)
        if meta is None
        else (where, meta.model_name, workload_of(meta))
    )
    return ", ".join(str(part) for part in said if part)


def _tested(report: RunReport) -> str | None:
    """Return the slowest tier that moved bytes, which is the one under test."""
    return next(
        (
            row["tier"]
            for row in reversed(report.figures)
            if row["bandwidth_bytes_per_s"] is not None
        ),
        None,
    )


def _subject(run: RunFile | None) -> list[str]:
    """Return a line for each drive that the run was on, and one for what was replayed."""
    if run is None:
        return []
    lines = []
    for name, facts in run.drives():
        where = [
            facts.get("target") or facts.get("engine"),
            facts.get("filesystem"),
            facts.get("device"),
        ]
        where += [facts.get("device_model"), facts.get("device_firmware"), facts.get("engine")]
        told = ", ".join(str(part) for part in dict.fromkeys(where) if part)
        lines.append(f"{name}: {told}{' (simulated)' if facts.get('is_simulated') else ''}")
    loop = {
        "open": "open loop, operations due at the trace's times",
        "closed": "closed loop, as fast as it goes",
    }
    at = f" at speed {run.pacing.speed:g}" if run.pacing.loop == "open" and run.pacing.speed else ""
    paced = loop.get(run.pacing.loop or "", "")
    made = [
        run.trace.file,
        f"{paced}{at}",
        format_duration(run.summary.wall_ns) if run.summary.wall_ns else "",
    ]
    return [*lines, ", ".join(part for part in made if part)]


def _highlights(report: RunReport) -> list[Highlight]:
    """Return the figures that matter of the tier under test."""
    name = _tested(report)
    if name is None:
        return []
    found = [
        Highlight(
            f"{row['op']} bandwidth, {name}",
            row["bandwidth_bytes_per_s"],
            Unit.BYTES_PER_S,
            "" if row["operations"] is None else counted(row["operations"], "operation"),
        )
        for row in report.figures
        if row["tier"] == name and row["bandwidth_bytes_per_s"] is not None
    ]
    # An open loop is judged by the response time: time spent waiting to be submitted counts.
    measure, times = (
        ("response", report.response) if report.response else ("latency", report.latency)
    )
    found += [
        _tail(f"{row['op']} {measure}", f", {name}", row, "")
        for row in times
        if row["tier"] == name and row["op"] != "delete"
    ]
    requests = None if report.run is None else report.run.requests
    if requests is not None and requests.first_token is not None and requests.first_token.count:
        found.append(
            _tail("time to first token", "", asdict(requests.first_token), "requests, modelled")
        )
    share = None if report.run is None else report.run.trace.metadata.hit_ratio
    if share is not None:
        found.append(
            Highlight(
                "hit ratio, all tiers", share, Unit.SHARE, "of the trace's lookups, simulated"
            )
        )
    for row in report.writes_per_day:
        if row["tier"] == name and row["years_of_life"] is not None:
            found.append(
                Highlight(
                    f"drive life, {name}",
                    row["years_of_life"],
                    Unit.YEARS,
                    "at this rate, see Wear",
                )
            )
    late = [row for row in report.lateness if row["tier"] == name]
    if late:
        found.append(
            Highlight(f"latest submission, {name}", max(row["max_ns"] for row in late), Unit.NS)
        )
    return found[:_MOST]


def _tail(what: str, where: str, row: Row, of: str) -> Highlight:
    """Return the highest percentile up to p99 that has enough operations."""
    name = next(
        (q for q in ("p99_ns", "p95_ns", "p50_ns", "max_ns") if row[q] is not None), "max_ns"
    )
    shown = name.removesuffix("_ns")
    return Highlight(
        f"{what} {shown}{where}",
        row[name],
        Unit.NS,
        f"of {format_count(row['count'])} {of}".strip(),
    )


def _facts(report: RunReport) -> dict[str, object]:
    known = partial(at, report.run)
    return origin(report.subject) | {
        "source": known("trace", "file"),
        "trace made by": " ".join(known("trace", "metadata", "argv") or ()) or None,
        "status": known("status"),
        "started": known("started_utc"),
        "wall time": Cell(known("summary", "wall_ns"), Unit.NS),
        "loop": known("pacing", "loop"),
        "speed": known("pacing", "speed"),
        "kept pace": known("summary", "pace", "kept_pace"),
        "queue depth": Cell(known("engine", "queue_depth"), Unit.COUNT),
        "engine": known("engine", "name"),
        "largest I/O": Cell(known("engine", "io_bytes"), Unit.IO_BYTES),
        "whole trace": known("window", "is_whole_trace"),
        "limit": known("window", "limit"),
        "warm-up": known("config", "warmup"),
        "data": known("data", "note"),
        "processor": known("host", "cpu_model"),
        "processors": Cell(known("host", "cpus"), Unit.COUNT),
        "kernel": known("host", "kernel"),
    }


def _hits(run: RunFile | None) -> list[ReportTable]:
    tiers = at(run, "trace", "metadata", "stats", "tiers")
    if run is None or not tiers:
        return []
    capacity = {tier.name: tier.capacity_bytes for tier in run.trace.metadata.tiers}
    rows = [
        {"hits": None, "hit_ratio": None, **t, "capacity_bytes": capacity.get(t.get("name"))}
        for t in tiers
    ]
    total = run.trace.metadata.hit_ratio
    if total is not None:
        hits = sum(row["hits"] or 0 for row in rows)
        rows.append({"name": "in total", "capacity_bytes": None, "hits": hits, "hit_ratio": total})
    columns = [
        ReportColumn("name", "tier"),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("hits", unit=Unit.COUNT),
        ReportColumn("hit_ratio", "hit ratio", Unit.SHARE),
    ]
    note = "Shares of all lookups, of the simulation that made the whole trace, not of this run."
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
        "Latency": (
            "Service time: from submission to completion, of all completed operations merged."
        ),
        "Response time": (
            "From when operations were due to their completion; time spent waiting for submission"
            " counts."
        ),
        "Lateness": "From when operations were due to their submission; a closed loop has none.",
    }[title]
    return table_of(title, Sheet.PERFORMANCE, columns, rows, note, keys=2)


def _distributions_of(report: RunReport, measure: str) -> list[ReportTable]:
    """Return a time by share of operations, a table and a curve a tier."""
    name, tables = "Response time" if measure == "response" else measure.capitalize(), []
    note = (
        f"{name} that the given share of operations did not exceed, by nearest rank; - with too few"
        " of them."
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
    found, rates = (
        run.mlperf.throughput,
        ("storage_throughput_tokens_per_s", "wall_clock_throughput_tokens_per_s"),
    )
    facts = {
        name: Cell(getattr(found, name), unit_of(name))
        for name in ("tokens", "storage_io_ns", *rates)
    }
    note = found.reason or (
        "Tokens that the trace's requests generated, over the latencies of all operations on"
        " storage added up, and over the wall time of the replay, in which no token is generated."
    )
    return [parameters("Throughput by MLPerf's names", Sheet.PERFORMANCE, facts, note)]


SERVING_FIGURES = (
    *("requests", "failed_requests", "input_tokens", "output_tokens"),
    *("requests_per_s", "input_tokens_per_s", "output_tokens_per_s"),
)
"""Of a serving benchmark."""
SERVING_TIMES = {
    "first_token": "to the first token",
    "inter_token": "between two tokens",
    "output_token": "a token after the first, by answer",
    "answer": "to the last token",
}
_TARGETS = ("p95", "p99", "p99_9", "p99_99")


def request_tables(run: RunFile | None) -> list[ReportTable]:
    """Return the tables of requests, classes of service and criteria of `run`."""
    requests, mlperf = (None, None) if run is None else (run.requests, run.mlperf)
    if run is not None and isinstance(run.serving, Serving):
        found = run.serving
        figures = {
            name.replace("_", " "): Cell(getattr(found, name), unit_of(name))
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
        rows = _measured({said: getattr(found, name) for name, said in SERVING_TIMES.items()})
        note = f"As {found.benchmark} measured them, at the engine's front."
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
        token, modelled = requests.first_token, "time to the first token, modelled"
        rows = _measured(
            {"storage time": requests.storage, "response time": requests.response, modelled: token}
        )
        said = (
            requests.first_token_definition
            if token is not None
            else requests.first_token_reason or "not known"
        )
        note = (
            "Storage time: in which at least one of a request's operations was in flight. Response"
            " time, of an open loop: in which at least one was due and not completed."
        )
        tables = [
            table_of(
                "Requests", Sheet.QOS, columns, rows, f"{note} Time to the first token: {said}."
            )
        ]
    tables += _classes(requests, mlperf)
    if mlperf is None or not mlperf.criteria:
        none = {"criteria": "not measured: this run judged none"}
        return [*tables, parameters("Criteria of MLPerf", Sheet.QOS, none)]
    rows = [
        asdict(c)
        | {
            value: Cell(getattr(c, value), unit_of(c.name, Unit.SHARE))
            for value in ("measured", "threshold")
        }
        for c in mlperf.criteria
    ]
    note = (
        "Of the benchmark program, no rule of a submission. Latencies must be below their"
        " thresholds, others above."
    )
    columns = [
        ReportColumn("name", "criterion"),
        ReportColumn("verdict"),
        ReportColumn("measured"),
        ReportColumn("threshold"),
        ReportColumn("definition"),
    ]
    return [*tables, table_of("Criteria of MLPerf", Sheet.QOS, columns, rows, note)]


def _measured(times: dict[str, Distribution | ServingTimes | None]) -> list[Row]:
    return [{"measure": said} | asdict(found) for said, found in times.items() if found is not None]


def _classes(found: RequestFigures | None, mlperf: Mlperf | None) -> list[ReportTable]:
    if found is None or not found.classes:
        reason = (
            mlperf.qos_reason if mlperf else None
        ) or "the run does not say which class a request is of"
        return [parameters("Classes of service", Sheet.QOS, {"QoS": f"not measured: {reason}"})]
    note = mlperf.qos_definition.strip() if mlperf else ""
    columns = [
        ReportColumn("qos", "class"),
        ReportColumn("count", "requests", Unit.COUNT),
        ReportColumn("share_within_p95_target", "within p95 target", Unit.SHARE),
        ReportColumn("verdict"),
    ]
    classes = [asdict(of_class) | {"count": of_class.storage.count} for of_class in found.classes]
    said = f"{note[:1].upper()}{note[1:]}." if note else ""
    judged = table_of("Classes of service", Sheet.QOS, columns, classes, said)
    columns = [
        ReportColumn("qos", "class"),
        ReportColumn("percentile"),
        ReportColumn("reached_ns", "measured", Unit.NS),
        ReportColumn("target_ns", "target", Unit.NS),
        ReportColumn("verdict"),
    ]
    rows = []
    for of_class in found.classes:
        times = of_class.storage if of_class.response is None else of_class.response
        for name in _TARGETS:
            reached, target = getattr(times, f"{name}_ns"), of_class.targets_ns.get(name)
            is_known = reached is not None and target is not None
            verdict = ("pass" if reached <= target else "fail") if is_known else "not measured"
            rows.append([of_class.qos, name.replace("_", "."), reached, target, verdict])
    measured = "Measured: the response time in an open loop, else the storage time."
    return [judged, table_of("Targets of the classes", Sheet.QOS, columns, rows, measured, keys=2)]
