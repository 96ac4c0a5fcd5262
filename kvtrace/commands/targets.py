"""What `size` and `study` share: what is to be reached, what a byte costs, and the page that shows it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.commands.options import parse_share
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document
    from kvtrace.curves.size import Target

_PRICE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*([A-Za-z]+)\s*")

TargetHit = Annotated[str | None, typer.Option(help="Share of look-ups that hit in any tier, such as 80% or 0.8.")]
TargetTtft = Annotated[
    str | None, typer.Option(help="Modelled time to first token, such as p99=2s; p50, p95, p99, p99.9 or p99.99.")
]


def parse_target(hit: str | None, ttft: str | None) -> Target | None:
    """Return what is to be reached; None if nothing is said."""
    from kvtrace.core.statistics import QUANTILES
    from kvtrace.curves.size import Target

    if hit is None and ttft is None:
        return None
    share = None
    if hit is not None:
        share = parse_share(hit, "--target-hit")
        if not 0 < share <= 1:
            hint = f"; {share:g} % is written {share:g}%" if 1 < share <= 100 and "%" not in hit else ""  # noqa: PLR2004
            raise ConfigError(f"--target-hit {hit}: must be > 0, and at most 100%, which is 1{hint}")
    if ttft is None:
        return Target(share)
    quantile, is_said, limit = (part.strip() for part in ttft.partition("="))
    name = quantile.replace(".", "_")
    if not is_said or name not in QUANTILES:
        known = ", ".join(known.replace("_", ".") for known in QUANTILES)
        raise ConfigError(f"--target-ttft {ttft}: write for example p99=2s; percentiles are {known}")
    limit_ns = parse_duration_ns(limit)
    if not limit_ns:
        raise ConfigError(f"--target-ttft {ttft}: must be > 0")
    return Target(share, (f"{name}_ns", limit_ns))


def price_of_byte(text: str, where: str, example: str = "4/GiB or 0.1/GiB") -> float:
    """Return the price of a byte that `text` says, such as 0.1/GiB; ConfigError, naming `where`, if it says none."""
    match = _PRICE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{where}: write for example {example}")
    return float(match[1]) / parse_bytes(f"1{match[2]}")


def check_page(page: Path, flag: str) -> None:
    """Raise unless a page can be drawn, before the work that it is to show."""
    from importlib.util import find_spec

    from kvtrace.core.errors import ProbeUnavailable

    if page.suffix != ".html":
        raise ConfigError(f"{flag} {page}: name it *.html")
    for library in ("matplotlib", "bokeh"):
        if find_spec(library) is None:
            raise ProbeUnavailable(f"{flag} needs {library}: pip install 'kvtrace[plot]'")


def write_page(page: Path, shown: Document) -> None:
    """Write `shown` to `page`, aside and renamed."""
    from kvtrace import __version__
    from kvtrace.core.document.page import html_page
    from kvtrace.core.files import write_text

    write_text(page, html_page([shown], f"Made by kvtrace {__version__}: kvtrace {' '.join(sys.argv[1:])}"))
