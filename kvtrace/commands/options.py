"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
TraceFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="A trace: *.parquet, *.csv.zst, a dataset's folder, or s3://BUCKET/KEY of a Parquet one.",
    ),
]
RequestFile = Annotated[Path, typer.Argument(help="A file of real requests.")]
TargetHit = Annotated[
    str | None, typer.Option(help="Share of lookups that hit in any tier, such as 80% or 0.8.")
]
DayProfile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|log",
        help="The load over a day, for wear and costs a month: a file of 24 weights, one for each"
        " hour, of which the load is the busiest; or log, the log's own hours once a day. "
        " [default: the load's rate around the clock]",
    ),
]
TargetTtft = Annotated[
    str | None,
    typer.Option(
        help="Modelled time to first token, such as p99=2s; p50, p95, p99, p99.9 or p99.99."
    ),
]
