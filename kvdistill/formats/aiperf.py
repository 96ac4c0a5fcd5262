"""Import the results of AIPerf as a run.json without operations.

AIPerf writes its metrics as `profile_export_aiperf.json` (in 2025 below the key `records`) and
`.csv`, and a record for each request as `profile_export.jsonl`. Figures of the records are computed
here, from all requests of the measured phase that did not fail.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from kvdistill.formats.formats import Imported, ImportOptions
from kvdistill.formats.serving_result import (
    imported,
    nanoseconds,
    one_file,
    readable,
    times_from_figures,
    times_of,
)
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.run.figures import ServingTimes
from kvtrace.core.simulation_stats import Count
from kvtrace.core.text import read_bounded
from kvtrace.core.units import NS_PER_S, counted

_MISFIT = "not a profile export of AIPerf: {}"
_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_STATISTICS = {
    "avg": "mean_ns",
    "p50": "p50_ns",
    "p90": "p90_ns",
    "p95": "p95_ns",
    "p99": "p99_ns",
    "max": "max_ns",
}
"""AIPerf's statistics of a metric, and the fields of `ServingTimes` for them."""
_TIMES = {
    "first_token": ("time_to_first_token", "ttft"),
    "output_token": ("inter_token_latency",),
    "answer": ("request_latency",),
}
"""Distributions of times, and the names of AIPerf's metrics over its versions."""
_COUNTS = {
    "requests": ("request_count",),
    "failed_requests": ("error_request_count",),
    "input_tokens": ("total_isl", "total_input_sequence_length"),
    "output_tokens": ("total_osl", "total_output_sequence_length"),
}
_RATES = {
    "requests_per_s": ("request_throughput",),
    "output_tokens_per_s": ("output_token_throughput",),
}
_DURATION = ("benchmark_duration",)
_NOTE = (
    "AIPerf's inter-token latency is the mean of each answer: a time per output token after the"
    " first, not single gaps"
)


class _Metric(msgspec.Struct):
    """The statistics of one metric; a metric with a single value has it in `avg`."""

    avg: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    unit: str | None = None
    count: int | None = None


class _Facts(msgspec.Struct):
    """The fields of an export that are not metrics."""

    records: dict[str, _Metric] | None = None
    """The metrics of exports of 2025; later ones have them at the top."""
    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    start_time: datetime | None = None


def read_aiperf(
    files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection
) -> Imported:
    """Import one export of AIPerf: its JSON, its CSV, or its records by request.

    TraceError if the file holds none, or times in an unknown unit.
    """
    path = one_file(files, "export")
    if path.suffix == ".csv":
        return _import_metrics(_metrics_of_csv(path), _Facts(), path)
    with readable(path, _MISFIT):
        text = read_bounded(path)
    first_line, _, remainder = text.strip().partition(b"\n")
    if b'"metadata"' in first_line and (not remainder or remainder.lstrip().startswith(b"{")):
        return _import_records(text, path)
    facts = decode_json(text, _Facts, path, misfit=_MISFIT)
    return _import_metrics(_metrics_of_json(text, facts, path), facts, path)


def _metrics_of_json(text: bytes, facts: _Facts, path: Path) -> dict[str, _Metric]:
    """Return the metrics that are imported; other metrics may have any form."""
    if facts.records is not None:
        return facts.records
    metric_names = {name for names in (_TIMES | _COUNTS | _RATES).values() for name in names}
    metric_names.update(_DURATION)
    fields = decode_json(text, dict[str, msgspec.Raw], path, misfit=_MISFIT)
    return {
        name: decode_json(raw, _Metric, path, misfit=_MISFIT)
        for name, raw in fields.items()
        if name in metric_names and raw != b"null"
    }


def _metrics_of_csv(path: Path) -> dict[str, _Metric]:
    """Return the metrics of a CSV, from its sections with a header that begins with `Metric`.

    Other sections, such as those about GPUs, have columns of their own.
    """
    metrics = {}
    with readable(path, _MISFIT):
        for row in _rows_of_csv(read_bounded(path).decode("utf-8-sig").replace("\r\n", "\n")):
            # "Request Latency (ms)" is the metric request_latency with the unit ms.
            title, _, unit = row["Metric"].partition(" (")
            cells = {"avg": row.get("Value")} | row
            values = {name: float(cell) for name in _STATISTICS if (cell := cells.get(name))}
            if not all(map(math.isfinite, values.values())):
                raise ValueError(f"{title} is {', '.join(map(str, values.values()))}")
            name = title.lower().replace(" ", "_")
            metric = msgspec.convert(values, _Metric)
            metrics[name] = msgspec.structs.replace(metric, unit=unit.rstrip(")") or None)
    return metrics


def _rows_of_csv(text: str) -> Iterable[dict[str, str]]:
    for section in text.split("\n\n"):
        if section.startswith("Metric,"):
            yield from csv.DictReader(section.splitlines())


def _import_metrics(metrics: Mapping[str, _Metric], facts: _Facts, path: Path) -> Imported:
    def metric_called(names: Sequence[str]) -> _Metric | None:
        return next((metrics[name] for name in names if name in metrics), None)

    times: dict[str, ServingTimes | None] = {}
    for name, metric_names in _TIMES.items():
        metric = metric_called(metric_names)
        if metric is not None:
            statistics = {ours: getattr(metric, theirs) for theirs, ours in _STATISTICS.items()}
            times[name] = times_from_figures(
                statistics, _unit_ns(metric.unit, path), metric.count, path
            )
    counts: dict[str, float | None] = {}
    for name, metric_names in (_COUNTS | _RATES).items():
        metric = metric_called(metric_names)
        if metric is not None and metric.avg is not None:
            counts[name] = metric.avg if name in _RATES else round(metric.avg)
    if not {"requests", "requests_per_s"} & counts.keys() and "first_token" not in times:
        raise TraceError(_MISFIT.format("it holds no metrics"), path=path)
    duration = metric_called(_DURATION)
    seconds = None
    if duration is not None and duration.avg is not None:
        seconds = nanoseconds(duration.avg, _unit_ns(duration.unit, path), path) / NS_PER_S
    notes = [_NOTE]
    if facts.was_cancelled:
        notes.append("the benchmark was CANCELLED: its figures cover only a part")
    if facts.is_complete is False:
        notes.append(f"it is INCOMPLETE: {facts.incomplete_reason or 'no reason given'}")
    benchmark = "AIPerf" if facts.aiperf_version is None else f"AIPerf {facts.aiperf_version}"
    return imported(path, benchmark, seconds, counts, times, notes=notes, started=facts.start_time)


def _unit_ns(unit: str | None, path: Path) -> float:
    """Return the nanoseconds in a metric's unit of time; TraceError for an unknown unit."""
    if unit not in _UNITS_NS:
        raise TraceError(f"times in {unit!r}; known are {', '.join(_UNITS_NS)}", path=path)
    return _UNITS_NS[unit]


class _RequestValue(msgspec.Struct):
    value: float
    unit: str | None = None


class _RequestMetadata(msgspec.Struct):
    request_start_ns: Count
    request_end_ns: Count | None = None
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False


class _RequestMetrics(msgspec.Struct, frozen=True):
    time_to_first_token: _RequestValue | None = None
    inter_token_latency: _RequestValue | None = None
    request_latency: _RequestValue | None = None
    input_sequence_length: _RequestValue | None = None
    output_sequence_length: _RequestValue | None = None


class _RequestRecord(msgspec.Struct):
    """A line of profile_export.jsonl."""

    metadata: _RequestMetadata
    metrics: _RequestMetrics = _RequestMetrics()
    error: object = None

    def is_failed(self) -> bool:
        """Return whether the request failed or was cancelled."""
        return self.error is not None or self.metadata.was_cancelled


def _import_records(text: bytes, path: Path) -> Imported:
    """Import the records of single requests, all but those of the warm-up."""
    records = [
        decode_json(line, _RequestRecord, path, row=number, misfit=_MISFIT)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    measured = [record for record in records if record.metadata.benchmark_phase != "warmup"]
    if not measured:
        raise TraceError(_MISFIT.format("it holds no request of the measured phase"), path=path)
    notes = [_NOTE, "its percentiles are of all requests, by nearest rank"]
    if len(records) > len(measured):
        notes.append(f"left out: {counted(len(records) - len(measured), 'request')} of the warm-up")
    successful = [record for record in measured if not record.is_failed()]
    times = {
        name: times_of(_seconds(successful, metric_names[0], path), path)
        for name, metric_names in _TIMES.items()
    }
    counts: dict[str, float | None] = {
        "requests": len(successful),
        "failed_requests": len(measured) - len(successful),
        "input_tokens": _token_sum(successful, "input_sequence_length"),
        "output_tokens": _token_sum(successful, "output_sequence_length"),
    }
    begins_ns = [record.metadata.request_start_ns for record in measured]
    ends_ns = [record.metadata.request_end_ns for record in measured]
    known_ends_ns = [end for end in ends_ns if end is not None]
    seconds = None
    if len(known_ends_ns) == len(measured) and max(known_ends_ns) > min(begins_ns):
        seconds = (max(known_ends_ns) - min(begins_ns)) / NS_PER_S
    started = datetime.fromtimestamp(min(begins_ns) / NS_PER_S).astimezone()
    return imported(path, "AIPerf", seconds, counts, times, notes=notes, started=started)


def _seconds(records: Iterable[_RequestRecord], metric: str, path: Path) -> list[float]:
    """Return the values of a time, of the records that have it."""
    values: list[_RequestValue | None] = [getattr(record.metrics, metric) for record in records]
    return [
        value.value * _unit_ns(value.unit, path) / NS_PER_S for value in values if value is not None
    ]


def _token_sum(records: Sequence[_RequestRecord], metric: str) -> int | None:
    """Return the sum of a number of tokens over all records; null if one lacks it."""
    values: list[_RequestValue | None] = [getattr(record.metrics, metric) for record in records]
    counts = [round(value.value) for value in values if value is not None]
    return sum(counts) if counts and len(counts) == len(records) else None
