"""How near kvreplay comes to fio where each operation is one I/O.

Objects that are extents of one file, in any order.

As bench_replay: sides alternate, medians of three, writes beside fio with and without
refill_buffers=1, the processor time of the whole process. Takes five minutes and 1 GiB below the
working directory, or of a block device that is named as an argument and overwritten; sizes in KiB
as arguments restrict it, for example `/dev/nvme1n1 4 64`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_replay import Side, compare, device_share, drive, plan_of, run_fio, side_of

from kvreplay.engine.native_engine import Engine, EngineName, choose
from kvreplay.plan.row_ring import WRITE
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.tier import Holding, StorageOptions

SPACE_BYTES = 1 << 30
MIB_BY_SIZE = {4 << 10: 128, 16 << 10: 256, 64 << 10: 512, 256 << 10: 1024, 1 << 20: 1024}
"""MiB moved a run, by I/O size."""


def ours(engine: Engine, tier: ExtentTier, op: int, io_bytes: int, version: int) -> Side:
    ios = (MIB_BY_SIZE[io_bytes] << 20) // io_bytes
    plan = plan_of(
        op,
        np.random.default_rng(version).permutation(SPACE_BYTES // io_bytes)[:ios],
        io_bytes,
        version,
    )
    (driven, _, cpu), share = device_share(
        Path(tier.target), op, ios * io_bytes, lambda: drive(engine, tier, plan)
    )
    return side_of(driven, cpu, ios * io_bytes, ios, share)


def fio(tier: ExtentTier, op: int, io_bytes: int, depth: int, *extra: str) -> Side:
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
        "--iomem_align=2m",
        "--output-format=json",
        *extra,
    ]
    done, share = device_share(Path(tier.target), op, total, lambda: run_fio(command))
    job = json.loads(done.stdout)["jobs"][0]
    part = job["write" if op else "read"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * part["runtime"] * 1000
    return Side(part["bw_bytes"], cpu / (total // io_bytes), None, share)


def main() -> None:
    sizes = [int(text) << 10 for text in sys.argv[1:] if text.isdigit()] or list(MIB_BY_SIZE)
    devices = [Path(text) for text in sys.argv[1:] if not text.isdigit()]
    if shutil.which("fio") is None:
        print("extents against fio: skipped, fio is not installed")
        return
    print(
        "one I/O an operation, extents of one file or device, any order; load"
        f" {os.getloadavg()[0]:.1f}"
    )
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        for io_bytes in sizes:
            path = devices[0] if devices else Path(name) / "space"
            tier = ExtentTier("nvme", path, StorageOptions(is_destroying=True))
            tier.expect(Holding([SPACE_BYTES]))
            tier.open(SPACE_BYTES)
            try:
                objects = np.arange(SPACE_BYTES // io_bytes)
                drive(
                    choose(EngineName.AUTO, [tier], 32, io_bytes),
                    tier,
                    plan_of(WRITE, objects, io_bytes, 1),
                )
                compare(tier, io_bytes, 2, ours, fio)
            finally:
                tier.close()


if __name__ == "__main__":
    main()
