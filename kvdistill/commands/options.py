"""Options that several commands take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.core.app import option
from kvtrace.core.limit import Limit, parse_window

SOURCE = typer.Argument(
    metavar="INPUT",
    show_default=False,
    help="A trace, a run's folder, ops.parquet, blocks.parquet, probe.json or profile.json.",
)
Source = Annotated[Path, SOURCE]
Tier = Annotated[
    str | None,
    typer.Option(
        "--tier", help="Tier or disk to take I/O from; needed if there are several. In a fleet, nvme@3 is node 3's."
    ),
]


@dataclass(frozen=True, slots=True)
class WindowArguments:
    """Which part of the source is taken."""

    limit: str | None = option("Use only the first ROWS (10000), TIME (60s) or BYTES (8GiB).")
    begin: str | None = option("Start this long after the first operation (20s).", None, "--from")
    end: str | None = option("Stop this long after the first operation (80s).", None, "--to")
    busiest: str | None = option("Use the window of this length that moves the most bytes (10s).")

    def window(self) -> Limit:
        """Return it; ConfigError if it is none."""
        return parse_window(self.limit, self.begin, self.end, self.busiest)


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Outputs = Annotated[
    list[Path] | None,
    typer.Option("-o", "--output", writable=True, help="Write to *.html, *.md, *.csv or *.xlsx; may be given again."),
]
