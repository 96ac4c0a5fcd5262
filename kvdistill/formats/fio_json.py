"""Import the JSON results of fio (`--output-format=json` or `json+`) as the figures of a run.json.

fio keeps histograms, not I/Os: percentiles are those that it printed or, with json+, those of its
bins. A file may hold several results, for `fio … >> file` appends and `--status-interval` writes
the state of one run again and again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportedFacts, ImportOptions
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.core.run.figures import Distribution, Figures, Summary
from kvtrace.core.run.run_builder import COMPLETE
from kvtrace.core.run.run_file import EngineNote
from kvtrace.core.schema import MOST
from kvtrace.core.simulation_stats import Count
from kvtrace.core.statistics import QUANTILES, at_rank, nearest_rank
from kvtrace.core.text import read_bounded
from kvtrace.core.units import NS_PER_MS, counted

_MS_PER_S = 1000
_QUANTILES_PER_PERCENT = 100
"""QUANTILES counts in hundredths of a percent, fio in percent."""
_REQUIRED = ("io_bytes", "bw_bytes", "iops", "runtime", "lat_ns")
"""Fields that fio writes for each direction since its version 3."""
_OPERATIONS = ("read", "write")
"""The directions that are imported; trims and syncs are only counted."""
_Ms = Annotated[int, msgspec.Meta(ge=0, le=MOST // NS_PER_MS)]


class _Latencies(msgspec.Struct):
    """A distribution of latencies in ns; any field may be missing or null."""

    mean: float | None = None
    max: Count | None = None
    N: Count | None = None
    percentile: dict[str, Count | None] | None = None
    bins: dict[str, Count | None] | None = None


class _Direction(msgspec.Struct):
    """The I/O of one job in one direction."""

    total_ios: Count | None = None
    io_bytes: Count | None = None
    bw_bytes: float | None = None
    iops: float | None = None
    runtime: _Ms | None = None
    lat_ns: _Latencies | None = None
    clat_ns: _Latencies | None = None


class _Job(msgspec.Struct, rename={"options": "job options"}):
    """A job of a result, or the sum of a group of jobs."""

    jobname: str | None = None
    error: int | None = None
    total_err: Count | None = None
    job_runtime: _Ms | None = None
    job_start: Count | None = None
    """Unix time in ms; fio writes it from 3.36 on."""
    elapsed: Count | None = None
    """Seconds since fio began, rounded up."""
    groupid: int | None = None
    hostname: str | None = None
    """The host of its client (`--client`)."""
    read: _Direction | None = None
    write: _Direction | None = None
    trim: _Direction | None = None
    sync: _Direction | None = None
    options: dict[str, str | None] | None = None

    def directions(self) -> dict[str, _Direction]:
        """Return the directions in which the job did I/O, by fio's names."""
        by_name = {"read": self.read, "write": self.write, "trim": self.trim, "sync": self.sync}
        return {
            name: direction
            for name, direction in by_name.items()
            if direction is not None and direction.total_ios
        }


class _Result(msgspec.Struct, rename={"version": "fio version", "options": "global options"}):
    """One result of fio: the fields that are read."""

    jobs: list[_Job | None] = []
    client_stats: list[_Job | None] = []
    """Instead of `jobs` with `--client`: the jobs of every client, then their sum."""
    version: str | None = None
    options: dict[str, str | None] | None = None
    timestamp_ms: Count | None = None
    """Unix time at which the result was written."""

    def all_jobs(self) -> list[_Job]:
        """Return the jobs, without the sum over all clients."""
        clients = [job for job in self.client_stats if job and job.jobname != "All clients"]
        return [job for job in self.jobs if job] + clients


def read_results(
    files: Sequence[Path], options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import every result in `files`; each job becomes a tier of its name.

    TraceError if a file holds no result of fio 3 or later, or a damaged one.
    """
    account = Account()
    results: list[tuple[Path, _Result]] = []
    has_several = False
    for path in files:
        runs, states = _read_runs(path)
        if states > len(runs):
            account.notes.append(
                f"{path.name} holds {states} states of {counted(len(runs), 'run')} of fio"
                " (--status-interval): the last state of each is imported"
            )
        if len(runs) > 1:
            has_several = True
            account.notes.append(f"{path.name} holds the results of {len(runs)} runs of fio")
        results += [(path, result) for result in runs]
    jobs = [(path, result, job) for path, result in results for job in result.all_jobs()]
    figures: list[Figures] = []
    latency_kinds: set[str] = set()
    errors = []
    tier_names = _tier_names([job for *_, job in jobs], options.tier)
    for (path, _, job), tier in zip(jobs, tier_names, strict=True):
        if job.error:
            errors.append(f"job {job.jobname} of {path.name} ended with error {job.error}")
        for name, direction in job.directions().items():
            account.rows_read += 1
            if name in _OPERATIONS:
                figures.append(_job_figures(job, name, direction, tier, latency_kinds, path))
            else:
                count = counted(direction.total_ios or 0, name)
                account.notes.append(
                    f"counted in no figure: {count} of job {job.jobname} in {path.name}"
                )
    if not figures:
        raise TraceError(
            "holds no job that read or wrote (unified_rw_reporting=mixed does not separate them)",
            path=files[0],
        )
    account.rows_kept = len(figures)
    account.notes += _notes(latency_kinds)
    # A job that ended with an error had at least one; only continue_on_error counts them.
    failed = sum(job.total_err or bool(job.error) for *_, job in jobs)
    job_options = [(result.options or {}) | (job.options or {}) for _, result, job in jobs]
    return Imported(
        account,
        [],
        list(dict.fromkeys(row.tier for row in figures)),
        summary=Summary(
            verdict="imported from fio-json",
            figures=figures,
            wall_ns=_wall_ns([job for *_, job in jobs], job_options, has_several=has_several),
            operations=sum(row.operations or 0 for row in figures),
            errors=failed,
        ),
        facts=_run_facts(job_options, errors),
        config={
            "fio": {
                "version": results[0][1].version,
                "jobs": dict(zip(tier_names, job_options, strict=True)),
            }
        },
    )


def _notes(latency_kinds: set[str]) -> list[str]:
    """Return notes on the origin of the figures."""
    notes = [
        "fio's percentiles are of histograms whose bins are at most 1/64 of their value wide",
        "each job is a tier of its name",
        "bandwidth and rates are over each job's own run time",
    ]
    if "clat_ns" in latency_kinds:
        note = (
            "latency is fio's completion latency, without submission (lat_percentiles=1 would give"
            " the whole)"
        )
        if "lat_ns" in latency_kinds:
            note += ", but the whole of jobs with lat_percentiles=1"
        notes.append(note)
    return notes


def _read_runs(path: Path) -> tuple[list[_Result], int]:
    """Return the last result of each run of fio in the file, and how many results it holds."""
    states = [_decode_result(text, path) for text in _json_documents(path)]
    runs: list[_Result] = []
    for state in states:
        if runs and _continues(state, runs[-1]):
            runs[-1] = state
        else:
            runs.append(state)
    return runs, len(states)


def _json_documents(path: Path) -> list[str]:
    """Return the results in the file: JSON objects, one after the other or in an array.

    fio writes warnings before a result into the same file, and results in its other formats after
    it. A document that is cut short is returned as it stands, so that its reader can refuse it.
    """
    need_file(path)
    text = read_bounded(path).decode(errors="replace")
    decoder = json.JSONDecoder()
    documents: list[str] = []
    end = 0
    while (begin := _next_object(text, end)) is not None:
        try:
            _, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            return [*documents, text[begin:]]
        documents.append(text[begin:end])
    return documents or [""]


_NEXT_OBJECT = re.compile(r"[\s,\[\]]*(\{)")
_NEXT_LINE = re.compile(r"\n[ \t,\[\]]*(\{)")


def _next_object(text: str, begin: int) -> int | None:
    """Return the offset of the object that follows at `begin`, or else begins a later line.

    Commas and brackets of arrays may be before it.
    """
    found = _NEXT_OBJECT.match(text, begin) or _NEXT_LINE.search(text, begin)
    return None if found is None else found.start(1)


def _decode_result(text: str, path: Path) -> _Result:
    misfit = "not fio's JSON: {} (fio --output-format=json writes it)"
    return decode_json(text.encode(), _Result, path, misfit=misfit)


def _continues(state: _Result, earlier: _Result) -> bool:
    """Return whether `state` is a later state of the run that wrote `earlier`.

    It has the same jobs, no counter fell, a job that did nothing more has the same mean latency,
    and both states say that fio began at the same time.
    """
    before, after = earlier.all_jobs(), state.all_jobs()
    if [_identity(job) for job in before] != [_identity(job) for job in after]:
        return False
    has_ios = any(job.directions() for job in before)
    if not has_ios:
        # The first state of a run may come before its first I/O.
        return True
    if not all(_grew_from(old, new) for old, new in zip(before, after, strict=True)):
        return False
    return _began_together(earlier, state)


def _identity(job: _Job) -> tuple[object, ...]:
    return job.jobname, job.hostname, job.groupid, job.job_start, job.options


def _grew_from(earlier: _Job, later: _Job) -> bool:
    later_directions = later.directions()
    for name, old in earlier.directions().items():
        new = later_directions.get(name)
        if new is None:
            return False
        if (new.total_ios or 0) < (old.total_ios or 0) or (new.runtime or 0) < (old.runtime or 0):
            return False
        if new.total_ios == old.total_ios and _mean_ns(new) != _mean_ns(old):
            return False
    return True


def _mean_ns(direction: _Direction) -> float | None:
    latencies = direction.lat_ns or direction.clat_ns
    return None if latencies is None else latencies.mean


def _began_together(earlier: _Result, later: _Result) -> bool:
    """Return whether two results can be of a run that began at one time; true if they do not say.

    `elapsed` counts whole seconds, so that the beginnings that follow from it differ by up to one.
    Runs shorter than that are told apart by the run times of their jobs, in ms: a job of a later
    run began after the earlier result was written.
    """
    if earlier.timestamp_ms is None or later.timestamp_ms is None:
        return True
    elapsed_ms = [
        max((job.elapsed or 0 for job in result.all_jobs()), default=0) * _MS_PER_S
        for result in (earlier, later)
    ]
    if all(elapsed_ms):
        began_ms = (earlier.timestamp_ms - elapsed_ms[0], later.timestamp_ms - elapsed_ms[1])
        if abs(began_ms[1] - began_ms[0]) > _MS_PER_S:
            return False
    is_unchanged = all(
        _totals(old) == _totals(new)
        for old, new in zip(earlier.all_jobs(), later.all_jobs(), strict=True)
    )
    longest_ms = max((_busy_ms(job) for job in later.all_jobs()), default=0)
    return is_unchanged or later.timestamp_ms - longest_ms < earlier.timestamp_ms


def _totals(job: _Job) -> dict[str, int | None]:
    return {name: direction.total_ios for name, direction in job.directions().items()}


def _busy_ms(job: _Job) -> int:
    """Return how long a job did I/O.

    fio adds up the `job_runtime` of the jobs of a group (group_reporting), but a direction's
    `runtime` is that of the longest job.
    """
    runtimes_ms = [
        direction.runtime
        for direction in (job.read, job.write, job.trim)
        if direction is not None and direction.runtime
    ]
    return min(job.job_runtime or 0, max(runtimes_ms, default=MOST))


def _wall_ns(
    jobs: list[_Job], job_options: list[dict[str, str | None]], *, has_several: bool
) -> int | None:
    """Return the time from the start of the first of `jobs` to the end of the last.

    Null where fio does not say: before fio 3.36, for jobs that did not run all at once.
    """
    busy_ms = [_busy_ms(job) for job in jobs]
    starts_ms = [job.job_start for job in jobs if job.job_start is not None]
    if len(starts_ms) == len(jobs):
        ends_ms = [start + ms for start, ms in zip(starts_ms, busy_ms, strict=True)]
        return (max(ends_ms) - min(starts_ms)) * NS_PER_MS or None
    # A job behind a stonewall is in a group of its own.
    is_one_group = len({job.groupid for job in jobs}) == 1
    is_delayed = any("startdelay" in options for options in job_options[1:])
    if has_several or not is_one_group or is_delayed:
        return None
    return max(busy_ms) * NS_PER_MS or None


def _tier_names(jobs: list[_Job], tier: str | None) -> list[str]:
    """Return a name of a tier for each job, each different.

    It is the job's name, with its host if there are several hosts, or `tier` for a single job.
    """
    names: list[str] = []
    has_hosts = len({job.hostname for job in jobs if job.hostname}) > 1
    for job in jobs:
        job_name = "fio" if job.jobname is None else job.jobname
        if has_hosts and job.hostname:
            job_name += f" on {job.hostname}"
        if tier is None:
            name = job_name
        elif len(jobs) == 1:
            name = tier
        else:
            name = f"{tier} {job_name}"
        same_names = sum(
            earlier_name == name or earlier_name.startswith(f"{name} #") for earlier_name in names
        )
        names.append(f"{name} #{same_names + 1}" if same_names else name)
    return names


def _job_figures(
    job: _Job, op: str, direction: _Direction, tier: str, latency_kinds: set[str], path: Path
) -> Figures:
    latency = _latency(direction, latency_kinds)
    missing = [name for name in _REQUIRED if getattr(direction, name) is None]
    if missing or latency is None:
        lacks = repr(missing[0]) if missing else "'its latencies'"
        raise TraceError(f"not of fio 3 or later: {op} of a job lacks {lacks}", path=path)
    is_timed = bool(direction.runtime)
    return Figures(
        tier=tier,
        op=op,
        engine="other",
        is_simulated=False,
        operations=direction.total_ios,
        errors=None if job.error or job.total_err else 0,
        bytes=direction.io_bytes,
        io_bytes=direction.io_bytes,
        span_ns=(direction.runtime or 0) * NS_PER_MS,
        bandwidth_bytes_per_s=direction.bw_bytes if is_timed else None,
        operations_per_s=direction.iops if is_timed else None,
        latency=latency,
    )


def _latency(direction: _Direction, latency_kinds: set[str]) -> Distribution | None:
    """Return a direction's latencies: total latency if fio has its percentiles, else completion.

    Its kind is added to `latency_kinds`. Null if fio wrote neither.
    """
    total = direction.lat_ns
    is_total = total is not None and (total.percentile, total.bins) != (None, None)
    latencies = total if is_total else direction.clat_ns
    if latencies is None:
        return None
    latency_kinds.add("lat_ns" if is_total else "clat_ns")
    count = (direction.total_ios or 0) if latencies.N is None else latencies.N
    if not count:
        return Distribution(0)
    bins = sorted(
        (int(value), n or 0) for value, n in (latencies.bins or {}).items() if value.isdecimal()
    )
    percentiles_ns: dict[str, float | None] = {}
    for name, quantile in QUANTILES.items():
        rank = nearest_rank(count, quantile)
        printed = (latencies.percentile or {}).get(f"{quantile / _QUANTILES_PER_PERCENT:.6f}")
        from_bins = rank is None or printed is None
        percentiles_ns[f"{name}_ns"] = at_rank(bins, rank) if from_bins else printed
    distribution = Distribution(count, latencies.mean, max_ns=latencies.max)
    return msgspec.structs.replace(distribution, **percentiles_ns)


def _run_facts(job_options: list[dict[str, str | None]], errors: list[str]) -> ImportedFacts:
    def shared_option(name: str) -> str | None:
        """Return the value of an option if all jobs share it, else null."""
        values = {options.get(name) for options in job_options}
        return values.pop() if len(values) == 1 else None

    depth = shared_option("iodepth")
    return ImportedFacts(
        status="partial" if errors else COMPLETE,
        reason="; ".join(errors) or None,
        engine=EngineNote(
            name=shared_option("ioengine") or "other",
            queue_depth=int(depth) if depth is not None and depth.isdigit() else None,
            io_bytes=None,
        ),
    )
