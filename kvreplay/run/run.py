"""One replay: compile the trace, open the tiers, populate, run the engine, write the results."""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np

from kvreplay.config.config import CLOSED_LOOP_DEPTH, Config, check
from kvreplay.config.setting import Setting, settle
from kvreplay.config.tiers import check_targets
from kvreplay.config.warmup import check_warmup
from kvreplay.data.buffers import Moved
from kvreplay.data.generate import DataSource, Maker
from kvreplay.data.verify import named
from kvreplay.engine.choose import Chosen, check_name, choose
from kvreplay.engine.job import NOT_DONE, Driven, IoEngine, Job, Record
from kvreplay.engine.rings.share import check_submitters
from kvreplay.engine.sliding.slider import AHEAD_ROWS, Slider
from kvreplay.plan.loader import Loader
from kvreplay.plan.plan import READ, WRITE, populate_plan
from kvreplay.result import tables as results
from kvreplay.result.journal import Journal, journal
from kvreplay.result.manifest import Measured, Preparation, opening, running
from kvreplay.result.part import RunPart
from kvreplay.result.probed import beside
from kvreplay.result.results import RunResults
from kvreplay.run.finished import FinishedRun, Interrupted, write_down
from kvreplay.run.prepare import device_io, open_tiers, precondition_all, read_devices, read_smart
from kvreplay.run.runtime import RUNTIME, rows_left, until, with_repeats
from kvreplay.run.space.lay_out import LaidOut, is_laid_out, lay_out_all
from kvreplay.run.together import Together, ended_by, meet
from kvreplay.run.watching.watch import Watch, Watching
from kvreplay.tiers.tier import DeviceTier, Tier
from kvtrace.core.app import noted_signals
from kvtrace.core.errors import DeviceError, FailedOperations, KvError
from kvtrace.core.run.figures import Summary
from kvtrace.core.run.run_file import (
    RUN_FILE,
    Populated,
    Prepared,
)

TOLD_UNREAD = 0.01
"""If places of the queue stood idle for no less of the time because rows were not read yet, that is told."""
SWITCH_INTERVAL_S = 5e-5
"""How long one Python thread may hold the others up; the default, 5 ms, is longer than an I/O takes."""


def replay(
    config: Config,
    trace: Path,
    output: Path,
    argv: list[str],
    *,
    is_forced: bool = False,
    show: Callable[[str, int], Any] | None = None,
    tiers: list[Tier | None] | None = None,
    watching: Watching | None = None,
    together: Together | None = None,
) -> FinishedRun:
    """Replay `trace` as `config` says and write the run to `output`.

    `show(label, rows)` gives a context manager that yields a function taking the rows done; `tiers`, in the
    trace's order, replace the configured ones; `watching` shows the measured part while it goes on, in its place;
    `together` makes it start and end with other replays.

    Raises:
        ConfigError, TraceError, DeviceError: before anything was measured. Later faults are in the outcome.

    """
    started_ns = monotonic_ns()
    check(config)
    if tiers is None:
        # Before the trace is read, which may take minutes.
        check_targets(config)
    results.check_output(output, is_forced=is_forced)
    setting = settle(config, trace, output, argv, tiers)
    data = DataSource.of(
        setting.seed,
        config.dedup_ratio,
        config.compress_ratio,
        is_stamped=config.is_verified,
        maker=Maker(config.data),
    )
    return _Run(setting, show or _no_show, data, started_ns, watching, together).perform(output)


@contextmanager
def _no_show(_label: str, _rows: int) -> Iterator[Callable[[float], None]]:
    yield lambda _done: None


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Disable the garbage collector and shorten the interpreter's thread switch interval."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()


@dataclass(frozen=True, slots=True)
class _Run:
    """One replay under way."""

    setting: Setting
    show: Callable[[str, int], Any]
    data: DataSource
    started_ns: int
    """On the monotonic clock."""
    watching: Watching | None = None
    together: Together | None = None

    # Long: the steps of a run in their order.
    def perform(self, output: Path) -> FinishedRun:
        setting = self.setting
        window, plan = setting.window, setting.window.plan
        check_warmup(setting.warmup, setting.config.warmup, window.rows, window.counted(), setting.pacer)
        due_ns, loader = window.paced(setting.pacer), window.laid_by()
        with ExitStack() as stack:
            interrupted = ended_by(stack.enter_context(noted_signals()), self.together)
            open_tiers(setting, stack)
            chosen = self._choose(setting.config.depth, is_growing=due_ns is not None)
            engine = chosen.engine
            preconditioned = precondition_all(setting, self.data.unstamped, interrupted, self.show)
            lay_out_started_ns = monotonic_ns()
            laid_out = lay_out_all(setting, self.data, interrupted, self.show)
            lay_out_ns = monotonic_ns() - lay_out_started_ns
            populated, stopped = self._populate(engine, interrupted, laid_out)
            if stopped is None:
                laid_out.note_whole()
            with setting.trace.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            end_probes = stack.enter_context(beside(setting.config, setting.tiers, output))
            # What --verify expects of reads is worked out for all rows at once.
            loader.load(None if setting.config.is_verified else AHEAD_ROWS)
            record = Record.empty(len(plan), is_open_loop=due_ns is not None, laid=loader.laid)
            verifier = setting.verifier(self.data)
            meet(self.together)
            known = chosen, datetime.now(UTC), preconditioned, populated, self.data, read_smart(setting), digest
            prepared = Prepared(lay_out_ns=lay_out_ns, total_ns=monotonic_ns() - self.started_ns)
            begun = Preparation(*known, prepared)
            before = read_devices(setting)
            job = Job(
                plan,
                due_ns,
                setting.tiers,
                record,
                self.data.fill,
                setting.config.on_error == "stop",
                bulk_depth=setting.config.bulk_depth,
                check=verifier.check if verifier else None,
                start=self.together,
            )
            watch = None if self.watching is None else Watch(setting, record, due_ns)
            results.make_directory(output, RUN_FILE)
            note = None if watch is None else watch.take
            with journal(output, record, running(setting, begun), note) as kept, RunResults(setting, output) as found:
                slider = _slider(loader, record, due_ns, kept, found, is_kept=setting.config.is_verified)
                job = job if loader.is_whole else replace(job, slider=slider)
                driven = stopped or self._watched(engine, job, until(interrupted, setting.config.runtime_ns), watch)
                kept.stop()
                moved = device_io(before, read_devices(setting))
                slider.finish(rows_left(setting, loader.laid))
                found.end()
                probed = end_probes(None if stopped else driven.started_ns)
                summary = with_repeats(found.summary(None if stopped else driven, moved=moved), found)
                trouble = found.warnings(moved) + _unread(driven, setting.config.depth)
                if kept.trouble:
                    trouble.append(f"would not have outlived a kill: {kept.trouble}")
                measured = Measured(
                    moved,
                    summary,
                    self._error(driven, summary, found.rows, is_populating=stopped is not None, output=output),
                    named(verifier, setting.trace),
                    read_smart(setting),
                    found.requests,
                    probed,
                    trouble,
                )
                return write_down(found, opening(found.setting, begun), measured, output)

    def _choose(self, depth: int, *, is_growing: bool = False) -> Chosen:
        config = self.setting.config
        return choose(
            check_name(config.engine),
            self.setting.tiers,
            depth,
            config.io_bytes,
            is_growing=is_growing,
            asked=self._asked(),
            submitters=check_submitters(config.submitters),
        )

    def _asked(self) -> tuple[Moved, Moved]:
        """Return all reads and writes of the window."""
        kinds = self.setting.window.counted().kinds
        reads, writes = (
            Moved(int(kinds["rows"][:, op].sum()), int(kinds["bytes"][:, op].sum())) for op in (READ, WRITE)
        )
        return reads, writes

    def _drive(self, engine: IoEngine, job: Job, interrupted: Callable[[], str | None], label: str) -> Driven:
        with self.show(label, len(job.plan)) as progress, _quiet_interpreter():
            return engine.drive(job, interrupted, progress)

    def _watched(
        self, engine: IoEngine, job: Job, interrupted: Callable[[], str | None], watch: Watch | None
    ) -> Driven:
        """Drive the measured part, shown by `watch` if there is one."""
        if watch is None or self.watching is None:
            return self._drive(engine, job, interrupted, "replaying")

        def note(done: float) -> None:
            watch.completed = done

        def begin(in_flight: Callable[[], int]) -> None:
            watch.in_flight = in_flight
            watch.begin()

        with self.watching(watch), _quiet_interpreter():
            return engine.drive(replace(job, watched=begin), interrupted, note)

    def _populate(
        self, engine: IoEngine, interrupted: Callable[[], str | None], laid_out: LaidOut
    ) -> tuple[Populated, Driven | None]:
        """Write the objects that the window reads but never writes; return them, and how it was cut short or None.

        Those that were `laid_out` lie there already.
        """
        setting = self.setting
        residency, tiers = setting.window.residency, setting.tiers
        wanted = [t is not None and not (t.is_simulated or is_laid_out(t)) for t in tiers]
        there = np.array(wanted)[residency.populate_tier]
        if not there.any():
            return Populated(laid_out.objects, laid_out.bytes, 0), None
        alignments = {i: t.alignment for i, t in enumerate(tiers) if t is not None}
        plan = populate_plan(residency, alignments, setting.trace, there)
        record = Record.empty(len(plan), is_open_loop=False)
        if engine.depth > CLOSED_LOOP_DEPTH and setting.pacer.speed is not None and not _has_gpu(tiers):
            # An open loop's limit is far more than populating needs: its buffers would all be touched.
            engine = self._choose(CLOSED_LOOP_DEPTH).engine
        driven = self._drive(engine, Job(plan, None, tiers, record, self.data.fill), interrupted, "populating")
        done = np.flatnonzero(record.completed_ns != NOT_DONE)
        objects, moved = laid_out.objects + len(done), laid_out.bytes + int(plan.length[done].sum())
        is_whole = driven.failure is None and driven.completed == len(plan)
        return Populated(objects, moved, driven.wall_ns), None if is_whole else driven

    def _error(
        self, driven: Driven, summary: Summary, rows: int, *, is_populating: bool, output: Path
    ) -> KvError | None:
        """Return why the run, of which `rows` operations are looked at, is not whole; None if it is."""
        kept = f"what was measured is kept in {output} (partial)"
        plan = self.setting.window.plan
        stops = driven.failure is not None and not driven.failure.is_corrupt
        if driven.failure is not None and (is_populating or (stops and self.setting.config.on_error == "stop")):
            place = "while populating" if is_populating else f"row {driven.failure.row}"
            return DeviceError(f"{place}: {driven.failure.message}; {kept}")
        is_over = driven.interrupted_by == RUNTIME and not is_populating
        if driven.interrupted_by is not None and not is_over and (is_populating or driven.completed < len(plan)):
            return Interrupted(f"interrupted by {driven.interrupted_by}; {kept}")
        if driven.failure is not None:
            count, sent = summary.errors, rows - (summary.not_reached or 0)
            first = f"row {driven.failure.row}: {driven.failure.message}"
            return FailedOperations(f"{count:,} of {sent:,} operations failed, the first at {first}")
        return None


def _slider(loader: Loader, record: Record, due_ns: Any, kept: Journal, found: RunResults, *, is_kept: bool) -> Slider:
    """Return what slides the rows that `loader` lays: those that are over go to the journal, then to the results.

    If rows are to be kept, all go there at the end.
    """

    def hand(first: int, last: int) -> None:
        kept.pass_by(last)
        found.take(everything.within(first, last))

    everything = RunPart(0, loader.plan, record, due_ns)
    return Slider(loader, record, hand, is_kept=is_kept)


def _unread(driven: Driven, depth: int) -> list[str]:
    """Return that the trace was read too slowly for the run, if it was."""
    share = driven.unread_ns / max(1, driven.wall_ns * depth)
    if share < TOLD_UNREAD:
        return []
    return [f"the queue stood idle for {share:.1%} of the time because the next rows of the trace were not there yet"]


def _has_gpu(tiers: list[Tier | None]) -> bool:
    return any(isinstance(t, DeviceTier) for t in tiers)
