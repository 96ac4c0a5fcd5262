"""One job on an io_uring: puts requests, reaps completions, and does nothing else.

A short operation is one chain of requests: open, move, close. A longer one opens first, then its pieces go, and
it is closed when the last has come back.
"""

from __future__ import annotations

import errno
import os
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from kvreplay.engine import loop
from kvreplay.engine import ring as r
from kvreplay.engine.job import CORRUPT, ERROR, OK, SHORT, Driven, Failure, Job
from kvreplay.engine.pump import Pump
from kvreplay.engine.schedule import Flight, Schedule, Submission
from kvreplay.engine.workers import Begun, Beside, Check, Died, Mail, Step, Trouble
from kvreplay.plan.plan import DELETE, WRITE
from kvreplay.tiers.tier import NOWHERE, RingExtents, RingTier, has_times

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreplay.engine.uring import UringEngine
    from kvreplay.tiers.tier import Tier

_POLL_NS = 100_000_000
_BATCH = 8
"""Operations put together; their common time stamp must stay true for the last."""
_LONGEST_CHAIN = 4
_MODE = 0o600
_OPENED, _GROWN, _MOVED, _SYNCED, _CLOSED, _UNLINKED = range(loop.WOKEN)
"""What a completion tells: the low bits of a request's user data."""
_KIND_BITS, _KIND_MASK = loop.KIND_BITS, (1 << loop.KIND_BITS) - 1
_DATASYNC = 1
_CANNOT_GROW = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""Answers of filesystems that do not preallocate; files then grow as they are written."""


class Submitter:
    """The submitting thread's side of one job."""

    def __init__(self, engine: UringEngine, job: Job, ring: r.Ring, *, is_registered: bool) -> None:
        """Prepare to do `job` on `ring` with the engine's buffers."""
        self._engine, self._job, self._ring = engine, job, ring
        plan, record = job.plan, job.record
        self._schedule = Schedule.of(job, engine.depth, engine.io_bytes)
        self._files_of = [t if isinstance(t, RingTier) else None for t in job.tiers]
        self._extents_of = [t if isinstance(t, RingExtents) else None for t in job.tiers]
        self._way = [_way(t, is_checked=job.check is not None) for t in job.tiers]
        self._needs_workers = (
            loop.BY_THREAD in self._way or job.check is not None or any(t and t.is_discarding for t in self._extents_of)
        )
        self._tier_of, self._object = memoryview(plan.tier), memoryview(plan.object_id)
        self._submitted, self._completed = memoryview(record.submitted_ns), memoryview(record.completed_ns)
        self._outcome = memoryview(record.outcome)
        self._read_op, self._write_op = (r.READ_FIXED, r.WRITE_FIXED) if is_registered else (r.READ, r.WRITE)
        self._depth, self._out = engine.depth, 0
        self._read_at = [address for address, _ in engine.reads.places]
        self._write_at = [address for address, _ in engine.writes.places]
        self._free_files = list(range(engine.depth))
        self._mail = Mail(self._schedule)
        buffers = self._read_at + self._write_at
        self._pump = Pump(ring, self._schedule, job, self._way, self._mail, buffers, is_registered=is_registered)
        # What a request belongs to, by the high bits of its user data.
        self._tokens: list[Submission] = [None] * (2 * engine.depth)  # type: ignore[list-item]
        self._free_tokens = list(range(2 * engine.depth))
        self._fresh: list[int] = []
        """Rows put since the last stamp."""
        self._failure: Failure | None = None
        self._beside = Beside(job, self._mail, engine.reads, engine.writes, self._pump.extents)
        self._start_ns = 0

    def drive(self, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job; returns when nothing is in flight any more."""
        schedule, beside, ring = self._schedule, self._beside, self._ring
        reason, next_poll_ns = None, 0
        try:
            beside.start(self._engine.generators, self._depth if self._needs_workers else 0)
            self._start_ns = beside.start_ns = monotonic_ns()
            self._pump.start_clock(self._start_ns)
            self._arm()
            while True:
                now = monotonic_ns() - self._start_ns
                if reason is None and (reason := interrupted()):
                    schedule.stop()
                if now >= next_poll_ns:
                    progress(schedule.completed)
                    next_poll_ns = now + _POLL_NS
                was_idle = self._out == 0
                self._submit()
                if was_idle and ring.queued:
                    self._flush()
                if schedule.is_over and not self._out:
                    break
                self._run(next_poll_ns)
            wall_ns = monotonic_ns() - self._start_ns
        finally:
            beside.close()
        return Driven(
            wall_ns, schedule.completed, self._failure, reason, beside.generation_ns, beside.reserve_ns,
            self._engine.generators, self._pump.starved_ns, schedule.fills_in_flight, self._start_ns,
        )  # fmt: skip

    def _arm(self) -> None:
        self._ring.put(r.POLL_ADD, 0, self._mail.fd, 0, 0, 0, r.POLLIN, loop.WOKEN)

    def _submit(self) -> None:
        """Put what may go now, as far as the depth reaches, and at most a batch of new operations."""
        way_of, tier_of, pump = self._way, self._tier_of, self._pump
        firsts = 0
        while self._out + pump.available < self._depth:
            submission = pump.take(self._out)
            if submission is None:
                return
            way = way_of[tier_of[submission.flight.row]]
            if way == loop.BY_RING:
                self._put(submission)
            elif way == loop.BY_THREAD:
                self._give(submission)
            else:
                self._place(submission)
            firsts += 1
            if firsts == _BATCH:
                return

    def _stamp(self) -> None:
        """Note the time at which the operations put since the last stamp are submitted."""
        if self._fresh:
            now = monotonic_ns() - self._start_ns
            for row in self._fresh:
                self._submitted[row] = now
            self._fresh.clear()

    def _flush(self) -> None:
        """Submit what was put."""
        self._stamp()
        self._ring.enter(0)

    def _run(self, until_ns: int) -> None:
        """Submit, and go on until something is for us or it is `until_ns`; take what came."""
        self._stamp()
        pump, lanes = self._pump, self._pump.lanes
        self._out = pump.run(self._out, until_ns)
        now = monotonic_ns() - self._start_ns
        if lanes.bad_count:
            for flight, start, length, result in pump.bad():
                self._judge(flight, start, length, result)
        if lanes.other_count:
            for data, result in pump.others():
                self._completion(data, result, now)
        if lanes.over_count:
            for flight in pump.over():
                part = Submission(flight, 0, None, False, 0, 0)
                if self._schedule.piece_done(part):
                    self._close(part, now)
        for item in self._mail.answers():
            self._answer(item)

    def _put(self, submission: Submission) -> None:
        flight = submission.flight
        if self._ring.room < _LONGEST_CHAIN:
            self._flush()
        if flight.is_failed:
            self._skip(submission)
            return
        self._out += 1
        token = self._free_tokens.pop()
        self._tokens[token] = submission
        if submission.slot is None and flight.has_io:
            submission.buffer = self._pump.take_read_buffer()
        if not submission.is_first:
            self._put_move(submission, token, r.FIXED_FILE)
            return
        self._fresh.append(flight.row)
        files = self._files_of[self._tier_of[flight.row]]
        assert files is not None, "only tiers of files come here"
        path, data = files.ring_path(self._object[flight.row]), token << _KIND_BITS
        if flight.op == DELETE:
            self._ring.put_path(r.UNLINKAT, 0, path, 0, 0, data | _UNLINKED)
            return
        flight.handle = place = self._free_files.pop()
        flags = files.ring_flags(flight.op)
        if flight.pieces == 1:
            self._ring.put_path(r.OPENAT, r.LINK | r.SKIP_SUCCESS, path, _MODE, flags, data | _OPENED, file=place + 1)
            if flight.has_io:
                self._put_move(submission, token, r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS)
            self._put_close(flight, data)
            return
        self._ring.put_path(r.OPENAT, r.LINK, path, _MODE, flags, data | _OPENED, file=place + 1)
        if flight.op == WRITE:
            # Writes beyond a file's end go one by one; within what is allocated they run together.
            self._ring.put(r.FALLOCATE, r.FIXED_FILE | r.HARDLINK, place, flight.start, flight.end - flight.start, 0, 0,
                           data | _GROWN)  # fmt: skip
        self._put_move(submission, token, r.FIXED_FILE)

    def _put_move(self, submission: Submission, token: int, flags: int) -> None:
        slot = submission.slot
        if slot is None:
            buffer = submission.buffer
            opcode, address = self._read_op, self._read_at[buffer]
        else:
            opcode, address, buffer = self._write_op, self._write_at[slot] + submission.at, self._depth + slot
        flight = submission.flight
        self._ring.put(
            opcode, flags, flight.handle if flight.fd < 0 else flight.fd, flight.base + submission.start, address,
            submission.length, 0, token << _KIND_BITS | _MOVED, buffer,
        )  # fmt: skip

    def _place(self, submission: Submission) -> None:
        """Put a piece of an object that is an extent of an open file: there is nothing to open or to close."""
        flight = submission.flight
        tier = self._extents_of[self._tier_of[flight.row]]
        assert tier is not None, "only tiers of extents come here"
        if flight.op == DELETE and not flight.is_failed:
            self._forget(flight)
            (self._give if tier.is_discarding else self._free)(submission)
            return
        if submission.is_first and not flight.is_failed:
            try:
                flight.fd, flight.base = tier.ring_extent(self._object[flight.row])
            except OSError as error:
                self._fail(flight, ERROR, error.strerror or str(error))
        if flight.is_failed:
            self._skip(submission)
            return
        if not flight.has_io:
            self._pass(submission)
            return
        if not self._ring.room:
            self._flush()
        self._out += 1
        token = self._free_tokens.pop()
        self._tokens[token] = submission
        if submission.slot is None:
            submission.buffer = self._pump.take_read_buffer()
        if not submission.is_first:
            self._put_move(submission, token, 0)
            return
        self._fresh.append(flight.row)
        self._put_move(submission, token, 0)
        if flight.pieces > 1:
            self._begun(flight)

    def _free(self, submission: Submission) -> None:
        """Give an extent's space back: nothing goes to the device."""
        flight = submission.flight
        self._submitted[flight.row] = monotonic_ns() - self._start_ns
        tier = self._extents_of[self._tier_of[flight.row]]
        assert tier is not None, "only tiers of extents come here"
        try:
            tier.delete(self._object[flight.row])
        except OSError as error:
            self._fail(flight, ERROR, error.strerror or str(error))
        self._schedule.piece_done(submission)
        self._finish(flight, monotonic_ns() - self._start_ns)

    def _forget(self, flight: Flight) -> None:
        """Note that an object lies nowhere any more."""
        self._pump.extents[self._tier_of[flight.row]][self._object[flight.row]] = NOWHERE

    def _put_close(self, flight: Flight, data: int) -> None:
        files = self._files_of[self._tier_of[flight.row]]
        if flight.op == WRITE and files is not None and files.is_synced:
            self._ring.put(r.FSYNC, r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS, flight.handle, 0, 0, 0, _DATASYNC,
                           data | _SYNCED)  # fmt: skip
        self._ring.put(r.CLOSE, 0, 0, 0, 0, 0, 0, data | _CLOSED, file=flight.handle + 1)

    def _close(self, submission: Submission, now_ns: int) -> None:
        """Close a longer operation's file, or finish with one that has none."""
        flight = submission.flight
        if flight.handle is None and not self._is_flushed(flight):
            self._finish(flight, now_ns)
            return
        if self._ring.room < _LONGEST_CHAIN:
            self._flush()
        self._out += 1
        token = self._free_tokens.pop()
        closing = Submission(flight, submission.piece, submission.slot, False, 0, 0)
        self._tokens[token] = closing
        if flight.fd >= 0:
            self._ring.put(r.FSYNC, 0, flight.fd, 0, 0, 0, _DATASYNC, token << _KIND_BITS | _CLOSED)
            return
        self._put_close(flight, token << _KIND_BITS)

    def _is_flushed(self, flight: Flight) -> bool:
        tier = self._extents_of[self._tier_of[flight.row]]
        return flight.fd >= 0 and flight.op == WRITE and not flight.is_failed and tier is not None and tier.is_synced

    def _skip(self, submission: Submission) -> None:
        """Account for a piece of an operation that has failed already."""
        flight = submission.flight
        if submission.is_first:
            self._fresh.append(flight.row)
            if flight.pieces > 1:
                self._schedule.begun(flight)
        if self._schedule.piece_done(submission):
            self._close(submission, monotonic_ns() - self._start_ns)

    def _pass(self, submission: Submission) -> None:
        """Let an operation without I/O be done at once."""
        flight = submission.flight
        now = monotonic_ns() - self._start_ns
        self._submitted[flight.row] = now
        self._schedule.piece_done(submission)
        self._finish(flight, now)

    def _give(self, submission: Submission) -> None:
        """Hand a piece to a thread."""
        flight = submission.flight
        self._out += 1
        slot = self._pump.take_read_buffer() if submission.slot is None else -1
        is_short = flight.pieces == 1
        self._beside.step(Step(flight, submission, slot, is_short, submission.is_first and not is_short))

    def _completion(self, data: int, result: int, now_ns: int) -> None:
        kind = data & _KIND_MASK
        token = data >> _KIND_BITS
        submission = self._tokens[token]
        flight = submission.flight
        if kind == _MOVED:
            self._moved(token, submission, result, now_ns)
        elif kind == _OPENED:
            self._opened(token, result, now_ns)
        elif kind == _GROWN:
            if result < 0 and -result not in _CANNOT_GROW and not flight.is_failed:
                self._fail(flight, ERROR, os.strerror(-result))
            self._begun(flight)
        else:
            if result < 0:
                self._fail(flight, ERROR, os.strerror(-result))
            if kind == _CLOSED:
                self._closed(token, flight, now_ns)
            elif kind == _UNLINKED:
                self._came(token, now_ns)

    def _moved(self, token: int, submission: Submission, result: int, now_ns: int) -> None:
        flight = submission.flight
        least = submission.length
        if submission.slot is None:
            least = min(least, flight.needed_end - submission.start)
        if result < least:
            self._judge(flight, submission.start, submission.length, result)
        # A short operation on a file of its own is over when that is closed.
        if flight.pieces > 1 or flight.fd >= 0:
            self._came(token, now_ns)

    def _closed(self, token: int, flight: Flight, now_ns: int) -> None:
        if flight.handle is not None:
            self._free_files.append(flight.handle)
            flight.handle = None
        if flight.pieces == 1 and flight.fd < 0:
            self._came(token, now_ns)
        else:
            self._release(token)
            self._finish(flight, now_ns)

    def _opened(self, token: int, result: int, now_ns: int) -> None:
        """Let a longer operation's other pieces go; one that has no file is finished with."""
        flight = self._tokens[token].flight
        if result < 0:
            self._free_files.append(flight.handle)
            flight.handle = None
            self._fail(flight, ERROR, os.strerror(-result))
            if flight.pieces == 1:
                self._came(token, now_ns)
                return
        if flight.op != WRITE:
            self._begun(flight)

    def _begun(self, flight: Flight) -> None:
        """Let an open file's other pieces go: by compiled code, if nothing has to look at what they bring."""
        if (flight.handle is not None or flight.fd >= 0) and self._job.check is None:
            self._pump.adopt(flight)
        else:
            self._schedule.begun(flight)

    def _judge(self, flight: Flight, start: int, length: int, result: int) -> None:
        if result < 0:
            self._fail(flight, ERROR, os.strerror(-result))
        elif flight.op == WRITE:
            self._fail(flight, ERROR, f"the device took only {result} of {length} bytes")
        else:
            self._fail(flight, SHORT, f"only {result} of {length} bytes came from offset {start}")

    def _came(self, token: int, now_ns: int) -> None:
        """Have what was read checked, if that is asked; then give back what the piece held."""
        submission = self._tokens[token]
        flight = submission.flight
        if self._job.check is not None and submission.buffer >= 0 and not flight.is_failed:
            self._beside.step(Check(submission, submission.buffer, token, now_ns))
            return
        self._done(token, now_ns)

    def _done(self, token: int, now_ns: int) -> None:
        submission = self._tokens[token]
        self._release(token)
        if self._schedule.piece_done(submission):
            self._close(submission, now_ns)

    def _release(self, token: int) -> None:
        buffer = self._tokens[token].buffer
        if buffer >= 0:
            self._pump.give_read_buffer(buffer)
        self._free_tokens.append(token)
        self._out -= 1

    def _answer(self, item: Any) -> None:
        """Take what a thread says."""
        if isinstance(item, Trouble):
            self._fail(self._schedule.flight(item.fill.flight), ERROR, item.text)
        elif isinstance(item, Step):
            self._stepped(item)
        elif isinstance(item, Begun):
            self._schedule.begun(item.flight)
        elif isinstance(item, Check):
            if item.trouble is not None:
                self._fail(item.submission.flight, CORRUPT, item.trouble)
            self._done(item.token, item.at_ns)
        elif isinstance(item, Died):
            raise item.error

    def _stepped(self, step: Step) -> None:
        flight, submission = step.flight, step.submission
        self._out -= 1
        if step.slot >= 0:
            self._pump.give_read_buffer(step.slot)
        if step.outcome is not None:
            self._fail(flight, step.outcome, step.trouble or "")
        if submission is None:
            self._finish(flight, step.done_ns)
        elif self._schedule.piece_done(submission):
            if flight.handle is None:
                self._finish(flight, step.done_ns)
            else:
                self._out += 1
                self._beside.step(Step(flight, None, -1, True))

    def _finish(self, flight: Flight, now_ns: int) -> None:
        if self._schedule.is_cut_short(flight):
            # It was submitted and did not complete.
            return
        if not flight.is_failed:
            self._completed[flight.row], self._outcome[flight.row] = now_ns, OK
        self._schedule.done(flight, now_ns)

    def _fail(self, flight: Flight, outcome: int, message: str) -> None:
        if not flight.is_failed:
            self._schedule.fail(flight)
            self._outcome[flight.row] = outcome
        if self._failure is None:
            self._failure = Failure.of(flight, self._object[flight.row], message)
        if self._job.stops_on_error:
            self._schedule.stop()


def _way(tier: Tier | None, *, is_checked: bool) -> int:
    if tier is None or not has_times(tier):
        return loop.BY_NOBODY
    if isinstance(tier, RingTier):
        return loop.BY_RING
    if isinstance(tier, RingExtents):
        return loop.BY_PYTHON if is_checked or tier.is_synced else loop.BY_EXTENT
    return loop.BY_THREAD
