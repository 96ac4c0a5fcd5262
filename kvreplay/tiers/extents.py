"""One preallocated file or block device.

Objects are extents of it, so no operation opens or creates a file.

All its space is written before the replay begins, once: what the replay reads and never writes with
its own content, the rest laid out. A drive answers reads of unwritten blocks without its medium,
and takes first writes of a file's unwritten extents slower than overwrites, which are what it does
in a cache that has been full for long.

`Space` says where objects lie there, and in a tier of memory: each in the lowest free extent that
is long enough, given and taken back in C (`core/native/space.c`).
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
    """Where each object lies in `size_bytes`; the engine's threads share it."""

    def __init__(self, size_bytes: int, unit_bytes: int, reserved_bytes: int) -> None:
        """Hand out whole units of `unit_bytes`.

        The first `reserved_bytes`, whole units too, are never handed out.
        """
        self._size_bytes = size_bytes
        self.address = call("space_open", size_bytes, unit_bytes, reserved_bytes)
        """Address of the C structure of the space."""
        weakref.finalize(self, call, "space_close", self.address)

    def expect(self, grown: Mapping[int, int]) -> None:
        """Note the final length of objects that grow: their extents are made that long."""
        for object_id, length in grown.items():
            call("space_expect", self.address, object_id, length)

    def reserve(self, object_id: int, length: int) -> int:
        """Hand out an extent of `length` bytes, rounded up.

        Return where it begins, or minus an errno.

        An object that has one as long keeps it. ENOSPC: no free extent is long enough; EFBIG: it
        has a shorter one.
        """
        return call("space_reserve", self.address, object_id, length)

    def reserve_all(self, objects: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Reserve an extent for each of `objects` (int64 both)."""
        ids, wanted = (np.ascontiguousarray(each, np.int64) for each in (objects, lengths))
        starts = np.empty(len(ids), np.int64)
        call("space_reserve_all", self.address, ids, wanted, starts, len(ids))
        return starts

    def start(self, object_id: int) -> int:
        """Return where an object begins, or minus ENOENT."""
        return call("space_find", self.address, object_id, None)

    def release(self, object_id: int) -> int:
        """Take an object's extent back; return 0, or minus ENOENT."""
        return call("space_release", self.address, object_id)

    def _facts(self) -> list[int]:
        """Return how many objects there are, their bytes, and the end of the highest byte that was
        ever handed out.
        """
        found = np.zeros(3, np.int64)
        call("space_facts", self.address, found, found[1:], found[2:])
        return [int(each) for each in found]

    @property
    def highest_bytes(self) -> int:
        """The end of the highest byte that was ever handed out."""
        return self._facts()[2]

    def why_no_room(self, object_id: int) -> str:
        """Return why an object finds no extent, and what to do."""
        objects, live_bytes, _ = self._facts()
        if self.start(object_id) >= 0:
            return f"object {object_id} has a shorter extent"
        return (
            f"no free extent is long enough: {objects:,} objects hold {format_bytes(live_bytes)} of"
            f" {format_bytes(self._size_bytes)}; name a larger target"
        )


SPARE_SHARE = 0.25
"""Space beyond what the replay holds at most, because free extents lie scattered."""
FREED_ONLY = "only free space: no I/O to the device"
"""The effect of deletes that do not discard."""
START_BYTES = 1 << 20  # where objects begin: extents, stripes and zones lie at multiples of it
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
        """Laid out before the replay, because it was not written yet.

        Without what was populated.
        """
        self._fd = -1
        self._size_bytes = self._used_bytes = self._filled_bytes = 0
        self._space: Space | None = None

    def open(self, peak_bytes: int) -> None:
        """Claim the target, see that the peak fits, make a file as large as that, and confirm
        O_DIRECT.
        """
        flags = 0 if self.is_buffered else os.O_DIRECT
        held = self._holding.peak_bytes[0]
        wanted = START_BYTES + held + int(held * SPARE_SHARE) + self._holding.ahead_bytes
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
            found = decode_header(block[:])
        self._filled_bytes = 0 if found is None or self.is_discarding else found.filled_bytes
        self._used_bytes = min(wanted, available) // self.alignment * self.alignment
        # First of all, so that a later run knows it as ours, whatever happens to this one.
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
        self._found = filesystem_facts(self._path)
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
        """Yield all of the file or device, behind our own block, to be written full."""
        yield Region(self._fd, self.alignment, self._size_bytes - self.alignment)

    @property
    def unwritten(self) -> Region:
        """The region of the replay's space that was not written since it was allocated."""
        start = max(self.alignment, self._filled_bytes)
        return Region(self._fd, start, max(0, self._used_bytes - start))

    def note_written(self, done: Region) -> None:
        """Note that `done` has been written; it counts if it adjoins what was."""
        if (
            done.length
            and done.start <= max(self.alignment, self._filled_bytes)
            and not self.is_discarding
        ):
            os.fdatasync(self._fd)
            self._note_filled(max(self._filled_bytes, done.start + done.length))

    @property
    def space(self) -> Space:
        """Where objects lie in it."""
        assert self._space is not None, "the tier is open"
        return self._space

    def native(self) -> Native:
        """Return how the engine finds it."""
        drive = NativeDrive(fd=self._fd, space=0 if self._space is None else self._space.address)
        same = ("is_synced", "is_discarding", "write_streams")
        return Native(TierKind.EXTENTS, [drive], {name: getattr(self, name) for name in same})

    def why_no_room(self, object_id: int) -> str:
        """Return why an object finds no extent."""
        return self.space.why_no_room(object_id)

    def place(self) -> bool:
        """Note how many streams the device offers."""
        self._is_placed = True
        if self.is_device and not self.is_buffered:
            self.write_streams = directio.device_streams(self._path)
        return True

    def _placement(self) -> dict[str, object]:
        """Return how streams are passed on, or why not."""
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
        """Return the device, how objects lie on it, and what was confirmed of direct I/O."""
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
            **self._found,
        }

    def close(self) -> None:
        """Give up the target; remove a file of ours, leave a device's content."""
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
