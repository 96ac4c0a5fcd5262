"""Counters of a run, filled as its rows come, in memory that does not grow with them, nor with
time.

Operations by kind and place, by second and in the order of time; requests with their storage,
response and first-token times; and the rows of the table `ops`. Times are all kept while they are
few, beyond that in a histogram. Its slots are 1/1024 of their value wide, so a percentile read from
their middles is at most 0.05 % off. Counts, sums and greatest values are exact either way, also
when several are merged.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from msgspec import UNSET

from kvreplay.config.config import Targets
from kvreplay.config.setting import Setting
from kvreplay.native.rows import (
    COUNTED,
    DELETE,
    NONE,
    NOT_DONE,
    OK,
    ROW,
    SKIPPED,
    WINDOW_ROWS,
    call,
)
from kvreplay.plan.pacing import Repeated
from kvreplay.tiers.tier import SeveralDrives, Tier
from kvtrace.core import pa
from kvtrace.core.native.structs import Structure, address
from kvtrace.core.run.figures import ClassFigures, Distribution, RequestFigures
from kvtrace.core.schema import OPS, Qos, batch_of, enum_code, numbers
from kvtrace.core.statistics import QUANTILES, bounds, nearest_rank
from kvtrace.core.tables import Reader
from kvtrace.core.units import NS_PER_S, parse_duration_ns

SUB_BITS = 10
ERROR = 0.5 / (1 << SUB_BITS)
"""Of a value: how far off a percentile may be that a histogram tells."""
SLOTS = (64 - SUB_BITS) << SUB_BITS
EXACT_VALUES = 1 << 18
"""Kept of all the distributions of a run together, 8 bytes each; each has the same share."""
TIMES = COUNTED.dtype("Times")
NOTHING = Distribution(0, None, None, None, None, None, None, None)
"""That of no value."""


class Times:
    """Several distributions of times in ns; count.c puts into their `records`."""

    def __init__(self, number: int = 1, limit: int = EXACT_VALUES) -> None:
        """Make `number` of them that keep up to `limit` values each."""
        # Pages that nothing is written to take no memory.
        self._values, self._slots = (
            np.empty((number, limit), np.int64),
            np.zeros((number, SLOTS), np.int64),
        )
        self.records = np.zeros(number, TIMES)
        self.records["limit"] = limit
        for name, table in (("value", self._values), ("slot", self._slots)):
            self.records[name] = address(table) + np.arange(number) * table.strides[0]

    def add(self, values: Any, at: int = 0) -> None:
        """Take int64 `values` into the distribution `at`."""
        values = np.ascontiguousarray(values, np.int64)
        call("times_put", self.records[at:], values, len(values))

    def count(self, *at: int) -> int:
        """Return how many values the distributions `at` have together."""
        return int(self.records["count"][list(at)].sum())

    def total(self, *at: int) -> int:
        """Return the sum of their values."""
        found = self.records[list(at)]
        return (int(found["sum_high"].sum()) << 32) + int(found["sum_low"].sum())

    def distribution(self, *at: int) -> Distribution:
        """Merge the distributions `at`.

        Nearest-rank percentiles, null where there are too few values.
        """
        at = at or (0,)
        count = self.count(*at)
        if not count:
            return NOTHING
        known = [
            rank - 1
            for part in QUANTILES.values()
            if (rank := nearest_rank(count, part)) is not None
        ]
        most = int(self.records["most"][list(at)].max())
        values = self._exact(at)
        if values is None:
            found = [min(most, value) for value in self._of_ranks(at, known)]
        else:
            values.partition(known or [0])
            found = [int(values[rank]) for rank in known]
        names = [f"{name}_ns" for name in QUANTILES]
        known_ns: dict[str, Any] = dict.fromkeys(names) | dict(zip(names, found, strict=False))
        within = UNSET if values is not None else ERROR
        mean = self.total(*at) / count
        return Distribution(
            count=count, mean_ns=mean, max_ns=most, percentiles_within=within, **known_ns
        )

    def least(self, *at: int) -> int:
        """Return the least value of the distributions `at` together, of which there is one."""
        values = self._exact(at)
        return self._of_ranks(at, [0])[0] if values is None else int(values.min())

    def _exact(self, at: Sequence[int]) -> Any:
        """Return all values of the distributions `at`; None if one of them has too many."""
        found = self.records[list(at)]
        if (found["count"] > found["limit"]).any():
            return None
        return np.concatenate([self._values[i][: self.count(i)] for i in at])

    def _of_ranks(self, at: Sequence[int], ranks: Sequence[int]) -> list[int]:
        """Return the middles of the slots that hold the values of `ranks`, from 0 and rising."""
        slots = self._slots[list(at)].sum(axis=0)
        for i in at:
            if self.count(i) <= self.records["limit"][i]:
                call("times_fill", slots, self._values[i], self.count(i))
        found = np.searchsorted(np.cumsum(slots), np.asarray(ranks) + 1).tolist()
        return [
            low + (below - low >> 1) for low, below in (bounds(slot, SUB_BITS) for slot in found)
        ]


@dataclass(frozen=True, slots=True)
class RunPart:
    """Consecutive planned rows that have ended, or never will, with what was measured of them.

    They may lie in a ring that is used again: whoever takes a part copies what it keeps.
    """

    first: int
    """How many planned rows there are before it."""
    rows: Any
    """ROW, one after the other; `trace_row` counts from the start of the trace."""

    def __len__(self) -> int:
        return len(self.rows)

    def within(self, first: int, last: int) -> Self:
        """Return the rows `first` to before `last` of the part."""
        return type(self)(self.first + first, self.rows[first:last])

    def kept(self) -> Self:
        """Return a copy that the ring cannot overwrite."""
        return type(self)(self.first, self.rows.copy())

    @classmethod
    def nothing(cls) -> Self:
        """Return an empty part."""
        return cls(0, np.zeros(0, ROW))


KINDS = 3
"""Kinds of operations: read, write, delete."""
SERVICE, PER_MIB, RESPONSE, LATENESS = range(4)
"""The distributions of a kind; the last two in an open loop alone."""
CLOSED_TIMES, OPEN_TIMES = 2, 4
MOST = np.iinfo(np.int64).max
WAITING = 1 << 17
"""Operations that may wait.

One that comes more than half of this behind one that was submitted after it comes late.
"""
MOST_LEVELS = 200_000
"""Operations of a tier, those submitted first, whose service times are set against what was in
flight.
"""
MOST_WAITS = 1 << 17
SECONDS_TOGETHER = 256
"""So many that are over are given out at once, at least."""
SIZES, COARSE_BITS = 18, 8
COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
"""Classes of lengths, a factor of two each, and the slots of their histograms, at most 0.4 % of
their value wide.
"""
LATE_NS = 1_000_000
LATE_TIMES = 2
"""A response is on time up to LATE_NS more than so many times what its kind and length takes
unhindered. Lengths of one class differ by a factor of two, and so may what they take.
"""
QUICK_PERCENT = 5
"""Of service times.

What operations of a length take unhindered, however a few of them were cached.
"""
_P99 = 9900
_RADIX = 1 << 16

KIND, RUN, SECOND, ENDED, LEVEL = map(COUNTED.dtype, ("Kind", "Run", "Second", "Ended", "Level"))
WAIT, DONE, IN_FLIGHT, COVERED = map(COUNTED.dtype, ("Wait", "Done", "InFlight", "Covered"))


class OperationPlaces:
    """Where operations are done: tiers, and of those on several drives each drive."""

    def __init__(self, tiers: Sequence[Tier | None]) -> None:
        """Give the places of `tiers` their numbers."""
        self.drives = [tier.drives if isinstance(tier, SeveralDrives) else [tier] for tier in tiers]
        self.starts = np.cumsum([0, *(len(drives) for drives in self.drives)])
        self.tier_of = np.repeat(np.arange(len(tiers)), [len(drives) for drives in self.drives])
        self._sharded = [
            (i, tier) for i, tier in enumerate(tiers) if isinstance(tier, SeveralDrives)
        ]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def of(self, rows: Any) -> Any:
        """Return int64 a row: its place; None if each tier is one."""
        if not self._sharded:
            return None
        place = self.starts[rows["tier"]]
        for index, tier in self._sharded:
            here = rows["tier"] == index
            place[here] += tier.drive_of[rows["object_id"][here]]
        return place

    def within(self, tier: int, drive: int | None = None) -> range:
        """Return the places of a tier, or that of one of its drives."""
        start = int(self.starts[tier])
        return (
            range(start, int(self.starts[tier + 1]))
            if drive is None
            else range(start + drive, start + drive + 1)
        )


class InOrder:
    """Operations that completed without error, in the order of their submission.

    They come in the order of their rows, and wait here until so many others have come that hardly
    one can follow that was submitted before them.
    """

    def __init__(self, tier_of: Any, groups_of: Any, has_levels: Any, *, is_open: bool) -> None:
        """Look at operations of kinds whose tiers are `tier_of`.

        `groups_of` says what else each kind is counted with, -1 for nothing; `has_levels`, by tier,
        of which levels are asked; waiting before submission is followed if it `is_open`.
        """
        self._kinds = len(tier_of)
        self._heaps = np.zeros(self._kinds + int(groups_of.max(initial=-1)) + 1, IN_FLIGHT)
        self._covered = np.zeros(len(has_levels), COVERED)
        self._levels = [np.empty(MOST_LEVELS if has else 0, LEVEL) for has in has_levels]
        self._covered["level"] = [address(levels) for levels in self._levels]
        self._covered["level_room"] = [len(levels) for levels in self._levels]
        self.shared = Structure(
            COUNTED,
            "InOrder",
            done=np.empty(WAITING, DONE),
            spare=np.empty(WAITING, DONE),
            done_room=WAITING,
            tier=np.array(tier_of, np.int64),
            group=np.where(groups_of < 0, NONE, self._kinds + groups_of),
            in_flight=self._heaps,
            covered=self._covered,
            wait=np.empty(MOST_WAITS, WAIT),
            wait_room=MOST_WAITS,
            reached_ns=NOT_DONE,
            is_open_loop=is_open,
        )
        weakref.finalize(self, call, "order_free", self._heaps, len(self._heaps))

    def end(self) -> None:
        """Process everything that still waits; no row will follow."""
        call("order_flush", self.shared, 1)

    def most_at_once(self, at: Sequence[int], group: int) -> int | None:
        """Return how many of the kinds `at`, all of `group`, were in flight at once.

        Null if some came too late.
        """
        return (
            None
            if self.shared.late
            else int(self._heaps["most"][at[0] if len(at) == 1 else self._kinds + group])
        )

    def covered_ns(self, tier: int) -> int:
        """Return how much time operations of `tier` covered together."""
        return int(self._covered["covered_ns"][tier])

    @property
    def waited_ns(self) -> int:
        """Time in which at least one operation that could have gone was not submitted.

        What is further back than the last 65,536 gaps between such times is not added to any more.
        """
        return int(self.shared.waited_ns)

    def levels(self, tier: int) -> Any:
        """Return LEVEL of the first operations of `tier` that moved anything."""
        return self._levels[tier][: self._covered["levels"][tier]]


class Seconds:
    """A SECOND record for each second and kind, counted as rows come.

    Those that are over are given out.
    """

    def __init__(self, kinds: int) -> None:
        """Count operations of so many kinds."""
        self._kinds = kinds
        self.first = 0
        """The second of the first record; those before were given out."""
        self.records = np.zeros(0, SECOND)
        self._times: dict[int, list[Any]] = {}
        """Service times of seconds that are not over, by `key` of ENDED."""

    def make_room(self, last_ns: int) -> None:
        """Make room for times up to `last_ns`."""
        wanted = max(1, last_ns // NS_PER_S + 1 - self.first) * self._kinds
        if wanted > len(self.records):
            more = np.zeros(max(wanted, 2 * len(self.records)) - len(self.records), SECOND)
            more["p99_ns"] = NOT_DONE
            self.records = np.concatenate([self.records, more])

    def sort(self, ended: Any, until: int) -> None:
        """Sort ENDED into their seconds; note the p99 of those before `until`, which are over."""
        if len(ended):
            key = np.ascontiguousarray(ended["key"])
            first = int(key.min())
            # 16 bits are sorted in no time.
            small = (key - first).astype(np.uint16) if int(key.max()) - first < _RADIX else key
            order = np.argsort(small, kind="stable")
            found, starts = np.unique(key[order], return_index=True)
            parts = np.split(ended["latency_ns"][order], starts[1:])
            for at, latency in zip(found.tolist(), parts, strict=True):
                self._times.setdefault(at, []).append(latency.copy())
        for at in [at for at in self._times if at < until * self._kinds]:
            latency = np.concatenate(self._times.pop(at))
            if (rank := nearest_rank(len(latency), _P99)) is not None:
                latency.partition(rank - 1)
                self.records["p99_ns"][at - self.first * self._kinds] = latency[rank - 1]

    def over(self, until: int) -> tuple[Any, Any, Any]:
        """Return the seconds before `until` that have anything, the kinds, and their records, and
        forget them.
        """
        count = max(0, until - self.first) * self._kinds
        at = np.flatnonzero(self.records["operations"][:count] + self.records["errors"][:count])
        found = self.first + at // self._kinds, at % self._kinds, self.records[at]
        self.records, self.first = self.records[count:].copy(), max(self.first, until)
        return found


class CountedOperations:
    """What has been counted of the operations that were taken."""

    def __init__(self, tiers: Sequence[Tier | None], *, is_open_loop: bool, io_bytes: int) -> None:
        """Count operations on `tiers`, whose I/Os are up to `io_bytes` long."""
        self.tiers, self.is_open_loop, self.io_bytes = tiers, is_open_loop, io_bytes
        self.places = OperationPlaces(tiers)
        self.moves = np.array([t is not None and not t.is_simulated for t in tiers])
        count = len(self.places) * KINDS
        self.kinds, self.run = np.zeros(count, KIND), np.zeros(1, RUN)
        self.kinds["first_ns"] = self.run["first_due_ns"] = self.run["first_row"] = self.run[
            "from_ns"
        ] = MOST
        self.kinds["last_ns"] = self.kinds["last_due_ns"] = self.run["last_due_ns"] = NOT_DONE
        self.kinds["first_missed_ns"] = self.run["until_ns"] = MOST
        self.run["last_completed_ns"] = NOT_DONE
        self._each = OPEN_TIMES if is_open_loop else CLOSED_TIMES
        used = sum(
            len(drives)
            for drives, tier in zip(self.places.drives, tiers, strict=True)
            if tier is not None
        )
        limit = EXACT_VALUES // max(1, used * KINDS * self._each + 1)
        # The last is that of operations that were submitted, but did not complete well.
        self.times = Times(count * self._each + 1, limit)
        self.seconds = Seconds(count)
        self._reached, self._until = deque[tuple[int, int]](), 0
        """After which planned row which second was reached, and that before which all are over."""
        tier_of = np.repeat(self.places.tier_of, KINDS)
        is_shared = np.array([len(drives) > 1 for drives in self.places.drives])
        groups_of = np.where(
            is_shared[tier_of], tier_of * KINDS + np.tile(np.arange(KINDS), len(self.places)), -1
        )
        is_timed = np.array([t is not None and t.has_times for t in tiers])
        has_levels = is_timed & np.array([t is not None and not t.is_copied for t in tiers])
        self.order = InOrder(tier_of, groups_of, has_levels, is_open=is_open_loop)
        self._sized = np.zeros((count, SIZES, 2, COARSE_SLOTS), np.int64) if is_open_loop else None
        self._shared = Structure(
            COUNTED,
            "Counting",
            padding_bytes=np.array([1 if t is None else t.alignment for t in tiers], np.int64),
            first_place=self.places.starts.astype(np.int64),
            moves=self.moves,
            # Of operations that take no time, figures have none; an open loop asks what all of them
            # waited.
            is_timed=is_timed | is_open_loop,
            kind=self.kinds,
            run=self.run,
            times=self.times.records,
            order=self.order.shared,
            sized=0 if self._sized is None else self._sized,
            kinds=count,
            each=self._each,
            io_bytes=io_bytes,
            is_open_loop=is_open_loop,
        )

    def take(self, part: RunPart, counts: Any) -> Any:
        """Count the rows of `part`, in figures those where `counts`.

        Return the bytes that each asks of its tier.
        """
        rows, asked = part.rows, np.empty(len(part), np.int64)
        if self.moves.any():  # what is simulated has no seconds, and may take years
            self.seconds.make_room(
                int(max(rows["completed_ns"].max(initial=0), rows["submitted_ns"].max(initial=0)))
            )
        ended = np.empty(len(part), ENDED)
        self._shared.set(
            second=self.seconds.records, first_second=self.seconds.first, ended=ended, endeds=0
        )
        call("count_rows", self._shared, rows, len(part), self.places.of(rows), counts, asked)
        taken = part.first + len(part)
        self._reached.append((taken, int(self.run["last_ns"][0]) // NS_PER_S))
        # A row is laid, and so submitted, when the one whose place in the ring it takes has ended.
        while self._reached[0][0] <= taken - WINDOW_ROWS:
            self._until = self._reached.popleft()[1]
        self.seconds.sort(ended[: self._shared.endeds], self._until)
        return asked

    def over(self, *, is_last: bool = False) -> tuple[Any, Any, Any] | None:
        """Return what `Seconds.over` does of seconds that no row to come is of.

        Of all if it `is_last`; None if few.
        """
        if is_last:
            self._until = int(self.run["last_ns"][0]) // NS_PER_S + 1
            self.seconds.sort(np.zeros(0, ENDED), self._until)
        elif self._until < self.seconds.first + SECONDS_TOGETHER:
            return None
        return self.seconds.over(self._until)

    def at(self, tier: int, op: int | None = None, drive: int | None = None) -> list[int]:
        """Return the indices of kinds: of a tier or a drive of it, of one operation or all."""
        ops = range(KINDS) if op is None else (op,)
        return [place * KINDS + code for place in self.places.within(tier, drive) for code in ops]

    def total(self, name: str, at: Sequence[int] | None = None) -> int:
        """Return the field `name` of the kinds `at` added up, of all if there is none named."""
        return int((self.kinds[name] if at is None else self.kinds[name][list(at)]).sum())

    def took(self, kind: Sequence[int]) -> tuple[int | None, int]:
        """Return how long the kinds `kind` took together, and the sum of their service times."""
        found = self.kinds[list(kind)]
        first_ns = int(found["first_ns"].min())
        span_ns = None if first_ns == MOST else int(found["last_ns"].max()) - first_ns
        return span_ns, self.total("service_ns", kind)

    def most_at_once(self, kind: Sequence[int]) -> int | None:
        """Return how many of the kinds `kind`, of one tier and operation, were in flight at once.

        Null if unknown.
        """
        place, op = divmod(kind[0], KINDS)
        return self.order.most_at_once(kind, int(self.places.tier_of[place]) * KINDS + op)

    def distribution(self, what: int, kind: Sequence[int] | None = None) -> Distribution:
        """Return that of a time of the kinds `kind`.

        Of all, with the lateness of those that did not complete well.
        """
        failed = [len(self.times.records) - 1] if what == LATENESS and kind is None else []
        return self.times.distribution(*self.slots(what, kind), *failed)

    def slots(self, what: int, at: Sequence[int] | None = None) -> list[int]:
        """Return where `times` has the distribution `what` of the kinds `at`, or of all."""
        return [kind * self._each + what for kind in (range(len(self.kinds)) if at is None else at)]

    def late(self, at: Sequence[int] | None = None) -> tuple[float, float]:
        """Return how many operations of the kinds `at`, or of all, were late by their response
        times.

        And what all of them would have taken unhindered, added up: each as one of the quickest of
        its tier, operation and class of length. Both are as exact as the slots of a coarse
        histogram, in which limits lie between edges.
        """
        late = unhindered_ns = 0.0
        if self._sized is None:
            return late, unhindered_ns
        together: dict[tuple[int, int], list[int]] = {}
        for kind in range(len(self.kinds)) if at is None else at:
            if self.kinds["good"][kind]:
                together.setdefault(
                    (int(self.places.tier_of[kind // KINDS]), kind % KINDS), []
                ).append(kind)
        for of in together.values():
            for sized in self._sized[of].sum(axis=0) if len(of) > 1 else self._sized[of[0]]:
                count = int(sized[0].sum())
                if count:
                    slot = int(
                        np.searchsorted(np.cumsum(sized[0]), (count - 1) * QUICK_PERCENT // 100 + 1)
                    )
                    usual_ns = sum(bounds(slot, COARSE_BITS)) / 2
                    unhindered_ns += count * usual_ns
                    late += _above(sized[1], LATE_NS + LATE_TIMES * usual_ns)
        return late, unhindered_ns


def _above(slots: Any, limit: float) -> float:
    """Return how many values exceed `limit`; of the slot in which it lies, the part above it."""
    found = np.flatnonzero(slots)
    edges = [bounds(slot, COARSE_BITS) for slot in found.tolist()]
    parts = [min(1.0, max(0.0, (high - limit) / (high - low))) for low, high in edges]
    return float(np.dot(slots[found], parts))


EXACT_REQUESTS = 100_000
"""Up to so many of one kind, percentiles are those of all."""
_AT_FIRST = 1 << 12
_STORAGE, _RESPONSE, _FIRST_TOKEN, _CLASSES = range(4)
TTFT_DEFINITION = (
    "the loads of a request, from its arrival (closed loop: from its first load's submission) to"
    " the last completion, as replayed, + what computing the tokens that were not loaded takes by"
    " the trace's prefill_ns_per_token and prefill_attention"
)
REQUEST, SPAN = map(COUNTED.dtype, ("Request", "Span"))


class OpenRequests:
    """The requests of which rows have come and may still come."""

    def __init__(self, moves: Any, loads: Any, *, is_open_loop: bool) -> None:
        """Know none.

        `moves` says by tier whether data moves there, `loads` by phase whether reads load cached
        KV.
        """
        self._shared = Structure(
            COUNTED,
            "Requests",
            moves=np.array(moves, np.bool_),
            loads=np.array(loads, np.bool_),
            free_span=NONE,
            is_open_loop=is_open_loop,
        )
        weakref.finalize(self, call, "table_free", self._shared.place)
        self._hold(np.zeros(_AT_FIRST, REQUEST), np.zeros(_AT_FIRST, SPAN))

    def _hold(self, requests: Any, spans: Any) -> None:
        self._shared.set(request=requests, room=len(requests), span=spans, span_room=len(spans))

    def begin(self) -> None:
        """Start a new part of rows."""
        self._shared.set(planned=0)

    def take(
        self, at: int, first_row: int, columns: dict[str, Any], part: RunPart, counts: Any
    ) -> int:
        """Take rows of the trace from `first_row` on, of which `at` were taken, with what `part`
        knows of them.

        Returns how many were taken; if not all, there is no room.
        """
        of_trace = [columns[name] for name in ("request_id", "length_bytes", "phase", "op")]
        count = len(of_trace[0])
        return call(
            "requests_take",
            self._shared,
            at,
            count,
            first_row,
            *of_trace,
            part.rows,
            len(part),
            counts,
        )

    def pop(self, below: int) -> Any:
        """Return REQUEST of those whose id is less than `below`, in order of it, and forget them."""
        over = np.empty(self._shared.requests, REQUEST)
        over = over[: call("requests_pop", self._shared, below, over)]
        return over[np.argsort(over["id"])]

    def make_room(self) -> None:
        """Make room for more."""
        requests, spans = (self._shared.arrays[name] for name in ("request", "span"))
        if 2 * self._shared.requests > len(requests):
            requests = np.concatenate([requests, np.zeros_like(requests)])
        if self._shared.free_span == NONE and self._shared.spans == len(spans):
            spans = np.concatenate([spans, np.zeros_like(spans)])
        self._hold(requests, spans)


class RequestTimes:
    """The figures of requests that were added: as a whole and by class of service."""

    def __init__(self, targets: Mapping[str, Targets], limit: int = EXACT_REQUESTS) -> None:
        """Judge classes by their `targets`; up to `limit` requests are kept one by one."""
        self._targets, self._times = targets, Times(_CLASSES + 2 * len(Qos), limit)
        self._requests, self._unknown = 0, 0
        self._seen, self._within = np.zeros(len(Qos), np.int64), np.zeros(len(Qos), np.int64)

    def add(self, storage_ns: Any, response_ns: Any, first_token_ns: Any, qos: Any) -> None:
        """Take requests, one value of each a request.

        `storage_ns` is -1 where not all of a request's operations completed, `response_ns` None in
        a closed loop; `qos` are codes, -1 for no class.
        """
        self._requests += len(storage_ns)
        self._unknown += int((first_token_ns == NOT_DONE).sum())
        self._times.add(first_token_ns[first_token_ns != NOT_DONE], _FIRST_TOKEN)
        self._take(storage_ns != NOT_DONE, storage_ns, response_ns, _STORAGE)
        for code, name in enumerate(Qos):
            here = qos == code
            self._seen[code] += int(here.sum())
            judged = self._take(
                here & (storage_ns != NOT_DONE), storage_ns, response_ns, _CLASSES + 2 * code
            )
            self._within[code] += int((judged <= parse_duration_ns(self._targets[name].p95)).sum())

    def _take(self, which: Any, storage_ns: Any, response_ns: Any, at: int) -> Any:
        """Take some of them into a distribution and, in an open loop, its next.

        Return the times that are judged.
        """
        self._times.add(storage_ns[which], at)
        if response_ns is None:
            return storage_ns[which]
        self._times.add(response_ns[which], at + 1)
        return response_ns[which]

    def figures(self, reason: str | None, *, is_open_loop: bool) -> RequestFigures:
        """Return their figures; `reason` says why no time to the first token is modelled."""
        return RequestFigures(
            requests=self._requests,
            storage=self._times.distribution(_STORAGE),
            response=self._times.distribution(_RESPONSE) if is_open_loop else None,
            classes=[
                self._class(code, name, is_open_loop)
                for code, name in enumerate(Qos)
                if self._seen[code]
            ],
            first_token=None if reason else self._times.distribution(_FIRST_TOKEN),
            first_token_unknown=None if reason else self._unknown,
            first_token_reason=reason,
            first_token_definition=TTFT_DEFINITION,
        )

    def _class(self, code: int, name: str, is_open_loop: bool) -> ClassFigures:
        storage, response = (self._times.distribution(_CLASSES + 2 * code + i) for i in range(2))
        found, targets = response if is_open_loop else storage, self._targets[name]
        limits = {
            each: parse_duration_ns(getattr(targets, each)) for each in targets.__struct_fields__
        }
        known = {
            each: value for each in limits if (value := getattr(found, f"{each}_ns")) is not None
        }
        verdict = "pass" if all(value <= limits[each] for each, value in known.items()) else "fail"
        return ClassFigures(
            qos=str(name),
            storage=storage,
            response=response if is_open_loop else None,
            targets_ns=limits,
            verdict=verdict if known else "not measured",
            share_within_p95_target=int(self._within[code]) / found.count if found.count else None,
        )


RETRIES = "retries"
BATCH_ROWS = 1 << 14
"""Rows of the trace that are looked at together, at most."""


def ops_batch(
    setting: Setting,
    extras: tuple[str, ...],
    batch: pa.RecordBatch,
    first_row: int,
    part: RunPart,
    asked: Any,
) -> pa.RecordBatch:
    """Return rows of `ops`.

    The trace's rows of `batch`, from `first_row` on, with what was measured, else null.

    `part` has those of them that were planned, alone; `asked` the bytes that each of these asked of
    its tier. The table has the extra columns `extras`.
    """
    count, rows, at = batch.num_rows, part.rows, part.rows["trace_row"] - first_row

    def spread(values: Any, none: int, kind: Any = np.int64) -> Any:
        if len(rows) == count:
            return values.astype(kind)
        column = np.full(count, none, kind)
        column[at] = values
        return column

    engines = [enum_code(OPS, "engine", "none" if t is None else t.engine) for t in setting.tiers]
    moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])
    is_moved = (rows["outcome"] == OK) & moves[rows["tier"]]
    # A delete moves no bytes: 0 is what was measured.
    moved = np.where(is_moved, np.where(rows["op"] == DELETE, 0, rows["length_bytes"]), NONE)
    columns = {
        **dict(zip(batch.schema.names, batch.columns, strict=True)),
        "row": np.arange(first_row, first_row + count),
        "scheduled_ns": spread(rows["due_ns"], NONE),
        "submitted_ns": spread(rows["submitted_ns"], NONE),
        "completed_ns": spread(rows["completed_ns"], NONE),
        "bytes": spread(moved, NONE),
        "io_bytes": spread(np.where(is_moved, asked, NONE), NONE),
        "outcome": spread(rows["outcome"], SKIPPED, np.int8),
        "engine": spread(
            np.array(engines)[rows["tier"]], enum_code(OPS, "engine", "none"), np.int8
        ),
        RETRIES: spread(rows["retries"], 0, np.int32),
    }
    return batch_of(OPS, columns, extras)


class TraceRows:
    """Reads a trace forward."""

    def __init__(self, reader: Reader, columns: Sequence[str]) -> None:
        """Begin with the first row."""
        self.row = 0
        """The next one."""
        self._batches = iter(reader.batches(columns))
        self._rest: pa.RecordBatch | None = None

    def up_to(self, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows before `row`.

        `row` has come to the first of a batch when it is yielded, beyond it later.
        """
        while self.row < row:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return
            batch = self._rest.slice(0, min(row - self.row, BATCH_ROWS))
            self._rest = self._rest.slice(batch.num_rows)
            yield batch
            self.row += batch.num_rows

    def close(self) -> None:
        """Read no more."""
        if hasattr(self._batches, "close"):
            self._batches.close()


class LeastLater:
    """The least request id that may still follow in a trace: all smaller ones are complete."""

    def __init__(self, reader: Reader, rows: int) -> None:
        """Look through the first `rows` rows of the trace, or of what is repeated."""
        self._rows, self._step = 0, 0
        if isinstance(reader, Repeated):
            rows, self._rows, self._step, reader = (
                reader.rows,
                reader.rows,
                reader.requests,
                reader.once,
            )
        starts, least, at = list[int](), list[int](), 0
        for batch in reader.batches(("request_id",)):
            ids = numbers(batch.column("request_id"))
            starts.append(at)
            least.append(int(ids.min(where=ids >= 0, initial=np.iinfo(np.int64).max)))
            at += batch.num_rows
            if at >= rows:
                break
        self._starts = np.array(starts, np.int64)
        # Of each batch and all that come after it; after the last, the next repeat's.
        self._least = np.minimum.accumulate(np.array(least[::-1], np.int64))[::-1]

    def after(self, row: int) -> int:
        """Return the least request of the rows from `row` on."""
        repeat = row // self._rows if self._rows else 0
        batch = int(np.searchsorted(self._starts, row - repeat * self._rows, side="right")) - 1
        least = int(self._least[batch])
        return (min(least, self._step) if self._rows else least) + repeat * self._step
