"""The I/Os that a source's program issues: operations of a trace in parts.

A trace holds whole operations on objects, and kvreplay issues each of them as I/Os of at most
`--io-bytes`, one behind the other on the drive and all at once. The statistical job has to issue
the same I/Os: a longer one would be split by the device at a limit of its own.

A run and block events hold I/Os that were issued as they are. fio's buffers limit their length.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kvdistill.jobs.job import STAT_MAX_IO_BYTES, JobOptions
from kvdistill.profile.profile import (
    IoStream,
    Loop,
    Pacing,
    Places,
    Profile,
    SizeCount,
    SourceKind,
    cut_long,
)


def longest_issued_bytes(profile: Profile, options: JobOptions) -> int:
    """Return the length of the longest I/O that the statistical job of `profile` issues."""
    is_trace = profile.origin.kind is SourceKind.TRACE
    return min(profile.longest_bytes, options.io_bytes if is_trace else STAT_MAX_IO_BYTES)


def as_issued(profile: Profile, options: JobOptions) -> Profile:
    """Return `profile` with operations as the I/Os that are issued for them.

    Counts of operations become counts of I/Os: of each direction, of a burst, of a stage, and of a
    sequential run. The parts of one operation arrive together, so a stream of long operations
    arrives in bursts.
    """
    longest_bytes = longest_issued_bytes(profile, options)
    if longest_bytes == profile.longest_bytes:
        return profile
    concurrency = profile.concurrency
    if concurrency is not None:
        most_parts = -(-profile.longest_bytes // longest_bytes)
        concurrency = msgspec.structs.replace(
            concurrency, max_stage_ops=concurrency.max_stage_ops * most_parts
        )
    is_trace = profile.origin.kind is SourceKind.TRACE
    return msgspec.structs.replace(
        profile,
        read=cut_long(profile.read, longest_bytes),
        write=cut_long(profile.write, longest_bytes),
        concurrency=concurrency,
        streams=[_stream_in_parts(s, longest_bytes, in_bursts=is_trace) for s in profile.streams],
    )


def _stream_in_parts(stream: IoStream, longest_bytes: int, *, in_bursts: bool) -> IoStream:
    """Return `stream` with operations in parts of at most `longest_bytes`.

    The parts of an operation arrive together if `in_bursts`; else they are I/Os of their own.
    """
    parts = msgspec.structs.replace(
        stream,
        read=cut_long(stream.read, longest_bytes),
        write=cut_long(stream.write, longest_bytes),
    )
    if not in_bursts or parts.ops == stream.ops:
        return parts
    sizes = [*stream.read.sizes, *stream.write.sizes]
    return msgspec.structs.replace(
        parts,
        loop=_loop_in_parts(
            stream.loop, parts.ops / stream.ops, _parts_together(sizes, longest_bytes)
        ),
        places=None if stream.places is None else _places_in_parts(stream.places, stream, parts),
    )


def _parts_together(sizes: Iterable[SizeCount], longest_bytes: int) -> float:
    """Return the mean number of parts that arrive with a part, itself included.

    Parts queue with those of their own operation, so equal bursts of this many queue as much as
    operations of different lengths do.
    """
    squares = total = 0
    for size in sizes:
        parts = -(-size.io_bytes // longest_bytes)
        squares += parts * parts * size.ops
        total += parts * size.ops
    return squares / total


def _loop_in_parts(loop: Loop, mean_parts: float, parts_together: float) -> Loop:
    """Return the arrivals of the parts of a stream, given the arrivals `loop` of its operations."""
    if loop.pace is Pacing.CLOSED:
        return loop
    if loop.burst_ops is None:
        burst = max(2, round(parts_together))
        return msgspec.structs.replace(loop, pace=Pacing.BURSTS, burst_ops=burst, burst_depth=burst)
    stage = loop.burst_depth
    return msgspec.structs.replace(
        loop,
        burst_ops=round(loop.burst_ops * mean_parts),
        # In a stage of one operation, exactly its own parts are in flight.
        burst_depth=None
        if stage is None
        else round(parts_together if stage == 1 else stage * mean_parts),
    )


def _places_in_parts(places: Places, stream: IoStream, parts: IoStream) -> Places:
    """Return the addresses of `parts`, which lie behind each other within an operation."""
    growth = parts.ops / stream.ops
    # The range holds first bytes: the last part begins behind that of its operation.
    longest_bytes, part_bytes = (
        max(size.io_bytes for size in (*one.read.sizes, *one.write.sizes))
        for one in (stream, parts)
    )
    run_ops = places.run_ops
    if run_ops is not None:
        run_ops = round(run_ops * growth)
    elif places.sequential_share == 0 and growth == round(growth):
        run_ops = round(growth)
    return msgspec.structs.replace(
        places,
        sequential_share=1 - (1 - places.sequential_share) / growth,
        run_ops=run_ops,
        span_bytes=places.span_bytes + longest_bytes - part_bytes,
    )
