"""A drive file whose every cell is known by a formula, so that tests need no drive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.files import write_json
from kvtrace.core.metrics.distribution import distribution_of as distribution
from kvtrace.core.run.drive_file import DriveCell, DriveFile, DriveTimes
from kvtrace.core.run.run_file import seal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES, DEPTHS, SHARES = (4 << 10, 64 << 10, 1 << 20), (1, 8, 64), (0.0, 0.7, 1.0)
OPERATIONS = 20_000


def usual_ns(size: int, depth: int, share: float, op: int) -> float:
    """Return a mean service time.

    A power of the size and of the depth, writes quicker, mixes slower.
    """
    return (
        50_000
        * (size / 4096) ** 0.6
        * depth**0.7
        * (0.8 if op else 1.0)
        * (1.2 if 0 < share < 1 else 1.0)
    )


def cell(
    size: int,
    depth: int,
    share: float,
    spread: float = 0.4,
    mean_ns: Callable[..., float] = usual_ns,
    held: float = 1,
) -> DriveCell:
    """Return a cell of lognormal times; `held` is how much longer a place of the queue is taken."""
    rng = np.random.default_rng([size, depth, int(share * 10)])
    times: list[DriveTimes | None] = []
    mean = 0.0
    for op, part in enumerate((share, 1 - share)):
        drawn = rng.lognormal(0, spread, OPERATIONS)
        values = (drawn / drawn.mean() * mean_ns(size, depth, share, op)).astype(np.int64)
        found = distribution(values)
        known: Any = {name: getattr(found, name) for name in found.__struct_fields__}
        times.append(DriveTimes(**known) if part else None)
        mean += part * float(values.mean())
    return DriveCell(
        io_bytes=size,
        depth=depth,
        read_share=share,
        operations=OPERATIONS,
        bytes_per_s=size * depth / held / mean * 1e9,
        in_flight=depth / held,
        read=times[0],
        write=times[1],
    )


def drive_of(cells: list[DriveCell]) -> DriveFile:
    """Return a drive file of `cells`."""
    found = DriveFile(
        argv=["kvreplay", "scorecard"],
        started_utc="2026-11-25T00:00:00+00:00",
        kernel=None,
        device="nvme0n1",
        model="EXAMPLE",
        device_bytes=10**12,
        filesystem="xfs",
        file_bytes=2 << 30,
        cells=cells,
        held_out=None,
    )
    return seal(found)


def write_drive(path: Path, **of_cells: Any) -> DriveFile:
    """Write a whole drive file to `path`, and return it."""
    made = drive_of([cell(z, d, s, **of_cells) for z in SIZES for d in DEPTHS for s in SHARES])
    write_json(path, made)
    return made
