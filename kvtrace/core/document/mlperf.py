"""The figures of the MLPerf Storage KV-cache benchmark under the names of its export, for workbooks and CSV.

Names and order are those of its export (kv_cache/cli.py of mlcommons/storage, 2026-04). Behind them stand the unit and
what a figure is where it is not quite the benchmark's; what is not measured here is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvtrace.core.document.workbook import PlainSheet
from kvtrace.core.run.figures import Distribution, Figures, Mlperf
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.statistics import total
from kvtrace.core.units import NS_PER_S

_GIB, _NS_PER_MS = 1 << 30, 1e6
POINTS = {"P50": "p50_ns", "P95": "p95_ns", "P99": "p99_ns", "P99.9": "p99_9_ns", "P99.99": "p99_99_ns"}
_SERVICE = "service time, submission to completion"
_TOGETHER = "known only together with the host's or the device's part"
_NO_COMPUTING = "a replay computes nothing"
_OF_TRACE = "of the simulation that made the trace"
Named = dict[str, tuple[Any, str]]
"""Value and note by MLPerf's name."""


def run_sheets(runs: Sequence[tuple[str, RunFile]], known: Sequence[Named] = ()) -> list[PlainSheet]:
    """Return the benchmark's sheets of `runs`, by what they are called, but for those of its tracing.

    The first run is in its places; others follow in rows of their own, or in columns behind it. `known` figures of each
    run stand in the places of those that its run.json does not know.
    """
    asked = [parameters_of(run) for _, run in runs]
    measured = [metrics_of(run) | more for (_, run), more in zip(runs, known or [{}] * len(runs), strict=True)]
    wide = [{n: v for n, (v, _) in (a | m).items()} for a, m in zip(asked, measured, strict=True)]
    others = [name for name, _ in runs[1:]]
    return [
        PlainSheet("Summary", [*wide[0], "Run"], [[*row.values(), runs[i][0]] for i, row in enumerate(wide)]),
        PlainSheet("Run Parameters", ["Parameter", "Value", "Unit", "Note", *others], _lines(asked)),
        PlainSheet("Performance Metrics", ["Metric", "Value", "Unit", "Note", *others], _lines(measured)),
        PlainSheet("QoS Metrics", _QOS, [row for name, run in runs for row in _classes(name, run)]),
    ]


def _lines(sides: list[Named]) -> list[list[Any]]:
    rest = sides[1:]
    return [[n, value, unit_of(n), note, *(side[n][0] for side in rest)] for n, (value, note) in sides[0].items()]


def unit_of(name: str) -> str:
    """Return the unit that ends a metric's name, or what it counts."""
    if name.endswith(")"):
        return name.rpartition("(")[2].removesuffix(")")
    words = name.split()
    if words[-1] in ("Rate", "Ratio"):
        return "ratio"
    return {"Requests/sec": "1/s", "Speedup": "ratio"}.get(words[-1], "count" if words[-1] in _COUNTED else "")


_COUNTED = ("Requests", "Tokens", "Entries", "Users", "GPUs", "Parallel", "Allocs", "Threads", "Cycles")


def parameters_of(run: RunFile) -> Named:
    """Return what was asked of the trace of `run` and of the run."""
    trace, config = run.trace.metadata, run.trace.metadata.config
    capacities = {tier.name: tier.capacity_bytes for tier in trace.tiers}
    memory = {name: _gib(capacities.get(name)) for name in ("gpu", "cpu")}
    storage = [size for name, size in capacities.items() if name not in memory]
    duration_ns, source = config.get("duration_ns"), trace.source or {}
    written = sum(each.written_bytes for each in run.preconditioned)
    targets = [str(facts["target"]) for _, facts in run.drives() if _kind(str(facts.get("target"))) == "Storage"]
    of_trace, none = "of the trace", "the trace knows none"
    return {
        "Timestamp": (run.started_utc, "UTC"),
        "Model": ((trace.model or {}).get("name"), of_trace),
        "Num Users": (config.get("users"), of_trace),
        "Duration (s)": (None if duration_ns is None else duration_ns / NS_PER_S, of_trace),
        "GPU Memory per Card (GiB)": (None, none),
        "Num GPUs": (None, none),
        "Tensor Parallel": (config.get("tensor_parallel"), of_trace),
        "Total GPU Memory (GiB)": (memory["gpu"], "capacity of the trace's tier gpu"),
        "CPU Memory (GiB)": (memory["cpu"], "capacity of the trace's tier cpu"),
        "Generation Mode": (None, none),
        "Performance Profile": (None, none),
        "Multi-turn": (None, none),
        "Prefix Caching": (None, none),
        "RAG Enabled": (None, none),
        "Autoscaling": (None, none),
        "Seed": (trace.seed, of_trace),
        "Max Concurrent Allocs": (None, none),
        "Request Rate": (None, none),
        "Max Requests": (config.get("max_requests"), of_trace),
        "Dataset Path": (source.get("file"), of_trace),
        "Cache Dir": (", ".join(targets) or None, "what the storage tiers were replayed on"),
        "Storage Capacity (GiB)": (_gib(total(storage)), "of the trace's tiers but gpu and cpu"),
        "Precondition": (bool(run.preconditioned), ""),
        "Precondition Size (GiB)": (_gib(written), "written"),
        "Precondition Threads": (None, none),
        "Trace Speedup": (run.pacing.speed, "of the replay; empty in a closed loop"),
        "Replay Cycles": (None, none),
    }


def metrics_of(run: RunFile) -> Named:
    """Return what was measured in `run`."""
    found, wall_ns = run.mlperf, run.summary.wall_ns
    requests, tokens = run.requests, None if found is None else found.throughput
    moved = [f for f in run.summary.figures if not f.is_simulated and f.op in ("read", "write")]
    stats = run.trace.metadata.stats or {}
    count = None if requests is None else requests.requests
    storage = None if requests is None else requests.storage
    reason = "" if tokens is None else tokens.reason or ""
    moved_bytes = {op: total([f.bytes for f in moved if f.op == op]) for op in ("read", "write")}
    ratio = (
        moved_bytes["read"] / moved_bytes["write"] if moved_bytes["read"] is not None and moved_bytes["write"] else None
    )
    of_storage = "time in which at least one operation of a request was in flight"
    return {
        "Total Requests": (count, "those that the warm-up touches left out"),
        "Total Tokens": (None if tokens is None else tokens.tokens, reason),
        "Elapsed Time (s)": (None if wall_ns is None else wall_ns / NS_PER_S, "of the replay"),
        "Avg Throughput (tok/s)": (None if tokens is None else tokens.wall_clock_throughput_tokens_per_s, reason),
        "Storage Throughput (tok/s)": (None if tokens is None else tokens.storage_throughput_tokens_per_s, reason),
        "Requests/sec": (count * NS_PER_S / wall_ns if count is not None and wall_ns else None, ""),
        **_times("E2E Latency", None, _NO_COMPUTING, has_mean=True),
        **_times("Storage Latency", storage, of_storage, has_mean=True),
        **dict(list(_times("Gen Latency", None, _NO_COMPUTING, has_mean=True).items())[:4]),
        **_tier_times("Total", found, _SERVICE),
        **_tier_times("Device", None, _TOGETHER),
        **_tier_times("Host", None, _TOGETHER),
        "Cache Hit Rate": (_hit_rate(stats), _OF_TRACE),
        "Read/Write Ratio": (ratio, "bytes of objects"),
        "Total Read (GiB)": (_gib(moved_bytes["read"]), "bytes of objects, of tiers that moved"),
        "Total Write (GiB)": (_gib(moved_bytes["write"]), "bytes of objects, of tiers that moved"),
        **dict(_by_kind(run, moved, wall_ns)),
        **{f"{kind} Entries": (None, "a replay keeps no count") for kind in _KINDS},
        "Multi-turn Hit Rate": (None, "the trace does not count them apart"),
    }


_KINDS = ("GPU", "CPU", "Storage")


def _kind(target: str) -> str:
    return {"ram": "CPU", "gpu": "GPU"}.get(target.partition(":")[0], "Storage")


def _by_kind(run: RunFile, moved: list[Figures], wall_ns: int | None) -> Iterator[tuple[str, tuple[Any, str]]]:
    of = {kind: [f for f in moved if _kind(str(run.tiers.get(f.tier, {}).get("target"))) == kind] for kind in _KINDS}

    def bytes_of(kind: str, op: str) -> Any:
        return total([f.bytes for f in of[kind] if f.op == op])

    for word, op in (("Written", "write"), ("Read", "read")):
        for kind in _KINDS:
            yield f"Tier {kind} KV Bytes {word} (GiB)", (_gib(bytes_of(kind, op)), "")
    # As in get_stats of its kv_cache/cache.py.
    note = "bytes of objects over the elapsed time"
    for kind in _KINDS:
        for word, op in (("Read", "read"), ("Write", "write")):
            count = bytes_of(kind, op)
            rate = count * NS_PER_S / wall_ns if count is not None and wall_ns else None
            yield f"Tier {kind} {word} Bandwidth (GiB/s)", (_gib(rate), note)


def _times(name: str, times: Distribution | None, note: str, *, has_mean: bool) -> Named:
    points = ({"Mean": "mean_ns"} if has_mean else {}) | POINTS
    return {f"{name} {word} (ms)": (_scaled(times, field, _NS_PER_MS), note) for word, field in points.items()}


def _tier_times(part: str, found: Mlperf | None, note: str) -> Named:
    named: Named = {}
    for op in ("Read", "Write"):
        of = [x.total for x in found.latencies if x.kind == "storage" and x.op == op.lower()] if found else []
        several = "of several tiers, which are not pooled: see the sheets behind"
        one = of[0] if len(of) == 1 else None
        named |= _times(f"Storage Tier {op} {part}", one, several if len(of) > 1 else note, has_mean=False)
    return named


def _hit_rate(stats: dict[str, Any]) -> float | None:
    lookups = stats.get("lookups")
    return sum(tier["hits"] for tier in stats["tiers"]) / lookups if lookups and stats.get("tiers") else None


def _scaled(times: Distribution | None, field: str, unit: float) -> float | None:
    value = None if times is None else getattr(times, field)
    return None if value is None else value / unit


def _gib(value: float | None) -> float | None:
    return None if value is None else value / _GIB


_QOS = [
    *(
        "QoS Level",
        "Total Requests",
        "Latency P95 (ms)",
        "Latency P99 (ms)",
        "SLA Met",
        "SLA Compliance",
        "Note",
        "Run",
    ),
]


def _classes(name: str, run: RunFile) -> Iterator[list[Any]]:
    for of in [] if run.requests is None else run.requests.classes:
        met = {"pass": True, "fail": False}.get(of.verdict)
        definition = "" if run.mlperf is None else run.mlperf.qos_definition
        note = f"no latency: it would be end to end, and {_NO_COMPUTING}; met and compliance are of {definition}"
        yield [of.qos, of.storage.count, None, None, met, of.share_within_p95_target, note, name]
