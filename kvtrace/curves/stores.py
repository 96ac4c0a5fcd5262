"""Stores that KV caches are loaded from, as `kvtrace breakeven` takes them.

A store is a bandwidth and a latency, written NAME=BANDWIDTH[,LATENCY][,POWER], or a drive file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.run.drive_file import DriveCell, DriveFile
from kvtrace.core.units import (
    NS_PER_S,
    format_duration,
    format_io_size,
    format_rate,
    parse_bytes,
    parse_duration_ns,
)

_EXAMPLES: Final = ("nvme=7GB/s,100us", "object=25GB/s,30ms")
"""A PCIe 4.0 drive, and an object store whose bandwidth is that of a 200 Gb/s link."""
_DRIVE_PREFIX: Final = "sim:"
_BITS: Final = re.compile(r"[KMGTP]i?b(it)?(/s|ps)?$")
"""A unit in which networks are rated: 25 Gb/s are 3.1 GB/s."""
_FORM: Final = (
    "write NAME=BANDWIDTH,LATENCY, such as qlc=3GB/s,100us, with a power such as 20W if it is"
    " known; or the path of a drive file, such as sim:drive.json"
)


@dataclass(frozen=True, slots=True)
class Store:
    """Where KV caches are loaded from."""

    name: str
    bandwidth_bytes_per_s: float
    latency_ns: int
    """Time until the first byte of a load."""
    power_w: float | None = None
    """Power while it reads; None if it is not known."""
    note: str | None = None
    """Where the figures come from, if the user did not give them."""
    is_assumed: bool = False
    """Whether the figures are examples."""

    def describe(self) -> str:
        """Return the name and the figures that decide, such as "s3 (5.00 GB/s, 30.0 ms)"."""
        latency = f", {format_duration(self.latency_ns)}" if self.latency_ns else ""
        assumed = "assumed " if self.is_assumed else ""
        return f"{self.name} ({assumed}{format_rate(self.bandwidth_bytes_per_s)}{latency})"

    def load_ns(self, size_bytes: Array | int, loads: int = 1) -> Array:
        """Return the time of a load of `size_bytes`, ns, while `loads` share the bandwidth."""
        sizes = np.asarray(size_bytes, np.float64)
        return self.latency_ns + sizes * loads / self.bandwidth_bytes_per_s * NS_PER_S


def example_stores() -> list[Store]:
    """Return the stores of a user who names none: a drive, and an object store."""
    own = named("stores", "s3=5GB/s,30ms")
    return [
        replace(
            store,
            note=f"{store.describe()} is assumed; give your own, such as {own}",
            is_assumed=True,
        )
        for store in parse_stores(_EXAMPLES)
    ]


def parse_stores(texts: Sequence[str]) -> list[Store]:
    """Return the stores that `texts` describe.

    ConfigError for text of another form and for names that repeat; TraceError for a damaged drive
    file.
    """
    stores = [_parse_store(text) for text in texts]
    names = [store.name for store in stores]
    if not stores or len(set(names)) < len(names):
        raise ConfigError(f"{named('stores')}: give one or more, each with a name of its own")
    return stores


def _parse_store(text: str) -> Store:
    name, equals, figures = text.rpartition("=")
    if equals and not name:
        raise ConfigError(f"{named('stores', text)}: {_FORM}")
    if figures.startswith(_DRIVE_PREFIX) or figures.endswith(".json"):
        path = Path(figures.removeprefix(_DRIVE_PREFIX))
        return _drive_store(name or path.stem, DriveFile.read(path))
    bandwidth, *details = (field.strip() for field in figures.split(","))
    if _BITS.search(bandwidth):
        raise ConfigError(
            f"{named('stores', text)}: {bandwidth} may be bits; write bytes, such as 3GB/s"
        )
    powers = [field for field in details if field.endswith("W")]
    latencies = [field for field in details if not field.endswith("W")]
    try:
        bytes_per_s = parse_bytes(bandwidth.removesuffix("/s"))
        latency_ns = _latency_ns(latencies[0]) if latencies else 0
        power_w = float(powers[0].removesuffix("W")) if powers else None
    except (ConfigError, ValueError):
        raise ConfigError(f"{named('stores', text)}: {_FORM}") from None
    is_valid = bytes_per_s > 0 and latency_ns >= 0 and (power_w is None or 0 < power_w < np.inf)
    if not is_valid or len(powers) > 1 or len(latencies) > 1:
        raise ConfigError(f"{named('stores', text)}: {_FORM}")
    return Store(name or text, float(bytes_per_s), latency_ns, power_w)


def _latency_ns(text: str) -> int:
    """Return the latency `text`; ConfigError without a unit, because 100 is hardly in seconds."""
    if text[-1:].isdigit() and float(text) != 0:
        raise ConfigError(f"{text} has no unit")
    return parse_duration_ns(text)


def _drive_store(name: str, drive: DriveFile) -> Store:
    """Return a measured drive: the fastest of its cells with the most reads, and the latency there.

    The latency is the mean time of one I/O of that size alone, less the time in which the drive
    transfers its bytes at that rate.
    """
    measured = [cell for cell in drive.cells if cell.bytes_per_s and cell.read is not None]
    most_reads = max(cell.read_share for cell in measured)
    reading = [cell for cell in measured if cell.read_share == most_reads]
    fastest = max(reading, key=lambda cell: cell.bytes_per_s or 0.0)
    alone = min(
        (cell for cell in reading if cell.io_bytes == fastest.io_bytes),
        key=lambda cell: cell.depth,
    )
    bytes_per_s = fastest.bytes_per_s or 0.0
    note = (
        f"{name}: {drive}: {format_rate(bytes_per_s)} is the fastest of its cells"
        f" ({format_io_size(fastest.io_bytes)} at queue depth {fastest.depth})"
    )
    return Store(name, bytes_per_s, _first_byte_ns(alone, bytes_per_s), note=note)


def _first_byte_ns(cell: DriveCell, bytes_per_s: float) -> int:
    """Return the mean time of an I/O of `cell`, less what its bytes take at `bytes_per_s`."""
    mean_ns = 0.0 if cell.read is None else cell.read.mean_ns or 0.0
    return max(0, round(mean_ns - cell.io_bytes / bytes_per_s * NS_PER_S))
