"""Host memory: objects are buffers, and every operation is a copy."""

from __future__ import annotations

import os
from typing import Any

from kvreplay.plan.buffers import PAGE_BYTES, huge_bytes, map_aligned, touch
from kvreplay.tiers.extents import Space
from kvreplay.tiers.tier import Native, NativeDrive, Tier, TierKind
from kvtrace.core import np
from kvtrace.core.errors import DeviceError
from kvtrace.core.files import available_bytes
from kvtrace.core.units import format_bytes

SINK_BYTES = 128 << 20
"""Reads are copied to a place this large in turn.

A small one would stay in the processor's cache.
"""
LINE_BYTES = 64
_SPARE_BYTES = 1 << 40
"""Addresses beyond what the replay holds at most.

Free room lies scattered, and verified objects take whole pages.
"""

_SPREAD_BYTES = 2 << 20
"""Touched beyond what the replay holds at most, and a 64th of that.

Objects lie on lines of the cache, and apart.
"""

MOST_COPIERS = 8
"""Few threads come near a socket's bandwidth, and more would only take processors."""


def copy_threads() -> int:
    """Return how many threads copy to and from memory: half of the processors that we may use."""
    return max(1, min(MOST_COPIERS, len(os.sched_getaffinity(0)) // 2))


class RamTier(Tier):
    """Objects in DRAM; written from generated data, read by copying out.

    They lie in one piece of memory that is taken before the replay begins, as caching stacks do
    with pinned memory.
    """

    engine = "memory"
    is_copied = True
    target = "ram"

    def __init__(self, name: str, io_bytes: int, *, is_verified: bool = False) -> None:
        """Hold objects for the tier `name`; copies are of at most `io_bytes` each.

        A verified tier holds whole blocks, and copies what it reads to where it can be checked.
        """
        self.name = name
        self.alignment = PAGE_BYTES if is_verified else 1
        self._is_verified = is_verified
        self._io_bytes, self._is_huge = io_bytes, False
        self._space: Space | None = None
        self._memory: Any = None
        self._sink: Any = None
        self._address = self._touched_bytes = 0

    def open(self, peak_bytes: int) -> None:
        """Check that the trace's peak fits the memory that is free, and take it."""
        need = peak_bytes + SINK_BYTES
        available = available_bytes()
        if available is not None and need > available:
            raise DeviceError(
                f"--tier {self.name}=ram: the replay holds up to {format_bytes(need)} there, but"
                f" only {format_bytes(available)} of memory is available; replay less with --limit"
            )
        slots = max(2, SINK_BYTES // self._io_bytes)
        mapping, first = map_aligned(slots * self._io_bytes)
        sink = np.frombuffer(mapping, dtype=np.uint8)[first : first + slots * self._io_bytes]
        self._sink = sink.reshape(slots, self._io_bytes)
        touch(self._sink.ctypes.data, self._sink.nbytes)
        self._is_huge = (huge_bytes(self._sink.ctypes.data) or 0) > 0
        self._touched_bytes = self._holding.peak_bytes[0]
        spare = _SPARE_BYTES if available is None else min(_SPARE_BYTES, available - need)
        size = -(-(self._touched_bytes + max(spare, PAGE_BYTES)) // PAGE_BYTES) * PAGE_BYTES
        try:
            # Room for objects, which takes no memory until it is touched.
            mapping, first = map_aligned(size)
        except OSError as error:
            raise DeviceError(
                f"--tier {self.name}=ram: {format_bytes(size)} of memory are refused:"
                f" {error.strerror}"
            ) from None
        self._memory = np.frombuffer(mapping, dtype=np.uint8)[first : first + size]
        self._address = int(self._memory.ctypes.data)
        # Whole pages would take memory that the peak has none of, which the replay had to touch.
        self._space = Space(size, PAGE_BYTES if self._is_verified else LINE_BYTES, 0)
        self._space.expect(self._holding.grown)
        spread = _SPREAD_BYTES if self._touched_bytes else 0
        self._touched_bytes = min(
            self._touched_bytes + self._touched_bytes // 64 + spread, int(self._memory.nbytes)
        )
        touch(self._address, self._touched_bytes)

    def native(self) -> Native:
        """Return how the engine finds it."""
        space = 0 if self._space is None else self._space.address
        sink = (
            {}
            if self._sink is None
            else {"sink": self._sink.ctypes.data, "sink_bytes": self._sink.nbytes}
        )
        drive = NativeDrive(
            space=space, base=self._address, touched_bytes=self._touched_bytes, fd=-1
        )
        return Native(TierKind.MEMORY, [drive], sink)

    def why_no_room(self, object_id: int) -> str | None:
        """Return why an object does not fit."""
        return None if self._space is None else self._space.why_no_room(object_id)

    def facts(self) -> dict[str, object]:
        """Return how reads and writes are done."""
        sink = None if self._is_verified else SINK_BYTES
        pages = (
            "on huge pages" if self._is_huge else "on small pages: the kernel gives no huge ones"
        )
        return {
            "is_simulated": False,
            "read_sink_bytes": sink,
            "has_huge_pages": self._is_huge,
            "copy_threads": copy_threads(),
            "highest_bytes": None if self._space is None else self._space.highest_bytes,
            "note": f"copies between DRAM buffers, {pages}",
        }

    def close(self) -> None:
        """Free everything."""
        self._space = None
        self._memory = self._sink = None
