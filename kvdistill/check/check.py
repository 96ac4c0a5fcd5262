"""Write the fio jobs of a source, run them briefly on a scratch file, and compare what fio did with the source."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvdistill.check.closeness import (
    DEPTH_TARGET,
    END_SLIP_TARGET,
    EXACT,
    REPLAY_GAP_KS_TARGET,
    TRACE_DEPTH_TARGET,
    Chance,
    Side,
    Stream,
    StreamFigures,
    Verdict,
    asked_stream,
    chance_of,
    device_figures,
    drawn_stream,
    job_figures,
    profile_stream,
    replayed_stream,
    source_figures,
    verdicts,
)
from kvdistill.check.device import Seen, environment, replay_seen, run_seen
from kvdistill.formats.iolog import RELATIVE, LogOptions, LogSummary, split_ios
from kvdistill.jobs import fio_program
from kvdistill.jobs import job as fio
from kvdistill.jobs.fio_replay import fitted_issue_us
from kvdistill.jobs.job import ExpectedFigure, FioMode
from kvdistill.jobs.write import CheckOptions, JobRequest, WrittenJob, make_folder, write_job, write_prefill
from kvdistill.profile.profile import ArrivalProfile, Profile, SourceKind
from kvdistill.profile.sources import Distilled, distil_source, file_of
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.files import read_json, write_json
from kvtrace.core.limit import Limit
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration

CLOSENESS = "closeness.json"
MAX_LINES = 1_000_000
"""I/Os of a replay that are written unless all are asked for: enough that chance moves no figure by a hundredth."""
_LINE_BYTES = 36
"""Of a line of a log, but for the target's name."""


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the fio jobs that were written; `closeness` is null without `--check`."""

    files: list[str]
    space_bytes: dict[str, int]
    """What each job needs on its target."""
    logs: dict[str, LogSummary]
    """Of the jobs that run iologs."""
    profile: Profile
    expected: dict[str, Sequence[ExpectedFigure]]
    """What each job is expected to do at the source's own response times, beside the source."""
    closeness: Closeness | None = None


def modes_of(distilled: Distilled, modes: Sequence[FioMode]) -> list[FioMode]:
    """Return the jobs to write: those asked for, or those that the source supports.

    Raises:
        ConfigError: the source does not support one that is asked for.

    """
    if modes:
        if FioMode.REPLAY in modes and distilled.ios is None:
            raise ConfigError(
                f"--mode replay: {distilled.profile.origin.file} holds no single operations; take a trace, a run or "
                "block events"
            )
        return list(dict.fromkeys(modes))
    known = [
        (FioMode.REPLAY, distilled.ios is not None),
        (FioMode.STAT, True),
        (FioMode.REUSE, distilled.profile.locality is not None and distilled.profile.arrivals is not None),
    ]
    return [mode for mode, is_known in known if is_known]


def write_jobs(source: Path, tier: str | None, outdir: Path, limit: Limit, request: JobRequest) -> Jobs:
    """Write the jobs of `source` into `outdir`, and check them if `request` says so.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.
        ProbeUnavailable: a check is asked for, but there is no fio; the jobs are written all the same.

    """
    target = outdir / request.options.target
    if target.is_dir():
        raise ConfigError(f"--target {request.options.target} is a folder; name a file or a block device")
    make_folder(outdir)
    request = replace(request, options=replace(request.options, is_device=target.is_block_device()))
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch:
        with progress(f"distil {source.name}"):
            distilled = distil_source(source, tier, limit, Path(scratch))
        modes = modes_of(distilled, request.modes)
        shown = _replayed(source, tier, distilled, Path(scratch), request) if FioMode.REPLAY in modes else distilled
        parts = {mode: shown if mode is FioMode.REPLAY else distilled for mode in modes}
        with progress("write the jobs"):
            if request.is_strict:
                _refuse_unlike({mode: write_job(mode, parts[mode], Path(scratch), request) for mode in modes})
            written = {mode: write_job(mode, parts[mode], outdir, request) for mode in modes}
            prefill = write_prefill(distilled, written, outdir, request)
        write_json(outdir / fio.PROFILE, distilled.profile)
        closeness = None
        if request.checks is not None:
            log(f"checking: running {', '.join(mode.job for mode in modes)} with fio")
            closeness = check(source, tier, distilled, outdir, modes, request)
            write_json(outdir / CLOSENESS, closeness)
            if any(closeness.issue_us):
                timed = replace(request, logs=replace(request.logs, issue_us=closeness.issue_us))
                written[FioMode.REPLAY] = write_job(FioMode.REPLAY, shown, outdir, timed)
    names = [name for job in (prefill, *written.values()) for name in job.files]
    return Jobs(
        files=[*names, fio.PROFILE, *([CLOSENESS] if closeness else [])],
        space_bytes={mode: job.space_bytes for mode, job in written.items()},
        logs={mode: job.log for mode, job in written.items() if job.log is not None},
        profile=distilled.profile,
        expected={mode: job.expected for mode, job in written.items()},
        closeness=closeness,
    )


def _refuse_unlike(written: Mapping[FioMode, WrittenJob]) -> None:
    """Raise ConfigError if one of the jobs is expected not to be as its source."""
    for mode, job in written.items():
        if any(figure.is_missed for figure in job.expected):
            raise ConfigError(
                f"--strict: {mode.job} is {fio.expected_said(job.expected)}; nothing was written; choose others with "
                "--mode, or leave --strict out"
            )


def _replayed(source: Path, tier: str | None, whole: Distilled, scratch: Path, request: JobRequest) -> Distilled:
    """Return the part of `whole` to replay: all of it, unless it has over MAX_LINES I/Os and --whole is not given."""
    profile = whole.profile
    lines = sum(
        size.ops * -(-size.io_bytes // request.logs.max_io_bytes)
        for direction in (profile.read, profile.write)
        for size in direction.sizes
    )
    size = format_bytes(lines * (len(request.options.target) + _LINE_BYTES))
    if lines <= MAX_LINES or request.is_whole or profile.arrivals is None or whole.ios is None:
        if lines > MAX_LINES:
            log(f"the replay's logs take about {size} for {format_count(lines)} I/Os")
        return whole
    begin_ns, span_ns = typical(profile.arrivals, profile.span_ns, MAX_LINES / lines)
    log(
        f"the whole replay's logs would take about {size} for {format_count(lines)} I/Os (--whole writes them): "
        f"replay.fio has the most typical {format_duration(span_ns)} of {format_duration(profile.span_ns)}"
    )
    part = scratch / "replayed"
    part.mkdir()
    window = replace(whole.limit, begin_ns=whole.limit.begin_ns + begin_ns).within(Limit(span_ns=span_ns))
    return distil_source(source, tier, window, part)


def typical(arrivals: ArrivalProfile, span_ns: int, share: float) -> tuple[int, int]:
    """Return begin and length in ns of the most typical window: `share` of the time, its mix most like the whole's."""
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    buckets = counts.shape[1]
    length = max(1, round(buckets * share))
    done = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    found = (done[:, length:] - done[:, :-length]) / length
    unlike = np.abs(found - counts.mean(axis=1, keepdims=True)).sum(axis=0)
    begin = int(unlike.argmin()) * arrivals.bucket_ns
    return begin, min(length * arrivals.bucket_ns, span_ns - begin)


_SPARE_BYTES = 256 << 20
"""Free space that a check leaves alone."""
_SLOWEST_BYTES_PER_S = 20e6
"""A target slower than this is given up on: a check is meant to be brief."""
_WHOLE_BYTES = 1 << 31
"""No request is longer."""


class ClosenessPair(msgspec.Struct, frozen=True, kw_only=True):
    """One job compared with the source over the same window."""

    job: str
    window: str
    span_ns: int = 0
    """How long that is; 0 in files of earlier versions."""
    whole_ns: int = 0
    """All of the source."""
    source: StreamFigures
    fio: StreamFigures
    verdicts: list[Verdict]


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--check`, the content of `closeness.json`."""

    fio_version: str
    comparisons: list[ClosenessPair]
    notes: list[str]
    issue_us: tuple[float, float] = (0.0, 0.0)
    """What fio took to issue an I/O of the replay, and each MiB of it; its log is written so much earlier."""


def find_closeness(path: Path) -> Closeness | None:
    """Return the content of the closeness.json at `path`, or null if there is no such file.

    Raises:
        TraceError: it is damaged, or of another version.

    """
    if not path.is_file():
        return None
    return read_json(path, Closeness, misfit="no closeness of this version: {}")


_OF_A_DEVICE = (SourceKind.BLOCKS, SourceKind.PROBE)


@dataclass(frozen=True, slots=True)
class _Run:
    """One job to run: the part of the source it is made of, and its folder."""

    mode: FioMode
    distilled: Distilled
    window: str
    whole_ns: int
    """All of the source, which has more than the window."""
    place: Path
    request: JobRequest
    written: WrittenJob
    reference: Distilled | None
    """What the device saw of the source, or of a replay of it; null if that is not known: fio's side is compared."""


# Long: what a check does, step after step.
def check(
    source: Path,
    tier: str | None,
    whole: Distilled,
    outdir: Path,
    modes: Sequence[FioMode],
    request: JobRequest,
) -> Closeness:
    """Run the jobs of `modes` on a scratch file in `outdir`, cut to a brief part; return how close they come.

    They are made of the source's first `seconds` or `max_bytes`, and compared with just that part.

    Raises:
        ProbeUnavailable: there is no fio.
        DeviceError: too little space, or fio failed.

    """
    version, options = fio_program.installed(), request.checks or CheckOptions()
    if version is None:
        raise ProbeUnavailable(f"--check needs fio; {fio_program.HOW_TO_GET}. The job files are written.")
    cap = max(1, int(options.seconds * NS_PER_S))
    job_options = replace(request.options, target=fio.SCRATCH, version=version, runtime_cap_ns=cap, is_device=False)
    request = replace(request, options=job_options)
    part_limit = whole.limit.within(Limit(span_ns=cap, moved_bytes=None if options.is_null else options.max_bytes))
    depth, comparisons = whole.profile.depth, []
    notes = ["the source's depth is not known: a trace has no measured times"]
    if depth is not None:
        notes = [f"the source's depth is {depth.mean:.3g} over all of it, weighted by time"]
    if options.is_null:
        notes.append("fio's null engine took the I/O: times are fio's own, and a target only adds to them")
    with tempfile.TemporaryDirectory(prefix=".check-", dir=outdir) as folder:
        place = Path(folder)
        part = whole if whole.ios is None else distil_source(source, tier, part_limit, place)
        is_whole = part is whole or part.profile.ops == whole.profile.ops
        window = "the whole window" if is_whole else f"the first {format_duration(part.profile.span_ns)}"
        part = whole if is_whole else part
        left_out = set(modes) - set(modes_of(part, []))
        notes += [
            f"{mode.job} is not checked: all operations of {window} share one instant (--check-duration)"
            for mode in left_out
        ]
        modes = [mode for mode in modes if mode not in left_out]
        written = {mode: write_job(mode, part, place, request) for mode in modes}
        depth_cap = max((job.log.depth for job in written.values() if job.log is not None), default=None)
        reference = None if options.is_null else _reference(source, part, place, request, depth_cap, notes)
        if not options.is_null:
            # Fill the scratch file of all jobs once.
            space = write_prefill(part, written, place, request).space_bytes
            free = shutil.disk_usage(place).free
            if free < space + _SPARE_BYTES:
                raise DeviceError(
                    f"--check needs {format_bytes(space)} in {place.parent} and leaves {format_bytes(_SPARE_BYTES)} "
                    f"alone, but {format_bytes(free)} are free; check less with --check-duration or --check-bytes"
                )
            fio_program.run_fio(place / fio.PREFILL, 30 + space / _SLOWEST_BYTES_PER_S)
        issue_us = (0.0, 0.0)
        for mode in modes:
            run = _Run(mode, part, window, whole.profile.span_ns, place, request, written[mode], reference)
            if mode is FioMode.REPLAY:
                pair, issue_us = _closest_replay(run, notes)
            else:
                pair = _check_drawn(run, notes) if mode is FioMode.STAT else _check_logs(run, notes)[0]
            comparisons.append(pair)
    return Closeness(
        fio_version=str(version), comparisons=comparisons, notes=list(dict.fromkeys(notes)), issue_us=issue_us
    )


def _closest_replay(run: _Run, notes: list[str]) -> tuple[ClosenessPair, tuple[float, float]]:
    """Return the replay whose gaps at the device are closest, and the issue cost in its log (µs an I/O, a MiB).

    Absolute milliseconds and, with what issuing takes as the first run shows it, relative microseconds.
    """
    logs = run.request.logs
    best, issue_us = None, (0.0, 0.0)
    if logs.version is None and logs.jobs in (None, 1) and not _is_null(run):
        best, found = _check_logs(_in_form(run, replace(logs, version=RELATIVE, jobs=1)), notes)
        if found is not None:
            timed, _found = _check_logs(_in_form(run, replace(logs, version=RELATIVE, jobs=1, issue_us=found)), notes)
            if (timed.fio.gap_ks or 0) <= (best.fio.gap_ks or 0):
                best, issue_us = timed, found
        if best.fio.side is not Side.DEVICE or abs(best.fio.end_slip or 0) > END_SLIP_TARGET:
            # Nobody can say what issuing takes, or it takes now this and now that.
            best, issue_us = None, (0.0, 0.0)
    pair = best or _check_logs(_in_form(run, logs), notes)[0]
    ks = pair.fio.gap_ks
    if pair.fio.gap_resolution_us == 1 and ks is not None and ks > REPLAY_GAP_KS_TARGET:
        notes.append(
            f"this fio keeps the gaps between arrivals to a KS distance of {ks:.2f} at 1 µs; kvreplay issues by "
            "absolute times and keeps them closer"
        )
    return pair, issue_us


def _in_form(run: _Run, logs: LogOptions) -> _Run:
    """Write the logs of `run` anew with the options `logs`; return the changed run."""
    request = replace(run.request, logs=logs)
    return replace(run, request=request, written=write_job(run.mode, run.distilled, run.place, request))


def _reference(
    source: Path, part: Distilled, place: Path, request: JobRequest, depth_cap: int | None, notes: list[str]
) -> Distilled | None:
    """Return what fio's block requests are compared with; null, with a note why, if fio's own side is compared."""
    kind = part.profile.origin.kind
    if kind in _OF_A_DEVICE:
        return part
    if kind is not SourceKind.TRACE:
        notes.append(
            "only fio's side was compared: the source is what was asked of files, which the block layer merges and "
            "splits; to compare at the device, make jobs of what `kvreplay probe` or `run --probes` saw of a replay"
        )
        return None
    log("checking: kvreplay replays the part of the trace, to see what it makes at the device")
    seen, outcome = replay_seen(file_of(source), part, place, request.logs.max_io_bytes, depth_cap)
    if seen is None:
        notes.append(f"only fio's side was compared, with what the trace asks of files: {outcome}")
    else:
        notes.append(
            "the source's side is a replay of this part of the trace by kvreplay on the same disk, and both sides are "
            f"block requests there ({outcome})"
        )
    return seen


def _seen(run: _Run, job: Path, unseen: Path, timeout_s: float, notes: list[str]) -> Seen:
    """Run `job` with the device probed; where it cannot be, run `unseen` and add a note."""
    if run.reference is None:
        return Seen(fio_program.run_fio(unseen, timeout_s, environment=environment()), None, None)
    seen = run_seen(job, timeout_s, unseen=unseen)
    if seen.why is not None:
        notes.append(f"only fio's side was compared, not what the device saw: {seen.why}")
    return seen


def _check_logs(run: _Run, notes: list[str]) -> tuple[ClosenessPair, tuple[float, float] | None]:
    """Run the job of iologs in `run`; return how close it came, and what issuing took if that can be determined."""
    written, is_replay = run.written, run.mode is FioMode.REPLAY
    log, ios = written.log, run.distilled.ios
    assert log is not None
    assert written.parts is not None
    # The null engine submits nothing.
    kind = "slat" if len(log.files) == 1 and not _is_null(run) else "clat"
    job = run.place / run.mode.job
    kept = with_options(job.read_text(), "write_lat_log", ["log_offset=1", "log_unix_epoch=1"])
    job.write_text(on_null(kept) if _is_null(run) else kept)
    moved_bytes = log.read_bytes + log.write_bytes
    timeout_s = 30 + log.last_us / 1e6 + log.start_ms / 1e3 + moved_bytes / _SLOWEST_BYTES_PER_S
    seen = _seen(run, job, job, timeout_s, notes)
    logs = [next(run.place.glob(f"{file.removesuffix('.iolog')}_{kind}.*.log")) for file in log.files]
    asked = asked_stream(written.parts(), by_instant=True)
    source = asked if ios is None or is_replay else asked_stream(split_ios(ios, log.max_io_bytes), by_instant=True)
    stream = replayed_stream(logs, asked, is_submission=kind == "slat")
    for path in logs:
        path.unlink()
    depth = _mean_depth(seen.result["jobs"], stream) if kind == "clat" else None
    figures = job_figures(run.mode, stream, source, is_replay=is_replay, mean_depth=depth)
    chance = EXACT
    if not is_replay:
        operations = source if ios is None else asked_stream(split_ios(ios, _WHOLE_BYTES), by_instant=False)
        drawn = sum(int((part["part"] == 0).sum()) for part in written.parts())
        chance = chance_of(operations, drawn, log.max_io_bytes)
    issue_us = None
    if seen.device is not None and seen.device.ios is not None:
        came = asked_stream(split_ios(seen.device.ios, _WHOLE_BYTES), by_instant=False)
        issue_us = fitted_issue_us(asked.us, came.us, asked.length)
    return _compare(run, seen, source, figures, chance), issue_us


def _check_drawn(run: _Run, notes: list[str]) -> ClosenessPair:
    """Run the statistical job in `run`."""
    profile, options = run.distilled.profile, run.request.checks or CheckOptions()
    job, logged = run.place / run.mode.job, run.place / f"{run.mode}.logged.fio"
    # To log each I/O takes fio time, which a closed loop then lacks: only where nobody else looks.
    kept = with_options(job.read_text(), "write_iolog", [])
    logged.write_text(on_null(kept) if _is_null(run) else kept)
    timeout_s = 60 + options.seconds + profile.read.io_bytes / _SLOWEST_BYTES_PER_S
    seen = _seen(run, job, logged, timeout_s, notes)
    if run.distilled.ios is None:
        # A profile alone knows sizes and rates, but no order.
        source = profile_stream(profile)
    else:
        source = asked_stream(split_ios(run.distilled.ios, fio.STAT_MAX_IO_BYTES), by_instant=False)
    jobs = seen.result["jobs"]
    draws = sum(int(job[direction]["total_ios"]) for job in jobs for direction in ("read", "write"))
    chance = chance_of(source, draws, _part_bytes(run, seen))
    if seen.device is not None:
        return _compare(run, seen, source, None, chance)
    span_us = round(min(profile.span_ns, options.seconds * NS_PER_S) / 1000) or max(
        int(job["job_runtime"]) * 1000 for job in jobs
    )
    stream = drawn_stream([run.place / f"{job['jobname']}.drawn" for job in jobs], span_us)
    depth = _mean_depth(jobs, stream)
    figures = job_figures(run.mode, stream, source, is_replay=False, mean_depth=depth)
    return _compare(run, seen, source, figures, chance)


def _is_null(run: _Run) -> bool:
    return run.request.checks is not None and run.request.checks.is_null


def _is_replayed(run: _Run, seen: Seen) -> bool:
    """Return whether the source's side at the device is a replay of a trace, and fio's side was seen there, too."""
    return run.reference is not None and run.reference is not run.distilled and seen.device is not None


def _part_bytes(run: _Run, seen: Seen) -> int:
    """Return the length that requests at the device are counted in parts of.

    Beside a replay of a trace both sides issue parts of the largest I/O, of which the block layer merges now these and
    now those; requests of a source that a device saw are its own, however long.
    """
    return run.request.logs.max_io_bytes if _is_replayed(run, seen) else _WHOLE_BYTES


def _in_parts(figures: StreamFigures, distilled: Distilled, part_bytes: int, **others: Any) -> StreamFigures:
    """Return `figures` of `distilled` with its depth in parts, and `others` in place of its own."""
    import pyarrow.parquet as pq

    assert distilled.ios is not None
    table = pq.read_table(distilled.ios, columns=["ts_ns", "completed_ns", "io_bytes"]).drop_null()
    begun, done, length = (column.to_numpy() for column in table.columns)
    in_flight_ns = (done - begun) * (length > 0)
    parts = float((in_flight_ns * -(-length // part_bytes)).sum() / max(1, in_flight_ns.sum()))
    depth = None if figures.mean_depth is None else figures.mean_depth * parts
    return msgspec.structs.replace(figures, mean_depth=depth, **others)


def _compare(run: _Run, seen: Seen, source: Stream, logged: StreamFigures | None, chance: Chance) -> ClosenessPair:
    """Return fio's figures with those of the source: the `logged` ones, or those of the device where it was `seen`."""
    profile, ios, figures, asked = run.distilled.profile, run.distilled.ios, logged, source
    is_replayed, part_bytes = _is_replayed(run, seen), _part_bytes(run, seen)
    if run.reference is not None and seen.device is not None and seen.device.ios is not None:
        profile, ios = run.reference.profile, run.reference.ios
        if ios is not None:
            source = asked_stream(split_ios(ios, part_bytes), by_instant=False)
        stream = asked_stream(split_ios(seen.device.ios, part_bytes), by_instant=False)
        # An operation of a trace comes in several requests: only fio's own log says which belong together.
        has_gaps = ios is not None and not is_replayed
        figures = device_figures(run.mode, logged, stream, seen.device.profile, source, has_gaps=has_gaps)
    assert figures is not None
    shown = source_figures("source", source, profile)
    if is_replayed:
        assert run.reference is not None
        assert seen.device is not None
        # Arrivals and places are the trace's own: kvreplay frees and takes space by when its deletes and writes end.
        own = source_figures("asked", asked)
        kept = {name: getattr(own, name) for name in ("arrivals", "hot10_share", "reuse_p50_blocks")}
        shown = _in_parts(shown, run.reference, part_bytes, **kept)
        figures = _in_parts(figures, seen.device, part_bytes)
    elif ios is None:
        shown = msgspec.structs.replace(shown, hot10_share=None, reuse_p50_blocks=None)
    depth_target = TRACE_DEPTH_TARGET if is_replayed else DEPTH_TARGET
    found = verdicts(figures, shown, chance, depth_target)
    spans = {"span_ns": run.distilled.profile.span_ns, "whole_ns": run.whole_ns}
    return ClosenessPair(job=run.mode.job, window=run.window, **spans, source=shown, fio=figures, verdicts=found)


def _mean_depth(jobs: list[dict[str, Any]], stream: Stream) -> float | None:
    """Return the mean operations in flight, by Little's law: the sum of latencies over the span."""
    seconds = stream.seconds
    if seconds is None:
        return None
    busy_ns = sum(
        job[direction]["lat_ns"]["mean"] * job[direction]["lat_ns"].get("N", job[direction]["total_ios"])
        for job in jobs
        for direction in ("read", "write")
    )
    return float(busy_ns) / NS_PER_S / seconds


def on_null(job: str) -> str:
    """Return `job` for fio's null engine, which needs no file and does no I/O."""
    lines = [line for line in job.splitlines() if line not in ("allow_file_create=0", "create_on_open=1")]
    # One at a time, which the null engine completes at once: what is not reaped at the end is in no log.
    changed = {"ioengine": "ioengine=null", "iodepth": "iodepth=1"}
    return "\n".join(changed.get(line.partition("=")[0], line) for line in lines) + "\n"


def with_options(job: str, per_job: str, shared: list[str]) -> str:
    """Return `job` with `per_job` set in each section to a name of its own, and `shared` in the first."""
    lines = []
    for line in job.splitlines():
        lines.append(line)
        if line == "[global]":
            lines += shared
        elif line.startswith("["):
            lines.append(f"{per_job}={line[1:-1]}" + (".drawn" if per_job == "write_iolog" else ""))
    return "\n".join(lines) + "\n"
