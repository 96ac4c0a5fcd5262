"""A few hundred cases of the fuzzer by a fixed seed, and that it sees what it looks for.

`make fuzz` tries more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fuzz  # noqa: E402 - a program of its own, in a folder that is no package
from trials import Broken, Command, Reading  # noqa: E402

from kvtrace.core.errors import OutOfMemory, TraceError  # noqa: E402


def test_readers_hold_what_they_promise():
    done = subprocess.run(
        [sys.executable, HERE / "fuzz.py", "--seed", "7", "--cases", "400", "--workers", "1", "--commands", "0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "400 readings and 0 commands" in done.stdout


def test_every_reader_has_whole_input_to_damage():
    import readers
    import seeds

    from kvdistill.formats.formats import Format
    from kvtrace.requests.registry import SOURCES

    assert {*seeds.REQUEST_TEXTS, *seeds.ENGINES, *readers.OTHER_SOURCES} == set(SOURCES)
    assert {*seeds.IMPORTS, "blocks"} == set(Format)


@pytest.mark.first(case=4)
@pytest.mark.parametrize("case", range(8))
def test_commands_hold_what_they_promise(tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    what, trial = fuzz.trial_of(11, case, tmp_path, 1.0)
    assert what
    fuzz.run_trial(trial, tmp_path)


def fails_with(error):
    def call():
        raise error

    return Reading(call)


@pytest.mark.parametrize(
    "error", [ValueError("a traceback"), OutOfMemory("too much"), RecursionError()]
)
def test_what_no_reader_may_end_with_is_seen(tmp_path, error):
    with pytest.raises((Broken, type(error))):
        fuzz.run_trial(fails_with(error), tmp_path)
    fuzz.run_trial(fails_with(TraceError("one line")), tmp_path)


def test_what_a_failed_command_leaves_is_seen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    said = "kvtrace: error: damaged\n"

    def run(*_argv, **_options):
        (tmp_path / "out.parquet").touch()
        return subprocess.CompletedProcess([], 3, "", said)

    monkeypatch.setattr("programs.run_cli", run)
    with pytest.raises(Broken, match=r"left after a failure: out\.parquet"):
        fuzz.run_trial(Command(["kvtrace"], ["out.parquet"]), tmp_path)
    said = "Traceback\n"
    with pytest.raises(Broken, match="not one line of error"):
        fuzz.run_trial(Command(["kvtrace"]), tmp_path)
    said = "kvtrace: error: a\nkvtrace: error: b\n"
    with pytest.raises(Broken, match="not one line of error"):
        fuzz.run_trial(Command(["kvtrace"]), tmp_path)
    said = "kvtrace: error: \x1b[2J\n"
    with pytest.raises(Broken, match="a control character"):
        fuzz.run_trial(Command(["kvtrace"]), tmp_path)
