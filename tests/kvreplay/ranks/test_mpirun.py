"""Ranks as processes that mpirun starts.

A common clock, and what becomes of a run whose ranks die or stand still.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import run_cli, write_trace
from phrases import shows
from ranks import start_ranks
from waiting import rows_in, wait_for

from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, RankNote, RanksNote, RunFile, read_run

pytestmark = [pytest.mark.mpi, pytest.mark.full]
MS = 1_000_000
AHEAD_S = 3600
TIMEOUT_S = 600
"""Of a hang: the machine may be busy."""


def trace(tmp_path: Path, span_s: float, count: int = 400) -> Path:
    rows = []
    for request in range(count):
        ts = int(request * span_s * 1e9 / count)
        rows += [
            (ts, op, 2, "load", request, 0, 8192, request, at, 0)
            for at, op in enumerate(("write", "read"))
        ]
    return write_trace(tmp_path / "t.parquet", rows)


def start(
    tmp_path: Path, count: int, *options: object, span_s: float = 300, **kwargs: Any
) -> subprocess.Popen[str]:
    path = trace(tmp_path, span_s)
    return start_ranks(
        count, "run", path, "--mpi", "--tier", "nvme=ram", "-o", tmp_path / "run", *options, **kwargs
    )  # fmt: skip


def pids(tmp_path: Path, rank: int) -> tuple[int, int]:
    """Return the process of `rank` that replays, and the one beside it, by the journal that the
    first holds open.
    """
    journal = str(tmp_path / "run" / f"rank-{rank:04d}" / PARTIAL_OPS_FILE)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(fd.readlink()) for fd in (process / "fd").iterdir()]
            if journal in opened:
                return int(process.name), int(
                    (process / "stat").read_text().rpartition(")")[2].split()[1]
                )
        except OSError:
            continue
    raise AssertionError(f"no process holds {journal} open")


def wait_until_under_way(process: subprocess.Popen[str], tmp_path: Path, ranks: int) -> None:
    """Return when every rank has measured something and kept it."""
    journals = [tmp_path / "run" / f"rank-{rank:04d}" / PARTIAL_OPS_FILE for rank in range(ranks)]

    def all_have_some() -> bool:
        return all(map(rows_in, journals))

    wait_for(process, all_have_some, "the ranks to measure something")


def ended(process: subprocess.Popen[str], tmp_path: Path) -> tuple[int, RunFile, list[RankNote]]:
    """Return the code that mpirun left with, the run of all ranks, and what it says of each."""
    process.communicate(timeout=TIMEOUT_S)
    until = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "run" / "run.json").is_file():
        # Ranks outlive a launcher that kills them, and write what they have.
        assert time.monotonic() < until, "no run.json"
        time.sleep(0.05)
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    return process.returncode, run, run.ranks.ranks


def has_time_namespaces() -> bool:
    probe = ["unshare", "--time", "--monotonic", "1", "--fork", "true"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.root
def test_four_ranks_begin_together_though_their_clocks_differ(tmp_path):
    if not has_time_namespaces():
        pytest.skip("no time namespaces here (unshare --time)")
    ahead = f"exec unshare --time --monotonic {AHEAD_S} --boottime {AHEAD_S} --fork"
    wrapper = [
        "sh",
        "-c",
        f'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then {ahead} "$@"; else exec "$@"; fi',
        "-",
    ]
    code, run, ranks = ended(start(tmp_path, 4, wrapper=wrapper), tmp_path)
    assert code == 0
    assert run.status == "complete"
    assert run.summary.operations == 800
    assert [rank.operations for rank in ranks] == [200] * 4
    for rank in ranks:
        # What is stated as the error of an offset holds: the true one is known here.
        true_ns = AHEAD_S * 10**9 if rank.rank == 2 else 0
        assert abs((rank.clock_offset_ns or 0) - true_ns) <= (rank.clock_error_ns or 0)
        assert (rank.clock_error_ns or 0) < 100 * MS
        assert rank.begun_late_ns is not None
    assert isinstance(run.ranks, RanksNote)
    assert run.ranks.library is not None
    assert "Open MPI" in run.ranks.library
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert shows(shown.splitlines()[1], "4 ranks: nvme")


def test_a_killed_rank_ends_the_run_and_keeps_all_measurements(tmp_path):
    process = start(tmp_path, 2, "--speed", 1)
    wait_until_under_way(process, tmp_path, 2)
    os.kill(pids(tmp_path, 1)[0], signal.SIGKILL)
    code, run, ranks = ended(process, tmp_path)
    assert code == 8
    assert run.status == "partial"
    assert shows(run.reason, "interrupted … rank 1 (SIGKILL)")
    assert [rank.status for rank in ranks] == ["partial", "lost"]
    assert all((rank.operations or 0) > 0 for rank in ranks)
    assert run.summary.operations == sum(rank.operations or 0 for rank in ranks)
    assert run.summary.verdict.startswith("rank 1 of 2 LOST; ")


@pytest.mark.parametrize("whom", ["rank 1", "all"])
def test_ranks_outlive_their_launcher_and_write_their_parts(tmp_path, whom):
    process = start(tmp_path, 2, "--speed", 1)
    wait_until_under_way(process, tmp_path, 2)
    if whom == "all":
        process.send_signal(signal.SIGINT)
    else:
        os.kill(pids(tmp_path, 1)[1], signal.SIGKILL)
    code, run, ranks = ended(process, tmp_path)
    assert code != 0
    assert run.status == "partial"
    named = r"the exit of rank 1's MPI process" if whom == "rank 1" else "SIG"
    assert named in (run.reason or "")
    assert [rank.status for rank in ranks] == ["partial", "partial"]
    assert all((rank.operations or 0) > 0 for rank in ranks)


def test_a_stalled_rank_is_named_and_given_up_after_a_timeout(tmp_path):
    process = start(tmp_path, 2, "--speed", 1, span_s=3)
    wait_until_under_way(process, tmp_path, 2)
    slow = pids(tmp_path, 1)[0]
    os.kill(slow, signal.SIGSTOP)
    time.sleep(5)
    os.kill(slow, signal.SIGCONT)
    code, run, ranks = ended(process, tmp_path)
    assert code == 0
    assert run.status == "complete"
    assert (ranks[1].stood_still_ns or 0) > 1000 * MS
    assert isinstance(run.ranks, RanksNote)
    assert run.ranks.straggler is not None
    assert run.ranks.straggler.rank == 1
    assert "did not run" in run.ranks.straggler.reason
    process = start(tmp_path, 2, "--speed", 1, "--rank-timeout", "8s", "--force")
    wait_until_under_way(process, tmp_path, 2)
    os.kill(pids(tmp_path, 1)[0], signal.SIGSTOP)
    code, run, ranks = ended(process, tmp_path)
    assert code == 8
    assert shows(run.reason, "interrupted … timeout … rank 1 … 8 s")
    assert [rank.status for rank in ranks] == ["partial", "lost"]


def test_without_mpirun_there_is_one_rank_and_that_is_said(tmp_path):
    done = run_cli(
        "kvreplay", "run", trace(tmp_path, 1), "--mpi", "--tier", "nvme=ram", "-o", tmp_path / "run"
    )
    assert "--mpi without mpirun" in done.stderr
    assert shows(done.stdout, "1 rank: nvme")


def test_without_mpi4py_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr("kvreplay.ranks.helper.find_spec", lambda _name: None)
    done = run_cli(
        "kvreplay",
        "run",
        trace(tmp_path, 1),
        "--mpi",
        "--tier",
        "nvme=ram",
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert shows(done.stderr, "mpi4py: … '.[mpi]'")
