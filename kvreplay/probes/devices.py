"""Which disks serve a device: a partition's disk, and those beneath device mapper and md."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvreplay.tiers.host import slaves
from kvtrace.core.errors import DeviceError

MINOR_BITS = 20
"""Of a device number inside the kernel."""
ZONES = 1024
"""Of the map of where a disk is read and written."""
MIN_ZONE_SHIFT = 11
_SYS = Path("/sys")


@dataclass(frozen=True, slots=True)
class Disk:
    """A device whose requests the probes see."""

    name: str
    number: int
    """As the kernel has it: major << 20 | minor."""


def resolve(device: Path, sys: Path = _SYS) -> list[Disk]:
    """Return the disks that serve `device`, the path of a block device.

    Raises:
        DeviceError: there is no such block device, or the system does not describe it.

    """
    try:
        status = device.stat()
    except OSError as error:
        raise DeviceError(f"{device}: {error.strerror}; name a block device such as /dev/nvme0n1") from None
    if not stat.S_ISBLK(status.st_mode):
        raise DeviceError(f"{device} is not a block device; name one such as /dev/nvme0n1")
    return beneath(os.major(status.st_rdev), os.minor(status.st_rdev), sys)


def beneath(major: int, minor: int, sys: Path = _SYS) -> list[Disk]:
    """Return the disks beneath the device of this number, in order of name."""
    entry = sys / "dev" / "block" / f"{major}:{minor}"
    if not entry.exists():
        raise DeviceError(f"{entry} does not exist: the system does not describe device {major}:{minor}")
    found: dict[str, Disk] = {}
    _descend(entry.resolve(), found)
    return [found[name] for name in sorted(found)]


def _descend(block: Path, found: dict[str, Disk]) -> None:
    if (block / "partition").exists():
        block = block.parent
    below = slaves(block)
    for one in below:
        _descend(one, found)
    if not below:
        major, _, minor = (block / "dev").read_text(encoding="ascii").strip().partition(":")
        found[block.name] = Disk(block.name, int(major) << MINOR_BITS | int(minor))


def above(disks: Sequence[Disk], sys: Path = _SYS) -> list[int]:
    """Return the numbers of all devices whose I/O any of `disks` does: itself, partitions, dm and md upon them."""
    wanted = {disk.number for disk in disks}
    found = []
    for entry in sorted((sys / "dev" / "block").iterdir()) if wanted else ():
        major, _, minor = entry.name.partition(":")
        if wanted & {disk.number for disk in beneath(int(major), int(minor), sys)}:
            found.append(int(major) << MINOR_BITS | int(minor))
    return found


def zone_shift(disks: Sequence[Disk], sys: Path = _SYS) -> int:
    """Return by how many bits a sector is shifted for the zone it lies in: at most ZONES a disk, 1 MiB at least.

    Without `disks`, by the largest of all.
    """
    names = [disk.name for disk in disks] or [entry.name for entry in (sys / "block").iterdir()]
    sizes = [sys / "block" / name / "size" for name in names]
    sectors = max((int(size.read_text(encoding="ascii")) for size in sizes if size.is_file()), default=0)
    return max(MIN_ZONE_SHIFT, (max(sectors - 1, 0) // ZONES).bit_length())


def device_name(number: int, sys: Path = _SYS) -> str:
    """Return the name of the device that the kernel numbers `number`, or its number if it is gone."""
    major, minor = number >> MINOR_BITS, number & (1 << MINOR_BITS) - 1
    entry = sys / "dev" / "block" / f"{major}:{minor}"
    return entry.resolve().name if entry.exists() else f"{major}:{minor}"
