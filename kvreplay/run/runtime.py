"""A run that the clock ends: when it is over, and what of its plan it came to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import monotonic_ns
from typing import Any

import numpy as np
from msgspec.structs import replace as replace_fields

from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, Record
from kvreplay.plan.plan import ROW_COLUMNS, Plan
from kvtrace.core.run.figures import Summary
from kvtrace.core.units import format_duration

RUNTIME = "--runtime"
"""What ended a run that was to end."""


def until(interrupted: Callable[[], str | None], runtime_ns: int | None) -> Callable[[], str | None]:
    """Return what names the reason to stop: a signal, or RUNTIME once that time has passed since it was first asked."""
    if runtime_ns is None:
        return interrupted
    started_ns: list[int] = []

    def reason() -> str | None:
        now = monotonic_ns()
        if not started_ns:
            started_ns.append(now)
        return interrupted() or (RUNTIME if now - started_ns[0] >= runtime_ns else None)

    return reason


def cut(setting: Setting, record: Record, due_ns: Any) -> tuple[Setting, Record, Any]:
    """Return the setting, the record and the due times of what a closed loop with --runtime came to.

    What was planned beyond was a provision, and nothing that was missed, however the run ended; of a run that came to
    nothing it is all but the first repeat. What an open loop did not reach was due.
    """
    plan = setting.window.plan
    count = _reached(record) or int(np.searchsorted(plan.row, setting.rows_once))
    if not setting.rows_once or due_ns is not None or count == len(plan):
        return setting, record, due_ns
    shorter: Plan = replace(plan, **{name: getattr(plan, name)[:count] for name in ROW_COLUMNS})
    window = replace(setting.window, plan=shorter, rows=int(plan.row[count - 1]) + 1)
    kept = Record(
        record.submitted_ns[:count], record.completed_ns[:count], record.outcome[:count], None, record.retries
    )
    return replace(setting, window=window), kept, due_ns


def with_repeats(summary: Summary, setting: Setting, record: Record) -> Summary:
    """Return `summary` with a verdict that says how often --runtime repeated the window, or what it cut it to."""
    if not setting.rows_once or summary.judgement is None:
        return summary
    rows, reached = setting.window.rows, _reached(record)
    if summary.not_reached:
        rows = int(setting.window.plan.row[reached - 1]) + 1 if reached else 0
    said = f"; the trace {rows / setting.rows_once:.3g} times in {format_duration(summary.wall_ns)}"
    judged = replace_fields(summary.judgement, sentence=summary.judgement.sentence + said)
    return replace_fields(summary, verdict=summary.verdict + said, judgement=judged)


def _reached(record: Record) -> int:
    """Return how many operations there are up to the last that was submitted."""
    sent = np.flatnonzero(record.submitted_ns != NOT_DONE)
    return int(sent[-1]) + 1 if len(sent) else 0
