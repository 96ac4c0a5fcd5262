"""Requests of which operations are recorded: their storage, response and first-token times.

`OpenRequests` follows requests while rows of them may still come, `RequestTimes` keeps the times of
those that are over, as a whole and by class of service.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from kvtrace.core import np
from kvtrace.core.arrays import Array
from kvtrace.core.metrics.distribution import TimeDistributions
from kvtrace.core.metrics.native import NONE, NOT_DONE, RECORDER
from kvtrace.core.native.library import call
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.figures import ClassFigures, RequestFigures
from kvtrace.core.schema import Qos

EXACT_REQUESTS = 100_000
"""Up to so many of one kind, percentiles are those of all."""
TTFT_DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to"
    " the last completion, as replayed, + what computing the tokens that were not loaded takes by"
    " the trace's prefill_ns_per_token and prefill_attention"
)
_ROOM_AT_FIRST = 1 << 12
_STORAGE, _RESPONSE, _FIRST_TOKEN, _CLASSES = range(4)


class OpenRequests:
    """The requests of which rows have come and may still come."""

    def __init__(
        self, moves: Array, loads: Array, *, is_open_loop: bool, row_bytes: int | None = None
    ) -> None:
        """Know none.

        `moves` says by tier whether data moves there, `loads` by phase whether reads load cached
        KV; `row_bytes` is the distance of rows that are longer than OPERATION_ROW.
        """
        request, span = RECORDER.dtype("RequestRecord"), RECORDER.dtype("RequestSpan")
        self._shared = Structure(
            RECORDER,
            "OpenRequests",
            moves=np.array(moves, np.bool_),
            loads=np.array(loads, np.bool_),
            free_span=NONE,
            row_bytes=RECORDER.dtype("OperationRow").itemsize if row_bytes is None else row_bytes,
            is_open_loop=is_open_loop,
        )
        weakref.finalize(self, call, "table_free", self._shared.place)
        self._hold(np.zeros(_ROOM_AT_FIRST, request), np.zeros(_ROOM_AT_FIRST, span))

    def _hold(self, requests: Array, spans: Array) -> None:
        self._shared.set(request=requests, room=len(requests), span=spans, span_room=len(spans))

    def begin(self) -> None:
        """Start a new part of rows."""
        self._shared.set(planned=0)

    def take(
        self,
        begin: int,
        first_row: int,
        columns: Mapping[str, Array],
        rows: Array,
        is_counted: Array,
    ) -> int:
        """Take rows of the trace from `first_row` on, of which `begin` were taken.

        `rows` are those of them that were planned, with what was measured. Returns how many rows of
        the trace were taken; if not all, there is no room.
        """
        of_trace = [columns[name] for name in ("request_id", "length_bytes", "phase", "op")]
        count = len(of_trace[0])
        return call(
            "requests_take",
            self._shared,
            begin,
            count,
            first_row,
            *of_trace,
            rows,
            len(rows),
            is_counted,
        )

    def pop(self, below: int) -> Array:
        """Return RequestRecord of those whose id is less than `below`, in order of it.

        They are forgotten.
        """
        over = np.empty(self._shared.requests, RECORDER.dtype("RequestRecord"))
        over = over[: call("requests_pop", self._shared, below, over)]
        return over[np.argsort(over["id"])]

    def make_room(self) -> None:
        """Make room for more."""
        requests, spans = (self._shared.arrays[name] for name in ("request", "span"))
        if 2 * self._shared.requests > len(requests):
            requests = np.concatenate([requests, np.zeros_like(requests)])
        if self._shared.free_span == NONE and self._shared.spans == len(spans):
            spans = np.concatenate([spans, np.zeros_like(spans)])
        self._hold(requests, spans)


class RequestTimes:
    """The times of requests that are over: of all together, and by class of service."""

    def __init__(
        self, targets_ns: Mapping[str, Mapping[str, int]], limit: int = EXACT_REQUESTS
    ) -> None:
        """Judge classes by their `targets_ns`, by percentile; `limit` times of a kind are kept."""
        self._targets_ns = targets_ns
        self._times = TimeDistributions(_CLASSES + 2 * len(Qos), limit)
        self._requests, self._unknown = 0, 0
        self._seen: Array = np.zeros(len(Qos), np.int64)
        self._within: Array = np.zeros(len(Qos), np.int64)

    def add(
        self, storage_ns: Array, response_ns: Array | None, first_token_ns: Array, qos: Array
    ) -> None:
        """Take requests, one value of each a request.

        `storage_ns` is -1 where not all of a request's operations completed, `response_ns` None in
        a closed loop; `qos` are codes, -1 for no class.
        """
        self._requests += len(storage_ns)
        self._unknown += int((first_token_ns == NOT_DONE).sum())
        self._times.add(first_token_ns[first_token_ns != NOT_DONE], _FIRST_TOKEN)
        self._take(storage_ns != NOT_DONE, storage_ns, response_ns, _STORAGE)
        for code, name in enumerate(Qos):
            is_of_class = qos == code
            self._seen[code] += int(is_of_class.sum())
            is_timed = is_of_class & (storage_ns != NOT_DONE)
            judged = self._take(is_timed, storage_ns, response_ns, _CLASSES + 2 * code)
            self._within[code] += int((judged <= self._targets_ns[name]["p95"]).sum())

    def _take(
        self, which: Array, storage_ns: Array, response_ns: Array | None, index: int
    ) -> Array:
        """Take some of them into a distribution and, in an open loop, its next.

        Return the times that are judged.
        """
        self._times.add(storage_ns[which], index)
        if response_ns is None:
            return storage_ns[which]
        self._times.add(response_ns[which], index + 1)
        return response_ns[which]

    def figures(self, reason: str | None, *, is_open_loop: bool) -> RequestFigures:
        """Return their figures; `reason` says why no time to the first token is modelled."""
        return RequestFigures(
            requests=self._requests,
            storage=self._times.distribution(_STORAGE),
            response=self._times.distribution(_RESPONSE) if is_open_loop else None,
            classes=[
                self._class_figures(code, name, is_open_loop=is_open_loop)
                for code, name in enumerate(Qos)
                if self._seen[code]
            ],
            first_token=None if reason else self._times.distribution(_FIRST_TOKEN),
            first_token_unknown=None if reason else self._unknown,
            first_token_reason=reason,
            first_token_definition=TTFT_DEFINITION,
        )

    def _class_figures(self, code: int, name: str, *, is_open_loop: bool) -> ClassFigures:
        index = _CLASSES + 2 * code
        storage, response = (
            self._times.distribution(index + of_response) for of_response in (0, 1)
        )
        judged, limits_ns = response if is_open_loop else storage, self._targets_ns[name]
        known = {
            percentile: value
            for percentile in limits_ns
            if (value := getattr(judged, f"{percentile}_ns")) is not None
        }
        is_met = all(value <= limits_ns[percentile] for percentile, value in known.items())
        return ClassFigures(
            qos=str(name),
            storage=storage,
            response=response if is_open_loop else None,
            targets_ns=dict(limits_ns),
            verdict=("pass" if is_met else "fail") if known else "not measured",
            share_within_p95_target=(
                int(self._within[code]) / judged.count if judged.count else None
            ),
        )
