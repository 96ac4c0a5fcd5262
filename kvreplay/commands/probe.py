"""Look at a machine: measure the I/O of any process, and check the machine before a replay."""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from kvreplay.probes import Backend
from kvtrace.core.app import Force, command_line, log, option
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns


# Long: one parameter for each option.
def probe(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- CMD ARG...]", help="Command to run, measured until it ends."),
    ] = None,
    *,
    comm: str | None = option(
        "Only I/O of processes of this name (/proc/PID/comm), their threads and descendants."
    ),
    pid: int | None = option(
        "Only I/O of this process, its threads and descendants; ends with it."
    ),
    cgroup: Path | None = option(
        "Only I/O of processes in this cgroup (version 2) or below: a directory, or as in"
        " /proc/PID/cgroup."
    ),
    dev: list[Path] | None = option(
        "Only the disks beneath this block device (partition, dm, md). Repeatable.", readable=False
    ),
    duration: str | None = option("How long to measure, such as 60s; until Ctrl-C if not given."),
    histograms_only: bool = option(
        "Do not write blocks.parquet (one row per request); for production use.",
        False,
        "--histograms-only",
    ),
    output: Path = option("The result's directory.", Path("probe"), "--output -o"),
    fio: Path | None = option(
        "Also write fio jobs of the measured I/O into this folder, as `kvdistill fio` does.",
        show_default=False,
    ),
    backend: Backend = option(
        "How the probes are built for the kernel: core, from its BTF; bcc, by BCC (python3-bpfcc)"
        " and the kernel's headers; auto, core where there is BTF.",
        Backend.AUTO,
    ),
    force: Force = False,
    as_json: bool = option("Print probe.json.", False, "--json"),
) -> None:
    """Measure the I/O of any process: its calls, the block requests beneath, and their times.

    Needs root, libbpf (libbpf1) and a kernel with BTF, or else BCC and the kernel's headers; one
    line names the missing one. With --dev, only calls on files on these disks count; calls that
    queued no I/O (page cache) are timed apart. The kernel's own threads write the page cache back
    later: leave --comm and --pid out to see that. Exits with the status of CMD, if CMD ended before
    --duration did.

    \b
    Example, a command, from its start to its end:
      kvreplay probe --dev /dev/nvme0n1 -o probe/ -- fio job.fio
    Example, a fio in another shell, on one drive:
      kvreplay probe --comm fio --dev /dev/nvme0n1 --duration 60s -o probe/
    Example, a running vLLM, and fio jobs of its I/O:
      kvreplay probe --comm vllm --dev /dev/nvme0n1 --duration 60s -o probe/ --fio jobs/
    """
    from kvreplay.plan.output_directory import check_output
    from kvreplay.probes.libbpf import Filter, check_root, resolve
    from kvreplay.probes.probe_session import measure, probe_document, started
    from kvtrace.core.document.terminal import answer
    from kvtrace.core.files import check_new
    from kvtrace.core.run.run_file import run_program

    check_root()
    check_output(output, is_forced=force)
    if fio is not None:
        check_new(fio / "profile.json", "with --fio", is_forced=force)
    disks = {disk.name: disk for path in dev or [] for disk in resolve(path)}
    duration_ns = None if duration is None else parse_duration_ns(duration)
    with ExitStack() as stack:
        child = None
        if command:
            if any(value is not None for value in (comm, pid, cgroup)):
                raise ConfigError(
                    f"-- {command[0]}: this command is measured; leave out --comm, --pid and"
                    " --cgroup"
                )
            child = stack.enter_context(started(command))
        io_filter = Filter(comm, child.pid if child else pid, list(disks.values()), cgroup, backend)

        def begin(line: str) -> None:
            log(line)
            for note in io_filter.notes():
                log(f"note: {note}")
            if child is not None:
                child.send_signal(signal.SIGCONT)

        measured = measure(
            io_filter, output, duration_ns, command_line(), has_events=not histograms_only, announce=begin,
            is_over=lambda: _has_ended(child, pid),
        )  # fmt: skip
        # A command that still runs is ended by us, and its status does not count.
        status = child.poll() if child else None
    answer(measured, lambda: probe_document(measured), as_json=as_json)
    if not as_json:
        log(f"wrote {output}")
    if fio is not None:
        run_program(
            "kvdistill", ["fio", str(output), "-o", str(fio), "--force"], is_shown=not as_json
        )
    if command and status:
        log(f"note: {command[0]} ended with status {status}")
        # The status as in a shell, also for a command that a signal ended.
        raise typer.Exit(status if status > 0 else 128 - status)


def _has_ended(child: subprocess.Popen[bytes] | None, pid: int | None) -> bool:
    """Return whether the measured command, or the process of --pid, has ended.

    A replay that is killed cannot end its probes, which then end by themselves.
    """
    if child is not None:
        return child.poll() is not None
    return pid is not None and not Path(f"/proc/{pid}").exists()


def discover(as_json: bool = option("Print the findings as JSON.", False, "--json")) -> None:
    """Check that this machine is ready for a replay, and recommend settings to start from.

    \b
    Example:
      kvreplay discover
    """
    from kvreplay.run import discover as discovering
    from kvreplay.run.discover import machine_document
    from kvtrace.core.document.terminal import answer

    discovery = discovering.discover()
    answer(discovery, lambda: machine_document(discovery), as_json=as_json)
