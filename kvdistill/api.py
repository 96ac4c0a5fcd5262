"""The public functions of kvdistill for profiles and fio jobs.

Those for queries, reports, jobs of object stores and imports are in the files beside, because each
needs other libraries, which take long to import. `kvdistill/__init__.py` says which names are public.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvdistill.jobs.fio_jobs import FioJobs, make_jobs
from kvdistill.jobs.job import JobOptions
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source, with_operations
from kvdistill.queries.window import parse_window
from kvdistill.query_api import Source, path_of
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.parameters import suggest_keywords
from kvtrace.core.temporary import TemporaryFolder


@suggest_keywords
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
    window = selected_window(limit, begin, end, busiest)
    folder = TemporaryFolder("kvdistill-", scratch)
    return distil_source(path_of(source), tier, window, folder.path, folder).profile


@suggest_keywords
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


def selected_window(
    limit: str | int | None, begin: str | None, end: str | None, busiest: str | None
) -> Limit:
    """Return the part of a source that the parameters of `distil` select."""
    return parse_window(None if limit is None else str(limit), begin, end, busiest)
