"""Requests that Python puts on the ring: operations that something has to look at, before, meanwhile or after.

What completes is looked at by `uring`.
"""

from __future__ import annotations

from time import monotonic_ns

from kvreplay.engine import ring as r
from kvreplay.engine.job import ERROR, Flight, IoEngine, Job
from kvreplay.engine.putting import lanes
from kvreplay.engine.rings.rings import Rings
from kvreplay.engine.schedule import Submission
from kvreplay.engine.submitter import Submitter
from kvreplay.plan.plan import DELETE, WRITE
from kvreplay.tiers.tier import NOWHERE, on_ring

_LONGEST_CHAIN = 6
_MODE = 0o600
OPENED, GROWN, MOVED, SYNCED, CLOSED, UNLINKED = range(lanes.WOKEN)
"""What a completion tells: the low bits of a request's user data."""
ADVISED = lanes.FILE_OVER + 1
"""The kernel refused advice; it is not told of its success."""
KIND_BITS, KIND_MASK = lanes.KIND_BITS, (1 << lanes.KIND_BITS) - 1
_DATASYNC = 1


class RingPuts(Submitter):
    """A submitter that puts operations on objects' files and on extents on its ring."""

    def __init__(self, engine: IoEngine, job: Job, rings: Rings, registered: tuple[int, int]) -> None:
        """Prepare to do `job` on `rings` with the buffers of `engine`."""
        super().__init__(engine, job, rings, registered)
        self._files_of = [on_ring(t) for t in job.tiers]
        self._fixed_reads, self._fixed_slots = registered
        # What a request belongs to, by the high bits of its user data.
        self._tokens: list[Submission] = [None] * (2 * engine.depth)  # type: ignore[list-item]
        self._free_tokens = list(range(2 * engine.depth))

    def _ring(self, flight: Flight) -> r.Ring:
        """Return the ring by which an operation's requests go."""
        return self._rings.of(self._tier_of[flight.row], self._object[flight.row])

    def _put_file(self, submission: Submission) -> None:
        flight = submission.flight
        ring = self._ring(flight)
        if ring.room < _LONGEST_CHAIN:
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
        path, data = files.ring_path(self._object[flight.row]), token << KIND_BITS
        if flight.op == DELETE:
            ring.put_path(r.UNLINKAT, 0, path, 0, 0, data | UNLINKED)
            return
        flight.handle = place = self._pump.take_file()
        flags = files.ring_flags(flight.op)
        if flight.pieces == 1:
            ring.put_path(r.OPENAT, r.LINK | r.SKIP_SUCCESS, path, _MODE, flags, data | OPENED, file=place + 1)
            self._put_advice(ring, place, files.opened_advice, data)
            if flight.has_io:
                self._put_move(submission, token, r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS)
            self._put_close(flight, data)
            return
        ring.put_path(r.OPENAT, r.LINK, path, _MODE, flags, data | OPENED, file=place + 1)
        self._put_advice(ring, place, files.opened_advice, data)
        if flight.op == WRITE:
            # Writes beyond a file's end go one by one; within what is allocated they run together.
            ring.put(
                r.FALLOCATE,
                r.FIXED_FILE | r.HARDLINK,
                place,
                flight.start,
                flight.end - flight.start,
                0,
                0,
                data | GROWN,
            )
        self._put_move(submission, token, r.FIXED_FILE)

    def _put_advice(self, ring: r.Ring, place: int, advice: int | None, data: int) -> None:
        """Put advice on the pages of the file at `place`; what follows goes in any case."""
        if advice is not None:
            how = r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS
            ring.put(r.FADVISE, how, place, 0, 0, 0, advice, data | ADVISED)

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
        self._ring(flight).put(
            opcode,
            flags,
            flight.handle if flight.fd < 0 else flight.fd,
            flight.base + submission.start,
            address,
            submission.length,
            0,
            token << KIND_BITS | MOVED,
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
        if not self._ring(flight).room:
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
        files, ring = self._files_of[self._tier_of[flight.row]], self._ring(flight)
        if flight.op == WRITE and files is not None and files.is_synced:
            # Of one that fails the kernel posts no completion if it is to skip that of success.
            ring.put(r.FSYNC, r.FIXED_FILE | r.HARDLINK, flight.handle, 0, 0, 0, _DATASYNC, data | SYNCED)
        if files is not None:
            self._put_advice(ring, flight.handle, files.closing_advice, data)
        ring.put(r.CLOSE, 0, 0, 0, 0, 0, 0, data | CLOSED, file=flight.handle + 1)

    def _close(self, submission: Submission, now_ns: int) -> None:
        """Close a longer operation's file, or finish with one that has none."""
        flight = submission.flight
        if flight.handle is None and not self._is_flushed(flight):
            self._finish(flight, now_ns)
            return
        ring = self._ring(flight)
        if ring.room < _LONGEST_CHAIN:
            self._flush()
        self._out += 1
        token = self._free_tokens.pop()
        closing = Submission(flight, submission.piece, submission.slot, False, 0, 0)
        self._tokens[token] = closing
        if flight.fd >= 0:
            ring.put(r.FSYNC, 0, flight.fd, 0, 0, 0, _DATASYNC, token << KIND_BITS | CLOSED)
            return
        self._put_close(flight, token << KIND_BITS)

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

    def _begun(self, flight: Flight) -> None:
        """Let an operation's other pieces go: there is what they move to or from."""
        raise NotImplementedError
