"""Which capacities of DRAM and NVMe a load needs.

A grid of them, each simulated, all of it or samples of its objects.

The tiers of a hierarchy are no stack that one pass would serve at every capacity: which objects
count as used in a tier depends on what the faster ones hold, so that a larger tier may lack what a
smaller one holds. So each point is a simulation, the one that `gen` runs, with the same counters.
Where all of them would take long, each is made of samples of the objects. From the best point of
the grid on, capacities that were not asked for are searched for a better one, by samples where
these can tell; what is answered is simulated whole.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import QUANTILES
from kvtrace.core.units import format_duration, parse_duration_ns, parse_share
from kvtrace.curves.points import Capacities, Point, Sampled, Stack, Timed
from kvtrace.curves.stack import SAMPLES
from kvtrace.sim.chains import Chains

EXACT_REFERENCES: Final = 20_000_000
"""Of all points together, up to which they are simulated in full: some seconds."""
_SAMPLED_REFERENCES, _MOST_SAMPLED_REFERENCES = 5_000_000, 12_000_000
"""Likewise, of all samples.

Some 2 s on two processors. More where they are less than a sample of _SAMPLED_SHARE.
"""
_SAMPLED_SHARE = 1 / 64
_FEWEST_SAMPLED = 20_000
_FEWEST_HELD = 64
"""Objects of a sample that a tier must hold.

A smaller one lets less pass to the next tier than the whole one does.
"""
_MOST_THREADS = 8
_CLOSE, _CLOSER = 1.02, 1.01
"""What is answered is at most so many times what reaches the target.

With prices each of both capacities has half of that, where a look takes no time worth naming.
"""
_GUESS, _ROUGH_GUESS = 1.008, 1.04
"""How close a search by samples comes.

And how far what samples, or a grid, say is off at most, as a rule.
"""
_DIGITS = 3
"""Of a capacity that is searched: as it is printed."""
_HALVINGS, _FINER = 14, 12
"""Of the capacity that holds everything, in a search by price.

And of a small load, steps within each.
"""
_ROUND_BYTES: Final = (10**9, 10**6, 10**3, 1)
# Of the default axes, as shares of the smallest power of two GB (of a small load MB or kB) that
# holds everything.
_SHARES = {"dram": (256, 32), "nvme": (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)}


@dataclass(frozen=True, slots=True)
class Target:
    """The targets; None for one that was not given."""

    hit_ratio: float | None = None
    first_token: tuple[str, int] | None = None
    """A quantile, as the counters name it, and the longest time to the first token, ns."""

    def is_met(self, found: Timed, error: float = 0.0) -> bool:
        """Whether what was `found` reaches it, if its hit ratio is larger by `error`."""
        if self.hit_ratio is not None and (found.hit_ratio or 0.0) + error < self.hit_ratio:
            return False
        if self.first_token is None:
            return True
        quantile, limit_ns = self.first_token
        time_ns = found.first_token_ns(quantile)
        return time_ns is not None and time_ns <= limit_ns

    def in_words(self) -> str:
        """Return it for people: 80 % and p99 2 s to the first token."""
        parts = [] if self.hit_ratio is None else [f"{100 * self.hit_ratio:g} %"]
        if self.first_token is not None:
            quantile, limit_ns = self.first_token
            name = quantile.removesuffix("_ns").replace("_", ".")
            parts.append(f"{name} {format_duration(limit_ns)} to the first token")
        return " and ".join(parts)


def parse_target(hit: str | None, ttft: str | None) -> Target | None:
    """Return the target of `--target-hit` and `--target-ttft`; None if neither is given."""
    if hit is None and ttft is None:
        return None
    share = None
    if hit is not None:
        share = parse_share(hit, "--target-hit")
        if not 0 < share <= 1:
            hint = (
                f"; {share:g} % is written {share:g}%"
                if 1 < share <= 100 and "%" not in hit  # noqa: PLR2004
                else ""
            )
            raise ConfigError(
                f"--target-hit {hit}: must be > 0, and at most 100%, which is 1{hint}"
            )
    if ttft is None:
        return Target(share)
    quantile, is_said, limit = (part.strip() for part in ttft.partition("="))
    name = quantile.replace(".", "_")
    if not is_said or name not in QUANTILES:
        known = ", ".join(known.replace("_", ".") for known in QUANTILES)
        raise ConfigError(
            f"--target-ttft {ttft}: write for example p99=2s; percentiles are {known}"
        )
    limit_ns = parse_duration_ns(limit)
    if not limit_ns:
        raise ConfigError(f"--target-ttft {ttft}: must be > 0")
    return Target(share, (f"{name}_ns", limit_ns))


@dataclass(frozen=True, slots=True)
class Question:
    """A sizing question: target, capacities to try, prices, sampling."""

    target: Target
    axes: dict[str, list[int | None]]
    """Capacities by role, of points.ROLES; for a role without, some that suit the load."""
    price: dict[str, float] | None = None
    """Of a byte, by role."""
    sample: float | None = None
    """The share of the objects in each sample, 1 is all; by default as many as take seconds."""


@dataclass(frozen=True, slots=True)
class Sizing:
    """The answer: the chosen point, the ceiling and all points."""

    chosen: Point | None
    """The cheapest point that meets the target, or without prices the least DRAM, and then the
    least NVMe; simulated in full. Null if none does.
    """
    ceiling: Point
    """Without a bound on DRAM and NVMe."""
    points: list[Point]
    """The grid."""
    labels: dict[str, str]
    """What is called dram and nvme here: DRAM, and NVMe or the name of an object store."""


def answer(
    stack: Stack, question: Question, done: Callable[[int, int], None] = lambda _done, _of: None
) -> Sizing:
    """Return the sizing of `stack`.

    `done` is told how many simulations are over, and of how many.
    """
    absent = next(
        (role for role in (*question.axes, *(question.price or ())) if role not in stack.roles),
        None,
    )
    if absent is not None:
        names = ", ".join(tier.name for tier in stack.preset.tiers)
        raise ConfigError(f"--{absent}: the preset has no such tier, only {names}")
    run = _Run(stack.with_chains(), question, done)
    try:
        return run.answer()
    finally:
        run.pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Sampling:
    """Samples of the objects, each a share `rate` of them, and what each gives without a bound."""

    rate: float
    samples: list[Chains]
    unlimited: list[Sampled]


class _Run:
    """The simulations of one question, several at a time: compiled code needs no interpreter."""

    def __init__(self, stack: Stack, question: Question, done: Callable[[int, int], None]) -> None:
        self.stack, self.question, self._tell = stack, question, done
        self.pool = ThreadPoolExecutor(
            min(_MOST_THREADS, os.cpu_count() or 1), thread_name_prefix="size"
        )
        self._asked = self._done = self._most = 0
        self._sampling: _Sampling | None = None
        self._enough = 0.0
        """The bytes that a tier must hold for samples to tell."""
        self._full: dict[frozenset[tuple[str, int | None]], Point] = {}
        """Full simulations by their capacities."""

    def answer(self) -> Sizing:
        stack, chains = self.stack, self.stack.load.chains
        self._ceiling = ceiling = self._start(stack.simulate, dict.fromkeys(stack.roles))
        most = (
            ceiling.result().live_bytes
            if chains is None
            else len(chains.tokens) * stack.chunk_bytes
        )
        axes = {
            role: self.question.axes.get(role) or self._axis(role, most) for role in stack.roles
        }
        self._most = _rounded(2 * most)
        grid = [dict(zip(axes, of, strict=True)) for of in itertools.product(*axes.values())]
        if (rate := self._rate(len(grid))) < 1:
            drawn = [self._start(stack.sample, rate, seed) for seed in range(SAMPLES)]
            samples = [self._result(of) for of in drawn]
            unlimited = [
                self._start(stack.simulate_sample, dict.fromkeys(stack.roles), of, rate)
                for of in samples
            ]
            self._sampling = _Sampling(rate, samples, [self._result(of) for of in unlimited])
            self._enough = _FEWEST_HELD * stack.chunk_bytes / rate
        optima = [None if self._can_estimate(of) else self._start(stack.optimum, of) for of in grid]
        points = [
            of if most is None else replace(of, optimal_hit_ratio=self._result(most))
            for of, most in zip(self._look_at(grid), optima, strict=True)
        ]
        best = self._result(ceiling)
        if not best.lookups:
            raise ConfigError(
                "no request looks up anything: no prompt fills an object, or repeats what is stored"
            )
        chosen = self._searched(points, axes)
        if chosen is not None:
            if chosen.optimal_hit_ratio is None:
                chosen = replace(chosen, optimal_hit_ratio=stack.optimum(chosen.capacities))
            if all(of.capacities != chosen.capacities for of in points):
                points = sorted([*points, chosen], key=lambda of: _sizes(of.capacities))
        return Sizing(chosen, best, points, self.stack.labels)

    def _searched(self, points: list[Point], axes: dict[str, list[int | None]]) -> Point | None:
        """Return the best point that reaches the target, simulated in full.

        The last capacity not given is searched.

        With prices the other capacity is searched, too, unless it is given: in steps of 2, then
        finer around the best. Without, how little of it does beside the grid's best, before it is
        seen how little of the last does beside it.
        """
        free = [role for role in axes if role not in self.question.axes]
        points = [
            *points,
            *self._look_at([points[-1].capacities | dict.fromkeys(free, self._most)]),
        ]
        reached = [of for of in sorted(points, key=_preference) if self.question.target.is_met(of)]
        best = next(iter(reached if free else ()), None) or self._choose(points)
        if best is None or not free:
            return best
        if len(free) == len(axes) and (none := self._without(axes)) is not None:
            return none
        start, inner = best, free[-1]
        outer = next((role for role in axes if role != inner), None)
        if free[0] == "dram" and self.question.price is None:
            best = start = self._little(best, free[0])
            if best.stalled_requests and (
                calm := next((of for of in reached if not of.stalled_requests), None)
            ):
                best = start = self._little(calm, free[0])
        if outer is not None and self.question.price is not None:
            given = [of for of in axes[outer] if of is not None]
            best = self._at_prices(best, outer, inner, given, is_free=outer in free)
        # Without any of the one, it is the other that is still too coarse.
        last = inner if best.capacities[inner] or outer not in free else outer
        if best is start or last != inner:
            best = self._least(best, last, self._look_at)
        return self._settled(best, last) or self._choose(points)

    def _at_prices(
        self, best: Point, outer: str, inner: str, given: Sequence[int], *, is_free: bool
    ) -> Point:
        """Return the cheapest of `best` and of what `outer` is tried at.

        What is `given`, or more if it `is_free`.
        """
        # Where a simulation takes no time worth naming single objects decide, and steps are finer.
        # Elsewhere a tier that does not hold half a prompt is no use.
        chains, least, finer = self.stack.load.chains, 0.0, 1
        if chains is not None and len(chains.slots) <= EXACT_REFERENCES / 1000:
            least, finer = self.stack.chunk_bytes, _FINER
        elif chains is not None:
            least = len(chains.slots) / (len(chains.offsets) - 1) * self.stack.chunk_bytes / 2
        halved = [
            _rounded(max([*given, self._most]) / 2 ** (n / finer))
            for n in reversed(range(_HALVINGS * finer))
        ]
        steps = [0, *(of for of in halved if of >= least)] if is_free else given
        # DRAM that holds no whole prompt may do less than none: what is below it is then read
        # without.
        without = self._look_at(
            [best.capacities | {outer: of, inner: 0} for of in {best.capacities[outer], *given}]
        )
        best = min([best, *filter(self.question.target.is_met, without)], key=_preference)
        # The least of the other axis first: what costs more by itself than the best so far is not
        # tried at all.
        best = self._best_of(best, outer, steps[:1], inner)
        while (better := self._best_of(best, outer, steps, inner)) is not best:
            best = better
        if is_free and (all_of_it := self._affordable(best, {inner: 0}, outer)) is not None:
            best = self._best_of(best, outer, [all_of_it], inner)
        for part in (2, 4, 8, 16) if is_free else ():
            at = best.capacities[outer] or 0
            best = self._best_of(
                best, outer, [_rounded(at * 2 ** (sign / part)) for sign in (-1, 1)], inner
            )
        return best

    def _little(self, best: Point, outer: str) -> Point:
        """Return `best` with as little of `outer` as reaches the target, and as the engine does not
        stall for.
        """
        stalls = self.stack.preset.tiers[self.stack.roles[outer]].loads_whole
        if not stalls or not (best.stalled_requests or best.sampling_rate < 1):
            return self._least(best, outer, self._look_at)
        # With as much as this none stalls, which samples do not tell.
        largest = self._ceiling.result().largest_load_bytes
        [enough] = self._look_at([best.capacities | {outer: _rounded(largest * 1.01)}])
        if not self.question.target.is_met(enough):
            return self._least(best, outer, self._look_at, below=enough)
        return enough if enough.sampling_rate < 1 else self._least(enough, outer, self._look_at)

    def _without(self, axes: Iterable[str]) -> Point | None:
        """Return the point without any DRAM and NVMe, simulated in full, if the other tiers reach
        the target.
        """
        nothing, is_met = Capacities(dict.fromkeys(axes, 0)), self.question.target.is_met
        if any(not is_met(look, look.hit_ratio_error) for look in self._estimates([nothing])):
            return None
        [found] = self._simulate([nothing])
        return found if is_met(found) else None

    @property
    def _close(self) -> float:
        """How many times the least an answer may be."""
        return _CLOSER if self.stack.can_sample and self.question.price is not None else _CLOSE

    def _best_of(self, best: Point, outer: str, sizes: Sequence[int], inner: str) -> Point:
        """Return the best of `best` and the points with `sizes`.

        Each is tried with what 1 or 2 % less money buys.
        """
        fixed = [
            best.capacities | {outer: size} for size in sizes if size != best.capacities[outer]
        ]
        tried = [
            of | {inner: most}
            for of in fixed
            if (most := self._affordable(best, of, inner)) is not None
        ]
        for point in self._look_at(tried):
            if self.question.target.is_met(point) and _preference(point) < _preference(best):
                best = min(best, self._least(point, inner, self._look_at), key=_preference)
        return best

    def _can_estimate(self, capacities: Capacities) -> bool:
        """Whether samples stand for all of the objects with `capacities`.

        Each tier holds enough of a sample.
        """
        return self._sampling is not None and all(
            not size or size >= self._enough for size in capacities.values()
        )

    def _estimates(self, tried: Sequence[Capacities]) -> list[Point]:
        told = self._sampling
        if told is None or not tried:
            return []
        simulate, rate = self.stack.simulate_sample, told.rate
        started = [
            [self._start(simulate, of, sample, rate) for sample in told.samples] for of in tried
        ]
        found = [[self._result(of) for of in point] for point in started]
        full = self._ceiling.result()
        if not full.lookups:
            return [full] * len(tried)
        return [
            self.stack.estimate(of, got, rate, full, told.unlimited)
            for of, got in zip(tried, found, strict=True)
        ]

    def _look_at(self, tried: Sequence[Capacities]) -> list[Point]:
        """Return what samples say of each of `tried`, in their order, or a full simulation where
        they cannot tell.
        """
        full = iter(self._simulate([of for of in tried if not self._can_estimate(of)]))
        estimates = iter(
            map(self._priced, self._estimates([of for of in tried if self._can_estimate(of)]))
        )
        return [next(estimates if self._can_estimate(of) else full) for of in tried]

    def _simulate(self, tried: Sequence[Capacities]) -> list[Point]:
        new = {key: of for of in tried if (key := frozenset(of.items())) not in self._full}
        started = {key: self._start(self.stack.simulate, of) for key, of in new.items()}
        self._full |= {key: self._priced(self._result(of)) for key, of in started.items()}
        return [self._full[frozenset(of.items())] for of in tried]

    def _settled(self, found: Point, inner: str) -> Point | None:
        """Return the least of `inner` beside what samples have `found`, simulated in full.

        None if none is enough.
        """
        if found.sampling_rate == 1:
            return found
        is_met, near, rough = self.question.target.is_met, self._close**0.48, _ROUGH_GUESS
        at, parts = found.capacities[inner] or 0, [1 / near, near]
        best: Point | None = None
        below: Point | None = None
        while best is None or below is None:
            sizes = dict.fromkeys(min(self._most, _rounded(at * part)) for part in parts)
            tried = self._simulate([found.capacities | {inner: of} for of in sizes])
            met = next((n for n, of in enumerate(tried) if is_met(of)), len(tried))
            below, best = (
                (tried[met - 1] if met else below),
                (tried[met] if met < len(tried) else best),
            )
            edge = tried[0] if met == 0 else tried[-1]
            at = edge.capacities[inner] or 0
            if met == 0 and at <= self.stack.chunk_bytes:
                return edge
            if met and at == self._most:
                break
            # Samples are off by less than this.
            sign, at = (-1, at) if met == 0 else (1, max(at, int(self._enough)))
            parts = sorted((rough * part) ** sign for part in (1 / near, near))
            near, rough = near**2, rough**2
        return best and self._least(best, inner, self._simulate, below=below)

    def _least(
        self,
        best: Point,
        inner: str,
        tell: Callable[[Sequence[Capacities]], list[Point]],
        *,
        below: Point | None = None,
    ) -> Point:
        """Return `best` with the least of `inner` that reaches the target, as `tell` says.

        To within `_close`.

        Between `below`, which does not reach it, and one that does, where a line over the logarithm
        of the capacity meets the target, at first about a `guess`: two at a time.
        """
        low, ratio = -1 if below is None else below.capacities[inner] or 0, 1.5
        smallest = max(self.stack.chunk_bytes, 0 if best.sampling_rate == 1 else self._enough)
        below = below or best
        parts: tuple[float, ...]
        while True:
            high = best.capacities[inner] or 0
            if high <= max(
                low * (self._close if best.sampling_rate == 1 else _GUESS),
                0 if low < 0 else smallest,
            ):
                break
            if high <= smallest:
                parts = (0,)
            elif low < 0:
                least = high / ratio
                parts, ratio = (least if least > smallest else 0, high / 1.06), ratio**2
            else:
                step = high / max(low, smallest)
                at = high / step ** (1 - self._share(below, best))
                parts = (
                    (at / self._close**0.5, at * self._close**0.5)
                    if step > self._close**3
                    else (high / step**0.5,)
                )
            sizes = sorted({size for part in parts if low < (size := _rounded(part)) < high})
            if not sizes:
                break
            for size, point in zip(
                sizes, tell([best.capacities | {inner: size} for size in sizes]), strict=True
            ):
                # With prices the cheapest that hits is the answer, and headed by what stalls.
                if self.question.target.is_met(point) and not (
                    point.stalled_requests and self.question.price is None
                ):
                    best = point
                    break
                low, below = size, point
        return best

    def _share(self, low: Point, high: Point) -> float:
        """Return how far from `low`, which misses the target, to `high` it is reached, as the hit
        ratio tells.
        """
        wanted, gain = self.question.target.hit_ratio, high.hit_ratio - low.hit_ratio
        return (
            min(0.9, max(0.1, (wanted - low.hit_ratio) / gain))
            if wanted is not None and gain > 0
            else 0.5
        )

    def _affordable(self, best: Point, fixed: Capacities, inner: str) -> int | None:
        """Return how much of `inner` beside `fixed` makes it cheaper than `best`.

        None if `fixed` alone costs more.
        """
        price = self.question.price
        if price is None or best.price is None:
            return None
        left = best.price / self._close - sum(
            price[role] * (of or 0) for role, of in fixed.items() if role != inner
        )
        if left < 0:
            return None
        return (
            min(self._most, _rounded(left / price[inner]))
            if price[inner]
            else best.capacities[inner]
        )

    def _start(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._asked += 1
        return self.pool.submit(function, *arguments)

    def _result(self, future: Future[Any]) -> Any:
        found = future.result()
        self._done += 1
        self._tell(self._done, self._asked)
        return found

    def _axis(self, role: str, most_bytes: int) -> list[int | None]:
        """Return capacities up to the smallest round one that holds `most_bytes`, or as near as
        makes sense.
        """
        stack = self.stack
        if stack.preset.tiers[stack.roles[role]].capacity_bytes == 0:
            # A tier that the preset is there to do without.
            return [0]
        name = role if len(stack.roles) > 1 else "nvme"
        # Prices lead the search: the grid only says where it begins.
        of = (
            _SHARES[name][1::2]
            if name == "nvme" and self.question.price is not None
            else _SHARES[name]
        )
        # The least capacity of an axis is a whole number of its unit, and so are the others.
        unit = next((unit for unit in _ROUND_BYTES if unit * _SHARES["nvme"][0] <= most_bytes), 1)
        top = unit << max(1, -(-most_bytes // unit) - 1).bit_length()
        return [max(1, top // share) for share in of]

    def _rate(self, points: int) -> float:
        """Return the share of the objects in each sample; 1 for no samples."""
        stack, asked = self.stack, self.question.sample
        if asked is not None and asked < 1 and not stack.can_sample:
            raise ConfigError(
                f"--sample {asked:g}: sampling is only for chunks that FILE names, in a model of"
                " full attention without store_queue, where computing and storage take no time"
                " (--gpu instant); leave it out"
            )
        if asked is not None or not stack.can_sample or stack.load.chains is None:
            return asked or 1.0
        references = len(stack.load.chains.slots)
        if references * points <= EXACT_REFERENCES:
            return 1.0
        usual, most = (
            n / (SAMPLES * points * references)
            for n in (_SAMPLED_REFERENCES, _MOST_SAMPLED_REFERENCES)
        )
        rate = max(usual, min(_SAMPLED_SHARE, most), _FEWEST_SAMPLED / references)
        return rate if rate * SAMPLES < 1 else 1.0

    def _choose(self, points: Sequence[Point]) -> Point | None:
        """Return the first point, in order of preference, that meets the target when it is
        simulated in full.

        Without prices, the first in which no request stalls, if there is one.
        """
        stalling: Point | None = None
        for point in sorted(points, key=_preference):
            if self.question.target.is_met(point, point.hit_ratio_error):
                [full] = [point] if point.sampling_rate == 1 else self._simulate([point.capacities])
                if self.question.target.is_met(full):
                    if not full.stalled_requests or self.question.price is not None:
                        return full
                    stalling = stalling or full
        return stalling

    def _priced(self, point: Point) -> Point:
        price, sizes = self.question.price, point.capacities
        if price is None or None in sizes.values():
            return point
        return replace(point, price=sum(price[role] * (of or 0) for role, of in sizes.items()))


def _rounded(size: float) -> int:
    """Return `size` cut to the digits that are printed, so that the printed command gives the
    printed figures.
    """
    unit: int = 10 ** max(0, len(str(int(size))) - _DIGITS)
    return int(size) // unit * unit


def _sizes(capacities: Capacities) -> list[float]:
    """Return the capacities in order; none at all comes last."""
    return [float("inf") if of is None else float(of) for of in capacities.values()]


def _preference(point: Point) -> list[float]:
    """Return what is to be least: the price, then DRAM, then NVMe."""
    return [float("inf") if point.price is None else point.price, *_sizes(point.capacities)]
