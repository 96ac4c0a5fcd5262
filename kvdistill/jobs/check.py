"""Run fio jobs briefly on a scratch file, and say how close their I/O comes to the source's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kvdistill.formats.formats import RELATIVE
from kvdistill.jobs import closeness
from kvdistill.jobs.fio_replay import log_members
from kvdistill.jobs.fio_run import direct_requests, disk_of, environment, run_seen
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
    installed,
    knows_option,
    run_fio,
)
from kvdistill.jobs.mode_job import ModeJob, make_job, make_prefill, supported_modes
from kvdistill.jobs.reference import replay_part
from kvdistill.profile.notebook import html_table
from kvdistill.profile.profile import SourceKind
from kvdistill.profile.sources import Distilled, distil_source, file_of
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.files import find_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration

CLOSENESS = "closeness.json"
_SPARE_BYTES = 256 << 20
"""Free space that a check leaves alone."""
_SLOWEST_BYTES_PER_S = 20e6
"""A target slower than this is given up on: a check is meant to be brief."""
Tell = Callable[[str], None]
"""Takes a line about what goes on."""


def ignore(_line: str) -> None:
    """Take a line and show it to nobody."""


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--check`, the content of `closeness.json`."""

    fio_version: str
    comparisons: list[closeness.ClosenessPair]
    notes: list[str]
    issue_us: closeness.IssueTimes | None = None
    """What the replay's log, in relative microseconds, takes off each delay for an I/O that fio
    issues, and for each MiB of it; null where the log is as it was asked for.
    """

    def __repr__(self) -> str:
        """Return in a line how many targets each job reaches."""
        reached = (
            f"{pair.job} {sum(verdict.passes is True for verdict in pair.verdicts)} of"
            f" {sum(verdict.passes is not None for verdict in pair.verdicts)}"
            for pair in self.comparisons
        )
        return f"Closeness({', '.join(reached)} targets, fio {self.fio_version})"

    def _repr_html_(self) -> str:
        """Return a table of the targets, for notebooks."""
        rows = [
            [pair.job, verdict.name, verdict.target, _shown(verdict.value), _shown(verdict.passes)]
            for pair in self.comparisons
            for verdict in pair.verdicts
        ]
        return html_table(["job", "figure", "target", "measured", "passes"], rows)


def _shown(value: float | bool | None) -> str:
    """Return a figure or an answer as a cell of a table; a dash where it is not known."""
    if value is None:
        return "-"
    return ("no", "yes")[value] if isinstance(value, bool) else f"{value:.4g}"


def find_closeness(path: Path) -> Closeness | None:
    """Return the closeness.json at `path`, null if there is none.

    TraceError if it is damaged or of another version.
    """
    return find_json(path, Closeness, misfit="no closeness of this version: {}")


_OF_A_DEVICE = (SourceKind.BLOCKS, SourceKind.PROBE)


# Long: what a check does, step after step.
def check(
    whole: Distilled,
    target: Path,
    modes: Sequence[FioMode],
    options: JobOptions,
    tell: Tell,
) -> Closeness:
    """Run the jobs of `modes` on a scratch file beside `target`, cut to a brief part.

    Return how close they come.

    They are made of the source's first `check_ns` or `check_bytes`, and compared with just that
    part. `tell` takes a line when a step begins.

    ConfigError if `target` is a folder or a device. ProbeUnavailable if there is no fio.
    DeviceError for a folder that is missing, too little space, or if fio failed.
    """
    version, cap, is_null = installed(), options.check_ns, options.has_null_check
    if version is None:
        raise ProbeUnavailable(f"a check needs fio; {HOW_TO_GET}")
    _refuse_target(target)
    options = replace(
        options, target=target.name, version=version, runtime_cap_ns=cap, is_device=False
    )
    part_limit = whole.limit.within(
        Limit(span_ns=cap, moved_bytes=None if is_null else options.check_bytes)
    )
    depth, comparisons = whole.profile.depth, []
    notes = ["the source's depth is not known: a trace has no measured times"]
    if depth is not None:
        notes = [f"the source's depth is {depth.mean:.3g} over all of it, weighted by time"]
    if is_null:
        notes.append(
            "fio's null engine took the I/O: times are fio's own, and a target only adds to them"
        )
    with tempfile.TemporaryDirectory(prefix=".check-", dir=target.parent) as folder:
        place = Path(folder)
        part = whole
        if whole.ios is not None and whole.source is not None:
            part = distil_source(whole.source, whole.tier, part_limit, place)
        is_whole = part is whole or part.profile.ops == whole.profile.ops
        window = (
            "the whole window" if is_whole else f"the first {format_duration(part.profile.span_ns)}"
        )
        part = whole if is_whole else part
        left_out = set(modes) - set(supported_modes(part, None))
        notes += [
            f"{mode.job} is not checked: all operations of {window} share one instant"
            " (--check-duration)"
            for mode in left_out
        ]
        jobs = {mode: make_job(mode, part, options) for mode in modes if mode not in left_out}
        depth_cap = min(MAX_DEPTH, max((job.depth for job in jobs.values()), default=1))
        reference = (
            _reference(part, place, options.io_bytes, depth_cap, notes, tell)
            if jobs and not is_null
            else None
        )
        if jobs and not is_null:
            _fill(part, jobs, place, options)
        issue_us = None
        for mode, job in jobs.items():
            run = closeness.CheckedRun(
                mode, part, window, whole.profile.span_ns, place, options, job, reference
            )
            if mode is FioMode.REPLAY:
                pair, issue_us = _closest_replay(run, notes)
            else:
                pair = (
                    _check_drawn(run, notes) if mode is FioMode.STAT else _check_logs(run, notes)[0]
                )
            comparisons.append(pair)
    return Closeness(
        fio_version=str(version),
        comparisons=_beyond_replay(comparisons),
        notes=list(dict.fromkeys(notes)),
        issue_us=issue_us,
    )


def _refuse_target(target: Path) -> None:
    """Raise ConfigError or DeviceError unless a scratch file can lie beside `target`."""
    if target.is_dir() or target.is_block_device():
        raise ConfigError(f"{target}: a check takes a scratch file, no folder and no device")
    if not target.parent.is_dir():
        raise DeviceError(f"{target.parent}: no such folder to check in; make it first")


def _fill(
    part: Distilled, jobs: Mapping[FioMode, ModeJob], place: Path, options: JobOptions
) -> None:
    """Fill the scratch file of all `jobs` in `place` once; DeviceError for too little space."""
    space_bytes = max(job.space_bytes for job in jobs.values())
    prefill = make_prefill(part.profile, jobs.values(), options)
    write_text(place / PREFILL, prefill.text)
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < space_bytes + _SPARE_BYTES:
        raise DeviceError(
            f"--check needs {format_bytes(space_bytes)} in {place.parent} and leaves"
            f" {format_bytes(_SPARE_BYTES)} alone, but {format_bytes(free_bytes)} are free; check"
            " less with --check-duration or --check-bytes"
        )
    run_fio(place / PREFILL, 30 + space_bytes / _SLOWEST_BYTES_PER_S)


def _beyond_replay(pairs: Sequence[closeness.ClosenessPair]) -> list[closeness.ClosenessPair]:
    """Return `pairs` without failures in sizes that are the device's.

    It splits one I/O in two ways.

    The exact replay issues the source's own I/Os: by what its sizes are off at the device, drawn
    ones may be, too.
    """
    exact = [
        pair.fio
        for pair in pairs
        if pair.job == FioMode.REPLAY.job and pair.fio.side is closeness.Side.DEVICE
    ]
    own = (exact[0].size_tv or 0.0) if exact else 0.0
    most = closeness.SIZE_TV_TARGET + min(own, closeness.SIZE_TV_TARGET)
    why = f"the exact replay's are off by {100 * own:.2g} %, too"

    def judged(pair: closeness.ClosenessPair, found: closeness.Verdict) -> closeness.Verdict:
        is_failure = (
            found.name == closeness.SIZES
            and found.passes is False
            and pair.job != FioMode.REPLAY.job
        )
        is_its = is_failure and (found.value or 0) <= most
        return msgspec.structs.replace(found, passes=None, why=why) if is_its else found

    return [
        msgspec.structs.replace(pair, verdicts=[judged(pair, of) for of in pair.verdicts])
        for pair in pairs
    ]


def _closest_replay(
    run: closeness.CheckedRun, notes: list[str]
) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
    """Return the replay whose gaps at the device are closest, and the issue cost in its log (µs an
    I/O, a MiB).

    Relative microseconds; where those miss the target, with what issuing takes as their run shows
    it; where that cannot be told, as it was asked for, and null for the cost.
    """
    options = run.options
    if run.job.lanes is not None:
        # Lanes have absolute times: one that is late has to catch up.
        return _check_logs(run, notes)[0], None

    def tried(
        options: JobOptions,
    ) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
        """Make the logs anew with other options, and run them."""
        job = make_job(run.mode, run.distilled, options)
        return _check_logs(replace(run, options=options, job=job), notes)

    relative = replace(options, log_version=RELATIVE, jobs=1)
    best, issue_us = None, None
    if options.log_version is None and options.jobs in (None, 1) and not options.has_null_check:
        (best, found), issue_us = tried(relative), options.issue_us
        if found is not None and (closeness.GAPS, False) in [
            (v.name, v.passes) for v in best.verdicts
        ]:
            timed, _found = tried(replace(relative, issue_us=found))
            if (timed.fio.gap_ks or 0) <= (best.fio.gap_ks or 0):
                best, issue_us = timed, found
        if (
            best.fio.side is not closeness.Side.DEVICE
            or abs(best.fio.end_slip or 0) > closeness.END_SLIP_TARGET
        ):
            # Nobody can say what issuing takes, or it takes now this and now that.
            best, issue_us = None, None
    pair = best or tried(options)[0]
    ks = pair.fio.gap_ks
    if pair.fio.gap_resolution_us == 1 and ks is not None and ks > closeness.REPLAY_GAP_KS_TARGET:
        notes.append(
            f"this fio keeps the gaps between arrivals to a KS distance of {ks:.2f} at 1 µs;"
            " kvreplay issues by absolute times and keeps them closer"
        )
    return pair, issue_us


def _reference(
    part: Distilled, place: Path, io_bytes: int, depth_cap: int, notes: list[str], tell: Tell
) -> Distilled | None:
    """Return what fio's block requests are compared with.

    Null, with a note why, if fio's own side is compared.
    """
    kind = part.profile.origin.kind
    if kind in _OF_A_DEVICE:
        return part
    if kind is not SourceKind.TRACE:
        notes.append(
            "only fio's side was compared: the source is what was asked of files, which the block"
            " layer merges and splits; to compare at the device, make jobs of what `kvreplay probe`"
            " or `run --probes` saw of a replay"
        )
        return None
    tell("checking: kvreplay replays the part of the trace, to measure its block requests")
    assert part.source is not None
    seen, reason = replayed_requests(file_of(part.source), part, place, io_bytes, depth_cap)
    if seen is None:
        notes.append(f"only fio's side was compared, with what the trace asks of files: {reason}")
    else:
        notes.append(
            "the source's side is a replay of this part of the trace by kvreplay on the same disk,"
            f" and both sides are block requests there ({reason})"
        )
    return seen


def replayed_requests(
    trace: Path, part: Distilled, place: Path, io_bytes: int, depth_cap: int
) -> tuple[Distilled | None, str]:
    """Replay `part` of `trace` on a file in `place`; return the block requests that its device saw,
    and how the replay went.

    Null, and why there is nothing to compare with, if it cannot be replayed or measured.
    """
    disk = disk_of(place)
    replayed = replay_part(
        trace,
        part,
        place,
        disk,
        io_bytes=io_bytes,
        queue_depth=depth_cap,
        slowest_bytes_per_s=_SLOWEST_BYTES_PER_S,
    )
    if replayed.blocks is None or disk is None:
        return None, replayed.message
    seen, reason = direct_requests(replayed.blocks, disk.name, place / "replayed.scratch")
    return seen, reason or replayed.message


def _seen(
    run: closeness.CheckedRun, job: Path, unseen: Path, timeout_s: float, notes: list[str]
) -> closeness.Seen:
    """Run `job` with the device probed; where it cannot be, run `unseen` and add a note."""
    if run.reference is None:
        return closeness.Seen(run_fio(unseen, timeout_s, environment=environment()), None, None)
    seen = run_seen(job, timeout_s, unseen=unseen)
    if seen.why is not None:
        notes.append(f"only fio's side was compared, not what the device saw: {seen.why}")
    return seen


def _check_logs(
    run: closeness.CheckedRun, notes: list[str]
) -> tuple[closeness.ClosenessPair, closeness.IssueTimes | None]:
    """Run the job of iologs in `run`.

    Return how close it came, and what issuing took if that can be determined.
    """
    log, is_null = run.job.log, run.options.has_null_check
    assert log is not None
    assert run.job.ios is not None
    largest = max((lane.ios for lane in log.lanes), default=log.read_ios + log.write_ios)
    logging = with_latency_logs(run.job.job, largest if knows_option(LOG_ENTRIES) else None)
    replace(run.job, job=on_null(logging) if is_null else logging).write(run.place)
    job = run.place / run.mode.job
    moved_bytes = log.read_bytes + log.write_bytes
    timeout_s = 30 + log.last_us / 1e6 + log.start_ms / 1e3 + moved_bytes / _SLOWEST_BYTES_PER_S
    seen = _seen(run, job, job, timeout_s, notes)
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
    found = closeness.compare_logged(run, seen, logs)
    for log_file in logs:
        log_file.path.unlink()
    return found


def _engine(job: FioJob, section: FioSection) -> str | None:
    """Return the I/O engine of a section: its own, or the one that all share."""
    shared = job.sections[0].options.get("ioengine")
    return section.options.get("ioengine", shared)


def _check_drawn(run: closeness.CheckedRun, notes: list[str]) -> closeness.ClosenessPair:
    """Run the statistical job in `run`."""
    job, logged = run.place / run.mode.job, run.place / f"{run.mode}.logged.fio"
    run.job.write(run.place)
    # To log each I/O takes fio time, which a closed loop then lacks: only where nobody else looks.
    logging = with_drawn_iologs(run.job.job)
    logged.write_text((on_null(logging) if run.options.has_null_check else logging).text)
    moved_bytes = run.distilled.profile.read.io_bytes + run.distilled.profile.write.io_bytes
    timeout_s = 60 + run.options.check_ns / NS_PER_S + moved_bytes / _SLOWEST_BYTES_PER_S
    return closeness.compare_drawn(run, _seen(run, job, logged, timeout_s, notes))
