"""What several commands have in common: their arguments, and how they write a share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    pass

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed and options, same bytes.")]
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: *.parquet or *.csv.zst.")]


def percent(ratio: float | None) -> str | None:
    """Return `ratio` as per cent, None if it is unknown."""
    return None if ratio is None else f"{100 * ratio:.1f} %"
