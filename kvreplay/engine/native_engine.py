"""The native engine, driven: a job laid out for C, its threads started, watched and ended.

`--engine uring` has one thread an io_uring, `--engine threads` one an I/O in flight; both take
steps of the same operations in the same order (`native/loop.c`). Python runs in no loop but where a
tier is Python's (`tasks`). Where all tiers are simulated one thread goes through simulated time
instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from signal import Signals
from time import monotonic_ns, sleep
from typing import Any

from kvreplay.engine.job import (
    DOINGS,
    Driven,
    Failure,
    Job,
    JobStruct,
    TaskStruct,
    ThreadUse,
    TierTable,
)
from kvreplay.engine.processors import ProcessorTimes
from kvreplay.engine.share import Share, share
from kvreplay.engine.tasks import PythonTiers
from kvreplay.plan.buffers import Arena
from kvreplay.plan.contents import BLOCK_BYTES, describe
from kvreplay.plan.row_ring import NONE, REPLAY, SHORT, WRITE
from kvreplay.tiers.ram import copy_threads
from kvreplay.tiers.tier import Tier, TierKind
from kvtrace.core.errors import DeviceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.native.library import library
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import BadBlock, BlockFault, SubmitterNote, Verification
from kvtrace.core.units import counted

SPIN_NS = 50_000
"""The last part of the way to a due time is not slept through: waking up takes about so long."""
LEAD_NS = 10_000_000
"""How long after its threads an open loop's clock starts."""
_POLL_S = 0.02
_LEFT_NS, _LAST_S = 500_000_000, 0.5
"""How long nothing may complete once a signal asked to end.

And how long threads have to end before they are left.
"""
_OPS = ("read", "write", "delete")
_COUNTED = ("in_use_ns", "depth_limited_ns", "growing_ns", "blocked_ns", "unread_ns", "reserve_ns")
"""Counters that the struct Job and `Driven` share."""
_DISABLED = Path("/proc/sys/kernel/io_uring_disabled")
_TOO_OLD, _NO_FILES = -1, -2
RUNTIME = "--duration"
"""The reason to stop of a run whose --duration is over: its normal end."""
MAX_LOCATED = 100_000
"""Bad blocks that run.json lists; more, which would take more than 100 MB, are only counted."""
_FAULTS = (None, BlockFault.DAMAGED, BlockFault.FOREIGN, BlockFault.STALE, BlockFault.MISPLACED)
"""Faults of a block, numbered as in replay.h."""
_FOREVER_NS = (2**63 - 1 >> 10) - 1
"""Simulated time ends there: the engine keeps a place of the queue beside a time."""


def refusal() -> str | None:
    """Return why this process cannot use io_uring; None if it can."""
    return _why(library().ring_probe())


def _why(code: int) -> str | None:
    """Return the meaning of a code of the ring's set-up; None for 0."""
    release, reason = os.uname().release, None
    if code in (errno.EPERM, errno.EACCES):
        try:
            disabled = _DISABLED.read_text(encoding="ascii").strip()
        except OSError:
            disabled = "0"
        if disabled != "0":
            reason = f"sysctl kernel.io_uring_disabled={disabled} forbids io_uring"
    messages = {
        0: None,
        _TOO_OLD: f"this kernel's io_uring ({release}) is too old; 5.19 is new enough",
        _NO_FILES: f"this kernel ({release}) has no sparse file tables; 5.19 has",
        errno.ENOSYS: "the kernel was built without io_uring, or a seccomp filter hides it",
        errno.EPERM: "io_uring is not permitted here (a seccomp filter, as containers have)",
        errno.EACCES: "io_uring is not permitted here (a seccomp filter, as containers have)",
        errno.ENOMEM: "the locked-memory limit is too low for an io_uring (ulimit -l)",
        errno.EMFILE: (
            "the limit of open files is too low for an io_uring of this --queue-depth (ulimit -n)"
        ),
    }
    return reason or messages.get(code, f"io_uring_setup: {os.strerror(abs(code))}")


class Engine:
    """Runs jobs; its memory is bounded by queue depth and I/O size."""

    def __init__(
        self,
        depth: int,
        io_bytes: int,
        *,
        rings: Share | None,
        is_open_loop: bool = False,
        max_filled: int | None = None,
        because: str = "auto",
        is_virtual: bool = False,
    ) -> None:
        """Allocate the buffers.

        `rings` assigns tiers to io_urings; without it each thread does its own I/O. Of the buffers
        `max_filled` are touched (None: all), and some of an open loop's are registered. `because`
        is the reason for the choice of this engine. With `is_virtual` one thread runs in simulated
        time, without waiting.
        """
        self.depth, self.io_bytes, self.rings, self.because = depth, io_bytes, rings, because
        self.is_virtual = is_virtual
        self.name = "virtual" if is_virtual else "threads" if rings is None else "uring"
        self.arena = Arena(depth, io_bytes, is_open_loop=is_open_loop, max_filled=max_filled)
        self.cpus: list[int | None] = [None] * (0 if rings is None else rings.rings)
        """The processor on which each ring's thread ended."""
        self.is_deferred = False
        """Whether the kernel allowed DEFER_TASKRUN."""
        self.unregistered: str | None = None
        if rings is not None:
            pinned_bytes = self.arena.registered * io_bytes
            code = library().ring_probe_pinning(
                ctypes.c_void_p(self.arena.address), ctypes.c_int64(pinned_bytes)
            )
            if code == errno.ENOMEM:
                self.unregistered = (
                    f"the locked-memory limit is below {pinned_bytes >> 20} MiB (ulimit -l)"
                )
            elif code:
                self.unregistered = (
                    f"the kernel refused to register the buffers: {os.strerror(code)}"
                )

    def facts(self) -> JsonObject:
        """Return the facts of the I/O path for run.json."""
        shared = self.rings
        if shared is None:
            return {}
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
                    numa_node=shared.node(ring),
                    cpus=None if (cpus := shared.cpus(ring)) is None else sorted(cpus),
                    cpu=self.cpus[ring],
                )
                for ring, targets in enumerate(shared.targets)
            ],
        }

    def drive(
        self, job: Job, interrupted: Callable[[], str | None], progress: Callable[[float], None]
    ) -> Driven:
        """Run the job.

        `interrupted` returns the reason to stop or None, `progress` takes the number of rows done.
        """
        return _Drive(self, job).drive(interrupted, progress)


class _Drive:
    """One job, from its layout to its end."""

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine, self._job, self._lib = engine, job, library()
        shared = engine.rings
        self._rings = 0 if shared is None else shared.rings
        of_tiers = () if shared is None else shared.of_tiers
        self._tiers = TierTable(job.tiers, self._rings, of_tiers, is_placed=shared is not None)
        # Without a ring, a worker must complete even the rows that take no time.
        workers = 1 if engine.is_virtual else engine.depth
        self._workers = workers if self._tiers.workers or not self._rings else 0
        self._copiers = copy_threads() if self._tiers.has_copies else 0
        self._uses: Any = (ThreadUse * (self._rings + self._workers + self._copiers))()  # type: ignore[operator]
        # Memory of these is used only as bad blocks are found.
        self._bad: Any = (REPLAY.struct("BadBlock") * (MAX_LOCATED if job.is_verified else 0))()
        self.struct = JobStruct(
            rows=job.rows.address,
            tier=self._tiers.address,
            data=ctypes.addressof(job.data.struct),
            buffers=engine.arena.address,
            io_bytes=engine.io_bytes,
            depth=engine.depth,
            bulk_depth=min(engine.depth, job.bulk_depth or engine.depth),
            rings=self._rings,
            copiers=self._copiers,
            registered_bytes=(
                0
                if shared is None or engine.unregistered
                else engine.arena.registered * engine.io_bytes
            ),
            is_open_loop=job.is_open_loop,
            stops_on_error=job.stops_on_error,
            is_checking=job.is_verified,
            virtual_end_ns=(
                min(job.runtime_ns or _FOREVER_NS, _FOREVER_NS) if engine.is_virtual else 0
            ),
            plan=job.plan_address,
            use=ctypes.addressof(self._uses),
            bad=ctypes.addressof(self._bad),
            bad_room=len(self._bad),
            failed_row=NONE,
            allowed_slots=engine.arena.count,
        )
        self._python = PythonTiers(job, engine.arena)
        self._threads: list[threading.Thread] = []
        self._left, self._lock, self._is_over = 0, threading.Lock(), threading.Event()
        self._moved = -1
        """Number of completed rows at `_since_ns`.

        That is when a row last completed, or when none was in flight or due.
        """
        self._died: BaseException | None = None
        self._handle: ctypes.c_void_p = ctypes.c_void_p()

    def drive(
        self, interrupted: Callable[[], str | None], progress: Callable[[float], None]
    ) -> Driven:
        """Run the job; returns when nothing is in flight any more."""
        lib, job = self._lib, self._job
        lib.engine_open.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(lib.engine_open(ctypes.byref(self.struct)))
        try:
            with ExitStack() as stack:
                if job.feed is not None:
                    stack.enter_context(job.feed.running(lambda: lib.engine_notify(self._handle)))
                return self._run(interrupted, progress)
        finally:
            arena = self._engine.arena
            arena.used = max(arena.used or 0, int(self.struct.max_slots))
            if not any(thread.is_alive() for thread in self._threads):
                lib.engine_close(self._handle)

    def _run(
        self, interrupted: Callable[[], str | None], progress: Callable[[float], None]
    ) -> Driven:
        struct, job = self.struct, self._job
        reason = stalled = None
        try:
            self._start()
            soonest_ns = monotonic_ns() + (LEAD_NS if job.is_open_loop else 0)
            start_ns = soonest_ns if job.start is None else job.start.agree(soonest_ns)
            self._python.start_ns = start_ns
            if job.watched is not None:
                job.watched(lambda: int(struct.in_flight) + int(struct.copying))
            reason = self._asked(interrupted)
            struct.start_ns = start_ns
            self._lib.engine_notify(self._handle)
            if job.start is not None:
                job.start.begun()
            self._since_ns = monotonic_ns()
            processors = ProcessorTimes.now()
            while not self._is_over.wait(_POLL_S):
                reason = reason or self._asked(interrupted)
                if (
                    stalled is None
                    and (stalled := self._stalled(is_left=reason in Signals.__members__))
                    is not None
                ):
                    self._stop()
                    if not self._is_over.wait(_LAST_S):
                        break
                progress(int(struct.completed))
            progress(int(struct.completed))
            times = ProcessorTimes.now()
            others_share = None if times is None else times.others_share(processors)
        finally:
            self._stop()
            if stalled is None:
                for thread in self._threads:
                    thread.join()
        if self._died is not None:
            raise self._died
        if reason is None and job.feed is not None:
            reason = job.feed.trouble
        driven = self._driven(reason, stalled, start_ns)
        return driven if self._engine.is_virtual else replace(driven, others_share=others_share)

    def _asked(self, interrupted: Callable[[], str | None]) -> str | None:
        """Return the reason to stop, if there is one, and stop the job."""
        job, started_ns = self._job, int(self.struct.start_ns)
        reason = interrupted() or (job.feed and job.feed.trouble) or None
        if reason is None and job.runtime_ns and started_ns and not self._engine.is_virtual:
            reason = RUNTIME if monotonic_ns() - started_ns >= job.runtime_ns else None
        if reason is not None:
            self._stop()
        return reason

    def _stop(self) -> None:
        self.struct.is_stopped = self.struct.is_stopped or int(
            self.struct.completed < len(self._job.rows)
        )
        self._lib.engine_notify(self._handle)

    # --- threads

    def _start(self) -> None:
        """Start all threads; return when each is ready to begin."""
        bodies = [partial(self._serve_ring, ring) for ring in range(self._rings)]
        for thread_index in range(self._rings, len(self._uses)):
            # The queues behind those of the rings.
            queue = self._rings + (thread_index >= self._rings + self._workers)
            bodies.append(partial(self._work, queue, thread_index))
        self._left = len(bodies)
        for thread_index, body in enumerate(bodies):
            name = f"kvreplay-{self._kind(thread_index)}-{thread_index}"
            thread = threading.Thread(target=self._guard, args=(body,), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self.struct.is_stopped = 1
                raise DeviceError(
                    f"cannot start {len(bodies)} threads ({error}); lower {named('queue_depth')},"
                    " or raise the limit (ulimit -u)"
                ) from error
            self._threads.append(thread)
        while any(use.doing == 0 for use in self._uses) and not self._is_over.is_set():
            sleep(5e-5)

    def _guard(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised again by `drive`
            self._died = self._died or error
            self._stop()
        finally:
            with self._lock:
                self._left -= 1
                if not self._left or self._died is not None:
                    self._is_over.set()

    def _serve_ring(self, ring: int) -> None:
        shared = self._engine.rings
        cpus = shared.cpus(ring) if shared is not None and self._rings > 1 else None
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        code = self._lib.ring_run(self._handle, ring)
        if code:
            raise DeviceError(
                _why(code) if code < 0 or code == errno.EMFILE else f"io_uring: {os.strerror(code)}"
            )

    def _work(self, queue: int, thread_index: int) -> None:
        lib, handle, task = self._lib, self._handle, TaskStruct()
        if self._engine.is_virtual:
            lib.thread_run_virtual(handle, ctypes.byref(self._uses[thread_index]))
            return
        use, task_pointer = ctypes.byref(self._uses[thread_index]), ctypes.byref(task)
        lib.thread_begin(handle, use)
        while lib.thread_run(handle, queue, use, task_pointer):
            self._python.perform(task)
        lib.thread_end(handle, use)

    # --- results

    def _stalled(self, *, is_left: bool) -> str | None:
        """Describe the activity of each thread if nothing completed for too long, else return None.

        When a run is stopped, all operations in flight may complete. With `is_left`, a signal ended
        the run, and it does not wait long for them.
        """
        struct, rows, now = self.struct, self._job.rows, monotonic_ns()
        steps = int(struct.completed) + int(struct.moved_steps)
        first, is_due = int(rows.struct.ended), False
        if first < rows.struct.laid:
            is_due = bool(rows.within(first, first + 1)["due_ns"][0] <= now - int(struct.start_ns))
        if steps != self._moved or not (struct.in_flight or struct.copying or is_due):
            self._moved, self._since_ns = steps, now
        limit_ns = _LEFT_NS if is_left else None if struct.is_stopped else self._job.stall_ns
        if limit_ns is None or now - self._since_ns < limit_ns:
            return None
        counts = Counter(
            f"{self._kind(thread_index)} {DOINGS[use.doing]}"
            for thread_index, use in enumerate(self._uses)
        )
        return ", ".join(f"{count} {activity}" for activity, count in counts.items())

    def _kind(self, thread_index: int) -> str:
        return (
            "ring"
            if thread_index < self._rings
            else "worker"
            if thread_index < self._rings + self._workers
            else "copier"
        )

    def _driven(self, reason: str | None, stalled: str | None, start_ns: int) -> Driven:
        struct, job = self.struct, self._job
        self._engine.cpus = [use.cpu for use in self._uses[: self._rings]]
        self._engine.is_deferred = bool(struct.is_deferred)
        wall_ns = monotonic_ns() - start_ns
        if stalled is None:
            # A thread that was stopped before the start has no end time.
            ended_ns = max((use.ended_ns for use in self._uses), default=0)
            wall_ns = ended_ns if self._engine.is_virtual else min(wall_ns, ended_ns)
            if self._engine.is_virtual and reason is None and struct.completed < len(job.rows):
                reason = (
                    RUNTIME
                    if struct.virtual_end_ns == job.runtime_ns
                    else "the end of simulated time (104 days)"
                )
        by_fault = {
            fault.value: n
            for fault, n in zip(_FAULTS, struct.faults, strict=True)
            if fault is not None and n
        }
        corrupt = sum(by_fault.values())
        threads = [ThreadUse.from_buffer_copy(use) for use in self._uses]
        for thread_index, use in enumerate(threads):
            use.kind = self._kind(thread_index)
        return Driven(
            wall_ns=max(0, wall_ns),
            completed=int(struct.completed),
            failure=self._failure(),
            interrupted_by=reason,
            started_ns=start_ns,
            threads=threads,
            **{name: int(getattr(struct, name)) for name in _COUNTED},
            writes_generated_in_flight=int(struct.long_writes),
            stalled=stalled,
            verification=(
                None
                if not job.is_verified
                else Verification(
                    block_bytes=BLOCK_BYTES,
                    checked_blocks=int(struct.checked_blocks),
                    unwritten_blocks=int(struct.unwritten_blocks),
                    corrupt_blocks=corrupt,
                    by_fault=dict(sorted(by_fault.items())),
                    located=[self._located(bad) for bad in self._bad[:corrupt]],
                    check_ns=sum(use.checking_ns for use in self._uses),
                )
            ),
        )

    def _located(self, bad: Any) -> BadBlock:
        tier, fault = self._job.tiers[bad.tier], _FAULTS[bad.fault]
        assert tier is not None, "planned rows have a tier"
        assert fault is not None, "a bad block has a fault"
        is_known = fault in (BlockFault.STALE, BlockFault.MISPLACED)
        block = {
            "object_id": bad.found_object,
            "offset_bytes": bad.found_offset_bytes,
            "version": bad.found_version,
        }
        return BadBlock(
            fault=fault,
            row=bad.row,
            tier=tier.name,
            object_id=bad.object,
            file=tier.path(bad.object),
            offset_bytes=bad.offset_bytes,
            expected_version=bad.expected,
            found=block if is_known else None,
        )

    def _failure(self) -> Failure | None:
        """Return the first operation that failed; a block that was corrupt only if none did."""
        struct = self.struct
        if struct.failed_row != NONE:
            row = int(struct.failed_trace_row)
            text = self._python.texts.get(row) or self._text()
            return Failure(
                row, f"{_OPS[struct.failed_op]} of object {struct.failed_object}: {text}"
            )
        if not struct.bad_blocks:
            return None
        bad = self._located(self._bad[0])
        other_failures = int(struct.bad_blocks) - 1
        more_text = f" and {counted(other_failures, 'more block')}" if other_failures else ""
        return Failure(
            bad.row, f"read of object {bad.object_id}: {describe(bad)}{more_text}", is_corrupt=True
        )

    def _text(self) -> str:
        s, tier = self.struct, self._job.tiers[self.struct.failed_tier]
        assert tier is not None, "planned rows have a tier"
        if s.failed_outcome == SHORT:
            return (
                f"short read: {s.failed_moved} of {s.failed_bytes} bytes from offset"
                f" {s.failed_from_bytes}"
            )
        if s.failed_errno == 0 and s.failed_op == WRITE:
            return f"short write: {s.failed_moved} of {s.failed_bytes} bytes"
        if s.failed_errno == errno.ENOENT and tier.native().kind in (
            TierKind.EXTENTS,
            TierKind.MEMORY,
        ):
            return f"object {s.failed_object} does not exist"
        is_full = s.failed_errno in (errno.ENOSPC, errno.EFBIG) and not s.failed_bytes
        reason = tier.why_no_room(s.failed_object) if is_full else None
        return f"no space: {reason}" if reason else tier.why_failed(s.failed_errno)


class EngineName(StrEnum):
    """The values of `--engine`."""

    AUTO = "auto"
    THREADS = "threads"
    URING = "uring"


def choose(
    requested: EngineName,
    tiers: Sequence[Tier | None],
    depth: int,
    io_bytes: int,
    *,
    is_open_loop: bool = False,
    max_filled: int | None = None,
    submitters: int | None = 1,
) -> Engine:
    """Choose and make the engine, tell file tiers its name, and give GPU tiers its buffers.

    Of its buffers the `max_filled` that are filled are touched, on a GPU all; a ring registers some
    of an open loop's. There are `submitters` io_urings; None stands for one per drive, as far as
    there are processors.

    DeviceError if io_uring was requested by name and the kernel refuses it.
    """
    if any(t is not None and t.is_of_gpu for t in tiers):
        is_open_loop, max_filled = False, None
    refused = None if requested is EngineName.THREADS else refusal()
    if requested is EngineName.URING and refused is not None:
        raise DeviceError(
            f"{named('engine', 'uring')}: {refused}; use {named('engine', 'threads')}"
        )
    because = "auto" if requested is EngineName.AUTO else f"--engine {requested}"
    is_ring = requested is not EngineName.THREADS
    # Kinds of the tiers that perform operations.
    working = {t.native().kind for t in tiers if t is not None} - {TierKind.NOTHING}
    is_virtual = requested is EngineName.AUTO and working == {TierKind.MODELLED}
    if is_virtual:
        is_open_loop, max_filled, is_ring = False, 1, False
        because = "all tiers are simulated, so the run is in simulated time"
    elif (
        requested is EngineName.AUTO
        and working
        and not any(t.has_ring or t.is_copied for t in tiers if t is not None)
    ):
        is_ring, because = (
            False,
            "no tier has files, devices or memory, for which io_uring is used",
        )
    elif is_ring and refused is not None:
        is_ring, because = False, f"no io_uring: {refused}"
    rings = share(tiers, submitters) if is_ring else None
    engine = Engine(
        depth,
        io_bytes,
        rings=rings,
        is_open_loop=is_open_loop,
        max_filled=max_filled,
        because=because,
        is_virtual=is_virtual,
    )
    for tier in filter(None, tiers):
        if tier.engine in ("threads", "uring"):
            tier.engine = engine.name
        tier.pin(engine.arena)
    return engine
