"""Mounted filesystems, the block devices beneath them, and this process's control groups."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvtrace.core.system_files import sys_text

_VERSION_1, _VERSION_2 = "cgroup", "cgroup2"
"""The types of filesystems of control groups."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem."""

    device: str
    """Its number, such as 259:1."""
    point: str
    kind: str
    options: str


def mounts(proc: Path = Path("/proc")) -> list[Mount]:
    """Return the mounts in order of mounting. Source: proc(5), mountinfo."""
    return _parse_mounts(sys_text(proc / "self/mountinfo") or "")


def _parse_mounts(lines: str) -> list[Mount]:
    """Return the mounts of the text of mountinfo."""
    entries = []
    for line in lines.splitlines():
        mount_fields, _, filesystem_fields = line.partition(" - ")
        _id, _parent, device, _root, point, options, *_ = mount_fields.split()
        kind, source, super_options = filesystem_fields.split()[:3]
        if device.startswith("0:") and Path(source).is_block_device():
            # Btrfs mounts have a device number of their own.
            device = numbered(Path(source).stat().st_rdev)
        all_options = dict.fromkeys([*options.split(","), *super_options.split(",")])
        entries.append(Mount(device, unescaped(point), kind, ",".join(all_options)))
    return entries


def unescaped(point: str) -> str:
    """Return the mount point that a table of mounts lists as `point`.

    Such tables write blanks as \\040 (proc(5)).
    """
    return re.sub(r"\\([0-7]{3})", lambda escape: chr(int(escape[1], 8)), point)


def numbered(device: int) -> str:
    """Return the number of a device as /sys writes it, such as 259:1."""
    return f"{os.major(device)}:{os.minor(device)}"


def block_directories(sys: Path = Path("/sys")) -> dict[str, Path]:
    """Return the directory in /sys of each block device, by its number, such as 259:1.

    Empty if the system shows none. A container may hide /sys/dev/block, as podman's do, but still
    show the devices by their names.
    """
    with suppress(OSError):
        if links := list((sys / "dev" / "block").iterdir()):
            return {link.name: link.resolve() for link in links}
    return {
        number: link.resolve()
        for link in (sys / "class" / "block").glob("*")
        if (number := sys_text(link / "dev"))
    }


def block_directory(number: str, sys: Path = Path("/sys")) -> Path | None:
    """Return the directory in /sys of the block device with this number; None if it is hidden, or
    if no block device has the number.
    """
    link = sys / "dev" / "block" / number
    with suppress(OSError):
        return link.resolve(strict=True)
    # Filesystems without a device have numbers such as 0:26, which no block device has.
    return None if number.startswith("0:") else block_directories(sys).get(number)


def control_groups(controller: str, proc: Path = Path("/proc")) -> tuple[Path, ...]:
    """Return the directories of the control groups that limit this process by `controller`.

    They go from its own group up to the topmost that is visible, in a hierarchy of version 1 that
    has the controller and in that of version 2, which may lack the controller's files. Source:
    cgroups(7).
    """
    mount_lines = sys_text(proc / "self/mountinfo") or ""
    group_lines = sys_text(proc / "self/cgroup") or ""
    return _group_directories(controller, mount_lines, group_lines)


@lru_cache(maxsize=4)
def _group_directories(controller: str, mount_lines: str, group_lines: str) -> tuple[Path, ...]:
    """Return the directories of `control_groups`, which a simulation asks for hundreds of times.

    They are found again only if the mounts or the groups of this process have changed.
    """
    hierarchies = [
        mount
        for mount in _parse_mounts(mount_lines)
        if mount.kind == _VERSION_2
        or (mount.kind == _VERSION_1 and controller in mount.options.split(","))
    ]
    directories: list[Path] = []
    for line in group_lines.splitlines():
        _number, controllers, path = line.split(":", 2)
        kind = _VERSION_2
        if controllers:
            kind = _VERSION_1 if controller in controllers.split(",") else ""
        for mount in hierarchies:
            if mount.kind != kind:
                continue
            top = Path(mount.point)
            own_group = top / path.lstrip("/")
            # In a namespace of control groups, the path may lie outside of what is mounted.
            group = own_group if own_group.is_dir() else top
            directories += (
                directory
                for directory in (group, *group.parents)
                if directory == top or top in directory.parents
            )
    return tuple(directories)
