"""The frozen summary of one tier's I/O that writers of jobs read: a JSON anyone can read, too.

Every writer of a job is a pure function of it; what a trace does not hold is null here.
"""

from __future__ import annotations

import msgspec


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where the profile came from; null where the source does not say."""

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
    """So many operations had exactly this length."""

    io_bytes: int
    ops: int


class Zone(msgspec.Struct, frozen=True):
    """A stretch of the address space, and the whole percent of bytes moved by operations that start in it."""

    percent: int
    span_bytes: int


class Direction(msgspec.Struct, frozen=True, kw_only=True):
    """All reads, or all writes."""

    ops: int
    object_bytes: int
    """As the trace has them."""
    io_bytes: int
    """Widened to whole sectors of 512 bytes, as they go to the device."""
    sizes: list[SizeCount]
    """The exact distribution of `io_bytes`, by length."""
    lengths: list[SizeCount] | None = None
    """That of the lengths as the trace has them, where padding changes them; null if they are the same."""
    zones: list[Zone]
    """Where operations start, in order of address from 0; empty if there are none."""

    @property
    def object_sizes(self) -> list[SizeCount]:
        """The exact distribution of lengths without padding, as an object store gets them."""
        return self.sizes if self.lengths is None else self.lengths


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """How the objects lie in one file or device under first fit."""

    span_bytes: int
    peak_live_bytes: int
    prior_objects: int
    """Objects read before the trace writes them: they exist from the start."""
    prior_bytes: int


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """How many operations a stage of a request holds: an upper bound of the depth, since none were timed."""

    max_stage_ops: int
    mean_stage_ops: float


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of a trace, distilled."""

    format: int = 1
    origin: Origin
    tier: str
    start_ns: int
    """When the tier's first read or write is due, from the trace's start."""
    span_ns: int
    """From its first to its last read or write; 0 if all share one instant: then no rate is known."""
    read: Direction
    write: Direction
    delete_ops: int
    delete_bytes: int
    stray_delete_ops: int
    """Deletes of objects that were not there."""
    empty_ops: int
    """Reads and writes of no bytes, which no job can hold."""
    space: Space
    concurrency: Concurrency | None
    """Null if the trace has no stages."""
    mean_in_flight: float | None = None
    """Time-weighted operations in flight; null unless operations were timed."""

    @property
    def ops(self) -> int:
        """Reads and writes."""
        return self.read.ops + self.write.ops

    def per_second(self, count: float) -> float | None:
        """Return the rate of `count` over the span; null if the span is 0."""
        return count * 1e9 / self.span_ns if self.span_ns else None
