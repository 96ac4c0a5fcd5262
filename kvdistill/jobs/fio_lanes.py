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
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.fio_iolog import PlacedOperations
from kvdistill.jobs.fio_sections import FioOptions
from kvtrace.core import pl
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
INDEPENDENT = -1
"""The lane of independent operations, before lanes are numbered."""


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


def plan_lanes(name: str, ios: Path, max_io_bytes: int) -> LanePlan | None:
    """Return the lanes of the operations at `ios`; their logs are called `name`.laneNUMBER.iolog.

    Null if no request has several stages, so that no I/O waits for another.
    """
    return _plan(name, pl.scan_parquet(ios).filter(pl.col("io_bytes") > 0), max_io_bytes)


def plan_sampled_lanes(
    name: str, operations: PlacedOperations, stage_ops: int, max_io_bytes: int
) -> LanePlan | None:
    """Return the lanes of sampled operations, which belong to no requests of the source.

    The operations of one instant become a request, whose stages have `stage_ops` operations each.

    Null if no instant has several stages, so that no I/O waits for another.
    """
    instant = np.unique(operations["us"], return_inverse=True)[1]
    first_of_instant = np.searchsorted(instant, instant)
    rows = pl.LazyFrame(
        {
            "ts_ns": operations["us"] * NS_PER_US,
            "request_id": instant,
            "stage": (np.arange(len(instant)) - first_of_instant) // stage_ops,
            "io_bytes": operations["length"],
        }
    )
    return _plan(name, rows, max_io_bytes)


def _plan(name: str, operations: pl.LazyFrame, max_io_bytes: int) -> LanePlan | None:
    """Return the lanes of `operations`: ts_ns, request_id, stage and io_bytes, ordered by time."""
    rows = operations.select(
        "ts_ns",
        "request_id",
        "stage",
        "io_bytes",
        parts=-(-pl.col("io_bytes") // max_io_bytes),
        is_chain=(pl.col("request_id") >= 0) & (pl.col("stage") >= 0),
    )
    stages = (
        rows.filter("is_chain")
        .group_by("request_id", "stage")
        .agg(
            width=pl.col("parts").sum(),
            bytes=pl.col("io_bytes").sum(),
            first_ns=pl.col("ts_ns").min(),
            last_ns=pl.col("ts_ns").max(),
        )
    )
    requests = (
        stages.group_by("request_id")
        .agg(
            width=pl.col("width").max(),
            bytes=pl.col("bytes").sum(),
            stages=pl.len(),
            first_ns=pl.col("first_ns").min(),
            last_ns=pl.col("last_ns").max(),
        )
        .sort("first_ns", "request_id")
        .collect()
    )
    if not len(requests) or requests["stages"].max() == 1:
        return None
    numbers, waiting, count = _assign_lanes(requests)
    assigned = (
        rows.select("request_id", "is_chain", "io_bytes", "parts")
        .with_columns(
            lane=pl.when("is_chain")
            .then(
                pl.col("request_id").replace_strict(requests["request_id"], numbers, default=None)
            )
            .otherwise(INDEPENDENT)
        )
        .collect()
    )
    widths = dict(
        requests.with_columns(lane=numbers).group_by("lane").agg(pl.col("width").max()).iter_rows()
    )
    return _build_plan(name, assigned, widths, count, waiting, max_io_bytes)


def _assign_lanes(requests: pl.DataFrame) -> tuple[pl.Series, int, int]:
    """Return the lane of each request, the number of waiting requests, and the number of lanes."""
    service_ns = requests["stages"] * _STAGE_NS + requests["bytes"] * NS_PER_S // _BYTES_PER_S
    ends_ns = (requests["last_ns"] + service_ns).to_list()
    widths = requests["width"].to_list()
    if requests["width"].n_unique() > _MAX_WIDTHS:
        widths = [1 << (width - 1).bit_length() for width in widths]
    # Lanes as (end, number), a heap per width.
    free: dict[int, list[tuple[int, int]]] = defaultdict(list)
    lanes: list[int] = []
    count = waiting = 0
    for first_ns, end_ns, width in zip(requests["first_ns"], ends_ns, widths, strict=True):
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
    return pl.Series(lanes, dtype=pl.Int16), waiting, count


def _build_plan(
    name: str,
    operations: pl.DataFrame,
    widths: dict[int, int],
    count: int,
    waiting: int,
    max_io_bytes: int,
) -> LanePlan:
    """Return the plan of `count` lanes of chains, and a lane of independent operations if any."""
    has_independent = bool((operations["lane"] == INDEPENDENT).any())
    total = count + has_independent
    digits = len(str(total))
    by_lane = operations.group_by("lane").agg(
        largest=pl.min_horizontal(pl.col("io_bytes").max(), max_io_bytes), ios=pl.col("parts").sum()
    )
    facts = {lane: (largest, ios) for lane, largest, ios in by_lane.iter_rows()}
    numbers = [*range(count), *([INDEPENDENT] * has_independent)]
    lanes = []
    for index, number in enumerate(numbers):
        largest, ios = facts[number]
        max_depth = max(1, MAX_BUFFER_BYTES // (total * largest))
        width = widths.get(number, _MAX_DEPTH)
        lanes.append(
            Lane(
                file=f"{name}.lane{index + 1:0{digits}d}.iolog",
                depth=min(width, ios, _MAX_DEPTH, max_depth),
                is_chain=number != INDEPENDENT,
                largest_io_bytes=largest,
                ios=ios,
            )
        )
    lane_of_operation = operations["lane"].replace(INDEPENDENT, count).cast(pl.Int16).to_numpy()
    return LanePlan(lanes, lane_of_operation, waiting)
