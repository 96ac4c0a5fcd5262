"""Collects the requests of a log one by one, and turns them into columns in order of arrival."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import cast

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.requests.block_ids import BlockIds, prefix_chains
from kvtrace.requests.int_columns import NONE, Ints, column
from kvtrace.requests.notes import counted
from kvtrace.requests.requests import (
    MAX_NS,
    Requests,
    SessionColumns,
    Waits,
    dense_sessions,
    origin_of,
    turns_of,
)


class RequestCollector:
    """Collects requests in the order of an engine's log, and returns columns in order of arrival.

    Blocks are named by hashes of any length, bytes or text. Times are of a wall clock.
    """

    def __init__(self, *, has_numbers: bool = False, has_contents: bool = False) -> None:
        """Start empty.

        With `has_numbers`, blocks are named by numbers, which are kept. With `has_contents` they
        are named by the tokens in them, which may well follow unequal prefixes: no note says so.
        """
        self._times, self._inputs, self._outputs, self._sessions = (array("q") for _ in range(4))
        self._answered, self._turns, self._has_numbers = array("q"), array("q"), has_numbers
        self._rows, self._has_contents = array("q"), has_contents
        self._without_end = 0
        """Number of requests for which the log has no end of the answer."""
        self._block_ids = BlockIds()
        self._ids: dict[Hashable, int] = {}
        self._session_numbers: dict[Hashable, int] = {}

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self._times)

    def add(
        self,
        time_ns: int,
        input_tokens: int,
        output_tokens: int,
        chain: Iterable[Hashable] = (),
        session: Hashable | None = None,
        answered_ns: int | None = None,
        turn: int = NONE,
        row: int = 0,
    ) -> None:
        """Append a request that arrived at `time_ns` of any clock, with the names of its blocks.

        `answered_ns` is the end of its answer, if logged. `turn` is given for all requests or none.
        `row` is its row in the file, from 1, for notes; 0 if a request is not of one row.
        """
        self._rows.append(row)
        self._times.append(time_ns)
        self._without_end += answered_ns is None
        self._answered.append(
            time_ns if answered_ns is None else max(time_ns, min(answered_ns, 2**63 - 1))
        )
        self._inputs.append(input_tokens)
        self._outputs.append(output_tokens)
        numbers = (
            cast("Iterable[int]", chain)
            if self._has_numbers
            else [self._ids.setdefault(name, len(self._ids)) for name in chain]
        )
        self._block_ids.append(numbers)
        self._turns.append(turn)
        self._sessions.append(
            NONE
            if session is None
            else self._session_numbers.setdefault(session, len(self._session_numbers))
        )

    def build_requests(
        self,
        kind: str,
        path: Path,
        sha256: str,
        block_tokens: int,
        notes: Iterable[str] = (),
        **facts: object,
    ) -> Requests:
        """Return the requests in order of arrival, from 0 ns on.

        Turns without a number are numbered in that order.

        TraceError without requests, or if they span more than a trace's clock holds.
        """
        if not self._times:
            raise TraceError("holds no request", path=path)
        times = column(self._times)
        order = np.argsort(times, kind="stable")
        arrivals = times[order]
        if int(arrivals[-1]) - int(arrivals[0]) > MAX_NS:
            raise TraceError("its times span more than the clock of a trace holds", path=path)
        inputs, outputs = column(self._inputs)[order], column(self._outputs)[order]
        missing_blocks = self._missing_blocks(block_tokens)
        offsets, ids = self._block_ids.with_new_ids(missing_blocks).reordered(order)
        chains = prefix_chains(ids, offsets)
        all_notes = list(notes)
        if block_tokens:
            unnamed = int(np.maximum(inputs - np.diff(offsets) * block_tokens, 0).sum())
            facts |= {
                "block_references": len(ids),
                "rechained_ids": 0 if self._has_contents else chains.renamed,
                "unnamed_tokens": unnamed,
            }
            if chains.renamed and not self._has_contents:
                all_notes += chains.notes(int(column(self._rows)[order][chains.first_request]))
            all_notes += counted(
                (
                    int(missing_blocks.sum()),
                    "blocks of prompts have no id in the file: they are stored, and never reused",
                ),
                (unnamed, "tokens at the ends of prompts have no block id and are never reused"),
            )
        optional_columns: SessionColumns = {}
        answered = column(self._answered)[order]
        if (answered != arrivals).any():
            optional_columns["answered_ns"] = np.minimum(answered - arrivals[0], MAX_NS)
            all_notes += counted(
                (
                    self._without_end,
                    "requests have no end of answer in the file: pauses after them begin at arrival",
                )
            )
        if self._session_numbers:
            sessions = dense_sessions(column(self._sessions)[order])
            turns = column(self._turns)[order]
            optional_columns |= {
                "session_id": sessions,
                "turn": turns_of(sessions) if (turns == NONE).all() else turns,
            }
            facts.setdefault("conversations", len(self._session_numbers))
        origin = origin_of(kind, path, sha256, len(arrivals), block_tokens, **facts)
        tokens = (inputs, outputs, offsets, chains.ids)
        return Requests(
            arrivals - arrivals[0],
            *tokens,
            block_tokens,
            origin,
            tuple(all_notes),
            **optional_columns,
        )

    def _missing_blocks(self, block_tokens: int) -> Ints:
        """Return the number of full blocks of each prompt for which the file has no id."""
        if not block_tokens:
            return np.zeros(len(self), dtype=np.int64)
        missing: Ints = column(self._inputs) // block_tokens - self._block_ids.lengths
        return missing.clip(min=0)

    def reorder_waits(self, waits: Waits) -> Waits:
        """Convert `waits` between requests in appended order to order of arrival."""
        return waits.select(
            np.argsort(column(self._times), kind="stable"), since_ns=min(self._times)
        )
