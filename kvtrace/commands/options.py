"""What several commands have in common: their arguments, and how they write a share."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.core.app import log

if TYPE_CHECKING:
    from collections.abc import Iterator

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed and options, same bytes.")]
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: *.parquet or *.csv.zst.")]


def percent(ratio: float | None) -> str | None:
    """Return `ratio` as per cent, None if it is unknown."""
    return None if ratio is None else f"{100 * ratio:.1f} %"


@contextmanager
def compile_announced() -> Iterator[None]:
    """Say so, once, if the block has to compile: other eviction policies than lru compile on their own."""
    from kvtrace.compiled import announcing

    with announcing(lambda: log("compiling: this happens once, is kept, and takes up to a minute")):
        yield
