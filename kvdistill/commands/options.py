"""Options that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from kvtrace.core.app import option
from kvtrace.core.limit import Limit

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
            "Tier or disk to take I/O from; needed if there are several. In a fleet, nvme@3 is node"
            " 3's."
        ),
    ),
]


class WindowKeywords(TypedDict):
    """The part of a source, as the functions of the library take it."""

    limit: str | None
    begin: str | None
    end: str | None
    busiest: str | None


@dataclass(frozen=True, slots=True)
class WindowArguments:
    """Which part of the source is taken."""

    limit: str | None = option("Use only the first ROWS (10000), TIME (60s) or BYTES (8GiB).")
    begin: str | None = option("Start this long after the first operation (20s).", None, "--from")
    end: str | None = option("Stop this long after the first operation (80s).", None, "--to")
    busiest: str | None = option("Use the window of this length that moves the most bytes (10s).")

    def as_keywords(self) -> WindowKeywords:
        """Return it as the functions of the library take it."""
        return WindowKeywords(
            limit=self.limit, begin=self.begin, end=self.end, busiest=self.busiest
        )

    def window(self) -> Limit:
        """Return it, with times from the first row on; ConfigError if it is none."""
        from kvdistill.queries.window import parse_window

        return parse_window(self.limit, self.begin, self.end, self.busiest)


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
