"""The figures of the MLPerf Storage KV-cache benchmark under their own names, and its health criteria.

What that benchmark calls device latency we do not see, so its criteria are judged by the total, which is never
below it. What cannot be known is null, with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.result.request_figures import QOS_DEFINITION, Targets
from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.figures import Criterion, Mlperf, MlperfLatency, TokenThroughput
from kvtrace.core.schema import Qos
from kvtrace.core.units import NS_PER_S, format_duration, format_rate, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from pathlib import Path

    from kvreplay.result.manifest import Setting
    from kvtrace.core.run.figures import Figures, RequestFigures, Summary

HOST_REASON = "host and device time are one call here; run --probes measures the device's share at the block layer"
QOS_REASON = "the trace does not say which class a request is of; name its requests table with --requests"


class Criteria(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The thresholds; the defaults are the benchmark's."""

    storage_read_p95: str = "200ms"
    storage_write_p95: str = "500ms"
    cpu_p95: str = "150ms"
    hit_rate: float = 0.3
    storage_bandwidth: str = "0"
    """Bytes a second, read and written together, that must be exceeded."""
    qos_interactive: Targets = Targets("50ms", "100ms", "150ms", "200ms")
    """What the percentiles of a class's requests must not exceed."""
    qos_responsive: Targets = Targets("100ms", "200ms", "350ms", "500ms")
    qos_batch: Targets = Targets("1s", "5s", "7500ms", "10s")

    @property
    def targets(self) -> dict[str, Targets]:
        """The targets by class of service."""
        return {qos.value: getattr(self, f"qos_{qos.value}") for qos in Qos}


def read_criteria(path: Path | None) -> Criteria:
    """Return the thresholds in the TOML file `path`, or the benchmark's; ConfigError for what is none."""
    if path is None:
        return Criteria()
    criteria = to_struct(load_toml(path), Criteria, str(path))
    try:
        of_classes = [text for targets in criteria.targets.values() for text in msgspec.structs.astuple(targets)]
        for text in (criteria.storage_read_p95, criteria.storage_write_p95, criteria.cpu_p95, *of_classes):
            parse_duration_ns(text)
        parse_bytes(criteria.storage_bandwidth)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return criteria


def mlperf(setting: Setting, summary: Summary, criteria: Criteria, requests: RequestFigures) -> Mlperf:
    """Return the benchmark's figures of a run."""
    kinds = {t.name: _kind(t.target) for t in setting.tiers if t is not None and not t.is_simulated}
    moved = [f for f in summary.figures if f.tier in kinds and f.op != "delete"]
    stats = setting.reader.meta.stats or {}
    return Mlperf(
        latencies=[
            MlperfLatency(tier=f.tier, kind=kinds[f.tier], op=f.op, total=f.latency, reason=HOST_REASON) for f in moved
        ],
        throughput=_throughput(setting, summary, [f for f in moved if kinds[f.tier] == "storage"], stats),
        criteria=_criteria(criteria, moved, kinds, stats),
        qos_compliance={c.qos: c.share_within_p95_target for c in requests.classes} or None,
        qos_reason=None if requests.classes else QOS_REASON, qos_definition=QOS_DEFINITION,
    )  # fmt: skip


def _kind(target: str) -> str:
    return {"ram": "cpu", "gpu": "other"}.get(target.partition(":")[0], "storage")


def _throughput(setting: Setting, summary: Summary, storage: list[Figures], stats: dict[str, Any]) -> TokenThroughput:
    tokens, reason = stats.get("output_tokens"), None
    if tokens is None:
        reason = "the trace does not say how many tokens its requests generated"
    elif not setting.window.is_whole or summary.warmup is not None or summary.not_reached or summary.errors:
        tokens, reason = None, "only a part of the trace was measured, and the trace counts tokens as a whole"
    io_ns = round(sum(f.latency.mean_ns * f.latency.count for f in storage if f.latency.mean_ns is not None))
    return TokenThroughput(
        tokens=tokens, storage_io_ns=io_ns, reason=reason,
        storage_throughput_tokens_per_s=tokens * NS_PER_S / io_ns if tokens is not None and io_ns else None,
        wall_clock_throughput_tokens_per_s=tokens * NS_PER_S / summary.wall_ns
        if tokens is not None and summary.wall_ns else None,
    )  # fmt: skip


def _criteria(wanted: Criteria, moved: list[Figures], kinds: dict[str, str], stats: dict[str, Any]) -> list[Criterion]:
    def worst(kind: str, op: str | None) -> float | None:
        found = [f.latency.p95_ns for f in moved if kinds[f.tier] == kind and op in (None, f.op)]
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


def _below(name: str, threshold: str, measured: float | None) -> Criterion:
    limit = parse_duration_ns(threshold)
    verdict = "not measured" if measured is None else "pass" if measured < limit else "fail"
    return Criterion(
        name=name, threshold=limit, measured=measured, verdict=verdict,
        definition="total latency, of the worst tier of its kind; the benchmark takes the device's, which is no longer",
        shown=f"{format_duration(measured)} < {format_duration(limit)}",
    )  # fmt: skip


def _above(name: str, threshold: float, measured: float | None, definition: str, show: Any) -> Criterion:
    verdict = "not measured" if measured is None else "pass" if measured > threshold else "fail"
    return Criterion(
        name=name, threshold=threshold, measured=measured, verdict=verdict, definition=definition,
        shown=f"{'-' if measured is None else show(measured)} > {show(threshold)}",
    )  # fmt: skip
