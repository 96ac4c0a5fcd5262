"""Memory of a long open loop: its resident size each ten seconds, flat within 5 % after its first eight minutes.

A trace of ten minutes is replayed at its own times, again and again, on a file below the folder that is named (the
working directory without): `python bench/soak.py --minutes 60`. Leaves with 1 if the size grew by more than 5 %. The
memory of buffers is touched as it is first needed, so that an open loop's default depth makes it step up with each new
peak, to 1 GiB at most: here so few may be in flight that a busy minute soon has them all. Its first eight minutes are
those in which the first 32,768 operations end: they are the first part of the tables that is encoded, whose threads and
buffers, some 25 MB, stay.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

FLAT = 1.05
SETTLED_S, EVERY_S = 480, 10
PRESET = ("--preset", "lmcache-disk", "--model", "tiny-1b", "--users", "16", "--duration", "10min")
SMALL = ("tiers.gpu.capacity=64MiB", "tiers.cpu.capacity=256MiB", "tiers.nvme.capacity=2GiB", "workload.think_time=10s")


def resident_bytes(pid: int) -> int:
    """Return the resident size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("folder", type=Path, nargs="?", default=Path.cwd())
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix="soak-") as name:
        settings = [part for setting in SMALL for part in ("--set", setting)]
        gen = [sys.executable, "-m", "kvtrace.cli", "gen", *PRESET, *settings, "-o", "t.parquet", "--quiet"]
        subprocess.run(gen, cwd=name, check=True)
        run = [sys.executable, "-m", "kvreplay.cli", "run", "t.parquet", "--tier", "nvme=file.dat", "--speed", "1"]
        run += ["--queue-depth", "32"]
        seen: list[tuple[float, int]] = []
        with subprocess.Popen([*run, "--duration", f"{asked.minutes}min", "--quiet"], cwd=name) as process:
            began = time.monotonic()
            while process.poll() is None:
                seen.append((time.monotonic() - began, resident_bytes(process.pid)))
                time.sleep(EVERY_S)
    # The last while of a run its tables are closed and its figures made.
    settled = [size for at, size in seen if SETTLED_S <= at < 60 * asked.minutes]
    if process.returncode or not settled:
        sys.exit(f"the run left with {process.returncode} after {len(seen) * EVERY_S} s")
    first, most = median(settled[:6]), max(settled)
    print(
        f"{asked.minutes} min: {first / 1e6:.0f} MB in the ninth minute, {settled[-1] / 1e6:.0f} MB at the end, ",
        end="",
    )
    print(f"{most / 1e6:.0f} MB at most: {most / first:.3f} ({FLAT} is allowed)")
    sys.exit(most > FLAT * first)


if __name__ == "__main__":
    main()
