"""The figures of the MLPerf Storage KV-cache benchmark under their own names, and its health criteria.

The benchmark's device latency is not measured here, so its criteria are judged by the total latency, which is never
lower. What cannot be known is null, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvreplay.config.criteria import Criteria
from kvreplay.config.setting import Setting
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.figures import (
    Criterion,
    Figures,
    Mlperf,
    MlperfLatency,
    RequestFigures,
    Summary,
    TokenThroughput,
)
from kvtrace.core.units import NS_PER_S, format_duration, format_rate, parse_bytes, parse_duration_ns

HOST_REASON = "host and device time are one call here; run --probes measures the device's share at the block layer"
MEMORY_TIERS = ("gpu", "cpu")
"""The names that presets give tiers that are memory."""
QOS_REASON = "the trace does not say which class a request is of; name its requests table with --requests"


def mlperf(setting: Setting, summary: Summary, criteria: Criteria, requests: RequestFigures) -> Mlperf:
    """Return the benchmark's figures of a run."""
    targets = {t.name: t.target for t in setting.tiers if t is not None and not t.is_simulated}
    return mlperf_figures(
        setting.reader.meta, targets, summary, criteria, requests, is_whole_trace=setting.is_whole_trace
    )


def mlperf_figures(
    meta: Metadata,
    targets: Mapping[str, str],
    summary: Summary,
    criteria: Criteria,
    requests: RequestFigures,
    *,
    is_whole_trace: bool,
) -> Mlperf:
    """Return the benchmark's figures of what `summary` says of a trace with metadata `meta`.

    `targets` are those of the tiers where bytes moved, by name.
    """
    kinds = {name: _kind(target) for name, target in targets.items()}
    moved = [f for f in summary.figures if f.tier in kinds and f.op != "delete"]
    stats = meta.stats or {}
    return Mlperf(
        latencies=[
            MlperfLatency(
                tier=f.tier, kind=kinds[f.tier], op=f.op, total=f.latency, response=f.response, reason=HOST_REASON
            )
            for f in moved
        ],
        throughput=_throughput(
            meta, summary, [f for f in moved if kinds[f.tier] == "storage"], is_whole_trace=is_whole_trace
        ),
        criteria=_criteria(criteria, moved, kinds, stats),
        qos_compliance={c.qos: c.share_within_p95_target for c in requests.classes} or None,
        qos_reason=None if requests.classes else QOS_REASON,
        qos_definition=QOS_DEFINITION,
    )


def _kind(target: str) -> str:
    return {"ram": "cpu", "gpu": "other"}.get(target.partition(":")[0], "storage")


def _throughput(meta: Metadata, summary: Summary, storage: list[Figures], *, is_whole_trace: bool) -> TokenThroughput:
    tokens, reason = (meta.stats or {}).get("output_tokens"), None
    if tokens is None:
        reason = "the trace does not say how many tokens its requests generated"
    elif not is_whole_trace or summary.warmup is not None or summary.not_reached or summary.errors:
        tokens, reason = None, "only a part of the trace was measured, and the trace counts tokens as a whole"
    elif lacking := _storage_left_out(meta, summary):
        tokens, reason = None, f"storage tiers of the trace whose data did not move: {', '.join(lacking)}"
    io_ns = round(sum(f.latency.mean_ns * f.latency.count for f in storage if f.latency.mean_ns is not None))
    return TokenThroughput(
        tokens=tokens,
        storage_io_ns=io_ns,
        reason=reason,
        storage_throughput_tokens_per_s=_per_second(tokens, io_ns),
        wall_clock_throughput_tokens_per_s=_per_second(tokens, summary.wall_ns),
    )


def _storage_left_out(meta: Metadata, summary: Summary) -> list[str]:
    """Return the storage tiers of the trace that have rows but moved none; all but GPU and CPU memory are storage."""
    simulated = {f.tier for f in summary.figures if f.is_simulated}
    has_rows = simulated | set(summary.skipped_rows)
    return [t.name for t in meta.tiers if t.name in has_rows and t.name not in MEMORY_TIERS]


def _per_second(count: int | None, time_ns: int | None) -> float | None:
    return count * NS_PER_S / time_ns if count is not None and time_ns else None


def _criteria(wanted: Criteria, moved: list[Figures], kinds: dict[str, str], stats: dict[str, Any]) -> list[Criterion]:
    def worst(kind: str, op: str | None) -> float | None:
        found = [f.judged.p95_ns for f in moved if kinds[f.tier] == kind and op in (None, f.op)]
        return None if not found or None in found else max(p for p in found if p is not None)

    storage = [f for f in moved if kinds[f.tier] == "storage" and f.bandwidth_bytes_per_s is not None]
    bandwidth = sum(f.bandwidth_bytes_per_s or 0 for f in storage) if storage else None
    lookups = stats.get("lookups")
    hit_rate = sum(t["hits"] for t in stats["tiers"]) / lookups if lookups and "tiers" in stats else None
    simulated = "hits / lookups, of the simulation that made the trace"
    both = "reads and writes on storage tiers, added up"
    return [
        _below("storage_read_p95_ns", wanted.storage_read_p95, worst("storage", "read")),
        _below("storage_write_p95_ns", wanted.storage_write_p95, worst("storage", "write")),
        _below("cpu_p95_ns", wanted.cpu_p95, worst("cpu", None)),
        _above("hit_rate", wanted.hit_rate, hit_rate, simulated, "{:.1%}".format),
        _above("storage_bandwidth_bytes_per_s", parse_bytes(wanted.storage_bandwidth), bandwidth, both, format_rate),
    ]


BELOW_DEFINITION = (
    "total latency, of the worst tier of its kind: service time in a closed loop, response time in an open one; the "
    "benchmark takes the device's, which is no longer"
)


def _below(name: str, threshold: str, measured: float | None) -> Criterion:
    limit = parse_duration_ns(threshold)
    verdict = "not measured" if measured is None else "pass" if measured < limit else "fail"
    return Criterion(
        name=name,
        threshold=limit,
        measured=measured,
        verdict=verdict,
        definition=BELOW_DEFINITION,
        shown=f"{format_duration(measured)} < {format_duration(limit)}",
    )


def _above(name: str, threshold: float, measured: float | None, definition: str, show: Any) -> Criterion:
    verdict = "not measured" if measured is None else "pass" if measured > threshold else "fail"
    return Criterion(
        name=name,
        threshold=threshold,
        measured=measured,
        verdict=verdict,
        definition=definition,
        shown=f"{'-' if measured is None else show(measured)} > {show(threshold)}",
    )


QOS_DEFINITION = (
    "storage_ns of a request: time in which at least one of its operations was in flight; in an open loop its response "
    "time: at least one was due and had not completed; requests with an operation "
    "that failed or was not reached are left out; a class complies if no percentile that is known exceeds its target"
)
