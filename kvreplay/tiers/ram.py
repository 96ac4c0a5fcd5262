"""Host memory: objects are buffers, and every operation is a copy."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path
from typing import Any

from kvreplay.data.buffers import HUGE_PAGE_BYTES, huge_bytes, map_aligned
from kvreplay.tiers.host import sys_text
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import format_bytes

SINK_BYTES = 128 << 20
"""Reads are copied to a place this large in turn: a small one would stay in the processor's cache."""
PAGE_BYTES = 4096


class RamTier:
    """Objects in DRAM; written from generated data, read by copying out."""

    engine = "memory"
    is_simulated = False
    target = "ram"

    def __init__(self, name: str, io_bytes: int, *, is_verified: bool = False) -> None:
        """Hold objects for the tier `name`; copies are of at most `io_bytes` each.

        A verified tier holds whole blocks, and copies what it reads to where it can be checked.
        """
        self.name = name
        self.alignment = PAGE_BYTES if is_verified else 1
        self._is_verified = is_verified
        self._io_bytes, self._is_huge = io_bytes, False
        self._objects: dict[int, Any] = {}

    def open(self, peak_bytes: int) -> None:
        """Check that the trace's peak fits the memory that is free."""
        import numpy as np

        need = peak_bytes + SINK_BYTES
        available = available_bytes()
        if available is not None and need > available:
            raise DeviceError(
                f"--tier {self.name}=ram: the replay holds up to {format_bytes(need)} there, but only "
                f"{format_bytes(available)} of memory is available; replay less with --limit"
            )
        self._numpy = np
        slots = max(2, SINK_BYTES // self._io_bytes)
        self._sink = self._allocate(slots * self._io_bytes).reshape(slots, self._io_bytes)
        self._is_huge = (huge_bytes(self._sink.ctypes.data) or 0) > 0
        self._turn = itertools.cycle(range(slots))

    def reserve(self, object_id: int, end: int) -> None:
        """Allocate and touch the object's buffer, or grow it."""
        held = self._objects.get(object_id)
        if held is not None and len(held) >= end:
            return
        grown = self._allocate(end)
        if held is not None:
            grown[: len(held)] = held
        self._objects[object_id] = grown

    def _allocate(self, nbytes: int) -> Any:
        """Return touched memory, on huge pages from one of them up where the kernel gives them."""
        np = self._numpy
        if nbytes < HUGE_PAGE_BYTES:
            fresh = np.empty(nbytes, dtype=np.uint8)
        else:
            mapping, first = map_aligned(nbytes)
            fresh = np.frombuffer(mapping, dtype=np.uint8)[first : first + nbytes]
        fresh[::PAGE_BYTES] = 0
        return fresh

    def begin(self, op: int, object_id: int) -> Any:
        """Return the object's buffer."""
        held = self._objects.get(object_id)
        if held is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        return held

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        """Copy `data` into the object; numpy lets other threads run meanwhile."""
        handle[offset : offset + len(data)] = self._numpy.frombuffer(data, dtype=self._numpy.uint8)

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        """Copy out of the object to the next place of the sink; `into` would be a cached one."""
        source = handle[offset : offset + len(into)]
        if self._is_verified:
            self._numpy.frombuffer(into, dtype=self._numpy.uint8)[: len(source)] = source
            return len(source)
        self._sink[next(self._turn), : len(source)] = source
        return len(source)

    def end(self, op: int, handle: Any) -> None:
        """Do nothing."""

    def delete(self, object_id: int) -> None:
        """Free the object's memory."""
        if self._objects.pop(object_id, None) is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")

    def facts(self) -> dict[str, Any]:
        """Return how reads and writes are done."""
        sink = None if self._is_verified else SINK_BYTES
        pages = (
            "objects from 2 MiB up on huge pages" if self._is_huge else "on small pages: the kernel gives no huge ones"
        )
        return {
            "is_simulated": False,
            "read_sink_bytes": sink,
            "has_huge_pages": self._is_huge,
            "note": f"copies between DRAM buffers, {pages}",
        }

    def close(self) -> None:
        """Free everything."""
        self._objects.clear()


def available_bytes() -> int | None:
    """Return the memory that this process can still have, by the kernel, its group's limit and `ulimit -v`, or null."""
    found = [left for left in (_free_bytes(), _group_left_bytes(), _address_left_bytes()) if left is not None]
    return max(0, min(found)) if found else None


def _group_left_bytes() -> int | None:
    """Return what the control group at the top of what we see may still take; file cache is given back first."""
    at = Path("/sys/fs/cgroup")
    limit, used, stat = (sys_text(at / f"memory.{name}") for name in ("max", "current", "stat"))
    if limit is None or used is None or not limit.isdecimal():
        return None
    cached = next((int(line.split()[1]) for line in (stat or "").splitlines() if line.startswith("inactive_file ")), 0)
    return int(limit) - int(used) + cached


def _address_left_bytes() -> int | None:
    limit, taken = resource.getrlimit(resource.RLIMIT_AS)[0], sys_text(Path("/proc/self/statm"))
    if limit in (resource.RLIM_INFINITY, -1) or taken is None:
        return None
    return limit - int(taken.split()[0]) * PAGE_BYTES


def _free_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - not a file one would name
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None
