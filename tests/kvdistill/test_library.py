"""The public functions of kvdistill: the examples of their docstrings, and what they promise."""

from __future__ import annotations

import doctest
import json
import pathlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from conftest import write_trace
from kvdistill_rows import HAND, io, write_hand, write_run

import kvdistill
from kvtrace.core.errors import ConfigError, DeviceError, TraceError

FUNCTIONS = [name for name in kvdistill.__all__ if name[0].islower()]


@pytest.fixture
def trace(tmp_path, monkeypatch) -> Path:
    """Return the hand trace as trace.parquet in the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_trace(tmp_path / "trace.parquet", HAND, preset="by-hand")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_each_function_runs(trace, name):  # noqa: ARG001 - the examples read it
    function = getattr(kvdistill, name)
    found = doctest.DocTestFinder(recurse=False).find(
        function, name, module=False, globs={"kvdistill": kvdistill, "pathlib": pathlib}
    )
    (example,) = found
    assert example.examples
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert result.failed == 0


def test_every_public_name_is_there_and_documented():
    for name in kvdistill.__all__:
        assert getattr(kvdistill, name).__doc__
    with pytest.raises(AttributeError):
        _ = kvdistill.no_such_name


def test_importing_the_package_loads_no_heavy_library():
    code = "import sys, kvdistill; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"numpy", "pyarrow", "polars", "duckdb", "msgspec", "typer"}


def test_public_functions_outlive_folders_of_their_name():
    code = (
        "import kvdistill.reports.output, kvdistill.jobs.fio_jobs, kvdistill;"
        " print(*(callable(getattr(kvdistill, n)) for n in kvdistill.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"True"}


@pytest.mark.parametrize("form", [str, Path, lambda path: SimpleNamespace(path=path)])
def test_a_source_is_a_path_or_has_one(trace, form):
    profile = kvdistill.distil(form(trace), tier="nvme")
    assert (profile.read.ops, profile.write.ops, profile.delete_ops) == (5, 3, 1)
    db = kvdistill.connect(form(trace))
    assert db.sql("SELECT count(*) FROM trace").fetchall() == [(len(HAND),)]
    assert len(kvdistill.report(form(trace)).results) == 1


def test_a_window_is_as_on_the_command_line(trace):
    assert kvdistill.distil(trace, "nvme", limit=4).ops == 4
    part = kvdistill.distil(trace, "nvme", begin="2ms", end="40ms")
    assert (part.read.ops, part.delete_ops) == (3, 1)
    with pytest.raises(ConfigError):
        kvdistill.distil(trace, "nvme", begin="20ms", end="10ms")


def test_errors_are_those_of_the_command_line(tmp_path, trace):
    with pytest.raises(ConfigError):
        kvdistill.distil(trace)
    with pytest.raises(TraceError):
        kvdistill.distil(tmp_path / "none.parquet")
    with pytest.raises(ConfigError):
        kvdistill.connect()
    with pytest.raises(ConfigError):
        kvdistill.report(trace, tmp_path / "report.doc")


def test_the_texts_of_jobs_are_what_is_written(tmp_path, trace):
    options = kvdistill.JobOptions(modes=[kvdistill.FioMode.REPLAY, kvdistill.FioMode.STAT])
    jobs = kvdistill.fio_jobs(kvdistill.distil(trace, "nvme"), options=options)
    assert list(jobs.texts) == ["prefill.fio", "replay.fio", "stat.fio"]
    assert not (tmp_path / "jobs").exists()
    written = jobs.write(tmp_path / "jobs")
    assert sorted(written.files) == sorted(path.name for path in (tmp_path / "jobs").iterdir())
    for name, text in jobs.texts.items():
        assert (tmp_path / "jobs" / name).read_text() == text


def test_a_profile_from_a_file_has_no_exact_replay(tmp_path, trace):
    profile = kvdistill.distil(trace, "nvme")
    profile.save(tmp_path / "profile.json")
    read = kvdistill.distil(tmp_path / "profile.json")
    assert read == profile
    assert msgspec.json.encode(read) == msgspec.json.encode(profile)
    assert list(kvdistill.fio_jobs(read).texts) == ["prefill.fio", "stat.fio", "reuse.fio"]
    same = kvdistill.fio_jobs(profile).texts["stat.fio"]
    assert kvdistill.fio_jobs(read).texts["stat.fio"] == same


def test_temporary_files_go_with_the_profile(tmp_path, trace):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    profile = kvdistill.distil(trace, "nvme", scratch=scratch)
    jobs = kvdistill.fio_jobs(profile)
    del profile
    assert list(scratch.iterdir())
    assert jobs.write(tmp_path / "jobs").logs["replay"].read_ios == 7
    del jobs
    assert not list(scratch.iterdir())


def test_views_outlive_the_name_of_their_connection(tmp_path):
    run = write_run(tmp_path / "run", [1000] * 5)
    assert kvdistill.connect(run).sql("SELECT status FROM runs").fetchall() == [("complete",)]
    rows = kvdistill.connect(run, write_hand(tmp_path)).sql("SELECT count(*) FROM ops").fetchall()
    assert rows == [(5,)]


def test_several_sources_are_compared(tmp_path):
    runs = [write_run(tmp_path / name, [1000] * 5) for name in "ab"]
    reports = kvdistill.report(runs, tmp_path / "report.html")
    assert [document.name for document in reports.documents] == ["Comparison", "a", "b"]
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_notebooks_show_tables_and_short_names(trace):
    profile = kvdistill.distil(trace, "nvme")
    jobs = kvdistill.fio_jobs(profile)
    for shown in (profile, jobs, jobs.write("jobs"), kvdistill.report(trace)):
        assert shown._repr_html_().startswith("<table>")
        assert len(repr(shown)) < 100


@pytest.mark.fio
def test_a_check_leaves_nothing_beside_its_target(tmp_path, trace):
    options = kvdistill.JobOptions(
        modes=[kvdistill.FioMode.REPLAY], has_null_check=True, check_ns=10**9
    )
    jobs = kvdistill.fio_jobs(trace, "nvme", options)
    (tmp_path / "storage").mkdir()
    closeness = jobs.check(tmp_path / "storage" / "scratch.dat")
    assert not list((tmp_path / "storage").iterdir())
    assert closeness.comparisons[0].fio.has_same_ios is True
    assert repr(closeness).startswith("Closeness(replay.fio ")
    assert "same I/Os" in closeness._repr_html_()
    jobs.timed(closeness).write(tmp_path / "jobs", closeness)
    found = json.loads((tmp_path / "jobs" / "closeness.json").read_text())
    assert found == msgspec.to_builtins(closeness)
    with pytest.raises(ConfigError):
        jobs.check(tmp_path / "storage")


@pytest.mark.fio
def test_a_check_of_one_instant_compares_nothing_and_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [io(0, "read", i, 4096) for i in range(20)] + [io(60_000, "read", 3, 4096)]
    trace = write_trace(tmp_path / "instant.parquet", rows)
    options = kvdistill.JobOptions(modes=[kvdistill.FioMode.REUSE], check_ns=10**9)
    closeness = kvdistill.fio_jobs(trace, "nvme", options).check("scratch.dat")
    assert closeness.comparisons == []
    assert any(note.startswith("reuse.fio is not checked") for note in closeness.notes)
    with pytest.raises(DeviceError):
        kvdistill.fio_jobs(trace, "nvme", options).check(tmp_path / "none" / "scratch.dat")
