"""Options shared by several commands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from kvdistill.commands import completion
from kvtrace.core.app import option

SOURCE = typer.Argument(
    metavar="INPUT",
    show_default=False,
    help="A trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json.",
)
Source = Annotated[Path, SOURCE]
Tier = Annotated[
    str | None,
    typer.Option(
        "--tier",
        help=(
            "Tier or disk to use; needed if there are several. In a fleet, nvme@3 is the tier of node"
            " 3."
        ),
        autocompletion=completion.tiers,
    ),
]


class WindowKeywords(TypedDict):
    """The window of a source, as keywords of the library's functions."""

    limit: str | None
    begin: str | None
    end: str | None
    busiest: str | None


@dataclass(frozen=True, slots=True)
class WindowArguments:
    """Options for the window of the source."""

    limit: str | None = option("Use only the first ROWS (10000), TIME (60s) or BYTES (8GiB).")
    begin: str | None = option("Start this long after the first operation (20s).", None, "--from")
    end: str | None = option("Stop this long after the first operation (80s).", None, "--to")
    busiest: str | None = option("Use the window of this length with the most bytes (10s).")

    def as_keywords(self) -> WindowKeywords:
        """Return the options as keywords of the library's functions."""
        return WindowKeywords(
            limit=self.limit, begin=self.begin, end=self.end, busiest=self.busiest
        )


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "-o",
        "--output",
        writable=True,
        help="Write to *.html, *.md, *.csv or *.xlsx; may be given again.",
    ),
]
