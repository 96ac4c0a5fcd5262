"""The errors that a user can cause, each with the exit code of its class.

    KvError
    ├── ConfigError        2  an invalid option, preset, model, tier or unit
    ├── TraceError         3  an invalid input file (path, row, column)
    ├── DeviceError        4  a target, filesystem or output that fails or is unsafe to use
    ├── ProbeUnavailable   5  an optional part that this machine lacks, and how to install it
    ├── FailedOperations   6  a replay that ended (--on-error continue) although operations failed
    ├── OutOfMemory        7  too little memory, on the machine or by a limit on the process
    └── RankLost           8  a rank of a run with --mpi that ended or stopped answering

`app.run` catches all of them and prints one line. `ValueError` is for mistakes of programmers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.core.arrays import Array


class KvError(Exception):
    """A mistake of the user or a failure of the machine, explained in one line."""

    exit_code = 1


class ConfigError(KvError):
    """An invalid value on the command line or in a configuration file."""

    exit_code = 2


class TraceError(KvError):
    """A fault in an input file, with its position."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        """Describe the fault in `message`, and its position in the other arguments.

        `row` is the data row from 0, or, in a text file, the line from 1.
        """
        self.message, self.path, self.row, self.column = message, path, row, column
        # pathlib makes s3:/bucket of s3://bucket.
        name = re.sub("^s3:/+", "s3://", str(path))
        position = [name] if path is not None else []
        if row is not None:
            position.append(f"row {row}")
        if column is not None:
            position.append(f"column {column}")
        super().__init__(f"{', '.join(position)}: {message}" if position else message)

    def in_file(self, path: Path) -> TraceError:
        """Return this error with another path, such as that of the file that the user named."""
        return TraceError(self.message, path=path, row=self.row, column=self.column)


class DeviceError(KvError):
    """A device, directory or output file that cannot be used, or must not be used."""

    exit_code = 4


class OutOfMemory(KvError):  # noqa: N818 - named for the state, as MemoryError is
    """There is too little memory to start or to continue."""

    exit_code = 7


class ProbeUnavailable(KvError):  # noqa: N818 - named for the state: nothing has failed
    """An optional part is missing on this machine; the message says how to install it."""

    exit_code = 5


class FailedOperations(KvError):  # noqa: N818 - named for the result, which is saved
    """A replay reached its end, but some operations failed or read corrupt blocks.

    The figures of the replay exclude these operations.
    """

    exit_code = 6


class RankLost(KvError):  # noqa: N818 - named for the event
    """A rank of a run of several ended or stopped answering; its measurements so far are saved."""

    exit_code = 8


def how_to_add(extra: str) -> str:
    """Return the command that installs an optional part of the package."""
    if (Path(__file__).parents[2] / "pyproject.toml").is_file():
        return f"pip install -e '.[{extra}]' in the checkout"
    return f"pip install 'kvtrace[{extra}]'"


def need_file(path: Path, advice: str = "") -> None:
    """Raise TraceError, with `advice`, unless `path` is a regular file."""
    if path.is_file():
        return
    problem = "not a regular file" if path.exists() else "no such file"
    raise TraceError(f"{problem}{advice}", path=path)


def refuse(
    is_wrong: Array, template: str, *values: Array, path: object, column: str, first_row: int = 0
) -> None:
    """Raise TraceError at the first row for which `is_wrong` is true; return if there is none.

    `is_wrong` is a boolean array, and its first element stands for row `first_row` of `path`.
    `template` is the message; its fields {} are filled from that row of each array in `values`.
    """
    if not is_wrong.any():
        return
    index = int(is_wrong.argmax())
    message = template.format(*(array[index] for array in values))
    raise TraceError(message, path=path, row=first_row + index, column=column)


def first_line(error: Exception) -> str:
    """Return the first line of the text of `error`."""
    return str(error).strip().split("\n")[0]
