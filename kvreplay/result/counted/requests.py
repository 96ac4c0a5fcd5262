"""What requests got: their rows as long as some may follow, then their storage, response and first-token times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvreplay.config.criteria import Targets
from kvreplay.native.rows import COUNTED, NONE, NOT_DONE
from kvreplay.result.counted.times import Times, call
from kvreplay.result.part import RunPart
from kvtrace.core.native.structs import Structure
from kvtrace.core.run.figures import ClassFigures, RequestFigures
from kvtrace.core.schema import Qos
from kvtrace.core.units import parse_duration_ns

EXACT_REQUESTS = 100_000
"""Up to so many of one kind, percentiles are those of all."""
_AT_FIRST = 1 << 12
_STORAGE, _RESPONSE, _FIRST_TOKEN, _CLASSES = range(4)
TTFT_DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to the last completion, "
    "as replayed, + tokens that were not loaded * prefill_ns_per_token of the trace"
)
REQUEST, SPAN = map(COUNTED.dtype, ("Request", "Span"))


class OpenRequests:
    """The requests of which rows have come and may still come."""

    def __init__(self, moves: Any, loads: Any, *, is_open_loop: bool) -> None:
        """Know none; `moves` says by tier whether data moves there, `loads` by phase whether reads load cached KV."""
        self._shared = Structure(
            COUNTED,
            "Requests",
            moves=np.array(moves, np.bool_),
            loads=np.array(loads, np.bool_),
            free_span=NONE,
            is_open_loop=is_open_loop,
        )
        self._hold(np.zeros(_AT_FIRST, REQUEST), np.zeros(_AT_FIRST, SPAN))

    def _hold(self, requests: Any, spans: Any) -> None:
        room = len(requests)
        self._shared.set(request=requests, room=room, span=spans, span_room=len(spans))
        self._shared.set(place=np.empty(2 * room, np.int64), place_mask=2 * room - 1)
        call("requests_index", self._shared)

    def begin(self) -> None:
        """Say that the next rows are of a new part."""
        self._shared.set(planned=0)

    def take(self, at: int, first_row: int, columns: dict[str, Any], part: RunPart, counts: Any) -> int:
        """Take rows of the trace from `first_row` on, of which `at` were taken, with what `part` knows of them.

        Returns:
            how many were taken; if not all, there is no room.

        """
        of_trace = [columns[name] for name in ("request_id", "length_bytes", "phase", "op")]
        count = len(of_trace[0])
        return call("requests_take", self._shared, at, count, first_row, *of_trace, part.rows, len(part), counts)

    def pop(self, below: int) -> Any:
        """Return REQUEST of those whose id is less than `below`, in order of it, and forget them."""
        over = np.empty(self._shared["requests"], REQUEST)
        over = over[: call("requests_pop", self._shared, below, over)]
        return over[np.argsort(over["id"])]

    def make_room(self) -> None:
        """Make room for more."""
        requests, spans = (self._shared.arrays[name] for name in ("request", "span"))
        if 2 * self._shared["requests"] > len(requests):
            requests = np.concatenate([requests, np.zeros_like(requests)])
        if self._shared["free_span"] == NONE and self._shared["spans"] == len(spans):
            spans = np.concatenate([spans, np.zeros_like(spans)])
        self._hold(requests, spans)

    @property
    def nbytes(self) -> int:
        """What the tables take."""
        return sum(int(array.nbytes) for array in self._shared.arrays.values())


class RequestTimes:
    """The figures of requests that were added: as a whole and by class of service."""

    def __init__(self, targets: Mapping[str, Targets], limit: int = EXACT_REQUESTS) -> None:
        """Judge classes by their `targets`; up to `limit` requests are kept one by one."""
        self._targets, self._times = targets, Times(_CLASSES + 2 * len(Qos), limit)
        self._requests, self._unknown = 0, 0
        self._seen, self._within = np.zeros(len(Qos), np.int64), np.zeros(len(Qos), np.int64)

    def add(self, storage_ns: Any, response_ns: Any, first_token_ns: Any, qos: Any) -> None:
        """Take requests, one value of each a request.

        `storage_ns` is -1 where not all of a request's operations completed, `response_ns` None in a closed loop;
        `qos` are codes, -1 for no class.
        """
        self._requests += len(storage_ns)
        self._unknown += int((first_token_ns == NOT_DONE).sum())
        self._times.add(first_token_ns[first_token_ns != NOT_DONE], _FIRST_TOKEN)
        self._take(storage_ns != NOT_DONE, storage_ns, response_ns, _STORAGE)
        for code, name in enumerate(Qos):
            here = qos == code
            self._seen[code] += int(here.sum())
            judged = self._take(here & (storage_ns != NOT_DONE), storage_ns, response_ns, _CLASSES + 2 * code)
            self._within[code] += int((judged <= parse_duration_ns(self._targets[name].p95)).sum())

    def _take(self, which: Any, storage_ns: Any, response_ns: Any, at: int) -> Any:
        """Take some of them into a distribution and, in an open loop, its next; return the times that are judged."""
        self._times.add(storage_ns[which], at)
        if response_ns is None:
            return storage_ns[which]
        self._times.add(response_ns[which], at + 1)
        return response_ns[which]

    def figures(self, reason: str | None, *, is_open_loop: bool) -> RequestFigures:
        """Return their figures; `reason` says why no time to the first token is modelled."""
        return RequestFigures(
            requests=self._requests,
            storage=self._times.distribution(_STORAGE),
            response=self._times.distribution(_RESPONSE) if is_open_loop else None,
            classes=[self._class(code, name, is_open_loop) for code, name in enumerate(Qos) if self._seen[code]],
            first_token=None if reason else self._times.distribution(_FIRST_TOKEN),
            first_token_unknown=None if reason else self._unknown,
            first_token_reason=reason,
            first_token_definition=TTFT_DEFINITION,
        )

    def _class(self, code: int, name: str, is_open_loop: bool) -> ClassFigures:
        storage, response = (self._times.distribution(_CLASSES + 2 * code + i) for i in range(2))
        found, targets = response if is_open_loop else storage, self._targets[name]
        limits = {each: parse_duration_ns(getattr(targets, each)) for each in targets.__struct_fields__}
        known = {each: value for each in limits if (value := getattr(found, f"{each}_ns")) is not None}
        verdict = "pass" if all(value <= limits[each] for each, value in known.items()) else "fail"
        return ClassFigures(
            qos=str(name),
            storage=storage,
            response=response if is_open_loop else None,
            targets_ns=limits,
            verdict=verdict if known else "not measured",
            share_within_p95_target=int(self._within[code]) / found.count if found.count else None,
        )
