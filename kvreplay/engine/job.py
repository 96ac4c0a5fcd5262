"""How operations reach the tiers: engines of one form, chosen by what the machine allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np

from kvreplay.data.buffers import Arena
from kvreplay.engine.sliding.slider import Slider
from kvreplay.plan.held.column import column
from kvreplay.plan.plan import Plan
from kvreplay.tiers.tier import Tier

NOT_DONE = -1
OK, ERROR, SHORT, SKIPPED, CORRUPT = 0, 1, 2, 3, 4
"""Outcome codes, in the order of the contract's closed set."""
_NAMES = ("read", "write", "delete")
"""Of operations, by their code."""


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured, one item a planned row; times from the run's start, -1 where there is none."""

    submitted_ns: Any
    completed_ns: Any
    outcome: Any
    ready_ns: Any
    """When the last operation it had to wait for completed; None in a closed loop."""
    retries: dict[int, int] = field(default_factory=dict)
    """By row: the requests that an object store refused or failed and that were sent again, where any were."""
    _begun: list[int] = field(default_factory=list)
    """One number: how many rows have a place in the arrays by now; none if all have."""

    @property
    def begun(self) -> int:
        """How many rows are there by now."""
        return self._begun[0] if self._begun else len(self.outcome)

    @classmethod
    def empty(cls, rows: int, *, is_open_loop: bool, laid: int | None = None) -> Record:
        """Return a record of nothing for `rows` rows, of which so many are `laid` yet, or all."""
        ready = column(rows, np.int64) if is_open_loop else None
        found = cls(column(rows, np.int64), column(rows, np.int64), column(rows, np.int8), ready)
        found.begin(0, rows if laid is None else laid)
        return found

    def begin(self, first: int, last: int) -> None:
        """Note of the rows from `first` to before `last` that nothing was done."""
        self.submitted_ns[first:last] = self.completed_ns[first:last] = NOT_DONE
        self.outcome[first:last] = SKIPPED
        self._begun[:] = [last]

    def columns(self) -> list[Any]:
        """Return the arrays."""
        ready = [] if self.ready_ns is None else [self.ready_ns]
        return [self.submitted_ns, self.completed_ns, self.outcome, *ready]


class CommonStart(Protocol):
    """When a job begins whose clock is not its own: together with those of other processes."""

    def agree(self, soonest_ns: int) -> int:
        """Return the instant (monotonic clock) that counts as 0, at `soonest_ns` at the soonest."""

    def wait(self, *, is_open_loop: bool) -> None:
        """Return at that instant, at once in an open loop, whose operations have their own times."""


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine is to do: the rows of a plan on their tiers, into a record."""

    plan: Plan
    due_ns: Any
    """int64 a row, from the run's start; None in a closed loop."""
    tiers: Sequence[Tier | None]
    """By tier index; None for tiers without a target, which no planned row has."""
    record: Record
    fill: Callable[[memoryview, int, int, int], None]
    """Puts data into a buffer: buffer, object id, version, offset."""
    stops_on_error: bool = True
    watched: Callable[[Callable[[], int]], None] | None = None
    """Takes what says how many I/Os and copies are in flight, when the job begins; it may be asked by any thread."""
    bulk_depth: int | None = None
    """How many I/Os of a save or restore may be in flight; None: as many as there may be at all."""
    check: Callable[[memoryview, int, int], str | None] | None = None
    """Takes what a read brought (buffer, planned row, offset), says what is wrong: outcome CORRUPT; with --verify."""
    start: CommonStart | None = None
    """Null: as soon as its threads run."""
    slider: Slider | None = None
    """Loads the rows of the plan meanwhile; None if they are all there."""


@dataclass(slots=True, eq=False)
class Flight:
    """One operation between becoming ready and completing, where Python has to do with it."""

    number: int
    """Its own while it is under way."""
    row: int
    op: int
    start: int
    """First byte, aligned."""
    end: int
    """Byte after the last, aligned."""
    needed_end: int
    """Byte after the last that the trace asks for."""
    pieces: int
    has_io: bool
    """Whether bytes move; a delete, an empty range and a simulated tier have one piece without any."""
    needs_data: bool
    """Whether it writes generated data."""
    is_failed: bool = False
    handle: Any = None
    fd: int = -1
    """The open file that the object is an extent of; -1 if it has a file of its own, or none."""
    base: int = 0
    """Where in that file the object begins."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation that failed."""

    row: int
    """Of the trace."""
    message: str
    is_corrupt: bool = False
    """Whether a read brought what was not written; that stops no run."""

    @classmethod
    def of(cls, flight: Flight, row: int, object_id: int, outcome: int, message: str) -> Self:
        """Say what became of `flight`, which is the trace's `row` and works on the object `object_id`."""
        return cls(row, f"{_NAMES[flight.op]} of object {object_id}: {message}", outcome == CORRUPT)

    @classmethod
    def first(cls, known: Failure | None, found: Failure) -> Failure:
        """Return the one to tell of: the first, but a refusal before corruption."""
        return found if known is None or (known.is_corrupt and not found.is_corrupt) else known


@dataclass(frozen=True, slots=True)
class Driven:
    """How a job went."""

    wall_ns: int
    completed: int
    failure: Failure | None
    interrupted_by: str | None
    generation_ns: int
    """Time that threads spent making data beside the submitting one."""
    reserve_ns: int
    """The same of making room for objects before they were written, memory's first touch above all."""
    generation_threads: int
    starved_ns: int
    """Places of the queue times time that stood idle because a write's data was not there."""
    writes_generated_in_flight: int
    """Writes longer than the buffers, whose later data was made while they ran."""
    started_ns: int
    """On the monotonic clock: what the record's times count from."""
    held_ns: int = 0
    """Time in which something due waited because as much was in flight as may be; 0 in a closed loop."""
    submitting_generation_ns: int = 0
    submitting_reserve_ns: int = 0
    """What the submitting thread itself spent on both."""
    lacking_ns: int = 0
    """Other time in which a due write lacked its data."""
    in_use_ns: int | None = None
    """Places of the queue times time that I/Os were in; None, as the next three, where it was not counted."""
    blocked_ns: int | None = None
    """The same of places that stood idle in a closed loop because all rows left waited for what was in flight."""
    idle_ns: int | None = None
    """Time in which the submitting thread had nothing to do; None where each thread submits for itself."""
    copy_threads: int = 0
    copying_ns: int | None = None
    """What these threads were not asleep, together; None without them."""
    unread_ns: int = 0
    """Places of the queue times time that stood idle because the next rows of the trace were not read yet."""


class IoEngine(Protocol):
    """Drives jobs to their end; memory is bounded by queue depth and I/O size."""

    name: str
    buffer_bytes: int
    """What its buffers may take."""
    depth: int
    """I/Os in flight at most."""
    io_bytes: int
    generators: int
    """Threads that make data."""

    @property
    def buffer_used_bytes(self) -> int | None:
        """What was in use of them at once, at most; None before any job."""

    @property
    def arenas(self) -> tuple[Arena, Arena]:
        """The buffers of reads and of writes."""

    def facts(self) -> dict[str, Any]:
        """Return which path I/O takes, for run.json."""

    def drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job; `interrupted` names what asks to stop, `progress` takes the rows done."""
