"""A study on many cores: the same table however many workers there are, and whether or not one is killed."""

from __future__ import annotations

import json

import pytest
import study_workers
from conftest import run_cli
from study_workers import BEGIN, SMALL, study_file

from kvtrace.core.errors import how_to_add
from kvtrace.core.schema import STUDY
from kvtrace.core.tables import read_table
from kvtrace.study.run import local_cluster

pytest.importorskip("distributed")
# Dask's own, as it is closed.
pytestmark = pytest.mark.filterwarnings("ignore:.*:ResourceWarning", "ignore:.*:DeprecationWarning")

TWO_HUNDRED = BEGIN + """
[grid]
seed = [1, 2, 3, 4, 5]
chunk_tokens = [128, 256]
tiers.nvme.policy = ["lru", "fifo", "s3fifo", "arc"]
tiers.nvme.capacity = ["64MiB", "128MiB", "256MiB", "512MiB", "1GiB"]
"""  # fmt: skip


@pytest.fixture(autouse=True)
def _without_a_page(monkeypatch):
    monkeypatch.setattr("kvtrace.commands.study._write_page", lambda *_: None)


def study(path, out, workers):
    return run_cli("kvtrace", "study", path, "-o", out, "--workers", workers, "--json")


def test_two_hundred_on_two_workers_one_of_which_is_killed(tmp_path, monkeypatch):
    path = study_file(tmp_path, TWO_HUNDRED)
    in_turn = study(path, tmp_path / "one", 1)
    monkeypatch.setattr("kvtrace.commands.study.simulate", study_workers.dies_once)
    monkeypatch.setenv("KVTRACE_TEST_MARKER", str(tmp_path / "killed"))
    found = json.loads(study(path, tmp_path / "two", 2).stdout)
    assert (tmp_path / "killed").exists()
    assert (found["configurations"], found["failed"]) == (200, 0)
    tables = [(tmp_path / name / "results.parquet").read_bytes() for name in ("one", "two")]
    assert tables[0] == tables[1]
    assert json.loads(in_turn.stdout)["answer"] == found["answer"]


def test_what_kills_each_worker_is_given_up_and_is_a_row(tmp_path, monkeypatch):
    text = BEGIN + '[grid]\ntiers.nvme.policy = ["lru", "fifo"]\nseed = [1]'
    monkeypatch.setattr("kvtrace.commands.study.simulate", study_workers.dies)
    monkeypatch.setattr("kvtrace.study.run.MOST_DEATHS", 2)
    study(study_file(tmp_path, text), tmp_path / "out", 2)
    rows = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    assert [row["error"] for row in rows] == [
        None, "the worker that simulated it died 2 times; did it run out of memory?",
    ]  # fmt: skip


def test_a_cluster_that_is_there_already(tmp_path):
    with local_cluster(1, processes=False, protocol="tcp://") as cluster:
        run_cli(
            "kvtrace", "study", study_file(tmp_path), "-o", tmp_path / "a", "--scheduler", cluster.scheduler_address
        )
    study(tmp_path / "study.toml", tmp_path / "b", 1)
    assert (tmp_path / "a" / "results.parquet").read_bytes() == (tmp_path / "b" / "results.parquet").read_bytes()


def test_no_scheduler_there(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.study.run._CONNECT_S", 1)
    path = study_file(tmp_path)
    done = run_cli("kvtrace", "study", path, "-o", tmp_path / "a", "--scheduler", "tcp://127.0.0.1:1", check=False)
    assert done.returncode == 2
    assert "--scheduler tcp://127.0.0.1:1: " in done.stderr


def test_without_dask_one_process_simulates_and_says_how_to_get_more(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.study.run.has_dask", lambda: False)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    path = study_file(tmp_path, SMALL)
    done = run_cli("kvtrace", "study", path, "-o", tmp_path / "a")
    assert f"one process simulates; with Dask ({how_to_add('dask')}) all 4 cores do" in done.stderr
    refused = run_cli("kvtrace", "study", path, "-o", tmp_path / "b", "--workers", "3", check=False)
    assert (refused.returncode, "--workers 3 needs Dask: pip install" in refused.stderr) == (5, True)
