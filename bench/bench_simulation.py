"""How fast the simulation is, with the ratio of each figure to its target and to libcachesim.

Each side of a comparison takes turns with the other in one run; figures are medians. A `gen` is
timed from start to end of the process: imports, simulation, Parquet of the trace and its objects
table, renaming. User CPU time is of all threads, and suffers less than wall time from others on the
machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import figures
import numpy as np

from kvtrace.curves.stack import policy_uses
from kvtrace.sim.chains import Chains

REFERENCES = 10_000_000
OBJECTS = 1_000_000
CAPACITY = 100_000
RUNS = 3


def zipf_references() -> np.ndarray:
    """10 M references to 1 M objects, Zipf 1.0, from a fixed seed."""
    weights = 1.0 / np.arange(1, OBJECTS + 1)
    cumulative = np.cumsum(weights / weights.sum())
    draws = np.random.default_rng(42).random(REFERENCES)
    return np.searchsorted(cumulative, draws).astype(np.int32)


def bench_lru(directory: Path) -> None:
    try:
        import libcachesim as lcs
    except ImportError:
        print("LRU against libcachesim: skipped, it is not installed (pip install libcachesim)")
        return
    ids = zipf_references()
    record = np.zeros(
        REFERENCES, dtype=[("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")]
    )
    record["id"], record["size"], record["next"] = ids + 1, 1, -2
    path = directory / "references.oracleGeneral"
    record.tofile(path)
    # One reference a request, so that a leading run is simply a hit.
    chains = Chains(np.arange(REFERENCES + 1), ids, np.ones(OBJECTS, np.int64))
    policy_uses(Chains(chains.offsets[:2], ids[:1], chains.tokens), [1], "lru")
    ours, theirs = [], []
    for _ in range(RUNS):
        start = time.perf_counter(), time.process_time()
        hits = policy_uses(chains, [CAPACITY], "lru")[0].hits
        ours.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        reader = lcs.TraceReader(str(path), trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)
        cache = lcs.LRU(cache_size=CAPACITY)
        start = time.perf_counter(), time.process_time()
        miss_ratio, _bytes = cache.process_trace(reader)
        theirs.append((time.perf_counter() - start[0], time.process_time() - start[1]))
        assert abs((1 - miss_ratio) * REFERENCES - hits) < 1, (miss_ratio, hits)
    for which, name in enumerate(("wall", "CPU")):
        pairs = [
            (REFERENCES / a[which] / 1e6, REFERENCES / b[which] / 1e6)
            for a, b in zip(ours, theirs, strict=True)
        ]
        figures.record_comparison(
            f"LRU hits of {REFERENCES // 10**6} M references, {name} time",
            "M/s",
            "libcachesim",
            pairs,
        )
        rates = [
            REFERENCES / statistics.median(side[which] for side in sides) / 1e6
            for sides in (ours, theirs)
        ]
        print(
            f"LRU, {REFERENCES / 1e6:.0f} M references, by {name} time: kvtrace {rates[0]:.1f} M/s,"
            f" libcachesim process_trace {rates[1]:.1f} M/s; {_against(rates[0] / rates[1], 3)};"
            " same hits"
        )


def _against(figure: float, target: float) -> str:
    return f"ratio {figure:.2f}, {figure / target:.2f}x the target of {target:g}"


class Run(NamedTuple):
    """One process: seconds of wall and of user CPU time, and peak memory."""

    wall_s: float
    user_s: float
    peak_bytes: int


def kvtrace(*arguments: str) -> Run:
    """Run `kvtrace` as a process."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "kvtrace.cli", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _pid, status, usage = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return Run(time.perf_counter() - start, usage.ru_utime, usage.ru_maxrss * 1024)


class Case(NamedTuple):
    """A `gen`: its arguments, and what is wanted of it; None where nothing is."""

    arguments: tuple[str, ...]
    rows_per_s: float | None = None
    wall_s: float | None = None
    peak_bytes: int | None = None
    part: float | None = None
    """Of an hour that should take seconds."""


CASES = {
    "lmcache-disk, 64 users, 15 min (>= 50 M rows)": Case(
        ("--preset", "lmcache-disk", "--gpu", "instant", "--users", "64", "--duration", "900s"),
        rows_per_s=10e6,
        peak_bytes=600_000_000,
    ),
    "mlperf, 4,000 users, 60 s, generation takes no time": Case(
        ("--users", "4000", "--duration", "60s", "--set", "decode_ns_per_token=0")
    ),
    "mlperf, 32 users, 60 s": Case(("--users", "32", "--duration", "60s"), wall_s=0.7),
    "vllm-fs, 4,000 users, 2 s": Case(
        ("--preset", "vllm-fs", "--gpu", "instant", "--users", "4000", "--duration", "2s"),
        rows_per_s=10e6,
        peak_bytes=600_000_000,
    ),
    # Computing takes no time there, so that each user asks about twice a second, and reads some
    # 1,700 blocks: an hour is 50,000 M rows. So a part of it is run.
    "vllm-fs, 1,000 users of llama3.1-70b-instruct, 5 s": Case(
        (
            "--preset",
            "vllm-fs",
            "--gpu",
            "instant",
            "--model",
            "llama3.1-70b-instruct",
            "--users",
            "1000",
            "--duration",
            "5s",
        ),
        part=5 / 3600,
    ),
}


def bench_gen(directory: Path) -> None:
    from kvtrace.core.tables import open_table

    out = directory / "t.parquet"
    kvtrace("gen", "--users", "1", "--duration", "1s", "-o", str(out), "--force")
    for name, case in CASES.items():
        runs = [kvtrace("gen", *case.arguments, "-o", str(out), "--force") for _ in range(RUNS)]
        rows = open_table(out).meta.rows or 0
        wall, user = (statistics.median(r[which] for r in runs) for which in (0, 1))
        peak = max(r.peak_bytes for r in runs)
        line = (
            f"gen {name}: {rows / 1e6:.2f} M rows, {wall:.2f} s wall, {user:.2f} s user CPU,"
            f" {rows / wall / 1e6:.2f} M rows/s, peak {peak / 1e6:.0f} MB,"
            f" {out.stat().st_size / max(1, rows):.2f} B/row"
        )
        if case.rows_per_s:
            line += (
                f"; {rows / wall / case.rows_per_s:.2f}x the target of {case.rows_per_s / 1e6:g} M"
                " rows/s"
            )
        if case.wall_s:
            line += f"; {case.wall_s / wall:.2f}x the target of {case.wall_s:g} s"
        if case.peak_bytes:
            line += f"; memory {peak / case.peak_bytes:.2f} of the most it may take"
        if case.part:
            line += (
                f"; an hour would take {wall / case.part:.0f} s at this rate, where the target is"
                " seconds"
            )
        print(line, flush=True)


def bench_parts(directory: Path) -> None:
    """Time the two threads of a `gen` each by itself, so that what bounds the whole is seen."""
    from kvtrace.core.metadata import describe
    from kvtrace.core.schema import TRACE
    from kvtrace.core.tables import create
    from kvtrace.llm.catalogue import find_model
    from kvtrace.sim.output import trace_batch
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.sim.simulation import Flush, Load, Simulation

    for name, users, seconds in (("lmcache-disk", 64, 200), ("vllm-fs", 200, 2)):
        preset, model = load_preset(name, gpu="instant"), find_model("llama3.1-8b")
        times: dict[str, list[float]] = {"simulating": [], "encoding": []}
        rows = 0
        for run in range(1 + RUNS):
            simulation = Simulation(
                preset, model, Load(users=users, seed=42, until_ns=seconds * 10**9)
            )
            kept: list[Flush] = []
            start = time.process_time()
            simulation.run(kept.append)
            middle = time.process_time()
            rows = sum(len(flush.rows["ts_ns"]) for flush in kept)
            with create(directory / "p.parquet", TRACE, describe(TRACE, "bench", [], {})) as writer:
                for flush in kept:
                    writer.write(trace_batch(flush.rows))
            # The first warms caches.
            if run:
                times["simulating"].append(middle - start)
                times["encoding"].append(time.process_time() - middle)
        rates = {part: rows / statistics.median(found) / 1e6 for part, found in times.items()}
        print(
            f"parts of gen {name}, {rows / 1e6:.1f} M rows, each alone, by CPU time: "
            + ", ".join(f"{part} {rate:.1f} M rows/s" for part, rate in rates.items())
            + f"; in two threads at most {min(rates.values()):.1f}, bound by"
            f" {min(rates, key=rates.__getitem__)}",
            flush=True,
        )


def bench_mlperf_csv(directory: Path) -> None:
    """Export a trace as MLPerf CSV, zstd, keys and all.

    The rate is of CSV rows (deletes have none).
    """
    from kvtrace.core.tables import open_table

    trace, out = directory / "m.parquet", directory / "m.csv.zst"
    kvtrace(
        "gen",
        "--users",
        "4000",
        "--duration",
        "60s",
        "--set",
        "decode_ns_per_token=0",
        "-o",
        str(trace),
    )
    runs = [
        kvtrace("convert", str(trace), str(out), "--to", "mlperf", "--force") for _ in range(RUNS)
    ]
    rows = sum(
        batch.num_rows - int((batch.column("op").indices.to_numpy() == 2).sum())
        for batch in open_table(trace).batches(["op"])
    )
    wall, user = (statistics.median(r[which] for r in runs) for which in (0, 1))
    print(
        f"convert --to mlperf: {rows / 1e6:.2f} M CSV rows, {wall:.2f} s wall, {user:.2f} s user"
        f" CPU, {rows / wall / 1e6:.2f} M rows/s; {rows / wall / 1e6:.2f}x the target of 1 M"
        " rows/s",
        flush=True,
    )


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name:
        # First, because a child's peak memory counts what its parent held when it was started.
        bench_gen(Path(name))
        bench_parts(Path(name))
        bench_mlperf_csv(Path(name))
        bench_lru(Path(name))


if __name__ == "__main__":
    main()
