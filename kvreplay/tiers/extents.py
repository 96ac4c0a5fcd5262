"""The tier on one preallocated file or block device, and the allocator of extents.

Objects are extents of the file or device, so no operation opens or creates a file.

All space is written once before the replay begins. Objects that the replay reads but never writes
get their own content. This matters because a drive answers reads of unwritten blocks without its
medium, and first writes to a file's unwritten extents are slower than overwrites. A cache that has
been full for long does overwrites only.

`Space` allocates extents here and in memory tiers: each object gets the lowest free extent that is
long enough. It is written in C (`core/native/space.c`).
"""

from __future__ import annotations

import mmap
import os
import shutil
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvreplay.tiers import claims, directio
from kvreplay.tiers.claims import Header, claim_device, decode_header, encode_header
from kvreplay.tiers.host import SECTOR_BYTES, filesystem_facts, queue_number
from kvreplay.tiers.tier import Drive, Native, NativeDrive, Region, StorageOptions, TierKind
from kvtrace.core import np
from kvtrace.core.errors import DeviceError
from kvtrace.core.native.library import call
from kvtrace.core.units import format_bytes


class Space:
    """The allocator of extents in `size_bytes`; the engine's threads share it."""

    def __init__(self, size_bytes: int, unit_bytes: int, reserved_bytes: int) -> None:
        """Allocate whole units of `unit_bytes`.

        The first `reserved_bytes`, whole units too, are never allocated.
        """
        self._size_bytes = size_bytes
        self.address = call("space_open", size_bytes, unit_bytes, reserved_bytes)
        """Address of the C structure of the space."""
        weakref.finalize(self, call, "space_close", self.address)

    def expect(self, grown: Mapping[int, int]) -> None:
        """Note the final length of objects that grow: their extents get that length at once."""
        for object_id, length in grown.items():
            call("space_expect", self.address, object_id, length)

    def reserve(self, object_id: int, length: int) -> int:
        """Allocate an extent of `length` bytes, rounded up, for an object.

        Return its start, or minus an errno.

        An object that has an extent of that length keeps it. ENOSPC: no free extent is long enough;
        EFBIG: the object has a shorter extent.
        """
        return call("space_reserve", self.address, object_id, length)

    def reserve_all(self, objects: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Reserve an extent for each of `objects` (int64 both)."""
        ids = np.ascontiguousarray(objects, np.int64)
        id_lengths = np.ascontiguousarray(lengths, np.int64)
        starts = np.empty(len(ids), np.int64)
        call("space_reserve_all", self.address, ids, id_lengths, starts, len(ids))
        return starts

    def start(self, object_id: int) -> int:
        """Return the start of an object's extent, or minus ENOENT."""
        return call("space_find", self.address, object_id, None)

    def release(self, object_id: int) -> int:
        """Free an object's extent; return 0, or minus ENOENT."""
        return call("space_release", self.address, object_id)

    def _facts(self) -> list[int]:
        """Return the number of objects, their bytes, and the highest end of any extent so far."""
        counts = np.zeros(3, np.int64)
        call("space_facts", self.address, counts, counts[1:], counts[2:])
        return [int(count) for count in counts]

    @property
    def highest_bytes(self) -> int:
        """The highest end of any extent allocated so far."""
        return self._facts()[2]

    def why_no_room(self, object_id: int) -> str:
        """Return the reason why an object finds no extent, and the remedy."""
        objects, live_bytes, _ = self._facts()
        if self.start(object_id) >= 0:
            return f"object {object_id} has a shorter extent"
        return (
            f"no free extent is long enough: {objects:,} objects hold {format_bytes(live_bytes)} of"
            f" {format_bytes(self._size_bytes)}; name a larger target"
        )


SPARE_SHARE = 0.25
"""Space beyond the replay's peak, because free extents lie scattered; a share of that peak."""
_FREE_SHARE = 0.01
"""Share of a filesystem's free space that a file leaves to others, if its peak fits without it."""
FREED_ONLY = "only free space: no I/O to the device"
"""The effect of deletes that do not discard."""
START_BYTES = 1 << 20
"""Offset of the first object; extents, stripes and zones lie at multiples of it."""
_ALLOCATED_UNIT_BYTES = 512
"""The unit of st_blocks."""


class ExtentTier(Drive):
    """Objects as extents of the file or device at `path`."""

    def __init__(self, name: str, path: Path, options: StorageOptions) -> None:
        """Store the tier `name` in the file or device at `path`."""
        super().__init__(name, path, options)
        self.is_device = path.is_block_device()
        self.is_discarding, self._is_placed = options.is_discarding and self.is_device, False
        block_bytes = (
            queue_number(path, "logical_block_size") or SECTOR_BYTES if self.is_device else 0
        )
        self.alignment = max(directio.ALIGNMENT, block_bytes)
        self.written_first_bytes = 0
        """Bytes written before the replay to lay out unwritten space; populated objects excluded.
        """
        self._fd = -1
        self._size_bytes = self._used_bytes = self._filled_bytes = 0
        self._space: Space | None = None

    def open(self, peak_bytes: int) -> None:
        """Claim the target, check that the peak fits, allocate a file of that size, and confirm
        O_DIRECT.
        """
        flags = 0 if self.is_buffered else os.O_DIRECT
        own_peak = self._holding.peak_bytes[0]
        desired = START_BYTES + own_peak + int(own_peak * SPARE_SHARE) + self._holding.ahead_bytes
        if self.is_device:
            self._fd, device = claim_device(
                self._path,
                flags,
                is_destroying=self._options.is_destroying,
                overwritten=self._options.overwritten,
            )
            available = self._size_bytes = device.size_bytes // self.alignment * self.alignment
        else:
            self._fd = claims.claim_file(self._path, flags)
            allocated = os.fstat(self._fd).st_blocks * _ALLOCATED_UNIT_BYTES
            available = shutil.disk_usage(self._path).free + allocated
        if START_BYTES + peak_bytes > available:
            raise self._too_small(peak_bytes, available)
        with mmap.mmap(-1, self.alignment) as block:
            os.preadv(self._fd, [block], 0)
            header = decode_header(block[:])
        self._filled_bytes = 0 if header is None or self.is_discarding else header.filled_bytes
        if not self.is_device:
            available = max(START_BYTES + own_peak, int(available * (1 - _FREE_SHARE)))
        self._used_bytes = min(desired, available) // self.alignment * self.alignment
        # Write the header first, so that a later run recognizes the target even if this one dies.
        self._note_filled(self._filled_bytes)
        if not self.is_device:
            self._size_bytes = self._used_bytes = max(self._used_bytes, self._filled_bytes)
            try:
                directio.allocate(self._fd, self._size_bytes)
            except OSError as error:
                size = format_bytes(self._size_bytes)
                raise DeviceError(
                    f"{self.target}: cannot be made {size} long: {error.strerror}"
                ) from None
        self._device_facts = filesystem_facts(self._path)
        self._space = Space(self._size_bytes, self.alignment, START_BYTES)
        self._space.expect(self._holding.grown)

    def _note_filled(self, filled_bytes: int) -> None:
        block = encode_header(Header(filled_bytes=filled_bytes), self.alignment)
        if not self.is_buffered:
            self._direct = directio.confirm(self._fd, self.target, block)
        else:
            os.pwrite(self._fd, block, 0)
        self._filled_bytes = filled_bytes

    @contextmanager
    def region(self, peak_bytes: int) -> Iterator[Region]:
        """Yield all of the file or device behind the header, for preconditioning to fill."""
        yield Region(self._fd, self.alignment, self._size_bytes - self.alignment)

    @property
    def unwritten(self) -> Region:
        """The region of the replay's space that has not been written since it was allocated."""
        start = max(self.alignment, self._filled_bytes)
        return Region(self._fd, start, max(0, self._used_bytes - start))

    def note_written(self, region: Region) -> None:
        """Note that `region` has been written; it counts if it adjoins the bytes filled before."""
        if (
            region.length
            and region.start <= max(self.alignment, self._filled_bytes)
            and not self.is_discarding
        ):
            os.fdatasync(self._fd)
            self._note_filled(max(self._filled_bytes, region.start + region.length))

    @property
    def space(self) -> Space:
        """The allocator of its extents."""
        assert self._space is not None, "the tier is open"
        return self._space

    def native(self) -> Native:
        """Return its description for the C engine."""
        drive = NativeDrive(fd=self._fd, space=0 if self._space is None else self._space.address)
        names = ("is_synced", "is_discarding", "write_streams")
        return Native(TierKind.EXTENTS, [drive], {name: getattr(self, name) for name in names})

    def why_no_room(self, object_id: int) -> str:
        """Return why an object finds no extent."""
        return self.space.why_no_room(object_id)

    def place(self) -> bool:
        """Note that writes have streams, and how many the device offers."""
        self._is_placed = True
        if self.is_device and not self.is_buffered:
            self.write_streams = directio.device_streams(self._path)
        return True

    def _placement(self) -> dict[str, object]:
        """Return the facts of the streams passed on, or the reason why none are."""
        why_not = None
        if not self.is_device:
            why_not = "its objects share one file, which has one hint"
        elif self.is_buffered:
            why_not = "buffered writes of a device carry none"
        elif self.engine != "uring":
            why_not = "only io_uring carries them, and this is --engine threads"
        elif not self.write_streams:
            why_not = (
                "the kernel offers no write streams there (queue/max_write_streams: FDP, Linux 6.16"
                " or later)"
            )
        return directio.facts(directio.STREAMED, self.write_streams, why_not)

    def facts(self) -> dict[str, object]:
        """Return the facts of the device, its layout, and direct I/O."""
        return {
            **super().facts(),
            "alignment_bytes": self.alignment,
            "layout": (
                f"extents of one {'device' if self.is_device else 'file'}, first fit as the run"
                " goes"
            ),
            "size_bytes": self._size_bytes,
            "highest_bytes": None if self._space is None else self._space.highest_bytes,
            "written_first_bytes": self.written_first_bytes,
            "deletes": "discard" if self.is_discarding else FREED_ONLY,
            **({"streams": self._placement()} if self._is_placed else {}),
            **self._device_facts,
        }

    def close(self) -> None:
        """Release the target; remove a file of ours, but leave a device's content."""
        if self._fd < 0:
            return
        try:
            if not (self.is_device or self._options.is_kept) and (
                self._path.exists() and self._path.stat().st_ino == os.fstat(self._fd).st_ino
            ):
                self._path.unlink()
        finally:
            os.close(self._fd)
            self._fd = -1
