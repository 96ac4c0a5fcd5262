"""The cells of a drive file beside fio.

Bandwidth and p99 at random in one file, of reads and of writes.

In each round ours measures all cells (as `kvreplay scorecard` does, only fewer, SECONDS each), then
fio does the same I/O sizes and depths in a file as large, its buffers refilled and in huge pages,
as ours are. Takes four minutes, and 4 GiB below the folder that is named (the working directory
without).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import figures

from kvdistill.jobs.fio_run import environment
from kvreplay.plan.replay_config import Config
from kvreplay.run import discover
from kvreplay.run.replay import Replay
from kvtrace.core.units import NS_PER_S, format_io_size

SIZES, DEPTHS, SHARES = (64 << 10, 1 << 20), (4, 16), (1, 0)
SECONDS, WRITING_S = figures.sized(3, 1), 4
"""How long a cell lasts, and what writing our file takes, of which the cells would otherwise be
robbed.
"""


class Cell(NamedTuple):
    """What was measured of a cell."""

    bytes_per_s: float
    p99_ns: float


def ours(folder: Path) -> dict[tuple[int, int, float], Cell]:
    """Measure all cells as a scorecard does."""
    found = {}
    for cell in discover.measure_drive(Replay(Config(), Path(), folder, sys.argv), folder).cells:
        times = cell.read if cell.read_share else cell.write
        if times is None or cell.bytes_per_s is None or times.p99_ns is None:
            raise SystemExit(f"a cell of {cell.io_bytes} bytes was not measured: {cell.reason}")
        found[cell.io_bytes, cell.depth, cell.read_share] = Cell(cell.bytes_per_s, times.p99_ns)
    return found


def fio(file: Path, size: int, depth: int, share: float) -> Cell:
    """Measure one cell with fio."""
    how = (
        f"--rw={'randread' if share else 'randwrite'} --bs={size} --iodepth={depth}"
        f" --runtime={SECONDS} --time_based"
    )
    always = (
        "--name=cell --ioengine=io_uring --direct=1 --randrepeat=0 --norandommap --refill_buffers"
        " --fixedbufs"
    )
    where = (
        f"--filename={file} --filesize={discover.FILE_BYTES} --iomem_align=2m --output-format=json"
    )
    command = ["fio", *f"{how} {always} {where}".split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    part = json.loads(done.stdout)["jobs"][0]["read" if share else "write"]
    return Cell(part["bw_bytes"], part["clat_ns"]["percentile"]["99.000000"])


def main() -> None:
    discover.SIZES, discover.ROOFLINE_DEPTHS, discover.READ_SHARES = SIZES, DEPTHS, SHARES  # type: ignore[assignment]
    cells = [(size, depth, share) for size in SIZES for depth in DEPTHS for share in SHARES]
    discover.ROOFLINE_NS = (WRITING_S + SECONDS * len(cells)) * NS_PER_S
    rounds: dict[tuple[int, int, float], list[tuple[Cell, Cell]]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory(
        dir=sys.argv[1] if len(sys.argv) > 1 else Path.cwd(), prefix="bench-"
    ) as name:
        folder, file = Path(name) / "drive", Path(name) / "fio.dat"
        folder.mkdir()
        write = (
            f"fio --name=w --filename={file} --filesize={discover.FILE_BYTES} --rw=write --bs=1M"
            " --direct=1"
        )
        subprocess.run(
            [*write.split(), "--refill_buffers", "--end_fsync=1"], capture_output=True, check=True
        )
        for _ in range(figures.MIN_ROUNDS):
            found = ours(folder)
            for cell in cells:
                rounds[cell].append((found[cell], fio(file, *cell)))
    for (size, depth, share), pairs in rounds.items():
        what = f"{'read' if share else 'write'} {format_io_size(size)}, depth {depth}"
        rates = [(mine.bytes_per_s / 1e9, theirs.bytes_per_s / 1e9) for mine, theirs in pairs]
        p99 = [(mine.p99_ns / 1e6, theirs.p99_ns / 1e6) for mine, theirs in pairs]
        print(f"{what}: GB/s ours, fio {rates}; p99 ms {p99}", flush=True)
        figures.record_comparison(what, "GB/s", "fio", rates)
        figures.record_comparison(f"{what}, p99", "ms", "fio", p99)


if __name__ == "__main__":
    main()
