"""Read what a user names into reports and documents, and write them in the form that a file's name tells."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvdistill.report.compare import Comparison, ReportedTrials, comparable, compare, comparison_document
from kvdistill.report.jobs import jobs_document
from kvdistill.report.mlperf_sheets import marked_document, mlperf_sheets
from kvdistill.report.probe import ProbeReport, probe_document
from kvdistill.report.report import BUCKETS, Report, SweepReport, report
from kvdistill.report.run import RunReport, run_document
from kvdistill.report.trace import TraceReport, trace_document
from kvtrace import __version__
from kvtrace.core.document.chapters import sweep_document
from kvtrace.core.document.document import Document
from kvtrace.core.document.export import PlainSheet
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_text
from kvtrace.core.run.run_file import MLPERF_FILE, OPS_FILE, TRIALS_FOLDER, find_mark
from kvtrace.core.statistics import Endurance

SUFFIXES = (".html", ".md", ".csv", ".xlsx")


def trials_of(path: Path) -> list[Path]:
    """Return the runs in a folder of trials (`trial-1` …) in their order, or `path` itself if it is none.

    Those of an option of MLPerf's lie in a folder of their own.
    """
    if (path / MLPERF_FILE).is_file():
        path = path / TRIALS_FOLDER
        if not path.is_dir():
            # Clients combined: each has its own.
            return []
    trials = [] if (path / OPS_FILE).is_file() else [f for f in path.glob("trial-*") if (f / OPS_FILE).is_file()]
    # trial-10 comes after trial-9.
    return sorted(trials, key=lambda folder: (len(folder.name), folder.name)) or [path]


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return distinct names for `paths`: their last parts, or all of each path if those are the same."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def read_reports(
    paths: Sequence[Path], buckets: int, endurance: Endurance | None = None
) -> tuple[list[Report], list[Document], list[PlainSheet]]:
    """Return the reports of `paths`, trials one by one, their documents, and MLPerf's sheets of the runs among them.

    The first document compares, if there are several of a kind.

    Raises what `report` raises.
    """
    sides = _read(paths, buckets, endurance)
    every = [found for side in sides for found in side.reports]
    names = [
        side.name if trial == path else f"{side.name}/{trial.name}"
        for side, path in zip(sides, paths, strict=True)
        for trial in trials_of(path)
    ]
    documents = documents_of(every, names)
    alike = comparable([side for side in sides if side.reports])
    if alike:
        documents.insert(0, comparison_document(compare(alike), alike))
    marks = [(name, find_mark(path)) for name, path in zip(names_of(paths), paths, strict=True)]
    documents[:0] = [marked_document(mark, name) for name, mark in marks if mark is not None]
    return every, documents, mlperf_sheets(every, names)


def read_comparison(paths: Sequence[Path]) -> tuple[Comparison, Document]:
    """Return the comparison of what is at `paths`, and its document. Raises what `report` and `compare` raise."""
    sides = _read(paths, BUCKETS, None)
    compared = compare(sides)
    return compared, comparison_document(compared, sides)


def _read(paths: Sequence[Path], buckets: int, endurance: Endurance | None) -> list[ReportedTrials]:
    return [
        ReportedTrials(name, [report(trial, buckets, endurance) for trial in trials_of(path)])
        for name, path in zip(names_of(paths), paths, strict=True)
    ]


def documents_of(reports: Sequence[Report], names: Sequence[str]) -> list[Document]:
    """Return the documents of `reports`, called `names`."""
    return [replace(_document(report), name=name) for report, name in zip(reports, names, strict=True)]


def _document(report: Report) -> Document:
    if isinstance(report, TraceReport):
        return trace_document(report)
    if isinstance(report, RunReport):
        return run_document(report)
    if isinstance(report, SweepReport):
        return sweep_document(report.sweep)
    return probe_document(report) if isinstance(report, ProbeReport) else jobs_document(report)


def check_names(paths: Sequence[Path]) -> None:
    """Raise ConfigError unless every name has a suffix that we write."""
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"-o {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")


def write_report(documents: list[Document], path: Path, plain: Sequence[PlainSheet] = ()) -> None:
    """Write the documents to `path`, a workbook with the sheets `plain` before them, aside and renamed.

    Raises:
        ProbeUnavailable: the library for this form is missing.
        DeviceError: the disk refuses.

    """
    if path.suffix == ".xlsx":
        from kvtrace.core.document.export import write_workbook

        write_workbook(documents, path, plain)
    elif path.suffix == ".html":
        from kvtrace.core.document.page import html_page

        argv = " ".join(["kvdistill", *sys.argv[1:]])
        write_text(path, html_page(documents, f"Made by kvdistill {__version__}: {argv}"))
    else:
        from kvtrace.core.document.export import csv_lines, markdown

        write_text(path, markdown(documents) if path.suffix == ".md" else csv_lines(documents))
