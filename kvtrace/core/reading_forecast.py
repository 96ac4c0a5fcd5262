"""Foresees, while a file is read line by line, whether what is kept of it fits into memory."""

from __future__ import annotations

from pathlib import Path

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.memory import available_bytes, resident_bytes
from kvtrace.core.units import format_bytes

_STEP_BYTES = 16 << 20
"""Between two looks. What a program keeps of less says little about the whole file."""
_COPY_FACTOR = 2.0
"""Memory that a reader takes, relative to what it keeps of the lines.

At the end it puts requests in order of arrival, and looks for block ids that need other names.
"""


class ReadingForecast:
    """Extrapolates the growth of this process to the whole of a file that is being read.

    A log of several GB may take less memory than itself, or more, depending on what its lines
    hold, so its size alone does not tell.
    """

    def __init__(self, path: Path) -> None:
        """Begin before the first line of the file at `path`."""
        self._path = path
        self._file_bytes = path.stat().st_size
        self._read_bytes = self._lines = 0
        self._next_look_bytes = _STEP_BYTES
        self._start_bytes = self._start_read_bytes = 0

    def add_line(self, line_bytes: int) -> None:
        """Count a line of the file.

        OutOfMemory if what is kept of all its lines will not fit into memory.
        """
        self._read_bytes += line_bytes
        self._lines += 1
        if self._read_bytes >= self._next_look_bytes:
            self._next_look_bytes = self._read_bytes + _STEP_BYTES
            self._look()

    def _look(self) -> None:
        resident, available = resident_bytes(), available_bytes()
        if resident is None or available is None:
            return
        if not self._start_bytes:
            # The first lines grow tables and load libraries, which later lines do not.
            self._start_bytes, self._start_read_bytes = resident, self._read_bytes
            return
        kept_bytes = max(0, resident - self._start_bytes)
        left = (self._file_bytes - self._start_read_bytes) / (
            self._read_bytes - self._start_read_bytes
        )
        needed_bytes = int(kept_bytes * left * _COPY_FACTOR)
        available += kept_bytes
        if needed_bytes <= available:
            return
        all_lines = self._lines * self._file_bytes / self._read_bytes
        fitting_lines = all_lines * available / needed_bytes
        raise OutOfMemory(
            f"{self._path}: reading all of it needs about {format_bytes(needed_bytes)} of memory, as"
            f" its first {self._read_bytes / self._file_bytes:.0%} shows, but"
            f" {format_bytes(available)} is available; give it more memory, or fewer lines"
            f" (head -n {_rounded_down(fitting_lines)})"
        )


def _rounded_down(lines: float) -> int:
    """Return `lines` less some, with one digit that is not 0."""
    safe_lines = max(1, int(lines * _SAFE_SHARE))
    unit = int(f"1{'0' * (len(str(safe_lines)) - 1)}")
    return safe_lines // unit * unit


_SAFE_SHARE = 0.9
"""How much of what is foreseen to fit is recommended."""
