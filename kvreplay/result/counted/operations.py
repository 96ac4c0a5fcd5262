"""The operations of a run, counted: by kind and place, as a whole, by second, and in the order of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kvreplay.plan.plan import Plan
from kvreplay.result.counted.count import (
    CLOSED_TIMES,
    LATENESS,
    MOST,
    OPEN_TIMES,
    OPS,
    RESPONSE,
    count_rows,
    empty_kinds,
    empty_run,
)
from kvreplay.result.counted.order import InOrder
from kvreplay.result.counted.seconds import Seconds
from kvreplay.result.counted.times import EXACT_VALUES, Times
from kvreplay.result.part import RunPart
from kvreplay.tiers.sharded import SeveralDrives
from kvreplay.tiers.tier import Tier, copied, has_times
from kvtrace.core.compiled import compile_announced
from kvtrace.core.run.figures import Distribution


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

    def of(self, plan: Plan) -> Any:
        """Return int64 a row of `plan`: its place."""
        place = self.starts[plan.tier]
        for index, tier in self._sharded:
            here = plan.tier == index
            place[here] += tier.drive_of[plan.object_id[here]]
        return place

    def within(self, tier: int, drive: int | None = None) -> range:
        """Return the places of a tier, or that of one of its drives."""
        start = int(self.starts[tier])
        return range(start, int(self.starts[tier + 1])) if drive is None else range(start + drive, start + drive + 1)


class CountedOperations:
    """What has been counted of the operations that were taken."""

    def __init__(self, tiers: Sequence[Tier | None], *, is_open_loop: bool, io_bytes: int) -> None:
        """Count operations on `tiers`, whose I/Os are up to `io_bytes` long."""
        self.tiers, self.is_open_loop, self._io_bytes = tiers, is_open_loop, io_bytes
        self.places = OperationPlaces(tiers)
        self._paddings = np.array([1 if t is None else t.alignment for t in tiers], np.int64)
        self.moves = np.array([t is not None and not t.is_simulated for t in tiers])
        count = len(self.places) * OPS
        self.kinds, self.run = empty_kinds(count), empty_run()
        self._each = OPEN_TIMES if is_open_loop else CLOSED_TIMES
        used = sum(len(drives) for drives, tier in zip(self.places.drives, tiers, strict=True) if tier is not None)
        limit = EXACT_VALUES // max(1, used * OPS * self._each + 1)
        # The last is that of operations that were submitted, but did not complete well.
        self.times = Times(count * self._each + 1, limit)
        self.seconds = Seconds(count)
        tier_of = np.repeat(self.places.tier_of, OPS)
        is_shared = np.array([len(drives) > 1 for drives in self.places.drives])
        groups_of = np.where(is_shared[tier_of], tier_of * OPS + np.tile(np.arange(OPS), len(self.places)), -1)
        has_levels = np.array([t is not None and has_times(t) and copied(t) is None for t in tiers])
        self.order = InOrder(tier_of, groups_of, has_levels, is_open=is_open_loop)

    def take(self, part: RunPart, counts: Any) -> Any:
        """Count the rows of `part`, in figures those where `counts`; return the bytes that each asks of its tier."""
        plan, record = part.plan, part.record
        asked = np.empty(len(part), np.int64)
        self.times.reserve(len(part))
        self.seconds.make_room(max(int(record.completed_ns.max(initial=0)), int(record.submitted_ns.max(initial=0))))
        place, at = self.places.of(plan), 0
        nothing = np.zeros(1, np.int64)
        due = nothing if part.due_ns is None else part.due_ns
        ready = due if record.ready_ns is None else record.ready_ns
        with compile_announced():
            while at < len(part):
                at = count_rows(
                    at, int(self.is_open_loop), self._io_bytes, plan.row, plan.op, plan.tier, place, plan.offset,
                    plan.length, record.submitted_ns, record.completed_ns, record.outcome, ready, due, counts,
                    self._paddings, self.moves, self.kinds, self.run, self.times.records, self.seconds.records,
                    self.order.flights, self.order.fill, self.seconds.ended, self.seconds.fill, asked,
                )  # fmt: skip
                self._flush()
        self.times.release()
        return asked

    def _flush(self) -> None:
        if self.order.fill[0] == len(self.order.flights):
            self.order.flush()
        if self.seconds.fill[0] == len(self.seconds.ended):
            self.seconds.flush()

    def end(self) -> None:
        """Look at what still waits: no row will follow."""
        self.order.flush(is_last=True)
        self.seconds.flush(is_last=True)

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

    def all_of(self, what: int, *, is_whole: bool = False) -> Distribution:
        """Return the distribution `what` of all kinds, if it `is_whole` with what did not complete well."""
        found = list(range(what, len(self.kinds) * self._each, self._each))
        return self.times.distribution(*found, *([len(self.kinds) * self._each] if is_whole else []))

    @property
    def lateness(self) -> Distribution:
        """That of all operations that were submitted."""
        return self.all_of(LATENESS, is_whole=True)

    @property
    def response(self) -> Distribution:
        """That of all operations that completed well."""
        return self.all_of(RESPONSE)

    @property
    def response_ns(self) -> int:
        """Response times added up."""
        return self.times.total(*range(RESPONSE, len(self.kinds) * self._each, self._each))
