"""Drive a real engine's storage path on the user's storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kvreplay.commands.options import RunAsJson, command_line
from kvreplay.drivers.engines import EngineKind, EngineOptions
from kvtrace.core.app import Force, emit_json, log, progress, takes_groups
from kvtrace.core.errors import ConfigError


# Long: a parameter is an option.
@takes_groups
def engine(
    name: Annotated[EngineKind, typer.Argument(metavar="ENGINE", help="lmcache, sglang or mooncake.")],
    trace: Annotated[
        Path, typer.Argument(help="A Mooncake trace (*.jsonl), or a requests table of kvtrace import (*.parquet).")
    ],
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            "-t",
            metavar="nvme=DIRECTORY",
            help="An empty directory on the storage under test.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The run's directory.")] = Path("run"),
    *,
    wanted: EngineOptions,
    force: Force = False,
    as_json: RunAsJson = False,
) -> None:
    """Let a real engine's storage path serve a trace's requests, and record its file operations as a run.

    The engine's own code runs in an interpreter that has it; nothing is computed and no GPU is needed. Requests are
    served one at a time. The run is as kvreplay run's: kvdistill reports it, distils jobs from it, and compares it
    with the trace that kvtrace simulates of the same requests, and with a replay of that.

    \b
    Example, LMCache in an environment of its own:
      kvreplay engine lmcache conversation.jsonl --tier nvme=/mnt/nvme --python lmc/bin/python -o real
    Example, beside a replay of what kvtrace simulates (the same sizes; no GPU tier):
      kvtrace gen conversation.jsonl --source mooncake --limit 20 --preset lmcache-disk \\
        --model llama3.1-8b --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=8GiB \\
        --set tiers.nvme.capacity=64GiB -o sim.parquet
      kvreplay run sim.parquet --tier nvme=/mnt/nvme --buffered -o replayed
      kvdistill compare real replayed
    """
    from kvreplay.config.limits import check_memory

    check_memory()
    from kvreplay.drivers.run import run_engine
    from kvreplay.run.document import run_document
    from kvtrace.core.document.terminal import show_documents

    named, _, directory = tier.partition("=")
    if named != "nvme" or not directory:
        raise ConfigError(f"--tier {tier}: an engine's files go to nvme=DIRECTORY")
    wanted = replace(wanted, kind=name, trace=trace, directory=Path(directory))
    finished = run_engine(wanted, output, command_line(), is_forced=force, show=progress, tell=log)
    if as_json:
        emit_json(finished.run)
    else:
        show_documents([run_document(finished)])
        log(f"wrote {output}")
    if finished.error is not None:
        raise finished.error
