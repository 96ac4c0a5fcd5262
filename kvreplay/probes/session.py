"""Probes attached, read and taken off: one measurement from its filter to what it found."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from kvreplay.probes.application import Application, application
from kvreplay.probes.devices import zone_shift
from kvreplay.probes.events import blocks_batch, unfinished
from kvreplay.probes.histogram import entries
from kvreplay.probes.program import Filter, load, start, stop, tracepoints
from kvreplay.probes.result import BlockFigures, block_figures
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from types import TracebackType

    from kvtrace.core.tables import Writer

POLL_MS = 100
FLUSH_EVENTS = 1 << 16
DRAIN_NS = 60 * NS_PER_S
"""How often finished seconds are taken out of the kernel's table, which would fill up."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one measurement found."""

    block: BlockFigures
    application: Application | None
    """Null where the kernel has no tracepoints of system calls."""


class Session:
    """The probes while they are attached; `poll` must run often enough for the ring buffer not to fill up."""

    def __init__(self, wanted: Filter, writer: Writer | None) -> None:
        """Attach the probes for who passes `wanted`; requests go to `writer` as rows of blocks, or nowhere.

        Raises:
            ConfigError: nobody can pass the filter.
            ProbeUnavailable: this machine cannot run them.

        """
        wanted.check()
        self._programs, self._btf = load(wanted, has_events=writer is not None)
        self._writer = writer
        self._events: list[bytes] = []
        self._shift = zone_shift(wanted.disks)
        self._seconds: dict[tuple[int, int], tuple[int, int]] = {}
        self.duration_ns: int | None = None
        if writer is not None:
            self._programs["events"].open_ring_buffer(self._take)
        self.start_ns = self._drained_ns = start(self._programs)

    def __enter__(self) -> Self:
        """Return the session."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the probes off."""
        self._programs.cleanup()

    def _take(self, _context: Any, data: int, size: int) -> int:
        # BCC swallows what a callback raises: nothing here may fail.
        self._events.append(ctypes.string_at(data, size))
        return 0

    def _flush(self) -> None:
        if self._writer is not None and self._events:
            self._writer.write(blocks_batch(b"".join(self._events), self.start_ns, self._btf.enumerators))
        self._events = []

    def poll(self) -> None:
        """Take what events there are, waiting a little for the first."""
        if time.monotonic_ns() - self._drained_ns > DRAIN_NS:
            self._drain_seconds(is_end=False)
        if self._writer is None:
            time.sleep(POLL_MS / 1000)
        else:
            self._programs.ring_buffer_poll(POLL_MS)
            if len(self._events) >= FLUSH_EVENTS:
                self._flush()

    def _drain_seconds(self, *, is_end: bool) -> None:
        self._drained_ns = time.monotonic_ns()
        table = self._programs["seconds"]
        # A request that completes now still counts in the second that ends now.
        below = (self._drained_ns - self.start_ns) // NS_PER_S - 1
        for key, amount in entries(table):
            if is_end or key.second < below:
                self._seconds[key.direction, key.second] = (amount.requests, amount.bytes)
                if not is_end:
                    del table[key]

    def finish(self) -> Found:
        """Take the last events and return the figures."""
        self.duration_ns = time.monotonic_ns() - self.start_ns
        for event in RAW_TRACEPOINTS:
            self._detach(event)
        stop(self._programs)
        if self._writer is not None:
            self._programs.ring_buffer_consume()
            # What has not completed by now is a row without a completion.
            for _, state in entries(self._programs["requests"]):
                self._events.append(unfinished(state))
            self._flush()
        self._drain_seconds(is_end=True)
        has = tracepoints()
        return Found(
            block_figures(self._programs, self._seconds, self._shift),
            application(self._programs, has) if "HAS_SYSCALLS" in has else None,
        )

    def _detach(self, event: bytes) -> None:
        if event in self._programs.raw_tracepoint_fds:
            self._programs.detach_raw_tracepoint(event)


RAW_TRACEPOINTS = (
    b"block_io_start", b"block_rq_insert", b"block_bio_queue", b"block_bio_backmerge", b"block_bio_frontmerge",
    b"block_split", b"block_rq_merge", b"block_rq_requeue", b"block_rq_issue", b"block_rq_complete",
)  # fmt: skip
"""In the order in which they are taken off: what begins a request before what ends it."""
