"""The engines, and which one a run takes: what was asked for, else io_uring where files and the kernel allow it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

from kvreplay.data.buffers import Moved, arenas, buffer_bytes
from kvreplay.engine import ring
from kvreplay.engine.job import Driven, IoEngine, Job
from kvreplay.engine.pump import compile_engine
from kvreplay.engine.rings.rings import Rings, ServedRing
from kvreplay.engine.rings.share import Share, alone, share
from kvreplay.engine.threads import ThreadSubmitter
from kvreplay.engine.turn import SPIN_NS
from kvreplay.engine.uring import RingSubmitter
from kvreplay.engine.workers import generators, precise_timers
from kvreplay.tiers.tier import DeviceTier, RingExtents, Tier, copied, has_times, on_ring
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.run.run_file import SubmitterNote

MAX_ENTRIES = 4096
"""Of a ring."""


class ThreadEngine:
    """The engine that works everywhere: a thread an I/O in flight, and a few that make data."""

    name = "threads"

    def __init__(
        self, depth: int, io_bytes: int, *, is_growing: bool = False, asked: tuple[Moved, Moved] | None = None
    ) -> None:
        """Allocate the buffers; with `is_growing` they are touched as more are in use, and as `asked` may fill any."""
        self.depth, self.io_bytes, self.generators = depth, io_bytes, generators(depth)
        self.arenas = arenas(depth, io_bytes, is_growing=is_growing, asked=asked)
        self.buffer_bytes = buffer_bytes(depth, io_bytes)
        compile_engine()

    @property
    def buffer_used_bytes(self) -> int | None:
        """What was in use of the buffers at once, at most, since the engine was made; None before any job."""
        used = [arena.used_bytes for arena in self.arenas]
        return None if None in used else sum(n for n in used if n is not None)

    def facts(self) -> dict[str, Any]:
        """Say nothing more: a thread has one system call in flight."""
        return {}

    def drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job; the calling thread is one of those that submit."""
        before = precise_timers()
        try:
            return self._drive(job, interrupted, progress)
        finally:
            precise_timers(before)

    def _drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        return ThreadSubmitter(self, job).drive(interrupted, progress)


class UringEngine(ThreadEngine):
    """The engine for Linux with io_uring: the kernel opens, moves and closes, threads do what is in no file."""

    name = "uring"

    def __init__(
        self,
        depth: int,
        io_bytes: int,
        *,
        is_growing: bool = False,
        asked: tuple[Moved, Moved] | None = None,
        shared: Share | None = None,
    ) -> None:
        """Allocate the buffers; of those that grow, only the first are registered with the rings.

        `shared` says which they are; if threads cannot serve them, there is one for all.
        """
        super().__init__(depth, io_bytes, is_growing=is_growing, asked=asked)
        self._share = shared or alone("one ring for all")
        self._cpus: list[int | None] = [None] * self._share.rings
        try:
            self._probe()
        except ring.RingRefused as refused:
            if self._share.rings == 1:
                raise
            self._share, self._cpus = alone(self._share.because, refused=str(refused)), [None]
            self._probe()

    def _probe(self) -> None:
        """Make the rings once, for what the kernel allows."""
        with self._open_rings() as probe:
            self.is_deferred = bool(probe.all[0].flags & ring.SETUP_DEFER_TASKRUN)
            self.unregistered = self._register(probe)

    def _open_rings(self) -> Rings:
        """Return rings for one job; RingRefused if the kernel gives none."""
        entries, count = 64, self._share.rings
        while entries < 4 * self.depth:
            entries *= 2
        kind = ring.Ring if count == 1 else ServedRing
        with ExitStack() as stack:
            made = [stack.enter_context(kind(min(entries, MAX_ENTRIES), files=self.depth)) for _ in range(count)]
            stack.pop_all()
            return Rings(made, self._share)

    def _register(self, to: Rings) -> str | None:
        """Pin the buffers; return why they are not, or None."""
        reads, writes = self.arenas
        try:
            for each in to.all:
                each.register_buffers(reads.places[: reads.first] + writes.places[: writes.first])
        except OSError as error:
            if error.errno == errno.ENOMEM:
                pinned = sum(size for arena in self.arenas for _, size in arena.places[: arena.first]) * len(to.all)
                return f"the locked-memory limit is below {pinned >> 20} MiB (ulimit -l)"
            return f"the kernel refused to register the buffers: {error.strerror}"
        return None

    def facts(self) -> dict[str, Any]:
        """Return which path I/O takes, for run.json."""
        shared = self._share
        return {
            "is_deferred_taskrun": self.is_deferred,
            "has_registered_buffers": self.unregistered is None,
            "unregistered_because": self.unregistered,
            "spin_ns": SPIN_NS,
            "submitters_because": shared.because,
            "submitters_refused": shared.refused,
            "submitters": [
                SubmitterNote(
                    targets=list(targets) or None,
                    is_own_thread=shared.rings > 1,
                    numa_node=shared.node(at),
                    cpus=None if (cpus := shared.cpus(at)) is None else sorted(cpus),
                    cpu=self._cpus[at],
                )
                for at, targets in enumerate(shared.targets)
            ],
        }

    def _drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        with self._open_rings() as own:
            is_registered = self.unregistered is None and self._register(own) is None
            reads, writes = self.arenas
            registered = (reads.first, writes.first) if is_registered else (0, 0)
            for each in own.all:
                each.allow_workers(max(self.depth, 4))
            driven = RingSubmitter(self, job, own, registered).drive(interrupted, progress)
            self._cpus = own.cpus()
            return driven


class EngineName(StrEnum):
    """What `--engine` takes."""

    AUTO = "auto"
    THREADS = "threads"
    URING = "uring"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The engine of a run, and why it is this one."""

    engine: IoEngine
    because: str


def check_name(text: str) -> EngineName:
    """Return the engine that `--engine` names; ConfigError if there is none."""
    try:
        return EngineName(text)
    except ValueError:
        raise ConfigError(f"--engine {text}: choose {', '.join(EngineName)}") from None


def choose(
    wanted: EngineName,
    tiers: Sequence[Tier | None],
    depth: int,
    io_bytes: int,
    *,
    is_growing: bool = False,
    asked: tuple[Moved, Moved] | None = None,
    submitters: int | None = 1,
) -> Chosen:
    """Return the engine to run with; tell the tiers of files which it is, and those on a GPU of its buffers.

    With `is_growing` its buffers are touched as more are in use, and of all only those that the reads and writes
    `asked` may fill; those on a GPU cannot be. `submitters` rings are wanted, or one a drive where there are processors
    for that (None).

    Raises:
        DeviceError: io_uring was asked for by name and the kernel does not give it.

    """
    if any(isinstance(t, DeviceTier) for t in tiers):
        is_growing, asked = False, None
    kept: _Kept = {"is_growing": is_growing, "asked": asked}
    chosen = _chosen(wanted, tiers, depth, io_bytes, submitters, kept)
    for tier in tiers:
        if (named := on_ring(tier) or (tier if isinstance(tier, RingExtents) else None)) is not None:
            named.engine = chosen.engine.name
        if isinstance(tier, DeviceTier):
            tier.pin(chosen.engine.arenas)
    return chosen


def _is_for_threads(tiers: Sequence[Tier | None]) -> bool:
    """Return whether a thread an I/O is the shorter way: tiers do something, and none of it is for io_uring."""
    working = [t for t in tiers if t is not None and has_times(t)]
    return bool(working) and not any(on_ring(t) or isinstance(t, RingExtents) or copied(t) for t in working)


class _Kept(TypedDict):
    """What an engine is told of its buffers."""

    is_growing: bool
    asked: tuple[Moved, Moved] | None


def _chosen(
    wanted: EngineName, tiers: Sequence[Tier | None], depth: int, io_bytes: int, submitters: int | None, kept: _Kept
) -> Chosen:
    if wanted is EngineName.THREADS:
        return Chosen(ThreadEngine(depth, io_bytes, **kept), "--engine threads")
    if wanted is EngineName.AUTO and _is_for_threads(tiers):
        return Chosen(
            ThreadEngine(depth, io_bytes, **kept),
            "no tier has files, or memory without --verify, which io_uring's loop is for",
        )
    refused = ring.refusal()
    if refused is None:
        try:
            return Chosen(
                UringEngine(depth, io_bytes, **kept, shared=share(tiers, submitters)),
                "--engine uring" if wanted is EngineName.URING else "auto",
            )
        except ring.RingRefused as error:
            refused = str(error)
    if wanted is EngineName.URING:
        raise DeviceError(f"--engine uring: {refused}; say --engine threads")
    return Chosen(ThreadEngine(depth, io_bytes, **kept), f"no io_uring: {refused}")
