"""Trials of one side share an entry of a chart's legend."""

import json

import pytest

from kvtrace.core.document.document import Chart, ChartShape, Series, Unit
from kvtrace.core.document.picture import build_picture

SERIES = [
    Series("a trial 1", [0.5, 0.9], [1.0, 2.0], colour=0, legend="a, 2 trials"),
    Series("b", [0.5, 0.9], [2.0, 3.0], colour=1),
    Series("a trial 2", [0.5, 0.9], [1.5, 2.5], colour=0, legend="a, 2 trials"),
]
PICTURE = build_picture(Chart("times", ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, SERIES))


def test_on_a_screen():
    pytest.importorskip("bokeh")
    from kvtrace.core.document.live_figure import build_live_figure

    items = []

    def collect(value):
        if isinstance(value, dict):
            if value.get("name") == "LegendItem":
                label = value["attributes"]["label"]
                shown = label["value"] if isinstance(label, dict) else label
                items.append((shown, len(value["attributes"]["renderers"])))
            for part in value.values():
                collect(part)
        elif isinstance(value, list):
            for part in value:
                collect(part)

    collect(json.loads(build_live_figure(PICTURE)))
    # Each line has its points as a renderer of their own.
    assert items == [("a, 2 trials", 4), ("b", 2)]


def test_on_paper():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from kvtrace.core.document.picture import COLOURS
    from kvtrace.core.document.svg_figure import draw_axes

    axes = Figure().subplots()
    draw_axes(axes, PICTURE, dict.fromkeys((*COLOURS, "ink", "faint"), "#000000"))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a, 2 trials", "b"]
