"""Requests in the order in which an engine's log has them, made into columns in order of arrival.

Engines name blocks by hashes of any length, of bytes or text, and log times of a wall clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.requests.chains import prefix_chains, rechained_notes, unnamed_notes
from kvtrace.requests.mooncake_sessions import flat
from kvtrace.requests.requests import MAX_NS, NONE, Requests, column, dense, origin_of
from kvtrace.requests.turns.waits import Waits


class Gathered:
    """The requests found so far."""

    def __init__(self) -> None:
        """Start without any."""
        self._times, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._answered = array("q")
        self._chains: list[array[int]] = []
        self._ids: dict[Hashable, int] = {}
        self._names: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._times)

    def add(
        self,
        time_ns: int,
        input_tokens: int,
        output_tokens: int,
        chain: Iterable[Hashable] = (),
        session: Hashable | None = None,
        answered_ns: int | None = None,
    ) -> None:
        """Append a request that arrived at `time_ns` of any clock, with the names of its prompt's blocks.

        Its answer ended at `answered_ns`, if the log says when.
        """
        self._times.append(time_ns)
        self._answered.append(time_ns if answered_ns is None else max(time_ns, min(answered_ns, 2**63 - 1)))
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        self._chains.append(array("q", [self._ids.setdefault(name, len(self._ids)) for name in chain]))
        self._sessions.append(NONE if session is None else self._names.setdefault(session, len(self._names)))

    def requests(
        self, kind: str, path: Path, sha256: str, block_tokens: int, notes: Iterable[str] = (), **facts: Any
    ) -> Requests:
        """Return the requests in order of arrival, from 0 ns on; turns of a session are numbered in that order.

        TraceError if there is none, or they span more than a trace's clock holds.
        """
        if not self._times:
            raise TraceError("holds no request", path=path)
        times = column(self._times)
        order = np.argsort(times, kind="stable")
        arrivals = times[order]
        if arrivals[-1] - arrivals[0] > MAX_NS:
            raise TraceError("its times span more than the clock of a trace holds", path=path)
        inputs, outputs = column(self._inputs)[order], column(self._outputs)[order]
        offsets, ids = flat(self._chains, order)
        ids, ambiguous = prefix_chains(ids, offsets) if len(ids) else (ids, 0)
        said = list(notes)
        if block_tokens:
            unnamed = int(np.maximum(inputs - np.diff(offsets) * block_tokens, 0).sum())
            facts |= {"block_references": len(ids), "rechained_ids": ambiguous, "unnamed_tokens": unnamed}
            said += [*unnamed_notes(unnamed), *rechained_notes(ambiguous)]
        place: dict[str, Any] = {}
        answered = column(self._answered)[order]
        if (answered != arrivals).any():
            place["answered_ns"] = np.minimum(answered - arrivals[0], MAX_NS)
        if self._names:
            sessions = column(self._sessions)[order]
            known = np.flatnonzero(sessions != NONE)
            sessions[known] = dense(sessions[known])[0]
            place |= {"session_id": sessions, "turn": _turns(sessions)}
            facts["conversations"] = len(self._names)
        origin = origin_of(kind, path, sha256, len(arrivals), block_tokens, **facts)
        tokens = (inputs, outputs, offsets, ids)
        return Requests(arrivals - arrivals[0], *tokens, block_tokens, origin, tuple(said), **place)

    def in_order(self, waits: Waits) -> Waits:
        """Return `waits` between requests as they were appended as those between the same in order of arrival."""
        return waits.kept(np.argsort(column(self._times), kind="stable"), since_ns=min(self._times))


def _turns(sessions: Any) -> Any:
    """Return how many earlier rows each row's session has; NONE for a row without one."""
    turns = np.full(len(sessions), NONE, dtype=np.int64)
    seen: dict[int, int] = {}
    for row, session in enumerate(sessions.tolist()):
        if session != NONE:
            turns[row] = seen.get(session, 0)
            seen[session] = turns[row] + 1
    return turns
