"""One measurement by the probes: attached, read, and detached."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvreplay.probes.devices import device_name, zone_shift
from kvreplay.probes.histogram import entries
from kvreplay.probes.program import Filter, load, start, stop, tracepoints
from kvreplay.probes.result import Application, BlockFigures, application, block_figures
from kvtrace.core.schema import BLOCKS, arrow_schema
from kvtrace.core.tables import Writer
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import pyarrow as pa

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
        """Detach the probes."""
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
        """Read the pending events, waiting POLL_MS for the first."""
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
        """Read the last events and return the figures."""
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
    b"block_io_start",
    b"block_rq_insert",
    b"block_bio_queue",
    b"block_bio_backmerge",
    b"block_bio_frontmerge",
    b"block_split",
    b"block_rq_merge",
    b"block_rq_requeue",
    b"block_rq_issue",
    b"block_rq_complete",
)
"""In the order in which they are taken off: what begins a request before what ends it."""


EVENT = [
    ("queue_ns", "<u8"),
    ("issue_ns", "<u8"),
    ("complete_ns", "<u8"),
    ("sector", "<u8"),
    ("bytes", "<u4"),
    ("flags", "<u4"),
    ("dev", "<u4"),
    ("pid", "<u4"),
    ("status", "<u4"),
    ("unused", "<u4"),
    ("comm", "S16"),
]
"""`struct event` of block.bpf.c; 0 for a time that was not seen."""
ERRNO = {0: 0, 1: 95, 2: 110, 3: 28, 4: 67, 5: 121, 6: 52, 7: 61, 8: 84, 9: 12, 10: 5}
"""The kernel's block status (blk_status_t) as an error number; its later codes changed between versions."""
EIO = 5
_OPERATIONS = {0: "R", 1: "W", 2: "F", 3: "D", 5: "DE", 7: "ZA", 9: "WZ"}
_FLAGS = (("__REQ_FUA", "F"), ("__REQ_RAHEAD", "A"), ("__REQ_SYNC", "S"), ("__REQ_META", "M"), ("__REQ_ATOMIC", "U"))
_OPERATION_MASK = 0xFF


def rwbs(flags: int, bits: Mapping[str, int]) -> str:
    """Return the kernel's letters for a request's `flags`, whose `bits` are the running kernel's."""
    before = "F" if flags >> bits["__REQ_PREFLUSH"] & 1 else ""
    after = "".join(letter for name, letter in _FLAGS if name in bits and flags >> bits[name] & 1)
    return before + _OPERATIONS.get(flags & _OPERATION_MASK, "N") + after


def unfinished(state: Any) -> bytes:
    """Return `state`, a `struct request_state` that never completed, as the bytes of an event."""
    import numpy as np

    event = np.zeros(1, dtype=EVENT)
    for name in ("queue_ns", "issue_ns", "sector", "bytes", "flags", "dev", "pid", "comm"):
        event[name] = getattr(state, name)
    return event.tobytes()


def blocks_batch(data: bytes, start_ns: int, bits: Mapping[str, int]) -> pa.RecordBatch:
    """Return the events in `data`, packed `EVENT` records, as rows of the table blocks.

    Times are from `start_ns`, the monotonic clock's at the start of the run.
    """
    import numpy as np
    import pyarrow as pa

    events = np.frombuffer(data, dtype=EVENT)
    columns: dict[str, Any] = {}
    for name, source in (("insert_ns", "queue_ns"), ("issue_ns", "issue_ns"), ("complete_ns", "complete_ns")):
        at = events[source].astype(np.int64)
        columns[name] = pa.array(at - start_ns, pa.int64(), mask=at == 0)
    for name, type_ in (("sector", pa.int64()), ("bytes", pa.int64()), ("pid", pa.int32())):
        columns[name] = pa.array(events[name].astype(np.int64)).cast(type_)
    columns["device"] = _mapped(events["dev"], device_name)
    columns["rwbs"] = _mapped(events["flags"], lambda flags: rwbs(flags, bits))
    columns["comm"] = pa.array([c.decode(errors="replace") for c in events["comm"].tolist()], pa.string())
    error = np.array([ERRNO.get(s, EIO) for s in events["status"].tolist()], dtype=np.int32)
    columns["error"] = pa.array(error, pa.int32(), mask=events["complete_ns"] == 0)
    return pa.RecordBatch.from_arrays([columns[n] for n in BLOCKS.names], schema=arrow_schema(BLOCKS))


def _mapped(values: Any, name: Any) -> Any:
    import pyarrow as pa

    names = {value: name(value) for value in set(values.tolist())}
    return pa.array([names[value] for value in values.tolist()], pa.string())
