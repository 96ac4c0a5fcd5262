"""The command on a scratch folder.

A locked option for one second, its files, its marks and its refusals.
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, run_cli
from openpyxl import load_workbook
from phrases import Saying, shows

if TYPE_CHECKING:
    from pathlib import Path

MARK = "not a submission: 1.00 s … 300 s, 1 trial … 3 … 3.22 GB"
SHORT = ("--duration", "1s", "--trials", "1", "--capacity", "3GiB", "--queue-depth", "16")


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    (tmp_path / "drive").mkdir()
    return tmp_path / "drive"


def test_a_shortened_run_leaves_three_forms_that_say_so(drive, tmp_path):
    out = tmp_path / "r"
    arguments = ["mlperf", "v3-8b", "--tier", f"nvme={drive}", "-o", out, *SHORT, "--break-rules"]
    file = ROOT / "examples" / "drive.json"
    done = run_cli("kvreplay", *arguments, "--drive", file)
    first = done.stdout.splitlines()[0]
    assert first.startswith("v3-8b-stress: ")
    assert shows(first, MARK)
    assert shows(done.stdout.splitlines()[2], "a submission; device P95")
    assert "3.22 GB" in done.stderr
    kept = json.loads((out / "mlperf.json").read_text())
    assert (kept["mark"], kept["answer"], kept["status"]) == (Saying(MARK), first, "complete")
    assert first.endswith(kept["mark"])
    (client,), (trial,) = kept["clients"], kept["clients"][0]["trials"]
    assert (client["seed"], client["capacity_bytes"], trial["run"]) == (
        42,
        3 << 30,
        "trials/trial-1",
    )
    run = json.loads((out / trial["run"] / "run.json").read_text())
    # The trace is the option's, with its users, seed and memory, and writes are synced as the
    # benchmark's are.
    assert run["trace"]["metadata"]["config"]["users"] == 200
    assert (run["trace"]["metadata"]["seed"], run["config"]["fsync"]) == (42, "close")
    written = sum(
        f["bytes"] for f in run["summary"]["figures"] if (f["tier"], f["op"]) == ("nvme", "write")
    )
    rate = written / (1 << 30) / (run["summary"]["wall_ns"] / 1e9)
    assert trial["summary"]["cache_stats"]["tier_storage_write_bandwidth_gbps"] == pytest.approx(
        rate
    )
    assert kept["aggregated"]["aggregated_write_bandwidth_gbps"] == pytest.approx(rate)
    assert kept["aggregated"]["aggregated_device_read_p95_ms"] is None
    # What the drive file expects is said before the trial, and its error beside what came.
    column = "Tier Storage Write Bandwidth (GiB/s)"
    expected, over = kept["expected"]["row"][column], kept["expected"]["over_measured"][column]
    assert over == pytest.approx(expected / rate)
    assert f"{file} predicts" in done.stderr.partition("trials/trial-1")[0]
    assert f"({over:.2f} of measured)" in done.stdout.splitlines()[1]
    # The names of the benchmark's export, in all three.
    columns = json.loads((ROOT / "tests" / "golden" / "mlperf" / "export.json").read_text())[
        "columns"
    ]
    with (out / "mlperf.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(columns) <= set(rows[0])
    assert [row["Run"] for row in rows] == ["rank 0, trials/trial-1", "aggregate (Rules.md 6.3.4)"]
    assert {row["Note"] for row in rows} == {kept["mark"]}
    book = load_workbook(out / "mlperf.xlsx")
    assert [cell.value for cell in book["Summary"][1]] == list(rows[0])
    assert book["Summary"].cell(2, len(rows[0])).value == kept["mark"]
    assert {row[0].value for row in book["Performance Metrics"].iter_rows(min_row=2)} >= set(
        columns
    )
    again = run_cli("kvreplay", *arguments, check=False)
    assert (again.returncode, "not empty" in again.stderr) == (4, True)
    # What a killed one left is written over, its trace included.
    (out / "mlperf.json").unlink()
    again = run_cli("kvreplay", *arguments, "--force").stdout.splitlines()[0]
    assert shows(again, MARK)


def test_a_dry_run_says_space_and_rules_and_writes_nothing(drive, tmp_path):
    out = tmp_path / "r"
    arguments = ["mlperf", "v3", "--tier", f"nvme={drive}", "-o", out, "--dry-run"]
    shown = run_cli("kvreplay", *arguments).stdout
    assert shows(shown, f"v3-8b-stress: … 3 trials … 300 s on {drive}; not a submission")
    assert "v3-70b: would run" in shown
    found = json.loads(run_cli("kvreplay", *arguments, "--json").stdout)
    rules = {rule["rule"]: rule["kept"] for rule in found[0]["rules"]}
    assert [kept for rule, kept in rules.items() if "filesystems" in rule] == ["not kept"]
    assert [kept for rule, kept in rules.items() if "all options" in rule] == ["kept"]
    assert not out.exists()
    assert not any(drive.iterdir())


def test_a_refusal_is_one_line_before_anything_is_written(drive, tmp_path):
    out, tier = tmp_path / "r", f"nvme={drive}"
    for arguments, code, said in (
        (
            ["v3-8b", "--tier", tier],
            2,
            "6.4.1",
        ),
        (["v4-8b", "--tier", tier], 2, "'v4-8b' … v3-8b"),
        (["v3-70b"], 2, "--tier nvme=TARGET"),
        (["v3-70b", "--tier", "nvme=sim"], 2, "a directory"),
        (
            ["v3-70b", "--tier", tier, "--capacity", "900PB"],
            2,
            "--capacity",
        ),
        (["v3-70b", "--tier", tier, "--duration", "0s"], 2, "--duration 0s: … 0"),
        (["v3-70b", "--tier", "nvme=/nowhere/at/all"], 4, "make it"),
    ):
        refused = run_cli("kvreplay", "mlperf", *arguments, "-o", out, check=False)
        assert refused.returncode == code, refused.stderr
        assert shows(refused.stderr, said)
        assert refused.stderr.splitlines()[-1].startswith("kvreplay: error: ")
        assert not out.exists()
        assert not any(drive.iterdir())
