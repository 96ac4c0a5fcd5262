"""Search for the DRAM and NVMe capacities that a load needs.

Each combination of capacities in a grid is simulated, with all objects or with samples of them.

A tier hierarchy is not a stack algorithm, so one pass cannot serve every capacity: the order of
use in a tier depends on the contents of the faster tiers, and a larger tier may lack an object that a
smaller one holds. Each point is therefore a simulation, the same as that of `gen`, with the same
counters. Samples of the objects replace full simulations where those would take long.

The search then starts from the best point of the grid and varies the capacities that are not
fixed by an option. It uses samples where they are reliable. The answer is always simulated in full.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, ParamSpec, TypeVar

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.simulation_stats import TimeToFirstToken, percentile_name
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.units import format_duration, parse_duration_ns, parse_share
from kvtrace.curves.points import ROLES, Capacities, Point, Sampled, Stack, Timed
from kvtrace.curves.stack import SAMPLES
from kvtrace.sim.baseline import slower_percentile
from kvtrace.sim.chains import Chains
from kvtrace.sim.service_level import ServiceLevel

P = ParamSpec("P")
R = TypeVar("R")
EXACT_REFERENCES: Final = 20_000_000
"""Largest number of references, over all grid points, that is simulated in full (seconds)."""
_USUAL_SAMPLED_REFERENCES = 5_000_000
"""References over all samples and grid points: about 2 s on two processors."""
_MAX_SAMPLED_REFERENCES = 12_000_000
"""Upper limit of the references, for samples below a share of _SAMPLED_SHARE."""
_SAMPLED_SHARE = 1 / 64
_MIN_SAMPLED_REFERENCES = 20_000
_MIN_SAMPLED_OBJECTS = 64
"""Smallest tier, in sampled objects, for which samples are reliable.

A smaller sampled tier passes less to the next tier than the full one does.
"""
_MAX_THREADS = 8
_TOLERANCE, _FINE_TOLERANCE = 1.02, 1.01
"""Largest ratio of the answer to the least capacity that reaches the target.

The fine tolerance applies to each of two capacities, where prices are given and lookups are fast.
"""
_SAMPLE_TOLERANCE = 1.008
"""Ratio at which a search by samples stops."""
_SAMPLE_ERROR = 1.04
"""Usual upper limit of the error of samples, or of a grid, as a ratio of capacities."""
_SIGNIFICANT_DIGITS = 3
"""Digits of a searched capacity, as it is printed."""
_HALVINGS = 14
"""Times that a search by price halves the capacity that holds everything."""
_SLOW_SHRINK, _SLOW_STEPS = 2**0.5, 8
"""How a search shrinks a tier whose loads are slower than computing: the ratio, and the steps."""
_SLOW_ROUNDS = 12
_SLOW_DOUBLINGS: Final = (1 / 32, 1 / 16, 3 / 32, 1 / 8)
"""Rounds of such a search, and how much less of the other tier each tries, in doublings."""
_MORE_DRAM: Final = (2, 4)
"""Multiples of the answer's DRAM at which its target must be reached, too."""
_GROWTHS: Final = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
"""Multiples of a capacity that are tried to reach the target."""
_STEPS_PER_HALVING = 12
"""Steps within each halving, for a small load."""
_ROUND_BYTES: Final = (10**9, 10**6, 10**3, 1)
# Divisors of the top of a default axis: the smallest power of two GB (for a small load MB or kB)
# that holds everything.
_AXIS_DIVISORS = {"dram": (256, 32), "nvme": (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)}


@dataclass(frozen=True, slots=True)
class Target:
    """The targets of a search; None for one that was not given."""

    hit_ratio: float | None = None
    first_token: tuple[str, int] | None = None
    """A quantile, as the counters name it, and the largest TTFT in ns."""
    service_level: ServiceLevel | None = None
    """The limits of TTFT and TPOT, and the share of requests that must be within them."""
    without_offload: TimeToFirstToken | None = None
    """TTFT without offload, which an answer must not exceed; None if it may be slower."""
    may_stall: bool = True
    """Whether requests that never start are accepted."""

    def relaxed(self) -> list[Target]:
        """Return this target, and looser ones to fall back to where nothing reaches it.

        An answer that is slower than computing is preferred to one at which requests never start.
        """
        slower = replace(self, without_offload=None)
        return list(dict.fromkeys([self, slower, replace(slower, may_stall=True)]))

    def fixed(self) -> Target:
        """Return the targets that no slider of a page moves: all but hit rate and p99 of TTFT."""
        is_moved = self.first_token is not None and self.first_token[0] == "p99_ns"
        return replace(self, hit_ratio=None, first_token=None if is_moved else self.first_token)

    def asked(self) -> dict[str, object]:
        """Return the targets that the user gave, as `--json` prints them."""
        level = None if self.service_level is None else self.service_level.to_dict()
        return {
            "hit_ratio": self.hit_ratio,
            "first_token": self.first_token,
            "service_level": level,
        }

    def is_met(self, figures: Timed, error: float = 0.0) -> bool:
        """Return whether `figures` reach the target, with `error` added to their hit rate."""
        if self.hit_ratio is not None and (figures.hit_ratio or 0.0) + error < self.hit_ratio:
            return False
        if not self.may_stall and figures.stalled_requests:
            return False
        if self.without_offload is not None and self._is_slower(figures, self.without_offload):
            return False
        if self.service_level is not None:
            share = figures.goodput_share
            if share is None or share < self.service_level.share:
                return False
        if self.first_token is None:
            return True
        quantile, limit_ns = self.first_token
        time_ns = figures.first_token_ns(quantile)
        return time_ns is not None and time_ns <= limit_ns

    @staticmethod
    def _is_slower(figures: Timed, baseline: TimeToFirstToken) -> bool:
        """Return whether `figures` have a longer TTFT or fewer requests than the `baseline`."""
        return (
            slower_percentile(
                figures.first_token_ns, figures.requests, baseline.with_cache, baseline.requests
            )
            is not None
        )

    @property
    def has_times(self) -> bool:
        """Tell whether a target is a time, so that computing has to take some."""
        return self.first_token is not None or self.service_level is not None

    def describe(self) -> str:
        """Return the target as text, such as "80 % and p99 2 s to the first token"."""
        clauses = [] if self.hit_ratio is None else [f"{100 * self.hit_ratio:g} %"]
        if self.first_token is not None:
            quantile, limit_ns = self.first_token
            name = percentile_name(quantile)
            clauses.append(f"{name} {format_duration(limit_ns)} to the first token")
        if (level := self.service_level) is not None:
            clauses.append(f"{100 * level.share:g} % of requests within {level.describe()}")
        return " and ".join(clauses)


def parse_target(
    hit: str | None, ttft: str | None, service_level: ServiceLevel | None = None
) -> Target | None:
    """Return the target of `target_hit`, `target_ttft` and a service level; None if none is given."""
    if hit is None and ttft is None and service_level is None:
        return None
    hit_ratio = None
    if hit is not None:
        hit_ratio = parse_share(hit, "target_hit")
        if not 0 < hit_ratio <= 1:
            hint = ""
            if 1 < hit_ratio <= 100 and "%" not in hit:  # noqa: PLR2004
                hint = f"; {hit_ratio:g} % is written {hit_ratio:g}%"
            raise ConfigError(
                f"{named('target_hit', hit)}: must be > 0, and at most 100%, which is 1{hint}"
            )
    if ttft is None:
        return Target(hit_ratio, service_level=service_level)
    quantile, separator, limit = (text.strip() for text in ttft.partition("="))
    name = quantile.replace(".", "_")
    if not separator or name not in QUANTILES:
        percentiles = ", ".join(percentile.replace("_", ".") for percentile in QUANTILES)
        raise ConfigError(
            f"{named('target_ttft', ttft)}: write for example p99=2s; percentiles are {percentiles}"
        )
    limit_ns = parse_duration_ns(limit)
    if not limit_ns:
        raise ConfigError(f"{named('target_ttft', ttft)}: must be > 0")
    return Target(hit_ratio, (f"{name}_ns", limit_ns), service_level)


@dataclass(frozen=True, slots=True)
class Question:
    """A sizing question: target, capacities to try, prices, sampling."""

    target: Target
    axes: dict[str, list[int | None]]
    """Capacities to try by role (points.ROLES); defaults suit the load where a role is absent."""
    price: dict[str, float] | None = None
    """Price of a byte, by role."""
    sample: float | None = None
    """Share of the objects in each sample, 1 for all; None for as many as take seconds."""


@dataclass(frozen=True, slots=True)
class Fragile:
    """An answer that misses the target with more DRAM."""

    point: Point
    """It reaches the target."""
    worse: Point
    """The same with more DRAM, and fewer hits than the target."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer: the chosen point, the ceiling and all points."""

    chosen: Point | None
    """The cheapest point that meets the target, simulated in full; None if none does.

    Without prices, the point with the least DRAM, and then the least NVMe.
    """
    ceiling: Point
    """The simulation with unlimited DRAM and NVMe."""
    points: list[Point]
    """The grid."""
    labels: dict[str, str]
    """Display names of the roles: DRAM, and NVMe or the name of an object store."""
    rejected: Point | None = None
    """The simulated point that would be preferred to `chosen`, but does not work.

    It reaches the target, but requests would never start, or computing is faster.
    """
    fragile: Fragile | None = None
    """A smaller answer that more DRAM would spoil; None if the answer is the smallest."""


def _ignore_progress(_done: int, _started: int) -> None:
    """Report nothing."""


def search_capacities(
    stack: Stack, question: Question, report: Callable[[int, int], None] = _ignore_progress
) -> Sizing:
    """Return the sizing of `stack`.

    `report` receives the numbers of finished and of started simulations.
    """
    roles = (*question.axes, *(question.price or ()))
    absent = next((role for role in roles if role not in stack.roles), None)
    if absent is not None:
        names = ", ".join(tier.name for tier in stack.preset.tiers)
        raise ConfigError(f"--{absent}: the preset has no such tier, only {names}")
    search = _Search(stack.with_chains(), question, report)
    try:
        return search.run()
    finally:
        search.pool.shutdown(wait=False, cancel_futures=True)


_Key = frozenset[tuple[str, int | None]]


def _key_of(capacities: Capacities) -> _Key:
    """Return the capacities as a key, whatever their order."""
    return frozenset(capacities.items())


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Samples of a share `rate` of the objects, and their figures at unlimited capacity."""

    rate: float
    samples: list[Chains]
    unlimited: list[Sampled]


@dataclass(slots=True)
class _Bracket:
    """The capacities between which a search for the least one goes on."""

    low_bytes: int
    """The largest capacity that misses the target; -1 if none is known."""
    high_bytes: int
    """The smallest capacity that reaches it."""
    smallest_bytes: int
    """Smallest capacity that is tried, except 0."""
    least_bytes: int
    """Nothing smaller than this can be an answer."""
    answer_tolerance: float
    tolerance: float
    """Ratio of the two at which the search stops."""
    shrink_ratio: float = 1.5
    last_step: float = math.inf
    """Ratio of the two when capacities around a crossing were tried last."""

    def next_sizes(self, crossing_share: float) -> list[int]:
        """Return the capacities to try next, the smallest first; none at the end of the search.

        `crossing_share` is the share of the way from the low to the high one, in the logarithm of
        the capacity, at which a line between their hit rates meets the target.
        """
        rounded = {_round_bytes(size) for size in self._targets(crossing_share)}
        return sorted(size for size in rounded if self.low_bytes < size < self.high_bytes)

    def sizes_around(self, size: int | None) -> list[int]:
        """Return `size` and one that is smaller by the tolerance; none if that tells nothing new.

        If the former reaches the target and the latter misses it, the search is over.
        """
        floor_bytes = max(self.low_bytes, self.least_bytes)
        if size is None or not floor_bytes < size < self.high_bytes:
            return []
        smaller = _round_up_bytes(size / self.tolerance)
        return [smaller, size] if self.low_bytes < smaller < size else [size]

    def _targets(self, crossing_share: float) -> tuple[float, ...]:
        low_bytes, high_bytes = self.low_bytes, self.high_bytes
        is_close = low_bytes >= 0 and high_bytes <= max(
            low_bytes * self.tolerance, self.smallest_bytes
        )
        if is_close or high_bytes <= self.least_bytes:
            return ()
        if low_bytes < 0:
            return (self.least_bytes,) if self.least_bytes else self._targets_below()
        step = high_bytes / max(low_bytes, self.smallest_bytes)
        # Where hits rise by a jump, a line does not tell where: then the ratio is cut in three.
        is_jump, self.last_step = step > self.last_step**0.5, step
        if step <= self.answer_tolerance**3:
            return (high_bytes / step**0.5,)
        if is_jump:
            self.last_step = math.inf
            return (high_bytes / step ** (2 / 3), high_bytes / step ** (1 / 3))
        crossing, margin = high_bytes / step ** (1 - crossing_share), self.answer_tolerance**0.5
        return (crossing / margin, crossing * margin)

    def _targets_below(self) -> tuple[float, ...]:
        """Return smaller capacities, of which none is known to miss the target."""
        if self.high_bytes <= self.smallest_bytes:
            return () if self.high_bytes == 0 else (0,)
        lower = self.high_bytes / self.shrink_ratio
        self.shrink_ratio = self.shrink_ratio**2
        return (lower if lower > self.smallest_bytes else 0, self.high_bytes / 1.06)


class _Search:
    """Run the simulations of one question on several threads; compiled code releases the GIL."""

    def __init__(
        self, stack: Stack, question: Question, report: Callable[[int, int], None]
    ) -> None:
        self.stack, self.question, self._report_progress = stack, question, report
        self.pool = ThreadPoolExecutor(
            min(_MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="size"
        )
        self._started_count = self._done_count = 0
        self._max_bytes = 0
        """Largest capacity that the search tries."""
        self._sampling: _Sampling | None = None
        self._has_slow_loads = False
        self._is_priced = question.price is not None
        """Whether a search by price follows, in which the tolerance is finer."""
        self._required_bytes = stack.largest_prompt_bytes
        """Smallest capacity of a tier that the engine needs."""
        self._min_sampled_bytes = 0.0
        """Smallest capacity of a tier for which samples are reliable."""
        self._full: dict[_Key, Point] = {}
        """Full simulations by their capacities, without prices."""
        self._estimates: dict[_Key, Point] = {}
        """Estimates by their capacities, without prices."""

    def run(self) -> Sizing:
        """Simulate the grid, search from its best point, and return the sizing."""
        stack, chains = self.stack, self.stack.load.chains
        self._ceiling = ceiling = self._start(stack.simulate, dict.fromkeys(stack.roles))
        if chains is None:
            # Without samples, every simulation knows its live bytes.
            total_bytes = ceiling.result().live_bytes or 0
        else:
            total_bytes = len(chains.tokens) * stack.chunk_bytes
        axes = {
            role: self.question.axes.get(role) or self._default_axis(role, total_bytes)
            for role in stack.roles
        }
        self._max_bytes = _round_bytes(2 * total_bytes)
        grid = [dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())]
        rate = self._choose_rate(len(grid))
        if rate < 1:
            # Before the sizes, for which the ceiling may have to be known.
            self._draw_samples(rate)
            axes = {role: self._useful_sizes(role, sizes) for role, sizes in axes.items()}
            grid = [
                dict(zip(axes, sizes, strict=True)) for sizes in itertools.product(*axes.values())
            ]
        optima = [
            None if self._can_estimate(capacities) else self._start(stack.optimum, capacities)
            for capacities in grid
        ]
        points = [
            point if optimum is None else replace(point, optimal_hit_ratio=self._wait_for(optimum))
            for point, optimum in zip(self._evaluate(grid), optima, strict=True)
        ]
        unlimited = self._wait_for(ceiling)
        if not unlimited.lookups:
            raise ConfigError(
                "no request looks up anything: no prompt fills an object, or repeats what is stored"
            )
        answers: list[tuple[Point, Fragile | None]] = []
        for target in self.question.target.relaxed():
            if not answers:
                self.question = replace(self.question, target=target)
                answers = self._search_from_grid(points, axes)
        chosen, fragile = min(
            answers, key=lambda answer: _preference(answer[0]), default=(None, None)
        )
        if chosen is not None:
            if chosen.optimal_hit_ratio is None:
                chosen = replace(chosen, optimal_hit_ratio=stack.optimum(chosen.capacities))
            if all(point.capacities != chosen.capacities for point in points):
                points = sorted([*points, chosen], key=lambda point: _sort_key(point.capacities))
        return Sizing(chosen, unlimited, points, self.stack.labels, self._rejected(chosen), fragile)

    def _make_robust(self, chosen: Point) -> tuple[Point, Fragile | None]:
        """Return an answer whose neighbours with more DRAM reach the target, too.

        A hierarchy may hit less with more DRAM, because the tier below sees other uses. The answer
        then gets as much of the tier below as its neighbours need. The second value says what was
        chosen before; None if that was robust, or if no capacity of the tier below is enough.
        """
        outer, inner = ROLES
        sizes = chosen.capacities
        outer_bytes, inner_bytes = sizes.get(outer), sizes.get(inner)
        if not outer_bytes or not inner_bytes or outer in self.question.axes:
            return chosen, None
        neighbours = [sizes | {outer: outer_bytes * factor} for factor in _MORE_DRAM]
        missing = [point for point in self._simulate(neighbours) if not self._is_met(point)]
        if not missing:
            return chosen, None
        worst = min(missing, key=lambda point: point.hit_ratio)
        fragile = Fragile(chosen, worst)
        if inner in self.question.axes:
            return chosen, fragile
        needed_bytes = inner_bytes
        for neighbour in missing:
            reached = self._grow(neighbour, inner)
            if reached is None:
                return chosen, fragile
            least = self._minimize(reached, inner, self._simulate, below=neighbour)
            needed_bytes = max(needed_bytes, least.capacities[inner] or 0)
        for growth in _GROWTHS:
            size = min(self._max_bytes, _round_bytes(needed_bytes * growth))
            points = self._simulate([wanted | {inner: size} for wanted in (sizes, *neighbours)])
            if all(self._is_met(point) for point in points):
                return points[0], fragile
        return chosen, fragile

    def _grow(self, point: Point, inner: str) -> Point | None:
        """Return `point` with as much more `inner` as reaches the target; None if nothing does."""
        inner_bytes = point.capacities[inner] or 0
        for growth in _GROWTHS:
            size = min(self._max_bytes, _round_bytes(inner_bytes * growth))
            [larger] = self._simulate([point.capacities | {inner: size}])
            if self._is_met(larger):
                return larger
        return None

    def _is_met(self, point: Point, error: float = 0.0) -> bool:
        """Return whether `point` reaches the target, with `error` added to its hit rate."""
        target = self.question.target
        is_stall_counted = target.may_stall or point.stalled_requests is not None
        return target.is_met(point, error) and self._holds_least(
            point.capacities, is_stall_counted=is_stall_counted
        )

    def _can_be_answer(self, capacities: Capacities) -> bool:
        """Return whether a point with these capacities can be an answer, whatever its hit rate."""
        is_stall_counted = self.question.target.may_stall or not self._can_estimate(capacities)
        return self._holds_least(capacities, is_stall_counted=is_stall_counted)

    def _holds_least(self, capacities: Capacities, *, is_stall_counted: bool) -> bool:
        """Return whether each of `capacities` is at least `_least_bytes`."""
        return all(
            size is None
            or size >= self._least_bytes(capacities, role, is_stall_counted=is_stall_counted)
            for role, size in capacities.items()
        )

    def _least_bytes(
        self, capacities: Capacities, role: str, *, is_stall_counted: bool = True
    ) -> int:
        """Return the least capacity of `role` with which `capacities` can be an answer.

        It is what the engine needs to run, unless everything below is off. Where stalled requests
        are not counted, as in samples, a tier that holds a whole load must hold the largest:
        requests may never start otherwise.
        """
        tiers, roles = self.stack.preset.tiers, self.stack.roles
        tier, least_bytes = tiers[roles[role]], 0
        has_tier_below = any(
            size != 0 for other, size in capacities.items() if roles[other] > roles[role]
        )
        if has_tier_below and tier.is_required:
            least_bytes = self._required_bytes
        if has_tier_below and tier.loads_whole and not is_stall_counted:
            least_bytes = max(least_bytes, self._ceiling.result().largest_load_bytes)
        # A capacity is of stored bytes; what runs or loads is whole.
        return math.ceil(least_bytes * tier.stored_share)

    def _rejected(self, chosen: Point | None) -> Point | None:
        """Return the simulated point that would be preferred to `chosen`, but does not work.

        It reaches the target, but requests would never start, or computing is faster. None if
        there is none, or if nothing that works reaches the target.
        """
        target = self.question.target
        if chosen is None or target.may_stall:
            return None
        asked = target.relaxed()[-1]
        rejected = [
            point
            for point in map(self._with_price, self._full.values())
            if asked.is_met(point)
            and not self._is_met(point)
            and _preference(point) < _preference(chosen)
        ]
        return min(rejected, key=_preference, default=None)

    def _draw_samples(self, rate: float) -> None:
        """Draw the samples, each a share `rate` of the objects, and simulate them without limit."""
        stack = self.stack
        drawn = [self._start(stack.sample, rate, seed) for seed in range(SAMPLES)]
        samples = [self._wait_for(future) for future in drawn]
        unlimited = [
            self._start(stack.simulate_sample, dict.fromkeys(stack.roles), sample, rate)
            for sample in samples
        ]
        self._sampling = _Sampling(rate, samples, [self._wait_for(future) for future in unlimited])
        self._min_sampled_bytes = _MIN_SAMPLED_OBJECTS * stack.chunk_bytes / rate

    def _search_from_grid(
        self, points: list[Point], axes: dict[str, list[int | None]]
    ) -> list[tuple[Point, Fragile | None]]:
        """Return robust answers (see `_make_robust`), of which the best is chosen.

        With prices, the search without prices comes first, so that a priced answer is never dearer
        than it: both searches are local. Only what seems to cost less is tried then.
        """
        question = self.question
        self.question = replace(question, price=None)
        found = self._search_for_capacities([self._with_price(point) for point in points], axes)
        answers = [] if found is None else [self._make_robust(found)]
        self.question = question
        if found is None or question.price is None:
            return answers
        answers = [self._robust_with_price(*answer) for answer in answers]
        cheapest = self._search_for_price(self._with_price(found), points, axes)
        if cheapest is not None and cheapest.capacities != found.capacities:
            answers.append(self._make_robust(cheapest))
        return answers

    def _robust_with_price(
        self, point: Point, fragile: Fragile | None
    ) -> tuple[Point, Fragile | None]:
        """Return an answer of `_make_robust` with its prices."""
        if fragile is not None:
            points = map(self._with_price, (fragile.point, fragile.worse))
            fragile = Fragile(*points)
        return self._with_price(point), fragile

    def _search_for_capacities(
        self, points: list[Point], axes: dict[str, list[int | None]]
    ) -> Point | None:
        """Return the best point without prices that reaches the target, simulated in full.

        The search minimizes the first capacity that was not given at the grid's best point, and
        then the last. None if no point reaches the target.
        """
        free, points = self._free_roles(axes), self._with_largest(points, axes)
        if not free:
            return self._choose(points)
        best = self._starting_point(points, free[0]) or self._choose(points)
        if best is None:
            return None
        if len(free) == len(axes):
            without_tiers = self._try_no_capacity(axes)
            if without_tiers is not None:
                return without_tiers
        start, inner = best, free[-1]
        if free[0] == "dram":
            best = start = self._minimize(best, free[0], self._evaluate)
            if inner != free[0]:
                best = start = self._minimize_beside_most(best, free[0], inner)
        return self._finish(best, start, inner, free, points)

    def _minimize_beside_most(self, best: Point, outer: str, inner: str) -> Point:
        """Return the point with the least `outer`, beside the most `inner` if that needs less.

        A grid's first point that reaches the target has as little `inner` as will do there. With
        more of it, less `outer` may do, but hardly less than one whole load.
        """
        if (best.capacities[outer] or 0) <= (self._unstalled_bytes(outer) or 0):
            return best
        [most] = self._evaluate([best.capacities | {inner: self._max_bytes}])
        if not self._is_met(most):
            return best
        least = self._minimize(most, outer, self._evaluate)
        least_bytes, best_bytes = least.capacities[outer] or 0, best.capacities[outer] or 0
        return least if least_bytes * self._tolerance < best_bytes else best

    def _search_for_price(
        self, answer: Point, points: list[Point], axes: dict[str, list[int | None]]
    ) -> Point | None:
        """Return a point that seems cheaper than `answer`, simulated in full; None without one.

        The search varies the last capacity that was not given, and the other capacity unless that
        was given: in steps of 2, then finer around the best.
        """
        free, points = self._free_roles(axes), self._with_largest(points, axes)
        outer = next((role for role in axes if role != free[-1]), None) if free else None
        if not free or not any(answer.capacities.values()):
            return self._choose(points)
        start = self._starting_point(points, free[0])
        best = start = min(filter(None, (answer, start)), key=_preference)
        inner = free[-1]
        if outer is not None:
            listed = [size for size in axes[outer] if size is not None]
            best = self._minimize_price(best, outer, inner, listed, is_free=outer in free)
        if best is answer:
            # The tolerance of a priced answer is finer.
            missing = self._largest_missing(answer, inner)
            return self._minimize(answer, inner, self._simulate, below=missing)
        return self._finish(best, start, inner, free, points)

    def _finish(
        self, best: Point, start: Point, inner: str, free: Sequence[str], points: Sequence[Point]
    ) -> Point | None:
        """Return `best` with the least capacities, simulated in full.

        The other capacity was minimized already, and so was `inner` unless `best` is `start`.
        """
        outer = next((role for role in best.capacities if role != inner), inner)
        # At an inner capacity of 0, the outer capacity is the one that is still too coarse.
        last = inner if best.capacities[inner] or outer not in free else outer
        if best is start or last != inner:
            best = self._minimize(best, last, self._evaluate)
        if last == inner and outer in free and not best.capacities[inner]:
            # Without the inner tier, less of the outer one may do than beside it.
            last = outer
            best = self._minimize(best, last, self._evaluate)
        return self._confirm(best, last) or self._choose(points)

    def _free_roles(self, axes: Iterable[str]) -> list[str]:
        """Return the roles whose capacity no option gives."""
        return [role for role in axes if role not in self.question.axes]

    def _with_largest(self, points: list[Point], axes: dict[str, list[int | None]]) -> list[Point]:
        """Return `points` with one of the largest capacities that the search tries."""
        largest: Capacities = dict.fromkeys(self._free_roles(axes), self._max_bytes)
        return [*points, *self._evaluate([points[-1].capacities | largest])]

    def _largest_missing(self, point: Point, inner: str) -> Point | None:
        """Return the full simulation with the most `inner` that misses the target below `point`.

        Its other capacities are those of `point`. None if there is none.
        """
        others = [(role, size) for role, size in point.capacities.items() if role != inner]
        size = point.capacities[inner] or 0
        missing = [
            other
            for other in map(self._with_price, self._full.values())
            if all(other.capacities[role] == wanted for role, wanted in others)
            and (other.capacities[inner] or size) < size
            and not self._is_met(other)
        ]
        return max(missing, key=lambda other: other.capacities[inner] or 0, default=None)

    def _starting_point(self, points: Sequence[Point], outer: str) -> Point | None:
        """Return the most preferred of `points` that reaches the target, None without one.

        Where requests would never start at it, it gets as much `outer` as their loads need.
        """
        preferred = sorted(points, key=_preference)
        asked = replace(self.question.target, may_stall=True)
        reaching = [point for point in preferred if asked.is_met(point)]
        if reaching and not self._is_met(reaching[0]):
            least_bytes = self._least_bytes(reaching[0].capacities, outer, is_stall_counted=False)
            sufficient_bytes = _round_up_bytes(least_bytes)
            [unstalled] = self._evaluate([reaching[0].capacities | {outer: sufficient_bytes}])
            reaching.insert(0, unstalled)
        return next((point for point in reaching if self._is_met(point)), None)

    def _minimize_price(
        self, best: Point, outer: str, inner: str, listed: Sequence[int], *, is_free: bool
    ) -> Point:
        """Return the cheapest of `best` and of points with other capacities of `outer`.

        Only the `listed` capacities are tried unless `outer` `is_free`.
        """
        # Where a simulation is almost instant, single objects decide and steps are finer.
        # Elsewhere a tier smaller than half a prompt is useless.
        chains, min_bytes, steps_per_halving = self.stack.load.chains, 0.0, 1
        if chains is not None and len(chains.slots) <= EXACT_REFERENCES / 1000:
            min_bytes, steps_per_halving = self.stack.chunk_bytes, _STEPS_PER_HALVING
        elif chains is not None:
            mean_prompt_objects = len(chains.slots) / (len(chains.offsets) - 1)
            min_bytes = mean_prompt_objects * self.stack.chunk_bytes / 2
        halved = [
            _round_bytes(max([*listed, self._max_bytes]) / 2 ** (step / steps_per_halving))
            for step in reversed(range(_HALVINGS * steps_per_halving))
        ]
        sizes = [0, *(size for size in halved if size >= min_bytes)] if is_free else listed
        # DRAM that holds no complete prompt may hit less than no DRAM. So the points without the
        # inner tier are tried separately.
        without_inner = self._evaluate(
            [
                best.capacities | {outer: size, inner: 0}
                for size in {best.capacities[outer], *listed}
            ]
        )
        reaching = filter(self._is_met, without_inner)
        best = min([best, *reaching], key=_preference)
        # The smallest outer capacity comes first: it may lower the best price, and capacities
        # that alone cost more than the best price are then not tried.
        best = self._best_of(best, outer, sizes[:1], inner)
        # Those that samples estimate come first: fewer of the others are affordable then.
        estimable = [size for size in sizes if not size or size >= self._min_sampled_bytes]
        for tried in (estimable, sizes):
            while (better := self._best_of(best, outer, tried, inner)) is not best:
                best = better
        return self._refine_price(best, outer, inner) if is_free else best

    def _refine_price(self, best: Point, outer: str, inner: str) -> Point:
        """Return the cheapest of `best` and of points with capacities of `outer` near its own."""
        if self.stack.preset.tiers[self.stack.roles[outer]].loads_whole:
            # The least at which no request stalls.
            largest_bytes = self._ceiling.result().largest_load_bytes
            best = self._best_of(best, outer, [_round_up_bytes(largest_bytes)], inner)
        outer_only_bytes = self._affordable_bytes(best, {inner: 0}, outer)
        if outer_only_bytes is not None:
            best = self._best_of(best, outer, [outer_only_bytes], inner)
        for divisor in (2, 4, 8, 16):
            center = best.capacities[outer] or 0
            neighbours = [_round_bytes(center * 2 ** (sign / divisor)) for sign in (-1, 1)]
            best = self._best_of(best, outer, neighbours, inner)
        # With slow loads a little of the inner tier pays beside much of the outer one, so less
        # and less of that is tried.
        rounds = _SLOW_ROUNDS if self._has_slow_loads else 0
        for _ in range(rounds):
            center = best.capacities[outer] or 0
            less = [_round_bytes(center / 2**doublings) for doublings in _SLOW_DOUBLINGS]
            better = self._best_of(best, outer, less, inner)
            if better is best:
                break
            best = better
        return best

    def _try_no_capacity(self, axes: Iterable[str]) -> Point | None:
        """Return the point without DRAM and NVMe, simulated in full, if it reaches the target."""
        nothing, is_met = Capacities(dict.fromkeys(axes, 0)), self._is_met
        estimates = self._estimate([nothing])
        if any(not is_met(point, point.hit_ratio_error) for point in estimates):
            return None
        [point] = self._simulate([nothing])
        return point if is_met(point) else None

    @property
    def _tolerance(self) -> float:
        """Return the largest ratio of the answer to the least capacity."""
        return self._final_tolerance if self.question.price is not None else _TOLERANCE

    @property
    def _final_tolerance(self) -> float:
        """Return the same ratio of an answer that no other search follows."""
        return _FINE_TOLERANCE if self.stack.can_sample and self._is_priced else _TOLERANCE

    def _best_of(self, best: Point, outer: str, sizes: Sequence[int], inner: str) -> Point:
        """Return the best of `best` and of points with one of `sizes` as `outer` capacity.

        Each gets the `inner` capacity that 1 or 2 % less than the best price buys.
        """
        candidates = []
        for size in sizes:
            if size == best.capacities[outer]:
                continue
            fixed = best.capacities | {outer: size}
            inner_bytes = self._affordable_bytes(best, fixed, inner)
            if inner_bytes is not None and self._can_be_answer(fixed | {inner: inner_bytes}):
                candidates.append(fixed | {inner: inner_bytes})
        for candidate in self._evaluate(candidates):
            point = self._without_slow_loads(candidate, inner)
            if self._is_met(point) and _preference(point) < _preference(best):
                best = min(best, self._minimize(point, inner, self._evaluate), key=_preference)
        return best

    def _without_slow_loads(self, point: Point, inner: str) -> Point:
        """Return `point` with less `inner`, if it only misses the target by being slow or stalling.

        More of a slow tier means more slow loads, and larger ones, for which the tier above may
        have no room. So less of it may reach the target.
        """
        asked = replace(self.question.target, without_offload=None, may_stall=True)
        for _ in range(_SLOW_STEPS):
            inner_bytes = point.capacities[inner] or 0
            if not inner_bytes or self._is_met(point) or not asked.is_met(point):
                break
            self._has_slow_loads = True
            smaller = point.capacities | {inner: _round_bytes(inner_bytes / _SLOW_SHRINK)}
            [point] = self._evaluate([smaller])
        return point

    def _can_estimate(self, capacities: Capacities) -> bool:
        """Return whether every tier holds enough sampled objects for samples to be reliable."""
        return self._sampling is not None and all(
            not size or size >= self._min_sampled_bytes for size in capacities.values()
        )

    def _estimate(self, candidates: Sequence[Capacities]) -> list[Point]:
        """Return the estimate of each candidate from the samples; none without samples."""
        sampling = self._sampling
        if sampling is None or not candidates:
            return []
        simulate, rate = self.stack.simulate_sample, sampling.rate
        started = [
            [self._start(simulate, capacities, sample, rate) for sample in sampling.samples]
            for capacities in candidates
        ]
        counters = [[self._wait_for(future) for future in futures] for futures in started]
        full = self._ceiling.result()
        if not full.lookups:
            return [full] * len(candidates)
        return [
            self.stack.estimate(capacities, sampled, rate, full, sampling.unlimited)
            for capacities, sampled in zip(candidates, counters, strict=True)
        ]

    def _evaluate(self, candidates: Sequence[Capacities]) -> list[Point]:
        """Return a point for each candidate, in order.

        Samples estimate it where they are reliable; otherwise it is simulated in full.
        """
        by_key = {_key_of(capacities): capacities for capacities in candidates}
        estimated = [
            capacities
            for key, capacities in by_key.items()
            if key not in self._estimates and self._can_estimate(capacities)
        ]
        for capacities, point in zip(estimated, self._estimate(estimated), strict=True):
            self._estimates[_key_of(capacities)] = point
        simulated = iter(
            self._simulate(
                [capacities for capacities in candidates if not self._can_estimate(capacities)]
            )
        )
        return [
            self._with_price(self._estimates[_key_of(capacities)])
            if self._can_estimate(capacities)
            else next(simulated)
            for capacities in candidates
        ]

    def _simulate(self, candidates: Sequence[Capacities]) -> list[Point]:
        """Return the full simulation of each candidate, in order; each is simulated once."""
        keys = [_key_of(capacities) for capacities in candidates]
        started = {
            key: self._start(self.stack.simulate, capacities)
            for key, capacities in dict(zip(keys, candidates, strict=True)).items()
            if key not in self._full
        }
        for key, future in started.items():
            self._full[key] = self._wait_for(future)
        return [self._with_price(self._full[key]) for key in keys]

    def _confirm(self, estimated: Point, inner: str) -> Point | None:
        """Return the point with the least `inner` near `estimated`, simulated in full.

        None if no capacity is enough.
        """
        if estimated.sampling_rate == 1:
            return estimated
        is_met, near_ratio, far_ratio = (
            self._is_met,
            self._tolerance**0.48,
            _SAMPLE_ERROR,
        )
        center, factors = estimated.capacities[inner] or 0, [1 / near_ratio, near_ratio]
        best: Point | None = None
        below: Point | None = None
        # Widen a pair of capacities until one misses the target and a larger one reaches it.
        while best is None or below is None:
            lower, upper = (
                min(self._max_bytes, _round_bytes(center * factor)) for factor in factors
            )
            if factors[1] <= factors[0] * self._tolerance:
                # Rounded, the two may be further apart than an answer and what misses may be.
                upper = min(upper, _round_bytes(lower * self._tolerance))
            sizes = dict.fromkeys((lower, upper))
            points = self._simulate([estimated.capacities | {inner: size} for size in sizes])
            first_met = next(
                (index for index, point in enumerate(points) if is_met(point)), len(points)
            )
            if first_met:
                below = points[first_met - 1]
            if first_met < len(points):
                best = points[first_met]
            edge = points[0] if first_met == 0 else points[-1]
            center = edge.capacities[inner] or 0
            if first_met == 0 and center <= self.stack.chunk_bytes:
                return edge
            if first_met and center == self._max_bytes:
                break
            # The error of samples is smaller than this.
            if first_met == 0:
                sign = -1
            else:
                sign, center = 1, max(center, int(self._min_sampled_bytes))
            factors = sorted(
                (far_ratio * factor) ** sign for factor in (1 / near_ratio, near_ratio)
            )
            near_ratio, far_ratio = near_ratio**2, far_ratio**2
        # The answer to a question with prices would be made finer later, and its neighbours with it.
        return best and self._minimize(
            best, inner, self._simulate, below=below, tolerance=self._final_tolerance
        )

    def _minimize(
        self,
        best: Point,
        inner: str,
        evaluate: Callable[[Sequence[Capacities]], list[Point]],
        *,
        below: Point | None = None,
        tolerance: float | None = None,
    ) -> Point:
        """Return `best` with the least `inner` that reaches the target, within the tolerance.

        The search runs between `below`, which misses the target, and `best`, which reaches it.
        `evaluate` returns the points of the tried capacities. The default `tolerance` is that of
        the search at hand.
        """
        tolerance = tolerance or self._tolerance
        is_exact = best.sampling_rate == 1
        is_stall_counted = self.question.target.may_stall or best.stalled_requests is not None
        bracket = _Bracket(
            low_bytes=-1 if below is None else below.capacities[inner] or 0,
            high_bytes=best.capacities[inner] or 0,
            smallest_bytes=max(
                self.stack.chunk_bytes, 0 if is_exact else int(self._min_sampled_bytes)
            ),
            least_bytes=_round_up_bytes(
                self._least_bytes(best.capacities, inner, is_stall_counted=is_stall_counted)
            ),
            answer_tolerance=tolerance,
            tolerance=tolerance if is_exact else _SAMPLE_TOLERANCE,
        )
        below = below or best
        # Less than the largest load makes requests stall: often that decides.
        first_sizes = bracket.sizes_around(self._unstalled_bytes(inner))
        while sizes := first_sizes or bracket.next_sizes(self._crossing_share(below, best)):
            first_sizes = []
            points = evaluate([best.capacities | {inner: size} for size in sizes])
            for size, point in zip(sizes, points, strict=True):
                if self._is_met(point):
                    best, bracket.high_bytes = point, size
                    break
                below, bracket.low_bytes = point, size
        return best

    def _unstalled_bytes(self, role: str) -> int | None:
        """Return the capacity of `role` with which no request stalls, whatever is below it.

        None if it matters to none, or if requests may stall.
        """
        tier = self.stack.preset.tiers[self.stack.roles[role]]
        if self.question.target.may_stall or not tier.loads_whole:
            return None
        return _round_up_bytes(self._ceiling.result().largest_load_bytes * tier.stored_share)

    def _crossing_share(self, low: Point, high: Point) -> float:
        """Return the share of the way from `low` to `high` at which the hit rate meets the target.

        It is 0.5 where the hit rate does not tell.
        """
        target_ratio, gain = self.question.target.hit_ratio, high.hit_ratio - low.hit_ratio
        if target_ratio is None or gain <= 0:
            return 0.5
        return min(0.9, max(0.1, (target_ratio - low.hit_ratio) / gain))

    def _affordable_bytes(self, best: Point, fixed: Capacities, inner: str) -> int | None:
        """Return the capacity of `inner` that, with `fixed`, costs less than `best`.

        None if `fixed` alone costs more.
        """
        price = self.question.price
        if price is None or best.price is None:
            return None
        fixed_price = sum(
            price[role] * (size or 0) for role, size in fixed.items() if role != inner
        )
        budget = best.price / self._tolerance - fixed_price
        if budget < 0:
            return None
        if not price[inner]:
            return best.capacities[inner]
        return min(self._max_bytes, _round_bytes(budget / price[inner]))

    def _start(
        self, function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs
    ) -> Future[R]:
        """Start `function` on the pool."""
        self._started_count += 1
        return self.pool.submit(function, *arguments, **keywords)

    def _wait_for(self, future: Future[R]) -> R:
        """Return the result of `future`, and report progress."""
        result = future.result()
        self._done_count += 1
        self._report_progress(self._done_count, self._started_count)
        return result

    def _default_axis(self, role: str, total_bytes: int) -> list[int | None]:
        """Return default capacities for `role`, up to a round one that holds `total_bytes`."""
        stack = self.stack
        if stack.preset.tiers[stack.roles[role]].capacity_bytes == 0:
            # The preset exists to run without this tier.
            return [0]
        name = role if len(stack.roles) > 1 else "nvme"
        divisors = _AXIS_DIVISORS[name]
        # Every capacity of an axis is a whole number of its unit, the smallest included.
        smallest_divisor = _AXIS_DIVISORS["nvme"][0]
        unit = next((unit for unit in _ROUND_BYTES if unit * smallest_divisor <= total_bytes), 1)
        top = unit << max(1, -(-total_bytes // unit) - 1).bit_length()
        return [max(1, top // divisor) for divisor in divisors]

    def _useful_sizes(self, role: str, sizes: list[int | None]) -> list[int | None]:
        """Return default capacities without those that are smaller than what a request needs.

        They would be simulated in full, because samples are unreliable there, and prompts that
        displace themselves take the longest: half a minute each for prompts of 100,000 tokens. A
        tier that holds a whole load gets room for the largest; another one for a mean prompt.
        """
        chains = self.stack.load.chains
        if role in self.question.axes or chains is None or 0 in sizes:
            return sizes
        known = [size for size in sizes if size is not None]
        needed_bytes = len(chains.slots) / (len(chains.offsets) - 1) * self.stack.chunk_bytes
        if self.stack.preset.tiers[self.stack.roles[role]].loads_whole:
            if min(known) >= _round_up_bytes(self._required_bytes):
                # No load is larger than the largest prompt, so the ceiling need not be waited for.
                return sizes
            needed_bytes = _round_up_bytes(self._ceiling.result().largest_load_bytes)
        useful: list[int | None] = [size for size in known if size >= needed_bytes]
        return useful or [max(*known, _round_bytes(needed_bytes))]

    def _choose_rate(self, points: int) -> float:
        """Return the share of the objects in each sample; 1 for no samples."""
        stack, requested_rate = self.stack, self.question.sample
        if requested_rate is not None and requested_rate < 1 and not stack.can_sample:
            raise ConfigError(
                f"{named('sample', f'{requested_rate:g}')}: leave it out; sampling needs chunks"
                " that the requests name, full attention without store_queue, and computing and"
                f" storage that take no time ({named('gpu', 'instant')})"
            )
        if requested_rate is not None or not stack.can_sample or stack.load.chains is None:
            return requested_rate or 1.0
        references = len(stack.load.chains.slots)
        if references * points <= EXACT_REFERENCES:
            return 1.0
        usual_rate, max_rate = (
            sampled / (SAMPLES * points * references)
            for sampled in (_USUAL_SAMPLED_REFERENCES, _MAX_SAMPLED_REFERENCES)
        )
        rate = max(usual_rate, min(_SAMPLED_SHARE, max_rate), _MIN_SAMPLED_REFERENCES / references)
        return rate if rate * SAMPLES < 1 else 1.0

    def _choose(self, points: Sequence[Point]) -> Point | None:
        """Return the most preferred point that meets the target when simulated in full."""
        for point in sorted(points, key=_preference):
            if self._is_met(point, point.hit_ratio_error):
                [full] = [point] if point.sampling_rate == 1 else self._simulate([point.capacities])
                if self._is_met(full):
                    return full
        return None

    def _with_price(self, point: Point) -> Point:
        """Return `point` with its price; null without prices or with unlimited capacities."""
        price, sizes = self.question.price, point.capacities
        if price is None or None in sizes.values():
            return replace(point, price=None)
        return replace(point, price=sum(price[role] * (size or 0) for role, size in sizes.items()))


def _round_bytes(size: float) -> int:
    """Return `size` cut to the printed digits, so the printed command gives the printed figures."""
    unit: int = 10 ** max(0, len(str(int(size))) - _SIGNIFICANT_DIGITS)
    return int(size) // unit * unit


def _round_up_bytes(size: float) -> int:
    """Return the least capacity of the printed digits that is at least `size`."""
    rounded = _round_bytes(size)
    unit: int = 10 ** max(0, len(str(int(size))) - _SIGNIFICANT_DIGITS)
    return rounded if rounded >= size else rounded + unit


def _sort_key(capacities: Capacities) -> list[float]:
    """Return the capacities in order, with unlimited ones last."""
    return [float("inf") if size is None else float(size) for size in capacities.values()]


def _preference(point: Point) -> list[float]:
    """Return the sort key of a point: the price, then DRAM, then NVMe."""
    return [float("inf") if point.price is None else point.price, *_sort_key(point.capacities)]
