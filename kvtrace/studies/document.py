"""Findings of a study, and the report of them.

The report has the answer in a sentence, the best configurations, the cheapest that meets the
target, the sensitivity to each knob, and all configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Final

from kvtrace.core.config import as_text
from kvtrace.core.document import document as doc
from kvtrace.core.metadata import STALLS
from kvtrace.core.statistics import is_memory, mean
from kvtrace.core.units import counted, format_bytes, format_prices
from kvtrace.curves.points import Timed
from kvtrace.curves.size import Target
from kvtrace.sim.baseline import slower_note
from kvtrace.studies.run import Failed, StudyRow
from kvtrace.studies.study import SEED, Study, Value

MAX_SHOWN = 10
"""Largest number of best configurations in the report."""
_MAX_MAPS, _MAX_CELLS = 6, 400
UNKNOWN_TIME: Final = "unknown: too few requests for that percentile, or nothing takes time"


def document(findings: Findings, name: str, *, is_page: bool) -> doc.Document:
    """Return the report; a page also has maps of two knobs, and every configuration."""
    strongest = measure_sensitivities(findings.study, findings.rows)
    best_candidates = findings.candidates[:MAX_SHOWN]
    hidden_count = len(findings.candidates) - len(best_candidates)
    note = f"{hidden_count} more; results.parquet has all" if hidden_count else ""
    title = (
        "best first"
        if findings.target is None
        else "the target reached, the cheapest first; then the others by hit rate"
    )
    chapters = [doc.Chapter("", [_candidate_table(findings, title, best_candidates, note)])]
    if (costs := _cost_table(findings)) is not None:
        chapters.append(doc.Chapter("What a hit costs", [costs]))
    if strongest:
        chapters.append(
            doc.Chapter("Effect of each knob", [_knobs_table(strongest)], [_HOW_SENSITIVE])
        )
    if is_page:
        # Maps show the pairs with the strongest effect, if their cells are few enough to read.
        sizes = {key: len(values) for key, values in findings.study.axes.items()}
        pairs = [
            (a.key, b.key)
            for a, b in combinations(strongest, 2)
            if sizes[a.key] * sizes[b.key] <= _MAX_CELLS
        ]
        if maps := [_map(findings, *pair) for pair in pairs[:_MAX_MAPS]]:
            chapters.append(
                doc.Chapter("Two knobs at a time", maps, ["mean hit rate over all other knobs"])
            )
        every = _configurations(findings, findings.rows, _FIGURE_COLUMNS)
        chapters.append(doc.Chapter("All configurations", [every], is_folded=True))
    best = findings.best
    completed, planned = len(findings.rows), len(findings.study.configurations)
    notes = [
        f"{counted(completed, 'configuration')}, each simulated once; all figures are simulated"
    ]
    warnings = (
        [f"PARTIAL: {completed} of {planned} configurations are done"]
        if completed < planned
        else []
    )
    answers = {"best": best, "cheapest": findings.cheapest}
    warnings += [
        f"the {name}: {note}"
        for name, candidate in answers.items()
        if candidate is not None and candidate.rows[0].figures is not None
        for note in candidate.rows[0].figures.notes
    ]
    warnings += _notes_of_others(findings, [answer for answer in answers.values() if answer])
    wear_keys = [key for key in ("drive-size", "endurance") if key in findings.study.keys]
    if wear_keys and not any(
        row.figures and row.figures.drive_written_bytes for row in findings.rows
    ):
        warnings.append(
            f"{' and '.join(wear_keys)}: no tier is a drive; memory and buckets do not wear"
        )
    if findings.failed:
        error = next(row.result.error for row in findings.failed if isinstance(row.result, Failed))
        warnings.append(
            f"{len(findings.failed)} of {completed} configurations failed, the first with: {error}"
        )
        chapters.append(
            doc.Chapter(
                "Failed",
                [
                    _configurations(
                        findings,
                        findings.failed,
                        [
                            doc.ReportColumn("error"),
                        ],
                    )
                ],
            )
        )
    highlights = [
        doc.Highlight("best hit rate", best.hit_ratio, doc.Unit.SHARE, "of lookups, in any tier"),
        doc.Highlight(
            "prompt tokens computed again",
            best.recomputed_tokens,
            doc.Unit.COUNT,
            "at the best hit rate",
        ),
    ]
    if best.cost is not None:
        highlights.append(
            doc.Highlight(findings.study.cost_name, best.cost, _cost_unit(findings), "of the best")
        )
    return doc.Document(name, first_line(findings), chapters, notes, highlights, warnings)


_HOW_SENSITIVE = (
    "a knob's swing: mean hit rate at its best value less that at its worst, over groups of"
    " configurations that are equal in all else; at most: the largest difference within one such"
    " group"
)


def _notes_of_others(findings: Findings, answers: Sequence[Candidate]) -> list[str]:
    """Return the notes that none of the `answers` has, with the first configuration that has them.

    The number of GPUs may have been chosen, and then configurations differ by more than the knobs.
    """
    figures = [(row.configuration, row.figures) for row in findings.rows if row.figures]
    if len({result.notes for _, result in figures}) == 1:
        return []
    said = {
        note
        for answer in answers
        if answer.rows[0].figures
        for note in answer.rows[0].figures.notes
    }
    first_of = {
        note: configuration
        for configuration, result in reversed(figures)
        for note in result.notes
        if note not in said
    }
    varied = findings.study.varied
    return [f"{configuration.named(varied)}: {note}" for note, configuration in first_of.items()]


def _cost_unit(findings: Findings) -> doc.Unit:
    return doc.Unit.NUMBER if findings.study.has_prices else doc.Unit.BYTES


def _candidate_table(
    findings: Findings,
    title: str,
    candidates: list[Candidate],
    note: str,
    charts: Sequence[doc.Chart] = (),
) -> doc.ReportTable:
    """Return a table with a row for each of `candidates`; figures that no candidate has are left out."""
    measured_names = {
        "hit_ratio", "recomputed_tokens", "read", "read_p99", "written", "written_p99",
        *(
            name
            for candidate in findings.candidates
            for name, value in _figures(candidate).items()
            if value is not None
        ),
    }  # fmt: skip
    figures = [
        doc.ReportColumn("hit_ratio", "hits", doc.Unit.SHARE),
        doc.ReportColumn("optimal_hit_ratio", "optimal", doc.Unit.SHARE),
        doc.ReportColumn("recomputed_tokens", "recomputed tokens", doc.Unit.COUNT),
        doc.ReportColumn("first_token_p99_ns", "TTFT p99", doc.Unit.NS),
        doc.ReportColumn("works", "offload"),
        doc.ReportColumn("read", "read from storage", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("read_p99", "peak rate (p99 second)", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("written", "written to it", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("written_p99", "peak rate (p99 second)", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("drive_writes_per_day", "DWPD", doc.Unit.NUMBER),
        doc.ReportColumn("life_years", "life", doc.Unit.YEARS),
    ]
    keys = findings.study.varied
    keyed = [doc.ReportColumn(f"knob.{key}", key) for key in keys]
    cost = doc.ReportColumn("cost", findings.study.cost_name, _cost_unit(findings))
    columns = [*keyed, *(column for column in figures if column.name in measured_names), cost]
    rows = [
        {
            **{f"knob.{key}": as_text(candidate.knobs.get(key)) for key in keys},
            **_figures(candidate),
        }
        for candidate in candidates
    ]
    return doc.table_of(
        title, doc.Sheet.SUMMARY, columns, rows, note, charts=tuple(charts), keys=len(keys)
    )


def _figures(candidate: Candidate) -> dict[str, float | str | None]:
    """Return the figures of `candidate` by column; the mean over its seeds, null if unknown."""
    tiers_by_seed = [row.figures.tiers for row in candidate.rows if row.figures]
    storage = [tiers[-1] for tiers in tiers_by_seed if not is_memory(tiers[-1].name)]
    drives = [
        tier
        for tiers in tiers_by_seed
        for tier in tiers
        if (tier.drive_writes_per_day, tier.life_years) != (None, None)
    ]
    reads = [rate for tier in storage if (rate := tier.rates.read_bytes_per_s) is not None]
    writes = [rate for tier in storage if (rate := tier.rates.write_bytes_per_s) is not None]
    works = None if candidate.is_working else "slower than computing"
    return {
        "works": works,
        "read": mean([rate.mean for rate in reads]),
        "read_p99": mean([rate.p99_second for rate in reads]),
        "written": mean([rate.mean for rate in writes]),
        "written_p99": mean([rate.p99_second for rate in writes]),
        "optimal_hit_ratio": mean(
            [row.figures.optimal_hit_ratio for row in candidate.rows if row.figures]
        ),
        "drive_writes_per_day": mean([tier.drive_writes_per_day for tier in drives]),
        "life_years": mean([tier.life_years for tier in drives]),
        **{
            name: getattr(candidate, name)
            for name in ("hit_ratio", "recomputed_tokens", "first_token_p99_ns", "cost")
        },
    }


def _cost_table(findings: Findings) -> doc.ReportTable | None:
    """Return the candidates on the Pareto front of cost and hit rate, with charts.

    None if all costs are equal.
    """
    costs = {candidate.cost for candidate in findings.candidates} - {None}
    if len(costs) < 2:  # noqa: PLR2004 - a single cost gives no axis
        return None

    def hit_ratio(candidate: Candidate) -> float | None:
        return candidate.hit_ratio

    def negative_p99_ns(candidate: Candidate) -> float | None:
        return candidate.first_token_p99_ns and -candidate.first_token_p99_ns

    charts = [_cost_chart(findings, hit_ratio, "hit rate", doc.Unit.SHARE)]
    if any(candidate.first_token_p99_ns is not None for candidate in findings.candidates):
        charts.append(_cost_chart(findings, negative_p99_ns, "p99 to the first token", doc.Unit.NS))
    note = (
        f"No configuration of the same or a lower {findings.study.cost_name} has more hits"
        " (Pareto)."
    )
    return _candidate_table(findings, "", front(findings.candidates, hit_ratio), note, charts)


def _cost_chart(
    findings: Findings, gain: Callable[[Candidate], float | None], name: str, unit: doc.Unit
) -> doc.Chart:
    """Return a chart of `gain` against cost; it shows the absolute value of `gain`."""
    keys = findings.study.varied
    comparable = [
        candidate
        for candidate in findings.candidates
        if candidate.cost is not None and gain(candidate) is not None
    ]
    candidates_by_label = {
        "configurations": comparable,
        "not exceeded": front(findings.candidates, gain),
    }
    series = [
        doc.Series(
            label,
            [candidate.cost or 0.0 for candidate in candidates],
            [abs(gain(candidate) or 0.0) for candidate in candidates],
            texts=[
                ", ".join(f"{key}={as_text(candidate.knobs.get(key))}" for key in keys)
                for candidate in candidates
            ],
            is_joined=label != "configurations",
        )
        for label, candidates in candidates_by_label.items()
    ]
    title = f"{name} against {findings.study.cost_name}"
    cost = findings.study.cost_name
    return doc.Chart(
        title, doc.ChartShape.POINTS, _cost_unit(findings), unit, series, x_title=cost, y_title=name
    )


def _knobs_table(sensitivities: Sequence[Sensitivity]) -> doc.ReportTable:
    """Return the table and the chart of `sensitivities`."""
    columns = [
        doc.ReportColumn("knob"),
        doc.ReportColumn("swing", "swing (points)", doc.Unit.NUMBER),
        doc.ReportColumn("most", "at most", doc.Unit.NUMBER),
        doc.ReportColumn("best", "best at"),
        doc.ReportColumn("worst", "worst at"),
        doc.ReportColumn("groups", unit=doc.Unit.COUNT),
    ]
    rows = [
        [
            *(sensitivity.key, 100 * sensitivity.swing, 100 * sensitivity.most),
            *(
                pick(sensitivity.means, key=sensitivity.means.__getitem__)
                if sensitivity.swing
                else None
                for pick in (max, min)
            ),
            sensitivity.groups,
        ]
        for sensitivity in sensitivities
    ]
    weakest_first = sensitivities[::-1]
    chart = doc.Chart(
        "mean hit rate, from the worst to the best value of each knob",
        *(doc.ChartShape.RANGES, doc.Unit.SHARE, doc.Unit.TEXT),
        [doc.Series("hit rate",
                [min(sensitivity.means.values()) for sensitivity in weakest_first],
                [float(y) for y in range(len(weakest_first))],
                [max(sensitivity.means.values()) for sensitivity in weakest_first])],
        x_title="hit rate", y_names=tuple(sensitivity.key for sensitivity in weakest_first),
    )  # fmt: skip
    return doc.table_of("", doc.Sheet.SUMMARY, columns, rows, charts=(chart,))


def _map(findings: Findings, along: str, up: str) -> doc.ReportTable:
    """Return the mean hit rate by the values of two knobs, as a table and a map."""
    xs, ys = ([as_text(value) for value in findings.study.axes[key]] for key in (along, up))
    ratios: dict[tuple[str, str], list[float]] = {}
    for candidate in findings.candidates:
        values = as_text(candidate.knobs.get(along)), as_text(candidate.knobs.get(up))
        ratios.setdefault(values, []).append(candidate.hit_ratio)
    means = {values: fmean(hit_ratios) for values, hit_ratios in ratios.items()}
    lowest, highest = min(means.values()), max(means.values())
    cells = [
        (float(x), float(y), means[a, b])
        for x, a in enumerate(xs)
        for y, b in enumerate(ys)
        if (a, b) in means
    ]
    series = doc.Series(
        "hit rate",
        [x for x, _, _ in cells],
        [y for _, y, _ in cells],
        [(value - lowest) / (highest - lowest) if highest > lowest else 0.5 for *_, value in cells],
        texts=[f"{100 * value:.1f}" for *_, value in cells],
    )
    title = f"hit rate (%) by {along} and {up}"
    chart = doc.Chart(
        *(title, doc.ChartShape.MAP, doc.Unit.TEXT, doc.Unit.TEXT, [series]),
        x_names=tuple(xs), y_names=tuple(ys), x_title=along, y_title=up,
    )  # fmt: skip
    columns = [
        doc.ReportColumn("value", f"{up} \\ {along}"),
        *(doc.ReportColumn(x, x, doc.Unit.SHARE) for x in xs),
    ]
    rows = [[y, *(means.get((x, y)) for x in xs)] for y in ys]
    return doc.ReportTable(title, doc.Sheet.SUMMARY, columns, rows, (chart,))


_FIGURE_COLUMNS: Final = [
    doc.ReportColumn("hit_ratio", "hits", doc.Unit.SHARE),
    doc.ReportColumn("requests", unit=doc.Unit.COUNT),
    doc.ReportColumn("input_tokens", "prompt tokens", doc.Unit.COUNT),
    doc.ReportColumn("recomputed_tokens", "computed again", doc.Unit.COUNT),
    doc.ReportColumn("p50", "first token p50", doc.Unit.NS),
    doc.ReportColumn("p99", unit=doc.Unit.NS),
    doc.ReportColumn("capacity", unit=doc.Unit.BYTES),
    doc.ReportColumn("price", unit=doc.Unit.NUMBER),
]
"""The columns of every configuration that was simulated, after those of its knobs."""


def _configurations(
    findings: Findings, rows: Sequence[StudyRow], columns: Sequence[doc.ReportColumn]
) -> doc.ReportTable:
    """Build a table with a row a configuration: its number, its knobs, then `columns`."""
    keys = list(findings.study.axes)
    keyed = [
        doc.ReportColumn("configuration", unit=doc.Unit.COUNT),
        *(doc.ReportColumn(f"knob.{key}", key) for key in keys),
    ]
    names = ("hit_ratio", "requests", "input_tokens", "recomputed_tokens")
    cells = [
        {
            "configuration": row.configuration.number,
            "capacity": row.capacity_bytes,
            "price": row.price,
        }
        | {f"knob.{key}": as_text(row.configuration.knobs.get(key)) for key in keys}
        | {name: getattr(row.figures, name, None) for name in names}
        | {name: row.first_token_ns(f"{name}_ns") for name in ("p50", "p99")}
        | {"error": getattr(row.result, "error", None)}
        for row in rows
    ]
    return doc.table_of("", doc.Sheet.SUMMARY, [*keyed, *columns], cells, keys=len(keyed))


@dataclass(frozen=True, slots=True)
class Candidate(Timed):
    """Configurations that differ only in their seed; figures are means over the seeds."""

    number: int
    """Number of the first configuration."""
    knobs: dict[str, Value]
    rows: list[StudyRow]
    hit_ratio: float
    cost: float | None
    """The price, or without prices the bytes of all tiers; null if unknown."""

    def first_token_ns(self, quantile: str) -> float | None:
        """Return a quantile of the modelled TTFT in ns; null if it is unknown for a seed."""
        return mean([row.first_token_ns(quantile) for row in self.rows])

    @property
    def goodput_share(self) -> float | None:
        """Return the share of requests within the service level, the mean over the seeds."""
        return mean([row.figures.goodput_share for row in self.rows if row.figures])

    @property
    def slower(self) -> str | None:
        """Return what to say if loads are slower than computing; None if they are not."""
        notes = [slower_note(row.figures.first_token) for row in self.rows if row.figures]
        return next((note for note in notes if note), None)

    @property
    def is_working(self) -> bool:
        """Tell whether the offload is not slower than computing."""
        return self.slower is None

    @property
    def stalled_requests(self) -> int:  # type: ignore[override]
        """Return the number of requests that never start, over all seeds."""
        return sum(row.figures.stalled_requests or 0 for row in self.rows if row.figures)

    @property
    def requests(self) -> int:  # type: ignore[override]
        """Return the mean number of requests."""
        return round(fmean(row.figures.requests for row in self.rows if row.figures))

    @property
    def first_token_p99_ns(self) -> float | None:
        """Return the p99 of the modelled TTFT in ns."""
        return self.first_token_ns("p99_ns")

    @property
    def recomputed_tokens(self) -> int:
        """Return the prompt tokens that no tier held and the engine computed again."""
        return round(fmean(row.figures.recomputed_tokens for row in self.rows if row.figures))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Change of the hit rate when only one knob changes.

    Only complete groups count: configurations equal but for the knob, with a result for each value.
    """

    key: str
    means: dict[str, float]
    """The mean hit rate with each value."""
    groups: int
    most: float
    """The largest difference between two values within one group; a field of --json."""

    @property
    def swing(self) -> float:
        """Return the difference between the largest and the smallest mean hit rate."""
        return max(self.means.values()) - min(self.means.values())


@dataclass(frozen=True, slots=True)
class Findings:
    """The answer of a study."""

    study: Study
    rows: list[StudyRow]
    candidates: list[Candidate]
    """Candidates, best first: those that meet the target by cost, then the others by hit rate."""
    target: Target | None

    @property
    def best(self) -> Candidate:
        """Return the candidate with the highest hit rate, the cheapest if several have it.

        One whose loads are slower than computing is the best only if all are.
        """
        return min(
            self.candidates,
            key=lambda candidate: (
                not candidate.is_working,
                -candidate.hit_ratio,
                _cost_key(candidate.cost),
                candidate.number,
            ),
        )

    @property
    def cheapest(self) -> Candidate | None:
        """Return the cheapest candidate of known cost that meets the target; null if none does."""
        reaching = [
            candidate
            for candidate in self.candidates
            if self.target and candidate.cost is not None and self.target.is_met(candidate)
        ]
        reaching = [candidate for candidate in reaching if candidate.is_working] or reaching
        return min(
            reaching,
            key=lambda candidate: (
                _cost_key(candidate.cost),
                -candidate.hit_ratio,
                candidate.number,
            ),
            default=None,
        )

    @property
    def nearest(self) -> Candidate | None:
        """Return the candidate nearest to the target; null if its TTFT quantile is unknown."""
        if self.target is None or self.target.first_token is None:
            return self.best
        quantile, _ = self.target.first_token
        times = [
            (time_ns, candidate)
            for candidate in self.candidates
            if (time_ns := candidate.first_token_ns(quantile)) is not None
        ]
        return min(times, key=lambda timed: timed[0], default=(None, None))[1]

    @property
    def failed(self) -> list[StudyRow]:
        """Return the rows of the configurations that failed."""
        return [row for row in self.rows if row.figures is None]


def collect_findings(study: Study, rows: list[StudyRow], target: Target | None) -> Findings:
    """Return the findings of `rows`, which are some or all of `study`."""
    by_knobs: dict[tuple[tuple[str, Value], ...], list[StudyRow]] = {}
    for row in rows:
        if row.figures is not None and row.figures.hit_ratio is not None:
            knobs = tuple(
                (key, value) for key, value in row.configuration.knobs.items() if key != SEED
            )
            by_knobs.setdefault(knobs, []).append(row)
    candidates = [
        Candidate(
            number=seeds[0].configuration.number,
            knobs=dict(knobs),
            rows=seeds,
            hit_ratio=fmean(
                row.figures.hit_ratio
                for row in seeds
                if row.figures and row.figures.hit_ratio is not None
            ),
            cost=seeds[0].price if study.has_prices else seeds[0].capacity_bytes,
        )
        for knobs, seeds in by_knobs.items()
    ]

    def order(candidate: Candidate) -> tuple[bool, float, float, float, int]:
        is_good = target is not None and candidate.cost is not None and target.is_met(candidate)
        cost = _cost_key(candidate.cost)
        return (
            not is_good,
            cost if is_good else 0.0,
            -candidate.hit_ratio,
            cost,
            candidate.number,
        )

    return Findings(study, rows, sorted(candidates, key=order), target)


def _cost_key(cost: float | None) -> float:
    """Return `cost` as a sort key; an unknown cost comes last."""
    return float("inf") if cost is None else cost


def front(
    candidates: Sequence[Candidate], gain: Callable[[Candidate], float | None]
) -> list[Candidate]:
    """Return the Pareto front of cost and `gain`, the cheapest first.

    No candidate of the same or a lower cost exceeds one of the front in `gain`.
    """
    ranked = []
    for candidate in candidates:
        value = gain(candidate)
        if candidate.cost is not None and value is not None:
            ranked.append((candidate.cost, -value, candidate.number, candidate))
    pareto: list[Candidate] = []
    highest = float("-inf")
    for _cost, negative_value, _number, candidate in sorted(ranked, key=lambda item: item[:3]):
        if -negative_value > highest:
            highest = -negative_value
            pareto.append(candidate)
    return pareto


def measure_sensitivities(study: Study, rows: Sequence[StudyRow]) -> list[Sensitivity]:
    """Return the sensitivity to each knob that varies, the strongest first.

    The seed and knobs that never vary alone are left out.
    """
    ratios = [
        (row.configuration.knobs, row.figures.hit_ratio)
        for row in rows
        if row.figures is not None and row.figures.hit_ratio is not None
    ]
    sensitivities = []
    for key in study.varied:
        values = [as_text(value) for value in study.axes[key]]
        groups: dict[tuple[tuple[str, Value], ...], dict[str, float]] = {}
        for knobs, ratio in ratios:
            other_knobs = tuple((name, value) for name, value in knobs.items() if name != key)
            groups.setdefault(other_knobs, {})[as_text(knobs.get(key))] = ratio
        complete = [group for group in groups.values() if len(group) == len(values)]
        if complete:
            means = {value: fmean(group[value] for group in complete) for value in values}
            max_difference = max(max(group.values()) - min(group.values()) for group in complete)
            sensitivities.append(Sensitivity(key, means, len(complete), max_difference))
    return sorted(sensitivities, key=lambda sensitivity: -sensitivity.swing)


def first_line(findings: Findings) -> str:
    """Return the answer in one sentence."""
    best, cheapest, target = findings.best, findings.cheapest, findings.target
    answers = (
        None if candidate is None else candidate.rows[0].configuration
        for candidate in (best, cheapest, findings.nearest)
    )
    at_best, at_cheapest, nearest = (
        None if configuration is None else configuration.named(findings.study.varied)
        for configuration in answers
    )
    line = f"best hit rate {_ratio(best)} at {at_best}{_cost_of(findings, best)}{stalls_of(best)}"
    warnings = dict.fromkeys(
        candidate.slower for candidate in (best, cheapest) if candidate and candidate.slower
    )
    line = "; ".join([*(warning for warning in warnings if warning), line])
    if target is None:
        return f"{line}{_prices_of(findings)}"
    if cheapest is None:
        is_met = any(target.is_met(candidate) for candidate in findings.candidates)
        reason = (
            "only configurations with an unlimited tier reach it" if is_met else "none reaches it"
        )
        if findings.nearest is not best and not is_met:
            reason = f"{reason}, the nearest is {nearest}" if nearest else UNKNOWN_TIME
        return f"{line}; for {target.describe()}: {reason}{_prices_of(findings)}"
    kind = "cheapest" if findings.study.has_prices else "smallest"
    how = f"{at_cheapest} ({_ratio(cheapest)}{_cost_of(findings, cheapest)}{stalls_of(cheapest)})"
    return f"{line}; {kind} for {target.describe()}: {how}{_prices_of(findings)}"


def _prices_of(findings: Findings) -> str:
    """Return the prices that give a cost its unit, as the end of the answer; "" without prices."""
    prices = findings.study.price
    return f"; prices: {format_prices(prices)}" if prices else ""


def stalls_of(candidate: Candidate) -> str:
    """Return the number of stalled requests over all seeds as text; "" for none."""
    stalled = candidate.stalled_requests
    return f", {STALLS} in {counted(stalled, 'request')}" if stalled else ""


def _ratio(candidate: Candidate) -> str:
    """Return the hit rate, with its range over the seeds."""
    hit_ratios = [
        row.figures.hit_ratio
        for row in candidate.rows
        if row.figures and row.figures.hit_ratio is not None
    ]
    line = f"{100 * candidate.hit_ratio:.1f} %"
    if (seeds := len({row.configuration.knobs.get(SEED) for row in candidate.rows})) > 1:
        line += f" ({100 * min(hit_ratios):.1f} to {100 * max(hit_ratios):.1f} over {seeds} seeds)"
    return line


def _cost_of(findings: Findings, candidate: Candidate) -> str:
    """Return the cost of `candidate` as text; "" if unknown."""
    if candidate.cost is None:
        return ""
    if not findings.study.has_prices:
        return f", {format_bytes(candidate.cost)} in all tiers"
    return f", {findings.study.cost_name} {doc.show(candidate.cost, doc.Unit.NUMBER)}"
