"""The tables of a run's saves and restores, and what it did to others' operations: for a terminal and for a report."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.core.document.document import Chapter, ReportTable, Sheet, table_of
from kvtrace.core.run.checkpoints import Beside, CheckpointFigures
from kvtrace.core.units import format_count, format_duration, format_rate

_TIMES = "ns: {way}_p50_ns = p50 {way}, {way}_p95_ns = p95 {way}, {way}_p99_ns = p99 {way}, {way}_max_ns = max {way}"
_SHOWN = 100
"""Checkpoints that are listed one by one."""


def sentence(found: CheckpointFigures) -> str:
    """Return what came of it in a line: what others saw of it if there are others, else how long it took."""
    answers = [(beside, compared) for beside in found.beside if (compared := beside.compared()) is not None]
    took = []
    for kind in found.kinds:
        if kind.count:
            each = format_duration(kind.duration.mean_ns) + (" each on average" if kind.count > 1 else "")
            what = f"{format_count(kind.count)} {kind.kind}{'s' if kind.count > 1 else ''}"
            took.append(f"{what} in {each}, at {format_rate(kind.bandwidth_bytes_per_s)}")
    if not answers:
        return "; ".join(took) or "no checkpoint was saved or restored whole"
    # What is told best; of that, users wait for reads, and for those of the slowest tier most.
    beside, (name, during, without) = max(answers, key=_weight)
    counts = f"{format_count(beside.during.count)} and {format_count(beside.without.count)} operations"
    times = f": {during / without:.3g} times as long" if without else ""
    return (
        f"during checkpoints {name} {beside.measure} of {beside.tier} {beside.op}s was {format_duration(during)}, "
        f"otherwise {format_duration(without)}{times} ({counts})"
    )


def _weight(answer: tuple[Beside, tuple[str, int, int]]) -> tuple[int, bool, int]:
    beside, (name, during, _) = answer
    return ("p50", "p95", "p99").index(name), beside.op == "read", during


def chapter(found: CheckpointFigures) -> Chapter:
    """Return the chapter of checkpoints."""
    return Chapter("Checkpoints", tables(found))


def tables(found: CheckpointFigures) -> list[ReportTable]:
    """Return what others saw of checkpoints, all saves and restores, and each one."""
    made = []
    if found.beside:
        rows: list[dict[str, Any]] = []
        for beside in found.beside:
            row: dict[str, Any] = {"tier": beside.tier, "op": beside.op, "measure": beside.measure}
            for way in ("during", "without"):
                row |= {f"{way}_{name}": v for name, v in msgspec.structs.asdict(getattr(beside, way)).items()}
            rows.append(row)
        spec = "\n".join(
            [
                "text: tier, op, measure",
                *(f"count: {way}_count = operations {way}\n" + _TIMES.format(way=way) for way in _WAYS),
            ]
        )
        note = f"During: {found.definitions['during']}."
        made.append(table_of("Others beside checkpoints", Sheet.PERFORMANCE, spec, rows, note, keys=2))
    spec = """
        text: kind
        count: count = completed, unfinished
        bytes: bytes
        bytes_per_s: bandwidth_bytes_per_s = throughput
        ns: mean_ns = mean time, p50_ns = p50, max_ns = max, stall_ns = stall in all
    """
    rows = [msgspec.structs.asdict(kind) | msgspec.structs.asdict(kind.duration) for kind in found.kinds]
    note = f"Stall: {found.definitions['stall_ns']}."
    if found.stall_share is not None:
        note += f" All stalls: {100 * found.stall_share:.3g} % of the run's time."
    made.append(table_of("Saves and restores", Sheet.PERFORMANCE, spec, rows, note))
    spec = """
        text: kind
        count: request_id = request
        ns: scheduled_ns = due, submitted_ns = began, duration_ns = took, stall_ns = stall
        bytes: bytes
        bytes_per_s: bandwidth_bytes_per_s = throughput
        count: unfinished
    """
    rows = [msgspec.structs.asdict(one) for one in found.each[:_SHOWN]]
    left = len(found.each) - _SHOWN
    note = f"The first {_SHOWN}; {format_count(left)} more are in run.json." if left > 0 else ""
    made.append(table_of("Each save and restore", Sheet.PERFORMANCE, spec, rows, note))
    return made


_WAYS = ("during", "without")
