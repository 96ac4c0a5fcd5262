"""Where the columns of the benchmark's export stand in its result's JSON (kv_cache/cli.py and benchmark.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TOP = {
    "Total Requests": "total_requests",
    "Total Tokens": "total_tokens",
    "Elapsed Time (s)": "elapsed_time",
    "Avg Throughput (tok/s)": "avg_throughput_tokens_per_sec",
    "Storage Throughput (tok/s)": "storage_throughput_tokens_per_sec",
    "Requests/sec": "requests_per_second",
    "Cache Hit Rate": "cache_stats.cache_hit_rate",
    "Read/Write Ratio": "cache_stats.read_write_ratio",
    "Total Read (GiB)": "cache_stats.total_read_gb",
    "Total Write (GiB)": "cache_stats.total_write_gb",
    "Multi-turn Hit Rate": "multi_turn_stats.hit_rate",
}
_LATENCIES = {"E2E": "end_to_end_latency_ms", "Storage": "storage_io_latency_ms", "Gen": "generation_latency_ms"}
_PARTS = {"Total": "", "Device": "_device", "Host": "_host"}
_POINTS = {"P50": "p50", "P95": "p95", "P99": "p99", "P99.9": "p999", "P99.99": "p9999"}
_KINDS = {"GPU": "gpu", "CPU": "cpu", "Storage": "storage"}
_OPS = ("Read", "Write")

PLACES = (
    _TOP
    | {
        f"{what} Latency {point} (ms)": f"{key}.{field}"
        for what, key in _LATENCIES.items()
        for point, field in {"Mean": "mean", **_POINTS}.items()
    }
    | {
        f"Storage Tier {op} {part} {point} (ms)": f"cache_stats.storage_{op.lower()}{infix}_{field}_ms"
        for op in _OPS
        for part, infix in _PARTS.items()
        for point, field in _POINTS.items()
    }
    | {
        f"Tier {kind} KV Bytes {word} (GiB)": f"cache_stats.tier_{key}_kv_bytes_{word.lower()}_gb"
        for kind, key in _KINDS.items()
        for word in ("Written", "Read")
    }
    | {
        f"Tier {kind} {op} Bandwidth (GiB/s)": f"cache_stats.tier_{key}_{op.lower()}_bandwidth_gbps"
        for kind, key in _KINDS.items()
        for op in _OPS
    }
    | {f"{kind} Entries": f"cache_stats.{key}_entries" for kind, key in _KINDS.items()}
)
"""By column: names with dots between them. What it calls _gb and _gbps are GiB and GiB/s."""


def as_summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of `row`, by column, as the `summary` of the benchmark's result."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        if name not in PLACES:
            continue
        *above, last = PLACES[name].split(".")
        inside = found
        for key in above:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return found
