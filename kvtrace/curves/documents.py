"""What hit curves and sizings look like: as sentences, tables and charts.

`curve_document` shows a hit curve, `size_document` the answer of `kvtrace size`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from kvtrace.core import units
from kvtrace.core.config import as_setting
from kvtrace.core.document import document as doc
from kvtrace.core.metadata import STALLS
from kvtrace.curves.mrc import CurvePoint, HitCurve
from kvtrace.curves.points import Point, Stack, drive_of
from kvtrace.curves.size import Sizing, Target
from kvtrace.llm.serving import INSTANT, in_words
from kvtrace.sim.documents import cost_line, first_token_table
from kvtrace.sim.presets.tier import MONTH_S
from kvtrace.sim.simulation import has_times


def curve_document(found: HitCurve, policy: str) -> doc.Document:
    """Return the curve as a document.

    A row a capacity, with bars for the hits, and how much is enough.
    """
    is_exact = found.sampling_rate == 1
    sampled = (
        ""
        if is_exact
        else f", estimated from samples of {units.percent(found.sampling_rate)} of the objects"
    )
    title = (
        f"{policy}: {units.counted(found.references, 'reference')} of"
        f" {units.counted(found.requests, 'request')}, objects of {found.object_tokens} tokens,"
        f" {units.format_bytes(found.object_bytes)}, full ones only{sampled}"
    )
    spec = """
        bytes: capacity_bytes = capacity
        count: capacity_objects = objects, hits
        share: hit_ratio = hit ratio, optimal_hit_ratio = optimal
        bytes: read_bytes = read, passed_bytes = passed on, written_bytes = written
    """
    rows = [
        asdict(point) | {"hit_ratio": _hit_ratio(point, found.sampling_rate)}
        for point in found.points
    ]
    enough = []
    for e in found.enough:
        some = (
            "more than all objects"
            if e["capacity_bytes"] is None
            else units.format_bytes(e["capacity_bytes"])
        )
        if e["is_at_most"] and e["capacity_bytes"] is not None:
            some = f"at most {some}, the least of these capacities that reaches it"
        enough.append(f"{100 * e['share_of_hits']:.0f} % of all possible hits: {some}")
    if not any(point.hits or point.passed_bytes for point in found.points):
        enough = ["no hits at any capacity: no request reuses what another has stored"]
    table = doc.table_of(
        title, doc.Sheet.SUMMARY, spec, rows, charts=tuple(_curves(found)), bars="hits"
    )
    return doc.Document("", "", [doc.Chapter("", [table], enough)])


def _curves(found: HitCurve) -> list[doc.Chart]:
    """Return hits, and bytes, against capacity; no line of what is not known at each."""
    charts = []
    for title, unit, lines in (
        (
            "references that hit",
            doc.Unit.SHARE,
            {found.policy: "hit_ratio", "optimal (Belady)": "optimal_hit_ratio"},
        ),
        (
            "bytes",
            doc.Unit.BYTES,
            {"read": "read_bytes", "passed on": "passed_bytes", "written": "written_bytes"},
        ),
    ):
        known = {
            label: [getattr(point, name) for point in found.points] for label, name in lines.items()
        }
        at = [float(point.capacity_bytes) for point in found.points]
        series = [
            doc.Series(label, at, values) for label, values in known.items() if None not in values
        ]
        what = (
            f"{title} against capacity".capitalize(),
            doc.ChartShape.CURVE,
            doc.Unit.BYTES,
            unit,
            series,
        )
        charts.append(doc.Chart(*what, x_title="capacity", y_title=title))
    return charts


def _hit_ratio(point: CurvePoint | Point, sampling_rate: float) -> Any:
    """Return the hit ratio, with its error where it is an estimate."""
    if sampling_rate == 1:
        return point.hit_ratio
    return doc.Cell(
        f"{units.percent(point.hit_ratio)} ± {100 * point.hit_ratio_error:.1f}", doc.Unit.TEXT
    )


_FEWEST_TICKS = 10


def first_line(found: Sizing, target: Target, stack: Stack) -> str:
    """Return the answer in one sentence."""
    best = found.chosen
    if best is not None:
        line = _name_capacities(best, found.labels)
        for t, tier in enumerate(best.tiers):
            # Other tiers of the preset make hits, too.
            if t not in stack.roles.values() and tier.hits:
                share = units.percent(tier.hit_ratio or 0.0)
                line += (
                    f", beside {_name_capacity(tier.capacity_bytes, tier.name.upper())} ({share} of"
                    " look-ups)"
                )
        line += f": {_reached(best, target)}"
        line += "" if best.price is None else f"; price {doc.show(best.price, doc.Unit.NUMBER)}"
        if not (stalled := best.stalled_requests):
            return line
        least = found.ceiling.largest_load_bytes
        unit: int = 10 ** max(
            0, len(str(least)) - 3
        )  # of the digits that are shown: rounded down it would stall
        largest = units.format_bytes(-(-least // unit) * unit)
        tiers = {found.labels[role]: stack.preset.tiers[t] for role, t in stack.roles.items()}
        enough = "".join(
            f", none with {largest} of {label}" for label, tier in tiers.items() if tier.loads_whole
        )
        return f"{STALLS} in {stalled:,} of {best.requests:,} requests{enough}; {line}"
    unlimited = f"unlimited {' and '.join(found.labels[role] for role in found.ceiling.capacities)}"
    if not target.is_met(found.ceiling):
        if target.hit_ratio is not None and found.ceiling.hit_ratio < target.hit_ratio:
            unreachable = f"{100 * target.hit_ratio:g} % is unreachable; the ceiling is"
            return f"{unreachable} {_reached(found.ceiling, target)}, with {unlimited}"
        return f"the target is unreachable: {_reached(found.ceiling, target)}, with {unlimited}"
    most = max(found.points, key=lambda point: point.hit_ratio)
    return (
        f"none of these capacities is enough: {_reached(most, target)} with"
        f" {_name_capacities(most, found.labels)}; {unlimited} would be:"
        f" {_reached(found.ceiling, target)}"
    )


def _reached(point: Point, target: Target) -> str:
    spread = f" ± {100 * point.hit_ratio_error:.1f}" if point.sampling_rate < 1 else ""
    said = f"{100 * point.hit_ratio:.1f}{spread} % of look-ups hit"
    if target.hit_ratio is not None:
        said += f" (target {100 * target.hit_ratio:g} %)"
    if target.first_token is not None:
        quantile, limit_ns = target.first_token
        time = point.first_token_ns(quantile)
        name = quantile.removesuffix("_ns").replace("_", ".")
        known = "unknown, too few requests" if time is None else units.format_duration(time)
        said += (
            f", modelled {name} time to first token {known} (target"
            f" {units.format_duration(limit_ns)})"
        )
    return said


def _name_capacities(point: Point, labels: Mapping[str, str]) -> str:
    return " and ".join(_name_capacity(of, labels[role]) for role, of in point.capacities.items())


def _name_capacity(of: int | None, label: str) -> str:
    if not of:
        return f"{'unlimited' if of is None else 'no'} {label}"
    return f"{units.format_bytes(of)} of {label}"


def size_document(
    found: Sizing, stack: Stack, facts: dict[str, Any], target: Target, *, is_ordered: bool
) -> doc.Document:
    """Return the answer as a document; `facts` say of which preset, model and load.

    A load that `is_ordered` took no time to compute, though nobody said so.
    """
    shown = found.chosen or found.ceiling
    tables = _tier_tables(shown)
    if shown.first_token is not None:
        tables.append(first_token_table(shown.first_token))
    lines = [
        (
            "all ranks together, means over the whole load; "
            "p99 of per-second rate: what 1 % of all seconds of virtual time exceed"
        )
    ]
    if any(tier.drive_writes_per_day is not None for tier in shown.tiers):
        lines.append("drive writes a day and life: if this load's rate is kept up")
    lines += _costs(shown, stack)
    if (tick_s := _tick_s(stack)) is not None:
        lines.append(
            f"requests arrive on ticks about {tick_s} s apart: --jitter {tick_s}s spreads them, "
            "and lowers the p99 of per-second rates"
        )
    chapters = [
        doc.Chapter(
            f"What each tier must do with {_name_capacities(shown, found.labels)}", tables, lines
        ),
        doc.Chapter("Capacities", [_grid(found, stack)], _notes_of_grid(found, stack)),
    ]
    span, lookups = units.format_duration(shown.span_ns), units.format_count(shown.lookups)
    bounded = " and ".join(found.labels[role] for role in found.ceiling.capacities)
    computing = in_words(facts["serving"])
    if (
        stack.load.requests is not None
        and facts["serving"]["gpu"] == INSTANT
        and not has_times(stack.preset)
    ):
        order = "requests are served in the order of arrival; --gpu h100 models it"
        computing = f"GPU compute time is not modelled: {order}"
    notes = [
        (
            f"{facts['preset']}, {facts['model']}, {lookups} look-ups of objects over {span} of"
            " virtual time, simulated"
        ),
        (
            f"ceiling with unlimited {bounded}: {units.percent(found.ceiling.hit_ratio)} of"
            " look-ups hit"
        ),
        computing,
    ]
    if found.chosen is not None:
        if (best := found.chosen.optimal_hit_ratio) is not None:
            notes.append(
                f"upper bound (Belady): no policy with as many bytes exceeds {units.percent(best)}"
            )
        sizes = {
            stack.preset.tiers[stack.roles[role]].name: of
            for role, of in found.chosen.capacities.items()
        }
        settings = [f"--gpu {INSTANT}"] * is_ordered
        settings += [
            f"--set {as_setting(f'tiers.{name}.capacity', 'unlimited' if of is None else of)}"
            for name, of in sizes.items()
        ]
        notes.append(
            "its trace: kvtrace gen with the same"
            f" options{' and ' * bool(settings)}{' '.join(settings)}"
        )
    highlights = [
        doc.Highlight(found.labels[role], of, doc.Unit.BYTES, "unlimited" if of is None else "")
        for role, of in shown.capacities.items()
    ]
    highlights += [
        doc.Highlight("hit ratio", shown.hit_ratio, doc.Unit.SHARE, "of look-ups, in any tier"),
        doc.Highlight(
            "ceiling", found.ceiling.hit_ratio, doc.Unit.SHARE, "with unlimited capacity"
        ),
        doc.Highlight(
            "prompt tokens saved",
            shown.saved_tokens,
            doc.Unit.COUNT,
            f"of {units.format_count(shown.input_tokens)}",
        ),
    ]
    return doc.Document("", first_line(found, target, stack), chapters, notes, highlights)


def _tier_tables(point: Point) -> list[doc.ReportTable]:
    p99 = "= p99 of per-second rate"
    bandwidth = f"""
        text: name = tier
        bytes: capacity_bytes = capacity
        share: hit_ratio = hits
        bytes_per_s: read_bytes_per_s = read, p99_second_read_bytes_per_s {p99}, write_bytes_per_s = written,
            p99_second_write_bytes_per_s {p99}
        bytes: read_bytes = read in all, written_bytes = written in all
    """
    operations = f"""
        text: name = tier
        per_s: reads_per_s = reads/s, p99_second_reads_per_s {p99}, writes_per_s = writes/s,
            p99_second_writes_per_s {p99}
        number: drive_writes_per_day = drive writes a day; years: life_years = life
    """
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


def bounded_capacity(capacity: int | None) -> Any:
    """Return a capacity as a table's cell: without a bound it reads `unlimited`."""
    return doc.Cell("unlimited", doc.Unit.TEXT) if capacity is None else capacity


def _grid(found: Sizing, stack: Stack) -> doc.ReportTable:
    """Return a row a point.

    The one that was chosen, simulated in full, in the place of its estimate.
    """
    roles, has_price = (
        list(found.ceiling.capacities),
        any(point.price is not None for point in found.points),
    )
    drive = drive_of(stack.preset)
    has_optimum = any(point.optimal_hit_ratio is not None for point in found.points)
    spec = [
        "bytes: " + ", ".join(f"{role}_bytes = {found.labels[role]}" for role in roles),
        "share: hit_ratio = hits",
    ]
    spec += ["share: optimal_hit_ratio = optimal"] if has_optimum else []
    spec += ["count: saved_tokens = tokens saved"]
    for role in roles:
        spec.append(
            f"bytes_per_s: {role}_read = {found.labels[role]} read, {role}_written = written"
        )
    spec += ["number: drive_writes_per_day = writes a day"] if drive is not None else []
    spec += ["number: price"] if has_price else []
    rows = []
    for estimated in found.points:
        is_chosen = found.chosen is not None and estimated.capacities == found.chosen.capacities
        point = found.chosen if is_chosen and found.chosen is not None else estimated
        row = asdict(point) | {"hit_ratio": _hit_ratio(point, point.sampling_rate)}
        for role, capacity in point.capacities.items():
            does = point.tiers[stack.roles[role]].figures()
            row[f"{role}_bytes"] = bounded_capacity(capacity)
            row |= {
                f"{role}_read": does["read_bytes_per_s"],
                f"{role}_written": does["write_bytes_per_s"],
            }
        if drive is not None:
            row["drive_writes_per_day"] = point.tiers[drive].drive_writes_per_day
        rows.append(row)
    table = doc.table_of(
        "", doc.Sheet.SUMMARY, "\n".join(spec), rows, charts=_charts(found), keys=len(roles)
    )
    return replace(table, is_answer=True)


def _charts(found: Sizing) -> tuple[doc.Chart, ...]:
    """Return hits against the capacity that has most points, a line for each of the other's."""
    *others, along = found.ceiling.capacities
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.points:
        x = point.capacities[along]
        if x:
            label = " and ".join(
                _name_capacity(point.capacities[role], found.labels[role]) for role in others
            )
            lines.setdefault(label or "hits", []).append((float(x), point.hit_ratio))
    series = [
        doc.Series(label, [x for x, _ in sorted(at)], [y for _, y in sorted(at)])
        for label, at in lines.items()
    ]
    if not series:
        return ()
    title, named = f"Hits against {found.labels[along]}", f"{found.labels[along]} capacity"
    what = doc.ChartShape.CURVE, doc.Unit.BYTES, doc.Unit.SHARE
    return (doc.Chart(title, *what, series, x_title=named, y_title="look-ups that hit"),)


def _costs(point: Point, stack: Stack) -> list[str]:
    lines = []
    for tier, done in zip(stack.preset.tiers, point.tiers, strict=True):
        reads, writes = done.rates.reads_per_s, done.rates.writes_per_s
        if tier.has_price and reads is not None and writes is not None:
            stored_bytes = done.written_bytes - done.deleted_bytes
            cost = tier.monthly_cost(reads.mean, writes.mean, MONTH_S, stored_bytes)
            lines.append(
                cost_line(cost, "", "at the preset's prices and this load's rate, kept up")
            )
    return lines


def _tick_s(stack: Stack) -> int | None:
    """Return how far apart the seconds are in which requests arrive, if many do in each of few."""
    requests = stack.load.requests
    if requests is None or len(requests) == 0:
        return None
    seconds = np.unique(requests.arrival_ns // units.NS_PER_S)
    if len(seconds) < _FEWEST_TICKS or len(requests) < 2 * len(seconds):
        return None
    apart = int(np.median(np.diff(seconds)))
    return apart if apart > 1 else None


def _notes_of_grid(found: Sizing, stack: Stack) -> list[str]:
    lines = []
    if (rate := min(point.sampling_rate for point in found.points)) < 1:
        lines.append(
            f"with ±: estimated from 4 samples of {units.percent(rate)} of the objects, 95 %"
            " confidence; the others, what was chosen and the ceiling are simulated in full"
        )
    if any(point.optimal_hit_ratio is not None for point in found.points):
        lines.append(
            "optimal: what no policy exceeds with as many bytes in all tiers together (Belady)"
        )
    for role, t in stack.roles.items():
        tier = stack.preset.tiers[t]
        if tier.capacity_bytes is None and role == "nvme":
            lines.append(
                f"the preset's {tier.name} never evicts; with a capacity it evicts by"
                f" {tier.policy}, for which this stack needs an evictor beside it"
            )
    lines.append("other capacities: --dram and --nvme")
    return lines
