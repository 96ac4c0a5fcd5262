"""A study on many cores, and on a cluster.

The same table, and whether or not a worker is killed.
"""

from __future__ import annotations

import json
import sys

import pytest
import study_workers
from conftest import run_cli
from phrases import Saying
from study_workers import BEGIN, cluster_of, study_file
from whole import read_table

from kvtrace.core.schema import STUDY

pytest.importorskip("distributed")
# Dask's own, as it is closed.
pytestmark = pytest.mark.filterwarnings("ignore:.*:ResourceWarning", "ignore:.*:DeprecationWarning")

MANY = (
    BEGIN
    + """
[grid]
seed = [1, 2, 3, 4, 5]
tiers.nvme.policy = ["lru", "fifo"]
tiers.nvme.capacity = ["64MiB", "256MiB", "1GiB"]
"""
)


@pytest.fixture(autouse=True)
def _without_a_page(monkeypatch):
    monkeypatch.setattr("kvtrace.commands.study.write_drawing", lambda *_: None)


def study(path, out, workers):
    return run_cli("kvtrace", "study", path, "-o", out, "--workers", workers, "--json")


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ("", 30),
        pytest.param(
            "chunk_tokens = [64, 128, 192, 256, 320, 384, 512]", 210, marks=pytest.mark.full
        ),
    ],
)
def test_the_table_has_the_same_bytes_for_any_workers(tmp_path, request, more, count):
    path, usual = study_file(tmp_path, MANY + more), sys.getswitchinterval()
    # Threads that take turns often share what must not be shared: Typer's command lines were, once
    # in some hundred.
    sys.setswitchinterval(1e-5)
    request.addfinalizer(lambda: sys.setswitchinterval(usual))
    found = [json.loads(study(path, tmp_path / str(workers), workers).stdout) for workers in (1, 8)]
    assert (found[1]["configurations"], found[1]["failed"]) == (count, 0)
    tables = [(tmp_path / name / "results.parquet").read_bytes() for name in ("1", "8")]
    assert tables[0] == tables[1]
    assert found[0]["answer"] == found[1]["answer"]


@pytest.mark.full
def test_a_worker_of_a_cluster_is_killed(tmp_path, monkeypatch):
    text = BEGIN + '[grid]\ntiers.nvme.policy = ["lru", "fifo"]\nseed = [1, 2]'
    path = study_file(tmp_path, text)
    monkeypatch.setenv("KVTRACE_TEST_MARKER", str(tmp_path / "killed"))
    with monkeypatch.context() as patch, cluster_of(2) as cluster:
        patch.setattr("kvtrace.studies.worker.simulate", study_workers.dies_once)
        run_cli(
            "kvtrace", "study", path, "-o", tmp_path / "a", "--scheduler", cluster.scheduler_address
        )
    assert (tmp_path / "killed").exists()
    study(path, tmp_path / "b", 1)
    assert (tmp_path / "a" / "results.parquet").read_bytes() == (
        tmp_path / "b" / "results.parquet"
    ).read_bytes()


@pytest.mark.full
def test_what_kills_each_worker_is_given_up_and_is_a_row(tmp_path, monkeypatch):
    text = BEGIN + '[grid]\ntiers.nvme.policy = ["lru", "fifo"]\nseed = [1]'
    monkeypatch.setattr("kvtrace.studies.worker.simulate", study_workers.dies)
    path = study_file(tmp_path, text)
    with cluster_of(2) as cluster:
        run_cli(
            "kvtrace",
            "study",
            path,
            "-o",
            tmp_path / "out",
            "--scheduler",
            cluster.scheduler_address,
        )
    rows = read_table(tmp_path / "out" / "results.parquet", STUDY).to_pylist()
    assert [row["error"] for row in rows] == [
        None,
        Saying("their memory"),
    ]


def test_a_cluster_that_is_there_already(tmp_path):
    with cluster_of(1, processes=False, protocol="tcp://") as cluster:
        run_cli(
            "kvtrace",
            "study",
            study_file(tmp_path),
            "-o",
            tmp_path / "a",
            "--scheduler",
            cluster.scheduler_address,
        )
    study(tmp_path / "study.toml", tmp_path / "b", 1)
    assert (tmp_path / "a" / "results.parquet").read_bytes() == (
        tmp_path / "b" / "results.parquet"
    ).read_bytes()


def test_no_scheduler_there(tmp_path, monkeypatch):
    monkeypatch.setattr("kvtrace.studies.run._CONNECT_S", 1)
    path = study_file(tmp_path)
    done = run_cli(
        "kvtrace",
        "study",
        path,
        "-o",
        tmp_path / "a",
        "--scheduler",
        "tcp://127.0.0.1:1",
        check=False,
    )
    assert done.returncode == 2
    assert "--scheduler tcp://127.0.0.1:1: " in done.stderr


def test_workers_are_not_asked_of_a_cluster(tmp_path):
    given = [
        study_file(tmp_path),
        "-o",
        tmp_path / "a",
        "--scheduler",
        "tcp://127.0.0.1:1",
        "--workers",
        "2",
    ]
    done = run_cli("kvtrace", "study", *given, check=False)
    assert (done.returncode, "--workers" in done.stderr) == (2, True)
