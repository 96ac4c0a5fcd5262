"""Print results as tables for people; the numbers are those of the JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvtrace.core.app import emit_table
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from kvdistill.check import Closeness
    from kvdistill.closeness import Figures
    from kvdistill.jobs import Jobs
    from kvdistill.profile import Profile
    from kvdistill.storejobs import Written

_MARKS = {True: "pass", False: "FAIL", None: "-"}


def show_jobs(jobs: Jobs, folder: Path) -> None:
    """Print what was written and, if it was checked, how close it comes."""
    profile = jobs.profile
    _show_profile(profile)
    space = profile.space
    emit_table(
        f"Written to {folder}: {', '.join(jobs.files)}", ["", ""],
        [
            ["address space", format_bytes(space.span_bytes)],
            ["peak live", format_bytes(space.peak_live_bytes)],
            ["replay: lines", format_count(jobs.log.read_ios + jobs.log.write_ios)],
            ["replay: needs", format_bytes(jobs.replay_space_bytes)],
            ["statistical: needs", format_bytes(jobs.stat_space_bytes)],
        ],
    )  # fmt: skip
    if jobs.closeness is not None:
        show_closeness(jobs.closeness)


def show_written(written: Written, folder: Path) -> None:
    """Print what was written for another tool."""
    _show_profile(written.profile)
    if written.log is not None:
        made = written.log
        counts = {"GETs": made.gets, "PUTs": made.puts, "DELETEs": made.deletes, "to populate before": made.populated}
        emit_table("Op log", ["", "operations"], [[name, format_count(count)] for name, count in counts.items()])
    typer.echo(f"Written to {folder}: {', '.join(written.files)}")


def _show_profile(profile: Profile) -> None:
    rows = [
        [name, format_count(d.ops), format_bytes(d.object_bytes), format_bytes(d.io_bytes), format_count(len(d.sizes))]
        for name, d in (("reads", profile.read), ("writes", profile.write))
    ]
    rows.append(["deletes", format_count(profile.delete_ops), format_bytes(profile.delete_bytes), "-", "-"])
    emit_table(
        f"Tier {profile.tier} of {profile.origin.file}, {format_duration(profile.span_ns)}",
        ["", "operations", "object bytes", "I/O bytes", "distinct sizes"], rows,
    )  # fmt: skip


def show_closeness(closeness: Closeness) -> None:
    """Print the closeness table, one row the source and one each job over the same window, then the verdicts."""
    rows = []
    shown = None
    for comparison in closeness.comparisons:
        if comparison.source != shown:
            shown = comparison.source
            rows.append(_row(comparison.source, f"source, {comparison.window}"))
        rows.append(_row(comparison.fio, comparison.fio.name))
    emit_table(
        f"Closeness, by fio {closeness.fio_version}",
        ["", "I/Os", "read %", "IOPS", "bandwidth", "size TV", "EMD kB", "gap KS", "hot 10 %", "reuse p50", "depth",
         "end slip %"],
        rows,
    )  # fmt: skip
    emit_table(
        "Targets", ["", "target", "reached", ""],
        [
            [f"{c.fio.name}: {v.name}", v.target, _value(v.value, v.target), _MARKS[v.passes]]
            for c in closeness.comparisons for v in c.verdicts
        ],
    )  # fmt: skip
    resolutions = {c.fio.name: c.fio.gap_resolution_us for c in closeness.comparisons if c.fio.gap_ks is not None}
    for name, resolution_us in resolutions.items():
        if resolution_us and resolution_us > 1:
            typer.echo(
                f"gap KS of {name}: both sides' times to {format_duration(resolution_us * 1000)}, as fio logs them"
            )
    for note in closeness.notes:
        typer.echo(note)


def _row(figures: Figures, name: str) -> list[str | None]:
    return [
        name, format_count(figures.ios), f"{figures.read_share * 100:.1f}", _number(figures.ios_per_s, ".4g"),
        format_rate(figures.bytes_per_s), _number(figures.size_tv, ".3f"),
        None if figures.size_emd_bytes is None else f"{figures.size_emd_bytes / 1000:.1f}",
        _number(figures.gap_ks, ".3f"), _number(figures.hot10_share, ".2f"),
        _number(figures.reuse_p50_blocks, ".0f"), _number(figures.mean_depth, ".2f"),
        None if figures.end_slip is None else f"{figures.end_slip * 100:.2f}",
    ]  # fmt: skip


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _value(value: float | bool | None, target: str) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return None
    return f"{value * 100:+.2f} %" if "%" in target else f"{value:.3f}"
