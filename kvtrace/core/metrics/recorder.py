"""The recorder of operations, which computes the figures of run.json.

    recorder = OperationRecorder(tiers, is_open_loop=False, io_bytes=1 << 20)
    recorder.add(rows)                       # OPERATION_ROW, in the order of the trace, in batches
    recorder.end()
    summary = recorder.summary(RunFacts(verdict="closed loop", wall_ns=10**9))

A place is a tier, or one drive of a tier on several. A kind is a place and an operation. The
recorder counts operations by kind, by second, and in the order of time. Its memory grows neither
with the number of operations nor with time.

For several ranks, one recorder gets the rows of all of them in the order of their common clock
(`read_in_time`). Percentiles, rates and operations in flight are then those of all ranks, as if one
process had performed the operations.

A recorder has no `merge(other)`, because the peak of operations in flight and the gaps between
operations do not follow from two finished recorders. It is not needed either: trials report the
median and the spread of each figure, and ranks are read again row by row.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from kvtrace.core import np
from kvtrace.core.arrays import Array
from kvtrace.core.metrics.distribution import (
    EMPTY,
    EXACT_OPERATIONS,
    EXACT_VALUES,
    TimeDistributions,
)
from kvtrace.core.metrics.native import DELETE, NEVER_NS, NONE, NOT_DONE, OPS_A_PLACE, RECORDER
from kvtrace.core.native.library import call
from kvtrace.core.native.structs import Structure, address
from kvtrace.core.run.figures import (
    Distribution,
    Figures,
    Generation,
    Pace,
    RunVerdict,
    Summary,
    WarmupFacts,
)
from kvtrace.core.schema import Op
from kvtrace.core.statistics import bounds, gap_ns, nearest_rank
from kvtrace.core.units import NS_PER_S, per_second

SERVICE, PER_MIB, RESPONSE, LATENESS = range(4)
"""The distributions of a kind. RESPONSE and LATENESS exist in an open loop only."""
CLOSED_TIMES, OPEN_TIMES = 2, 4
WAITING = 1 << 17
"""Operations that are held back until they can be sorted by submission.

An operation is late if more than half of this number of later submissions came before it.
"""
MOST_LEVELS = 200_000
"""Operations of a tier, by earliest submission, whose service times are compared with the number of
operations in flight.
"""
MOST_WAITS = 1 << 17
SIZE_CLASSES, COARSE_BITS = 18, 8
"""Classes of lengths, each a factor of two wide, and the slots of their histograms, which are at
most 0.4 % of their values wide.
"""
COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
"""Slots of one such histogram."""
LATE_NS = 1_000_000
LATE_TIMES = 2
"""A response is on time up to LATE_NS more than LATE_TIMES the unhindered time of an operation of
its kind and length. The factor is 2 because lengths in one class differ by up to a factor of two,
and so may their times.
"""
QUICK_PERCENT = 5
"""Percentile of service times that is taken as the unhindered time of a length. It is not the
minimum, because a few operations may have hit a cache.
"""
OPS = tuple(op.value for op in Op)
MIB = 1 << 20
_P99 = 9900
_RADIX = 1 << 16

DEFINITIONS = {
    "bandwidth_bytes_per_s": "object bytes of completed operations / span_ns",
    "operations_per_s": "completed operations / span_ns",
    "span_ns": (
        "from the first submission to the last completion of this tier's operations of this kind"
    ),
    "latency": (
        "service time: completed_ns - submitted_ns, data generation excluded, opening and closing"
        " included"
    ),
    "response": (
        "response time: completed_ns - scheduled_ns, so what was late counts; null in a closed loop"
    ),
    "latency_per_mib": (
        "service time * 1 MiB / object bytes of the operation; operations without bytes left out"
    ),
    "lateness": "submitted_ns - scheduled_ns; null in a closed loop",
    "in_flight_mean": "sum of service times / span_ns: operations in flight, weighted by time",
    "in_flight_max": (
        "the most completed operations of this kind that were in flight at once; null where"
        " operations were submitted more than 65,000 behind others that follow them in the trace"
    ),
    "percentiles": (
        "nearest rank over all completed operations; null with fewer than 1 / (1 - q) of them; of"
        " so many that not all are kept from a histogram, and then percentiles_within says how far"
        " off they may be, of their value"
    ),
}


class RecordedTier(Protocol):
    """The properties of a tier, or of one of its drives, that a recorder needs."""

    @property
    def name(self) -> str:
        """Its name in the trace."""

    @property
    def engine(self) -> str:
        """The name of its I/O path, as in the tables."""

    @property
    def alignment(self) -> int:
        """Offsets and ends of its I/Os are multiples of this number of bytes."""

    @property
    def is_simulated(self) -> bool:
        """True if no data is transferred."""

    @property
    def has_times(self) -> bool:
        """True if its operations have times, measured or from a model."""

    @property
    def is_copied(self) -> bool:
        """True if threads copy its data to and from memory."""


@dataclass(frozen=True, slots=True)
class TableTier:
    """A tier of an ops table and its run.json. The table's byte counts already include padding."""

    name: str
    engine: str
    is_simulated: bool = False
    has_times: bool = True
    is_copied: bool = True
    """True, so that no `Level` is recorded."""
    alignment: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a summary that do not come from operations; null or empty if unknown."""

    verdict: str
    judgement: RunVerdict | None = None
    pace: Pace | None = None
    wall_ns: int | None = None
    trace_times: float | None = None
    warmup: str | None = None
    """The requested warm-up; null if figures count every operation."""
    has_row_numbers: bool = True
    """True if row numbers are those of one trace."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    absent_deletes: int = 0
    generation: Generation | None = None
    definitions: dict[str, str] = field(default_factory=lambda: DEFINITIONS)


class Delivery(NamedTuple):
    """The share of its load that an open loop delivered; null if no operation completed."""

    end_late_ns: int | None
    """Last completion - last due time, less the unhindered time of such an operation; or, if it is
    longer, the time for which the first operation that was not reached was due.
    """
    offered_per_s: float | None
    """Operations due by the run's end / the schedule; null if all were due at once."""
    delivered_per_s: float | None
    """Completed operations / took_ns."""
    took_ns: int | None
    """The schedule, or the time of the operations if it is longer."""


class TimeOrder:
    """Operations that completed without an error, in the order of their submission.

    Operations arrive in the order of their rows. They wait here until enough others have arrived
    that an earlier submission is unlikely to follow.
    """

    def __init__(
        self, tier_of: Array, groups_of: Array, has_levels: Array, *, is_open: bool
    ) -> None:
        """Follow operations of kinds on the tiers `tier_of`.

        `groups_of` is the group in which each kind is also counted, or -1. `has_levels` is true for
        tiers with recorded levels. If the loop `is_open`, waits before submission are recorded,
        too.
        """
        self._kinds = len(tier_of)
        self._in_flight = np.zeros(
            self._kinds + int(groups_of.max(initial=-1)) + 1, RECORDER.dtype("InFlight")
        )
        self._tier_time = np.zeros(len(has_levels), RECORDER.dtype("TierTime"))
        level = RECORDER.dtype("Level")
        self._levels = [np.empty(MOST_LEVELS if has else 0, level) for has in has_levels]
        self._tier_time["level"] = [address(levels) for levels in self._levels]
        self._tier_time["level_room"] = [len(levels) for levels in self._levels]
        completed = RECORDER.dtype("DoneOperation")
        self.shared = Structure(
            RECORDER,
            "TimeOrder",
            done=np.empty(WAITING, completed),
            spare=np.empty(WAITING, completed),
            done_room=WAITING,
            tier=np.array(tier_of, np.int64),
            group=np.where(groups_of < 0, NONE, self._kinds + groups_of),
            in_flight=self._in_flight,
            tier_time=self._tier_time,
            wait=np.empty(MOST_WAITS, RECORDER.dtype("WaitSpan")),
            wait_room=MOST_WAITS,
            reached_ns=NOT_DONE,
            is_open_loop=is_open,
        )
        weakref.finalize(self, call, "time_order_free", self._in_flight, len(self._in_flight))

    def end(self) -> None:
        """Process all operations that still wait. No row may follow."""
        call("time_order_flush", self.shared, 1)

    def max_in_flight(self, kinds: Sequence[int], group: int) -> int | None:
        """Return the peak of operations of `kinds`, all of `group`, in flight.

        Null if some operations arrived too late to be sorted.
        """
        if self.shared.late:
            return None
        index = kinds[0] if len(kinds) == 1 else self._kinds + group
        return int(self._in_flight["most"][index])

    def covered_ns(self, tier: int) -> int:
        """Return the time during which at least one operation of `tier` was in flight."""
        return int(self._tier_time["covered_ns"][tier])

    @property
    def waited_ns(self) -> int:
        """The time during which at least one operation was due but not submitted.

        Operations that arrive later can close only the last 65,536 gaps between such times.
        """
        return int(self.shared.waited_ns)

    def levels(self, tier: int) -> Array:
        """Return the `Level` records of the first operations of `tier` that transferred data."""
        return self._levels[tier][: self._tier_time["levels"][tier]]


class Seconds:
    """`SecondCounts` for each second and kind. Seconds that are complete can be taken."""

    def __init__(self, kinds: int) -> None:
        """Count operations of `kinds` kinds."""
        self._kinds = kinds
        self.first = 0
        """The second of the first record; those before were given out."""
        self.records: Array = np.zeros(0, RECORDER.dtype("SecondCounts"))
        self._times: dict[int, list[Array]] = {}
        """Service times of seconds that are not over, by `key` of EndedInSecond."""

    def make_room(self, last_ns: int) -> None:
        """Extend the records to times up to `last_ns`."""
        needed = max(1, last_ns // NS_PER_S + 1 - self.first) * self._kinds
        if needed > len(self.records):
            size = max(needed, 2 * len(self.records))
            extension = np.zeros(size - len(self.records), self.records.dtype)
            extension["p99_ns"] = NOT_DONE
            self.records = np.concatenate([self.records, extension])

    def sort(self, completions: Array, until: int) -> None:
        """Sort `completions` (EndedInSecond) into seconds; set the p99 of seconds before `until`."""
        if len(completions):
            key = np.ascontiguousarray(completions["key"])
            first = int(key.min())
            # NumPy sorts 16-bit integers by radix, which is much quicker.
            has_short_keys = int(key.max()) - first < _RADIX
            short_key = (key - first).astype(np.uint16) if has_short_keys else key
            order = np.argsort(short_key, kind="stable")
            keys, starts = np.unique(key[order], return_index=True)
            latencies = np.split(completions["latency_ns"][order], starts[1:])
            for number, latency in zip(keys.tolist(), latencies, strict=True):
                self._times.setdefault(number, []).append(latency.copy())
        for number in [number for number in self._times if number < until * self._kinds]:
            latency = np.concatenate(self._times.pop(number))
            rank = nearest_rank(len(latency), _P99)
            if rank is not None:
                latency.partition(rank - 1)
                self.records["p99_ns"][number - self.first * self._kinds] = latency[rank - 1]

    def take_before(self, until: int) -> tuple[Array, Array, Array]:
        """Remove and return the records of the seconds before `until`.

        Returns the second, the kind and the record of each that has operations or errors.
        """
        count = max(0, until - self.first) * self._kinds
        busy = np.flatnonzero(self.records["operations"][:count] + self.records["errors"][:count])
        seconds, kinds, records = (
            self.first + busy // self._kinds,
            busy % self._kinds,
            self.records[busy],
        )
        self.records = self.records[count:].copy()
        self.first = max(self.first, until)
        return seconds, kinds, records


TierT = TypeVar("TierT", bound=RecordedTier)


class OperationRecorder(Generic[TierT]):
    """The counts and distributions of the operations that were added."""

    def __init__(
        self,
        tiers: Sequence[TierT | None],
        *,
        is_open_loop: bool,
        io_bytes: int = 0,
        drives: Sequence[Sequence[RecordedTier]] = (),
        limits: Array | None = None,
        row_bytes: int | None = None,
        has_seconds: bool = False,
        has_freed_bytes: bool = True,
    ) -> None:
        """Record operations on `tiers`; an entry is null if the tier has no target.

        `drives` has, by tier, the drives of a tier on several, and is empty for other tiers. I/Os
        are up to `io_bytes` long. A distribution is exact up to `limits`, int64 by kind; by default
        all distributions have equal shares of EXACT_VALUES. `row_bytes` is the stride of rows that
        are longer than OPERATION_ROW. If it `has_seconds`, operations are counted by second, too.
        If it `has_freed_bytes`, rows of deletes have the bytes that they freed.
        """
        self._has_freed_bytes = has_freed_bytes
        self.tiers, self.is_open_loop, self.io_bytes = tiers, is_open_loop, io_bytes
        self.drives = [drives[index] if drives else () for index in range(len(tiers))]
        places = [max(1, len(of_tier)) for of_tier in self.drives]
        self.first_place: Array = np.cumsum([0, *places], dtype=np.int64)
        """By tier: its first place. The last entry is the number of places."""
        self.tier_of: Array = np.repeat(np.arange(len(tiers)), places)
        """By place: its tier."""
        self.moves: Array = np.array([t is not None and not t.is_simulated for t in tiers], bool)
        count = len(self.tier_of) * OPS_A_PLACE
        self.kinds: Array = np.zeros(count, RECORDER.dtype("KindCounts"))
        self.run: Array = np.zeros(1, RECORDER.dtype("RunCounts"))
        for name in ("first_ns", "first_missed_ns"):
            self.kinds[name] = NEVER_NS
        for name in ("last_ns", "last_due_ns"):
            self.kinds[name] = NOT_DONE
        for name in ("first_due_ns", "first_row", "from_ns", "until_ns"):
            self.run[name] = NEVER_NS
        for name in ("last_due_ns", "last_completed_ns"):
            self.run[name] = NOT_DONE
        self._times_a_kind = OPEN_TIMES if is_open_loop else CLOSED_TIMES
        used = sum(of_tier for of_tier, tier in zip(places, tiers, strict=True) if tier is not None)
        if limits is None:
            share = EXACT_VALUES // max(1, used * OPS_A_PLACE * self._times_a_kind + 1)
            each_limit = np.full(count * self._times_a_kind + 1, share)
        else:
            failed_limit = EXACT_OPERATIONS if np.any(limits) else 0
            each_limit = np.append(np.repeat(limits, self._times_a_kind), failed_limit)
        # The last distribution has the operations that were submitted, but failed.
        self.times = TimeDistributions(len(each_limit), each_limit)
        self.seconds = Seconds(count) if has_seconds else None
        self.ended: Array = np.empty(0, RECORDER.dtype("EndedInSecond"))
        """EndedInSecond of the batch that was added last."""
        tier_of_kind = np.repeat(self.tier_of, OPS_A_PLACE)
        is_shared = np.array([of_tier > 1 for of_tier in places], bool)
        op_of_kind = np.tile(np.arange(OPS_A_PLACE), len(self.tier_of))
        groups_of = np.where(is_shared[tier_of_kind], tier_of_kind * OPS_A_PLACE + op_of_kind, NONE)
        is_timed = np.array([t is not None and t.has_times for t in tiers], bool)
        has_levels = is_timed & np.array([t is not None and not t.is_copied for t in tiers], bool)
        self.order = TimeOrder(tier_of_kind, groups_of, has_levels, is_open=is_open_loop)
        self._sized: Array | None = (
            np.zeros((count, SIZE_CLASSES, 2, COARSE_SLOTS), np.int64) if is_open_loop else None
        )
        self._shared = Structure(
            RECORDER,
            "Recorder",
            padding_bytes=np.array([1 if t is None else t.alignment for t in tiers], np.int64),
            first_place=self.first_place,
            moves=self.moves,
            # Operations without times have no time figures, but an open loop still needs the
            # waits of all operations.
            is_timed=is_timed | is_open_loop,
            kind=self.kinds,
            run=self.run,
            times=self.times.records,
            order=self.order.shared,
            sized=0 if self._sized is None else self._sized,
            kinds=count,
            times_a_kind=self._times_a_kind,
            io_bytes=io_bytes,
            is_open_loop=is_open_loop,
            row_bytes=RECORDER.dtype("OperationRow").itemsize if row_bytes is None else row_bytes,
        )

    def add(
        self,
        rows: Array,
        is_counted: Array | None = None,
        *,
        place: Array | None = None,
        asked_bytes: Array | None = None,
    ) -> Array | None:
        """Add `rows` (OPERATION_ROW). Figures count the rows where `is_counted`, by default all.

        `place` is the place of each row, if a tier has several drives. Returns the bytes that each
        row requests from its tier, NONE for none; `asked_bytes` sets them instead.
        """
        if is_counted is None:
            is_counted = np.ones(len(rows), bool)
        is_asked = asked_bytes is not None
        if not is_asked:
            asked_bytes = np.empty(len(rows), np.int64)
        completions = np.empty(0, self.ended.dtype)
        if self.seconds is not None:
            # A simulated tier has no seconds, because its run may last for years.
            if self.moves.any():
                times = (rows[name].max(initial=0) for name in ("completed_ns", "submitted_ns"))
                self.seconds.make_room(int(max(times)))
            completions = np.empty(len(rows), completions.dtype)
            self._shared.set(second=self.seconds.records, first_second=self.seconds.first)
        self._shared.set(ended=completions, endeds=0, is_asked=is_asked)
        call("recorder_add", self._shared, rows, len(rows), place, is_counted, asked_bytes)
        self.ended = completions[: self._shared.endeds]
        return asked_bytes

    def end(self) -> None:
        """Finish recording. No row may follow, and figures are available."""
        self.order.end()

    def kinds_of(self, tier: int, op: int | None = None, drive: int | None = None) -> list[int]:
        """Return the kinds of a tier, or of one of its drives, for one operation or for all."""
        first, last = int(self.first_place[tier]), int(self.first_place[tier + 1])
        if drive is not None:
            first, last = first + drive, first + drive + 1
        ops = range(OPS_A_PLACE) if op is None else (op,)
        return [place * OPS_A_PLACE + code for place in range(first, last) for code in ops]

    def total(self, name: str, kinds: Sequence[int] | None = None) -> int:
        """Return the sum of the field `name` over `kinds`, by default over all kinds."""
        return int((self.kinds[name] if kinds is None else self.kinds[name][list(kinds)]).sum())

    def span_ns(self, kinds: Sequence[int]) -> int | None:
        """Return the time from the first submission to the last completion of `kinds`."""
        records = self.kinds[list(kinds)]
        first_ns = int(records["first_ns"].min())
        return None if first_ns == NEVER_NS else int(records["last_ns"].max()) - first_ns

    def max_in_flight(self, kinds: Sequence[int]) -> int | None:
        """Return the peak of operations of `kinds`, all of one tier and operation, in flight.

        Null if unknown.
        """
        place, op = divmod(kinds[0], OPS_A_PLACE)
        return self.order.max_in_flight(kinds, int(self.tier_of[place]) * OPS_A_PLACE + op)

    def distribution(self, measure: int, kinds: Sequence[int] | None = None) -> Distribution:
        """Return the distribution of the time `measure` over `kinds`, by default over all kinds.

        The lateness over all kinds also includes operations that failed.
        """
        has_failed = measure == LATENESS and kinds is None
        failed = [len(self.times) - 1] if has_failed else []
        return self.times.distribution(*self.slots(measure, kinds), *failed)

    def slots(self, measure: int, kinds: Sequence[int] | None = None) -> list[int]:
        """Return the indices in `times` of the distributions `measure` of `kinds`, by default of
        all kinds.
        """
        every = range(len(self.kinds)) if kinds is None else kinds
        return [kind * self._times_a_kind + measure for kind in every]

    def count_late(self, kinds: Sequence[int] | None = None) -> tuple[float, float]:
        """Return the number of late operations and the sum of all unhindered times.

        They are over `kinds`, by default over all kinds. An operation is late by its response time.
        Its unhindered time is the QUICK_PERCENT percentile of the service times of its tier,
        operation and class of length. Both results come from coarse histograms; a slot that
        contains the limit counts in proportion.
        """
        late = unhindered_ns = 0.0
        if self._sized is None:
            return late, unhindered_ns
        # The kinds of all drives of a tier have the same unhindered times.
        kinds_by_tier_and_op: dict[tuple[int, int], list[int]] = {}
        for kind in range(len(self.kinds)) if kinds is None else kinds:
            if self.kinds["good"][kind]:
                tier = int(self.tier_of[kind // OPS_A_PLACE])
                kinds_by_tier_and_op.setdefault((tier, kind % OPS_A_PLACE), []).append(kind)
        for alike in kinds_by_tier_and_op.values():
            histograms = self._sized[alike].sum(axis=0) if len(alike) > 1 else self._sized[alike[0]]
            for service, response in histograms:
                count = int(service.sum())
                if count:
                    rank = (count - 1) * QUICK_PERCENT // 100 + 1
                    slot = int(np.searchsorted(np.cumsum(service), rank))
                    usual_ns = sum(bounds(slot, COARSE_BITS)) / 2
                    unhindered_ns += count * usual_ns
                    late += _count_above(response, LATE_NS + LATE_TIMES * usual_ns)
        return late, unhindered_ns

    def delivery(self, kinds: Sequence[int]) -> Delivery:
        """Return the delivery of the load of `kinds`, in an open loop.

        Rates are over the run's schedule: from its first due time to its last, plus one gap between
        operations. Operations that end after the schedule extend the time. Operations that were due
        and not reached count as offered, and their delay counts as a late end.
        """
        records, count = self.kinds, self.total("good", kinds)
        if not count:
            return Delivery(None, None, None, None)
        last = max(kinds, key=lambda kind: int(records["last_ns"][kind]))
        completed_ns = int(records["last_ns"][last])
        last_due_ns = int(records["last_due_ns"][list(kinds)].max())
        first_due_ns, end_due_ns = (
            int(self.run[name][0]) for name in ("first_due_ns", "last_due_ns")
        )
        due_span_ns = end_due_ns - first_due_ns
        schedule_ns = due_span_ns + gap_ns(float(self.run["square_gaps"][0]), due_span_ns)
        # The unhindered time of the last operation is the minimum of its tier and operation, not
        # the 5th percentile: a queue that grows all the time lengthens even that, to 5 % of the run.
        tier, op = int(self.tier_of[last // OPS_A_PLACE]), last % OPS_A_PLACE
        alike = self.kinds_of(tier, op)
        usual_ns = self.times.shortest(*self.slots(SERVICE, alike))
        per_mib = self.slots(PER_MIB, alike)
        if self.times.count(*per_mib):
            transfer_ns = self.times.shortest(*per_mib) * int(records["last_bytes"][last]) // MIB
            usual_ns = max(usual_ns, transfer_ns)
        ready_ns = completed_ns - min(int(records["last_service_ns"][last]), usual_ns)
        # If the whole load was due at once, the last operation's own time counts, too: it may be
        # most of the run.
        took_ns = max(schedule_ns, (ready_ns if schedule_ns else completed_ns) - first_due_ns)
        missed_ns = int(records["first_missed_ns"][list(kinds)].min())
        late_ns = max(0, int(self.run["until_ns"][0]) - missed_ns, ready_ns - last_due_ns)
        offered_per_s = per_second(self.total("due", kinds), schedule_ns)
        return Delivery(late_ns, offered_per_s, per_second(count, took_ns), took_ns)

    @property
    def last_completed_ns(self) -> int | None:
        """The last completion; null if there is none."""
        last_ns = int(self.run["last_completed_ns"][0])
        return None if last_ns == NOT_DONE else last_ns

    @property
    def measured_from_ns(self) -> int | None:
        """The first submission that figures count; null if there is none."""
        return int(self.run["from_ns"][0]) if self.run["counted_sent"][0] else None

    def figures(self, *, of_drives: bool = False) -> list[Figures]:
        """Return the figures of every tier and operation that was planned.

        With `of_drives`, return those of each drive, for tiers on several drives.
        """
        places: list[tuple[int, int | None, RecordedTier]] = []
        for index, tier in enumerate(self.tiers):
            if tier is not None and not of_drives:
                places.append((index, None, tier))
            elif tier is not None:
                places += [
                    (index, number, drive) for number, drive in enumerate(self.drives[index])
                ]
        return [
            self._figures_of(kinds, tier, op)
            for index, drive, tier in places
            for code, op in enumerate(OPS)
            if self.total("planned", kinds := self.kinds_of(index, code, drive))
        ]

    def _figures_of(self, kinds: Sequence[int], tier: RecordedTier, op: str) -> Figures:
        """Return the figures of one operation on a tier or on one of its drives."""
        is_timed, is_delete = tier.has_times, op == OPS[DELETE]
        span_ns, operations = self.span_ns(kinds), self.total("good", kinds)
        transferred_bytes = self.total("bytes", kinds)
        has_bytes = is_timed and (self._has_freed_bytes or not is_delete)
        has_io = not tier.is_simulated and not is_delete
        if has_io and operations:
            has_io = self.total("io_known", kinds) > 0
        # Without a model, the times would be those of kvreplay's own loop.
        timed_ns = span_ns if is_timed else None

        def times(measure: int) -> Distribution:
            return self.distribution(measure, kinds) if is_timed else EMPTY

        return Figures(
            tier=tier.name,
            op=op,
            engine=tier.engine,
            is_simulated=tier.is_simulated,
            planned=self.total("planned", kinds),
            operations=operations,
            errors=self.total("errors", kinds),
            corrupt=self.total("corrupt", kinds),
            bytes=transferred_bytes if has_bytes else None,
            io_bytes=self.total("io_bytes", kinds) if has_io else None,
            span_ns=span_ns,
            bandwidth_bytes_per_s=None if is_delete else per_second(transferred_bytes, timed_ns),
            operations_per_s=per_second(operations, timed_ns),
            in_flight_mean=self.total("service_ns", kinds) / timed_ns if timed_ns else None,
            in_flight_max=self.max_in_flight(kinds) if timed_ns else None,
            latency=times(SERVICE),
            response=times(RESPONSE) if self.is_open_loop else None,
            latency_per_mib=times(PER_MIB),
            lateness=self.distribution(LATENESS, kinds) if self.is_open_loop else None,
        )

    def summary(self, facts: RunFacts) -> Summary:
        """Return the summary of a run: its figures, and the `facts` that do not come from
        operations.
        """
        run, from_ns, warmup = self.run[0], self.measured_from_ns, None
        if facts.warmup is not None:
            has_row = from_ns is not None and facts.has_row_numbers
            warmup = WarmupFacts(
                asked=facts.warmup,
                operations=int(run["left_out"]),
                first_measured_row=int(run["first_row"]) if has_row else None,
                measured_from_ns=from_ns,
            )
        # The time before the first operation that counts belongs to no figure.
        span_ns = None if facts.wall_ns is None else facts.wall_ns - (from_ns or 0)
        return Summary(
            verdict=facts.verdict,
            judgement=facts.judgement,
            wall_ns=facts.wall_ns,
            measured_from_ns=from_ns,
            operations=self.total("good"),
            errors=int(run["failed"]),
            not_reached=int(run["rows"]) - int(run["sent"]),
            trace_times=facts.trace_times,
            figures=self.figures(),
            drives=self.figures(of_drives=True),
            pace=facts.pace,
            in_flight_mean=self.total("service_ns") / span_ns if span_ns else None,
            warmup=warmup,
            skipped_rows=facts.skipped_rows,
            absent_deletes=facts.absent_deletes,
            generation=facts.generation,
            definitions=facts.definitions,
        )


def _count_above(slots: Array, limit: float) -> float:
    """Return the number of values above `limit`.

    A slot that contains the limit counts in proportion to its width above the limit.
    """
    used = np.flatnonzero(slots)
    edges = [bounds(slot, COARSE_BITS) for slot in used.tolist()]
    shares_above = [min(1.0, max(0.0, (high - limit) / (high - low))) for low, high in edges]
    return float(np.dot(slots[used], shares_above))
