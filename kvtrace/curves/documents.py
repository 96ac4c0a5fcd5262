"""Documents of hit-ratio curves and sizings: sentences, tables and charts.

`curve_document` shows a hit curve, `size_document` the answer of `kvtrace size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

import numpy as np

from kvtrace.core import units
from kvtrace.core.config import as_setting
from kvtrace.core.document import document as doc
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import STALLS
from kvtrace.core.simulation_stats import percentile_name
from kvtrace.curves.day_profile import day_share, extrapolation
from kvtrace.curves.mrc import CurvePoint, HitCurve
from kvtrace.curves.points import Point, Stack, drive_of
from kvtrace.curves.size import Fragile, Sizing, Target
from kvtrace.llm.serving import INSTANT, serving_text
from kvtrace.sim.baseline import slower_note
from kvtrace.sim.documents import cost_line, first_token_table
from kvtrace.sim.presets.tier import MONTH_S
from kvtrace.sim.simulation import has_times


def curve_document(curve: HitCurve, policy: str) -> doc.Document:
    """Return the curve as a document: one row a capacity, and the capacities for shares of hits."""
    is_exact = curve.sampling_rate == 1
    sampled = (
        ""
        if is_exact
        else f", estimated from samples of {units.percent(curve.sampling_rate)} of the objects"
    )
    title = (
        f"{policy}: {units.counted(curve.references, 'reference')} of"
        f" {units.counted(curve.requests, 'request')}, objects of {curve.object_tokens} tokens,"
        f" {units.format_bytes(curve.object_bytes)}, full ones only{sampled}"
    )
    columns = [
        doc.ReportColumn("capacity_bytes", "capacity", doc.Unit.BYTES),
        doc.ReportColumn("capacity_objects", "objects", doc.Unit.COUNT),
        doc.ReportColumn("hits", unit=doc.Unit.COUNT),
        doc.ReportColumn("hit_ratio", "hit rate", doc.Unit.SHARE),
        doc.ReportColumn("optimal_hit_ratio", "optimal", doc.Unit.SHARE),
        doc.ReportColumn("read_bytes", "read", doc.Unit.BYTES),
        doc.ReportColumn("passed_bytes", "passed on", doc.Unit.BYTES),
        doc.ReportColumn("written_bytes", "written", doc.Unit.BYTES),
    ]
    rows = [
        asdict(point) | {"hit_ratio": _hit_ratio(point, curve.sampling_rate)}
        for point in curve.points
    ]
    enough_lines = []
    for sufficient in curve.enough:
        capacity_text = (
            "more than all objects"
            if sufficient.capacity_bytes is None
            else units.format_bytes(sufficient.capacity_bytes)
        )
        if sufficient.is_at_most and sufficient.capacity_bytes is not None:
            capacity_text = (
                f"at most {capacity_text}, the smallest of these capacities that reaches it"
            )
        enough_lines.append(
            f"{100 * sufficient.share_of_hits:.0f} % of all possible hits: {capacity_text}"
        )
    if not any(point.hits or point.passed_bytes for point in curve.points):
        enough_lines = ["no hits at any capacity: no request reuses an object"]
    table = doc.table_of(
        title, doc.Sheet.SUMMARY, columns, rows, charts=tuple(_curves(curve)), bars="hits"
    )
    return doc.Document("", "", [doc.Chapter("", [table], enough_lines)])


def _curves(curve: HitCurve) -> list[doc.Chart]:
    """Return charts of hits and bytes against capacity; lines with unknown values are omitted."""
    charts = []
    for title, unit, lines in (
        (
            "hit rate",
            doc.Unit.SHARE,
            {curve.policy: "hit_ratio", "optimal (Belady)": "optimal_hit_ratio"},
        ),
        (
            "bytes",
            doc.Unit.BYTES,
            {"read": "read_bytes", "passed on": "passed_bytes", "written": "written_bytes"},
        ),
    ):
        values_by_label = {
            label: [getattr(point, name) for point in curve.points] for label, name in lines.items()
        }
        capacities = [float(point.capacity_bytes) for point in curve.points]
        series = [
            doc.Series(label, capacities, values)
            for label, values in values_by_label.items()
            if None not in values
        ]
        chart_args = (
            f"{title} against capacity".capitalize(),
            doc.ChartShape.CURVE,
            doc.Unit.BYTES,
            unit,
            series,
        )
        charts.append(doc.Chart(*chart_args, x_title="capacity", y_title=title))
    return charts


def _hit_ratio(point: CurvePoint | Point, sampling_rate: float) -> float | doc.Cell:
    """Return the hit rate, with its error if it is an estimate."""
    if sampling_rate == 1:
        return point.hit_ratio
    return doc.Cell(
        f"{units.percent(point.hit_ratio)} ± {100 * point.hit_ratio_error:.1f}", doc.Unit.TEXT
    )


_FEWEST_TICKS = 10


def first_line(
    sizing: Sizing, target: Target, stack: Stack, byte_prices: Mapping[str, float] | None
) -> str:
    """Return the answer in one sentence.

    `byte_prices` are those of every instance of a tier, by role.
    """
    chosen = sizing.chosen
    if chosen is not None:
        line = _name_capacities(chosen, sizing.labels)
        for index, tier in enumerate(chosen.tiers):
            # Other tiers of the preset also have hits.
            if index not in stack.roles.values() and tier.hits:
                share = units.percent(tier.hit_ratio or 0.0)
                line += (
                    f", in addition to {_name_capacity(tier.capacity_bytes, tier.name.upper())} (hit rate"
                    f" {share})"
                )
        line += f": {_reached(chosen, target)}"
        if chosen.price is not None and byte_prices is not None:
            price = doc.show(chosen.price, doc.Unit.NUMBER)
            line += f"; price {price}, at {_prices_text(byte_prices, sizing.labels, stack)}"
        if not (stalled := chosen.stalled_requests):
            return line
        largest_load = sizing.ceiling.largest_load_bytes
        unit: int = 10 ** max(
            0, len(str(largest_load)) - 3
        )  # rounded up at the printed digits, because a smaller capacity stalls
        largest = units.format_bytes(-(-largest_load // unit) * unit)
        tiers = {
            sizing.labels[role]: stack.preset.tiers[index] for role, index in stack.roles.items()
        }
        sufficient = "".join(
            f", none with {largest} of {label}" for label, tier in tiers.items() if tier.loads_whole
        )
        return f"{STALLS} in {stalled:,} of {chosen.requests:,} requests{sufficient}; {line}"
    unlimited = (
        f"unlimited {' and '.join(sizing.labels[role] for role in sizing.ceiling.capacities)}"
    )
    if not target.is_met(sizing.ceiling):
        if target.hit_ratio is not None and sizing.ceiling.hit_ratio < target.hit_ratio:
            unreachable = f"{100 * target.hit_ratio:g} % is unreachable: the highest is"
            return f"{unreachable} {_reached(sizing.ceiling, target)}, with {unlimited}"
        return f"the target is unreachable: {_reached(sizing.ceiling, target)}, with {unlimited}"
    best_point = max(sizing.points, key=lambda point: point.hit_ratio)
    return (
        f"none of these capacities is enough: {_reached(best_point, target)} with"
        f" {_name_capacities(best_point, sizing.labels)}; {unlimited} would be:"
        f" {_reached(sizing.ceiling, target)}"
    )


def _prices_text(byte_prices: Mapping[str, float], labels: Mapping[str, str], stack: Stack) -> str:
    """Return the prices as the user gave them, and of how many instances the sum is."""
    given = {labels[role]: price / stack.instances[role] for role, price in byte_prices.items()}
    nodes = stack.preset.fleet.nodes
    return units.format_prices(given) + (f", {nodes} nodes together" if nodes > 1 else "")


def _fragility(fragile: Fragile, chosen: Point, labels: Mapping[str, str], stack: Stack) -> str:
    """Return why a smaller answer was not taken, or that the answer is not robust."""
    small, worse = fragile.point, fragile.worse
    moved = []
    for role, index in stack.roles.items():
        before, after = (point.tiers[index].hit_ratio or 0.0 for point in (small, worse))
        moved.append(f"{labels[role]} {units.percent(before)} to {units.percent(after)}")
    worse_capacity = _name_capacity(worse.capacities["dram"], labels["dram"])
    reason = (
        f"hit rate {100 * small.hit_ratio:.2f} %, but only {100 * worse.hit_ratio:.2f} % with"
        f" {worse_capacity}, because hits move ({', '.join(moved)}), and what the tier"
        " below keeps depends on the hits that reach it"
    )
    if small.capacities == chosen.capacities:
        return f"not robust: {reason}"
    capacities = _name_capacities(small, labels)
    return f"not {capacities}: {reason}; the answer reaches the target with more DRAM, too"


def _requirements(stack: Stack) -> list[str]:
    """Return a note for each tier without which the engine does not run."""
    return [
        f"{stack.labels[role]} is needed: the engine writes and reads the tiers below through it;"
        f" the largest prompt has {units.format_bytes(stack.largest_prompt_bytes)}"
        for role, index in stack.roles.items()
        if stack.preset.tiers[index].is_required
    ]


def _rejection(point: Point, labels: Mapping[str, str]) -> str:
    """Return why `point`, which reaches the target, is not the answer."""
    capacities = f"not {_name_capacities(point, labels)}"
    if point.price is not None:
        capacities += f", price {doc.show(point.price, doc.Unit.NUMBER)}"
    if point.stalled_requests:
        stalled = f"{point.stalled_requests:,} of {point.requests:,} requests would never start"
        return f"{capacities}: {stalled}, because they load more than a tier holds at once"
    return f"{capacities}: {slower_note(point.first_token)}"


def _reached(point: Point, target: Target) -> str:
    if point.sampling_rate < 1:
        text = f"hit rate {100 * point.hit_ratio:.1f} ± {100 * point.hit_ratio_error:.1f} %"
    else:
        text = f"hit rate {units.percent_beside(point.hit_ratio, target.hit_ratio)}"
    if target.hit_ratio is not None:
        text += f" (target {100 * target.hit_ratio:g} %)"
    if target.first_token is not None:
        quantile, limit_ns = target.first_token
        time = point.first_token_ns(quantile)
        name = percentile_name(quantile)
        time_text = "unknown, too few requests" if time is None else units.format_duration(time)
        text += f", modelled {name} TTFT {time_text} (target {units.format_duration(limit_ns)})"
    if (level := target.service_level) is not None:
        share = point.goodput_share
        share_text = "unknown" if share is None else units.percent(share)
        text += (
            f", {share_text} of requests within {level.describe()} (target {100 * level.share:g} %)"
        )
    return text


def _name_capacities(point: Point, labels: Mapping[str, str]) -> str:
    return " and ".join(
        _name_capacity(capacity, labels[role]) for role, capacity in point.capacities.items()
    )


def _name_capacity(capacity: int | None, label: str) -> str:
    if not capacity:
        return f"{'unlimited' if capacity is None else 'no'} {label}"
    return f"{units.format_bytes(capacity)} of {label}"


def size_document(
    sizing: Sizing, stack: Stack, facts: JsonObject, answer: str, *, is_ordered: bool
) -> doc.Document:
    """Return the answer as a document; `facts` holds preset, model and load.

    `answer` is its first line.

    If `is_ordered`, compute time was not modelled by default.
    """
    point = sizing.chosen or sizing.ceiling
    tables = _tier_tables(point)
    if point.first_token is not None:
        tables.append(first_token_table(point.first_token))
    lines = [
        (
            "totals of all ranks, means over the whole load; peak rate (p99 second): exceeded in 1 % of "
            "the seconds of simulated time"
        )
    ]
    costs = _costs(point, stack)
    lines += costs
    if (tick_s := _tick_s(stack)) is not None:
        lines.append(
            f"requests arrive on ticks about {tick_s} s apart: --jitter {tick_s}s spreads them, "
            "and lowers peak rates"
        )
    chapters = [
        doc.Chapter(
            f"Demand on each tier with {_name_capacities(point, sizing.labels)}", tables, lines
        ),
        doc.Chapter("Capacities", [_grid(sizing, stack)], _notes_of_grid(sizing, stack)),
    ]
    span, lookups = units.format_duration(point.span_ns), units.format_count(point.lookups)
    bounded = " and ".join(sizing.labels[role] for role in sizing.ceiling.capacities)
    computing = serving_text(facts["serving"])
    if (
        stack.load.requests is not None
        and facts["serving"]["gpu"] == INSTANT
        and not has_times(stack.preset)
    ):
        order = "requests are served in the order of arrival; --gpu h100 models it"
        computing = f"GPU compute time is not modelled: {order}"
    notes = []
    has_wear = any(tier.drive_writes_per_day is not None for tier in point.tiers)
    basis = extrapolation(point.load_ns, stack.day_profile)
    if basis is not None and (has_wear or costs):
        notes.append(f"figures a day, a month and of a drive's life are {basis}")
    notes += [
        (
            f"{facts['preset']}, {facts['model']}, {lookups} lookups of objects over {span} of"
            " simulated time"
        ),
        (f"ceiling with unlimited {bounded}: hit rate {units.percent(sizing.ceiling.hit_ratio)}"),
        computing,
    ]
    if sizing.chosen is not None:
        if (optimal_ratio := sizing.chosen.optimal_hit_ratio) is not None:
            notes.append(
                f"upper bound (Belady): no policy with the same capacity exceeds {units.percent(optimal_ratio)}"
            )
        sizes = {
            stack.preset.tiers[stack.roles[role]].name: capacity
            for role, capacity in sizing.chosen.capacities.items()
        }
        settings = [f"--gpu {INSTANT}"] * is_ordered
        settings += [
            f"--set {as_setting(f'tiers.{name}.capacity', 'unlimited' if capacity is None else capacity)}"
            for name, capacity in sizes.items()
        ]
        notes.append(
            "for its trace, run kvtrace gen with the same"
            f" options{' and ' * bool(settings)}{' '.join(settings)}"
        )
    if sizing.rejected is not None:
        notes.append(_rejection(sizing.rejected, sizing.labels))
    if sizing.fragile is not None and sizing.chosen is not None:
        notes.append(_fragility(sizing.fragile, sizing.chosen, sizing.labels, stack))
    notes += _requirements(stack)
    highlights = [
        doc.Highlight(
            sizing.labels[role], capacity, doc.Unit.BYTES, "unlimited" if capacity is None else ""
        )
        for role, capacity in point.capacities.items()
    ]
    highlights += [
        doc.Highlight("hit rate", point.hit_ratio, doc.Unit.SHARE, "of lookups, in any tier"),
        doc.Highlight(
            "ceiling", sizing.ceiling.hit_ratio, doc.Unit.SHARE, "with unlimited capacity"
        ),
        doc.Highlight(
            "prompt tokens saved",
            point.saved_tokens,
            doc.Unit.COUNT,
            f"of {units.format_count(point.input_tokens)}",
        ),
    ]
    return doc.Document("", answer, chapters, notes, highlights)


def _tier_tables(point: Point) -> list[doc.ReportTable]:
    p99 = "peak rate (p99 second)"
    bandwidth = [
        doc.ReportColumn("name", "tier"),
        doc.ReportColumn("capacity_bytes", "capacity", doc.Unit.BYTES),
        doc.ReportColumn("hit_ratio", "hits", doc.Unit.SHARE),
        doc.ReportColumn("read_bytes_per_s", "read", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("p99_second_read_bytes_per_s", p99, doc.Unit.BYTES_PER_S),
        doc.ReportColumn("write_bytes_per_s", "written", doc.Unit.BYTES_PER_S),
        doc.ReportColumn("p99_second_write_bytes_per_s", p99, doc.Unit.BYTES_PER_S),
        doc.ReportColumn("read_bytes", "read in total", doc.Unit.BYTES),
        doc.ReportColumn("written_bytes", "written in total", doc.Unit.BYTES),
    ]
    operations = [
        doc.ReportColumn("name", "tier"),
        doc.ReportColumn("reads_per_s", "reads/s", doc.Unit.PER_S),
        doc.ReportColumn("p99_second_reads_per_s", p99, doc.Unit.PER_S),
        doc.ReportColumn("writes_per_s", "writes/s", doc.Unit.PER_S),
        doc.ReportColumn("p99_second_writes_per_s", p99, doc.Unit.PER_S),
        doc.ReportColumn("drive_writes_per_day", "DWPD", doc.Unit.NUMBER),
        doc.ReportColumn("life_years", "life", doc.Unit.YEARS),
    ]
    rows = [
        tier.figures() | {"capacity_bytes": bounded_capacity(tier.capacity_bytes)}
        for tier in point.tiers
    ]
    return [
        doc.table_of("bandwidth", doc.Sheet.PERFORMANCE, bandwidth, rows),
        doc.table_of(
            "operations, an object each, and wear", doc.Sheet.PERFORMANCE, operations, rows
        ),
    ]


def bounded_capacity(capacity: int | None) -> int | doc.Cell:
    """Return a capacity as a cell of a table; null is `unlimited`."""
    return doc.Cell("unlimited", doc.Unit.TEXT) if capacity is None else capacity


def _grid(sizing: Sizing, stack: Stack) -> doc.ReportTable:
    """Return one row a point; the chosen point, simulated in full, replaces its estimate."""
    roles, has_price = (
        list(sizing.ceiling.capacities),
        any(point.price is not None for point in sizing.points),
    )
    drive = drive_of(stack.preset)
    has_optimum = any(point.optimal_hit_ratio is not None for point in sizing.points)
    columns = [
        doc.ReportColumn(f"{role}_bytes", sizing.labels[role], doc.Unit.BYTES) for role in roles
    ]
    columns.append(doc.ReportColumn("hit_ratio", "hits", doc.Unit.SHARE))
    if has_optimum:
        columns.append(doc.ReportColumn("optimal_hit_ratio", "optimal", doc.Unit.SHARE))
    columns.append(doc.ReportColumn("saved_tokens", "tokens saved", doc.Unit.COUNT))
    for role in roles:
        columns += [
            doc.ReportColumn(f"{role}_read", f"{sizing.labels[role]} read", doc.Unit.BYTES_PER_S),
            doc.ReportColumn(f"{role}_written", "written", doc.Unit.BYTES_PER_S),
        ]
    if drive is not None:
        columns.append(doc.ReportColumn("drive_writes_per_day", "DWPD", doc.Unit.NUMBER))
    if has_price:
        columns.append(doc.ReportColumn("price", unit=doc.Unit.NUMBER))
    rows = []
    for estimated in sizing.points:
        is_chosen = sizing.chosen is not None and estimated.capacities == sizing.chosen.capacities
        point = sizing.chosen if is_chosen and sizing.chosen is not None else estimated
        row = asdict(point) | {"hit_ratio": _hit_ratio(point, point.sampling_rate)}
        for role, capacity in point.capacities.items():
            tier_figures = point.tiers[stack.roles[role]].figures()
            row[f"{role}_bytes"] = bounded_capacity(capacity)
            row |= {
                f"{role}_read": tier_figures["read_bytes_per_s"],
                f"{role}_written": tier_figures["write_bytes_per_s"],
            }
        if drive is not None:
            row["drive_writes_per_day"] = point.tiers[drive].drive_writes_per_day
        rows.append(row)
    table = doc.table_of(
        "", doc.Sheet.SUMMARY, columns, rows, charts=_charts(sizing), keys=len(roles)
    )
    return replace(table, is_answer=True)


def _charts(sizing: Sizing) -> tuple[doc.Chart, ...]:
    """Return hit rate against capacity of the last role, one line for each other capacity."""
    *other_roles, role_on_x = sizing.ceiling.capacities
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in sizing.points:
        x = point.capacities[role_on_x]
        if x:
            label = " and ".join(
                _name_capacity(point.capacities[role], sizing.labels[role]) for role in other_roles
            )
            lines.setdefault(label or "hits", []).append((float(x), point.hit_ratio))
    series = [
        doc.Series(
            label, [x for x, _ in sorted(points_of_line)], [y for _, y in sorted(points_of_line)]
        )
        for label, points_of_line in lines.items()
    ]
    if not series:
        return ()
    title, x_title = (
        f"Hits against {sizing.labels[role_on_x]}",
        f"{sizing.labels[role_on_x]} capacity",
    )
    chart_args = doc.ChartShape.CURVE, doc.Unit.BYTES, doc.Unit.SHARE
    return (doc.Chart(title, *chart_args, series, x_title=x_title, y_title="hit rate"),)


def _costs(point: Point, stack: Stack) -> list[str]:
    share = day_share(stack.day_profile, point.load_ns)
    lines, load_factor = [], share * point.span_ns / max(1, point.load_ns)
    for tier, demand in zip(stack.preset.tiers, point.tiers, strict=True):
        reads, writes = demand.rates.reads_per_s, demand.rates.writes_per_s
        if tier.has_price and reads is not None and writes is not None:
            stored_bytes = demand.written_bytes - demand.deleted_bytes
            cost = tier.monthly_cost(reads.mean, writes.mean, MONTH_S * load_factor, stored_bytes)
            lines.append(cost_line(cost, "", "at the preset's prices"))
    return lines


def _tick_s(stack: Stack) -> int | None:
    """Return the seconds between ticks, if requests arrive together on coarse ticks."""
    requests = stack.load.requests
    if requests is None or len(requests) == 0:
        return None
    seconds = np.unique(requests.arrival_ns // units.NS_PER_S)
    if len(seconds) < _FEWEST_TICKS or len(requests) < 2 * len(seconds):
        return None
    tick_s = int(np.median(np.diff(seconds)))
    return tick_s if tick_s > 1 else None


def _notes_of_grid(sizing: Sizing, stack: Stack) -> list[str]:
    lines = []
    if (rate := min(point.sampling_rate for point in sizing.points)) < 1:
        lines.append(
            f"with ±: estimated from 4 samples of {units.percent(rate)} of the objects, 95 %"
            " confidence; all others, the chosen point and the ceiling are simulated in full"
        )
    if any(point.optimal_hit_ratio is not None for point in sizing.points):
        lines.append("optimal: upper bound of all policies with the same total capacity (Belady)")
    for role, index in stack.roles.items():
        tier = stack.preset.tiers[index]
        if tier.capacity_bytes is None and role == "nvme":
            lines.append(
                f"the preset's {tier.name} never evicts; with a capacity it evicts by"
                f" {tier.policy}, for which this stack needs an external evictor"
            )
    lines.append("other capacities: --dram and --nvme")
    return lines
