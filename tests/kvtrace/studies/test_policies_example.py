"""The study of policies that ships: its rows are what gen says, and its bound what size says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import run_cli
from whole import read_table

from kvtrace.core.schema import STUDY

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("policies")
    made = run_cli(
        "kvtrace",
        "study",
        "examples/policies.toml",
        "-o",
        out,
        "--workers",
        "2",
        "--json",
        cwd=ROOT,
    )
    found = json.loads(made.stdout)
    commands = [row["command"] for row in read_table(out / "results.parquet", STUDY).to_pylist()]
    return found["rows"], commands


def test_rows_are_what_gen_says(done, tmp_path):
    rows, commands = done
    assert (len(rows), {row["error"] for row in rows}) == (30, {None})
    for row, command in list(zip(rows, commands, strict=True))[3::7]:
        made = json.loads(
            run_cli(
                *command.split(), "-o", tmp_path / "t.parquet", "--json", "--force", cwd=ROOT
            ).stdout
        )
        stats, [wear] = made["stats"], made["endurance"]
        assert row["hit_ratio"] == sum(tier["hits"] for tier in stats["tiers"]) / stats["lookups"]
        assert row["first_token"]["with_cache"] == stats["first_token"]["with_cache"]
        nvme = row["tiers"][-1]
        assert nvme["written_bytes"] == stats["tiers"][-1]["written_bytes"]
        # A study reckons to the last event, gen to the last request.
        assert nvme["drive_writes_per_day"] == pytest.approx(wear["drive_writes_per_day"], rel=1e-3)
        assert nvme["life_years"] == pytest.approx(wear["years_of_life"], rel=1e-3)


def test_the_bound_is_that_of_size_and_nothing_exceeds_it(done):
    rows, _ = done
    assert all(row["hit_ratio"] <= row["optimal_hit_ratio"] for row in rows)
    bounds = {row["knobs"]["tiers.nvme.capacity"]: row["optimal_hit_ratio"] for row in rows}
    # Filters and policies do not change it.
    assert (
        len({(row["knobs"]["tiers.nvme.capacity"], row["optimal_hit_ratio"]) for row in rows}) == 3
    )
    size = run_cli(
        *("kvtrace", "size", "examples/conversation.jsonl", "--preset", "vllm-fs", "--model", "llama3.1-70b"),
        *("--tp", "4", "--set", "tiers.gpu.capacity=16GiB", "--dram", "16GiB", "--nvme", "32GiB,64GiB,128GiB"),
        *("--sample", "1", "--target-hit", "1%", "--json"), cwd=ROOT,
    )  # fmt: skip
    found = [point["optimal_hit_ratio"] for point in json.loads(size.stdout)["points"]]
    assert found == [bounds[capacity] for capacity in ("32GiB", "64GiB", "128GiB")]


def test_what_knows_sessions_hits_more_and_wears_less(done):
    rows, _ = done
    knobs = ("recency", "capacity", "admission")
    lru = [
        row
        for row in rows
        if row["knobs"]["tiers.nvme.policy"] == "lru" and not row["knobs"].get("tiers.cpu.policy")
    ]
    by = {tuple(row["knobs"].get(f"tiers.nvme.{name}") for name in knobs): row for row in lru}
    for capacity in ("64GiB", "128GiB"):
        aware, plain = (by[recency, capacity, "always"] for recency in ("tail-first", "head-first"))
        assert aware["hit_ratio"] > plain["hit_ratio"]
        assert aware["tiers"][-1]["life_years"] > plain["tiers"][-1]["life_years"]
