"""Results of serving benchmarks as a run.json without operations: those of vLLM, AIPerf and LMCache.

`vllm bench serve --save-result` (with or without --save-detailed), AIPerf's profile_export_aiperf as .json or .csv,
and the summary or the row-a-request CSV of `lmcache bench engine`.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.formats.formats import Account, Imported, ImportOptions, run_summary
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.metadata import Count
from kvtrace.core.run.figures import Serving, ServingTimes
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    import duckdb


_PARTS = {"p50_ns": 5000, "p90_ns": 9000, "p95_ns": 9500, "p99_ns": 9900, "p99_9_ns": 9990}


def one_file(files: Sequence[Path], what: str) -> Path:
    """Return the only one of `files`; TraceError if there are more: each is a side of a comparison by itself."""
    if len(files) > 1:
        raise TraceError(f"is one of {len(files)} files; import each {what} into a folder of its own", path=files[0])
    return files[0]


@contextmanager
def _readable(path: Path, misfit: str) -> Iterator[None]:
    """Turn what goes wrong while the file at `path` is read into a TraceError; `misfit` is for what it holds."""
    try:
        yield
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from None
    except (ValueError, csv.Error, msgspec.ValidationError) as error:
        raise TraceError(misfit.format(error), path=path) from None


def nanoseconds(value: float | None, unit_ns: float, path: Path) -> int | None:
    """Return a time of `unit_ns` each in nanoseconds; null stays null; TraceError if it is no time."""
    if value is None:
        return None
    if not math.isfinite(value) or not 0 <= value * unit_ns <= MOST:
        raise TraceError(f"{value} is no time", path=path)
    return round(value * unit_ns)


def times_of(seconds: Sequence[float], path: Path) -> ServingTimes | None:
    """Return the distribution of `seconds`, percentiles by nearest rank; null without any."""
    ordered = sorted(ns for value in seconds if (ns := nanoseconds(value, NS_PER_S, path)) is not None)
    if not ordered:
        return None
    ranks = {name: nearest_rank(len(ordered), part) for name, part in _PARTS.items()}
    found = {name: None if rank is None else ordered[rank - 1] for name, rank in ranks.items()}
    mean = round(sum(ordered) / len(ordered))
    return ServingTimes(count=len(ordered), mean_ns=mean, max_ns=ordered[-1], **found)


def told_times(said: Mapping[str, float | None], unit_ns: float, count: int | None, path: Path) -> ServingTimes | None:
    """Return the distribution of `count` times of which a result tells figures, in `unit_ns`; null if it tells none."""
    times = {name: nanoseconds(value, unit_ns, path) for name, value in said.items() if value is not None}
    return ServingTimes(count=count, **times) if times else None


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
    verdict = f"{serving.benchmark}: {', '.join(said) or 'number of requests unknown'}"
    facts = {
        "serving": msgspec.to_builtins(serving),
        "host": {"benchmark": serving.benchmark, **(config or {})},
    }
    first = None if started is None else int(started.timestamp() * NS_PER_S)
    return Imported(
        account, [], [], summary=run_summary(verdict, [], wall_ns=wall_ns), first_unix_ns=first, facts=facts
    )


_VLLM_TIMES = {"p50": "p50_ns", "median": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns",
                "p99.9": "p99_9_ns", "mean": "mean_ns"}  # fmt: skip
_VLLM_SETTINGS = ("backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency")


class _VllmResult(msgspec.Struct):
    """The fields of a result that are checked; options name the fields of times, which are read apart."""

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


def read_vllm(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one result of vLLM's benchmark.

    Raises:
        TraceError: the file holds none, or several that --append-result put into one file.

    """
    path = one_file(files, "result")
    need_file(path)
    text = path.read_bytes()
    if len(results := [line for line in text.splitlines() if line.startswith(b"{")]) > 1:
        raise TraceError(f"holds {len(results)} results (--append-result); leave one a file", path=path)
    found = decode_json(text, _VllmResult, path, misfit="no result of vllm bench serve: {}")
    fields = decode_json(text, dict[str, Any], path)
    wall_ns = nanoseconds(found.duration, NS_PER_S, path)
    tokens = found.total_input_tokens
    # Of single requests that did not fail; none without --save-detailed.
    errors = found.errors or [None] * len(found.ttfts or [])
    single = [t for t, error in zip(found.ttfts or [], errors, strict=False) if not error]
    serving = Serving(
        benchmark="vllm bench serve",
        requests=found.completed,
        failed_requests=found.failed,
        input_tokens=tokens,
        output_tokens=found.total_output_tokens,
        requests_per_s=found.request_throughput,
        input_tokens_per_s=tokens / found.duration if tokens is not None and found.duration > 0 else None,
        output_tokens_per_s=found.output_throughput,
        first_token=times_of(single, path) or _vllm_times(fields, "ttft", found.completed, path),
        inter_token=times_of([gap for gaps in found.itls or [] for gap in gaps], path)
        or _vllm_times(fields, "itl", None, path),
        output_token=_vllm_times(fields, "tpot", None, path),
        answer=_vllm_times(fields, "e2el", found.completed, path),
    )
    settings = {name: fields[name] for name in _VLLM_SETTINGS if fields.get(name) is not None}
    notes = [] if serving.first_token else ["it holds no time to the first token (--percentile-metrics left it out)"]
    return imported(serving, wall_ns, notes=notes, config=settings, started=_date(found.date))


def _date(said: str | None) -> datetime | None:
    try:
        return None if said is None else datetime.strptime(said, "%Y%m%d-%H%M%S").astimezone()
    except ValueError:
        return None


def _vllm_times(fields: dict[str, Any], metric: str, count: int | None, path: Path) -> ServingTimes | None:
    said = {word: fields.get(f"{word}_{metric}_ms") for word in _VLLM_TIMES}
    numbers = {_VLLM_TIMES[word]: value for word, value in said.items() if isinstance(value, int | float)}
    return told_times(numbers, NS_PER_MS, count, path)


_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9}
_AIPERF_TIMES = {"avg": "mean_ns", "p50": "p50_ns", "p90": "p90_ns", "p95": "p95_ns", "p99": "p99_ns", "max": "max_ns"}


class _AiperfMetric(msgspec.Struct):
    """One metric; of a single value, `avg` is it."""

    unit: str | None = None
    avg: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    count: int | None = None


class _AiperfExport(msgspec.Struct):
    """The metrics of an export that are read, by their tags."""

    request_count: _AiperfMetric | None = None
    error_request_count: _AiperfMetric | None = None
    request_throughput: _AiperfMetric | None = None
    output_token_throughput: _AiperfMetric | None = None
    time_to_first_token: _AiperfMetric | None = None
    inter_token_latency: _AiperfMetric | None = None
    request_latency: _AiperfMetric | None = None
    benchmark_duration: _AiperfMetric | None = None
    total_isl: _AiperfMetric | None = None
    total_osl: _AiperfMetric | None = None
    aiperf_version: str | None = None
    was_cancelled: bool | None = None
    is_complete: bool | None = None
    incomplete_reason: str | None = None
    start_time: datetime | None = None


_AIPERF_SHORT = {"total_input_sequence_length": "total_isl", "total_output_sequence_length": "total_osl"}
"""Tags that are not what the .csv calls a metric, as `Request Latency (ms)`, in small letters."""


def read_aiperf(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one export of AIPerf.

    Raises:
        TraceError: the file holds none, or in a unit that we do not know.

    """
    path = one_file(files, "export")
    misfit = "no profile export of AIPerf: {}"
    found = _of_csv(path) if path.suffix == ".csv" else read_json(path, _AiperfExport, misfit=misfit)
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
        first_token=_aiperf_times(found.time_to_first_token, path),
        inter_token=None,
        output_token=_aiperf_times(found.inter_token_latency, path),
        answer=_aiperf_times(found.request_latency, path),
    )
    notes = ["its inter-token latency is the mean of each answer: a time a token after the first, not single gaps"]
    if found.was_cancelled:
        notes.append("it was CANCELLED: its figures are of a part")
    if found.is_complete is False:
        notes.append(f"it is INCOMPLETE: {found.incomplete_reason or 'no reason given'}")
    return imported(serving, wall_ns, notes=notes, started=found.start_time)


def _of_csv(path: Path) -> _AiperfExport:
    """Return the metrics in the sections that begin with them; others, such as of GPUs, have columns of their own."""
    found: dict[str, Any] = {}
    with _readable(path, "no profile export of AIPerf: {}"):
        sections = path.read_text(encoding="utf-8-sig").split("\n\n")
        for row in (r for s in sections if s.startswith("Metric,") for r in csv.DictReader(s.splitlines())):
            name, _, unit = row["Metric"].partition(" (")
            tag = name.lower().replace(" ", "_")
            tag = _AIPERF_SHORT.get(tag, tag)
            if tag in _AiperfExport.__struct_fields__:
                cells = {"avg": row.get("Value")} | row
                values = {key: float(cell) for key in _AIPERF_TIMES if (cell := cells.get(key))}
                if not all(map(math.isfinite, values.values())):
                    raise ValueError(f"{name} is {', '.join(map(str, values.values()))}")
                found[tag] = {"unit": unit.rstrip(")") or None, **values}
    return msgspec.convert(found, _AiperfExport)


def _unit(metric: _AiperfMetric, path: Path) -> float:
    if metric.unit not in _UNITS_NS:
        raise TraceError(f"times in {metric.unit!r}; known are {', '.join(_UNITS_NS)}", path=path)
    return _UNITS_NS[metric.unit]


def _count(metric: _AiperfMetric | None) -> int | None:
    return None if metric is None or metric.avg is None else round(metric.avg)


def _aiperf_times(metric: _AiperfMetric | None, path: Path) -> ServingTimes | None:
    if metric is None:
        return None
    said = {name: getattr(metric, word) for word, name in _AIPERF_TIMES.items()}
    return told_times(said, _unit(metric, path), metric.count, path)


_LMCACHE = "lmcache bench engine"


class _LmcacheFigures(msgspec.Struct):
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


class _LmcacheSummary(msgspec.Struct):
    results: _LmcacheFigures
    config: dict[str, Any] = {}


class _LmcacheRow(msgspec.Struct):
    """One request of the CSV; times in seconds."""

    successful: str
    ttft: float
    request_latency: float
    num_input_tokens: Count
    num_output_tokens: Count
    decode_speed: float
    submit_time: float
    finish_time: float


def read_lmcache(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import one result of LMCache's benchmark.

    Raises:
        TraceError: the file holds none.

    """
    path = one_file(files, "result")
    return _of_rows(path) if path.suffix == ".csv" else _of_summary(path)


def _of_summary(path: Path) -> Imported:
    content = read_json(path, _LmcacheSummary, misfit=f"no result of {_LMCACHE}: {{}}")
    found, count = content.results, content.results.successful_requests
    serving = Serving(
        benchmark=_LMCACHE,
        requests=count,
        failed_requests=found.failed_requests,
        input_tokens=found.total_input_tokens,
        output_tokens=found.total_output_tokens,
        requests_per_s=count / found.elapsed_time if found.elapsed_time > 0 else None,
        input_tokens_per_s=found.input_throughput,
        output_tokens_per_s=found.output_throughput,
        first_token=_lmcache_times(found, "ttft", count, path),
        answer=_lmcache_times(found, "request_latency", count, path),
    )
    notes = ["its speeds of decoding are left out: the times between tokens do not follow from them; its CSV has more"]
    config = {name: value for name, value in content.config.items() if isinstance(value, str | int | float | bool)}
    return imported(serving, nanoseconds(found.elapsed_time, NS_PER_S, path), notes=notes, config=config)


def _lmcache_times(found: _LmcacheFigures, metric: str, count: int, path: Path) -> ServingTimes | None:
    if not count:
        return None
    said = {f"{name}_ns": getattr(found, f"{name}_{metric}_ms") for name in ("mean", "p50", "p90", "p99")}
    return told_times(said, NS_PER_MS, count, path)


def _of_rows(path: Path) -> Imported:
    with _readable(path, f"no result of {_LMCACHE}: {{}}"), path.open(newline="", encoding="utf-8") as file:
        rows = [msgspec.convert(row, _LmcacheRow, strict=False) for row in csv.DictReader(file)]
    if not rows:
        raise TraceError(f"no result of {_LMCACHE}: it has no rows", path=path)
    good = [row for row in rows if row.successful == "True"]
    wall_s = max(row.finish_time for row in rows) - min(row.submit_time for row in rows)
    tokens = [sum(row.num_input_tokens for row in rows), sum(row.num_output_tokens for row in rows)]
    is_timed = wall_s > 0
    serving = Serving(
        benchmark=_LMCACHE,
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
