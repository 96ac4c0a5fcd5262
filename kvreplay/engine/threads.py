"""The engine that works everywhere: one thread an I/O in flight, each taking its next piece itself.

No dispatcher stands between a completion and the next submission. Threads that make data run beside, and one
thread at a time sleeps until the next deadline.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kvreplay.data.buffers import arenas, buffer_bytes
from kvreplay.engine.job import CORRUPT, ERROR, OK, SHORT, Driven, Failure, Job
from kvreplay.engine.pump import compile_all
from kvreplay.engine.schedule import Fill, Flight, Schedule, Submission
from kvreplay.engine.workers import generators, no_thread, precise_timers
from kvreplay.plan.plan import DELETE
from kvreplay.tiers.tier import DeviceTier, modelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreplay.data.buffers import Arena
    from kvreplay.tiers.tier import Tier

_POLL_S = 0.1
_NS_PER_S = 10**9


class ThreadEngine:
    """A pool of `depth` submitting threads and a few that make data."""

    name = "threads"

    def __init__(self, depth: int, io_bytes: int) -> None:
        """Allocate the buffers."""
        self.depth, self.io_bytes, self.generators = depth, io_bytes, generators(depth)
        compile_all()
        self.arenas = self._reads, self._writes = arenas(depth, io_bytes)
        self.buffer_bytes = buffer_bytes(depth, io_bytes)

    def facts(self) -> dict[str, Any]:
        """Say nothing more: a thread has one system call in flight."""
        return {}

    def drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job on this engine's threads."""
        return _Run(self, job, self._reads, self._writes).drive(interrupted, progress)


class _Run:
    """One job on the threads; everything that the threads share lies behind one lock."""

    def __init__(self, engine: ThreadEngine, job: Job, reads: Arena, writes: Arena) -> None:
        self._engine, self._job = engine, job
        self._reads, self._writes = reads.views, writes.views
        plan, record = job.plan, job.record
        self.schedule = Schedule.of(job, engine.depth, engine.io_bytes)
        self._tier_of, self._object = memoryview(plan.tier), memoryview(plan.object_id)
        self._version = memoryview(plan.version)
        self._models = [modelled(t) for t in job.tiers]
        # Whether a tier has a form takes longer to find out than to make 4 KiB of data.
        self._device_tiers = [t if isinstance(t, DeviceTier) else None for t in job.tiers]
        self._submitted, self._completed = memoryview(record.submitted_ns), memoryview(record.completed_ns)
        self._outcome = memoryview(record.outcome)
        self._lock = threading.Lock()
        self._work, self._fill = threading.Condition(self._lock), threading.Condition(self._lock)
        self._idle_workers = self._idle_generators = 0
        self._leader: int | None = None
        self._leader_due = 0
        self._failure: Failure | None = None
        self._generation_ns = self._reserve_ns = self._starved_ns = 0
        self._gate = threading.Event()
        self._start_ns = 0

    def drive(self, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        depth, generators = self._engine.depth, self._engine.generators
        reason = None
        with ThreadPoolExecutor(depth + generators, thread_name_prefix="kvreplay") as pool:
            running = set()
            try:
                for count, body in ((depth, self._submit_all), (generators, self._generate_all)):
                    running |= {pool.submit(self._guard, body, lane) for lane in range(count)}
            except RuntimeError as error:
                # Those that did start must end.
                self._stop()
                raise no_thread(error, depth + generators) from error
            finally:
                self._start_ns = monotonic_ns()
                self._gate.set()
            futures = list(running)
            while running:
                running = wait(running, timeout=_POLL_S).not_done
                progress(self.schedule.completed)
                if reason is None and (reason := interrupted()):
                    self._stop()
        wall_ns = monotonic_ns() - self._start_ns
        for future in futures:
            future.result()
        return Driven(
            wall_ns, self.schedule.completed, self._failure, reason, self._generation_ns, self._reserve_ns, generators,
            self._starved_ns, self.schedule.fills_in_flight, self._start_ns,
        )  # fmt: skip

    def _guard(self, body: Callable[[int], None], lane: int) -> None:
        precise_timers()
        self._gate.wait()
        try:
            body(lane)
        except BaseException:
            # The others must not wait for a thread that died; `result` raises this in the main thread.
            self._stop()
            raise

    def _stop(self) -> None:
        with self._lock:
            self.schedule.stop()
            self._wake(self._now())

    def _now(self) -> int:
        return monotonic_ns() - self._start_ns

    def _wake(self, now_ns: int) -> None:
        """Wake one thread of each kind that has something to do; each wakes the next."""
        schedule = self.schedule
        if schedule.is_over:
            self._work.notify_all()
            self._fill.notify_all()
            return
        if self._idle_generators and schedule.fill_due(now_ns) is not None:
            self._fill.notify()
        if self._idle_workers:
            due = schedule.next_due(now_ns)
            if due is not None and (due <= now_ns or self._leader is None or due < self._leader_due):
                self._work.notify()

    def _submit_all(self, lane: int) -> None:
        view = self._reads[lane]
        while (submission := self._next_submission(lane)) is not None:
            self._perform(submission, view)

    def _next_submission(self, lane: int) -> Submission | None:
        with self._lock:
            while True:
                now = self._now()
                submission = self.schedule.take(now)
                if submission is not None or self.schedule.is_over:
                    self._wake(now)
                    return submission
                self._rest(lane, now)

    def _rest(self, lane: int, now_ns: int) -> None:
        """Sleep until there may be something to submit; one thread, the leader, until the next deadline."""
        due = self.schedule.next_due(now_ns)
        is_starved = self.schedule.is_starved(now_ns)
        timeout = None
        if due is not None and (self._leader is None or due < self._leader_due):
            self._leader, self._leader_due = lane, due
            timeout = (due - now_ns) / _NS_PER_S
        self._idle_workers += 1
        self._work.wait(timeout)
        self._idle_workers -= 1
        if self._leader == lane:
            self._leader = None
        if is_starved:
            self._starved_ns += self._now() - now_ns

    def _generate_all(self, _lane: int) -> None:
        while (fill := self._next_fill()) is not None:
            started = self._now()
            with self._lock:
                flight = self.schedule.flight(fill.flight)
            if fill.piece == 0:
                self._reserve(flight)
            reserved = self._now()
            self._make(fill, flight)
            with self._lock:
                now = self._now()
                self._reserve_ns += reserved - started
                self._generation_ns += now - reserved
                self.schedule.filled(fill)
                self._wake(now)

    def _next_fill(self) -> Fill | None:
        with self._lock:
            while True:
                now = self._now()
                fill = self.schedule.take_fill(now)
                if fill is not None or self.schedule.is_over:
                    self._wake(now)
                    return fill
                due = self.schedule.fill_due(now)
                self._idle_generators += 1
                self._fill.wait(None if due is None else (due - now) / _NS_PER_S)
                self._idle_generators -= 1

    def _reserve(self, flight: Flight) -> None:
        try:
            self._tier(flight).reserve(self._object[flight.row], flight.end)
        except (OSError, MemoryError) as error:
            self._fail(flight, ERROR, f"no room: {error}")

    def _make(self, fill: Fill, flight: Flight) -> None:
        if flight.is_failed:
            return
        buffer = self._writes[fill.slot][: fill.end - fill.start]
        self._job.fill(buffer, self._object[flight.row], self._version[flight.row], fill.start)
        tier = self._device_tiers[self._tier_of[flight.row]]
        if tier is not None:
            try:
                tier.stage(buffer)
            except OSError as error:
                self._fail(flight, ERROR, _reason(error))

    def _tier(self, flight: Flight) -> Tier:
        tier = self._job.tiers[self._tier_of[flight.row]]
        assert tier is not None, "planned rows have a tier"
        return tier

    def _perform(self, submission: Submission, view: memoryview) -> None:
        flight = submission.flight
        tier = self._tier(flight)
        if submission.is_first:
            self._begin(flight, tier)
        done_ns = None
        if flight.has_io and not flight.is_failed:
            self._move(submission, tier, view)
        elif (model := self._models[self._tier_of[flight.row]]) is not None:
            length = flight.needed_end - flight.start
            came_ns = self._submitted[flight.row] + self._start_ns
            done_ns = model.wait(flight.op, length, came_ns) - self._start_ns
        if flight.pieces > 1:
            with self._lock:
                is_last = self.schedule.piece_done(submission)
                if not is_last:
                    self._wake(self._now())
                    return
        self._finish(submission, tier, done_ns)

    def _begin(self, flight: Flight, tier: Tier) -> None:
        object_id = self._object[flight.row]
        self._submitted[flight.row] = self._now()
        try:
            if flight.is_failed:
                pass
            elif flight.op == DELETE:
                tier.delete(object_id)
            else:
                flight.handle = tier.begin(flight.op, object_id)
        except OSError as error:
            self._fail(flight, ERROR, _reason(error))
        if flight.pieces > 1:
            with self._lock:
                self.schedule.begun(flight)
                self._wake(self._now())

    def _move(self, submission: Submission, tier: Tier, view: memoryview) -> None:
        flight = submission.flight
        start, end = submission.start, submission.start + submission.length
        try:
            if submission.slot is not None:
                tier.write(
                    flight.handle,
                    start,
                    self._writes[submission.slot][submission.at : submission.at + submission.length],
                )
                return
            came = tier.read(flight.handle, start, view[: end - start])
        except OSError as error:
            self._fail(flight, ERROR, _reason(error))
            return
        if came < min(end, flight.needed_end) - start:
            self._fail(flight, SHORT, f"only {came} of {end - start} bytes came from offset {start}")
        elif self._job.check is not None and (message := self._job.check(view[:came], flight.row, start)) is not None:
            self._fail(flight, CORRUPT, message)

    def _finish(self, submission: Submission, tier: Tier, done_ns: int | None) -> None:
        flight = submission.flight
        if flight.handle is not None:
            try:
                tier.end(flight.op, flight.handle)
            except OSError as error:
                self._fail(flight, ERROR, _reason(error))
            flight.handle = None
        now = self._now() if done_ns is None else done_ns
        with self._lock:
            if flight.pieces == 1:
                self.schedule.piece_done(submission)
            elif self.schedule.is_cut_short(flight):
                # It was submitted and did not complete.
                return
            if not flight.is_failed:
                self._completed[flight.row], self._outcome[flight.row] = now, OK
            self.schedule.done(flight, now)
            self._wake(now)

    def _fail(self, flight: Flight, outcome: int, message: str) -> None:
        with self._lock:
            if not flight.is_failed:
                self.schedule.fail(flight)
                self._outcome[flight.row] = outcome
            if self._failure is None:
                self._failure = Failure.of(flight, self._object[flight.row], message)
            if self._job.stops_on_error:
                self.schedule.stop()
                self._wake(self._now())


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
