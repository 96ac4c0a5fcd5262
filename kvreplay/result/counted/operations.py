"""The operations of a run, counted: by kind and place, as a whole, by second, and in the order of time."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvreplay.native.rows import COUNTED, NONE, NOT_DONE
from kvreplay.result.counted.times import EXACT_VALUES, Times, call
from kvreplay.result.part import RunPart
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Tier, copied, has_times
from kvtrace.core.native.structs import Structure, address
from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_S

OPS = 3
"""Kinds of operations: read, write, delete."""
SERVICE, PER_MIB, RESPONSE, LATENESS = range(4)
"""The distributions of a kind; the last two in an open loop alone."""
CLOSED_TIMES, OPEN_TIMES = 2, 4
MOST = np.iinfo(np.int64).max
WAITING = 1 << 17
"""Operations that may wait: one that comes more than half of this behind one that was submitted after it comes late."""
MOST_LEVELS = 200_000
"""Operations of a tier, those submitted first, whose service times are set against what was in flight."""
MOST_WAITS = 1 << 17
ENDED_WAITING = 1 << 16
"""Service times that are looked at together: a second is over once so many have come and none was of it."""
SIZES, COARSE_BITS = 18, 8
COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
"""Classes of lengths, a factor of two each, and the slots of their histograms, at most 0.4 % of their value wide."""
LATE_NS = 1_000_000
LATE_TIMES = 2
"""A response is on time up to LATE_NS more than so many times what its kind and length takes unhindered. Lengths of one
class differ by a factor of two, and so may what they take."""
QUICK_PERCENT = 5
"""Of service times: the quickest, which a queue that grows has not lengthened yet."""
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
        self._sharded = [(i, tier) for i, tier in enumerate(tiers) if isinstance(tier, SeveralDrives)]

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
        return range(start, int(self.starts[tier + 1])) if drive is None else range(start + drive, start + drive + 1)


class InOrder:
    """Operations that completed well, in the order of their submission.

    They come in the order of their rows, and wait here until so many others have come that hardly one can follow that
    was submitted before them.
    """

    def __init__(self, tier_of: Any, groups_of: Any, has_levels: Any, *, is_open: bool) -> None:
        """Look at operations of kinds whose tiers are `tier_of`.

        `groups_of` says what else each kind is counted with, -1 for nothing; `has_levels`, by tier, of which levels are
        asked; waiting before submission is followed if it `is_open`.
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
        """Look at all that wait: none will follow."""
        call("order_flush", self.shared, 1)

    def most_at_once(self, at: int) -> int | None:
        """Return how many of kind `at` were in flight at once; null if some came too late to tell."""
        return None if self.shared["late"] else int(self._heaps["most"][at])

    def most_of_group(self, group: int) -> int | None:
        """Return the same of all kinds of a group."""
        return self.most_at_once(self._kinds + group)

    def covered_ns(self, tier: int) -> int:
        """Return how much time operations of `tier` covered together."""
        return int(self._covered["covered_ns"][tier])

    @property
    def waited_ns(self) -> int:
        """Time in which at least one operation that could have gone was not submitted.

        What is further back than the last 65,536 gaps between such times is not added to any more.
        """
        return int(self.shared["waited_ns"])

    def levels(self, tier: int) -> Any:
        """Return LEVEL of the first operations of `tier` that moved anything."""
        return self._levels[tier][: self._covered["levels"][tier]]


class Seconds:
    """A SECOND record for each second and kind; all but the p99 are counted as rows come, in whatever order.

    A p99 is of the service times that came until its second was over; of rows that come later it knows nothing.
    """

    def __init__(self, kinds: int) -> None:
        """Count operations of so many kinds."""
        self._kinds = kinds
        self.records, self.ended = np.zeros(0, SECOND), np.empty(ENDED_WAITING, ENDED)
        self._open: dict[int, list[Any]] = {}
        """By index: service times of seconds that are not over."""

    def make_room(self, last_ns: int) -> None:
        """Make room for times up to `last_ns`."""
        wanted = (last_ns // NS_PER_S + 1) * self._kinds
        if wanted > len(self.records):
            more = np.zeros(max(wanted, 2 * len(self.records)) - len(self.records), SECOND)
            more["p99_ns"] = NOT_DONE
            self.records = np.concatenate([self.records, more])

    def sort(self, count: int, *, is_last: bool = False) -> None:
        """Sort the first `count` of `ended` into their seconds; note the p99 of those that are over, or of all."""
        ended, seen = self.ended[:count], set[int]()
        if count:
            key = np.ascontiguousarray(ended["key"])
            first = int(key.min())
            # 16 bits are sorted in no time.
            small = (key - first).astype(np.uint16) if int(key.max()) - first < _RADIX else key
            order = np.argsort(small, kind="stable")
            found, starts = np.unique(key[order], return_index=True)
            seen = set((found // self._kinds).tolist())
            for at, latency in zip(found.tolist(), np.split(ended["latency_ns"][order], starts[1:]), strict=True):
                self._open.setdefault(at, []).append(latency.copy())
        for at in list(self._open):
            if is_last or at // self._kinds not in seen:
                self._close(at, np.concatenate(self._open.pop(at)))

    def _close(self, at: int, latency: Any) -> None:
        rank = nearest_rank(len(latency), _P99)
        if rank is not None and self.records["p99_ns"][at] == NOT_DONE:
            latency.partition(rank - 1)
            self.records["p99_ns"][at] = latency[rank - 1]

    def found(self) -> tuple[Any, Any, Any]:
        """Return the seconds that have anything, the kinds, and their records, in this order."""
        at = np.flatnonzero(self.records["operations"] + self.records["errors"])
        return at // self._kinds, at % self._kinds, self.records[at]


class CountedOperations:
    """What has been counted of the operations that were taken."""

    def __init__(self, tiers: Sequence[Tier | None], *, is_open_loop: bool, io_bytes: int) -> None:
        """Count operations on `tiers`, whose I/Os are up to `io_bytes` long."""
        self.tiers, self.is_open_loop = tiers, is_open_loop
        self.places = OperationPlaces(tiers)
        self.moves = np.array([t is not None and not t.is_simulated for t in tiers])
        count = len(self.places) * OPS
        self.kinds, self.run = np.zeros(count, KIND), np.zeros(1, RUN)
        self.kinds["first_ns"] = self.kinds["first_due_ns"] = self.run["first_row"] = self.run["from_ns"] = MOST
        self.kinds["last_ns"] = self.kinds["last_due_ns"] = NOT_DONE
        self.run["last_sent_row"] = self.run["last_completed_ns"] = NOT_DONE
        self._each = OPEN_TIMES if is_open_loop else CLOSED_TIMES
        used = sum(len(drives) for drives, tier in zip(self.places.drives, tiers, strict=True) if tier is not None)
        limit = EXACT_VALUES // max(1, used * OPS * self._each + 1)
        # The last is that of operations that were submitted, but did not complete well.
        self.times = Times(count * self._each + 1, limit)
        self.seconds = Seconds(count)
        tier_of = np.repeat(self.places.tier_of, OPS)
        is_shared = np.array([len(drives) > 1 for drives in self.places.drives])
        groups_of = np.where(is_shared[tier_of], tier_of * OPS + np.tile(np.arange(OPS), len(self.places)), -1)
        is_timed = np.array([t is not None and has_times(t) for t in tiers])
        has_levels = is_timed & np.array([t is not None and not copied(t) for t in tiers])
        self.order = InOrder(tier_of, groups_of, has_levels, is_open=is_open_loop)
        self._sized = np.zeros((count, SIZES, 2, COARSE_SLOTS), np.int64) if is_open_loop else None
        self._shared = Structure(
            COUNTED,
            "Counting",
            padding_bytes=np.array([1 if t is None else t.alignment for t in tiers], np.int64),
            first_place=self.places.starts.astype(np.int64),
            moves=self.moves,
            # Of operations that take no time, figures have none; an open loop asks what all of them waited.
            is_timed=is_timed | is_open_loop,
            kind=self.kinds,
            run=self.run,
            times=self.times.records,
            ended=self.seconds.ended,
            ended_room=len(self.seconds.ended),
            order=self.order.shared,
            sized=0 if self._sized is None else self._sized,
            kinds=count,
            each=self._each,
            io_bytes=io_bytes,
            is_open_loop=is_open_loop,
        )

    def take(self, part: RunPart, counts: Any) -> Any:
        """Count the rows of `part`, in figures those where `counts`; return the bytes that each asks of its tier."""
        rows, asked = part.rows, np.empty(len(part), np.int64)
        self.seconds.make_room(int(max(rows["completed_ns"].max(initial=0), rows["submitted_ns"].max(initial=0))))
        self._shared.set(second=self.seconds.records)
        place, at = self.places.of(rows), 0
        while at < len(part):
            at = call("count_rows", self._shared, rows, at, len(part), place, counts, asked)
            if self._shared["endeds"] == self._shared["ended_room"]:
                self._sort()
        return asked

    def _sort(self, *, is_last: bool = False) -> None:
        self.seconds.sort(self._shared["endeds"], is_last=is_last)
        self._shared.set(endeds=0)

    def end(self) -> None:
        """Look at what still waits: no row will follow."""
        self.order.end()
        self._sort(is_last=True)

    def at(self, tier: int, op: int | None = None, drive: int | None = None) -> list[int]:
        """Return the indices of kinds: of a tier or a drive of it, of one operation or all."""
        ops = range(OPS) if op is None else (op,)
        return [place * OPS + code for place in self.places.within(tier, drive) for code in ops]

    def total(self, name: str, at: Sequence[int] | None = None) -> int:
        """Return the field `name` of the kinds `at` added up, of all if there is none named."""
        return int((self.kinds[name] if at is None else self.kinds[name][list(at)]).sum())

    def span(self, at: Sequence[int]) -> tuple[int, int] | None:
        """Return the first submission and the last completion of the kinds `at`; None if nothing completed well."""
        found = self.kinds[list(at)]
        first_ns = int(found["first_ns"].min())
        return None if first_ns == MOST else (first_ns, int(found["last_ns"].max()))

    def distribution(self, what: int, at: Sequence[int]) -> Distribution:
        """Return the distribution `what` of the kinds `at`."""
        return self.times.distribution(*(kind * self._each + what for kind in at))

    def count(self, what: int, at: Sequence[int]) -> int:
        """Return how many values the distribution `what` of the kinds `at` has."""
        return self.times.count(*(kind * self._each + what for kind in at))

    def quick(self, what: int, percent: int, at: Sequence[int]) -> float:
        """Return a low percentile of the distribution `what` of the kinds `at`."""
        return self.times.quick(percent, *(kind * self._each + what for kind in at))

    def sum_of(self, what: int, at: Sequence[int]) -> int:
        """Return the values of the distribution `what` of the kinds `at` added up."""
        return self.times.total(*(kind * self._each + what for kind in at))

    def all_of(self, what: int, *, is_whole: bool = False) -> Distribution:
        """Return the distribution `what` of all kinds, if it `is_whole` with what did not complete well."""
        found = list(range(what, len(self.kinds) * self._each, self._each))
        return self.times.distribution(*found, *([len(self.kinds) * self._each] if is_whole else []))

    def late(self, at: Sequence[int] | None = None) -> tuple[float, float]:
        """Return how many operations of the kinds `at`, or of all, were late by their response times.

        And what all of them would have taken unhindered, added up: each as one of the quickest of its tier, operation
        and class of length. Both are as exact as the slots of a coarse histogram, in which limits lie between edges.
        """
        late = unhindered_ns = 0.0
        if self._sized is None:
            return late, unhindered_ns
        together: dict[tuple[int, int], list[int]] = {}
        for kind in range(len(self.kinds)) if at is None else at:
            if self.kinds["good"][kind]:
                together.setdefault((int(self.places.tier_of[kind // OPS]), kind % OPS), []).append(kind)
        for of in together.values():
            for sized in self._sized[of].sum(axis=0) if len(of) > 1 else self._sized[of[0]]:
                count = int(sized[0].sum())
                if count:
                    usual_ns = _value_at(sized[0], (count - 1) * QUICK_PERCENT // 100)
                    unhindered_ns += count * usual_ns
                    late += _above(sized[1], LATE_NS + LATE_TIMES * usual_ns)
        return late, unhindered_ns

    @property
    def lateness(self) -> Distribution:
        """That of all operations that were submitted."""
        return self.all_of(LATENESS, is_whole=True)

    @property
    def response(self) -> Distribution:
        """That of all operations that completed well."""
        return self.all_of(RESPONSE)


def _edge(slot: int) -> float:
    """Return the least value of a coarse slot."""
    if slot < 2 << COARSE_BITS:
        return float(slot)
    shift = (slot >> COARSE_BITS) - 1
    return float((slot - (shift << COARSE_BITS)) << shift)


def _value_at(slots: Any, rank: int) -> float:
    """Return the middle of the slot that holds the value of `rank`, from 0."""
    slot = int(np.searchsorted(np.cumsum(slots), rank + 1))
    return (_edge(slot) + _edge(slot + 1)) / 2


def _above(slots: Any, limit: float) -> float:
    """Return how many values exceed `limit`; of the slot in which it lies, the part above it."""
    found = np.flatnonzero(slots)
    edges = [(_edge(slot), _edge(slot + 1)) for slot in found.tolist()]
    parts = [min(1.0, max(0.0, (high - limit) / (high - low))) for low, high in edges]
    return float(np.dot(slots[found], parts))
