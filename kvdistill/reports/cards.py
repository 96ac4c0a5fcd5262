"""Scorecards of `kvreplay scorecard` compared, stack by stack.

What their runs tell of two drives, and no more.

Users are compared by every run of both searches, held or not. Rates and response times are of
trials at one load, and say nothing of each other at two: where drives were measured at two loads
they are shown, not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from kvdistill.reports.compare import (
    ComparedLine,
    ComparedSide,
    Comparison,
    clauses,
    compared_side,
    figure_tables,
)
from kvtrace.core import np
from kvtrace.core.document.document import (
    Chapter,
    Chart,
    ChartShape,
    Document,
    Highlight,
    ReportColumn,
    Series,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.sweep_file import Card, Score
from kvtrace.core.statistics import CONFIDENCE, DEFINITION, Ratio, differing
from kvtrace.core.units import counted

if TYPE_CHECKING:
    # Heavy.
    from numpy.typing import NDArray

_FIGURES = {
    "read_bytes_per_s": ("read", "bandwidth_bytes_per_s"),
    "written_bytes_per_s": ("write", "bandwidth_bytes_per_s"),
    "read_p99_ns": ("read", "response_p99_ns"),
    "read_p50_ns": ("read", "response_p50_ns"),
    "read_p99_9_ns": ("read", "response_p99_9_ns"),
}
"""Of a trial: operation and name, as comparisons of runs have them."""
_JUDGED = 3
"""So many of these, the first, make the headline, beside the users."""
_DEFINITION = (
    "users: the ratio of the most that are sustained; its interval: by the likelihood of every"
    " run's outcome, which is logistic in the logarithm of the users and as steep for both drives."
    " Other figures, at one load alone: "
)
_STEP, _STEEPNESS = 0.02, (0.01, 1.0, 16)
"""Of the logarithms of users.

Least, greatest and number of the widths in which a drive's outcome turns.
"""
_CAUTION = 2
"""A search ends where it found what it looked for, and looks steadier than it is.

With so many times the chi-square, a drive differs from itself in 5 % of cases at most even if what
it sustains varies by a tenth (test_cards.py).
"""


def compare_cards(names: Sequence[str], cards: Sequence[Card]) -> Comparison:
    """Compare `cards`, called `names`, each with the first.

    ConfigError for fewer than two, no stack in common, or stacks under other traffic or over
    another window.
    """
    if len(cards) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two scorecards or more to compare")
    by = [{score.preset: score for score in card.scores} for card in cards]
    stacks = {
        preset: [of[preset] for of in by] for preset in by[0] if all(preset in of for of in by)
    }
    if not stacks:
        has = (f"{name} has {', '.join(of) or 'none'}" for name, of in zip(names, by, strict=True))
        raise ConfigError(f"these cards have no stack in common: {'; '.join(has)}")
    asked = {"window": [card.window for card in cards]}
    asked |= {
        f"traffic of {preset}": [score.gen for score in scores] for preset, scores in stacks.items()
    }
    for what, values in asked.items():
        known = {
            value: name for value, name in zip(values, names, strict=True) if value is not None
        }
        if len(known) > 1:
            said = "; ".join(f"{name}: {value}" for value, name in known.items())
            raise ConfigError(
                f"these cards are of different tests, since the {what} differs: {said}"
            )
    pairs = [(scores[0], other) for scores in stacks.values() for other in scores[1:]]
    together = len(pairs) + _JUDGED * sum(_is_same_load(first, other) for first, other in pairs)
    lines = [line for scores in stacks.values() for line in _lines(scores, together)]
    facts = [
        {name: getattr(card, name) for name in ("version", "device_bytes", "filesystem")}
        for card in cards
    ]
    return Comparison(
        verdict="; ".join(_verdict(names, stacks, lines, at) for at in range(1, len(names))),
        names=list(names),
        kind="scorecard",
        trials=[max((score.trials for score in card.scores), default=0) for card in cards],
        settings=differing(facts),
        warnings=list(_doubts(names, cards, stacks)),
        lines=lines,
        together=together,
        definition=_DEFINITION + DEFINITION,
    )


def _is_same_load(a: Score, b: Score) -> bool:
    return (
        a.at_users == b.at_users and a.trace_sha256 is not None and a.trace_sha256 == b.trace_sha256
    )


def _has_other_trace(a: Score, b: Score) -> bool:
    return (
        a.at_users == b.at_users
        and None not in (a.trace_sha256, b.trace_sha256)
        and not _is_same_load(a, b)
    )


def _doubts(
    names: Sequence[str], cards: Sequence[Card], stacks: dict[str, list[Score]]
) -> Iterator[str]:
    if len({card.version for card in cards}) > 1:
        yield "the cards are of several versions of kvreplay, which may measure differently"
    for preset, scores in stacks.items():
        if any(_has_other_trace(scores[0], other) for other in scores):
            yield (
                f"{preset}: the traces differ at {counted(scores[0].at_users, 'user')}, so nothing"
                " is claimed of it"
            )
    for name, card in zip(names, cards, strict=True):
        if card.status != "complete":
            yield f"{name} is PARTIAL: {card.status}"
        if alone := [score.preset for score in card.scores if score.preset not in stacks]:
            yield f"{name} alone has {', '.join(alone)}"
        for score in card.scores:
            if score.preset in stacks and score.is_by_chance:
                few = (
                    f"the window of {score.preset} holds {counted(score.requests or 0, 'request')}"
                )
                yield f"{name}: {few}: nothing is claimed of its users"
            if score.preset in stacks and not (score.each and score.tried):
                yield (
                    f"{name} does not state the runs of {score.preset}, so nothing is claimed of it"
                )


def _lines(scores: Sequence[Score], together: int) -> Iterator[ComparedLine]:
    """Yield the figures of one stack, a line each."""
    first, preset = scores[0], scores[0].preset
    sides = [
        ComparedSide(
            median=of.users,
            low=of.users,
            high=of.lost_users,
            ratio=_ratio_of_users(first, of, together),
        )
        for of in scores
    ]
    yield ComparedLine(tier=preset, op="", name="users", sides=sides)
    for field, (op, name) in _FIGURES.items():
        values = [[getattr(trial, field) for trial in score.each or [score]] for score in scores]
        if any(value is not None for of in values for value in of):
            bases = [values[0] if _is_same_load(first, score) else None for score in scores]
            sides = [
                compared_side(of, base, together) for of, base in zip(values, bases, strict=True)
            ]
            yield ComparedLine(tier=preset, op=op, name=name, sides=sides)


def _ratio_of_users(a: Score, b: Score, together: int) -> Ratio:
    """Return how many times the users of `a` the drive of `b` sustains.

    No interval unless both state their runs.
    """
    value = b.users / a.users if a.users and b.users else None
    runs = [
        np.array([(np.log(t.users), t.held_trials, t.trials) for t in of.tried]).T for of in (a, b)
    ]
    if not (a.tried and b.tried) or _has_other_trace(a, b) or a.is_by_chance or b.is_by_chance:
        return Ratio(value=value, low=None, high=None, differs=None)
    ends = [load for of in runs for load in of[0]]
    grid = np.arange(min(ends) - 1, max(ends) + 1, _STEP)
    width = np.geomspace(*_STEEPNESS)[:, None]

    def likelihoods(of: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the logarithm of the likelihood by width and by the most that is sustained."""
        beyond = [np.clip((grid - load) / width, -30, 30) for load in of[0]]
        told = zip(beyond, of[1], of[2], strict=True)
        return -sum(
            held * np.log1p(np.exp(-x)) + (n - held) * np.log1p(np.exp(x)) for x, held, n in told
        )

    mine, others = likelihoods(runs[0]), likelihoods(runs[1])
    best = (mine.max(1) + others.max(1)).max()
    shifts = range(1 - len(grid), len(grid))
    least = best - _CAUTION * NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / together / 2) ** 2 / 2
    n = len(grid)
    both = (
        (s, mine[:, max(0, -s) : n - max(0, s)] + others[:, max(0, s) : n + min(0, s)])
        for s in shifts
    )
    kept = [s for s, likelihood in both if likelihood.max() >= least]
    low, high = (
        None if abs(s) == shifts[-1] else float(np.exp(s * _STEP)) for s in (kept[0], kept[-1])
    )
    return Ratio(value=value, low=low, high=high, differs=not ((low or 0) <= 1 <= (high or 1)))


def _verdict(
    names: Sequence[str], stacks: dict[str, list[Score]], lines: Sequence[ComparedLine], at: int
) -> str:
    """Return under which stacks side `at` differs from the first, in what.

    And of which its trials do not tell.
    """
    a, b = names[0], names[at]
    more, fewer, apart, alike = (list[str]() for _ in range(4))
    judged = [("", "users"), *list(_FIGURES.values())[:_JUDGED]]
    for preset, scores in stacks.items():
        ratios = {(line.op, line.name): line for line in lines if line.tier == preset}
        told = [ratios[of] for of in judged if of in ratios and ratios[of].sides[at].ratio.differs]
        unit = "user" if scores[at].users is None and scores[at].at_users == 1 else "users"
        said = f"{preset} ({users_of(scores[at])} {unit}, {a} {users_of(scores[0])})"
        if not told:
            alike.append(said)
        elif told[0].name == "users":
            (fewer if (told[0].sides[at].ratio.high or 1) < 1 else more).append(said)
        else:
            apart.append(
                f"at {counted(scores[at].at_users, 'user')} under {preset}"
                f" {' and '.join(clauses(told, a, b, at))}"
            )
    if len(alike) == len(stacks):
        return f"no significant difference between {b} and {a} on these cards: {', '.join(alike)}"
    users = {
        f"{b} sustains more users than {a} under": more,
        f"{b} sustains fewer users than {a} under": fewer,
    }
    found = [
        f"{what} {', '.join(of)}"
        for what, of in (users | {"no significant difference:": alike}).items()
        if of
    ]
    return "; ".join([*apart, *found])


def users_of(score: Score) -> str:
    """Return between which loads the most lies that a drive sustains."""
    if score.users is None:
        return f"less than {score.at_users:g}"
    return f"{score.users:g}" + (
        " or more" if score.lost_users is None else f" to {score.lost_users:g}"
    )


def cards_document(compared: Comparison, cards: Sequence[Card]) -> Document:
    """Return the document of `compared`, made of `cards`."""
    numbers = [f"[{at}]" for at in range(len(cards))]
    presets = list(dict.fromkeys(line.tier for line in compared.lines))
    scores = [
        (preset, number, next(score for score in card.scores if score.preset == preset))
        for preset in presets
        for number, card in zip(numbers, cards, strict=True)
    ]
    rows = [
        {
            "stack": preset,
            "side": n,
            "users": users_of(of),
            "at": of.at_users,
            "trials": of.trials,
            "limit": of.limit,
        }
        for preset, n, of in scores
    ]
    columns = [
        ReportColumn("stack"),
        ReportColumn("side"),
        ReportColumn("users", "users sustained"),
        ReportColumn("at", "measured at", Unit.NUMBER),
        ReportColumn("trials", unit=Unit.COUNT),
        ReportColumn("limit", "limited by"),
    ]
    users = {
        f"{preset} {n}": (of.users or 0.0, of.lost_users or of.users or 0.0)
        for preset, n, of in scores
    }
    times = {
        f"{preset} {n}, {counted(of.at_users, 'user')}": (float(min(tails)), float(max(tails)))
        for preset, n, of in scores
        if (tails := [trial.read_p99_ns for trial in of.each if trial.read_p99_ns is not None])
    }
    told = {True: "differs", False: "not significant", None: "not judged"}
    charts = [
        _ranges(
            "Users: from the most sustained to the least that is not", "users", Unit.NUMBER, users
        )
    ]
    if times:
        charts.append(
            _ranges(
                "Read p99: from the least to the greatest trial", "response time", Unit.NS, times
            )
        )
    table = table_of("Users sustained", Sheet.SUMMARY, columns, rows, keys=2, charts=tuple(charts))
    return Document(
        name="Scorecards compared",
        about=(
            f"{' and '.join(compared.names[1:])} against {compared.names[0]}: {', '.join(presets)}"
        ),
        headline=compared.verdict,
        subject=[
            ", ".join(
                str(part)
                for part in (f"{n} {name}", card.model, card.device, card.filesystem)
                if part
            )
            for n, name, card in zip(numbers, compared.names, cards, strict=True)
        ],
        warnings=compared.warnings,
        highlights=[
            Highlight(
                f"users under {line.tier}, {name}",
                side.median,
                Unit.NUMBER,
                told[side.ratio.differs],
            )
            for line in compared.lines
            for name, side in list(zip(compared.names, line.sides, strict=True))[1:]
            if line.name == "users"
        ],
        chapters=[
            Chapter("Stack by stack", [table]),
            Chapter("Figures", figure_tables(compared, numbers)),
        ],
        pictures=tuple(charts),
    )


def _ranges(title: str, what: str, unit: Unit, ranges: dict[str, tuple[float, float]]) -> Chart:
    # The first stands at the top; what has no width is seen, too.
    rows = [(name, low, max(high, low * 1.01)) for name, (low, high) in reversed(ranges.items())]
    names, lows, highs = (list(column) for column in zip(*rows, strict=True))
    series = Series("drive", lows, [float(at) for at in range(len(rows))], highs)
    return Chart(
        title, ChartShape.RANGES, unit, Unit.NUMBER, [series], x_title=what, y_names=tuple(names)
    )
