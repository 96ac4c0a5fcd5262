"""How near kvreplay comes to fio where each object is a small file.

Opened, moved, closed; written files are created.

fio does the same: as many files of the same size in one directory, as many open at once as the
queue is deep, created as they are opened, `refill_buffers=1`, so that it makes data, too. Sides
alternate, in new directories each time, and all is deleted at the end: ext4 without a journal skips
inodes that were deleted in the last five minutes one by one, and creating then takes ten times as
long. Wait as long between two runs. Printed are medians of three and of each pair's ratio;
processor time is that of whole processes, kernel workers included, but for fio's start, which is
measured with one file and taken off. Takes two minutes and 4 GiB below the working directory; sizes
in KiB as arguments.
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
from dataclasses import dataclass
from pathlib import Path

import figures
import numpy as np
from bench_replay import DEPTHS, RUNS, drive, plan_of

from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.plan.row_ring import DELETE, READ, WRITE
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import FileLayout, StorageOptions

FILES = 3000
SIZES = (64 << 10,)


@dataclass(frozen=True, slots=True)
class Side:
    """One run of one program."""

    files_per_s: float
    cpu_us: float
    """User and system time of the whole process, a file."""
    data_us: float | None
    """Of it, what making data took."""


def ours(tier: FileTier, op: int, file_bytes: int, depth: int, name: EngineName) -> Side:
    engine = choose(name, [tier], depth, file_bytes)
    plan = plan_of(op, np.arange(FILES), file_bytes, 1)
    driven, _, cpu = drive(engine, tier, plan)
    making_us = driven.making_ns / FILES / 1e3 if op == WRITE else None
    return Side(FILES / driven.wall_ns * 1e9, cpu / FILES * 1e6, making_us)


def _fio(directory: Path, op: int, file_bytes: int, depth: int, files: int) -> tuple[float, float]:
    """Return files a second, and the processor time of the process in seconds."""
    command = [
        "fio",
        "--name=bench",
        f"--directory={directory}",
        f"--rw={'write' if op else 'read'}",
        f"--bs={file_bytes}",
        f"--filesize={file_bytes}",
        f"--nrfiles={files}",
        f"--openfiles={depth}",
        f"--size={files * file_bytes}",
        f"--iodepth={depth}",
        "--ioengine=io_uring",
        "--direct=1",
        "--file_service_type=sequential",
        "--output-format=json",
        *(["--create_on_open=1", "--refill_buffers=1"] if op else []),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    part = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]["write" if op else "read"]
    assert part["total_ios"] == files, part["total_ios"]
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return files / part["runtime"] * 1e3 if part["runtime"] else 0, cpu


def fio(directory: Path, op: int, file_bytes: int, depth: int) -> Side:
    start = directory.with_name(f"{directory.name}-start")
    start.mkdir(exist_ok=True)
    idle = _fio(start, op, file_bytes, depth, 1)[1]
    rate, cpu = _fio(directory, op, file_bytes, depth, FILES)
    return Side(rate, (cpu - idle) / FILES * 1e6, None)


def show(pairs: list[tuple[Side, Side]], label: str) -> None:
    mine, other = ([pair[i] for pair in pairs] for i in range(2))
    rates = [statistics.median(side.files_per_s for side in sides) for sides in (mine, other)]
    cpus = [statistics.median(side.cpu_us for side in sides) for sides in (mine, other)]
    ratio = statistics.median(a.files_per_s / b.files_per_s for a, b in pairs)
    cpu_ratio = statistics.median(a.cpu_us / b.cpu_us for a, b in pairs)
    figures.record_comparison(
        f"files of {label}",
        "files/s",
        "fio",
        [(a.files_per_s, b.files_per_s) for a, b in pairs],
        [(a.cpu_us, b.cpu_us) for a, b in pairs],
    )
    data = [side.data_us for side in mine if side.data_us is not None]
    of_it = f", {statistics.median(data):.1f} of it data" if data else ""
    print(
        f"{label}: {rates[0]:,.0f} files/s, fio {rates[1]:,.0f}: ratio {ratio:.2f} (target >="
        f" 0.95); CPU a file {cpus[0]:.1f} µs{of_it}, fio {cpus[1]:.1f}: {cpu_ratio:.2f} x",
        flush=True,
    )


def compare(below: Path, file_bytes: int, depth: int, name: EngineName) -> list[FileTier]:
    """Print the lines of one size and depth; return our tiers, still open."""
    pairs: dict[int, list[tuple[Side, Side]]] = {WRITE: [], READ: []}
    tiers = []
    for at in range(RUNS):
        theirs, directory = below / f"fio-{depth}-{at}", below / f"ours-{depth}-{at}"
        theirs.mkdir()
        directory.mkdir()
        tier = FileTier("nvme", directory, StorageOptions(layout=FileLayout.FLAT, is_kept=True))
        tier.open(FILES * file_bytes)
        for op, of_op in pairs.items():
            # Whichever goes second finds the drive busier, so they take turns.
            other = None if at % 2 else fio(theirs, op, file_bytes, depth)
            mine = ours(tier, op, file_bytes, depth, name)
            of_op.append((mine, other or fio(theirs, op, file_bytes, depth)))
        tiers.append(tier)
    for op, of_op in pairs.items():
        show(of_op, f"{'write' if op else 'read '} {file_bytes >> 10:>5} KiB, depth {depth:>2}")
    return tiers


def delete(tiers: list[FileTier], file_bytes: int, depth: int, name: EngineName) -> None:
    sides = [ours(tier, DELETE, file_bytes, depth, name) for tier in tiers]
    for tier in tiers:
        tier.close()
    rate, cpu = (
        statistics.median(getattr(side, of) for side in sides) for of in ("files_per_s", "cpu_us")
    )
    print(f"delete, depth {depth:>2}: {rate:,.0f} files/s, CPU a file {cpu:.1f} µs", flush=True)


def main() -> None:
    sizes = [int(text) << 10 for text in sys.argv[1:]] or SIZES
    if shutil.which("fio") is None:
        print("files against fio: skipped, fio is not installed")
        return
    print(f"{FILES:,} files, one I/O each; load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        written = []
        for file_bytes in sizes:
            for depth in DEPTHS:
                below = Path(name) / f"{file_bytes}-{depth}"
                below.mkdir()
                written.append(
                    (compare(below, file_bytes, depth, EngineName.AUTO), file_bytes, depth)
                )
        for tiers, file_bytes, depth in written:
            delete(tiers, file_bytes, depth, EngineName.AUTO)


if __name__ == "__main__":
    main()
