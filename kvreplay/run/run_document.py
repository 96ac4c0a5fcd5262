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
from kvreplay.run.discover import Discovery
from kvreplay.run.replay import FinishedRun
from kvtrace.core.document.chapters import checkpoint_sentence, checkpoint_tables, ranks_tables
from kvtrace.core.document.document import (
    TIME_COLUMNS,
    Chapter,
    Document,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.run.figures import Distribution, Figures, Mlperf, RequestFigures, Summary
from kvtrace.core.run.run_file import RanksNote, RunFile, Verification
from kvtrace.core.units import counted, format_bytes, format_count, format_duration, percent

SHOWN_BAD_BLOCKS = 1000
_BYTES = {"read": "read", "write": "written"}
_RATES = {"bandwidth_bytes_per_s": Unit.BYTES_PER_S, "operations_per_s": Unit.PER_S}
_OPERATIONS = """
    text: tier, op, engine
    count: operations, errors
    bytes: bytes
    bytes_per_s: bandwidth_bytes_per_s = bandwidth
    per_s: operations_per_s = op/s
    number: in_flight_mean = in flight
    count: in_flight_max = at most
"""


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
            [_times("Lateness", summary.figures, "lateness", every=summary.pace.lateness)]
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
    left = f", {summary.not_reached:,} not reached" if summary.not_reached else ""
    mix = f"; {summary.mix}" if summary.mix else ""
    left_out_ns = None if summary.warmup is None else summary.warmup.measured_from_ns
    after = (
        f"{format_duration((summary.wall_ns or 0) - left_out_ns)} after the warm-up"
        if left_out_ns
        else None
    )
    return (
        f"{counted(summary.operations or 0, 'operation')} in"
        f" {after or format_duration(summary.wall_ns)}{left}{mix}"
    )


def _window(finished: FinishedRun) -> str:
    window = finished.run.window
    if finished.run.engine.name == "other":
        return (
            f"recorded {counted(window.rows, 'operation')} of {window.limit}, over"
            f" {format_duration(window.span_ns)}"
        )
    part = "the whole trace" if window.is_whole_trace else replayed_part(window)
    missed, times = finished.summary.not_reached or 0, finished.summary.trace_times
    if window.repeats is not None:
        if finished.run.status == "partial" or times is None:
            again = f"{replayed_part(window)} repeatedly"
            return f"was to replay {again} for {format_duration(window.runtime_ns)} (--duration)"
        took = (
            f"{format_duration(finished.summary.wall_ns)} (--duration"
            f" {format_duration(window.runtime_ns)})"
        )
        part = f"{repeated(replayed_part(window), times)} in {took}"
    done = "was to replay" if finished.run.status == "partial" else "replayed"
    rows = counted(window.rows if window.node is None else window.planned_rows or 0, "row")
    if missed and window.repeats is not None:
        planned = window.planned_rows or 0
        rows = f"{planned - missed:,} of {counted(planned, 'operation')}"
    return f"{done} {part}: {rows}, {format_duration(window.span_ns)} of trace time"


def _before(run: RunFile) -> Iterator[str]:
    """Yield what was written before anything was measured."""
    for done in run.preconditioned:
        written = format_bytes(done.written_bytes)
        steady = (
            "" if done.is_steady is None else f"; {'steady' if done.is_steady else 'NOT STEADY'}"
        )
        steady += f" after {counted(len(done.rounds_bytes_per_s or []), 'round')}" if steady else ""
        yield f"preconditioned {done.tier}, not measured: {written} written{steady}"
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
        if taken := facts.get("taken_over_files"):
            yield (
                f"{name}: {counted(taken, 'file')} of the run before reused, of the same length;"
                " not written again"
            )
    if run.prepared is not None:
        yield f"setup: {format_duration(run.prepared.total_ns)}"


def _beneath(run: RunFile) -> Iterator[str]:
    """Yield what devices and probes saw meanwhile."""
    for name, moved in run.device_io.items():
        if moved.read_bytes is not None:
            yield (
                f"device beneath {name}{_device(run, name)}: {format_bytes(moved.read_bytes)} read,"
                f" {format_bytes(moved.written_bytes)} written during the run, by all programs"
            )
    if run.probes is not None and run.probes.is_measured:
        events = run.probes.event_rows
        kept = (
            f" and {counted(events, 'block request')} in blocks.parquet"
            if isinstance(events, int)
            else ""
        )
        yield f"probed: probe.json{kept}; kvdistill report shows where the time went"


def _off(run: RunFile) -> Iterator[str]:
    """Yield how far off the measurement itself is."""
    found = run.metrology
    if found is None or all(figures.is_simulated for figures in run.summary.figures):
        return
    each = ((found.late_p50_ns, "the median"), (found.late_p99_ns, "p99"))
    known = [
        f"{format_duration(late_ns)} at {what}" for late_ns, what in each if late_ns is not None
    ]
    late = f"operations submitted after the trace's time: {', '.join(known)}; " if known else ""
    off = [
        f"{_BYTES[op]} {share:+.1%}" for op, share in found.bytes_off.items() if share is not None
    ]
    moved = (
        f"bytes at the device, of all programs, against those asked: {', '.join(off)}; "
        if off
        else ""
    )
    yield (
        f"measurement: {late}{moved}the clock's resolution is"
        f" {format_duration(found.clock_step_ns)}; one run does not show repeatability (--trials)"
    )


def _device(run: RunFile, drive: str) -> str:
    """Return the device beneath a tier, or beneath one of the drives of a tier, in parentheses.

    Empty if not known.
    """
    found = [
        facts["device"]
        for name, facts in run.drives()
        if drive in (name, f"{name}:{facts['target']}")
    ]
    return f" ({found[0]})" if found else ""


def _verified(found: Verification | None) -> list[str]:
    if found is None:
        return []
    if not found.corrupt_blocks:
        return [f"verified {counted(found.checked_blocks, 'block')} of 4 KiB: none corrupt"]
    lines = [
        (
            f"CORRUPT: {found.corrupt_blocks:,} of {counted(found.checked_blocks, 'block')} of 4 KiB"
            " read"
        )
    ]
    lines += [f"  row {bad.row}: {describe(bad)}" for bad in found.located[:SHOWN_BAD_BLOCKS]]
    if found.corrupt_blocks > SHOWN_BAD_BLOCKS:
        lines.append(f"  … run.json lists {len(found.located):,}")
    return lines


def _operations(title: str, figures: list[Figures]) -> ReportTable:
    return table_of(
        title, Sheet.PERFORMANCE, _OPERATIONS, [asdict(f) | {"op": _op(f)} for f in figures], keys=2
    )


def _op(figures: Figures) -> str:
    return f"{figures.op} (simulated)" if figures.is_simulated else figures.op


def _times(
    title: str, of: list[Figures], name: str, least: int = 0, every: Distribution | None = None
) -> ReportTable:
    """Return the table of a time of figures that have it, of so many operations at `least`.

    Last that of `every`.
    """
    times = [
        (f, found) for f in of if (found := getattr(f, name)) is not None and found.count >= least
    ]
    rows = [asdict(found) | {"tier": f.tier, "op": _op(f)} for f, found in times]
    whose = "all, failed ones too" if any(f.errors for f in of) else "all"
    rows += [] if every is None else [asdict(every) | {"tier": whose, "op": ""}]
    return table_of(
        title, Sheet.PERFORMANCE, f"text: tier, op; ns: {TIME_COLUMNS}, max_ns = max", rows, keys=2
    )


def _requests(found: RequestFigures) -> list[ReportTable]:
    times = [("storage, all", found.storage)]
    if found.response is not None:
        times.append(("response, all", found.response))
    times += [
        (
            f"{'storage' if c.response is None else 'response'}, {c.qos} ({c.verdict})",
            c.response or c.storage,
        )
        for c in found.classes
    ]
    if found.first_token is not None:
        times.append(("first token (computing modelled)", found.first_token))
    spec = f"text: time; count: count = requests; ns: {TIME_COLUMNS}, max_ns = max"
    rows = [asdict(each) | {"time": name} for name, each in times if each.count]
    return [table_of("Requests", Sheet.QOS, spec, rows)] if rows else []


def _criteria(found: Mlperf) -> ReportTable:
    spec = "text: name = criterion, shown = measured and threshold, verdict"
    return table_of("Criteria (--criteria)", Sheet.QOS, spec, found.criteria)


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
    if generation is not None:
        yield (
            f"data generation took {percent(generation.share_of_threads)} of the threads' time,"
            f" allocating extents {percent(generation.reserve_share)}"
        )


def machine_document(found: Discovery) -> Document:
    """Make the document of a machine; what would disturb a replay comes first."""
    host, limits = found.host, found.limits
    gpus = ", ".join(f"{g.name} {format_bytes(g.memory_bytes)}" for g in found.gpus)
    memlock, files = limits["memlock_bytes"], limits["open_files"]
    facts = {
        "processor": (
            f"{host['cpu_model'] or '-'}, {host['cpus']} CPUs, governor {found.governor or '-'}"
        ),
        "kernel": host["kernel"],
        "memory": (
            f"{format_bytes(found.memory_bytes)}, {format_bytes(found.available_bytes)} available"
        ),
        "huge pages": found.huge_pages,
        "GPUs": gpus or f"none: {found.gpu_reason}",
        "io_uring": found.io_uring,
        "memlock": "unlimited" if memlock is None else format_bytes(memlock),
        "open files": "unlimited" if files is None else format_count(files),
        **{
            name: path or "not installed"
            for name, path in (found.programs | found.gpu_libraries).items()
        },
        "probes": found.probes,
    }
    spec = """
        text: name = drive, model, firmware
        bytes: bytes = size
        text: scheduler
        count: queue_requests = requests
    """
    drives = table_of("Drives", Sheet.DEVICE, spec, found.drives)
    spec = "text: mount_point = mounted at, device, kind = type; bytes: free_bytes = free"
    systems = table_of("Filesystems", Sheet.DEVICE, spec, found.filesystems)
    good = found.recommended
    start = (
        f"start from: --engine {good['engine']} --queue-depth {good['queue_depth']} --io-bytes 1MiB"
        f" --trials {good['trials']}, a CPU tier of at most {format_bytes(good['cpu_tier_bytes'])}"
    )
    tables = [parameters("Machine", Sheet.PARAMETERS, facts), drives, systems]
    return Document(
        name="",
        headline="",
        chapters=[Chapter("", tables, [start, good["next"]])],
        warnings=[f"warning: {line}" for line in found.warnings],
    )
