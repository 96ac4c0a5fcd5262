"""How near kvreplay comes to fio where each operation is one I/O: objects that are extents of one file, in any order.

As bench_replay: sides alternate, medians of three, fresh data for every write where fio repeats its buffers. Takes
three minutes and 1 GiB below the working directory; sizes in KiB as arguments restrict it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_replay import DEPTHS, RUNS, Side, device_share, drive, plan_of, show

from kvreplay.engine.choose import EngineName, choose
from kvreplay.plan.plan import READ, WRITE
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.tier import Holding, StorageOptions

SPACE_BYTES = 1 << 30
MIB_BY_SIZE = {4 << 10: 128, 16 << 10: 256, 64 << 10: 512, 256 << 10: 1024}
"""MiB moved a run, by I/O size."""


def ours(tier: ExtentTier, op: int, io_bytes: int, depth: int, version: int) -> tuple[Side, str]:
    ios = (MIB_BY_SIZE[io_bytes] << 20) // io_bytes
    engine = choose(EngineName.AUTO, [tier], depth, io_bytes).engine
    plan = plan_of(op, np.random.default_rng(version).permutation(SPACE_BYTES // io_bytes)[:ios], io_bytes, version)
    (driven, _, cpu, data), share = device_share(
        Path(tier.target), op, ios * io_bytes, lambda: drive(engine, tier, plan)
    )
    starved = driven.starved_ns / driven.wall_ns
    return Side(
        ios * io_bytes / driven.wall_ns * 1e9,
        (cpu - data.cpu_ns / 1e9) / ios * 1e6,
        data.cpu_ns / ios / 1e3,
        starved,
        share,
    ), engine.name


def fio(tier: ExtentTier, op: int, io_bytes: int, depth: int) -> Side:
    total = MIB_BY_SIZE[io_bytes] << 20
    command = [
        "fio",
        "--name=bench",
        f"--filename={tier.target}",
        f"--rw={'randwrite' if op else 'randread'}",
        f"--bs={io_bytes}",
        f"--iodepth={depth}",
        "--ioengine=io_uring",
        "--direct=1",
        f"--size={SPACE_BYTES}",
        f"--io_size={total}",
        "--randrepeat=0",
        "--overwrite=1",
        "--output-format=json",
    ]
    done, share = device_share(
        Path(tier.target), op, total, lambda: subprocess.run(command, capture_output=True, text=True, check=True)
    )
    job = json.loads(done.stdout)["jobs"][0]
    part = job["write" if op else "read"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] * 1000
    return Side(part["bw_bytes"], cpu / (total // io_bytes), None, None, share)


def compare(tier: ExtentTier, io_bytes: int) -> None:
    version = 2
    for op in (READ, WRITE):
        for depth in DEPTHS:
            pairs, name = [], ""
            for at in range(RUNS):
                # Whichever goes second finds the drive busier, so they take turns.
                other = None if at % 2 else fio(tier, op, io_bytes, depth)
                mine, name = ours(tier, op, io_bytes, depth, version)
                version += 1
                pairs.append((mine, other or fio(tier, op, io_bytes, depth)))
            show(pairs, name, op, io_bytes, depth)


def main() -> None:
    sizes = [int(text) << 10 for text in sys.argv[1:]] or list(MIB_BY_SIZE)
    if shutil.which("fio") is None:
        print("extents against fio: skipped, fio is not installed")
        return
    print(f"one I/O an operation, extents of one file, any order; load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        for io_bytes in sizes:
            path = Path(name) / "space"
            tier = ExtentTier("nvme", path, StorageOptions())
            tier.expect(Holding([SPACE_BYTES]))
            tier.open(SPACE_BYTES)
            try:
                objects = np.arange(SPACE_BYTES // io_bytes)
                drive(choose(EngineName.AUTO, [tier], 32, io_bytes).engine, tier, plan_of(WRITE, objects, io_bytes, 1))
                compare(tier, io_bytes)
            finally:
                tier.close()


if __name__ == "__main__":
    main()
