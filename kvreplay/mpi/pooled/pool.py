"""The runs of the ranks as one: counts added up, percentiles of all operations pooled, and who held it up.

Everything is read from what the ranks wrote, so that it comes out the same after a run as after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.mpi.pooled import notes
from kvreplay.mpi.pooled.checkpoints import pooled_checkpoints
from kvreplay.mpi.pooled.figures import pooled_figures, pooled_pace
from kvreplay.mpi.pooled.files import RANK_FILE, Ordered, find_told, read_ordered
from kvreplay.mpi.pooled.operations import EXACT_OPERATIONS, late_of, read_operations
from kvreplay.mpi.pooled.part import PartRun
from kvreplay.mpi.pooled.requests import pooled_requests
from kvreplay.mpi.pooled.verdict import pooled_verdict, straggler
from kvreplay.result.figures import mlperf_figures
from kvreplay.result.journal import is_unrecovered
from kvreplay.result.summarize import histogram_notes
from kvreplay.run.recover import recover
from kvreplay.run.run import Interrupted
from kvtrace import __version__
from kvtrace.core.config import sha256
from kvtrace.core.errors import DeviceError, FailedOperations, KvError, RankLost
from kvtrace.core.run.figures import Mlperf, RequestFigures, Summary, WarmupFacts
from kvtrace.core.run.run_file import (
    RANK_FOLDER,
    DeviceIo,
    Populated,
    RanksNote,
    RunFile,
    TraceNote,
    Verification,
    WindowNote,
    find_run,
    write_run,
)
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import total
from kvtrace.core.tables import open_table

_LOOK_S = 0.1


def pool(output: Path, *, because: str | None = None, wait_s: float = 0.0) -> RunFile:
    """Write run.json of all ranks to `output`, from what they left there, and return it.

    `because` says why the run was ended; `wait_s` is how long to wait for ranks that are still writing. A rank that
    died left its journal, of which a run is made first.

    Raises:
        RankLost: none left anything.

    """
    order = read_ordered(output)
    folders = [output / RANK_FOLDER.format(rank) for rank in range(order.count)]
    _wait_for(folders, wait_s)
    parts = [_part(rank, host, folder) for rank, (host, folder) in enumerate(zip(order.hosts, folders, strict=True))]
    known = [part for part in parts if part.run is not None]
    if not known:
        why = "; ".join(filter(None, [because, *(part.trouble for part in parts)]))
        raise RankLost(f"{output}: no rank left anything that could be put together: {why}")
    run = _run(order, parts, because)
    write_run(output, run)
    return run


def _wait_for(folders: Sequence[Path], wait_s: float) -> None:
    until = time.monotonic() + wait_s
    while time.monotonic() < until and not all((folder / RANK_FILE).is_file() for folder in folders):
        time.sleep(_LOOK_S)


def _part(rank: int, host: str, folder: Path) -> PartRun:
    trouble = None
    if is_unrecovered(folder):
        try:
            recover(folder)
        except KvError as error:
            trouble = str(error)
    return PartRun(rank, host, folder, find_run(folder), find_told(folder), trouble)


# Long: a field a line.
def _run(order: Ordered, parts: Sequence[PartRun], because: str | None) -> RunFile:
    runs = [part.run for part in parts if part.run is not None]
    first = runs[0]
    operations = sum(figures.operations or 0 for run in runs for figures in run.summary.figures)
    found = read_operations(parts, first, is_exact=operations <= EXACT_OPERATIONS)
    figures = pooled_figures(parts, found)
    pace = pooled_pace(runs, found)
    late = straggler(parts)
    device_io = _device_io(parts)
    judgement = pooled_verdict(parts, figures, pace, device_io, late)
    errors = sum(run.summary.errors or 0 for run in runs)
    summary = Summary(
        verdict=notes.sentence(judgement, parts, errors),
        judgement=judgement,
        wall_ns=max((run.summary.wall_ns or 0 for run in runs), default=0) or None,
        operations=sum(run.summary.operations or 0 for run in runs),
        errors=errors,
        not_reached=sum(run.summary.not_reached or 0 for run in runs),
        figures=figures,
        pace=pace,
        in_flight_mean=total([run.summary.in_flight_mean for run in runs]),
        skipped_rows=notes.added([run.summary.skipped_rows for run in runs]),
        warmup=_warmup(order, parts),
        absent_deletes=sum(run.summary.absent_deletes for run in runs),
        definitions=first.summary.definitions | notes.DEFINITIONS,
    )
    trace, window = _trace(order, first), _window(order, parts, runs)
    requests = pooled_requests(parts, order.config.criteria)
    status, reason = _status(parts, because)
    config = msgspec.to_builtins(order.config)
    deal = next((part.told.deal for part in parts if part.told is not None), None)
    return RunFile(
        program="kvreplay",
        version=__version__,
        argv=order.argv,
        config=config,
        config_sha256=sha256(config),
        started_utc=min(run.started_utc or "" for run in runs) or None,
        status=status,
        reason=reason,
        host=first.host,
        trace=trace,
        tiers={n: facts | {"target": order.config.tiers.get(n)} for n, facts in first.tiers.items()},
        pacing=first.pacing,
        engine=first.engine,
        window=window,
        populated=_populated(runs),
        prepared=max((r.prepared for r in runs if r.prepared), key=lambda p: p.total_ns, default=None),
        data=first.data,
        verification=_verification(runs),
        device_io=device_io,
        notes=[*notes.of(order, parts, deal), *histogram_notes(figures, requests)],
        requests=requests,
        mlperf=None if requests is None else _mlperf(order, trace, window, first, summary, requests),
        checkpoints=pooled_checkpoints(
            parts, [tier.name for tier in trace.metadata.tiers], summary.wall_ns, is_exact=found.is_exact
        ),
        ranks=RanksNote(
            count=order.count,
            library=order.library,
            deal=None if deal is None else msgspec.structs.replace(deal, deletes_left_out=notes.left_out(parts)),
            start=notes.start(parts),
            is_exact=found.is_exact,
            ranks=[notes.of_rank(part) for part in parts],
            straggler=late,
            combined=notes.combined(parts),
        ),
        summary=summary,
    )


def _mlperf(
    order: Ordered, trace: TraceNote, window: WindowNote, first: RunFile, summary: Summary, requests: RequestFigures
) -> Mlperf:
    """Return MLPerf's figures and criteria of the figures pooled."""
    simulated = {figures.tier for figures in summary.figures if figures.is_simulated}
    targets = {name: str(facts.get("target")) for name, facts in first.tiers.items() if name not in simulated}
    return mlperf_figures(
        trace.metadata, targets, summary, order.config.criteria, requests, is_whole_trace=bool(window.is_whole_trace)
    )


def _warmup(order: Ordered, parts: Sequence[PartRun]) -> WarmupFacts | None:
    """Return what the figures of all ranks leave out."""
    if order.config.warmup is None:
        return None
    found = [(part, part.run.summary.warmup) for part in parts if part.run is not None]
    begun = [
        late_of(part, parts) + at for part, of in found if (at := 0 if of is None else of.measured_from_ns) is not None
    ]
    return WarmupFacts(
        asked=order.config.warmup,
        operations=sum(of.operations for _, of in found if of is not None),
        first_measured_row=None,
        measured_from_ns=min(begun, default=None),
    )


def _status(parts: Sequence[PartRun], because: str | None) -> tuple[str, str | None]:
    """Return the status of the whole, and why it is not complete."""
    cut = [part for part in parts if part.status in ("partial", "lost")]
    if not cut:
        failed = [part for part in parts if part.status == "failed operations"]
        return ("failed operations", _reason(failed[0])) if failed else ("complete", None)
    if because is None or any(part.told is not None and part.told.orphaned_ns is not None for part in cut):
        because = notes.first_gone(parts) or because
    return "partial", f"interrupted by {because}" if because else _reason(cut[0])


def _reason(part: PartRun) -> str:
    said = part.trouble or (None if part.told is None else part.told.error)
    said = said or (None if part.run is None else part.run.reason) or "it left nothing"
    return f"rank {part.rank}: {said}"


def pooled_error(run: RunFile, output: Path) -> KvError | None:
    """Return why the run of all ranks, in `output`, is not whole, or that operations failed; null if all is well."""
    if run.status == "complete":
        return None
    if run.status == "failed operations":
        return FailedOperations(f"{run.summary.errors:,} operations failed; {run.reason}")
    reason = run.reason or ""
    kept = f"{reason}; what was measured is kept in {output} (partial)"
    if "rank" not in reason:
        return Interrupted(kept)
    return RankLost(kept) if "an error of rank" not in reason else DeviceError(kept)


def _trace(order: Ordered, first: RunFile) -> TraceNote:
    path = Path(order.trace)
    if path.is_file():
        return TraceNote(file=path.name, metadata=open_table(path, TRACE).meta)
    return TraceNote(file=path.name, metadata=first.trace.metadata)


def _window(order: Ordered, parts: Sequence[PartRun], runs: Sequence[RunFile]) -> WindowNote:
    rows, once = sum(run.window.rows for run in runs), total([run.window.rows_once for run in runs])
    return WindowNote(
        rows=rows,
        is_whole_trace=all(part.told is None or part.told.is_whole for part in parts) and len(runs) == order.count,
        span_ns=max((run.window.span_ns or 0 for run in runs), default=0),
        planned_rows=sum(run.window.planned_rows or 0 for run in runs),
        limit=order.config.limit,
        runtime_ns=runs[0].window.runtime_ns,
        rows_once=once,
        repeats=rows / once if once else None,
        peak_bytes=notes.added([run.window.peak_bytes or {} for run in runs]),
    )


def _populated(runs: Sequence[RunFile]) -> Populated:
    done = [run.populated for run in runs if run.populated is not None]
    longest = max((each.wall_ns for each in done), default=0)
    return Populated(sum(each.objects for each in done), sum(each.bytes for each in done), longest)


def _verification(runs: Sequence[RunFile]) -> Verification | None:
    found = [run.verification for run in runs if run.verification is not None]
    if not found:
        return None
    return Verification(
        block_bytes=found[0].block_bytes,
        checked_blocks=sum(each.checked_blocks for each in found),
        unwritten_blocks=sum(each.unwritten_blocks for each in found),
        corrupt_blocks=sum(each.corrupt_blocks for each in found),
        by_fault=notes.added([each.by_fault for each in found]),
        located=[bad for each in found for bad in each.located],
        check_ns=sum(each.check_ns for each in found),
    )


def _device_io(parts: Sequence[PartRun]) -> dict[str, DeviceIo]:
    """Return what each device of each host moved: ranks that share one saw the same, the widest look counts."""
    seen: dict[tuple[str, str], tuple[str, list[DeviceIo]]] = {}
    for part in parts:
        if part.run is None:
            continue
        devices = {n: facts.get("device") for n, facts in part.run.drives()}
        for name, moved in part.run.device_io.items():
            device = devices.get(name) or _device_of(part.run, name) or name
            key = part.host, str(device)
            seen.setdefault(key, (name.partition(":")[0], []))[1].append(moved)
    names = [name for name, _ in seen.values()]
    found = {}
    for (host, device), (name, moves) in seen.items():
        said = name if names.count(name) == 1 else f"{name} on {host}:{device}"
        found[said] = DeviceIo(
            **{field: _most([getattr(moved, field) for moved in moves]) for field in DeviceIo.__struct_fields__}
        )
    return found


def _device_of(run: RunFile, drive: str) -> Any:
    return next((f.get("device") for name, f in run.drives() if drive == f"{name}:{f.get('target')}"), None)


def _most(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None
