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

from kvreplay.data.buffers import SHORT_STOCK
from kvreplay.data.copies import fence
from kvreplay.data.words import Fresh
from kvreplay.engine.filling import fills, here
from kvreplay.engine.ready import must_ask
from kvreplay.engine.schedule import Fill, Schedule
from kvreplay.engine.tables import (
    ASKED,
    MAIL,
    asked_ring_at,
    count_of,
    job_at,
    mail_at,
)
from kvtrace.core.compiled import holding, inner, int64s, njit

TOGETHER = 32
"""Buffers that a thread makes at a time, at most."""
AWAKE, FULL, HUNGRY = range(3)
"""What `asleep` says of the submitting thread: asleep with a full queue, data need not wake it."""
_FILL_BYTES = 256 << 10
"""What a thread makes at a time, at most."""
_MOST_TIERS = 128
_ASKED_BYTES = ASKED.itemsize

_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))


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
        if not here.is_made_here(address, number):
            fills.take_fill(address, mail.asked + tail % mail.slots * _ASKED_BYTES)
            tail += 1
        elif mail.slots - count_of(job.free_slots) < most or here.is_long(address, number):
            here.take_here(address)
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


@njit
def make_asked(address: int, asked: int, count: int) -> None:
    """Fill `count` buffers (ASKED, at the address `asked`); for threads that make data."""
    for i in range(count):
        place = asked + i * _ASKED_BYTES
        if asked_ring_at(place)[0].room == fills.ONLY_ROOM:
            continue
        here.make_part(address, place, 0, asked_ring_at(place)[0].end - asked_ring_at(place)[0].start)


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
