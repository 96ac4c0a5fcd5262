"""What the submitting thread and those beside it say to each other, in memory that both see: no lock, no interpreter.

Whoever waits for the interpreter's lock while another thread takes and gives it back all the time waits for
milliseconds. So the submitting thread asks for data, takes what was made, and sleeps without it. All functions take
the address of a `tables.JOB`.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numba.core import types

from kvreplay.data.buffers import SHORT_BYTES, SHORT_STOCK
from kvreplay.data.copies import fence
from kvreplay.data.words import Fresh, fill_words
from kvreplay.engine.filling import fills
from kvreplay.engine.ready import must_ask
from kvreplay.engine.schedule import Fill, Schedule
from kvreplay.engine.tables import (
    ASKED,
    BY_OTHERS,
    HERE,
    MAIL,
    asked_ring_at,
    count_of,
    flights_at,
    job_at,
    lanes_at,
    mail_at,
)
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s, njit

TOGETHER = 32
"""Buffers that a thread makes at a time, at most."""
AWAKE, FULL, HUNGRY = range(3)
"""What `asleep` says of the submitting thread: asleep with a full queue, data need not wake it."""
SLICE_BYTES = 64 << 10
"""What is made between two looks at what has completed: some microseconds, by which a time stamp may come late."""
_FILL_BYTES = 256 << 10
"""What a thread makes at a time, at most."""
_MOST_TIERS = 128
_ASKED_BYTES = ASKED.itemsize

_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))


@inner
def _is_made_here(address: int, number: int) -> bool:
    """Return whether who submits makes the data of an operation."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if int64s(mail_at(job.mail).makers)[int8s(job.tier)[flight.row]] == BY_OTHERS:
        return False
    return min(flight.end - flight.first, job.pieces_a_fill * job.io_bytes) < SHORT_BYTES


@inner
def _is_long(address: int, number: int) -> bool:
    """Return whether the data of an operation takes more than one buffer."""
    job = job_at(address)
    return flights_at(job.flights)[number].pieces > job.pieces_a_fill


@inner
def _take_here(address: int) -> None:
    """Take the next buffer to fill, which who submits fills; it has room if none must be made and none waits for it."""
    job = job_at(address)
    mail = mail_at(job.mail)
    place = mail.here + mail.here_tail % mail.slots * _ASKED_BYTES
    fills.take_fill(address, place)
    asked = asked_ring_at(place)[0]
    is_roomy = asked.room == fills.NO_ROOM or int64s(mail.makers)[int8s(job.tier)[asked.row]] == HERE
    if is_roomy and mail.here_roomy == mail.here_tail:
        mail.here_roomy += 1
    mail.here_tail += 1


@inner
def ask(address: int, now: int, is_urgent: bool) -> None:
    """Ask for data that may be made now; wake threads that sleep, if it is urgent or there is much to make.

    Each time a thread must be woken costs as much as an I/O. The data of short writes is made when little of it is
    left, so that room for their objects is made together.
    """
    job = job_at(address)
    mail = mail_at(job.mail)
    tail, used = mail.asked_tail, mail.slots - count_of(job.free_slots)
    most = job.depth + SHORT_STOCK if used <= job.depth + SHORT_STOCK // 3 else 0
    if is_urgent and must_ask(address, now):
        most = max(most, used + 1)
    while fills.may_fill(address, now):
        number = fills.next_to_fill(address)
        if not _is_made_here(address, number):
            fills.take_fill(address, mail.asked + tail % mail.slots * _ASKED_BYTES)
            tail += 1
        elif mail.slots - count_of(job.free_slots) < most or _is_long(address, number):
            _take_here(address)
        else:
            break
    fence()
    mail.asked_tail = tail
    count = tail - mail.asked_head
    spare = mail.slots - job.depth
    if not count or (not is_urgent and count < min(TOGETHER, spare // 2)):
        return
    fence()
    idle = min(count, mail.sleeps - mail.wakes)
    if idle > 0:
        mail.wakes += idle
        _eventfd_write(mail.makers_fd, idle)


@holding
def objects_wanting_room(address: int, tier: int, objects: int, ends: int) -> int:
    """Put the objects of `tier` that want room, and their last bytes, to two addresses (int64); return how many."""
    job = job_at(address)
    mail, count = mail_at(job.mail), 0
    ids, bytes_ = int64s(objects), int64s(ends)
    for at in range(mail.here_roomy, mail.here_tail):
        asked = asked_ring_at(mail.here)[at % mail.slots]
        if asked.room and int8s(job.tier)[asked.row] == tier:
            ids[count], bytes_[count] = int32s(job.object_id)[asked.row], asked.object_end
            count += 1
    return count


@inner
def wants_room(address: int) -> bool:
    """Return whether Python must make room for what is to be made here."""
    mail = mail_at(job_at(address).mail)
    return mail.here_roomy != mail.here_tail


@inner
def may_make(address: int) -> bool:
    """Return whether there is data to be made here."""
    mail = mail_at(job_at(address).mail)
    return mail.here_head != mail.here_roomy


@inner
def make(address: int) -> None:
    """Make some data, where we `may_make`."""
    job = job_at(address)
    mail, rest = mail_at(job.mail), SLICE_BYTES
    while rest > 0 and mail.here_head != mail.here_roomy:
        place = mail.here + mail.here_head % mail.slots * _ASKED_BYTES
        length = min(rest, asked_ring_at(place)[0].end - asked_ring_at(place)[0].start - mail.here_bytes)
        _make_part(address, place, mail.here_bytes, length)
        rest -= length
        mail.here_bytes += length
        asked = asked_ring_at(place)[0]
        if mail.here_bytes == asked.end - asked.start:
            fills.filled(address, asked.slot)
            mail.here_bytes = 0
            mail.here_head += 1


@inner
def _make_part(address: int, place: int, at: int, length: int) -> None:
    """Put the `length` bytes from `at` on into the buffer of which the record ASKED at `place` tells."""
    job = job_at(address)
    asked, lanes = asked_ring_at(place)[0], lanes_at(job.lanes)
    to, row = int64s(lanes.buffers)[job.depth + asked.slot] + at, asked.row
    seed = mail_at(job.mail).seed
    fill_words(to, length, asked.start + at, int32s(job.object_id)[row], int32s(job.version)[row], seed)


@njit
def make_asked(address: int, asked: int, count: int) -> None:
    """Fill `count` buffers (ASKED, at the address `asked`); for threads that make data."""
    for i in range(count):
        place = asked + i * _ASKED_BYTES
        if asked_ring_at(place)[0].room == fills.ONLY_ROOM:
            continue
        _make_part(address, place, 0, asked_ring_at(place)[0].end - asked_ring_at(place)[0].start)


@holding
def next_asked(address: int, answer: int, most: int, most_bytes: int) -> int:
    """Copy up to `most` buffers to fill to `answer` (ASKED), with about `most_bytes`; return how many.

    Called with the interpreter's lock held.
    """
    mail = mail_at(job_at(address).mail)
    asked, answers = asked_ring_at(mail.asked), asked_ring_at(answer)
    count, size, tail = 0, 0, mail.asked_tail
    fence()
    while count < most and size < most_bytes and mail.asked_head + count != tail:
        fill, copy = asked[(mail.asked_head + count) % mail.slots], answers[count]
        copy.flight, copy.row, copy.piece, copy.slot = fill.flight, fill.row, fill.piece, fill.slot
        copy.start, copy.end, copy.object_end, copy.room = fill.start, fill.end, fill.object_end, fill.room
        size += fill.end - fill.start
        count += 1
    mail.asked_head += count
    return count


@holding
def may_sleep(address: int) -> bool:
    """Return whether a thread that makes data has nothing to do; then it must sleep, and will be woken."""
    mail = mail_at(job_at(address).mail)
    mail.sleeps += 1
    fence()
    # If not, it will be woken once in vain.
    return mail.asked_head == mail.asked_tail


@holding
def made(address: int, slots: int, count: int) -> None:
    """Hand over `count` buffers that hold their data, whose numbers (int64) lie at `slots`.

    Called with the interpreter's lock held. Whoever sees them sees mail that was posted before.
    """
    mail = mail_at(job_at(address).mail)
    ring, numbers = int64s(mail.made), int64s(slots)
    for i in range(count):
        ring[(mail.made_tail + i) % mail.slots] = numbers[i]
    fence()
    mail.made_tail += count


@holding
def must_wake(address: int, least: int) -> bool:
    """Return whether the submitting thread sleeps at least so deeply; if so, the caller must wake it."""
    mail = mail_at(job_at(address).mail)
    fence()
    if mail.asleep < least:
        return False
    mail.asleep = AWAKE
    return True


@inner
def take_made(address: int) -> bool:
    """Take the buffers that hold their data; return False, and do not, if Python has mail, which may be of them."""
    mail = mail_at(job_at(address).mail)
    ring, tail = int64s(mail.made), mail.made_tail
    fence()
    if mail.has_mail:
        return False
    while mail.made_head != tail:
        fills.filled(address, ring[mail.made_head % mail.slots])
        mail.made_head += 1
    return True


@inner
def fall_asleep(address: int, depth: int) -> bool:
    """Say that the submitting thread sleeps; return False, and do not, if there is something for it."""
    mail = mail_at(job_at(address).mail)
    mail.asleep = depth
    fence()
    if mail.has_mail or (depth == HUNGRY and mail.made_head != mail.made_tail):
        mail.asleep = AWAKE
        return False
    return True


class Mail:
    """Between a submitting thread and those beside it: compiled code's rings, and what only Python understands."""

    def __init__(self, schedule: Schedule) -> None:
        """Serve the job of `schedule`, with room for all its buffers of data."""
        self.items: deque[Any] = deque()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Becomes readable if something comes while the submitting thread sleeps."""
        tables, slots = schedule.tables, schedule.slots
        self.address = tables.address
        """For `mailbox`."""
        self._mail = mail = tables.record(MAIL)
        self._makers_fd = mail.makers_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        mail.asked, mail.made = tables.at(np.zeros(slots, ASKED)), tables.at(np.zeros(slots, np.int64))
        self._here, self._makers = np.zeros(slots, ASKED), np.zeros(_MOST_TIERS, np.int64)
        mail.here, mail.makers = tables.at(self._here), tables.at(self._makers)
        mail.slots = slots
        tables.job.mail = ctypes.addressof(mail)
        self.asleep_at = ctypes.addressof(mail) + MAIL.fields["asleep"][1]  # type: ignore[index]
        """The address of the flag that is not 0 while the submitting thread sleeps."""

    def post(self, item: object) -> None:
        """Add something for Python; called from any thread."""
        self.items.append(item)
        self._mail.has_mail = True
        self.wake(FULL)

    def answers(self) -> Iterator[Any]:
        """Take what was posted; only for the submitting thread."""
        if self._mail.has_mail:
            self._mail.has_mail = False
            while self.items:
                yield self.items.popleft()

    def take_asked(self, answer: Any) -> list[Fill]:
        """Take up to len(`answer`) buffers that are to be filled; `answer` (ASKED) is room for what is to go there."""
        count = next_asked(self.address, answer.ctypes.data, len(answer), _FILL_BYTES)
        return [Fill._make(row) for row in answer[:count].tolist()]

    def make_here(self, fresh: Fresh, makers: Sequence[int]) -> None:
        """Have compiled code make the data of `fresh`; by tier, `makers` say who does (`BY_OTHERS`, ...)."""
        self._mail.seed, self._makers[: len(makers)] = fresh.address, makers

    @property
    def here_ns(self) -> int:
        """The time that the submitting thread spent making data."""
        return int(self._mail.here_ns)

    @property
    def wants_room(self) -> bool:
        """Whether there are buffers that the submitting thread is to fill as soon as their objects have room."""
        return bool(self._mail.here_roomy != self._mail.here_tail)

    def wanting_room(self) -> list[Fill]:
        """Return these buffers."""
        mail = self._mail
        return [Fill._make(self._here.item(at % mail.slots)) for at in range(mail.here_roomy, mail.here_tail)]

    def note_room(self) -> None:
        """Note that there is room for what wanted it."""
        self._mail.here_roomy = self._mail.here_tail

    def sleep_until_asked(self) -> None:
        """Wait for buffers to be filled."""
        if may_sleep(self.address):
            os.eventfd_read(self._makers_fd)

    def give_made(self, slots: Any) -> None:
        """Hand over buffers (int64) that hold their data."""
        made(self.address, slots.ctypes.data, len(slots))
        self.wake(HUNGRY)

    def wake(self, depth: int) -> None:
        """Wake the thread that waits for mail, if it sleeps so deeply."""
        if must_wake(self.address, depth):
            os.eventfd_write(self.fd, 1)

    def wake_makers(self, count: int) -> None:
        """Wake those that wait for buffers to be filled."""
        os.eventfd_write(self._makers_fd, count)

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.fd)
        os.close(self._makers_fd)
