"""The memory that this process can still allocate."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

from kvtrace.core.files import sys_text
from kvtrace.core.mounts import control_groups


def available_bytes() -> int | None:
    """Return the memory that this process can still allocate; null if unknown.

    It is the least of the kernel's available memory, the room in the limits of its control group
    and of the groups above, and the room in `ulimit -v`.
    """
    lines = (sys_text(Path("/proc/meminfo")) or "").splitlines()
    rooms = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for group in control_groups("memory"):
        rooms += [room for files in _GROUP_FILES if (room := files.room_in(group)) is not None]
    address_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    statm = sys_text(Path("/proc/self/statm"))
    if address_limit not in (resource.RLIM_INFINITY, -1) and statm is not None:
        rooms.append(address_limit - int(statm.split()[0]) * resource.getpagesize())
    return max(0, min(rooms)) if rooms else None


@dataclass(frozen=True, slots=True)
class _GroupFiles:
    """The files of a control group that tell its memory, in one version of control groups."""

    limit: str
    used: str
    cached: str
    """Name, in memory.stat, of file cache that the kernel reclaims before it refuses memory."""

    def room_in(self, group: Path) -> int | None:
        """Return the bytes that `group` can still allocate; None without such files or a limit."""
        limit, used = sys_text(group / self.limit), sys_text(group / self.used)
        if limit is None or used is None or not limit.isdecimal():
            return None
        cached_bytes = sum(
            int(line.split()[1])
            for line in (sys_text(group / "memory.stat") or "").splitlines()
            if line.startswith(f"{self.cached} ")
        )
        return int(limit) - int(used) + cached_bytes


_GROUP_FILES = (
    _GroupFiles("memory.max", "memory.current", "inactive_file"),
    _GroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of version 2 and of version 1."""
