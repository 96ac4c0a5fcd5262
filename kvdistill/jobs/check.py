"""Run fio jobs briefly on a scratch file, and compare their I/O with the source."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvdistill.formats.formats import RELATIVE
from kvdistill.jobs import closeness
from kvdistill.jobs.fio_replay import log_members
from kvdistill.jobs.fio_run import direct_requests, disk_of, environment, run_observed
from kvdistill.jobs.fio_sections import (
    LOG_ENTRIES,
    FioJob,
    FioSection,
    on_null,
    with_drawn_iologs,
    with_latency_logs,
)
from kvdistill.jobs.job import (
    HOW_TO_GET,
    MAX_DEPTH,
    PREFILL,
    FioMode,
    JobOptions,
    installed_version,
    knows_option,
    run_fio,
)
from kvdistill.jobs.mode_job import ModeJob, make_job, make_prefill, supported_modes
from kvdistill.jobs.reference import CheckStorage, NoReference, device_bytes, replay_part
from kvdistill.jobs.second_replay import judge_again, misses_depth
from kvdistill.jobs.verdicts import (
    END_SLIP_TARGET,
    GAPS,
    REPLAY_GAP_KS_TARGET,
    SIZE_TV_TARGET,
    SIZES,
    Side,
    StreamFigures,
    Verdict,
)
from kvdistill.profile.notebook import html_table
from kvdistill.profile.profile import SourceKind
from kvdistill.profile.sources import Distilled, distil_source, file_of, first_read_ns
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.files import find_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.parameters import named
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration

CLOSENESS = "closeness.json"
_SPARE_BYTES = 256 << 20
"""Free space that a check does not use."""
_SLOWEST_BYTES_PER_S = 20e6
"""A check stops on a slower target, because it has to be brief."""
Tell = Callable[[str], None]
"""A function that receives a line at the start of each step."""


def ignore(_line: str) -> None:
    """Drop a line."""


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--check`, the content of `closeness.json`."""

    fio_version: str
    comparisons: list[closeness.ClosenessPair]
    notes: list[str]
    issue_us: closeness.IssueTimes | None = None
    """Time by which each delay of the replay's log is shortened, an I/O and a MiB.

    The log then has relative microseconds. Null: the log is as requested.
    """

    def __repr__(self) -> str:
        """Return the targets that each job reaches, in one line."""
        reached = (
            f"{pair.job} {sum(verdict.passes is True for verdict in pair.verdicts)} of"
            f" {sum(verdict.passes is not None for verdict in pair.verdicts)}"
            for pair in self.comparisons
        )
        return f"Closeness({', '.join(reached)} targets, fio {self.fio_version})"

    def _repr_html_(self) -> str:
        """Return a table of the targets, for notebooks."""
        rows = [
            [pair.job, verdict.name, verdict.target, _cell(verdict.value), _cell(verdict.passes)]
            for pair in self.comparisons
            for verdict in pair.verdicts
        ]
        return html_table(["job", "figure", "target", "measured", "passes"], rows)


def _cell(value: float | bool | None) -> str:
    """Return a figure or yes/no as a cell of a table; a dash if unknown."""
    if value is None:
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:.4g}"


def find_closeness(path: Path) -> Closeness | None:
    """Return the closeness.json at `path`, null if there is none.

    TraceError if it is damaged or of another version.
    """
    return find_json(path, Closeness, misfit="not a closeness.json of this version: {}")


_DEVICE_SOURCES = (SourceKind.BLOCKS, SourceKind.PROBE)


# Long, because it lists all steps of a check.
def check(
    distilled: Distilled,
    target: Path,
    modes: Sequence[FioMode],
    options: JobOptions,
    tell: Tell,
    folder: Path | None = None,
) -> Closeness:
    """Run short jobs of `modes` on `target`, and return their closeness.

    A block device is overwritten itself, which `options.is_destroying` has to allow. Instead of a
    file, a scratch file next to it is used. Jobs and logs are in a temporary folder: next to a
    file, and for a device in `folder` (by default the system's).

    The jobs cover the source's first `check_ns` or `check_bytes`, and are compared with that part.
    `tell` receives a line at the start of each step.

    ConfigError if `target` is a folder. ProbeUnavailable without fio. DeviceError for a device that
    must not be overwritten, a missing folder, insufficient space, or a failure of fio.
    """
    version, cap, is_null = installed_version(), options.check_ns, options.has_null_check
    if version is None:
        raise ProbeUnavailable(f"a check needs fio; {HOW_TO_GET}")
    storage = _storage_of(target, options)
    options = replace(
        options,
        target=target.name if storage.device is None else str(storage.device),
        version=version,
        runtime_cap_ns=cap,
        is_device=False,
    )
    part_limit = distilled.limit.within(
        Limit(span_ns=cap, moved_bytes=None if is_null else options.check_bytes)
    )
    depth, comparisons = distilled.profile.depth, []
    notes = ["the source's queue depth is unknown: a trace has no measured times"]
    if depth is not None:
        notes = [f"the source's mean queue depth is {depth.mean:.3g}"]
    if is_null:
        notes.append(
            "fio's null engine was used: times are those of fio itself, to which a target only adds"
        )
    if storage.device is not None and distilled.profile.delete_ops:
        notes.append("the check issues no discards: reads and writes are compared")
    place = target.parent if storage.device is None else folder
    with temporary_folder(".check-", place) as folder_path:
        checked, window = checked_part(distilled, part_limit, folder_path)
        skipped = set(modes) - set(supported_modes(checked, None))
        notes += [
            f"{mode.job} is not checked: all operations of {window} share one instant"
            " (--check-duration)"
            for mode in skipped
        ]
        jobs = {mode: make_job(mode, checked, options) for mode in modes if mode not in skipped}
        depth_cap = min(MAX_DEPTH, max((job.depth for job in jobs.values()), default=1))
        reference, is_too_slow = (
            _reference(checked, folder_path, storage, options.io_bytes, depth_cap, notes, tell)
            if jobs and not is_null
            else (None, False)
        )
        if jobs and not is_null:
            _fill(checked, jobs, folder_path, storage, options)
        issue_us, runs = None, dict[str, closeness.CheckedRun]()
        for mode, job in jobs.items():
            run = runs[mode.job] = closeness.CheckedRun(
                mode,
                checked,
                window,
                distilled.profile.span_ns,
                folder_path,
                options,
                job,
                reference,
                storage.disk,
                is_target_too_slow=is_too_slow,
            )
            pair, issue_us_of_log = _compare(run, notes)
            issue_us = issue_us_of_log or issue_us
            comparisons.append(pair)
        missed = [pair.job for pair in comparisons if misses_depth(pair)]
        if reference is not None and reference is not checked and missed:
            tell(
                f"checking: queue depths of {' and '.join(missed)} differ; fio and kvreplay run once"
                " more, to see how much the disk varies"
            )
            second_runs = {job: _compare(runs[job], [])[0].fio for job in missed}
            comparisons = _judged_again(
                comparisons, second_runs, checked, folder_path, storage, options.io_bytes, depth_cap
            )
    return Closeness(
        fio_version=str(version),
        comparisons=_excuse_device_splits(comparisons),
        notes=list(dict.fromkeys(notes)),
        issue_us=issue_us,
    )


def checked_part(distilled: Distilled, limit: Limit, scratch: Path) -> tuple[Distilled, str]:
    """Return the part of a source that a check covers, and what it is called.

    It is the first part within `limit`. If nothing is read there, as while a cache is still filled,
    it begins with the first read, because a check of writes alone says nothing of the drive's reads.
    """
    if distilled.ios is None or distilled.source is None:
        return distilled, "the whole window"
    part = distil_source(distilled.source, distilled.tier, limit, scratch)
    if part.profile.ops == distilled.profile.ops:
        return distilled, "the whole window"
    is_bound_by_time = limit.rows is None and distilled.limit.moved_bytes is None
    is_trace = distilled.profile.origin.kind is SourceKind.TRACE
    if is_trace and is_bound_by_time and distilled.profile.read.ops and not part.profile.read.ops:
        begin_ns = first_read_ns(distilled.source, distilled.tier, limit.begin_ns)
        if begin_ns is not None:
            part = distil_source(
                distilled.source, distilled.tier, replace(limit, begin_ns=begin_ns), scratch
            )
            span = format_duration(part.profile.span_ns)
            return (
                part,
                f"{span} from the first read on, {format_duration(begin_ns)} after the start",
            )
    return part, f"the first {format_duration(part.profile.span_ns)}"


def _storage_of(target: Path, options: JobOptions) -> CheckStorage:
    """Return the storage on which to check jobs for `target`.

    ConfigError or DeviceError if nothing may be written there.
    """
    if target.is_block_device():
        device = target.resolve()
        # The null engine writes nothing.
        is_allowed = options.is_destroying or options.has_null_check
        size_bytes = device_bytes(device, is_allowed=is_allowed, overwritten=options.overwritten)
        return CheckStorage(disk_of(device), device, size_bytes, options.overwritten)
    if target.is_dir():
        raise ConfigError(f"{target} is a folder; name a file or a block device for the check")
    if not target.parent.is_dir():
        raise DeviceError(f"{target.parent}: no such folder for a check; create it first")
    return CheckStorage(disk_of(target.parent))


def _fill(
    distilled: Distilled,
    jobs: Mapping[FioMode, ModeJob],
    place: Path,
    storage: CheckStorage,
    options: JobOptions,
) -> None:
    """Fill the target of all `jobs` in `place`; DeviceError for insufficient space."""
    space_bytes = max(job.space_bytes for job in jobs.values())
    prefill = make_prefill(distilled.profile, jobs.values(), options)
    write_text(place / PREFILL, prefill.text)
    if storage.device is None:
        available_bytes = shutil.disk_usage(place).free - _SPARE_BYTES
        where = f"free in {place.parent}, less {format_bytes(_SPARE_BYTES)} that are left alone"
    else:
        available_bytes, where = storage.device_bytes, f"on {storage.device}"
    if available_bytes < space_bytes:
        raise DeviceError(
            f"{named('check')} needs {format_bytes(space_bytes)}, but there are"
            f" {format_bytes(max(0, available_bytes))} {where}; check less with"
            f" {named('check_duration')} or {named('check_bytes')}"
        )
    run_fio(place / PREFILL, 30 + space_bytes / _SLOWEST_BYTES_PER_S)


def _excuse_device_splits(
    pairs: Sequence[closeness.ClosenessPair],
) -> list[closeness.ClosenessPair]:
    """Return `pairs` without size failures that the device causes by splitting I/Os at random.

    The exact replay issues the source's own I/Os, so its size mismatch at the device is due to such
    splits, and sampled jobs may have the same in addition.
    """
    exact = [
        pair.fio
        for pair in pairs
        if pair.job == FioMode.REPLAY.job and pair.fio.side is Side.DEVICE
    ]
    replay_mismatch = (exact[0].size_tv or 0.0) if exact else 0.0
    max_mismatch = SIZE_TV_TARGET + min(replay_mismatch, SIZE_TV_TARGET)
    reason = f"the exact replay also has {100 * replay_mismatch:.2g} %, due to splits at the device"

    def judged(pair: closeness.ClosenessPair, verdict: Verdict) -> Verdict:
        is_failure = (
            verdict.name == SIZES and verdict.passes is False and pair.job != FioMode.REPLAY.job
        )
        is_explained = is_failure and (verdict.value or 0) <= max_mismatch
        return (
            msgspec.structs.replace(verdict, passes=None, reason=reason)
            if is_explained
            else verdict
        )

    return [
        msgspec.structs.replace(pair, verdicts=[judged(pair, verdict) for verdict in pair.verdicts])
        for pair in pairs
    ]


def _closest_replay(
    run: closeness.CheckedRun, notes: list[str]
) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
    """Return the replay with the closest gaps at the device, and the issue times in its log.

    run with relative microseconds
    if gaps miss their target and issue times were measured: run again, corrected by these
    if the device was not observed, or the end slipped: run as requested (issue times null)
    """
    options = run.options
    if run.job.lanes is not None:
        # Lanes have absolute times: one that is late has to catch up.
        return _check_logs(run, notes)[0], None

    def tried(
        options: JobOptions,
    ) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
        """Write the logs with other options, and run them."""
        job = make_job(run.mode, run.distilled, options)
        return _check_logs(replace(run, options=options, job=job), notes)

    relative = replace(options, log_version=RELATIVE, jobs=1)
    best, issue_us = None, None
    if options.log_version is None and options.jobs in (None, 1) and not options.has_null_check:
        (best, measured_issue_us), issue_us = tried(relative), options.issue_us
        if measured_issue_us is not None and (GAPS, False) in [
            (verdict.name, verdict.passes) for verdict in best.verdicts
        ]:
            timed, _issue_us = tried(replace(relative, issue_us=measured_issue_us))
            if (timed.fio.gap_ks or 0) <= (best.fio.gap_ks or 0):
                best, issue_us = timed, measured_issue_us
        if best.fio.side is not Side.DEVICE or abs(best.fio.end_slip or 0) > END_SLIP_TARGET:
            # The issue times are unknown, or vary.
            best, issue_us = None, None
    pair = best or tried(options)[0]
    ks = pair.fio.gap_ks
    if pair.fio.gap_resolution_us == 1 and ks is not None and ks > REPLAY_GAP_KS_TARGET:
        notes.append(
            f"this fio keeps the gaps between arrivals to a KS distance of {ks:.2f} at 1 µs;"
            " kvreplay issues by absolute times and keeps them closer"
        )
    return pair, issue_us


def _reference(
    checked: Distilled,
    place: Path,
    storage: CheckStorage,
    io_bytes: int,
    depth_cap: int,
    notes: list[str],
    tell: Tell,
) -> tuple[Distilled | None, bool]:
    """Return the block requests to compare fio's with, and whether the target is too slow.

    They are null, with a note, if only fio's logs can be compared. The target is too slow if
    kvreplay did not keep up with the part on it.
    """
    kind = checked.profile.origin.kind
    if kind in _DEVICE_SOURCES:
        return checked, False
    if kind is not SourceKind.TRACE:
        notes.append(
            "only fio's logs were compared: the source has operations on files, which the block layer"
            " merges and splits; to compare at the device, make jobs from the blocks.parquet of"
            " `kvreplay probe` or `run --probes`"
        )
        return None, False
    tell("checking: kvreplay replays the part of the trace to measure its block requests")
    assert checked.source is not None
    requests, reason, missing = replayed_requests(
        file_of(checked.source), checked, place, storage, io_bytes, depth_cap
    )
    if requests is None:
        notes.append(f"only fio's logs were compared, with the operations of the trace: {reason}")
    else:
        notes.append(
            "compared at the device: the reference is a replay of this part of the trace by kvreplay"
            f" on the same disk ({reason})"
        )
    return requests, missing in _TARGET_IS_TOO_SLOW


def _compare(
    run: closeness.CheckedRun, notes: list[str]
) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
    """Run the job in `run`; return its closeness, and of a replay the issue times in its log."""
    if run.mode is FioMode.REPLAY:
        return _closest_replay(run, notes)
    if run.mode is FioMode.STAT:
        return _check_drawn(run, notes), None
    return _check_logs(run, notes)[0], None


def _judged_again(
    comparisons: Sequence[closeness.ClosenessPair],
    second_runs: Mapping[str, StreamFigures],
    checked: Distilled,
    place: Path,
    storage: CheckStorage,
    io_bytes: int,
    depth_cap: int,
) -> list[closeness.ClosenessPair]:
    """Return `comparisons` with missed queue depths judged by second runs of both sides.

    `second_runs` has those of fio by job; kvreplay's second replay is made here.
    """
    assert checked.source is not None
    again = place / "again"
    again.mkdir()
    requests = replayed_requests(
        file_of(checked.source), checked, again, storage, io_bytes, depth_cap
    ).requests
    if requests is None:
        return list(comparisons)
    return judge_again(comparisons, closeness.replay_figures(requests), second_runs)


class ReplayedRequests(NamedTuple):
    """The block requests of a replay of a part."""

    requests: Distilled | None
    """Null if the part cannot be replayed or measured."""
    message: str
    """Result of the replay, or why there are no requests."""
    missing: NoReference | None
    """Why there are no requests; null if there are."""


_TARGET_IS_TOO_SLOW = (NoReference.TOO_SLOW, NoReference.FELL_BEHIND)


def replayed_requests(
    trace: Path,
    checked: Distilled,
    place: Path,
    storage: CheckStorage,
    io_bytes: int,
    depth_cap: int,
) -> ReplayedRequests:
    """Replay `checked` of `trace` on `storage`; return its block requests, and the result.

    The run's files are in `place`.
    """
    replayed = replay_part(
        trace,
        checked,
        place,
        storage,
        io_bytes=io_bytes,
        queue_depth=depth_cap,
        slowest_bytes_per_s=_SLOWEST_BYTES_PER_S,
    )
    if replayed.blocks is None or storage.disk is None:
        return ReplayedRequests(None, replayed.message, replayed.missing)
    requests, reason = direct_requests(
        replayed.blocks,
        storage.disk.name,
        place / "replayed.scratch",
        largest_io_bytes=_largest_issued_bytes(checked, io_bytes),
    )
    missing = NoReference.NO_REQUESTS if requests is None else None
    return ReplayedRequests(requests, reason or replayed.message, missing)


def _largest_issued_bytes(checked: Distilled, io_bytes: int) -> int | None:
    """Return the longest I/O that a replay of a trace issues; null for other sources.

    Other sources hold device requests, which are compared as they are.
    """
    profile = checked.profile
    return min(profile.longest_bytes, io_bytes) if profile.origin.kind is SourceKind.TRACE else None


def _run_observed(
    run: closeness.CheckedRun, job: Path, unseen: Path, timeout_s: float, notes: list[str]
) -> closeness.ObservedRun:
    """Run `job` with the device probed; if that is impossible, run `unseen` and add a note."""
    if run.reference is None:
        return closeness.ObservedRun(
            run_fio(unseen, timeout_s, environment=environment()), None, None
        )
    observed = run_observed(
        job,
        timeout_s,
        disk=run.disk,
        unseen=unseen,
        largest_io_bytes=_largest_issued_bytes(run.distilled, run.options.io_bytes),
    )
    if observed.reason is not None:
        notes.append(f"only fio's logs were compared, not device requests: {observed.reason}")
    return observed


def _check_logs(
    run: closeness.CheckedRun, notes: list[str]
) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
    """Run the job of iologs in `run`; return its closeness, and the issue times if measured."""
    log, is_null = run.job.log, run.options.has_null_check
    assert log is not None
    assert run.job.ios is not None
    largest = max((lane.ios for lane in log.lanes), default=log.read_ios + log.write_ios)
    logging = with_latency_logs(run.job.job, largest if knows_option(LOG_ENTRIES) else None)
    replace(run.job, job=on_null(logging) if is_null else logging).write(run.place)
    job = run.place / run.mode.job
    moved_bytes = log.read_bytes + log.write_bytes
    timeout_s = 30 + log.last_us / 1e6 + log.start_ms / 1e3 + moved_bytes / _SLOWEST_BYTES_PER_S
    observed = _run_observed(run, job, job, timeout_s, notes)
    members = log_members(log, run.job.ios, run.job.lanes)
    logs = [
        closeness.LatencyLog(
            next(run.place.glob(f"{section.name}_{'slat' if is_submission else 'clat'}.*.log")),
            is_submission=is_submission,
            members=numbers,
        )
        for section, numbers in zip(run.job.job.processes, members, strict=True)
        # The null engine and synchronous ones submit nothing.
        for is_submission in [not is_null and _engine(run.job.job, section) == "libaio"]
    ]
    result = closeness.compare_logged(run, observed, logs)
    for log_file in logs:
        log_file.path.unlink()
    return result


def _engine(job: FioJob, section: FioSection) -> str | None:
    """Return the I/O engine of a section: its own, or the one that all share."""
    shared = job.sections[0].options.get("ioengine")
    return section.options.get("ioengine", shared)


def _check_drawn(run: closeness.CheckedRun, notes: list[str]) -> closeness.ClosenessPair:
    """Run the statistical job in `run`."""
    job, logged = run.place / run.mode.job, run.place / f"{run.mode}.logged.fio"
    run.job.write(run.place)
    # Logging I/Os slows down a closed loop, so it is used only if the device is not observed.
    logging = with_drawn_iologs(run.job.job)
    logged.write_text((on_null(logging) if run.options.has_null_check else logging).text)
    moved_bytes = run.distilled.profile.read.io_bytes + run.distilled.profile.write.io_bytes
    timeout_s = 60 + run.options.check_ns / NS_PER_S + moved_bytes / _SLOWEST_BYTES_PER_S
    return closeness.compare_drawn(run, _run_observed(run, job, logged, timeout_s, notes))
