"""The memory that this process can still allocate."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kvtrace.core.errors import OutOfMemory
from kvtrace.core.mounts import control_groups
from kvtrace.core.system_files import sys_text
from kvtrace.core.units import INT64_MAX, format_bytes

_MACHINE = Path("/proc/meminfo")


class MemoryLimit(NamedTuple):
    """A limit beyond which the kernel kills processes: the machine's memory, or a control group's."""

    limit_bytes: int
    """What all processes under this limit may have together."""
    used: Path | None
    """File with the bytes in use; None for the machine, whose `stat` has what is available."""
    stat: Path
    """File with the bytes of cached files, or with the memory that is available on the machine.

    The kernel drops cached files before it refuses memory. Those that were read twice are
    `active`, which delays their turn, but protects none of them.
    """
    keys: tuple[str, ...]
    """Prefixes of the lines of `stat` to add up: KiB for the machine, bytes for a control group."""
    kernel_used: Path | None = None
    """File with the bytes of the kernel's own objects, if `stat` does not tell of those.

    Most of them are names and inodes of files, which the kernel drops as it does cached files.
    """
    swap_bytes: int = INT64_MAX
    """Swap space that the kernel may use before it kills a process, as far as there is any."""
    swap_used: Path | None = None
    """File with the bytes of `swap_bytes` in use; None if that has no limit of its own."""

    @property
    def free_bytes(self) -> int | None:
        """How much can still be allocated; None if the files cannot be read."""
        numbers = _numbers(self.stat, self.keys)
        if self.used is None:
            return sum(numbers) * 1024 if numbers else None
        used = sys_text(self.used)
        kernel = sys_text(self.kernel_used) if self.kernel_used is not None else None
        dropped_bytes = sum(numbers) + int(kernel or 0) * 3 // 4
        return self.limit_bytes - int(used) + dropped_bytes if used else None


def available_bytes() -> int | None:
    """Return the memory that this process can still allocate; null if unknown.

    It is the least of the kernel's available memory, the room in the limits of its control group
    and of the groups above, and the room in `ulimit -v`.
    """
    free_by_limit = [free for limit in memory_limits() if (free := limit.free_bytes) is not None]
    address_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    statm = sys_text(Path("/proc/self/statm"))
    if address_limit not in (resource.RLIM_INFINITY, -1) and statm is not None:
        free_by_limit.append(address_limit - int(statm.split()[0]) * resource.getpagesize())
    return max(0, min(free_by_limit)) if free_by_limit else None


def require_memory(needed_bytes: int, operation: str, advice: str, detail: str = "") -> None:
    """Check, before `operation` begins, that it fits into the memory that is available.

    OutOfMemory, with both figures and `advice`, if it does not; `detail` explains the first figure.
    """
    available = available_bytes()
    if available is not None and needed_bytes > available:
        raise OutOfMemory(
            f"{operation} needs about {format_bytes(needed_bytes)} of memory"
            f"{f' ({detail})' if detail else ''}, but"
            f" {format_bytes(available)} is available; {advice}"
        )


def memory_limits() -> Iterator[MemoryLimit]:
    """Yield the limits of the machine, of this process's control group, and of the groups above."""
    total = _numbers(_MACHINE, ("MemTotal:",))
    machine_bytes = total[0] * 1024 if total else INT64_MAX
    if total:
        yield MemoryLimit(machine_bytes, None, _MACHINE, ("MemAvailable:",))
    for group in control_groups("memory"):
        for files in _GROUP_FILES:
            limit = sys_text(group / files.limit)
            # A group without a limit has "max" in version 2, and some 2^63 bytes in version 1.
            if limit is None or not limit.isdecimal() or int(limit) >= machine_bytes:
                continue
            swap_limit = sys_text(group / files.swap_limit)
            swap_bytes = int(swap_limit) if swap_limit and swap_limit.isdecimal() else INT64_MAX
            if swap_limit is None:  # A kernel that does not count swap space
                swap_bytes = 0
            used, stat = group / files.used, group / "memory.stat"
            swap_used = group / files.swap_used
            kernel_used = group / files.kernel_used if files.kernel_used else None
            yield MemoryLimit(
                int(limit), used, stat, files.cached, kernel_used, swap_bytes, swap_used
            )


class _GroupFiles(NamedTuple):
    """The files of a control group that tell its memory, in one version of control groups."""

    limit: str
    used: str
    cached: tuple[str, ...]
    """Prefixes of the lines of memory.stat that tell of what the kernel drops."""
    kernel_used: str
    """Empty if memory.stat tells how much of the kernel's objects can be dropped."""
    swap_limit: str
    """In version 1, memory and swap space together."""
    swap_used: str


_GROUP_FILES = (
    _GroupFiles(
        "memory.max",
        "memory.current",
        ("inactive_file ", "active_file ", "slab_reclaimable "),
        "",
        "memory.swap.max",
        "memory.swap.current",
    ),
    _GroupFiles(
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file ", "total_active_file "),
        "memory.kmem.usage_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.memsw.usage_in_bytes",
    ),
)
"""Of version 2 and of version 1."""


def resident_bytes() -> int | None:
    """Return the memory that this process has now; null if unknown."""
    statm = sys_text(Path("/proc/self/statm"))
    return None if statm is None else int(statm.split()[1]) * resource.getpagesize()


def _numbers(path: Path, keys: tuple[str, ...]) -> list[int]:
    """Return the numbers of the lines of a system file that begin with one of `keys`."""
    lines = (sys_text(path) or "").splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(keys)]
