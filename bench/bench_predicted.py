"""How near a drive file comes to replays that it never saw.

Each preset with few and many users, real and predicted.

The drive is measured first and last, and the error of both files is printed: a shared disk is
another one from minute to minute. Each trace is replayed REPLAYS times on a preallocated file,
which is what a drive file stands for, then once on the first drive file, in virtual time; the
spread of the real ones says what of a difference is the disk's own. Takes about twelve minutes, and
14 GiB below the folder that is named (the working directory without).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

from kvreplay.plan.replay_config import Config
from kvreplay.run.discover import error_line, measure_drive
from kvreplay.run.replay import Replay
from kvtrace.core.files import write_json

PRESETS, USERS, REPLAYS = (
    ("lmcache-disk", "vllm-fs", "sglang-hicache", "mooncake-store"),
    (8, 32),
    2,
)
DEPTH, SECONDS = 16, 20
SMALL = (
    "tiers.gpu.capacity=512MiB",
    "tiers.cpu.capacity=2GiB",
    "tiers.nvme.capacity=8GiB",
    "workload.think_time=10s",
)


def program(name: str, *arguments: object) -> str:
    """Run one of our programs; return what it prints."""
    command = [sys.executable, "-m", f"{name}.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def measured(folder: Path, name: str) -> Path:
    """Measure the drive beneath `folder`; return where its file is."""
    drive = measure_drive(Replay(Config(), Path(), folder, sys.argv), folder)
    path = folder.parent / f"{name}.json"
    write_json(path, drive)
    print(f"{name}: {'' if drive.held_out is None else error_line(drive.held_out)}", flush=True)
    return path


def replayed(trace: Path, target: object, out: Path) -> tuple[float, dict[str, int]]:
    """Replay `trace` on `target`; return its bytes a second, and the p99 of reads and of writes."""
    shutil.rmtree(out, ignore_errors=True)
    how = ("--queue-depth", DEPTH, "--duration", f"{SECONDS}s", "-o", out, "--json")
    summary = json.loads(program("kvreplay", "run", trace, "--tier", f"nvme={target}", *how))[
        "summary"
    ]
    moved: list[dict[str, Any]] = [f for f in summary["figures"] if f["op"] != "delete"]
    p99 = {f["op"]: f["latency"]["p99_ns"] for f in moved if f["latency"]["p99_ns"]}
    return sum(f["bytes"] or 0 for f in moved) * 1e9 / summary["wall_ns"], p99


def compare(trace: Path, drive: Path, folder: Path) -> dict[str, float]:
    """Print a trace's real replays and its prediction; return predicted over real."""
    real = [replayed(trace, folder / "file.dat", folder / "run") for _ in range(REPLAYS)]
    rate, p99 = replayed(trace, f"sim:{drive}", folder / "predicted")
    found = {"bandwidth": rate / fmean(r for r, _ in real)}
    for op, predicted in p99.items():
        known = [of[op] for _, of in real if op in of]
        if known:
            found[f"{op} p99"] = predicted / fmean(known)
    rates = [r / 1e6 for r, _ in real]
    ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items())
    print(
        f"{trace.stem}: real {', '.join(f'{r:,.0f}' for r in rates)} MB/s; predicted over real:"
        f" {ratios}",
        flush=True,
    )
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(
        dir=sys.argv[1] if len(sys.argv) > 1 else Path.cwd(), prefix="bench-"
    ) as name:
        folder = Path(name)
        (folder / "drive").mkdir()
        first = measured(folder / "drive", "before")
        every: dict[str, list[float]] = {}
        for preset in PRESETS:
            for users in USERS:
                trace = folder / f"{preset}-{users}.parquet"
                settings = [part for setting in SMALL for part in ("--set", setting)]
                how = (
                    "--preset",
                    preset,
                    "--model",
                    "qwen2.5-7b",
                    "--duration",
                    "10min",
                    "--users",
                    users,
                )
                program("kvtrace", "gen", *how, *settings, "-o", trace)
                for what, ratio in compare(trace, first, folder).items():
                    every.setdefault(what, []).append(ratio)
        measured(folder / "drive", "after")
        for what, ratios in every.items():
            off = [abs(ratio - 1) for ratio in ratios]
            print(
                f"{what}: off by {median(off):.0%} (median), at most {max(off):.0%}, of"
                f" {len(ratios)} traces"
            )


if __name__ == "__main__":
    main()
