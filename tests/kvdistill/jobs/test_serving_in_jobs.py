"""What every job and report of a trace says of how long computing took.

Without it, its rates mean nothing.
"""

from __future__ import annotations

import pytest
from conftest import run_cli
from phrases import shows


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trace")
    options = ["--preset", "lmcache-disk", "--model", "tiny-1b", "--users", 2, "--duration", "20s"]
    tight = ["--set", "tiers.gpu.capacity=100MiB", "--set", "tiers.cpu.capacity=200MiB"]
    run_cli("kvtrace", "gen", *options, *tight, "-o", folder / "t.parquet")
    return folder / "t.parquet"


def said_in(text):
    """Return `text` without comment signs, in one line."""
    return " ".join(text.replace("#", " ").split())


MODELLED = "h100 x 1 … 70% … 70%"


@pytest.mark.parametrize(
    ("command", "files"),
    [("fio", ["replay.fio", "stat.fio"]), ("warp", ["mixed.yml"]), ("sai3", ["workload.yaml"])],
)
def test_jobs_say_how_long_computing_took(tmp_path, trace, command, files):
    run_cli("kvdistill", command, trace, "--tier", "nvme", "-o", tmp_path / "out")
    for name in files:
        assert shows(said_in((tmp_path / "out" / name).read_text()), MODELLED)


def test_reports_say_how_long_computing_took(tmp_path, trace):
    run_cli("kvdistill", "report", trace, "-o", tmp_path / "r.md")
    assert shows(said_in((tmp_path / "r.md").read_text()), MODELLED)


def test_jobs_say_that_they_carry_no_streams(tmp_path):
    options = [
        "--preset",
        "lmcache-disk",
        "--model",
        "tiny-1b",
        "--users",
        2,
        "--duration",
        "5s",
        "--gpu",
        "instant",
    ]
    small = ["--set", "tiers.gpu.capacity=0", "--set", "tiers.cpu.capacity=64MiB"]
    for streams in ("none", "phase"):
        trace, out = tmp_path / f"{streams}.parquet", tmp_path / streams
        run_cli(
            "kvtrace",
            "gen",
            *options,
            *small,
            "--set",
            f"tiers.nvme.streams={streams}",
            "-o",
            trace,
        )
        run_cli(
            "kvdistill",
            "fio",
            trace,
            "--tier",
            "nvme",
            "-o",
            out,
            "--mode",
            "replay",
            "--mode",
            "stat",
        )
        for name in ("replay.fio", "stat.fio"):
            said = said_in((out / name).read_text())
            assert ("stream" in said) == (streams == "phase")
