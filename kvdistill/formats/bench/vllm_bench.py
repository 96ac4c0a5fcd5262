"""The JSON of `vllm bench serve --save-result`, with or without --save-detailed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.formats.bench.serving import imported, known, nanoseconds, one_file, times_of
from kvdistill.formats.formats import Imported, ImportOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.metadata import Count
from kvtrace.core.run.figures import Serving, ServingTimes
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

_NS_PER_MS = 1_000_000
_PERCENTILES = {"median": "p50_ns", "p50": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns",
                "p99.9": "p99_9_ns", "mean": "mean_ns"}  # fmt: skip
_SETTINGS = ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")


class _Result(msgspec.Struct):
    """The result, so far as its types matter; the times are fields of names that options make."""

    duration: float
    completed: Count
    date: str | None = None
    failed: Count | None = None
    total_input_tokens: Count | None = None
    total_output_tokens: Count | None = None
    request_throughput: float | None = None
    output_throughput: float | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    errors: list[str | None] | None = None


def read(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one result.

    Raises:
        TraceError: it is none, or several that --append-result put into one file.

    """
    path = one_file(files, "result")
    text = path.read_bytes() if path.is_file() else _absent(path)
    if len(results := [line for line in text.splitlines() if line.startswith(b"{")]) > 1:
        raise TraceError(f"holds {len(results)} results (--append-result); leave one a file", path=path)
    found = decode_json(text, _Result, path, misfit="no result of vllm bench serve: {}")
    fields = decode_json(text, dict[str, Any], path)
    wall_ns = nanoseconds(found.duration, NS_PER_S, path)
    tokens = found.total_input_tokens
    serving = Serving(
        benchmark="vllm bench serve",
        requests=found.completed,
        failed_requests=found.failed,
        input_tokens=tokens,
        output_tokens=found.total_output_tokens,
        requests_per_s=found.request_throughput,
        input_tokens_per_s=tokens / found.duration if tokens is not None and found.duration > 0 else None,
        output_tokens_per_s=found.output_throughput,
        first_token=_single(found, path) or _summarized(fields, "ttft", found.completed, path),
        inter_token=_between(found, path) or _summarized(fields, "itl", None, path),
        output_token=_summarized(fields, "tpot", None, path),
        answer=_summarized(fields, "e2el", found.completed, path),
    )
    settings = {name: fields[name] for name in _SETTINGS if fields.get(name) is not None}
    notes = [] if serving.first_token else ["it holds no time to the first token (--percentile-metrics left it out)"]
    return imported(serving, wall_ns, notes=notes, config=settings, started=_date(found.date))


def _absent(path: Path) -> bytes:
    raise TraceError("no such file", path=path)


def _date(said: str | None) -> datetime | None:
    try:
        return None if said is None else datetime.strptime(said, "%Y%m%d-%H%M%S").astimezone()
    except ValueError:
        return None


def _single(found: _Result, path: Path) -> ServingTimes | None:
    """Return the times to the first token of single requests that did not fail; null without --save-detailed."""
    errors = found.errors or [None] * len(found.ttfts or [])
    return times_of([t for t, error in zip(found.ttfts or [], errors, strict=False) if not error], path)


def _between(found: _Result, path: Path) -> ServingTimes | None:
    return times_of([gap for gaps in found.itls or [] for gap in gaps], path)


def _summarized(fields: dict[str, Any], metric: str, count: int | None, path: Path) -> ServingTimes | None:
    times: dict[str, int | None] = {}
    for said, name in _PERCENTILES.items():
        value = fields.get(f"{said}_{metric}_ms")
        if isinstance(value, int | float):
            times.setdefault(name, nanoseconds(value, _NS_PER_MS, path))
    return known(ServingTimes(count=count, **times))
