"""How a run is shown on a terminal: a first line that judges it, notes, and three tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvreplay.data.verify import describe
from kvreplay.result.figures import percent
from kvtrace.core.app import emit_table
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from kvreplay.run.compare import Compared, Side
    from kvreplay.run.run import Outcome
    from kvreplay.run.trials import Trials
    from kvtrace.core.run.figures import Distribution, Figures, Mlperf, RequestFigures
    from kvtrace.core.run.run_file import Preconditioned, RunFile

SHOWN_BAD_BLOCKS = 10


def show_run(outcome: Outcome) -> None:
    """Print the figures of a run."""
    summary, run = outcome.summary, outcome.run
    partial = "" if outcome.error is None else "PARTIAL: "
    typer.echo(f"{partial}{summary.verdict}; {_totals(outcome)}")
    window, generation = run.window, summary.generation
    part = "the whole trace" if window.is_whole_trace else f"the trace's start, --limit {window.limit}"
    done = "replayed" if outcome.error is None else "was to replay"
    typer.echo(f"{done} {part}: {window.rows:,} rows, {format_duration(window.span_ns)} of trace time")
    _show_before(run)
    for note in run.notes:
        typer.echo(note)
    for name, moved in run.device_io.items():
        if moved.read_bytes is not None:
            typer.echo(
                f"device beneath {name} ({_device(run, name)}): {format_bytes(moved.read_bytes)} read, "
                f"{format_bytes(moved.written_bytes)} written meanwhile, by all programs"
            )
    if run.probes is not None and run.probes.is_measured:
        events = run.probes.event_rows
        kept = f" and {events:,} block requests in blocks.parquet" if isinstance(events, int) else ""
        typer.echo(f"probed: probe.json{kept}; kvdistill report shows where the time went")
    _show_verification(outcome)
    typer.echo("")
    emit_table("Operations", _OPERATIONS, [_operations(f) for f in summary.figures])
    if summary.drives:
        emit_table("Operations by drive", _OPERATIONS, [_operations(f) for f in summary.drives])
        emit_table("Latency by drive", ("tier op", *_TIMES), [(_name(f), *_times(f.latency)) for f in summary.drives])
    emit_table("Latency", ("tier op", *_TIMES), [(_name(f), *_times(f.latency)) for f in summary.figures])
    emit_table("Latency per MiB", ("tier op", *_TIMES), [
        (_name(f), *_times(f.latency_per_mib)) for f in summary.figures if f.latency_per_mib and f.latency_per_mib.count
    ])  # fmt: skip
    if summary.pace is not None:
        rows = [(_name(f), *_times(f.lateness)) for f in summary.figures if f.lateness is not None]
        emit_table("Lateness", ("tier op", *_TIMES), [*rows, ("all", *_times(summary.pace.lateness))])
    if run.requests is not None:
        _show_requests(run.requests)
    if run.mlperf is not None:
        _show_mlperf(run.mlperf)
    if generation is not None:
        typer.echo(
            f"making data took {percent(generation.share_of_threads)} of its threads' time and making room "
            f"{percent(generation.reserve_share)}; submitting threads waited for it "
            f"{percent(generation.starved_share)} of theirs"
        )


def _show_mlperf(found: Mlperf) -> None:
    criteria = [(c.name, c.shown, c.verdict) for c in found.criteria]
    emit_table("MLPerf health criteria", ("criterion", "measured and threshold", "verdict"), criteria)
    rates = found.throughput
    if rates.tokens is not None:
        storage = shown("tokens_per_s", rates.storage_throughput_tokens_per_s)
        wall = shown("tokens_per_s", rates.wall_clock_throughput_tokens_per_s)
        typer.echo(f"MLPerf throughput: {storage} tokens a second of storage I/O, {wall} by the wall clock")
    for qos, share in (found.qos_compliance or {}).items():
        typer.echo(f"MLPerf QoS compliance, {qos}: {'-' if share is None else percent(share)} within the p95 target")


def _show_requests(found: RequestFigures) -> None:
    rows = [("storage, all", found.storage)]
    rows += [(f"storage, {c.qos} ({c.verdict})", c.storage) for c in found.classes]
    if found.first_token is not None:
        rows.append(("first token (computing modelled)", found.first_token))
    shown = [(name, format_count(d.count), *_times(d)) for name, d in rows if d.count]
    if shown:
        emit_table("Requests", ("time", "requests", *_TIMES), shown)
    if found.first_token is not None and found.first_token_unknown:
        typer.echo(f"{found.first_token_unknown:,} requests have no time to the first token: a load was not replayed")


def _show_before(run: RunFile) -> None:
    """Print what was written before anything was measured."""
    for done in run.preconditioned:
        written = format_bytes(done.written_bytes)
        typer.echo(f"preconditioned {done.tier}, not measured: {written} written{_steady(done)}")
    for name in run.tiers:
        laid_out = sum(facts.get("written_first_bytes") or 0 for tier, facts in run.drives() if tier == name)
        if laid_out:
            typer.echo(f"laid out {name} first, not measured: {format_bytes(laid_out)} written")
    if run.populated is not None and run.populated.objects:
        typer.echo(
            f"populated first, not measured: {run.populated.objects:,} objects, {format_bytes(run.populated.bytes)}"
        )


def _steady(done: Preconditioned) -> str:
    if done.is_steady is None:
        return ""
    return f"; {'steady' if done.is_steady else 'NOT STEADY'} after {len(done.rounds_bytes_per_s or [])} rounds"


def _device(run: RunFile, drive: str) -> str | None:
    """Return the device beneath a tier, or beneath one of the drives of a tier."""
    for name, facts in run.drives():
        if drive in (name, f"{name}:{facts['target']}"):
            return str(facts["device"])
    return None


def show_trials(trials: Trials) -> None:
    """Print the median and spread of every figure."""
    for warning in trials.warnings:
        typer.echo(warning)
    for tier in trials.simulated_tiers:
        typer.echo(f"tier {tier} is SIMULATED: no figure counts it")
    if not trials.warnings and len(trials.runs) > 1 and trials.quantities:
        typer.echo(f"{len(trials.runs)} trials agree")
    rows = [
        (f"{q.tier} {q.op} {q.name}", shown(q.name, q.median), shown(q.name, q.low), shown(q.name, q.high),
         None if q.spread is None else f"{q.spread:.1%}")
        for q in trials.quantities if q.median is not None
    ]  # fmt: skip
    typer.echo("")
    emit_table(
        f"{len(trials.runs)} of {trials.asked} trials", ("figure", "median", "least", "greatest", "spread"), rows
    )


def show_comparison(compared: Compared) -> None:
    """Print runs beside each other, ratios to the first."""
    for warning in compared.warnings:
        typer.echo(f"warning: {warning}")
    names = [f"[{i}] {name}" for i, name in enumerate(compared.runs)]
    for name, count in zip(names, compared.trials, strict=True):
        typer.echo(f"{name}: {count} trial{'s' if count > 1 else ''}")
    typer.echo("")
    columns = [f"[{i}]" for i in range(len(names))]
    differing = [(name, *map(str, values)) for name, values in compared.settings.items()]
    if differing:
        emit_table("Settings that differ", ("setting", *columns), differing)
    rows = []
    for line in compared.lines:
        cells = [None if s is None else shown(line.name, s.median) for s in line.sides]
        rows.append((f"{line.tier} {line.op} {line.name}", *cells, *[_ratio(s) for s in line.sides[1:]]))
    ratios = [f"[{i}]/[0]" for i in range(1, len(names))]
    emit_table("Medians, and ratios to the first", ("figure", *columns, *ratios), rows)
    typer.echo("! the trials' 95 % interval, in brackets, does not hold 1   = it does   ? one trial cannot tell")


def _ratio(side: Side | None) -> str | None:
    if side is None or side.ratio.value is None:
        return None
    found = side.ratio
    if found.low is None or found.high is None:
        return f"{found.value:.3f} ?"
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}] {'!' if found.differs else '='}"


def shown(name: str, value: float | None) -> str:
    """Return a figure in the unit that its name ends in."""
    if name.endswith("_ns"):
        return format_duration(value)
    if name.endswith("bytes_per_s"):
        return format_rate(value)
    return "-" if value is None else f"{value:,.0f}"


def _show_verification(outcome: Outcome) -> None:
    found = outcome.verification
    if found is None:
        return
    if not found.corrupt_blocks:
        typer.echo(f"verified {found.checked_blocks:,} blocks of 4 KiB: none corrupt")
        return
    typer.echo(f"CORRUPT: {found.corrupt_blocks:,} of {found.checked_blocks:,} blocks of 4 KiB read")
    for bad in found.located[:SHOWN_BAD_BLOCKS]:
        typer.echo(f"  row {bad.row}: {describe(bad)}")
    if found.corrupt_blocks > SHOWN_BAD_BLOCKS:
        typer.echo(f"  … run.json lists the first {len(found.located):,}")


def _totals(outcome: Outcome) -> str:
    summary = outcome.summary
    failed = f", {summary.errors:,} FAILED" if summary.errors else ""
    missed = f", {summary.not_reached:,} not reached" if summary.not_reached else ""
    return f"{summary.operations:,} operations in {format_duration(summary.wall_ns)}{failed}{missed}"


_OPERATIONS = ("tier op", "engine", "operations", "errors", "bytes", "bandwidth", "op/s", "in flight", "at most")
_TIMES = ("mean", "p50", "p95", "p99", "p99.9", "p99.99", "max")


def _name(figures: Figures) -> str:
    return f"{figures.tier} {figures.op}{' (simulated)' if figures.is_simulated else ''}"


def _operations(figures: Figures) -> tuple[object, ...]:
    rate, depth = figures.operations_per_s, figures.in_flight_mean
    return (
        _name(figures), figures.engine, format_count(figures.operations), format_count(figures.errors),
        format_bytes(figures.bytes), format_rate(figures.bandwidth_bytes_per_s),
        None if rate is None else f"{rate:,.0f}", None if depth is None else f"{depth:.2f}",
        format_count(figures.in_flight_max),
    )  # fmt: skip


def _times(d: Distribution) -> tuple[str, ...]:
    times = (d.mean_ns, d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns, d.max_ns)
    return tuple(format_duration(t) for t in times)
