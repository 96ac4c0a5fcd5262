"""The sheets of the MLPerf Storage KV-cache benchmark's workbook, so that scripts made for it read a run of ours.

Names, order and layout are those of its export (kv_cache/cli.py of mlcommons/storage, 2026-04). Behind them stand the
unit and what a figure is where it is not quite the benchmark's; what is not measured here is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kvdistill.report.probe import ProbeReport
from kvdistill.report.report import RunReport
from kvtrace.core.document.workbook import PlainSheet
from kvtrace.core.run.figures import Distribution, Figures, Mlperf
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_S

_GIB, _NS_PER_MS, _NS_PER_US = 1 << 30, 1e6, 1e3
_POINTS = {"P50": "p50_ns", "P95": "p95_ns", "P99": "p99_ns", "P99.9": "p99_9_ns", "P99.99": "p99_99_ns"}
_SHARES = {"P50": 5000, "P95": 9500, "P99": 9900}
"""In ten-thousandths."""
_SERVICE = "service time, submission to completion"
_TOGETHER = "known only together with the host's or the device's part"
_NO_COMPUTING = "a replay computes nothing"
_OF_TRACE = "of the simulation that made the trace"
Named = dict[str, tuple[Any, str]]
"""Value and note by MLPerf's name."""


def mlperf_sheets(reports: Sequence[Any], names: Sequence[str]) -> list[PlainSheet]:
    """Return the benchmark's sheets for the runs among `reports`, called `names`; none without a run.

    The first run is in its places; others follow in rows of their own, or in columns behind it.
    """
    runs = [
        (name, found, found.run)
        for name, found in zip(names, reports, strict=True)
        if isinstance(found, RunReport) and found.run is not None
    ]
    if not runs:
        return []
    asked = [_parameters(found, run) for _, found, run in runs]
    measured = [_metrics(run) for _, _, run in runs]
    wide = [{n: v for n, (v, _) in (a | m).items()} for a, m in zip(asked, measured, strict=True)]
    others = [name for name, _, _ in runs[1:]]
    probes = [(name, found.probe) for name, found, _ in runs if found.probe is not None]
    return [
        PlainSheet("Summary", [*wide[0], "Run"], [[*row.values(), runs[i][0]] for i, row in enumerate(wide)]),
        PlainSheet("Run Parameters", ["Parameter", "Value", "Unit", "Note", *others], _lines(asked)),
        PlainSheet("Performance Metrics", ["Metric", "Value", "Unit", "Note", *others], _lines(measured)),
        PlainSheet("QoS Metrics", _QOS, [row for name, _, run in runs for row in _classes(name, run)]),
        PlainSheet("Device Tracing", _TRACING, [row for name, probe in probes for row in _traced(name, probe)]),
        PlainSheet("Trace Histograms", _HISTOGRAMS, [row for name, probe in probes for row in _bins(name, probe)]),
    ]


def _lines(sides: list[Named]) -> list[list[Any]]:
    rest = sides[1:]
    return [[n, value, _unit(n), note, *(side[n][0] for side in rest)] for n, (value, note) in sides[0].items()]


def _unit(name: str) -> str:
    if name.endswith(")"):
        return name.rpartition("(")[2].removesuffix(")")
    words = name.split()
    if words[-1] in ("Rate", "Ratio"):
        return "ratio"
    return {"Requests/sec": "1/s", "Speedup": "ratio"}.get(words[-1], "count" if words[-1] in _COUNTED else "")


_COUNTED = ("Requests", "Tokens", "Entries", "Users", "GPUs", "Parallel", "Allocs", "Threads", "Cycles")


def _parameters(found: RunReport, run: RunFile) -> Named:
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
        "Model": (found.subject.model, of_trace),
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
        "Storage Capacity (GiB)": (_gib(_sum(storage)), "of the trace's tiers but gpu and cpu"),
        "Precondition": (bool(run.preconditioned), ""),
        "Precondition Size (GiB)": (_gib(written), "written"),
        "Precondition Threads": (None, none),
        "Trace Speedup": (run.pacing.speed, "of the replay; empty in a closed loop"),
        "Replay Cycles": (None, none),
    }


def _metrics(run: RunFile) -> Named:
    found, wall_ns = run.mlperf, run.summary.wall_ns
    requests, tokens = run.requests, None if found is None else found.throughput
    moved = [f for f in run.summary.figures if not f.is_simulated and f.op in ("read", "write")]
    stats = run.trace.metadata.stats or {}
    count = None if requests is None else requests.requests
    storage = None if requests is None else requests.storage
    reason = "" if tokens is None else tokens.reason or ""
    total = {op: _sum([f.bytes for f in moved if f.op == op]) for op in ("read", "write")}
    ratio = total["read"] / total["write"] if total["read"] is not None and total["write"] else None
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
        "Total Read (GiB)": (_gib(total["read"]), "bytes of objects, of tiers that moved"),
        "Total Write (GiB)": (_gib(total["write"]), "bytes of objects, of tiers that moved"),
        **dict(_by_kind(run, moved)),
        **{f"{kind} Entries": (None, "a replay keeps no count") for kind in _KINDS},
        "Multi-turn Hit Rate": (None, "the trace does not count them apart"),
    }


_KINDS = ("GPU", "CPU", "Storage")


def _kind(target: str) -> str:
    return {"ram": "CPU", "gpu": "GPU"}.get(target.partition(":")[0], "Storage")


def _by_kind(run: RunFile, moved: list[Figures]) -> Iterator[tuple[str, tuple[Any, str]]]:
    of = {kind: [f for f in moved if _kind(str(run.tiers.get(f.tier, {}).get("target"))) == kind] for kind in _KINDS}
    for word, op in (("Written", "write"), ("Read", "read")):
        for kind in _KINDS:
            moved_bytes = _sum([f.bytes for f in of[kind] if f.op == op])
            yield f"Tier {kind} KV Bytes {word} (GiB)", (_gib(moved_bytes), "")
    note = "bytes of objects over the time from the first submission to the last completion"
    for kind in _KINDS:
        for word, op in (("Read", "read"), ("Write", "write")):
            rates = [f.bandwidth_bytes_per_s for f in of[kind] if f.op == op]
            yield f"Tier {kind} {word} Bandwidth (GiB/s)", (_gib(_sum(rates)), note)


def _times(name: str, times: Distribution | None, note: str, *, has_mean: bool) -> Named:
    points = ({"Mean": "mean_ns"} if has_mean else {}) | _POINTS
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


def _sum(values: Sequence[Any]) -> Any:
    return sum(values) if values and None not in values else None


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


_TRACING = ["Metric", "Description", "Samples", *_SHARES, "Min Bucket", "Max Bucket", "Unit", "Run"]
_HISTOGRAMS = ["Histogram", "Bucket Low", "Bucket High", "Count", "Unit", "Run"]
_TIMED = {
    "D2C Read (us)": ("d2c", "read", "driver and device"),
    "D2C Write (us)": ("d2c", "write", "driver and device"),
    "Q2D Read (us)": ("q2d", "read", "plug, scheduler and requeues"),
    "Q2D Write (us)": ("q2d", "write", "plug, scheduler and requeues"),
    "VFS Read (us)": ("application", "read", "calls that queued I/O"),
    "VFS Write (us)": ("application", "write", "calls that queued I/O"),
    "fsync (us)": ("application", "fsync", "calls"),
    "Write-to-fsync (us)": ("application", "write_to_fsync", "from a write's return to the next fsync"),
    "fadvise-to-read (us)": ("application", "fadvise_to_read", "from an fadvise's return to the next read"),
}
_COUNTED_BY = {
    "Block Size {} (KiB)": ("sizes", "bytes", 1 << 10, "requests by size"),
    "Queue Depth {}": ("in_flight", "in_flight", 1, "in flight at dispatch"),
    "LBA Heatmap {} (GiB)": ("heat", "low_bytes", _GIB, "requests by place on the disk"),
}
_LBA_GIB = 10
"""How much of a disk one bucket of the benchmark's map is."""


def _traced(name: str, probe: ProbeReport) -> Iterator[list[Any]]:
    times = {(row["layer"], row["op"]): row for row in probe.layers}
    for label, (layer, op, what) in _TIMED.items():
        row, bins = times.get((layer, op)), list(_time_bins(probe, layer, op))
        if row is not None and bins:
            points = [None if row[_POINTS[p]] is None else row[_POINTS[p]] / _NS_PER_US for p in _SHARES]
            yield [label, what, row["count"], *points, bins[0][0], bins[-1][1], "us", name]
    for label, what, counted, bins in _counted(probe):
        total = sum(n for _, n in counted)
        points = [_at_rank(counted, nearest_rank(total, share)) for share in _SHARES.values()]
        yield [label, what, total, *points, bins[0][0], bins[-1][1], _unit(label) or "count", name]


def _bins(name: str, probe: ProbeReport) -> Iterator[list[Any]]:
    for label, (layer, op, _what) in _TIMED.items():
        yield from ([label, *bin_, "us", name] for bin_ in _time_bins(probe, layer, op))
    for label, _what, _counted_values, bins in _counted(probe):
        yield from ([label, *bin_, _unit(label) or "count", name] for bin_ in bins)


def _time_bins(probe: ProbeReport, layer: str, op: str) -> Iterator[tuple[float, float, int]]:
    for row in probe.latency_bins:
        if (row["layer"], row["op"]) == (layer, op):
            low = row["low_ns"]
            yield low / _NS_PER_US, max(2 * low, 1) / _NS_PER_US, row["count"]


def _counted(probe: ProbeReport) -> Iterator[tuple[str, str, list[tuple[float, int]], list[tuple[float, float, int]]]]:
    """Yield what is counted by value: its name, what it is, values with their counts, and buckets."""
    for form, (table, column, unit, what) in _COUNTED_BY.items():
        for op in ("read", "write"):
            key = "requests" if table == "heat" else "count"
            rows = [(row[column] / unit, row[key]) for row in getattr(probe, table) if row["op"] == op]
            counted: dict[float, int] = {}
            for value, count in sorted(rows):
                counted[value] = counted.get(value, 0) + count
            if counted:
                is_place = table == "heat"
                bins: dict[tuple[float, float], int] = {}
                for value, count in counted.items():
                    edges = _place(value) if is_place else _power(value)
                    bins[edges] = bins.get(edges, 0) + count
                listed = [(low, high, count) for (low, high), count in bins.items()]
                yield form.format(op.capitalize()), what, list(counted.items()), listed


def _place(value: float) -> tuple[float, float]:
    low = value // _LBA_GIB * _LBA_GIB
    return low, low + _LBA_GIB


def _power(value: float) -> tuple[float, float]:
    low = 1.0
    while low > value:
        low /= 2
    while low * 2 <= value:
        low *= 2
    return low, 2 * low


def _at_rank(counted: list[tuple[float, int]], rank: int | None) -> float | None:
    seen = 0
    for value, count in counted if rank else ():
        seen += count
        if seen >= (rank or 0):
            return value
    return None
