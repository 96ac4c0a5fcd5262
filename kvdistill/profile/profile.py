"""The profile of one tier's I/O: an immutable summary, which is also stored as JSON.

Every job is written from a profile alone. A figure that the source does not hold is null.
"""

from __future__ import annotations

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
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import counted, format_bytes, format_duration

if TYPE_CHECKING:
    # Heavy.
    from numpy.typing import NDArray

FORMAT = 4
"""Incremented when a field changes its name or meaning."""


class SourceKind(StrEnum):
    """The kind of source that a profile was extracted from."""

    TRACE = "trace"
    """Requested operations of a trace: no operation was timed."""
    OPS = "ops"
    """Operations that a replay measured."""
    BLOCKS = "blocks"
    """Requests as the block layer saw them."""
    PROBE = "probe"
    """Histograms of the block layer: no order, hence no arrivals, reuse or phases."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The source of a profile; a field is null if the source does not hold it."""

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
    """The window of the source that was read; empty for all of it."""
    notes: list[str]


class SizeCount(msgspec.Struct, frozen=True):
    """The number of operations of one length."""

    io_bytes: int
    ops: int


class AddressZone(msgspec.Struct, frozen=True):
    """A range of the address space, and its share of the bytes transferred, in whole percent.

    An operation counts for the range that it starts in.
    """

    percent: int
    span_bytes: int


class DirectionProfile(msgspec.Struct, frozen=True, kw_only=True):
    """All reads, or all writes."""

    ops: int
    object_bytes: int
    """Bytes as the trace has them."""
    io_bytes: int
    """Bytes sent to the device: a length that is not whole sectors is padded to whole pages."""
    sizes: list[SizeCount]
    """The exact distribution of `io_bytes`, by length."""
    lengths: list[SizeCount] | None = None
    """The exact distribution of lengths without padding; null if padding changes none."""
    zones: list[AddressZone]
    """Start addresses of operations, in order of address from 0; empty without operations."""

    @property
    def object_sizes(self) -> list[SizeCount]:
        """The exact distribution of lengths without padding, as an object store gets them."""
        return self.sizes if self.lengths is None else self.lengths


class AddressSpace(msgspec.Struct, frozen=True, kw_only=True):
    """The address space of one file or device, in which first fit places the objects."""

    span_bytes: int
    peak_reserved_bytes: int
    peak_live_objects: int | None = None
    """Null where the source knows no objects."""
    prior_objects: int
    """Objects read before the trace writes them: they exist from the start."""
    prior_bytes: int
    end_live_bytes: int | None = None
    """Live bytes at the end of the trace; null where the source knows no objects."""


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """The number of operations in one stage of a request.

    Operations of a stage may run at once, so this bounds the queue depth of an untimed trace.
    """

    max_stage_ops: int
    mean_stage_ops: float


class Dispersion(msgspec.Struct, frozen=True, kw_only=True):
    """Burstiness of arrivals: variance/mean of the operations in windows of three lengths.

    0 is even, 1 is Poisson, and more is burstier than Poisson. Null with fewer than five whole
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
        """Return the three figures in one line, as reports print them."""
        dispersions = self.by_window.items()
        return ", ".join(
            f"{'unknown' if value is None else f'{value:.3g}'} in {name}"
            for name, value in dispersions
        )


class BurstSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Bursts in order of time."""

    ops: list[int]
    """Number of operations of each burst."""
    gaps_ns: list[int]
    """Time from each burst to the next: one fewer than bursts."""


class ArrivalProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The arrival times of reads and writes: due times of a trace, issue times of a replay."""

    bucket_ns: int
    """Time span of each entry of the lists below."""
    read_ops: list[int]
    write_ops: list[int]
    read_bytes: list[int]
    write_bytes: list[int]
    instants: int
    """Distinct times, in whole microseconds; operations due at one time are a burst."""
    bursts: list[Slot]
    """Histogram of the number of operations at one instant."""
    gaps: list[Slot]
    """Gaps between instants, in ns; slots are at most 1/16 of their value wide."""
    gap_mean_ns: float | None
    sequence: BurstSequence | None = None
    """The bursts in their order; null where they are many, and in files of earlier versions."""
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
        """Return the percentile of operations in flight, weighted by time, at `share` (0 to 1).

        Null if the distribution is not known.
        """
        cumulative_share = 0.0
        for level in self.shares:
            cumulative_share += level.share
            if cumulative_share >= share:
                return level.in_flight
        return None


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Idle periods: nothing is in flight between two operations (think time)."""

    stretches: int
    total_ns: int
    p50_ns: int | None


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Reuse distances of the operations of one direction.

    The distance counts from the last operation, of either direction, that began at the same
    address.
    """

    first_ops: int
    """Operations at an address where no earlier one began."""
    distances: list[Slot]
    """Distinct bytes at other addresses in between; slots are at most 1/16 of their value wide."""


class Locality(msgspec.Struct, frozen=True, kw_only=True):
    """Hot blocks and reuse distances of the accessed addresses.

    A very long source is measured over its first operations.
    """

    ops: int
    """Reads and writes that the block figures cover; `read` and `write` cover at least these."""
    is_whole: bool
    """Whether `ops` covers all operations."""
    hot10_share: float
    """Share of accesses that go to the hottest 10 % of touched 128 KiB blocks."""
    reuse_p50_blocks: float | None
    """Median distinct 128 KiB blocks between two accesses to one; null if none recurs."""
    read: Reuse
    write: Reuse


class Pacing(StrEnum):
    """The model of a stream's arrivals."""

    CLOSED = "closed"
    """Closed loop: a completion admits the next operation, at a constant queue depth."""
    EVEN = "even"
    """Open loop with equal gaps."""
    POISSON = "poisson"
    """Open loop with exponential gaps: each arrival is independent of the others."""
    BURSTS = "bursts"
    """Open loop that is neither `EVEN` nor `POISSON`.

    A job has equal bursts if their size is known (`burst_ops`), and Poisson arrivals otherwise.
    """


class Loop(msgspec.Struct, frozen=True):
    """The arrival model of a stream with its parameters."""

    pace: Pacing
    depth: int | None = None
    """99th percentile of the operations in flight at an arrival.

    Null if operations were not timed.
    """
    think_ns: int | None = None
    """Pause of a closed loop with nothing in flight; null if it has none."""
    think_ops: int | None = None
    """Operations between two pauses of a closed loop; null without pauses."""
    response_ns: float | None = None
    """Mean time from the issue of an operation to its completion.

    Null if operations were not timed.
    """
    burst_ops: int | None = None
    """Operations of one burst; null without bursts.

    The stream is modelled by equal bursts, which queue as many operations as the source on a drive
    of 8 times the source's mean rate.
    """
    burst_depth: int | None = None
    """Operations of one burst that run at once; null without bursts.

    All of them, or the operations of one stage where a request has several stages.
    """


class Law(StrEnum):
    """The distribution of random addresses."""

    UNIFORM = "uniform"
    """Every address is equally likely at every draw."""
    ONCE = "once"
    """Uniform without replacement: no address is repeated before all were used."""
    ZIPF = "zipf"
    PARETO = "pareto"
    ZONES = "zones"
    """No law fits: draws follow the zones in `DirectionProfile.zones`."""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The address model of a stream."""

    sequential_share: float
    """Share of operations that begin where an earlier one ended."""
    run_ops: int | None
    """Operations of a sequential run; null if the lengths of runs vary at random."""
    law: Law
    """The distribution of the operations that are not sequential."""
    theta: float | None
    """The theta of zipf, or the h of pareto; null for other laws."""
    align_bytes: int
    """Addresses are multiples of this."""
    begin_bytes: int
    """First byte of the range that the stream uses."""
    span_bytes: int
    """Length of the range that the stream uses."""


class IoStream(msgspec.Struct, frozen=True, kw_only=True):
    """Operations that one arrival model and one address model describe.

    They are the reads, the writes or both, of one process or of all, in one phase of the source.
    """

    name: str
    start_ns: int
    """Start of the stream, from the profile's start."""
    span_ns: int
    read: DirectionProfile
    write: DirectionProfile
    loop: Loop
    places: Places | None
    """Null if the source holds no addresses."""

    @property
    def ops(self) -> int:
        """Reads and writes."""
        return self.read.ops + self.write.ops


class DataProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Redundancy of the data that the replay wrote.

    A ratio of 1 means data that neither repeats nor compresses.
    """

    dedup_ratio: float
    compress_ratio: float


@dataclass(frozen=True, slots=True)
class SourceOperations:
    """The file of a profile's operations, known only in the process that extracted it."""

    ios: Path | None
    """Parquet as `sources.write_ios` writes it; null if the source holds statistics alone."""
    limit: Limit
    """The window of the source that the operations come from."""
    source: Path
    """The file or folder that was distilled."""
    tier: str | None
    """The tier that was asked for."""
    folder: TemporaryFolder | None = None
    """Keeps the folder of `ios` alive; null if the caller owns that folder."""


_OPERATIONS = "operations"


class Profile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The workload profile of one tier or disk."""

    # A profile that this process extracted also refers to the source's operations, from which an
    # exact replay is made. The reference is no field, so JSON and comparisons leave it out.

    format: int = FORMAT
    origin: Origin
    tier: str
    """The tier, or the block device."""
    start_ns: int
    """Due time of the first read or write, from the source's start."""
    span_ns: int
    """Time from the first to the last read or write.

    0 if all share one instant; there is no rate then.
    """
    deletes_beyond_ns: int = 0
    """Time by which deletes extend the span: `whole_ns` less `span_ns`."""
    deletes_start_ns: int = 0
    """Due time of the first delete, from the first read or write; negative if it is earlier."""
    deletes_span_ns: int | None = None
    """Time from the first to the last delete; null if their times are not known."""
    read: DirectionProfile
    write: DirectionProfile
    delete_ops: int
    """Deletes of objects, or discards of a disk."""
    delete_bytes: int
    stray_delete_ops: int
    """Deletes of objects that did not exist."""
    flush_ops: int | None = None
    """Flushes of the disk's cache; null where the source does not know them."""
    empty_ops: int
    """Reads and writes of no bytes, which no job can hold."""
    space: AddressSpace | None
    """Null if the source holds no addresses."""
    concurrency: Concurrency | None
    """Null if the source has no stages."""
    arrivals: ArrivalProfile | None
    """Null if the source holds no times, or all operations share one instant."""
    depth: DepthProfile | None
    """Null unless operations were timed."""
    idle: Idle | None
    """Null unless operations were timed."""
    locality: Locality | None
    streams: list[IoStream]
    """The fitted streams; empty if the source holds no times."""
    data: DataProfile | None
    """Null if the source does not describe the data written."""

    @property
    def operations(self) -> SourceOperations | None:
        """The file of the operations; null if the profile was read from JSON."""
        return vars(self).get(_OPERATIONS)

    def keep_operations(self, operations: SourceOperations) -> None:
        """Set the file of the operations."""
        vars(self)[_OPERATIONS] = operations

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON to `path`; replace an existing file.

        DeviceError if that fails.
        """
        write_json(Path(path), self)

    def __repr__(self) -> str:
        """Return the source and the numbers of operations in one line."""
        return (
            f"Profile({self.tier} of {self.origin.file}: {counted(self.read.ops, 'read')},"
            f" {counted(self.write.ops, 'write')}, {counted(self.delete_ops, 'delete')} over"
            f" {format_duration(self.span_ns)})"
        )

    def _repr_html_(self) -> str:
        """Return an HTML table of the operations, for notebooks."""
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
        """Time from the first to the last operation, including deletes."""
        return self.span_ns + self.deletes_beyond_ns


PERCENT = 100


def equal_mass_zones(
    starts: NDArray[np.int64], transferred_bytes: NDArray[np.int64], granule_bytes: int
) -> list[AddressZone]:
    """Cut the address space from 0 on into zones of about 1 % of the bytes each.

    The percentages are whole and sum to 100. `starts` are ascending granule-aligned addresses;
    `transferred_bytes` are the bytes of the operations that start in each. A granule that holds 2 %
    or more gets a zone of its own, so that a hot object keeps its share:

        for each granule, in order: percents = percent marks (1 %, 2 %, …) that its bytes cross
        for each granule with percents:
            if percents > 1: end a cold zone before it, with the share of the bytes before it
            end a zone after it

    Own reasoning: fio takes at most 100 entries in `random_distribution=zoned_abs`.
    """
    if not len(starts):
        return []
    cumulative_bytes = np.cumsum(transferred_bytes)
    last_granules = np.searchsorted(
        cumulative_bytes * PERCENT, np.arange(1, PERCENT + 1) * cumulative_bytes[-1]
    )
    percents_by_granule = np.bincount(last_granules, minlength=len(starts))
    zones: list[AddressZone] = []
    end, counted_bytes = 0, 0
    for i in np.flatnonzero(percents_by_granule):
        start, percent = int(starts[i]), int(percents_by_granule[i])
        if percent > 1 and start > end:
            cold_bytes = int(cumulative_bytes[i - 1]) - counted_bytes if i else 0
            cold_percent = min(round(cold_bytes * PERCENT / int(cumulative_bytes[-1])), percent - 1)
            zones.append(AddressZone(cold_percent, start - end))
            end, percent = start, percent - cold_percent
        zones.append(AddressZone(percent, start + granule_bytes - end))
        end, counted_bytes = start + granule_bytes, int(cumulative_bytes[i])
    return zones


def percentages(weights: Iterable[int], total_shares: int = PERCENT) -> list[int]:
    """Return whole shares of `weights` that sum to `total_shares`, by largest remainder.

    Ties are spread over the weights, so that equal ones do not all gain at one end. Weights must be
    non-negative and not all 0.
    """
    weights = [int(w) for w in weights]
    total_weight = sum(weights)
    if total_weight <= 0 or min(weights) < 0:
        raise ValueError(f"weights(={weights[:8]}…) must be >= 0 and not all 0.")
    shares = [w * total_shares // total_weight for w in weights]
    # Ties are ordered by bit reversal (0, 512, 256, 768, … of 1024), which spreads them.
    by_remainder = sorted(
        range(len(weights)),
        key=lambda i: (-(weights[i] * total_shares % total_weight), int(f"{i:010b}"[::-1], 2)),
    )
    for i in by_remainder[: total_shares - sum(shares)]:
        shares[i] += 1
    return shares


MAX_ENTRIES = 63
"""fio reports an error at the 64th entry, and ignores entries beyond it without a message."""
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes with whole percentages, ascending, and their error against the exact distribution."""

    entries: tuple[tuple[int, int], ...]
    mismatch_share: float
    """Total variation distance: the share of operations whose size is not the exact one."""
    mean_bytes: float

    def __str__(self) -> str:
        """Return the value of fio's `bssplit`."""
        return ":".join(f"{size}/{percent}" for size, percent in self.entries)


def split_sizes(direction: DirectionProfile) -> Split:
    """Return the split closest to the sizes of `direction`, which must have operations."""
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
    rounded_sizes = [SizeCount(*entry) for entry in entries]
    return Split(entries, total_variation(sizes, rounded_sizes), mean_bytes(rounded_sizes))


def _slices(sizes: list[SizeCount], count: int) -> tuple[tuple[int, int], ...]:
    """Cut the operations, sorted by size, into `count` equal slices, each of its mean size.

    This preserves the mean size. A frequent size fills whole slices; slices of equal size become
    one entry.
    """
    total = sum(s.ops for s in sizes)
    entries: dict[int, int] = {}
    remaining_units, index = sizes[0].ops * count, 0
    for _ in range(count):
        # In units of 1 / count operations, so that every slice is whole.
        missing_units, slice_bytes = total, 0
        while missing_units:
            taken_units = min(missing_units, remaining_units)
            slice_bytes += taken_units * sizes[index].io_bytes
            missing_units, remaining_units = (
                missing_units - taken_units,
                remaining_units - taken_units,
            )
            if not remaining_units and index + 1 < len(sizes):
                index += 1
                remaining_units = sizes[index].ops * count
        size = max(_SECTOR_BYTES, round(slice_bytes / total / _SECTOR_BYTES) * _SECTOR_BYTES)
        entries[size] = entries.get(size, 0) + PERCENT // count
    return tuple(sorted(entries.items()))


def cut_long(direction: DirectionProfile, max_io_bytes: int) -> DirectionProfile:
    """Split operations longer than `max_io_bytes` into several, as a replay does."""
    counts: dict[int, int] = {}
    for size in direction.sizes:
        full_parts, remainder_bytes = divmod(size.io_bytes, max_io_bytes)
        for length, count in ((max_io_bytes, full_parts), (remainder_bytes, 1)):
            if length and count:
                counts[length] = counts.get(length, 0) + count * size.ops
    sizes = [SizeCount(length, ops) for length, ops in sorted(counts.items())]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


def total_variation(a: Sequence[SizeCount], b: Sequence[SizeCount]) -> float:
    """Return the total variation distance of two distributions of sizes.

    It is the share of operations of `a` that would have to change size to be distributed as `b`.
    """
    shares = [{s.io_bytes: s.ops / sum(t.ops for t in side) for s in side} for side in (a, b)]
    return (
        sum(
            abs(shares[0].get(size, 0) - shares[1].get(size, 0))
            for size in {*shares[0], *shares[1]}
        )
        / 2
    )


def mean_bytes(sizes: Sequence[SizeCount]) -> float:
    """Return the mean of `sizes`, which must have operations."""
    return sum(s.io_bytes * s.ops for s in sizes) / sum(s.ops for s in sizes)
