"""The errors a user can meet, each with the exit code of its class.

    KvError
    ├── ConfigError        2  an option, preset, model, tier or unit that we cannot take
    ├── TraceError         3  an input file that is not what it should be (path, row, column)
    ├── DeviceError        4  a target, filesystem or output that refuses, or is unsafe
    ├── ProbeUnavailable   5  an optional part that this machine lacks, and how to get it
    ├── FailedOperations   6  a replay that went on to its end (--on-error continue) although operations failed
    ├── OutOfMemory        7  too little memory, on the machine or by a limit on the process
    └── RankLost           8  a rank of a run with --mpi that died or fell silent; what was measured is kept

`app.run` catches them once and prints one line. `ValueError` stays for programmers' mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvtrace.core.arrays import Array


class KvError(Exception):
    """A mistake or refusal that one line can explain to the user."""

    exit_code = 1


class ConfigError(KvError):
    """A value on the command line or in a configuration file that cannot be used."""

    exit_code = 2


class TraceError(KvError):
    """A fault in an input file, with the place it stands at."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        row: int | None = None,
        column: str | None = None,
    ) -> None:
        """Place `message` at `path`, `row` (0-based data row, or 1-based line for text) and
        `column`.
        """
        self.message, self.path, self.row, self.column = message, path, row, column
        place = [str(path)] if path is not None else []
        if row is not None:
            place.append(f"row {row}")
        if column is not None:
            place.append(f"column {column}")
        super().__init__(f"{', '.join(place)}: {message}" if place else message)

    def in_file(self, path: Path) -> TraceError:
        """Return the same error, in another file: the one that the user named."""
        return TraceError(self.message, path=path, row=self.row, column=self.column)


class DeviceError(KvError):
    """A device, directory or output file that cannot be used, or must not be."""

    exit_code = 4


class OutOfMemory(KvError):  # noqa: N818 - as a MemoryError, which it foresees
    """There is too little memory to go on, or to begin."""

    exit_code = 7


class ProbeUnavailable(KvError):  # noqa: N818 - it says what is so, and nothing has gone wrong
    """An optional part that is missing here; the message says what mends it."""

    exit_code = 5


class FailedOperations(KvError):  # noqa: N818 - it names a result, which is kept
    """A replay reached its end, but operations failed or read corrupt blocks.

    Its figures are of the others.
    """

    exit_code = 6


class RankLost(KvError):  # noqa: N818 - it says what became of a rank
    """A rank of a run of several died or fell silent; what was measured is kept."""

    exit_code = 8


def how_to_add(extra: str) -> str:
    """Return the command that installs an optional part of the package."""
    return f"pip install -e '.[{extra}]' in the checkout"


def need_file(path: Path, advice: str = "") -> None:
    """Raise TraceError, with `advice`, unless `path` is a regular file."""
    if not path.is_file():
        raise TraceError(
            ("not a regular file" if path.exists() else "no such file") + advice, path=path
        )


def refuse(
    is_wrong: Array, text: str, *values: Array, path: object, column: str, first_row: int = 0
) -> None:
    """Raise TraceError at the first row that `is_wrong`, a boolean array from row `first_row` of
    `path` on.

    `text` says why, with a place for what each of `values` has there.
    """
    if is_wrong.any():
        at = int(is_wrong.argmax())
        raise TraceError(
            text.format(*(of[at] for of in values)), path=path, row=first_row + at, column=column
        )
