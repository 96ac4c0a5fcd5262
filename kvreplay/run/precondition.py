"""Write the storage before a replay.

`--precondition`, and the contents of preallocated files and devices.

A fresh or trimmed drive writes faster than it will a day later. `twice` writes it from end to end,
then once more in random order; `steady` goes on at random places until its bandwidth is steady by
the rule stated here.

Of a preallocated file or device everything that the replay will use is written once, in one pass
from the start: what it reads and never writes with its own content, the rest as filler.
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
    f" much as is written full; at most {MAX_ROUNDS} rounds"
)


def precondition(
    drive: Drive,
    peak_bytes: int,
    wanted: Precondition,
    io_bytes: int,
    depth: int,
    fill: Fill,
    stream: int,
    *,
    interrupted: Callable[[], str | None],
    progress: Callable[[float], None],
) -> tuple[Preconditioned, Region]:
    """Write `drive` full as `wanted` says.

    All of it, or `peak_bytes` in a directory; return what was written where.

    DeviceError if the drive refuses.
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
            state.go(range(0, region.length, io_bytes), io_bytes)
            rates = state.until_steady() if wanted is Precondition.STEADY else None
            if rates is None:
                # Every place once, in random order.
                order: np.ndarray = state.rng.permutation(np.arange(state.blocks, dtype=np.int32))
                state.go((int(at) * state.small for at in order), state.small)
    except OSError as error:
        raise DeviceError(f"--precondition: {drive.target}: {error.strerror or error}") from None
    return (
        Preconditioned(
            tier=drive.name,
            rule=RULE if rates is not None else "twice: once from end to end, once in random order",
            file_bytes=region.length,
            written_bytes=state.done,
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
    """One drive being written full."""

    def __init__(
        self, region: Region, writer: BulkWriter, small: int, progress: Callable[[float], None]
    ) -> None:
        self.small, self.done, self.blocks = small, 0, -(-region.length // small)
        self.rng = np.random.Generator(np.random.SFC64(0))
        self._region, self._writer, self._progress, self._turn = region, writer, progress, 0

    def go(self, places: Iterable[int], step: int, until_ns: int | None = None) -> int:
        """Write at `places`, until the deadline if one is given; return the bytes written."""
        before = self.done
        start, end = self._region.start, self._region.start + self._region.length
        parts = ((start + at, min(step, end - start - at)) for at in places)
        for more in self._writer.write(parts, step, self._turn):
            self.done += more
            self._progress(self.done)
            if until_ns is not None and monotonic_ns() >= until_ns:
                break
        os.fdatasync(self._region.fd)
        self._turn += 1
        return self.done - before

    def until_steady(self) -> list[float]:
        """Write at random places in rounds until the rule is met, at most MAX_ROUNDS.

        Return the bandwidth of each.
        """
        rates: list[float] = []
        while len(rates) < MAX_ROUNDS and not is_steady(rates):
            started = monotonic_ns()
            # Each place is as likely as any other; they are drawn as they are needed.
            places = (
                at
                for first in range(0, self.blocks, _BATCH)
                for at in (
                    self.rng.integers(0, self.blocks, min(_BATCH, self.blocks - first)) * self.small
                ).tolist()
            )
            written = self.go(places, self.small, started + ROUND_NS)
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
        """Write data of `fill`.

        Each drive has a `stream` number of its own, so that no two hold the same data.
        """
        self._fd, self._threads, self._fill = fd, min(threads, MAX_THREADS), fill
        # An id that no object has.
        self._object = -1 - stream
        self._interrupted = interrupted

    def write(self, parts: Iterable[tuple[int, int]], most: int, turn: int) -> Iterator[int]:
        """Write `parts` (start, up to `most` bytes), unless interrupted.

        Yield how much was written.

        The data differs from `turn` to `turn`.
        """
        waiting = iter(parts)
        with ThreadPoolExecutor(self._threads) as pool:
            buffers = [mmap.mmap(-1, most) for _ in range(self._threads)]
            # One round at a time, so that an interruption is seen soon.
            while not self._interrupted():
                jobs = [
                    (memoryview(b)[:length], at, turn)
                    for b, (at, length) in zip(buffers, waiting, strict=False)
                ]
                yield sum(pool.map(self._one, jobs))
                if len(jobs) < self._threads:
                    break

    def _one(self, job: tuple[memoryview, int, int]) -> int:
        block, at, turn = job
        self._fill(block, self._object, turn, at)
        done = os.pwritev(self._fd, [block], at)
        if done != len(block):
            raise OSError(5, "the device takes no more bytes")
        return done


IO_BYTES = 1 << 20
_FIRST_STREAM = 1000
"""Other data than preconditioning writes."""


@dataclass(slots=True)
class LaidOut:
    """The objects that preconditioning wrote."""

    objects: int = 0
    """That the replay reads and never wrote."""
    bytes: int = 0
    """Sum of the lengths of these objects."""
    whole: list[tuple[ExtentTier, Region]] = field(default_factory=list)
    """The drives that are written whole now, each with the region that was unwritten."""


@dataclass(frozen=True, slots=True)
class Extents:
    """Objects in the order of the space: int64, by object."""

    starts: np.ndarray
    ends: np.ndarray
    objects: np.ndarray

    def fill(self, data: DataSource, block: memoryview, filler: int, turn: int, at: int) -> None:
        """Fill `block`, which begins at byte `at` of the space.

        With what lies there, the rest by `filler`.
        """
        done, end, which = at, at + len(block), int(np.searchsorted(self.ends, at, side="right"))
        while done < end:
            start = int(self.starts[which]) if which < len(self.starts) else end
            if done < start:
                until = min(start, end)
                data.unstamped(block[done - at : until - at], filler, turn, done)
            else:
                until = min(int(self.ends[which]), end)
                data.fill(block[done - at : until - at], int(self.objects[which]), 0, done - start)
                which += 1
            done = until


def is_laid_out(tier: Tier) -> bool:
    """Return whether the populated objects of `tier` are written in the order of their places.

    Its drives are preallocated.
    """
    return bool(tier.drives) and all(isinstance(drive, ExtentTier) for drive in tier.drives)


def lay_out_all(
    setting: Setting,
    data: DataSource,
    interrupted: Callable[[], str | None],
    show: Callable[[str, int], AbstractContextManager[Callable[[float], None]]],
) -> LaidOut:
    """Write the populated objects of preallocated files and devices, and the rest of their space
    that is unwritten.

    DeviceError if a drive refuses, or has no room.
    """
    done = LaidOut()
    for stream, (drive, objects, lengths) in enumerate(_populated_drives(setting)):
        region, starts = drive.unwritten, drive.space.reserve_all(objects, lengths)
        for at in np.flatnonzero(starts < 0)[:1]:
            why = drive.why_no_room(int(objects[at]))
            raise DeviceError(f"{drive.target}: no space to populate object {objects[at]}: {why}")
        order = np.argsort(starts, kind="stable")
        padded = -(-lengths[order] // drive.alignment) * drive.alignment
        extents = Extents(starts[order], starts[order] + padded, objects[order])
        parts = _merged(extents, region)
        total = sum(length for _, length in parts)
        if not total:
            continue
        fill, written = partial(extents.fill, data), 0
        writer = BulkWriter(
            region.fd, setting.config.depth, fill, _FIRST_STREAM + stream, interrupted
        )
        blocks = (
            (at, min(IO_BYTES, start + length - at))
            for start, length in parts
            for at in range(start, start + length, IO_BYTES)
        )
        try:
            with show(f"laying out {drive.name}", total) as progress:
                for more in writer.write(blocks, IO_BYTES, 0):
                    written += more
                    progress(written)
                os.fdatasync(region.fd)
        except OSError as error:
            raise DeviceError(
                f"{drive.target}: cannot be laid out: {error.strerror or error}"
            ) from None
        if written == total:
            done.objects += len(objects)
            done.bytes += int(lengths.sum())
            drive.written_first_bytes += total - int((extents.ends - extents.starts).sum())
            done.whole.append((drive, region))
    return done


def _populated_drives(setting: Setting) -> Iterator[tuple[ExtentTier, np.ndarray, np.ndarray]]:
    """Yield each preallocated file or device, and the objects that it holds before the replay.

    Objects, bytes (int64).
    """
    residency = setting.window.residency
    for index, tier in enumerate(setting.tiers):
        if tier is None or not tier.drives:
            continue
        here = residency.populate_tier == index
        objects, lengths = residency.populate_object[here], residency.populate_bytes[here]
        for at, drive in enumerate(tier.drives):
            if isinstance(drive, ExtentTier):
                there = (
                    tier.drive_of[objects] == at if isinstance(tier, SeveralDrives) else slice(None)
                )
                yield drive, objects[there], lengths[there]


def _merged(extents: Extents, region: Region) -> list[tuple[int, int]]:
    """Return start and length of the parts that `extents` and `region` cover together, by their
    starts.
    """
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
