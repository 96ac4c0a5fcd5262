"""The public functions of kvdistill for jobs of object stores: warp and sai3-bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from msgspec import to_builtins

from kvdistill.api import selected_window
from kvdistill.formats.oplog import Style
from kvdistill.jobs.job import PROFILE
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
from kvdistill.query_api import Source, path_of
from kvdistill.reports.jobs import written_document
from kvtrace.core.document.document import Document
from kvtrace.core.files import check_new
from kvtrace.core.json_types import JsonObject
from kvtrace.core.limit import Limit
from kvtrace.core.parameters import suggest_keywords
from kvtrace.core.units import parse_duration_ns, positive


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


@suggest_keywords
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
        window=selected_window(limit, begin, end, busiest),
        style=Style.WARP if csv else None,
        endpoint=f"http://{host}",
        run=run,
        overwrite=overwrite,
        argv=argv,
    )


@suggest_keywords
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
        window=selected_window(limit, begin, end, busiest),
        style=Style.SAI3,
        endpoint=target,
        hosts=hosts,
        run=run,
        overwrite=overwrite,
        argv=argv,
    )


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
