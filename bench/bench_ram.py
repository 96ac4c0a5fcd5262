"""Whether a tier in DRAM is as fast as DRAM.

Beside plain memcpy of libc, and beside a drive that is kept busy.

Every side copies pieces of the same size between 1 GiB of objects and 128 MiB in turn, so that none
stays in the processor's cache, with as many threads. Sides alternate; printed are medians of five
and the medians of each round's ratio. What a piece takes is the service time of an operation over
its bytes: of one alone in a closed loop of depth 1 (`one`), and of all threads at depth 8. Takes
two minutes and 2 GiB below the working directory.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_replay
import figures
import numpy as np

from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.plan.buffers import map_aligned, touch
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import SINK_BYTES, RamTier, copy_threads
from kvreplay.tiers.tier import Holding, StorageOptions, Tier

RUNS = 5
TOTAL_BYTES, MOVED_BYTES = 1 << 30, 2 << 30
SIZES = (64 << 10, 1 << 20, 16 << 20)
"""Of objects; I/Os are of 1 MiB, and of the object where that is shorter."""
DRIVE_OBJECTS, DRIVE_BYTES = 16, 16 << 20
RAM, DRIVE = 0, 1


@dataclass(frozen=True, slots=True)
class Side:
    """What one run found."""

    ns_per_mib: float
    bytes_per_s: float
    drive_bytes_per_s: float | None = None


class Peer:
    """Copies of libc's memcpy, from as many threads as ours."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._kept = [map_aligned(n) for n in (TOTAL_BYTES, SINK_BYTES)]
        self._from, self._to = (
            np.frombuffer(m, np.uint8).ctypes.data + first for m, first in self._kept
        )
        touch(self._from, TOTAL_BYTES)
        touch(self._to, SINK_BYTES)

    def run(self, length: int, threads: int) -> Side:
        """Copy in pieces of `length`."""
        times: list[list[float]] = [[] for _ in range(threads)]
        started = time.perf_counter()
        each = [
            threading.Thread(target=self._copy, args=(length, i, threads, times[i]))
            for i in range(threads)
        ]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        wall = time.perf_counter() - started
        took = [t for of_thread in times for t in of_thread]
        return Side(statistics.median(took) / length * 2**20, MOVED_BYTES / wall)

    def _copy(self, length: int, index: int, threads: int, times: list[float]) -> None:
        memcpy, source, sink = (
            self._libc.memcpy,
            TOTAL_BYTES // threads,
            SINK_BYTES // threads // length * length,
        )
        for number in range(MOVED_BYTES // threads // length):
            at = number * length
            before = time.perf_counter_ns()
            memcpy(
                self._to + index * sink + at % sink,
                self._from + index * source + at % source,
                length,
            )
            times.append(time.perf_counter_ns() - before)


def plan_of(size: int, share: int, op: int) -> Any:
    """Return reads of the tier in memory, and beside each `share`-th an operation on the drive."""
    count = MOVED_BYTES // size
    rows = [(RAM, READ, i % (TOTAL_BYTES // size), size) for i in range(count)]
    if share:
        mixed = []
        for i, row in enumerate(rows):
            if i % share == 0:
                mixed.append((DRIVE, op, 10**5 + i // share % DRIVE_OBJECTS, DRIVE_BYTES))
            mixed.append(row)
        rows = mixed
    tier, ops, objects, lengths = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return {
        "tier": tier,
        "op": ops,
        "object_id": objects,
        "length_bytes": lengths,
        "version": np.zeros(len(rows), np.int64),
    }


def drive(engine: Any, tiers: list[Tier], plan: Any) -> Side:
    driven, rows, _ = bench_replay.drive(engine, tiers, plan)
    ours, length = rows["tier"] == RAM, rows["length_bytes"]
    took = (rows["completed_ns"] - rows["submitted_ns"])[ours] / length[ours] * 2**20
    other = int(length[~ours].sum()) / driven.wall_ns * 1e9 if not ours.all() else None
    return Side(float(np.median(took)), int(length[ours].sum()) / driven.wall_ns * 1e9, other)


def show(text: str, found: list[tuple[Side, Side]], what: str) -> None:
    times = [
        statistics.median(side.ns_per_mib for side in sides) / 1e3
        for sides in zip(*found, strict=True)
    ]
    rates = [
        statistics.median(side.bytes_per_s for side in sides) / 1e9
        for sides in zip(*found, strict=True)
    ]
    speed = statistics.median(b.ns_per_mib / a.ns_per_mib for a, b in found)
    figures.record_comparison(
        text, "MiB/ms a thread", what, [(1e6 / a.ns_per_mib, 1e6 / b.ns_per_mib) for a, b in found]
    )
    beside = [a.drive_bytes_per_s for a, _ in found if a.drive_bytes_per_s is not None]
    drove = f"; drive {statistics.median(beside) / 1e9:.2f} GB/s meanwhile" if beside else ""
    print(
        f"{text}: {times[0]:.0f} µs/MiB, {what} {times[1]:.0f}, speed ratio {speed:.2f} "
        f"({rates[0]:.1f} and {rates[1]:.1f} GB/s over all){drove}",
        flush=True,
    )


def bench(directory: Path, names: list[EngineName]) -> None:
    files = FileTier("nvme", directory, StorageOptions())
    files.open(DRIVE_OBJECTS * DRIVE_BYTES)
    peer, threads = Peer(), copy_threads()
    try:
        for size in SIZES:
            io_bytes = min(size, 1 << 20)
            memory = RamTier("cpu", 1 << 20)
            memory.expect(Holding([TOTAL_BYTES]))
            memory.open(TOTAL_BYTES)
            tiers: list[Tier] = [memory, files]
            there = bench_replay.plan_of(WRITE, np.arange(TOTAL_BYTES // size), size, 0)
            bench_replay.drive(choose(EngineName.AUTO, tiers, 8, 1 << 20), tiers, there)
            share = max(1, 4 * DRIVE_BYTES // size)
            for name in names:
                engine = choose(name, tiers, 8, 1 << 20)
                written = plan_of(size, share, WRITE)
                drive(engine, tiers, written)
                alone, reads, writes = [], [], []
                for _ in range(RUNS):
                    own = drive(engine, tiers, plan_of(size, 0, READ))
                    alone.append((own, peer.run(io_bytes, threads)))
                    reads.append((drive(engine, tiers, plan_of(size, share, READ)), own))
                    writes.append((drive(engine, tiers, written), own))
                at = f"{size >> 10:6} KiB, {engine.name}"
                show(f"{at}, alone", alone, f"memcpy of {io_bytes >> 10} KiB")
                show(f"{at}, beside reads of a drive", reads, "alone")
                show(f"{at}, beside writes of a drive", writes, "alone")
            memory.close()
    finally:
        files.close()


def main() -> None:
    names = [EngineName(text) for text in sys.argv[1:]] or [EngineName.AUTO]
    cores = len(os.sched_getaffinity(0))
    print(
        f"load {os.getloadavg()[0]:.1f} on {cores} processors, {copy_threads()} threads copy;"
        " targets: >= 0.8"
    )
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        bench(Path(name), names)


if __name__ == "__main__":
    main()
