"""Drive a real engine's storage path on the user's storage."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvreplay.commands.options import RunAsJson, command_line
from kvreplay.drivers.engines import EngineKind
from kvtrace.core.app import emit_json, log, progress
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_bytes


# Long: a parameter is an option.
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
    requests: Annotated[int, typer.Option(min=1, help="Serve so many of the trace's requests, from its start.")] = 20,
    cpu: Annotated[
        str | None,
        typer.Option(help="The engine's pool in memory, before its files; sglang has none here.  [default: 8GiB]"),
    ] = None,
    disk: Annotated[
        str | None, typer.Option(help="What its files may take; mooncake sets its own bound.  [default: 64GiB]")
    ] = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model; the defaults are Llama-3.1-8B's.")] = 32,
    kv_heads: Annotated[int, typer.Option(min=1, help="KV heads of each layer.")] = 8,
    head_dim: Annotated[int, typer.Option(min=1, help="Elements of a head, of two bytes each.")] = 128,
    direct: Annotated[bool, typer.Option("--direct", help="O_DIRECT, where the engine has it (lmcache).")] = False,
    python: Annotated[
        Path | None,
        typer.Option(help="An interpreter that has the engine's package; the one of kvreplay if not given."),
    ] = None,
    probes: Annotated[
        bool,
        typer.Option(
            "--probes",
            help="Also probe the block requests beneath, as kvreplay run --probes does. Without --direct it counts "
            "those of all programs on the disk, for the kernel writes the page cache back.",
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the engine's files; the next run removes them.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write into a directory that is not empty; replaces a run there.")
    ] = False,
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
    from kvreplay.drivers.run import EngineOptions, run_engine
    from kvreplay.run.document import run_document
    from kvtrace.core.document.terminal import show_documents

    named, _, directory = tier.partition("=")
    if named != "nvme" or not directory:
        raise ConfigError(f"--tier {tier}: an engine's files go to nvme=DIRECTORY")
    wanted = EngineOptions(
        kind=name,
        trace=trace,
        directory=Path(directory),
        python=Path(sys.executable) if python is None else python,
        requests=requests,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        cpu_bytes=None if cpu is None else parse_bytes(cpu),
        disk_bytes=None if disk is None else parse_bytes(disk),
        is_direct=direct,
        is_kept=keep,
        is_probed=probes,
    )
    finished = run_engine(wanted, output, command_line(), is_forced=force, show=progress, tell=log)
    if as_json:
        emit_json(finished.run)
    else:
        show_documents([run_document(finished)])
        log(f"wrote {output}")
    if finished.error is not None:
        raise finished.error
