"""What a bench measured, kept for `bench/quiet.py` if that asks; and how much a tiny run does."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

OUTPUT_VARIABLE, TINY = "KVTRACE_BENCH_FIGURES", "KVTRACE_BENCH_TINY"
MIN_ROUNDS = 3


def sized(full: int, tiny: int) -> int:
    """Return `full`, or `tiny` in a run that shows only that the bench works."""
    return tiny if os.environ.get(TINY) else full


def record_comparison(
    what: str,
    unit: str,
    peer: str,
    rounds: Sequence[tuple[float, float]],
    cpu: Sequence[tuple[float, float]] = (),
) -> None:
    """Record our figure and the peer's of each round, and optionally the processor time of both."""
    if len(rounds) < MIN_ROUNDS:
        raise ValueError(f"{what}: {len(rounds)} rounds, must be at least {MIN_ROUNDS}")
    ratios = [ours / theirs for ours, theirs in rounds]
    comparison = {
        "what": " ".join(what.split()),
        "unit": unit,
        "peer": peer,
        "ours": statistics.median(ours for ours, _ in rounds),
        "theirs": statistics.median(theirs for _, theirs in rounds),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "rounds": len(rounds),
        "cpu_ratio": statistics.median(ours / theirs for ours, theirs in cpu) if cpu else None,
    }
    _append(comparison)


def record_table(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> None:
    """Record a table of other results, with its `caption`."""
    _append(
        {
            "columns": list(columns),
            "rows": [list(row) for row in rows],
            "said": " ".join(caption.split()),
        }
    )


class CommandCost(NamedTuple):
    """The time and memory of a command that has no peer, and its targets."""

    what: str
    wall_s: float
    cpu_s: float
    """Of all threads, user and system."""
    peak_bytes: float
    max_s: float | None = None
    """Target of wall time, or of processor time if `target_is_cpu_time`."""
    max_bytes: float | None = None
    target_is_cpu_time: bool = False

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        taken_s = self.cpu_s if self.target_is_cpu_time else self.wall_s
        kind = " of processor time" if self.target_is_cpu_time else ""
        targets = [] if self.max_s is None else [f"{self.max_s:.3g} s{kind}"]
        ratios = [] if self.max_s is None else [f"{taken_s / self.max_s:.2f}"]
        if self.max_bytes is not None:
            targets.append(f"{self.max_bytes / 1e6:,.0f} MB")
            ratios.append(f"{self.peak_bytes / self.max_bytes:.2f}")
        seconds = f"{self.wall_s:.2f} s", f"{self.cpu_s:.2f} s"
        memory = f"{self.peak_bytes / 1e6:,.0f} MB"
        return [self.what, *seconds, memory, ", ".join(targets), ", ".join(ratios)]


COST_COLUMNS = ("command", "wall time", "processor time", "memory", "target", "of the target")


def record_costs(costs: Sequence[CommandCost], caption: str) -> None:
    """Record and print a table of the costs of commands, beside their targets."""
    cells = [cost.cells for cost in costs]
    for row in cells:
        print("  " + "; ".join(cell for cell in row if cell), flush=True)
    record_table(COST_COLUMNS, cells, caption)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _append(entry: dict[str, Any]) -> None:
    path = os.environ.get(OUTPUT_VARIABLE)
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
