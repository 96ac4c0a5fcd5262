"""Run the three programs as a user would: within the tests' process, or in one of their own.

A process of its own costs a second of start-up and of loading compiled code, so it is only for
tests of what a process is: signals, exit codes, limits, what is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import signal
import subprocess
import sys
from pathlib import Path


def run_cli(
    program: str, *args: object, check: bool = True, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of the three programs in this process; return its code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    argv, terminated = sys.argv, signal.getsignal(signal.SIGTERM)
    sys.argv = [program, *map(str, args)]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            contextlib.chdir(cwd or Path.cwd()),
        ):
            importlib.import_module(f"{program}.cli").main()
    except SystemExit as left:
        code = int(left.code or 0)
    else:
        raise AssertionError(f"{program} came back from main()")
    finally:
        sys.argv = argv
        signal.signal(signal.SIGTERM, terminated)
    return _checked(
        subprocess.CompletedProcess(
            [program, *map(str, args)], code, out.getvalue(), err.getvalue()
        ),
        check,
    )


def run_process(
    program: str, *args: object, check: bool = True, **kwargs: object
) -> subprocess.CompletedProcess[str]:
    """Run one of the three programs in a process of its own, with `kwargs` of `subprocess.run`."""
    done = subprocess.run(
        [sys.executable, "-m", f"{program}.cli", *map(str, args)],
        capture_output=True, text=True, check=False, **kwargs,  # type: ignore[call-overload]
    )  # fmt: skip
    return _checked(done, check)


def _checked(
    done: subprocess.CompletedProcess[str], check: bool
) -> subprocess.CompletedProcess[str]:
    if check and done.returncode != 0:
        raise AssertionError(
            f"{done.args} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    return done
