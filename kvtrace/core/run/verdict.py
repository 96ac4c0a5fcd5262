"""What a run was asked, what it reached, and what held it back: its one sentence, and what that was derived from."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class LimitCause(StrEnum):
    """What held a run back."""

    DRIVE = "drive"
    """More in flight would not have moved more: what the tier's storage, or its model, can do."""
    REPLAYER = "replayer"
    """Our own submission."""
    QUEUE_LIMIT = "queue limit"
    """--queue-depth, or what set it: as much was in flight as may be, and the drive could have taken more."""
    DATA = "data generation"
    """Making the data of writes."""
    DEPENDENCIES = "dependencies"
    """The order that the trace asks for: earlier operations of the same request or object."""
    COPY_THREADS = "copy threads"
    """The threads that copy to and from memory tiers."""
    PROCESSOR = "processor"
    """Our threads were ready to run, and others had their processors."""
    MEMORY = "first touch of memory"
    """The kernel gave pages to memory that nothing had written to yet."""
    THROTTLE = "throttle"
    """A limit above the device: of the control group of the process."""
    KERNEL = "kernel above the device"
    """Filesystem and block layer: I/Os were long there, and short at the device."""


class TierRate(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier was asked and reached."""

    tier: str
    is_simulated: bool
    asked_bytes_per_s: float | None
    """Of the operations that completed, by their due times; null in a closed loop, which asks for all there is."""
    reached_bytes_per_s: float | None
    """Over the same span, and by how much its end was late; in a closed loop from the first submission to the last
    completion. Null where nothing moved."""
    asked_operations_per_s: float | None
    reached_operations_per_s: float | None
    end_late_ns: int | None
    """By how much the tier's last operation ended late; null in a closed loop."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the cause was derived from; null is what was not measured. Shares are of the run's time."""

    queue_depth: int
    """The limit of what may be in flight."""
    storage: str = "drive"
    """What the tier lies on, in words: drive, object store, memory, page cache, or device in memory."""
    in_flight_mean: float | None = None
    """I/Os, over the run; copies to and from memory take no place."""
    held_share: float | None = None
    """Open loop: something due waited because as much was in flight as may be."""
    starved_share: float | None = None
    """Of the time of the threads that submit, or copy: making the data of writes. Of processor time, as the others."""
    unread_share: float | None = None
    """Of the queue's time: idle because the next rows of the trace were not there yet."""
    blocked_share: float | None = None
    """The same: idle because all rows that were left waited for earlier ones; null in an open loop."""
    submitter_busy_share: float | None = None
    """The submitting thread had something to do; null where each I/O has a thread that submits it."""
    copy_busy_share: float | None = None
    """Of the time of all threads that copy to and from memory; null without them."""
    device_busy_share: float | None = None
    """The device had at least one request in flight, by its own counters; null where they are not seen."""
    device_time_share: float | None = None
    """Time of requests at the device / time of I/Os in flight; above 1 where the kernel splits I/Os, null where other
    tiers take places of the queue, too."""
    doubling_gain: float | None = None
    """What twice as much in flight added to the rate of the tier: 0 nothing, 1 as much again. From its operations of
    one I/O, by how many were in flight when they were submitted and while they were served; null where that did not
    vary, or the two disagree."""
    slowdown: float | None = None
    """Median service time with the most in flight / with at most an eighth of that; null without such operations."""
    is_end_late: bool | None = None
    """Open loop: its last operation ended late, and less was delivered than asked; null in a closed loop."""
    response_shares: dict[str, float] = {}
    """As `causes` of `pace`, of the tier that the verdict speaks of; empty in a closed loop."""
    unhindered_share: float | None = None
    """Of the response times of the tier: what its operations take unhindered; null in a closed loop."""
    on_time_share: float | None = None
    """As `on_time_fraction` of `pace`; null in a closed loop."""
    queue_full_share: float | None = None
    """The submitting thread slept in io_uring_enter with submissions in hand: the block layer's queue was full. Of
    several that with the most."""
    kernel_share: float | None = None
    """The submitting thread ran in the kernel, where it submits and where caches are copied; as `submitter_busy_share`.
    """
    processor_share: float | None = None
    """The threads that submit, or copy, were ready to run or in the middle of something, and had no processor."""
    touch_share: float | None = None
    """The threads that copy had the kernel give pages to memory; null without them."""
    copying_share: float | None = None
    """They copied, each on average; null without them."""
    checking_share: float | None = None
    """The threads that submit, or copy, checked what reads brought."""
    device_queue_mean: float | None = None
    """Requests at the device while operations were in flight, by its own counters; of several the fullest."""
    device_queue_limit: int | None = None
    """Requests that its queue takes (nr_requests)."""
    throttle: str | None = None
    """A limit above the device that was reached, or nearly; null if none is known to have been."""
    throttle_share: float | None = None
    """What was moved, of that limit."""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The one sentence of a run, and what it says."""

    sentence: str
    has_reached: bool | None
    """Whether an open loop reached what was asked and kept pace; null in a closed loop, which has no such end."""
    tier: str | None
    """The tier that it speaks of: the one whose operations took the most time."""
    cause: LimitCause | None
    """What held it back; null if nothing did, or if what was measured does not decide."""
    reason: str | None
    """What the cause was seen by, or why it is not known; null if nothing held it back."""
    tiers: list[TierRate]
    evidence: Evidence
