"""What the live view costs.

Replays shown on a terminal beside replays that nobody watches, in turns.

Reads of 4 KiB at depth 32 from one file, and rows on a null tier, of which most end in a second.
One process makes both runs of a pair; its standard error is a pseudo-terminal, read and thrown
away. Printed are medians of both and of the pairs' ratios, of rates and of processor time. Takes
some minutes, and 64 MiB below the working directory.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import figures
import numpy as np
import pyarrow as pa

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvreplay.run.watch import live
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.schema import OBJECTS, TRACE, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create, objects_path

PAIRS = 5
SPREAD_OBJECTS, LENGTH = 16_384, 4096
BATCH = 500_000


class Case(NamedTuple):
    """What is replayed."""

    name: str
    rows: int
    target: str


CASES = (
    Case("reads of 4 KiB at depth 32", figures.sized(200_000, 2000), "space.dat"),
    Case("rows on a null tier", figures.sized(5_000_000, 20_000), "null"),
)


def make_trace(path: Path, rows: int) -> Path:
    """Write a trace of `rows` reads of whole objects of 4 KiB."""
    rng, facts = np.random.default_rng(1), {"tiers": [TierFacts("nvme", 1 << 30)], "seed": 1}
    codes = {"op": enum_code(TRACE, "op", "read"), "phase": enum_code(TRACE, "phase", "load")}
    with create(path, TRACE, describe(TRACE, "bench", ["bench"], {}, **facts)) as out:
        for start in range(0, rows, BATCH):
            count = min(BATCH, rows - start)
            numbers = {
                "ts_ns": np.arange(start, start + count),
                "object_id": rng.integers(0, SPREAD_OBJECTS, count),
                "length_bytes": np.full(count, LENGTH),
            }
            schema, arrays = arrow_schema(TRACE), []
            for column in TRACE.columns:
                if column.type == "enum":
                    arrays.append(
                        enum_array(TRACE, column.name, np.full(count, codes[column.name], np.int8))
                    )
                elif column.nullable:
                    arrays.append(pa.nulls(count, schema.field(column.name).type))
                else:
                    found = numbers.get(column.name, np.zeros(count, np.int64))
                    arrays.append(pa.array(found).cast(schema.field(column.name).type))
            out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    objects = [
        pa.array(np.arange(SPREAD_OBJECTS)),
        pa.array([f"object/{at}" for at in range(SPREAD_OBJECTS)]),
        enum_array(OBJECTS, "kind", np.zeros(SPREAD_OBJECTS, np.int8)),
        pa.array(np.full(SPREAD_OBJECTS, LENGTH)),
    ]
    with create(
        objects_path(path), OBJECTS, describe(OBJECTS, "bench", ["bench"], {}, **facts)
    ) as out:
        out.write(pa.RecordBatch.from_arrays(objects, schema=arrow_schema(OBJECTS)))
    return path


@contextmanager
def terminal() -> Iterator[None]:
    """Let standard error be a terminal, which nobody looks at."""
    ours, theirs = os.openpty()
    before, stream = os.dup(2), sys.stderr
    os.dup2(theirs, 2)
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)

    def drain() -> None:
        while os.read(ours, 1 << 16).find(b"\0") < 0:
            pass

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    try:
        yield
    finally:
        sys.stderr.write("\0")
        sys.stderr.close()
        reader.join()
        sys.stderr = stream
        os.dup2(before, 2)
        for fd in (ours, theirs, before):
            os.close(fd)


def rate_of(trace: Path, target: str, number: int, *, is_watched: bool) -> tuple[float, float]:
    """Return the operations a second of a replay, and the processor time of each, start and end
    included.
    """
    config = Config(tiers={"nvme": target}, queue_depth=32, is_kept=True)
    start = time.process_time_ns()
    with terminal():
        output = trace.parent / f"run-{number}"
        done = replay(
            Replay(config, trace, output, [], watching=live if is_watched else None, is_forced=True)
        )
    summary = done.run.summary
    assert summary.operations
    assert summary.wall_ns
    return (
        summary.operations * 1e9 / summary.wall_ns,
        (time.process_time_ns() - start) / summary.operations,
    )


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        for case in CASES:
            trace = make_trace(Path(name) / f"{case.rows}.parquet", case.rows)
            target = str(Path(name) / case.target) if case.target.endswith(".dat") else case.target
            rate_of(trace, target, 0, is_watched=True)
            pairs = []
            for at in range(PAIRS):
                order = (True, False) if at % 2 else (False, True)
                found = {
                    watched: rate_of(trace, target, 2 * at + watched + 1, is_watched=watched)
                    for watched in order
                }
                pairs.append((found[True], found[False]))
            watched, alone = (statistics.median(pair[side][0] for pair in pairs) for side in (0, 1))
            figures.record_comparison(
                f"live view, {case.name}",
                "op/s",
                "the same replay, watched by nobody",
                [(a[0], b[0]) for a, b in pairs],
                [(a[1], b[1]) for a, b in pairs],
            )
            rates = sorted(a[0] / b[0] for a, b in pairs)
            cpu = statistics.median(a[1] / b[1] for a, b in pairs)
            print(
                f"{case.name}: {watched:,.0f} op/s watched, {alone:,.0f} alone,"
                f" {statistics.median(rates):.3f} of it ({rates[0]:.3f} to {rates[-1]:.3f});"
                f" processor time of all of the run {cpu:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
