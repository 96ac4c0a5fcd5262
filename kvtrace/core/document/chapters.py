"""Chapters that several programs show: of runs, sweeps and scorecards, and of a simulated fleet.

A run's MLPerf numbers, checkpoints and ranks; a fleet's hits in its nodes' own tiers and in shared
ones, how even its nodes are, and the time around each incident.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypedDict

import msgspec

from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    Highlight,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    parameters,
    show,
    table_of,
)
from kvtrace.core.document.export import PlainSheet
from kvtrace.core.json_types import JsonObject
from kvtrace.core.run.figures import Beside, CheckpointFigures, Distribution, Figures, Mlperf
from kvtrace.core.run.run_file import RanksNote, RunFile
from kvtrace.core.run.sweep_file import Axis, Card, LoadSweep
from kvtrace.core.simulation_stats import FleetStats, IncidentStats, RestartCounts
from kvtrace.core.statistics import total
from kvtrace.core.units import (
    NS_PER_S,
    counted,
    format_count,
    format_duration,
    format_rate,
    per_second,
    percent,
)

_GIB, _NS_PER_MS = 1 << 30, 1e6
POINTS = {
    "P50": "p50_ns",
    "P95": "p95_ns",
    "P99": "p99_ns",
    "P99.9": "p99_9_ns",
    "P99.99": "p99_99_ns",
}
_SERVICE = "service time, submission to completion"
_TOGETHER = "known only together with the host's or the device's part"
_NO_COMPUTING = "a replay computes nothing"
_OF_TRACE = "of the simulation that made the trace"
Named = dict[str, tuple[Any, str]]
"""Value and note by MLPerf's name."""


def run_sheets(
    runs: Sequence[tuple[str, RunFile]], known: Sequence[Named] = ()
) -> list[PlainSheet]:
    """Return the benchmark's sheets of `runs`, by what they are called, but for those of its
    tracing.

    The first run is in its places; others follow in rows of their own, or in columns behind it.
    `known` figures of each run stand in the places of those that its run.json does not know.
    """
    asked = [parameters_of(run) for _, run in runs]
    measured = [
        metrics_of(run) | more
        for (_, run), more in zip(runs, known or [{}] * len(runs), strict=True)
    ]
    wide = [{n: v for n, (v, _) in (a | m).items()} for a, m in zip(asked, measured, strict=True)]
    others = [name for name, _ in runs[1:]]
    return [
        PlainSheet(
            "Summary",
            [*wide[0], "Run"],
            [[*row.values(), runs[i][0]] for i, row in enumerate(wide)],
        ),
        PlainSheet(
            "Run Parameters", ["Parameter", "Value", "Unit", "Note", *others], _lines(asked)
        ),
        PlainSheet(
            "Performance Metrics", ["Metric", "Value", "Unit", "Note", *others], _lines(measured)
        ),
        PlainSheet("QoS Metrics", _QOS, [row for name, run in runs for row in _classes(name, run)]),
    ]


def _lines(sides: list[Named]) -> list[list[object]]:
    rest = sides[1:]
    return [
        [n, value, unit_of(n), note, *(side[n][0] for side in rest)]
        for n, (value, note) in sides[0].items()
    ]


def unit_of(name: str) -> str:
    """Return the unit that ends a metric's name, or what it counts."""
    if name.endswith(")"):
        return name.rpartition("(")[2].removesuffix(")")
    words = name.split()
    if words[-1] in ("Rate", "Ratio"):
        return "ratio"
    return {"Requests/sec": "1/s", "Speedup": "ratio"}.get(
        words[-1], "count" if words[-1] in _COUNTED else ""
    )


_COUNTED = (
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


def parameters_of(run: RunFile) -> Named:
    """Return what was asked of the trace of `run` and of the run."""
    trace, config = run.trace.metadata, run.trace.metadata.config
    capacities = {
        of.name: of.capacity_bytes and of.capacity_bytes * trace.instances(of) for of in trace.tiers
    }
    memory = {name: _over(capacities.get(name), _GIB) for name in ("gpu", "cpu")}
    storage = [size for name, size in capacities.items() if name not in memory]
    targets = [
        str(facts["target"])
        for _, facts in run.drives()
        if _kind(str(facts.get("target"))) == "Storage"
    ]
    of_trace = "of the trace"
    known: Named = {
        "Timestamp": (run.started_utc, "UTC"),
        "Model": (trace.model_name, of_trace),
        "Num Users": (config.get("users"), of_trace),
        "Duration (s)": (_over(config.get("duration_ns"), NS_PER_S), of_trace),
        "Tensor Parallel": (config.get("tensor_parallel"), of_trace),
        "Total GPU Memory (GiB)": (memory["gpu"], "capacity of the trace's tier gpu, of all nodes"),
        "CPU Memory (GiB)": (memory["cpu"], "capacity of the trace's tier cpu, of all nodes"),
        "Seed": (trace.seed, of_trace),
        "Max Requests": (config.get("max_requests"), of_trace),
        "Dataset Path": ((trace.source or {}).get("file"), of_trace),
        "Cache Dir": (", ".join(targets) or None, "what the storage tiers were replayed on"),
        "Storage Capacity (GiB)": (
            _over(total(storage), _GIB),
            "of the trace's tiers but gpu and cpu, of all nodes",
        ),
        "Precondition": (bool(run.preconditioned), ""),
        "Precondition Size (GiB)": (
            sum(each.written_bytes for each in run.preconditioned) / _GIB,
            "written",
        ),
        "Trace Speedup": (run.pacing.speed, "of the replay; empty in a closed loop"),
    }
    return dict.fromkeys(_PARAMETERS.split(", "), (None, "the trace knows none")) | known


_PARAMETERS = (
    "Timestamp, Model, Num Users, Duration (s), GPU Memory per Card (GiB), Num GPUs, Tensor"
    " Parallel, Total GPU Memory (GiB), CPU Memory (GiB), Generation Mode, Performance Profile,"
    " Multi-turn, Prefix Caching, RAG Enabled, Autoscaling, Seed, Max Concurrent Allocs, Request"
    " Rate, Max Requests, Dataset Path, Cache Dir, Storage Capacity (GiB), Precondition,"
    " Precondition Size (GiB), Precondition Threads, Trace Speedup, Replay Cycles"
)


def metrics_of(run: RunFile) -> Named:
    """Return what was measured in `run`."""
    found, wall_ns = run.mlperf, run.summary.wall_ns
    requests, tokens = run.requests, None if found is None else found.throughput
    moved = [f for f in run.summary.figures if not f.is_simulated and f.op in ("read", "write")]
    count = None if requests is None else requests.requests
    storage = None if requests is None else requests.storage
    reason = "" if tokens is None else tokens.reason or ""
    moved_bytes = {op: total([f.bytes for f in moved if f.op == op]) for op in ("read", "write")}
    of_storage = "time in which at least one operation of a request was in flight"
    return {
        "Total Requests": (count, "those that the warm-up touches left out"),
        "Total Tokens": (None if tokens is None else tokens.tokens, reason),
        "Elapsed Time (s)": (_over(wall_ns, NS_PER_S), "of the replay"),
        "Avg Throughput (tok/s)": (
            None if tokens is None else tokens.wall_clock_throughput_tokens_per_s,
            reason,
        ),
        "Storage Throughput (tok/s)": (
            None if tokens is None else tokens.storage_throughput_tokens_per_s,
            reason,
        ),
        "Requests/sec": (per_second(count, wall_ns), ""),
        **_times("E2E Latency", None, _NO_COMPUTING, has_mean=True),
        **_times("Storage Latency", storage, of_storage, has_mean=True),
        **dict(list(_times("Gen Latency", None, _NO_COMPUTING, has_mean=True).items())[:4]),
        **_tier_times("Total", found, _SERVICE),
        **_tier_times("Device", None, _TOGETHER),
        **_tier_times("Host", None, _TOGETHER),
        "Cache Hit Rate": (run.trace.metadata.hit_ratio, _OF_TRACE),
        "Read/Write Ratio": (_over(moved_bytes["read"], moved_bytes["write"]), "bytes of objects"),
        "Total Read (GiB)": (
            _over(moved_bytes["read"], _GIB),
            "bytes of objects, of tiers that moved",
        ),
        "Total Write (GiB)": (
            _over(moved_bytes["write"], _GIB),
            "bytes of objects, of tiers that moved",
        ),
        **dict(_by_kind(run, moved, wall_ns)),
        **{f"{kind} Entries": (None, "a replay keeps no count") for kind in _KINDS},
        "Multi-turn Hit Rate": (None, "the trace does not count them apart"),
    }


_KINDS = ("GPU", "CPU", "Storage")


def _kind(target: str) -> str:
    return {"ram": "CPU", "gpu": "GPU"}.get(target.partition(":")[0], "Storage")


def _by_kind(
    run: RunFile, moved: list[Figures], wall_ns: int | None
) -> Iterator[tuple[str, tuple[object, str]]]:
    of = {
        kind: [f for f in moved if _kind(str(run.tiers.get(f.tier, {}).get("target"))) == kind]
        for kind in _KINDS
    }

    def bytes_of(kind: str, op: str) -> float | None:
        return total([f.bytes for f in of[kind] if f.op == op])

    for word, op in (("Written", "write"), ("Read", "read")):
        for kind in _KINDS:
            yield f"Tier {kind} KV Bytes {word} (GiB)", (_over(bytes_of(kind, op), _GIB), "")
    # As in get_stats of its kv_cache/cache.py.
    note = "bytes of objects over the elapsed time"
    for kind in _KINDS:
        for word, op in (("Read", "read"), ("Write", "write")):
            rate = per_second(bytes_of(kind, op), wall_ns)
            yield f"Tier {kind} {word} Bandwidth (GiB/s)", (_over(rate, _GIB), note)


def _times(name: str, times: Distribution | None, note: str, *, has_mean: bool) -> Named:
    points = ({"Mean": "mean_ns"} if has_mean else {}) | POINTS
    return {
        f"{name} {word} (ms)": (_over(getattr(times, field, None), _NS_PER_MS), note)
        for word, field in points.items()
    }


def _tier_times(part: str, found: Mlperf | None, note: str) -> Named:
    named: Named = {}
    for op in ("Read", "Write"):
        of = (
            [x.total for x in found.latencies if x.kind == "storage" and x.op == op.lower()]
            if found
            else []
        )
        several = "of several tiers, which are not merged: see the other sheets"
        one = of[0] if len(of) == 1 else None
        named |= _times(
            f"Storage Tier {op} {part}", one, several if len(of) > 1 else note, has_mean=False
        )
    return named


def _over(value: float | None, unit: float | None) -> float | None:
    return value / unit if value is not None and unit else None


_LATENCIES = "Latency P95 (ms)", "Latency P99 (ms)"
_QOS = ["QoS Level", "Total Requests", *_LATENCIES, "SLA Met", "SLA Compliance", "Note", "Run"]


def _classes(name: str, run: RunFile) -> Iterator[list[object]]:
    for of in [] if run.requests is None else run.requests.classes:
        met = {"pass": True, "fail": False}.get(of.verdict)
        definition = "" if run.mlperf is None else run.mlperf.qos_definition
        note = (
            f"no latency: it would be end to end, and {_NO_COMPUTING}; met and compliance are of"
            f" {definition}"
        )
        yield [of.qos, of.storage.count, None, None, met, of.share_within_p95_target, note, name]


_SHOWN = 100
"""Checkpoints that are listed one by one."""


def checkpoint_sentence(found: CheckpointFigures) -> str:
    """Return what came of it in a line.

    What others saw of it if there are others, else how long it took.
    """
    answers = [
        (beside, compared) for beside in found.beside if (compared := beside.compared()) is not None
    ]
    took = []
    for kind in found.kinds:
        if kind.count:
            each = format_duration(kind.duration.mean_ns) + (
                " each on average" if kind.count > 1 else ""
            )
            what = f"{format_count(kind.count)} {kind.kind}{'s' if kind.count > 1 else ''}"
            took.append(f"{what} in {each}, at {format_rate(kind.bandwidth_bytes_per_s)}")
    if not answers:
        return "; ".join(took) or "no checkpoint was saved or restored whole"

    def weight(answer: tuple[Beside, tuple[str, int, int]]) -> tuple[int, bool, int]:
        # What is told best; of that, users wait for reads, and for those of the slowest tier most.
        beside, (name, during, _) = answer
        return ("p50", "p95", "p99").index(name), beside.op == "read", during

    beside, (name, during, without) = max(answers, key=weight)
    counts = (
        f"{format_count(beside.during.count)} and {format_count(beside.without.count)} operations"
    )
    times = f": {during / without:.3g} times as long" if without else ""
    return (
        f"during checkpoints {name} {beside.measure} of {beside.tier} {beside.op}s was"
        f" {format_duration(during)}, otherwise {format_duration(without)}{times} ({counts})"
    )


def checkpoint_tables(found: CheckpointFigures) -> list[ReportTable]:
    """Return what others saw of checkpoints, all saves and restores, and each one."""
    made = []
    if found.beside:
        ways = ("during", "without")
        rows = [
            msgspec.structs.asdict(beside)
            | {
                f"{way}_{n}": v
                for way in ways
                for n, v in msgspec.structs.asdict(getattr(beside, way)).items()
            }
            for beside in found.beside
        ]
        columns = [
            ReportColumn("tier"),
            ReportColumn("op"),
            ReportColumn("measure"),
        ]
        for way in ways:
            columns.append(ReportColumn(f"{way}_count", f"operations {way}", Unit.COUNT))
            columns += [
                ReportColumn(f"{way}_{time}_ns", f"{time} {way}", Unit.NS)
                for time in ("p50", "p95", "p99", "max")
            ]
        note = f"During: {found.definitions['during']}."
        made.append(
            table_of("Others beside checkpoints", Sheet.PERFORMANCE, columns, rows, note, keys=2)
        )
    columns = [
        ReportColumn("kind"),
        ReportColumn("count", "completed", Unit.COUNT),
        ReportColumn("unfinished", unit=Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
        ReportColumn("bandwidth_bytes_per_s", "throughput", Unit.BYTES_PER_S),
        ReportColumn("mean_ns", "mean time", Unit.NS),
        ReportColumn("p50_ns", "p50", Unit.NS),
        ReportColumn("max_ns", "max", Unit.NS),
        ReportColumn("stall_ns", "stall in all", Unit.NS),
    ]
    rows = [
        msgspec.structs.asdict(kind) | msgspec.structs.asdict(kind.duration) for kind in found.kinds
    ]
    note = f"Stall: {found.definitions['stall_ns']}."
    if found.stall_share is not None:
        note += f" All stalls: {100 * found.stall_share:.3g} % of the run's time."
    made.append(table_of("Saves and restores", Sheet.PERFORMANCE, columns, rows, note))
    columns = [
        ReportColumn("kind"),
        ReportColumn("request_id", "request", Unit.COUNT),
        ReportColumn("scheduled_ns", "due", Unit.NS),
        ReportColumn("submitted_ns", "began", Unit.NS),
        ReportColumn("duration_ns", "took", Unit.NS),
        ReportColumn("stall_ns", "stall", Unit.NS),
        ReportColumn("bytes", unit=Unit.BYTES),
        ReportColumn("bandwidth_bytes_per_s", "throughput", Unit.BYTES_PER_S),
        ReportColumn("unfinished", unit=Unit.COUNT),
    ]
    left = len(found.each) - _SHOWN
    note = f"The first {_SHOWN}; {format_count(left)} more are in run.json." if left > 0 else ""
    made.append(
        table_of("Each save and restore", Sheet.PERFORMANCE, columns, found.each[:_SHOWN], note)
    )
    return made


_RANKS = [
    ReportColumn("rank"),
    ReportColumn("host"),
    ReportColumn("nodes"),
    ReportColumn("status"),
    ReportColumn("cpus", "CPUs", Unit.COUNT),
    ReportColumn("operations", unit=Unit.COUNT),
    ReportColumn("errors", unit=Unit.COUNT),
    ReportColumn("bytes", unit=Unit.BYTES),
    ReportColumn("wall_ns", "time", Unit.NS),
    ReportColumn("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
    ReportColumn("read_p99_ns", "read p99", Unit.NS),
    ReportColumn("write_p99_ns", "write p99", Unit.NS),
    ReportColumn("begun_late_ns", "began late", Unit.NS),
    ReportColumn("clock_error_ns", "clock error", Unit.NS),
    ReportColumn("stood_still_ns", "stood still", Unit.NS),
]


def ranks_tables(found: RanksNote) -> list[ReportTable]:
    """Return the tables of a run's ranks."""
    rows = [{name: getattr(rank, name) for name in rank.__struct_fields__} for rank in found.ranks]
    for row in rows:
        row["nodes"] = None if row["nodes"] is None else ", ".join(map(str, row["nodes"]))
        if found.straggler is not None and found.straggler.rank == row["rank"]:
            row["rank"] = f"{row['rank']} (last)"
    begun, together = found.start, found.combined
    start = {
        "ranks": Cell(found.count, Unit.COUNT),
        "MPI library": found.library,
        "partitioned by": None if found.partition is None else found.partition.by,
        "apart at the start": Cell(begun.skew_ns, Unit.NS),
        "first submissions apart": Cell(begun.first_submission_skew_ns, Unit.NS),
        "error of the common clock, at most": Cell(begun.clock_error_ns, Unit.NS),
        "percentiles of": "all operations" if found.is_exact else "histograms added up",
    }
    mlperf = {
        "read bandwidth, added up": Cell(together.read_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "write bandwidth, added up": Cell(together.write_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "read p95, the worst rank's": Cell(together.read_p95_ns, Unit.NS),
        "write p95, the worst rank's": Cell(together.write_p95_ns, Unit.NS),
    }
    columns = _RANKS
    if not any(row["nodes"] for row in rows):
        columns = [column for column in _RANKS if column.name != "nodes"]
    return [
        table_of("Ranks", Sheet.PERFORMANCE, columns, rows),
        parameters("How the ranks began", Sheet.PERFORMANCE, start),
        parameters("By MLPerf's rule for several clients, not merged", Sheet.PERFORMANCE, mlperf),
    ]


LOAD_NAMES = {
    Axis.QUEUE_DEPTH: "queue depth",
    Axis.SPEED: "speed (1: the trace's own)",
    Axis.USERS: "users",
}
_QUANTILES = {"p50": "read_p50_ns", "p99": "read_p99_ns", "p99.9": "read_p99_9_ns"}
_POINT_COLUMNS = [
    ReportColumn("throughput_bytes_per_s", "throughput", Unit.BYTES_PER_S),
    ReportColumn("operations_per_s", "op/s", Unit.PER_S),
    ReportColumn("read_p50_ns", "read p50", Unit.NS),
    ReportColumn("read_p99_ns", "read p99", Unit.NS),
    ReportColumn("read_p99_9_ns", "read p99.9", Unit.NS),
    ReportColumn("write_p50_ns", "write p50", Unit.NS),
    ReportColumn("write_p99_ns", "write p99", Unit.NS),
    ReportColumn("write_p99_9_ns", "write p99.9", Unit.NS),
]
_OPEN = [
    ReportColumn("late_p99_ns", "late p99", Unit.NS),
    ReportColumn("keeps_up", "keeps up"),
    ReportColumn("trials", unit=Unit.COUNT),
    ReportColumn("held_trials", "held", Unit.COUNT),
]


def _line(found: LoadSweep, label: str, name: str) -> Series:
    """Return a figure of the points that know it, by load."""
    known = [p for p in found.points if getattr(p, name) is not None]
    return Series(label, [p.value for p in known], [getattr(p, name) for p in known])


def sweep_document(found: LoadSweep) -> Document:
    """Return the points of a sweep; the headline is its answer."""
    is_open = found.axis is not Axis.QUEUE_DEPTH
    columns = [ReportColumn("value", found.axis.replace("_", " "), Unit.NUMBER)]
    if is_open:
        columns.append(ReportColumn("asked_bytes_per_s", "asked", Unit.BYTES_PER_S))
    columns += _POINT_COLUMNS
    if is_open:
        columns += _OPEN
    columns += [ReportColumn("limit", "limited by"), ReportColumn("knee", "")]
    rows = [
        msgspec.structs.asdict(p)
        | {"keeps_up": p.keeps_up, "knee": "knee" if p.value == found.knee else ""}
        | {"limit": None if p.judgement is None or (is_open and p.is_held) else p.judgement.cause}
        for p in found.points
    ]
    kind = "response" if is_open else "service"
    note = (
        f"Of the slowest tier; times are {kind}"
        f" times{', from when an operation was due' if is_open else ''}."
    )
    table = table_of(
        "Sweep", Sheet.PERFORMANCE, columns, rows, note, charts=_charts(found, kind), is_answer=True
    )
    notes = [f"rule: {found.rule}"]
    notes += [
        f"tier {tier} is SIMULATED: no figure counts it unless all tiers are"
        for tier in found.simulated_tiers
    ]
    highlights, at = [], next((p for p in found.points if p.value == found.knee), None)
    if at is not None:
        highlights = [
            Highlight(f"{found.axis.replace('_', ' ')} at the knee", at.value, Unit.NUMBER),
            Highlight("throughput at the knee", at.throughput_bytes_per_s, Unit.BYTES_PER_S),
        ]
        times = [(name, getattr(at, field)) for name, field in _QUANTILES.items()]
        highlights += [
            Highlight(f"read {kind} {of} at the knee", ns, Unit.NS)
            for of, ns in times
            if ns is not None
        ]
    return Document("", found.answer, [Chapter("", [table])], notes, highlights)


def _charts(found: LoadSweep, kind: str) -> tuple[Chart, ...]:
    marks = () if found.knee is None else ((found.knee, f"knee: {found.knee:g}"),)
    times = [_line(found, f"read {kind} {name}", field) for name, field in _QUANTILES.items()]
    rates = [_line(found, "throughput", "throughput_bytes_per_s")]
    named = LOAD_NAMES[found.axis]
    return tuple(
        Chart(
            f"{what} against {named}",
            ChartShape.LOAD,
            Unit.NUMBER,
            unit,
            drawn,
            marks=marks,
            x_title=named,
        )
        for what, unit, drawn in (
            ("Read times", Unit.NS, [line for line in times if line.x]),
            ("Throughput", Unit.BYTES_PER_S, [line for line in rates if line.x]),
        )
        if drawn
    )


def card_document(card: Card) -> Document:
    """Return what a drive sustains of several caching stacks: a row a stack."""
    columns = [
        ReportColumn("preset"),
        ReportColumn("users", "users sustained", Unit.NUMBER),
        ReportColumn("at_users", "measured at", Unit.NUMBER),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
        ReportColumn("read_p50_ns", "read p50", Unit.NS),
        ReportColumn("read_p99_ns", "p99", Unit.NS),
        ReportColumn("read_p99_9_ns", "p99.9", Unit.NS),
        ReportColumn("request_bytes", "request", Unit.BYTES),
        ReportColumn("in_flight", "in flight", Unit.NUMBER),
        ReportColumn("drive_writes_per_day", "drive writes a day", Unit.NUMBER),
        ReportColumn("life_years", "life", Unit.YEARS),
        ReportColumn("delivered_share", "delivered", Unit.SHARE),
        ReportColumn("spread", unit=Unit.SHARE),
        ReportColumn("limit", "limited by"),
    ]
    table = table_of(
        "at the most users that it sustains", Sheet.SUMMARY, columns, card.scores, is_answer=True
    )
    asked = next((shlex.split(score.gen) for score in card.scores if score.gen), [])
    model = f" with {asked[asked.index('--model') + 1]}" if "--model" in asked else ""
    notes = [
        (
            f"users of synthetic conversations{model}; read times are response times, from when a"
            " read was due"
        ),
        (
            "rates and times: medians of the trials; spread: (greatest - least) / median of their"
            " throughput"
        ),
        (
            "delivered: of what the trace asked for; kvdistill compare says where two cards differ"
            " by more than trials do"
        ),
    ]
    notes += [
        "request and in flight: block requests; not measured (root and libbpf are needed)"
    ] * all(score.request_bytes is None for score in card.scores)
    notes += [f"{score.preset}: {score.answer}" for score in card.scores]
    warnings = [] if card.status == "complete" else [f"PARTIAL: {card.status}"]
    warnings += [
        f"{of}: NOTHING WAS READ in its window: this tests writes only; use a larger --size, to"
        " keep what is read again"
        for of in (score.preset for score in card.scores if not score.read_bytes_per_s)
    ]
    warnings += [
        f"{of.preset}: TOO FEW REQUESTS ({of.requests}) in its window: users vary by chance; use a"
        " longer --window"
        for of in card.scores
        if of.is_by_chance
    ]
    return Document(
        card.device or "",
        card_answer(card),
        [Chapter("", [table], notes)],
        [],
        [
            Highlight(
                of.preset,
                of.users,
                Unit.NUMBER,
                f"users, {show(of.read_bytes_per_s, Unit.BYTES_PER_S)} read",
            )
            for of in card.scores
        ],
        warnings,
    )


def card_answer(card: Card) -> str:
    """Return the answer: users of each stack, and how well it repeats."""
    told = [
        f"{score.preset}"
        f" {'less than ' if score.users is None else ''}{counted(score.at_users, 'user')}"
        f"{'' if score.read_bytes_per_s else ' (writes only)'}"
        for score in card.scores
    ]
    spreads = [score.spread for score in card.scores if score.spread is not None]
    repeats = f"; repeats within {percent(max(spreads))}" if spreads else ""
    return f"sustains {', '.join(told) or 'nothing that was measured'}{repeats}"


MOST_NODES: Final = 16
"""A larger fleet is shown by its least, median and largest node."""


class HitRatios(TypedDict):
    """The three hit ratios of a node, a fleet or a window."""

    local_hit_ratio: float | None
    shared_hit_ratio: float | None
    hit_ratio: float | None


def hit_ratios(local_hits: int, shared_hits: int, lookups: int) -> HitRatios:
    """Return the shares of lookups that hit in a node's own tiers, in shared ones and in any.

    They are None without lookups.
    """
    if not lookups:
        return HitRatios(local_hit_ratio=None, shared_hit_ratio=None, hit_ratio=None)
    return HitRatios(
        local_hit_ratio=local_hits / lookups,
        shared_hit_ratio=shared_hits / lookups,
        hit_ratio=(local_hits + shared_hits) / lookups,
    )


def fleet_headline(fleet: FleetStats) -> str:
    """Return one line: the number of nodes, the router and the hit ratios of a fleet."""
    return (
        f"{fleet.nodes} nodes, router {fleet.router}:"
        f" {show(fleet.hit_ratio, Unit.SHARE)} of look-ups hit,"
        f" {show(fleet.local_hit_ratio, Unit.SHARE)} in the node's own tiers,"
        f" {show(fleet.shared_hit_ratio, Unit.SHARE)} in shared ones"
    )


def fleet_tables(fleet: FleetStats) -> list[ReportTable]:
    """Return the tables of a fleet: its totals, and a row a node."""
    imbalance = fleet.imbalance
    whole = {
        "hits, all": Cell(fleet.hit_ratio, Unit.SHARE),
        "hits in the node's own tiers": Cell(fleet.local_hit_ratio, Unit.SHARE),
        "hits in shared tiers": Cell(fleet.shared_hit_ratio, Unit.SHARE),
        "prompt tokens computed": Cell(fleet.computed_tokens, Unit.COUNT),
        "copies on further nodes (at end)": Cell(fleet.duplicate_bytes, Unit.BYTES),
        **(
            {"sent over the link": Cell(fleet.link_bytes, Unit.BYTES)}
            if fleet.link_bytes is not msgspec.UNSET
            else {}
        ),
        "requests, busiest node over the mean": Cell(imbalance.requests, Unit.RATIO),
        "computing, busiest node over the mean": Cell(imbalance.computing_ns, Unit.RATIO),
    }
    columns = [
        ReportColumn("node"),
        ReportColumn("requests", unit=Unit.COUNT),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("local_hit_ratio", "own tiers", Unit.SHARE),
        ReportColumn("shared_hit_ratio", "shared tiers", Unit.SHARE),
        ReportColumn("computed_tokens", "tokens computed", Unit.COUNT),
        ReportColumn("computing_ns", "computing", Unit.NS),
    ]
    by_node = fleet.by_node
    rows: list[JsonObject] = []
    for node in range(len(by_node.requests)):
        lookups = by_node.lookups[node]
        local, shared = by_node.local_hits[node], by_node.shared_hits[node]
        rows.append(
            {
                "node": str(node),
                "requests": by_node.requests[node],
                "computed_tokens": by_node.computed_tokens[node],
                "computing_ns": by_node.computing_ns[node],
                **hit_ratios(local, shared, lookups),
            }
        )
    if len(rows) > MOST_NODES:
        ordered = {
            column: sorted((row[column] for row in rows), key=lambda v: v or 0)
            for column in rows[0]
        }
        places = {"least": 0, "median": (len(rows) - 1) // 2, "largest": -1}
        rows = [
            {name: of[at] for name, of in ordered.items()} | {"node": said}
            for said, at in places.items()
        ]
    return [
        parameters("fleet", Sheet.SUMMARY, whole),
        table_of("nodes", Sheet.SUMMARY, columns, rows),
    ]


_WINDOWS: Final = {
    "before": "in the {} before",
    "during": "during it",
    "minute 1 after": "in the {} after",
}


def event_lines(events: IncidentStats) -> list[str]:
    """Return a line for each event.

    Hits before it and in the minute after it, and when they were back.

    The first line says of the hit ratios, which are of look-ups, what requests that began again
    have in them.
    """
    lines: list[str] = []
    restarts = events.begun_again
    if isinstance(restarts, RestartCounts) and restarts.requests:
        lookups = restarts.of_lookups - restarts.lookups
        hits = restarts.of_hits - restarts.hits
        lines.append(
            f"requests restarted {counted(restarts.requests, 'time')} and repeated look-ups:"
            f" {restarts.lookups:,} of {restarts.of_lookups:,} look-ups and {restarts.hits:,} of"
            f" {restarts.of_hits:,} hits; all hit ratios count them; of first look-ups"
            f" {show(hits / lookups if lookups else None, Unit.SHARE)} hit"
        )
    for incident in events.around:
        if not incident.is_reached:
            lines.append(f"{incident.event}: the trace ends before it")
            continue
        windows = {window.window: window for window in incident.windows}
        # A window is shorter than a minute where the trace begins or ends within it.
        parts = [
            f"{show(windows[name].hit_ratio, Unit.SHARE)}"
            f" {words.format(format_duration(windows[name].to_ns - windows[name].from_ns))}"
            for name, words in _WINDOWS.items()
            if name in windows
        ]
        if incident.hits_back_ns is not None:
            parts.append(
                f"back to the level before within {format_duration(incident.hits_back_ns)}"
            )
        elif "before" in windows and windows["before"].hit_ratio is not None:
            parts.append("not back to the level before by the end of the trace")
        restarted = sum(w.restarted for w in incident.windows if w.window != "before")
        if restarted:
            parts.append(
                f"requests restarted {counted(restarted, 'time')} in the windows from it on"
            )
        lines.append(f"{incident.event}: hits {', '.join(parts)}")
    return lines


def event_tables(events: IncidentStats) -> list[ReportTable]:
    """Return what there was around each event.

    Hits and tokens, and the load of the slowest tier.
    """
    columns = [
        ReportColumn("event"),
        ReportColumn("window"),
        ReportColumn("from_ns", "from", Unit.NS),
        ReportColumn("lasts_ns", "lasts", Unit.NS),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("local_hit_ratio", "own tiers", Unit.SHARE),
        ReportColumn("shared_hit_ratio", "shared tiers", Unit.SHARE),
        ReportColumn("computed_per_s", "tokens computed/s", Unit.PER_S),
        ReportColumn("restarted", "requests begun again", Unit.COUNT),
    ]
    rows = [
        w | {"computed_per_s": per_second(w["computed_tokens"], w["lasts_ns"])}
        for w in _windows(events)
    ]
    note = "Simulated. Hits of look-ups; prompt tokens that were computed, as no tier had them."
    store = len(events.tiers) - 1
    return [
        table_of("around each event", Sheet.SUMMARY, columns, rows, note, keys=2),
        storage_table(events, store),
    ]


def _windows(events: IncidentStats) -> list[JsonObject]:
    """Return a row for each window of each event, with the fields of IncidentWindow."""
    return [
        {
            "event": incident.event,
            **msgspec.structs.asdict(window),
            "lasts_ns": window.to_ns - window.from_ns,
        }
        for incident in events.around
        for window in incident.windows
    ]


def storage_table(events: IncidentStats, t: int) -> ReportTable:
    """Return the load of tier `t` around each event."""
    columns = [
        ReportColumn("event"),
        ReportColumn("window"),
        ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
        ReportColumn("peak_read_bytes", "most in a second", Unit.BYTES_PER_S),
        ReportColumn("reads_per_s", "reads/s", Unit.PER_S),
        ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
        ReportColumn("peak_written_bytes", "most in a second", Unit.BYTES_PER_S),
        ReportColumn("writes_per_s", "writes/s", Unit.PER_S),
        ReportColumn("lost_bytes", "lost", Unit.BYTES),
    ]
    rows = []
    for window in _windows(events):
        tier, lasts_ns = msgspec.structs.asdict(window["tiers"][t]), window["lasts_ns"]
        rates = {f"{name}_per_s": per_second(tier[name], lasts_ns) for name in _MOVED}
        rows.append(window | tier | rates)
    note = "Simulated. Lost data has rows of phase lose in the trace; nothing deletes it."
    return table_of(
        f"{events.tiers[t].name} around each event",
        Sheet.SUMMARY,
        columns,
        rows,
        note,
        keys=2,
    )


_MOVED = ("reads", "read_bytes", "writes", "written_bytes")
