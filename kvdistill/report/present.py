"""Print results as tables for people; the numbers are those of the JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import typer

from kvtrace.core.app import emit_table
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from pathlib import Path

    from kvdistill.jobs.check import Closeness
    from kvdistill.jobs.closeness import Figures
    from kvdistill.jobs.store_write import Written
    from kvdistill.jobs.write import Jobs
    from kvdistill.profile.profile import Profile

_NUMBER = re.compile(r"\.[0-9]+\.iolog$")
_MARKS = {True: "pass", False: "FAIL", None: "-"}


def show_jobs(jobs: Jobs, folder: Path) -> None:
    """Print what was written and, if it was checked, how close it comes."""
    profile = jobs.profile
    show_profile(profile)
    rows = [[mode, format_bytes(space), _lines(jobs, mode)] for mode, space in jobs.space_bytes.items()]
    emit_table(f"Written to {folder}: {', '.join(_short(jobs.files))}", ["job", "needs", "log"], rows)
    if jobs.closeness is not None:
        show_closeness(jobs.closeness)


def show_written(written: Written, folder: Path) -> None:
    """Print what was written for another tool."""
    show_profile(written.profile)
    if written.log is not None:
        made = written.log
        counts = {"GETs": made.gets, "PUTs": made.puts, "DELETEs": made.deletes, "to populate before": made.populated}
        emit_table("Op log", ["", "operations"], [[name, format_count(count)] for name, count in counts.items()])
    typer.echo(f"Written to {folder}: {', '.join(written.files)}")


def show_profile(profile: Profile) -> None:
    """Print what a profile holds, in short."""
    rows = [
        [name, format_count(d.ops), format_bytes(d.object_bytes), format_bytes(d.io_bytes), format_count(len(d.sizes))]
        for name, d in (("reads", profile.read), ("writes", profile.write))
    ]
    rows.append(["deletes", format_count(profile.delete_ops), format_bytes(profile.delete_bytes), "-", "-"])
    emit_table(
        f"Tier {profile.tier} of {profile.origin.file}, {format_duration(profile.span_ns)}",
        ["", "operations", "object bytes", "I/O bytes", "distinct sizes"],
        rows,
    )
    emit_table("What jobs are made of", ["", ""], _facts(profile))


def _facts(profile: Profile) -> list[list[str | None]]:
    """Return what a profile says in one figure each; none for what its source cannot tell."""
    space, arrivals, depth, idle, locality = (
        profile.space,
        profile.arrivals,
        profile.depth,
        profile.idle,
        profile.locality,
    )
    rows: list[list[str | None]] = [["operations a second", _number(profile.per_second(profile.ops), ".4g")]]
    if arrivals is not None:
        rows.append(["gaps between arrivals: deviation by mean", _number(arrivals.gap_cv, ".3g")])
        rows.append(["phases", str(len(profile.phases))])
    if depth is not None:
        rows.append(["in flight, weighted by time", f"{depth.mean:.3g}"])
    if idle is not None:
        rows.append(["time with nothing in flight", format_duration(idle.total_ns)])
    if space is not None:
        rows.append(["address space", format_bytes(space.span_bytes)])
        rows.append(["live at most", format_bytes(space.peak_live_bytes)])
    if locality is not None:
        rows.append(["to the hottest 10 % of blocks", f"{locality.hot10_share * 100:.0f} %"])
        rows.append(["median reuse, 128 KiB blocks", _number(locality.reuse_p50_blocks, ".0f")])
    return rows


def _short(files: list[str]) -> list[str]:
    """Return `files` with numbered logs as one."""
    return list(dict.fromkeys(_NUMBER.sub(".*.iolog", name) for name in files))


def _lines(jobs: Jobs, mode: str) -> str | None:
    if mode not in jobs.logs:
        return None
    log = jobs.logs[mode]
    return f"{format_count(log.read_ios + log.write_ios)} lines over {len(log.files)} jobs"


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
        [
            "",
            "I/Os",
            "read %",
            "IOPS",
            "bandwidth",
            "size TV",
            "EMD kB",
            "gap KS",
            "hot 10 %",
            "reuse p50",
            "depth",
            "end slip %",
            "late p50",
            "late p99",
        ],
        rows,
    )
    emit_table(
        "Targets",
        ["", "target", "reached", ""],
        [
            [f"{c.fio.name}: {v.name}", v.target, _value(v.value, v.target), _MARKS[v.passes]]
            for c in closeness.comparisons
            for v in c.verdicts
        ],
    )
    resolutions = {c.fio.name: c.fio.gap_resolution_us for c in closeness.comparisons if c.fio.gap_ks is not None}
    for name, resolution_us in resolutions.items():
        if resolution_us and resolution_us > 1:
            typer.echo(
                f"gap KS of {name}: between arrivals (what is due at one time is one), beyond the "
                f"{format_duration(resolution_us * 1000)} to which fio logs times"
            )
    if any(v.passes is None and v.value is not None for c in closeness.comparisons for v in c.verdicts):
        typer.echo("- beside a figure: off by no more than chance allows for so few I/Os; check longer")
    for note in closeness.notes:
        typer.echo(note)


def _row(figures: Figures, name: str) -> list[str | None]:
    return [
        name,
        format_count(figures.ios),
        f"{figures.read_share * 100:.1f}",
        _number(figures.ios_per_s, ".4g"),
        format_rate(figures.bytes_per_s),
        _number(figures.size_tv, ".3f"),
        None if figures.size_emd_bytes is None else f"{figures.size_emd_bytes / 1000:.1f}",
        _number(figures.gap_ks, ".3f"),
        _number(figures.hot10_share, ".2f"),
        _number(figures.reuse_p50_blocks, ".0f"),
        _number(figures.mean_depth, ".2f"),
        None if figures.end_slip is None else f"{figures.end_slip * 100:.2f}",
        *(None if us is None else format_duration(us * 1000) for us in (figures.late_p50_us, figures.late_p99_us)),
    ]


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


def _value(value: float | bool | None, target: str) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return None
    return f"{value * 100:+.2f} %" if "%" in target else f"{value:.3f}"
