"""Write reports to files, in the form that a file's name says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvdistill.report import RUN_OPS, TraceReport
from kvdistill.rundocument import run_document
from kvdistill.tracedocument import trace_document
from kvtrace import __version__
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvdistill.document import Document
    from kvdistill.runreport import RunReport

SUFFIXES = (".html", ".md", ".csv", ".xlsx")


def with_trials(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    """Return traces and runs with their names: a folder of trials (`trial-1` …) becomes its runs."""
    found = []
    for path in paths:
        name = path.resolve().name
        trials = [] if (path / RUN_OPS).is_file() else [f for f in path.glob("trial-*") if (f / RUN_OPS).is_file()]
        # trial-10 comes after trial-9.
        trials.sort(key=lambda folder: (len(folder.name), folder.name))
        found += [(trial, f"{name}/{trial.name}") for trial in trials] or [(path, name)]
    return found


def documents_of(reports: Sequence[TraceReport | RunReport], names: Sequence[str]) -> list[Document]:
    """Return the documents of `reports`, called `names`."""
    from dataclasses import replace

    made = [trace_document(r) if isinstance(r, TraceReport) else run_document(r) for r in reports]
    return [replace(document, name=name) for document, name in zip(made, names, strict=True)]


def check_names(paths: Sequence[Path]) -> None:
    """Raise ConfigError unless every name ends in a form that we write."""
    for path in paths:
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"-o {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")


def write_report(documents: list[Document], path: Path) -> None:
    """Write the documents to `path`, aside and renamed.

    Raises:
        ProbeUnavailable: the library for this form is missing.
        DeviceError: the disk refuses.

    """
    if path.suffix == ".xlsx":
        from kvdistill.workbook import write_workbook

        write_workbook(documents, path)
    elif path.suffix == ".html":
        from kvdistill.htmlpage import html_page

        argv = " ".join(["kvdistill", *sys.argv[1:]])
        write_text(path, html_page(documents, f"Made by kvdistill {__version__}: {argv}"))
    else:
        from kvdistill.textforms import csv_lines, markdown

        write_text(path, markdown(documents) if path.suffix == ".md" else csv_lines(documents))
