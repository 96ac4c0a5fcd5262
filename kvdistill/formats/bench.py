"""Results of serving benchmarks as a run.json without operations.

Those of `vllm bench serve --save-result` (with or without --save-detailed), and the summary or the
row-a-request CSV of `lmcache bench engine`. AIPerf's are read by aiperf.py with the same helpers.
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
from kvtrace.core.metadata import Count
from kvtrace.core.run.figures import Serving, ServingTimes, Summary
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_MS, NS_PER_S, counted

_PARTS = {"p50_ns": 5000, "p90_ns": 9000, "p95_ns": 9500, "p99_ns": 9900, "p99_9_ns": 9990}
_RATES = {
    "requests_per_s": "requests",
    "input_tokens_per_s": "input_tokens",
    "output_tokens_per_s": "output_tokens",
}
"""Of what each is, over the time of the whole."""


def one_file(files: Sequence[Path], what: str) -> Path:
    """Return the only one of `files`.

    TraceError if there are more: each is a side of a comparison by itself.
    """
    if len(files) > 1:
        raise TraceError(
            f"is one of {len(files)} files; import each {what} into a folder of its own",
            path=files[0],
        )
    return files[0]


@contextmanager
def readable(path: Path, misfit: str) -> Iterator[None]:
    """Turn what goes wrong while the file at `path` is read into a TraceError.

    `misfit` is for what it holds.
    """
    need_file(path)
    try:
        yield
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror}", path=path) from None
    except (ValueError, csv.Error, msgspec.ValidationError) as error:
        raise TraceError(misfit.format(error), path=path) from None


def nanoseconds(value: float, unit_ns: float, path: Path) -> int:
    """Return a time of `unit_ns` each in nanoseconds; TraceError if it is no time."""
    if not math.isfinite(value) or not 0 <= value * unit_ns <= MOST:
        raise TraceError(f"{value} is not a time", path=path)
    return round(value * unit_ns)


def times_of(seconds: Sequence[float], path: Path) -> ServingTimes | None:
    """Return the distribution of `seconds`, percentiles by nearest rank; null without any."""
    ordered = sorted(nanoseconds(value, NS_PER_S, path) for value in seconds)
    if not ordered:
        return None
    ranks = {name: nearest_rank(len(ordered), part) for name, part in _PARTS.items()}
    found = {name: None if rank is None else ordered[rank - 1] for name, rank in ranks.items()}
    mean = round(sum(ordered) / len(ordered))
    return ServingTimes(count=len(ordered), mean_ns=mean, max_ns=ordered[-1], **found)


def told_times(
    said: Mapping[str, object], unit_ns: float, count: int | None, path: Path
) -> ServingTimes | None:
    """Return the distribution of `count` times of which a result tells figures, in `unit_ns`.

    Null if it tells none.
    """
    times = {
        name: nanoseconds(value, unit_ns, path)
        for name, value in said.items()
        if isinstance(value, int | float)
    }
    return ServingTimes(count=count, **times) if times else None


# Long: its parameters.
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

    `counts` and `times` by our names; `config` is what was asked for.

    Rates that it does not tell are counts over its `seconds`.
    """
    wall_ns = None if seconds is None else nanoseconds(seconds, NS_PER_S, path)
    told = {name: value for name, value in counts.items() if name in Serving.__struct_fields__}
    for name, value in told.items():
        if value is not None and not 0 <= value < math.inf:
            raise TraceError(f"{name} is {value}: it cannot be negative or infinite", path=path)
    for rate, of in _RATES.items():
        total = told.get(of)
        if told.get(rate) is None and total is not None and seconds:
            told[rate] = total / seconds
    # Of no request, benchmarks write 0 for times that nothing was measured of.
    measured = {} if told.get("requests") == 0 else times
    serving = msgspec.structs.replace(Serving(benchmark=benchmark), **told, **measured)
    count, failed = serving.requests or 0, serving.failed_requests or 0
    said = [counted(count, "request")] if serving.requests is not None else []
    verdict = (
        f"{benchmark}:"
        f" {', '.join(said + [f'{failed:,} FAILED'] * bool(failed)) or 'number of requests unknown'}"
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
    """What is read of a result; its times are told by fields that options name."""

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

    TraceError if the file holds none, or several that --append-result put into one file.
    """
    path = one_file(files, "result")
    need_file(path)
    text = path.read_bytes()
    if len(results := [line for line in text.splitlines() if line.startswith(b"{")]) > 1:
        raise TraceError(
            f"holds {len(results)} results (--append-result); leave one a file", path=path
        )
    found = decode_json(text, _VllmResult, path, misfit="no result of vllm bench serve: {}")
    fields = decode_json(text, dict[str, object], path)

    def told(metric: str, count: int | None = None) -> ServingTimes | None:
        said = ((name, fields.get(f"{word}_{metric}_ms")) for word, name in _VLLM_TIMES.items())
        return told_times(
            {name: value for name, value in said if value is not None}, NS_PER_MS, count, path
        )

    # Of single requests that did not fail, as vLLM's own are; none without --save-detailed.
    errors = found.errors or [None] * len(found.ttfts or found.itls or [])
    single = [t for t, error in zip(found.ttfts or [], errors, strict=False) if not error]
    gaps = [
        gap for of, error in zip(found.itls or [], errors, strict=False) if not error for gap in of
    ]
    times = {
        "first_token": times_of(single, path) or told("ttft", found.requests),
        "inter_token": times_of(gaps, path) or told("itl"),
        "output_token": told("tpot"),
        "answer": told("e2el", found.requests),
    }
    settings = {name: fields[name] for name in _VLLM_SETTINGS if fields.get(name) is not None}
    notes = (
        []
        if times["first_token"]
        else ["it holds no time to the first token (--percentile-metrics left it out)"]
    )
    try:
        started = (
            None
            if found.date is None
            else datetime.strptime(found.date, "%Y%m%d-%H%M%S").astimezone()
        )
    except ValueError:
        started = None
    told_, counts = "vllm bench serve", msgspec.structs.asdict(found)
    return imported(
        path, told_, found.seconds, counts, times, notes=notes, config=settings, started=started
    )


_LMCACHE = "lmcache bench engine"


class _LmcacheFigures(msgspec.Struct):
    """Figures of a summary; LMCache writes 0 for a time that nothing was measured of."""

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
    path, misfit = one_file(files, "result"), f"no result of {_LMCACHE}: {{}}"
    if path.suffix == ".csv":
        return _of_rows(path, misfit)
    content = read_json(path, _LmcacheSummary, misfit=misfit)
    found = msgspec.structs.asdict(content.results)
    times = {
        name: told_times(
            {f"{of}_ns": found[f"{of}_{metric}_ms"] for of in ("mean", "p50", "p90", "p99")}, *how
        )
        for name, metric in (("first_token", "ttft"), ("answer", "request_latency"))
        if (how := (NS_PER_MS, found["requests"], path))[1]
    }
    notes = [
        (
            "its speeds of decoding are left out: the times between tokens do not follow from them; its"
            " CSV has more"
        )
    ]
    config = {
        name: value
        for name, value in content.config.items()
        if isinstance(value, str | int | float | bool)
    }
    return imported(path, _LMCACHE, found["seconds"], found, times, notes=notes, config=config)


def _of_rows(path: Path, misfit: str) -> Imported:
    with readable(path, misfit), path.open(newline="", encoding="utf-8") as file:
        rows = [msgspec.convert(row, _LmcacheRow, strict=False) for row in csv.DictReader(file)]
    if not rows:
        raise TraceError(misfit.format("it has no rows"), path=path)
    good = [row for row in rows if row.successful == "True"]
    lasted_s = max(row.finish_time for row in rows) - min(row.submit_time for row in rows)
    counts = {
        "requests": len(good),
        "failed_requests": len(rows) - len(good),
        "input_tokens": sum(row.num_input_tokens for row in rows),
        "output_tokens": sum(row.num_output_tokens for row in rows),
    }
    times = {
        "first_token": times_of([row.ttft for row in good], path),
        "output_token": times_of(
            [1 / row.decode_speed for row in good if row.decode_speed > 0], path
        ),
        "answer": times_of([row.request_latency for row in good], path),
    }
    return imported(path, _LMCACHE, lasted_s if lasted_s > 0 else None, counts, times)
