"""Host memory: objects are buffers, and every operation is a copy."""

from __future__ import annotations

import os
from typing import Any

from kvreplay.plan.buffers import PAGE_BYTES, huge_bytes, map_aligned, touch
from kvreplay.tiers.extents import Space
from kvreplay.tiers.tier import Native, NativeDrive, Tier, TierKind
from kvtrace.core import np
from kvtrace.core.errors import DeviceError
from kvtrace.core.memory import available_bytes
from kvtrace.core.parameters import entry
from kvtrace.core.units import format_bytes

SINK_BYTES = 128 << 20
"""Size of the memory that reads are copied to in turn.

A smaller one would stay in the processor's cache.
"""
LINE_BYTES = 64
_SPARE_BYTES = 1 << 40
"""Address space beyond the replay's peak.

Free extents lie scattered, and verified objects take whole pages.
"""

_SPREAD_BYTES = 2 << 20
"""Memory touched before the replay beyond its peak and a 64th of that.

Objects begin on cache lines, and free extents lie between them.
"""

MAX_COPIERS = 8
"""Few threads come near a socket's bandwidth, and more would only take processors."""


def copy_threads() -> int:
    """Return the number of threads that copy to and from memory: half of our processors."""
    return max(1, min(MAX_COPIERS, len(os.sched_getaffinity(0)) // 2))


class RamTier(Tier):
    """Objects in DRAM, written from generated data and read by copying them out.

    They lie in one piece of memory that is allocated before the replay begins, as caching stacks
    allocate pinned memory.
    """

    engine = "memory"
    is_copied = True
    target = "ram"

    def __init__(self, name: str, io_bytes: int, *, is_verified: bool = False) -> None:
        """Store objects of the tier `name`; each copy has at most `io_bytes`.

        A verified tier stores whole blocks, and copies the data of reads to buffers to be checked.
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
        """Check that the trace's peak fits the available memory, and allocate it."""
        need = peak_bytes + SINK_BYTES
        available = available_bytes()
        if available is not None and need > available:
            raise DeviceError(
                f"{entry('tiers', self.name, 'ram')}: the replay needs up to {format_bytes(need)}"
                " there, but"
                f" only {format_bytes(available)} of memory is available;"
                f" {self._holding.advice(self.name, available - SINK_BYTES)}"
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
            # Address space for objects, which uses no memory until it is touched.
            mapping, first = map_aligned(size)
        except OSError as error:
            raise DeviceError(
                f"{entry('tiers', self.name, 'ram')}: {format_bytes(size)} of memory are refused:"
                f" {error.strerror}"
            ) from None
        self._memory = np.frombuffer(mapping, dtype=np.uint8)[first : first + size]
        self._address = int(self._memory.ctypes.data)
        # The peak counts bytes, so objects in whole pages would need more memory than was touched.
        self._space = Space(size, PAGE_BYTES if self._is_verified else LINE_BYTES, 0)
        self._space.expect(self._holding.grown)
        spread = _SPREAD_BYTES if self._touched_bytes else 0
        self._touched_bytes = min(
            self._touched_bytes + self._touched_bytes // 64 + spread, int(self._memory.nbytes)
        )
        touch(self._address, self._touched_bytes)

    def native(self) -> Native:
        """Return its description for the C engine."""
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
        """Return the reason why an object does not fit."""
        return None if self._space is None else self._space.why_no_room(object_id)

    def facts(self) -> dict[str, object]:
        """Return the facts of its memory and copies."""
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
