"""The results of `lmcache bench engine`: its JSON summary, or its CSV, one row a request."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.formats.bench.serving import imported, known, nanoseconds, one_file, times_of
from kvdistill.formats.formats import Imported, ImportOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.files import read_json
from kvtrace.core.metadata import Count
from kvtrace.core.run.figures import Serving, ServingTimes
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    import duckdb

_NS_PER_MS = 1_000_000
_NAME = "lmcache bench engine"


class _Figures(msgspec.Struct):
    """The figures of a summary; LMCache writes 0 for a time that nothing was measured of."""

    successful_requests: Count
    failed_requests: Count
    elapsed_time: float
    input_throughput: float
    output_throughput: float
    total_input_tokens: Count
    total_output_tokens: Count
    mean_ttft_ms: float
    mean_request_latency_ms: float
    p50_ttft_ms: float = 0
    p90_ttft_ms: float = 0
    p99_ttft_ms: float = 0
    p50_request_latency_ms: float = 0
    p90_request_latency_ms: float = 0
    p99_request_latency_ms: float = 0


class _Summary(msgspec.Struct):
    results: _Figures
    config: dict[str, Any] = {}


class _Row(msgspec.Struct):
    """One request of the CSV; times in seconds."""

    successful: str
    ttft: float
    request_latency: float
    num_input_tokens: Count
    num_output_tokens: Count
    decode_speed: float
    submit_time: float
    finish_time: float


def read(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one result.

    Raises:
        TraceError: it is none.

    """
    path = one_file(files, "result")
    return _of_rows(path) if path.suffix == ".csv" else _of_summary(path)


def _of_summary(path: Path) -> Imported:
    content = read_json(path, _Summary, misfit=f"no result of {_NAME}: {{}}")
    found, count = content.results, content.results.successful_requests
    serving = Serving(
        benchmark=_NAME,
        requests=count,
        failed_requests=found.failed_requests,
        input_tokens=found.total_input_tokens,
        output_tokens=found.total_output_tokens,
        requests_per_s=count / found.elapsed_time if found.elapsed_time > 0 else None,
        input_tokens_per_s=found.input_throughput,
        output_tokens_per_s=found.output_throughput,
        first_token=_times(found, "ttft", count, path),
        answer=_times(found, "request_latency", count, path),
    )
    notes = ["its speeds of decoding are left out: the times between tokens do not follow from them; its CSV has more"]
    config = {name: value for name, value in content.config.items() if isinstance(value, str | int | float | bool)}
    return imported(serving, nanoseconds(found.elapsed_time, NS_PER_S, path), notes=notes, config=config)


def _times(found: _Figures, metric: str, count: int, path: Path) -> ServingTimes | None:
    if not count:
        return None
    names = ("mean", "p50", "p90", "p99")
    values = {f"{name}_ns": nanoseconds(getattr(found, f"{name}_{metric}_ms"), _NS_PER_MS, path) for name in names}
    return known(ServingTimes(count=count, **values))


def _of_rows(path: Path) -> Imported:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [msgspec.convert(row, _Row, strict=False) for row in csv.DictReader(file)]
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from None
    except (UnicodeDecodeError, csv.Error, msgspec.ValidationError) as error:
        raise TraceError(f"no result of {_NAME}: {error}", path=path) from None
    if not rows:
        raise TraceError(f"no result of {_NAME}: it has no rows", path=path)
    good = [row for row in rows if row.successful == "True"]
    wall_s = max(row.finish_time for row in rows) - min(row.submit_time for row in rows)
    tokens = [sum(row.num_input_tokens for row in rows), sum(row.num_output_tokens for row in rows)]
    is_timed = wall_s > 0
    serving = Serving(
        benchmark=_NAME,
        requests=len(good),
        failed_requests=len(rows) - len(good),
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        requests_per_s=len(good) / wall_s if is_timed else None,
        input_tokens_per_s=tokens[0] / wall_s if is_timed else None,
        output_tokens_per_s=tokens[1] / wall_s if is_timed else None,
        first_token=times_of([row.ttft for row in good], path),
        output_token=times_of([1 / row.decode_speed for row in good if row.decode_speed > 0], path),
        answer=times_of([row.request_latency for row in good], path),
    )
    return imported(serving, nanoseconds(wall_s, NS_PER_S, path) if is_timed else None)
