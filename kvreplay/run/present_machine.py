"""How a sweep and a machine are shown on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvtrace.core.app import emit_table
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from kvreplay.run.discover import Discovery
    from kvreplay.run.sweep import Sweep


def show_sweep(found: Sweep) -> None:
    """Print the points of a sweep and its knee."""
    name = found.axis.replace("_", " ")
    if found.knee is None:
        typer.echo(f"no knee: no point of the sweep qualifies ({name})")
    else:
        beyond = "" if found.is_saturated else "; the sweep did not saturate, so it may lie beyond"
        typer.echo(f"knee: {name} {found.knee:g}{beyond}")
    typer.echo(f"rule: {found.rule}")
    for tier in found.simulated_tiers:
        typer.echo(f"tier {tier} is SIMULATED: no figure counts it")
    typer.echo("")
    rows = [
        (f"{p.value:g}", format_rate(p.throughput_bytes_per_s),
         None if p.operations_per_s is None else f"{p.operations_per_s:,.0f}",
         format_duration(p.read_p99_ns), format_duration(p.write_p99_ns), format_duration(p.late_p99_ns),
         None if p.kept_pace is None else "yes" if p.kept_pace else "NO", "knee" if p.value == found.knee else "")
        for p in found.points
    ]  # fmt: skip
    columns = (name, "throughput", "op/s", "read p99", "write p99", "late p99", "kept pace", "")
    emit_table("Sweep", columns, rows)


def show_discovery(found: Discovery) -> None:
    """Print a machine, warnings first."""
    for line in found.warnings:
        typer.echo(f"warning: {line}")
    typer.echo("")
    host, limits = found.host, found.limits
    gpus = ", ".join(f"{g.name} {format_bytes(g.memory_bytes)}" for g in found.gpus)
    facts = [
        ("processor", f"{host['cpu_model'] or '-'}, {host['cpus']} CPUs, governor {found.governor or '-'}"),
        ("kernel", host["kernel"]),
        ("memory", f"{format_bytes(found.memory_bytes)}, {format_bytes(found.available_bytes)} available"),
        ("huge pages", found.huge_pages or "-"),
        ("GPUs", gpus or f"none: {found.gpu_reason}"),
        ("io_uring", found.io_uring),
        ("memlock", "unlimited" if limits["memlock_bytes"] is None else format_bytes(limits["memlock_bytes"])),
        ("open files", "unlimited" if limits["open_files"] is None else format_count(limits["open_files"])),
        *((name, path or "not installed") for name, path in found.programs.items()),
        *((name, version or "not installed") for name, version in found.gpu_libraries.items()),
        ("probes", found.probes),
    ]  # fmt: skip
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name.ljust(width)}  {value}")
    typer.echo("")
    drives = [(d.name, d.model, d.firmware, format_bytes(d.bytes), d.scheduler, d.queue_requests) for d in found.drives]
    emit_table("Drives", ("drive", "model", "firmware", "size", "scheduler", "requests"), drives)
    systems = [(f.mount_point, f.device, f.kind, format_bytes(f.free_bytes)) for f in found.filesystems]
    emit_table("Filesystems", ("mounted at", "device", "type", "free"), systems)
    good = found.recommended
    typer.echo(
        f"start from: --engine {good['engine']} --queue-depth {good['queue_depth']} --io-bytes 1MiB "
        f"--trials {good['trials']}, a CPU tier of at most {format_bytes(good['cpu_tier_bytes'])}"
    )
    typer.echo(good["next"])
