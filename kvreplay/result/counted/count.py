"""One pass over the rows of a part: everything that can be counted a row at a time, whatever their order."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.job import CORRUPT, ERROR, NOT_DONE, OK, SHORT, SKIPPED
from kvreplay.plan.pacing import LATE_NS
from kvreplay.plan.plan import DELETE
from kvreplay.result.counted.times import put
from kvtrace.core.compiled import njit
from kvtrace.core.units import NS_PER_S

OPS = 3
"""Kinds of operations: read, write, delete."""
SERVICE, PER_MIB, RESPONSE, LATENESS = range(4)
"""The distributions of a kind; the last two in an open loop alone."""
CLOSED_TIMES, OPEN_TIMES = 2, 4
MOST = np.iinfo(np.int64).max
_MIB = 1 << 20


def table_record(integers: str, floats: str = "") -> np.dtype[Any]:
    """Return the type of a record with int64 and float64 fields of these names."""
    return np.dtype([(n, np.int64) for n in integers.split()] + [(n, np.float64) for n in floats.split()], align=True)


KIND = table_record(
    # Of the rows that figures count: all, those that completed well, that failed, of these that were corrupt.
    "planned good errors corrupt "
    # Of those that completed well: object bytes, bytes asked of the tier, service times added up.
    "bytes io_bytes service_ns "
    # Object bytes of those that moved any, and of these of those of one I/O.
    "moved_bytes single_bytes "
    # Their first submission, last completion, first and last due time.
    "first_ns last_ns first_due_ns last_due_ns "
    # Of the first row with that last completion: which it is, its service time and its bytes.
    "last_row last_service_ns last_bytes "
    # Bytes asked of the tier by rows that moved them, the warm-up's too.
    "asked_bytes"
)
"""What is counted of the operations of one kind in one place: a tier, or a drive of one."""
RUN = table_record(
    # Rows; those that were submitted, the last of them by its row in the trace, those that failed.
    "rows sent last_sent_row failed "
    # Of those that figures count: submitted, late, late by themselves.
    "counted_sent late late_by_itself "
    # Of those that figures leave out: completed well. Of the others that were submitted: the first row of the trace,
    # the first submission.
    "left_out first_row from_ns "
    # The last completion, and the last time of all.
    "last_completed_ns last_ns",
    # What those that completed well waited before submission: for earlier operations, and for anything else.
    "depended_ns waited_ns",
)
"""What is counted of a run as a whole."""
SECOND = table_record("operations errors bytes latency_ns most_ns p99_ns")
"""What is counted of one second, place and kind; `p99_ns` is -1 where it is not known."""
FLIGHT = np.dtype(
    [("submitted_ns", "i8"), ("completed_ns", "i8"), ("free_ns", "i8"), ("length_op", "i8"), ("kind", "i8")]
)
"""An operation that completed well, for what depends on the order in time. `length_op` tells apart operations and
lengths, and is -1 where nothing moved; it could have gone at `free_ns`."""
ENDED = np.dtype([("key", "i8"), ("latency_ns", "i8")])
"""An operation that completed well: the index of its second, and its service time."""


def empty_kinds(count: int) -> Any:
    """Return KIND records that have counted nothing."""
    found = np.zeros(count, KIND)
    found["first_ns"] = found["first_due_ns"] = MOST
    found["last_ns"] = found["last_due_ns"] = NOT_DONE
    return found


def empty_run() -> Any:
    """Return a RUN record, alone in its array, that has counted nothing."""
    found = np.zeros(1, RUN)
    found["first_row"] = found["from_ns"] = MOST
    found["last_sent_row"] = found["last_completed_ns"] = NOT_DONE
    return found


# Long: everything that one look at a row tells.
@njit
def count_rows(  # noqa: C901, PLR0912, PLR0915 - compiled in one piece
    begin: int,
    is_open: int,
    io_bytes: int,
    row: Any,
    op: Any,
    tier: Any,
    place: Any,
    offset: Any,
    length: Any,
    submitted: Any,
    completed: Any,
    outcome: Any,
    ready: Any,
    due: Any,
    counts: Any,
    paddings: Any,
    moves: Any,
    kinds: Any,
    run: Any,
    times: Any,
    seconds: Any,
    flights: Any,
    flights_fill: Any,
    ended: Any,
    ended_fill: Any,
    asked: Any,
) -> int:
    """Count the rows from `begin` on; return the first that was not, for which there is no room.

    `place` is where each row is done, `counts` whether figures count it; `paddings` (bytes) and `moves` are by tier;
    `asked` takes the bytes that each row asks of its tier, -1 where none are.
    """
    whole = run[0]
    for i in range(begin, len(row)):
        if flights_fill[0] == len(flights) or ended_fill[0] == len(ended):
            return i
        start_ns, end_ns, result, code = submitted[i], completed[i], outcome[i], op[i]
        at = place[i] * OPS + code
        kind = kinds[at]
        is_failed = result in (ERROR, SHORT, CORRUPT)
        is_sent = start_ns != NOT_DONE
        is_good = result == OK and is_sent and end_ns != NOT_DONE
        padding, moved = paddings[tier[i]], length[i]
        first = offset[i] // padding * padding
        asked[i] = -1
        if moves[tier[i]] and code != DELETE:
            asked[i] = -(-(offset[i] + moved) // padding) * padding - first if moved else 0
            if result in (OK, CORRUPT):
                kind.asked_bytes += asked[i]
        whole.rows += 1
        whole.failed += is_failed
        whole.last_ns = max(whole.last_ns, start_ns, end_ns)
        whole.last_completed_ns = max(whole.last_completed_ns, end_ns)
        if is_sent:
            whole.sent += 1
            whole.last_sent_row = row[i]
        if moves[tier[i]] and result != SKIPPED and is_sent:
            # What failed has no completion: it counts where it was submitted.
            key = (start_ns if end_ns == NOT_DONE else end_ns) // NS_PER_S * len(kinds) + at
            second = seconds[key]
            if result == OK:
                second.operations += 1
                second.bytes += 0 if code == DELETE else moved
                second.latency_ns += end_ns - start_ns
                second.most_ns = max(second.most_ns, end_ns - start_ns)
                ended[ended_fill[0]].key = key
                ended[ended_fill[0]].latency_ns = end_ns - start_ns
                ended_fill[0] += 1
            else:
                second.errors += 1
        if not counts[i]:
            whole.left_out += result == OK
            continue
        kind.planned += 1
        kind.errors += is_failed
        kind.corrupt += result == CORRUPT
        free_ns = start_ns
        if is_sent:
            whole.counted_sent += 1
            whole.first_row = min(whole.first_row, row[i])
            whole.from_ns = min(whole.from_ns, start_ns)
            if is_open:
                free_ns = max(due[i], ready[i])
                whole.late += start_ns - due[i] > LATE_NS
                whole.late_by_itself += start_ns - free_ns > LATE_NS
                put(times, at * OPEN_TIMES + LATENESS if is_good else len(kinds) * OPEN_TIMES, start_ns - due[i])
        if not is_good:
            continue
        service_ns = end_ns - start_ns
        distribution = at * (OPEN_TIMES if is_open else CLOSED_TIMES)
        put(times, distribution + SERVICE, service_ns)
        kind.good += 1
        kind.bytes += moved
        kind.io_bytes += asked[i]
        kind.service_ns += service_ns
        kind.first_ns = min(kind.first_ns, start_ns)
        if end_ns > kind.last_ns:
            kind.last_ns, kind.last_row = end_ns, row[i]
            kind.last_service_ns, kind.last_bytes = service_ns, moved
        if is_open:
            kind.first_due_ns = min(kind.first_due_ns, due[i])
            kind.last_due_ns = max(kind.last_due_ns, due[i])
            put(times, distribution + RESPONSE, end_ns - due[i])
            free_ns = min(free_ns, start_ns)
            whole.depended_ns += free_ns - due[i]
            whole.waited_ns += start_ns - free_ns
        length_op = -1
        if code != DELETE and moved > 0:
            put(times, distribution + PER_MIB, np.int64(service_ns * (_MIB / moved)))
            length_op = moved * 2 + code
            kind.moved_bytes += moved
            if first // io_bytes == (offset[i] + moved - 1) // io_bytes:
                kind.single_bytes += moved
        flight = flights[flights_fill[0]]
        flight.submitted_ns, flight.completed_ns, flight.free_ns = start_ns, end_ns, free_ns
        flight.length_op, flight.kind = length_op, at
        flights_fill[0] += 1
    return len(row)
