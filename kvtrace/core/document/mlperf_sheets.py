"""The sheets of a run's figures in the layout of MLPerf Storage's KV-cache benchmark.

The benchmark's own names and units are used, such as "Storage Latency P95 (ms)". A figure that a
replay cannot measure stays empty, and its note says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kvtrace.core.document.export import PlainSheet
from kvtrace.core.run.figures import Distribution, Figures, Mlperf
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.statistics import total
from kvtrace.core.units import NS_PER_S, per_second

NamedFigures = dict[str, tuple[Any, str]]
"""Value and note of each figure, by the benchmark's name."""
_GIB, _NS_PER_MS = 1 << 30, 1e6
PERCENTILE_FIELDS: Final = {
    "P50": "p50_ns",
    "P95": "p95_ns",
    "P99": "p99_ns",
    "P99.9": "p99_9_ns",
    "P99.99": "p99_99_ns",
}
"""Fields of a distribution by the benchmark's names of percentiles."""
_MEAN_AND_PERCENTILES: Final = {"Mean": "mean_ns"} | PERCENTILE_FIELDS
_MEAN_TO_P99: Final = {"Mean": "mean_ns", "P50": "p50_ns", "P95": "p95_ns", "P99": "p99_ns"}
_SERVICE = "service time, submission to completion"
_NOT_SEPARATED = "known only together with the host's or the device's part"
_NO_COMPUTING = "a replay computes nothing"
_PARAMETERS: Final = (
    "Timestamp",
    "Model",
    "Num Users",
    "Duration (s)",
    "GPU Memory per Card (GiB)",
    "Num GPUs",
    "Tensor Parallel",
    "Total GPU Memory (GiB)",
    "CPU Memory (GiB)",
    "Generation Mode",
    "Performance Profile",
    "Multi-turn",
    "Prefix Caching",
    "RAG Enabled",
    "Autoscaling",
    "Seed",
    "Max Concurrent Allocs",
    "Request Rate",
    "Max Requests",
    "Dataset Path",
    "Cache Dir",
    "Storage Capacity (GiB)",
    "Precondition",
    "Precondition Size (GiB)",
    "Precondition Threads",
    "Trace Speedup",
    "Replay Cycles",
)
"""The benchmark's parameters, in its order."""
_COUNTED: Final = (
    "Requests",
    "Tokens",
    "Entries",
    "Users",
    "GPUs",
    "Parallel",
    "Allocs",
    "Threads",
    "Cycles",
)
"""Last words of the names of counts."""
_TARGET_KINDS: Final = ("GPU", "CPU", "Storage")
_QOS_HEADER: Final = [
    "QoS Level",
    "Total Requests",
    "Latency P95 (ms)",
    "Latency P99 (ms)",
    "SLA Met",
    "SLA Compliance",
    "Note",
    "Run",
]


def run_sheets(
    runs: Sequence[tuple[str, RunFile]], served_figures: Sequence[NamedFigures] = ()
) -> list[PlainSheet]:
    """Return the benchmark's sheets of `runs`, pairs of a name and a run, except that of its
    tracing.

    The first run stands where the benchmark has it. Others follow in further rows, or in further
    columns. `served_figures`, one dict for each run, replace those that run.json does not contain.
    """
    parameters = [run_parameters(run) for _, run in runs]
    metrics = [run_metrics(run) for _, run in runs]
    if served_figures:
        metrics = [
            from_run | served for from_run, served in zip(metrics, served_figures, strict=True)
        ]
    header = [*(parameters[0] | metrics[0]), "Run"]
    summary_rows = []
    for (name, _), run_parameter, run_metric in zip(runs, parameters, metrics, strict=True):
        values = [value for value, _ in (run_parameter | run_metric).values()]
        summary_rows.append([*values, name])
    other_names = [name for name, _ in runs[1:]]
    return [
        PlainSheet("Summary", header, summary_rows),
        PlainSheet(
            "Run Parameters",
            ["Parameter", "Value", "Unit", "Note", *other_names],
            _figure_rows(parameters),
        ),
        PlainSheet(
            "Performance Metrics",
            ["Metric", "Value", "Unit", "Note", *other_names],
            _figure_rows(metrics),
        ),
        PlainSheet(
            "QoS Metrics",
            list(_QOS_HEADER),
            [row for name, run in runs for row in _qos_rows(name, run)],
        ),
    ]


def _figure_rows(figures_of_runs: list[NamedFigures]) -> list[list[object]]:
    """Return a row for each figure: name, value, unit and note of the first run, other values."""
    first, *others = figures_of_runs
    return [
        [name, value, unit_of(name), note, *(figures[name][0] for figures in others)]
        for name, (value, note) in first.items()
    ]


def unit_of(name: str) -> str:
    """Return the unit of the figure `name`.

    It is the unit in parentheses at the end of the name, or follows from the last word.
    """
    if name.endswith(")"):
        return name.rpartition("(")[2].removesuffix(")")
    last_word = name.rsplit(maxsplit=1)[-1]
    if last_word in ("Rate", "Ratio", "Speedup"):
        return "ratio"
    if last_word == "Requests/sec":
        return "1/s"
    return "count" if last_word in _COUNTED else ""


def run_parameters(run: RunFile) -> NamedFigures:
    """Return the options of the trace of `run` and of the run itself."""
    trace, config = run.trace.metadata, run.trace.metadata.config
    capacities = {
        tier.name: tier.capacity_bytes and tier.capacity_bytes * trace.instances(tier)
        for tier in trace.tiers
    }
    storage_capacities = [
        capacity for name, capacity in capacities.items() if name not in ("gpu", "cpu")
    ]
    storage_targets = [
        str(facts["target"])
        for _, facts in run.drives()
        if _target_kind(str(facts.get("target"))) == "Storage"
    ]
    preconditioned_bytes = sum(fill.written_bytes for fill in run.preconditioned)
    from_trace = "of the trace"
    figures: NamedFigures = {
        "Timestamp": (run.started_utc, "UTC"),
        "Model": (trace.model_name, from_trace),
        "Num Users": (config.get("users"), from_trace),
        "Duration (s)": (_divide(config.get("duration_ns"), NS_PER_S), from_trace),
        "Tensor Parallel": (config.get("tensor_parallel"), from_trace),
        "Total GPU Memory (GiB)": (
            _divide(capacities.get("gpu"), _GIB),
            "capacity of the trace's tier gpu, of all nodes",
        ),
        "CPU Memory (GiB)": (
            _divide(capacities.get("cpu"), _GIB),
            "capacity of the trace's tier cpu, of all nodes",
        ),
        "Seed": (trace.seed, from_trace),
        "Max Requests": (config.get("max_requests"), from_trace),
        "Dataset Path": ((trace.source or {}).get("file"), from_trace),
        "Cache Dir": (
            ", ".join(storage_targets) or None,
            "what the storage tiers were replayed on",
        ),
        "Storage Capacity (GiB)": (
            _divide(total(storage_capacities), _GIB),
            "of the trace's tiers but gpu and cpu, of all nodes",
        ),
        "Precondition": (bool(run.preconditioned), ""),
        "Precondition Size (GiB)": (preconditioned_bytes / _GIB, "written"),
        "Trace Speedup": (run.pacing.speed, "of the replay; empty in a closed loop"),
    }
    return dict.fromkeys(_PARAMETERS, (None, "the trace knows none")) | figures


def run_metrics(run: RunFile) -> NamedFigures:
    """Return the measured figures of `run`."""
    mlperf, requests, wall_ns = run.mlperf, run.requests, run.summary.wall_ns
    throughput = None if mlperf is None else mlperf.throughput
    reason = "" if throughput is None else throughput.reason or ""
    request_count = None if requests is None else requests.requests
    storage_times = None if requests is None else requests.storage
    transfers = [
        figures
        for figures in run.summary.figures
        if not figures.is_simulated and figures.op in ("read", "write")
    ]
    read_bytes = total([figures.bytes for figures in transfers if figures.op == "read"])
    written_bytes = total([figures.bytes for figures in transfers if figures.op == "write"])
    in_storage = "time in which at least one operation of a request was in flight"
    return {
        "Total Requests": (request_count, "those that the warm-up touches left out"),
        "Total Tokens": (None if throughput is None else throughput.tokens, reason),
        "Elapsed Time (s)": (_divide(wall_ns, NS_PER_S), "of the replay"),
        "Avg Throughput (tok/s)": (
            None if throughput is None else throughput.wall_clock_throughput_tokens_per_s,
            reason,
        ),
        "Storage Throughput (tok/s)": (
            None if throughput is None else throughput.storage_throughput_tokens_per_s,
            reason,
        ),
        "Requests/sec": (per_second(request_count, wall_ns), ""),
        **_time_figures("E2E Latency", None, _NO_COMPUTING),
        **_time_figures("Storage Latency", storage_times, in_storage),
        **_time_figures("Gen Latency", None, _NO_COMPUTING, _MEAN_TO_P99),
        **_storage_tier_times("Total", mlperf, _SERVICE),
        **_storage_tier_times("Device", None, _NOT_SEPARATED),
        **_storage_tier_times("Host", None, _NOT_SEPARATED),
        "Cache Hit Rate": (
            run.trace.metadata.hit_ratio,
            "of the simulation that made the trace",
        ),
        "Read/Write Ratio": (_divide(read_bytes, written_bytes), "bytes of objects"),
        "Total Read (GiB)": (
            _divide(read_bytes, _GIB),
            "bytes of objects, of tiers that moved",
        ),
        "Total Write (GiB)": (
            _divide(written_bytes, _GIB),
            "bytes of objects, of tiers that moved",
        ),
        **dict(_figures_by_target_kind(run, transfers, wall_ns)),
        **{f"{kind} Entries": (None, "a replay keeps no count") for kind in _TARGET_KINDS},
        "Multi-turn Hit Rate": (None, "the trace does not count them apart"),
    }


def _target_kind(target: str) -> str:
    """Return the benchmark's kind of tier for the `target` of a tier, such as `ram:` or a path."""
    return {"ram": "CPU", "gpu": "GPU"}.get(target.partition(":")[0], "Storage")


def _figures_by_target_kind(
    run: RunFile, transfers: list[Figures], wall_ns: int | None
) -> Iterator[tuple[str, tuple[object, str]]]:
    """Yield the bytes, then the bandwidth, of each kind of tier."""
    bytes_by_kind: dict[tuple[str, str], float | None] = {}
    for kind in _TARGET_KINDS:
        figures_of_kind = [
            figures
            for figures in transfers
            if _target_kind(str(run.tiers.get(figures.tier, {}).get("target"))) == kind
        ]
        for op in ("read", "write"):
            bytes_by_kind[kind, op] = total(
                [figures.bytes for figures in figures_of_kind if figures.op == op]
            )
    for word, op in (("Written", "write"), ("Read", "read")):
        for kind in _TARGET_KINDS:
            gibibytes = _divide(bytes_by_kind[kind, op], _GIB)
            yield f"Tier {kind} KV Bytes {word} (GiB)", (gibibytes, "")
    # The benchmark computes it in the same way, in get_stats of kv_cache/cache.py.
    note = "bytes of objects over the elapsed time"
    for kind in _TARGET_KINDS:
        for word, op in (("Read", "read"), ("Write", "write")):
            rate = per_second(bytes_by_kind[kind, op], wall_ns)
            yield f"Tier {kind} {word} Bandwidth (GiB/s)", (_divide(rate, _GIB), note)


def _time_figures(
    name: str,
    times: Distribution | None,
    note: str,
    fields: dict[str, str] = _MEAN_AND_PERCENTILES,
) -> NamedFigures:
    """Return the figures `name` of a distribution of times; `fields` are its fields by suffix."""
    return {
        f"{name} {suffix} (ms)": (_divide(getattr(times, field, None), _NS_PER_MS), note)
        for suffix, field in fields.items()
    }


def _storage_tier_times(component: str, mlperf: Mlperf | None, note: str) -> NamedFigures:
    """Return the times of the only storage tier; empty with several, for their times are not
    merged.
    """
    figures: NamedFigures = {}
    for op in ("Read", "Write"):
        distributions = []
        if mlperf is not None:
            distributions = [
                latency.total
                for latency in mlperf.latencies
                if latency.kind == "storage" and latency.op == op.lower()
            ]
        is_ambiguous = len(distributions) > 1
        figures |= _time_figures(
            f"Storage Tier {op} {component}",
            distributions[0] if len(distributions) == 1 else None,
            "of several tiers, which are not merged: see the other sheets"
            if is_ambiguous
            else note,
            PERCENTILE_FIELDS,
        )
    return figures


def _divide(value: float | None, divisor: float | None) -> float | None:
    """Return the quotient; null if one of them is null, or the divisor is 0."""
    return value / divisor if value is not None and divisor else None


def _qos_rows(run_name: str, run: RunFile) -> Iterator[list[object]]:
    """Yield a row for each class of service of `run`."""
    if run.requests is None:
        return
    definition = "" if run.mlperf is None else run.mlperf.qos_definition
    note = (
        f"no latency: it would be end to end, and {_NO_COMPUTING}; met and compliance are of"
        f" {definition}"
    )
    for figures in run.requests.classes:
        yield [
            figures.qos,
            figures.storage.count,
            None,
            None,
            {"pass": True, "fail": False}.get(figures.verdict),
            figures.share_within_p95_target,
            note,
            run_name,
        ]
