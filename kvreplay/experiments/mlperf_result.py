"""The result of an option, of one client or several (mlperf.json), as a document, and as the
benchmark's export.

The benchmark counts tokens and hits of requests that a trial served whole, because the clock cuts
its trace.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import asdict

from kvreplay.experiments.mlperf_rules import NOT_CLAIMED, Rule, mark_of, rules_table
from kvreplay.plan.row_ring import DELETE
from kvreplay.plan.tier_targets import STORAGE
from kvreplay.result.figures import judge
from kvtrace import __version__
from kvtrace.core import np
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.document.export import PlainSheet
from kvtrace.core.document.mlperf_sheets import NamedFigures, run_metrics, run_parameters
from kvtrace.core.files import read_json, write_text
from kvtrace.core.metadata import Metadata
from kvtrace.core.run.figures import Criterion
from kvtrace.core.run.run_file import MLPERF_FILE, OPS_FILE, SERVED_FILE, RunFile
from kvtrace.core.schema import OPS, REQUESTS, SERVED, numbers
from kvtrace.core.tables import open_table
from kvtrace.core.units import counted, format_duration, format_rate, per_second

READ_RATE, WRITE_RATE = (
    "Tier Storage Read Bandwidth (GiB/s)",
    "Tier Storage Write Bandwidth (GiB/s)",
)
READ_P95, WRITE_P95 = "Storage Tier Read Total P95 (ms)", "Storage Tier Write Total P95 (ms)"
GIB, NS_PER_MS = 1 << 30, 1e6
_EXPECTED = {
    READ_RATE: ("reads", format_rate, GIB),
    WRITE_RATE: ("writes", format_rate, GIB),
    READ_P95: ("read P95", format_duration, NS_PER_MS),
    WRITE_P95: ("write P95", format_duration, NS_PER_MS),
}
_SEVERITY = ("pass", "not measured", "fail")


SUMMED = {
    "aggregated_read_bandwidth_gbps": READ_RATE,
    "aggregated_write_bandwidth_gbps": WRITE_RATE,
    "aggregated_avg_throughput_tokens_per_sec": "Avg Throughput (tok/s)",
    "aggregated_storage_throughput_tokens_per_sec": "Storage Throughput (tok/s)",
}
WORST = {
    "aggregated_device_read_p95_ms": "Storage Tier Read Device P95 (ms)",
    "aggregated_device_write_p95_ms": "Storage Tier Write Device P95 (ms)",
    "aggregated_total_read_p95_ms": READ_P95,
    "aggregated_total_write_p95_ms": WRITE_P95,
}
"""Fields of `Aggregated` by the columns that they are sums, or the greatest, of."""


class MlperfTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One trial of one client."""

    run: str
    status: str
    verdict: str = ""
    """The run's own sentence; empty in files of earlier versions."""
    limit: str | None = None
    """Its bottleneck; null if it was not identified."""
    row: dict[str, Any]
    """By column of the benchmark's export; null is what was not measured."""
    summary: dict[str, Any]
    """The metrics among them, as the benchmark's result names them."""
    criteria: list[Criterion]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One client of the storage: a rank of the benchmark's."""

    rank: int
    seed: int
    target: str
    """What was under test."""
    capacity_bytes: int
    trials: list[MlperfTrial]


class Aggregated(msgspec.Struct, frozen=True, kw_only=True):
    """All clients and trials, by the names of the benchmark's kvcache_run_summary (Rules.md 6.3.4)."""

    option: int
    aggregated_read_bandwidth_gbps: float | None
    """GiB/s, summed over ranks in each trial; the mean over trials. So are the next three."""
    aggregated_write_bandwidth_gbps: float | None
    aggregated_avg_throughput_tokens_per_sec: float | None
    aggregated_storage_throughput_tokens_per_sec: float | None
    aggregated_device_read_p95_ms: float | None
    """The maximum P95 of all ranks and trials, not the P95 of all samples.

    This field and the next are null, because they are not measured.
    """
    aggregated_device_write_p95_ms: float | None
    aggregated_total_read_p95_ms: float | None
    """The same for the total time of an object.

    The name is ours, because the benchmark aggregates only the device time.
    """
    aggregated_total_write_p95_ms: float | None
    rank_count: int
    trial_count: int
    partial_failure: bool
    missing_files: list[str]
    cpu_tier_ranks: list[str]
    """Trials in which a rank read and wrote nothing on storage."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction of a drive file for an option's trace.

    The trace is replayed on it in simulated time before the first trial.
    """

    drive: str
    row: dict[str, float | None]
    """The columns of bandwidth and P95, as in a trial's."""
    over_measured: dict[str, float | None] = {}
    """Expected value by the mean of the trials; null if one of them is unknown."""

    def beside(self, trials: Sequence[MlperfTrial]) -> Expected:
        """Return the prediction with its error against `trials`."""
        ratios: dict[str, float | None] = {}
        for column, value in self.row.items():
            measured = [trial.row.get(column) for trial in trials]
            is_known = value is not None and measured and all(measured)
            ratios[column] = value / fmean(measured) if is_known else None  # type: ignore[arg-type, operator]
        return msgspec.structs.replace(self, over_measured=ratios)

    def in_words(self) -> str:
        """Return the prediction in one line."""
        predictions = []
        for column, (label, form, unit) in _EXPECTED.items():
            value, ratio = self.row[column], self.over_measured.get(column)
            if value is not None:
                remark = "" if ratio is None else f" ({ratio:.2f} of measured)"
                predictions.append(f"{label} {form(value * unit)}{remark}")
        return f"{self.drive} predicts {', '.join(predictions) or 'nothing that is measured'}"


class MlperfResult(msgspec.Struct, frozen=True, kw_only=True):
    """The content of mlperf.json."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    answer: str
    """The result in one sentence."""
    mark: str | None
    """The mark that the results must have, with the rules that are not kept."""
    option: str
    workload: str
    seed_base: int
    asked_trials: int
    runtime_ns: int
    queue_depth: int
    status: str
    """complete, or partial."""
    aggregated: Aggregated
    criteria: list[Criterion]
    """Each criterion as in its worst trial."""
    criteria_note: str = (
        "the benchmark program's own health criteria; they are not a condition of a submission"
        " (mlcommons/storage issue 624)"
    )
    rules: list[Rule]
    space: list[str]
    not_claimed: dict[str, str]
    """Claims that these figures do not support, with reasons."""
    expected: Expected | None = None
    """The prediction of --drive; null without it."""
    trace: str | None
    """Name of the trace beside this file, whose metadata has its seed and options."""
    clients: list[Client]


def trial_of(run: RunFile, name: str, served: Served) -> MlperfTrial:
    """Return the trial `name` from `run`; `served` are the requests that it served completely."""
    figures = run_parameters(run) | run_metrics(run) | served.named(run.summary.wall_ns)
    row = {column: value for column, (value, _) in figures.items()}
    rates = row[READ_RATE], row[WRITE_RATE]
    definition = "bytes of reads and writes on storage over the elapsed time"
    rate = None if None in rates else sum(rates) * GIB
    # A trial replays only the begin of the trace, so its hit rate is not that of the whole trace.
    recomputed: dict[str, tuple[float | None, str, Callable[[float], str]]] = {
        "storage_bandwidth_bytes_per_s": (rate, definition, format_rate),
        "hit_rate": (served.hit_rate, _HIT_NOTE, "{:.1%}".format),
    }
    criteria = [
        judge(c.name, c.threshold, *recomputed[c.name]) if c.name in recomputed else c
        for c in ([] if run.mlperf is None else run.mlperf.criteria)
    ]
    judged = run.summary.judgement
    return MlperfTrial(
        run=name,
        status=run.status,
        verdict=run.summary.verdict,
        limit=judged.cause if judged else None,
        row=row,
        summary=as_summary(row),
        criteria=criteria,
    )


def aggregate(number: int, asked_trials: int, clients: Sequence[Client]) -> Aggregated:
    """Aggregate `clients` by Rules.md 6.3.4; a value is null if one of their trials lacks it."""
    runs = [(client, trial) for client in clients for trial in client.trials]
    missing = [
        f"rank {client.rank}, trial {index + 1}"
        for client in clients
        for index in range(asked_trials)
        if index >= len(client.trials) or client.trials[index].status != "complete"
    ]

    def mean_of_sums(column: str) -> float | None:
        by_trial = [[c.trials[index].row.get(column) for c in clients] for index in range(fewest)]
        if not by_trial or any(None in of_clients for of_clients in by_trial):
            return None
        return fmean(sum(of_clients) for of_clients in by_trial)  # type: ignore[arg-type]

    def greatest(column: str) -> float | None:
        values: list[Any] = [trial.row.get(column) for _, trial in runs]
        return None if not values or None in values else max(values)

    fewest = min((len(client.trials) for client in clients), default=0)
    return Aggregated(
        option=number,
        **{field: mean_of_sums(column) for field, column in SUMMED.items()},
        **{field: greatest(column) for field, column in WORST.items()},
        rank_count=len(clients),
        trial_count=fewest,
        partial_failure=bool(missing),
        missing_files=missing,
        cpu_tier_ranks=[
            f"rank {client.rank}, {trial.run}"
            for client, trial in runs
            if not any(
                trial.row.get(f"Tier Storage KV Bytes {word} (GiB)") for word in ("Read", "Written")
            )
        ],
    )


def result_of(
    result: dict[str, Any], clients: Sequence[Client], number: int, *, has_memory: bool
) -> MlperfResult:
    """Make the result of `clients`; `result` has the fields that do not follow from theirs."""
    aggregated = aggregate(number, result["asked_trials"], clients)
    by_name: dict[str, list[Criterion]] = {}
    for criterion in (c for client in clients for trial in client.trials for c in trial.criteria):
        # Without a CPU tier its criterion is absent.
        if has_memory or criterion.name != "cpu_p95_ns":
            by_name.setdefault(criterion.name, []).append(criterion)
    # Take each criterion from its worst trial.
    signs = {name: 1 if name.endswith("_p95_ns") else -1 for name in by_name}
    criteria = [
        max(
            of_trials, key=lambda c: (_SEVERITY.index(c.verdict), signs[c.name] * (c.measured or 0))
        )
        for of_trials in by_name.values()
    ]
    mark = mark_of(result["rules"])
    limits = Counter(
        trial.limit or "not identified" for client in clients for trial in client.trials
    )
    limit = ", ".join(
        name if len(limits) == 1 else f"{name} ({count})" for name, count in limits.most_common()
    )
    read, write = (
        aggregated.aggregated_read_bandwidth_gbps,
        aggregated.aggregated_write_bandwidth_gbps,
    )
    bandwidth = "unknown bandwidth"
    if read is not None and write is not None:
        rates = [format_rate(rate * GIB) for rate in (read + write, read, write)]
        bandwidth = f"{rates[0]} of storage ({rates[1]} read, {rates[2]} written)"
    times = [
        ("read", aggregated.aggregated_total_read_p95_ms),
        ("write", aggregated.aggregated_total_write_p95_ms),
    ]
    p95 = ", ".join(
        f"{op} P95"
        f" {'unknown (a trial with fewer than 20)' if ms is None else format_duration(ms * NS_PER_MS)}"
        for op, ms in times
    )
    scope = f"over {counted(aggregated.trial_count, 'trial')}"
    scope += f" of {aggregated.rank_count} ranks" if aggregated.rank_count > 1 else ""
    partial = (
        f"; partial: {', '.join(aggregated.missing_files)} not complete"
        if aggregated.partial_failure
        else ""
    )
    sentences = [
        f"{result['option']}: {bandwidth}, {p95} {scope}{partial}",
        f"bottleneck: {limit}",
        *([mark] if mark else []),
    ]
    return MlperfResult(
        **result,
        answer="; ".join(sentences),
        mark=mark,
        status="partial" if aggregated.partial_failure else "complete",
        aggregated=aggregated,
        criteria=criteria,
        not_claimed=NOT_CLAIMED,
        clients=list(clients),
    )


def read_result(folder: Path) -> MlperfResult:
    """Return the result in `folder`; TraceError if there is none, or it is of another version."""
    return read_json(
        folder / MLPERF_FILE,
        MlperfResult,
        misfit="not of this version of kvreplay: {}; run it again",
    )


_NOTE = "of the requests served completely within the trial"
_IO_NOTE = f"{_NOTE}; over the sum of the times of their storage operations"
_HIT_NOTE = f"{_NOTE}: share of earlier turns that were hits"


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens, hits and times of the requests that were served completely."""

    requests: int
    tokens: int
    storage_io_ns: int
    """Sum of the latencies of their reads and writes on storage."""
    lookups: int
    """Number of earlier turns of their conversations, each of which is looked up."""
    hits: int

    @property
    def hit_rate(self) -> float | None:
        """Hits of lookups; None without a lookup."""
        return self.hits / self.lookups if self.lookups else None

    def named(self, wall_ns: int | None) -> NamedFigures:
        """Return these figures under the benchmark's names."""
        return {
            "Total Requests": (self.requests, _NOTE),
            "Total Tokens": (self.tokens, _NOTE),
            "Avg Throughput (tok/s)": (per_second(self.tokens, wall_ns), _NOTE),
            "Storage Throughput (tok/s)": (per_second(self.tokens, self.storage_io_ns), _IO_NOTE),
            "Requests/sec": (per_second(self.requests, wall_ns), _NOTE),
            "Cache Hit Rate": (self.hit_rate, _HIT_NOTE),
        }


def served_of(run: Path, requests: Path, trace: Metadata) -> Served:
    """Sum the requests of the table `requests` that `run` served completely."""
    served = open_table(run / SERVED_FILE, SERVED).read_all()
    unfinished, operations = (
        served.column(name).to_numpy() for name in ("unfinished", "operations")
    )
    ids, hits = (served.column(name).to_numpy() for name in ("request_id", "hits"))
    is_whole = (unfinished == 0) & (operations > 0)
    request_table = open_table(requests, REQUESTS).read_all()
    order = np.argsort(request_table.column("request_id").to_numpy())
    # Request ids of a repeat of the trace continue those of the repeat before.
    indices = order[ids[is_whole] % max(1, len(order))]
    tokens, turns = (request_table.column(name).to_numpy() for name in ("output_tokens", "turn"))
    storage, storage_io_ns = [tier.name for tier in trace.tiers].index(STORAGE), 0
    names = ("tier", "op", "request_id", "submitted_ns", "completed_ns")
    for batch in open_table(run / OPS_FILE, OPS).batches(names):
        tier, op, request, submitted, completed = (numbers(batch.column(name)) for name in names)
        counts = (
            (tier == storage) & (op != DELETE) & (completed >= 0) & np.isin(request, ids[is_whole])
        )
        storage_io_ns += int((completed - submitted)[counts].sum())
    return Served(
        requests=int(is_whole.sum()),
        tokens=int(tokens[indices].sum()),
        storage_io_ns=storage_io_ns,
        lookups=int(turns[indices].sum()),
        hits=int(hits[is_whole].sum()),
    )


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
_LATENCIES = {
    "E2E": "end_to_end_latency_ms",
    "Storage": "storage_io_latency_ms",
    "Gen": "generation_latency_ms",
}
_COMPONENTS = {"Total": "", "Device": "_device", "Host": "_host"}
_POINTS = {"P50": "p50", "P95": "p95", "P99": "p99", "P99.9": "p999", "P99.99": "p9999"}
_KINDS = {"GPU": "gpu", "CPU": "cpu", "Storage": "storage"}
_OPS = ("Read", "Write")

PLACES = (
    _TOP
    | {
        f"{latency} Latency {point} (ms)": f"{key}.{field}"
        for latency, key in _LATENCIES.items()
        for point, field in {"Mean": "mean", **_POINTS}.items()
    }
    | {
        f"Storage Tier {op} {component} {point} (ms)": (
            f"cache_stats.storage_{op.lower()}{infix}_{field}_ms"
        )
        for op in _OPS
        for component, infix in _COMPONENTS.items()
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
"""Field of the benchmark's result, as a dotted name, by column of its export.

Its names _gb and _gbps stand for GiB and GiB/s.
"""


def as_summary(row: Mapping[str, object]) -> dict[str, object]:
    """Return the metrics of `row`, by column, as the `summary` of the benchmark's result."""
    summary: dict[str, Any] = {}
    for name, value in row.items():
        if name not in PLACES:
            continue
        *above, last = PLACES[name].split(".")
        inside = summary
        for key in above:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return summary


AGGREGATE = "aggregate (Rules.md 6.3.4)"


def result_document(result: MlperfResult, name: str = "") -> Document:
    """Make the document of a result; the headline is its answer."""
    spec = [
        ReportColumn("run"),
        ReportColumn("read_rate", "read", Unit.BYTES_PER_S),
        ReportColumn("write_rate", "written", Unit.BYTES_PER_S),
        ReportColumn("read P95", unit=Unit.NS),
        ReportColumn("write P95", unit=Unit.NS),
        ReportColumn("limit", "bottleneck"),
        ReportColumn("status"),
    ]
    rows = [
        [
            trial.run if len(result.clients) == 1 else f"rank {client.rank}, {trial.run}",
            *(_scaled(trial.row.get(column), GIB) for column in (READ_RATE, WRITE_RATE)),
            *(_scaled(trial.row.get(column), NS_PER_MS) for column in (READ_P95, WRITE_P95)),
            trial.limit or "not identified",
            trial.status,
        ]
        for client in result.clients
        for trial in client.trials
    ]
    units = {"_gbps": "GiB/s", "_tokens_per_sec": "tok/s", "_p95_ms": "ms"}
    figures = [
        [name, value, unit]
        for name, value in asdict(result.aggregated).items()
        for end, unit in units.items()
        if name.endswith(end)
    ]
    columns = [
        ReportColumn("metric"),
        ReportColumn("value", unit=Unit.NUMBER),
        ReportColumn("unit"),
    ]
    note = "Sums over ranks, then means over trials; of P95s the greatest."
    return Document(
        name=name,
        headline=result.answer,
        notes=[
            *([] if result.expected is None else [result.expected.in_words()]),
            f"not claimed (mlperf.json says why): {'; '.join(result.not_claimed)}",
            *(f"space: {s}" for s in result.space),
        ],
        chapters=[
            Chapter(
                "",
                [
                    table_of("Trials", Sheet.PERFORMANCE, spec, rows),
                    table_of(
                        "Aggregated by the benchmark's names",
                        Sheet.PERFORMANCE,
                        columns,
                        figures,
                        note,
                    ),
                    rules_table(result.rules),
                ],
            )
        ],
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def summary_sheet(result: MlperfResult) -> PlainSheet:
    """Return the benchmark's export: a row for each trial of each rank, and one for all."""
    columns = list(result.clients[0].trials[0].row)
    together = {
        column: getattr(result.aggregated, field) for field, column in (SUMMED | WORST).items()
    }
    note = result.mark or ""
    rows = [
        [*(trial.row.get(column) for column in columns), f"rank {client.rank}, {trial.run}", note]
        for client in result.clients
        for trial in client.trials
    ]
    rows.append([*(together.get(column) for column in columns), AGGREGATE, note])
    return PlainSheet("Summary", [*columns, "Run", "Note"], rows)


def write_csv(result: MlperfResult, path: Path) -> None:
    """Write the benchmark's summary to `path`; unmeasured values are empty."""
    sheet, out = summary_sheet(result), io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerows([sheet.header, *sheet.rows])
    write_text(path, out.getvalue())
