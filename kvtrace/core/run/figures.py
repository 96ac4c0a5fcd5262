"""The figures of a run as run.json holds them: by tier and operation, by request, by MLPerf's names.

What was not measured is null. Fields with a default are those that an import may lack.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core.run.verdict import RunVerdict


class Distribution(msgspec.Struct, frozen=True):
    """How a time is distributed over operations, in nanoseconds; null where too few operations tell."""

    count: int
    mean_ns: float | None
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    p99_9_ns: int | None
    p99_99_ns: int | None
    max_ns: int | None
    percentiles_within: float | UnsetType = UNSET
    """There if the percentiles come from a histogram: how far off they may be, of their value; else they are exact."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the operations of one kind on one tier did."""

    tier: str
    op: str
    engine: str
    is_simulated: bool
    """Nothing moved: bytes, rates and latencies are those of the tier's model, null if it has none."""
    planned: int | None = None
    operations: int | None
    """Those that completed well; null where an import counts none."""
    errors: int | None
    """Those that failed, came up short, or brought corrupt blocks."""
    corrupt: int
    """Of the errors: reads with corrupt blocks; 0 unless verified."""
    bytes: int | None
    """Object bytes; for deletes, the bytes freed."""
    io_bytes: int | None
    """Bytes asked of the tier, padding included."""
    span_ns: int | None
    """From the first submission to the last completion."""
    bandwidth_bytes_per_s: float | None
    operations_per_s: float | None
    in_flight_mean: float | None = None
    in_flight_max: int | None = None
    latency: Distribution
    """Service time: completion - submission."""
    response: Distribution | None = None
    """Response time: completion - due time; null in a closed loop."""
    latency_per_mib: Distribution | None = None
    """Each operation's latency for 1 MiB of its object bytes."""
    lateness: Distribution | None
    """Submission - due time; null in a closed loop."""

    @property
    def judged(self) -> Distribution:
        """The time that criteria judge: the response time in an open loop, else the service time."""
        return self.latency if self.response is None else self.response


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an open loop kept to the trace's times, and what kept it from that."""

    kept_pace: bool
    """It delivered what was offered, and hardly an operation was late by its response time: `on_time_fraction`."""
    late_fraction: float
    """Operations submitted more than 1 ms after they were due."""
    late_by_itself_fraction: float
    """Of all operations, those late by more than 1 ms after what they had to wait for was done."""
    lateness: Distribution
    response: Distribution | None = None
    """Completion - due time, of all that completed."""
    offered_per_s: float | None = None
    """Operations / from the first due time to the last; null if all were due at once."""
    delivered_per_s: float | None = None
    """Operations / from the first due time to the last completion, less what the last took."""
    end_late_ns: int | None = None
    """The last completion - the last due time, less what such an operation takes."""
    cause: str | None = None
    """What most of the delay was: one of `causes`; null if it kept pace."""
    causes: dict[str, float] = {}
    """Shares of the response times added up: drive (service time), dependencies (earlier operations of the request or
    object), queue (as much in flight as may be), block queue (the block layer's was full), buffers (whose
    memory was still being touched), data (not made yet), memory
    (pages of memory tiers touched first), processor (others had it), copying (of other operations), submission (ours).
    Those before submission are shares of time that the engine's threads counted."""
    held_share: float | None = None
    """Of the run's time: something due waited because as much was in flight as may be; null if not known."""
    on_time_fraction: float | None = None
    """Of the operations that completed well: those whose response time was at most 1 ms more than twice what one of
    their kind and length takes unhindered (of the quickest 5 %); null in runs of earlier versions."""
    unhindered_share: float | None = None
    """Of the response times added up: what the operations take unhindered; null in runs of earlier versions."""


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
    """Of the submitting threads' time: idle because a write's data was not there; null where each makes its own."""
    writes_generated_in_flight: int
    """Writes of several I/Os: the data of the later ones was made while they ran, within their latency."""


class WarmupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a run that its figures leave out."""

    asked: str
    operations: int
    """Completed in the warm-up, kept in ops.parquet, in no figure."""
    first_measured_row: int | None
    """Of the trace; null if the warm-up was all, and of several ranks, whose rows are numbered by part."""
    measured_from_ns: int | None
    """Since the run's start: the first submission that counts; null if none does."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a whole run."""

    verdict: str
    """One sentence: what was asked, what was reached, what held it back."""
    judgement: RunVerdict | None = None
    """The same in fields; null in runs of earlier versions and in imports, and if nothing was submitted."""
    wall_ns: int | None
    """Null if the run ended before its first operation."""
    operations: int | None
    """Completed well, those of the warm-up not counted; null where an import counts none."""
    errors: int | None
    """In the whole run, its warm-up included."""
    not_reached: int | None
    figures: list[Figures]
    drives: list[Figures] = []
    """The same for each drive of a tier on several, which stands behind the tier's name."""
    pace: Pace | None
    in_flight_mean: float | None = None
    skipped_rows: dict[str, int]
    """By tier that had no --tier option."""
    warmup: WarmupFacts | None = None
    """What the figures leave out."""
    absent_deletes: int = 0
    """Deletes of objects that the window never put there; skipped."""
    generation: Generation | None = None
    definitions: dict[str, str] = {}
    """What the names of figures mean."""


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
    """Time in which at least one of its operations was due and not completed; null in a closed loop."""
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
    """The latencies of all operations on storage tiers, summed: overlapping ones count several times."""
    storage_throughput_tokens_per_s: float | None
    """tokens / storage_io_ns."""
    wall_clock_throughput_tokens_per_s: float | None
    """tokens / wall time: of the replay, in which no token is generated."""
    reason: str | None
    """Why tokens are null."""


class Mlperf(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the MLPerf Storage KV-cache benchmark under its names, and its health criteria."""

    latencies: list[MlperfLatency]
    throughput: TokenThroughput
    criteria: list[Criterion]
    qos_compliance: dict[str, float | None] | None
    """By class: the share of its requests whose storage time is within the class's p95 target."""
    qos_reason: str | None
    """Why it is null."""
    qos_definition: str
