"""What an engine is given to do, and how it went."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from kvreplay.data.source import DataSource
from kvreplay.data.verify import Verifier
from kvreplay.native.rows import RowRing
from kvreplay.tiers.tier import Tier
from kvtrace.core.run.run_file import Verification


class CommonStart(Protocol):
    """When a job begins whose clock is not its own: together with those of other processes."""

    def agree(self, soonest_ns: int) -> int:
        """Return the instant (monotonic clock) that counts as 0, at `soonest_ns` at the soonest."""

    def begun(self) -> None:
        """Record how late the threads were started, if after that instant."""


class Feeding(Protocol):
    """What lays rows ahead of a run, and hands on those behind it."""

    def running(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Lay rows while the context lasts, calling `wake` after each time; at its end KvError, if the trace is bad."""

    @property
    def trouble(self) -> str | None:
        """Why no more rows will come; None while they may."""


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine is to do: rows of a plan on their tiers."""

    rows: RowRing
    tiers: Sequence[Tier | None]
    """By tier index; None for tiers without a target, which no row has."""
    data: DataSource
    is_open_loop: bool = False
    stops_on_error: bool = True
    watched: Callable[[Callable[[], int]], None] | None = None
    """Takes what says how many I/Os and copies are in flight, when the job begins; it may be asked by any thread."""
    bulk_depth: int | None = None
    """How many I/Os of a save or restore may be in flight; None: as many as there may be at all."""
    verifier: Verifier | None = None
    """Takes what checks find; None: nothing is checked."""
    plan_address: int = 0
    """Of what knows which versions a read must find that spans several writes."""
    start: CommonStart | None = None
    """Null: as soon as its threads run."""
    feed: Feeding | None = None
    """Lays rows meanwhile; None if they are all there."""
    stall_ns: int | None = None
    """If nothing completes for so long though something is in flight or due, the job ends; None: never."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation that failed."""

    row: int
    """Of the trace."""
    message: str
    is_corrupt: bool = False
    """Whether a read brought what was not written; that stops no run."""


@dataclass(frozen=True, slots=True)
class ThreadUse:
    """What one of the engine's threads did with its time; ns each."""

    kind: str
    """ring, worker or copier."""
    enter_ns: int
    """In io_uring_enter to submit; of a worker: in calls that move data."""
    blocked_ns: int
    """Of it: asleep with submissions in hand, because the block layer's queue was full or throttled."""
    making_ns: int
    copying_ns: int
    touching_ns: int
    """Taking pages for the memory of a tier, which had fewer when the run began."""
    checking_ns: int
    asleep_ns: int
    """With nothing to do: until something completes or is due."""
    waited_ns: int | None
    """For a processor, ready to run; None where the kernel does not tell (schedstat)."""
    user_ns: int
    system_ns: int
    minor_faults: int
    major_faults: int
    cpu: int
    """On which it ended."""


@dataclass(frozen=True, slots=True)
class Driven:
    """How a job went."""

    wall_ns: int
    completed: int
    failure: Failure | None
    interrupted_by: str | None
    started_ns: int
    """On the monotonic clock: what the times of rows count from."""
    threads: Sequence[ThreadUse] = field(default_factory=list)
    in_use_ns: int | None = None
    """Places of the queue times time that I/Os were in; None, as the next two, where it was not counted."""
    held_ns: int = 0
    """Time in which something due waited because as much was in flight as may be."""
    growing_ns: int = 0
    """Time in which something due waited because memory of the engine's buffers was still being touched."""
    blocked_ns: int | None = None
    """Places times time that stood idle because all rows left waited for what was in flight."""
    unread_ns: int = 0
    """The same because the next rows of the trace were not read yet."""
    reserve_ns: int = 0
    """Giving objects their extents, in whichever thread began their writes."""
    writes_generated_in_flight: int = 0
    """Writes of several I/Os: the data of the later ones was made while the first ran."""
    stalled: str | None = None
    """What each thread was doing when nothing had completed for too long; None if that was not so."""
    verification: Verification | None = None

    def of(self, *kinds: str) -> list[ThreadUse]:
        """Return the threads of these kinds."""
        return [each for each in self.threads if each.kind in kinds]

    @property
    def making_ns(self) -> int:
        """Making the data of writes, all threads together."""
        return sum(each.making_ns for each in self.threads)

    @property
    def copy_threads(self) -> int:
        """Threads that copy to and from memory."""
        return len(self.of("copier"))
