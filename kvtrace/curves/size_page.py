"""The page of `kvtrace size`: its document, with what a reader can try.

The explorer has the points that were simulated or estimated; the picture is that of break-even.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from kvtrace.core.document.document import Chart, Document
from kvtrace.core.document.explorer import Choice, Explorer, Price
from kvtrace.core.units import BYTES_PER_GB, format_bytes
from kvtrace.curves.break_even import model_break_even
from kvtrace.curves.points import Point, Stack
from kvtrace.curves.size import Sizing, Target
from kvtrace.curves.stores import Store
from kvtrace.llm.serving import GPUS
from kvtrace.llm.shape import ModelShape
from kvtrace.sim.baseline import slower_note
from kvtrace.sim.presets.preset import Preset
from kvtrace.sim.presets.tier import ns_of

_DEFAULT_GPU = "h100"
"""The GPU of the break-even picture if computing takes no time."""


@dataclass(frozen=True, slots=True)
class ExamplePrices:
    """Prices of a byte by role, for a page of capacities without prices of their own."""

    by_role: Mapping[str, float]
    currency: str
    note: str


def size_page(
    document: Document,
    sizing: Sizing,
    target: Target,
    stack: Stack,
    model: str,
    prices: Mapping[str, float] | None,
    examples: ExamplePrices,
) -> Document:
    """Return `document` with an explorer of the points of `sizing`, and the break-even picture.

    `prices` are those that the user gave; without them the sliders begin at `examples`.
    """
    fleet_examples = {
        role: price * stack.instances.get(role, 1) for role, price in examples.by_role.items()
    }
    explorer = _explorer(sizing, target, prices, replace(examples, by_role=fleet_examples))
    chart = break_even_chart(stack.preset, stack.model, stack.ranks, model)
    return replace(
        document, explorer=explorer, pictures=(*document.pictures, *([chart] if chart else []))
    )


def break_even_chart(preset: Preset, shape: ModelShape, ranks: int, model: str) -> Chart | None:
    """Return the break-even bandwidth of the model on the preset's GPU, and its store; None if unknown."""
    gpu = preset.gpu if preset.gpu in GPUS else _DEFAULT_GPU
    if not shape.parameters:
        return None
    tier = preset.tiers[-1]
    read_bytes_per_s, _ = tier.rates_bytes_per_s
    stores = None
    if read_bytes_per_s:
        stores = [Store(tier.name, float(read_bytes_per_s), ns_of(tier.latency))]
    result = model_break_even(shape, model, gpu, ranks, stores)
    return replace(result.chart(), title=f"Break-even bandwidth: {result.name}")


def _explorer(
    sizing: Sizing,
    target: Target,
    prices: Mapping[str, float] | None,
    examples: ExamplePrices,
) -> Explorer | None:
    """Return the explorer; None without two roles, whose map it is, or without a price of one."""
    roles = list(sizing.ceiling.capacities)
    byte_prices = prices or examples.by_role
    if not roles or any(role not in byte_prices for role in roles):
        return None
    row_role = roles[0] if len(roles) > 1 else None
    points = [
        point
        for point in sizing.points
        if None not in point.capacities.values()
        and (sizing.chosen is None or point.capacities != sizing.chosen.capacities)
    ]
    answer = None
    if sizing.chosen is not None and None not in sizing.chosen.capacities.values():
        points.append(sizing.chosen)
    points.sort(key=lambda point: [point.capacities[role] or 0 for role in roles])
    if sizing.chosen in points:
        answer = points.index(sizing.chosen)
    currency = "" if prices else examples.currency
    quantile, limit_ns = target.first_token or ("", None)
    fixed = target.fixed()
    works = replace(fixed, without_offload=None, may_stall=False)
    return Explorer(
        rows="" if row_role is None else sizing.labels[row_role],
        columns=sizing.labels[roles[-1]],
        row_labels=[""] if row_role is None else _size_labels(points, row_role),
        column_labels=_size_labels(points, roles[-1]),
        choices=[
            _choice(point, roles, sizing, byte_prices, is_working=_is_working(point, works, sizing))
            for point in points
        ],
        prices=[
            Price(sizing.labels[role], byte_prices[role] * BYTES_PER_GB, f"{currency}/GB".lstrip())
            for role in roles
        ],
        cost=currency or "units of price",
        answer=answer,
        target_hit=target.hit_ratio,
        target_first_token_p99_ns=limit_ns if quantile == "p99_ns" else None,
        note=(
            "Sliders choose among the capacities that were simulated or estimated; struck through:"
            " below the target, or requests that never start, or slower than computing."
            + fixed_note(fixed)
            + ("" if prices else f" {examples.note}")
        ),
    )


def fixed_note(fixed: Target) -> str:
    """Return the sentence on targets that no slider moves; "" if there are none."""
    return f" Struck through, too: those that miss {fixed.describe()}." if fixed.has_times else ""


def _size_labels(points: Sequence[Point], role: str) -> list[str]:
    """Return the capacities of `role` as text, the smallest first, each once."""
    sizes = sorted({point.capacities[role] or 0 for point in points})
    return list(dict.fromkeys(format_bytes(size) for size in sizes))


def _is_working(point: Point, works: Target, sizing: Sizing) -> bool:
    """Return whether requests of `point` start, its loads are not slower than computing, and it
    reaches the targets that no slider moves.
    """
    baseline = sizing.ceiling.first_token
    first_token = point.first_token
    if first_token is not None and baseline is not None and baseline.without_offload is not None:
        first_token = msgspec.structs.replace(
            first_token,
            without_offload=baseline.without_offload,
            requests_without_offload=baseline.requests_without_offload,
        )
    return works.is_met(point) and slower_note(first_token) is None


def _choice(
    point: Point,
    roles: list[str],
    sizing: Sizing,
    byte_prices: Mapping[str, float],
    *,
    is_working: bool,
) -> Choice:
    sizes = {role: point.capacities[role] or 0 for role in roles}
    return Choice(
        row="" if len(roles) == 1 else format_bytes(sizes[roles[0]]),
        column=format_bytes(sizes[roles[-1]]),
        name=" and ".join(
            f"{format_bytes(size)} of {sizing.labels[role]}" for role, size in sizes.items()
        ),
        hit_ratio=point.hit_ratio,
        first_token_p50_ns=point.first_token_ns("p50_ns"),
        first_token_p99_ns=point.first_token_ns("p99_ns"),
        costs=tuple(size * byte_prices[role] for role, size in sizes.items()),
        is_working=is_working,
    )
