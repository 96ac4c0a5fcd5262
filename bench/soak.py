"""Memory of a long open loop: flat within 5 % over an hour.

A trace of ten minutes is replayed at its own times, again and again, on a file below the folder
that is named (the working directory without): `python bench/soak.py --minutes 60`. It asks 4,000
operations of 32 KiB a second, 90 MB/s, so that an hour's 15 million show a leak of a byte an
operation: 5 % of what a run takes are 8 MB. Leaves with 1 if the median of any repeat of the trace
is more than 5 % above that of the second.

Repeats are compared, for memory follows the load: groups of operations that wait for each other,
and the rows that are not encoded yet, are 10 MB more in one minute of the trace than in another.
The first repeat is left out: it fills what a run has a fixed place for, and meets each burst for
the first time. Looked at each second, of which 20 to 40 fill a row group, are a process's own pages
(RssAnon, RssShmem); those of libraries, some 60 MB, come as their code is first called. An open
loop's default depth would make the buffers step up with each new peak, to 1 GiB at most: here so
few may be in flight that a busy minute has had them all. What grows for good is the footer of
ops.parquet, 11 KB for each 262,144 rows of the trace: 2 MB an hour here. In an hour of which three
quarters were quiet (load .1 to .5) repeats had 160.0, 160.8, 164.1, 163.9 and 166.4 MB: 1.040, the
last beside tests. Single minutes had 154 to 171 MB.
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
REPEAT_MIN, EVERY_S = 10, 1
PRESET = (
    "--preset",
    "lmcache-layerwise",
    "--model",
    "tiny-1b",
    "--users",
    "2",
    "--duration",
    f"{REPEAT_MIN}min",
)
CAPACITIES = {"gpu": "64MiB", "cpu": "256MiB", "nvme": "1GiB"}
SMALL = (
    "chunk_tokens=16",
    "workload.think_time=10s",
    *(f"tiers.{t}.capacity={c}" for t, c in CAPACITIES.items()),
)


def own_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has of its own; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(
        int(kib) << 10
        for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes", type=int, default=60, choices=range(3 * REPEAT_MIN, 1441, REPEAT_MIN)
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path.cwd())
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder, prefix="soak-") as name:
        settings = [part for setting in SMALL for part in ("--set", setting)]
        gen = [
            sys.executable,
            "-m",
            "kvtrace.cli",
            "gen",
            *PRESET,
            *settings,
            "-o",
            "t.parquet",
            "--quiet",
        ]
        subprocess.run(gen, cwd=name, check=True)
        run = [
            sys.executable,
            "-m",
            "kvreplay.cli",
            "run",
            "t.parquet",
            "--tier",
            "nvme=file.dat",
            "--speed",
            "1",
        ]
        run += ["--queue-depth", "32"]
        # By minute; of the last, which is not whole, its tables are closed and its figures made.
        seen: dict[int, list[int]] = {}
        with subprocess.Popen(
            [*run, "--duration", f"{asked.minutes}min", "--quiet"], cwd=name
        ) as process:
            began = time.monotonic()
            while process.poll() is None:
                minute = int(time.monotonic() - began) // 60
                if minute not in seen and minute:
                    print(
                        f"minute {minute}: {median(seen[minute - 1]) / 1e6:.1f} MB",
                        file=sys.stderr,
                        flush=True,
                    )
                seen.setdefault(minute, []).append(own_bytes(process.pid))
                time.sleep(EVERY_S)
        repeats = [
            median(
                size for minute in range(first, first + REPEAT_MIN) for size in seen.get(minute, [])
            )
            for first in range(REPEAT_MIN, asked.minutes, REPEAT_MIN)
        ]
        if process.returncode or len(seen) < asked.minutes:
            sys.exit(f"the run left with {process.returncode} after {len(seen)} min")
        operations = json.loads(Path(name, "run", "run.json").read_bytes())["summary"]["operations"]
    most = max(repeats) / repeats[0]
    print(
        f"{asked.minutes} min, {operations:,} operations: medians of the trace's repeats from the"
        f" second on {', '.join(f'{size / 1e6:.1f}' for size in repeats)} MB: {most:.3f} ({FLAT} is"
        " allowed)"
    )
    sys.exit(most > FLAT)


if __name__ == "__main__":
    main()
