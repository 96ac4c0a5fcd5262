"""Documents of jobs: the profile, the files written, and how closely their I/O matches."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path

from kvdistill.jobs.check import Closeness
from kvdistill.jobs.closeness import ClosenessPair
from kvdistill.jobs.fio_jobs import WrittenJobs
from kvdistill.jobs.job import PREFILL, expectation_text
from kvdistill.jobs.store_jobs import StoreCloseness, StoreJobs
from kvdistill.jobs.verdicts import StreamFigures, Verdict
from kvdistill.profile.profile import Profile
from kvdistill.reports.tables import Report, unit_of
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    parameters,
    show,
    table_of,
)
from kvtrace.core.files import at
from kvtrace.core.units import NS_PER_S, counted, format_duration


class JobsReport(Report, frozen=True, kw_only=True):
    """Results of `kvdistill fio --check`: the closeness of jobs to their source."""

    kind = "jobs"
    name: str
    closeness: Closeness
    profile: dict[str, object] | None

    def document(self) -> Document:
        """Return the document of checked jobs."""
        profile = self.profile or {}
        origin = at(profile, "origin") or {}
        origin_facts = {
            name.replace("_", " "): value
            for name, value in origin.items()
            if isinstance(value, str | int | float)
        }
        facts = {"tier": profile.get("tier"), **origin_facts}
        return Document(
            name=self.name,
            headline="; ".join(line.partition(";")[0] for line in _closeness_lines(self.closeness))
            or "no job was compared",
            subject=_closeness_lines(self.closeness),
            chapters=[
                closeness_chapter(self.closeness),
                Chapter(
                    "Workload profile",
                    [parameters("Source of the jobs", Sheet.PARAMETERS, facts)],
                ),
            ],
            pictures=closeness_charts(self.closeness),
        )


_MARKS = {True: "pass", False: "FAIL"}
_NUMBER = re.compile(r"\.(lane)?[0-9]+\.iolog$")


_WARNING = "WARNING: "
"""How the line of a job begins that is predicted to miss its source."""


def written_document(
    written: WrittenJobs | StoreJobs, folder: Path, compared: StoreCloseness | None = None
) -> Document:
    """Return the document of jobs just written to `folder`.

    `compared` compares an object store's job with a replay.
    """
    # Numbered logs are listed as one.
    files = dict.fromkeys(_NUMBER.sub(r".\1*.iolog", name) for name in written.files)
    chapters = [profile_chapter(written.profile)]
    lines_of_answer = [f"Written to {folder}: {', '.join(files)}"]
    if isinstance(written, WrittenJobs):
        logs = {
            mode: (
                f"{counted(log.read_ios + log.write_ios, 'line')} over"
                f" {counted(len(log.files), 'lane' if log.lanes else 'job')}"
            )
            for mode, log in written.logs.items()
        }
        rows = [[mode, space, logs.get(mode)] for mode, space in written.space_bytes.items()]
        columns = [
            ReportColumn("job"),
            ReportColumn("space_bytes", "space needed", Unit.BYTES),
            ReportColumn("log"),
        ]
        chapters.append(Chapter("Jobs", [ReportTable("", Sheet.SUMMARY, columns, rows)]))
        if written.closeness is not None:
            chapters.append(closeness_chapter(written.closeness))
            answers = _closeness_lines(written.closeness)
        else:
            answers = _prediction_lines(written)
        warnings = [line for line in answers if line.startswith(_WARNING)]
        others = [line for line in answers if not line.startswith(_WARNING)]
        coverage = _coverage_lines(written.profile)
        lines_of_answer = [*warnings, *coverage, *others, *lines_of_answer, _run_line(files)]
    elif written.log is not None:
        log = written.log
        counts = {
            "GETs": log.gets,
            "PUTs": log.puts,
            "DELETEs": log.deletes,
            "populated before the start": log.populated,
        }
        columns = [
            ReportColumn("operation", ""),
            ReportColumn("operations", unit=Unit.COUNT),
        ]
        rows = [[name, count] for name, count in counts.items()]
        chapters.append(Chapter("Op log", [ReportTable("", Sheet.SUMMARY, columns, rows)]))
    if compared is not None:
        chapters.append(_replay_chapter(compared))
    return Document("", lines_of_answer[0], chapters, subject=lines_of_answer[1:])


def _run_line(files: Iterable[str]) -> str:
    """Return how to run the jobs of `files`."""
    jobs = [f"fio {name}" for name in files if name.endswith(".fio") and name != PREFILL]
    return (
        f"Run there: fio {PREFILL} once, then {' or '.join(jobs)}; a job's head says what it needs"
        " and overwrites"
    )


def _coverage_lines(profile: Profile) -> list[str]:
    """Return a line that says what the jobs do not test, if the source only reads or only writes."""
    span = format_duration(profile.span_ns)
    for name, lacking, direction in (
        ("WRITES ONLY", "read", profile.read),
        ("READS ONLY", "written", profile.write),
    ):
        if not direction.ops:
            line = (
                f"{name}: nothing is {lacking} on tier {profile.tier} in these {span}; a longer"
                " source (--duration), or another window of it (--from, --busiest), may hold both"
            )
            return [line]
    return []


def _prediction_lines(written: WrittenJobs) -> list[str]:
    """Return the predicted closeness of the jobs, those that miss their source first.

    Jobs with the same prediction share a line.
    """
    jobs_of: dict[str, list[str]] = {}
    for mode, figures in written.expected.items():
        jobs_of.setdefault(expectation_text(figures), []).append(f"{mode}.fio")
    missed = {
        expectation_text(figures)
        for figures in written.expected.values()
        if any(figure.is_missed for figure in figures)
    }
    return [
        f"{_WARNING if text in missed else ''}{', '.join(jobs)}: {text}"
        for text, jobs in sorted(jobs_of.items(), key=lambda entry: entry[0] not in missed)
    ]


def _replay_chapter(compared: StoreCloseness) -> Chapter:
    """Return the comparison of an object store's job with a replay, one figure a row."""
    names = {
        "get_share": ("GETs", Unit.SHARE),
        "put_share": ("PUTs", Unit.SHARE),
        "delete_share": ("DELETEs", Unit.SHARE),
        "get_mean_bytes": ("mean size of a GET", Unit.BYTES),
        "put_mean_bytes": ("mean size of a PUT", Unit.BYTES),
        "ops_per_s": ("operations a second", Unit.PER_S),
    }
    rows = [
        [label, *(Cell(side[name], unit) for side in (compared.job, compared.replay))]
        for name, (label, unit) in names.items()
    ]
    counts = [
        counted(n, op)
        for op, n in (("GET", compared.gets), ("PUT", compared.puts), ("DELETE", compared.deletes))
    ]
    notes = [f"the replay completed {counts[0]}, {counts[1]} and {counts[2]} ({compared.run})"]
    for op, value in (("GETs", compared.get_size_variation), ("PUTs", compared.put_size_variation)):
        if value is not None:
            notes.append(
                f"{op}: sizes of job and replay differ by {value:.1%} (total variation distance)"
            )
    table = table_of(
        "",
        Sheet.SUMMARY,
        [
            ReportColumn("figure", ""),
            ReportColumn("job", unit=Unit.NUMBER),
            ReportColumn("replay", unit=Unit.NUMBER),
        ],
        rows,
    )
    return Chapter("Job compared with the replay", [table], notes)


def profile_chapter(profile: Profile) -> Chapter:
    """Return the chapter of a profile's main figures."""
    columns = [
        ReportColumn("op", ""),
        ReportColumn("operations", unit=Unit.COUNT),
        ReportColumn("object_bytes", "object bytes", Unit.BYTES),
        ReportColumn("io_bytes", "I/O bytes", Unit.BYTES),
        ReportColumn("sizes", "distinct sizes", Unit.COUNT),
    ]
    rows: list[list[object]] = [
        [name, direction.ops, direction.object_bytes, direction.io_bytes, len(direction.sizes)]
        for name, direction in (("reads", profile.read), ("writes", profile.write))
    ]
    # A run does not record the bytes that its deletes free.
    freed = profile.delete_bytes or (None if profile.delete_ops else 0)
    rows.append(["deletes", profile.delete_ops, freed, None, None])
    # Figures that the source does not hold are omitted.
    rate = profile.ops * NS_PER_S / profile.span_ns if profile.span_ns else None
    facts: dict[str, object] = {"operations a second": Cell(rate, Unit.PER_S)}
    if profile.arrivals is not None:
        for name, value in profile.arrivals.dispersion.by_window.items():
            facts[f"burstiness (variance/mean, {name})"] = Cell(value, Unit.NUMBER)
        facts["fitted streams"] = Cell(len(profile.streams), Unit.COUNT)
    if profile.depth is not None:
        facts["mean queue depth"] = Cell(profile.depth.mean, Unit.NUMBER)
    if profile.idle is not None:
        facts["idle time"] = Cell(profile.idle.total_ns, Unit.NS)
    if profile.space is not None:
        facts["address space"] = Cell(profile.space.span_bytes, Unit.BYTES)
        facts["peak reserved"] = Cell(profile.space.peak_reserved_bytes, Unit.BYTES)
    if profile.locality is not None:
        scope = "" if profile.locality.is_whole else f" (first {profile.locality.ops:,} operations)"
        facts[f"I/O share of hottest 10 % of blocks{scope}"] = Cell(
            profile.locality.hot10_share, Unit.SHARE
        )
        facts[f"median reuse distance, 128 KiB blocks{scope}"] = Cell(
            profile.locality.reuse_p50_blocks, Unit.NUMBER
        )
    title = f"Tier {profile.tier} of {profile.origin.file}, {format_duration(profile.span_ns)}"
    parameters_table = parameters("Workload profile", Sheet.PARAMETERS, facts)
    return Chapter(title, [ReportTable("", Sheet.SUMMARY, columns, rows), parameters_table])


def closeness_charts(closeness: Closeness) -> tuple[Chart, ...]:
    """Return the sizes and the gaps of the source and of its jobs, over each other.

    Jobs may be compared with different views of one source: arrivals of several I/Os, or each I/O.
    A view that differs has a line of its own.
    """
    charts = []
    for title, field, unit in (
        ("Sizes of I/Os: source and jobs", "io_bytes", Unit.IO_BYTES),
        ("Gaps between arrivals: source and jobs", "gap_ns", Unit.NS),
    ):
        series: list[Series] = []
        for pair in closeness.comparisons:
            source, job = (
                _distribution(name, side, field)
                for name, side in (("source", pair.source), (pair.job, pair.fio))
            )
            if source is None or job is None:
                continue
            if not series:
                series.append(source)
            elif source.y != series[0].y:
                series.append(dataclasses.replace(source, label=f"source of {pair.job}"))
            series.append(job)
        if series:
            charts.append(Chart(title, ChartShape.QUANTILES, Unit.NUMBER, unit, series))
    return tuple(charts)


def _distribution(name: str, figures: StreamFigures, field: str) -> Series | None:
    """Return one field of the distributions of a side by share of I/Os; null without values."""
    if figures.distributions is None:
        return None
    points = zip(figures.distributions.shares, getattr(figures.distributions, field), strict=False)
    # A gap of 0 has no place on an axis of powers of ten.
    shown = [(share, float(value)) for share, value in points if value > 0]
    return Series(name, [x for x, _ in shown], [y for _, y in shown]) if shown else None


def closeness_chapter(closeness: Closeness) -> Chapter:
    """Return the chapter of the results of `--check`."""
    notes = [
        f"fio {closeness.fio_version}",
        *closeness.notes,
        *(
            f"gap KS of {job.name}: gaps between distinct arrival times, at fio's log resolution of"
            f" {format_duration(job.gap_resolution_us * 1000)}"
            for job in (pair.fio for pair in closeness.comparisons)
            if job.gap_ks is not None
            and job.gap_resolution_us is not None
            and job.gap_resolution_us > 1
        ),
    ]
    # One row a figure, one column a side: the figures would not fit as columns.
    sides = [
        # Several jobs may share one source.
        (name, side, pair.window)
        for pair in closeness.comparisons
        for name, side in ((f"source of {pair.fio.name}", pair.source), (pair.fio.name, pair.fio))
    ]
    columns = [
        ReportColumn("figure", "figure"),
        *(ReportColumn(name, name, Unit.NUMBER) for name, _, _ in sides),
    ]
    rows: list[list[object]] = [["window", *(Cell(window, Unit.TEXT) for _, _, window in sides)]]
    rows += [
        [name.replace("_", " "), *(Cell(getattr(side, name), _unit(name)) for _, side, _ in sides)]
        for name in StreamFigures.__struct_fields__
        if name not in ("name", "distributions")
    ]
    figures_table = ReportTable("Closeness", Sheet.PERFORMANCE, columns, rows if sides else [])
    verdict_rows: list[list[object]] = []
    for pair in closeness.comparisons:
        for verdict in pair.verdicts:
            mark = "not measured" if verdict.value is None else f"undetermined: {verdict.reason}"
            mark = mark if verdict.passes is None else _MARKS[verdict.passes]
            verdict_rows.append(
                [pair.fio.name, verdict.name, verdict.target, _measured(verdict), mark]
            )
    note = "Percentages are differences from the source; negative means less than the source."
    spec = [
        ReportColumn("job"),
        ReportColumn("target", "figure"),
        ReportColumn("wanted", "target"),
        ReportColumn("reached", "measured"),
        ReportColumn("verdict"),
    ]
    targets = table_of("Closeness targets", Sheet.PERFORMANCE, spec, verdict_rows, note, keys=2)
    return Chapter("Closeness of the jobs", [figures_table, targets], notes)


def _unit(name: str) -> Unit:
    if name == "side" or name.startswith("has_"):
        return Unit.TEXT
    return Unit.COUNT if name == "ios" else unit_of(name, Unit.NUMBER)


def _closeness_lines(closeness: Closeness) -> list[str]:
    """Return the closeness of each job in one line."""
    lines = []
    for pair in closeness.comparisons:
        passes = [verdict.passes for verdict in pair.verdicts if verdict.passes is not None]
        unjudged = (
            "" if len(passes) == len(pair.verdicts) else f" ({len(pair.verdicts)} targets in all)"
        )
        sentences = [
            f"{pair.job}: matches its source in {sum(passes)} of {len(passes)} figures{unjudged}"
        ]
        misses = [
            (verdict.name, _measured(verdict))
            for verdict in pair.verdicts
            if verdict.passes is False
        ]
        if misses:
            sentences.append(
                "MISMATCH: "
                + ", ".join(f"{name} ({show(cell.value, cell.unit)})" for name, cell in misses)
            )
            sentences += [
                f"{verdict.name}: {verdict.reason}"
                for verdict in pair.verdicts
                if verdict.passes is False and verdict.reason is not None
            ]
        for reason in dict.fromkeys(
            verdict.reason
            for verdict in pair.verdicts
            if verdict.passes is None and verdict.reason is not None
        ):
            same_reason = [verdict for verdict in pair.verdicts if verdict.reason == reason]
            sentences.append(
                f"{len(same_reason)} undetermined ({', '.join(verdict.name for verdict in same_reason)}):"
                f" {reason}{_rerun_advice(pair, same_reason)}"
            )
        unmeasured = sum(
            verdict.passes is None and verdict.reason is None for verdict in pair.verdicts
        )
        sentences += [f"{unmeasured} not measured"] * bool(unmeasured)
        lines.append("; ".join(sentences))
    return lines


def _rerun_advice(pair: ClosenessPair, undetermined: list[Verdict]) -> str:
    """Return the `--check-duration` that would determine the verdicts, or an empty text."""
    extra_spans = max((verdict.operations_factor or 0 for verdict in undetermined), default=0)
    if not extra_spans or not pair.span_ns:
        return ""
    spans_ns = [
        verdict.operations_factor * pair.span_ns
        for verdict in undetermined
        if verdict.operations_factor
    ]
    longest_min = math.ceil(max(spans_ns) / (60 * NS_PER_S))
    option = f"--check-duration {longest_min}min"
    needed = ""
    if longest_min * 60 * NS_PER_S > pair.whole_ns:
        needed = f" and a source as long (this one: {format_duration(pair.whole_ns)})"
    return f"; rerun with {option}{needed}"


def _measured(verdict: Verdict) -> Cell:
    unit = Unit.SHARE if "%" in verdict.target else Unit.NUMBER
    return Cell(verdict.value, Unit.TEXT if isinstance(verdict.value, bool) else unit)
