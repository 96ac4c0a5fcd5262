"""How near kvreplay comes to fio.

The same files, the same I/O sizes and depths, in the same minute.

Sides alternate; printed are medians of three and the medians of each round's ratios. The kernel's
own counters (/proc/diskstats) must show that the device moved the bytes. A noisy disk makes ratios
of 0.8 to 1.25 a draw: mind the load that is printed. Ours writes new data each time. fio does too
with refill_buffers=1; without, it writes the same buffers again and again, and makes nothing:
writes are compared with both, and all with and without fixedbufs=1, as our buffers are registered.
fio's buffers lie in huge pages, as ours do and as our jobs ask for: from 4 KiB pages I/Os of 1 MiB
reach the device in parts, and at depth 1 at 0.4 of the speed. Processor time is that of the whole
process while it moves bytes, all its threads and the making of data included, and start-up left out
on both sides; what making the data took is printed beside it. Takes ten minutes and 1 GiB below the
working directory; sizes in KiB as arguments restrict it, for example `64 1024`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import figures
import numpy as np

from kvdistill.jobs.fio_run import environment
from kvreplay.engine.job import Driven, Job
from kvreplay.engine.native_engine import Engine, EngineName, choose
from kvreplay.plan.contents import DataSource
from kvreplay.plan.row_ring import READ, WRITE, RowRing
from kvreplay.run.replay import moved_between, quiet_interpreter
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.host import device_counters
from kvreplay.tiers.modelled import SimulatedTier
from kvreplay.tiers.tier import StorageOptions, Tier

RUNS = 3
FILES, FILE_BYTES = 32, 32 << 20
DEPTHS = (1, 8, 32)
MIB_BY_SIZE = {4 << 10: 64, 64 << 10: 256, 256 << 10: 1024, 1 << 20: 1024, 4 << 20: 1024}
"""MiB moved a run, by I/O size; fewer of the small ones, which take longer."""


@dataclass(frozen=True, slots=True)
class Side:
    """One run of one program."""

    bytes_per_s: float
    cpu_us: float
    """User and system time an I/O, of the whole process."""
    generation_us: float | None
    """Of it: making data; null for fio, which does not say."""
    moved: float | None
    """Bytes the device moved, by those that were asked."""


def plan_of(op: int, objects: Any, length: int, version: int, offset: Any = 0) -> dict[str, Any]:
    """Return the columns of rows on one tier."""
    fill = np.zeros(len(objects), np.int64)
    values = {
        "op": op,
        "object_id": objects,
        "offset_bytes": offset,
        "length_bytes": length,
        "version": version,
    }
    return {name: fill + value for name, value in values.items()}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def drive(
    engine: Engine, tiers: Tier | list[Tier], columns: dict[str, Any], due: Any = None
) -> tuple[Driven, Any, float]:
    """Return how it went, the rows, and the processor time, of rows that are due in an open loop."""
    is_open = due is not None
    rows = RowRing.of(columns | ({"due_ns": due} if is_open else {}), is_open_loop=is_open)
    on = tiers if isinstance(tiers, list) else [tiers]
    job = Job(rows, on, DataSource(time.time_ns()), is_open_loop=is_open)
    with quiet_interpreter():
        before = cpu_s()
        driven = engine.drive(job, lambda: None, lambda _done: None)
        cpu = cpu_s() - before
    assert driven.completed == len(rows), driven
    return driven, rows.all, cpu


def device_share(
    directory: Path, op: int, moved: int, run: Callable[[], Any]
) -> tuple[Any, float | None]:
    before = device_counters(directory)
    result = run()
    counted = moved_between(before, device_counters(directory))
    seen = counted.written_bytes if op else counted.read_bytes
    return result, None if seen is None else seen / moved


def ours(engine: Engine, tier: FileTier, op: int, io_bytes: int, version: int) -> Side:
    total = MIB_BY_SIZE[io_bytes] << 20
    plan = plan_of(op, np.arange(total // FILE_BYTES), FILE_BYTES, version)
    (driven, _, cpu), share = device_share(
        Path(tier.target), op, total, lambda: drive(engine, tier, plan)
    )
    return side_of(driven, cpu, total, total // io_bytes, share)


def side_of(driven: Driven, cpu: float, total: int, ios: int, share: float | None) -> Side:
    """Return one run of ours, of `ios` I/Os and `total` bytes, which took `cpu` seconds of the
    processors.
    """
    return Side(total / driven.wall_ns * 1e9, cpu / ios * 1e6, driven.making_ns / ios / 1e3, share)


def fio(tier: FileTier, op: int, io_bytes: int, depth: int, *extra: str) -> Side:
    total = MIB_BY_SIZE[io_bytes] << 20
    files = ":".join(tier.path(i) for i in range(total // FILE_BYTES))
    command = [
        "fio",
        "--name=bench",
        f"--filename={files}",
        f"--rw={'write' if op else 'read'}",
        f"--bs={io_bytes}",
        f"--iodepth={depth}",
        "--ioengine=io_uring",
        "--direct=1",
        f"--size={total}",
        "--overwrite=1",
        "--file_service_type=sequential",
        "--iomem_align=2m",
        "--output-format=json",
        *extra,
    ]
    done, share = device_share(Path(tier.target), op, total, lambda: run_fio(command))
    job = json.loads(done.stdout)["jobs"][0]
    part = job["write" if op else "read"]
    assert part["io_bytes"] == total, part["io_bytes"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] * 1000
    return Side(part["bw_bytes"], cpu / (total // io_bytes), None, share)


def run_fio(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run fio with huge pages for its buffers."""
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment())


def compare(
    tier: Tier, io_bytes: int, version: int, ours: Callable[..., Side], fio: Callable[..., Side]
) -> None:
    """Print the lines of one I/O size, of `ours` beside `fio`.

    Each write is of a new version from `version` on.
    """
    for op in (READ, WRITE):
        for depth in DEPTHS:
            engine = choose(EngineName.AUTO, [tier], depth, io_bytes)
            turns = [version + at for at in range(RUNS)]
            version += RUNS
            rounds_of(
                op,
                io_bytes,
                depth,
                engine.name,
                [partial(ours, engine, tier, op, io_bytes, turn) for turn in turns],
                partial(fio, tier, op, io_bytes, depth),
            )


def rounds_of(
    op: int,
    io_bytes: int,
    depth: int,
    engine: str,
    mine: list[Callable[[], Side]],
    fio: Callable[..., Side],
) -> None:
    """Run ours and fio in turn, and print how they compare."""
    peers: dict[str, tuple[str, ...]] = {"fio": (), "fio fixedbufs": ("--fixedbufs",)}
    if op == WRITE:
        peers |= {
            f"{name} refill_buffers=1": (*extra, "--refill_buffers=1")
            for name, extra in peers.items()
        }
    rounds = []
    for at, ours_ in enumerate(mine):
        sides: dict[str, Callable[[], Side]] = {"": ours_} | {
            name: partial(fio, *extra) for name, extra in peers.items()
        }
        # Whichever goes later finds the drive busier, so they take turns.
        names = list(sides)
        names = names[at % len(names) :] + names[: at % len(names)]
        rounds.append({name: sides[name]() for name in names})
    show(rounds, engine, op, io_bytes, depth)


def show(rounds: list[dict[str, Side]], engine: str, op: int, io_bytes: int, depth: int) -> None:
    """Print one line of rounds, in each of which "" is ours and the others are fio's."""
    middle = statistics.median
    mine = [sides[""] for sides in rounds]
    shares = [side.moved for sides in rounds for side in sides.values() if side.moved is not None]
    made = ""
    if op == WRITE:
        made = f", of it making data {middle(s.generation_us or 0 for s in mine):.1f}"
    print(
        f"{'write' if op else 'read':5} {io_bytes >> 10:5} KiB depth {depth:2}: {engine} "
        f"{middle(s.bytes_per_s for s in mine) / 1e9:.2f} GB/s, "
        f"CPU an I/O {middle(s.cpu_us for s in mine):.1f} µs{made}; "
        f"device moved >= {f'{min(shares):.2f}' if shares else 'unseen'}"
    )
    for name in rounds[0]:
        if name:
            other = [sides[name] for sides in rounds]
            speed = middle(sides[""].bytes_per_s / sides[name].bytes_per_s for sides in rounds)
            cpu = middle(sides[""].cpu_us / sides[name].cpu_us for sides in rounds)
            targets = targets_of(op, io_bytes, name)
            if "fixedbufs" in name:  # as ours are; what fio does without is printed
                figures.record_comparison(
                    f"{'write' if op else 'read'} {io_bytes >> 10} KiB, depth {depth}",
                    "GB/s",
                    name,
                    [
                        (sides[""].bytes_per_s / 1e9, sides[name].bytes_per_s / 1e9)
                        for sides in rounds
                    ],
                    [(sides[""].cpu_us, sides[name].cpu_us) for sides in rounds],
                )
            print(
                f"    of {name} ({middle(s.bytes_per_s for s in other) / 1e9:.2f} GB/s,"
                f" {middle(s.cpu_us for s in other):.1f} µs): speed {speed:.2f}, CPU"
                f" {cpu:.2f}{targets}",
                flush=True,
            )


def targets_of(op: int, io_bytes: int, peer: str) -> str:
    """Return what is to be reached of `peer`, if anything is."""
    if "refill" in peer:
        return " (targets >= 0.95, <= 1.1)"
    if op == READ:
        return " (target >= 0.95)"
    return " (target >= 0.85)" if io_bytes >= 64 << 10 else ""


def bench_bandwidth(tier: FileTier, sizes: list[int]) -> None:
    version = 2
    for io_bytes in sizes:
        compare(tier, io_bytes, version, ours, fio)
        version += 100
        print(f"  load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def bench_ceiling(directory: Path) -> None:
    """Find what the software can do if the device takes no time."""
    count = 200_000
    rates = []
    for _ in range(RUNS):
        engine = choose(EngineName.URING, [], 32, 4096)
        driven, *_ = drive(engine, SimulatedTier("null"), plan_of(READ, np.arange(count), 4096, 0))
        rates.append(count / driven.wall_ns * 1e9)
    print(f"ceiling, null tier: {statistics.median(rates):,.0f} operations/s (target >= 500,000)")
    cached = FileTier("cached", directory, StorageOptions(is_buffered=True))
    cached.open(0)
    try:
        engine = choose(EngineName.AUTO, [cached], 32, 4096)
        objects = np.arange(4)
        drive(engine, cached, plan_of(WRITE, objects, FILE_BYTES, 1))
        rates = []
        for _ in range(RUNS):
            driven, *_ = drive(engine, cached, plan_of(READ, np.tile(objects, 8), FILE_BYTES, 1))
            rates.append(8 * 4 * FILE_BYTES / 4096 / driven.wall_ns * 1e9)
    finally:
        cached.close()
    print(
        f"ceiling, 4 KiB from the page cache: {statistics.median(rates):,.0f} I/Os/s (target >="
        " 500,000)"
    )


def bare_sleeps() -> Any:
    """Return by how many µs this machine overshoots a sleep of 500 µs that nothing else is asked
    of.
    """
    libc, set_slack = ctypes.CDLL(None), 29
    libc.prctl(set_slack, 1, 0, 0, 0)
    overshoot = []
    for _ in range(4000):
        until = time.monotonic_ns() + 500_000
        time.sleep(0.0005)
        overshoot.append((time.monotonic_ns() - until) / 1e3)
    libc.prctl(set_slack, 0, 0, 0, 0)
    return np.array(overshoot)


def bench_pace(tier: FileTier) -> None:
    """Lateness of an open loop of Poisson reads at 2,000 a second."""
    count, per_s, length = 20_000, 2000, 128 << 10
    rng = np.random.default_rng(1)
    p50, p99 = np.percentile(bare_sleeps(), (50, 99))
    print(
        f"a bare sleep of 500 µs on this machine, just now, ends late by p50 {p50:.0f} µs, p99"
        f" {p99:.0f} µs"
    )
    for name in (EngineName.AUTO, EngineName.THREADS):
        ts = np.cumsum(rng.exponential(1e9 / per_s, count)).astype(np.int64)
        offset = rng.integers(0, FILE_BYTES // length, count) * length
        plan = plan_of(READ, rng.integers(0, FILES, count), length, 0, offset)
        # Deep enough that the depth never makes an operation late.
        engine = choose(name, [tier], 128, length)
        _, rows, cpu = drive(engine, tier, plan, ts)
        late = (rows["submitted_ns"] - ts) / 1e3
        drift = np.median(late[-count // 20 :]) - np.median(late[: count // 20])
        p50, p99 = np.percentile(late, (50, 99))
        took = np.percentile(rows["completed_ns"] - rows["submitted_ns"], 99) / 1e3
        print(
            f"open loop, {per_s:,} reads/s of 128 KiB for {count // per_s} s, {engine.name}:"
            f" lateness p50 {p50:.0f} µs, p99 {p99:.0f} µs (target <= 300), max {late.max():.0f}"
            f" µs, drift {drift:+.0f} µs; reads took p99 {took:,.0f} µs; {cpu / count * 1e6:.0f} µs"
            " CPU an operation"
        )


def main() -> None:
    sizes = [int(text) << 10 for text in sys.argv[1:]] or list(MIB_BY_SIZE)
    if shutil.which("fio") is None:
        print("replay against fio: skipped, fio is not installed")
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        directory, cached = Path(name) / "drive", Path(name) / "cached"
        directory.mkdir()
        cached.mkdir()
        tier = FileTier("nvme", directory, StorageOptions())
        tier.open(FILES * FILE_BYTES)
        chosen = choose(EngineName.AUTO, [tier], 8, 1 << 20)
        print(f"replay with {chosen.name} ({chosen.because}), {chosen.facts()}")
        try:
            drive(chosen, tier, plan_of(WRITE, np.arange(FILES), FILE_BYTES, 1))
            bench_bandwidth(tier, sizes)
            bench_pace(tier)
            bench_ceiling(cached)
        finally:
            tier.close()


if __name__ == "__main__":
    main()
