"""Write the storage before a replay: `--precondition`, and preallocated files and devices.

A fresh or trimmed drive writes faster than it will a day later. `twice` writes it from end to end,
then once more in random order. `steady` goes on at random offsets until the bandwidth is steady by
the rule stated here.

All space of a preallocated file or device that the replay will use is written once, in one pass
from the start. Objects that the replay reads but never writes get their own content, the rest gets
filler.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, linear_regression
from time import monotonic_ns

import numpy as np

from kvreplay.engine.setting import Setting
from kvreplay.plan.contents import DataSource, Fill
from kvreplay.plan.replay_config import Precondition
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.tier import Drive, Region, SeveralDrives, Tier
from kvtrace.core.errors import DeviceError
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import Preconditioned
from kvtrace.core.units import NS_PER_S

RANDOM_BYTES = 64 << 10
ROUND_NS = 60 * NS_PER_S
WINDOW_ROUNDS, MAX_ROUNDS = 5, 25
MAX_EXCURSION, MAX_DRIFT = 0.1, 0.1
_BATCH = 1 << 16
RULE = (
    f"steady: in the last {WINDOW_ROUNDS} rounds of random writes no bandwidth is more than"
    f" {MAX_EXCURSION:.0%} from their mean, and their best straight line rises or falls by at most"
    f" {MAX_DRIFT:.0%} of it; a round lasts {ROUND_NS // NS_PER_S} s, or less if that writes as"
    f" many bytes as the whole region has; at most {MAX_ROUNDS} rounds"
)


def precondition(
    drive: Drive,
    peak_bytes: int,
    rule: Precondition,
    io_bytes: int,
    depth: int,
    fill: Fill,
    stream: int,
    *,
    interrupted: Callable[[], str | None],
    progress: Callable[[float], None],
) -> tuple[Preconditioned, Region]:
    """Fill `drive` by the rule `wanted`: all of it, or a file of `peak_bytes` in a directory.

    Return the facts for run.json, and the region that was filled.

    DeviceError if a write fails.
    """
    started = monotonic_ns()
    try:
        with drive.region(peak_bytes) as region:
            state = _Conditioning(
                region,
                BulkWriter(region.fd, depth, fill, stream, interrupted),
                min(RANDOM_BYTES, io_bytes),
                progress,
            )
            state.write_blocks(range(0, region.length, io_bytes), io_bytes)
            rates = state.until_steady() if rule is Precondition.STEADY else None
            if rates is None:
                # Every block once, in random order.
                order: np.ndarray = state.rng.permutation(np.arange(state.blocks, dtype=np.int32))
                state.write_blocks((int(block) * state.small for block in order), state.small)
    except OSError as error:
        raise DeviceError(
            f"{named('precondition')}: {drive.target}: {error.strerror or error}"
        ) from None
    return (
        Preconditioned(
            tier=drive.name,
            rule=RULE if rates is not None else "twice: once from end to end, once in random order",
            file_bytes=region.length,
            written_bytes=state.written_bytes,
            sequential_io_bytes=io_bytes,
            random_io_bytes=state.small,
            wall_ns=monotonic_ns() - started,
            is_whole=interrupted() is None,
            rounds_bytes_per_s=rates,
            is_steady=None if rates is None else is_steady(rates),
        ),
        region,
    )


def is_steady(rates: Sequence[float]) -> bool:
    """Return whether the bandwidths `rates` of rounds, in order, meet the rule above."""
    last = rates[-WINDOW_ROUNDS:]
    if len(last) < WINDOW_ROUNDS:
        return False
    mean, drift = (
        fmean(last),
        abs(linear_regression(range(len(last)), last).slope) * (len(last) - 1),
    )
    return (
        max(abs(rate - mean) for rate in last) <= MAX_EXCURSION * mean and drift <= MAX_DRIFT * mean
    )


class _Conditioning:
    """The preconditioning of one drive."""

    def __init__(
        self, region: Region, writer: BulkWriter, small: int, progress: Callable[[float], None]
    ) -> None:
        self.small, self.blocks = small, -(-region.length // small)
        self.written_bytes = 0
        self.rng = np.random.Generator(np.random.SFC64(0))
        self._region, self._writer, self._progress, self._turn = region, writer, progress, 0

    def write_blocks(
        self, offsets: Iterable[int], io_bytes: int, until_ns: int | None = None
    ) -> int:
        """Write blocks at `offsets` in the region; return the bytes written.

        Stop at the time `until_ns` if it is given.
        """
        before = self.written_bytes
        start, end = self._region.start, self._region.start + self._region.length
        blocks = ((start + offset, min(io_bytes, end - start - offset)) for offset in offsets)
        for nbytes in self._writer.write(blocks, io_bytes, self._turn):
            self.written_bytes += nbytes
            self._progress(self.written_bytes)
            if until_ns is not None and monotonic_ns() >= until_ns:
                break
        os.fdatasync(self._region.fd)
        self._turn += 1
        return self.written_bytes - before

    def until_steady(self) -> list[float]:
        """Write at random offsets in rounds until the rule is met, at most MAX_ROUNDS.

        Return the bandwidth of each round.
        """
        rates: list[float] = []
        while len(rates) < MAX_ROUNDS and not is_steady(rates):
            started = monotonic_ns()
            # All blocks are equally likely; offsets are sampled in batches as they are needed.
            offsets = (
                offset
                for first in range(0, self.blocks, _BATCH)
                for offset in (
                    self.rng.integers(0, self.blocks, min(_BATCH, self.blocks - first)) * self.small
                ).tolist()
            )
            written = self.write_blocks(offsets, self.small, started + ROUND_NS)
            if not written:
                break
            rates.append(written * NS_PER_S / (monotonic_ns() - started))
        return rates


MAX_THREADS = 8


class BulkWriter:
    """Writes blocks of a file or device, from several threads."""

    def __init__(
        self, fd: int, threads: int, fill: Fill, stream: int, interrupted: Callable[[], str | None]
    ) -> None:
        """Write data from `fill`.

        Each drive has its own `stream` number, so that no two drives get the same data.
        """
        self._fd, self._threads, self._fill = fd, min(threads, MAX_THREADS), fill
        # Objects have no negative ids.
        self._object = -1 - stream
        self._interrupted = interrupted

    def write(self, blocks: Iterable[tuple[int, int]], max_bytes: int, turn: int) -> Iterator[int]:
        """Write `blocks`, each a start and a length of up to `max_bytes`, unless interrupted.

        Yield the bytes written by one write of each thread. The data differs by `turn`.
        """
        remaining = iter(blocks)
        with ThreadPoolExecutor(self._threads) as pool:
            buffers = [mmap.mmap(-1, max_bytes) for _ in range(self._threads)]
            # One write of each thread at a time, so that an interruption is noticed soon.
            while not self._interrupted():
                jobs = [
                    (memoryview(buffer)[:length], start, turn)
                    for buffer, (start, length) in zip(buffers, remaining, strict=False)
                ]
                yield sum(pool.map(self._write_block, jobs))
                if len(jobs) < self._threads:
                    break

    def _write_block(self, job: tuple[memoryview, int, int]) -> int:
        block, start, turn = job
        self._fill(block, self._object, turn, start)
        written = os.pwritev(self._fd, [block], start)
        if written != len(block):
            raise OSError(5, "the device takes no more bytes")
        return written


IO_BYTES = 1 << 20
_FIRST_STREAM = 1000
"""First stream number of laying out, whose data differs from that of preconditioning."""


@dataclass(slots=True)
class LaidOut:
    """The objects and drives that were laid out."""

    objects: int = 0
    """Number of objects written that the replay reads but never wrote."""
    bytes: int = 0
    """Sum of the lengths of these objects."""
    filled: list[tuple[ExtentTier, Region]] = field(default_factory=list)
    """The drives that are completely written now, each with the region that was unwritten."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Objects with their extents in ascending order: int64 arrays, one entry an object."""

    starts: np.ndarray
    ends: np.ndarray
    objects: np.ndarray

    def fill(
        self, data: DataSource, block: memoryview, filler: int, turn: int, block_start: int
    ) -> None:
        """Fill `block`, which begins at byte `block_start` of the space.

        Bytes of an extent get its object's data, other bytes that of the id `filler`.
        """
        position, end = block_start, block_start + len(block)
        index = int(np.searchsorted(self.ends, block_start, side="right"))
        while position < end:
            start = int(self.starts[index]) if index < len(self.starts) else end
            if position < start:
                until = min(start, end)
                piece = block[position - block_start : until - block_start]
                data.unstamped(piece, filler, turn, position)
            else:
                until = min(int(self.ends[index]), end)
                piece = block[position - block_start : until - block_start]
                data.fill(piece, int(self.objects[index]), 0, position - start)
                index += 1
            position = until


def is_laid_out(tier: Tier) -> bool:
    """Return whether the populated objects of `tier` are laid out here.

    That is so if all its drives are preallocated files or devices.
    """
    return bool(tier.drives) and all(isinstance(drive, ExtentTier) for drive in tier.drives)


def lay_out_all(
    setting: Setting,
    data: DataSource,
    interrupted: Callable[[], str | None],
    show: Callable[[str, int], AbstractContextManager[Callable[[float], None]]],
) -> LaidOut:
    """Write the populated objects and all unwritten space of preallocated files and devices.

    DeviceError if a write fails, or a drive has no space.
    """
    laid_out = LaidOut()
    for stream, (drive, objects, lengths) in enumerate(_populated_drives(setting)):
        region, starts = drive.unwritten, drive.space.reserve_all(objects, lengths)
        for index in np.flatnonzero(starts < 0)[:1]:
            object_id = int(objects[index])
            reason = drive.why_no_room(object_id)
            raise DeviceError(f"{drive.target}: no space to populate object {object_id}: {reason}")
        order = np.argsort(starts, kind="stable")
        padded = -(-lengths[order] // drive.alignment) * drive.alignment
        extents = Extents(starts[order], starts[order] + padded, objects[order])
        stretches = _merged(extents, region)
        total = sum(length for _, length in stretches)
        if not total:
            continue
        fill, written = partial(extents.fill, data), 0
        writer = BulkWriter(
            region.fd, setting.config.depth, fill, _FIRST_STREAM + stream, interrupted
        )
        blocks = (
            (offset, min(IO_BYTES, start + length - offset))
            for start, length in stretches
            for offset in range(start, start + length, IO_BYTES)
        )
        try:
            with show(f"laying out {drive.name}", total) as progress:
                for nbytes in writer.write(blocks, IO_BYTES, 0):
                    written += nbytes
                    progress(written)
                os.fdatasync(region.fd)
        except OSError as error:
            raise DeviceError(
                f"{drive.target}: cannot be laid out: {error.strerror or error}"
            ) from None
        if written == total:
            laid_out.objects += len(objects)
            laid_out.bytes += int(lengths.sum())
            drive.written_first_bytes += total - int((extents.ends - extents.starts).sum())
            laid_out.filled.append((drive, region))
    return laid_out


def _populated_drives(setting: Setting) -> Iterator[tuple[ExtentTier, np.ndarray, np.ndarray]]:
    """Yield each preallocated file or device with the objects that it stores before the replay.

    The two arrays are the objects' ids and their bytes (int64).
    """
    residency = setting.window.residency
    for index, tier in enumerate(setting.tiers):
        if tier is None or not tier.drives:
            continue
        is_on_tier = residency.populate_tier == index
        objects = residency.populate_object[is_on_tier]
        lengths = residency.populate_bytes[is_on_tier]
        for number, drive in enumerate(tier.drives):
            if isinstance(drive, ExtentTier):
                is_on_drive = (
                    tier.drive_of[objects] == number
                    if isinstance(tier, SeveralDrives)
                    else slice(None)
                )
                yield drive, objects[is_on_drive], lengths[is_on_drive]


def _merged(extents: Extents, region: Region) -> list[tuple[int, int]]:
    """Return start and length of the stretches that `extents` and `region` cover together."""
    starts, ends = (
        np.append(extents.starts, region.start),
        np.append(extents.ends, region.start + region.length),
    )
    starts, ends = starts[ends > starts], ends[ends > starts]
    if not len(starts):
        return []
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(ends[order])
    firsts = np.flatnonzero(np.append(True, starts[1:] > reached[:-1]))
    lasts = np.append(firsts[1:], len(starts)) - 1
    return list(
        zip(starts[firsts].tolist(), (reached[lasts] - starts[firsts]).tolist(), strict=True)
    )
