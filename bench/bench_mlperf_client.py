"""Whether the client's processors change the result of an MLPerf option, and whether the run says
so when they do.

    python bench/bench_mlperf_client.py [FOLDER]

`kvreplay mlperf v3-8b`, its trials shortened and its storage tier made small, runs in FOLDER (the
working directory without one) with all processors, with one, with parts of one, and with all of
them beside a process that never sleeps: by turns, in rounds. A control group of the kernel holds
the client to its share, as root; without it taskset does, and there are no parts. Given are the
result over that with all processors in the same round, and what limited each run by its own
verdict. Where the result falls and no verdict names the client, the verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import figures
from bench_mlperf_spread import CAPACITY_GIB, SECONDS, SEED, run_option

ROUNDS = 3
SHARES = (1.0, 0.5, 0.125, 0.0625)
PERIOD_US = 100_000
CGROUPS = Path("/sys/fs/cgroup")
OF_CLIENT = ("replayer", "data generation", "processor", "copy threads", "first touch of memory")
"""Causes of a verdict that are the client's.

Its submission, its data, its processors, its memory.
"""
BUSY = "while True: pass"


@dataclass(frozen=True, slots=True)
class Result:
    """What one run came to; bandwidth in GiB/s, times in ms."""

    bandwidth: float
    read_p95_ms: float | None
    cause: str
    reason: str


@contextmanager
def held_to(processors: float) -> Iterator[tuple[list[str], str]]:
    """Yield a command prefix that holds what it starts to so many processors, and by what.

    Raises:
        LookupError: there is no means for it here.

    """
    if processors >= (os.cpu_count() or 1):
        yield [], "all"
        return
    name, quota = f"kvreplay-bench-{os.getpid()}", round(processors * PERIOD_US)
    old, new = CGROUPS / "cpu" / name, CGROUPS / name
    group = old if (CGROUPS / "cpu").is_dir() else new
    try:
        group.mkdir()
    except OSError:
        if processors < 1:
            raise LookupError("no control group can be made here (root)") from None
        yield (
            [
                "taskset",
                "-c",
                ",".join(map(str, sorted(os.sched_getaffinity(0))[: int(processors)])),
            ],
            "taskset",
        )
        return
    try:
        if group == old:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            raise LookupError("the control group has no cpu controller")
        script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        yield ["sh", "-c", script, str(group)], "cpu.cfs_quota_us" if group == old else "cpu.max"
    finally:
        group.rmdir()


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Have so many processes run that never sleep."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(folder: Path, prefix: Sequence[str]) -> Result:
    found, trial = run_option(folder, SEED, prefix)
    judged = json.loads((trial / "run.json").read_text())["summary"]["judgement"]
    total = found["aggregated"]
    return Result(
        bandwidth=total["aggregated_read_bandwidth_gbps"]
        + total["aggregated_write_bandwidth_gbps"],
        read_p95_ms=total["aggregated_total_read_p95_ms"],
        cause=judged["cause"] or "not identified",
        reason=judged["reason"],
    )


def ratio(ours: Sequence[float | None], full: Sequence[float | None]) -> str:
    """Return the median of the rounds' ratios, and in brackets the least and the most."""
    known = [a / b for a, b in zip(ours, full, strict=True) if a is not None and b]
    return (
        f"{statistics.median(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else "-"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path.cwd())
    asked = parser.parse_args()
    count = os.cpu_count() or 1
    print(f"load average {os.getloadavg()[0]:.1f} on {count} CPUs", flush=True)
    whole = float(count)
    cases = [(f"all {count}", whole, 0), *((f"{Fraction(share)}", share, 0) for share in SHARES)]
    cases.append((f"all {count}, one kept busy", whole, 1))
    found: dict[str, list[Result]] = {}
    means: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=asked.folder.resolve(), prefix="bench-") as scratch:
        for _ in range(ROUNDS):
            for name, processors, others in cases:
                try:
                    with held_to(processors) as (prefix, by), busy(others):
                        found.setdefault(name, []).append(measured(Path(scratch), prefix))
                        means[name] = by
                except LookupError as error:
                    means[name] = f"not measured: {error}"
    full, rows = found[cases[0][0]], []
    for name, _, _ in cases:
        runs = found.get(name, [])
        if not runs:
            rows.append([name, means[name], "-", "-", "-", "-"])
            continue
        causes = Counter(run.cause for run in runs)
        rows.append([
            name,
            means[name],
            ratio([run.bandwidth for run in runs], [run.bandwidth for run in full]),
            ratio([run.read_p95_ms for run in runs], [run.read_p95_ms for run in full]),
            f"{sum(run.cause in OF_CLIENT for run in runs)} of {len(runs)}",
            "; ".join(f"{cause} x {times}" for cause, times in causes.most_common()),
        ])  # fmt: skip
        for run in runs:
            print(f"{name}: {run.bandwidth:.2f} GiB/s; {run.cause}: {run.reason}", flush=True)
    columns = ["processors", "held by", "result, of that with all", "read P95, of that with all"]
    columns += ["verdicts that name the client", "what limited it, by the verdict"]
    said = f"""Medians of {ROUNDS} rounds' ratios, the least and the most in brackets. The result is bandwidth, read and
    written. Each run {SECONDS} s of option 1, storage of {CAPACITY_GIB} GiB, in turn. These causes are the client:
    {", ".join(OF_CLIENT)}."""
    print("\n".join([*figures.table(columns, rows), "", " ".join(said.split())]))
    figures.record_table(columns, rows, said)


if __name__ == "__main__":
    main()
