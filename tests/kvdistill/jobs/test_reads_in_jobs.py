"""Jobs and checks that hold reads, or say that they hold none."""

import json

import pytest
from conftest import run_cli, write_trace

from kvdistill.commands.fio import SimulatedSource
from kvdistill.jobs.check import checked_part
from kvdistill.jobs.job import IoLoad, expected_figures
from kvdistill.profile.sources import distil_source, first_read_ns
from kvtrace.core.limit import Limit

MS = 1_000_000
FILL = 40
"""Writes of 1 MiB, one a millisecond, before the first of as many reads."""


@pytest.fixture
def filled_first(tmp_path):
    writes = [(n * MS, "write", 2, "store", n, 0, 1 << 20, n, 0, 0) for n in range(FILL)]
    reads = [(n * MS, "read", 2, "load", n - FILL, 0, 1 << 20, n, 0, 0) for n in range(FILL, 80)]
    return write_trace(tmp_path / "t.parquet", writes + reads)


def test_the_first_read_at_or_after_a_time(filled_first):
    assert first_read_ns(filled_first, "nvme") == FILL * MS
    assert first_read_ns(filled_first, "nvme", 55 * MS) == 55 * MS
    assert first_read_ns(filled_first, "nvme", 100 * MS) is None


@pytest.mark.parametrize(
    ("limit", "reads", "writes"),
    [
        (Limit(span_ns=60 * MS), 20, 40),  # the first part holds reads
        (Limit(span_ns=10 * MS), 10, 0),  # it does not: the part begins with the first read
        (Limit(moved_bytes=20 << 20), 20, 0),
        (Limit(), 40, 40),
    ],
)
def test_a_check_covers_reads_if_the_source_has_any(filled_first, tmp_path, limit, reads, writes):
    whole = distil_source(filled_first, "nvme", Limit(), tmp_path)
    scratch = tmp_path / "part"
    scratch.mkdir()
    part, name = checked_part(whole, limit, scratch)
    assert (part.profile.read.ops, part.profile.write.ops) == (reads, writes)
    assert ("first read" in name) == (not writes)


def test_a_check_of_writes_alone_is_no_pass_of_the_read_share():
    writes_only = IoLoad(10.0, 1e6, 0.0, 0.0, 1.0, 0.5)
    mixed = IoLoad(10.0, 1e6, 0.5, 0.0, 1.0, 0.5)
    assert "read share" not in [
        figure.name for figure in expected_figures(writes_only, writes_only)
    ]
    assert "read share" in [figure.name for figure in expected_figures(mixed, mixed)]
    assert "read share" in [figure.name for figure in expected_figures(writes_only, mixed)]


def test_jobs_say_first_that_they_only_write(tmp_path):
    rows = [(n * MS, "write", 2, "store", n, 0, 1 << 20, n, 0, 0) for n in range(FILL)]
    write_trace(tmp_path / "t.parquet", rows)
    done = run_cli("kvdistill", "fio", "t.parquet", "--tier", "nvme", "-o", "jobs", cwd=tmp_path)
    assert done.stdout.startswith("WRITES ONLY")


def test_options_of_the_users_become_those_of_gen():
    given = SimulatedSource(preset="vllm", model="70b", tp=4, users=100, duration="5min")
    words = "--preset vllm --model 70b --tp 4 --users 100 --duration 5min"
    assert given.command_line() == words
    both = SimulatedSource(gen="--seed 3", preset="vllm")
    assert both.command_line() == "--seed 3 --preset vllm"
    assert SimulatedSource().command_line() is None


def test_a_trace_is_simulated_until_its_drive_is_read(tmp_path):
    users = ["--preset", "lmcache", "--model", "70b", "--tp", "1", "--users", "100"]
    done = run_cli("kvdistill", "fio", *users, "--mode", "stat", "-o", "jobs", cwd=tmp_path)
    profile = json.loads((tmp_path / "jobs" / "profile.json").read_text())
    assert profile["read"]["ops"] > 0
    # Five minutes and not one, in which nothing is read.
    assert profile["span_ns"] > 200e9
    assert "WRITES ONLY" not in done.stdout
    # A duration that is given is kept.
    short = run_cli(
        "kvdistill",
        "fio",
        *users,
        "--duration",
        "10s",
        "--mode",
        "stat",
        "-o",
        "short",
        cwd=tmp_path,
    )
    assert short.stdout.startswith("WRITES ONLY")


def test_a_drive_that_is_never_read_keeps_its_first_duration(tmp_path):
    users = ["--preset", "lmcache", "--model", "tiny-1b", "--users", "1", "--mode", "stat"]
    done = run_cli("kvdistill", "fio", *users, "-o", "jobs", cwd=tmp_path)
    profile = json.loads((tmp_path / "jobs" / "profile.json").read_text())
    assert done.stdout.startswith("WRITES ONLY")
    assert profile["span_ns"] < 60e9


def test_a_job_of_overloaded_gpus_says_so(tmp_path):
    load = ("--preset", "lmcache", "--model", "70b", "--tp", 4, "--duration", "20s")
    for users, is_said in ((1, False), (500, True)):
        done = run_cli("kvdistill", "fio", *load, "--users", users, "-o", tmp_path / f"{users}")
        assert ("GPU OVERLOADED" in done.stderr) == is_said
