"""A sweep's folder is reported on.

The answer first, the table of its loads, and charts with the knee.
"""

from __future__ import annotations

import json

import msgspec
import pytest
from conftest import run_cli

from kvtrace.core.document.sweep_document import sweep_document
from kvtrace.core.run.sweep_file import Axis, LoadSweep, SweepPoint

MS = 10**6
POINTS = [
    SweepPoint(
        value=users,
        run=f"users-{users}",
        verdict="v",
        throughput_bytes_per_s=users * 1e8,
        operations_per_s=users * 10.0,
        read_p50_ns=MS * users,
        read_p99_ns=5 * MS * users,
        read_p99_9_ns=None if users == 8 else 9 * MS * users,
        write_p99_ns=None,
        kept_pace=users < 32,
        late_p99_ns=0,
    )
    for users in (8, 16, 32)
]
ANSWER = "sustains 16 users; read response p99 80.0 ms at the knee; the drive is the limit above it"


@pytest.fixture
def folder(tmp_path):
    found = LoadSweep(
        axis=Axis.USERS, points=POINTS, knee=16, is_saturated=True, rule="a rule", answer=ANSWER
    )
    (tmp_path / "sweep").mkdir()
    content = {"program": "kvreplay", "version": "1", "argv": ["kvreplay"]} | msgspec.to_builtins(
        found
    )
    (tmp_path / "sweep" / "sweep.json").write_bytes(msgspec.json.encode(content))
    return tmp_path / "sweep"


def test_a_sweep_is_reported_on(folder):
    shown = run_cli("kvdistill", "report", folder).stdout
    assert shown.splitlines()[:2] == ["sweep", ANSWER]
    (line,) = [line for line in shown.splitlines() if line.split()[:1] == ["16"]]
    assert "16.0 ms" in line
    assert "80.0 ms" in line
    assert "144 ms" in line
    assert line.endswith("knee")
    found = json.loads(run_cli("kvdistill", "report", folder, "--json").stdout)
    assert (found["name"], found["sweep"]["knee"], found["sweep"]["answer"]) == (
        "sweep",
        16,
        ANSWER,
    )


def test_its_page_draws_the_percentiles_with_the_knee(folder, tmp_path):
    run_cli("kvdistill", "report", folder, "-o", tmp_path / "r.html", "-o", tmp_path / "r.csv")
    page = (tmp_path / "r.html").read_text()
    assert page.index(ANSWER) < page.index("<table")
    for shown in (
        "read response p50",
        "read response p99",
        "read response p99.9",
        "knee: 16",
        "throughput",
    ):
        assert f">{shown}</text>" in page
    assert "16.0,read_p99_9_ns,ns,144000000" in (tmp_path / "r.csv").read_text()


def test_a_closed_loop_is_not_said_to_fall_behind():
    points = [msgspec.structs.replace(point, kept_pace=None, late_p99_ns=None) for point in POINTS]
    found = LoadSweep(
        axis=Axis.QUEUE_DEPTH,
        points=points,
        knee=16,
        is_saturated=True,
        rule="a rule",
        answer=ANSWER,
    )
    (table,) = sweep_document(found).chapters[0].tables
    assert not {"delivered", "late p99", "sustained"} & {column.heading for column in table.columns}


def test_sweeps_are_not_compared_and_no_verdict_is_made_up(folder):
    done = run_cli("kvdistill", "compare", folder, folder, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "compare" in done.stderr


def test_a_damaged_sweep_is_one_line(folder):
    (folder / "sweep.json").write_text("{}")
    done = run_cli("kvdistill", "report", folder, check=False)
    assert done.returncode == 3
    assert "sweep again" in done.stderr
