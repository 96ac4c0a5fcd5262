"""What a trace costs a month, and how it wears a drive, by plain arithmetic over its rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from conftest import run_cli
from whole import read_table

from kvtrace.core.schema import TRACE

if TYPE_CHECKING:
    from pathlib import Path

MONTH_S, DAY_S = 365 * 86400 / 12, 86400
REQUESTS, GAP_MS = 40, 50


def overloaded(folder: Path) -> Path:
    """Write a log of prompts that arrive within 2 s, and take one GPU far longer to compute."""
    path = folder / "r.jsonl"
    lines = [
        {
            "timestamp": GAP_MS * i,
            "input_length": 16 * 512,
            "output_length": 4,
            "hash_ids": list(range(16 * i, 16 * i + 16)),
        }
        for i in range(REQUESTS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("preset", ["lmcache-s3", "lmcache-disk"])
def test_a_month_refers_to_arrivals_not_to_the_drain(tmp_path: Path, preset: str) -> None:
    trace = tmp_path / "t.parquet"
    done = run_cli(
        "kvtrace", "gen", overloaded(tmp_path), "--source", "mooncake", "--preset", preset,
        "--model", "llama3.1-8b", "--gpu", "l40s", "--set", "tiers.nvme.capacity=100GB",
        "-o", trace, "--json",
    )  # fmt: skip
    summary = json.loads(done.stdout)
    rows = read_table(trace, TRACE).to_pylist()
    arrivals_s = (REQUESTS - 1) * GAP_MS / 1000
    assert rows[-1]["ts_ns"] / 1e9 > 5 * arrivals_s, "the GPU does not keep up"
    tiers = [tier["name"] for tier in summary["stats"]["tiers"]]
    if preset == "lmcache-s3":
        (cost,) = summary["costs"]
        puts = sum(row["op"] == "write" and row["tier"] == tiers.index("s3") for row in rows)
        assert cost["puts_per_month"] == pytest.approx(puts * MONTH_S / arrivals_s, rel=1e-6)
    else:
        written = sum(
            row["length_bytes"] for row in rows
            if row["op"] == "write" and row["tier"] == tiers.index("nvme")
        )  # fmt: skip
        (wear,) = (tier for tier in summary["endurance"] if tier["name"] == "nvme")
        daily = next(value for key, value in wear.items() if "day" in key and "bytes" in key)
        assert daily == pytest.approx(written * DAY_S / arrivals_s, rel=1e-6)


def test_a_link_between_nodes_costs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "t.parquet"
    done = run_cli(
        "kvtrace", "gen", overloaded(tmp_path), "--source", "mooncake", "--preset", "lmcache-s3",
        "--model", "llama3.1-8b", "--nodes", "3", "--set", "fleet.prefill_nodes=1",
        "-o", trace, "--json",
    )  # fmt: skip
    summary = json.loads(done.stdout)
    rows = read_table(trace, TRACE).to_pylist()
    tiers = [tier["name"] for tier in summary["stats"]["tiers"]]
    assert sum(row["tier"] == len(tiers) for row in rows) > 1000, "rows of the link"
    puts = sum(row["op"] == "write" and row["tier"] == tiers.index("s3") for row in rows)
    (cost,) = summary["costs"]
    arrivals_s = (REQUESTS - 1) * GAP_MS / 1000
    assert cost["puts_per_month"] == pytest.approx(puts * MONTH_S / arrivals_s, rel=1e-6)
