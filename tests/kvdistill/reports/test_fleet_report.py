"""The report of a fleet's trace.

Its figures first, and nothing told of several drives as if they were one.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from simulated import kvtrace

from kvdistill.profile.sources import distil_source
from kvdistill.reports.output import report
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

GEN = (
    "gen",
    "--preset",
    "lmcache-disk",
    "--model",
    "tiny-1b",
    "--users",
    8,
    "--duration",
    "5s",
    "--nodes",
    4,
)


def made(monkeypatch, tmp_path, capsys, *more):
    path = tmp_path / "t.parquet"
    assert kvtrace(monkeypatch, *GEN, *more, "--json", "-o", path, "--force") == 0
    return path, json.loads(capsys.readouterr().out)


def test_a_fleet_comes_first_and_node_by_node(monkeypatch, tmp_path, capsys):
    path, summary = made(monkeypatch, tmp_path, capsys, "--set", "tiers.nvme.scope=fleet")
    found = report(path)
    document = found.document()
    fleet = summary["stats"]["fleet"]
    assert msgspec.to_builtins(found.fleet) == fleet
    assert "4 nodes, router round-robin" in document.headline
    whole, nodes = document.chapters[0].tables
    assert document.chapters[0].title == "Fleet"
    assert [row[0] for row in nodes.rows] == ["0", "1", "2", "3"]
    assert [row[1] for row in nodes.rows] == fleet["by_node"]["requests"]
    assert sum(fleet["by_node"]["lookups"]) == summary["stats"]["lookups"]
    assert whole.rows[0][1].value == fleet["hit_ratio"]
    # What is live in a tier of each node's own is not told as of one tier; in the shared one it is.
    assert [tier["end_live_bytes"] is None for tier in found.tiers] == [True, True, False]
    assert found.tiers[-1]["end_live_bytes"] == summary["stats"]["tiers"][-1]["live_bytes"]


def test_wear_is_of_each_drive(monkeypatch, tmp_path, capsys):
    drive = ("--drive-size", "1TB", "--set", "tiers.nvme.capacity=1TB")
    path, summary = made(monkeypatch, tmp_path, capsys, *drive)
    written = summary["stats"]["tiers"][-1]["written_bytes"]
    (worn,) = summary["endurance"]
    assert worn["instances"] == 4
    row = next(row for row in report(path).writes_per_day if row["tier"] == "nvme")
    assert row["capacity_bytes"] == 4 * 10**12
    assert row["capacity_writes_per_day"] == row["written_bytes_per_day"] / (4 * 10**12)
    _, shared = made(monkeypatch, tmp_path, capsys, *drive, "--set", "tiers.nvme.scope=fleet")
    assert "instances" not in shared["endurance"][0]
    assert report(path).writes_per_day[-1]["capacity_bytes"] == 10**12
    assert shared["stats"]["tiers"][-1]["written_bytes"] <= written


@pytest.mark.full
def test_jobs_of_one_node_and_of_what_all_share(monkeypatch, tmp_path, capsys):
    path, _ = made(monkeypatch, tmp_path, capsys)
    found = []
    for node in range(4):
        profile = distil_source(path, f"nvme@{node}", Limit(), tmp_path).profile
        rows = [
            row
            for row in rows_of(path)
            if (row["tier"], row["node"]) == (2, node) and row["op"] == "write"
        ]
        assert profile.write.object_bytes == sum(row["length_bytes"] for row in rows) > 0
        found.append(profile)
    for wrong, said in (
        ("nvme", "nvme@0"),
        ("nvme@4", "has 4 instances"),
        ("nvme@x", "no tier"),
    ):
        with pytest.raises(ConfigError, match=said):
            distil_source(path, wrong, Limit(), tmp_path)
    path, _ = made(monkeypatch, tmp_path, capsys, "--set", "tiers.nvme.scope=fleet")
    shared = distil_source(path, "nvme", Limit(), tmp_path).profile
    assert shared.tier == "nvme"
    with pytest.raises(ConfigError, match="all nodes"):
        distil_source(path, "nvme@0", Limit(), tmp_path)


def rows_of(path):
    return [row for batch in open_table(path, TRACE).batches() for row in batch.to_pylist()]
