"""Block requests as events: from the ring buffer's bytes to rows of `blocks.parquet`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvreplay.probes.devices import device_name
from kvtrace.core.schema import BLOCKS, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

EVENT = [
    ("queue_ns", "<u8"), ("issue_ns", "<u8"), ("complete_ns", "<u8"), ("sector", "<u8"),
    ("bytes", "<u4"), ("flags", "<u4"), ("dev", "<u4"), ("pid", "<u4"),
    ("status", "<u4"), ("unused", "<u4"), ("comm", "S16"),
]  # fmt: skip
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
