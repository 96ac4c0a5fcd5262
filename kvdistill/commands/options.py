"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
        help="The tier, or the disk, to take I/O from; needed where there are several. Of a fleet: nvme@3, node 3's.",
    ),
]
Limited = Annotated[
    str | None, typer.Option("--limit", help="Take only so many rows (10000), so much time (60s) or bytes (8GiB).")
]
From = Annotated[str | None, typer.Option("--from", help="Begin so long after its first operation (20s).")]
To = Annotated[str | None, typer.Option("--to", help="End so long after its first operation (80s).")]
Busiest = Annotated[
    str | None, typer.Option("--busiest", help="Take the stretch of this length that moves most (10s).")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
