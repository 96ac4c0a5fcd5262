from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Annotated

import pyarrow as pa
import pytest
import typer
from phrases import shows

from kvtrace.core.app import (
    QUIET,
    emit_json,
    log,
    make_app,
    option,
    progress,
    run,
    takes_groups,
)
from kvtrace.core.errors import ConfigError, DeviceError, OutOfMemory, ProbeUnavailable, TraceError
from kvtrace.core.metadata import TierFacts

ERRORS = {
    "config": (ConfigError("an option\nof two lines"), 2, "an option of two lines"),
    "trace": (
        TraceError("wrong", path="t.parquet", row=3, column="op"),
        3,
        "t.parquet, row 3, column op: wrong",
    ),
    "device": (DeviceError("no"), 4, "no"),
    "probe": (ProbeUnavailable("install it"), 5, "install it"),
    "os": (PermissionError(13, "Permission denied", "/x"), 4, "/x: Permission denied"),
    "memory": (
        MemoryError(),
        7,
        "memory",
    ),
    "memory of the system": (
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        7,
        "memory",
    ),
    "memory for a library": (
        ImportError("libarrow.so: failed to map segment from shared object"),
        7,
        "memory",
    ),
    "memory for zstd": (
        OSError("ZSTD compression failed: Allocation error : not enough memory"),
        7,
        "memory",
    ),
    "threads": (
        RuntimeError("can't start new thread"),
        7,
        "memory … thread",
    ),
    "budget": (OutOfMemory("the replay needs"), 7, "the replay needs"),
    "a file that Arrow cannot read": (
        OSError("Couldn't deserialize thrift: TProtocolException: Invalid data\nmore"),
        3,
        "input: … TProtocolException: Invalid data",
    ),
    "a library's own": (pa.ArrowInvalid("a\nb"), 3, "input: … a"),
    "a signal while DuckDB works": (RuntimeError("Query interrupted"), 130, "interrupted"),
    "a hostile name": (ConfigError(f"{'x' * 5000} is none"), 2, f"{'x' * 200}… is none"),
    "interrupt": (KeyboardInterrupt(), 130, "interrupted"),
    "abort": (typer.Abort(), 130, "interrupted"),
}


def leave(monkeypatch, argv, error=None, value=None):
    """Run a program with one command that raises or returns; return its exit code."""
    app = make_app("kvx", "Test.", "First steps.", {})

    @app.command()
    def fail(count: int = 0) -> int | None:  # noqa: ARG001 - an option to get wrong
        if error is not None:
            raise error
        return value

    @app.command()
    def other() -> None:
        pass

    return leave_of(app, monkeypatch, argv)


def leave_of(app, monkeypatch, argv):
    """Run `app` as kvx; return its exit code."""
    monkeypatch.setattr("sys.argv", ["kvx", *argv])
    with pytest.raises(SystemExit) as left:
        run(app, "kvx")
    return left.value.code


@pytest.mark.parametrize(("error", "code", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_an_error_is_one_line_and_a_code(monkeypatch, capsys, error, code, message):
    assert leave(monkeypatch, ["fail"], error) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shows(shown.err, f"kvx: error: … {message}")
    assert len(shown.err.splitlines()) == 1


def test_an_unreadable_file_is_named_by_the_command_line(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ops.parquet").write_text("x")
    app = make_app("kvx", "Test.", "First steps.", {})

    @app.command()
    def read(file: str, to: str) -> None:  # noqa: ARG001 - named on the command line
        raise pa.ArrowInvalid("no such page")

    @app.command()
    def other() -> None:
        pass

    assert leave_of(app, monkeypatch, ["read", "ops.parquet", "absent"]) == 3
    assert shows(capsys.readouterr().err, "ops.parquet: … no such page")


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_reader_of_stdout_that_leaves_is_no_error(form):
    """As `| head` does; typer, and rich where it prints a table, leave with 1."""
    command = f"{sys.executable} -m kvtrace.cli models {form}"
    shell = f"{command} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_programmers_mistake_is_a_traceback(monkeypatch):
    app = make_app("kvx", "Test.", "", {})

    @app.command()
    def fail() -> None:
        raise ValueError

    monkeypatch.setattr("sys.argv", ["kvx", "fail"])
    with pytest.raises(ValueError):  # noqa: PT011 - nothing to say
        run(app, "kvx")


def test_a_command_returns_its_code(monkeypatch):
    assert leave(monkeypatch, ["fail"], value=3) == 3
    assert leave(monkeypatch, ["fail"]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nothing"], "'nothing'. … --help."),
        (["fail", "--count", "x"], "--help."),
        (["fail", "--colour"], "--colour"),
        (["fail", "extra"], "--help."),
    ],
)
def test_a_usage_error_is_one_line_and_2(monkeypatch, capsys, argv, message):
    assert leave(monkeypatch, argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shows(shown.err, message)
    assert len(shown.err.splitlines()) == 1


def test_without_arguments_the_help_is_shown(monkeypatch, capsys):
    assert leave(monkeypatch, []) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Usage: kvx" in shown.err
    assert leave(monkeypatch, ["-h"]) == 0
    assert "First steps." in capsys.readouterr().out


def test_json_takes_structs(capsys):
    emit_json({"tiers": [TierFacts("gpu", 5), TierFacts("nvme")], "none": None})
    assert json.loads(capsys.readouterr().out) == {
        "tiers": [{"name": "gpu", "capacity_bytes": 5}, {"name": "nvme", "capacity_bytes": None}], "none": None,
    }  # fmt: skip


def test_progress_is_silent_without_a_terminal(capsys):
    with progress("working", 10) as tick:
        tick(5)
    assert capsys.readouterr() == ("", "")


@dataclass(frozen=True, slots=True)
class Colours:
    """A group of options."""

    shade: str = option("Which.", "red")
    how_many: int | None = option("Number.", min=1)


def test_a_group_of_options_is_one_argument_and_keeps_its_place(monkeypatch, capsys):
    app, taken = make_app("kvx", "Say.", ".", {}), []

    @app.command()
    def other() -> None:
        """Do nothing."""

    @app.command()
    @takes_groups
    def paint(
        first: str = option("Before.", ""),
        *,
        colours: Colours,
        last: str = option("After.", ""),
    ) -> None:
        """Paint."""
        taken.append((first, colours, last))

    for argv in (["--how-many", "3", "--last", "z"], []):
        assert leave_of(app, monkeypatch, ["paint", *argv]) == 0
    assert taken == [("", Colours("red", 3), "z"), ("", Colours(), "")]
    assert leave_of(app, monkeypatch, ["paint", "--how-many", "0"]) == 2
    assert leave_of(app, monkeypatch, ["paint", "--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(flag) for flag in ("--first", "--shade", "--how-many", "--last")]
    assert places == sorted(places)


def _doubled(written: int) -> str:
    return str(2 * written)


@dataclass(frozen=True)
class Brush:
    """Options, of which a command takes some; a value of one is made of what is written."""

    bristles: dict[str, str] = field(default_factory=dict)
    length: str = option("How long; twice as long in the end.", "own", parse=_doubled)
    width: int = option("How wide.", 1)


def test_a_command_takes_options_of_a_group_as_typed_values(capsys, monkeypatch):
    app, taken = typer.Typer(), []

    @app.callback()
    def root() -> None:
        """Do nothing."""

    @app.command()
    @takes_groups
    def paint(brush: Brush) -> None:
        taken.append(brush)

    @app.command()
    @takes_groups
    def dab(brush: Annotated[Brush, "length"]) -> None:
        taken.append(brush)

    assert leave_of(app, monkeypatch, ["paint", "--length", "21", "--width", "3"]) == 0
    assert leave_of(app, monkeypatch, ["dab"]) == 0
    assert taken == [Brush(length="42", width=3), Brush(length="own", width=1)]
    assert leave_of(app, monkeypatch, ["dab", "--length", "long"]) == 2
    assert leave_of(app, monkeypatch, ["dab", "--width", "3"]) == 2
    assert leave_of(app, monkeypatch, ["paint", "--help"]) == 0
    assert "--bristles" not in capsys.readouterr().out


def test_a_background_job_heeds_sigint_and_nohup_hides_sighup():
    """A shell starts background jobs with SIGINT ignored.

    `kvreplay run &` still ends by it, and so do its probes.
    """
    code = (
        "import os, signal\n"
        "from kvtrace.core.app import noted_signals\n"
        "with noted_signals() as asked:\n"
        "    for number in (signal.SIGHUP, signal.SIGINT):\n"
        "        os.kill(os.getpid(), number)\n"
        "    print(asked())"
    )

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, preexec_fn=ignore
    )
    assert done.stdout == "SIGINT\n"


def test_a_line_of_notes_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    QUIET.set(False)  # A command that an earlier test ran may have been quiet.
    log("note: fields that are not used: a\nkvtrace: error: fake")
    assert len(capsys.readouterr().err.splitlines()) == 1
