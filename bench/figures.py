"""What a bench measured, kept for `bench/quiet.py` if that asks; and how much a tiny run does."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

KEPT, TINY = "KVTRACE_BENCH_FIGURES", "KVTRACE_BENCH_TINY"
LEAST_ROUNDS = 3


def sized(full: int, tiny: int) -> int:
    """Return `full`, or `tiny` in a run that shows only that the bench works."""
    return tiny if os.environ.get(TINY) else full


def keep(
    what: str,
    unit: str,
    peer: str,
    rounds: Sequence[tuple[float, float]],
    cpu: Sequence[tuple[float, float]] = (),
) -> None:
    """Keep a figure of ours and its peer's in each round, and what either took of the processor, in
    one unit.
    """
    if len(rounds) < LEAST_ROUNDS:
        raise ValueError(f"{what}: {len(rounds)} rounds, must be at least {LEAST_ROUNDS}")
    ratios = [ours / theirs for ours, theirs in rounds]
    found = {
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
    _append(found)


def keep_table(columns: Sequence[str], rows: Sequence[Sequence[str]], said: str) -> None:
    """Keep a table of what is no figure beside a peer's, by rows of words, and what is `said` of
    it.
    """
    _append(
        {
            "columns": list(columns),
            "rows": [list(row) for row in rows],
            "said": " ".join(said.split()),
        }
    )


class Taken(NamedTuple):
    """What a command without a peer took, and what it may take."""

    what: str
    wall_s: float
    cpu_s: float
    """Of all threads, user and system."""
    peak_bytes: float
    most_s: float | None = None
    """Of wall time, unless `is_of_processor`."""
    most_bytes: float | None = None
    is_of_processor: bool = False

    @property
    def cells(self) -> list[str]:
        """The row of a table."""
        taken_s = self.cpu_s if self.is_of_processor else self.wall_s
        kind = " of processor time" if self.is_of_processor else ""
        targets = [] if self.most_s is None else [f"{self.most_s:.3g} s{kind}"]
        ratios = [] if self.most_s is None else [f"{taken_s / self.most_s:.2f}"]
        if self.most_bytes is not None:
            targets.append(f"{self.most_bytes / 1e6:,.0f} MB")
            ratios.append(f"{self.peak_bytes / self.most_bytes:.2f}")
        seconds = f"{self.wall_s:.2f} s", f"{self.cpu_s:.2f} s"
        memory = f"{self.peak_bytes / 1e6:,.0f} MB"
        return [self.what, *seconds, memory, ", ".join(targets), ", ".join(ratios)]


TAKEN_COLUMNS = ("command", "wall time", "processor time", "memory", "target", "of the target")


def keep_taken(rows: Sequence[Taken], said: str) -> None:
    """Keep a table of commands that have no peer, beside their targets, and print it."""
    cells = [row.cells for row in rows]
    for row in cells:
        print("  " + "; ".join(cell for cell in row if cell), flush=True)
    keep_table(TAKEN_COLUMNS, cells, said)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown."""
    return [
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _append(found: dict[str, Any]) -> None:
    path = os.environ.get(KEPT)
    if path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
