"""What a bench measured, kept for `bench/quiet.py` if that asks; and how much a tiny run does."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
