"""Options that a reader weighs on a page: a map, sliders of prices and target, and the frontier.

Every option is a simulation that is done already: sliders choose among them, and simulate nothing.
explorer.js draws it; without the script, the page still has the answer and all tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Final

from kvtrace.core.units import printable

LEAST_FACTOR, GREATEST_FACTOR = 0.1, 10.0
"""Range of a price slider, relative to the price at the start."""
_NONE: Final = "any"


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one part of each option, which a slider changes."""

    name: str
    """Such as "DRAM"."""
    value: float
    unit: str
    """Such as "USD/GiB"."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One simulated option."""

    row: str
    """Label of its row in the map, such as "64.0 GB"."""
    column: str
    """Label of its column."""
    name: str
    """All of it in a few words."""
    hit_ratio: float
    first_token_p50_ns: float | None
    first_token_p99_ns: float | None
    costs: tuple[float, ...]
    """Cost of each part at the prices of the start."""
    is_working: bool
    """Whether every request starts, and loads are not slower than computing."""


@dataclass(frozen=True, slots=True)
class Explorer:
    """The options, and what the page shows at its start."""

    rows: str
    """What the rows of the map are, such as "DRAM"."""
    columns: str
    row_labels: Sequence[str]
    """The labels of all rows, in their order."""
    column_labels: Sequence[str]
    choices: Sequence[Choice]
    prices: Sequence[Price]
    cost: str
    """What the cost is, such as "USD a month"."""
    answer: int | None
    """Index of the choice that the command answers; None if none reaches its target."""
    target_hit: float | None
    target_first_token_p99_ns: float | None
    note: str
    """Where the prices come from."""


def explorer_html(explorer: Explorer) -> str:
    """Return the explorer as HTML without its script: its data, sliders and places to draw."""
    data = json.dumps(_data(explorer), allow_nan=False).replace("<", "\\u003c")
    sliders = [
        _slider("hit", "target hit rate", 0, 1000, round(1000 * (explorer.target_hit or 0.0)))
    ]
    if any(choice.first_token_p99_ns is not None for choice in explorer.choices):
        sliders.append(_slider("ttft", "limit of TTFT p99", 0, 1000, 1000))
    sliders += [
        _slider(f"price{index}", f"price of {price.name}", -100, 100, 0)
        for index, price in enumerate(explorer.prices)
    ]
    return (
        '<section class="explorer" id="explorer">\n'
        f'<script type="application/json" id="choices">{data}</script>\n'
        '<p class="answer" aria-live="polite"></p>\n'
        f'<div class="sliders">{"".join(sliders)}</div>\n'
        '<div class="measures" role="radiogroup" aria-label="what the map shows"></div>\n'
        '<div class="wide map"></div>\n<div class="frontier"></div>\n'
        f'<p class="note">{escape(printable(explorer.note))}</p>\n'
        "</section>\n"
    )


def _slider(name: str, label: str, low: int, high: int, value: int) -> str:
    return (
        f'<label>{escape(printable(label))} <output></output><input type="range" name="{name}"'
        f' min="{low}" max="{high}" value="{value}"></label>'
    )


def _data(explorer: Explorer) -> dict[str, object]:
    """Return what the script needs; text without control characters."""
    fields = asdict(explorer)
    for choice in fields["choices"]:
        for name in ("row", "column", "name"):
            choice[name] = printable(choice[name])
    for name in ("row_labels", "column_labels"):
        fields[name] = [printable(label) for label in fields[name]]
    return fields | {"factors": [LEAST_FACTOR, GREATEST_FACTOR], "none": _NONE}
