"""Which capacities of DRAM and NVMe a load needs: a grid of them, each simulated, all of it or samples of its objects.

The tiers of a hierarchy are no stack that one pass would serve at every capacity: which objects count as used in a tier
depends on what the faster ones hold, so that a larger tier may lack what a smaller one holds. So each point is a
simulation, the one that `gen` runs, with the same counters. Where all of them would take long, each is made of samples
of the objects, and the answer is then simulated in full.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from kvtrace.core.errors import ConfigError
from kvtrace.curves.points import Capacities, Point, Stack
from kvtrace.curves.sampling import SAMPLES
from kvtrace.sim.chains import Chains

EXACT_REFERENCES: Final = 20_000_000
"""Of all points together, up to which they are simulated in full: some seconds."""
_SAMPLED_REFERENCES = 5_000_000
"""Likewise, of all samples: some 2 s on two processors."""
_FEWEST_SAMPLED = 20_000
_MOST_THREADS = 8
_PARTS = 4
"""Of the step between two capacities, in the end."""
_ROUND_BYTES: Final = (10**9, 10**6, 10**3, 1)
# Of the default axes, as shares of the smallest power of two GB (of a small load MB or kB) that holds everything.
_SHARES = {"dram": (256, 32), "nvme": (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)}


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be reached; None for what was not asked."""

    hit_ratio: float | None = None
    first_token: tuple[str, int] | None = None
    """A quantile, as the counters name it, and the longest time to the first token, ns."""

    def is_met(self, point: Point, error: float = 0.0) -> bool:
        """Whether `point` reaches it, if its hit ratio is larger by `error`."""
        if self.hit_ratio is not None and point.hit_ratio + error < self.hit_ratio:
            return False
        if self.first_token is None:
            return True
        quantile, limit_ns = self.first_token
        found = None if point.first_token is None else point.first_token["with_cache"][quantile]
        return found is not None and found <= limit_ns


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a stack."""

    target: Target
    axes: dict[str, list[int | None]]
    """Capacities by role, of points.ROLES; for a role without, some that suit the load."""
    price: dict[str, float] | None = None
    """Of a byte, by role."""
    sample: float | None = None
    """The share of the objects in each sample, 1 is all; by default as many as take seconds."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer."""

    chosen: Point | None
    """The cheapest point that meets the target, or without prices the one with the least DRAM, and then the least NVMe;
    simulated in full. Null if none does."""
    ceiling: Point
    """Without a bound on DRAM and NVMe."""
    points: list[Point]
    """The grid."""
    labels: dict[str, str]
    """What is called dram and nvme here: DRAM, and NVMe or the name of an object store."""


def answer(stack: Stack, question: Question, done: Callable[[int, int], None] = lambda _done, _of: None) -> Sizing:
    """Return the sizing of `stack`; `done` is told how many simulations are over, and of how many."""
    absent = next((role for role in (*question.axes, *(question.price or ())) if role not in stack.roles), None)
    if absent is not None:
        names = ", ".join(tier.name for tier in stack.preset.tiers)
        raise ConfigError(f"--{absent}: the preset has no such tier, only {names}")
    run = _Run(stack.with_chains(), question, done)
    try:
        return run.answer()
    finally:
        run.pool.shutdown(wait=False, cancel_futures=True)


_Started = tuple[Future[Any], Future[Any]] | None
"""A simulation in full and its optimum; None for a point that was simulated so."""


class _Run:
    """The simulations of one question, several at a time: compiled code needs no interpreter."""

    def __init__(self, stack: Stack, question: Question, done: Callable[[int, int], None]) -> None:
        self.stack, self.question, self._tell = stack, question, done
        self.pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="size")
        self._asked = self._done = 0
        self._samples: list[Chains] = []

    def answer(self) -> Sizing:
        stack, chains = self.stack, self.stack.load.chains
        ceiling = self._start(stack.simulate, dict.fromkeys(stack.roles))
        most = ceiling.result().live_bytes if chains is None else len(chains.tokens) * stack.chunk_bytes
        axes = {role: self.question.axes.get(role) or self._axis(role, most) for role in stack.roles}
        grid = [dict(zip(axes, of, strict=True)) for of in itertools.product(*axes.values())]
        rate = self._rate(len(grid))
        points = self._points(grid, rate, ceiling)
        if between := self._between(points, axes):
            points = sorted([*points, *self._points(between, rate, ceiling)], key=lambda of: _sizes(of.capacities))
        best = self._result(ceiling)
        if not best.lookups:
            raise ConfigError(
                "no request looks anything up: none could find what another has left, whatever the capacity"
            )
        return Sizing(self._choose(points), best, points, self.stack.labels)

    def _points(self, grid: Sequence[Capacities], rate: float, ceiling: Future[Any]) -> list[Point]:
        """Return each point of `grid`, simulated in full or of samples of a share `rate` of the objects."""
        points = self._estimates(grid, rate, ceiling) if rate < 1 else self._simulated(grid)
        return [self._priced(of) for of in points]

    def _simulated(self, grid: Sequence[Capacities]) -> list[Point]:
        started = [self._start_point(of) for of in grid]
        return [self._of_full(*of) for of in started]

    def _start_point(self, capacities: Capacities) -> tuple[Future[Any], Future[Any]]:
        return self._start(self.stack.simulate, capacities), self._start(self.stack.optimum, capacities)

    def _of_full(self, point: Future[Any], optimum: Future[Any]) -> Point:
        return replace(self._result(point), optimal_hit_ratio=self._result(optimum))

    def _between(self, points: Sequence[Point], axes: dict[str, list[int | None]]) -> list[Capacities]:
        """Return points between what seems the answer and its smaller neighbour, along an axis of our choice."""
        *_, role = axes
        likely = next((of for of in sorted(points, key=_preference) if self._may_meet(of)), None)
        if role in self.question.axes or likely is None:
            return []
        at = axes[role].index(likely.capacities[role])
        low, high = axes[role][at - 1] if at else None, likely.capacities[role]
        if low is None or high is None:
            return []
        return [likely.capacities | {role: low + (high - low) * part // _PARTS} for part in range(1, _PARTS)]

    def _may_meet(self, point: Point) -> bool:
        return self.question.target.is_met(point, point.hit_ratio_error)

    def _start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._asked += 1
        return self.pool.submit(function, *arguments)

    def _result(self, future: Future[Any]) -> Any:
        found = future.result()
        self._done += 1
        self._tell(self._done, self._asked)
        return found

    def _axis(self, role: str, most_bytes: int) -> list[int | None]:
        """Return capacities up to the smallest round one that holds `most_bytes`, or as near as makes sense."""
        stack = self.stack
        if stack.preset.tiers[stack.roles[role]].capacity_bytes == 0:
            # A tier that the preset is there to do without.
            return [0]
        of = _SHARES[role if len(stack.roles) > 1 else "nvme"]
        # The least capacity of an axis is a whole number of its unit, and so are the others.
        unit = next((unit for unit in _ROUND_BYTES if unit * _SHARES["nvme"][0] <= most_bytes), 1)
        top = unit << max(1, -(-most_bytes // unit) - 1).bit_length()
        return [max(1, top // share) for share in of]

    def _rate(self, points: int) -> float:
        """Return the share of the objects in each sample; 1 for no samples."""
        stack, asked = self.stack, self.question.sample
        if asked is not None and asked < 1 and not stack.can_sample:
            raise ConfigError(
                f"--sample {asked:g}: samples stand for all only of chunks that FILE names, in a model of full "
                "attention without store_queue, where computing and storage take no time (--gpu instant); leave it out"
            )
        if asked is not None or not stack.can_sample or stack.load.chains is None:
            return asked or 1.0
        references = len(stack.load.chains.slots)
        if references * points <= EXACT_REFERENCES:
            return 1.0
        rate = max(_SAMPLED_REFERENCES / (SAMPLES * points * references), _FEWEST_SAMPLED / references)
        return rate if rate * SAMPLES < 1 else 1.0

    def _estimates(self, grid: Sequence[Capacities], rate: float, ceiling: Future[Any]) -> list[Point]:
        """Return what samples of a share `rate` of the objects suggest for each point of `grid`."""
        stack = self.stack
        if not self._samples:
            made = [self._start(stack.sample, rate, seed) for seed in range(SAMPLES)]
            self._samples = [self._result(sample) for sample in made]
        wanted = [dict.fromkeys(stack.roles), *grid]
        started = [[self._start(stack.simulate_sample, of, sample, rate) for sample in self._samples] for of in wanted]
        found = [[self._result(of) for of in point] for point in started]
        full, (unlimited, *of_grid) = ceiling.result(), found
        return [stack.estimate(of, got, rate, full, unlimited) for of, got in zip(grid, of_grid, strict=True)]

    def _choose(self, points: Sequence[Point]) -> Point | None:
        """Return the first point, in order of preference, that meets the target when it is simulated in full."""
        left = [of for of in sorted(points, key=_preference) if self._may_meet(of)]
        started: list[_Started] = []
        for at, point in enumerate(left):
            # Where the estimate may be wrong, the next one is simulated beside it.
            is_sure = self.question.target.is_met(point, -point.hit_ratio_error)
            started += [
                None if later.sampling_rate == 1 else self._start_point(later.capacities)
                for later in left[len(started) : at + (1 if is_sure else 2)]
            ]
            begun = started[at]
            full = point if begun is None else self._priced(self._of_full(*begun))
            if self.question.target.is_met(full):
                return full
        return None

    def _priced(self, point: Point) -> Point:
        price, sizes = self.question.price, point.capacities
        if price is None or None in sizes.values():
            return point
        return replace(point, price=sum(price[role] * (of or 0) for role, of in sizes.items()))


def _sizes(capacities: Capacities) -> list[float]:
    """Return the capacities in order; none at all comes last."""
    return [float("inf") if of is None else float(of) for of in capacities.values()]


def _preference(point: Point) -> list[float]:
    """Return what is to be least: the price, then DRAM, then NVMe."""
    return [float("inf") if point.price is None else point.price, *_sizes(point.capacities)]
