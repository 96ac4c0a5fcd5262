"""The source of jobs that is simulated for them, with the options of `kvtrace gen`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvtrace.core import simulation_stats
from kvtrace.core.overload import overload_note
from kvtrace.core.run.run_file import generate
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

_TRACE_FILE = "trace.parquet"
_LONGER_DURATIONS = ("5min", "20min", "1h", "4h")
"""Simulated times to try until the drive is read: a cache is only written while it fills."""


def simulate_source(
    command_line: str,
    folder: Path,
    tier: str | None,
    *,
    may_last_longer: bool,
    tell: Callable[[str], object],
) -> tuple[Path, str]:
    """Write a trace to `folder`; return its path and the tier to use, by default its slowest.

    `command_line` has the options of `kvtrace gen`. If `may_last_longer`, the simulated time grows
    until the tier is read. `tell` is called with each note for the user.

    ConfigError if the quotes in `command_line` do not match; ProgramError if `kvtrace gen` fails.
    """
    trace = folder / _TRACE_FILE
    generate(command_line, trace)
    if may_last_longer and not _reads(trace, tier):
        for duration in _LONGER_DURATIONS:
            tell(f"nothing is read yet: simulating {duration} instead")
            # The notes of the first simulation hold for this one, too.
            generate(f"{command_line} --duration {duration} --quiet", trace)
            if _reads(trace, tier):
                break
        else:
            tell(
                "nothing is read in 4 h either: faster tiers hold everything; the first duration is used"
            )
            generate(f"{command_line} --quiet", trace)
    metadata = open_table(trace, TRACE).meta
    stats = simulation_stats.from_json(metadata.stats)
    if stats is not None and (note := overload_note(stats.prefill, stats.first_token)) is not None:
        tell(f"{note}: the drive is asked for no more than these GPUs compute")
    return trace, tier or metadata.tiers[-1].name


def _reads(trace: Path, tier: str | None) -> bool:
    """Return whether the trace reads from `tier`, by default from its slowest one."""
    stats = open_table(trace, TRACE).meta.stats or {}
    tiers = [entry for entry in stats.get("tiers", []) if tier in (None, entry["name"])]
    # Tiers of single nodes (nvme@3) are not counted in a fleet's sums.
    return not tiers or tiers[-1]["read_bytes"] > 0
