"""The recorder of operations, from which every figure of run.json comes.

    recorder = OperationRecorder(tiers, is_open_loop=False, io_bytes=1 << 20)
    recorder.add(rows)                       # OPERATION_ROW, in the order of the trace, in batches
    recorder.end()
    summary = recorder.summary(RunFacts(verdict="closed loop", wall_ns=10**9))

It counts operations by kind (a place and an operation), by second and in the order of time, in
memory that grows neither with the operations nor with time. Several ranks are one recorder whose
rows come in the order of their common clock (`read_in_time`): percentiles, rates, and how many
operations were in flight at once are then those of all ranks, as if one process had done them.

A recorder has no `merge(other)`, because the most operations in flight and the gaps between them
cannot be had from two finished states. Nothing would use one either: trials report the median and
the spread of each figure, and ranks are read again row by row.
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
"""The distributions of a kind; the last two in an open loop alone."""
CLOSED_TIMES, OPEN_TIMES = 2, 4
WAITING = 1 << 17
"""Operations that wait to be looked at in the order of their submission.

One that comes more than half of this behind one that was submitted after it comes late.
"""
MOST_LEVELS = 200_000
"""Operations of a tier, those submitted first, whose service times are compared with how many were
in flight.
"""
MOST_WAITS = 1 << 17
SIZE_CLASSES, COARSE_BITS = 18, 8
COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
"""Classes of lengths, a factor of two each, and the slots of their histograms, which are at most
0.4 % of their values wide.
"""
LATE_NS = 1_000_000
LATE_TIMES = 2
"""A response is on time up to LATE_NS more than this many times the time that an operation of its
kind and length takes unhindered. Lengths of one class differ by a factor of two, and so may times.
"""
QUICK_PERCENT = 5
"""Of service times: operations of a length take this long unhindered, even if a few were cached."""
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
    """What a recorder must know of a tier, or of a drive of one."""

    @property
    def name(self) -> str:
        """Its name in the trace."""

    @property
    def engine(self) -> str:
        """The name of its I/O path in the tables."""

    @property
    def alignment(self) -> int:
        """Offsets and ends of its I/Os are multiples of this many bytes."""

    @property
    def is_simulated(self) -> bool:
        """Whether no data moves."""

    @property
    def has_times(self) -> bool:
        """Whether its operations have times: measured ones, or a model's."""

    @property
    def is_copied(self) -> bool:
        """Whether threads copy its data to and from memory."""


@dataclass(frozen=True, slots=True)
class TableTier:
    """A tier as tables and run.json know it; padding is in their counts of bytes already."""

    name: str
    engine: str
    is_simulated: bool = False
    has_times: bool = True
    is_copied: bool = True
    """No levels are kept of it."""
    alignment: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a summary that no operation tells; null or empty is not known."""

    verdict: str
    judgement: RunVerdict | None = None
    pace: Pace | None = None
    wall_ns: int | None = None
    trace_times: float | None = None
    warmup: str | None = None
    """The warm-up that was asked for; null if figures count every operation."""
    has_row_numbers: bool = True
    """Whether the rows' numbers are those of one trace."""
    skipped_rows: dict[str, int] = field(default_factory=dict)
    absent_deletes: int = 0
    generation: Generation | None = None
    definitions: dict[str, str] = field(default_factory=lambda: DEFINITIONS)


class Delivery(NamedTuple):
    """What an open loop delivered of its load; null where nothing completed."""

    end_late_ns: int | None
    """Last completion - last due time, less what such an operation takes.

    Or for how long the first operation that was not reached was due.
    """
    offered_per_s: float | None
    """Operations due by the run's end / the schedule; null if all were due at once."""
    delivered_per_s: float | None
    """Operations that completed / took_ns."""
    took_ns: int | None
    """The schedule, or the longer time that the operations took."""


class TimeOrder:
    """Operations that completed without error, in the order of their submission.

    They come in the order of their rows, and wait here until so many others have come that hardly
    one can follow that was submitted before them.
    """

    def __init__(
        self, tier_of: Array, groups_of: Array, has_levels: Array, *, is_open: bool
    ) -> None:
        """Follow operations of kinds on the tiers `tier_of`.

        `groups_of` names the group that each kind is counted with, too, or -1; `has_levels` says by
        tier whether levels are kept. Waits before submission are followed if it `is_open`.
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
        done = RECORDER.dtype("DoneOperation")
        self.shared = Structure(
            RECORDER,
            "TimeOrder",
            done=np.empty(WAITING, done),
            spare=np.empty(WAITING, done),
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
        """Look at all operations that still wait; no row will follow."""
        call("time_order_flush", self.shared, 1)

    def most_at_once(self, kinds: Sequence[int], group: int) -> int | None:
        """Return how many operations of `kinds`, all of `group`, were in flight at once.

        Null if some came too late.
        """
        if self.shared.late:
            return None
        return int(self._in_flight["most"][kinds[0] if len(kinds) == 1 else self._kinds + group])

    def covered_ns(self, tier: int) -> int:
        """Return the time in which at least one operation of `tier` was in flight."""
        return int(self._tier_time["covered_ns"][tier])

    @property
    def waited_ns(self) -> int:
        """Time in which at least one operation that could have gone was not submitted.

        Only the last 65,536 gaps between such times are still closed by operations that come later.
        """
        return int(self.shared.waited_ns)

    def levels(self, tier: int) -> Array:
        """Return `Level` of the first operations of `tier` that moved anything."""
        return self._levels[tier][: self._tier_time["levels"][tier]]


class Seconds:
    """`SecondCounts` for each second and kind; those that are over are given out."""

    def __init__(self, kinds: int) -> None:
        """Count operations of so many kinds."""
        self._kinds = kinds
        self.first = 0
        """The second of the first record; those before were given out."""
        self.records: Array = np.zeros(0, RECORDER.dtype("SecondCounts"))
        self._times: dict[int, list[Array]] = {}
        """Service times of seconds that are not over, by `key` of EndedInSecond."""

    def make_room(self, last_ns: int) -> None:
        """Make room for times up to `last_ns`."""
        wanted = max(1, last_ns // NS_PER_S + 1 - self.first) * self._kinds
        if wanted > len(self.records):
            room = max(wanted, 2 * len(self.records))
            more = np.zeros(room - len(self.records), self.records.dtype)
            more["p99_ns"] = NOT_DONE
            self.records = np.concatenate([self.records, more])

    def sort(self, ended: Array, until: int) -> None:
        """Sort EndedInSecond into their seconds; set the p99 of those before `until`."""
        if len(ended):
            key = np.ascontiguousarray(ended["key"])
            first = int(key.min())
            # 16 bits are sorted in no time.
            small = (key - first).astype(np.uint16) if int(key.max()) - first < _RADIX else key
            order = np.argsort(small, kind="stable")
            keys, starts = np.unique(key[order], return_index=True)
            parts = np.split(ended["latency_ns"][order], starts[1:])
            for number, latency in zip(keys.tolist(), parts, strict=True):
                self._times.setdefault(number, []).append(latency.copy())
        for number in [number for number in self._times if number < until * self._kinds]:
            latency = np.concatenate(self._times.pop(number))
            if (rank := nearest_rank(len(latency), _P99)) is not None:
                latency.partition(rank - 1)
                self.records["p99_ns"][number - self.first * self._kinds] = latency[rank - 1]

    def over(self, until: int) -> tuple[Array, Array, Array]:
        """Return the seconds before `until` that have anything, the kinds, and their records.

        They are forgotten.
        """
        count = max(0, until - self.first) * self._kinds
        busy = np.flatnonzero(self.records["operations"][:count] + self.records["errors"][:count])
        seconds = self.first + busy // self._kinds, busy % self._kinds, self.records[busy]
        self.records, self.first = self.records[count:].copy(), max(self.first, until)
        return seconds


TierT = TypeVar("TierT", bound=RecordedTier)


class OperationRecorder(Generic[TierT]):
    """What was recorded of the operations that were added."""

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
        """Record operations on `tiers`, null for one without a target.

        `drives` are, by tier, those of a tier on several, else empty. I/Os are up to `io_bytes`
        long. A distribution is exact up to `limits`, int64 by kind; by default all have equal
        shares of EXACT_VALUES. `row_bytes` is the distance of rows that are longer than
        OPERATION_ROW. Seconds are counted if it `has_seconds`; rows of deletes say what they freed
        if it `has_freed_bytes`.
        """
        self._has_freed_bytes = has_freed_bytes
        self.tiers, self.is_open_loop, self.io_bytes = tiers, is_open_loop, io_bytes
        self.drives = [drives[index] if drives else () for index in range(len(tiers))]
        places = [max(1, len(of_tier)) for of_tier in self.drives]
        self.first_place: Array = np.cumsum([0, *places], dtype=np.int64)
        """By tier, and the number of all places at its end."""
        self.tier_of: Array = np.repeat(np.arange(len(tiers)), places)
        """By place."""
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
        # The last is that of operations that were submitted, but did not complete well.
        self.times = TimeDistributions(len(each_limit), each_limit)
        self.seconds = Seconds(count) if has_seconds else None
        self.ended: Array = np.empty(0, RECORDER.dtype("EndedInSecond"))
        """EndedInSecond of the rows that were added last."""
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
            # Operations that take no time have no figures of it; an open loop still asks what all
            # of them waited.
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
        """Add `rows` (OPERATION_ROW); figures count those where `is_counted`, or all.

        `place` says where each was done, if a tier lies on several drives. Returns the bytes that
        each asks of its tier, NONE for none, unless `asked_bytes` tells them.
        """
        if is_counted is None:
            is_counted = np.ones(len(rows), bool)
        is_asked = asked_bytes is not None
        if not is_asked:
            asked_bytes = np.empty(len(rows), np.int64)
        ended = np.empty(0, self.ended.dtype)
        if self.seconds is not None:
            # A simulated tier has no seconds, and its run may last for years.
            if self.moves.any():
                times = (rows[name].max(initial=0) for name in ("completed_ns", "submitted_ns"))
                self.seconds.make_room(int(max(times)))
            ended = np.empty(len(rows), ended.dtype)
            self._shared.set(second=self.seconds.records, first_second=self.seconds.first)
        self._shared.set(ended=ended, endeds=0, is_asked=is_asked)
        call("recorder_add", self._shared, rows, len(rows), place, is_counted, asked_bytes)
        self.ended = ended[: self._shared.endeds]
        return asked_bytes

    def end(self) -> None:
        """Note that no row will follow; figures are asked then."""
        self.order.end()

    def kinds_of(self, tier: int, op: int | None = None, drive: int | None = None) -> list[int]:
        """Return the kinds of a tier, or a drive of it, and of one operation, or all."""
        first, last = int(self.first_place[tier]), int(self.first_place[tier + 1])
        if drive is not None:
            first, last = first + drive, first + drive + 1
        ops = range(OPS_A_PLACE) if op is None else (op,)
        return [place * OPS_A_PLACE + code for place in range(first, last) for code in ops]

    def total(self, name: str, kinds: Sequence[int] | None = None) -> int:
        """Return the field `name` of `kinds` added up, of all if none is named."""
        return int((self.kinds[name] if kinds is None else self.kinds[name][list(kinds)]).sum())

    def span_ns(self, kinds: Sequence[int]) -> int | None:
        """Return the time from the first submission to the last completion of `kinds`."""
        records = self.kinds[list(kinds)]
        first_ns = int(records["first_ns"].min())
        return None if first_ns == NEVER_NS else int(records["last_ns"].max()) - first_ns

    def most_at_once(self, kinds: Sequence[int]) -> int | None:
        """Return how many of `kinds`, of one tier and operation, were in flight at once.

        Null if unknown.
        """
        place, op = divmod(kinds[0], OPS_A_PLACE)
        return self.order.most_at_once(kinds, int(self.tier_of[place]) * OPS_A_PLACE + op)

    def distribution(self, measure: int, kinds: Sequence[int] | None = None) -> Distribution:
        """Return the distribution of a time of `kinds`.

        That of all kinds has the lateness of operations that did not complete well, too.
        """
        has_failed = measure == LATENESS and kinds is None
        failed = [len(self.times) - 1] if has_failed else []
        return self.times.distribution(*self.slots(measure, kinds), *failed)

    def slots(self, measure: int, kinds: Sequence[int] | None = None) -> list[int]:
        """Return which of `times` are the distributions `measure` of `kinds`, or of all."""
        every = range(len(self.kinds)) if kinds is None else kinds
        return [kind * self._times_a_kind + measure for kind in every]

    def late(self, kinds: Sequence[int] | None = None) -> tuple[float, float]:
        """Return how many operations of `kinds`, or of all, were late by their response times, and
        the time that all of them would have taken unhindered, added up.

        An operation would have taken as long as one of the quickest of its tier, operation and
        class of length. Both are as exact as the slots of a coarse histogram, in which limits lie
        between edges.
        """
        late = unhindered_ns = 0.0
        if self._sized is None:
            return late, unhindered_ns
        together: dict[tuple[int, int], list[int]] = {}
        for kind in range(len(self.kinds)) if kinds is None else kinds:
            if self.kinds["good"][kind]:
                tier = int(self.tier_of[kind // OPS_A_PLACE])
                together.setdefault((tier, kind % OPS_A_PLACE), []).append(kind)
        for alike in together.values():
            of_kinds = self._sized[alike].sum(axis=0) if len(alike) > 1 else self._sized[alike[0]]
            for service, response in of_kinds:
                count = int(service.sum())
                if count:
                    rank = (count - 1) * QUICK_PERCENT // 100 + 1
                    slot = int(np.searchsorted(np.cumsum(service), rank))
                    usual_ns = sum(bounds(slot, COARSE_BITS)) / 2
                    unhindered_ns += count * usual_ns
                    late += _count_above(response, LATE_NS + LATE_TIMES * usual_ns)
        return late, unhindered_ns

    def delivery(self, kinds: Sequence[int]) -> Delivery:
        """Return what was delivered of the load of `kinds`, in an open loop.

        Rates are over the run's schedule: from its first due time to its last, and one gap such as
        those between. What ends after that took longer; what was due and not reached was offered,
        too, and a run that was cut ended as late as it.
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
        # What the last takes unhindered, as the quickest of its tier and kind: a queue that grows
        # all along has lengthened even the 5th percentile, to 5 % of the run.
        tier, op = int(self.tier_of[last // OPS_A_PLACE]), last % OPS_A_PLACE
        alike = self.kinds_of(tier, op)
        usual_ns, per_mib = (
            self.times.least(*self.slots(SERVICE, alike)),
            self.slots(PER_MIB, alike),
        )
        if self.times.count(*per_mib):
            of_bytes_ns = self.times.least(*per_mib) * int(records["last_bytes"][last]) // MIB
            usual_ns = max(usual_ns, of_bytes_ns)
        ready_ns = completed_ns - min(int(records["last_service_ns"][last]), usual_ns)
        # Of a load that was due at once, what the last took is most of the time.
        took_ns = max(schedule_ns, (ready_ns if schedule_ns else completed_ns) - first_due_ns)
        missed_ns = int(records["first_missed_ns"][list(kinds)].min())
        late_ns = max(0, int(self.run["until_ns"][0]) - missed_ns, ready_ns - last_due_ns)
        offered_per_s = per_second(self.total("due", kinds), schedule_ns)
        return Delivery(late_ns, offered_per_s, per_second(count, took_ns), took_ns)

    @property
    def last_completed_ns(self) -> int | None:
        """The last completion; null if there was none."""
        last_ns = int(self.run["last_completed_ns"][0])
        return None if last_ns == NOT_DONE else last_ns

    @property
    def measured_from_ns(self) -> int | None:
        """The first submission that figures count; null if there was none."""
        return int(self.run["from_ns"][0]) if self.run["counted_sent"][0] else None

    def figures(self, *, of_drives: bool = False) -> list[Figures]:
        """Return the figures of every tier and operation that was planned.

        Or those of each drive of tiers on several.
        """
        places: list[tuple[int, int | None, RecordedTier]] = []
        for index, tier in enumerate(self.tiers):
            if tier is not None and not of_drives:
                places.append((index, None, tier))
            elif tier is not None:
                places += [(index, at, drive) for at, drive in enumerate(self.drives[index])]
        return [
            self._figures_of(kinds, tier, op)
            for index, drive, tier in places
            for code, op in enumerate(OPS)
            if self.total("planned", kinds := self.kinds_of(index, code, drive))
        ]

    def _figures_of(self, kinds: Sequence[int], tier: RecordedTier, op: str) -> Figures:
        """Return the figures of one operation on a tier, or on a drive of it."""
        is_timed, is_delete = tier.has_times, op == OPS[DELETE]
        span_ns, operations = self.span_ns(kinds), self.total("good", kinds)
        moved = self.total("bytes", kinds)
        has_bytes = is_timed and (self._has_freed_bytes or not is_delete)
        has_io = not tier.is_simulated and not is_delete
        if has_io and operations:
            has_io = self.total("io_known", kinds) > 0
        # Times of a tier without a model would be our own loop's.
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
            bytes=moved if has_bytes else None,
            io_bytes=self.total("io_bytes", kinds) if has_io else None,
            span_ns=span_ns,
            bandwidth_bytes_per_s=None if is_delete else per_second(moved, timed_ns),
            operations_per_s=per_second(operations, timed_ns),
            in_flight_mean=self.total("service_ns", kinds) / timed_ns if timed_ns else None,
            in_flight_max=self.most_at_once(kinds) if timed_ns else None,
            latency=times(SERVICE),
            response=times(RESPONSE) if self.is_open_loop else None,
            latency_per_mib=times(PER_MIB),
            lateness=self.distribution(LATENESS, kinds) if self.is_open_loop else None,
        )

    def summary(self, facts: RunFacts) -> Summary:
        """Return the summary of a run: its figures, and the `facts` that operations do not tell."""
        run, from_ns, warmup = self.run[0], self.measured_from_ns, None
        if facts.warmup is not None:
            has_row = from_ns is not None and facts.has_row_numbers
            warmup = WarmupFacts(
                asked=facts.warmup,
                operations=int(run["left_out"]),
                first_measured_row=int(run["first_row"]) if has_row else None,
                measured_from_ns=from_ns,
            )
        # What went before the first operation that counts is no time of the figures.
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
    """Return how many values exceed `limit`; of the slot in which it lies, the part above it."""
    used = np.flatnonzero(slots)
    edges = [bounds(slot, COARSE_BITS) for slot in used.tolist()]
    parts = [min(1.0, max(0.0, (high - limit) / (high - low))) for low, high in edges]
    return float(np.dot(slots[used], parts))
