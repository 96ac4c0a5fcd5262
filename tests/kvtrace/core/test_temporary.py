"""Temporary names: whose they are, what is removed of them, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import write_trace

from kvtrace.core import temporary
from kvtrace.core.files import aside, write_text
from kvtrace.core.temporary import (
    TemporaryFolder,
    host_digest,
    start_ticks,
    sweep,
    temporary_folder,
    temporary_name,
)

MAKES = """
import os, signal, sys
from pathlib import Path
from kvtrace.core.temporary import temporary_file, temporary_folder
place = Path(sys.argv[1])
with temporary_folder(".kvdistill-", place) as folder, temporary_file(place / "report.html"):
    (folder / "spill").write_text("x")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test look at its folders for the first time."""
    monkeypatch.setattr(temporary, "_swept", set())


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def owner(pid: int, start: int | None, host: str | None = None) -> str:
    return f"{host_digest() if host is None else host}-{pid}-{start}"


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path):
    subprocess.run([sys.executable, "-c", MAKES, tmp_path], check=False)
    assert len(names(tmp_path)) == 2
    write_text(tmp_path / "other.txt", "text")
    assert names(tmp_path) == ["other.txt"]


def test_names_of_others_stay(tmp_path):
    dead = 2**22 + 1
    own = owner(os.getpid(), start_ticks(os.getpid()))
    kept = [
        f".kvdistill-{own}-7",
        f".t.parquet.{own}.tmp",
        f".t.parquet.{owner(1, start_ticks(1))}.tmp",
        f".t.parquet.{owner(dead, 5, host='00000000')}.tmp",
        f".t.parquet.{dead}.tmp",
        f".kvdistill-{dead}",
        ".kvdistill-abcdefgh",
        f"{owner(dead, 5)}.tmp",
        "t.parquet",
    ]
    gone = [
        f".t.parquet.{owner(dead, 5)}.tmp",
        f".kvdistill-{owner(dead, 5)}-0",
        f"kvreplay-{owner(dead, 5)}-12",
        # The number belongs to another process by now.
        f".t.parquet.{owner(os.getpid(), 1)}.tmp",
    ]
    for name in (*kept, *gone):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert names(tmp_path) == sorted(kept)


def test_a_link_in_place_of_a_folder_loses_the_link_alone(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (tmp_path / f".kvdistill-{owner(2**22 + 1, 5)}-0").symlink_to(tmp_path / "precious")
    sweep(tmp_path)
    assert names(tmp_path) == ["precious"]
    assert names(tmp_path / "precious") == ["file"]


def test_a_link_in_place_of_a_temporary_name_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    temporary_name(tmp_path / "out.txt").symlink_to(precious)
    write_text(tmp_path / "out.txt", "new")
    assert precious.read_text() == "precious"
    assert (tmp_path / "out.txt").read_text() == "new"
    assert not (tmp_path / "out.txt").is_symlink()
    assert names(tmp_path) == ["out.txt", "precious"]


def test_a_hard_link_in_place_of_a_temporary_name_is_replaced(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    temporary_name(tmp_path / "out.txt").hardlink_to(precious)
    write_text(tmp_path / "out.txt", "new")
    assert precious.read_text() == "precious"


def test_a_long_name_has_a_temporary_name(tmp_path):
    for name in ("n" * 255, "\N{PILE OF POO}" * 63):
        with aside(tmp_path / name) as path:
            path.write_text("x")
        assert (tmp_path / name).read_text() == "x"


def test_folders_go_with_their_owner(tmp_path):
    with (
        temporary_folder(".check-", tmp_path) as first,
        temporary_folder(".check-", tmp_path) as second,
    ):
        assert first != second
        assert first.stat().st_mode & 0o777 == 0o700
    folder = TemporaryFolder("kvtrace-", tmp_path)
    assert folder.path.is_dir()
    folder.remove()
    del folder
    assert names(tmp_path) == []


def test_all_that_is_live_is_removed_at_once(tmp_path):
    with temporary_folder(".check-", tmp_path) as folder, aside(tmp_path / "out.txt"):
        (folder / "file").touch()
        temporary.remove_live()
        assert names(tmp_path) == []
        (tmp_path / temporary_name(tmp_path / "out.txt").name).touch()


@pytest.mark.parametrize("moment_s", [0.6, 0.9])
def test_a_killed_command_leaves_nothing_behind_the_next(tmp_path, moment_s):
    rows = [(i * 1000, "write", 2, "store", i, 0, 4096, None, None, 0) for i in range(30_000)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    command = ["-m", "kvdistill.cli", "fio", trace, "--tier", "nvme", "-o", tmp_path / "out"]
    with subprocess.Popen([sys.executable, *map(str, command)]) as process:
        time.sleep(moment_s)
        process.kill()
    subprocess.run([sys.executable, *command, "--force"], check=True, capture_output=True)
    assert [name for name in names(tmp_path / "out") if name.startswith(".")] == []
