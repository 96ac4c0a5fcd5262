"""The frozen summary of one tier's I/O: all that a writer of jobs reads, also as JSON.

Every writer of a job is a pure function of it; what a trace does not hold is null here.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvdistill.profile.notebook import html_table
from kvtrace.core import np
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_json
from kvtrace.core.limit import Limit
from kvtrace.core.statistics import Slot
from kvtrace.core.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    # Heavy.
    from numpy.typing import NDArray

FORMAT = 3
"""Raised when a field changes its name or meaning."""


class SourceKind(StrEnum):
    """What a profile was distilled from."""

    TRACE = "trace"
    """What is asked: no operation was timed."""
    OPS = "ops"
    """What a replay measured."""
    BLOCKS = "blocks"
    """Requests as the block layer saw them."""
    PROBE = "probe"
    """Histograms of the block layer: no order, hence no arrivals, reuse or phases."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the profile came from; null where the source does not say."""

    kind: SourceKind = SourceKind.TRACE
    file: str
    """The file's name without its folder, so that the same input gives the same bytes anywhere."""
    program: str
    version: str
    config_sha256: str
    preset: str | None
    seed: int | None
    model: str | None
    is_simulated: bool
    limit: str
    """What part of the trace was taken; empty for all of it."""
    notes: list[str]


class SizeCount(msgspec.Struct, frozen=True):
    """The number of operations of one length."""

    io_bytes: int
    ops: int


class AddressZone(msgspec.Struct, frozen=True):
    """A stretch of the address space, and the whole percent of bytes moved by operations that start
    in it.
    """

    percent: int
    span_bytes: int


class DirectionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All reads, or all writes."""

    ops: int
    object_bytes: int
    """As the trace has them."""
    io_bytes: int
    """Widened to whole pages where it is not of whole sectors, as it goes to the device."""
    sizes: list[SizeCount]
    """The exact distribution of `io_bytes`, by length."""
    lengths: list[SizeCount] | None = None
    """That of the lengths as the trace has them, where padding changes them.

    Null if they are the same.
    """
    zones: list[AddressZone]
    """Where operations start, in order of address from 0; empty if there are none."""

    @property
    def object_sizes(self) -> list[SizeCount]:
        """The exact distribution of lengths without padding, as an object store gets them."""
        return self.sizes if self.lengths is None else self.lengths


class AddressSpace(msgspec.Struct, frozen=True, kw_only=True):
    """How the objects lie in one file or device under first fit."""

    span_bytes: int
    peak_reserved_bytes: int
    peak_live_objects: int | None = None
    """Null where the source knows no objects."""
    prior_objects: int
    """Objects read before the trace writes them: they exist from the start."""
    prior_bytes: int
    end_live_bytes: int | None = None
    """What is left when the trace ends; null where the source knows no objects."""


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """How many operations a stage of a request holds.

    An upper bound of the depth, since none were timed.
    """

    max_stage_ops: int
    mean_stage_ops: float


class Dispersion(msgspec.Struct, frozen=True, kw_only=True):
    """How bursty arrivals are: variance by mean of the operations in windows of three lengths.

    1 is chance (Poisson), 0 is even, more is burstier than chance; null with fewer than five whole
    windows.
    """

    in_1ms: float | None
    in_100ms: float | None
    in_10s: float | None

    @property
    def by_window(self) -> dict[str, float | None]:
        """The figures by the length of their windows."""
        return {"1 ms": self.in_1ms, "100 ms": self.in_100ms, "10 s": self.in_10s}

    def __str__(self) -> str:
        """Return it as every page prints it."""
        parts = self.by_window.items()
        return ", ".join(
            f"{'unknown' if value is None else f'{value:.3g}'} in {name}" for name, value in parts
        )


class ArrivalProfile(msgspec.Struct, frozen=True, kw_only=True):
    """When reads and writes are due, or were issued."""

    bucket_ns: int
    """How long each entry of the lists below is."""
    read_ops: list[int]
    write_ops: list[int]
    read_bytes: list[int]
    write_bytes: list[int]
    instants: int
    """Distinct times; operations due at one time are a burst."""
    bursts: list[Slot]
    """Instants by how many operations share them."""
    gaps: list[Slot]
    """Gaps between instants, in ns; slots are at most 1/16 of their value wide."""
    gap_mean_ns: float | None
    dispersion: Dispersion


class InFlight(msgspec.Struct, frozen=True):
    """The share of time with `in_flight` operations in flight."""

    in_flight: int
    share: float


class DepthProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Operations in flight, weighted by time, from the first submission to the last completion."""

    mean: float
    read_mean: float
    write_mean: float
    max: int
    shares: list[InFlight]
    timed_share: float
    """Share of reads and writes whose completion is known; the others are not in these figures."""

    def in_flight_for(self, share: float) -> int | None:
        """Return the most operations in flight for `share` of the time.

        Null if the shares are not known.
        """
        done = 0.0
        for at in self.shares:
            done += at.share
            if done >= share:
                return at.in_flight
        return None


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Stretches with nothing in flight between two operations: the time to think."""

    stretches: int
    total_ns: int
    p50_ns: int | None


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """How far operations of one direction are from the last one that began at the same place, in
    either direction.
    """

    first_ops: int
    """Those that begin where none did before."""
    distances: list[Slot]
    """Distinct bytes of others in between; slots are at most 1/16 of their value wide."""


class Locality(msgspec.Struct, frozen=True, kw_only=True):
    """Which places are used, and how soon again.

    Over the first operations if they are very many.
    """

    ops: int
    """Reads and writes whose blocks are looked at; reuse is known of as many at least."""
    is_whole: bool
    """Whether those are all."""
    hot10_share: float
    """Share of accesses that go to the hottest 10 % of touched 128 KiB blocks."""
    reuse_p50_blocks: float | None
    """Median distinct 128 KiB blocks between two accesses to one; null if none recurs."""
    read: Reuse
    write: Reuse


class Pacing(StrEnum):
    """Who says when a stream's next operation comes."""

    CLOSED = "closed"
    """A completion: so many are kept in flight."""
    EVEN = "even"
    """A clock, at equal gaps."""
    POISSON = "poisson"
    """Chance: each arrival is independent of the others."""
    BURSTS = "bursts"
    """A clock, but neither evenly nor by chance alone."""


class Loop(msgspec.Struct, frozen=True):
    """The pace of a stream."""

    pace: Pacing
    depth: int | None = None
    """The most in flight, but for one arrival in a hundred; null if operations were not timed."""
    think_ns: int | None = None
    """How long a closed loop pauses with nothing in flight; null if it does not."""
    think_ops: int | None = None
    """After how many operations it does; of bursts, how many wait together."""
    response_ns: float | None = None
    """Mean time from the issue of an operation to its completion.

    Null if operations were not timed.
    """
    burst_depth: int | None = None
    """How many of a burst run at once.

    All, or a stage where a request has several; null without bursts.
    """


class Law(StrEnum):
    """How random places are chosen."""

    UNIFORM = "uniform"
    """Each as likely as any other, whatever was used before."""
    ONCE = "once"
    """Each as likely, but none again before all were used."""
    ZIPF = "zipf"
    PARETO = "pareto"
    ZONES = "zones"
    """As likely as each zone of `DirectionProfile.zones` says: no law fits."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a stream's operations go."""

    sequential_share: float
    """Share of operations that begin where an earlier one ended."""
    run_ops: int | None
    """Operations in a sequential run, if all are about as long; null if runs end by chance."""
    law: Law
    """Of those that are not sequential."""
    theta: float | None
    """Of zipf, or the h of pareto; null for other laws."""
    align_bytes: int
    """Places are multiples of this."""
    begin_bytes: int
    """Where the stretch that it uses begins."""
    span_bytes: int
    """How long that is."""


class IoStream(msgspec.Struct, frozen=True, kw_only=True):
    """What one model explains.

    A direction or both, of one process or of all, over a stretch of time.
    """

    name: str
    start_ns: int
    """From the profile's start."""
    span_ns: int
    read: DirectionProfile
    write: DirectionProfile
    loop: Loop
    places: Places | None
    """Null if the source does not say where operations lie."""

    @property
    def ops(self) -> int:
        """Reads and writes."""
        return self.read.ops + self.write.ops


class DataProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What was written, as the replay made it.

    1 is data without repeats, that does not compress.
    """

    dedup_ratio: float
    compress_ratio: float


class ScratchFolder:
    """A temporary folder that is removed with the last object that holds it, or at the end."""

    def __init__(self, parent: Path | None = None) -> None:
        """Make a folder in `parent`, or where the system keeps temporary files."""
        self.path = Path(tempfile.mkdtemp(prefix="kvdistill-", dir=parent))
        self._removal = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)

    def remove(self) -> None:
        """Remove the folder now."""
        self._removal()


@dataclass(frozen=True, slots=True)
class SourceOperations:
    """Where the operations of a profile are, in the process that distilled it."""

    ios: Path | None
    """Parquet as `sources.write_ios` writes it; null if the source holds statistics alone."""
    limit: Limit
    """The window of the source that they are of."""
    source: Path
    """The file or folder that was distilled."""
    tier: str | None
    """The tier that was asked for."""
    folder: ScratchFolder | None = None
    """What holds `ios`; null if whoever distilled takes care of it."""


_OPERATIONS = "operations"


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The I/O of one tier or disk, distilled."""

    # A profile that this process distilled also knows where the source's operations are, from which
    # an exact replay is made. That is no field: JSON and comparisons leave it out.

    format: int = FORMAT
    origin: Origin
    tier: str
    """The tier, or the block device."""
    start_ns: int
    """When its first read or write is due, from the source's start."""
    span_ns: int
    """From its first to its last read or write.

    0 if all share one instant: then no rate is known.
    """
    deletes_beyond_ns: int = 0
    """How much longer it is from its first operation to its last if deletes are among them."""
    deletes_start_ns: int = 0
    """When its first delete is due, from the first read or write on.

    Negative where it is before that.
    """
    deletes_span_ns: int | None = None
    """From its first delete to its last; null if their times are not known."""
    read: DirectionProfile
    write: DirectionProfile
    delete_ops: int
    """Deletes of objects, or discards of a disk."""
    delete_bytes: int
    stray_delete_ops: int
    """Deletes of objects that were not there."""
    flush_ops: int | None = None
    """Flushes of the disk's cache; null where the source does not know them."""
    empty_ops: int
    """Reads and writes of no bytes, which no job can hold."""
    space: AddressSpace | None
    """Null if the source does not know where operations lie."""
    concurrency: Concurrency | None
    """Null if the source has no stages."""
    arrivals: ArrivalProfile | None
    """Null if the source does not know when operations came, or all share one instant."""
    depth: DepthProfile | None
    """Null unless operations were timed."""
    idle: Idle | None
    """Null unless operations were timed."""
    locality: Locality | None
    streams: list[IoStream]
    """The simplest models that together explain the operations; empty if no time is known."""
    data: DataProfile | None
    """Null if the source does not say what was written."""

    @property
    def operations(self) -> SourceOperations | None:
        """Where its operations are; null if it was read from a file."""
        return vars(self).get(_OPERATIONS)

    def keep_operations(self, operations: SourceOperations) -> None:
        """Remember where its operations are."""
        vars(self)[_OPERATIONS] = operations

    def save(self, path: str | Path) -> None:
        """Write it as JSON to `path`, in place of what was there; DeviceError if that fails."""
        write_json(Path(path), self)

    def __repr__(self) -> str:
        """Return its source and size in a line."""
        return (
            f"Profile({self.tier} of {self.origin.file}: {counted(self.read.ops, 'read')},"
            f" {counted(self.write.ops, 'write')}, {counted(self.delete_ops, 'delete')} over"
            f" {format_duration(self.span_ns)})"
        )

    def _repr_html_(self) -> str:
        """Return a table of its operations, for notebooks."""
        rows = [
            [name, f"{side.ops:,}", format_bytes(side.object_bytes), format_bytes(side.io_bytes)]
            for name, side in (("read", self.read), ("write", self.write))
        ]
        rows.append(["delete", f"{self.delete_ops:,}", format_bytes(self.delete_bytes), ""])
        return html_table(["operation", "count", "object bytes", "I/O bytes"], rows)

    @property
    def ops(self) -> int:
        """Reads and writes."""
        return self.read.ops + self.write.ops

    @property
    def placed(self) -> AddressSpace:
        """The address space; ConfigError if the source does not know where operations lie."""
        if self.space is None:
            raise ConfigError(
                f"{self.origin.file} has no offsets, which this job needs; take a trace, a run or "
                "block events (kvreplay probe without --histograms-only)"
            )
        return self.space

    @property
    def longest_bytes(self) -> int:
        """The longest read or write."""
        return max(size.io_bytes for side in (self.read, self.write) for size in side.sizes)

    @property
    def whole_ns(self) -> int:
        """From its first to its last operation, deletes among them."""
        return self.span_ns + self.deletes_beyond_ns


PERCENT = 100


def equal_mass_zones(
    starts: NDArray[np.int64], moved_bytes: NDArray[np.int64], granule_bytes: int
) -> list[AddressZone]:
    """Cut the address space from 0 on into zones of about 1 % of the bytes each, whole percents
    that sum to 100.

    `starts` are ascending granule-aligned addresses, `moved_bytes` what is moved by operations that
    start in each. A granule that alone holds 2 % or more gets a zone of its own, so that a hot
    object stays as hot as it is.
    """
    if not len(starts):
        return []
    done = np.cumsum(moved_bytes)
    marks = np.searchsorted(done * PERCENT, np.arange(1, PERCENT + 1) * done[-1])
    hits = np.bincount(marks, minlength=len(starts))
    zones: list[AddressZone] = []
    end, counted = 0, 0
    for i in np.flatnonzero(hits):
        start, percent = int(starts[i]), int(hits[i])
        if percent > 1 and start > end:
            before = int(done[i - 1]) - counted if i else 0
            cold = min(round(before * PERCENT / int(done[-1])), percent - 1)
            zones.append(AddressZone(cold, start - end))
            end, percent = start, percent - cold
        zones.append(AddressZone(percent, start + granule_bytes - end))
        end, counted = start + granule_bytes, int(done[i])
    return zones


def percentages(weights: Iterable[int], whole: int = PERCENT) -> list[int]:
    """Return whole shares of `weights` that sum to exactly `whole`, by largest remainder.

    Ties are spread over the weights, so that equal ones do not all gain at one end. Weights must be
    non-negative and not all 0.
    """
    weights = [int(w) for w in weights]
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights(={weights[:8]}…) must be >= 0 and not all 0.")
    shares = [w * whole // total for w in weights]
    # Equal ones by halving, so that they are spread: 0, 512, 256, 768, … of 1024.
    by_remainder = sorted(
        range(len(weights)),
        key=lambda i: (-(weights[i] * whole % total), int(f"{i:010b}"[::-1], 2)),
    )
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


MAX_ENTRIES = 63
"""fio takes 64, but complains at the 64th; what is beyond it cuts silently."""
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes with their whole percentages, ascending, and what that lost against the exact
    distribution.
    """

    entries: tuple[tuple[int, int], ...]
    moved_share: float
    """Total variation distance: the share of operations whose size is not the exact one."""
    mean_bytes: float

    def __str__(self) -> str:
        """Return it as the value of `bssplit`."""
        return ":".join(f"{size}/{percent}" for size, percent in self.entries)


def split_sizes(direction: DirectionProfile) -> Split:
    """Return the closest split to the exact sizes of `direction`, which must have operations."""
    sizes = direction.sizes
    if len(sizes) <= MAX_ENTRIES:
        shares = percentages([s.ops for s in sizes])
        entries = tuple(
            (s.io_bytes, share) for s, share in zip(sizes, shares, strict=True) if share
        )
    else:
        entries = _slices(sizes, PERCENT)
        if len(entries) > MAX_ENTRIES:
            entries = _slices(sizes, PERCENT // 2)
    said = [SizeCount(*entry) for entry in entries]
    return Split(entries, total_variation(sizes, said), mean_bytes(said))


def _slices(sizes: list[SizeCount], count: int) -> tuple[tuple[int, int], ...]:
    """Cut the operations, by size, into `count` equal slices, each of its mean size.

    This keeps the mean.

    A size common enough to fill slices keeps them to itself; equal slices are one entry.
    """
    total = sum(s.ops for s in sizes)
    entries: dict[int, int] = {}
    left, index = sizes[0].ops * count, 0
    for _ in range(count):
        # In units of 1 / count operations, so that every slice is whole.
        need, moved = total, 0
        while need:
            taken = min(need, left)
            moved += taken * sizes[index].io_bytes
            need, left = need - taken, left - taken
            if not left and index + 1 < len(sizes):
                index += 1
                left = sizes[index].ops * count
        size = max(_SECTOR_BYTES, round(moved / total / _SECTOR_BYTES) * _SECTOR_BYTES)
        entries[size] = entries.get(size, 0) + PERCENT // count
    return tuple(sorted(entries.items()))


def cut_long(direction: DirectionProfile, max_io_bytes: int) -> DirectionProfile:
    """Return `direction` with operations longer than `max_io_bytes` as several, as a replay splits
    them.
    """
    counts: dict[int, int] = {}
    for size in direction.sizes:
        whole, rest = divmod(size.io_bytes, max_io_bytes)
        for length, parts in ((max_io_bytes, whole), (rest, 1)):
            if length and parts:
                counts[length] = counts.get(length, 0) + parts * size.ops
    sizes = [SizeCount(length, ops) for length, ops in sorted(counts.items())]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


def total_variation(a: Sequence[SizeCount], b: Sequence[SizeCount]) -> float:
    """Return the share of operations of `a` that would have to change their size to be distributed
    as `b`.
    """
    share = [{s.io_bytes: s.ops / sum(t.ops for t in side) for s in side} for side in (a, b)]
    return (
        sum(abs(share[0].get(size, 0) - share[1].get(size, 0)) for size in {*share[0], *share[1]})
        / 2
    )


def mean_bytes(sizes: Sequence[SizeCount]) -> float:
    """Return the mean of `sizes`, which must have operations."""
    return sum(s.io_bytes * s.ops for s in sizes) / sum(s.ops for s in sizes)
