"""The files that --plot names: a document as an HTML page, or its charts as SVG, PNG or PDF."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from kvtrace import __version__
from kvtrace.core.document.document import Document
from kvtrace.core.document.live_figure import SCREEN_COLOURS
from kvtrace.core.document.page import html_page
from kvtrace.core.document.picture import build_picture
from kvtrace.core.document.svg_figure import draw_axes
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, how_to_add
from kvtrace.core.files import aside, write_text

SUFFIXES = (".html", ".svg", ".png", ".pdf")
_INKS = SCREEN_COLOURS | {"ink": "black", "faint": "#d8d8d8"}
_DATE_FIELDS = {".svg": "Date", ".pdf": "CreationDate"}
"""The field of a file's metadata that holds the date, by suffix."""


def check_drawing(path: Path, flag: str = "--plot") -> None:
    """Raise an error unless `path`, the value of `flag`, can be drawn.

    Commands call this before they compute the result to draw. ConfigError for an unknown suffix,
    ProbeUnavailable if a library that draws is missing, DeviceError if the folder does not exist.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{flag} {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")
    libraries = ("matplotlib", "bokeh") if path.suffix == ".html" else ("matplotlib",)
    for library in libraries:
        if find_spec(library) is None:
            raise ProbeUnavailable(f"{flag} needs {library}: {how_to_add('plot')}")
    if not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; create it first")


def write_drawing(path: Path, document: Document, argv: Sequence[str]) -> None:
    """Write `document`, the result of the command line `argv`, to `path`.

    A path that ends in .html gets the whole page; any other gets the charts, one below another.
    """
    if path.suffix == ".html":
        made_by = f"Made by {argv[0]} {__version__}: {' '.join(argv)}"
        write_text(path, html_page([document], made_by))
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    pictures = [build_picture(chart) for table in document.tables for chart in table.charts]
    # A fixed salt and no date, so that equal documents give equal files.
    with mpl.rc_context({"svg.hashsalt": "kvtrace"}):
        figure = Figure(figsize=(8, 3.5 * max(1, len(pictures))), layout="constrained")
        figure.suptitle(document.name)
        for number, picture in enumerate(pictures, 1):
            draw_axes(figure.add_subplot(len(pictures), 1, number), picture, _INKS)
        date_field = _DATE_FIELDS.get(path.suffix)
        metadata = {date_field: None} if date_field else None
        with aside(path) as temporary:
            figure.savefig(temporary, format=path.suffix[1:], metadata=metadata)
