"""The MLPerf Storage KV-cache benchmark's program beside `kvtrace gen --preset mlperf`.

What each moves in each tier.

`python bench/mlperf_beside.py table FOLDER` takes the traces that the program wrote with
--io-trace-log, named for GPU and CPU memory in GB and for the seed, as in 16-32-42.csv. Each is put
beside three traces of ours: of the same settings and seed, the same with users who do not wait for
answers (`workload.overlap`), and of the very requests that the program served, told from its trace.
`requests TRACE.csv OUT.parquet` writes these, for `kvtrace gen OUT.parquet`.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from kvtrace.requests import own_table
from kvtrace.requests.requests import Requests

MODEL, BYTES_PER_TOKEN, USERS, DURATION = "llama3.1-8b", 131_072, 32, "60s"
DECODE_READ_TOKENS = 32
TIERS = {"Tier-0": "gpu", "Tier-1": "cpu", "Tier-2": "nvme"}
GIB = 2**30
TURN = re.compile(r"(conv_.*)_turn_(\d+)$")


class Moved(NamedTuple):
    """What a trace moves: operations and bytes by tier and direction."""

    operations: Counter[tuple[str, str]]
    bytes: Counter[tuple[str, str]]
    requests: int


def their_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a trace of the program, in order of time.

    Threads write them as they come.
    """
    with path.open(newline="") as file:
        return sorted(csv.DictReader(file), key=lambda row: float(row["Timestamp"]))


def theirs(rows: list[dict[str, str]]) -> Moved:
    """Return what the program's trace moves; a request is a prefill's write."""
    operations: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for row in rows:
        key = TIERS[row["Tier"]], row["Operation"].lower()
        operations[key] += 1
        size[key] += int(row["Object_Size_Bytes"])
    return Moved(operations, size, sum(row["Phase"] == "Prefill" for row in rows))


def ours(memory: tuple[str, str], *source: str) -> Moved:
    """Return what `kvtrace gen` makes of `source` with GPU and CPU `memory` in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "t.parquet"
        settings = [
            f"tiers.{tier}.capacity={size}GiB"
            for tier, size in zip(("gpu", "cpu"), memory, strict=True)
        ]
        command = [
            "kvtrace",
            "gen",
            *source,
            "--preset",
            "mlperf",
            "--model",
            MODEL,
            "-o",
            str(trace),
            "--json",
        ]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        moved = (
            pq.read_table(trace)
            .group_by(["tier", "op"])
            .aggregate([("length_bytes", "sum"), ([], "count_all")])
        )
    operations: Counter[tuple[str, str]] = Counter()
    size: Counter[tuple[str, str]] = Counter()
    for row in moved.to_pylist():
        key = list(TIERS.values())[row["tier"]], row["op"]
        operations[key], size[key] = row["count_all"], row["length_bytes_sum"]
    return Moved(operations, size, json.loads(done.stdout)["stats"]["requests"])


def served(rows: list[dict[str, str]], bytes_per_token: int = BYTES_PER_TOKEN) -> Requests:
    """Return the requests that the program served, as it began them, told from its trace.

    A turn's write is its request. Its own entry is read once and once more for each run of tokens;
    besides, each turn of its conversation that is served later reads it once: what remains of its
    reads says how long the answer was.
    """
    began = [
        (row, match)
        for row in rows
        if row["Phase"] == "Prefill" and (match := TURN.match(row["Key"]))
    ]
    reads = Counter(
        row["Key"] for row in rows if row["Operation"] == "Read" and row["Phase"] == "Decode"
    )
    remaining = Counter(match[1] for _, match in began)
    history: dict[str, int] = defaultdict(int)
    turns: Counter[str] = Counter()
    sessions: dict[str, int] = {}
    columns: list[tuple[int, int, int, int, int]] = []
    start = float(began[0][0]["Timestamp"])
    for row, match in began:
        conversation = match[1]
        remaining[conversation] -= 1
        own_reads = reads[row["Key"]] - remaining[conversation]
        tokens = int(row["Object_Size_Bytes"]) // bytes_per_token
        output = max(0, own_reads - 1) * DECODE_READ_TOKENS
        columns.append(
            (
                round((float(row["Timestamp"]) - start) * 1e9),
                history[conversation] + tokens,
                output,
                sessions.setdefault(conversation, len(sessions)),
                turns[conversation],
            )
        )
        history[conversation] += tokens + output
        turns[conversation] += 1
    arrival, inputs, outputs, session, turn = np.array(columns, dtype=np.int64).T
    none = np.zeros(len(columns) + 1, dtype=np.int64)
    origin = {"kind": "requests", "requests": len(columns), "block_tokens": 0}
    return Requests(
        *(
            arrival,
            inputs,
            outputs,
            none,
            none[:0],
            0,
            origin,
            ("told from a trace of the MLPerf benchmark",),
        ),
        session_id=session,
        turn=turn,
    )


def compare(path: Path) -> Iterator[tuple[str, str, Moved]]:
    """Yield the memory setting, who, and what was moved, for the program's trace at `path`."""
    gpu, cpu, seed = path.stem.split("-")
    memory = f"{gpu} / {cpu}"
    rows = their_rows(path)
    yield memory, "program", theirs(rows)
    users = ["--users", str(USERS), "--duration", DURATION, "--seed", seed]
    yield memory, "kvtrace", ours((gpu, cpu), *users)
    yield memory, "kvtrace, overlap", ours((gpu, cpu), *users, "--set", "workload.overlap=true")
    with tempfile.TemporaryDirectory() as folder:
        requests = Path(folder) / "requests.parquet"
        own_table.write(requests, served(rows), sys.argv, int(seed))
        yield memory, "kvtrace, its requests", ours((gpu, cpu), str(requests))


def print_table(folder: Path) -> None:
    """Print a table for all traces in `folder`: mean, least and most over the seeds."""
    found: dict[tuple[str, str], list[Moved]] = defaultdict(list)
    for path in sorted(folder.glob("*-*-*.csv")):
        for memory, who, moved in compare(path):
            found[memory, who].append(moved)
    names = [(tier, op) for tier in TIERS.values() for op in ("read", "write")]
    print("| GPU / CPU, GB | who | requests |" + "".join(f" {t} {op} |" for t, op in names))
    print("|" + "---|" * (3 + len(names)))
    for (memory, who), all_moved in sorted(found.items(), key=lambda item: item[0][0]):
        cells = [_spread([m.requests for m in all_moved])]
        cells += [_spread([m.bytes[name] / GIB for m in all_moved]) for name in names]
        print(f"| {memory} | {who} | " + " | ".join(cells) + " |")
    for (memory, who), all_moved in sorted(found.items(), key=lambda item: item[0][0]):
        cells = [_spread([m.operations[name] for m in all_moved]) for name in names]
        print(f"| {memory} | {who} | operations | " + " | ".join(cells) + " |")


def _spread(values: list[float]) -> str:
    if not any(values):
        return "0"
    return f"{statistics.fmean(values):.0f} ({min(values):.0f}-{max(values):.0f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("table").add_argument("folder", type=Path)
    told = verbs.add_parser("requests")
    told.add_argument("trace", type=Path)
    told.add_argument("output", type=Path)
    told.add_argument("--bytes-per-token", type=int, default=BYTES_PER_TOKEN)
    given = parser.parse_args()
    if given.verb == "table":
        print_table(given.folder)
    else:
        own_table.write(
            given.output, served(their_rows(given.trace), given.bytes_per_token), sys.argv, 0
        )
