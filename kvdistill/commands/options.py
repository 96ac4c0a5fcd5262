"""Options that several commands take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.units import parse_duration_ns, positive

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


@dataclass(frozen=True, slots=True)
class WindowArguments:
    """Which part of the source is taken."""

    limit: str | None = option("Use only the first ROWS (10000), TIME (60s) or BYTES (8GiB).")
    begin: str | None = option("Start this long after the first operation (20s).", None, "--from")
    end: str | None = option("Stop this long after the first operation (80s).", None, "--to")
    busiest: str | None = option("Use the window of this length that moves the most bytes (10s).")

    def window(self) -> Limit:
        """Return it, with times from the first row on; ConfigError if it is none."""
        found = parse_limit(self.limit)
        if self.busiest is not None:
            if self.begin is not None or self.end is not None:
                raise ConfigError("--busiest chooses the window: leave out --from and --to")
            return replace(found, busiest_ns=positive("--busiest", parse_duration_ns)(self.busiest))
        begin_ns = 0 if self.begin is None else parse_duration_ns(self.begin)
        if self.end is None:
            return replace(found, begin_ns=begin_ns)
        span_ns = parse_duration_ns(self.end) - begin_ns
        if span_ns <= 0:
            raise ConfigError(f"--to {self.end} is not after --from {self.begin or '0s'}")
        return replace(found, begin_ns=begin_ns).within(Limit(span_ns=span_ns))


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
