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
from kvreplay.engine.engine import Chosen, Engine, check_name, choose
from kvreplay.engine.job import Driven, Job
from kvreplay.engine.share import check_submitters
from kvreplay.native.rows import NOT_DONE, READ, WRITE
from kvreplay.plan.contents import DataSource, Verifier, named
from kvreplay.plan.window import populated_rows
from kvreplay.result import tables as results
from kvreplay.result.journal import journal
from kvreplay.result.manifest import Measured, Preparation, opening, running
from kvreplay.result.part import RunPart
from kvreplay.result.probed import beside
from kvreplay.result.results import RunResults
from kvreplay.run.feed import Feed
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
    data = DataSource.of(setting.seed, config.dedup_ratio, config.compress_ratio, is_stamped=config.is_verified)
    return _Run(setting, show or _no_show, data, started_ns, watching, together).perform(output)


@contextmanager
def _no_show(_label: str, _rows: int) -> Iterator[Callable[[float], None]]:
    yield lambda _done: None


@contextmanager
def _quiet_interpreter() -> Iterator[None]:
    """Disable the garbage collector and shorten the interpreter's thread switch interval."""
    interval = sys.getswitchinterval()
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
        window, config = setting.window, setting.config
        check_warmup(setting.warmup, config.warmup, window.rows, window.facts, setting.pacer)
        is_open_loop, loader = setting.pacer.speed is not None, window.loader
        with ExitStack() as stack:
            interrupted = ended_by(stack.enter_context(noted_signals()), self.together)
            open_tiers(setting, stack)
            chosen = self._choose(config.depth, is_growing=is_open_loop)
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
            end_probes = stack.enter_context(beside(config, setting.tiers, output))
            rows = loader.begin(
                setting.pacer, is_ignoring_streams=config.is_ignoring_streams, is_verified=config.is_verified
            )
            meet(self.together)
            known = chosen, datetime.now(UTC), preconditioned, populated, self.data, read_smart(setting), digest
            prepared = Prepared(lay_out_ns=lay_out_ns, total_ns=monotonic_ns() - self.started_ns)
            begun = Preparation(*known, prepared)
            before = read_devices(setting)
            watch = None if self.watching is None else Watch(setting, is_open_loop=is_open_loop)
            results.make_directory(output, RUN_FILE)
            with journal(output, rows, running(setting, begun), watch) as kept, RunResults(setting, output) as found:

                def hand(part: RunPart) -> None:
                    kept.pass_by(part.first + len(part))
                    found.take(part)

                feed = Feed(loader, hand, is_open_loop=is_open_loop)
                feed.fill()
                job = Job(
                    rows,
                    setting.tiers,
                    self.data,
                    is_open_loop=is_open_loop,
                    stops_on_error=config.on_error == "stop",
                    bulk_depth=config.bulk_depth,
                    verifier=Verifier() if config.is_verified else None,
                    plan_address=loader.plan_address,
                    start=self.together,
                    feed=feed,
                    stall_ns=config.stall_ns,
                )
                driven = stopped or self._watched(engine, job, until(interrupted, config.runtime_ns), watch)
                kept.stop()
                moved = device_io(before, read_devices(setting))
                feed.finish(rows_left(setting, loader.laid))
                found.end()
                probed = end_probes(None if stopped else driven.started_ns)
                summary = with_repeats(found.summary(None if stopped else driven, moved=moved), found)
                trouble = found.warnings(moved) + _unread(driven, config.depth)
                if kept.trouble:
                    trouble.append(f"would not have outlived a kill: {kept.trouble}")
                measured = Measured(
                    moved,
                    summary,
                    self._error(driven, summary, found.rows, is_populating=stopped is not None, output=output),
                    named(driven.verification, setting.trace),
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
            most=self._most_buffers(config.io_bytes),
            submitters=check_submitters(config.submitters),
        )

    def _most_buffers(self, io_bytes: int) -> int:
        """Return how many buffers the reads and writes of the window fill at most; each may begin within one."""
        kinds = self.setting.window.facts.kinds
        return sum(
            int(2 * kinds["rows"][:, op].sum() + kinds["bytes"][:, op].sum() // io_bytes) for op in (READ, WRITE)
        )

    def _drive(self, engine: Engine, job: Job, interrupted: Callable[[], str | None], label: str) -> Driven:
        with self.show(label, len(job.rows)) as progress, _quiet_interpreter():
            return engine.drive(job, interrupted, progress)

    def _watched(self, engine: Engine, job: Job, interrupted: Callable[[], str | None], watch: Watch | None) -> Driven:
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
        self, engine: Engine, interrupted: Callable[[], str | None], laid_out: LaidOut
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
        rows = populated_rows(residency, there)
        if engine.depth > CLOSED_LOOP_DEPTH and setting.pacer.speed is not None and not _has_gpu(tiers):
            # An open loop's limit is far more than populating needs: its buffers would all be touched.
            engine = self._choose(CLOSED_LOOP_DEPTH).engine
        job = Job(rows, tiers, self.data, stall_ns=setting.config.stall_ns)
        driven = self._drive(engine, job, interrupted, "populating")
        done = rows.all["completed_ns"] != NOT_DONE
        objects, moved = laid_out.objects + int(done.sum()), laid_out.bytes + int(rows.all["length"][done].sum())
        is_whole = driven.failure is None and driven.completed == len(rows)
        return Populated(objects, moved, driven.wall_ns), None if is_whole else driven

    def _error(
        self, driven: Driven, summary: Summary, rows: int, *, is_populating: bool, output: Path
    ) -> KvError | None:
        """Return why the run, of which `rows` operations are looked at, is not whole; None if it is."""
        kept = f"what was measured is kept in {output} (partial)"
        planned = self.setting.window.planned_rows
        stops = driven.failure is not None and not driven.failure.is_corrupt
        if driven.failure is not None and (is_populating or (stops and self.setting.config.on_error == "stop")):
            place = "while populating" if is_populating else f"row {driven.failure.row}"
            return DeviceError(f"{place}: {driven.failure.message}; {kept}")
        is_over = driven.interrupted_by == RUNTIME and not is_populating
        if driven.interrupted_by is not None and not is_over and (is_populating or driven.completed < planned):
            return Interrupted(f"interrupted by {driven.interrupted_by}; {kept}")
        if driven.stalled is not None:
            return DeviceError(
                f"nothing completed for {self.setting.config.stall}, though operations were in flight or due: "
                f"{driven.stalled}; {kept}; --stall-timeout allows more, or 0"
            )
        if driven.failure is not None:
            count, sent = summary.errors, rows - (summary.not_reached or 0)
            first = f"row {driven.failure.row}: {driven.failure.message}"
            return FailedOperations(f"{count:,} of {sent:,} operations failed, the first at {first}")
        return None


def _unread(driven: Driven, depth: int) -> list[str]:
    """Return that the trace was read too slowly for the run, if it was."""
    share = driven.unread_ns / max(1, driven.wall_ns * depth)
    if share < TOLD_UNREAD:
        return []
    return [f"the queue stood idle for {share:.1%} of the time because the next rows of the trace were not there yet"]


def _has_gpu(tiers: list[Tier | None]) -> bool:
    return any(isinstance(t, DeviceTier) for t in tiers)
