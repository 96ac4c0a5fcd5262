"""Facts about the machine that a reader of a run needs; null where the system does not tell."""

from __future__ import annotations

import os
import platform
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


def filesystem_facts(directory: Path) -> dict[str, Any]:
    """Return the filesystem that holds `directory`, its mount options, and the device beneath it."""
    facts: dict[str, Any] = {"filesystem": None, "mount_point": None, "mount_options": None, "device": None,
                             "device_model": None, "scheduler": None}  # fmt: skip
    mount = _mount_of(directory.resolve())
    if mount is not None:
        facts |= mount
    block = _block_directory(directory)
    disk = block_device(directory)
    if block is not None and disk is not None:
        facts["device"] = block.name
        facts["scheduler"] = sys_text(disk / "queue" / "scheduler")
        facts["device_model"] = sys_text(disk / "device" / "model")
    return facts


def _mount_of(directory: Path) -> dict[str, Any] | None:
    best = None
    for line in (sys_text(Path("/proc/self/mounts")) or "").splitlines():
        _source, point, kind, options, *_ = line.split()
        for octal, character in _OCTAL.items():
            point = point.replace(octal, character)
        is_above = directory == Path(point) or Path(point) in directory.parents
        if is_above and (best is None or len(point) >= len(best["mount_point"])):
            best = {"filesystem": kind, "mount_point": point, "mount_options": options}
    return best


def block_device(directory: Path) -> Path | None:
    """Return where /sys describes the disk beneath `directory`; None if it is not seen."""
    block = _block_directory(directory)
    # A partition has no queue of its own; its disk, the directory above, has.
    return None if block is None else block if (block / "queue").is_dir() else block.parent


def _block_directory(directory: Path) -> Path | None:
    device = directory.stat().st_dev
    link = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    return link.resolve() if link.exists() else None


def device_bytes(directory: Path) -> tuple[int, int] | None:
    """Return the bytes read and written so far by the device beneath `directory`; None if it is not seen.

    Source: /proc/diskstats, in sectors of 512 bytes whatever the device; other programs' I/O is in it too.
    """
    try:
        device = directory.stat().st_dev
    except OSError:
        return None
    wanted = [str(os.major(device)), str(os.minor(device))]
    for line in (sys_text(Path("/proc/diskstats")) or "").splitlines():
        fields = line.split()
        if fields[:2] == wanted:
            return int(fields[5]) * SECTOR_BYTES, int(fields[9]) * SECTOR_BYTES
    return None
