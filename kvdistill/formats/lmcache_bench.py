"""Read results of `lmcache bench engine`: its summary (JSON), or its CSV of one row a request."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Imported, ImportOptions
from kvdistill.formats.serving_result import (
    imported,
    is_measured,
    negative_fields,
    negative_notes,
    one_file,
    readable,
    times_from_figures,
    times_of,
)
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError
from kvtrace.core.files import read_json
from kvtrace.core.simulation_stats import Count
from kvtrace.core.units import NS_PER_MS

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
    fields = read_json(path, dict[str, object], misfit=misfit)
    figures = msgspec.structs.asdict(content.results)
    times = {}
    # Without successful requests, the summary has 0 for each time.
    if requests := content.results.requests:
        for name, metric in (("first_token", "ttft"), ("answer", "request_latency")):
            statistics = {
                f"{statistic}_ns": figures[f"{statistic}_{metric}_ms"]
                for statistic in ("mean", "p50", "p90", "p99")
                if is_measured(figures[f"{statistic}_{metric}_ms"])
            }
            times[name] = times_from_figures(statistics, NS_PER_MS, requests, path)
    notes = [
        (
            "decoding speeds are omitted: inter-token latency cannot be derived from them; the CSV has"
            " more"
        ),
        *negative_notes(negative_fields(fields)),
    ]
    config = {
        name: value
        for name, value in content.config.items()
        if isinstance(value, str | int | float | bool) and is_measured(value)
    }
    return imported(path, _LMCACHE, figures["seconds"], figures, times, notes=notes, config=config)


def _read_csv(path: Path, misfit: str) -> Imported:
    """Import the CSV at `path`; `misfit` is the message for invalid content."""
    with readable(path, misfit), path.open(newline="", encoding="utf-8") as file:
        rows = [msgspec.convert(row, _LmcacheRow, strict=False) for row in csv.DictReader(file)]
    if not rows:
        raise TraceError(misfit.format("it has no rows"), path=path)
    successful = [row for row in rows if row.successful == "True"]
    timed = [row for row in rows if 0 <= row.submit_time <= row.finish_time]
    lasted_s = max((row.finish_time for row in timed), default=0.0) - min(
        (row.submit_time for row in timed), default=0.0
    )
    negative = negative_fields(
        [
            {name: getattr(row, name) for name in ("decode_speed", "submit_time", "finish_time")}
            for row in rows
        ]
    )
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
    duration_s = lasted_s if lasted_s > 0 else None
    return imported(path, _LMCACHE, duration_s, counts, times, notes=negative_notes(negative))
