"""What each tier must do for a load: bytes and operations by the second of virtual time, and what that wears."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.statistics import SECONDS_PER_DAY, Endurance, nearest_rank
from kvtrace.core.units import NS_PER_S
from kvtrace.sim.simulation import Flush, Simulation

_P99 = 9900
_count = function("count_by_second", I8, I1, I1, I1, I8, int, I8, int)


@dataclass(frozen=True, slots=True)
class SecondRate:
    """A rate over the whole load, and in the second that only a hundredth of all seconds exceed."""

    mean: float
    p99_second: float | None
    """Null where fewer than a hundred seconds, or samples of the objects, do not tell."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What one tier does a second; an operation is one object read or written. Null where no time passes."""

    read_bytes_per_s: SecondRate | None
    write_bytes_per_s: SecondRate | None
    reads_per_s: SecondRate | None
    writes_per_s: SecondRate | None


@dataclass(frozen=True, slots=True)
class TierDemand:
    """What one tier does for the whole load; rates leave out what was populated before the start."""

    name: str
    capacity_bytes: int | None
    hits: int
    hit_ratio: float | None
    read_bytes: int
    written_bytes: int
    deleted_bytes: int
    populated_bytes: int
    rates: Rates
    drive_writes_per_day: float | None
    """What is written a day at this rate over the drive's size; null if that is not known, or the tier is no drive."""
    life_years: float | None
    """At the endurance that was stated; null without one, if nothing is written, or if the tier is no drive."""
    instances: int = 1
    """How many of it there are in a fleet: figures are of all of them together, but for the capacity and the wear."""

    @property
    def total_bytes(self) -> int | None:
        """The capacity of all instances together; null without a bound."""
        return None if self.capacity_bytes is None else self.capacity_bytes * self.instances


class Meter:
    """A sink of a simulation that counts what each tier does in each second, and keeps nothing else."""

    def __init__(self, simulation: Simulation) -> None:
        """Count what `simulation` makes."""
        self._simulation = simulation
        self._tiers = len(simulation.preset.tiers)
        self._counts = np.zeros((64, self._tiers, 2, 2), np.int64)
        self._seconds = 0

    def __call__(self, flush: Flush) -> None:
        """Count the rows, and give their memory back."""
        self.count(flush)
        self._simulation.give_back(flush)

    def count(self, flush: Flush) -> None:
        """Count the rows."""
        rows = flush.rows
        if len(rows["ts_ns"]):
            self._room_for(int(rows["ts_ns"].max()) // NS_PER_S + 1)
            columns = (rows[name] for name in ("ts_ns", "op", "tier", "phase", "length_bytes"))
            _count(*columns, len(rows["ts_ns"]), self._counts.reshape(-1), self._tiers)

    def _room_for(self, seconds: int) -> None:
        self._seconds = max(self._seconds, seconds)
        if seconds > len(self._counts):
            more = np.zeros((max(seconds, 2 * len(self._counts)), *self._counts.shape[1:]), np.int64)
            more[: len(self._counts)] = self._counts
            self._counts = more

    def span_ns(self, asked_ns: int | None) -> int:
        """Return how long the load took: `asked_ns`, or until the last event, if that was later."""
        return max(asked_ns or 0, self._simulation.now_ns)

    def rates(self, span_ns: int) -> list[Rates]:
        """Return the rates of each tier over `span_ns`."""
        seconds = max(self._seconds, -(-span_ns // NS_PER_S))
        self._room_for(seconds)
        by_tier = self._counts[:seconds].transpose(1, 2, 3, 0)
        return [
            Rates(*(_rate(by_tier[t, way, what], span_ns / NS_PER_S) for what in (0, 1) for way in (0, 1)))
            for t in range(self._tiers)
        ]


def _rate(by_second: Any, span_s: float) -> SecondRate | None:
    if not span_s:
        return None
    rank = nearest_rank(len(by_second), _P99)
    return SecondRate(float(by_second.sum()) / span_s, None if rank is None else float(np.sort(by_second)[rank - 1]))


def tier_demand(
    stats: dict[str, Any],
    capacity_bytes: int | None,
    rates: Rates,
    endurance: Endurance | None,
    *,
    is_drive: bool,
    drive_bytes: int | None = None,
    instances: int = 1,
) -> TierDemand:
    """Return the demand on a tier with the counters `stats`, at `rates`; what is no drive does not wear.

    The drive is as large as the tier, unless its size is said; each instance of the tier has one.
    """
    worn_bytes = drive_bytes or capacity_bytes
    is_worn = is_drive and rates.write_bytes_per_s is not None
    per_day = None
    if is_worn and rates.write_bytes_per_s:
        per_day = rates.write_bytes_per_s.mean * SECONDS_PER_DAY / instances
    counted = ("hits", "hit_ratio", "read_bytes", "written_bytes", "deleted_bytes")
    return TierDemand(
        stats["name"],
        capacity_bytes,
        **{name: stats[name] for name in counted},
        populated_bytes=stats["populated_bytes"],
        rates=rates,
        drive_writes_per_day=per_day / worn_bytes if per_day is not None and worn_bytes else None,
        life_years=None if per_day is None or endurance is None else endurance.life_years(worn_bytes, per_day),
        instances=instances,
    )
