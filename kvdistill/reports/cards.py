"""Compare scorecards of `kvreplay scorecard`, stack by stack.

The sustained users of two drives are compared by every run of both searches, passed or failed.
Bandwidths and response times are compared only if both drives were measured at one load; otherwise
they are shown without a verdict.
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
"""Operation and figure by field of a trial, as comparisons of runs name them."""
_HEADLINE_FIGURES = 3
"""The headline has this many of `_FIGURES`, the first ones, and the users."""
_DEFINITION = (
    "users: the ratio of sustained users; its interval is a likelihood interval of all runs'"
    " outcomes, logistic in log(users) with one slope for both drives. Other figures, only at one"
    " load: "
)
_STEP, _WIDTHS = 0.02, (0.01, 1.0, 16)
"""Grid over log(users): step, and the range and number of widths of the logistic curve."""
_CAUTION = 2
"""Factor on the chi-square threshold.

A search stops at its result, so its outcomes look steadier than they are. With this factor, a drive
differs from itself in at most 5 % of cases even if its sustained users vary by a tenth
(test_cards.py).
"""


def compare_cards(names: Sequence[str], cards: Sequence[Card]) -> Comparison:
    """Compare each of `cards`, called `names`, with the first.

    ConfigError for fewer than two cards, no common stack, or different traffic or windows.
    """
    if len(cards) < 2:  # noqa: PLR2004 - a comparison
        raise ConfigError("name two scorecards or more to compare")
    scores_by_card = [{score.preset: score for score in card.scores} for card in cards]
    stacks = {
        preset: [scores_by_preset[preset] for scores_by_preset in scores_by_card]
        for preset in scores_by_card[0]
        if all(preset in scores_by_preset for scores_by_preset in scores_by_card)
    }
    if not stacks:
        stacks_by_card = (
            f"{name} has {', '.join(scores_by_preset) or 'none'}"
            for name, scores_by_preset in zip(names, scores_by_card, strict=True)
        )
        raise ConfigError(f"these cards have no stack in common: {'; '.join(stacks_by_card)}")
    conditions = {"window": [card.window for card in cards]}
    conditions |= {
        f"traffic of {preset}": [score.gen for score in scores] for preset, scores in stacks.items()
    }
    for condition, values in conditions.items():
        names_by_value = {
            value: name for value, name in zip(values, names, strict=True) if value is not None
        }
        if len(names_by_value) > 1:
            differences = "; ".join(f"{name}: {value}" for value, name in names_by_value.items())
            raise ConfigError(
                f"these scorecards are of different tests: the {condition} differs: {differences}"
            )
    pairs = [(scores[0], other_score) for scores in stacks.values() for other_score in scores[1:]]
    together = len(pairs) + _HEADLINE_FIGURES * sum(
        _is_same_load(first, other_score) for first, other_score in pairs
    )
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
        warnings=list(_warnings(names, cards, stacks)),
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


def _warnings(
    names: Sequence[str], cards: Sequence[Card], stacks: dict[str, list[Score]]
) -> Iterator[str]:
    if len({card.version for card in cards}) > 1:
        yield "the scorecards are of different versions of kvreplay, which may measure differently"
    for preset, scores in stacks.items():
        if any(_has_other_trace(scores[0], other_score) for other_score in scores):
            yield (
                f"{preset}: the traces differ at {counted(scores[0].at_users, 'user')}, so it is"
                " inconclusive"
            )
    for name, card in zip(names, cards, strict=True):
        if card.status != "complete":
            yield f"{name} is PARTIAL: {card.status}"
        if unmatched := [score.preset for score in card.scores if score.preset not in stacks]:
            yield f"only {name} has {', '.join(unmatched)}"
        for score in card.scores:
            if score.preset in stacks and score.is_by_chance:
                window = (
                    f"the window of {score.preset} holds {counted(score.requests or 0, 'request')}"
                )
                yield f"{name}: {window}, too few for a verdict on users"
            if score.preset in stacks and not (score.each and score.tried):
                yield (f"{name} does not list the runs of {score.preset}, so it is inconclusive")


def _lines(scores: Sequence[Score], together: int) -> Iterator[ComparedLine]:
    """Yield the figures of one stack, a line each."""
    first, preset = scores[0], scores[0].preset
    sides = [
        ComparedSide(
            median=score.users,
            low=score.users,
            high=score.lost_users,
            ratio=_ratio_of_users(first, score, together),
        )
        for score in scores
    ]
    yield ComparedLine(tier=preset, op="", name="users", sides=sides)
    for field, (op, name) in _FIGURES.items():
        values = [[getattr(trial, field) for trial in score.each or [score]] for score in scores]
        if any(value is not None for score_values in values for value in score_values):
            bases = [values[0] if _is_same_load(first, score) else None for score in scores]
            sides = [
                compared_side(score_values, base, together)
                for score_values, base in zip(values, bases, strict=True)
            ]
            yield ComparedLine(tier=preset, op=op, name=name, sides=sides)


def _ratio_of_users(a: Score, b: Score, together: int) -> Ratio:
    """Return the ratio of the sustained users of `b` to those of `a`, with its interval.

    Profile likelihood of the shift of log(users), maximised over the width of the logistic curve:

        for each drive: log-likelihood of its outcomes by width and by its limit (grid)
        for each shift s: maximum over width and limit of a(width, limit) + b(width, limit + s)
        interval = shifts within chi-square / 2 (times `_CAUTION`) of the best

    There is no interval unless both cards list their runs. Source: likelihood-ratio intervals, as
    in Pawitan, In All Likelihood (2001).
    """
    value = b.users / a.users if a.users and b.users else None
    runs = [
        np.array([(np.log(t.users), t.held_trials, t.trials) for t in runs_of_side.tried]).T
        for runs_of_side in (a, b)
    ]
    if not (a.tried and b.tried) or _has_other_trace(a, b) or a.is_by_chance or b.is_by_chance:
        return Ratio(value=value, low=None, high=None, differs=None)
    loads = [load for runs_of_side in runs for load in runs_of_side[0]]
    grid = np.arange(min(loads) - 1, max(loads) + 1, _STEP)
    width = np.geomspace(*_WIDTHS)[:, None]

    def likelihoods(outcomes_of_drive: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-likelihood by width (rows) and by limit (columns)."""
        beyond = [np.clip((grid - load) / width, -30, 30) for load in outcomes_of_drive[0]]
        outcomes = zip(beyond, outcomes_of_drive[1], outcomes_of_drive[2], strict=True)
        return -sum(
            sustained * np.log1p(np.exp(-x)) + (trials - sustained) * np.log1p(np.exp(x))
            for x, sustained, trials in outcomes
        )

    own_likelihood, other_likelihood = likelihoods(runs[0]), likelihoods(runs[1])
    best = (own_likelihood.max(1) + other_likelihood.max(1)).max()
    shifts = range(1 - len(grid), len(grid))
    threshold = best - _CAUTION * NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / together / 2) ** 2 / 2
    points = len(grid)
    joint_likelihoods = (
        (
            shift,
            own_likelihood[:, max(0, -shift) : points - max(0, shift)]
            + other_likelihood[:, max(0, shift) : points + min(0, shift)],
        )
        for shift in shifts
    )
    plausible_shifts = [
        shift for shift, likelihood in joint_likelihoods if likelihood.max() >= threshold
    ]
    low, high = (
        None if abs(shift) == shifts[-1] else float(np.exp(shift * _STEP))
        for shift in (plausible_shifts[0], plausible_shifts[-1])
    )
    return Ratio(value=value, low=low, high=high, differs=not ((low or 0) <= 1 <= (high or 1)))


def _verdict(
    names: Sequence[str], stacks: dict[str, list[Score]], lines: Sequence[ComparedLine], at: int
) -> str:
    """Return the verdict of side `at` against the first, by stack."""
    a, b = names[0], names[at]
    more, fewer, load_differences, similar = (list[str]() for _ in range(4))
    judged = [("", "users"), *list(_FIGURES.values())[:_HEADLINE_FIGURES]]
    for preset, scores in stacks.items():
        ratios = {(line.op, line.name): line for line in lines if line.tier == preset}
        significant = [
            ratios[stack_texts]
            for stack_texts in judged
            if stack_texts in ratios and ratios[stack_texts].sides[at].ratio.differs
        ]
        unit = "user" if scores[at].users is None and scores[at].at_users == 1 else "users"
        description = f"{preset} ({users_of(scores[at])} {unit}, {a} {users_of(scores[0])})"
        if not significant:
            similar.append(description)
        elif significant[0].name == "users":
            (fewer if (significant[0].sides[at].ratio.high or 1) < 1 else more).append(description)
        else:
            load_differences.append(
                f"at {counted(scores[at].at_users, 'user')} under {preset}"
                f" {' and '.join(clauses(significant, a, b, at))}"
            )
    if len(similar) == len(stacks):
        return f"no significant difference between {b} and {a}: {', '.join(similar)}"
    users = {
        f"{b} sustains more users than {a} under": more,
        f"{b} sustains fewer users than {a} under": fewer,
    }
    sentences = [
        f"{claim} {', '.join(stack_texts)}"
        for claim, stack_texts in (users | {"no significant difference:": similar}).items()
        if stack_texts
    ]
    return "; ".join([*load_differences, *sentences])


def users_of(score: Score) -> str:
    """Return the interval of loads that holds the limit of the drive."""
    if score.users is None:
        return f"less than {score.at_users:g}"
    return f"{score.users:g}" + (
        " or more" if score.lost_users is None else f" to {score.lost_users:g}"
    )


def cards_document(compared: Comparison, cards: Sequence[Card]) -> Document:
    """Return the document of `compared`, the comparison of `cards`."""
    numbers = [f"[{index}]" for index in range(len(cards))]
    presets = list(dict.fromkeys(line.tier for line in compared.lines))
    scores = [
        (preset, number, next(score for score in card.scores if score.preset == preset))
        for preset in presets
        for number, card in zip(numbers, cards, strict=True)
    ]
    rows = [
        {
            "stack": preset,
            "side": number,
            "users": users_of(score),
            "at": score.at_users,
            "trials": score.trials,
            "limit": score.limit,
        }
        for preset, number, score in scores
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
        f"{preset} {number}": (score.users or 0.0, score.lost_users or score.users or 0.0)
        for preset, number, score in scores
    }
    times = {
        f"{preset} {number}, {counted(score.at_users, 'user')}": (
            float(min(tails)),
            float(max(tails)),
        )
        for preset, number, score in scores
        if (tails := [trial.read_p99_ns for trial in score.each if trial.read_p99_ns is not None])
    }
    marks = {True: "differs", False: "not significant", None: "not judged"}
    charts = [
        _range_chart(
            "Sustained users: highest load that passed to lowest that failed",
            "users",
            Unit.NUMBER,
            users,
        )
    ]
    if times:
        charts.append(
            _range_chart(
                "Read p99: minimum to maximum of the trials", "response time", Unit.NS, times
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
                str(text)
                for text in (f"{number} {name}", card.model, card.device, card.filesystem)
                if text
            )
            for number, name, card in zip(numbers, compared.names, cards, strict=True)
        ],
        warnings=compared.warnings,
        highlights=[
            Highlight(
                f"users under {line.tier}, {name}",
                side.median,
                Unit.NUMBER,
                marks[side.ratio.differs],
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


def _range_chart(
    title: str, x_title: str, unit: Unit, ranges: dict[str, tuple[float, float]]
) -> Chart:
    # The first row is at the top; a range without width is widened, so that it is visible.
    rows = [(name, low, max(high, low * 1.01)) for name, (low, high) in reversed(ranges.items())]
    names, lows, highs = (list(column) for column in zip(*rows, strict=True))
    series = Series("drive", lows, [float(row) for row in range(len(rows))], highs)
    return Chart(
        title, ChartShape.RANGES, unit, Unit.NUMBER, [series], x_title=x_title, y_names=tuple(names)
    )
