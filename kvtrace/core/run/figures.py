"""The figures of a run as run.json holds them.

By tier and operation, by request, by MLPerf's names.

What was not measured is null. Fields with a default are those that an import may lack.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core.units import percent


class Distribution(msgspec.Struct, frozen=True):
    """How a time is distributed over operations, in nanoseconds.

    Null where too few operations tell.
    """

    count: int
    mean_ns: float | None = None
    p50_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    p99_9_ns: int | None = None
    p99_99_ns: int | None = None
    max_ns: int | None = None
    percentiles_within: float | UnsetType = UNSET
    """There if the percentiles come from a histogram.

    How far off they may be, of their value; else they are exact.
    """


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations of one kind on one tier did."""

    tier: str
    op: str
    engine: str
    is_simulated: bool
    """Nothing moved.

    Bytes, rates and latencies are those of the tier's model, null if it has none.
    """
    planned: int | None = None
    operations: int | None = None
    """Those that completed well; null where an import counts none."""
    errors: int | None = None
    """Those that failed, came up short, or brought corrupt blocks."""
    corrupt: int = 0
    """Of the errors: reads with corrupt blocks; 0 unless verified."""
    bytes: int | None = None
    """Object bytes; for deletes, the bytes freed, null in imports."""
    io_bytes: int | None = None
    """Bytes asked of the tier, padding included."""
    span_ns: int | None = None
    """From the first submission to the last completion."""
    bandwidth_bytes_per_s: float | None = None
    operations_per_s: float | None = None
    in_flight_mean: float | None = None
    in_flight_max: int | None = None
    latency: Distribution
    """Service time: completion - submission."""
    response: Distribution | None = None
    """Response time: completion - due time; null in a closed loop."""
    latency_per_mib: Distribution | None = None
    """Each operation's latency for 1 MiB of its object bytes."""
    lateness: Distribution | None = None
    """Submission - due time; null in a closed loop."""

    @property
    def judged(self) -> Distribution:
        """The time that criteria judge.

        The response time in an open loop, else the service time.
        """
        return self.latency if self.response is None else self.response


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an open loop kept to the trace's times, and what kept it from that."""

    kept_pace: bool
    """It delivered what was offered, and hardly an operation was late (`on_time_fraction`)."""
    late_fraction: float
    """Operations submitted more than 1 ms after they were due."""
    late_by_itself_fraction: float
    """Of all operations, those late by more than 1 ms after what they had to wait for was done."""
    lateness: Distribution
    response: Distribution | None = None
    """Completion - due time, of all that completed."""
    offered_per_s: float | None = None
    """Operations due by the run's end / the schedule.

    From the first due time to the last, and one gap such as those between (from one burst to the
    next, if they come in bursts); null if all were due at once.
    """
    delivered_per_s: float | None = None
    """Operations / the schedule.

    Where they end after it, to the last completion, less what the last took.
    """
    end_late_ns: int | None = None
    """Last completion - last due time, less what such an operation takes.

    Or how long what was not reached was due.
    """
    cause: str | None = None
    """What most of the delay was: one of `causes`; null if it kept pace."""
    causes: dict[str, float] = {}
    """Shares of the response times added up.

    Drive (service time), dependencies (earlier operations of the request or object), queue (as much
    in flight as may be), block queue (the block layer's was full), buffers (whose memory was still
    being touched), data (not made yet), memory (pages of memory tiers touched first), processor
    (others had it), copying (of other operations), submission (ours). Those before submission are
    shares of time that the engine's threads counted.
    """
    held_share: float | None = None
    """Of the run's time.

    Something due waited because as much was in flight as may be; null if not known.
    """
    on_time_fraction: float | None = None
    """Of the operations that completed well.

    Those that took at most 1 ms more than twice what one of their kind and length takes unhindered
    (of the quickest 5 %), from when they were due. One that waited for an earlier operation was due
    when that ended. Null in runs of earlier versions.
    """
    unhindered_share: float | None = None
    """Of the response times added up.

    What the operations take unhindered; null in runs of earlier versions.
    """


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """What making the data of writes cost."""

    generation_ns: int
    """Of all threads together."""
    reserve_ns: int
    """Giving objects their extents."""
    threads: int
    """Those that submit, or copy: each makes the data of its own writes."""
    share_of_threads: float
    """Of their time."""
    reserve_share: float
    starved_share: float | None = None
    """Of the submitting threads' time.

    Idle because a write's data was not there; null where each makes its own.
    """
    writes_generated_in_flight: int
    """Writes of several I/Os.

    The data of the later ones was made while they ran, within their latency.
    """


class WarmupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run that its figures leave out."""

    asked: str
    operations: int
    """Completed in the warm-up, kept in ops.parquet, in no figure."""
    first_measured_row: int | None
    """The row of the trace.

    Null if the warm-up was all, and of several ranks, which have one each.
    """
    measured_from_ns: int | None
    """As of the summary."""


class Metrology(msgspec.Struct, frozen=True, kw_only=True):
    """How far off the measurement itself is.

    Null where that is not known. How well it repeats, only trials tell.
    """

    late_p50_ns: int | None
    """Bias in time.

    Submission after the trace's time, of all operations; this and the next null in a closed loop.
    """
    late_p99_ns: int | None
    bytes_off: dict[str, float | None]
    """Bias in bytes, by read and write.

    Those that the devices moved, for all programs, over those asked of them, less 1; null where
    that is not seen, or nothing was asked.
    """
    clock_step_ns: int
    """Resolution of times.

    The least step that the clock was seen to make, with the call that reads it.
    """


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a whole run."""

    verdict: str
    """One sentence: the load asked for, the load reached, the bottleneck."""
    judgement: RunVerdict | None = None
    """The same in fields.

    Null in runs of earlier versions and in imports, and if nothing was submitted.
    """
    wall_ns: int | None = None
    """Null if the run ended before its first operation."""
    measured_from_ns: int | None = None
    """Since the run's start.

    The first submission that counts; null if none does, and in runs of earlier versions.
    """
    operations: int | None = None
    """Completed well, those of the warm-up not counted; null where an import counts none."""
    errors: int | None = None
    """In the whole run, its warm-up included."""
    not_reached: int | None = None
    trace_times: float | None = None
    """How often --duration repeated the trace, or the share of it that it came to; null without."""
    figures: list[Figures]
    drives: list[Figures] = []
    """The same for each drive of a tier on several, which stands behind the tier's name."""
    pace: Pace | None = None
    in_flight_mean: float | None = None
    skipped_rows: dict[str, int] = {}
    """By tier that had no --tier option."""
    warmup: WarmupFacts | None = None
    """What the figures leave out."""
    absent_deletes: int = 0
    """Deletes of objects that the window never put there; skipped."""
    generation: Generation | None = None
    definitions: dict[str, str] = {}
    """What the names of figures mean."""

    @property
    def measured_ns(self) -> int:
        """The time of what counts: from the first submission to the end."""
        return (self.wall_ns or 0) - (self.measured_from_ns or 0)

    @property
    def fell_behind(self) -> bool:
        """Whether less was reached than the trace asks for, and the end came late.

        Told by verdicts of any version.
        """
        return "FELL BEHIND" in self.verdict

    @property
    def mix(self) -> str:
        """How much of the bytes was read on the tier that the verdict speaks of, or what was not
        measured.
        """
        tier = None if self.judgement is None else self.judgement.tier
        moved = [
            (f.op, f.bytes or 0)
            for f in self.figures
            if not f.is_simulated and tier in (None, f.tier)
        ]
        read, written = (sum(count for of, count in moved if of == op) for op in ("read", "write"))
        if read and written:
            return f"{percent(read / (read + written))} of bytes read"
        only = "reads only: no writes" if read else "writes only: no reads" if written else ""
        only = only or "deletes only: no reads or writes" * ({op for op, _ in moved} == {"delete"})
        return f"{only} were measured{f' on {tier}' if tier else ''}" if only else ""


class ClassFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of one class of service got."""

    qos: str
    storage: Distribution
    response: Distribution | None = None
    """As in `RequestFigures`; judged instead of `storage` in an open loop."""
    targets_ns: dict[str, int]
    """By percentile: p95, p99, p99_9, p99_99."""
    share_within_p95_target: float | None
    """Of its requests; null if none is known."""
    verdict: str
    """pass, fail, or not measured."""


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a run, those that the warm-up touches left out."""

    requests: int
    storage: Distribution
    """storage_ns of those whose operations on storage and in memory all completed."""
    response: Distribution | None = None
    """Time in which at least one of its operations was due and not completed.

    Null in a closed loop.
    """
    first_token: Distribution | None
    """Null if it is not modelled."""
    first_token_unknown: int | None
    """Requests without it: a load was not replayed, or failed."""
    first_token_reason: str | None
    """Why it is not modelled."""
    first_token_definition: str
    classes: list[ClassFigures]
    """Empty without the requests table."""


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion and its verdict."""

    name: str
    threshold: int | float
    """In the unit that the name ends with; a share if it ends with none."""
    measured: int | float | None
    verdict: str
    """pass, fail, or not measured."""
    definition: str
    shown: str


class MlperfLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of one operation on one tier."""

    tier: str
    kind: str
    """storage, cpu or other."""
    op: str
    total: Distribution
    """Service time."""
    response: Distribution | None = None
    """Response time, which the criteria judge in an open loop; null in a closed one."""
    host: None = None
    device: None = None
    reason: str
    """Why host and device time are null."""


class TokenThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens generated by the trace's requests, by two clocks."""

    tokens: int | None
    storage_io_ns: int
    """The latencies of all operations on storage tiers, summed.

    Overlapping ones count several times.
    """
    storage_throughput_tokens_per_s: float | None
    """tokens / storage_io_ns."""
    wall_clock_throughput_tokens_per_s: float | None
    """tokens / wall time: of the replay, in which no token is generated."""
    reason: str | None
    """Why tokens are null."""


class Mlperf(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the MLPerf Storage KV-cache benchmark under its names, and its health
    criteria.
    """

    latencies: list[MlperfLatency]
    throughput: TokenThroughput
    criteria: list[Criterion]
    qos_compliance: dict[str, float | None] | None
    """By class: the share of its requests whose storage time is within the class's p95 target."""
    qos_reason: str | None
    """Why it is null."""
    qos_definition: str


class LimitCause(StrEnum):
    """The bottleneck of a run."""

    DRIVE = "drive"
    """More in flight would not have moved more: what the tier's storage, or its model, can do."""
    REPLAYER = "replayer"
    """Our own submission."""
    QUEUE_LIMIT = "queue limit"
    """--queue-depth, or what set it.

    As much was in flight as may be, and the drive could have taken more.
    """
    DATA = "data generation"
    """Making the data of writes."""
    DEPENDENCIES = "latency of dependent operations"
    """The latency of the tier, for operations that wait for earlier ones of their request or object.

    More in flight would not help, since the order is the trace's; a shorter latency would.
    """
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
    """Of what was due, over the run's schedule (`offered_per_s`); null in a closed loop."""
    reached_bytes_per_s: float | None
    """Over the same time, and by how much it ended after that.

    In a closed loop from the first submission to the last completion. Null where nothing moved.
    """
    asked_operations_per_s: float | None
    reached_operations_per_s: float | None
    end_late_ns: int | None
    """By how much the tier's last operation ended late; null in a closed loop."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the cause was derived from.

    Null is what was not measured. Shares are of the run's time.
    """

    queue_depth: int
    """The limit of what may be in flight."""
    storage: str = "drive"
    """What the tier lies on, in words.

    Drive, object store, memory, page cache, or device in memory.
    """
    in_flight_mean: float | None = None
    """I/Os, over the run; copies to and from memory take no place."""
    held_share: float | None = None
    """Open loop: something due waited because as much was in flight as may be."""
    starved_share: float | None = None
    """Of the time of the threads that submit, or copy.

    Making the data of writes. Of processor time, as the others.
    """
    unread_share: float | None = None
    """Of the queue's time: idle because the next rows of the trace were not there yet."""
    blocked_share: float | None = None
    """The same.

    Idle because all rows that were left waited for earlier ones; null in an open loop.
    """
    submitter_busy_share: float | None = None
    """The submitting thread had something to do.

    Null where each I/O has a thread that submits it.
    """
    copy_busy_share: float | None = None
    """Of the time of all threads that copy to and from memory; null without them."""
    device_busy_share: float | None = None
    """The device had at least one request in flight, by its own counters.

    Null if not seen, or busy for others.
    """
    device_time_share: float | None = None
    """Time of requests at the device / time of I/Os in flight.

    Above 1 where the kernel splits I/Os, null where other tiers take places of the queue, too.
    """
    doubling_gain: float | None = None
    """What twice as much in flight added to the rate of the tier.

    0 nothing, 1 as much again. From its operations of one I/O, by how many were in flight when they
    were submitted and while they were served; where that did not vary, or the two disagree, by the
    model of a simulated tier, else null.
    """
    slowdown: float | None = None
    """Median service time with the most in flight / with at most an eighth of that.

    Null without such operations.
    """
    is_end_late: bool | None = None
    """Open loop.

    Its last operation ended late, and less was delivered than asked; null in a closed loop.
    """
    response_shares: dict[str, float] = {}
    """As `causes` of `pace`, of the tier that the verdict speaks of; empty in a closed loop."""
    unhindered_share: float | None = None
    """Of the response times of the tier.

    What its operations take unhindered; null in a closed loop.
    """
    on_time_share: float | None = None
    """As `on_time_fraction` of `pace`; null in a closed loop."""
    queue_full_share: float | None = None
    """The submitting thread slept in io_uring_enter with submissions in hand.

    The block layer's queue was full. Of several that with the most.
    """
    kernel_share: float | None = None
    """The submitting thread ran in the kernel, where it submits and where caches are copied.

    As `submitter_busy_share`.
    """
    processor_share: float | None = None
    """The threads that submit, or copy, were ready to run or in the middle of something, and had no
    processor.
    """
    others_processor_share: float | None = None
    """Of the time of all processors: other programs ran. Null where the kernel does not tell."""
    mean_service_ns: float | None = None
    """Mean service time of the tier's operations."""
    needed_service_ns: float | None = None
    """Mean service time with which the load would have been delivered in its time, about.

    Null unless an open loop fell behind.
    """
    touch_share: float | None = None
    """The threads that copy had the kernel give pages to memory; null without them."""
    copying_share: float | None = None
    """They copied, each on average; null without them."""
    checking_share: float | None = None
    """The threads that submit, or copy, checked what reads brought."""
    device_queue_mean: float | None = None
    """Requests at the device while operations were in flight, by its own counters.

    Of several the fullest.
    """
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
    """Whether an open loop reached what was asked and kept pace.

    Null in a closed loop, which has no such end.
    """
    tier: str | None
    """The tier that it speaks of: the one whose operations took the most time."""
    cause: LimitCause | None
    """Its bottleneck; null if there was none, or if the measurements do not identify it."""
    reason: str | None
    """The evidence for it, or why it is not identified; null if there was none."""
    tiers: list[TierRate]
    evidence: Evidence


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A save or a restore."""

    kind: str
    """save or restore."""
    request_id: int | None
    """Its request in the trace; null if the trace gives it none."""
    ts_ns: int | None = None
    """When it begins in the trace; null in runs of earlier versions."""
    scheduled_ns: int | None
    """When it was due, from the start of the run; null in a closed loop."""
    submitted_ns: int | None
    """Its first submission; null if there was none."""
    completed_ns: int | None
    """Its last completion; null unless all of it completed."""
    duration_ns: int | None
    stall_ns: int | None
    bytes: int
    """Object bytes that completed."""
    bandwidth_bytes_per_s: float | None
    operations: int
    unfinished: int
    """Operations that failed or were not reached."""


class CheckpointKind(msgspec.Struct, frozen=True, kw_only=True):
    """All saves, or all restores."""

    kind: str
    count: int
    """Those that completed."""
    unfinished: int
    bytes: int
    """Of those that completed."""
    duration: Distribution
    bandwidth_bytes_per_s: float | None
    """Bytes / durations added up."""
    stall_ns: int | None
    """Added up."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """How long operations of others took while checkpoints were saved or restored, and otherwise."""

    tier: str
    op: str
    measure: str
    """response, in an open loop; else latency."""
    during: Distribution
    without: Distribution

    def compared(self) -> tuple[str, int, int] | None:
        """Return the highest of the percentiles to p99 that both have, and both.

        None if there is none.
        """
        for name in ("p99", "p95", "p50"):
            during, without = (
                getattr(self.during, f"{name}_ns"),
                getattr(self.without, f"{name}_ns"),
            )
            if during is not None and without is not None:
                return name, during, without
        return None


class CheckpointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did for checkpoints."""

    each: list[Checkpoint]
    """In the order in which they were due."""
    kinds: list[CheckpointKind]
    busy_ns: int
    """Time in which at least one was under way."""
    stall_share: float | None
    """Stalls added up, of the run's time."""
    beside: list[Beside]
    """By tier and op of others; empty if there were none."""
    definitions: dict[str, str]


class ServingTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How a time is distributed, in nanoseconds."""

    count: int | None = None
    """Of how many; null where the benchmark does not say."""
    mean_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    p99_9_ns: int | None = None
    max_ns: int | None = None


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one benchmark."""

    benchmark: str
    """What measured."""
    requests: int | None = None
    """Those answered."""
    failed_requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    first_token: ServingTimes | None = None
    """From sending a request to its first token."""
    inter_token: ServingTimes | None = None
    """Between two tokens of an answer."""
    output_token: ServingTimes | None = None
    """A token after the first, on average over its answer."""
    answer: ServingTimes | None = None
    """From sending a request to its last token."""
