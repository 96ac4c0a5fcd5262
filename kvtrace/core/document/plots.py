"""Plots by matplotlib, an optional part, to a file: two panels over one axis, the same bytes each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvtrace.core.errors import ConfigError, ProbeUnavailable
from kvtrace.core.files import aside

SUFFIXES = (".svg", ".png", ".pdf")
_DATES = {".svg": "Date", ".pdf": "CreationDate"}


def check_plot(path: Path) -> None:
    """Raise unless a plot can be drawn to `path`, before the work that it is to show.

    Raises:
        ConfigError: another suffix than .svg, .png or .pdf.
        ProbeUnavailable: matplotlib is missing.

    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: name it *.svg, *.png or *.pdf")
    if find_spec("matplotlib") is None:
        raise ProbeUnavailable("--plot needs matplotlib: pip install 'kvtrace[plot]'")


@contextmanager
def panels(path: Path, title: str) -> Iterator[tuple[Any, Any]]:
    """Yield the axes of an upper and a lower panel with one x axis; write them to `path` afterwards."""
    check_plot(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Ids and dates would differ from one drawing to the next.
    with mpl.rc_context({"svg.hashsalt": "kvtrace"}):
        figure = Figure(figsize=(8, 6), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        upper.set(title=title)
        yield upper, lower
        for axes in (upper, lower):
            axes.grid(visible=True, alpha=0.3)
        date = _DATES.get(path.suffix)
        with aside(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata={date: None} if date else None)
