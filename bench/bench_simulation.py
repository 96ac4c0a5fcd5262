"""How fast the simulation is: its LRU against libcachesim on the same references, and whole `gen` runs.

Alternates the two sides in one run and prints medians of three and their ratio.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from kvtrace.geometry import Chains
from kvtrace.sweep import lru_hits

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
    record = np.zeros(REFERENCES, dtype=[("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
    record["id"], record["size"], record["next"] = ids + 1, 1, -2
    path = directory / "references.oracleGeneral"
    record.tofile(path)
    # One reference a request, so that a leading run is simply a hit.
    chains = Chains(np.arange(REFERENCES + 1), ids, np.ones(OBJECTS, np.int64), np.zeros(REFERENCES, np.int64))
    lru_hits(Chains(chains.offsets[:2], ids[:1], chains.tokens, chains.new[:1]), [1])
    ours, theirs, ratios = [], [], []
    for _ in range(RUNS):
        start = time.perf_counter()
        hits = lru_hits(chains, [CAPACITY])[0]
        ours.append(REFERENCES / (time.perf_counter() - start))
        reader = lcs.TraceReader(str(path), trace_type=lcs.TraceType.ORACLE_GENERAL_TRACE)
        cache = lcs.LRU(cache_size=CAPACITY)
        start = time.perf_counter()
        miss_ratio, _bytes = cache.process_trace(reader)
        theirs.append(REFERENCES / (time.perf_counter() - start))
        ratios.append(ours[-1] / theirs[-1])
        assert abs((1 - miss_ratio) * REFERENCES - hits) < 1, (miss_ratio, hits)
    print(
        f"LRU, {REFERENCES / 1e6:.0f} M references: kvtrace {statistics.median(ours) / 1e6:.1f} M/s, "
        f"libcachesim process_trace {statistics.median(theirs) / 1e6:.1f} M/s, "
        f"ratio {statistics.median(ratios):.2f} (target >= 3), same hits"
    )


def gen(*arguments: str) -> tuple[float, int]:
    """Run `kvtrace gen`; return its wall seconds and peak memory in bytes."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "kvtrace.cli", "gen", *arguments], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    _pid, status, usage = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return time.perf_counter() - start, usage.ru_maxrss * 1024


def bench_gen(directory: Path) -> None:
    from kvtrace.core.traceio import open_table

    out = directory / "t.parquet"
    gen("--users", "1", "--duration", "1s", "-o", str(out))
    cases = {
        "lmcache-disk, 64 users": ("--preset", "lmcache-disk", "--users", "64", "--duration", "900s"),
        "mlperf, 4000 users, no generation time": (
            "--users", "4000", "--duration", "600s", "--set", "decode_ns_per_token=0",
        ),
        "mlperf, 32 users, 60 s": ("--users", "32", "--duration", "60s"),
    }  # fmt: skip
    for name, arguments in cases.items():
        walls, peaks = zip(*(gen(*arguments, "-o", str(out)) for _ in range(RUNS)), strict=True)
        rows = open_table(out).meta.rows or 0
        wall = statistics.median(walls)
        print(
            f"gen {name}: {rows / 1e6:.2f} M rows in {wall:.2f} s, {rows / wall / 1e6:.2f} M rows/s into Parquet, "
            f"peak {max(peaks) / 2**20:.0f} MiB, {out.stat().st_size / max(1, rows):.2f} B a row"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        # First, because a child's peak memory counts what its parent held when it was started.
        bench_gen(Path(name))
        bench_lru(Path(name))


if __name__ == "__main__":
    main()
