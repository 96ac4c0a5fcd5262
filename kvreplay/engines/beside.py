"""Threads that work beside a submitting thread, which must do nothing else: making data, and tiers without a file.

They take work from queues and answer by mail; a descriptor wakes the reader only when it sleeps.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kvreplay.engines import CORRUPT, ERROR, SHORT
from kvreplay.plan import DELETE
from kvreplay.tiers import DeviceTier, modelled

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreplay.buffers import Arena
    from kvreplay.engines import Job
    from kvreplay.schedule import Fill, Flight, Schedule, Submission
    from kvreplay.tiers import Tier

_MAX_GENERATORS = 4
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


def generators(depth: int) -> int:
    """Return how many threads make data: half of the processors, a few at most, and no more than I/Os in flight."""
    return max(1, min(_MAX_GENERATORS, (os.cpu_count() or 1) // 2, depth))


class Mail:
    """Answers for one reader, and a descriptor that becomes readable if one comes while it sleeps."""

    def __init__(self) -> None:
        """Open the descriptor."""
        self.items: deque[Any] = deque()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_asleep = False
        """The reader sets it, then looks at `items` once more, then sleeps."""

    def post(self, item: object) -> None:
        """Add an answer; called from any thread."""
        self.items.append(item)
        if self.is_asleep:
            self.is_asleep = False
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)


@dataclass(frozen=True, slots=True)
class Filled:
    """A buffer holds its data; `trouble` if there was no room for the object."""

    fill: Fill
    trouble: str | None


@dataclass(slots=True)
class Step:
    """Something a tier without a file is to do, and how it went."""

    flight: Flight
    submission: Submission | None
    """None: only finish with the operation."""
    slot: int
    """The buffer of a read."""
    ends: bool
    """Whether the operation ends with it."""
    begins_more: bool = False
    """Whether its beginning is to be answered by itself, because other pieces wait for it."""
    outcome: int | None = None
    trouble: str | None = None
    done_ns: int = 0
    """Set beforehand only where a model says it."""


@dataclass(slots=True)
class Check:
    """What a read brought is to be checked."""

    submission: Submission
    slot: int
    token: int
    """The reader's own."""
    at_ns: int
    """When it came."""
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """An operation's other pieces may go."""

    flight: Flight


@dataclass(frozen=True, slots=True)
class Died:
    """A thread met a fault of ours."""

    error: BaseException


def precise_timers(slack_ns: int = 1) -> int:
    """Let this thread's sleeps end within `slack_ns` of their time; return what it was."""
    libc = ctypes.CDLL(None)
    before = int(libc.prctl(_PR_GET_TIMERSLACK))
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns))
    return before


class Beside:
    """The threads of one job."""

    def __init__(self, job: Job, schedule: Schedule, reads: Arena, writes: Arena) -> None:
        """Start no thread yet."""
        self.mail = Mail()
        self.generation_ns = self.reserve_ns = 0
        self.start_ns = 0
        """The run's start on the monotonic clock."""
        self._job, self._schedule = job, schedule
        self._reads, self._writes = reads.views, writes.views
        self._tier_of, self._object = memoryview(job.plan.tier), memoryview(job.plan.object_id)
        self._version = memoryview(job.plan.version)
        self._models = [modelled(t) for t in job.tiers]
        self._submitted = memoryview(job.record.submitted_ns)
        self._fills: SimpleQueue[Fill | None] = SimpleQueue()
        self._steps: SimpleQueue[Step | Check | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_stopping = False
        self.fill, self.step = self._fills.put, self._steps.put

    def start(self, generators: int, workers: int) -> None:
        """Start threads of both kinds."""
        for count, body in ((generators, self._generate), (workers, self._work)):
            for index in range(count):
                name = f"kvreplay-{body.__name__}-{index}"
                thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def close(self) -> None:
        """End the threads after what they are at."""
        self._is_stopping = True
        for _ in self._threads:
            self._fills.put(None)
            self._steps.put(None)
        for thread in self._threads:
            thread.join()
        self.mail.close()

    def _guard(self, body: Callable[[], None]) -> None:
        precise_timers()
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            self.mail.post(Died(error))

    def _tier(self, flight: Flight) -> Tier:
        tier = self._job.tiers[self._tier_of[flight.row]]
        assert tier is not None, "planned rows have a tier"
        return tier

    def _generate(self) -> None:
        make, objects, versions = self._job.fill, self._object, self._version
        while (fill := self._fills.get()) is not None and not self._is_stopping:
            started, row = monotonic_ns(), fill.flight.row
            trouble = None
            if fill.piece == 0:
                try:
                    self._tier(fill.flight).reserve(objects[row], fill.flight.end)
                except (OSError, MemoryError) as error:
                    trouble = f"no room: {error}"
            reserved = monotonic_ns()
            if trouble is None:
                start, end = self._schedule.fill_bounds(fill)
                data = self._writes[fill.slot][: end - start]
                make(data, objects[row], versions[row], start)
                tier = self._tier(fill.flight)
                if isinstance(tier, DeviceTier):
                    try:
                        tier.stage(data)
                    except OSError as error:
                        trouble = error.strerror or str(error)
            ended = monotonic_ns()
            with self._lock:
                self.reserve_ns += reserved - started
                self.generation_ns += ended - reserved
            self.mail.post(Filled(fill, trouble))

    def _work(self) -> None:
        while (step := self._steps.get()) is not None:
            if isinstance(step, Check):
                self._check(step)
                continue
            try:
                self._perform(step)
            except OSError as error:
                step.outcome, step.trouble = ERROR, error.strerror or str(error)
                if step.begins_more:
                    self.mail.post(Begun(step.flight))
            step.done_ns = step.done_ns or monotonic_ns() - self.start_ns
            self.mail.post(step)

    def _check(self, check: Check) -> None:
        assert self._job.check is not None, "only then is it asked"
        flight = check.submission.flight
        start, end = self._schedule.bounds(flight, check.submission.piece)
        check.trouble = self._job.check(self._reads[check.slot][: end - start], flight.row, start)
        self.mail.post(check)

    def _perform(self, step: Step) -> None:
        flight, submission = step.flight, step.submission
        tier, object_id = self._tier(flight), self._object[flight.row]
        if submission is not None:
            if submission.is_first:
                self._submitted[flight.row] = monotonic_ns() - self.start_ns
                if flight.is_failed:
                    return
                if flight.op == DELETE:
                    tier.delete(object_id)
                else:
                    flight.handle = tier.begin(flight.op, object_id)
                if step.begins_more:
                    step.begins_more = False
                    self.mail.post(Begun(flight))
            if flight.has_io and not flight.is_failed:
                self._move(step, submission, tier)
            elif (model := self._models[self._tier_of[flight.row]]) is not None:
                length = flight.needed_end - flight.start
                came_ns = self._submitted[flight.row] + self.start_ns
                step.done_ns = model.wait(flight.op, length, came_ns) - self.start_ns
        if step.ends and flight.handle is not None:
            handle, flight.handle = flight.handle, None
            tier.end(flight.op, handle)

    def _move(self, step: Step, submission: Submission, tier: Tier) -> None:
        flight = submission.flight
        start, end = self._schedule.bounds(flight, submission.piece)
        if submission.slot is not None:
            tier.write(
                flight.handle, start, self._writes[submission.slot][submission.at : submission.at + submission.length]
            )
            return
        came = tier.read(flight.handle, start, self._reads[step.slot][: end - start])
        if came < min(end, flight.needed_end) - start:
            step.outcome, step.trouble = SHORT, f"only {came} of {end - start} bytes came from offset {start}"
        elif self._job.check is not None:
            step.trouble = self._job.check(self._reads[step.slot][:came], flight.row, start)
            step.outcome = None if step.trouble is None else CORRUPT
