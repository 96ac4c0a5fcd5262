"""Threads that work beside a submitting thread, which must do nothing else: making data, and tiers without a file.

They are asked for data and hand it over in memory that both sides see; all else takes queues and mail. A descriptor
wakes who sleeps, and only then.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic_ns
from typing import Any

import numpy as np

from kvreplay.data.buffers import Arena
from kvreplay.data.words import Fresh
from kvreplay.engine import mailbox
from kvreplay.engine.filling import here
from kvreplay.engine.filling.fills import ONLY_ROOM
from kvreplay.engine.job import CORRUPT, ERROR, SHORT, Flight, Job
from kvreplay.engine.mailbox import Mail
from kvreplay.engine.schedule import Fill, Submission
from kvreplay.engine.tables import ASKED
from kvreplay.plan.plan import DELETE, WRITE
from kvreplay.tiers.placement.hints import placing
from kvreplay.tiers.tier import CopiedTier, DeviceTier, RingExtents, Tier, WholeTier, modelled, place
from kvtrace.core.errors import DeviceError

_MAX_GENERATORS = 4
_PR_SET_TIMERSLACK, _PR_GET_TIMERSLACK = 29, 30


def generators(depth: int) -> int:
    """Return how many threads make data: half of the processors, a few at most, and no more than I/Os in flight."""
    return max(1, min(_MAX_GENERATORS, (os.cpu_count() or 1) // 2, depth))


def _no_room(error: Exception) -> str:
    return f"no room: {error}"


def no_thread(error: RuntimeError, count: int) -> DeviceError:
    """Return what to say when the system starts no more threads."""
    return DeviceError(f"cannot start {count} threads ({error}); lower --queue-depth, or raise the limit (ulimit -u)")


@dataclass(frozen=True, slots=True)
class Trouble:
    """A buffer could not get its data: there was no room for the object, say."""

    fill: Fill
    text: str


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
class Opened:
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


class Workers:
    """The threads of one job: some make data, others do what a tier does: begin, move, end."""

    def __init__(
        self,
        job: Job,
        mail: Mail,
        reads: Arena,
        writes: Arena,
        extents: Sequence[RingExtents | None],
        copies: Sequence[CopiedTier | None],
        places: Sequence[memoryview],
    ) -> None:
        """Start no thread yet; compiled code finds objects of `extents` and `copies` by their `places`."""
        self.mail = mail
        self.generation_ns = self.reserve_ns = self.here_reserve_ns = 0
        self._room: Any = np.zeros((2, len(writes.places)), np.int64)
        self.start_ns = 0
        """The run's start on the monotonic clock."""
        self._job = job
        self._reads, self._writes = reads.views, writes.views
        self._tier_of, self._object = memoryview(job.plan.tier), memoryview(job.plan.object_id)
        self._version = memoryview(job.plan.version)
        stream = job.plan.stream
        self._placing = [None if stream is None else placing(t) for t in job.tiers]
        self._stream = None if stream is None else memoryview(stream)
        self._models = [modelled(t) for t in job.tiers]
        self._submitted = memoryview(job.record.submitted_ns)
        self._extents, self._copies, self._places = extents, copies, places
        # Whether a tier has a form takes longer to find out than to make 4 KiB of data.
        self._device_tiers = [t if isinstance(t, DeviceTier) else None for t in job.tiers]
        self._whole_tiers = [t if isinstance(t, WholeTier) else None for t in job.tiers]
        self._steps: SimpleQueue[Step | Check | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_stopping = False
        self.give = self._steps.put
        """Have a thread do something."""
        self.tell: Callable[[Opened], None] = mail.post
        """Takes what must be known before a step is done."""

    def start(self, generators: int, workers: int, work: Callable[[], None] | None = None) -> None:
        """Start threads of both kinds; workers do what they are given, or else `work`."""
        for count, body in ((generators, self._generate), (workers, work or self._work)):
            for index in range(count):
                name = f"kvreplay-{body.__name__}-{index}"
                thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise no_thread(error, generators + workers) from error
                self._threads.append(thread)

    def close(self) -> None:
        """End the threads after what they are at."""
        self._is_stopping = True
        for _ in self._threads:
            self._steps.put(None)
        self.mail.wake_makers(len(self._threads) + 1)
        for thread in self._threads:
            thread.join()
        self.mail.close()

    def _guard(self, body: Callable[[], None]) -> None:
        precise_timers()
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            self.mail.post(Died(error))

    def _tier(self, row: int) -> Tier:
        tier = self._job.tiers[self._tier_of[row]]
        assert tier is not None, "planned rows have a tier"
        return tier

    def _generate(self) -> None:
        mail, answer = self.mail, np.zeros(mailbox.TOGETHER, ASKED)
        while not self._is_stopping:
            fills = mail.take_asked(answer)
            if not fills:
                mail.sleep_until_asked()
                continue
            started = monotonic_ns()
            self._make_room(fills)
            reserved = monotonic_ns()
            self._make(fills, answer)
            ended = monotonic_ns()
            mail.give_made(np.array([fill.slot for fill in fills], np.int64))
            with self._lock:
                self.reserve_ns += reserved - started
                self.generation_ns += ended - reserved

    def make_room_here(self) -> None:
        """Make room for what the submitting thread makes itself; where there is none, mail says so."""
        started, (objects_, ends_) = monotonic_ns(), self._room
        for at, extents in enumerate(self._extents):
            if extents is None:
                continue
            count = here.objects_wanting_room(self.mail.address, at, objects_.ctypes.data, ends_.ctypes.data)
            objects = objects_[:count]
            places, failed = extents.ring_reserve(objects, ends_[:count])
            np.frombuffer(self._places[at], np.int64)[objects] = places
            if failed:
                of_tier = [f for f in self.mail.wanting_room() if f.room and self._tier_of[f.row] == at]
                for i, error in failed:
                    self.mail.post(Trouble(of_tier[i], _no_room(error)))
        self.mail.note_room()
        self.here_reserve_ns += monotonic_ns() - started

    def _make_room(self, fills: list[Fill]) -> None:
        """Make room for the objects that begin in `fills`; where there is none, mail says so."""
        for fill in fills:
            if fill.room:
                self._reserve(fill)

    def _reserve(self, fill: Fill) -> None:
        object_id, at = self._object[fill.row], self._tier_of[fill.row]
        try:
            self._tier(fill.row).reserve(object_id, fill.object_end)
        except (OSError, MemoryError) as error:
            self.mail.post(Trouble(fill, _no_room(error)))
            return
        extents, copied = self._extents[at], self._copies[at]
        if extents is not None:
            self._places[at][object_id] = place(*extents.ring_extent(object_id))
        if copied is not None:
            self._places[at][object_id] = copied.copy_place(object_id)

    def _make(self, fills: list[Fill], asked: Any) -> None:
        """Make the data of `fills`, which are the first in `asked` (ASKED)."""
        if isinstance(self._job.fill, Fresh):
            mailbox.make_asked(self.mail.address, asked.ctypes.data, len(fills))
        for fill in fills:
            if fill.room == ONLY_ROOM:
                continue
            data, row = self._writes[fill.slot][: fill.end - fill.start], fill.row
            if not isinstance(self._job.fill, Fresh):
                self._job.fill(data, self._object[row], self._version[row], fill.start)
            self._stage(fill, data)

    def _stage(self, fill: Fill, data: memoryview) -> None:
        tier = self._device_tiers[self._tier_of[fill.row]]
        if tier is None:
            return
        try:
            tier.stage(data)
        except OSError as error:
            self.mail.post(Trouble(fill, error.strerror or str(error)))

    def _work(self) -> None:
        while (item := self._steps.get()) is not None:
            self.do(item)
            self.mail.post(item)

    def do(self, item: Step | Check) -> None:
        """Do something, and note in `item` how it went."""
        if isinstance(item, Check):
            assert self._job.check is not None, "only then is it asked"
            part = item.submission
            item.trouble = self._job.check(self._reads[item.slot][: part.length], part.flight.row, part.start)
            return
        try:
            self._perform(item)
        except OSError as error:
            item.outcome, item.trouble = ERROR, error.strerror or str(error)
        item.done_ns = item.done_ns or monotonic_ns() - self.start_ns
        row = item.flight.row
        whole = self._whole_tiers[self._tier_of[row]]
        if whole is not None and (retries := whole.take_retries()):
            self._job.record.retries[row] = retries

    def _perform(self, step: Step) -> None:
        flight, submission = step.flight, step.submission
        tier, object_id = self._tier(flight.row), self._object[flight.row]
        if submission is not None:
            if submission.is_first:
                self._submitted[flight.row] = monotonic_ns() - self.start_ns
                if flight.is_failed:
                    return
                if flight.op == DELETE:
                    tier.delete(object_id)
                else:
                    flight.handle = self._begin(tier, flight, object_id)
                if step.begins_more:
                    step.begins_more = False
                    self.tell(Opened(flight))
            if flight.has_io and not flight.is_failed:
                self._move(step, submission, tier)
            elif (model := self._models[self._tier_of[flight.row]]) is not None:
                length = flight.needed_end - flight.start
                came_ns = self._submitted[flight.row] + self.start_ns
                step.done_ns = model.wait(flight.op, length, came_ns) - self.start_ns
        if step.ends and flight.handle is not None:
            self._end(tier, flight)

    def _end(self, tier: Tier, flight: Flight) -> None:
        handle, flight.handle = flight.handle, None
        whole = self._whole_tiers[self._tier_of[flight.row]]
        try:
            if whole is not None and flight.pieces > 1 and flight.op == WRITE and not flight.is_failed:
                # Until now its data was gathered, which is no work of the tier's.
                self._submitted[flight.row] = monotonic_ns() - self.start_ns
                whole.end_whole(flight.op, handle)
        finally:
            tier.end(flight.op, handle)

    def _begin(self, tier: Tier, flight: Flight, object_id: int) -> Any:
        """Begin an operation; a write as part of its stream, if it has one."""
        whole = self._whole_tiers[self._tier_of[flight.row]]
        if whole is not None:
            return whole.begin_whole(flight.op, object_id, flight.start, flight.end, is_split=flight.pieces > 1)
        placing = self._placing[self._tier_of[flight.row]]
        if placing is not None and self._stream is not None and self._stream[flight.row] >= 0:
            return placing.begin_in(self._stream[flight.row], object_id)
        return tier.begin(flight.op, object_id)

    def _move(self, step: Step, submission: Submission, tier: Tier) -> None:
        flight = submission.flight
        start, end = submission.start, submission.start + submission.length
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
