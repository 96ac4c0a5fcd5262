"""Data of writes that is made before they may go: of those that the next completions of a chain will release; compiled.

Stages of a request would else wait for data each time one ends. What is prepared holds few of the buffers, so that
what may go never lacks one. All functions take the address of a `tables.JOB`.
"""

from __future__ import annotations

from kvreplay.data.buffers import SHORT_BYTES
from kvreplay.engine.tables import (
    BY_OTHERS,
    NONE,
    count_of,
    heap_least,
    heap_pop,
    heap_push,
    job_at,
    mail_at,
)
from kvreplay.plan.plan import WRITE
from kvtrace.core.compiled import inner, int8s, int32s, int64s

PREPARED_NS = 100_000_000
"""So long before it is due, the data of a row that is next in a chain may be made."""


@inner
def prepare_all(address: int, row: int, waiting: int) -> None:
    """Note the writes of a group that comes next in a chain: their data may be made meanwhile.

    `row` is the first that waits in it, `waiting` the address of the one after each.
    """
    job = job_at(address)
    while row != NONE:
        if int8s(job.unmet)[row] == 1:
            prepare_if_worth(address, row)
        row = int32s(waiting)[row]


@inner
def prepare_if_worth(address: int, row: int) -> None:
    """Note a row that waits only for what may go now, if it is a write."""
    if _is_worth_preparing(address, row):
        heap_push(job_at(address).to_prepare, row)


@inner
def _is_worth_preparing(address: int, row: int) -> bool:
    """Return whether a row writes data that threads make: what who submits makes is there in microseconds."""
    job = job_at(address)
    tier = int8s(job.tier)[row]
    is_bulk = job.bulk and int8s(job.bulk)[row]
    if int8s(job.op)[row] != WRITE or is_bulk or not int64s(job.moves)[tier] or int64s(job.length)[row] <= 0:
        return False
    return not (job.mail and _is_short(address, row, tier))


@inner
def _is_short(address: int, row: int, tier: int) -> bool:
    """Return whether who submits makes the data of a row, or nearly so long a one."""
    job = job_at(address)
    if int64s(mail_at(job.mail).makers)[tier] == BY_OTHERS:
        return False
    return min(int64s(job.length)[row], job.pieces_a_fill * job.io_bytes) < SHORT_BYTES


@inner
def preparing_due(address: int, now: int) -> int:
    """Return when data of a row that is not ready may be made next; NONE if that depends on what is in flight."""
    job = job_at(address)
    while count_of(job.to_prepare) and int8s(job.unmet)[heap_least(job.to_prepare)] <= 0:
        heap_pop(job.to_prepare)
    # One buffer is left for a write that has started.
    used = job.slots - count_of(job.free_slots)
    has_room = (job.prepared_slots < job.prepared_most or used < job.early_or_prepared) and job.slots - used > 1
    if not has_room or not count_of(job.to_prepare):
        return NONE
    row = heap_least(job.to_prepare)
    if not int32s(job.prepared)[row] and not count_of(job.free_flights):
        return NONE
    return max(now, int64s(job.due)[row] - PREPARED_NS) if job.due else now
