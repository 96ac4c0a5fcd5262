"""A run that the clock ends: when it is over, and how often it did what it repeats."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from msgspec.structs import replace as replace_fields

from kvreplay.config.setting import Setting
from kvreplay.result.results import RunResults
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


def rows_left(setting: Setting, laid: int) -> int:
    """Return how many of the plan's rows the results of a run are made of: all, where none was a mere provision.

    Where the clock ended it, they are those that are `laid`, and one repeat at least.
    """
    rows = setting.window.planned_rows
    if not setting.rows_once or setting.pacer.speed is not None:
        return rows
    return min(rows, max(laid, setting.rows_once))


def with_repeats(summary: Summary, found: RunResults) -> Summary:
    """Return `summary` with a verdict that says how often --runtime repeated the window, or what it cut it to."""
    setting = found.setting
    if not setting.rows_once or summary.judgement is None:
        return summary
    rows, last = setting.window.rows, found.last_reached_row
    if summary.not_reached:
        rows = 0 if last is None else last + 1
    said = f"; {repeated('the trace', rows / setting.rows_once)} in {format_duration(summary.wall_ns)}"
    judged = replace_fields(summary.judgement, sentence=summary.judgement.sentence + said)
    return replace_fields(summary, verdict=summary.verdict + said, judgement=judged)


def repeated(part: str, times: float) -> str:
    """Return how often `part` was replayed: the trace 2.5 times, 14 % of the trace."""
    return f"{part} {times:.3g} times" if times >= 1 else f"{times * 100:.3g} % of {part}"
