"""The command `kvreplay probe`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.core.app import emit_json, log
from kvtrace.core.units import parse_duration_ns


def probe(
    comm: Annotated[str | None, typer.Option(
        help="Only I/O of processes of this name (/proc/PID/comm), their threads and descendants.")] = None,
    pid: Annotated[int | None, typer.Option(help="Only I/O of this process, its threads and descendants.")] = None,
    cgroup: Annotated[Path | None, typer.Option(
        help="Only I/O of processes in this cgroup (version 2) or below: a directory, or as in /proc/PID/cgroup.")
    ] = None,
    dev: Annotated[list[Path] | None, typer.Option(
        help="Only the disks beneath this block device (partition, dm, md). Repeatable.")] = None,
    duration: Annotated[str | None, typer.Option(help="How long, such as 60s; until Ctrl-C if not given.")] = None,
    histograms_only: Annotated[bool, typer.Option(
        "--histograms-only", help="Do not write blocks.parquet, one row a request; for production use.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The result's directory.")] = Path("probe"),
    as_json: Annotated[bool, typer.Option("--json", help="Print probe.json.")] = False,
) -> None:  # fmt: skip
    """Measure the I/O of any process: its calls, the block requests beneath, and where their time goes.

    Needs root, BCC (python3-bpfcc) and kernel headers; without them one line says what is missing. What the
    kernel writes back later from the page cache belongs to its own threads: leave --comm and --pid out to see it.

    \b
    Example, a fio in another shell, on one drive:
      kvreplay probe --comm fio --dev /dev/nvme0n1 --duration 60s -o probe/
    """
    from kvreplay.probes.devices import resolve
    from kvreplay.probes.document import show_found
    from kvreplay.probes.measure import measure
    from kvreplay.probes.program import Filter

    disks = {disk.name: disk for path in dev or [] for disk in resolve(path)}
    measured = measure(
        Filter(comm, pid, list(disks.values()), cgroup), output,
        None if duration is None else parse_duration_ns(duration), ["kvreplay", *sys.argv[1:]],
        has_events=not histograms_only, tell=log,
    )  # fmt: skip
    if as_json:
        emit_json(measured.content)
    else:
        show_found(measured.found)
        log(f"wrote {output}")
