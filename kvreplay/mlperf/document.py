"""The plan and the result of an option as documents, and the result as a workbook and CSV of the benchmark's names."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict

from kvreplay.mlperf.check import Checked
from kvreplay.mlperf.result import GIB, NS_PER_MS, READ_P95, READ_RATE, WRITE_P95, WRITE_RATE, MlperfResult, Served
from kvreplay.mlperf.rules import Attempt, Kept, Rule, mark_of
from kvtrace.core.document.chapters import run_sheets
from kvtrace.core.document.document import Chapter, Document, ReportTable, Sheet, columns_of, parameters, table_of
from kvtrace.core.document.export import PlainSheet, write_workbook
from kvtrace.core.files import write_text
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.units import counted, format_duration

AGGREGATE = "aggregate (Rules.md 6.3.4)"


def plan_document(attempt: Attempt, rules: Sequence[Rule]) -> Document:
    """Make the document of a dry run: what would run, where, and which rules are kept."""
    mark = mark_of(rules)
    trials = f"{counted(attempt.trials, 'trial')} of {format_duration(attempt.runtime_ns)}"
    headline = f"{attempt.option.name}: would run {trials} on {attempt.place.target}"
    facts = {
        "workload": attempt.option.said,
        "preset": attempt.option.preset,
        "seed": attempt.seed,
        "I/Os in flight": attempt.config.depth,
        "space": attempt.space,
    }
    tables = [parameters("Plan", Sheet.PARAMETERS, facts), _rules(rules)]
    return Document(name="", headline=f"{headline}; {mark or 'no rule is broken'}", chapters=[Chapter("", tables)])


def result_document(result: MlperfResult, name: str = "") -> Document:
    """Make the document of a result; the headline is its answer."""
    spec = """
        text: run; bytes_per_s: read_rate = read, write_rate = written; ns: read P95, write P95
        text: limit = bottleneck, status
    """
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
                    ReportTable("Trials", Sheet.PERFORMANCE, columns_of(spec), rows),
                    _aggregated(result),
                    _rules(result.rules),
                ],
            )
        ],
    )


def check_document(found: Checked) -> Document:
    """Make the document of a checked result tree: its faults, then the rules."""
    faults = [asdict(each) for each in found.findings]
    tables = (
        [table_of("Faults", Sheet.PERFORMANCE, "text: rule = Rules.md, path, what = fault", faults)] if faults else []
    )
    return Document(
        name="",
        headline=found.answer,
        notes=[f"not checked: {what} ({rule})" for rule, what in found.not_checked.items()],
        chapters=[Chapter("", [*tables, _rules(found.rules)])],
    )


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _aggregated(result: MlperfResult) -> ReportTable:
    found = result.aggregated
    units = {"_gbps": "GiB/s", "_tokens_per_sec": "tok/s", "_p95_ms": "ms"}
    rows = [
        [name, value, unit]
        for name, value in asdict(found).items()
        for end, unit in units.items()
        if name.endswith(end)
    ]
    columns = columns_of("text: metric; number: value; text: unit")
    note = "Sums over ranks, then means over trials; of P95s the greatest."
    return ReportTable("Aggregated by the benchmark's names", Sheet.PERFORMANCE, columns, rows, note=note)


def _rules(rules: Sequence[Rule]) -> ReportTable:
    rows = [asdict(r) | {"kept": "NOT KEPT" if r.kept is Kept.NO else r.kept.value} for r in rules]
    return table_of("Rules", Sheet.PARAMETERS, "text: rule, reference = Rules.md, kept, detail", rows)


def summary_sheet(result: MlperfResult) -> PlainSheet:
    """Return the columns of the benchmark's export: a row for each trial of each rank, and one for all together."""
    found = result.aggregated
    columns = list(result.clients[0].trials[0].row)
    together = {
        READ_RATE: found.aggregated_read_bandwidth_gbps,
        WRITE_RATE: found.aggregated_write_bandwidth_gbps,
        READ_P95: found.aggregated_total_read_p95_ms,
        WRITE_P95: found.aggregated_total_write_p95_ms,
        "Avg Throughput (tok/s)": found.aggregated_avg_throughput_tokens_per_sec,
        "Storage Throughput (tok/s)": found.aggregated_storage_throughput_tokens_per_sec,
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
    """Write the benchmark's summary to `path`; what was not measured is empty."""
    sheet, out = summary_sheet(result), io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerows([sheet.header, *sheet.rows])
    write_text(path, out.getvalue())


def write_book(result: MlperfResult, runs: Sequence[tuple[str, RunFile, Served]], path: Path) -> None:
    """Write the benchmark's sheets, of `runs` where they are at hand, and ours behind them, to `path`.

    Raises:
        ProbeUnavailable: the library that writes workbooks is missing.

    """
    known = [served.named(run.summary.wall_ns) for _, run, served in runs]
    rest = run_sheets([(name, run) for name, run, _ in runs], known)[1:] if runs else []
    write_workbook([result_document(result, result.option)], path, [summary_sheet(result), *rest])
