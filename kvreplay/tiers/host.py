"""Facts about the machine that a reader of a run needs; null where the system does not tell."""

from __future__ import annotations

import os
import platform
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECTOR_BYTES = 512
_OCTAL = {r"\040": " ", r"\011": "\t", r"\012": "\n", r"\134": "\\"}


def host_facts() -> dict[str, Any]:
    """Return processor, kernel and Python of this machine."""
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str | None:
    for line in (sys_text(Path("/proc/cpuinfo")) or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return None


def sys_text(path: Path) -> str | None:
    """Return the text of a small system file; null if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def filesystem_facts(target: Path) -> dict[str, Any]:
    """Return the filesystem that holds `target`, its mount options, and the device beneath; null if there is none."""
    facts: dict[str, Any] = {
        "filesystem": None,
        "mount_point": None,
        "mount_options": None,
        "device": None,
        "device_model": None,
        "scheduler": None,
    }
    mount = None if target.is_block_device() else _mount_of(target.resolve())
    if mount is not None:
        facts |= {"filesystem": mount.kind, "mount_point": mount.point, "mount_options": mount.options}
    block = _block_directory(target)
    disk = block_device(target)
    if block is not None and disk is not None:
        facts["device"] = block.name
        facts["scheduler"] = sys_text(disk / "queue" / "scheduler")
        facts["device_model"] = sys_text(disk / "device" / "model")
    return facts


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem."""

    device: str
    """Its number, such as 259:1."""
    point: str
    kind: str
    options: str


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """Return what is mounted, in order of mounting. Source: proc(5), mountinfo."""
    found = []
    for line in (sys_text(proc / "self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        _id, _parent, device, _root, point, options, *_ = left.split()
        kind, source, super_options = right.split()[:3]
        if device.startswith("0:") and Path(source).is_block_device():
            # Btrfs mounts under a number of its own.
            number = Path(source).stat().st_rdev
            device = f"{os.major(number)}:{os.minor(number)}"
        for octal, character in _OCTAL.items():
            point = point.replace(octal, character)
        together = dict.fromkeys([*options.split(","), *super_options.split(",")])
        found.append(Mount(device, point, kind, ",".join(together)))
    return found


def _mount_of(path: Path) -> Mount | None:
    above = [m for m in mounts() if path == Path(m.point) or Path(m.point) in path.parents]
    # Of two at one point, the later hides the earlier.
    return max(enumerate(above), key=lambda pair: (len(pair[1].point), pair[0]))[1] if above else None


def block_device(target: Path) -> Path | None:
    """Return where /sys describes the disk beneath `target`; None if it is not seen."""
    block = _block_directory(target)
    # A partition has no queue of its own; its disk, the directory above, has.
    return None if block is None else block if (block / "queue").is_dir() else block.parent


def device_number(target: Path) -> int:
    """Return the number of the device that `target` is or lies on."""
    found = target.stat()
    return found.st_rdev if stat.S_ISBLK(found.st_mode) else found.st_dev


def _block_directory(target: Path) -> Path | None:
    device = device_number(target)
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    return link.resolve() if link.exists() else None


def device_bytes(target: Path) -> tuple[int, int] | None:
    """Return the bytes read and written so far by the device beneath `target`; None if it is not seen.

    Source: /proc/diskstats, in sectors of 512 bytes whatever the device; other programs' I/O is in it too.
    """
    try:
        device = device_number(target)
    except OSError:
        return None
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in (sys_text(Path("/proc/diskstats")) or "").splitlines():
        fields = line.split()
        if fields[:2] == wanted:
            return int(fields[5]) * SECTOR_BYTES, int(fields[9]) * SECTOR_BYTES
    return None
