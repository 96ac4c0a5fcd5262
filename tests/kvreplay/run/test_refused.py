"""A replay that cannot begin.

It is told before anything is made or measured, and leaves nothing for the next try.
"""

from __future__ import annotations

import pytest
from conftest import run_cli, write_trace
from phrases import Saying

GEN = "--users 1 --duration 1s --model tiny-1b"
COMMANDS = (
    ("run", "t.parquet"),
    ("run", "t.parquet", "--trials", "2"),
    ("compare", "t.parquet", "--against", "nvme=there"),
    ("sweep", "t.parquet"),
    ("sweep", "--gen", GEN),
    ("mlperf", "v3-8b"),
)


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_missing_target_is_told_before_anything_is_made(where, command):
    # A trace with no room on any drive: whoever reads it first says something else.
    write_trace(where / "t.parquet", [(0, "write", 2, "store", 0, 0, 1 << 41, 0, 0, 0)])
    done = run_cli("kvreplay", *command, "--tier", "nvme=nowhere", "-o", "out", check=False)
    said = done.stderr.splitlines()
    assert (done.returncode, said[-1]) == (
        4, Saying("kvreplay: error: nowhere: … mkdir nowhere"),
    )  # fmt: skip
    assert not any("virtual time" in line for line in said), "a trace was made"
    assert not (where / "out").exists()


def test_the_other_side_is_checked_before_the_first_is_measured(where):
    write_trace(where / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, 0, 0, 0)])
    sides = ("--tier", "nvme=there", "--against", "nvme=nowhere")
    done = run_cli("kvreplay", "compare", "t.parquet", *sides, "-o", "out", check=False)
    assert (done.returncode, "nowhere:" in done.stderr) == (4, True)
    assert not (where / "out").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("run", "t.parquet", "--trials", "2"),
        ("compare", "t.parquet", "--against", "nvme=there"),
        ("sweep", "t.parquet"),
        pytest.param(
            ("sweep", "--gen", f"{GEN} --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=0"),
            marks=pytest.mark.full,
        ),
        pytest.param(
            (
                "sweep",
                "--gen",
                f"{GEN} --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=0",
                "--users",
                "1,2",
            ),
            marks=pytest.mark.full,
        ),
    ],
    ids=" ".join,
)
def test_what_the_storage_refuses_leaves_nothing(where, command, monkeypatch):
    from kvreplay.tiers.files import FileTier
    from kvtrace.core.errors import DeviceError

    def refuse(self, _peak_bytes):
        raise DeviceError(f"{self.target}: no O_DIRECT there")

    monkeypatch.setattr(FileTier, "open", refuse)
    write_trace(where / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, 0, 0, 0)])
    (where / "other").mkdir()
    done = run_cli("kvreplay", *command, "--tier", "nvme=other", "-o", "out", check=False)
    assert (done.returncode, "no O_DIRECT there" in done.stderr) == (4, True), done.stderr
    assert not (where / "out").exists()
