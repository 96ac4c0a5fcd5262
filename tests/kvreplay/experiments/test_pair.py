"""Two sides in turn: who goes when, what is left behind, and what is said."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest
from conftest import run_cli, write_trace
from phrases import shows

from kvreplay.experiments import trials
from kvreplay.experiments.trials import run_pair
from kvreplay.plan.replay_config import Config
from kvreplay.run import replay as replaying
from kvtrace.core.errors import FailedOperations
from kvtrace.core.run.figures import Summary

ROWS = [(0, "write", 2, "store", 0, 0, 4096, 0, 0, 0), (0, "read", 2, "load", 0, 0, 4096, 1, 0, 0)]


@pytest.fixture
def places(tmp_path):
    write_trace(tmp_path / "t.parquet", ROWS)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path


def compare(where, *more):
    """Compare the drives `one` and `two`."""
    sides = ("--tier", "nvme=one", "--against", "nvme=two")
    return run_cli("kvreplay", "compare", "t.parquet", *sides, *more, cwd=where)


def test_the_sides_take_turns_and_are_compared(places):
    done = compare(places, "--trials", "3", "-o", "out", "--json")
    runs = [line.partition(":")[0] for line in done.stderr.splitlines() if line.startswith("out/")]
    assert runs == [
        f"out/{run}"
        for run in ("a/trial-1", "b/trial-1", "b/trial-2", "a/trial-2", "a/trial-3", "b/trial-3")
    ]
    found = json.loads(done.stdout)
    assert found["names"] == ["a", "b"]
    assert found["trials"] == [3, 3]
    assert shows(found["verdict"], "50.0 %")
    assert found["settings"]["tiers.nvme"] == ["one", "two"]
    assert len(json.loads((places / "out/b/trials.json").read_text())["runs"]) == 3


def test_the_folder_of_a_comparison_stands_for_its_sides(places):
    compare(places, "--trials", "2", "-o", "out")
    whole, sides = (
        json.loads(run_cli("kvdistill", "compare", *named, "--json", cwd=places).stdout)
        for named in (["out"], ["out/a", "out/b"])
    )
    assert whole == sides
    run_cli("kvdistill", "report", "out", "-o", "drives.md", cwd=places)
    run_cli("kvdistill", "report", "out/a", "out/b", "-o", "sides.md", cwd=places)
    pages = [(places / name).read_text() for name in ("drives.md", "sides.md")]
    assert pages[0] == pages[1].replace("sides.md", "drives.md")


def test_what_fails_on_one_side_is_not_said_of_the_other(places, monkeypatch):
    def replay(asked):
        done = replaying.replay(asked)
        return (
            replace(done, error=FailedOperations("one read"))
            if asked.output.parent.name == "b"
            else done
        )

    monkeypatch.setattr(
        trials.Trials.__init__,
        "__kwdefaults__",
        trials.Trials.__init__.__kwdefaults__ | {"replaying": replay},
    )
    one, two = (Config(tiers={"nvme": str(places / name)}) for name in ("one", "two"))
    asked = replaying.Replay(one, places / "t.parquet", places / "out", [])
    error = run_pair(asked, two, 2, on_trial=lambda *_: None)
    assert str(error) == "one read"
    said = [
        json.loads((places / "out" / side / "trials.json").read_text())["status"]
        for side in ("a", "b")
    ]
    assert said == ["complete", "failed operations"]


@pytest.mark.full
def test_that_nothing_was_read_is_said_first(places):
    done = compare(places, "--trials", "2", "--limit", "1", "-o", "out")
    assert shows(done.stdout.splitlines()[0], "writes only … nvme")
    first_row = ("t.parquet", "--tier", "nvme=one", "--limit", "1")
    alone = run_cli("kvreplay", "run", *first_row, "-o", "run", cwd=places)
    assert shows(alone.stdout.splitlines()[0], "writes only … nvme")
    all_rows = ("t.parquet", "--tier", "nvme=one", "--trials", "2")
    several = run_cli("kvreplay", "run", *all_rows, "-o", "several", cwd=places)
    assert shows(several.stdout.splitlines()[0], "50.0 %")


def test_memory_traffic_is_no_part_of_the_drives_reads(places):
    rows = [
        (0, "write", 1, "store", 0, 0, 4096, 0, 0, 0),
        (0, "read", 1, "load", 0, 0, 4096, 1, 0, 0),
        *((0, "write", 2, "store", i, 0, 1 << 20, 2, 0, 0) for i in range(1, 33)),
    ]
    write_trace(places / "both.parquet", rows)
    tiers = ("--tier", "cpu=ram", "--tier", "nvme=one")
    done = run_cli("kvreplay", "run", "both.parquet", *tiers, "-o", "run", "--json", cwd=places)
    summary = msgspec.convert(json.loads(done.stdout)["summary"], Summary)
    assert summary.judgement.tier == "nvme"
    assert shows(summary.mix, "writes only … nvme")


@pytest.mark.full
def test_two_models_are_compared_as_such_and_none_with_a_drive(places):
    models = (
        "--tier",
        "nvme=sim:bandwidth=4MB,latency=0s",
        "--against",
        "nvme=sim:bandwidth=1MB,latency=0s",
    )
    write_trace(
        places / "t.parquet", [(0, "write", 2, "store", i, 0, 4096, 0, 0, 0) for i in range(100)]
    )
    arguments = ("compare", "t.parquet", *models, "--trials", "2", "-o", "out")
    done = run_cli("kvreplay", *arguments, cwd=places)
    first = done.stdout.splitlines()[0]
    assert shows(first, "SIMULATED; b … 300 % … p99 [300, 300] … 75 %")
    done = run_cli(
        "kvreplay",
        "compare",
        "t.parquet",
        *models[:2],
        "--against",
        "nvme=two",
        "-o",
        "mixed",
        cwd=places,
    )
    assert shows(done.stdout, "SIMULATED: a")


def test_a_drive_is_not_compared_with_itself(places):
    done = run_cli(
        "kvreplay",
        "compare",
        "t.parquet",
        "-t",
        "nvme=one",
        "--against",
        "nvme=one",
        cwd=places,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert shows(done.stderr, "--against … --tier")
