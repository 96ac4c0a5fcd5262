"""The trace of another number of users: made anew by the command that made this one, so that all else is equal."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.core.metadata import Metadata


def check_users(trace: Path, meta: Metadata) -> None:
    """Raise ConfigError unless `trace` is one of synthetic users, which can be made with more of them."""
    if meta.program != "kvtrace" or meta.argv[1:2] != ["gen"] or not isinstance(meta.config.get("users"), int):
        raise ConfigError(
            f"--users: {trace} has no synthetic users, so there cannot be more of them; sweep its speed with --speeds"
        )


def generate(meta: Metadata, users: int, path: Path) -> None:
    """Write to `path` the trace that the command of `meta` makes with so many users.

    Raises:
        ConfigError: kvtrace refuses; the message is its own.

    """
    argv = [*with_users(meta.argv[1:], users), "-o", str(path)]
    done = subprocess.run([sys.executable, "-m", "kvtrace.cli", *argv], capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it left with {done.returncode}"]
        raise ConfigError(f"--users {users}: {' '.join(['kvtrace', *argv])}: {said[0]}")


def with_users(argv: list[str], users: int) -> list[str]:
    """Return `argv` with --users `users`, where it stands already or at the end: all else must stay the same."""
    found = [
        str(users) if before == "--users" else f"--users={users}" if argument.startswith("--users=") else argument
        for before, argument in zip(["", *argv], argv, strict=False)
    ]
    is_there = any(argument == "--users" or argument.startswith("--users=") for argument in argv)
    return found if is_there else [*found, "--users", str(users)]
