"""Read results of vLLM's benchmark: `vllm bench serve --save-result`, also with --save-detailed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Imported, ImportOptions
from kvdistill.formats.serving_result import (
    imported,
    is_measured,
    negative_fields,
    negative_notes,
    one_file,
    times_from_figures,
    times_of,
)
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.core.run.figures import ServingTimes
from kvtrace.core.simulation_stats import Count
from kvtrace.core.text import read_bounded
from kvtrace.core.units import NS_PER_MS

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
    text = read_bounded(path)
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
            {name: value for name, value in figures if is_measured(value)}, NS_PER_MS, count, path
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
    settings = {name: fields[name] for name in _VLLM_SETTINGS if is_measured(fields.get(name))}
    notes = negative_notes(negative_fields(fields))
    if not times["first_token"]:
        notes.append("the result holds no TTFT (excluded by --percentile-metrics)")
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
