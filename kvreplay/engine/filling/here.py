"""Short data of writes, which the submitting thread makes itself between two looks at what has completed; compiled.

To wake a thread for it would take as long. An object that lies nowhere yet must be given room first, which Python does
(`Workers.make_room_here`). All functions take the address of a `tables.JOB`.
"""

from __future__ import annotations

from kvreplay.data.buffers import SHORT_BYTES
from kvreplay.data.words import fill_words
from kvreplay.engine.filling import fills
from kvreplay.engine.tables import (
    ASKED,
    BY_OTHERS,
    HERE,
    asked_ring_at,
    flights_at,
    job_at,
    lanes_at,
    mail_at,
)
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s

_SLICE_BYTES = 64 << 10
"""What is made between two looks at what has completed: some microseconds, by which a time stamp may come late."""
_ASKED_BYTES = ASKED.itemsize


@inner
def is_made_here(address: int, number: int) -> bool:
    """Return whether who submits makes the data of an operation."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if int64s(mail_at(job.mail).makers)[int8s(job.tier)[flight.row]] == BY_OTHERS:
        return False
    return min(flight.end - flight.first, job.pieces_a_fill * job.io_bytes) < SHORT_BYTES


@inner
def is_long(address: int, number: int) -> bool:
    """Return whether the data of an operation takes more than one buffer."""
    job = job_at(address)
    return flights_at(job.flights)[number].pieces > job.pieces_a_fill


@inner
def _has_room(address: int, place: int) -> bool:
    """Return whether nobody must make room for what the record ASKED at `place` tells of.

    An object that lies somewhere has room for all that it will ever hold.
    """
    job = job_at(address)
    asked = asked_ring_at(place)[0]
    tier = int8s(job.tier)[asked.row]
    if asked.room == fills.NO_ROOM or int64s(mail_at(job.mail).makers)[tier] == HERE:
        return True
    return int64s(int64s(lanes_at(job.lanes).places)[tier])[int32s(job.object_id)[asked.row]] >= 0


@inner
def take_here(address: int) -> None:
    """Take the next buffer to fill, which who submits fills; it has room if none must be made and none waits for it."""
    job = job_at(address)
    mail = mail_at(job.mail)
    place = mail.here + mail.here_tail % mail.slots * _ASKED_BYTES
    fills.take_fill(address, place)
    if _has_room(address, place) and mail.here_roomy == mail.here_tail:
        mail.here_roomy += 1
    mail.here_tail += 1


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
    mail, rest = mail_at(job.mail), _SLICE_BYTES
    while rest > 0 and mail.here_head != mail.here_roomy:
        place = mail.here + mail.here_head % mail.slots * _ASKED_BYTES
        length = min(rest, asked_ring_at(place)[0].end - asked_ring_at(place)[0].start - mail.here_bytes)
        make_part(address, place, mail.here_bytes, length)
        rest -= length
        mail.here_bytes += length
        asked = asked_ring_at(place)[0]
        if mail.here_bytes == asked.end - asked.start:
            fills.filled(address, asked.slot)
            mail.here_bytes = 0
            mail.here_head += 1


@inner
def make_part(address: int, place: int, at: int, length: int) -> None:
    """Put the `length` bytes from `at` on into the buffer of which the record ASKED at `place` tells."""
    job = job_at(address)
    asked, lanes = asked_ring_at(place)[0], lanes_at(job.lanes)
    to, row = int64s(lanes.buffers)[job.depth + asked.slot] + at, asked.row
    seed = mail_at(job.mail).seed
    fill_words(to, length, asked.start + at, int32s(job.object_id)[row], int32s(job.version)[row], seed)
