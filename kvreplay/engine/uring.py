"""One job on an io_uring, besides what threads do: puts requests, reaps completions, and does nothing else.

A short operation is one chain of requests: open, move, close; compiled code puts it (`loop`), but for reads that are
checked. A longer one opens first, then its pieces go, and it is closed when the last has come back. What would stall
the submitting thread (creating, unlinking, allocating) is done by the kernel's own threads.
"""

from __future__ import annotations

import errno
import os
from time import monotonic_ns

from kvreplay.engine import loop, mailbox, turn
from kvreplay.engine import ring as r
from kvreplay.engine.job import ERROR, SHORT, Flight, IoEngine, Job
from kvreplay.engine.schedule import Submission
from kvreplay.engine.submitter import Submitter
from kvreplay.engine.workers import Check
from kvreplay.plan.plan import DELETE, WRITE
from kvreplay.tiers.tier import NOWHERE, DeviceTier, RingExtents, Tier, on_ring

_LONGEST_CHAIN = 6
_MODE = 0o600
_OPENED, _GROWN, _MOVED, _SYNCED, _CLOSED, _UNLINKED = range(loop.WOKEN)
"""What a completion tells: the low bits of a request's user data."""
_ADVISED = loop.FILE_OVER + 1
"""The kernel refused advice; it is not told of its success."""
_KIND_BITS, _KIND_MASK = loop.KIND_BITS, (1 << loop.KIND_BITS) - 1
_DATASYNC = 1
_CANNOT_GROW = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""Answers of filesystems that do not preallocate; files then grow as they are written."""


class RingSubmitter(Submitter):
    """One job: files and extents by the ring, other tiers by threads."""

    _ring: r.Ring

    def __init__(self, engine: IoEngine, job: Job, ring: r.Ring, registered: tuple[int, int]) -> None:
        """Prepare to do `job` on `ring` with the buffers of `engine`."""
        super().__init__(engine, job, ring, registered)
        self._files_of = [on_ring(t) for t in job.tiers]
        self._fixed_reads, self._fixed_slots = registered
        # What a request belongs to, by the high bits of its user data.
        self._tokens: list[Submission] = [None] * (2 * engine.depth)  # type: ignore[list-item]
        self._free_tokens = list(range(2 * engine.depth))

    def _extents(self, tier: Tier | None) -> RingExtents | None:
        return tier if isinstance(tier, RingExtents) else None

    def _way_of(self, tier: Tier | None) -> int:
        files = on_ring(tier)
        if files is not None:
            is_plain = self._job.check is None and files.opened_advice is None
            return turn.BY_FILE if is_plain else turn.BY_RING
        if isinstance(tier, RingExtents):
            return turn.BY_PYTHON if self._job.check is not None or tier.is_synced else turn.BY_EXTENT
        return super()._way_of(tier)

    def _maker(self, tier: Tier | None) -> int:
        if isinstance(tier, DeviceTier):
            return mailbox.BY_OTHERS
        if isinstance(tier, RingExtents):
            return mailbox.HERE_WITH_ROOM
        return mailbox.BY_OTHERS if on_ring(tier) is None else mailbox.HERE

    def _needs_workers(self) -> bool:
        is_discarding = any(t is not None and t.is_discarding for t in self._extents_of)
        return is_discarding or self._job.check is not None or super()._needs_workers()

    def _put(self, submission: Submission, way: int) -> None:
        if way in (turn.BY_RING, turn.BY_FILE):
            self._put_file(submission)
        else:
            self._place(submission)

    def _completions(self, now_ns: int) -> None:
        pump, lanes = self._pump, self._pump.lanes
        if lanes.bad_count:
            for flight, start, length, result in pump.bad():
                self._judge(flight, start, length, result)
        if lanes.other_count:
            for data, result in pump.others():
                self._completion(data, result, now_ns)
        if lanes.over_count:
            for flight in pump.over():
                part = Submission(flight, 0, None, False, 0, 0)
                if self._schedule.piece_done(part):
                    self._close(part, now_ns)

    def _put_file(self, submission: Submission) -> None:
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
        flight.handle = place = self._pump.take_file()
        flags = files.ring_flags(flight.op)
        if flight.pieces == 1:
            self._ring.put_path(r.OPENAT, r.LINK | r.SKIP_SUCCESS, path, _MODE, flags, data | _OPENED, file=place + 1)
            self._put_advice(place, files.opened_advice, data)
            if flight.has_io:
                self._put_move(submission, token, r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS)
            self._put_close(flight, data)
            return
        self._ring.put_path(r.OPENAT, r.LINK, path, _MODE, flags, data | _OPENED, file=place + 1)
        self._put_advice(place, files.opened_advice, data)
        if flight.op == WRITE:
            # Writes beyond a file's end go one by one; within what is allocated they run together.
            self._ring.put(
                r.FALLOCATE,
                r.FIXED_FILE | r.HARDLINK,
                place,
                flight.start,
                flight.end - flight.start,
                0,
                0,
                data | _GROWN,
            )
        self._put_move(submission, token, r.FIXED_FILE)

    def _put_advice(self, place: int, advice: int | None, data: int) -> None:
        """Put advice on the pages of the file at `place`; what follows goes in any case."""
        if advice is not None:
            how = r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS
            self._ring.put(r.FADVISE, how, place, 0, 0, 0, advice, data | _ADVISED)

    def _put_move(self, submission: Submission, token: int, flags: int) -> None:
        slot = submission.slot
        if slot is None:
            buffer = submission.buffer
            opcode = r.READ_FIXED if buffer < self._fixed_reads else r.READ
            address = self._read_at[buffer]
        else:
            opcode = r.WRITE_FIXED if slot < self._fixed_slots else r.WRITE
            address, buffer = self._write_at[slot] + submission.at, self._fixed_reads + slot
        flight = submission.flight
        self._ring.put(
            opcode,
            flags,
            flight.handle if flight.fd < 0 else flight.fd,
            flight.base + submission.start,
            address,
            submission.length,
            0,
            token << _KIND_BITS | _MOVED,
            buffer,
            0 if slot is None or flight.fd < 0 else self._schedule.stream_of(flight.row, self._tier_of[flight.row]),
        )

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
        self._pump.places[self._tier_of[flight.row]][self._object[flight.row]] = NOWHERE

    def _put_close(self, flight: Flight, data: int) -> None:
        files = self._files_of[self._tier_of[flight.row]]
        if flight.op == WRITE and files is not None and files.is_synced:
            # Of one that fails the kernel posts no completion if it is to skip that of success.
            self._ring.put(r.FSYNC, r.FIXED_FILE | r.HARDLINK, flight.handle, 0, 0, 0, _DATASYNC, data | _SYNCED)
        if files is not None:
            self._put_advice(flight.handle, files.closing_advice, data)
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
            self._pump.give_file(flight.handle)
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
            self._pump.give_file(flight.handle)
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
            self._hand_on(Check(submission, submission.buffer, token, now_ns))
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

    def _checked(self, check: Check) -> None:
        self._done(check.token, check.at_ns)
