"""The public functions of kvdistill for profiles, jobs, reports and imports.

Those for queries are in `query_api.py`; `kvdistill/__init__.py` says which names are public.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import to_builtins

from kvdistill.formats.formats import Account, Format, ImportOptions
from kvdistill.formats.importing import import_files
from kvdistill.formats.oplog import Style
from kvdistill.jobs.fio_jobs import FioJobs, make_jobs
from kvdistill.jobs.job import PROFILE, JobOptions
from kvdistill.jobs.store_jobs import (
    SAI3_JOB,
    WARP_JOB,
    StoreCloseness,
    StoreJob,
    StoreJobs,
    StoreOptions,
    compare_with_run,
    sai3_workload,
    warp_job,
    write_store_jobs,
)
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source, with_operations
from kvdistill.queries.window import parse_window
from kvdistill.query_api import Source, path_of
from kvdistill.reports.compare import Comparison
from kvdistill.reports.jobs import written_document
from kvdistill.reports.output import BUCKETS, Reports, make_reports, read_comparison, write_report
from kvtrace.core import pl
from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import check_new
from kvtrace.core.json_types import JsonObject
from kvtrace.core.limit import Limit
from kvtrace.core.parameters import named
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import parse_duration_ns, positive


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

    Examples:
        >>> profile = kvdistill.distil("trace.parquet", tier="nvme")
        >>> profile
        Profile(nvme of trace.parquet: 5 reads, 3 writes, 1 delete over 100 ms)
        >>> profile.read.ops, profile.read.object_bytes
        (5, 4208592)
    """
    window = _window(limit, begin, end, busiest)
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

    Examples:
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


@dataclass(frozen=True, slots=True)
class WrittenStoreJobs:
    """Files for warp or sai3-bench, and the comparison with a replay if one was named."""

    jobs: StoreJobs
    """The files, the features that the format cannot express, the op log and the profile."""
    compared: StoreCloseness | None
    """The job compared with a run of kvreplay; None without one."""
    output: Path
    """The folder of the files."""

    @property
    def files(self) -> list[str]:
        """The names of the files."""
        return list(self.jobs.files)

    @property
    def lost(self) -> list[str]:
        """Features of the source that the job and its op log cannot express."""
        return [*self.jobs.lost, *(self.jobs.log.lost if self.jobs.log else [])]

    def to_dict(self) -> JsonObject:
        """Return everything as `kvdistill warp --json` prints it."""
        result: JsonObject = to_builtins(self.jobs)
        return (
            result if self.compared is None else result | {"beside_run": to_builtins(self.compared)}
        )

    def document(self) -> Document:
        """Return the files and the profile as a document for a terminal."""
        return written_document(self.jobs, self.output, self.compared)

    def __repr__(self) -> str:
        return f"WrittenStoreJobs({', '.join(self.files)})"


def warp(
    source: Source,
    output: str | Path,
    tier: str | None = None,
    *,
    host: str = "127.0.0.1:9000",
    bucket: str = "kvdistill",
    csv: bool = False,
    limit: str | int | None = None,
    begin: str | None = None,
    end: str | None = None,
    busiest: str | None = None,
    max_duration: str = "300s",
    run: str | Path | None = None,
    overwrite: bool = False,
    argv: Sequence[str] = ("kvdistill.warp",),
) -> WrittenStoreJobs:
    """Write a mixed benchmark for MinIO's warp: operation mix, object sizes, rate, random objects.

    `source`, `tier`, `limit`, `begin`, `end` and `busiest` are as in `distil`. The files go to the
    folder `output`. `host` is the object store as HOST:PORT, `bucket` the bucket that warp empties.
    `csv` also writes the operations as warp's full CSV. `max_duration` is the longest run time of
    the job. With `run`, a run of kvreplay on the tier, the job is compared with it. `overwrite`
    replaces jobs in `output`. Files record `argv` as the command that wrote them.

    Raises ConfigError for a name that S3 does not accept, or if `output` holds jobs already; also
    the errors of `distil`.

    Examples:
        >>> written = kvdistill.warp("trace.parquet", "warp", tier="nvme")
        >>> written.files
        ['mixed.yml', 'profile.json']
    """
    options = StoreOptions(host=host, bucket=bucket, runtime_cap_ns=_longest_run_ns(max_duration))
    return _write_store_jobs(
        path_of(source),
        tier,
        Path(output),
        WARP_JOB,
        partial(warp_job, options=options),
        window=_window(limit, begin, end, busiest),
        style=Style.WARP if csv else None,
        endpoint=f"http://{host}",
        run=run,
        overwrite=overwrite,
        argv=argv,
    )


def sai3(
    source: Source,
    output: str | Path,
    tier: str | None = None,
    *,
    target: str = "s3://kvdistill/",
    hosts: int = 1,
    limit: str | int | None = None,
    begin: str | None = None,
    end: str | None = None,
    busiest: str | None = None,
    max_duration: str = "300s",
    run: str | Path | None = None,
    overwrite: bool = False,
    argv: Sequence[str] = ("kvdistill.sai3",),
) -> WrittenStoreJobs:
    """Write an op log that sai3-bench replays at the trace's times, and a random workload.

    `target` is the base URI of the objects: s3://, gs://, az://, file:// or direct://. The op log
    is divided by object over `hosts` logs. Other parameters are as in `warp`.

    Raises ConfigError for a `target` that is no such URI, or if `output` holds jobs already; also
    the errors of `distil`.

    Examples:
        >>> written = kvdistill.sai3("trace.parquet", "sai3", tier="nvme")
        >>> print(*sorted(written.files))
        oplog.tsv.zst populate.tsv.zst profile.json workload.yaml
    """
    options = StoreOptions(target=target, runtime_cap_ns=_longest_run_ns(max_duration))
    return _write_store_jobs(
        path_of(source),
        tier,
        Path(output),
        SAI3_JOB,
        partial(sai3_workload, options=options),
        window=_window(limit, begin, end, busiest),
        style=Style.SAI3,
        endpoint=target,
        hosts=hosts,
        run=run,
        overwrite=overwrite,
        argv=argv,
    )


def _window(
    limit: str | int | None, begin: str | None, end: str | None, busiest: str | None
) -> Limit:
    """Return the part of a source that the parameters of `distil` select."""
    return parse_window(None if limit is None else str(limit), begin, end, busiest)


def _longest_run_ns(text: str) -> int:
    """Return a duration in ns; ConfigError, which names `max_duration`, unless it is above 0."""
    return positive("max_duration", parse_duration_ns)(text)


def _write_store_jobs(
    source: Path,
    tier: str | None,
    output: Path,
    name: str,
    job_of: Callable[[Profile], StoreJob],
    *,
    window: Limit,
    style: Style | None,
    endpoint: str,
    hosts: int = 1,
    run: str | Path | None,
    overwrite: bool,
    argv: Sequence[str],
) -> WrittenStoreJobs:
    check_new(output / PROFILE, is_forced=overwrite)
    written, requested = write_store_jobs(
        source,
        tier,
        output,
        window,
        name,
        job_of,
        style=style,
        endpoint=endpoint,
        hosts=hosts,
        argv=argv,
    )
    compared = None if run is None else compare_with_run(requested, Path(run), written.profile.tier)
    return WrittenStoreJobs(written, compared, output)


def import_file(
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    format: Format | str,  # noqa: A002 - the word for it, as in polars and pandas
    tier: str | None = None,
    overwrite: bool = False,
    argv: Sequence[str] = ("kvdistill.import_file",),
) -> Account:
    """Read logs or results of another tool into tables, for reports, comparisons and jobs.

    `files` are one file or several of one `format`, such as "warp", "fio-json" or "blkparse". The
    tables go to the folder `output`; `overwrite` replaces an earlier import there. `tier` names the
    tier that the tool ran on. A figure that a format does not hold is null.

    Returns the account: files written, rows read, accepted and rejected by reason. Raises
    ConfigError for an unknown format, TraceError if a file is missing, damaged, or of another
    format, and DeviceError if the folder holds other files.

    Examples:
        >>> iolog = pathlib.Path("job.iolog")
        >>> lines = ["fio version 2 iolog", "d.dat add", "d.dat open", "d.dat write 0 4096"]
        >>> _ = iolog.write_text("\\n".join([*lines, "d.dat close", ""]))
        >>> account = kvdistill.import_file(iolog, "imported", format="fio-iolog")
        >>> account.files, account.rows_kept
        (['trace.objects.parquet', 'trace.parquet'], 1)
    """
    listed = [files] if isinstance(files, str | Path) else files
    formats = {str(kind): kind for kind in Format}
    if str(format) not in formats:
        raise ConfigError(f"{named('format', format)}: known are {', '.join(formats)}")
    return import_files(
        [Path(file) for file in listed],
        ImportOptions(formats[str(format)], tier),
        Path(output),
        list(argv),
        is_forced=overwrite,
    )
