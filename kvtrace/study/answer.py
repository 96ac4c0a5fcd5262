"""What a study comes to: the best configuration, the cheapest that is good enough, and what each knob does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from kvtrace.core.document.document import Unit, show
from kvtrace.core.units import format_bytes, format_duration
from kvtrace.curves.size import Target
from kvtrace.study.configuration import SEED, Study, Value, as_text
from kvtrace.study.table import StudyRow


@dataclass(frozen=True, slots=True)
class Candidate:
    """Configurations that differ in their seed alone; figures are means over the seeds."""

    number: int
    """Of the first of them."""
    knobs: dict[str, Value]
    rows: list[StudyRow]
    hit_ratio: float
    cost: float | None
    """The price, or without prices the bytes of all tiers; null where it is not known."""

    @property
    def first_token_p99_ns(self) -> float | None:
        """The modelled p99 of times to the first token; null where a seed does not tell it."""
        return _mean_of_known(row.first_token_ns("p99") for row in self.rows)

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that no tier had."""
        return round(fmean(row.figures.recomputed_tokens for row in self.rows if row.figures))

    def meets(self, target: Target) -> bool:
        """Whether it reaches `target`, on average over the seeds."""
        if target.hit_ratio is not None and self.hit_ratio < target.hit_ratio:
            return False
        if target.first_token is None:
            return True
        name, limit_ns = target.first_token
        found = _mean_of_known(row.first_token_ns(name.removesuffix("_ns")) for row in self.rows)
        return found is not None and found <= limit_ns


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What changing one knob alone does to the hit ratio.

    Of those groups of configurations that are equal but for the knob, and have a result for each of its values.
    """

    key: str
    means: dict[str, float]
    """The mean hit ratio with each value; empty without such a group."""
    groups: int
    most: float | None
    """The largest difference between two values within one group."""

    @property
    def swing(self) -> float | None:
        """The difference between the best and the worst value, on average."""
        return max(self.means.values()) - min(self.means.values()) if self.means else None


@dataclass(frozen=True, slots=True)
class Findings:
    """The answer of a study."""

    study: Study
    rows: list[StudyRow]
    candidates: list[Candidate]
    """The best first: those that meet the target by their cost, then by hit ratio."""
    target: Target | None

    @property
    def best(self) -> Candidate:
        """The candidate with the most hits, and of those the cheapest."""
        return min(self.candidates, key=lambda of: (-of.hit_ratio, _known(of.cost), of.number))

    @property
    def cheapest(self) -> Candidate | None:
        """The cheapest that meets the target; null if none does, or its cost is not known."""
        good = [of for of in self.candidates if self.target and of.cost is not None and of.meets(self.target)]
        return min(good, key=lambda of: (_known(of.cost), -of.hit_ratio, of.number), default=None)

    @property
    def failed(self) -> list[StudyRow]:
        """The configurations that came to nothing."""
        return [row for row in self.rows if row.figures is None]


def findings(study: Study, rows: list[StudyRow], target: Target | None) -> Findings:
    """Return what `rows`, some or all of `study`, come to."""
    by_knobs: dict[tuple[tuple[str, Value], ...], list[StudyRow]] = {}
    for row in rows:
        if row.figures is not None and row.figures.hit_ratio is not None:
            knobs = tuple((key, value) for key, value in row.configuration.knobs.items() if key != SEED)
            by_knobs.setdefault(knobs, []).append(row)
    found = [
        Candidate(
            number=of[0].configuration.number,
            knobs=dict(knobs),
            rows=of,
            hit_ratio=fmean(row.figures.hit_ratio for row in of if row.figures and row.figures.hit_ratio is not None),
            cost=of[0].price if study.price else of[0].capacity_bytes,
        )
        for knobs, of in by_knobs.items()
    ]

    def order(of: Candidate) -> tuple[bool, float, float, int]:
        is_good = target is not None and of.cost is not None and of.meets(target)
        return (not is_good, _known(of.cost) if is_good else 0.0, -of.hit_ratio, of.number)

    return Findings(study, rows, sorted(found, key=order), target)


def _known(cost: float | None) -> float:
    return float("inf") if cost is None else cost


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return fmean(known) if known and len(known) == len(found) else None


def front(candidates: Sequence[Candidate], gain: Callable[[Candidate], float | None]) -> list[Candidate]:
    """Return those candidates that none of the same or a lower cost exceeds in `gain`, the cheapest first (Pareto)."""
    known = [
        (of.cost, -worth, of.number, of) for of in candidates if of.cost is not None and (worth := gain(of)) is not None
    ]
    found: list[Candidate] = []
    most = float("-inf")
    for _cost, less, _number, of in sorted(known, key=lambda one: one[:3]):
        if -less > most:
            most = -less
            found.append(of)
    return found


def sensitivities(study: Study, rows: Sequence[StudyRow]) -> list[Sensitivity]:
    """Return what each knob that differs does, but for the seed and those that never differ alone; strongest first."""
    found = [_sensitivity(study, rows, key) for key in study.axes if key != SEED]
    return sorted((of for of in found if of.groups), key=lambda of: -(of.swing or 0.0))


def _sensitivity(study: Study, rows: Sequence[StudyRow], key: str) -> Sensitivity:
    values = [as_text(value) for value in study.axes[key]]
    groups: dict[tuple[tuple[str, Value], ...], dict[str, float]] = {}
    for row in rows:
        if row.figures is not None and row.figures.hit_ratio is not None:
            knobs = row.configuration.knobs
            others = tuple((name, value) for name, value in knobs.items() if name != key)
            groups.setdefault(others, {})[as_text(knobs.get(key))] = row.figures.hit_ratio
    whole = [of for of in groups.values() if len(of) == len(values)]
    if not whole:
        return Sensitivity(key, {}, 0, None)
    means = {value: fmean(of[value] for of in whole) for value in values}
    return Sensitivity(key, means, len(whole), max(max(of.values()) - min(of.values()) for of in whole))


def first_line(found: Findings) -> str:
    """Return the answer in one sentence."""
    keys = [key for key in found.study.axes if key != SEED]
    best, cheapest, target = found.best, found.cheapest, found.target
    line = f"best hit ratio {_ratio(best)} at {_named(best, keys)}{_cost_of(found, best)}"
    if target is None:
        return line
    wanted = _wanted(target)
    if cheapest is None:
        is_met = any(of.meets(target) for of in found.candidates)
        why = "what reaches it has a tier without a bound" if is_met else "none reaches it"
        return f"{line}; for {wanted}: {why}"
    kind = "cheapest" if found.study.price else "smallest"
    return f"{line}; {kind} for {wanted}: {_named(cheapest, keys)} ({_ratio(cheapest)}{_cost_of(found, cheapest)})"


def _named(of: Candidate, keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={as_text(of.knobs[key])}" for key in keys if key in of.knobs) or "the only configuration"


def _ratio(of: Candidate) -> str:
    each = [row.figures.hit_ratio for row in of.rows if row.figures and row.figures.hit_ratio is not None]
    line = f"{100 * of.hit_ratio:.1f} %"
    if len(each) > 1:
        line += f" ({100 * min(each):.1f} to {100 * max(each):.1f} over {len(each)} seeds)"
    return line


def _cost_of(found: Findings, of: Candidate) -> str:
    if of.cost is None:
        return ""
    said = f"price {show(of.cost, Unit.NUMBER)}" if found.study.price else f"{format_bytes(of.cost)} in all tiers"
    return f", {said}"


def _wanted(target: Target) -> str:
    parts = [] if target.hit_ratio is None else [f"{100 * target.hit_ratio:g} %"]
    if target.first_token is not None:
        name, limit_ns = target.first_token
        parts.append(f"{name.removesuffix('_ns').replace('_', '.')} {format_duration(limit_ns)} to the first token")
    return " and ".join(parts)
