"""What a study comes to, and that as a document.

The answer in a sentence, the best configurations, the cheapest that is good enough, what each knob
does, and all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, Final

from kvtrace.core.config import as_text
from kvtrace.core.document import document as doc
from kvtrace.core.metadata import STALLS
from kvtrace.core.statistics import is_memory, mean
from kvtrace.core.units import counted, format_bytes
from kvtrace.curves.points import Timed
from kvtrace.curves.size import Target
from kvtrace.study.run import Failed, StudyRow
from kvtrace.study.study import SEED, Study, Value

MOST_SHOWN = 10
"""Of the best configurations."""
_MOST_MAPS, _MOST_CELLS = 6, 400
UNKNOWN_TIME: Final = "not known: too few requests for that percentile, or nothing takes time"


def document(found: Findings, name: str, *, is_page: bool) -> doc.Document:
    """Return what was found; a page also has maps of two knobs, and every configuration."""
    strongest = sensitivities(found.study, found.rows)
    shown = found.candidates[:MOST_SHOWN]
    more = len(found.candidates) - len(shown)
    note = f"{more} more; results.parquet has all" if more else ""
    title = (
        "best first"
        if found.target is None
        else "the target reached, the cheapest first; then the others by hit ratio"
    )
    chapters = [doc.Chapter("", [_candidate_table(found, title, shown, note)])]
    if (costs := _cost_table(found)) is not None:
        chapters.append(doc.Chapter("What a hit costs", [costs]))
    if strongest:
        chapters.append(
            doc.Chapter("What each knob does", [_knobs_table(strongest)], [_HOW_SENSITIVE])
        )
    if is_page:
        # Of the pairs that do most those of which a map can be read.
        sizes = {key: len(values) for key, values in found.study.axes.items()}
        pairs = [
            (a.key, b.key)
            for a, b in combinations(strongest, 2)
            if sizes[a.key] * sizes[b.key] <= _MOST_CELLS
        ]
        if maps := [_map(found, *pair) for pair in pairs[:_MOST_MAPS]]:
            chapters.append(
                doc.Chapter(
                    "Two knobs at a time", maps, ["mean hit ratio over all else that varies"]
                )
            )
        every = _configurations(found, found.rows, _ALL_SPEC)
        chapters.append(doc.Chapter("All configurations", [every], is_folded=True))
    best, done, of = found.best, len(found.rows), len(found.study.configurations)
    notes = [f"{counted(done, 'configuration')}, each simulated once; all figures are simulated"]
    warnings = [f"PARTIAL: {done} of {of} configurations are done"] if done < of else []
    answers = {"best": best, "cheapest": found.cheapest}
    warnings += [
        f"the {name}: {note}"
        for name, one in answers.items()
        for note in (one.rows[0].figures.notes if one and one.rows[0].figures else ())
    ]
    worn = [key for key in ("drive-size", "endurance") if key in found.study.keys]
    if worn and not any(row.figures and row.figures.drive_written_bytes for row in found.rows):
        warnings.append(f"{' and '.join(worn)}: no tier is a drive; memory and buckets do not wear")
    if found.failed:
        error = next(row.found.error for row in found.failed if isinstance(row.found, Failed))
        warnings.append(
            f"{len(found.failed)} of {done} configurations failed, the first with: {error}"
        )
        chapters.append(
            doc.Chapter("Failed", [_configurations(found, found.failed, "text: error")])
        )
    highlights = [
        doc.Highlight("best hit ratio", best.hit_ratio, doc.Unit.SHARE, "of look-ups, in any tier"),
        doc.Highlight(
            "prompt tokens computed again",
            best.recomputed_tokens,
            doc.Unit.COUNT,
            "at the best hit ratio",
        ),
    ]
    if best.cost is not None:
        highlights.append(
            doc.Highlight(found.study.cost_name, best.cost, _cost_unit(found), "of the best")
        )
    return doc.Document(name, first_line(found), chapters, notes, highlights, warnings)


_HOW_SENSITIVE = (
    "a knob's swing: mean hit ratio at its best value less that at its worst, over groups of"
    " configurations that are equal in all else; at most: the largest difference within one such"
    " group"
)


def _cost_unit(found: Findings) -> doc.Unit:
    return doc.Unit.NUMBER if found.study.has_prices else doc.Unit.BYTES


def _candidate_table(
    found: Findings, title: str, shown: list[Candidate], note: str, charts: Sequence[doc.Chart] = ()
) -> doc.ReportTable:
    """Return a row for each of `shown`; what none of all candidates knows has no column."""
    known = {
        "hit_ratio", "recomputed_tokens", "read", "read_p99", "written", "written_p99",
        *(name for of in found.candidates for name, value in _figures(of).items() if value is not None),
    }  # fmt: skip
    figures = doc.columns_of("""
        share: hit_ratio = hits, optimal_hit_ratio = optimal
        count: recomputed_tokens = tokens computed again
        ns: first_token_p99_ns = first token p99
        bytes_per_s: read = read from storage, read_p99 = p99 of per-second rate,
            written = written to it, written_p99 = p99 of per-second rate
        number: drive_writes_per_day = drive writes a day
        years: life_years = life
    """)
    keys = found.study.varied
    keyed = [doc.ReportColumn(f"knob.{key}", key) for key in keys]
    cost = doc.ReportColumn("cost", found.study.cost_name, _cost_unit(found))
    columns = [*keyed, *(column for column in figures if column.name in known), cost]
    rows = [
        {f"knob.{key}": as_text(of.knobs.get(key)) for key in keys} | _figures(of) for of in shown
    ]
    return doc.table_of(
        title, doc.Sheet.SUMMARY, columns, rows, note, charts=tuple(charts), keys=len(keys)
    )


def _figures(of: Candidate) -> dict[str, Any]:
    tiers = [row.figures.tiers for row in of.rows if row.figures]
    storage = [each[-1] for each in tiers if not is_memory(each[-1].name)]
    drives = [
        tier
        for each in tiers
        for tier in each
        if (tier.drive_writes_per_day, tier.life_years) != (None, None)
    ]
    reads = [rate for tier in storage if (rate := tier.rates.read_bytes_per_s) is not None]
    writes = [rate for tier in storage if (rate := tier.rates.write_bytes_per_s) is not None]
    return {
        "read": mean([rate.mean for rate in reads]),
        "read_p99": mean([rate.p99_second for rate in reads]),
        "written": mean([rate.mean for rate in writes]),
        "written_p99": mean([rate.p99_second for rate in writes]),
        "optimal_hit_ratio": mean(
            [row.figures.optimal_hit_ratio for row in of.rows if row.figures]
        ),
        "drive_writes_per_day": mean([tier.drive_writes_per_day for tier in drives]),
        "life_years": mean([tier.life_years for tier in drives]),
        **{
            name: getattr(of, name)
            for name in ("hit_ratio", "recomputed_tokens", "first_token_p99_ns", "cost")
        },
    }


def _cost_table(found: Findings) -> doc.ReportTable | None:
    """Return those that nothing of their cost exceeds, with charts.

    None where costs do not differ.
    """
    if len({of.cost for of in found.candidates if of.cost is not None}) < 2:  # noqa: PLR2004 - no axis
        return None

    def hits(of: Candidate) -> float | None:
        return of.hit_ratio

    charts = [_cost_chart(found, hits, "hit ratio", doc.Unit.SHARE)]
    if any(of.first_token_p99_ns is not None for of in found.candidates):
        soonest = "p99 to the first token", doc.Unit.NS
        charts.append(
            _cost_chart(
                found, lambda of: of.first_token_p99_ns and -of.first_token_p99_ns, *soonest
            )
        )
    note = (
        f"Configurations that none of the same or a lower {found.study.cost_name} exceeds in hits"
        " (Pareto)."
    )
    return _candidate_table(found, "", front(found.candidates, hits), note, charts)


def _cost_chart(
    found: Findings, gain: Callable[[Candidate], float | None], name: str, unit: doc.Unit
) -> doc.Chart:
    keys = found.study.varied
    known = [of for of in found.candidates if of.cost is not None and gain(of) is not None]
    parts = {"configurations": known, "not exceeded": front(found.candidates, gain)}
    series = [
        doc.Series(
            label,
            [of.cost or 0.0 for of in listed],
            [abs(gain(of) or 0.0) for of in listed],
            texts=[
                ", ".join(f"{key}={as_text(of.knobs.get(key))}" for key in keys) for of in listed
            ],
            is_joined=label != "configurations",
        )
        for label, listed in parts.items()
    ]
    title = f"{name} against {found.study.cost_name}"
    cost = found.study.cost_name
    return doc.Chart(
        title, doc.ChartShape.POINTS, _cost_unit(found), unit, series, x_title=cost, y_title=name
    )


def _knobs_table(found: Sequence[Sensitivity]) -> doc.ReportTable:
    spec = """
        text: knob; number: swing = swing (points), most = at most
        text: best = best at, worst = worst at; count: groups
    """
    rows = [
        [
            *(of.key, 100 * of.swing, 100 * of.most),
            *(
                pick(of.means, key=of.means.__getitem__) if of.swing else None
                for pick in (max, min)
            ),
            of.groups,
        ]
        for of in found
    ]
    shown = found[::-1]
    chart = doc.Chart(
        "mean hit ratio, from the worst to the best value of each knob",
        *(doc.ChartShape.RANGES, doc.Unit.SHARE, doc.Unit.TEXT),
        [doc.Series("hit ratio", [min(of.means.values()) for of in shown], [float(y) for y in range(len(shown))],
                [max(of.means.values()) for of in shown])],
        x_title="hit ratio", y_names=tuple(of.key for of in shown),
    )  # fmt: skip
    return doc.table_of("", doc.Sheet.SUMMARY, spec, rows, charts=(chart,))


def _map(found: Findings, along: str, up: str) -> doc.ReportTable:
    xs, ys = ([as_text(value) for value in found.study.axes[key]] for key in (along, up))
    ratios: dict[tuple[str, str], list[float]] = {}
    for of in found.candidates:
        ratios.setdefault((as_text(of.knobs.get(along)), as_text(of.knobs.get(up))), []).append(
            of.hit_ratio
        )
    means = {at: fmean(each) for at, each in ratios.items()}
    least, most = min(means.values()), max(means.values())
    cells = [
        (float(x), float(y), means[a, b])
        for x, a in enumerate(xs)
        for y, b in enumerate(ys)
        if (a, b) in means
    ]
    series = doc.Series(
        "hit ratio",
        [x for x, _, _ in cells],
        [y for _, y, _ in cells],
        [(value - least) / (most - least) if most > least else 0.5 for *_, value in cells],
        texts=[f"{100 * value:.1f}" for *_, value in cells],
    )
    title = f"hit ratio (%) by {along} and {up}"
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


_ALL_SPEC: Final = """
    share: hit_ratio = hits
    count: requests, input_tokens = prompt tokens, recomputed_tokens = computed again
    ns: p50 = first token p50, p99 = p99
    bytes: capacity; number: price
"""


def _configurations(found: Findings, rows: Sequence[StudyRow], spec: str) -> doc.ReportTable:
    keys = list(found.study.axes)
    keyed = [
        *doc.columns_of("count: configuration"),
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
        | {"error": getattr(row.found, "error", None)}
        for row in rows
    ]
    return doc.table_of(
        "", doc.Sheet.SUMMARY, [*keyed, *doc.columns_of(spec)], cells, keys=len(keyed)
    )


@dataclass(frozen=True, slots=True)
class Candidate(Timed):
    """Configurations that differ in their seed alone; figures are means over the seeds."""

    number: int
    """Of the first of them."""
    knobs: dict[str, Value]
    rows: list[StudyRow]
    hit_ratio: float
    cost: float | None
    """The price, or without prices the bytes of all tiers; null where it is not known."""

    def first_token_ns(self, quantile: str) -> float | None:
        """Return a quantile of the modelled times to the first token.

        Null where a seed does not tell it.
        """
        return mean([row.first_token_ns(quantile) for row in self.rows])

    @property
    def first_token_p99_ns(self) -> float | None:
        """The p99 of these times."""
        return self.first_token_ns("p99_ns")

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that no tier had."""
        return round(fmean(row.figures.recomputed_tokens for row in self.rows if row.figures))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """What changing one knob alone does to the hit ratio.

    Of those groups of configurations that are equal but for the knob, and have a result for each of
    its values.
    """

    key: str
    means: dict[str, float]
    """The mean hit ratio with each value."""
    groups: int
    most: float
    """The largest difference between two values within one group."""

    @property
    def swing(self) -> float:
        """The difference between the best and the worst value, on average."""
        return max(self.means.values()) - min(self.means.values())


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
        good = [
            of
            for of in self.candidates
            if self.target and of.cost is not None and self.target.is_met(of)
        ]
        return min(good, key=lambda of: (_known(of.cost), -of.hit_ratio, of.number), default=None)

    @property
    def nearest(self) -> Candidate | None:
        """The candidate nearest to the target.

        Null if that is a time to the first token, and none tells it.
        """
        if self.target is None or self.target.first_token is None:
            return self.best
        quantile, _ = self.target.first_token
        times = [
            (ns, of) for of in self.candidates if (ns := of.first_token_ns(quantile)) is not None
        ]
        return min(times, key=lambda timed: timed[0], default=(None, None))[1]

    @property
    def failed(self) -> list[StudyRow]:
        """The configurations that failed."""
        return [row for row in self.rows if row.figures is None]


def findings(study: Study, rows: list[StudyRow], target: Target | None) -> Findings:
    """Return what `rows`, some or all of `study`, come to."""
    by_knobs: dict[tuple[tuple[str, Value], ...], list[StudyRow]] = {}
    for row in rows:
        if row.figures is not None and row.figures.hit_ratio is not None:
            knobs = tuple(
                (key, value) for key, value in row.configuration.knobs.items() if key != SEED
            )
            by_knobs.setdefault(knobs, []).append(row)
    found = [
        Candidate(
            number=of[0].configuration.number,
            knobs=dict(knobs),
            rows=of,
            hit_ratio=fmean(
                row.figures.hit_ratio
                for row in of
                if row.figures and row.figures.hit_ratio is not None
            ),
            cost=of[0].price if study.has_prices else of[0].capacity_bytes,
        )
        for knobs, of in by_knobs.items()
    ]

    def order(of: Candidate) -> tuple[bool, float, float, float, int]:
        is_good = target is not None and of.cost is not None and target.is_met(of)
        return (
            not is_good,
            _known(of.cost) if is_good else 0.0,
            -of.hit_ratio,
            _known(of.cost),
            of.number,
        )

    return Findings(study, rows, sorted(found, key=order), target)


def _known(cost: float | None) -> float:
    return float("inf") if cost is None else cost


def front(
    candidates: Sequence[Candidate], gain: Callable[[Candidate], float | None]
) -> list[Candidate]:
    """Return those candidates that none of the same or a lower cost exceeds in `gain`, the cheapest
    first (Pareto).
    """
    known = [
        (of.cost, -worth, of.number, of)
        for of in candidates
        if of.cost is not None and (worth := gain(of)) is not None
    ]
    found: list[Candidate] = []
    most = float("-inf")
    for _cost, less, _number, of in sorted(known, key=lambda one: one[:3]):
        if -less > most:
            most = -less
            found.append(of)
    return found


def sensitivities(study: Study, rows: Sequence[StudyRow]) -> list[Sensitivity]:
    """Return what each knob that differs does, but for the seed and those that never differ alone.

    Strongest first.
    """
    ratios = [
        (row.configuration.knobs, row.figures.hit_ratio)
        for row in rows
        if row.figures is not None and row.figures.hit_ratio is not None
    ]
    found = []
    for key in study.varied:
        values = [as_text(value) for value in study.axes[key]]
        groups: dict[tuple[tuple[str, Value], ...], dict[str, float]] = {}
        for knobs, ratio in ratios:
            others = tuple((name, value) for name, value in knobs.items() if name != key)
            groups.setdefault(others, {})[as_text(knobs.get(key))] = ratio
        whole = [of for of in groups.values() if len(of) == len(values)]
        if whole:
            means = {value: fmean(of[value] for of in whole) for value in values}
            most = max(max(of.values()) - min(of.values()) for of in whole)
            found.append(Sensitivity(key, means, len(whole), most))
    return sorted(found, key=lambda of: -of.swing)


def first_line(found: Findings) -> str:
    """Return the answer in one sentence."""
    best, cheapest, target = found.best, found.cheapest, found.target
    answers = (
        None if of is None else of.rows[0].configuration for of in (best, cheapest, found.nearest)
    )
    at_best, at_cheapest, nearest = (
        None if one is None else one.named(found.study.varied) for one in answers
    )
    line = f"best hit ratio {_ratio(best)} at {at_best}{_cost_of(found, best)}{stalls_of(best)}"
    if target is None:
        return line
    if cheapest is None:
        is_met = any(target.is_met(of) for of in found.candidates)
        why = "only configurations with an unlimited tier reach it" if is_met else "none reaches it"
        if found.nearest is not best and not is_met:
            why = f"{why}, the nearest is {nearest}" if nearest else UNKNOWN_TIME
        return f"{line}; for {target.describe()}: {why}"
    kind = "cheapest" if found.study.has_prices else "smallest"
    how = f"{at_cheapest} ({_ratio(cheapest)}{_cost_of(found, cheapest)}{stalls_of(cheapest)})"
    return f"{line}; {kind} for {target.describe()}: {how}"


def stalls_of(of: Candidate) -> str:
    """Return in how many requests the engine would wait for ever, of all seeds; "" for none."""
    stalled = sum(row.figures.stalled_requests or 0 for row in of.rows if row.figures)
    return f", {STALLS} in {counted(stalled, 'request')}" if stalled else ""


def _ratio(of: Candidate) -> str:
    each = [
        row.figures.hit_ratio
        for row in of.rows
        if row.figures and row.figures.hit_ratio is not None
    ]
    line = f"{100 * of.hit_ratio:.1f} %"
    if (seeds := len({row.configuration.knobs.get(SEED) for row in of.rows})) > 1:
        line += f" ({100 * min(each):.1f} to {100 * max(each):.1f} over {seeds} seeds)"
    return line


def _cost_of(found: Findings, of: Candidate) -> str:
    if of.cost is None:
        return ""
    if not found.study.has_prices:
        return f", {format_bytes(of.cost)} in all tiers"
    return f", {found.study.cost_name} {doc.show(of.cost, doc.Unit.NUMBER)}"
