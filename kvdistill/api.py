"""The public functions of kvdistill; `kvdistill/__init__.py` says which names are public."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kvdistill.jobs.fio_jobs import FioJobs, make_jobs
from kvdistill.jobs.job import JobOptions
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source, with_operations
from kvdistill.queries.database import open_connection, register
from kvdistill.queries.window import parse_window
from kvdistill.reports.compare import Comparison
from kvdistill.reports.output import BUCKETS, Reports, make_reports, read_comparison
from kvtrace.core import pl
from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.temporary import TemporaryFolder

if TYPE_CHECKING:
    import duckdb


class HasPath(Protocol):
    """An object with a path, such as a trace of kvtrace or a run of kvreplay."""

    @property
    def path(self) -> Path:
        """The trace's file, or the run's folder."""


Source = str | Path | HasPath
"""A trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json."""


def path_of(source: Source) -> Path:
    """Return the path of `source`."""
    return Path(source) if isinstance(source, str | Path) else Path(source.path)


def distil(
    source: Source,
    tier: str | None = None,
    *,
    limit: str | int | None = None,
    begin: str | None = None,
    end: str | None = None,
    busiest: str | None = None,
    scratch: Path | None = None,
) -> Profile:
    """Extract the workload profile of one tier: mix, sizes, arrivals, queue depth, reuse, phases.

    A profile holds counts, sizes in bytes and times in ns. A figure that the source does not hold
    is None: a trace has no queue depth, and a probe's histograms have no order.

    `source` is a path, or a trace or run with a `path`: a trace, a run's folder, ops.parquet,
    blocks.parquet, probe.json or profile.json. `tier` names the tier or disk, and may be left out
    if there is only one; in a fleet, nvme@3 is the tier of node 3. `limit` uses only the first rows
    (10000), time ("60s") or bytes ("8GiB"); `begin` and `end` are times from the first operation
    ("20s"); `busiest` is the length of the window with the most bytes ("10s").

    The operations stay in a temporary file in the folder `scratch` (by default the system's) for
    the lifetime of the profile, because `fio_jobs` writes the exact replay from them. Memory is
    bounded by the number of objects, not of operations.

    Raises ConfigError if the tier does not exist or is ambiguous, or the source has no such window.
    Raises TraceError if the file is missing, damaged or holds no reads and writes.

    >>> profile = kvdistill.distil("trace.parquet", tier="nvme")
    >>> profile
    Profile(nvme of trace.parquet: 5 reads, 3 writes, 1 delete over 100 ms)
    >>> profile.read.ops, profile.read.object_bytes
    (5, 4208592)
    """
    window = parse_window(None if limit is None else str(limit), begin, end, busiest)
    folder = TemporaryFolder("kvdistill-", scratch)
    return distil_source(path_of(source), tier, window, folder.path, folder).profile


def fio_jobs(
    source: Profile | Source, tier: str | None = None, options: JobOptions | None = None
) -> FioJobs:
    """Return fio jobs with the I/O of a profile, or of a source.

    The jobs are an exact replay, a statistical job, and a sampled one with the source's reuse
    distances: all that the profile supports, or those in `options.modes`. Nothing is written before
    `write`; `texts` shows the jobs. fio's version and huge pages of this machine are detected unless
    `options` name them.

    A profile read from profile.json has no operations, and so no exact replay. `tier` is for a
    source that is not a profile.

    Raises ConfigError if an option is invalid, or the profile does not support a requested mode;
    for a source also the errors of `distil`.

    >>> profile = kvdistill.distil("trace.parquet", tier="nvme")
    >>> jobs = kvdistill.fio_jobs(profile)
    >>> jobs
    FioJobs(replay.fio, stat.fio, reuse.fio of nvme of trace.parquet)
    >>> print(jobs.texts["replay.fio"].partition("[replay]")[2].strip())
    read_iolog=replay.iolog
    >>> print(*jobs.write("jobs").files[:3])
    prefill.fio replay.fio replay.iolog
    """
    if isinstance(source, Profile):
        profile = source
        if tier is not None and tier != profile.tier:
            raise ConfigError(f"tier {tier}: the profile is of {profile.tier}")
    else:
        profile = distil(source, tier)
    options = (options or JobOptions()).on_this_machine()
    target = Path(options.target)
    # A relative target is a path in the folder of the jobs.
    is_device = options.is_device or (target.is_absolute() and target.is_block_device())
    return make_jobs(with_operations(profile), replace(options, is_device=is_device))


def connect(*sources: Source) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with a view of each kind of table in `sources`.

    Views are trace, objects, requests, ops, served, series, blocks, runs, tiers and probes, if the
    files hold them. `measured` is `ops`, and `measured_requests` `served`, without the
    operations of a run's warm-up. Times are in ns, sizes in bytes; each row's `origin` is its run's
    folder or its file. `percentile(x, 0.99)` is by nearest rank. Memory is bounded at 1 GB; larger
    queries spill into a temporary folder that is removed at the end of the process.

    `sources` are files, folders (recursive), glob patterns, or traces and runs with a `path`.

    Raises ConfigError if a folder holds no table, a pattern matches no file, or there are figures
    only. Raises TraceError if a file is missing, damaged or not a table of kvtrace.

    >>> db = kvdistill.connect("trace.parquet")
    >>> db.sql("SELECT op::VARCHAR, count(*) FROM trace WHERE tier = 'nvme' GROUP BY ALL"
    ...        " ORDER BY ALL").fetchall()
    [('delete', 1), ('read', 5), ('write', 3)]
    """
    if not sources:
        raise ConfigError("name at least one trace, run or table to connect to")
    paths = [path_of(source) for source in sources]
    folder = TemporaryFolder("kvdistill-")
    connection = open_connection(folder.path)
    if not register(connection, paths, folder.path):
        raise ConfigError(f"{paths[0]}: holds figures only, and no rows; use kvdistill.report")
    # A query may outlive its connection, so the folder is removed at the end of the process.
    _FOLDERS.append(folder)
    return connection


_FOLDERS: list[TemporaryFolder] = []
"""Folders that connections read from and spill into."""


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

    >>> compared = kvdistill.compare("trace.parquet", "trace.parquet")
    >>> compared.comparison.names
    ['trace.parquet', 'trace.parquet']
    """
    return ComparedSides(*read_comparison([path_of(side) for side in sides]))
