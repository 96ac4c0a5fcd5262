"""AIPerf's profile export: profile_export_aiperf.json, or the .csv beside it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.formats.bench.serving import imported, known, nanoseconds, one_file
from kvdistill.formats.formats import Imported, ImportOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.files import read_json
from kvtrace.core.run.figures import Serving, ServingTimes

if TYPE_CHECKING:
    import duckdb

_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_TIMES = {"avg": "mean_ns", "p50": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns", "max": "max_ns"}


class _Metric(msgspec.Struct):
    """One metric; of a single value, `avg` is it."""

    unit: str | None = None
    avg: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    count: int | None = None


class _Export(msgspec.Struct):
    """What of an export is read, by its tags."""

    request_count: _Metric | None = None
    error_request_count: _Metric | None = None
    request_throughput: _Metric | None = None
    output_token_throughput: _Metric | None = None
    time_to_first_token: _Metric | None = None
    inter_token_latency: _Metric | None = None
    request_latency: _Metric | None = None
    benchmark_duration: _Metric | None = None
    total_isl: _Metric | None = None
    total_osl: _Metric | None = None
    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    start_time: datetime | None = None


_HEADERS = {
    "Request Count": "request_count",
    "Error Request Count": "error_request_count",
    "Request Throughput": "request_throughput",
    "Output Token Throughput": "output_token_throughput",
    "Time to First Token": "time_to_first_token",
    "Inter Token Latency": "inter_token_latency",
    "Request Latency": "request_latency",
    "Benchmark Duration": "benchmark_duration",
    "Total Input Sequence Length": "total_isl",
    "Total Output Sequence Length": "total_osl",
}
"""What the .csv calls them."""


def read(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one export.

    Raises:
        TraceError: it is none, or in a unit that we do not know.

    """
    path = one_file(files, "export")
    misfit = "no profile export of AIPerf: {}"
    found = _of_csv(path) if path.suffix == ".csv" else read_json(path, _Export, misfit=misfit)
    if found.request_count is None and found.request_throughput is None and found.time_to_first_token is None:
        raise TraceError(misfit.format("it holds none of its metrics"), path=path)
    duration = found.benchmark_duration
    wall_ns = None if duration is None else nanoseconds(duration.avg, _unit(duration, path), path)
    tokens = _count(found.total_isl)
    serving = Serving(
        benchmark=" ".join(["AIPerf", *([found.aiperf_version] if found.aiperf_version else [])]),
        requests=_count(found.request_count),
        failed_requests=_count(found.error_request_count),
        input_tokens=tokens,
        output_tokens=_count(found.total_osl),
        requests_per_s=None if found.request_throughput is None else found.request_throughput.avg,
        input_tokens_per_s=tokens * 1e9 / wall_ns if tokens is not None and wall_ns else None,
        output_tokens_per_s=None if found.output_token_throughput is None else found.output_token_throughput.avg,
        first_token=_times(found.time_to_first_token, path),
        inter_token=None,
        output_token=_times(found.inter_token_latency, path),
        answer=_times(found.request_latency, path),
    )
    notes = ["its inter-token latency is the mean of each answer: a time a token after the first, not single gaps"]
    if found.was_cancelled:
        notes.append("it was CANCELLED: its figures are of a part")
    if found.is_complete is False:
        notes.append(f"it is INCOMPLETE: {found.incomplete_reason or 'no reason given'}")
    return imported(serving, wall_ns, notes=notes, started=found.start_time)


def _of_csv(path: Path) -> _Export:
    found: dict[str, Any] = {}
    header: list[str] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            for row in csv.reader(file):
                if row and row[0] == "Metric":
                    header = ["avg" if name == "Value" else name for name in row]
                    continue
                if not row or not header:
                    # What follows the metrics, such as of GPUs, begins with a header of its own.
                    header = header if row else []
                    continue
                name, _, unit = row[0].partition(" (")
                if name in _HEADERS:
                    cells = dict(zip(header[1:], row[1:], strict=False))
                    values = {key: float(cell) for key, cell in cells.items() if key in _TIMES and cell}
                    found[_HEADERS[name]] = {"unit": unit.rstrip(")") or None, **values}
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from None
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise TraceError(f"no profile export of AIPerf: {error}", path=path) from None
    return msgspec.convert(found, _Export)


def _unit(metric: _Metric, path: Path) -> float:
    if metric.unit not in _UNITS_NS:
        raise TraceError(f"times in {metric.unit!r}; known are {', '.join(_UNITS_NS)}", path=path)
    return _UNITS_NS[metric.unit]


def _count(metric: _Metric | None) -> int | None:
    return None if metric is None or metric.avg is None else round(metric.avg)


def _times(metric: _Metric | None, path: Path) -> ServingTimes | None:
    if metric is None:
        return None
    unit_ns = _unit(metric, path)
    values = {name: nanoseconds(getattr(metric, said), unit_ns, path) for said, name in _TIMES.items()}
    return known(ServingTimes(count=metric.count, **values))
