"""The recorded operations by request: storage time, response time and TTFT.

`OpenRequests` follows requests while rows of them may still come. `RequestTimes` collects the times
of finished requests, in total and by class of service.
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
"""Up to this number of requests, percentiles are exact."""
TTFT_DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to"
    " the last completion, as replayed, + what computing the tokens that were not loaded takes by"
    " the trace's prefill_ns_per_token and prefill_attention"
)
_ROOM_AT_FIRST = 1 << 12
_STORAGE, _RESPONSE, _FIRST_TOKEN, _CLASSES = range(4)


class OpenRequests:
    """The requests that have rows and may get more."""

    def __init__(
        self, moves: Array, loads: Array, *, is_open_loop: bool, row_bytes: int | None = None
    ) -> None:
        """Start without requests.

        `moves` is true for tiers that transfer data, `loads` for phases in which reads load cached
        KV. `row_bytes` is the stride of rows that are longer than OPERATION_ROW.
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
        """Start a new batch of rows."""
        self._shared.set(planned=0)

    def take(
        self,
        begin: int,
        first_row: int,
        columns: Mapping[str, Array],
        rows: Array,
        is_counted: Array,
    ) -> int:
        """Add the rows of the trace from `first_row` on, except the first `begin` of them.

        `rows` are the planned rows among them, with their measurements. Returns the number of rows
        of the trace that were added so far; if it is not all, there is no room for the others.
        """
        trace_columns = [columns[name] for name in ("request_id", "length_bytes", "phase", "op")]
        count = len(trace_columns[0])
        return call(
            "requests_take",
            self._shared,
            begin,
            count,
            first_row,
            *trace_columns,
            rows,
            len(rows),
            is_counted,
        )

    def pop(self, below: int) -> Array:
        """Remove the requests with an id less than `below`; return their RequestRecord by id."""
        records = np.empty(self._shared.requests, RECORDER.dtype("RequestRecord"))
        count = call("requests_pop", self._shared, below, records)
        records = records[:count]
        return records[np.argsort(records["id"])]

    def make_room(self) -> None:
        """Double the tables that are nearly full."""
        requests, spans = (self._shared.arrays[name] for name in ("request", "span"))
        if 2 * self._shared.requests > len(requests):
            requests = np.concatenate([requests, np.zeros_like(requests)])
        if self._shared.free_span == NONE and self._shared.spans == len(spans):
            spans = np.concatenate([spans, np.zeros_like(spans)])
        self._hold(requests, spans)


class RequestTimes:
    """The times of finished requests, in total and by class of service."""

    def __init__(
        self, targets_ns: Mapping[str, Mapping[str, int]], limit: int = EXACT_REQUESTS
    ) -> None:
        """Judge classes by their `targets_ns`, by percentile. Distributions store up to `limit`
        times.
        """
        self._targets_ns = targets_ns
        self._times = TimeDistributions(_CLASSES + 2 * len(Qos), limit)
        self._requests, self._unknown = 0, 0
        self._seen: Array = np.zeros(len(Qos), np.int64)
        self._within: Array = np.zeros(len(Qos), np.int64)

    def add(
        self, storage_ns: Array, response_ns: Array | None, first_token_ns: Array, qos: Array
    ) -> None:
        """Add requests, with one value of each array per request.

        `storage_ns` is -1 unless all of a request's operations completed; `response_ns` is None in
        a closed loop. `qos` are codes, -1 for no class.
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

    def _take(self, mask: Array, storage_ns: Array, response_ns: Array | None, index: int) -> Array:
        """Add the requests of `mask` to the distribution at `index` and, in an open loop, the next.

        Return the times that criteria judge.
        """
        self._times.add(storage_ns[mask], index)
        if response_ns is None:
            return storage_ns[mask]
        self._times.add(response_ns[mask], index + 1)
        return response_ns[mask]

    def figures(self, reason: str | None, *, is_open_loop: bool) -> RequestFigures:
        """Return the figures of the requests; `reason` says why TTFT is not modelled."""
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
        """Return the figures of one class of service."""
        index = _CLASSES + 2 * code
        storage = self._times.distribution(index)
        response = self._times.distribution(index + 1)
        judged = response if is_open_loop else storage
        limits_ns = self._targets_ns[name]
        measured_ns: dict[str, int] = {}
        for percentile in limits_ns:
            value = getattr(judged, f"{percentile}_ns")
            if value is not None:
                measured_ns[percentile] = value
        is_met = all(value <= limits_ns[percentile] for percentile, value in measured_ns.items())
        return ClassFigures(
            qos=str(name),
            storage=storage,
            response=response if is_open_loop else None,
            targets_ns=dict(limits_ns),
            verdict=("pass" if is_met else "fail") if measured_ns else "not measured",
            share_within_p95_target=(
                int(self._within[code]) / judged.count if judged.count else None
            ),
        )
