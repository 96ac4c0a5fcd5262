"""A job of an object store beside a replay of its trace.

What the job asks for, and what the replay did.
"""

from __future__ import annotations

import json

import pytest
from conftest import run_cli, write_trace
from phrases import shows

from kvtrace.core.metadata import TierFacts

MIB = 1 << 20
SIZES = (1000, 5000, 5000, MIB)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """A trace of 60 PUTs, 90 GETs and 20 DELETEs in a second, and its replay by the clock on a
    directory.
    """
    folder = tmp_path_factory.mktemp("beside")
    ops = [("write", obj) for obj in range(60)]
    ops += [("read", obj % 60) for obj in range(90)] + [("delete", obj) for obj in range(20)]
    rows = [
        (i * 6_000_000, op, 0, "load", obj, 0, SIZES[obj % 4], None, None, 0)
        for i, (op, obj) in enumerate(ops)
    ]  # fmt: skip
    trace = write_trace(folder / "t.parquet", rows, tiers=[TierFacts("s3", 1 << 30)])
    (folder / "store").mkdir()
    run_cli("kvreplay", "run", trace, "--tier", f"s3={folder / 'store'}", "--buffered", "--speed", 1, "-o",
            folder / "run")  # fmt: skip
    return trace, folder / "run"


@pytest.mark.parametrize("command", ["warp", "sai3"])
def test_a_job_asks_for_what_the_replay_did(tmp_path, replayed, command):
    trace, run = replayed
    done = run_cli(
        "kvdistill", command, trace, "--tier", "s3", "-o", tmp_path, "--run", run, "--json"
    )
    beside = json.loads(done.stdout)["beside_run"]
    assert [beside[name] for name in ("gets", "puts", "deletes")] == [90, 60, 20]
    job, replay = beside["job"], beside["replay"]
    for name in ("get_share", "put_share", "delete_share"):
        assert job[name] == pytest.approx(replay[name], abs=0.001)
    assert beside["get_size_variation"] == pytest.approx(0, abs=0.02)
    assert job["get_mean_bytes"] == pytest.approx(replay["get_mean_bytes"], rel=0.05)
    # Deletes come last: the rate is of all that comes over all the time in which it does.
    assert job["ops_per_s"] == pytest.approx(170 / (169 * 0.006), rel=0.01)
    # The replay's last operation may be late on a busy machine, and never early.
    assert 0.5 < replay["ops_per_s"] / (170 / (169 * 0.006)) < 1.01
    shown = run_cli(
        "kvdistill", command, trace, "--tier", "s3", "-o", tmp_path, "--run", run, "--force"
    ).stdout
    assert "compared" in shown
    assert "90 GETs, 60 PUTs and 20 DELETEs" in shown


def test_a_job_of_a_part_is_compared_as_it_is(tmp_path, replayed):
    """Of a limited trace the job is another: the comparison shows it."""
    trace, run = replayed
    done = run_cli(
        "kvdistill",
        "sai3",
        trace,
        "--tier",
        "s3",
        "-o",
        tmp_path,
        "--run",
        run,
        "--json",
        "--limit",
        "80",
    )
    beside = json.loads(done.stdout)["beside_run"]
    assert beside["job"]["put_share"] == pytest.approx(60 / 80)
    assert beside["replay"]["put_share"] == pytest.approx(60 / 170)


def test_a_run_that_is_none_is_refused(tmp_path, replayed):
    trace, _ = replayed
    done = run_cli(
        "kvdistill",
        "warp",
        trace,
        "--tier",
        "s3",
        "-o",
        tmp_path,
        "--run",
        tmp_path / "no",
        check=False,
    )
    assert done.returncode == 2
    assert "--run" in done.stderr


@pytest.mark.parametrize("command", ["fio", "warp", "sai3"])
def test_jobs_that_are_there_are_replaced_if_that_is_said(tmp_path, replayed, command):
    trace, _ = replayed
    (tmp_path / "trace.txt").write_text("what else is there is no matter")
    made = ("kvdistill", command, trace, "--tier", "s3", "-o", tmp_path)
    run_cli(*made)
    before = (tmp_path / "profile.json").read_bytes()
    done = run_cli(*made, "--limit", "80", check=False)
    assert done.returncode == 4
    assert shows(done.stderr, "profile.json … --force")
    assert (tmp_path / "profile.json").read_bytes() == before
    run_cli(*made, "--limit", "80", "--force")
    assert (tmp_path / "profile.json").read_bytes() != before
