"""One of our programs run by another, as a user would: they share no code but this package's core."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

from kvtrace.core.app import log, progress
from kvtrace.core.errors import KvError


class ProgramError(KvError):
    """Another of our programs refused; the message is its own, and so is the exit code."""

    def __init__(self, command: str, said: str, exit_code: int) -> None:
        """Say which `command` it was and the line it `said`."""
        super().__init__(f"{command}: {said}")
        self.exit_code = exit_code


def argv_of(program: str, *arguments: str) -> list[str]:
    """Return what starts `program` with `arguments` in this interpreter."""
    return [sys.executable, "-m", f"{program}.cli", *arguments]


def run_program(program: str, arguments: Sequence[str], *, is_shown: bool = False, is_noted: bool = True) -> None:
    """Run `program` with `arguments`; what it prints is shown if `is_shown`, its notes are logged if `is_noted`.

    Raises:
        ProgramError: it left with an error.

    """
    argv, command = argv_of(program, *arguments), shlex.join([program, *arguments])
    sys.stdout.flush()
    with progress(command):
        done = subprocess.run(  # noqa: S603 - our own program
            argv, stdout=None if is_shown else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
    said = done.stderr.strip().splitlines()
    if done.returncode:
        last = said[-1] if said else f"it left with {done.returncode}"
        raise ProgramError(command, last.removeprefix(f"{program}: error: "), done.returncode)
    for line in said if is_noted else ():
        log(line)
