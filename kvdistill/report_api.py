"""The public functions of kvdistill for reports and comparisons."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from kvdistill.query_api import Source, path_of
from kvdistill.reports.compare import Comparison
from kvdistill.reports.output import BUCKETS, Reports, make_reports, read_comparison, write_report
from kvtrace.core import pl
from kvtrace.core.document.document import Document
from kvtrace.core.parameters import suggest_keywords
from kvtrace.core.statistics import parse_endurance


@suggest_keywords
def report(
    source: Source | Sequence[Source],
    output: str | Path | None = None,
    *,
    buckets: int = BUCKETS,
    endurance: str | None = None,
) -> Reports:
    """Report the figures of a trace or a run, and write them to `output` if that is given.

    `source` is a path, or a trace or run with a `path`: a trace, or the folder of a run, of trials,
    a sweep, a scorecard, a probe or jobs. Several in a list are compared. `output` is a page
    (*.html), a workbook (*.xlsx) or text (*.md, *.csv), by its name.

    `buckets` is the number of equal windows of figures over time. `endurance` is the write rating of
    the drive: DWPD and years ("1DWPD,5y"), or total bytes ("14PB").

    Raises ConfigError if a folder holds nothing to report, or the suffix of `output` is unknown.
    Raises TraceError if a file is damaged, DeviceError if the write fails, ProbeUnavailable if a
    library for the format is missing.

    Examples:
        >>> reports = kvdistill.report("trace.parquet", "report.md")
        >>> reports
        Reports(trace.parquet)
    """
    listed = [source] if isinstance(source, str | Path) or hasattr(source, "path") else source
    reports = make_reports([path_of(item) for item in listed], buckets, parse_endurance(endurance))
    if output is not None:
        reports.write(output)
    return reports


class ComparedSides:
    """Compared runs, traces or probes: `verdict`, `figures()`, `warnings`."""

    def __init__(self, comparison: Comparison, document: Document) -> None:
        """Hold `comparison`; its tables and charts are in `document`."""
        self.comparison = comparison
        """The whole comparison as typed structs."""
        self._document = document

    @property
    def verdict(self) -> str:
        """The result of each side against the first, and its certainty."""
        return self.comparison.verdict

    @property
    def warnings(self) -> list[str]:
        """Limits of the comparison: sides that fell behind, or trials that vary."""
        return list(self.comparison.warnings)

    def figures(self) -> pl.DataFrame:
        """Return one row for each figure and side.

        Columns: `side`, `tier`, `op`, `figure` (its name ends in its unit), `median`, `low` and
        `high` over the trials, `ratio` to the first side. Null if not measured.
        """
        rows = [
            {
                "side": name,
                "tier": line.tier,
                "op": line.op,
                "figure": line.name,
                "median": side.median,
                "low": side.low,
                "high": side.high,
                "ratio": side.ratio.value,
            }
            for line in self.comparison.lines
            for name, side in zip(self.comparison.names, line.sides, strict=True)
        ]
        numbers = ("median", "low", "high", "ratio")
        return pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64))

    def document(self) -> Document:
        """Return the verdict, tables and charts as a document for a terminal or a page."""
        return self._document

    def write(self, path: str | Path, argv: Sequence[str] = ("kvdistill.compare",)) -> None:
        """Write the comparison to a page (*.html), a workbook (*.xlsx) or text (*.md, *.csv)."""
        write_report([self._document], Path(path), argv=list(argv))

    def __repr__(self) -> str:
        return f"<ComparedSides: {self.verdict}>"

    def _repr_html_(self) -> str:
        """Return the verdict for a notebook."""
        return f"<b>{html.escape(self.verdict)}</b>"


def compare(*sides: Source) -> ComparedSides:
    """Compare traces, runs or folders of trials, each with the first.

    Each side is a path, or a trace or run with a `path`. A folder of trials gives a confidence
    interval; single runs give ratios only.

    Raises ConfigError for fewer than two sides, or sides without common figures. Raises
    TraceError if a file is missing or damaged.

    Examples:
        >>> compared = kvdistill.compare("trace.parquet", "trace.parquet")
        >>> compared.comparison.names
        ['trace.parquet', 'trace.parquet']
    """
    return ComparedSides(*read_comparison([path_of(side) for side in sides]))
