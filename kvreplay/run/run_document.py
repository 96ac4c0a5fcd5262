"""Runs, trials, sweeps and machines as documents.

A headline that judges them, notes, and tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import asdict

from kvreplay.plan.contents import describe
from kvreplay.plan.replay_config import Criteria
from kvreplay.result.figures import WARNING
from kvreplay.result.summarize import repeated, replayed_part
from kvreplay.run.replay import FinishedRun
from kvtrace.core.document.document import (
    TIME_COLUMNS,
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.document.run_chapters import checkpoint_sentence, checkpoint_tables, ranks_tables
from kvtrace.core.run.figures import Distribution, Figures, Mlperf, RequestFigures, Summary
from kvtrace.core.run.run_file import RanksNote, RunFile, Verification
from kvtrace.core.units import counted, format_bytes, format_count, format_duration, percent

SHOWN_BAD_BLOCKS = 1000
_BYTES = {"read": "read", "write": "written"}
_OPERATIONS = [
    ReportColumn("tier"),
    ReportColumn("op"),
    ReportColumn("engine"),
    ReportColumn("operations", unit=Unit.COUNT),
    ReportColumn("errors", unit=Unit.COUNT),
    ReportColumn("bytes", unit=Unit.BYTES),
    ReportColumn("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
    ReportColumn("operations_per_s", "op/s", Unit.PER_S),
    ReportColumn("in_flight_mean", "in flight", Unit.NUMBER),
    ReportColumn("in_flight_max", "at most", Unit.COUNT),
]


def run_document(finished: FinishedRun) -> Document:
    """Make the document of a run; the headline is its verdict."""
    run, summary = finished.run, finished.run.summary
    notes = [note for note in run.notes if not note.startswith(WARNING)]
    partial = "PARTIAL: " if run.status == "partial" else ""
    answer = "" if run.checkpoints is None else f"{checkpoint_sentence(run.checkpoints)}; "
    usual = (
        None,
        msgspec.to_builtins(Criteria()),
    )  # the benchmark program's own, which are no rule of a submission
    tables = [
        *(ranks_tables(run.ranks) if isinstance(run.ranks, RanksNote) else []),
        *([] if run.checkpoints is None else checkpoint_tables(run.checkpoints)),
        _operations("Operations", summary.figures),
        *([_operations("Operations by drive", summary.drives)] if summary.drives else []),
        *([_times("Service time by drive", summary.drives, "latency")] if summary.drives else []),
        *(
            [_times("Response time by drive", summary.drives, "response")]
            if summary.drives and summary.pace
            else []
        ),
        _times("Service time", summary.figures, "latency"),
        *([_times("Response time", summary.figures, "response")] if summary.pace else []),
        _times("Service time per MiB", summary.figures, "latency_per_mib", 1),
        *(
            [_times("Lateness", summary.figures, "lateness", total=summary.pace.lateness)]
            if summary.pace
            else []
        ),
        *([] if run.requests is None else _requests(run.requests)),
        *(
            []
            if run.mlperf is None or run.config.get("criteria") in usual
            else [_criteria(run.mlperf)]
        ),
    ]
    verified = _verified(run.verification)
    checked = "".join(f"; {line.partition(' of 4 KiB')[0]}" for line in verified[:1])
    return Document(
        name="",
        headline=f"{partial}{answer}{summary.verdict}; {_totals(summary)}{checked}",
        chapters=[Chapter("", tables, list(_after(run)))],
        notes=[_window(finished), *_before(run), *notes, *_beneath(run), *_off(run), *verified],
        warnings=[note for note in run.notes if note.startswith(WARNING)],
    )


def _totals(summary: Summary) -> str:
    unreached = f", {summary.not_reached:,} not reached" if summary.not_reached else ""
    mix = f"; {summary.mix}" if summary.mix else ""
    left_out_ns = None if summary.warmup is None else summary.warmup.measured_from_ns
    after = (
        f"{format_duration((summary.wall_ns or 0) - left_out_ns)} after the warm-up"
        if left_out_ns
        else None
    )
    return (
        f"{counted(summary.operations or 0, 'operation')} in"
        f" {after or format_duration(summary.wall_ns)}{unreached}{mix}"
    )


def _window(finished: FinishedRun) -> str:
    window = finished.run.window
    if finished.run.engine.name == "other":
        return (
            f"recorded {counted(window.rows, 'operation')} of {window.limit}, over"
            f" {format_duration(window.span_ns)}"
        )
    window_text = "the whole trace" if window.is_whole_trace else replayed_part(window)
    missed, times = finished.summary.not_reached or 0, finished.summary.trace_times
    if window.repeats is not None:
        if finished.run.status == "partial" or times is None:
            again = f"{replayed_part(window)} repeatedly"
            return f"was to replay {again} for {format_duration(window.runtime_ns)} (--duration)"
        took = (
            f"{format_duration(finished.summary.wall_ns)} (--duration"
            f" {format_duration(window.runtime_ns)})"
        )
        window_text = f"{repeated(replayed_part(window), times)} in {took}"
    repeats_text = "was to replay" if finished.run.status == "partial" else "replayed"
    rows = counted(window.rows if window.node is None else window.planned_rows or 0, "row")
    if missed and window.repeats is not None:
        planned = window.planned_rows or 0
        rows = f"{planned - missed:,} of {counted(planned, 'operation')}"
    return f"{repeats_text} {window_text}: {rows}, {format_duration(window.span_ns)} of trace time"


def _before(run: RunFile) -> Iterator[str]:
    """Yield lines on the data that was written before the measurement."""
    for condition in run.preconditioned:
        written = format_bytes(condition.written_bytes)
        steady = (
            ""
            if condition.is_steady is None
            else f"; {'steady' if condition.is_steady else 'NOT STEADY'}"
        )
        steady += (
            f" after {counted(len(condition.rounds_bytes_per_s or []), 'round')}" if steady else ""
        )
        yield f"preconditioned {condition.tier}, not measured: {written} written{steady}"
    for name in run.tiers:
        laid_out = sum(
            facts.get("written_first_bytes") or 0 for tier, facts in run.drives() if tier == name
        )
        if laid_out:
            yield f"allocated {name} first, not measured: {format_bytes(laid_out)} written"
    if run.populated is not None and run.populated.objects:
        written = format_bytes(run.populated.bytes)
        yield (
            f"populated first, not measured: {counted(run.populated.objects, 'object')}, {written}"
        )
    for name, facts in run.drives():
        if duration_text := facts.get("taken_over_files"):
            yield (
                f"{name}: {counted(duration_text, 'file')} of the run before reused, of the same length;"
                " not written again"
            )
    if run.prepared is not None:
        yield f"setup: {format_duration(run.prepared.total_ns)}"


def _beneath(run: RunFile) -> Iterator[str]:
    """Yield lines on the I/O that devices and probes counted during the run."""
    for name, device_io in run.device_io.items():
        if device_io.read_bytes is not None:
            yield (
                f"device beneath {name}{_device(run, name)}: {format_bytes(device_io.read_bytes)} read,"
                f" {format_bytes(device_io.written_bytes)} written during the run, by all programs"
            )
    if run.probes is not None and run.probes.is_measured:
        events = run.probes.event_rows
        device_names = (
            f" and {counted(events, 'block request')} in blocks.parquet"
            if isinstance(events, int)
            else ""
        )
        yield f"probed: probe.json{device_names}; kvdistill report shows where the time went"


def _off(run: RunFile) -> Iterator[str]:
    """Yield a line on the errors of the measurement itself."""
    metrology = run.metrology
    if metrology is None or all(figures.is_simulated for figures in run.summary.figures):
        return
    quantiles = ((metrology.late_p50_ns, "median"), (metrology.late_p99_ns, "p99"))
    delays = [
        f"{label} {format_duration(late_ns)}" for late_ns, label in quantiles if late_ns is not None
    ]
    lateness = f"submission after the trace's time: {', '.join(delays)}; " if delays else ""
    off = [
        f"{_BYTES[op]} {share:+.1%}"
        for op, share in metrology.bytes_off.items()
        if share is not None
    ]
    traffic = (
        f"device bytes, of all programs, by operation bytes: {', '.join(off)}; " if off else ""
    )
    yield (
        f"measurement: {lateness}{traffic}clock resolution"
        f" {format_duration(metrology.clock_step_ns)}; one run does not show repeatability"
        " (--trials)"
    )


def _device(run: RunFile, drive: str) -> str:
    """Return the device beneath a tier, or beneath one of the drives of a tier, in parentheses.

    Empty if not known.
    """
    tier_facts = [
        facts["device"]
        for name, facts in run.drives()
        if drive in (name, f"{name}:{facts['target']}")
    ]
    return f" ({tier_facts[0]})" if tier_facts else ""


def _verified(verification: Verification | None) -> list[str]:
    if verification is None:
        return []
    if not verification.corrupt_blocks:
        return [f"verified {counted(verification.checked_blocks, 'block')} of 4 KiB: none corrupt"]
    lines = [
        (
            f"CORRUPT: {verification.corrupt_blocks:,} of {counted(verification.checked_blocks, 'block')} of 4 KiB"
            " read"
        )
    ]
    lines += [
        f"  row {bad.row}: {describe(bad)}" for bad in verification.located[:SHOWN_BAD_BLOCKS]
    ]
    if verification.corrupt_blocks > SHOWN_BAD_BLOCKS:
        lines.append(f"  … run.json lists {len(verification.located):,}")
    return lines


def _operations(title: str, figures: list[Figures]) -> ReportTable:
    return table_of(
        title, Sheet.PERFORMANCE, _OPERATIONS, [asdict(f) | {"op": _op(f)} for f in figures], keys=2
    )


def _op(figures: Figures) -> str:
    return f"{figures.op} (simulated)" if figures.is_simulated else figures.op


def _times(
    title: str,
    all_figures: list[Figures],
    name: str,
    min_count: int = 0,
    total: Distribution | None = None,
) -> ReportTable:
    """Return the table of the distributions `name` of figures with at least `min_count` operations.

    The last row is `total`, the distribution over all operations.
    """
    times = [
        (figures, distribution)
        for figures in all_figures
        if (distribution := getattr(figures, name)) is not None and distribution.count >= min_count
    ]
    rows = [
        asdict(distribution) | {"tier": figures.tier, "op": _op(figures)}
        for figures, distribution in times
    ]
    has_errors = any(figures.errors for figures in all_figures)
    label = "all, failed ones too" if has_errors else "all"
    rows += [] if total is None else [asdict(total) | {"tier": label, "op": ""}]
    return table_of(
        title,
        Sheet.PERFORMANCE,
        [
            ReportColumn("tier"),
            ReportColumn("op"),
            *TIME_COLUMNS,
            ReportColumn("max_ns", "max", Unit.NS),
        ],
        rows,
        keys=2,
    )


def _requests(requests: RequestFigures) -> list[ReportTable]:
    times = [("storage, all", requests.storage)]
    if requests.response is not None:
        times.append(("response, all", requests.response))
    times += [
        (
            f"{'storage' if c.response is None else 'response'}, {c.qos} ({c.verdict})",
            c.response or c.storage,
        )
        for c in requests.classes
    ]
    if requests.first_token is not None:
        times.append(("first token (computing modelled)", requests.first_token))
    columns = [
        ReportColumn("time"),
        ReportColumn("count", "requests", Unit.COUNT),
        *TIME_COLUMNS,
        ReportColumn("max_ns", "max", Unit.NS),
    ]
    rows = [
        asdict(class_figures) | {"time": name}
        for name, class_figures in times
        if class_figures.count
    ]
    return [table_of("Requests", Sheet.QOS, columns, rows)] if rows else []


def _criteria(mlperf: Mlperf) -> ReportTable:
    columns = [
        ReportColumn("name", "criterion"),
        ReportColumn("shown", "measured and threshold"),
        ReportColumn("verdict"),
    ]
    return table_of("Criteria (--criteria)", Sheet.QOS, columns, mlperf.criteria)


def _after(run: RunFile) -> Iterator[str]:
    """Yield the figures that are read after the tables."""
    requests, mlperf, generation = run.requests, run.mlperf, run.summary.generation
    if requests is not None and requests.first_token is not None and requests.first_token_unknown:
        yield (
            f"{counted(requests.first_token_unknown, 'request')} without first token: a load was"
            " not replayed"
        )
    if mlperf is not None and mlperf.throughput.tokens is not None:
        rates = mlperf.throughput
        by_storage, by_wall = (
            rates.storage_throughput_tokens_per_s,
            rates.wall_clock_throughput_tokens_per_s,
        )
        yield (
            f"MLPerf throughput: {format_count(by_storage)} tokens a second of storage I/O, "
            f"{format_count(by_wall)} by the wall clock"
        )
    for qos, share in ((mlperf and mlperf.qos_compliance) or {}).items():
        yield (
            f"MLPerf QoS compliance, {qos}: {'-' if share is None else percent(share)} within the"
            " p95 target"
        )
    for rate in run.summary.judgement.tiers if run.summary.judgement else ():
        if rate.p99_measured_over_predicted is not None:
            low, high = rate.p99_measured_over_predicted
            yield (
                f"{rate.tier}: latencies are predicted; measured p99 was {low:.2g} to {high:.2g} times"
                " the predicted one in 90 % of its drive file's held-out cells"
            )
    if generation is not None:
        yield (
            f"data generation took {percent(generation.share_of_threads)} of the threads' time,"
            f" allocating extents {percent(generation.reserve_share)}"
        )
