"""The reference I/O for jobs of a trace: a replay by kvreplay with its block-layer probes.

This is the only module of kvdistill that calls kvreplay. Its functions import it when they need it,
because that takes long, and most jobs are written without a check. Both run in this process; a failure is
returned as a reason, or raised as an error of the shared tree.
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
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from kvdistill.profile.sources import Distilled
from kvdistill.queries.window import RowWindow, find_tier_place
from kvtrace.core import pa, pc, tables
from kvtrace.core.app import command_line
from kvtrace.core.errors import KvError, ProbeUnavailable
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import BLOCKS_FILE
from kvtrace.core.schema import TRACE, arrow_schema
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from kvreplay.run.replay import FinishedRun

REPLAYED = "replayed"
"""Name of the run's directory in the folder of the check."""
_LEAD_NS = NS_PER_S
"""Time before the first operation, to generate the data of the first writes."""
_START_S = 120
"""Time allowed to prepare the target, in addition to the time for its bytes."""


class NoReference(StrEnum):
    """The reason for a missing reference."""

    NO_DEVICE = "the target is not on a block device"
    NO_ROOT = "measuring the block requests of a replay needs root"
    PROBES_LEFT_OUT = "the probes could not be attached"
    REPLAY_FAILED = "kvreplay could not replay the trace"
    TOO_SLOW = "the target is too slow for the replay"
    FELL_BEHIND = "the replay fell behind its trace"
    NO_REQUESTS = "no block requests were seen"


@dataclass(frozen=True, slots=True)
class ReplayedPart:
    """The replay of a part of a trace: its block requests, or the reason for none."""

    missing: NoReference | None
    """Null if the replay is a valid reference."""
    message: str
    """Result of the replay, or the problem, in one sentence."""
    blocks: Path | None = None
    """Requests of the device; null with a reason in `missing`."""


@dataclass(frozen=True, slots=True)
class CheckStorage:
    """The storage on which a check runs its jobs and its replay."""

    disk: Path | None
    """The disk beneath, whose requests are observed; null without one (tmpfs, network)."""
    device: Path | None = None
    """The block device that is overwritten; null for scratch files in the check's folder."""
    device_bytes: int = 0
    """Capacity of the device; 0 for scratch files."""
    overwritten: str | None = None
    """Signatures of the device that may be overwritten, separated by commas."""


def device_bytes(device: Path, *, is_allowed: bool, overwritten: str | None) -> int:
    """Return the capacity of the block device `device` in bytes.

    DeviceError if it must not be overwritten: in use, mounted, of the system, with signatures other
    than the `overwritten` ones, or not allowed by the user (`is_allowed`).
    """
    from kvreplay.tiers.claims import check_device

    return check_device(device, is_destroying=is_allowed, overwritten=overwritten).size_bytes


def replay_part(
    trace: Path,
    checked: Distilled,
    folder_path: Path,
    storage: CheckStorage,
    *,
    io_bytes: int,
    queue_depth: int,
    slowest_bytes_per_s: float,
) -> ReplayedPart:
    """Replay `checked` (a part of `trace`) at its times on `storage`, with the probes attached.

    The part and the run's results are written to the folder `folder_path`. At most `queue_depth`
    I/Os are in flight, as in the jobs. The replay is stopped if the target is slower than
    `slowest_bytes_per_s`.
    """
    from kvreplay.plan.replay_config import Config
    from kvreplay.run.replay import Interrupted, Replay, replay

    if storage.disk is None:
        return _missing(NoReference.NO_DEVICE)
    if os.geteuid() != 0:
        return _missing(NoReference.NO_ROOT)
    part_path, output = folder_path / "part.parquet", folder_path / REPLAYED
    write_part(trace, checked, part_path)
    profile = checked.profile
    tier = profile.tier.rpartition("@")[0] or profile.tier
    config = Config(
        tiers={tier: str(storage.device or folder_path / "replayed.dat")},
        is_destroying=storage.device is not None,
        overwritten=storage.overwritten,
        speed=1.0,
        is_probed=True,
        io_bytes=io_bytes,
        queue_depth=queue_depth,
    )
    moved_bytes = 2 * profile.placed.span_bytes + profile.read.io_bytes + profile.write.io_bytes
    limit_s = _START_S + profile.span_ns / NS_PER_S + moved_bytes / slowest_bytes_per_s
    deadline = _Deadline(limit_s)
    try:
        finished = replay(Replay(config, part_path, output, command_line()), together=deadline)
    except KvError as error:
        return ReplayedPart(NoReference.REPLAY_FAILED, str(error))
    if isinstance(finished.error, Interrupted):
        if deadline.reason is None:
            # The user asked to stop.
            raise finished.error
        return ReplayedPart(NoReference.TOO_SLOW, f"kvreplay did not end within {limit_s:.0f} s")
    return _result_of(finished, output)


def _result_of(finished: FinishedRun, output: Path) -> ReplayedPart:
    """Return the `finished` replay with files in `output`, if it is a valid reference."""
    probes, summary = finished.run.probes, finished.run.summary
    if probes is None or not probes.is_measured:
        reason = None if probes is None else probes.reason
        return _missing(NoReference.PROBES_LEFT_OUT, reason)
    if finished.error is not None:
        return ReplayedPart(NoReference.REPLAY_FAILED, str(finished.error))
    if summary.fell_behind:
        return ReplayedPart(
            NoReference.FELL_BEHIND,
            f"check invalid at the device: the reference replay by kvreplay {summary.verdict}",
        )
    return ReplayedPart(None, summary.verdict, output / BLOCKS_FILE)


def _missing(reason: NoReference, message: str | None = None) -> ReplayedPart:
    return ReplayedPart(reason, message or reason.value)


class _Deadline:
    """Stops a replay after a time limit."""

    def __init__(self, limit_s: float) -> None:
        self._end_s = monotonic() + limit_s

    @property
    def reason(self) -> str | None:
        """The reason to stop the replay now; null while it may run."""
        return None if monotonic() < self._end_s else "its time limit"

    def ready(self) -> None:
        """Start without waiting for others."""

    def agree(self, soonest_ns: int) -> int:
        """Return the start of the run: as soon as possible."""
        return soonest_ns

    def begun(self) -> None:
        """Ignore the start."""


@contextmanager
def probed_program(name: str, disk: Path, output: Path) -> Iterator[None]:
    """Measure the I/O of processes called `name` on `disk` while the context lasts.

    At its end blocks.parquet and probe.json are in the folder `output`.

    ProbeUnavailable, at the start or the end, if nothing can be measured.
    """
    from kvreplay.probes.libbpf import Filter, resolve
    from kvreplay.probes.probe_session import measure

    is_attached, is_over = threading.Event(), threading.Event()

    def work() -> None:
        try:
            measure(
                Filter(comm=name, disks=resolve(disk)),
                output,
                None,
                command_line(),
                has_events=True,
                announce=lambda _line: is_attached.set(),
                is_over=is_over.is_set,
            )
        except ProbeUnavailable:
            raise
        except KvError as error:
            raise ProbeUnavailable(str(error)) from None
        finally:
            # If attaching fails, the waiting thread must not wait forever.
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


def write_part(trace: Path, distilled: Distilled, target: Path) -> None:
    """Write the rows of `trace` in the window of `distilled` to `target`.

    The first row is one second after the start.
    """
    reader = tables.open_table(trace, TRACE)
    place, window, start_ns = (
        find_tier_place(reader.meta, distilled.profile.tier),
        RowWindow(distilled.limit),
        None,
    )
    # The tier of one node becomes a trace of a single node.
    tiers = [TierFacts(tier.name, tier.capacity_bytes) for tier in reader.meta.tiers]
    with tables.create(target, TRACE, msgspec.structs.replace(reader.meta, tiers=tiers)) as out:
        for batch in reader.batches():
            rows = batch.filter(pa.array(place.holds(batch)))
            window_columns = {
                name: rows.column(name).to_numpy() for name in ("ts_ns", "length_bytes")
            }
            op = rows.column("op").indices.to_numpy()
            accepted = window.take({**window_columns, "op": op, "index": np.arange(rows.num_rows)})
            if accepted is not None:
                start_ns = int(accepted["ts_ns"][0]) - _LEAD_NS if start_ns is None else start_ns
                accepted_rows = rows.take(pa.array(accepted["index"]))
                times = pc.subtract(accepted_rows.column("ts_ns"), pa.scalar(start_ns, pa.int64()))
                columns = [
                    times if name == "ts_ns" else accepted_rows.column(name) for name in TRACE.names
                ]
                out.write(pa.RecordBatch.from_arrays(columns, schema=arrow_schema(TRACE)))
            if window.is_over:
                return
