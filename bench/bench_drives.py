"""How many drives one machine drives.

One ring for all, a ring with a thread of its own for each, and fio's jobs.

Two drives in memory, once as files and, for root, once as loop devices over them: no drive limits
what is measured. Sides alternate within a minute; printed are medians of three and the medians of
each round's ratios. What counts is processor time an I/O, of all threads of the process, the
kernel's for its rings among them: on a machine with two processors, or a busy one, elapsed time
says how they were shared, not what they can do. A loop device's threads are no program's, and in
nobody's figure. The last lines are a MODEL of machines that are not here: one processor orders, and
each other adds what one did. Takes two minutes and 1 GiB of memory; sizes in KiB as arguments
restrict it, for example `4`.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import figures
import numpy as np
from bench_replay import drive, plan_of

from kvreplay.engine.native_engine import Engine, EngineName, choose
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.modelled import SimulatedTier
from kvreplay.tiers.tier import BY_ID, Holding, SeveralDrives, StorageOptions, Tier, drive_by_id

RUNS, DRIVES, DEPTH = 3, 2, 32
"""Depth by drive."""
DRIVE_BYTES = 256 << 20
MIB_BY_SIZE = {4 << 10: 256, 64 << 10: 1024, 1 << 20: 4096}
"""MiB moved a run, by I/O size."""
NULL_ROWS = 1_000_000
CORES = (2, 8, 32)
MEMORY = Path("/dev/shm")  # noqa: S108 - what lies there is in memory


@dataclass(frozen=True, slots=True)
class Side:
    """One run of one program."""

    bytes_per_s: float
    cpu_ns: float
    """User and system time an I/O, of all its threads."""
    order_ns: float = 0
    """Of it: what the rings' threads did outside the kernel but to make data; fio has none."""


def tier_of(paths: list[Path], objects: int) -> SeveralDrives:
    """Return a tier of so many objects on preallocated files or devices at `paths`, open."""
    options = StorageOptions(is_destroying=True)
    drive_of = drive_by_id(objects, DRIVES)
    tier = SeveralDrives(
        "nvme", [ExtentTier(f"nvme:{path}", path, options) for path in paths], drive_of, BY_ID
    )
    peaks = [DRIVE_BYTES] * DRIVES
    tier.expect(Holding(peaks, together_bytes=peaks))
    tier.open(DRIVE_BYTES)
    return tier


def engine_of(tiers: list[Tier | None], io_bytes: int, submitters: int) -> Engine:
    return choose(EngineName.URING, tiers, DRIVES * DEPTH, io_bytes, submitters=submitters)


def ours(engine: Engine, tier: Tier, op: int, io_bytes: int, version: int) -> Side:
    """Move objects of one I/O each, in any order, so that the kernel merges none.

    Less what it takes to begin.
    """
    ios = (MIB_BY_SIZE[io_bytes] << 20) // io_bytes
    objects = np.random.default_rng(version).permutation(ios) % (DRIVES * DRIVE_BYTES // io_bytes)
    idle = _ours(engine, tier, op, io_bytes, objects[:1], version)
    wall_ns, cpu_s, order_s = _ours(engine, tier, op, io_bytes, objects, version)
    return Side(
        ios * io_bytes / wall_ns * 1e9,
        (cpu_s - idle[1]) * 1e9 / ios,
        (order_s - idle[2]) * 1e9 / ios,
    )


def new(engine: Engine, tier: SeveralDrives, io_bytes: int, version: int) -> Side:
    """Write objects that lie nowhere: each is given its place, which no job of fio's does."""
    for object_id in range(DRIVES * DRIVE_BYTES // io_bytes):
        tier.drives[tier.drive_of[object_id]].space.release(object_id)
    found = ours(engine, tier, WRITE, io_bytes, version)
    drive(engine, tier, plan_of(WRITE, np.arange(DRIVES * DRIVE_BYTES // io_bytes), io_bytes, 0))
    return found


def _ours(
    engine: Engine, tier: Tier, op: int, length: int, objects: Any, version: int
) -> tuple[int, float, float]:
    """Return how long it took, ns, and the processor time of all threads and of what orders, s."""
    driven, _, cpu_s = drive(engine, tier, plan_of(op, objects, length, version))
    return (
        driven.wall_ns,
        cpu_s,
        sum(use.user_ns - use.making_ns for use in driven.of("ring")) / 1e9,
    )


def fio(paths: list[Path], op: int, io_bytes: int, *extra: str) -> Side:
    """Run one job of fio's for each of `paths`.

    What it says itself of its processor time leaves out the kernel's threads for its rings: we take
    that of the whole process, less what it takes to start.
    """
    total = MIB_BY_SIZE[io_bytes] << 20
    idle_s = _fio(paths, op, io_bytes, io_bytes, *extra)[1]
    wall_ms, cpu_s = _fio(paths, op, io_bytes, total // DRIVES, *extra)
    return Side(total / wall_ms * 1000, (cpu_s - idle_s) * 1e9 / (total // io_bytes))


def _fio(paths: list[Path], op: int, io_bytes: int, moved: int, *extra: str) -> tuple[float, float]:
    """Return how long fio took, in ms, to move `moved` bytes on each of `paths`, and its processor
    time, in s.
    """
    command = [
        "fio",
        f"--rw={'randwrite' if op else 'randread'}",
        f"--bs={io_bytes}",
        f"--iodepth={DEPTH}",
        "--ioengine=io_uring",
        "--direct=1",
        f"--size={DRIVE_BYTES}",
        f"--io_size={moved}",
        "--overwrite=1",
        "--output-format=json",
        *extra,
    ]
    for at, path in enumerate(paths):
        command += [f"--name=drive{at}", f"--filename={path}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_ms = max(
        job["write" if op else "read"]["runtime"] for job in json.loads(done.stdout)["jobs"]
    )
    return wall_ms, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@contextmanager
def loop_devices(backing: list[Path]) -> Iterator[list[Path]]:
    """Yield a loop device over each of the files."""
    with ExitStack() as stack:
        devices = []
        for path in backing:
            command = ["losetup", "--find", "--show", "--direct-io=on", str(path)]
            devices.append(
                Path(
                    subprocess.run(
                        command, capture_output=True, text=True, check=True
                    ).stdout.strip()
                )
            )
            stack.callback(subprocess.call, ["losetup", "--detach", devices[-1]])
        yield devices


def compare(kind: str, paths: list[Path], io_bytes: int) -> dict[int, Side]:
    """Print all sides for one I/O size; return by operation ours with a ring for each drive."""
    count = DRIVES * DRIVE_BYTES // io_bytes
    tier, found = tier_of(paths, count), {}
    try:
        engines = {count: engine_of([tier], io_bytes, count) for count in (1, DRIVES)}
        drive(engines[1], tier, plan_of(WRITE, np.arange(count), io_bytes, 0))
        for op in (READ, WRITE):
            fresh = ["--refill_buffers=1"] if op == WRITE else []
            sides: dict[str, Callable[[int], Side]] = {
                "fio, a job a drive": lambda _, op=op, more=fresh: fio(paths, op, io_bytes, *more),  # type: ignore[misc]
                "one ring": lambda version, op=op: ours(engines[1], tier, op, io_bytes, version),  # type: ignore[misc]
                "a ring a drive": lambda version, op=op: ours(
                    engines[DRIVES], tier, op, io_bytes, version
                ),  # type: ignore[misc]
            }
            if op == WRITE:
                sides["one ring, new objects"] = lambda version: new(
                    engines[1], tier, io_bytes, version
                )
            runs: dict[str, list[Side]] = {name: [] for name in sides}
            for version in range(1, RUNS + 1):
                for name, side in sides.items():
                    runs[name].append(side(version))
            peer = runs["fio, a job a drive"]
            for name, of_side in runs.items():
                speed, cpu = (
                    statistics.median(getattr(s, f) for s in of_side)
                    for f in ("bytes_per_s", "cpu_ns")
                )
                ratio = statistics.median(
                    a.cpu_ns / b.cpu_ns for a, b in zip(peer, of_side, strict=True)
                )
                if of_side is not peer:
                    figures.record_comparison(
                        f"{DRIVES} drives in memory ({kind}), {'write' if op else 'read'}"
                        f" {io_bytes >> 10} KiB, {name}",
                        "GB/s",
                        "fio, a job a drive",
                        [
                            (a.bytes_per_s / 1e9, b.bytes_per_s / 1e9)
                            for a, b in zip(of_side, peer, strict=True)
                        ],
                        [(a.cpu_ns, b.cpu_ns) for a, b in zip(of_side, peer, strict=True)],
                    )
                print(
                    f"{kind:>6} {'write' if op else 'read':>5} {io_bytes >> 10:>5} KiB "
                    f" {name:<22}{speed / 1e9:7.2f} GB/s {speed / io_bytes / 1e3:7.0f} k I/O/s "
                    f" {cpu:9.0f} ns/I/O {cpu / io_bytes:7.3f} ns/B   per core"
                    f" {1e9 / cpu / 1e3:6.0f} k I/O/s, {ratio:5.2f} of fio's"
                )
            each = runs["a ring a drive"]
            found[op] = Side(
                *(statistics.median(getattr(s, f) for s in each) for f in Side.__slots__)
            )
    finally:
        tier.close()
    return found


def ordering_ns() -> float:
    """Return the processor time that ordering takes an operation.

    Nothing moves, and nothing is entered.
    """
    tier: Any = SimulatedTier("null")
    engine = engine_of([tier], 4096, 1)
    plan = plan_of(READ, np.arange(NULL_ROWS) % 1000, 4096, 0)
    return statistics.median(drive(engine, tier, plan)[2] * 1e9 / NULL_ROWS for _ in range(RUNS))


def model(io_bytes: int, op: int, side: Side) -> None:
    """Print what more processors would do.

    One orders, the others enter the kernel; memory's bandwidth is left out.
    """
    if side.order_ns <= 0:
        print(
            f"MODEL  {'write' if op else 'read':>5} {io_bytes >> 10:>5} KiB: none, its ordering was"
            " lost in noise"
        )
        return
    rest_ns = max(1.0, side.cpu_ns - side.order_ns)
    each = {cores: min(1e9 / side.order_ns, (cores - 1) * 1e9 / rest_ns) for cores in CORES}
    said = ", ".join(
        f"{n}: {found / 1e3:,.0f} k I/O/s ({found * io_bytes / 1e9:,.0f} GB/s)"
        for n, found in each.items()
    )
    print(
        f"MODEL  {'write' if op else 'read':>5} {io_bytes >> 10:>5} KiB: ordering"
        f" {side.order_ns:.0f} ns an I/O, the rest {rest_ns:.0f}; processors {said}"
    )


def main() -> None:
    if shutil.which("fio") is None or not MEMORY.is_dir():
        print("several drives against fio: skipped, fio or /dev/shm is not there")
        return
    sizes = [int(text) << 10 for text in sys.argv[1:]] or list(MIB_BY_SIZE)
    print(
        f"{DRIVES} drives in memory, {DEPTH} deep each; {os.cpu_count()} processors, load"
        f" {os.getloadavg()[0]:.1f}"
    )
    order_ns = ordering_ns()
    print(
        f"ordering alone (null tier): {order_ns:.0f} ns an operation, {1e3 / order_ns:.2f} M/s at"
        " most"
    )
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="bench-") as name:
        paths = [Path(name) / f"drive{at}.dat" for at in range(DRIVES)]
        for path in paths:
            subprocess.run(["fallocate", "-l", str(2 * DRIVE_BYTES), path], check=True)
        for io_bytes in sizes:
            sides = compare(
                "files", [path.with_name(f"own-{path.name}") for path in paths], io_bytes
            )
            if os.geteuid() == 0 and shutil.which("losetup") is not None:
                with loop_devices(paths) as devices:
                    sides = compare("loops", devices, io_bytes)
            for op, side in sides.items():
                model(io_bytes, op, side)


if __name__ == "__main__":
    main()
