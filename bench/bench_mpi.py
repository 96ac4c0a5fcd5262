"""Several ranks on this machine.

How closely they begin, and what they reach together beside one process.

Ranks of the same trace on null tiers (what submission itself manages) and on files below the
working directory, one rank and four in turn; printed are medians of three and the medians of each
round's ratio. Of the starts: between the first rank to begin and the last, their first submissions,
and the error of the common clock, worst and median. Four ranks on two processors take turns on
them, so their first submissions cannot all be at once; two can.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import figures

ROUNDS = 3
_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def program(name: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", f"{name}.cli", *map(str, arguments)]


def run(ranks: int, trace: Path, target: str, output: Path, launcher: str) -> dict[str, Any]:
    """Replay on so many ranks, and return run.json."""
    shutil.rmtree(output, ignore_errors=True)
    argv = program(
        "kvreplay",
        "run",
        trace,
        "--mpi",
        "--partition",
        "object",
        "--tier",
        f"nvme={target}",
        "-o",
        output,
    )
    subprocess.run(
        [launcher, "-n", str(ranks), "--bind-to", "none", *argv],
        env={**os.environ, **_ENVIRONMENT}, check=True, capture_output=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads((output / "run.json").read_text())
    return found


def rate(found: dict[str, Any], unit: str) -> float:
    tiers = {tier["tier"]: tier for tier in found["summary"]["judgement"]["tiers"]}
    return float(tiers["nvme"][f"reached_{unit}_per_s"] or 0)


def compare(
    trace: Path, target: str, output: Path, launcher: str, unit: str, said: str
) -> list[dict[str, Any]]:
    alone, together = [], []
    for _ in range(ROUNDS):
        alone.append(run(1, trace, target, output, launcher))
        together.append(run(4, trace, target, output, launcher))
    one, four = ([rate(found, unit) for found in side] for side in (alone, together))
    ratio = statistics.median(b / a for a, b in zip(one, four, strict=True))
    scale, name = (1e9, "GB/s") if unit == "bytes" else (1e6, "M op/s")
    pairs = [(b / scale, a / scale) for a, b in zip(one, four, strict=True)]
    figures.record_comparison(f"four ranks together, {said}", name, "one rank", pairs)
    shown = [f"{statistics.median(side) / scale:.3g} {name}" for side in (one, four)]
    print(f"{said}: one rank {shown[0]}, four {shown[1]}, ratio {ratio:.2f}", flush=True)
    return together


def show_starts(runs: list[dict[str, Any]], said: str) -> None:
    starts = [found["ranks"]["start"] for found in runs]
    parts = []
    for name, what in (
        ("skew_ns", "began"),
        ("first_submission_skew_ns", "first submissions"),
        ("clock_error_ns", "clock error"),
    ):
        known = sorted(start[name] / 1000 for start in starts if start[name] is not None)
        parts.append(
            f"{what} {statistics.median(known):,.1f} µs (worst {known[-1]:,.1f})"
            if known
            else f"{what} -"
        )
    print(f"{said}: apart: {', '.join(parts)}", flush=True)


def main() -> None:
    launcher = next(
        (
            p
            for p in (str(Path(sys.executable).with_name("mpirun")), shutil.which("mpirun"))
            if p and Path(p).is_file()
        ),
        None,
    )
    if launcher is None or find_spec("mpi4py") is None:
        print("ranks: skipped, mpi4py or mpirun is not installed")
        return
    print(f"{os.cpu_count()} processors; load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as scratch:
        folder = Path(scratch)
        trace = folder / "t.parquet"
        tiers = [
            f"tiers.{name}.capacity={size}"
            for name, size in (("gpu", 0), ("cpu", "64MiB"), ("nvme", "512MiB"))
        ]
        sets = [part for tier in tiers for part in ("--set", tier)]
        made = ("--preset", "lmcache-disk", "--model", "tiny-1b", "--users", 16, *sets)
        subprocess.run(
            program("kvtrace", "gen", *made, "--duration", "600s", "-o", trace),
            check=True,
            capture_output=True,
        )
        drive = folder / "drive"
        drive.mkdir()
        nothing = compare(trace, "null", folder / "run", launcher, "operations", "null tier")
        limited = folder / "some.parquet"
        subprocess.run(
            program("kvtrace", "gen", *made, "--duration", "8s", "-o", limited),
            check=True,
            capture_output=True,
        )
        stored = compare(limited, str(drive), folder / "run", launcher, "bytes", "files")
        show_starts([*nothing, *stored], "4 ranks")
        show_starts(
            [run(2, limited, str(drive), folder / "run", launcher) for _ in range(ROUNDS)],
            "2 ranks",
        )


if __name__ == "__main__":
    main()
