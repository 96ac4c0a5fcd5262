"""One job: its pieces are taken in their order, and what came of them goes into the record.

Beside a ring (`uring`), one thread submits, and hands on what needs another; without one (`threads`), each thread
takes its own next piece. What becomes of an operation is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from time import monotonic_ns
from typing import Any

from kvreplay.data.buffers import growing
from kvreplay.data.copies import Copiers
from kvreplay.data.words import Fresh
from kvreplay.engine import turn
from kvreplay.engine.job import CORRUPT, ERROR, OK, Driven, Failure, Flight, IoEngine, Job
from kvreplay.engine.mailbox import Mail
from kvreplay.engine.pump import Pump
from kvreplay.engine.rings.rings import Rings
from kvreplay.engine.schedule import Schedule, Submission
from kvreplay.engine.tables import BY_OTHERS
from kvreplay.engine.workers import Check, Died, Opened, Step, Trouble, Workers, no_thread
from kvreplay.plan.plan import DELETE
from kvreplay.tiers.tier import NOWHERE, RingExtents, Tier, copied, has_times

POLL_NS = 100_000_000
LEAD_NS = 500_000_000
"""How long after its threads an open loop's clock starts: meanwhile the data of its first writes is made and buffers
are touched, which would make its first operations late."""
_BATCH = 8
"""Operations put together; their common time stamp must stay true for the last."""


class Submitter:
    """One job and its submitting thread; tiers without a file are served by other threads."""

    def __init__(self, engine: IoEngine, job: Job, rings: Rings, registered: tuple[int, int] = (0, 0)) -> None:
        """Prepare to do `job` with the buffers of `engine`; so many of the first reads and data are `registered`."""
        self._engine, self._job, self._rings = engine, job, rings
        plan, record = job.plan, job.record
        reads, writes = engine.arenas
        self._schedule = Schedule.of(job, engine.depth, engine.io_bytes)
        self._extents_of = [self._extents(t) for t in job.tiers]
        self._copied_of = [copied(t) for t in job.tiers]
        self._way = [self._way_of(t) for t in job.tiers]
        self._row = memoryview(plan.row)
        self._tier_of, self._object = memoryview(plan.tier), memoryview(plan.object_id)
        self._submitted, self._completed = memoryview(record.submitted_ns), memoryview(record.completed_ns)
        self._outcome = memoryview(record.outcome)
        self._depth, self._out = engine.depth, 0
        self._read_at = [address for address, _ in reads.places]
        self._write_at = [address for address, _ in writes.places]
        self._mail = Mail(self._schedule)
        if isinstance(job.fill, Fresh):
            self._mail.make_here(job.fill, [self._maker(t) for t in job.tiers])
        self._pump = Pump(
            rings,
            self._schedule,
            job,
            self._way,
            self._mail,
            self._read_at + self._write_at,
            extents=self._extents_of,
            copied=self._copied_of,
            registered=registered,
        )
        sinks = [tier.copy_sink() for tier in self._copied_of if tier is not None]
        self._copiers = Copiers(sinks[0]) if sinks else None
        self._fresh: list[int] = []
        """Rows put since the last stamp."""
        self._failure: Failure | None = None
        self._workers = Workers(job, self._mail, reads, writes, self._extents_of, self._copied_of, self._pump.places)
        self._start_ns = 0
        self._lead_ns = 0 if job.due_ns is None else LEAD_NS

    def drive(self, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job; returns when nothing is in flight any more."""
        slider = self._job.slider
        with growing(self._engine.arenas, lambda: self._pump.used, self._pump.let_use), ExitStack() as stack:
            if slider is not None:
                slider.start()
                stack.callback(slider.stop)
            return self._drive(interrupted if slider is None else slider.ended_by(interrupted), progress)

    def _drive(self, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        schedule, workers = self._schedule, self._workers
        reason, next_poll_ns = None, 0
        try:
            # With one I/O in flight a thread would only hand it on.
            self._start_threads(self._depth if self._depth > 1 and self._needs_workers() else 0)
            self._start_copiers()
            self._rings.serve(lambda error: self._mail.post(Died(error)))
            soonest_ns, start = monotonic_ns() + self._lead_ns, self._job.start
            self._start_ns = workers.start_ns = soonest_ns if start is None else start.agree(soonest_ns)
            self._pump.start_clock(self._start_ns)
            self._rings.arm(self._mail.fd)
            if self._job.watched is not None:
                self._job.watched(lambda: int(self._pump.lanes.out) + self._pump.copying)
            if start is not None:
                start.wait(is_open_loop=self._job.due_ns is not None)
            while True:
                now = self._now()
                if reason is None and (reason := interrupted()):
                    self._stop()
                if now >= next_poll_ns:
                    progress(schedule.completed)
                    next_poll_ns = now + POLL_NS
                if self._go_on(next_poll_ns):
                    break
            wall_ns = max(0, self._now())
        finally:
            self._stop()
            if self._copiers is not None:
                self._copiers.close()
            self._rings.stop()
            workers.close()
        return Driven(
            wall_ns=wall_ns,
            completed=schedule.completed,
            failure=self._failure,
            interrupted_by=reason,
            generation_ns=workers.generation_ns,
            reserve_ns=workers.reserve_ns,
            generation_threads=self._engine.generators,
            starved_ns=self._pump.starved_ns,
            writes_generated_in_flight=schedule.fills_in_flight,
            started_ns=self._start_ns,
            submitting_generation_ns=self._mail.here_ns,
            submitting_reserve_ns=workers.here_reserve_ns,
            held_ns=int(self._pump.lanes.held_ns),
            lacking_ns=int(self._pump.lanes.lacking_ns),
            in_use_ns=int(self._pump.lanes.in_use_ns),
            blocked_ns=int(self._pump.lanes.blocked_ns),
            unread_ns=int(self._pump.lanes.unread_ns),
            idle_ns=self._idle_ns(),
            copy_threads=0 if self._copiers is None else self._copiers.threads,
            copying_ns=None if self._copiers is None else self._copiers.awake_ns(wall_ns),
        )

    def _idle_ns(self) -> int | None:
        """Return how long the submitting thread had nothing to do; None where it is not the only one that submits."""
        return int(self._pump.lanes.idle_ns)

    def _now(self) -> int:
        return monotonic_ns() - self._start_ns

    def _start_threads(self, count: int) -> None:
        """Start the threads beside this one, `count` of them to do pieces."""
        self._workers.start(self._engine.generators, count)

    def _start_copiers(self) -> None:
        """Start the threads that copy, if there are tiers for them."""
        self._pump.share_copies(self._copiers)
        if self._copiers is None:
            return
        try:
            self._copiers.start(self._mail.asleep_at, self._mail.fd)
        except RuntimeError as error:
            raise no_thread(error, self._copiers.threads) from error

    def _stop(self) -> None:
        self._schedule.stop()

    def _go_on(self, until_ns: int) -> bool:
        """Submit and take what came, until `until_ns` of the run at the latest; return whether the job is over."""
        was_idle = self._out == 0
        self._submit()
        if was_idle and self._rings.queued:
            self._flush()
        if self._schedule.is_over and not self._out and not self._pump.copying:
            return True
        self._run(until_ns)
        return False

    def _extents(self, tier: Tier | None) -> RingExtents | None:  # noqa: ARG002 - for those with a ring
        """Return `tier` if the objects of its open files are read and written by the ring."""
        return None

    def _way_of(self, tier: Tier | None) -> int:
        """Return how the operations of `tier` are done."""
        if copied(tier) is not None:
            return turn.BY_COPY
        return turn.BY_NOBODY if tier is None or not has_times(tier) else turn.BY_THREAD

    def _maker(self, tier: Tier | None) -> int:  # noqa: ARG002 - for those with a ring
        """Return who makes short data of `tier`."""
        return BY_OTHERS

    def _needs_workers(self) -> bool:
        return turn.BY_THREAD in self._way

    def _submit(self) -> None:
        """Put what may go now, as far as the depth reaches, and at most a batch of new operations."""
        way_of, tier_of, pump = self._way, self._tier_of, self._pump
        firsts = 0
        while self._out + pump.available < pump.depth:
            submission = pump.take(self._out)
            if submission is None:
                return
            way = way_of[tier_of[submission.flight.row]]
            if way == turn.BY_THREAD:
                self._give(submission)
            elif way == turn.BY_COPY:
                self._do(submission)
            else:
                self._put(submission, way)
            firsts += 1
            if firsts == _BATCH:
                return

    def _put(self, submission: Submission, way: int) -> None:
        """Put the requests of a piece for the ring."""
        raise NotImplementedError

    def _stamp(self) -> None:
        """Note the time at which the operations put since the last stamp are submitted."""
        if self._fresh:
            now = self._now()
            for row in self._fresh:
                self._submitted[row] = now
            self._fresh.clear()

    def _flush(self) -> None:
        """Submit what was put."""
        self._stamp()
        self._rings.submit()

    def _run(self, until_ns: int) -> None:
        """Submit, and go on until something is for us or it is `until_ns`; take what came."""
        self._stamp()
        self._out = self._pump.run(self._out, until_ns)
        self._completions(self._now())
        if self._mail.wants_room:
            self._workers.make_room_here()
        for item in self._mail.answers():
            self._answer(item)

    def _completions(self, now_ns: int) -> None:
        """Take what came from the ring."""

    def _give(self, submission: Submission) -> None:
        """Hand a piece to a thread."""
        self._hand_on(self._step(submission))

    def _step(self, submission: Submission) -> Step:
        """Return what a thread is to do for a piece, which is in flight from now on."""
        flight = submission.flight
        self._out += 1
        slot = self._pump.take_read_buffer() if submission.slot is None else -1
        is_short = flight.pieces == 1
        if flight.op == DELETE and self._copied_of[self._tier_of[flight.row]] is not None:
            self._pump.places[self._tier_of[flight.row]][self._object[flight.row]] = NOWHERE
        return Step(flight, submission, slot, is_short, submission.is_first and not is_short)

    def _hand_on(self, item: Step | Check) -> None:
        """Give a thread something to do; with a depth of one, do it here."""
        if self._depth > 1:
            self._workers.give(item)
        else:
            started = self._now()
            self._workers.do(item)
            self._answer(item)
            self._pump.note_held(started, self._now())

    def _do(self, submission: Submission) -> None:
        """Do what is left of copied operations here: deletes, and those that fail; nothing moves."""
        step = self._step(submission)
        self._workers.do(step)
        self._answer(step)

    def _answer(self, item: Any) -> None:
        """Take what a thread says."""
        if isinstance(item, Trouble):
            self._fail(self._schedule.flight(item.fill.flight), ERROR, item.text)
        elif isinstance(item, Step):
            self._stepped(item)
        elif isinstance(item, Opened):
            self._schedule.begun(item.flight)
        elif isinstance(item, Check):
            if item.trouble is not None:
                self._fail(item.submission.flight, CORRUPT, item.trouble)
            self._checked(item)
        elif isinstance(item, Died):
            raise item.error

    def _checked(self, check: Check) -> None:
        """Go on with what the ring read, which was checked."""
        raise NotImplementedError

    def _stepped(self, step: Step) -> None:
        flight, submission = step.flight, step.submission
        self._out -= 1
        if step.slot >= 0:
            self._pump.give_read_buffer(step.slot)
        if step.outcome is not None:
            self._fail(flight, step.outcome, step.trouble or "")
        if step.begins_more:
            # It was not opened. Its other pieces are passed over, now that it has failed; before, they would be done.
            self._schedule.begun(flight)
        if submission is None:
            self._finish(flight, step.done_ns)
        elif self._schedule.piece_done(submission):
            if flight.handle is None:
                self._finish(flight, step.done_ns)
            else:
                self._out += 1
                self._hand_on(Step(flight, None, -1, True))

    def _finish(self, flight: Flight, now_ns: int) -> None:
        if self._schedule.is_cut_short(flight):
            # It was submitted and did not complete.
            return
        if not flight.is_failed and self._outcome[flight.row] != CORRUPT:
            self._completed[flight.row], self._outcome[flight.row] = now_ns, OK
        self._schedule.done(flight, now_ns)

    def _fail(self, flight: Flight, outcome: int, message: str) -> None:
        found = Failure.of(flight, self._row[flight.row], self._object[flight.row], outcome, message)
        self._failure = Failure.first(self._failure, found)
        if not flight.is_failed:
            self._outcome[flight.row] = outcome
        if outcome == CORRUPT:
            # The rest is read and checked as well.
            return
        self._schedule.fail(flight)
        if self._job.stops_on_error:
            self._schedule.stop()
