"""The I/O that a trace's jobs are compared with: a replay by kvreplay, and the probes of its tools.

The only module of kvdistill that calls kvreplay. Both run in this process; what they could not do
comes back as a reason, or as an error of the shared tree.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np

from kvdistill.profile.sources import Distilled
from kvdistill.queries.window import RowWindow, find_tier_place
from kvreplay.config.config import Config
from kvreplay.probes.libbpf import Filter, resolve
from kvreplay.probes.session import measure
from kvreplay.run.run import FinishedRun, Interrupted, Replay, replay
from kvtrace.core import pa, pc, tables
from kvtrace.core.app import command_line
from kvtrace.core.errors import KvError, ProbeUnavailable
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import TRACE, arrow_schema
from kvtrace.core.units import NS_PER_S

_LEAD_NS = NS_PER_S
"""Before the first operation, in which the data of the first writes is made."""
_START_S = 120
"""How long a replay may prepare its target, beside the time that its bytes take."""


class NoReference(StrEnum):
    """Why there is no replay to compare with."""

    NO_DEVICE = "no block device lies beneath the target"
    NO_ROOT = "measuring the block requests of a replay needs root"
    PROBES_LEFT_OUT = "the probes could not be attached"
    REPLAY_FAILED = "kvreplay could not replay the trace"
    TOO_SLOW = "the target is too slow for the replay"
    FELL_BEHIND = "the replay fell behind its trace"
    NO_REQUESTS = "no block requests were seen"


@dataclass(frozen=True, slots=True)
class ReplayedPart:
    """A replay of a part of a trace, whose block requests are in `blocks`, or why there is none."""

    missing: NoReference | None
    """Null if it can be compared with."""
    message: str
    """How the replay went, or what was in its way, in a sentence."""
    blocks: Path | None = None
    """The requests of its device; null with a reason in `missing`."""


def replay_part(
    trace: Path,
    part: Distilled,
    place: Path,
    disk: Path | None,
    *,
    io_bytes: int,
    queue_depth: int,
    slowest_bytes_per_s: float,
) -> ReplayedPart:
    """Replay `part` of `trace` at its times on one file in the folder `place`, with the probes
    attached.

    `disk` is what lies beneath `place`, null if nothing does. At most `queue_depth` I/Os are in
    flight, as in the jobs. A target that is slower than `slowest_bytes_per_s` is given up on.
    """
    if disk is None:
        return _missing(NoReference.NO_DEVICE)
    if os.geteuid() != 0:
        return _missing(NoReference.NO_ROOT)
    cut, output = place / "part.parquet", place / "replayed"
    write_part(trace, part, cut)
    profile = part.profile
    tier = profile.tier.rpartition("@")[0] or profile.tier
    config = Config(
        tiers={tier: str(place / "replayed.dat")},
        speed=1.0,
        is_probed=True,
        io_bytes=io_bytes,
        queue_depth=queue_depth,
    )
    moved_bytes = 2 * profile.placed.span_bytes + profile.read.io_bytes + profile.write.io_bytes
    limit_s = _START_S + profile.span_ns / NS_PER_S + moved_bytes / slowest_bytes_per_s
    deadline = _Deadline(limit_s)
    try:
        finished = replay(Replay(config, cut, output, command_line()), together=deadline)
    except KvError as error:
        return ReplayedPart(NoReference.REPLAY_FAILED, str(error))
    if isinstance(finished.error, Interrupted):
        if deadline.reason is None:
            # The user asked to stop.
            raise finished.error
        return ReplayedPart(NoReference.TOO_SLOW, f"kvreplay did not end within {limit_s:.0f} s")
    return _judged(finished, output)


def _judged(finished: FinishedRun, output: Path) -> ReplayedPart:
    """Return whether the `finished` replay, whose files are in `output`, can be compared with."""
    probes, summary = finished.run.probes, finished.run.summary
    if probes is None or not probes.is_measured:
        reason = None if probes is None else probes.reason
        return _missing(NoReference.PROBES_LEFT_OUT, reason)
    if finished.error is not None:
        return ReplayedPart(NoReference.REPLAY_FAILED, str(finished.error))
    if summary.fell_behind:
        return ReplayedPart(
            NoReference.FELL_BEHIND,
            "check invalid at the device: its own reference, a replay by kvreplay,"
            f" {summary.verdict}",
        )
    return ReplayedPart(None, summary.verdict, output / BLOCKS_FILE)


def _missing(reason: NoReference, message: str | None = None) -> ReplayedPart:
    return ReplayedPart(reason, message or reason.value)


class _Deadline:
    """Ends a replay that is not over after so many seconds; else it starts and ends by itself."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = monotonic() + limit_s

    @property
    def reason(self) -> str | None:
        """Why the replay ends now; null while it may run."""
        return None if monotonic() < self._end_s else "its time limit"

    def ready(self) -> None:
        """Start without waiting for others."""

    def agree(self, soonest_ns: int) -> int:
        """Return the start of the run: as soon as it can."""
        return soonest_ns

    def begun(self) -> None:
        """Note nothing of the start."""


@contextmanager
def probed_program(name: str, disk: Path, output: Path) -> Iterator[None]:
    """Measure the I/O of processes called `name` on `disk` while the context lasts.

    At its end blocks.parquet and probe.json are in the folder `output`.

    ProbeUnavailable, at the start or the end, says why nothing is measured.
    """
    is_attached, is_over = threading.Event(), threading.Event()

    def work() -> None:
        try:
            measure(
                Filter(comm=name, disks=resolve(disk)),
                output,
                None,
                command_line(),
                has_events=True,
                tell=lambda _line: is_attached.set(),
                is_over=is_over.is_set,
            )
        except ProbeUnavailable:
            raise
        except KvError as error:
            raise ProbeUnavailable(str(error)) from None
        finally:
            # Whoever waits for the probes must not wait for ever if they are refused.
            is_attached.set()

    with ThreadPoolExecutor(1, "kvdistill-probes") as pool:
        measuring = pool.submit(work)
        try:
            is_attached.wait()
            if measuring.done():
                measuring.result()
            yield
        finally:
            is_over.set()
        measuring.result()


def write_part(trace: Path, part: Distilled, target: Path) -> None:
    """Write the rows of `trace` that `part` was distilled from to `target`, the first a second
    after the start.
    """
    reader = tables.open_table(trace, TRACE)
    place, window, first = (
        find_tier_place(reader.meta, part.profile.tier),
        RowWindow(part.limit),
        None,
    )
    # What one node has is a trace of one node.
    tiers = [TierFacts(tier.name, tier.capacity_bytes) for tier in reader.meta.tiers]
    with tables.create(target, TRACE, msgspec.structs.replace(reader.meta, tiers=tiers)) as out:
        for batch in reader.batches():
            rows = batch.filter(pa.array(place.holds(batch)))
            looked_at = {name: rows.column(name).to_numpy() for name in ("ts_ns", "length_bytes")}
            op = rows.column("op").indices.to_numpy()
            kept = window.take({**looked_at, "op": op, "at": np.arange(rows.num_rows)})
            if kept is not None:
                first = int(kept["ts_ns"][0]) - _LEAD_NS if first is None else first
                taken = rows.take(pa.array(kept["at"]))
                times = pc.subtract(taken.column("ts_ns"), pa.scalar(first, pa.int64()))
                columns = [times if name == "ts_ns" else taken.column(name) for name in TRACE.names]
                out.write(pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TRACE)))
            if window.is_over:
                return
