"""The drive file: a drive's measured times by I/O size, queue depth and share of reads.

`kvreplay scorecard` writes it; `sim:drive.json` replays on it, and `kvtrace breakeven` takes it as
a store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import msgspec

from kvtrace import __version__
from kvtrace.core.errors import TraceError
from kvtrace.core.files import read_json
from kvtrace.core.run.figures import Distribution
from kvtrace.core.run.run_file import seal

OPS: Final = ("read", "write")


class DriveTimes(Distribution, frozen=True, forbid_unknown_fields=True):
    """Latencies of one direction's I/Os in a cell, from submission to completion."""


class DriveCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The drive's measurements for one I/O size, one queue depth and one share of reads.

    Unmeasured values are null.
    """

    io_bytes: int
    depth: int
    read_share: float
    operations: int | None = None
    bytes_per_s: float | None = None
    """From the first submission to the last completion."""
    in_flight: float | None = None
    """Average number in flight in that time; submission makes it less than `depth`."""
    read: DriveTimes | None = None
    """Null if nothing was read."""
    write: DriveTimes | None = None
    reason: str | None = None
    """The reason why the cell is null."""


class DriveError(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Errors of the predictions for cells that were held out of a fit to the other cells.

    An error is |predicted / measured - 1|.
    """

    cells: int
    """Number of cells held out: every third."""
    bandwidth_median: float
    bandwidth_greatest: float
    p99_median: float | None
    """Null if no cell had enough operations."""
    p99_greatest: float | None


class DriveFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The measurements of a drive: drive.json."""

    schema_version: int = 1
    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    started_utc: str
    kernel: str | None
    device: str | None
    """Null if no block device is visible; then the measurements may not be a drive's."""
    model: str | None
    device_bytes: int | None
    filesystem: str | None
    file_bytes: int
    """Length of the file that was read and written; all of it was written before."""
    cells: list[DriveCell]
    held_out: DriveError | None
    """Null if there are too few cells."""
    sha256: str | None = None
    """Checksum of all other fields, as `seal` computes it."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the drive file at `path`.

        TraceError if it is not a drive file, is damaged, or has no reads or no writes.
        """
        misfit = "not a drive file of this version of kvreplay: {}; kvreplay scorecard makes one"
        drive = read_json(path, cls, misfit=misfit)
        if drive.sha256 != seal(drive).sha256:
            raise TraceError("damaged: its content is not what was written", path=path)
        for op in OPS:
            if not any(cell.bytes_per_s and getattr(cell, op) for cell in drive.cells):
                raise TraceError(
                    f"no cell of it has {op}s; measure the drive again (kvreplay scorecard)",
                    path=path,
                )
        return drive

    def __str__(self) -> str:
        return (
            f"{self.device or 'unknown device'}, {self.model or 'unknown model'}, measured"
            f" {self.started_utc[:10]}"
        )
