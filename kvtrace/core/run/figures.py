"""The figures of a run, as run.json contains them: by tier and operation, by request, and under
MLPerf's names.

A value that was not measured is null. Fields with a default may be absent in an import.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core.units import percent


class Distribution(msgspec.Struct, frozen=True):
    """The distribution of a time over operations, in nanoseconds.

    A percentile is null if there are too few operations for it.
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
    """Largest error of the percentiles, as a share of their value, if they come from a histogram;
    unset if they are exact.
    """


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of all operations of one kind on one tier."""

    tier: str
    op: str
    engine: str
    is_simulated: bool
    """True if no data was transferred. Then bytes, rates and latencies are those of the tier's
    model, and null if it has none.
    """
    planned: int | None = None
    operations: int | None = None
    """Operations that completed without an error; null where an import does not count them."""
    errors: int | None = None
    """Operations that failed, transferred too few bytes, or read corrupt blocks."""
    corrupt: int = 0
    """Of the errors: reads with corrupt blocks; 0 unless verified."""
    bytes: int | None = None
    """Object bytes. For deletes, the bytes freed; null in imports."""
    io_bytes: int | None = None
    """Bytes requested from the tier, including padding."""
    span_ns: int | None = None
    """Time from the first submission to the last completion."""
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
        """The time that criteria judge: response time in an open loop, service time in a closed
        loop.
        """
        return self.latency if self.response is None else self.response


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The delivery of the trace's load by an open loop, and the causes of its delays."""

    kept_pace: bool
    """True if the offered load was delivered and nearly all operations were on time
    (`on_time_fraction`).
    """
    late_fraction: float
    """Share of operations submitted more than 1 ms after their due time."""
    late_by_itself_fraction: float
    """Share of all operations submitted more than 1 ms after both their due time and the end of the
    operations that they depend on.
    """
    lateness: Distribution
    response: Distribution | None = None
    """Completion - due time, of all operations that completed."""
    offered_per_s: float | None = None
    """Operations due by the run's end / the schedule. The schedule lasts from the first due time to
    the last, plus one gap between operations, or between bursts if they come in bursts. Null if all
    operations were due at once.
    """
    delivered_per_s: float | None = None
    """Operations / the schedule. If they end after the schedule, the divisor is the time up to the
    last completion, less the service time of the last operation.
    """
    end_late_ns: int | None = None
    """Last completion - last due time, less the service time of such an operation; or, if it is
    longer, the time for which operations that were not reached were due.
    """
    cause: str | None = None
    """The largest cause of delay, one of `causes`; null if the run kept pace."""
    causes: dict[str, float] = {}
    """Shares of the summed response times.

    Drive (service time), dependencies (earlier operations of the request or object), queue (the
    queue depth was reached), block queue (the block layer's queue was full), buffers (their memory
    was still being touched), data (not generated yet), memory (first touch of pages of memory
    tiers), processor (other programs used it), copying (of other operations), submission (our own
    work). The causes before submission are shares of time that the engine's threads measured.
    """
    held_share: float | None = None
    """Share of the run's time in which a due operation waited because the queue depth was reached;
    null if unknown.
    """
    on_time_fraction: float | None = None
    """Share of the operations without an error that were on time: from its due time, such an
    operation took at most 1 ms more than twice the unhindered time of its kind and length (of the
    quickest 5 %). An operation that waited for an earlier one was due when that one ended. Null in
    runs of earlier versions.
    """
    unhindered_share: float | None = None
    """Share of the summed response times that the operations take unhindered; null in runs of
    earlier versions.
    """


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of generating the data of writes."""

    generation_ns: int
    """Time of all threads, summed."""
    reserve_ns: int
    """Time spent on reserving extents for objects."""
    threads: int
    """The threads that submit or copy. Each generates the data of its own writes."""
    share_of_threads: float
    """Generation time as a share of the threads' time."""
    reserve_share: float
    starved_share: float | None = None
    """Share of the submitting threads' time in which they were idle because the data of a write was
    not ready; null if each thread generates its own data.
    """
    writes_generated_in_flight: int
    """Writes of several I/Os whose later data was generated while the earlier I/Os were in flight,
    so that their latency includes it.
    """


class WarmupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run that its figures exclude."""

    asked: str
    """The requested warm-up."""
    operations: int
    """Operations completed in the warm-up. They are in ops.parquet, but in no figure."""
    first_measured_row: int | None
    """The row of the trace. Null if all of the run was warm-up, and for several ranks, each of
    which has its own.
    """
    measured_from_ns: int | None
    """The same as `measured_from_ns` of the summary."""


class Metrology(msgspec.Struct, frozen=True, kw_only=True):
    """The error of the measurement itself. A value that is unknown is null.

    Repeatability is not among it: only trials measure that.
    """

    late_p50_ns: int | None
    """Bias in time: submission - due time, of all operations. This and the next field are null in a
    closed loop.
    """
    late_p99_ns: int | None
    bytes_off: dict[str, float | None]
    """Bias in bytes, for reads and for writes: bytes transferred by the devices for all programs /
    bytes requested from them, minus 1. Null if the devices' counters cannot be read, or if nothing
    was requested.
    """
    clock_step_ns: int
    """Resolution of times: the smallest step of the clock that was observed, including the call
    that reads it.
    """


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a whole run."""

    verdict: str
    """One sentence: the requested load, the achieved load, and the bottleneck."""
    judgement: RunVerdict | None = None
    """The verdict as fields. Null in runs of earlier versions, in imports, and if nothing was
    submitted.
    """
    wall_ns: int | None = None
    """Null if the run ended before its first operation."""
    measured_from_ns: int | None = None
    """Time from the run's start to the first submission that is measured; null if none is measured,
    and in runs of earlier versions.
    """
    operations: int | None = None
    """Operations that completed without an error, excluding the warm-up; null where an import does
    not count them.
    """
    errors: int | None = None
    """Errors in the whole run, including its warm-up."""
    not_reached: int | None = None
    trace_times: float | None = None
    """How many times the run went through the trace with --duration, fractions included; null
    without that option.
    """
    figures: list[Figures]
    drives: list[Figures] = []
    """The figures of each drive, for tiers on several drives. The tier's name is followed by the
    drive's.
    """
    pace: Pace | None = None
    in_flight_mean: float | None = None
    skipped_rows: dict[str, int] = {}
    """Rows skipped because their tier had no --tier option, by tier."""
    warmup: WarmupFacts | None = None
    """The warm-up, which the figures exclude."""
    absent_deletes: int = 0
    """Deletes skipped because the window did not write their objects."""
    generation: Generation | None = None
    definitions: dict[str, str] = {}
    """The meaning of the figures, by name."""

    @property
    def measured_ns(self) -> int:
        """The measured time: from the first measured submission to the end of the run."""
        return (self.wall_ns or 0) - (self.measured_from_ns or 0)

    @property
    def fell_behind(self) -> bool:
        """True if an open loop delivered less than the trace's load, and ended late.

        Read from the verdict's text, because runs of all versions have it.
        """
        return "FELL BEHIND" in self.verdict

    @property
    def mix(self) -> str:
        """The share of reads in the bytes of the tier that the verdict names.

        If only reads, only writes or only deletes were measured, say that instead; empty if nothing
        was measured.
        """
        tier = None if self.judgement is None else self.judgement.tier
        bytes_by_op: dict[str, int] = {}
        for figures in self.figures:
            if not figures.is_simulated and tier in (None, figures.tier):
                bytes_by_op[figures.op] = bytes_by_op.get(figures.op, 0) + (figures.bytes or 0)
        read_bytes, written_bytes = bytes_by_op.get("read", 0), bytes_by_op.get("write", 0)
        if read_bytes and written_bytes:
            return f"{percent(read_bytes / (read_bytes + written_bytes))} of bytes read"
        if read_bytes:
            measured = "reads only: no writes were measured"
        elif written_bytes:
            measured = "writes only: no reads were measured"
        elif set(bytes_by_op) == {"delete"}:
            measured = "deletes only: no reads or writes were measured"
        else:
            return ""
        return f"{measured} on {tier}" if tier else measured


class ClassFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the requests of one class of service."""

    qos: str
    storage: Distribution
    response: Distribution | None = None
    """As in `RequestFigures`; in an open loop it is judged instead of `storage`."""
    targets_ns: dict[str, int]
    """By percentile: p95, p99, p99_9, p99_99."""
    share_within_p95_target: float | None
    """Share of the class's requests within its p95 target; null if no request's time is known."""
    verdict: str
    """`pass`, `fail` or `not measured`."""


class RequestFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run's requests, excluding requests that the warm-up touches."""

    requests: int
    storage: Distribution
    """storage_ns of the requests whose operations on storage and in memory all completed."""
    response: Distribution | None = None
    """Time during which at least one of the request's operations was due and not completed; null in
    a closed loop.
    """
    first_token: Distribution | None
    """TTFT; null if it is not modelled."""
    first_token_unknown: int | None
    """Requests without a TTFT, because a load was not replayed or failed."""
    first_token_reason: str | None
    """Why TTFT is not modelled."""
    first_token_definition: str
    classes: list[ClassFigures]
    """Empty without the requests table."""


class Criterion(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion and its verdict."""

    name: str
    threshold: int | float
    """In the unit that the name ends with; a share if the name has no unit."""
    measured: int | float | None
    verdict: str
    """`pass`, `fail` or `not measured`."""
    definition: str
    shown: str


class MlperfLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of one operation on one tier."""

    tier: str
    kind: str
    """`storage`, `cpu` or `other`."""
    op: str
    total: Distribution
    """Service time."""
    response: Distribution | None = None
    """Response time, which the criteria judge in an open loop; null in a closed loop."""
    host: None = None
    device: None = None
    reason: str
    """Why host and device time are null."""


class TokenThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Throughput of the tokens generated by the trace's requests, over storage time and over wall
    time.
    """

    tokens: int | None
    storage_io_ns: int
    """The latencies of all operations on storage tiers, summed. Overlapping time counts several
    times.
    """
    storage_throughput_tokens_per_s: float | None
    """tokens / storage_io_ns."""
    wall_clock_throughput_tokens_per_s: float | None
    """tokens / wall time of the replay, which itself generates no tokens."""
    reason: str | None
    """Why tokens are null."""


class Mlperf(msgspec.Struct, frozen=True, kw_only=True):
    """The MLPerf Storage KV-cache benchmark's figures, under its names, and its health criteria."""

    latencies: list[MlperfLatency]
    throughput: TokenThroughput
    criteria: list[Criterion]
    qos_compliance: dict[str, float | None] | None
    """By class of service: the share of its requests whose storage time is within the class's p95
    target.
    """
    qos_reason: str | None
    """Why qos_compliance is null."""
    qos_definition: str


class LimitCause(StrEnum):
    """The bottleneck of a run."""

    DRIVE = "drive"
    """The tier's storage, or its model, is at its limit: a greater queue depth would not give more.
    """
    REPLAYER = "replayer"
    """kvreplay's own submission."""
    QUEUE_LIMIT = "queue limit"
    """The queue depth, from --queue-depth or its default, was reached, and the drive could have
    served more.
    """
    DATA = "data generation"
    """Generating the data of writes."""
    DEPENDENCIES = "latency of dependent operations"
    """The latency of the tier, for operations that wait for earlier ones of their request or
    object. A shorter latency would help. A greater queue depth would not, because the trace sets
    the order.
    """
    COPY_THREADS = "copy threads"
    """The threads that copy to and from memory tiers."""
    PROCESSOR = "processor"
    """Our threads were ready to run, but other programs used their processors."""
    MEMORY = "first touch of memory"
    """The kernel allocated pages of memory that had not been written before."""
    THROTTLE = "throttle"
    """A limit above the device, set by the control group of the process."""
    KERNEL = "kernel above the device"
    """Filesystem and block layer: I/Os took long there, and little time at the device."""


class TierRate(msgspec.Struct, frozen=True, kw_only=True):
    """The requested and the achieved load of one tier."""

    tier: str
    is_simulated: bool
    asked_bytes_per_s: float | None
    """The bytes that were due, over the run's schedule (`offered_per_s`); null in a closed loop."""
    reached_bytes_per_s: float | None
    """In an open loop, over the schedule plus the time by which the tier ended late. In a closed
    loop, from the first submission to the last completion. Null if no data was transferred.
    """
    asked_operations_per_s: float | None
    reached_operations_per_s: float | None
    end_late_ns: int | None
    """The time by which the tier's last operation ended late; null in a closed loop."""
    measured_over_predicted: tuple[float, float] | None = None
    """For a drive file: measured bandwidth over the predicted one, in 90 % of held-out cells.

    `reached_bytes_per_s` is a prediction then; times these two figures it is the expected range.
    """
    p99_measured_over_predicted: tuple[float, float] | None = None
    """The same for the p99 latencies of the tier's reads and writes."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements from which the bottleneck was derived.

    A value that was not measured is null. Shares are of the run's time unless noted.
    """

    queue_depth: int
    """Limit of the I/Os in flight."""
    storage: str = "drive"
    """The kind of storage beneath the tier: drive, object store, memory, page cache, or device in
    memory.
    """
    in_flight_mean: float | None = None
    """Mean I/Os in flight over the run. Copies to and from memory do not count."""
    held_share: float | None = None
    """A due operation waited because the queue depth was reached; null in a closed loop."""
    starved_share: float | None = None
    """The threads that submit or copy generated data of writes. This is a share of their time, and
    of processor time, as are the other shares of these threads.
    """
    unread_share: float | None = None
    """The queue was idle because the next rows of the trace had not been read. Share of the queue's
    time.
    """
    blocked_share: float | None = None
    """The queue was idle because all remaining rows waited for earlier ones. Share of the queue's
    time; null in an open loop.
    """
    submitter_busy_share: float | None = None
    """The submitting thread had work to do; null if each I/O has its own submitting thread."""
    copy_busy_share: float | None = None
    """The threads that copy to and from memory had work to do, as a share of the time of all of
    them; null without such threads.
    """
    device_busy_share: float | None = None
    """The device had at least one request in flight, by its own counters. Null if they cannot be
    read, or if other programs used the device.
    """
    device_time_share: float | None = None
    """Time of requests at the device / time of I/Os in flight. Above 1 if the kernel splits I/Os;
    null if other tiers share the queue.
    """
    doubling_gain: float | None = None
    """Relative gain of the tier's throughput from twice the queue depth: 0 for none, 1 for twice
    the throughput.

    Derived from the tier's operations of one I/O: how many were in flight when each was submitted
    and while it was served. If that did not vary, or if the two disagree, it comes from the model
    of a simulated tier; without a model it is null.
    """
    slowdown: float | None = None
    """Median service time with the most operations in flight / median with at most an eighth of
    that; null without such operations.
    """
    is_end_late: bool | None = None
    """The tier's last operation ended late, and less than the requested load was delivered; null in
    a closed loop.
    """
    response_shares: dict[str, float] = {}
    """The tier's shares of response time, as in `causes` of `pace`, for the tier that the verdict
    names; empty in a closed loop.
    """
    unhindered_share: float | None = None
    """The share of the tier's response times that its operations take unhindered; null in a closed
    loop.
    """
    on_time_share: float | None = None
    """The tier's on-time share, as `on_time_fraction` of `pace`; null in a closed loop."""
    queue_full_share: float | None = None
    """The submitting thread slept in io_uring_enter with submissions pending, because the block
    layer's queue was full. The greatest share, of several threads.
    """
    kernel_share: float | None = None
    """The submitting thread ran in the kernel, where it submits and copies to and from the page
    cache. Null as `submitter_busy_share`.
    """
    processor_share: float | None = None
    """The threads that submit or copy were ready to run, or had work in progress, and had no
    processor.
    """
    others_processor_share: float | None = None
    """Other programs ran, as a share of the time of all processors; null if the kernel does not
    report it.
    """
    mean_service_ns: float | None = None
    """Mean service time of the tier's operations."""
    needed_service_ns: float | None = None
    """The approximate mean service time with which the load would have been delivered in time; null
    unless an open loop fell behind.
    """
    touch_share: float | None = None
    """The threads that copy waited for the kernel to allocate pages; null without such threads."""
    copying_share: float | None = None
    """The threads that copy were copying, on average; null without such threads."""
    checking_share: float | None = None
    """The threads that submit or copy verified the data of reads."""
    device_queue_mean: float | None = None
    """Mean requests at the device while operations were in flight, by its own counters. The
    greatest, of several devices.
    """
    device_queue_limit: int | None = None
    """Requests that the device's queue can hold (nr_requests)."""
    throttle: str | None = None
    """A limit above the device that was reached, or nearly reached; null if none is known."""
    throttle_share: float | None = None
    """The achieved load as a share of that limit."""


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a run: its sentence, and the values behind the sentence."""

    sentence: str
    has_reached: bool | None
    """Whether an open loop delivered the requested load and kept pace; null in a closed loop, which
    has no target.
    """
    tier: str | None
    """The tier that the verdict names: the one whose operations took the most time."""
    cause: LimitCause | None
    """The bottleneck; null if there is none, or if the measurements do not identify it."""
    reason: str | None
    """The evidence for the bottleneck, or why it is not identified; null if there is none."""
    tiers: list[TierRate]
    evidence: Evidence


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One save or restore of a checkpoint."""

    kind: str
    """`save` or `restore`."""
    request_id: int | None
    """Its request in the trace; null if the trace names none."""
    ts_ns: int | None = None
    """Its start in trace time; null in runs of earlier versions."""
    scheduled_ns: int | None
    """Its due time, since the start of the run; null in a closed loop."""
    submitted_ns: int | None
    """Its first submission; null if there was none."""
    completed_ns: int | None
    """Its last completion; null unless all its operations completed."""
    duration_ns: int | None
    stall_ns: int | None
    bytes: int
    """Object bytes that completed."""
    bandwidth_bytes_per_s: float | None
    operations: int
    unfinished: int
    """Operations that failed or were not reached."""


class CheckpointKind(msgspec.Struct, frozen=True, kw_only=True):
    """All saves, or all restores, of a run."""

    kind: str
    count: int
    """The saves or restores that completed."""
    unfinished: int
    bytes: int
    """Bytes of the saves or restores that completed."""
    duration: Distribution
    bandwidth_bytes_per_s: float | None
    """Bytes / summed durations."""
    stall_ns: int | None
    """The stalls, summed."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The times of other operations during checkpoints, and at all other times."""

    tier: str
    op: str
    measure: str
    """`response` in an open loop, else `latency`."""
    during: Distribution
    without: Distribution

    def compared(self) -> tuple[str, int, int] | None:
        """Return the highest percentile up to p99 that both have: its name and the two values.

        None if they have none in common.
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
    """The figures of all checkpoints of a run."""

    each: list[Checkpoint]
    """The checkpoints, in the order of their due times."""
    kinds: list[CheckpointKind]
    busy_ns: int
    """Time during which at least one checkpoint was in progress."""
    stall_share: float | None
    """Summed stalls as a share of the run's time."""
    beside: list[Beside]
    """The effect on other operations, by tier and operation; empty if there were none."""
    definitions: dict[str, str]


class ServingTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of one of a benchmark's times, in nanoseconds."""

    count: int | None = None
    """Number of times; null if the benchmark does not report it."""
    mean_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    p99_9_ns: int | None = None
    max_ns: int | None = None


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one serving benchmark."""

    benchmark: str
    """The program that measured."""
    requests: int | None = None
    """Requests answered."""
    failed_requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    first_token: ServingTimes | None = None
    """TTFT: from sending a request to its first token."""
    inter_token: ServingTimes | None = None
    """Time between two tokens of an answer."""
    output_token: ServingTimes | None = None
    """Mean time of the tokens after the first, by answer."""
    answer: ServingTimes | None = None
    """From sending a request to its last token."""
