"""Read what a user names into reports and documents, and write them in the form that a file's name
tells.

A workbook has sheets of the MLPerf Storage KV-cache benchmark's names, so that scripts made for it
read a run of ours: those of a run's figures are in `kvtrace/core/document/chapters.py`, what probes
saw is here, under the names of its export (kv_cache/cli.py of mlcommons/storage, 2026-04).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from kvdistill.formats.importing import TRACE_FILE
from kvdistill.jobs.check import CLOSENESS, find_closeness
from kvdistill.jobs.job import PROFILE
from kvdistill.profile.notebook import html_table
from kvdistill.reports.cards import cards_document, compare_cards
from kvdistill.reports.compare import KINDS, Comparison, comparison_of
from kvdistill.reports.jobs import JobsReport
from kvdistill.reports.probe import ProbeReport, probe_report
from kvdistill.reports.run import RunReport, run_report, summary_report
from kvdistill.reports.tables import Report, ReportedTrials
from kvdistill.reports.trace import trace_report
from kvtrace import __version__
from kvtrace.core import tables
from kvtrace.core.document.chapters import (
    POINTS,
    card_document,
    run_sheets,
    sweep_document,
    unit_of,
)
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    table_of,
)
from kvtrace.core.document.export import PlainSheet
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import find_json, write_text
from kvtrace.core.run.run_file import (
    MLPERF_FILE,
    OPS_FILE,
    PROBE_FILE,
    TRIALS_FOLDER,
    MlperfMark,
    find_mark,
    find_run,
    refuse_cut_off,
    runs_below,
)
from kvtrace.core.run.sweep_file import CARD_FILE, Card, LoadSweep, find_card, find_sweep
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.statistics import Endurance, at_rank, nearest_rank

SUFFIXES = (".html", ".md", ".csv", ".xlsx")
BUCKETS = 48


class LoadsReport(Report, frozen=True, kw_only=True, omit_defaults=True):
    """What a trace came to at rising loads, or a drive sustains of caching stacks.

    Sweep.json, or scorecard.json.
    """

    kind = "sweep"
    name: str
    """The folder's."""
    sweep: LoadSweep | None = None
    card: Card | None = None

    def document(self) -> Document:
        """Return its points and knee, or the card's page.

        What the drive itself does is in drive.json.
        """
        return sweep_document(self.sweep) if self.sweep else card_document(cast("Card", self.card))


def report(path: Path, buckets: int = BUCKETS, endurance: Endurance | None = None) -> Report:
    """Return the report of the trace at `path`, or of its folder.

    A run, sweep, scorecard, probe, jobs or import.

    Time is in `buckets` equal stretches; `endurance` is what a drive may be written.

    ConfigError if the folder holds nothing to report. TraceError if the file is damaged or holds no
    trace or ops.
    """
    if path.is_dir():
        refuse_cut_off(path)
        if not (path / OPS_FILE).is_file() and (found := _without_rows(path, buckets)) is not None:
            return found
        held = next((name for name in (OPS_FILE, TRACE_FILE) if (path / name).is_file()), None)
        if held is None:
            raise ConfigError(
                f"{path}: no run of kvreplay in this folder ({OPS_FILE} is missing), no"
                f" {PROBE_FILE}, {CLOSENESS} or {TRACE_FILE}{runs_below(path)}"
            )
        path = path / held
    if tables.open_table(path).table is OPS:
        return run_report(path, buckets, endurance)
    return trace_report(path, tables.open_table(path, TRACE).meta, buckets, endurance)


def _without_rows(path: Path, buckets: int) -> Report | None:
    """Return the report of a folder by its JSON; null if it has none that we know."""
    name = path.resolve().name
    if (run := find_run(path)) is not None:
        return summary_report(run)
    sweep, card = find_sweep(path), find_card(path)
    if sweep is not None or card is not None:
        return LoadsReport(name=name, sweep=sweep, card=card)
    if (probe := probe_report(path, buckets)) is not None:
        return probe
    if (closeness := find_closeness(path / CLOSENESS)) is not None:
        return JobsReport(
            name=name, closeness=closeness, profile=find_json(path / PROFILE, dict[str, object])
        )
    return None


def trials_of(path: Path) -> list[Path]:
    """Return the runs in a folder of trials (`trial-1` …) in their order, or `path` itself if it is
    none.

    Those of an option of MLPerf's lie in a folder of their own.
    """
    if path.is_dir():
        refuse_cut_off(path)
    if (path / MLPERF_FILE).is_file():
        path = path / TRIALS_FOLDER
        if not path.is_dir():
            # Clients combined: each has its own.
            return []
    trials = (
        []
        if (path / OPS_FILE).is_file()
        else [f for f in path.glob("trial-*") if (f / OPS_FILE).is_file()]
    )
    # trial-10 comes after trial-9.
    return sorted(trials, key=lambda folder: (len(folder.name), folder.name)) or [path]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return distinct names for `paths`.

    Their last parts, or all of each path if those are the same.
    """
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


@dataclass(frozen=True, slots=True, repr=False)
class Reports:
    """The reports of traces and runs, trials one by one, as figures and as documents."""

    results: list[Report]
    """The figures, as --json prints them."""
    names: list[str]
    """Of each."""
    documents: list[Document]
    """The first compares, if there are several of a kind."""
    sheets: list[PlainSheet]
    """MLPerf's, of the runs among them; for a workbook."""

    def write(self, output: str | Path, argv: Sequence[str] = ()) -> None:
        """Write all of them to `output`, whose name tells the form.

        A page, a workbook, Markdown or CSV; a page says that it was made by `argv`.

        ConfigError for another name. ProbeUnavailable if the library for this form is missing.
        DeviceError if the disk refuses.
        """
        path = Path(output)
        check_names([path])
        write_report(self.documents, path, self.sheets, argv)

    def __repr__(self) -> str:
        """Return the names in a line."""
        return f"Reports({', '.join(self.names)})"

    def _repr_html_(self) -> str:
        """Return the headline of each document, for notebooks."""
        return html_table(
            ["report", "answer"], [[page.name, page.headline] for page in self.documents]
        )


def make_reports(
    paths: Sequence[Path], buckets: int, endurance: Endurance | None = None
) -> Reports:
    """Return the reports of `paths`.

    Raises what `report` raises.
    """
    sides = _read(paths, buckets, endurance)
    every = [found for side in sides for found in side.reports]
    names = [name for side in sides for name in side.names]
    documents = documents_of(every, names)
    # Traces next to a run are its context, not sides: they are compared where there is no run.
    of_kind = (
        [side for side in sides if side.reports and side.reports[0].kind == kind] for kind in KINDS
    )
    alike = next(filter(None, of_kind), [])
    if len(alike) > 1:
        documents.insert(0, folded(comparison_of(alike)[1]))
    marks = [(name, find_mark(path)) for name, path in zip(names_of(paths), paths, strict=True)]
    documents[:0] = [marked_document(mark, name) for name, mark in marks if mark is not None]
    return Reports(every, names, documents, mlperf_sheets(every, names))


def read_comparison(paths: Sequence[Path]) -> tuple[Comparison, Document]:
    """Return the comparison of what is at `paths`, and its document.

    Raises what `report` and `compare` raise.
    """
    cards = [find_card(path) for path in paths]
    if found := [card for card in cards if card is not None]:
        if None in cards:
            raise ConfigError(
                f"{paths[cards.index(None)]} holds no scorecard; only inputs of one kind can be"
                " compared"
            )
        names = [path.parent if path.name == CARD_FILE else path for path in paths]
        compared = compare_cards(names_of(names), found)
        return compared, folded(cards_document(compared, found))
    compared, document = comparison_of(_read(paths, BUCKETS, None))
    return compared, folded(document)


def _read(paths: Sequence[Path], buckets: int, endurance: Endurance | None) -> list[ReportedTrials]:
    sides = [
        (name, path, trials_of(path)) for name, path in zip(names_of(paths), paths, strict=True)
    ]
    return [
        ReportedTrials(
            name,
            [report(trial, buckets, endurance) for trial in trials],
            [name if trial == path else f"{name}/{trial.name}" for trial in trials],
        )
        for name, path, trials in sides
    ]


def documents_of(reports: Sequence[Report], names: Sequence[str]) -> list[Document]:
    """Return the documents of `reports`, called `names`."""
    return [
        folded(replace(report.document(), name=name))
        for report, name in zip(reports, names, strict=True)
    ]


def folded(document: Document) -> Document:
    """Return `document` with its chapters folded, so that a page is one screen.

    The answer, its figures, its charts.
    """
    return replace(
        document, chapters=[replace(of, is_folded=bool(of.title)) for of in document.chapters]
    )


def check_names(paths: Sequence[Path]) -> None:
    """Raise ConfigError unless every name has a suffix that we write."""
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"-o {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")


def write_report(
    documents: list[Document],
    path: Path,
    plain: Sequence[PlainSheet] = (),
    argv: Sequence[str] = (),
) -> None:
    """Write the documents to `path`, a workbook with the sheets `plain` before them, aside and
    renamed.

    A page says that it was made by the command line `argv`, if that is given.

    ProbeUnavailable if the library for this form is missing. DeviceError if the disk refuses.
    """
    if path.suffix == ".xlsx":
        from kvtrace.core.document.export import write_workbook

        write_workbook(documents, path, plain)
    elif path.suffix == ".html":
        from kvtrace.core.document.page import html_page

        made_by = f"Made by kvdistill {__version__}" + f": {' '.join(argv)}" * bool(argv)
        write_text(path, html_page(documents, made_by))
    else:
        from kvtrace.core.document.export import csv_lines, markdown

        write_text(path, markdown(documents) if path.suffix == ".md" else csv_lines(documents))


_GIB, _NS_PER_US = 1 << 30, 1e3
_SHARES = {"P50": 5000, "P95": 9500, "P99": 9900}
"""In ten-thousandths."""


def mlperf_sheets(reports: Sequence[Report], names: Sequence[str]) -> list[PlainSheet]:
    """Return the benchmark's sheets for the runs among `reports`, called `names`.

    None without a run.

    The first run is in its places; others follow in rows of their own, or in columns behind it.
    """
    runs = [
        (name, found, found.run)
        for name, found in zip(names, reports, strict=True)
        if isinstance(found, RunReport) and found.run is not None
    ]
    if not runs:
        return []
    seen = [
        (name, *seen)
        for name, found, _ in runs
        if found.probe is not None
        for seen in _distributions(found.probe)
    ]
    traced = [
        [label, *figures, bins[0][0], bins[-1][1], unit, name]
        for name, label, unit, figures, bins in seen
    ]
    histograms = [
        [label, *bin_, unit, name] for name, label, unit, _, bins in seen for bin_ in bins
    ]
    return [
        *run_sheets([(name, run) for name, _, run in runs]),
        PlainSheet("Device Tracing", _TRACING, traced),
        PlainSheet("Trace Histograms", _HISTOGRAMS, histograms),
    ]


_TRACING = ["Metric", "Description", "Samples", *_SHARES, "Min Bucket", "Max Bucket", "Unit", "Run"]
_HISTOGRAMS = ["Histogram", "Bucket Low", "Bucket High", "Count", "Unit", "Run"]
_TIMES = {
    "D2C Read (us)": ("d2c", "read", "driver and device"),
    "D2C Write (us)": ("d2c", "write", "driver and device"),
    "Q2D Read (us)": ("q2d", "read", "plug, scheduler and requeues"),
    "Q2D Write (us)": ("q2d", "write", "plug, scheduler and requeues"),
    "VFS Read (us)": ("application", "read", "calls that queued I/O"),
    "VFS Write (us)": ("application", "write", "calls that queued I/O"),
    "fsync (us)": ("application", "fsync", "calls"),
    "Write-to-fsync (us)": (
        "application",
        "write_to_fsync",
        "from a write's return to the next fsync",
    ),
    "fadvise-to-read (us)": (
        "application",
        "fadvise_to_read",
        "from an fadvise's return to the next read",
    ),
}
_COUNTS = {
    "Block Size {} (KiB)": ("sizes", "bytes", 1 << 10, "requests by size"),
    "Queue Depth {}": ("in_flight", "in_flight", 1, "in flight at dispatch"),
    "LBA Heatmap {} (GiB)": ("heat", "low_bytes", _GIB, "requests by place on the disk"),
}
_LBA_GIB = 10
"""How much of a disk one bucket of the benchmark's map is."""


Bins = list[tuple[float, float, int]]
"""From, below, count."""


def _distributions(probe: ProbeReport) -> Iterator[tuple[str, str, list[object], Bins]]:
    """Yield what probes saw.

    Its name and unit; what it is, how many, its percentiles; and its buckets.
    """
    times = {(row["layer"], row["op"]): row for row in probe.layers}
    for label, (layer, op, what) in _TIMES.items():
        lows = [
            (r["low_ns"], r["count"])
            for r in probe.latency_bins
            if (r["layer"], r["op"]) == (layer, op)
        ]
        row = times.get((layer, op))
        if row is not None and lows:
            points = [
                None if row[POINTS[p]] is None else row[POINTS[p]] / _NS_PER_US for p in _SHARES
            ]
            bins = [(low / _NS_PER_US, max(2 * low, 1) / _NS_PER_US, count) for low, count in lows]
            yield label, "us", [what, row["count"], *points], bins
    for form, (table, column, unit, what) in _COUNTS.items():
        for op in ("read", "write"):
            is_place = table == "heat"
            counted: Counter[float] = Counter()
            for row in getattr(probe, table):
                if row["op"] == op:
                    counted[row[column] / unit] += row["requests" if is_place else "count"]
            if counted:
                values = sorted(counted.items())
                points = [
                    at_rank(values, nearest_rank(counted.total(), share))
                    for share in _SHARES.values()
                ]
                label, figures = form.format(op.capitalize()), [what, counted.total(), *points]
                # Of ten GiB of the disk, else from a power of two to the next.
                wide: Counter[tuple[float, float]] = Counter()
                for value, count in values:
                    low = (
                        value // _LBA_GIB * _LBA_GIB
                        if is_place
                        else 2.0 ** (math.frexp(value)[1] - 1)
                    )
                    wide[low, low + _LBA_GIB if is_place else 2 * low] += count
                yield (
                    label,
                    unit_of(label) or "count",
                    figures,
                    [(*edges, count) for edges, count in wide.items()],
                )


def marked_document(found: MlperfMark, name: str) -> Document:
    """Return what an option came to, and what its figures may and may not be taken for."""
    tables = [
        table_of(
            "",
            Sheet.SUMMARY,
            [
                ReportColumn("what", "not claimed"),
                ReportColumn("why"),
            ],
            list(found.not_claimed.items()),
        ),
        table_of(
            "Rules",
            Sheet.SUMMARY,
            [
                ReportColumn("rule"),
                ReportColumn("reference"),
                ReportColumn("kept"),
                ReportColumn("detail"),
            ],
            found.rules,
        ),
    ]
    may = (
        f"what a replay of {found.option} moved on this storage, and how long its objects took, in"
        " the trials below"
    )
    return Document(
        name=name,
        headline=found.answer,
        warnings=[
            found.mark
            or "every rule that can be told from here is kept; MLCommons takes results of its own mlpstorage alone"
        ],
        notes=[f"may be claimed: {may}"],
        chapters=[Chapter("What may not be claimed", tables)],
    )
