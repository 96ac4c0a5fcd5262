"""Preallocated files and devices before a replay: all that it will use is written once, in one pass from the start on.

What the replay reads and never writes lies there with its own content, and all else that was not written yet is laid
out: a drive answers reads of unwritten blocks without its medium, and takes first writes slower than overwrites. Long
writes in the order of the space, whatever the objects: many small ones written one by one took five times as long.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.plan.contents import DataSource, Fill
from kvreplay.run.precondition import BulkWriter
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Region, StorageTier, Tier
from kvtrace.core.errors import DeviceError

IO_BYTES = 1 << 20
_FIRST_STREAM = 1000
"""Other data than preconditioning writes."""


@dataclass(slots=True)
class LaidOut:
    """What was written."""

    objects: int = 0
    """That the replay reads and never wrote."""
    bytes: int = 0
    """Of these objects."""
    whole: list[tuple[ExtentTier, Region]] = field(default_factory=list)
    """The drives whose space is written whole now, and what of it was not."""

    def note_whole(self) -> None:
        """Let the drives know, for later runs; only when nothing else can fail."""
        for drive, region in self.whole:
            drive.note_written(region)


@dataclass(frozen=True, slots=True)
class Extents:
    """Objects in the order of the space: int64, by object."""

    starts: Any
    ends: Any
    objects: Any

    def fill(self, block: memoryview, at: int, own: Fill, other: Callable[[memoryview, int], None]) -> None:
        """Fill `block`, which begins at byte `at` of the space: objects by `own`, the rest by `other` (data, place)."""
        done, end, which = at, at + len(block), int(np.searchsorted(self.ends, at, side="right"))
        while done < end:
            start = int(self.starts[which]) if which < len(self.starts) else end
            if done < start:
                until = min(start, end)
                other(block[done - at : until - at], done)
            else:
                until = min(int(self.ends[which]), end)
                own(block[done - at : until - at], int(self.objects[which]), 0, done - start)
                which += 1
            done = until


def is_laid_out(tier: Tier) -> bool:
    """Return whether what is populated on `tier` is written as it is laid out: its drives are preallocated."""
    return isinstance(tier, StorageTier) and all(isinstance(drive, ExtentTier) for drive in tier.drives)


def lay_out_all(
    setting: Setting, data: DataSource, interrupted: Callable[[], str | None], show: Callable[[str, int], Any]
) -> LaidOut:
    """Write what is populated on preallocated files and devices, and the rest of their space that is unwritten.

    Raises:
        DeviceError: a drive refuses, or has no room.

    """
    done = LaidOut()
    for stream, (drive, objects, lengths) in enumerate(_populated_drives(setting)):
        region = drive.unwritten
        extents = _place(drive, objects, lengths)
        parts = _merged(extents, region)
        total = sum(length for _, length in parts)
        if not total:
            continue
        depth = setting.config.depth
        try:
            with show(f"laying out {drive.name}", total) as progress:
                written = _write(region.fd, parts, depth, extents, data, _FIRST_STREAM + stream, interrupted, progress)
        except OSError as error:
            raise DeviceError(f"{drive.target}: cannot be laid out: {error.strerror or error}") from None
        if written == total:
            done.objects += len(objects)
            done.bytes += int(lengths.sum())
            drive.written_first_bytes += total - int((extents.ends - extents.starts).sum())
            done.whole.append((drive, region))
    return done


def _populated_drives(setting: Setting) -> Iterator[tuple[ExtentTier, Any, Any]]:
    """Yield each preallocated file or device, and what is to lie there before the replay: objects, bytes (int64)."""
    residency = setting.window.residency
    for index, tier in enumerate(setting.tiers):
        if not isinstance(tier, StorageTier):
            continue
        here = residency.populate_tier == index
        objects, lengths = residency.populate_object[here], residency.populate_bytes[here]
        for at, drive in enumerate(tier.drives):
            if isinstance(drive, ExtentTier):
                there = tier.drive_of[objects] == at if isinstance(tier, SeveralDrives) else slice(None)
                yield drive, objects[there], lengths[there]


def _place(drive: ExtentTier, objects: Any, lengths: Any) -> Extents:
    """Give `objects` their extents; return what of these is theirs now, by their starts."""
    starts = drive.space.reserve_all(objects, lengths)
    for at in np.flatnonzero(starts < 0)[:1]:
        raise DeviceError(
            f"{drive.target}: no room to populate object {objects[at]}: {drive.why_no_room(int(objects[at]))}"
        )
    order = np.argsort(starts, kind="stable")
    starts = starts[order]
    padded = -(-lengths[order] // drive.alignment) * drive.alignment
    return Extents(starts, starts + padded, objects[order])


def _merged(extents: Extents, region: Region) -> list[tuple[int, int]]:
    """Return start and length of the parts that `extents` and `region` cover together, by their starts."""
    starts, ends = np.append(extents.starts, region.start), np.append(extents.ends, region.start + region.length)
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    firsts = np.flatnonzero(np.append(True, starts[1:] > reached[:-1]))
    lasts = np.append(firsts[1:], len(starts)) - 1
    return list(zip(starts[firsts].tolist(), (reached[lasts] - starts[firsts]).tolist(), strict=True))


def _write(
    fd: int,
    parts: Sequence[tuple[int, int]],
    threads: int,
    extents: Extents,
    data: DataSource,
    stream: int,
    interrupted: Callable[[], str | None],
    progress: Callable[[float], None],
) -> int:
    """Write `parts` in their order; return how much was written before an interruption; OSError if refused."""

    def fill(block: memoryview, filler: int, turn: int, at: int) -> None:
        extents.fill(block, at, data.fill, lambda rest, place: data.unstamped(rest, filler, turn, place))

    done = 0
    blocks = (
        (at, min(IO_BYTES, start + length - at))
        for start, length in parts
        for at in range(start, start + length, IO_BYTES)
    )
    for more in BulkWriter(fd, threads, fill, stream, interrupted).write(blocks, IO_BYTES, 0):
        done += more
        progress(done)
    os.fdatasync(fd)
    return done
