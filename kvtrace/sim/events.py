"""Who acts when, as records: events in a heap, the batch's clock, what users ask, who comes after whom; and rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.structures import Structure, table
from kvtrace.requests.turns.waits import Waits


def int64s(names: str) -> np.dtype[Any]:
    """Return a record of int64 fields, `names` with spaces between."""
    return np.dtype([(name, "i8") for name in names.split()])


EVENT = int64s("when actor")
"""Who acts when: at a time in ns, or at a count of the batch's clock."""

BATCH = int64s("size bytes step_ns steps since_ns due_ns first")
"""The requests that decode: how many, the bytes of KV cache that a step reads on one rank, how long it takes; the
clock of steps, and the time when it stood there; when the first that waits for the clock is due, and who that is."""

WAIT = int64s("when left right")
"""Of an actor that waits for its batch's clock: until which count, and the two heaps of those that wait longer."""

ASKED = int64s("arrival_ns request_id session_id turn input_tokens output_tokens qos kind")
"""A request of a user, as in the requests table."""

FOLLOWER = int64s("request delay_ns is_of_start")
"""A request that waits for another, and how long after its start, or after the end of its answer, it may come."""

WAITING = int64s("left ready_ns")
"""A request that follows others: how many it still waits for, and when it may come for all that is known."""


class Following(Structure):
    """The requests of a file that wait for others, by their rows there; all is empty if none does."""

    first = table("i8")
    """[requests + 1]: request n is waited for by followers[first[n]:first[n + 1]]."""
    followers = table(FOLLOWER)
    waiting = table(WAITING)
    """[requests]"""
    coming = table(EVENT)
    """[requests]: a heap of those that wait for none any more, by arrival; control.coming of them."""
    came = table(EVENT)
    """[requests]: those that have arrived, in order, and when; control.arrived of them."""

    def follow(self, waits: Waits, arrival_ns: Any) -> int:
        """Let requests wait as `waits` says; return how many wait for none, and so come at `arrival_ns`, in order."""
        count, order = len(arrival_ns), np.argsort(waits.before, kind="stable")
        ends = np.cumsum(np.bincount(waits.before, minlength=count))
        self.first = np.concatenate([np.zeros(1, np.int64), ends])
        self.followers = np.zeros(len(waits), FOLLOWER)
        for name, values in (("request", waits.row), ("delay_ns", waits.delay_ns), ("is_of_start", waits.is_of_start)):
            self.followers[name] = values[order]
        self.waiting, self.coming, self.came = np.zeros(count, WAITING), np.zeros(count, EVENT), np.zeros(count, EVENT)
        self.waiting["left"] = np.bincount(waits.row, minlength=count)
        self.waiting["ready_ns"] = waits.not_before_ns
        firsts = np.flatnonzero(self.waiting["left"] == 0)
        # What is in order is a heap.
        self.coming["when"][: len(firsts)], self.coming["actor"][: len(firsts)] = arrival_ns[firsts], firsts
        return len(firsts)


class RowColumns(Structure):
    """Trace rows, a table a column; request and stage NONE for background work."""

    ts_ns = table("i8")
    op = table("i1")
    tier = table("i1")
    phase = table("i1")
    object_id = table("i8")
    length_bytes = table("i8")
    request_id = table("i8")
    stage = table("i4")
    rank = table("i2")

    def room_for(self, rows: int) -> None:
        """Make new, empty columns of so many `rows`."""
        for name, field in self.fields.items():
            setattr(self, name, np.empty(rows, field.dtype))

    def use(self, columns: dict[str, Any]) -> None:
        """Write into `columns`, which nobody else needs."""
        for name, column in columns.items():
            setattr(self, name, column)
