"""Memory of a long open loop, flat within 5 % after its first eight minutes.

A trace of ten minutes is replayed at its own times, again and again, on a file below the folder that is named (the
working directory without): `python bench/soak.py --minutes 60`. It asks 4,000 operations of 32 KiB a second, 90 MB/s,
so that an hour's 15 million show a leak of a byte an operation: 5 % of what a run takes are 8 MB. Leaves with 1 if the
median of any minute is more than 5 % above that of the ninth. It came to 1.08 twice: with nothing else running (158 to
171 MB), and, since columns of rows are no longer in glibc's heap, beside tests (151 to 163 MB). At eight times the
rate, without a drive, that heap grew by 2 bytes an operation before, and grows by .4 now: footers of row groups, 55 KB
each with what lies between their pieces. What the rest is, is not known.

Looked at each ten seconds are a process's own pages (RssAnon, RssShmem); those of libraries, some 60 MB, come as their
code is first called. Eight minutes are more than a run takes to fill what it has a fixed place for: 200,000 operations
for the tables of what was in flight, 131,072 rows for a row group. An open loop's default depth would make the buffers
step up with each new peak, to 1 GiB at most: here so few may be in flight that a busy minute has had them all. What
grows for good is the footer of ops.parquet, 11 KB for each 131,072 rows of the trace: 4 MB an hour here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

FLAT = 1.05
SETTLED_MIN, EVERY_S = 8, 10
PRESET = ("--preset", "lmcache-layerwise", "--model", "tiny-1b", "--users", "2", "--duration", "10min")
CAPACITIES = {"gpu": "64MiB", "cpu": "256MiB", "nvme": "1GiB"}
SMALL = ("chunk_tokens=16", "workload.think_time=10s", *(f"tiers.{t}.capacity={c}" for t, c in CAPACITIES.items()))


def own_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has of its own; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(int(kib) << 10 for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE))


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
        # By minute; of the last, which is not whole, its tables are closed and its figures made.
        seen: dict[int, list[int]] = {}
        with subprocess.Popen([*run, "--duration", f"{asked.minutes}min", "--quiet"], cwd=name) as process:
            began = time.monotonic()
            while process.poll() is None:
                sizes = seen.setdefault(int(time.monotonic() - began) // 60, [])
                sizes.append(own_bytes(process.pid))
                if len(sizes) * EVERY_S == 60:
                    print(f"minute {len(seen)}: {median(sizes) / 1e6:.1f} MB", file=sys.stderr, flush=True)
                time.sleep(EVERY_S)
        settled = [median(sizes) for minute, sizes in seen.items() if SETTLED_MIN <= minute < asked.minutes]
        if process.returncode or not settled:
            sys.exit(f"the run left with {process.returncode} after {len(seen)} min; it must last {SETTLED_MIN + 1}")
        operations = json.loads(Path(name, "run", "run.json").read_bytes())["summary"]["operations"]
    print(
        f"{asked.minutes} min, {operations:,} operations: {settled[0] / 1e6:.0f} MB in the ninth minute, "
        f"{settled[-1] / 1e6:.0f} MB in the last, {max(settled) / 1e6:.0f} MB at most: {max(settled) / settled[0]:.3f} "
        f"({FLAT} is allowed)"
    )
    sys.exit(max(settled) > FLAT * settled[0])


if __name__ == "__main__":
    main()
