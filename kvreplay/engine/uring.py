"""The engine for Linux with io_uring: one thread submits, the kernel opens, moves and closes, others make data.

Opening, an operation's I/O and closing go to the kernel as one chain. What would stall the submitting thread
(creating, unlinking, allocating) is done there by the kernel's own threads, and copies in memory by ours.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from kvreplay.data.buffers import arenas, buffer_bytes
from kvreplay.engine import ring as r
from kvreplay.engine.loop import SPIN_NS
from kvreplay.engine.pump import compile_all
from kvreplay.engine.submitter import Submitter
from kvreplay.engine.workers import generators, precise_timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreplay.engine.job import Driven, Job

MAX_ENTRIES = 4096


class UringEngine:
    """One submitting thread, an io_uring, and threads that make data."""

    name = "uring"

    def __init__(self, depth: int, io_bytes: int) -> None:
        """Allocate the buffers."""
        self.depth, self.io_bytes, self.generators = depth, io_bytes, generators(depth)
        self.arenas = self.reads, self.writes = arenas(depth, io_bytes)
        self.buffer_bytes = buffer_bytes(depth, io_bytes)
        with self.open_ring() as probe:
            self.is_deferred = bool(probe.flags & r.SETUP_DEFER_TASKRUN)
            self.unregistered = self.register(probe)
        compile_all()

    def open_ring(self) -> r.Ring:
        """Return a ring for one job; RingRefused if the kernel gives none."""
        entries = 64
        while entries < 4 * self.depth:
            entries *= 2
        return r.Ring(min(entries, MAX_ENTRIES), files=self.depth)

    def register(self, ring: r.Ring) -> str | None:
        """Pin the buffers; return why they are not, or None."""
        try:
            ring.register_buffers(self.reads.places + self.writes.places)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                return f"the locked-memory limit is below {self.buffer_bytes >> 20} MiB (ulimit -l)"
            return f"the kernel refused to register the buffers: {error.strerror}"
        return None

    def facts(self) -> dict[str, Any]:
        """Return which path I/O takes, for run.json."""
        return {
            "is_deferred_taskrun": self.is_deferred, "has_registered_buffers": self.unregistered is None,
            "unregistered_because": self.unregistered, "spin_ns": SPIN_NS,
        }  # fmt: skip

    def drive(self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]) -> Driven:
        """Do the job; the calling thread submits."""
        before = precise_timers()
        try:
            with self.open_ring() as ring:
                is_registered = self.unregistered is None and self.register(ring) is None
                ring.allow_workers(max(self.depth, 4))
                return Submitter(self, job, ring, is_registered=is_registered).drive(interrupted, progress)
        finally:
            precise_timers(before)
