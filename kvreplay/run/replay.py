"""One replay: open the tiers, precondition, populate, run the engine, write the results.

`_Run` does these steps in order. Below it: the class of a finished run, preparation of the storage, the
clock that ends a run (`--duration`), and replays that start together.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic_ns
from typing import TypeVar

import msgspec
import numpy as np

from kvreplay.engine.job import Driven, Failure, Job, Together
from kvreplay.engine.limits import check, check_warmup
from kvreplay.engine.native_engine import RUNTIME, Engine, EngineName, choose
from kvreplay.engine.setting import Setting, settle
from kvreplay.engine.share import check_submitters
from kvreplay.plan.contents import DataSource, Fill, name_bad_blocks
from kvreplay.plan.output_directory import check_output, make_directory
from kvreplay.plan.replay_config import CLOSED_LOOP_DEPTH, Config, Precondition
from kvreplay.plan.row_ring import DELETE, NOT_DONE, READ, WRITE
from kvreplay.plan.trace_rows import trace_row
from kvreplay.plan.window import populated_rows
from kvreplay.probes.probe_session import Probed, probing
from kvreplay.result.recording import RunPart
from kvreplay.result.run_tables import journal
from kvreplay.result.summarize import (
    Measured,
    RunResults,
    build_partial_run,
    build_results,
    build_run_header,
    collect_engine_facts,
    table_metadata,
)
from kvreplay.run.feed import Feed
from kvreplay.run.precondition import LaidOut, is_laid_out, lay_out_all, precondition
from kvreplay.run.watch import Watch, Watching
from kvreplay.tiers.claims import smart
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.host import device_counters
from kvreplay.tiers.make_tiers import check_targets
from kvreplay.tiers.tier import Holding, Tier, drives_of
from kvtrace.core.app import log, noted_signals
from kvtrace.core.errors import (
    DeviceError,
    FailedOperations,
    KvError,
)
from kvtrace.core.files import write_json
from kvtrace.core.run.drive_file import DriveFile
from kvtrace.core.run.figures import Summary
from kvtrace.core.run.run_file import (
    BLOCKS_FILE,
    PROBE_FILE,
    RUN_FILE,
    DeviceIo,
    Populated,
    Preconditioned,
    Prepared,
    RunBegun,
    RunFile,
    SmartReadings,
    TraceNote,
    seal,
)
from kvtrace.core.schema import BLOCKS
from kvtrace.core.signals import INTERRUPTED
from kvtrace.core.tables import create, trace_sha256
from kvtrace.core.units import format_bytes

NOTED_UNREAD_SHARE = 0.01
"""Share of the time that the queue was idle because the trace was not read yet, from which on a run
says so.
"""
SWITCH_INTERVAL_S = 5e-5
"""How long one Python thread may hold the others up.

The default, 5 ms, is longer than an I/O takes.
"""
_Reading = TypeVar("_Reading")
StopAsked = Callable[[], str | None]
"""Gives the reason to stop, or None."""
Show = Callable[[str, int], AbstractContextManager[Callable[[float], None]]]
"""Shows progress: takes a label and a number of rows, and returns a context manager.

The manager yields a function that takes the number of rows done.
"""


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that is asked for: its trace, options, output and observer."""

    config: Config
    trace: Path
    output: Path
    argv: list[str]
    """The command line, as outputs record it."""
    is_forced: bool = False
    """Whether it replaces a run in `output`."""
    show: Show = lambda _label, _rows: nullcontext(lambda _done: None)
    watching: Watching | None = None
    """Shows the measured part while it goes on, in place of `show`."""

    def check_options(self) -> None:
        """Raise ConfigError, naming the option, if an option has a value that cannot be used."""
        check(self.config)

    def check_targets(self) -> None:
        """Raise ConfigError or DeviceError if a target on storage is missing or refuses."""
        check_targets(self.config)

    def check(self, *, is_on_targets: bool = True) -> None:
        """Refuse a replay that cannot run or write its output, before anything is made, read or measured,
        which takes minutes.
        """
        self.check_options()
        if self.config.drive is not None:
            DriveFile.read(Path(self.config.drive))
        if is_on_targets:
            self.check_targets()
        check_output(self.output, is_forced=self.is_forced)


def replay(
    request: Replay, *, tiers: list[Tier | None] | None = None, together: Together | None = None
) -> FinishedRun:
    """Replay a trace as `request` and write the run to its output.

    `tiers`, in the trace's order, replace the configured ones; `together` makes it start and end
    with other replays.

    ConfigError, TraceError, DeviceError before anything was measured. Later faults are in the
    outcome.
    """
    started_ns, config, trace = monotonic_ns(), request.config, request.trace
    request.check(is_on_targets=tiers is None)
    setting = settle(config, trace, request.output, request.argv, tiers)
    data = DataSource(
        setting.seed, config.dedup_ratio, config.compress_ratio, is_stamped=config.is_verified
    )
    with noted_signals() as signalled:
        finished = _Run(
            setting, request.show, data, started_ns, signalled, request.watching, together
        ).perform(request.output)
    if finished.error is None and (name := signalled()) is not None:
        # It came while tiers were closed, which takes long if files are large: no other run may
        # follow.
        return replace(
            finished,
            error=Interrupted(
                f"interrupted by {name} as the run ended; all of it is in {request.output}"
            ),
        )
    return finished


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Let the garbage collector look at new objects alone, and shorten the thread switch interval.

    A collection then takes under 0.1 ms instead of 80; with collection switched off, a run of hours
    would keep all objects that it drops.
    """
    interval = sys.getswitchinterval()
    gc.freeze()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class _Run:
    """One replay under way."""

    setting: Setting
    show: Show
    data: DataSource
    started_ns: int
    """On the monotonic clock."""
    signalled: Callable[[], str | None]
    """Names the signal that asked to stop, if one did.

    Also while tiers are closed, which the caller looks at.
    """
    watching: Watching | None = None
    together: Together | None = None

    # Long: the steps of a run in their order.
    def perform(self, output: Path) -> FinishedRun:
        setting = self.setting
        window, config = setting.window, setting.config
        check_warmup(setting.warmup, config.warmup, window.rows, window.facts, setting.pacer)
        is_open_loop, loader = setting.pacer.speed is not None, window.loader
        with ExitStack() as stack:
            signalled, together = self.signalled, self.together
            # The reason is a signal, or the end of the other ranks.
            interrupted = signalled if together is None else lambda: signalled() or together.reason
            open_tiers(setting, stack)
            engine = self._choose(config.depth, is_open_loop=is_open_loop)
            say_buffers(engine)
            preconditioned = precondition_all(setting, self.data.unstamped, interrupted, self.show)
            lay_out_started_ns = monotonic_ns()
            laid_out = lay_out_all(setting, self.data, interrupted, self.show)
            lay_out_ns = monotonic_ns() - lay_out_started_ns
            populated, failed_populate = self._populate(engine, interrupted, laid_out)
            if failed_populate is None:
                # How far drives are written, for later runs.
                for drive, region in laid_out.filled:
                    drive.note_written(region)
            digest = trace_sha256(setting.trace)
            has_events = not config.is_histograms_only
            probes = probing(
                setting.tiers, output, is_wanted=config.is_probed, has_events=has_events
            )
            end_probes = stack.enter_context(probes)
            rows = loader.begin(
                setting.pacer,
                is_ignoring_streams=config.is_ignoring_streams,
                is_verified=config.is_verified,
            )
            if together is not None:
                together.ready()
            begun = build_run_header(
                setting,
                msgspec.to_builtins(config) | {"seed": setting.seed},
                TraceNote(file=setting.trace.name, metadata=setting.reader.meta, sha256=digest),
                collect_engine_facts(setting, engine, self.data),
                preconditioned=preconditioned,
                populated=populated,
                smart={
                    name: SmartReadings(before=results, after=None)
                    for name, results in of_drives(setting, smart).items()
                },
                prepared=Prepared(lay_out_ns=lay_out_ns, total_ns=monotonic_ns() - self.started_ns),
            )
            before = of_drives(setting, device_counters)
            watch = None if self.watching is None else Watch(setting, is_open_loop=is_open_loop)
            make_directory(output, RUN_FILE)
            with (
                journal(output, rows, build_partial_run(setting, begun), watch) as run_journal,
                RunResults(setting, output) as results,
            ):

                def deliver(run_part: RunPart) -> None:
                    run_journal.pass_by(run_part.first + len(run_part))
                    results.take(run_part)

                feed = Feed(loader, deliver)
                feed.fill()
                job = Job(
                    rows,
                    setting.tiers,
                    self.data,
                    is_open_loop=is_open_loop,
                    stops_on_error=config.on_error == "stop",
                    bulk_depth=config.bulk_depth,
                    is_verified=config.is_verified,
                    plan_address=loader.plan_address,
                    start=self.together,
                    feed=feed,
                    stall_ns=config.stall_ns,
                    runtime_ns=config.runtime_ns,
                )
                driven = failed_populate or self._drive(
                    engine, job, interrupted, "replaying", watch
                )
                run_journal.stop()
                io_by_drive = {
                    drive_name: moved_between(before[drive_name], now)
                    for drive_name, now in of_drives(setting, device_counters).items()
                }
                results.note_end(driven.wall_ns)
                feed.finish(rows_to_report(setting, loader.laid))
                results.end()
                probed = end_probes(None if failed_populate else driven.started_ns)
                summary = results.summary(
                    None if failed_populate else driven, device_io=io_by_drive
                )
                trouble = results.warnings(io_by_drive) + _unread(driven, config.depth)
                if run_journal.trouble:
                    trouble.append(
                        f"after a kill the run could not have been recovered: {run_journal.trouble}"
                    )
                measured = Measured(
                    io_by_drive,
                    summary,
                    self._error(
                        driven,
                        summary,
                        results.rows,
                        is_populating=failed_populate is not None,
                        output=output,
                    ),
                    trouble,
                    name_bad_blocks(driven.verification, setting.reader, setting.trace),
                    of_drives(setting, smart),
                    None if probed is None else probed.facts(),
                )
                facts = collect_engine_facts(results.setting, engine, self.data)
                begun = msgspec.structs.replace(begun, **facts._asdict())
                return write_down(results, begun, measured, output, probed=probed)

    def _choose(self, depth: int, *, is_open_loop: bool = False) -> Engine:
        config, kinds = self.setting.config, self.setting.window.facts.kinds
        return choose(
            EngineName(config.engine),
            self.setting.tiers,
            depth,
            config.io_bytes,
            is_open_loop=is_open_loop,
            # Each I/O of the window's reads and writes may begin within a buffer.
            max_filled=sum(
                int(2 * kinds["rows"][:, op].sum() + kinds["bytes"][:, op].sum() // config.io_bytes)
                for op in (READ, WRITE)
            ),
            submitters=check_submitters(config.submitters),
        )

    def _drive(
        self,
        engine: Engine,
        job: Job,
        interrupted: StopAsked,
        label: str,
        watch: Watch | None = None,
    ) -> Driven:
        """Drive a job, shown by `watch` if there is one."""
        if watch is None or self.watching is None:
            with self.show(label, len(job.rows)) as progress, quiet_interpreter():
                return engine.drive(job, interrupted, progress)

        def note(completed_rows: float) -> None:
            watch.completed = completed_rows

        def begin(in_flight: Callable[[], int]) -> None:
            watch.in_flight = in_flight
            watch.begin()

        with self.watching(watch), quiet_interpreter():
            return engine.drive(replace(job, watched=begin), interrupted, note)

    def _populate(
        self, engine: Engine, interrupted: StopAsked, laid_out: LaidOut
    ) -> tuple[Populated, Driven | None]:
        """Write the objects that the window reads but never writes.

        Return them, and how it was cut short or None.

        Those that were `laid_out` lie there already; files of the run before may be taken over.
        """
        setting = self.setting
        residency, tiers = setting.window.residency, setting.tiers
        is_populated_tier = [
            t is not None and not (t.is_simulated or is_laid_out(t)) for t in tiers
        ]
        there = np.array(is_populated_tier)[residency.populate_tier]
        for index, tier in enumerate(tiers):
            if isinstance(tier, FileTier):
                here = np.flatnonzero(residency.populate_tier == index)
                has = tier.take_over(
                    residency.populate_object[here], residency.populate_bytes[here]
                )
                there[here[has]] = False
        if not there.any():
            return Populated(laid_out.objects, laid_out.bytes, 0), None
        rows = populated_rows(residency, there)
        if (
            engine.depth > CLOSED_LOOP_DEPTH
            and setting.pacer.speed is not None
            and not any(t is not None and t.is_of_gpu for t in tiers)
        ):
            # An open loop's limit is far more than populating needs.
            engine = self._choose(CLOSED_LOOP_DEPTH)
        job = Job(rows, tiers, self.data, stall_ns=setting.config.stall_ns)
        driven = self._drive(engine, job, interrupted, "populating")
        is_completed = rows.all["completed_ns"] != NOT_DONE
        objects, written_bytes = (
            laid_out.objects + int(is_completed.sum()),
            laid_out.bytes + int(rows.all["length_bytes"][is_completed].sum()),
        )
        is_whole = driven.failure is None and driven.completed == len(rows)
        return Populated(objects, written_bytes, driven.wall_ns), None if is_whole else driven

    def _error(
        self, driven: Driven, summary: Summary, rows: int, *, is_populating: bool, output: Path
    ) -> KvError | None:
        """Return why the run, of which `rows` operations are looked at, is not whole.

        None if it is.
        """
        kept_note = f"what was measured is kept in {output} (partial)"
        planned = self.setting.window.planned_rows
        stops = driven.failure is not None and not driven.failure.is_corrupt
        if driven.failure is not None and (
            is_populating or (stops and self.setting.config.on_error == "stop")
        ):
            place = (
                "while populating" if is_populating else f"row {self._trace_row(driven.failure)}"
            )
            return DeviceError(f"{place}: {driven.failure.message}; {kept_note}")
        is_over = driven.interrupted_by == RUNTIME and not is_populating
        if (
            driven.interrupted_by is not None
            and not is_over
            and (is_populating or driven.completed < planned)
        ):
            return Interrupted(f"interrupted by {driven.interrupted_by}; {kept_note}")
        if driven.stalled is not None:
            return DeviceError(
                f"nothing completed for {self.setting.config.stall}, though operations were in"
                f" flight or due: {driven.stalled}; {kept_note}; raise --stall-timeout, or 0 for no"
                " limit"
            )
        if driven.failure is not None:
            count, sent = summary.errors, rows - (summary.not_reached or 0)
            first = f"row {self._trace_row(driven.failure)}: {driven.failure.message}"
            return FailedOperations(
                f"{count:,} of {sent:,} operations failed, the first at {first}"
            )
        return None

    def _trace_row(self, failure: Failure) -> int:
        """Return the trace's row of the operation that failed."""
        return trace_row(self.setting.reader, failure.row)


def _unread(driven: Driven, depth: int) -> list[str]:
    share = driven.unread_ns / max(1, driven.wall_ns * depth)
    if share < NOTED_UNREAD_SHARE:
        return []
    return [
        (
            f"the queue was idle for {share:.1%} of the time because the next rows of the trace were"
            " not yet read"
        )
    ]


class Interrupted(KvError):  # noqa: N818 - the user's wish, not a fault
    """The user asked to stop; the measurements are kept."""

    exit_code = INTERRUPTED


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished run, whole or partial."""

    run: RunFile
    error: KvError | None
    """Why it is partial, or that operations failed; None if it is whole and all went well."""

    @property
    def summary(self) -> Summary:
        """The run's figures."""
        return self.run.summary


Replaying = Callable[[Replay], FinishedRun]
"""Runs a replay: `replay`, or a function that runs it on several ranks."""


def write_down(
    results: RunResults,
    begun: RunBegun,
    measured: Measured,
    output: Path,
    *,
    probed: Probed | None = None,
    headline: str = "",
) -> FinishedRun:
    """Write the tables and run.json of a run to `output`, run.json last; return the run.

    `headline` stands in place of its verdict, where it is no replay: then no criterion judges it.
    """
    content = build_results(results, begun, measured)
    if headline:
        # Criteria of MLPerf judge a replay of its workload.
        summary = msgspec.structs.replace(content.summary, verdict=headline, judgement=None)
        content = msgspec.structs.replace(content, mlperf=None, summary=summary)
    for name in (PROBE_FILE, BLOCKS_FILE):
        (output / name).unlink(missing_ok=True)
    if probed is not None:
        probed.save(output)
        if probed.has_events:
            meta = table_metadata(BLOCKS, results.setting, content)
            with create(output / BLOCKS_FILE, BLOCKS, meta) as out:
                for batch in probed.blocks():
                    out.write(batch)
    results.close_tables(content)
    content = msgspec.structs.replace(
        content, checkpoints=results.checkpoints(measured.summary.wall_ns)
    )
    write_json(output / RUN_FILE, seal(content))
    return FinishedRun(content, measured.error)


_SAID_BUFFER_BYTES = 256 << 20
"""Buffers that take more memory are mentioned."""


def say_buffers(engine: Engine) -> None:
    """Log how much memory the buffers take, if that is much."""
    arena = engine.arena
    touched_bytes = arena.touched * arena.slot_bytes
    if touched_bytes > _SAID_BUFFER_BYTES:
        log(
            f"I/O buffers take {format_bytes(touched_bytes)} of memory, for up to {arena.touched:,}"
            " I/Os in flight; --queue-depth or --pool limits them"
        )


def open_tiers(setting: Setting, stack: ExitStack) -> None:
    """Open all tiers, which `stack` closes; DeviceError if one refuses or the peak does not fit."""
    residency = setting.window.residency
    spaces: list[list[object]] = [
        [_space(Path(d.target)) for d in t.drives] if t and t.drives else [t.target if t else None]
        for t in setting.tiers
    ]
    need: dict[object, int] = {}
    for of_tier, peaks in zip(spaces, residency.drive_peak_bytes, strict=True):
        for space, peak in zip(of_tier, peaks, strict=True):
            # Tiers that share a filesystem, or memory, must fit together.
            need[space] = need.get(space, 0) + peak
    for index, tier in enumerate(setting.tiers):
        if tier is None:
            continue
        together = [need[space] for space in spaces[index]]
        # Writes can be ahead of deletes before them by what is in flight, and by no more than the
        # deletes free.
        kinds = setting.window.facts.kinds[index]
        ahead = min(int(kinds["rows"][DELETE]), setting.config.depth + 1) * int(
            kinds["end_bytes"].max()
        )
        peaks, grown = residency.drive_peak_bytes[index], residency.grown[index]
        is_populated = len(residency.populate_tier) > 0
        tier.expect(
            Holding(peaks, grown, ahead, together, setting.window.facts.objects, is_populated)
        )
        stack.callback(_close_tier, tier)
        tier.open(max(together))


def _close_tier(tier: Tier) -> None:
    """Close a tier; what cannot be removed is said, and hides no result of the run."""
    try:
        tier.close()
    except OSError as error:
        log(
            f"{tier.target} could not be cleaned up ({error.strerror or error}); the next run there"
            " does it"
        )


def _space(path: Path) -> object:
    if path.is_block_device():
        return path.resolve()
    holder = path if path.exists() else path.parent
    return holder.stat().st_dev if holder.exists() else str(path)


def precondition_all(
    setting: Setting, fill: Fill, interrupted: StopAsked, show: Show
) -> list[Preconditioned]:
    """Write the drives full as `--precondition` says."""
    config, conditioned = setting.config, []
    if config.precondition is None:
        return []
    peaks = setting.window.residency.drive_peak_bytes
    drives = [
        (drive, peak)
        for tier, of_tier in zip(setting.tiers, peaks, strict=True)
        if tier is not None and tier.drives
        for drive, peak in zip(tier.drives, of_tier, strict=True)
        if peak
    ]
    for stream, (drive, peak) in enumerate(drives):
        with show(f"preconditioning {drive.name}", 2 * peak) as progress:
            outcome, region = precondition(
                drive,
                peak,
                Precondition(config.precondition),
                config.io_bytes,
                config.depth,
                fill,
                stream,
                interrupted=interrupted,
                progress=progress,
            )
        if isinstance(drive, ExtentTier) and outcome.is_whole:
            drive.note_written(region)
        conditioned.append(outcome)
    return conditioned


def of_drives(setting: Setting, read: Callable[[Path], _Reading]) -> dict[str, _Reading]:
    """Return the result of `read` (such as SMART data) for the target of each drive, by name."""
    return {drive.name: read(Path(drive.target)) for drive in drives_of(setting.tiers)}


def moved_between(start: DeviceIo | None, end: DeviceIo | None) -> DeviceIo:
    """Return the difference of two readings of a device's counters; null where one is missing."""
    names = DeviceIo.__struct_fields__
    if start is None or end is None:
        return DeviceIo(**dict.fromkeys(names))
    return DeviceIo(**{name: getattr(end, name) - getattr(start, name) for name in names})


def rows_to_report(setting: Setting, laid: int) -> int:
    """Return how many of the plan's rows count in the results.

    All, unless repeats were planned in reserve.

    Where the clock ended it, they are those that are `laid`, and one repeat at least.
    """
    rows = setting.window.planned_rows
    if not setting.rows_once or setting.pacer.speed is not None:
        return rows
    return min(rows, max(laid, setting.rows_once))
