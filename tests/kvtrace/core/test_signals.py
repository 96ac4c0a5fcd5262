"""Signals: each program answers them from its first line on, and within a second."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, write_trace

PROGRAMS = ("kvtrace", "kvreplay", "kvdistill")
STARTS = """
import sys
from kvtrace.core.signals import leave_on_signals
leave_on_signals(sys.argv[1], "__main__")
print("ready", flush=True)
sys.argv = sys.argv[1:]
from importlib import import_module
import_module(f"{sys.argv[0]}.cli").main()
"""
"""What a program does, with a word when its handlers are there."""


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    """Start a program, and wait until it answers signals."""
    return start_script(STARTS, *words, folder=folder)


def start_script(script: str, *words: object, folder: Path | None = None) -> subprocess.Popen[str]:
    """Start a Python script with arguments, and wait until it prints that it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str], number: int) -> tuple[int, list[str], float]:
    """Send a signal; return the exit code, the lines on stderr, and the seconds until the end."""
    sent = time.monotonic()
    process.send_signal(number)
    _out, err = process.communicate()
    return process.returncode, err.splitlines(), time.monotonic() - sent


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [(i * 10**7, "write", 2, "store", i, 0, 4096, None, None, 0) for i in range(1000)]
    return write_trace(tmp_path / "t.parquet", rows)


@pytest.mark.parametrize("program", PROGRAMS)
def test_handlers_come_before_other_imports(program):
    body = ast.parse((ROOT / program / "cli.py").read_text(encoding="utf-8")).body
    code = [
        node for node in body if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call)
    ]
    first = [line for line in map(ast.unparse, code) if line != "import os"]
    assert first[1:3] == [
        "from kvtrace.core.signals import leave_on_signals",
        f"leave_on_signals('{program}', __name__)",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("moment_s", [0.0, 0.1, 0.3, 0.6, 1.0])
def test_a_signal_in_the_first_second_gives_130(tmp_path, trace, number, moment_s):
    (tmp_path / "d").mkdir()
    process = start(
        tmp_path,
        "kvreplay",
        "run",
        trace,
        "--tier",
        "nvme=d",
        "--buffered",
        "--speed",
        "1",
        "-o",
        "r",
    )
    time.sleep(moment_s)
    code, _lines, seconds = end(process, number)
    assert code == 130
    # A replay that has begun first writes what it measured, which a busy drive delays.
    assert seconds < 15
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_signal_ends_a_query_within_a_second(tmp_path, trace):
    endless = "SELECT sum(a.range + b.range) FROM range(10000000) a, range(10000000) b"
    process = start(tmp_path, "kvdistill", "sql", trace, endless)
    time.sleep(2)
    code, lines, seconds = end(process, signal.SIGTERM)
    assert (code, lines) == (130, ["kvdistill: error: interrupted"])
    assert seconds < 3


STUCK = """
import sys
from pathlib import Path
from kvtrace.core.signals import leave_on_signals, raised_signals
leave_on_signals("kvtrace", "__main__")
import ctypes
from kvtrace.core.temporary import temporary_file, temporary_folder
place = Path(sys.argv[1])
with raised_signals(), temporary_folder(".check-", place), temporary_file(place / "out"):
    lock, libc = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    libc.pthread_mutex_lock(lock)
    print("ready", flush=True)
    libc.pthread_mutex_lock(lock)
"""
"""A main thread that waits in C code, which no signal interrupts."""


LOST = """
import sys, time
from pathlib import Path
from kvtrace.core import signals
from kvtrace.core.temporary import temporary_file
signals.CLOSING_S = 1.0
signals.leave_on_signals("kvtrace", "__main__")
with signals.raised_signals(), temporary_file(Path(sys.argv[1]) / "out"):
    words = ["ready"]
    while True:
        try:
            while words:
                print(words.pop(), flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            pass
"""
"""A main thread in which the exception is lost."""


def test_a_signal_whose_exception_is_lost_ends_the_process(tmp_path: Path) -> None:
    process = start_script(LOST, tmp_path)
    code, lines, seconds = end(process, signal.SIGTERM)
    assert (code, lines) == (130, ["kvtrace: error: interrupted"])
    assert 0.7 < seconds < 5
    assert list(tmp_path.iterdir()) == []


def test_an_import_that_loses_an_exception_is_interrupted_again(tmp_path: Path) -> None:
    module = """
import time
try:
    print("ready", flush=True)
    while True:
        time.sleep(0.01)
except BaseException:
    while True:
        time.sleep(0.01)
"""
    (tmp_path / "lossy.py").write_text(module)
    script = """
import sys
from kvtrace.core.signals import leave_on_signals, raised_signals
leave_on_signals("kvtrace", "__main__")
sys.path.insert(0, sys.argv[1])
with raised_signals():
    import lossy
"""
    process = start_script(script, tmp_path)
    code, _lines, seconds = end(process, signal.SIGTERM)
    assert code in (130, -signal.SIGTERM, -signal.SIGINT)
    assert seconds < 3


IGNORED = """
import sys, time
from kvtrace.core.signals import handled_signals, leave_on_signals, raised_signals
leave_on_signals("kvtrace", "__main__")
class Busy:
    def __del__(self):
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
noted = []
with raised_signals():
    busy = Busy()
    del busy
    HOLD
    end = time.monotonic() + 5
    while time.monotonic() < end and not noted:
        time.sleep(0.01)
sys.exit(130 if noted else 0)
"""
"""A main thread that waits in a destructor, where Python ignores exceptions."""
HELD = "with handled_signals(lambda number, frame: noted.append(number)): time.sleep(0.5)"


@pytest.mark.parametrize("hold", ["pass", HELD])
def test_an_exception_that_python_ignores_is_raised_again(hold):
    process = start_script(IGNORED.replace("HOLD", hold))
    code, _lines, seconds = end(process, signal.SIGINT)
    # An exception that reaches the top of a script, where no command turns it into a code, ends it
    # by the signal.
    assert code in (130, -signal.SIGINT)
    assert seconds < 3


def test_a_signal_ends_what_is_stuck_in_c_code(tmp_path):
    process = start_script(STUCK, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    time.sleep(0.5)
    code, lines, seconds = end(process, signal.SIGTERM)
    assert (code, lines) == (130, ["kvtrace: error: interrupted"])
    assert seconds < 3
    assert list(tmp_path.iterdir()) == []
