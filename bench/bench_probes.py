"""What the probes cost.

Fio's I/Os a second with `kvreplay probe --histograms-only` attached and without.

Sides alternate; printed are medians and the median of each pair's ratio. The device is a null block
device where the kernel has one, else a loop device over a file in memory: nothing but the kernel's
own path takes time, so that the probes' cost shows most. 50,000 I/Os a second are offered; then the
kernel's own clock (bpf_stats_enabled) says what the programs take an I/O, which no busy neighbour
blurs. Last, as many I/Os as the machine makes, with a row kept of each: what that costs, and how
many rows are lost. Takes three minutes; needs root, libbpf and fio.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import figures

from kvreplay.probes.libbpf import check_available
from kvtrace.core.errors import ProbeUnavailable
from kvtrace.core.run.run_file import ATTACHED

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = 5
FLAT_OUT_PAIRS = 3
SECONDS = 3
FILE_BYTES = 1 << 30
MEMORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps files in memory
LOAD = "benchload"
RATE, DEPTH = 50_000, 32
NULL_DEVICE = Path("/dev/nullb0")
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")


@dataclass(frozen=True, slots=True)
class Side:
    """One run of fio."""

    iops: float
    latency_us: float
    cpu_us: float
    """fio's user and system time an I/O; what interrupts and kernel threads take is not in it."""


@contextmanager
def device() -> Iterator[Path]:
    """Yield a block device that takes next to no time; it may be written."""
    if shutil.which("modprobe"):
        subprocess.run(["modprobe", "null_blk"], check=False, capture_output=True)
    if NULL_DEVICE.exists():
        print(f"device: {NULL_DEVICE} (null_blk)")
        yield NULL_DEVICE
        return
    with tempfile.NamedTemporaryFile(dir=MEMORY, prefix="bench-") as file:
        file.truncate(FILE_BYTES)
        done = subprocess.run(
            ["losetup", "-f", "--show", file.name], check=True, capture_output=True, text=True
        )
        name = done.stdout.strip()
        print(f"device: {name}, over a file in memory (no null_blk in this kernel)")
        try:
            yield Path(name)
        finally:
            subprocess.run(["losetup", "-d", name], check=True)


@contextmanager
def probed(
    target: Path, output: Path, *, is_on: bool, has_events: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a dict.

    If `is_on`, the probes are attached meanwhile, and it has their result afterwards.
    """
    found: dict[str, Any] = {}
    if not is_on:
        yield found
        return
    command = [sys.executable, "-m", "kvreplay.cli", "probe", "--comm", LOAD, "--dev", str(target),
               *([] if has_events else ["--histograms-only"]), "--json", "--force", "-o", str(output)]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stderr.readline().strip()
        if line != ATTACHED:
            raise SystemExit(f"probes: {line}")
        try:
            yield found
        finally:
            spent_ns = program_ns(process.pid)
            process.send_signal(signal.SIGINT)
            found |= json.loads(process.stdout.read()) | {"spent_ns": spent_ns}


def program_ns(pid: int) -> int:
    """Return how long the programs that process `pid` holds have run, if the kernel keeps that."""
    spent = 0
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        lines = (line.split(":") for line in entry.read_text(encoding="ascii").splitlines())
        spent += sum(int(value) for name, value in lines if name == "run_time_ns")
    return spent


def load(program: Path, target: Path, rate: int | None = RATE) -> tuple[Side, int]:
    """Return what fio did of random reads of 4 KiB, and how many; null is as many as it can."""
    command = [str(program), "--name=job", f"--filename={target}", f"--size={FILE_BYTES}", "--rw=randread", "--bs=4k",
               "--direct=1", "--ioengine=io_uring", f"--iodepth={DEPTH}", f"--runtime={SECONDS}", "--time_based",
               "--output-format=json", *([] if rate is None else [f"--rate_iops={rate}"])]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    job = json.loads(done.stdout)["jobs"][0]
    read, ios = job["read"], job["read"]["total_ios"]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] * 1e3 / ios
    return Side(read["iops"], read["clat_ns"]["mean"] / 1e3, cpu), ios


def compare(program: Path, target: Path, output: Path) -> None:
    """Print the load with the probes and without."""
    sides: dict[bool, list[Side]] = {False: [], True: []}
    followed = unseen = 0
    for pair in range(PAIRS):
        for is_on in (False, True) if pair % 2 else (True, False):
            with probed(target, output, is_on=is_on) as found:
                side, ios = load(program, target)
            sides[is_on].append(side)
            if found:
                block = found["block"]["directions"]["read"]
                followed, unseen = followed + ios, unseen + block["ends_not_seen"]
    ratios = [on.iops / off.iops for off, on in zip(sides[False], sides[True], strict=True)]
    pairs = [(on.iops, off.iops) for off, on in zip(sides[False], sides[True], strict=True)]
    cpus = [(on.cpu_us, off.cpu_us) for off, on in zip(sides[False], sides[True], strict=True)]
    figures.record_comparison(
        f"fio with probes, {RATE:,} reads of 4 KiB a second offered",
        "I/Os/s",
        "without probes",
        pairs,
        cpus,
    )
    print(f"{RATE:,} reads of 4 KiB a second offered, depth {DEPTH}, {PAIRS} pairs of {SECONDS} s:")
    for is_on, shown in ((False, "without"), (True, "with probes")):
        middle = {
            n: statistics.median(getattr(s, n) for s in sides[is_on])
            for n in ("iops", "latency_us", "cpu_us")
        }
        print(f"  {shown:11}: {middle['iops']:9,.0f} I/Os a second, mean latency {middle['latency_us']:.2f} µs, "
              f"{middle['cpu_us']:.2f} µs of fio's CPU an I/O")  # fmt: skip
    print(f"  ratio: median {statistics.median(ratios):.4f} (target >= 0.97; {min(ratios):.3f} to {max(ratios):.3f}); "
          f"{followed:,} I/Os followed, {unseen:,} completions not seen")  # fmt: skip


def cost(program: Path, target: Path, output: Path) -> None:
    """Print how long the programs run an I/O."""
    before = STATS.read_text(encoding="ascii")
    STATS.write_text("1", encoding="ascii")
    try:
        with probed(target, output, is_on=True) as found:
            _, ios = load(program, target)
    finally:
        STATS.write_text(before, encoding="ascii")
    cpu = found["spent_ns"] / ios
    print(
        f"the programs themselves: {cpu:.0f} ns an I/O, {cpu * RATE / 1e9:.1%} of one CPU at"
        f" {RATE:,} a second"
    )


def flat_out(program: Path, target: Path, output: Path) -> None:
    """Print what the probes cost, and lose, where fio and they share all processors."""
    ratios, rates, followed, lost = [], [], 0, 0
    for pair in range(FLAT_OUT_PAIRS):
        found_rates: dict[bool, float] = {}
        for is_on in (False, True) if pair % 2 else (True, False):
            with probed(target, output, is_on=is_on, has_events=True) as found:
                side, ios = load(program, target, None)
            found_rates[is_on] = side.iops
            if found:
                block = found["block"]["directions"]["read"]
                followed, lost = (
                    followed + ios,
                    lost + block["lost_events"] + block["lost_requests"],
                )
        rates.append(found_rates[False])
        ratios.append(found_rates[True] / found_rates[False])
    pairs = [(rate * ratio, rate) for rate, ratio in zip(rates, ratios, strict=True)]
    figures.record_comparison(
        "fio with probes, flat out, a row kept of each", "I/Os/s", "without probes", pairs
    )
    print(f"flat out, {statistics.median(rates):,.0f} I/Os a second without probes, a row kept of each: ratio "
          f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}); {followed:,} I/Os followed, "
          f"{lost:,} rows lost")  # fmt: skip


def main() -> None:
    try:
        check_available()
    except ProbeUnavailable as error:
        print(f"probes: skipped, {error}")
        return
    fio = shutil.which("fio")
    if fio is None:
        print("probes: skipped, fio is not installed")
        return
    print(
        f"overhead of the probes, histograms only; load average {os.getloadavg()[0]:.1f} on"
        f" {os.cpu_count()} CPUs"
    )
    with tempfile.TemporaryDirectory(prefix="bench-") as name, device() as target:
        program = Path(name) / LOAD
        program.symlink_to(fio)
        load(program, target)
        compare(program, target, Path(name) / "probe")
        cost(program, target, Path(name) / "probe")
        flat_out(program, target, Path(name) / "probe")


if __name__ == "__main__":
    main()
