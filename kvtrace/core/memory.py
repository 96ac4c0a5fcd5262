"""The memory that this process can still allocate."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.mounts import control_groups
from kvtrace.core.system_files import sys_text
from kvtrace.core.units import format_bytes

_MACHINE = Path("/proc/meminfo")


class MemoryLimit(NamedTuple):
    """A limit beyond which the kernel kills processes: the machine's memory, or a control group's."""

    limit_bytes: int
    """What all processes under this limit may have together."""
    used: Path | None
    """The file that tells how much is used. None for the machine, of which the kernel tells what
    is available."""
    stat: Path
    """The file that tells what is available, or how much of what is used are cached files.

    The kernel drops cached files before it refuses memory. Those that were read twice are
    `active`, which delays their turn, but protects none of them.
    """
    keys: tuple[str, str]
    """How lines of `stat` begin whose numbers are added: of the machine in KiB, else in bytes."""
    may_swap: bool = True
    """Whether the kernel may move pages to swap space before it kills a process."""

    @property
    def free_bytes(self) -> int | None:
        """How much can still be allocated; None if the files cannot be read."""
        numbers = _numbers(self.stat, self.keys)
        if self.used is None:
            return sum(numbers) * 1024 if numbers else None
        used = sys_text(self.used)
        return self.limit_bytes - int(used) + sum(numbers) if used else None


def available_bytes() -> int | None:
    """Return the memory that this process can still allocate; null if unknown.

    It is the least of the kernel's available memory, the room in the limits of its control group
    and of the groups above, and the room in `ulimit -v`.
    """
    rooms = [room for limit in limits_of_memory() if (room := limit.free_bytes) is not None]
    address_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    statm = sys_text(Path("/proc/self/statm"))
    if address_limit not in (resource.RLIM_INFINITY, -1) and statm is not None:
        rooms.append(address_limit - int(statm.split()[0]) * resource.getpagesize())
    return max(0, min(rooms)) if rooms else None


def require_memory(needed_bytes: int, what: str, instead: str) -> None:
    """Check, before `what` is begun, that it fits into the memory that is available.

    OutOfMemory, with both figures and what to do `instead`, if it does not.
    """
    available = available_bytes()
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"{what} needs about {format_bytes(needed_bytes)} of memory, but"
            f" {format_bytes(available)} is available; {instead}"
        )


def limits_of_memory() -> Iterator[MemoryLimit]:
    """Yield the limits of the machine, of this process's control group, and of the groups above."""
    if total := _numbers(_MACHINE, ("MemTotal:",)):
        yield MemoryLimit(total[0] * 1024, None, _MACHINE, ("MemAvailable:",) * 2)
    for group in control_groups("memory"):
        for limit_file, used_file, keys, swap_file, no_swap in _GROUP_FILES:
            limit = sys_text(group / limit_file)
            if limit is not None and limit.isdecimal():
                swap_limit = sys_text(group / swap_file)
                may_swap = swap_limit is not None and swap_limit != (no_swap or limit)
                used, stat = group / used_file, group / "memory.stat"
                yield MemoryLimit(int(limit), used, stat, keys, may_swap)


_GROUP_FILES = (
    ("memory.max", "memory.current", ("inactive_file ", "active_file "), "memory.swap.max", "0"),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file ", "total_active_file "),
        "memory.memsw.limit_in_bytes",
        "",
    ),
)
"""Of control groups of version 2 and of version 1: files of the limit and of what is used, lines of
memory.stat that tell of cached files, the file of the limit with swap space, and its content if
there is none; empty if that is the content of the first file."""


def resident_bytes() -> int | None:
    """Return the memory that this process has now; null if unknown."""
    statm = sys_text(Path("/proc/self/statm"))
    return None if statm is None else int(statm.split()[1]) * resource.getpagesize()


def _numbers(path: Path, keys: tuple[str, ...]) -> list[int]:
    """Return the numbers of the lines of a system file that begin with one of `keys`."""
    lines = (sys_text(path) or "").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(keys)]
