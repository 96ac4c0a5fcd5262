"""What the submitting thread and those beside it say to each other, in memory that both see: no lock, no interpreter.

Whoever waits for the interpreter's lock while another thread takes and gives it back all the time waits for
milliseconds. So the submitting thread asks for data, takes what was made, and sleeps without it. All functions take
the address of a `tables.JOB`.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from kvreplay.data.copies import fence
from kvreplay.engine import order
from kvreplay.engine.tables import ASKED, asked_ring_at, job_at, mail_at
from kvtrace.core.compiled import holding, inner, int64s

TOGETHER = 32
"""Buffers that a thread makes at a time, at most."""
AWAKE, FULL, HUNGRY = range(3)
"""What `asleep` says of the submitting thread: asleep with a full queue, data need not wake it."""
_ASKED_BYTES = ASKED.itemsize

_eventfd_write: Any = types.ExternalFunction("eventfd_write", types.int32(types.int32, types.int64))


@inner
def ask(address: int, now: int, is_urgent: bool) -> None:
    """Ask for data that may be made now; wake threads that sleep, if it is urgent or there is much to make.

    Each time a thread must be woken costs as much as an I/O.
    """
    job = job_at(address)
    mail = mail_at(job.mail)
    tail = mail.asked_tail
    while order.take_fill(address, now, mail.asked + tail % mail.slots * _ASKED_BYTES):
        tail += 1
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
        copy.start, copy.end, copy.object_end = fill.start, fill.end, fill.object_end
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
        order.filled(address, ring[mail.made_head % mail.slots])
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
