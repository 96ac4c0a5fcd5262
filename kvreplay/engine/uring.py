"""One job on an io_uring, besides what threads do: puts requests, reaps completions, and does nothing else.

A short operation is one chain of requests: open, move, close; compiled code puts it (`loop`), but for reads that are
checked. A longer one opens first, then its pieces go, and it is closed when the last has come back. What would stall
the submitting thread (creating, unlinking, allocating) is done by the kernel's own threads.
"""

from __future__ import annotations

import errno
import os

from kvreplay.engine import turn
from kvreplay.engine.job import ERROR, SHORT, Flight
from kvreplay.engine.putting.pieces import CLOSED, GROWN, KIND_BITS, KIND_MASK, MOVED, OPENED, UNLINKED, RingPuts
from kvreplay.engine.schedule import Submission
from kvreplay.engine.tables import BY_OTHERS, HERE, HERE_WITH_ROOM
from kvreplay.engine.workers import Check
from kvreplay.plan.plan import WRITE
from kvreplay.tiers.tier import DeviceTier, RingExtents, Tier, on_ring

_CANNOT_GROW = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
"""Answers of filesystems that do not preallocate; files then grow as they are written."""


class RingSubmitter(RingPuts):
    """One job: files and extents by the ring, other tiers by threads."""

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
            return BY_OTHERS
        if isinstance(tier, RingExtents):
            return HERE_WITH_ROOM
        return BY_OTHERS if on_ring(tier) is None else HERE

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

    def _completion(self, data: int, result: int, now_ns: int) -> None:
        kind = data & KIND_MASK
        token = data >> KIND_BITS
        submission = self._tokens[token]
        flight = submission.flight
        if kind == MOVED:
            self._moved(token, submission, result, now_ns)
        elif kind == OPENED:
            self._opened(token, result, now_ns)
        elif kind == GROWN:
            if result < 0 and -result not in _CANNOT_GROW and not flight.is_failed:
                self._fail(flight, ERROR, os.strerror(-result))
            self._begun(flight)
        else:
            if result < 0:
                self._fail(flight, ERROR, os.strerror(-result))
            if kind == CLOSED:
                self._closed(token, flight, now_ns)
            elif kind == UNLINKED:
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
