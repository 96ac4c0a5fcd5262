"""The answer of `kvtrace size` as a document: the point to buy, what its tiers must do, and the grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.commands.documents.generated import first_token_table
from kvtrace.commands.options import percent
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    Highlight,
    ReportTable,
    Series,
    Sheet,
    Unit,
    columns_of,
    show,
)
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration
from kvtrace.model.serving import INSTANT, in_words
from kvtrace.sim.setup import has_times
from kvtrace.trace.inventory import MONTH_S

if TYPE_CHECKING:
    from kvtrace.curves.points import Point, SecondRate, Stack, TierDemand
    from kvtrace.curves.size import Sizing, Target

_FEWEST_TICKS = 10


def first_line(found: Sizing, target: Target) -> str:
    """Return the answer in one sentence."""
    best = found.chosen
    if best is not None:
        line = f"{_capacities(best, found.labels)}: {_reached(best, target)}"
        return line if best.price is None else f"{line}; price {show(best.price, Unit.NUMBER)}"
    unlimited = f"unlimited {' and '.join(found.labels[role] for role in found.ceiling.capacities)}"
    if not target.is_met(found.ceiling):
        if target.hit_ratio is not None and found.ceiling.hit_ratio < target.hit_ratio:
            return f"no capacity does: at most {_reached(found.ceiling, target)}, with {unlimited}"
        return f"no capacity does: {_reached(found.ceiling, target)}, with {unlimited}"
    most = max(found.points, key=lambda point: point.hit_ratio)
    return (
        f"none of these capacities does: {_reached(most, target)} with {_capacities(most, found.labels)}; {unlimited} "
        f"would: {_reached(found.ceiling, target)}"
    )


def _reached(point: Point, target: Target) -> str:
    spread = f" ± {100 * point.hit_ratio_error:.1f}" if point.sampling_rate < 1 else ""
    said = f"{100 * point.hit_ratio:.1f}{spread} % of look-ups hit"
    if target.hit_ratio is not None:
        said += f" (target {100 * target.hit_ratio:g} %)"
    if target.first_token is not None:
        quantile, limit_ns = target.first_token
        time = None if point.first_token is None else point.first_token["with_cache"][quantile]
        name = quantile.removesuffix("_ns").replace("_", ".")
        known = "unknown, too few requests" if time is None else format_duration(time)
        said += f", modelled {name} time to first token {known} (target {format_duration(limit_ns)})"
    return said


def _capacities(point: Point, labels: Mapping[str, str]) -> str:
    return " and ".join(_capacity(of, labels[role]) for role, of in point.capacities.items())


def _capacity(of: int | None, label: str) -> str:
    if not of:
        return f"{'unlimited' if of is None else 'no'} {label}"
    return f"{format_bytes(of)} of {label}"


def document(found: Sizing, stack: Stack, facts: dict[str, Any], target: Target) -> Document:
    """Return the answer as a document; `facts` say of which preset, model and load."""
    shown = found.chosen or found.ceiling
    place = _capacities(shown, found.labels)
    tables = [_rates_table(shown), _operations_table(shown)]
    if shown.first_token is not None:
        tables.append(first_token_table(shown.first_token))
    chapters = [
        Chapter(f"What each tier must do with {place}", tables, _notes_of(shown, stack)),
        Chapter("Capacities", [_grid(found, stack)], _notes_of_grid(found, stack)),
    ]
    span, lookups = format_duration(shown.span_ns), format_count(shown.lookups)
    notes = [
        f"{facts['preset']}, {facts['model']}, {lookups} look-ups of objects over {span} of virtual time, simulated",
        _ceiling(found),
        _computing(facts["serving"], stack),
    ]
    if found.chosen is not None:
        best = found.chosen.optimal_hit_ratio
        if best is not None:
            notes.append(
                f"no policy with as many bytes exceeds {percent(best)} (Belady, who knows all requests to come)"
            )
        notes.append(f"its trace: gen with the same options and {_as_options(found.chosen, stack)}")
    highlights = [
        *(
            Highlight(found.labels[role], of, Unit.BYTES, "unlimited" if of is None else "")
            for role, of in _sizes(shown)
        ),
        Highlight("hit ratio", shown.hit_ratio, Unit.SHARE, "of look-ups, in any tier"),
        Highlight("at most", found.ceiling.hit_ratio, Unit.SHARE, "without a bound"),
        Highlight("prompt tokens saved", shown.saved_tokens, Unit.COUNT, f"of {format_count(shown.input_tokens)}"),
    ]
    return Document("", first_line(found, target), chapters, notes, highlights)


def _computing(serving: dict[str, Any], stack: Stack) -> str:
    if stack.load.requests is not None and serving["gpu"] == INSTANT and not has_times(stack.preset):
        return "requests are served in the order of arrival and in no time; --gpu h100 has them wait for computing"
    return in_words(serving)


def _sizes(point: Point) -> list[tuple[str, int | None]]:
    return list(point.capacities.items())


def _ceiling(found: Sizing) -> str:
    line = f"ceiling, without a bound on {' and '.join(found.labels[role] for role in found.ceiling.capacities)}: "
    return f"{line}{percent(found.ceiling.hit_ratio)} of look-ups hit"


def _as_options(point: Point, stack: Stack) -> str:
    names = {role: stack.preset.tiers[t].name for role, t in stack.roles.items()}
    settings = [f"--set tiers.{names[role]}.capacity={of}" for role, of in _sizes(point) if of is not None]
    return " ".join([f"--gpu {stack.preset.gpu}", *settings])


def _rates_table(point: Point) -> ReportTable:
    columns = columns_of("""
        text: name = tier
        bytes: capacity_bytes = capacity
        share: hit_ratio = hits
        bytes_per_s: read = read, read_p99 = p99 second, written = written, written_p99 = p99 second
        bytes: read_bytes = read in all, written_bytes = written in all
    """)
    rows = [
        [
            *(tier.name, _bytes_cell(tier.capacity_bytes), tier.hit_ratio),
            *_pair(tier.rates.read_bytes_per_s),
            *_pair(tier.rates.write_bytes_per_s),
            *(tier.read_bytes, tier.written_bytes),
        ]
        for tier in point.tiers
    ]
    return ReportTable("bandwidth", Sheet.PERFORMANCE, columns, rows)


def _operations_table(point: Point) -> ReportTable:
    columns = columns_of("""
        text: name = tier
        per_s: reads = reads/s, reads_p99 = p99 second, writes = writes/s, writes_p99 = p99 second
        number: drive_writes_per_day = drive writes a day; years: life_years = life
    """)
    rows = [
        [tier.name, *_pair(tier.rates.reads_per_s), *_pair(tier.rates.writes_per_s), *_worn(tier)]
        for tier in point.tiers
    ]
    return ReportTable("operations, an object each, and wear", Sheet.PERFORMANCE, columns, rows)


def _worn(tier: TierDemand) -> list[float | None]:
    return [tier.drive_writes_per_day, tier.life_years]


def _pair(rate: SecondRate | None) -> list[float | None]:
    return [None, None] if rate is None else [rate.mean, rate.p99_second]


def _bytes_cell(of: int | None) -> Any:
    return Cell("unlimited", Unit.TEXT) if of is None else of


def _grid(found: Sizing, stack: Stack) -> ReportTable:
    """Return a row a point; the one that was chosen, simulated in full, in the place of its estimate."""
    roles, has_price = list(found.ceiling.capacities), any(point.price is not None for point in found.points)
    has_optimum = any(point.optimal_hit_ratio is not None for point in found.points)
    spec = ["bytes: " + ", ".join(f"{role}_bytes = {found.labels[role]}" for role in roles), "share: hit_ratio = hits"]
    spec += ["share: optimal_hit_ratio = optimal"] if has_optimum else []
    spec += ["count: saved_tokens = tokens saved"]
    for role in roles:
        spec.append(f"bytes_per_s: {role}_read = {found.labels[role]} read, {role}_written = written")
    spec += ["number: drive_writes_per_day = writes a day"] if stack.drive is not None else []
    spec += ["number: price"] if has_price else []
    rows = []
    for estimated in found.points:
        is_chosen = found.chosen is not None and estimated.capacities == found.chosen.capacities
        point = found.chosen if is_chosen and found.chosen is not None else estimated
        row: list[Any] = [_bytes_cell(of) for of in point.capacities.values()]
        row.append(point.hit_ratio if point.sampling_rate == 1 else _spread(point))
        row += [point.optimal_hit_ratio] if has_optimum else []
        row.append(point.saved_tokens)
        for tier in (point.tiers[stack.roles[role]] for role in roles):
            row += [_mean(tier.rates.read_bytes_per_s), _mean(tier.rates.write_bytes_per_s)]
        row += [point.tiers[stack.drive].drive_writes_per_day] if stack.drive is not None else []
        row += [point.price] if has_price else []
        rows.append(row)
    columns = columns_of("\n".join(spec))
    return ReportTable("", Sheet.SUMMARY, columns, rows, _charts(found), keys=len(roles), is_answer=True)


def _spread(point: Point) -> Cell:
    return Cell(f"{percent(point.hit_ratio)} ± {100 * point.hit_ratio_error:.1f}", Unit.TEXT)


def _mean(rate: SecondRate | None) -> float | None:
    return None if rate is None else rate.mean


def _charts(found: Sizing) -> tuple[Chart, ...]:
    """Return hits against the capacity that has most points, a line for each of the other's."""
    *others, along = found.ceiling.capacities
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.points:
        x = point.capacities[along]
        if x:
            label = " and ".join(_capacity(point.capacities[role], found.labels[role]) for role in others)
            lines.setdefault(label or "hits", []).append((float(x), point.hit_ratio))
    series = [Series(label, [x for x, _ in sorted(at)], [y for _, y in sorted(at)]) for label, at in lines.items()]
    if not series:
        return ()
    title, named = f"Hits against {found.labels[along]}", f"{found.labels[along]} capacity"
    return (Chart(title, ChartShape.CURVE, Unit.BYTES, Unit.SHARE, series, x_title=named, y_title="look-ups that hit"),)


def _notes_of(point: Point, stack: Stack) -> list[str]:
    lines = [
        "all ranks together, means over the whole load; p99 second: what 1 % of all seconds of virtual time exceed"
    ]
    if any(tier.drive_writes_per_day is not None for tier in point.tiers):
        lines.append("drive writes a day and life: if this load's rate is kept up")
    lines += _costs(point, stack)
    if (tick_s := _tick_s(stack)) is not None:
        lines.append(
            f"requests arrive on ticks about {tick_s} s apart: --jitter {tick_s}s spreads them, and lowers p99 seconds"
        )
    return lines


def _costs(point: Point, stack: Stack) -> list[str]:
    """Return what each tier with prices costs a month, where its requests take time."""
    lines = []
    for tier, done in zip(stack.preset.tiers, point.tiers, strict=True):
        reads, writes = done.rates.reads_per_s, done.rates.writes_per_s
        if not tier.has_price or reads is None or writes is None:
            continue
        puts, gets = writes.mean * MONTH_S, reads.mean * MONTH_S
        requests = (puts * tier.put_price_per_1000 + gets * tier.get_price_per_1000) / 1000
        stored_bytes = done.written_bytes - done.deleted_bytes
        stored = stored_bytes / 10**9 * tier.price_per_gb_month
        lines.append(
            f"{tier.name}: {requests + stored:,.2f} a month: {format_count(round(puts))} PUTs and "
            f"{format_count(round(gets))} GETs {requests:,.2f}, {format_bytes(stored_bytes)} stored {stored:,.2f} "
            "(at the preset's prices and this load's rate, kept up)"
        )
    return lines


def _tick_s(stack: Stack) -> int | None:
    """Return how far apart the seconds are in which requests arrive, if many do in each of few."""
    requests = stack.load.requests
    if requests is None or len(requests) == 0:
        return None
    seconds = np.unique(requests.arrival_ns // NS_PER_S)
    if len(seconds) < _FEWEST_TICKS or len(requests) < 2 * len(seconds):
        return None
    apart = int(np.median(np.diff(seconds)))
    return apart if apart > 1 else None


def _notes_of_grid(found: Sizing, stack: Stack) -> list[str]:
    lines = []
    if (rate := min(point.sampling_rate for point in found.points)) < 1:
        lines.append(
            f"estimated from 4 samples of {percent(rate)} of the objects, ± 95 % confidence; what was chosen, and the "
            "ceiling, are simulated in full"
        )
    if any(point.optimal_hit_ratio is not None for point in found.points):
        lines.append("optimal: what no policy exceeds with as many bytes in all tiers together (Belady)")
    for role, t in stack.roles.items():
        tier = stack.preset.tiers[t]
        if tier.capacity_bytes is None and role == "nvme":
            lines.append(
                f"the preset's {tier.name} never evicts; with a capacity it evicts by {tier.policy}, for which this "
                "stack needs an evictor beside it"
            )
    lines.append("other capacities: --dram and --nvme")
    return lines
