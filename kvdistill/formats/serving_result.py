"""Build the import of a serving benchmark's result: a run.json without operations.

The readers of vLLM's, LMCache's and AIPerf's results use these helpers: checks of a file, units of
times, distributions from single times or from summary figures, and the import itself.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportedFacts
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.run.figures import Serving, ServingTimes, Summary
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_S, counted

_PERCENTILES = {"p50_ns": 5000, "p90_ns": 9000, "p95_ns": 9500, "p99_ns": 9900, "p99_9_ns": 9990}
_RATES = {
    "requests_per_s": "requests",
    "input_tokens_per_s": "input_tokens",
    "output_tokens_per_s": "output_tokens",
}
"""The count of which each rate is, over the duration."""


def one_file(files: Sequence[Path], kind: str) -> Path:
    """Return the single file of `files`; TraceError if there are several."""
    if len(files) > 1:
        raise TraceError(
            f"is one of {len(files)} files; import each {kind} into a folder of its own",
            path=files[0],
        )
    return files[0]


_NAMED = 5
"""So many fields with negative numbers are named in a note."""


def negative_fields(tree: object) -> dict[str, int]:
    """Return how many negative numbers each field of a result holds, by its name.

    Numbers of a list are those of its field.
    """
    counts: dict[str, int] = {}
    pending: list[tuple[str, object]] = [("", tree)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += [(f"{name}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, list):
            pending += [(name, inner) for inner in value]
        elif isinstance(value, int | float) and value < 0:
            counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items()))


def negative_notes(counts: Mapping[str, int]) -> list[str]:
    """Return a note on the fields that hold negative numbers; empty if there are none."""
    if not counts:
        return []
    names = ", ".join(list(counts)[:_NAMED]) + (", ..." if len(counts) > _NAMED else "")
    numbers = counted(sum(counts.values()), "number")
    return [f"not used, because they are negative, and so were not measured: {numbers} of {names}"]


def is_measured(value: object) -> bool:
    """Return whether a figure is there and not negative, as benchmarks write what they lack."""
    return value is not None and not (isinstance(value, int | float) and value < 0)


@contextmanager
def readable(path: Path, misfit: str) -> Iterator[None]:
    """Convert errors while the file at `path` is read to a TraceError.

    `misfit` is the message for invalid content.
    """
    need_file(path)
    try:
        yield
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from None
    except (ValueError, csv.Error, msgspec.ValidationError) as error:
        raise TraceError(misfit.format(error), path=path) from None


def nanoseconds(value: float, unit_ns: float, path: Path) -> int:
    """Convert a time in units of `unit_ns` to ns; TraceError if it is not a time."""
    if not math.isfinite(value) or not 0 <= value * unit_ns <= MOST:
        raise TraceError(f"{value} is not a time", path=path)
    return round(value * unit_ns)


def times_of(seconds: Sequence[float], path: Path) -> ServingTimes | None:
    """Return the distribution of `seconds`, percentiles by nearest rank; null without any."""
    ordered = sorted(nanoseconds(value, NS_PER_S, path) for value in seconds)
    if not ordered:
        return None
    ranks = {
        name: nearest_rank(len(ordered), ten_thousandths)
        for name, ten_thousandths in _PERCENTILES.items()
    }
    percentiles = {
        name: None if rank is None else ordered[rank - 1] for name, rank in ranks.items()
    }
    mean = round(sum(ordered) / len(ordered))
    return ServingTimes(count=len(ordered), mean_ns=mean, max_ns=ordered[-1], **percentiles)


def times_from_figures(
    figures: Mapping[str, object], unit_ns: float, count: int | None, path: Path
) -> ServingTimes | None:
    """Return the distribution of `count` times from its `figures`, in units of `unit_ns`.

    Null without figures.
    """
    times = {
        name: nanoseconds(value, unit_ns, path)
        for name, value in figures.items()
        if isinstance(value, int | float)
    }
    return ServingTimes(count=count, **times) if times else None


# Long, because of its parameters.
def imported(
    path: Path,
    benchmark: str,
    seconds: float | None,
    counts: Mapping[str, float | None],
    times: Mapping[str, ServingTimes | None],
    *,
    notes: Sequence[str] = (),
    config: Mapping[str, object] | None = None,
    started: datetime | None = None,
) -> Imported:
    """Return the import of one result.

    `counts` and `times` have the names of `Serving`; `config` holds the settings. Missing rates are
    computed from counts and `seconds`.
    """
    wall_ns = None if seconds is None else nanoseconds(seconds, NS_PER_S, path)
    figures = {name: value for name, value in counts.items() if name in Serving.__struct_fields__}
    for name, value in figures.items():
        if value is not None and not 0 <= value < math.inf:
            raise TraceError(f"{name} is {value}: it cannot be negative or infinite", path=path)
    for rate, count_name in _RATES.items():
        total = figures.get(count_name)
        if figures.get(rate) is None and total is not None and seconds:
            figures[rate] = total / seconds
    # Without requests, benchmarks write 0 for unmeasured times.
    measured_times = {} if figures.get("requests") == 0 else times
    serving = msgspec.structs.replace(Serving(benchmark=benchmark), **figures, **measured_times)
    count, failed = serving.requests or 0, serving.failed_requests or 0
    outcomes = [counted(count, "request")] if serving.requests is not None else []
    if failed:
        outcomes.append(f"{failed:,} FAILED")
    verdict = f"{benchmark}: {', '.join(outcomes) or 'number of requests unknown'}"
    return Imported(
        Account(rows_read=count + failed, rows_kept=count, notes=list(notes)),
        [],
        [],
        summary=Summary(verdict=verdict, figures=[], wall_ns=wall_ns),
        first_unix_ns=None if started is None else int(started.timestamp() * NS_PER_S),
        facts=ImportedFacts(serving=serving, host={"benchmark": benchmark, **(config or {})}),
    )
