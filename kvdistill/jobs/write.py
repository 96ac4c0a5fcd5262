"""Write the fio jobs of a source into a folder, each file whole or not at all.

With `--check`, run them briefly.

Then what fio did on a scratch file is compared with the source.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvdistill.formats.formats import RELATIVE
from kvdistill.jobs import closeness, fio_replay
from kvdistill.jobs.fio_replay import LogSummary, WrittenJob, draw, split, split_ios, write_iologs
from kvdistill.jobs.fio_stat import expected_stat, stat_job
from kvdistill.jobs.job import (
    HOW_TO_GET,
    PREFILL,
    PROFILE,
    SCRATCH,
    TUNABLE,
    ExpectedFigure,
    FioMode,
    JobOptions,
    expected_said,
    fio_program,
    installed,
    make_folder,
    most_in_flight,
    prefill_job,
    run_fio,
    stat_space_bytes,
    whole_mib,
)
from kvdistill.profile.profile import ArrivalProfile, Profile, SourceKind, cut_long
from kvdistill.profile.sources import Distilled, distil_source, file_of
from kvdistill.queries.window import RowWindow, place_of
from kvtrace.core import pa, pc, pq, tables
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, TraceError
from kvtrace.core.files import find_json, write_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import BLOCKS_FILE, argv_of, attached, read_run
from kvtrace.core.schema import BLOCKS, TRACE, arrow_schema
from kvtrace.core.units import NS_PER_S, counted, format_bytes, format_duration

CLOSENESS = "closeness.json"
MAX_LINES = 1_000_000
"""I/Os of a replay that are written unless all are asked for.

Enough that chance moves no figure by a hundredth.
"""
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


def write_jobs(
    source: Path, tier: str | None, outdir: Path, limit: Limit, options: JobOptions
) -> Jobs:
    """Write the jobs of `source` into `outdir`, and check them if `options` say so.

    ConfigError, TraceError, DeviceError as the parts say. ProbeUnavailable if a check is asked for,
    but there is no fio; the jobs are written all the same.
    """
    target = outdir / options.target
    if target.is_dir():
        raise ConfigError(f"--target {options.target} is a folder; name a file or a block device")
    make_folder(outdir)
    options = replace(options, is_device=target.is_block_device())
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as folder:
        scratch = Path(folder)
        with progress(f"distil {source.name}"):
            whole = distil_source(source, tier, limit, scratch)
        parts = dict.fromkeys(modes_of(whole, options.modes), whole)
        if FioMode.REPLAY in parts:
            parts[FioMode.REPLAY] = part_to_replay(source, tier, whole, scratch, options)
        with progress("write the jobs"):
            # To be strict, what is expected must be known before anything is written.
            for mode, part in parts.items() if options.is_strict else ():
                expected = write_job(mode, part, scratch, options).expected
                if any(figure.is_missed for figure in expected):
                    raise ConfigError(
                        f"--strict: {mode.job} is {expected_said(expected)}; nothing was written;"
                        " choose others with --mode, or leave --strict out"
                    )
            written = {mode: write_job(mode, part, outdir, options) for mode, part in parts.items()}
            write_prefill(whole.profile, written, outdir, options)
        write_json(outdir / PROFILE, whole.profile)
        closeness = None
        if options.has_check or options.has_null_check:
            log(f"checking: running {', '.join(mode.job for mode in parts)} with fio")
            closeness = check(source, tier, whole, outdir, list(parts), options)
            write_json(outdir / CLOSENESS, closeness)
            if closeness.issue_us is not None:
                timed = replace(options, log_version=RELATIVE, issue_us=closeness.issue_us)
                written[FioMode.REPLAY] = write_job(
                    FioMode.REPLAY, parts[FioMode.REPLAY], outdir, timed
                )
    names = [name for job in written.values() for name in job.files]
    return Jobs(
        files=[PREFILL, *names, PROFILE, *([CLOSENESS] if closeness else [])],
        space_bytes={mode: job.space_bytes for mode, job in written.items()},
        logs={mode: job.log for mode, job in written.items() if job.log is not None},
        profile=whole.profile,
        expected={mode: job.expected for mode, job in written.items()},
        closeness=closeness,
    )


def modes_of(distilled: Distilled, modes: Sequence[FioMode] | None) -> list[FioMode]:
    """Return the jobs to write: those asked for, or those that the source supports.

    ConfigError if the source does not support one that is asked for.
    """
    profile, has_ios = distilled.profile, distilled.ios is not None
    if modes and FioMode.REPLAY in modes and not has_ios:
        raise ConfigError(
            f"--mode replay: {profile.origin.file} has statistics alone, no operations; take a"
            " trace or a run"
        )
    has_reuse = profile.locality is not None and profile.arrivals is not None
    known = [FioMode.REPLAY] * has_ios + [FioMode.STAT] + [FioMode.REUSE] * has_reuse
    return list(dict.fromkeys(modes or known))


def part_to_replay(
    source: Path, tier: str | None, whole: Distilled, scratch: Path, options: JobOptions
) -> Distilled:
    """Return the part of `whole` to replay.

    All of it, unless it has over MAX_LINES I/Os and --whole is not given.
    """
    profile = whole.profile
    lines = sum(
        cut_long(direction, options.io_bytes).ops for direction in (profile.read, profile.write)
    )
    size = format_bytes(lines * (len(options.target) + _LINE_BYTES))
    if lines <= MAX_LINES or options.is_whole or profile.arrivals is None or whole.ios is None:
        if lines > MAX_LINES:
            log(f"the replay's logs take about {size} for {counted(lines, 'I/O')}")
        return whole
    begin_ns, span_ns = typical(profile.arrivals, profile.span_ns, MAX_LINES / lines)
    log(
        f"the whole replay's logs would take about {size} for {lines:,} I/Os (--whole writes them):"
        f" replay.fio has the most typical {format_duration(span_ns)} of"
        f" {format_duration(profile.span_ns)}"
    )
    part = scratch / "replayed"
    part.mkdir()
    window = replace(whole.limit, begin_ns=whole.limit.begin_ns + begin_ns).within(
        Limit(span_ns=span_ns)
    )
    return distil_source(source, tier, window, part)


def typical(arrivals: ArrivalProfile, span_ns: int, share: float) -> tuple[int, int]:
    """Return begin and length in ns of the most typical window.

    `share` of the time, its mix most like the whole's.
    """
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    buckets = counts.shape[1]
    length = max(1, round(buckets * share))
    done = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    found = (done[:, length:] - done[:, :-length]) / length
    unlike = np.abs(found - counts.mean(axis=1, keepdims=True)).sum(axis=0)
    begin = int(unlike.argmin()) * arrivals.bucket_ns
    return begin, min(length * arrivals.bucket_ns, span_ns - begin)


def write_prefill(
    profile: Profile, written: Mapping[FioMode, WrittenJob], folder: Path, options: JobOptions
) -> int:
    """Write the job that fills the target once for all that are `written`.

    Return how much that is.
    """
    space = max(job.space_bytes for job in written.values())
    write_text(folder / PREFILL, prefill_job(profile, list(written), space, options))
    return space


def write_job(mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions) -> WrittenJob:
    """Write the job of one mode and what it needs into `folder`."""
    return (_write_stat if mode is FioMode.STAT else _write_logs)(mode, distilled, folder, options)


def _write_stat(
    mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions
) -> WrittenJob:
    profile = distilled.profile
    write_text(folder / mode.job, stat_job(profile, options))
    depth = most_in_flight(min(profile.longest_bytes, options.io_bytes))
    return WrittenJob(
        [mode.job],
        stat_space_bytes(profile, options),
        depth,
        expected=expected_stat(profile, options),
    )


def _write_logs(
    mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions
) -> WrittenJob:
    """Write iologs, of the source's operations or of drawn ones, and the job that runs them."""
    profile, most = distilled.profile, options.io_bytes
    if mode is FioMode.REPLAY:
        if distilled.ios is None:
            raise ValueError("distilled(=figures alone) must hold operations to be replayed.")
        span_bytes, parts = profile.placed.span_bytes, partial(split_ios, distilled.ios, most)
    else:
        drawn, span_bytes = draw(
            profile, min(profile.span_ns, options.runtime_cap_ns), options.seed
        )
        parts = partial(split, **drawn, max_io_bytes=most)
    logs = write_iologs(folder, mode, parts, options)
    write_text(folder / mode.job, fio_replay.log_job(profile, logs, mode, span_bytes, options))
    expected = fio_replay.expected_replay(profile, logs, is_drawn=mode is FioMode.REUSE)
    return WrittenJob(
        [mode.job, *logs.files], whole_mib(span_bytes), logs.depth, logs, parts, expected
    )


_SPARE_BYTES = 256 << 20
"""Free space that a check leaves alone."""
_SLOWEST_BYTES_PER_S = 20e6
"""A target slower than this is given up on: a check is meant to be brief."""


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--check`, the content of `closeness.json`."""

    fio_version: str
    comparisons: list[closeness.ClosenessPair]
    notes: list[str]
    issue_us: tuple[float, float] | None = None
    """What the replay's log, in relative microseconds, takes off each delay for an I/O that fio
    issues, and for each MiB of it; null where the log is as it was asked for.
    """


def find_closeness(path: Path) -> Closeness | None:
    """Return the closeness.json at `path`, null if there is none.

    TraceError if it is damaged or of another version.
    """
    return find_json(path, Closeness, misfit="no closeness of this version: {}")


_OF_A_DEVICE = (SourceKind.BLOCKS, SourceKind.PROBE)


# Long: what a check does, step after step.
def check(
    source: Path,
    tier: str | None,
    whole: Distilled,
    outdir: Path,
    modes: Sequence[FioMode],
    options: JobOptions,
) -> Closeness:
    """Run the jobs of `modes` on a scratch file in `outdir`, cut to a brief part.

    Return how close they come.

    They are made of the source's first `check_ns` or `check_bytes`, and compared with just that
    part.

    ProbeUnavailable if there is no fio. DeviceError for too little space, or if fio failed.
    """
    version, cap, is_null = installed(), options.check_ns, options.has_null_check
    if version is None:
        raise ProbeUnavailable(f"--check needs fio; {HOW_TO_GET}. The job files are written.")
    options = replace(options, target=SCRATCH, version=version, runtime_cap_ns=cap, is_device=False)
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
    with tempfile.TemporaryDirectory(prefix=".check-", dir=outdir) as folder:
        place = Path(folder)
        part = whole if whole.ios is None else distil_source(source, tier, part_limit, place)
        is_whole = part is whole or part.profile.ops == whole.profile.ops
        window = (
            "the whole window" if is_whole else f"the first {format_duration(part.profile.span_ns)}"
        )
        part = whole if is_whole else part
        left_out = set(modes) - set(modes_of(part, None))
        notes += [
            f"{mode.job} is not checked: all operations of {window} share one instant"
            " (--check-duration)"
            for mode in left_out
        ]
        written = {
            mode: write_job(mode, part, place, options) for mode in modes if mode not in left_out
        }
        depth_cap = max((job.depth for job in written.values()), default=1)
        reference = (
            None if is_null else _reference(source, part, place, options.io_bytes, depth_cap, notes)
        )
        if not is_null:
            # Fill the scratch file of all jobs once.
            space = write_prefill(part.profile, written, place, options)
            free = shutil.disk_usage(place).free
            if free < space + _SPARE_BYTES:
                raise DeviceError(
                    f"--check needs {format_bytes(space)} in {place.parent} and leaves"
                    f" {format_bytes(_SPARE_BYTES)} alone, but {format_bytes(free)} are free; check"
                    " less with --check-duration or --check-bytes"
                )
            run_fio(place / PREFILL, 30 + space / _SLOWEST_BYTES_PER_S)
        issue_us = None
        for mode, job in written.items():
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
) -> tuple[closeness.ClosenessPair, tuple[float, float] | None]:
    """Return the replay whose gaps at the device are closest, and the issue cost in its log (µs an
    I/O, a MiB).

    Relative microseconds; where those miss the target, with what issuing takes as their run shows
    it; where that cannot be told, as it was asked for, and null for the cost.
    """
    options = run.options

    def tried(**changed: Any) -> tuple[closeness.ClosenessPair, tuple[float, float] | None]:
        """Write the logs anew with other options, and run them."""
        form = replace(options, **changed)
        return _check_logs(
            replace(run, options=form, written=write_job(run.mode, run.distilled, run.place, form)),
            notes,
        )

    best, issue_us = None, None
    if options.log_version is None and options.jobs in (None, 1) and not options.has_null_check:
        (best, found), issue_us = tried(log_version=RELATIVE, jobs=1), options.issue_us
        if found is not None and (closeness.GAPS, False) in [
            (v.name, v.passes) for v in best.verdicts
        ]:
            timed, _found = tried(log_version=RELATIVE, jobs=1, issue_us=found)
            if (timed.fio.gap_ks or 0) <= (best.fio.gap_ks or 0):
                best, issue_us = timed, found
        if (
            best.fio.side is not closeness.Side.DEVICE
            or abs(best.fio.end_slip or 0) > closeness.END_SLIP_TARGET
        ):
            # Nobody can say what issuing takes, or it takes now this and now that.
            best, issue_us = None, None
    pair = best or tried()[0]
    ks = pair.fio.gap_ks
    if pair.fio.gap_resolution_us == 1 and ks is not None and ks > closeness.REPLAY_GAP_KS_TARGET:
        notes.append(
            f"this fio keeps the gaps between arrivals to a KS distance of {ks:.2f} at 1 µs;"
            " kvreplay issues by absolute times and keeps them closer"
        )
    return pair, issue_us


def _reference(
    source: Path, part: Distilled, place: Path, io_bytes: int, depth_cap: int, notes: list[str]
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
    log("checking: kvreplay replays the part of the trace, to measure its block requests")
    seen, outcome = replay_seen(file_of(source), part, place, io_bytes, depth_cap)
    if seen is None:
        notes.append(f"only fio's side was compared, with what the trace asks of files: {outcome}")
    else:
        notes.append(
            "the source's side is a replay of this part of the trace by kvreplay on the same disk,"
            f" and both sides are block requests there ({outcome})"
        )
    return seen


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
) -> tuple[closeness.ClosenessPair, tuple[float, float] | None]:
    """Run the job of iologs in `run`.

    Return how close it came, and what issuing took if that can be determined.
    """
    log, job, is_null = run.written.log, run.place / run.mode.job, run.options.has_null_check
    assert log is not None
    kept = with_options(job.read_text(), "write_lat_log", ["log_offset=1", "log_unix_epoch=1"])
    job.write_text(on_null(kept) if is_null else kept)
    moved_bytes = log.read_bytes + log.write_bytes
    timeout_s = 30 + log.last_us / 1e6 + log.start_ms / 1e3 + moved_bytes / _SLOWEST_BYTES_PER_S
    seen = _seen(run, job, job, timeout_s, notes)
    # The null engine submits nothing.
    kind = "slat" if len(log.files) == 1 and not is_null else "clat"
    logs = [
        next(run.place.glob(f"{file.removesuffix('.iolog')}_{kind}.*.log")) for file in log.files
    ]
    found = closeness.compare_logged(run, seen, logs, is_submission=kind == "slat")
    for path in logs:
        path.unlink()
    return found


def _check_drawn(run: closeness.CheckedRun, notes: list[str]) -> closeness.ClosenessPair:
    """Run the statistical job in `run`."""
    job, logged = run.place / run.mode.job, run.place / f"{run.mode}.logged.fio"
    # To log each I/O takes fio time, which a closed loop then lacks: only where nobody else looks.
    kept = with_options(job.read_text(), "write_iolog", [])
    logged.write_text(on_null(kept) if run.options.has_null_check else kept)
    moved_bytes = run.distilled.profile.read.io_bytes + run.distilled.profile.write.io_bytes
    timeout_s = 60 + run.options.check_ns / NS_PER_S + moved_bytes / _SLOWEST_BYTES_PER_S
    return closeness.compare_drawn(run, _seen(run, job, logged, timeout_s, notes))


def on_null(job: str) -> str:
    """Return `job` for fio's null engine, which needs no file and does no I/O."""
    lines = [
        line for line in job.splitlines() if line not in ("allow_file_create=0", "create_on_open=1")
    ]
    # One at a time, which the null engine completes at once: what is not reaped at the end is in no
    # log.
    changed = {"ioengine": "ioengine=null", "iodepth": "iodepth=1"}
    return "\n".join(changed.get(line.partition("=")[0], line) for line in lines) + "\n"


def with_options(job: str, per_job: str, shared: list[str]) -> str:
    """Return `job` with `per_job` set in each section to a name of its own, and `shared` in the
    first.
    """
    lines = []
    for line in job.splitlines():
        lines.append(line)
        if line == "[global]":
            lines += shared
        elif line.startswith("["):
            lines.append(f"{per_job}={line[1:-1]}" + (".drawn" if per_job == "write_iolog" else ""))
    return "\n".join(lines) + "\n"


def disk_of(place: Path) -> Path | None:
    """Return the disk in /dev beneath `place`.

    Null if no block device is (tmpfs, overlay, network).
    """
    found = place.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(found)}:{os.minor(found)}")
    if not link.exists():
        return None
    block = link.resolve()
    return Path("/dev") / (block if (block / "queue").is_dir() else block.parent).name


def environment() -> dict[str, str]:
    """Return the environment to run fio in, as a job's head says: glibc asks for huge pages."""
    name, value = TUNABLE
    others = [
        t
        for t in os.environ.get(name, "").split(":")
        if t and not t.startswith("glibc.malloc.hugetlb=")
    ]
    return os.environ | {name: ":".join([*others, value])}


def run_seen(
    job: Path, timeout_s: float, *, unseen: Path | None = None, keep: Path | None = None
) -> closeness.Seen:
    """Run fio on `job` in its folder, which lies on the target's filesystem, with the probes
    attached if possible.

    If not, `unseen` is run in its place: a job whose own logs say what it did. What the probes
    wrote stays in the folder `keep`, if one is named.

    ProbeUnavailable if there is no fio. DeviceError if fio failed.
    """
    disk, program = disk_of(job.parent), fio_program()
    if disk is None:
        why = "no block device lies beneath the target"
        return closeness.Seen(
            run_fio(unseen or job, timeout_s, environment=environment()), None, why
        )
    # A name of its own, so that no other fio on the machine is taken for it.
    link = job.parent.resolve() / f"fio{os.getpid()}"  # fio is run in the job's folder
    link.unlink(missing_ok=True)
    link.symlink_to(program)
    output = keep or job.parent / f"{job.stem}.seen"
    try:
        try:
            with attached("--comm", link.name, "--dev", str(disk), "-o", str(output)) as end:
                result = run_fio(job, timeout_s, program=str(link), environment=environment())
                end()
        except ProbeUnavailable as refused:
            result = run_fio(unseen or job, timeout_s, program=str(link), environment=environment())
            return closeness.Seen(result, None, str(refused))
        device, reason = direct_requests(
            output / BLOCKS_FILE, None, job.parent / f"{job.stem}.scratch"
        )
        if device is None and unseen is not None:
            result = run_fio(unseen, timeout_s, environment=environment())
        return closeness.Seen(result, device, reason)
    finally:
        link.unlink()
        if keep is None:
            shutil.rmtree(output, ignore_errors=True)


def direct_requests(
    blocks: Path, device: str | None, scratch: Path
) -> tuple[Distilled | None, str | None]:
    """Distil the direct I/O in `blocks`, or say why that fails.

    All other requests are removed from the file.

    All jobs do direct I/O: the rest is fio's own start, its program and the job file. The kernel
    flags direct requests as sync, and those of files it reads ahead or of metadata as such. Of the
    processes of fio's jobs none is a neighbour's, however little it does.
    """
    table, meta = pq.read_table(blocks), tables.open_table(blocks, BLOCKS).meta
    flags = table.column("rwbs").cast("string")
    is_direct = pc.and_(
        pc.match_substring(flags, "S"), pc.invert(pc.match_substring_regex(flags, "[AM]"))
    )
    with tables.create(blocks, BLOCKS, meta) as out:
        kept = table.filter(is_direct).cast(arrow_schema(BLOCKS))
        pid = kept.schema.field("pid")
        nobody = pa.nulls(len(kept), pid.type)
        for batch in kept.set_column(kept.schema.names.index("pid"), pid, nobody).to_batches():
            out.write(batch)
    scratch.mkdir(exist_ok=True)
    try:
        return distil_source(blocks, device, Limit(), scratch), None
    except TraceError as error:
        return None, f"no block requests to distil were seen: {error}"


_LEAD_NS = NS_PER_S
"""Before the first operation, in which the data of the first writes is made."""
_START_S = 120


def replay_seen(
    trace: Path, part: Distilled, place: Path, io_bytes: int, depth_cap: int
) -> tuple[Distilled | None, str]:
    """Replay `part` of `trace` at its times on one file in the folder `place`, with the probes
    attached.

    At most `depth_cap` I/Os are in flight, as in the jobs. Returns what the device saw, and how the
    replay went; or null, and why there is nothing to compare with.
    """
    disk, tier = disk_of(place), part.profile.tier.rpartition("@")[0] or part.profile.tier
    if disk is None:
        return None, "no block device lies beneath the target"
    if os.geteuid() != 0:
        return None, "measuring the block requests of a replay needs root"
    cut, output = place / "part.parquet", place / "replayed"
    write_part(trace, part, cut)
    command = [*argv_of("kvreplay", "run"), str(cut), "--tier", f"{tier}={place / 'replayed.dat'}"]
    command += ["--speed", "1", "--probes", "--io-bytes", str(io_bytes), "-o", str(output)]
    command += ["--queue-depth", str(depth_cap)]
    moved = (
        2 * part.profile.placed.span_bytes
        + part.profile.read.io_bytes
        + part.profile.write.io_bytes
    )
    timeout_s = _START_S + part.profile.span_ns / NS_PER_S + moved / _SLOWEST_BYTES_PER_S
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"kvreplay did not end within {timeout_s:.0f} s"
    if not (output / BLOCKS_FILE).is_file():
        said = done.stderr.strip().splitlines() or ["kvreplay ended without saying why"]
        why = next((line for line in said if "left out the probes: " in line), said[-1])
        return None, why.partition("error: ")[2] or why
    summary = read_run(output).summary
    if summary.fell_behind:
        return (
            None,
            (
                "check invalid at the device: its own reference, a replay by kvreplay,"
                f" {summary.verdict}"
            ),
        )
    seen, why_not = direct_requests(output / BLOCKS_FILE, disk.name, place / "replayed.scratch")
    return seen, why_not or summary.verdict


def write_part(trace: Path, part: Distilled, target: Path) -> None:
    """Write the rows of `trace` that `part` was distilled from to `target`, the first a second
    after the start.
    """
    reader = tables.open_table(trace, TRACE)
    place, window, first = place_of(reader.meta, part.profile.tier), RowWindow(part.limit), None
    # What one node has is a trace of one node.
    tiers = [TierFacts(tier.name, tier.capacity_bytes) for tier in reader.meta.tiers]
    with tables.create(target, TRACE, msgspec.structs.replace(reader.meta, tiers=tiers)) as out:
        for batch in reader.batches():
            rows = batch.filter(pa.array(place.holds(batch)))
            looked_at = {name: rows.column(name).to_numpy() for name in ("ts_ns", "length_bytes")}
            op = rows.column("op").indices.to_numpy()
            kept = window.take({**looked_at, "op": op, "at": np.arange(rows.num_rows)})
            if kept is not None:
                first = int(kept["ts_ns"][0]) - _LEAD_NS if first is None else first
                taken = rows.take(pa.array(kept["at"]))
                times = pc.subtract(taken.column("ts_ns"), pa.scalar(first, pa.int64()))
                columns = [times if name == "ts_ns" else taken.column(name) for name in TRACE.names]
                out.write(pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TRACE)))
            if window.is_over:
                return
