"""Read inputs into reports and documents, and write them in the format of the file's suffix.

A workbook also has the sheets of the MLPerf Storage KV-cache benchmark, so that its scripts read
these results. The sheets of a run's figures are in `kvtrace/core/document/mlperf_sheets.py`; those of
probes are here, named as in its export (kv_cache/cli.py of mlcommons/storage, 2026-04).
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
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    table_of,
)
from kvtrace.core.document.export import PlainSheet
from kvtrace.core.document.mlperf_sheets import PERCENTILE_FIELDS, run_sheets, unit_of
from kvtrace.core.document.sweep_document import card_document, sweep_document
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import find_json, write_text
from kvtrace.core.run.run_file import (
    MLPERF_FILE,
    OPS_FILE,
    PROBE_FILE,
    TRIALS_FILE,
    TRIALS_FOLDER,
    MlperfMark,
    find_mark,
    find_run,
    list_runs_below,
    refuse_unfinished_runs,
)
from kvtrace.core.run.sweep_file import CARD_FILE, Card, LoadSweep, find_card, find_sweep
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.statistics import Endurance, at_rank, nearest_rank

SUFFIXES = (".html", ".md", ".csv", ".xlsx")
BUCKETS = 48


class LoadsReport(Report, frozen=True, kw_only=True, omit_defaults=True):
    """The report of a sweep.json (rising loads) or a scorecard.json (sustained users by stack)."""

    kind = "sweep"
    name: str
    """Name of the folder."""
    sweep: LoadSweep | None = None
    card: Card | None = None

    def document(self) -> Document:
        """Return the points and knee of the sweep, or the page of the scorecard."""
        return sweep_document(self.sweep) if self.sweep else card_document(cast("Card", self.card))


def report(path: Path, buckets: int = BUCKETS, endurance: Endurance | None = None) -> Report:
    """Return the report of a trace, or of the folder of a run, sweep, scorecard, probe or jobs.

    Figures over time have `buckets` equal windows; `endurance` is the write rating of a drive.

    ConfigError if the folder holds nothing to report. TraceError if the file is damaged or holds no
    trace or ops.
    """
    if path.is_dir() and not tables.is_dataset(path):
        refuse_unfinished_runs(path)
        if (
            not (path / OPS_FILE).is_file()
            and (summary := _report_from_json(path, buckets)) is not None
        ):
            return summary
        table_file = next(
            (name for name in (OPS_FILE, TRACE_FILE) if (path / name).is_file()), None
        )
        if table_file is None:
            raise ConfigError(
                f"{path}: no run of kvreplay in this folder ({OPS_FILE} is missing), no"
                f" {PROBE_FILE}, {CLOSENESS} or {TRACE_FILE}{list_runs_below(path)}"
            )
        path = path / table_file
    if tables.open_table(path).table is OPS:
        return run_report(path, buckets, endurance)
    return trace_report(path, tables.open_table(path, TRACE).meta, buckets, endurance)


def _report_from_json(path: Path, buckets: int) -> Report | None:
    """Return the report of a folder that holds JSON results only; null if there are none."""
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


def list_trials(path: Path) -> list[Path]:
    """Return the runs in a folder of trials (`trial-1` …) in order, or `path` itself if it has none.

    The trials of an MLPerf option are in a subfolder.
    """
    if path.is_dir():
        refuse_unfinished_runs(path)
    if (path / MLPERF_FILE).is_file():
        path = path / TRIALS_FOLDER
        if not path.is_dir():
            # Combined clients: each client has its own trials.
            return []
    trials = (
        []
        if (path / OPS_FILE).is_file()
        else [folder for folder in path.glob("trial-*") if (folder / OPS_FILE).is_file()]
    )
    # trial-10 comes after trial-9.
    return sorted(trials, key=lambda folder: (len(folder.name), folder.name)) or [path]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return distinct names for `paths`: their last components, or whole paths if those collide."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


@dataclass(frozen=True, slots=True, repr=False)
class Reports:
    """The reports of traces and runs, trials one by one, as figures and as documents."""

    results: list[Report]
    """The figures, as --json prints them."""
    names: list[str]
    """Name of each report."""
    documents: list[Document]
    """The first one compares, if several reports are of one kind."""
    sheets: list[PlainSheet]
    """MLPerf sheets of the runs among the reports, for a workbook."""

    def write(self, output: str | Path, argv: Sequence[str] = ()) -> None:
        """Write all documents to `output`: a page, workbook, Markdown or CSV, by its suffix.

        A page states the command line `argv`.

        ConfigError for another suffix. ProbeUnavailable if the library for the format is missing.
        DeviceError if the write fails.
        """
        path = Path(output)
        check_names([path])
        write_report(self.documents, path, self.sheets, argv)

    def __repr__(self) -> str:
        """Return the names in one line."""
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

    Raises the same errors as `report`.
    """
    paths = _with_sides(paths)
    sides = _read(paths, buckets, endurance)
    all_reports = [report_of_trial for side in sides for report_of_trial in side.reports]
    names = [name for side in sides for name in side.names]
    documents = documents_of(all_reports, names)
    # Traces next to a run are its context: they are compared only if there is no run.
    sides_by_kind = (
        [side for side in sides if side.reports and side.reports[0].kind == kind] for kind in KINDS
    )
    comparable = next(filter(None, sides_by_kind), [])
    if len(comparable) > 1:
        documents.insert(0, fold_chapters(comparison_of(comparable)[1]))
    mlperf_marks = [
        (name, find_mark(path)) for name, path in zip(distinct_names(paths), paths, strict=True)
    ]
    documents[:0] = [mlperf_document(mark, name) for name, mark in mlperf_marks if mark is not None]
    return Reports(all_reports, names, documents, mlperf_sheets(all_reports, names))


def read_comparison(paths: Sequence[Path]) -> tuple[Comparison, Document]:
    """Return the comparison of `paths`, and its document.

    Raises the same errors as `report` and `compare`.
    """
    paths = _with_sides(paths)
    cards = [find_card(path) for path in paths]
    if found_cards := [card for card in cards if card is not None]:
        if None in cards:
            raise ConfigError(
                f"{paths[cards.index(None)]} holds no scorecard; only inputs of one kind can be"
                " compared"
            )
        names = [path.parent if path.name == CARD_FILE else path for path in paths]
        compared = compare_cards(distinct_names(names), found_cards)
        return compared, fold_chapters(cards_document(compared, found_cards))
    compared, document = comparison_of(_read(paths, BUCKETS, None))
    return compared, fold_chapters(document)


def _with_sides(paths: Sequence[Path]) -> list[Path]:
    """Return `paths`, with both sides in place of a folder of `kvreplay compare`."""
    return [side for path in paths for side in _sides_of(path) or [path]]


def _sides_of(path: Path) -> list[Path]:
    sides = [path / name for name in ("a", "b")]
    are_trials = all((side / TRIALS_FILE).is_file() for side in sides)
    return sides if are_trials and not (path / OPS_FILE).exists() else []


def _read(paths: Sequence[Path], buckets: int, endurance: Endurance | None) -> list[ReportedTrials]:
    sides = [
        (name, path, list_trials(path))
        for name, path in zip(distinct_names(paths), paths, strict=True)
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
        fold_chapters(replace(report.document(), name=name))
        for report, name in zip(reports, names, strict=True)
    ]


def fold_chapters(document: Document) -> Document:
    """Return `document` with its chapters folded.

    A page is then one screen: the answer, its figures and its charts.
    """
    return replace(
        document,
        chapters=[replace(chapter, is_folded=bool(chapter.title)) for chapter in document.chapters],
    )


def check_names(paths: Sequence[Path]) -> None:
    """Raise ConfigError unless every name has a supported suffix."""
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"-o {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")


def write_report(
    documents: list[Document],
    path: Path,
    plain: Sequence[PlainSheet] = (),
    argv: Sequence[str] = (),
) -> None:
    """Write the documents to `path`, through a temporary file.

    A workbook has the sheets `plain` first. A page states the command line `argv`, if given.

    ProbeUnavailable if the library for the format is missing. DeviceError if the write fails.
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
"""Percentiles in ten-thousandths."""


def mlperf_sheets(reports: Sequence[Report], names: Sequence[str]) -> list[PlainSheet]:
    """Return the benchmark's sheets for the runs among `reports`; empty without a run.

    The first run is where the benchmark has its figures; others follow in later rows or columns.
    """
    runs = [
        (name, run_report_, run_report_.run)
        for name, run_report_ in zip(names, reports, strict=True)
        if isinstance(run_report_, RunReport) and run_report_.run is not None
    ]
    if not runs:
        return []
    distributions = [
        (name, *distributions)
        for name, run_report_, _ in runs
        if run_report_.probe is not None
        for distributions in _distributions(run_report_.probe)
    ]
    tracing_rows = [
        [label, *figures, bins[0][0], bins[-1][1], unit, name]
        for name, label, unit, figures, bins in distributions
    ]
    histogram_rows = [
        [label, *bin_row, unit, name]
        for name, label, unit, _, bins in distributions
        for bin_row in bins
    ]
    return [
        *run_sheets([(name, run) for name, _, run in runs]),
        PlainSheet("Device Tracing", _TRACING, tracing_rows),
        PlainSheet("Trace Histograms", _HISTOGRAMS, histogram_rows),
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
    "LBA Heatmap {} (GiB)": ("heat", "low_bytes", _GIB, "requests by offset on the disk"),
}
_LBA_GIB = 10
"""Size of one bucket of the benchmark's heatmap, in GiB of the disk."""


Bins = list[tuple[float, float, int]]
"""Lower edge, upper edge (exclusive), count."""


def _distributions(probe: ProbeReport) -> Iterator[tuple[str, str, list[object], Bins]]:
    """Yield the probes' distributions: label, unit, [description, count, percentiles], bins."""
    times = {(row["layer"], row["op"]): row for row in probe.layers}
    for label, (layer, op, description) in _TIMES.items():
        low_edges = [
            (bin_row["low_ns"], bin_row["count"])
            for bin_row in probe.latency_bins
            if (bin_row["layer"], bin_row["op"]) == (layer, op)
        ]
        row = times.get((layer, op))
        if row is not None and low_edges:
            points = [
                None
                if row[PERCENTILE_FIELDS[percentile]] is None
                else row[PERCENTILE_FIELDS[percentile]] / _NS_PER_US
                for percentile in _SHARES
            ]
            bins = [
                (low / _NS_PER_US, max(2 * low, 1) / _NS_PER_US, count) for low, count in low_edges
            ]
            yield label, "us", [description, row["count"], *points], bins
    for form, (table, column, unit, description) in _COUNTS.items():
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
                label, figures = (
                    form.format(op.capitalize()),
                    [description, counted.total(), *points],
                )
                # Bins are ten GiB of the disk, or powers of two.
                merged_bins: Counter[tuple[float, float]] = Counter()
                for value, count in values:
                    low = (
                        value // _LBA_GIB * _LBA_GIB
                        if is_place
                        else 2.0 ** (math.frexp(value)[1] - 1)
                    )
                    merged_bins[low, low + _LBA_GIB if is_place else 2 * low] += count
                yield (
                    label,
                    unit_of(label) or "count",
                    figures,
                    [(*edges, count) for edges, count in merged_bins.items()],
                )


def mlperf_document(mark: MlperfMark, name: str) -> Document:
    """Return the document of an MLPerf option: its answer, and the claims that it does not support."""
    tables = [
        table_of(
            "",
            Sheet.SUMMARY,
            [
                ReportColumn("what", "claim"),
                ReportColumn("why", "reason"),
            ],
            list(mark.not_claimed.items()),
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
            mark.rules,
        ),
    ]
    claim = (
        f"bandwidth and object latency of a replay of {mark.option} on this storage, in the trials"
        " below"
    )
    return Document(
        name=name,
        headline=mark.answer,
        warnings=[
            mark.mark
            or "all rules that can be checked here are met; MLCommons accepts results of mlpstorage only"
        ],
        notes=[f"may be claimed: {claim}"],
        chapters=[Chapter("Claims that are not supported", tables)],
    )
