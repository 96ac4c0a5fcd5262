"""What several commands have in common: arguments, options, and how they are read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.core.errors import ConfigError

TraceFile = Annotated[Path, typer.Argument(help="A trace of kvtrace: *.parquet or *.csv.zst.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the data; the trace's if not given.")]
Buffered = Annotated[bool, typer.Option("--buffered", help="Go through the page cache instead of O_DIRECT.")]
RunAsJson = Annotated[bool, typer.Option("--json", help="Print the run's manifest and summary as JSON.")]


def command_line() -> list[str]:
    """Return the command line as outputs record it."""
    return ["kvreplay", *sys.argv[1:]]


def targets(options: list[str] | None) -> dict[str, str]:
    """Return the target of each tier that `--tier NAME=TARGET` names; ConfigError for what is none."""
    found: dict[str, str] = {}
    for option in options or []:
        name, equals, target = option.partition("=")
        if not (name and equals and target):
            raise ConfigError(f"--tier {option}: write it as NAME=TARGET, for example nvme=/mnt/scratch or cpu=ram")
        if name in found:
            raise ConfigError(f"--tier {option}: tier {name} has the target {found[name]} already; name it once")
        found[name] = target
    return found
