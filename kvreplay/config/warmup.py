"""The start of a run that its figures leave out: the first rows, or the first seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvreplay.native.rows import NONE, NOT_DONE
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.window import Facts
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns

_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")


@dataclass(frozen=True, slots=True)
class Warmup:
    """How much of a run's start is left out; exactly one of the two is set."""

    rows: int | None = None
    time_ns: int | None = None

    def is_measured(self, rows: Any) -> Any:
        """Return bool for each of `rows` (ROW): whether it counts. By due time in an open loop, else by submission."""
        due_ns = rows["due_ns"]
        return self.counts(rows["trace_row"], np.where(due_ns == NONE, rows["submitted_ns"], due_ns))

    def counts(self, row: Any, begun_ns: Any) -> Any:
        """Return the same of rows of the trace, by when each was due, in a closed loop submitted, or -1."""
        return row >= self.rows if self.rows is not None else (begun_ns >= self.time_ns) | (begun_ns == NOT_DONE)


def parse_warmup(text: str | None) -> Warmup | None:
    """Return the warm-up that `text` names, `1000`, `1000rows` or `30s`; None for no text."""
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    try:
        warmup = Warmup(rows=int(match.group(1))) if match else Warmup(time_ns=parse_duration_ns(text))
    except ConfigError:
        raise ConfigError(f"--warmup {text!r}: write rows (1000) or time (30s)") from None
    if 0 in (warmup.rows, warmup.time_ns):
        raise ConfigError(f"--warmup {text!r} leaves nothing out; write more than 0, or no --warmup")
    return warmup


def check_warmup(warmup: Warmup | None, text: str | None, rows: int, facts: Facts, pacer: Pacer) -> None:
    """Raise ConfigError if the warm-up is known beforehand to leave nothing to measure of the `rows` of the trace."""
    if warmup is None or not facts.rows:
        return
    if warmup.rows is not None:
        is_all = facts.last_row < warmup.rows
    else:
        last = pacer.due_ns(np.array([facts.last_ns]))
        is_all = last is not None and int(last[0]) < (warmup.time_ns or 0)
    if is_all:
        raise ConfigError(f"--warmup {text} leaves nothing to measure of the {rows:,} rows replayed; make it shorter")
