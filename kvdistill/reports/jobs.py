"""Jobs as documents.

What was distilled and written, and how close their I/O comes to the source.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from kvdistill.jobs.check import Closeness
from kvdistill.jobs.closeness import ClosenessPair, StreamFigures, Verdict
from kvdistill.jobs.fio_jobs import WrittenJobs
from kvdistill.jobs.job import expected_said
from kvdistill.jobs.store_jobs import StoreCloseness, StoreJobs
from kvdistill.profile.profile import Profile
from kvdistill.reports.tables import Report, unit_of
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    columns_of,
    parameters,
    show,
    table_of,
)
from kvtrace.core.files import at
from kvtrace.core.units import NS_PER_S, counted, format_duration


class JobsReport(Report, frozen=True, kw_only=True):
    """How close jobs that `kvdistill fio --check` ran come to their source.

    The content of its files.
    """

    kind = "jobs"
    name: str
    closeness: Closeness
    profile: dict[str, object] | None

    def document(self) -> Document:
        """Return the document of checked jobs."""
        profile = self.profile or {}
        origin = at(profile, "origin") or {}
        said = {
            name.replace("_", " "): value
            for name, value in origin.items()
            if isinstance(value, str | int | float)
        }
        facts = {"tier": profile.get("tier"), **said}
        return Document(
            name=self.name,
            headline="; ".join(line.partition(";")[0] for line in _said(self.closeness))
            or "no job was compared",
            subject=_said(self.closeness),
            chapters=[
                closeness_chapter(self.closeness),
                Chapter(
                    "What was distilled",
                    [parameters("Source of the jobs", Sheet.PARAMETERS, facts)],
                ),
            ],
        )


_MARKS = {True: "pass", False: "FAIL"}
_NUMBER = re.compile(r"\.(lane)?[0-9]+\.iolog$")


def written_document(
    written: WrittenJobs | StoreJobs, folder: Path, compared: StoreCloseness | None = None
) -> Document:
    """Return the document of jobs that were just written to `folder`.

    A store's may be compared with a replay.
    """
    # Numbered logs are one.
    files = dict.fromkeys(_NUMBER.sub(r".\1*.iolog", name) for name in written.files)
    chapters = [profile_chapter(written.profile)]
    said = [f"Written to {folder}: {', '.join(files)}"]
    if isinstance(written, WrittenJobs):
        logs = {
            mode: (
                f"{counted(log.read_ios + log.write_ios, 'line')} over"
                f" {counted(len(log.files), 'lane' if log.lanes else 'job')}"
            )
            for mode, log in written.logs.items()
        }
        needs = [[mode, space, logs.get(mode)] for mode, space in written.space_bytes.items()]
        spec = "text: job; bytes: space_bytes = needs; text: log"
        chapters.append(Chapter("Jobs", [ReportTable("", Sheet.SUMMARY, columns_of(spec), needs)]))
        if written.closeness is not None:
            chapters.append(closeness_chapter(written.closeness))
            said = [*_said(written.closeness), *said]
        missed = [
            mode for mode, figures in written.expected.items() if any(f.is_missed for f in figures)
        ]
        lines = {
            mode: f"{mode}.fio: {expected_said(figures)}"
            for mode, figures in written.expected.items()
        }
        said = [*(f"WARNING: {lines.pop(mode)}" for mode in missed), *said, *lines.values()]
    elif written.log is not None:
        log = written.log
        counts = {
            "GETs": log.gets,
            "PUTs": log.puts,
            "DELETEs": log.deletes,
            "to populate before": log.populated,
        }
        spec = "text: operation =; count: operations"
        rows = [[name, count] for name, count in counts.items()]
        chapters.append(Chapter("Op log", [ReportTable("", Sheet.SUMMARY, columns_of(spec), rows)]))
    if compared is not None:
        chapters.append(_replay_chapter(compared))
    return Document("", said[0], chapters, subject=said[1:])


def _replay_chapter(compared: StoreCloseness) -> Chapter:
    """Return a store's job compared with a replay, a figure a row."""
    names = {
        "get_share": ("GETs", Unit.SHARE),
        "put_share": ("PUTs", Unit.SHARE),
        "delete_share": ("DELETEs", Unit.SHARE),
        "get_mean_bytes": ("mean size of a GET", Unit.BYTES),
        "put_mean_bytes": ("mean size of a PUT", Unit.BYTES),
        "ops_per_s": ("operations a second", Unit.PER_S),
    }
    rows = [
        [said, *(Cell(side[name], unit) for side in (compared.job, compared.replay))]
        for name, (said, unit) in names.items()
    ]
    did = [
        counted(n, op)
        for op, n in (("GET", compared.gets), ("PUT", compared.puts), ("DELETE", compared.deletes))
    ]
    notes = [f"the replay did {did[0]}, {did[1]} and {did[2]} that went well ({compared.run})"]
    for op, value in (("GETs", compared.get_size_variation), ("PUTs", compared.put_size_variation)):
        if value is not None:
            notes.append(
                f"{value:.1%} of {op} have another size in the job (total variation distance)"
            )
    table = table_of("", Sheet.SUMMARY, "text: figure =; number: job, replay", rows)
    return Chapter("Job compared with the replay", [table], notes)


def profile_chapter(profile: Profile) -> Chapter:
    """Return the chapter of a profile's main figures."""
    columns = columns_of("""
        text: op =
        count: operations
        bytes: object_bytes = object bytes, io_bytes = I/O bytes
        count: sizes = distinct sizes
    """)
    rows: list[list[object]] = [
        [name, d.ops, d.object_bytes, d.io_bytes, len(d.sizes)]
        for name, d in (("reads", profile.read), ("writes", profile.write))
    ]
    # A run does not say what its deletes free.
    freed = profile.delete_bytes or (None if profile.delete_ops else 0)
    rows.append(["deletes", profile.delete_ops, freed, None, None])
    # What the source does not say is left out.
    rate = profile.ops * NS_PER_S / profile.span_ns if profile.span_ns else None
    facts: dict[str, object] = {"operations a second": Cell(rate, Unit.PER_S)}
    if profile.arrivals is not None:
        for name, value in profile.arrivals.dispersion.by_window.items():
            facts[f"operations in {name}: variance by mean"] = Cell(value, Unit.NUMBER)
        facts["streams that models explain"] = Cell(len(profile.streams), Unit.COUNT)
    if profile.depth is not None:
        facts["in flight, weighted by time"] = Cell(profile.depth.mean, Unit.NUMBER)
    if profile.idle is not None:
        facts["time with nothing in flight"] = Cell(profile.idle.total_ns, Unit.NS)
    if profile.space is not None:
        facts["address space"] = Cell(profile.space.span_bytes, Unit.BYTES)
        facts["reserved at most"] = Cell(profile.space.peak_reserved_bytes, Unit.BYTES)
    if profile.locality is not None:
        part = (
            ""
            if profile.locality.is_whole
            else f", of the first {profile.locality.ops:,} operations"
        )
        facts[f"I/O share of hottest 10 % of blocks{part}"] = Cell(
            profile.locality.hot10_share, Unit.SHARE
        )
        facts[f"median reuse, in 128 KiB blocks{part}"] = Cell(
            profile.locality.reuse_p50_blocks, Unit.NUMBER
        )
    title = f"Tier {profile.tier} of {profile.origin.file}, {format_duration(profile.span_ns)}"
    made = parameters("What jobs are made of", Sheet.PARAMETERS, facts)
    return Chapter(title, [ReportTable("", Sheet.SUMMARY, columns, rows), made])


def closeness_chapter(found: Closeness) -> Chapter:
    """Return the chapter of what `--check` found."""
    notes = [
        f"fio {found.fio_version}",
        *found.notes,
        *(
            f"gap KS of {job.name}: between arrivals (operations due at one time count once),"
            f" beyond the {format_duration(job.gap_resolution_us * 1000)} to which fio logs times"
            for job in (pair.fio for pair in found.comparisons)
            if job.gap_ks is not None
            and job.gap_resolution_us is not None
            and job.gap_resolution_us > 1
        ),
    ]
    # A row a figure and a column a side: there are more figures than a page is wide.
    sides = [
        # Several jobs may have the source as theirs.
        (name, side, pair.window)
        for pair in found.comparisons
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
        if name != "name"
    ]
    closeness = ReportTable("Closeness", Sheet.PERFORMANCE, columns, rows if sides else [])
    judged: list[list[object]] = []
    for pair in found.comparisons:
        for verdict in pair.verdicts:
            marked = "not measured" if verdict.value is None else f"undetermined: {verdict.why}"
            marked = marked if verdict.passes is None else _MARKS[verdict.passes]
            judged.append([pair.fio.name, verdict.name, verdict.target, _measured(verdict), marked])
    note = "Shares are differences from the source: negative is less than it."
    spec = "text: job, target = figure, wanted = target, reached = measured, verdict"
    targets = table_of("Targets of closeness", Sheet.PERFORMANCE, spec, judged, note, keys=2)
    return Chapter("Closeness of the jobs", [closeness, targets], notes)


def _unit(name: str) -> Unit:
    if name == "side" or name.startswith("has_"):
        return Unit.TEXT
    return Unit.COUNT if name == "ios" else unit_of(name, Unit.NUMBER)


def _said(found: Closeness) -> list[str]:
    """Return in a sentence a job how close they come."""
    lines = []
    for pair in found.comparisons:
        judged = [verdict.passes for verdict in pair.verdicts if verdict.passes is not None]
        few = (
            ""
            if len(judged) == len(pair.verdicts)
            else f" that could be judged, of {len(pair.verdicts)}"
        )
        said = [f"{pair.job}: matches its source in {sum(judged)} of {len(judged)} figures{few}"]
        missed = [(v.name, _measured(v)) for v in pair.verdicts if v.passes is False]
        if missed:
            said.append(
                "NOT in "
                + ", ".join(f"{name} ({show(cell.value, cell.unit)})" for name, cell in missed)
            )
            said += [
                f"{v.name}: {v.why}"
                for v in pair.verdicts
                if v.passes is False and v.why is not None
            ]
        for reason in dict.fromkeys(
            v.why for v in pair.verdicts if v.passes is None and v.why is not None
        ):
            of = [v for v in pair.verdicts if v.why == reason]
            said.append(
                f"{len(of)} undetermined ({', '.join(v.name for v in of)}):"
                f" {reason}{_settled(pair, of)}"
            )
        left = sum(v.passes is None and v.why is None for v in pair.verdicts)
        said += [f"{left} not measured"] * bool(left)
        lines.append("; ".join(said))
    return lines


def _settled(pair: ClosenessPair, undetermined: list[Verdict]) -> str:
    """Return how long a check would settle what is `undetermined`, and whether the source is as
    long; else nothing.
    """
    more = max((verdict.more or 0 for verdict in undetermined), default=0)
    if not more or not pair.span_ns:
        return ""
    spans_ns = [v.more * pair.span_ns for v in undetermined if v.more]
    least, most = (math.ceil(of(spans_ns) / (60 * NS_PER_S)) for of in (min, max))
    how = f"--check-duration {most}min"
    if most * 60 * NS_PER_S > pair.whole_ns:
        how += f", and a source as long: this is {format_duration(pair.whole_ns)}"
    return (
        f"; a check of {least if least == most else f'{least} to {most}'} min would settle them"
        f" ({how})"
    )


def _measured(verdict: Verdict) -> Cell:
    unit = Unit.SHARE if "%" in verdict.target else Unit.NUMBER
    return Cell(verdict.value, Unit.TEXT if isinstance(verdict.value, bool) else unit)
