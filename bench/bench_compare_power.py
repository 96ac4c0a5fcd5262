"""How often `kvreplay compare` finds a known difference between two drives.

Two loop devices over files in a folder (a tmpfs, so that no disk limits them) are throttled by a
block control group (version 1): the first to `--rate`, the second to a given share less. Each
comparison replays a small trace in five trials a side. Printed is, for each difference, how many
comparisons claimed one, and how many of these in the right direction. Needs root.

    mount -t tmpfs tmpfs /mnt/power
    python bench/bench_compare_power.py /mnt/power --comparisons 20 --differences 0,0.05,0.1,0.2
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

DEVICE_BYTES = 1200 << 20
GROUPS = Path("/sys/fs/cgroup/blkio")
LOAD = (
    "--preset lmcache-disk --users 3 --duration 16s --model tiny-1b --seed 7 --set tiers.gpu.capacity=32MiB"
    " --set tiers.cpu.capacity=48MiB --set tiers.nvme.capacity=300MiB --set workload.think_time=1s"
)


def run(*command: object, is_checked: bool = True) -> str:
    """Run a command and return what it prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if is_checked and done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def kvtool(program: str, *arguments: object) -> str:
    """Run one of the programs and return what it prints."""
    return run(sys.executable, "-m", f"{program}.cli", *arguments)


@contextmanager
def mounted_loop(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the number (MAJOR:MINOR) and the mount point of a loop device with ext4 in `folder`."""
    backing, mount = folder / name, folder / f"{name}.mount"
    with backing.open("wb") as file:
        file.truncate(DEVICE_BYTES)
    device = run("losetup", "--find", "--show", backing).strip()
    try:
        run("mkfs.ext4", "-q", device)
        mount.mkdir(exist_ok=True)
        run("mount", device, mount)
        number = Path(device).stat().st_rdev
        yield f"{os.major(number)}:{os.minor(number)}", mount
    finally:
        run("umount", mount, is_checked=False)
        run("losetup", "--detach", device)
        backing.unlink()


@contextmanager
def control_group() -> Iterator[Path]:
    """Yield a block control group that holds this process."""
    group = GROUPS / "kvtrace-power"
    group.mkdir(exist_ok=True)
    (group / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield group
    finally:
        (GROUPS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


def compared(trace: Path, mounts: list[Path], output: Path) -> float:
    """Compare the drives; return the claimed ratio of read bandwidth, 1 if none is claimed."""
    targets = [mount / "target" for mount in mounts]
    for target in targets:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
    kvtool(
        "kvreplay", "compare", trace, "--tier", f"nvme={targets[0]}", "--against", f"nvme={targets[1]}",
        "-o", output, "--trials", 5, "--force", "--window", "all",
    )  # fmt: skip
    result = json.loads(kvtool("kvdistill", "compare", output / "a", output / "b", "--json"))
    ratios = [
        line["sides"][1]["ratio"]
        for line in result["lines"]
        if line["name"] == "bandwidth_bytes_per_s" and line["tier"] == "nvme"
    ]
    claimed = [ratio["value"] for ratio in ratios if ratio["differs"]]
    return min(claimed, key=lambda value: -abs(value - 1)) if claimed else 1.0


def main() -> None:
    """Print a line for each difference."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="an empty folder, on a tmpfs")
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--differences", default="0,0.05,0.1,0.2")
    parser.add_argument("--rate", type=int, default=250_000_000, help="bytes a second")
    wanted = parser.parse_args()
    trace = wanted.folder / "trace.parquet"
    kvtool("kvtrace", "gen", *LOAD.split(), "-o", trace, "--force")
    with ExitStack() as stack:
        loops = [stack.enter_context(mounted_loop(wanted.folder, name)) for name in ("a", "b")]
        group = stack.enter_context(control_group())
        for difference in map(float, wanted.differences.split(",")):
            rates = (wanted.rate, round(wanted.rate * (1 - difference)))
            for (number, _mount), rate in zip(loops, rates, strict=True):
                for direction in ("read", "write"):
                    limit = group / f"blkio.throttle.{direction}_bps_device"
                    limit.write_text(f"{number} {rate}")
            ratios = [
                compared(trace, [mount for _number, mount in loops], wanted.folder / "runs")
                for _ in range(wanted.comparisons)
            ]
            claims = [ratio for ratio in ratios if ratio != 1]
            right = sum(ratio < 1 for ratio in claims)
            print(
                f"difference {difference:.0%}: claimed in {len(claims)} of {len(ratios)}, lower in {right}",
                flush=True,
            )


if __name__ == "__main__":
    main()
