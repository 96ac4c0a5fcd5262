"""How near kvreplay comes to fio: the same files, the same I/O sizes and depths, in the same minute.

Sides alternate; printed are medians of three and the medians of each pair's ratio. The kernel's own counters
(/proc/diskstats) must show that the device moved the bytes. A noisy disk makes ratios of 0.8 to 1.25 a draw, and
on two cores a busy neighbour costs our two threads more than fio's one: mind the load that is printed. fio writes
the same buffers again and again, ours hold new data each time.
Takes six minutes and 1 GiB below the working directory; sizes in KiB as arguments restrict it, for example `64 1024`.
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
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.data.words import Fresh
from kvreplay.engine.choose import EngineName, choose
from kvreplay.engine.job import Driven, IoEngine, Job, Record
from kvreplay.engine.workers import precise_timers
from kvreplay.plan.plan import READ, WRITE, Plan, build_plan
from kvreplay.run.run import _quiet_interpreter
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.host import device_bytes
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
    """User and system time an I/O, without what making data took."""
    generation_us: float | None
    starved: float | None
    moved: float | None
    """Bytes the device moved, by those that were asked."""


def plan_of(op: int, objects: Any, length: int, version: int, offset: Any = 0, ts: Any = 0) -> Plan:
    count = len(objects)
    fill = np.zeros(count, np.int64)
    return build_plan(
        {
            "row": np.arange(count),
            "ts_ns": fill + ts,
            "op": fill + op,
            "tier": fill,
            "object_id": objects,
            "offset_bytes": fill + offset,
            "length_bytes": fill + length,
            "request_id": fill - 1,
            "stage": fill - 1,
            "version": fill + version,
        },
        [4096],
        Path("bench"),
    )


class Timed:
    """Data for writes, and the processor time that making it took."""

    def __init__(self, seed: int) -> None:
        self._fill, self.cpu_ns = Fresh.of(seed), 0

    def __call__(self, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        """Fill the buffer."""
        started = time.thread_time_ns()
        self._fill(buffer, object_id, version, offset)
        self.cpu_ns += time.thread_time_ns() - started


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def drive(engine: IoEngine, tier: Tier, plan: Plan, due: Any = None) -> tuple[Driven, Record, float, Timed]:
    record, data = Record.empty(len(plan), is_open_loop=due is not None), Timed(int(time.time()))
    job = Job(plan, due, [tier], record, data)
    with _quiet_interpreter():
        before = cpu_s()
        driven = engine.drive(job, lambda: None, lambda _done: None)
        cpu = cpu_s() - before
    assert driven.completed == len(plan), driven
    return driven, record, cpu, data


def device_share(directory: Path, op: int, moved: int, run: Callable[[], Any]) -> tuple[Any, float | None]:
    before = device_bytes(directory)
    result = run()
    after = device_bytes(directory)
    if before is None or after is None:
        return result, None
    return result, (after[op] - before[op]) / moved


def ours(engine: IoEngine, tier: FileTier, op: int, io_bytes: int, version: int) -> Side:
    total = MIB_BY_SIZE[io_bytes] << 20
    plan = plan_of(op, np.arange(total // FILE_BYTES), FILE_BYTES, version)
    (driven, _, cpu, data), share = device_share(Path(tier.target), op, total, lambda: drive(engine, tier, plan))
    ios = total // io_bytes
    return Side(
        total / driven.wall_ns * 1e9,
        (cpu - data.cpu_ns / 1e9) / ios * 1e6,
        data.cpu_ns / ios / 1e3,
        driven.starved_ns / driven.wall_ns,
        share,
    )


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
        "--output-format=json",
        *extra,
    ]
    done, share = device_share(
        Path(tier.target), op, total, lambda: subprocess.run(command, capture_output=True, text=True, check=True)
    )
    job = json.loads(done.stdout)["jobs"][0]
    part = job["write" if op else "read"]
    assert part["io_bytes"] == total, part["io_bytes"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] * 1000
    return Side(part["bw_bytes"], cpu / (total // io_bytes), None, None, share)


def compare(tier: FileTier, io_bytes: int, version: int) -> list[tuple[float, float]]:
    """Print the lines of one I/O size; return (bandwidth ratio, processor ratio) of each."""
    found = []
    for op in (READ, WRITE):
        for depth in DEPTHS:
            engine = choose(EngineName.AUTO, [tier], depth, io_bytes).engine
            pairs = []
            for at in range(RUNS):
                # Whichever goes second finds the drive busier, so they take turns.
                other = None if at % 2 else fio(tier, op, io_bytes, depth)
                mine = ours(engine, tier, op, io_bytes, version + at)
                pairs.append((mine, other or fio(tier, op, io_bytes, depth)))
            version += RUNS
            found.append(show(pairs, engine.name, op, io_bytes, depth))
    return found


def show(pairs: list[Any], engine: str, op: int, io_bytes: int, depth: int) -> tuple[float, float]:
    middle = statistics.median
    ratio = middle(a.bytes_per_s / b.bytes_per_s for a, b in pairs)
    cpu = middle(a.cpu_us / b.cpu_us for a, b in pairs)
    mine, other = [p[0] for p in pairs], [p[1] for p in pairs]
    shares = [s.moved for s in (*mine, *other) if s.moved is not None]
    made = ""
    if op == WRITE:
        starved = middle(s.starved for s in mine) / depth
        made = f", making data {middle(s.generation_us for s in mine):.1f} µs beside, starved {starved:.1%}"
    device = f"{min(shares):.2f}" if shares else "unseen"
    print(
        f"{'write' if op else 'read':5} {io_bytes >> 10:5} KiB depth {depth:2}: {engine} "
        f"{middle(s.bytes_per_s for s in mine) / 1e9:.2f} GB/s, fio {middle(s.bytes_per_s for s in other) / 1e9:.2f}, "
        f"ratio {ratio:.2f}; CPU an I/O {middle(s.cpu_us for s in mine):.1f} µs, "
        f"fio {middle(s.cpu_us for s in other):.1f}, ratio {cpu:.2f}{made}; device moved >= {device}",
        flush=True,
    )
    return ratio, cpu


def bench_bandwidth(tier: FileTier, sizes: list[int]) -> None:
    version = 2
    for io_bytes in sizes:
        found = compare(tier, io_bytes, version)
        version += 100
        print(f"  load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        for name, part in (("read", found[: len(DEPTHS)]), ("write", found[len(DEPTHS) :])):
            target = 0.85 if io_bytes < 64 << 10 else 0.95
            limit = 1.0 if io_bytes >= 256 << 10 else 1.5
            ratio, cpu = (statistics.median(values) for values in zip(*part, strict=True))
            print(
                f"  {name} {io_bytes >> 10} KiB, median over depths: bandwidth {ratio:.2f} of fio's "
                f"(target >= {target}), CPU {cpu:.2f} (target <= {limit})"
            )


def bench_ceiling(directory: Path) -> None:
    """Find what the software can do if the device takes no time."""
    count = 200_000
    rates = []
    for _ in range(RUNS):
        engine = choose(EngineName.URING, [], 32, 4096).engine
        driven, *_ = drive(engine, SimulatedTier("null"), plan_of(READ, np.arange(count), 4096, 0))
        rates.append(count / driven.wall_ns * 1e9)
    print(f"ceiling, null tier: {statistics.median(rates):,.0f} operations/s (target >= 500,000)")
    cached = FileTier("cached", directory, StorageOptions(is_direct=False))
    cached.open(0)
    try:
        engine = choose(EngineName.AUTO, [cached], 32, 4096).engine
        objects = np.arange(4)
        drive(engine, cached, plan_of(WRITE, objects, FILE_BYTES, 1))
        rates = []
        for _ in range(RUNS):
            driven, *_ = drive(engine, cached, plan_of(READ, np.tile(objects, 8), FILE_BYTES, 1))
            rates.append(8 * 4 * FILE_BYTES / 4096 / driven.wall_ns * 1e9)
    finally:
        cached.close()
    print(f"ceiling, 4 KiB from the page cache: {statistics.median(rates):,.0f} I/Os/s (target >= 500,000)")


def bare_sleeps() -> Any:
    """Return by how many µs this machine overshoots a sleep of 500 µs that nothing else is asked of."""
    before = precise_timers()
    overshoot = []
    for _ in range(4000):
        until = time.monotonic_ns() + 500_000
        time.sleep(0.0005)
        overshoot.append((time.monotonic_ns() - until) / 1e3)
    precise_timers(before)
    return np.array(overshoot)


def bench_pace(tier: FileTier) -> None:
    """Lateness of an open loop of Poisson reads at 2,000 a second."""
    count, per_s, length = 20_000, 2000, 128 << 10
    rng = np.random.default_rng(1)
    p50, p99 = np.percentile(bare_sleeps(), (50, 99))
    print(f"a bare sleep of 500 µs on this machine, just now, ends late by p50 {p50:.0f} µs, p99 {p99:.0f} µs")
    for name in (EngineName.AUTO, EngineName.THREADS):
        ts = np.cumsum(rng.exponential(1e9 / per_s, count)).astype(np.int64)
        offset = rng.integers(0, FILE_BYTES // length, count) * length
        plan = plan_of(READ, rng.integers(0, FILES, count), length, 0, offset, ts)
        # Deep enough that the depth never makes an operation late.
        engine = choose(name, [tier], 128, length).engine
        _, record, cpu, _ = drive(engine, tier, plan, plan.ts_ns)
        late = (record.submitted_ns - plan.ts_ns) / 1e3
        drift = np.median(late[-count // 20 :]) - np.median(late[: count // 20])
        p50, p99 = np.percentile(late, (50, 99))
        took = np.percentile(record.completed_ns - record.submitted_ns, 99) / 1e3
        print(
            f"open loop, {per_s:,} reads/s of 128 KiB for {count // per_s} s, {engine.name}: lateness "
            f"p50 {p50:.0f} µs, p99 {p99:.0f} µs (target <= 300), max {late.max():.0f} µs, drift {drift:+.0f} µs; "
            f"reads took p99 {took:,.0f} µs; "
            f"{cpu / count * 1e6:.0f} µs CPU an operation"
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
        print(f"replay with {chosen.engine.name} ({chosen.because}), {chosen.engine.facts()}")
        try:
            drive(chosen.engine, tier, plan_of(WRITE, np.arange(FILES), FILE_BYTES, 1))
            bench_bandwidth(tier, sizes)
            bench_pace(tier)
            bench_ceiling(cached)
        finally:
            tier.close()


if __name__ == "__main__":
    main()
