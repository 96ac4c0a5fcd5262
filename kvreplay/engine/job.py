"""What the engine is given to do and what came of it, and the structures of replay.h laid out for
it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvreplay.engine.share import OfTier
from kvreplay.plan.contents import DataSource
from kvreplay.plan.row_ring import DELETE, REPLAY, RowRing
from kvreplay.tiers.tier import SPREAD, Native, NativeDrive, Tier, TierKind, name_template
from kvtrace.core.run.run_file import Verification
from kvtrace.core.schema import Op


class Together(Protocol):
    """The replays of other processes that start and end with this one."""

    @property
    def reason(self) -> str | None:
        """The reason why all end now; null while they run."""

    def ready(self) -> None:
        """Wait until all are prepared for the first operation.

        KvError if one cannot be: none is to start.
        """

    def agree(self, soonest_ns: int) -> int:
        """Agree on the start of the run, not before `soonest_ns` (monotonic clock)."""

    def begun(self) -> None:
        """Record by how much the threads started after the agreed instant."""


class Feeding(Protocol):
    """Lays rows into the ring ahead of the run, and hands on completed ones."""

    def running(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        """Lay rows while the context lasts, calling `wake` after each batch.

        KvError at its end if the trace is bad.
        """

    @property
    def trouble(self) -> str | None:
        """Why no more rows will come; None while they may."""


@dataclass(frozen=True, slots=True)
class Job:
    """The input of the engine: rows of a plan on their tiers."""

    rows: RowRing
    tiers: Sequence[Tier | None]
    """By tier index; None for tiers without a target, which no row has."""
    data: DataSource
    is_open_loop: bool = False
    stops_on_error: bool = True
    watched: Callable[[Callable[[], int]], None] | None = None
    """Takes what says how many I/Os and copies are in flight, when the job begins.

    It may be asked by any thread.
    """
    bulk_depth: int | None = None
    """How many I/Os of a save or restore may be in flight; None: as many as there may be at all."""
    is_verified: bool = False
    """Whether what reads bring is checked."""
    plan_address: int = 0
    """Of what knows which versions a read must find that spans several writes."""
    start: Together | None = None
    """Null: as soon as its threads run."""
    feed: Feeding | None = None
    """Lays rows meanwhile; None if they are all there."""
    stall_ns: int | None = None
    """If nothing completes for so long though something is in flight or due, the job ends.

    None: never.
    """
    runtime_ns: int | None = None
    """When it ends, from its common start on, if it is not over before; None: never."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An operation that failed."""

    row: int
    """Of the trace."""
    message: str
    is_corrupt: bool = False
    """Whether a read brought what was not written; that stops no run."""


class ThreadUse(REPLAY.struct("Use")):  # type: ignore[misc]
    """How one engine thread spent its time, as replay.h says."""

    kind: str
    """ring, worker or copier."""


@dataclass(frozen=True, slots=True)
class Driven:
    """The outcome of a job: times in ns, counts, failures."""

    wall_ns: int
    completed: int
    failure: Failure | None
    interrupted_by: str | None
    started_ns: int
    """On the monotonic clock: what the times of rows count from."""
    threads: Sequence[ThreadUse] = field(default_factory=list)
    in_use_ns: int | None = None
    """Places of the queue times time that I/Os were in.

    None, as the next two, where it was not counted.
    """
    depth_limited_ns: int = 0
    """Time in which something due waited because as much was in flight as may be."""
    growing_ns: int = 0
    """Time in which something due waited because memory of the engine's buffers was still being
    touched.
    """
    blocked_ns: int | None = None
    """Places times time that stood idle because all rows left waited for what was in flight."""
    unread_ns: int = 0
    """The same because the next rows of the trace were not read yet."""
    reserve_ns: int = 0
    """Giving objects their extents, in whichever thread began their writes."""
    writes_generated_in_flight: int = 0
    """Writes of several I/Os: the data of the later ones was made while the first ran."""
    stalled: str | None = None
    """What each thread was doing when nothing had completed for too long.

    None if that was not so.
    """
    verification: Verification | None = None

    def of(self, *kinds: str) -> list[ThreadUse]:
        """Return the threads of these kinds."""
        return [each for each in self.threads if each.kind in kinds]

    @property
    def making_ns(self) -> int:
        """Time of all threads in generating the data of writes."""
        return sum(each.making_ns for each in self.threads)


_RINGS_QUEUE = -2
OPEN, MOVE, CLOSE, ERASE, WHOLE = range(5)
"""By the numbers of replay.h: what a task of Python's is to do."""
DOINGS = (
    "starting",
    "making data",
    "in the kernel",
    "waiting",
    "moving",
    "in a tier's client",
    "checking",
    "ended",
)
"""By the numbers of replay.h: what a thread is doing."""


Digit, TierStruct, JobStruct, TaskStruct = map(REPLAY.struct, ("Digit", "Tier", "Job", "Task"))


class TierTable:
    """The tiers of a job as C sees them, and what they point to."""

    def __init__(
        self,
        tiers: Sequence[Tier | None],
        rings: int,
        of_tiers: Sequence[OfTier],
        *,
        is_placed: bool,
    ) -> None:
        """Lay out `tiers`.

        Those on rings go by `of_tiers`; the workers' and the copiers' queues follow.
        """
        self._kept: list[Any] = []
        self.structs: Any = (TierStruct * max(1, len(tiers)))()
        self.workers = self.has_copies = False
        """Whether steps go to workers, and to copiers."""
        workers, copiers = rings, rings + 1
        # Whose loops do reads, writes and deletes of each kind of tier; queue 0 does what takes no
        # time.
        queues = {TierKind.MEMORY: copiers, TierKind.MODELLED: workers, TierKind.PYTHON: workers}
        queues |= dict.fromkeys(
            (TierKind.EXTENTS, TierKind.FILES), _RINGS_QUEUE if rings else workers
        )
        for at, (tier, to) in enumerate(zip(tiers, self.structs, strict=False)):
            share = of_tiers[at] if at < len(of_tiers) else OfTier()
            of = Native(TierKind.NOTHING) if tier is None else tier.native()
            to.kind, to.padding_bytes = of.kind, 1 if tier is None else tier.alignment
            queue = (
                workers
                if of.kind is TierKind.FILES and not (tier and tier.has_ring)
                else queues.get(of.kind, 0)
            )
            to.queue[:] = [queue] * len(Op)
            if of.fields.get("is_discarding"):
                to.queue[DELETE] = workers
            self.workers |= workers in to.queue[:]
            self.has_copies |= queue == copiers
            drives: Any = (NativeDrive * len(of.drives))(*of.drives)
            for number, drive in enumerate(drives):
                one = number if len(share.first) > 1 else 0
                drive.first_loop, drive.loops, drive.loop_step = (
                    share.first[one],
                    share.counts[one],
                    share.step,
                )
            to.drives, to.drive = len(drives), self._at(drives) if len(drives) else None
            to.drive_of = None if of.drive_of is None else self._at(of.drive_of)
            for field_name, value in of.fields.items():
                setattr(to, field_name, value)
            to.write_streams = to.write_streams if is_placed else 0
            if of.layout is not None:
                name, digits = name_template(of.layout)
                text = ctypes.create_string_buffer(name)
                of_name: Any = (Digit * len(digits))(*[Digit(*digit) for digit in digits])
                to.name, to.name_bytes, to.spread = self._at(text), len(name) + 1, SPREAD
                to.digit, to.digits = self._at(of_name), len(digits)
            if of.service is not None:
                to.read_bytes_per_s, to.write_bytes_per_s = (
                    of.service.read_bytes_per_s,
                    of.service.write_bytes_per_s,
                )
                to.latency_ns, to.occupied_ns = of.service.latency_ns, of.service.least_ns

    def _at(self, values: Any) -> int:
        """Return the address of a ctypes or NumPy array, which is kept."""
        self._kept.append(values)
        return (
            ctypes.addressof(values)
            if isinstance(values, ctypes.Array)
            else int(values.ctypes.data)
        )

    @property
    def address(self) -> int:
        """Of the first."""
        return ctypes.addressof(self.structs)
