"""The job of the engine and its results, and the structures of replay.h that hold them."""

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
    """The tiers by index; None for a tier without a target, which no row refers to."""
    data: DataSource
    is_open_loop: bool = False
    stops_on_error: bool = True
    watched: Callable[[Callable[[], int]], None] | None = None
    """Called when the job begins, with a function that returns the I/Os and copies in flight.

    It may be asked by any thread.
    """
    bulk_depth: int | None = None
    """How many I/Os of a save or restore may be in flight; None: as many as there may be at all."""
    is_verified: bool = False
    """Whether the data of reads is verified."""
    plan_address: int = 0
    """Address of the plan, which has the versions that a read across several writes must find."""
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
    """Number of the row in the trace."""
    message: str
    is_corrupt: bool = False
    """Whether a read returned data that was not written, which does not stop the run."""


class ThreadUse(REPLAY.struct("Use")):  # type: ignore[misc]
    """The time that one engine thread spent on each activity, as in replay.h."""

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
    """Zero of the rows' times, on the monotonic clock."""
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
    """Idle places times time, while all remaining rows waited for rows in flight."""
    unread_ns: int = 0
    """The same because the next rows of the trace were not read yet."""
    reserve_ns: int = 0
    """Giving objects their extents, in whichever thread began their writes."""
    writes_generated_in_flight: int = 0
    """Writes of several I/Os: the data of the later ones was made while the first ran."""
    others_share: float | None = None
    """Share of all processor time that other programs took; None where it was not measured."""
    stalled: str | None = None
    """The activity of each thread when the run stalled: nothing had completed for too long.

    None if the run did not stall.
    """
    verification: Verification | None = None

    def of(self, *kinds: str) -> list[ThreadUse]:
        """Return the threads of these kinds."""
        return [thread for thread in self.threads if thread.kind in kinds]

    @property
    def making_ns(self) -> int:
        """Time of all threads in generating the data of writes."""
        return sum(thread.making_ns + thread.preparing_ns for thread in self.threads)


_RINGS_QUEUE = -2
OPEN, MOVE, CLOSE, ERASE, WHOLE = range(5)
"""Acts of a task that Python performs, numbered as in replay.h."""
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
"""Activities of a thread, numbered as in replay.h."""


Digit, TierStruct, JobStruct, TaskStruct = map(REPLAY.struct, ("Digit", "Tier", "Job", "Task"))


class TierTable:
    """The tiers of a job as structs of C, with the arrays that they point to."""

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
        # The queue for reads, writes and deletes of each kind of tier; queue 0 serves tiers that
        # take no time.
        queues = {TierKind.MEMORY: copiers, TierKind.MODELLED: workers, TierKind.PYTHON: workers}
        queues |= dict.fromkeys(
            (TierKind.EXTENTS, TierKind.FILES), _RINGS_QUEUE if rings else workers
        )
        for index, (tier, to) in enumerate(zip(tiers, self.structs, strict=False)):
            share = of_tiers[index] if index < len(of_tiers) else OfTier()
            native = Native(TierKind.NOTHING) if tier is None else tier.native()
            to.kind, to.padding_bytes = native.kind, 1 if tier is None else tier.alignment
            queue = (
                workers
                if native.kind is TierKind.FILES and not (tier and tier.has_ring)
                else queues.get(native.kind, 0)
            )
            to.queue[:] = [queue] * len(Op)
            if native.fields.get("is_discarding"):
                to.queue[DELETE] = workers
            self.workers |= workers in to.queue[:]
            self.has_copies |= queue == copiers
            drives: Any = (NativeDrive * len(native.drives))(*native.drives)
            for number, drive in enumerate(drives):
                drive_index = number if len(share.first) > 1 else 0
                drive.first_loop, drive.loops, drive.loop_step = (
                    share.first[drive_index],
                    share.counts[drive_index],
                    share.step,
                )
            to.drives, to.drive = len(drives), self._at(drives) if len(drives) else None
            to.drive_of = None if native.drive_of is None else self._at(native.drive_of)
            for field_name, value in native.fields.items():
                setattr(to, field_name, value)
            to.write_streams = to.write_streams if is_placed else 0
            if native.layout is not None:
                name, digits = name_template(native.layout)
                text = ctypes.create_string_buffer(name)
                of_name: Any = (Digit * len(digits))(*[Digit(*digit) for digit in digits])
                to.name, to.name_bytes, to.spread = self._at(text), len(name) + 1, SPREAD
                to.digit, to.digits = self._at(of_name), len(digits)
            if native.service is not None:
                to.read_bytes_per_s, to.write_bytes_per_s = (
                    native.service.read_bytes_per_s,
                    native.service.write_bytes_per_s,
                )
                to.latency_ns, to.occupied_ns = native.service.latency_ns, native.service.least_ns

    def _at(self, values: Any) -> int:
        """Return the address of a ctypes or NumPy array, and keep the array alive."""
        self._kept.append(values)
        return (
            ctypes.addressof(values)
            if isinstance(values, ctypes.Array)
            else int(values.ctypes.data)
        )

    @property
    def address(self) -> int:
        """The address of the first tier's struct."""
        return ctypes.addressof(self.structs)
