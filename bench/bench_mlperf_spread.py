"""How far the result of an MLPerf option varies, over repeats of one seed and over seeds, beside
the program's own.

    python bench/bench_mlperf_spread.py [FOLDER] [--official kv-cache.py]

`kvreplay mlperf v3-8b` runs in FOLDER (the working directory without one), its trials shortened and
its storage tier made small: in each round once with seed 42, and once with a seed of its own. Two
things may vary, and are told apart: what is issued, and how fast the storage answers. What is
issued is compared by operation and size, as far as the shortest of the runs came: as the share of
its operations that the first run of the row has, too, in whatever order, and by whether the order
is the same. The clock ends trials, so runs that are alike still end in different places.

--official is kv-cache.py of mlcommons/storage (kv_cache_benchmark), not a part of this repository.
It runs in the same rounds, with the option's model, memory and generation mode, but fewer users
than 200: each holds whole entries of up to 3 GB in memory. Its file operations are seen by Python's
audit hook, as its threads do them. What it reports is its own: storage bytes and tokens over its
time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import figures
import pyarrow.parquet as pq

OPTION, SEED = "v3-8b", 42
ROUNDS = figures.sized(5, 3)
SECONDS = figures.sized(15, 2)
CAPACITY_GIB = 8
OFFICIAL_USERS = 4
GIB = 1 << 30
Issued = list[tuple[str, int]]
"""Operations in order: read or write, and bytes."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run issued and reported; rates in GiB/s, as the benchmark has them."""

    issued: Issued
    read: float
    written: float
    tokens_per_s: float

    @property
    def bandwidth(self) -> float:
        """Both together."""
        return self.read + self.written


def run_option(folder: Path, seed: int, prefix: Sequence[str] = ()) -> tuple[dict[str, Any], Path]:
    """Run the option once below `folder`, behind a command `prefix`.

    Return mlperf.json and the trial's folder.
    """
    results, drive = folder / "results", folder / "drive"
    shutil.rmtree(results, ignore_errors=True)
    drive.mkdir(exist_ok=True)
    command = [
        *prefix,
        sys.executable,
        "-m",
        "kvreplay.cli",
        "mlperf",
        OPTION,
        "--tier",
        f"nvme={drive}",
    ]
    command += [
        "-o",
        str(results),
        "--seed",
        str(seed),
        "--duration",
        f"{SECONDS}s",
        "--trials",
        "1",
        "--break-rules",
    ]
    command += ["--capacity", f"{CAPACITY_GIB}GiB", "--json"]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found, results / "trials" / "trial-1"


def ours(folder: Path, seed: int) -> Run:
    found, trial = run_option(folder, seed)
    total = found["aggregated"]
    return Run(
        issued=issued_of(trial.parents[1] / "trace.parquet", trial / "ops.parquet"),
        read=total["aggregated_read_bandwidth_gbps"],
        written=total["aggregated_write_bandwidth_gbps"],
        tokens_per_s=total["aggregated_avg_throughput_tokens_per_sec"],
    )


def issued_of(trace: Path, ops: Path) -> Issued:
    """Return the reads and writes that a replay submitted, up to the first row of the trace that it
    did not.
    """
    begun = pq.read_table(ops, columns=["submitted_ns"])["submitted_ns"].is_valid().to_pylist()
    count = begun.index(False) if False in begun else len(begun)
    rows = pq.read_table(trace, columns=["op", "length_bytes"]).slice(0, count)
    every = zip(rows["op"].to_pylist(), rows["length_bytes"].to_pylist(), strict=True)
    return [(op, length) for op, length in every if op != "delete"]


WATCH = """
import atexit, json, os, runpy, sys
out, folder, program, *rest = sys.argv[1:]
done, sizes = [], {}
def look(path):
    try:
        sizes[path] = os.stat(path).st_size
    except OSError:
        pass
def heard(event, args):
    if event not in ("open", "os.remove") or isinstance(args[0], int):
        return
    path = os.fspath(args[0])
    if not (isinstance(path, str) and path.startswith(folder) and path.endswith(".npy")):
        return
    is_write = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
    if not is_write:
        look(path)
    # Opened without a mode: to drop its pages.
    if event == "open" and args[1] is not None:
        done.append(("write" if is_write else "read", path))
def end():
    seen = list(done)
    for _, path in seen:
        if path not in sizes:
            look(path)
    with open(out, "w") as file:
        json.dump([(op, sizes[path]) for op, path in seen if path in sizes], file)
atexit.register(end)
sys.addaudithook(heard)
sys.argv = [program, *rest]
runpy.run_path(program, run_name="__main__")
"""
"""Runs a program, and writes down which files of a folder it read and wrote, with their sizes."""


def official(program: Path, folder: Path, seed: int) -> Run:
    cache, output, issued = folder / "cache", folder / "official.json", folder / "issued.json"
    shutil.rmtree(cache, ignore_errors=True)
    cache.mkdir()
    arguments = {
        "model": "llama3.1-8b", "num-users": OFFICIAL_USERS, "duration": SECONDS, "gpu-mem-gb": 0, "cpu-mem-gb": 0,
        "max-concurrent-allocs": OFFICIAL_USERS, "generation-mode": "none", "performance-profile": "throughput",
        "storage-capacity-gb": CAPACITY_GIB, "seed": seed, "cache-dir": cache, "output": output, "log-level": "ERROR",
        "config": program.with_name("config.yaml"),
    }  # fmt: skip
    command = [sys.executable, "-c", WATCH, str(issued), f"{cache}/", str(program)]
    command += [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"{program.name} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
        )
    shutil.rmtree(cache)
    # It reports nothing where no request was served whole.
    summary = json.loads(output.read_text()).get("summary", {})
    moved = summary.get("cache_stats", {})
    return Run(
        issued=[(op, size) for op, size in json.loads(issued.read_text())],
        read=moved.get("tier_storage_read_bandwidth_gbps", 0.0),
        written=moved.get("tier_storage_write_bandwidth_gbps", 0.0),
        tokens_per_s=summary.get("avg_throughput_tokens_per_sec", 0.0),
    )


def spread(values: Sequence[float]) -> str:
    """Return the coefficient of variation, and in brackets the greatest over the least."""
    mean = statistics.fmean(values)
    if not mean:
        return "-"
    most = f"{max(values) / min(values):.2f}" if min(values) else "a run had none"
    return f"{statistics.stdev(values) / mean:.1%} ({most})"


def between(values: Sequence[float], form: str) -> str:
    return (
        f"{min(values):{form}} to {max(values):{form}}"
        if min(values) != max(values)
        else f"{values[0]:{form}}"
    )


def alike(runs: Sequence[Run]) -> str:
    """Return how far what was issued is that of the first of `runs`, as far as the shortest of them
    came.
    """
    count = min(len(run.issued) for run in runs)
    starts = [run.issued[:count] for run in runs]
    if all(start == starts[0] for start in starts):
        digest = hashlib.sha256(repr(starts[0]).encode()).hexdigest()[:8]
        return f"the same {count:,}, in the same order ({digest})"
    least = (
        min((Counter(starts[0]) & Counter(start)).total() for start in starts[1:]) / count
        if count
        else 0
    )
    return f"{least:.0%} of {count:,} are the same"


def row(who: str, series: str, runs: Sequence[Run]) -> list[str]:
    metrics = ("bandwidth", "read", "written", "tokens_per_s")
    return [
        who,
        series,
        *(spread([getattr(run, metric) for run in runs]) for metric in metrics),
        between([len(run.issued) for run in runs], ",.0f"),
        between([sum(size for _, size in run.issued) / GIB for run in runs], ".1f"),
        alike(runs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path.cwd())
    parser.add_argument("--official", type=Path, metavar="kv-cache.py")
    asked = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs", flush=True)
    repeats: dict[str, list[Run]] = {"kvreplay mlperf": []}
    seeds: dict[str, list[Run]] = {"kvreplay mlperf": []}
    with tempfile.TemporaryDirectory(dir=asked.folder.resolve(), prefix="bench-") as scratch:
        folder = Path(scratch)
        sides: dict[str, Callable[[int], Run]] = {"kvreplay mlperf": partial(ours, folder)}
        if asked.official is not None:
            sides["kv-cache.py"] = partial(official, asked.official.resolve(), folder)
        for at in range(ROUNDS):
            for who, side in sides.items():
                repeats.setdefault(who, []).append(side(SEED))
                seeds.setdefault(who, []).append(side(SEED + 1 + at))
    same, other = f"{ROUNDS} repeats of seed {SEED}", f"{ROUNDS} seeds"
    rows = [
        row(who, name, of[who]) for who in repeats for name, of in ((same, repeats), (other, seeds))
    ]
    columns = [
        "run by",
        "series",
        "bandwidth",
        "read",
        "written",
        "tokens/s",
        "operations",
        "GiB issued",
    ]
    columns.append("operations, as far as the shortest run came")
    said = f"""Coefficient of variation, and in brackets the greatest over the least. Each run {SECONDS} s of option 1,
    storage of {CAPACITY_GIB} GiB, both sides in turn. What kvreplay issues is the trace of the seed, and so the same;
    what varies over its repeats is the storage, this machine, and how far a run came."""
    if asked.official is None:
        said += " kv-cache.py was not run: no --official."
    else:
        said += f""" kv-cache.py had {OFFICIAL_USERS} users, for its memory, and its own figures are given; it reports
        none where no request was served whole."""
    print("\n".join([*figures.table(columns, rows), "", " ".join(said.split())]))
    figures.record_table(columns, rows, said)


if __name__ == "__main__":
    main()
