"""Lanes: iologs in which I/Os wait for each other, as the stages of a request do.

fio has no dependencies, and issues the lines of a log by their times. In a trace, all stages of a
request may share one instant, because a trace holds no storage time. One asynchronous job would
issue them together. So requests are assigned to lanes; a lane is a fio job with its own log:

    for each request, in order of its first operation:
        width = maximum I/Os in one of its stages
        use the lane of that width whose last request ended first, if it has ended
        else open a new lane; if no more can be opened, use the lane that ends first

A lane of width 1 issues one I/O after the other (psync): a chain. A wider lane has as many I/Os in
flight as a stage, and refills when they have completed (iodepth_low=1 and
iodepth_batch_complete_min). This is close to a barrier between stages, and exact if all stages of the
lane have the same width. Independent operations have an asynchronous lane of their own.

Source: fio's queue (backend.c, wait_for_completions), and the six presets measured in
docs/concepts/fio-jobs.md. iodepth_batch_submit is not used: fio 3.33 loses I/Os with it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.fio_iolog import PlacedOperations
from kvdistill.jobs.fio_sections import FioOptions
from kvdistill.queries.database import connect
from kvtrace.core import duckdb, pa, pc, pq
from kvtrace.core.arrays import Columns
from kvtrace.core.units import NS_PER_S, NS_PER_US

MAX_LANES = 128
"""Maximum number of lanes: each is a process of fio."""
MAX_BUFFER_BYTES = 2 << 30
"""Maximum memory for the buffers of all lanes."""
_MAX_WIDTHS = 16
"""If requests have more different widths than this, widths are rounded up to powers of two."""
_MAX_DEPTH = 256
# Assumed duration of a request, because a trace holds no storage time: latency per stage and
# bandwidth of an NVMe drive. It only affects the number of lanes.
_STAGE_NS = 500_000
_BYTES_PER_S = 2_000_000_000


class Lane(msgspec.Struct, frozen=True, kw_only=True):
    """One fio job, which runs the I/Os of successive requests."""

    file: str
    """Its iolog."""
    depth: int
    """Queue depth: I/Os of the widest stage, limited by memory."""
    is_chain: bool
    """Whether its stages wait for each other; false for the lane of independent operations."""
    largest_io_bytes: int
    ios: int

    @property
    def options(self) -> FioOptions:
        """The fio options that keep the order of stages."""
        if self.is_chain and self.depth == 1:
            return {"ioengine": "psync", "bs": self.largest_io_bytes}
        options: FioOptions = {"ioengine": "libaio", "iodepth": self.depth}
        if self.is_chain:
            options["iodepth_low"] = 1
            options["iodepth_batch_complete_min"] = self.depth
        options["bs"] = self.largest_io_bytes
        return options


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The lanes, and the lane of each operation."""

    lanes: list[Lane]
    lane_of_operation: NDArray[np.int16]
    """An index into `lanes` for each read and write, in their order."""
    waiting_requests: int
    """Number of requests that begin, in the trace, before their lane is free."""


_COLUMNS = ("ts_ns", "request_id", "stage", "io_bytes")
_ROWS_AT_ONCE = 1 << 20
_REQUESTS = """
    WITH stages AS (
        SELECT request_id, stage, sum(io_bytes) AS bytes, min(ts_ns) AS first_ns,
            max(ts_ns) AS last_ns, sum((io_bytes + {max_io_bytes} - 1) // {max_io_bytes}) AS width
        FROM operations WHERE io_bytes > 0 AND request_id >= 0 AND stage >= 0
        GROUP BY request_id, stage)
    SELECT request_id::BIGINT AS request_id, max(width)::BIGINT AS width,
        sum(bytes)::BIGINT AS bytes, count(*) AS stages, min(first_ns)::BIGINT AS first_ns,
        max(last_ns)::BIGINT AS last_ns
    FROM stages GROUP BY request_id ORDER BY min(first_ns), request_id
"""
"""One row for each request: its widest stage, its bytes and stages, its first and last operation."""


def plan_lanes(name: str, ios: Path, max_io_bytes: int) -> LanePlan | None:
    """Return the lanes of the operations at `ios`; their logs are called `name`.laneNUMBER.iolog.

    Null if no request has several stages, so that no I/O waits for another.
    """
    with connect(ios.parent) as db:
        db.read_parquet(str(ios)).create_view("operations")
        requests = _requests_of(db, max_io_bytes)
    batches = pq.ParquetFile(ios).iter_batches(_ROWS_AT_ONCE, columns=_COLUMNS[1:])
    return _plan(name, requests, batches, max_io_bytes)


def plan_sampled_lanes(
    name: str, operations: PlacedOperations, stage_ops: int, max_io_bytes: int
) -> LanePlan | None:
    """Return the lanes of sampled operations, which belong to no requests of the source.

    The operations of one instant become a request, whose stages have `stage_ops` operations each.

    Null if no instant has several stages, so that no I/O waits for another.
    """
    instant = np.unique(operations["us"], return_inverse=True)[1]
    first_of_instant = np.searchsorted(instant, instant)
    columns = (
        operations["us"] * NS_PER_US,
        instant,
        (np.arange(len(instant)) - first_of_instant) // stage_ops,
        operations["length"],
    )
    rows = pa.table(dict(zip(_COLUMNS, columns, strict=True)))
    with connect() as db:
        db.register("operations", rows)
        requests = _requests_of(db, max_io_bytes)
    return _plan(name, requests, rows.select(_COLUMNS[1:]).to_batches(), max_io_bytes)


def _requests_of(db: duckdb.DuckDBPyConnection, max_io_bytes: int) -> Columns:
    """Return the columns of `_REQUESTS` of the view `operations`."""
    requests = db.execute(_REQUESTS.format(max_io_bytes=max_io_bytes)).fetchnumpy()
    return {name: np.asarray(values) for name, values in requests.items()}


def _plan(
    name: str, requests: Columns, batches: Iterable[pa.RecordBatch], max_io_bytes: int
) -> LanePlan | None:
    """Return the lanes of the operations in `batches`, which are those of `requests` and others."""
    if not len(requests["stages"]) or requests["stages"].max() == 1:
        return None
    numbers, waiting, count = _assign_lanes(requests)
    # Independent operations are last, at the number of lanes.
    order = np.argsort(requests["request_id"])
    request_ids, lanes = requests["request_id"][order], numbers[order]
    largest, ios = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    lane_of_operation = []
    for batch in batches:
        request_id, stage, io_bytes = (
            pc.fill_null(batch.column(column), -1).to_numpy(zero_copy_only=False)
            for column in _COLUMNS[1:]
        )
        is_io = io_bytes > 0
        request_id, stage, io_bytes = request_id[is_io], stage[is_io], io_bytes[is_io]
        places = np.minimum(np.searchsorted(request_ids, request_id), len(lanes) - 1)
        is_chain = (request_id >= 0) & (stage >= 0)
        lane = np.where(is_chain, lanes[places], np.int16(count))
        np.maximum.at(largest, lane, io_bytes)
        np.add.at(ios, lane, -(-io_bytes // max_io_bytes))
        lane_of_operation.append(lane)
    widths = np.zeros(count, np.int64)
    np.maximum.at(widths, numbers, requests["width"])
    built = _build_lanes(name, widths, np.minimum(largest, max_io_bytes), ios)
    return LanePlan(built, np.concatenate(lane_of_operation), waiting)


def _assign_lanes(requests: Columns) -> tuple[NDArray[np.int16], int, int]:
    """Return the lane of each request, the number of waiting requests, and the number of lanes."""
    service_ns = requests["stages"] * _STAGE_NS + requests["bytes"] * NS_PER_S // _BYTES_PER_S
    ends_ns = (requests["last_ns"] + service_ns).tolist()
    widths = requests["width"].tolist()
    if len(set(widths)) > _MAX_WIDTHS:
        widths = [1 << (width - 1).bit_length() for width in widths]
    # Lanes as (end, number), a heap per width.
    free: dict[int, list[tuple[int, int]]] = defaultdict(list)
    lanes: list[int] = []
    count = waiting = 0
    for first_ns, end_ns, width in zip(requests["first_ns"].tolist(), ends_ns, widths, strict=True):
        queue = free[width]
        if not (queue and queue[0][0] <= first_ns) and count < MAX_LANES:
            lane, ready_ns = count, first_ns
            count += 1
        else:
            # Without a lane of this width, the one that ends first is used.
            if not queue:
                queue = min((heap for heap in free.values() if heap), key=lambda heap: heap[0])
            ready_ns, lane = heapq.heappop(queue)
            waiting += ready_ns > first_ns
        begins_ns = max(first_ns, ready_ns)
        heapq.heappush(free[width], (begins_ns + end_ns - first_ns, lane))
        lanes.append(lane)
    return np.array(lanes, np.int16), waiting, count


def _build_lanes(
    name: str, widths: NDArray[np.int64], largest: NDArray[np.int64], ios: NDArray[np.int64]
) -> list[Lane]:
    """Return the lanes of chains, of these widths, and a lane of independent operations if any.

    `largest` and `ios` are the largest I/O and the I/Os of each, the independent ones last.
    """
    total = len(widths) + bool(ios[-1])
    digits = len(str(total))
    lanes = []
    for index in range(total):
        is_chain, largest_bytes = index < len(widths), int(largest[index])
        max_depth = max(1, MAX_BUFFER_BYTES // (total * largest_bytes))
        width = int(widths[index]) if is_chain else _MAX_DEPTH
        lanes.append(
            Lane(
                file=f"{name}.lane{index + 1:0{digits}d}.iolog",
                depth=min(width, int(ios[index]), _MAX_DEPTH, max_depth),
                is_chain=is_chain,
                largest_io_bytes=largest_bytes,
                ios=int(ios[index]),
            )
        )
    return lanes
