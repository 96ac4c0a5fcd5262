"""The mlperf preset against the benchmark's own program.

The requests that it served move the same bytes in each tier.

`tests/golden/mlperf/program.json` holds, of three of its runs, what was asked and what each tier
moved; the bench `mlperf_beside.py` tells both from the program's traces.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import run_cli

from kvtrace.requests import own_table
from kvtrace.requests.requests import Requests

PROGRAM = json.loads((Path(__file__).parents[2] / "golden" / "mlperf" / "program.json").read_text())
TIERS = ("gpu", "cpu", "nvme")


def requests_of(run) -> Requests:
    columns = np.array(run["requests"], dtype=np.int64).T
    arrival_us, session, turn, inputs, outputs = (
        np.ascontiguousarray(column) for column in columns
    )
    none = np.zeros(len(inputs) + 1, dtype=np.int64)
    origin = {"kind": "requests", "requests": len(inputs), "block_tokens": 0}
    return Requests(
        arrival_us * 1000,
        inputs,
        outputs,
        none,
        none[:0],
        0,
        origin,
        (),
        session_id=session,
        turn=turn,
    )


def moved(trace: Path) -> dict[str, list[int]]:
    found = {f"{tier} {op}": [0, 0] for tier in TIERS for op in ("read", "write")}
    counted = (
        pq.read_table(trace)
        .group_by(["tier", "op"])
        .aggregate([([], "count_all"), ("length_bytes", "sum")])
    )
    for row in counted.to_pylist():
        if row["op"] != "delete":
            found[f"{TIERS[row['tier']]} {row['op']}"] = [row["count_all"], row["length_bytes_sum"]]
    return found


@pytest.mark.parametrize(
    "run", PROGRAM["runs"], ids=lambda run: f"{run['model']}, {run['gpu_gib']}-{run['cpu_gib']}"
)
def test_the_programs_requests_move_what_it_moved(tmp_path, run):
    requests, trace = tmp_path / "requests.parquet", tmp_path / "t.parquet"
    own_table.write(requests, requests_of(run), [], 0)
    memory = [f"tiers.{tier}.capacity={run[f'{tier}_gib']}GiB" for tier in ("gpu", "cpu")]
    knobs = [part for setting in memory for part in ("--set", setting)]
    run_cli(
        "kvtrace",
        "gen",
        requests,
        "--preset",
        "mlperf",
        "--model",
        run["model"],
        *knobs,
        "-o",
        trace,
    )
    assert moved(trace) == run["moved"]
    assert sum(operations for operations, _ in moved(trace).values()) > 200
