"""From the figures of a serving benchmark to a run.json without operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.formats.formats import Account, Imported
from kvtrace.core.errors import TraceError
from kvtrace.core.run.figures import Serving, ServingTimes
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_S

_PARTS = {"p50_ns": 5000, "p90_ns": 9000, "p95_ns": 9500, "p99_ns": 9900, "p99_9_ns": 9990}


def one_file(files: Sequence[Path], what: str) -> Path:
    """Return the only one of `files`; TraceError if there are more, for each is a side of a comparison by itself."""
    if len(files) > 1:
        raise TraceError(f"is one of {len(files)} files; import each {what} into a folder of its own", path=files[0])
    return files[0]


def nanoseconds(value: float | None, unit_ns: float, path: Path) -> int | None:
    """Return a time of `unit_ns` each in nanoseconds; null stays null; TraceError if it is no time."""
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value * unit_ns <= MOST:
        raise TraceError(f"{value} is no time", path=path)
    return round(value * unit_ns)


def times_of(seconds: Sequence[float], path: Path) -> ServingTimes | None:
    """Return how `seconds` are distributed, percentiles by nearest rank; null without any."""
    ordered = sorted(ns for value in seconds if (ns := nanoseconds(value, NS_PER_S, path)) is not None)
    if not ordered:
        return None
    ranks = {name: nearest_rank(len(ordered), part) for name, part in _PARTS.items()}
    found = {name: None if rank is None else ordered[rank - 1] for name, rank in ranks.items()}
    mean = round(sum(ordered) / len(ordered))
    return ServingTimes(count=len(ordered), mean_ns=mean, max_ns=ordered[-1], **found)


def known(times: ServingTimes) -> ServingTimes | None:
    """Return `times`, or null if they say nothing but how many there are."""
    is_said = any(getattr(times, name) is not None for name in ServingTimes.__struct_fields__ if name != "count")
    return times if is_said else None


def imported(
    serving: Serving,
    wall_ns: int | None,
    *,
    notes: Sequence[str] = (),
    config: dict[str, Any] | None = None,
    started: datetime | None = None,
) -> Imported:
    """Return the import of one result; `config` is what the benchmark was asked for."""
    count = serving.requests or 0
    account = Account(rows=count + (serving.failed_requests or 0), kept=count, notes=list(notes))
    said = [f"{count:,} requests"] if serving.requests is not None else []
    said += [f"{serving.failed_requests:,} FAILED"] if serving.failed_requests else []
    summary: dict[str, Any] = {
        "verdict": f"{serving.benchmark}: {', '.join(said) or 'number of requests unknown'}",
        "wall_ns": wall_ns,
        "operations": None,
        "errors": None,
        "not_reached": None,
        "pace": None,
        "warmup": None,
        "skipped_rows": {},
        "figures": [],
    }
    facts = {
        "serving": msgspec.to_builtins(serving),
        "host": {"benchmark": serving.benchmark, **(config or {})},
    }
    first = None if started is None else int(started.timestamp() * NS_PER_S)
    return Imported(account, [], [], summary=summary, first_unix_ns=first, facts=facts)
