"""Read results of serving benchmarks into a run.json without operations.

The formats are `vllm bench serve --save-result` (with or without --save-detailed), and the summary
or the CSV (one row a request) of `lmcache bench engine`. aiperf.py reads AIPerf with these helpers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportedFacts, ImportOptions
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.run.figures import Serving, ServingTimes, Summary
from kvtrace.core.schema import MOST
from kvtrace.core.simulation_stats import Count
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_MS, NS_PER_S, counted

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
    parts_of_verdict = [counted(count, "request")] if serving.requests is not None else []
    verdict = (
        f"{benchmark}:"
        f" {', '.join(parts_of_verdict + [f'{failed:,} FAILED'] * bool(failed)) or 'number count_name requests unknown'}"
    )
    return Imported(
        Account(rows_read=count + failed, rows_kept=count, notes=list(notes)),
        [],
        [],
        summary=Summary(verdict=verdict, figures=[], wall_ns=wall_ns),
        first_unix_ns=None if started is None else int(started.timestamp() * NS_PER_S),
        facts=ImportedFacts(serving=serving, host={"benchmark": benchmark, **(config or {})}),
    )


_VLLM_TIMES = {"p50": "p50_ns", "median": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns",
                "p99.9": "p99_9_ns", "mean": "mean_ns"}  # fmt: skip
_VLLM_SETTINGS = (
    "backend",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
)


class _VllmResult(msgspec.Struct):
    """The fields of a result that are read; summary times have names set by its options."""

    seconds: float = msgspec.field(name="duration")
    requests: Count = msgspec.field(name="completed")
    failed_requests: Count | None = msgspec.field(name="failed", default=None)
    input_tokens: Count | None = msgspec.field(name="total_input_tokens", default=None)
    output_tokens: Count | None = msgspec.field(name="total_output_tokens", default=None)
    requests_per_s: float | None = msgspec.field(name="request_throughput", default=None)
    output_tokens_per_s: float | None = msgspec.field(name="output_throughput", default=None)
    date: str | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    errors: list[str | None] | None = None


def read_vllm(
    files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import one result of vLLM's benchmark.

    TraceError if the file holds none, or several (--append-result).
    """
    path = one_file(files, "result")
    need_file(path)
    text = path.read_bytes()
    if len(results := [line for line in text.splitlines() if line.startswith(b"{")]) > 1:
        raise TraceError(
            f"holds {len(results)} results (--append-result); split them into one file each",
            path=path,
        )
    result = decode_json(text, _VllmResult, path, misfit="not a result of vllm bench serve: {}")
    fields = decode_json(text, dict[str, object], path)

    def summary_times(metric: str, count: int | None = None) -> ServingTimes | None:
        figures = ((name, fields.get(f"{word}_{metric}_ms")) for word, name in _VLLM_TIMES.items())
        return times_from_figures(
            {name: value for name, value in figures if value is not None}, NS_PER_MS, count, path
        )

    # Times of single successful requests, as vLLM counts them; none without --save-detailed.
    errors = result.errors or [None] * len(result.ttfts or result.itls or [])
    ttfts = [ttft for ttft, error in zip(result.ttfts or [], errors, strict=False) if not error]
    gaps = [
        gap
        for gaps_of_request, error in zip(result.itls or [], errors, strict=False)
        if not error
        for gap in gaps_of_request
    ]
    times = {
        "first_token": times_of(ttfts, path) or summary_times("ttft", result.requests),
        "inter_token": times_of(gaps, path) or summary_times("itl"),
        "output_token": summary_times("tpot"),
        "answer": summary_times("e2el", result.requests),
    }
    settings = {name: fields[name] for name in _VLLM_SETTINGS if fields.get(name) is not None}
    notes = (
        []
        if times["first_token"]
        else ["the result holds no TTFT (excluded by --percentile-metrics)"]
    )
    try:
        started = (
            None
            if result.date is None
            else datetime.strptime(result.date, "%Y%m%d-%H%M%S").astimezone()
        )
    except ValueError:
        started = None
    benchmark, counts = "vllm bench serve", msgspec.structs.asdict(result)
    return imported(
        path,
        benchmark,
        result.seconds,
        counts,
        times,
        notes=notes,
        config=settings,
        started=started,
    )


_LMCACHE = "lmcache bench engine"


class _LmcacheFigures(msgspec.Struct):
    """Figures of a summary; LMCache writes 0 for unmeasured times."""

    requests: Count = msgspec.field(name="successful_requests")
    failed_requests: Count
    seconds: float = msgspec.field(name="elapsed_time")
    input_tokens: Count = msgspec.field(name="total_input_tokens")
    output_tokens: Count = msgspec.field(name="total_output_tokens")
    input_tokens_per_s: float = msgspec.field(name="input_throughput")
    output_tokens_per_s: float = msgspec.field(name="output_throughput")
    mean_ttft_ms: float
    mean_request_latency_ms: float
    p50_ttft_ms: float | None = None
    p90_ttft_ms: float | None = None
    p99_ttft_ms: float | None = None
    p50_request_latency_ms: float | None = None
    p90_request_latency_ms: float | None = None
    p99_request_latency_ms: float | None = None


class _LmcacheSummary(msgspec.Struct):
    """A summary as JSON."""

    results: _LmcacheFigures
    config: dict[str, object] = {}


class _LmcacheRow(msgspec.Struct):
    """A request of the CSV; times in seconds."""

    successful: str
    num_input_tokens: Count
    num_output_tokens: Count
    ttft: float
    request_latency: float
    decode_speed: float
    submit_time: float
    finish_time: float


def read_lmcache(
    files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import one result of LMCache's benchmark; TraceError if the file holds none."""
    path, misfit = one_file(files, "result"), f"not a result of {_LMCACHE}: {{}}"
    if path.suffix == ".csv":
        return _read_csv(path, misfit)
    content = read_json(path, _LmcacheSummary, misfit=misfit)
    figures = msgspec.structs.asdict(content.results)
    times = {
        name: times_from_figures(
            {
                f"{statistic}_ns": figures[f"{statistic}_{metric}_ms"]
                for statistic in ("mean", "p50", "p90", "p99")
            },
            *arguments,
        )
        for name, metric in (("first_token", "ttft"), ("answer", "request_latency"))
        if (arguments := (NS_PER_MS, figures["requests"], path))[1]
    }
    notes = [
        (
            "decoding speeds are omitted: inter-token latency cannot be derived from them; the CSV has"
            " more"
        )
    ]
    config = {
        name: value
        for name, value in content.config.items()
        if isinstance(value, str | int | float | bool)
    }
    return imported(path, _LMCACHE, figures["seconds"], figures, times, notes=notes, config=config)


def _read_csv(path: Path, misfit: str) -> Imported:
    with readable(path, misfit), path.open(newline="", encoding="utf-8") as file:
        rows = [msgspec.convert(row, _LmcacheRow, strict=False) for row in csv.DictReader(file)]
    if not rows:
        raise TraceError(misfit.format("it has no rows"), path=path)
    successful = [row for row in rows if row.successful == "True"]
    lasted_s = max(row.finish_time for row in rows) - min(row.submit_time for row in rows)
    counts = {
        "requests": len(successful),
        "failed_requests": len(rows) - len(successful),
        "input_tokens": sum(row.num_input_tokens for row in rows),
        "output_tokens": sum(row.num_output_tokens for row in rows),
    }
    times = {
        "first_token": times_of([row.ttft for row in successful], path),
        "output_token": times_of(
            [1 / row.decode_speed for row in successful if row.decode_speed > 0], path
        ),
        "answer": times_of([row.request_latency for row in successful], path),
    }
    return imported(path, _LMCACHE, lasted_s if lasted_s > 0 else None, counts, times)
