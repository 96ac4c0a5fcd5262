"""Jobs for other tools from what is no trace.

A run's operations, block events, a profile, a probe.
"""

from __future__ import annotations

import json

import pytest
import zstandard
from conftest import run_cli
from kvdistill_rows import change_run, data_note, write_hand, write_run
from phrases import show_each, shows

COMMANDS = ("warp", "sai3")


def write(folder, command, source, *options):
    done = run_cli(
        "kvdistill", command, source, "-o", folder / command, *options, "--json", "--force"
    )
    return json.loads(done.stdout)


def test_a_run_gives_a_random_job_and_its_own_operations(tmp_path):
    run = write_run(tmp_path / "run", [500_000] * 10)
    result = write(tmp_path, "warp", run, "--csv")
    assert sorted(result["files"]) == sorted(f.name for f in (tmp_path / "warp").iterdir())
    raw = (tmp_path / "warp" / "oplog.csv.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().decompressobj().decompress(raw).decode().splitlines()
    header, *rows = [line.split("\t") for line in lines if not line.startswith("#")]
    assert len(rows) == 10
    assert {row[header.index("duration_ns")] for row in rows} == {"500000"}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_replayed_data_was_like_is_told_as_lost(tmp_path, command):
    run = write_run(tmp_path / "run", [500_000] * 10)
    for ratios, is_told in (((1, 1), False), ((1.25, 2), True)):
        change_run(run, data=data_note(*ratios))
        told = [line for line in write(tmp_path, command, run)["lost"] if "deduplicated" in line]
        assert show_each(told, ["1.25:1 … 2:1"] if is_told else [])


def test_a_profile_gives_the_same_workload_but_no_op_log(tmp_path):
    trace = write_hand(tmp_path)
    from_trace = write(tmp_path / "a", "sai3", trace, "--tier", "nvme")
    assert from_trace["log"] is not None
    profile = tmp_path / "a" / "sai3" / "profile.json"
    result = write(tmp_path / "b", "sai3", profile)
    assert result["log"] is None
    assert result["files"] == ["workload.yaml", "profile.json"]
    assert shows(result["lost"], "profile.json")
    one, other = ((tmp_path / d / "sai3" / "workload.yaml").read_text() for d in "ab")
    assert one == other
