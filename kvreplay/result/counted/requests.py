"""What the rows of each request came to, for as long as rows of it may follow."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.job import NOT_DONE, OK
from kvreplay.plan.plan import READ, WRITE
from kvreplay.result.counted.count import MOST, table_record
from kvtrace.core.compiled import compile_announced, inner, njit

_AT_FIRST = 1 << 12
_NONE = -1
REQUEST = table_record(
    # All rows of the trace; those that were replayed where data moves; those of these that completed well.
    "id in_window planned operations "
    # Rows that read cached KV for it, and their bytes; those that completed well, on any tier, from when to when.
    "loads load_bytes loads_done loads_from_ns loads_until_ns "
    "hits hit_bytes read_bytes written_bytes "
    "scheduled_ns submitted_ns completed_ns "
    # Time in which at least one operation was in flight, or due and not completed; up to when the latter is known.
    "storage_ns response_ns response_until_ns "
    # Whether figures leave it out; its first span in flight.
    "is_left_out span"
)
"""What is known of a request."""
_SPAN = np.dtype([("from_ns", "i8"), ("to_ns", "i8"), ("before", "i8")])
"""Time in which operations of a request were in flight, apart from its other spans; `before` is the one before it."""
_USED = np.dtype([(name, "i8") for name in ("requests", "spans", "free", "planned")])
"""OpenRequests and spans that are in use, the first free span, and planned rows of the part that were seen."""


class OpenRequests:
    """The requests of which rows have come and may still come."""

    def __init__(self, moves: Any, loads: Any, *, is_open_loop: bool) -> None:
        """Know none; `moves` says by tier whether data moves there, `loads` by phase whether reads load cached KV."""
        self._moves, self._loads, self._is_open_loop = moves, loads, is_open_loop
        self._table, self._spans = np.zeros(_AT_FIRST, REQUEST), np.zeros(_AT_FIRST, _SPAN)
        self._places = np.full(2 * _AT_FIRST, _NONE, np.int64)
        self._used = np.zeros(1, _USED)
        self._used["free"] = _NONE

    def begin(self) -> None:
        """Say that the next rows are of a new part."""
        self._used["planned"] = 0

    def take(
        self, at: int, first_row: int, columns: dict[str, Any], plan: Any, record: Any, due_ns: Any, counts: Any
    ) -> Any:
        """Take rows of the trace from `first_row` on, of which `at` were taken, with what was planned and measured.

        Returns:
            how many were taken; if not all, there is no room.

        """
        nothing = np.zeros(1, np.bool_)
        with compile_announced():
            return (
                _take(
                    at, first_row, columns["request_id"], columns["length_bytes"], columns["phase"], columns["op"],
                    plan.row, plan.tier, record.outcome, record.submitted_ns, record.completed_ns,
                    record.submitted_ns if due_ns is None else due_ns, counts,
                    nothing if plan.bulk is None else plan.bulk, int(plan.bulk is not None), int(self._is_open_loop),
                    self._moves, self._loads, self._table, self._spans, self._places, self._used,
                )
            )  # fmt: skip

    def pop(self, below: int) -> Any:
        """Return REQUEST of those whose id is less than `below`, in order of it, and forget them."""
        known = self._table[: self._used["requests"][0]]
        is_over = known["id"] < below
        found, kept = known[is_over], known[~is_over]
        _free(found["span"].copy(), self._spans, self._used)
        self._table[: len(kept)] = kept
        self._used["requests"] = len(kept)
        self._index()
        return found[np.argsort(found["id"])]

    def make_room(self) -> None:
        """Make room for more."""
        if 2 * self._used["requests"][0] > len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
            self._places = np.empty(2 * len(self._table), np.int64)
            self._index()
        if self._used["free"][0] == _NONE and self._used["spans"][0] == len(self._spans):
            self._spans = np.concatenate([self._spans, np.zeros_like(self._spans)])

    @property
    def nbytes(self) -> int:
        """What the tables take."""
        return int(self._table.nbytes + self._spans.nbytes + self._places.nbytes)

    def _index(self) -> None:
        self._places.fill(_NONE)
        _place_all(self._table, int(self._used["requests"][0]), self._places)


@inner
def _place(table: Any, places: Any, request: int) -> int:
    """Return the place of `request`, or that where it would be."""
    at = (request * 0x9E3779B1) & (len(places) - 1)
    while places[at] != _NONE and table[places[at]].id != request:
        at = (at + 1) & (len(places) - 1)
    return at


@njit
def _place_all(table: Any, count: int, places: Any) -> None:
    for i in range(count):
        places[_place(table, places, table[i].id)] = i


@njit
def _free(heads: Any, spans: Any, used: Any) -> None:
    for head in heads:
        span = head
        while span != _NONE:
            before = spans[span].before
            spans[span].before = used[0].free
            used[0].free = span
            span = before


@inner
def _add_span(request: Any, spans: Any, used: Any, from_ns: int, to_ns: int) -> None:
    """Add a span in which an operation of `request` was in flight; there is room for one more."""
    after, span = _NONE, request.span
    while span != _NONE and spans[span].from_ns > to_ns:
        after, span = span, spans[span].before
    while span != _NONE and spans[span].to_ns >= from_ns:
        from_ns, to_ns = min(from_ns, spans[span].from_ns), max(to_ns, spans[span].to_ns)
        request.storage_ns -= spans[span].to_ns - spans[span].from_ns
        before = spans[span].before
        spans[span].before = used.free
        used.free = span
        span = before
    new = used.free
    if new == _NONE:
        new = used.spans
        used.spans += 1
    else:
        used.free = spans[new].before
    spans[new].from_ns, spans[new].to_ns, spans[new].before = from_ns, to_ns, span
    request.storage_ns += to_ns - from_ns
    if after == _NONE:
        request.span = new
    else:
        spans[after].before = new


@inner
def _new(table: Any, used: Any, request: int) -> Any:
    at = used.requests
    used.requests += 1
    each = table[at]
    each.id = request
    each.in_window = each.planned = each.operations = each.loads = each.load_bytes = each.loads_done = 0
    each.hits = each.hit_bytes = each.read_bytes = each.written_bytes = 0
    each.storage_ns = each.response_ns = each.is_left_out = 0
    each.loads_from_ns = each.scheduled_ns = each.submitted_ns = MOST
    each.loads_until_ns = each.completed_ns = each.response_until_ns = NOT_DONE
    each.span = _NONE
    return at


# Long: a row in all that it counts for.
@njit
def _take(  # noqa: C901, PLR0912 - compiled in one piece
    begin: int,
    first_row: int,
    request: Any,
    length: Any,
    phase: Any,
    op: Any,
    planned_row: Any,
    tier: Any,
    outcome: Any,
    submitted: Any,
    completed: Any,
    due: Any,
    counts: Any,
    bulk: Any,
    has_bulk: int,
    is_open: int,
    moves: Any,
    loads: Any,
    table: Any,
    spans: Any,
    places: Any,
    state: Any,
) -> int:
    used = state[0]
    for i in range(begin, len(request)):
        p = used.planned
        is_planned = p < len(planned_row) and planned_row[p] == first_row + i
        if request[i] < 0:
            used.planned += is_planned
            continue
        if used.requests == len(table) or (used.free == _NONE and used.spans == len(spans)):
            return i
        place = _place(table, places, request[i])
        if places[place] == _NONE:
            places[place] = _new(table, used, request[i])
        each = table[places[place]]
        each.in_window += 1
        is_load = loads[phase[i]] and op[i] == READ
        if is_load:
            each.loads += 1
            each.load_bytes += length[i]
        if not is_planned:
            continue
        used.planned += 1
        if not counts[p] or (has_bulk and bulk[p]):
            each.is_left_out = 1
        is_done = outcome[p] == OK
        if is_load and is_done:
            each.loads_done += 1
            each.loads_from_ns = min(each.loads_from_ns, submitted[p])
            each.loads_until_ns = max(each.loads_until_ns, completed[p])
        if not moves[tier[p]]:
            continue
        each.planned += 1
        if is_open:
            each.scheduled_ns = min(each.scheduled_ns, due[p])
        if submitted[p] != NOT_DONE:
            each.submitted_ns = min(each.submitted_ns, submitted[p])
        if not is_done:
            continue
        each.operations += 1
        each.completed_ns = max(each.completed_ns, completed[p])
        if is_load:
            each.hits += 1
            each.hit_bytes += length[i]
        if op[i] == READ:
            each.read_bytes += length[i]
        elif op[i] == WRITE:
            each.written_bytes += length[i]
        _add_span(each, spans, used, submitted[p], completed[p])
        if is_open:
            # Rows are due in their order.
            each.response_ns += max(0, completed[p] - max(due[p], each.response_until_ns))
            each.response_until_ns = max(each.response_until_ns, completed[p])
    return len(request)
