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
from kvtrace.core.document.chapters import Named, metrics_of, parameters_of
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.document.export import PlainSheet
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
    """The greatest P95 of all ranks and trials, not one of all samples.

    Null, and so is the next: not measured.
    """
    aggregated_device_write_p95_ms: float | None
    aggregated_total_read_p95_ms: float | None
    """As above, of the whole time of an object.

    Our name, for the benchmark aggregates the device's alone.
    """
    aggregated_total_write_p95_ms: float | None
    rank_count: int
    trial_count: int
    partial_failure: bool
    missing_files: list[str]
    cpu_tier_ranks: list[str]
    """Trials in which a rank moved nothing on storage."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What a drive file expects of an option's trace, replayed on it in virtual time before the
    first trial.
    """

    drive: str
    row: dict[str, float | None]
    """The columns of bandwidth and P95, as in a trial's."""
    over_measured: dict[str, float | None] = {}
    """Expected divided by the mean of the trials; null where one of them is not known."""

    def beside(self, trials: Sequence[MlperfTrial]) -> Expected:
        """Return it with its error beside `trials`."""
        found: dict[str, float | None] = {}
        for column, value in self.row.items():
            measured = [trial.row.get(column) for trial in trials]
            is_known = value is not None and measured and all(measured)
            found[column] = value / fmean(measured) if is_known else None  # type: ignore[arg-type, operator]
        return msgspec.structs.replace(self, over_measured=found)

    def in_words(self) -> str:
        """Return it in one line."""
        shown = []
        for column, (what, form, unit) in _EXPECTED.items():
            value, ratio = self.row[column], self.over_measured.get(column)
            if value is not None:
                shown.append(
                    f"{what}"
                    f" {form(value * unit)}{'' if ratio is None else f' ({ratio:.2f} of measured)'}"
                )
        return f"{self.drive} expects {', '.join(shown) or 'nothing that is measured'}"


class MlperfResult(msgspec.Struct, frozen=True, kw_only=True):
    """The content of mlperf.json."""

    program: str = "kvreplay"
    version: str = __version__
    argv: list[str]
    answer: str
    """What it came to, in one sentence."""
    mark: str | None
    """What the results must be marked with: which rules are not kept."""
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
    """Of the worst trial each."""
    criteria_note: str = (
        "the benchmark program's own health criteria; they are not a condition of a submission"
        " (mlcommons/storage issue 624)"
    )
    rules: list[Rule]
    space: list[str]
    not_claimed: dict[str, str]
    """What these figures are not, and why."""
    expected: Expected | None = None
    """By --drive; null without."""
    trace: str | None
    """Beside this file; made with the seed and options that its metadata holds."""
    clients: list[Client]


def trial_of(run: RunFile, name: str, served: Served) -> MlperfTrial:
    """Return the trial `name` made of `run`; `served` are the requests that it served whole."""
    named = parameters_of(run) | metrics_of(run) | served.named(run.summary.wall_ns)
    row = {column: value for column, (value, _) in named.items()}
    rates, definition = (
        (row[READ_RATE], row[WRITE_RATE]),
        "bytes of reads and writes on storage over the elapsed time",
    )
    rate = None if None in rates else sum(rates) * GIB
    # A trial only begins the trace of which the replay knows the hit rate.
    own: dict[str, tuple[float | None, str, Callable[[float], str]]] = {
        "storage_bandwidth_bytes_per_s": (rate, definition, format_rate),
        "hit_rate": (served.hit_rate, _HIT_NOTE, "{:.1%}".format),
    }
    criteria = [
        judge(c.name, c.threshold, *own[c.name]) if c.name in own else c
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
    """Aggregate `clients` by Rules.md 6.3.4; null where one of their trials lacks the value."""
    runs = [(client, trial) for client in clients for trial in client.trials]
    missing = [
        f"rank {client.rank}, trial {at + 1}"
        for client in clients
        for at in range(asked_trials)
        if at >= len(client.trials) or client.trials[at].status != "complete"
    ]

    def mean_of_sums(column: str) -> float | None:
        by_trial = [[c.trials[at].row.get(column) for c in clients] for at in range(fewest)]
        if not by_trial or any(None in values for values in by_trial):
            return None
        return fmean(sum(values) for values in by_trial)  # type: ignore[arg-type]

    def greatest(column: str) -> float | None:
        found: list[Any] = [trial.row.get(column) for _, trial in runs]
        return None if not found or None in found else max(found)

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
    """Make the result of `clients`; `result` holds the fields that do not follow from theirs."""
    found = aggregate(number, result["asked_trials"], clients)
    by_name: dict[str, list[Criterion]] = {}
    for criterion in (c for client in clients for trial in client.trials for c in trial.criteria):
        # Without a CPU tier its criterion is absent.
        if has_memory or criterion.name != "cpu_p95_ns":
            by_name.setdefault(criterion.name, []).append(criterion)
    # Each of the trial that met it worst.
    signs = {name: 1 if name.endswith("_p95_ns") else -1 for name in by_name}
    criteria = [
        max(each, key=lambda c: (_SEVERITY.index(c.verdict), signs[c.name] * (c.measured or 0)))
        for each in by_name.values()
    ]
    mark = mark_of(result["rules"])
    limits = Counter(
        trial.limit or "not identified" for client in clients for trial in client.trials
    )
    limit = ", ".join(
        name if len(limits) == 1 else f"{name} ({count})" for name, count in limits.most_common()
    )
    read, write = found.aggregated_read_bandwidth_gbps, found.aggregated_write_bandwidth_gbps
    moved = "a bandwidth that is not known"
    if read is not None and write is not None:
        rates = [format_rate(rate * GIB) for rate in (read + write, read, write)]
        moved = f"{rates[0]} of storage ({rates[1]} read, {rates[2]} written)"
    times = [
        ("read", found.aggregated_total_read_p95_ms),
        ("write", found.aggregated_total_write_p95_ms),
    ]
    p95 = ", ".join(
        f"{op} P95"
        f" {'not known (a trial with fewer than 20)' if ms is None else format_duration(ms * NS_PER_MS)}"
        for op, ms in times
    )
    over = f"over {counted(found.trial_count, 'trial')}"
    over += f" of {found.rank_count} ranks" if found.rank_count > 1 else ""
    partial = (
        f"; partial: {', '.join(found.missing_files)} not complete" if found.partial_failure else ""
    )
    said = [
        f"{result['option']}: {moved}, {p95} {over}{partial}",
        f"bottleneck: {limit}",
        *([mark] if mark else []),
    ]
    return MlperfResult(
        **result,
        answer="; ".join(said),
        mark=mark,
        status="partial" if found.partial_failure else "complete",
        aggregated=found,
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


_NOTE = "of the requests served whole within the trial"
_IO_NOTE = f"{_NOTE}; over the time of their storage operations, added up"
_HIT_NOTE = f"{_NOTE}: earlier turns found, of those looked up"


@dataclass(frozen=True, slots=True)
class Served:
    """Tokens, hits and times of the requests that were served whole."""

    requests: int
    tokens: int
    storage_io_ns: int
    """Latencies of their reads and writes on storage, added up."""
    lookups: int
    """Earlier turns of their conversations, each of which is looked up."""
    hits: int

    @property
    def hit_rate(self) -> float | None:
        """Hits of lookups; None without a lookup."""
        return self.hits / self.lookups if self.lookups else None

    def named(self, wall_ns: int | None) -> Named:
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
    """Sum the requests of the table `requests` that `run` served whole."""
    served = open_table(run / SERVED_FILE, SERVED).whole()
    unfinished, operations = (
        served.column(name).to_numpy() for name in ("unfinished", "operations")
    )
    ids, hits = (served.column(name).to_numpy() for name in ("request_id", "hits"))
    is_whole = (unfinished == 0) & (operations > 0)
    asked = open_table(requests, REQUESTS).whole()
    order = np.argsort(asked.column("request_id").to_numpy())
    # A repeat of the trace counts its requests on.
    at = order[ids[is_whole] % max(1, len(order))]
    tokens, turns = (asked.column(name).to_numpy() for name in ("output_tokens", "turn"))
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
        tokens=int(tokens[at].sum()),
        storage_io_ns=storage_io_ns,
        lookups=int(turns[at].sum()),
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
        f"Storage Tier {op} {part} {point} (ms)": (
            f"cache_stats.storage_{op.lower()}{infix}_{field}_ms"
        )
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


def as_summary(row: Mapping[str, object]) -> dict[str, object]:
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
    """Return the columns of the benchmark's export.

    A row for each trial of each rank, and one for all together.
    """
    found = result.aggregated
    columns = list(result.clients[0].trials[0].row)
    together = {column: getattr(found, field) for field, column in (SUMMED | WORST).items()}
    note = result.mark or ""
    rows = [
        [*(trial.row.get(column) for column in columns), f"rank {client.rank}, {trial.run}", note]
        for client in result.clients
        for trial in client.trials
    ]
    rows.append([*(together.get(column) for column in columns), AGGREGATE, note])
    return PlainSheet("Summary", [*columns, "Run", "Note"], rows)


def write_csv(result: MlperfResult, path: Path) -> None:
    """Write the benchmark's summary to `path`; what was not measured is empty."""
    sheet, out = summary_sheet(result), io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerows([sheet.header, *sheet.rows])
    write_text(path, out.getvalue())
