"""Merge the runs of the ranks into one run.

Its figures, its verdict, its notes, and which rank was slowest and why.

Everything is read from the files that the ranks wrote, so the result is the same after a run as
after a crash.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from kvreplay.plan.output_directory import is_unrecovered
from kvreplay.ranks.helper import ORPHANED
from kvreplay.ranks.parts import (
    RANK_FILE,
    RANKS_FILE,
    Ordered,
    PartRun,
    RankReport,
    merge_checkpoints,
    merge_figures,
    merge_pace,
    record_ranks,
    weighted,
)
from kvreplay.result.cause import is_late
from kvreplay.result.figures import added, least, mlperf_figures, most, slowest
from kvreplay.result.summarize import skipped_notes
from kvreplay.result.verdict import judged_run
from kvreplay.run.recover import recover
from kvreplay.run.replay import Interrupted
from kvtrace.core.errors import DeviceError, FailedOperations, KvError, RankLost
from kvtrace.core.files import read_json, write_json
from kvtrace.core.metrics.distribution import ERROR
from kvtrace.core.metrics.native import READ, WRITE
from kvtrace.core.metrics.recorder import OperationRecorder, RunFacts, TableTier
from kvtrace.core.run.figures import (
    Evidence,
    Figures,
    Pace,
    RunVerdict,
    Summary,
    TierRate,
)
from kvtrace.core.run.run_builder import (
    HISTOGRAM_NOTE,
    RunOutcome,
    build_header,
    build_run_file,
    histogram_notes,
)
from kvtrace.core.run.run_file import (
    OPS_FILE,
    RANK_FOLDER,
    RUN_FILE,
    CombinedNote,
    DeviceIo,
    PartitionNote,
    Populated,
    RankNote,
    RanksNote,
    RunFile,
    StartNote,
    Straggler,
    TraceNote,
    Verification,
    WindowNote,
    find_run,
    sealed,
)
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import mean, total
from kvtrace.core.tables import open_table
from kvtrace.core.units import counted, format_bytes, format_duration, per_second

_LOOK_S = 0.1


def merge_ranks(output: Path, *, because: str | None = None, wait_s: float = 0.0) -> RunFile:
    """Write run.json of all ranks to `output`, from what they left there, and return it.

    `because` says why the run was ended; `wait_s` is how long to wait for ranks that are still
    writing. A rank that died left its journal, of which a run is made first.

    RankLost if none left anything.
    """
    order = read_json(output / RANKS_FILE, Ordered, misfit="not of this version of kvreplay: {}")
    folders = [output / RANK_FOLDER.format(rank) for rank in range(order.count)]
    until = time.monotonic() + wait_s
    while time.monotonic() < until and not all(
        (folder / RANK_FILE).is_file() for folder in folders
    ):
        time.sleep(_LOOK_S)
    parts = []
    for rank, (host, folder) in enumerate(zip(order.hosts, folders, strict=True)):
        trouble = None
        if is_unrecovered(folder):
            try:
                recover(folder)
            except KvError as error:
                trouble = str(error)
        has_ended = (folder / RANK_FILE).is_file()
        report = (
            read_json(folder / RANK_FILE, RankReport)
            if has_ended
            else RankReport(rank=rank, host=host)
        )
        left = find_run(folder) if (folder / OPS_FILE).is_file() else None
        parts.append(PartRun(rank, host, folder, left, report, has_ended, trouble))
    first = least([part.report.start_ns for part in parts]) or 0
    parts = [
        replace(part, late_ns=max(0, (part.report.start_ns or first) - first)) for part in parts
    ]
    if not any(part.run for part in parts):
        why = "; ".join(filter(None, [because, *(part.trouble for part in parts)]))
        raise RankLost(f"{output}: no rank left anything that could be put together: {why}")
    run = _run(order, parts, because)
    write_json(output / RUN_FILE, sealed(run))
    return run


# Long: a field a line.
def _run(order: Ordered, parts: Sequence[PartRun], because: str | None) -> RunFile:
    runs = [part.run for part in parts if part.run is not None]
    first = runs[0]
    tiers = [tier.name for tier in first.trace.metadata.tiers]
    ranked = record_ranks(parts, tiers, order.config.criteria)
    recorder, requests = ranked.recorder, ranked.requests
    figures = merge_figures(parts, recorder)
    pace = merge_pace(runs, recorder)
    late = straggler(parts)
    device_io = _device_io(parts)
    judgement = merged_verdict(parts, figures, pace, device_io, late, recorder, tiers)
    each = [run.summary for run in runs]
    counts = added(each, "errors", "absent_deletes")
    rows, once = sum(run.window.rows for run in runs), total([run.window.rows_once for run in runs])
    replayed = sum((run.window.rows_once or 0) * (run.summary.trace_times or 0) for run in runs)
    summary = recorder.summary(
        RunFacts(
            verdict=sentence(judgement, parts, counts["errors"]),
            judgement=judgement,
            pace=pace,
            wall_ns=most([of.wall_ns for of in each]) or None,
            trace_times=replayed / once if once else None,
            warmup=order.config.warmup,
            has_row_numbers=False,
            skipped_rows=sum_by_name([of.skipped_rows for of in each]),
            absent_deletes=counts["absent_deletes"],
            definitions=first.summary.definitions | DEFINITIONS,
        )
    )
    summary = msgspec.structs.replace(summary, figures=figures)
    path = Path(order.trace)
    is_whole = all(part.report.is_whole for part in parts) and len(runs) == order.count
    metadata = open_table(path, TRACE).meta if path.is_file() else first.trace.metadata
    status, reason = _status(parts, because)
    config = msgspec.to_builtins(order.config)

    def took_ns(names: list[str]) -> int | None:
        kinds = [
            kind
            for name in names
            for op in (READ, WRITE)
            for kind in recorder.kinds_of(tiers.index(name), op)
        ]
        return recorder.span_ns(kinds)

    simulated = {each.tier for each in figures if each.is_simulated}
    moved = {
        name: str(facts.get("target"))
        for name, facts in first.tiers.items()
        if name not in simulated
    }
    populated = [run.populated for run in runs if run.populated is not None]
    partition = next((part.report.partition for part in parts if part.has_ended), None)
    if partition is not None:
        left_out = sum(
            part.report.partition.deletes_left_out
            for part in parts
            if part.report.partition is not None
        )
        partition = msgspec.structs.replace(partition, deletes_left_out=left_out)
    header = build_header(
        program="kvreplay",
        argv=order.argv,
        config=config,
        started_utc=min(run.started_utc or "" for run in runs) or None,
        host=first.host,
        trace=TraceNote(file=path.name, metadata=metadata),
        tiers={
            n: (
                _laid_out([run.tiers[n] for run in runs if n in run.tiers])
                | {"target": order.config.tiers.get(n)}
            )
            for n in first.tiers
        },
        pacing=first.pacing,
        engine=first.engine,
        window=WindowNote(
            rows=rows,
            is_whole_trace=is_whole,
            span_ns=max((run.window.span_ns or 0 for run in runs), default=0),
            planned_rows=sum(run.window.planned_rows or 0 for run in runs),
            limit=order.config.limit,
            runtime_ns=first.window.runtime_ns,
            rows_once=once,
            repeats=rows / once if once else None,
            peak_bytes=sum_by_name([run.window.peak_bytes or {} for run in runs]),
        ),
        preconditioned=[
            msgspec.structs.replace(each, tier=f"{each.tier} of rank {part.rank}")
            for part in parts
            for each in (part.run.preconditioned if part.run is not None else [])
        ],
        populated=(
            None
            if not populated
            else Populated(
                **added(populated, "objects", "bytes"),
                wall_ns=max(each.wall_ns for each in populated),
            )
        ),
        prepared=max(
            (r.prepared for r in runs if r.prepared), key=lambda p: p.total_ns, default=None
        ),
        data=first.data,
    )
    mlperf = None
    if requests is not None:
        mlperf = mlperf_figures(
            metadata,
            moved,
            summary,
            order.config.criteria,
            requests,
            is_whole_trace=is_whole,
            took_ns=took_ns,
        )
    return build_run_file(
        header,
        RunOutcome(
            summary=summary,
            status=status,
            reason=reason,
            verification=_verification(runs),
            device_io=device_io,
            notes=[
                *run_notes(order, parts, partition, summary),
                *histogram_notes(figures, requests),
            ],
            requests=requests,
            mlperf=mlperf,
            checkpoints=merge_checkpoints(parts, ranked, tiers, summary.wall_ns),
            ranks=RanksNote(
                count=order.count,
                library=order.library,
                partition=partition,
                start=start_note(parts),
                is_exact=ranked.is_exact,
                ranks=[rank_note(part) for part in parts],
                straggler=late,
                combined=combined_note(parts),
            ),
        ),
    )


def _status(parts: Sequence[PartRun], because: str | None) -> tuple[str, str | None]:
    cut = [part for part in parts if part.status in ("partial", "lost")]
    if not cut:
        failed = [part for part in parts if part.status == "failed operations"]
        return ("failed operations", _reason(failed[0])) if failed else ("complete", None)
    if because is None or any(part.report.orphaned_ns is not None for part in cut):
        because = first_gone(parts) or because
    return "partial", f"interrupted by {because}" if because else _reason(cut[0])


def _reason(part: PartRun) -> str:
    return f"rank {part.rank}: {part.reason or 'it left nothing'}"


def merged_error(run: RunFile, output: Path) -> KvError | None:
    """Return why the run of all ranks, in `output`, is not whole, or that operations failed.

    Null if all is well.
    """
    if run.status == "complete":
        return None
    if run.status == "failed operations":
        return FailedOperations(
            f"{counted(run.summary.errors or 0, 'operation')} failed; {run.reason}"
        )
    reason = run.reason or ""
    kept = f"{reason}; what was measured is kept in {output} (partial)"
    if "rank" not in reason:
        return Interrupted(kept)
    return RankLost(kept) if "an error of rank" not in reason else DeviceError(kept)


def _verification(runs: Sequence[RunFile]) -> Verification | None:
    found = [run.verification for run in runs if run.verification is not None]
    if not found:
        return None
    return Verification(
        block_bytes=found[0].block_bytes,
        **added(found, "checked_blocks", "unwritten_blocks", "corrupt_blocks", "check_ns"),
        by_fault=sum_by_name([each.by_fault for each in found]),
        located=[bad for each in found for bad in each.located],
    )


def _laid_out(of: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first rank's facts of a tier or drive.

    The bytes written there before the run are those of all ranks.
    """
    written = total([facts.get("written_first_bytes") for facts in of])
    found = of[0] if written is None else of[0] | {"written_first_bytes": written}
    drives = [facts["drives"] for facts in of if "drives" in facts]
    return (
        found | {"drives": [_laid_out(each) for each in zip(*drives, strict=True)]}
        if drives
        else found
    )


def _device_io(parts: Sequence[PartRun]) -> dict[str, DeviceIo]:
    """Return the I/O counters of each device of each host.

    Ranks that share a device saw the same I/O; the counters over the longest time count.
    """
    seen: dict[tuple[str, str], tuple[str, list[DeviceIo]]] = {}
    for part in parts:
        if part.run is None:
            continue
        devices: dict[str, object] = {}
        for name, facts in part.run.drives():
            devices |= {
                known: facts.get("device") for known in (name, f"{name}:{facts.get('target')}")
            }
        for name, moved in part.run.device_io.items():
            device = devices.get(name) or name
            key = part.host, str(device)
            seen.setdefault(key, (name.partition(":")[0], []))[1].append(moved)
    names = [name for name, _ in seen.values()]
    found = {}
    for (host, device), (name, moves) in seen.items():
        said = name if names.count(name) == 1 else f"{name} on {host}:{device}"
        found[said] = DeviceIo(
            **{
                field: most([getattr(moved, field) for moved in moves])
                for field in DeviceIo.__struct_fields__
            }
        )
    return found


DEFINITIONS = {
    "ranks": (
        "counts and bytes of all ranks added up; rates over the time from the first rank's first"
        " submission to the last one's last completion, by the common clock"
    ),
    "percentiles": (
        "nearest rank over the completed operations of all ranks together; null with fewer than 1"
        " / (1 - q) of them; beyond 10 million from histograms, which add up exactly and are at"
        f" most {ERROR:.2%} off"
    ),
    "device_io": "of ranks that share a device of a host the one that saw most: it is not added up",
}
TOGETHER_NS = 50_000
"""Ranks that have a processor each begin so close together."""
TIGHT_NS = 250_000_000
"""An MPI process that ended so much before the others ended by itself."""


def sentence(verdict: RunVerdict, parts: Sequence[PartRun], errors: int) -> str:
    """Return the verdict sentence, preceded by lost ranks and failed operations."""
    gone = [str(part.rank) for part in parts if part.status == "lost"]
    missing = (
        f"rank{'' if len(gone) == 1 else 's'} {', '.join(gone)} of {len(parts)} LOST; "
        if gone
        else ""
    )
    failed = f"{counted(errors, 'operation')} FAILED; " if errors else ""
    return f"{missing}{failed}{verdict.sentence}"


def rank_note(part: PartRun) -> RankNote:
    """Return the entry of a rank in run.json."""
    report, summary = part.report, None if part.run is None else part.run.summary
    wall = None if summary is None else summary.wall_ns
    nodes = None if report.partition is None else report.partition.nodes
    same = (
        "cpus",
        "clock_offset_ns",
        "clock_error_ns",
        "clock_drift_ns",
        "begun_late_ns",
        "stood_still_ns",
    )
    return RankNote(
        rank=part.rank,
        folder=part.folder.name,
        host=part.host,
        nodes=None if nodes is None else nodes[part.rank],
        status=part.status,
        reason=part.reason if part.status != "complete" else None,
        operations=None if summary is None else summary.operations,
        errors=None if summary is None else summary.errors,
        bytes=None if summary is None else part.bytes,
        wall_ns=wall,
        bandwidth_bytes_per_s=per_second(part.bytes, wall),
        read_p99_ns=slowest(part.figures, "read", "p99_ns"),
        write_p99_ns=slowest(part.figures, "write", "p99_ns"),
        first_submission_ns=(
            part.first_submission_ns if any(f.operations for f in part.figures) else None
        ),
        **{name: getattr(report, name) for name in same},
    )


def start_note(parts: Sequence[PartRun]) -> StartNote:
    """Return how closely together the ranks began."""
    late = [part.report.begun_late_ns for part in parts if not part.report.is_idle]
    errors = [part.report.clock_error_ns for part in parts if not part.report.is_idle]
    is_open = any(part.run is not None and part.run.pacing.loop == "open" for part in parts)
    return StartNote(
        skew_ns=_spread(late),
        first_submission_skew_ns=(
            None if is_open else _spread([part.first_submission_ns for part in parts])
        ),
        clock_error_ns=most(errors),
    )


def _spread(values: Sequence[int | None]) -> int | None:
    """Return by how much the known ones among `values` differ at most; null without any."""
    known = [value for value in values if value is not None]
    return max(known) - min(known) if known else None


def combined_note(parts: Sequence[PartRun]) -> CombinedNote:
    """Combine the ranks by MLPerf's rule, which counts storage: tiers in memory are none."""
    each = [
        [f for f in part.figures if f.engine not in IN_MEMORY]
        for part in parts
        if part.run is not None
    ]

    def added(op: str) -> float | None:
        moved = [
            f.bandwidth_bytes_per_s for of in each for f in of if f.op == op and not f.is_simulated
        ]
        return total([rate for rate in moved if rate is not None])

    def worst(op: str) -> int | None:
        found = [slowest(of, op, "p95_ns") for of in each]
        return None if None in found else most(found)

    return CombinedNote(
        read_bandwidth_bytes_per_s=added("read"),
        write_bandwidth_bytes_per_s=added("write"),
        read_p95_ns=worst("read"),
        write_p95_ns=worst("write"),
    )


def run_notes(
    order: Ordered, parts: Sequence[PartRun], over: PartitionNote | None, summary: Summary
) -> list[str]:
    """Return the notes of a run.

    On its partition, on the ranks, and those of several ranks once.
    """
    found = [] if over is None else [_partition_note(order.count, over)]
    found += skipped_notes(summary)
    for part in parts:
        if part.status == "idle":
            found.append(
                f"rank {part.rank} has no part of the trace: there are fewer parts than ranks"
            )
        elif part.status == "lost":
            kept = (
                "; its figures are those of its journal, whose last seconds may be missing"
                if part.run
                else ""
            )
            found.append(f"rank {part.rank} is LOST{kept}")
    cpus = [
        (part.report.cpus, part.run.host.get("cpus") or 0) for part in parts if part.run is not None
    ]
    bound = [(own, of_host) for own, of_host in cpus if own is not None and own < of_host]
    if bound:
        own, of_host = min(bound)
        few = (
            f"{own} of {of_host} CPUs only"
            if len(set(bound)) == 1
            else f"as few as {own} of {of_host} CPUs"
        )
        found.append(
            f"{counted(len(bound), 'rank')} may run on {few}: the launcher bound them, which slows"
            " a replay of several threads; mpirun --bind-to none does not"
        )
    found += crowded_hosts(parts)
    said: dict[str, list[int]] = {}
    for part in parts:
        for note in [] if part.run is None else part.run.notes:
            said.setdefault(note, []).append(part.rank)
    for note, ranks in said.items():
        if note.startswith(("skipped", HISTOGRAM_NOTE)):
            # Said once, of all ranks.
            continue
        who = (
            ""
            if len(ranks) == len(parts)
            else f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}: "
        )
        found.append(f"{who}{note}")
    return found


def crowded_hosts(parts: Sequence[PartRun]) -> list[str]:
    """Return a note for each host with more ranks than processors, if the ranks did not begin
    together.
    """
    skew_ns = start_note(parts).skew_ns or 0
    if skew_ns <= TOGETHER_NS:
        return []
    cpus: dict[str, list[int]] = {}
    of_host: dict[str, int] = {}
    for part in parts:
        if part.report.cpus is not None and not part.report.is_idle:
            cpus.setdefault(part.host, []).append(part.report.cpus)
            of_host[part.host] = 0 if part.run is None else part.run.host.get("cpus") or 0
    return [
        f"{len(each)} ranks share {max(each)} CPUs of {host}: a rank without a free CPU at the"
        f" common start begins once it is scheduled; the ranks began {format_duration(skew_ns)}"
        " apart"
        for host, each in cpus.items()
        # If a host has as many as they may use in all, each may be bound to its own.
        if len(each) > max(each) and sum(each) > of_host[host]
    ]


def sum_by_name(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the counts of all ranks added up, by name."""
    found = Counter[str]()
    for each in counts:
        found.update(each)
    return dict(found)


def _partition_note(count: int, found: PartitionNote) -> str:
    words = {"node": "nodes", "user": "users", "object": "objects"}
    over = counted(count, "rank")
    said = f"{found.distributed:,} {words[found.by]} were distributed over {over} ({found.because})"
    cut = []
    if found.shared_objects:
        cut.append(
            f"{found.shared_objects:,} objects are used by several ranks: each has its own copy,"
            f" and {found.shared_rows:,} rows ({format_bytes(found.shared_bytes)}) do not wait for"
            " the rank that wrote first"
        )
    if found.split_requests:
        cut.append(
            f"{found.split_requests:,} requests are split over ranks, whose stages do not wait for"
            " each other"
        )
    if found.deletes_left_out:
        cut.append(
            f"{found.deletes_left_out:,} deletes were left out, of objects that another rank wrote"
            " again"
        )
    return "; ".join([said, *(cut or ["no dependencies were cut"])])


def first_gone(parts: Sequence[PartRun]) -> str | None:
    """Return which rank's MPI process ended first; null if that is not known.

    A launcher that ends the others tells them by a signal, or kills them at once: then the time
    tells.
    """
    dead = [part.rank for part in parts if not part.has_ended]
    if len(dead) == 1:
        return f"the exit of rank {dead[0]}"
    when = sorted((ns, part.rank) for part in parts if (ns := part.report.orphaned_ns) is not None)
    orphans = {rank for _, rank in when}
    unwarned = [
        part.rank for part in parts if part.rank in orphans and ORPHANED in (part.reason or "")
    ]
    if not when or not unwarned:
        return "SIGTERM" if when else None
    if len(unwarned) == 1 or len(when) == 1 or when[1][0] - when[0][0] > TIGHT_NS:
        return f"the exit of rank {unwarned[0] if len(unwarned) == 1 else when[0][1]}'s MPI process"
    return f"the end of all MPI processes within {format_duration(when[-1][0] - when[0][0])}"


BEHIND_SHARE, BEHIND_NS = 0.05, 50_000_000
"""A rank is behind if it ends later than the median rank by both: a share of its time, and ns."""
_OTHERWISE = (
    "device_busy_share",
    "device_time_share",
    "on_time_share",
    "throttle_share",
    "unhindered_share",
)
_MEANS = [
    name
    for name in Evidence.__struct_fields__
    if (name.endswith("_share") and name not in _OTHERWISE) or name.endswith("_service_ns")
]
"""Fields of `Evidence` of which all ranks together have the average."""
_MOST = ("device_busy_share", "device_queue_mean", "device_queue_limit")
"""All ranks together have the maximum of these figures over the ranks."""
_MEDIANS = ("doubling_gain", "slowdown")
IN_MEMORY = ("memory", "gpu")
"""Engines of tiers that are no storage."""
MORE = 1.2
"""A rank stands out from this multiple of the median rank's value."""


def merged_verdict(
    parts: Sequence[PartRun],
    figures: Sequence[Figures],
    pace: Pace | None,
    device_io: dict[str, DeviceIo],
    late: Straggler | None,
    recorder: OperationRecorder[TableTier],
    tiers: Sequence[str],
) -> RunVerdict:
    """Return the verdict of all ranks.

    `late` is the one that held them up, `tiers` are the trace's.
    """
    runs = [part.run for part in parts if part.run is not None]
    spent: dict[tuple[bool, str], float] = {}
    for f in figures:
        key = not f.is_simulated, f.tier
        spent[key] = spent.get(key, 0.0) + (f.latency.mean_ns or 0.0) * f.latency.count
    # The tier whose operations took the most time; no simulation first.
    tier = max(spent, key=lambda key: (key[0], spent[key]))[1] if spent else None
    names = dict.fromkeys(f.tier for f in figures if f.operations)
    rates = [
        _rate(name, figures, runs, recorder, recorder.kinds_of(tiers.index(name))) for name in names
    ]
    evidence, of_tier = (
        _evidence(runs, device_io, tier, pace),
        [f for f in figures if f.tier == tier],
    )
    judged = judged_run(
        evidence,
        rates,
        tier,
        pace,
        copies=any(f.engine in IN_MEMORY for f in of_tier),
        does_io=any(f.latency.count for f in of_tier),
        because="all ranks",
        in_all=" in all",
    )
    who = counted(len(runs), "rank")
    who += " FELL BEHIND" if pace is not None and evidence.is_end_late and rates else ""
    behind = (
        ""
        if late is None
        else f"; rank {late.rank} ended {format_duration(late.behind_ns)} later: {late.reason}"
    )
    said = f"{who}: {judged.sentence}{behind if rates else ''}"
    return msgspec.structs.replace(judged, sentence=said)


def _rate(
    tier: str,
    figures: Sequence[Figures],
    runs: Sequence[RunFile],
    recorder: OperationRecorder[TableTier],
    kinds: Sequence[int],
) -> TierRate:
    """Return the offered and the delivered load of a tier on all ranks, from its `kinds`."""
    judged, of_tier = (
        [run.summary.judgement for run in runs],
        [f for f in figures if f.tier == tier],
    )
    late_ns = most(
        [r.end_late_ns for v in judged if v is not None for r in v.tiers if r.tier == tier]
    )
    moved = sum(f.bytes or 0 for f in of_tier if f.op != "delete")
    operations = sum(f.operations or 0 for f in of_tier)
    asked, took_ns = None, recorder.span_ns(kinds)
    if recorder.is_open_loop:
        _, asked, _, took_ns = recorder.delivery(kinds)
    return TierRate(
        tier=tier,
        is_simulated=of_tier[0].is_simulated,
        asked_bytes_per_s=asked * moved / operations if asked and moved else None,
        asked_operations_per_s=asked,
        reached_bytes_per_s=per_second(moved or None, took_ns),
        reached_operations_per_s=per_second(operations, took_ns),
        end_late_ns=(late_ns or 0) if recorder.is_open_loop else None,
    )


def _evidence(
    runs: Sequence[RunFile], device_io: dict[str, DeviceIo], tier: str | None, pace: Pace | None
) -> Evidence:
    """Return the ranks' evidence together: what is counted added up, shares of time on average.

    Ranks on one device saw all that it did, each; here it counts once.
    """
    judged = [(v.evidence, run.summary) for run in runs if (v := run.summary.judgement) is not None]
    each, wall_ns = [e for e, _ in judged], most([of.wall_ns for _, of in judged])
    in_use_ns = total(
        [
            None if e.in_flight_mean is None else e.in_flight_mean * (of.wall_ns or 0)
            for e, of in judged
        ]
    )
    responses = [
        (e, f.response) for e, of in judged for f in of.figures if f.tier == tier and f.response
    ]
    of_times = [(e, (r.mean_ns or 0) * r.count) for e, r in responses]
    device_ns = total(
        [
            moved.device_ns
            for name, moved in device_io.items()
            if name.split(":")[0].split()[0] == tier
        ]
    )
    is_known = all(e.device_time_share is not None for e in each)
    throttled = max(
        (e for e in each if e.throttle is not None),
        key=lambda e: e.throttle_share or 0.0,
        default=None,
    )
    names = sorted({name for e in each for name in e.response_shares})
    together: dict[str, Any] = {name: mean([getattr(e, name) for e in each]) for name in _MEANS}
    together |= {name: most([getattr(e, name) for e in each]) for name in _MOST}
    for name in _MEDIANS:
        known = [value for e in each if (value := getattr(e, name)) is not None]
        together[name] = median(known) if known and len(known) == len(each) else None
    return Evidence(
        queue_depth=sum(e.queue_depth for e in each),
        storage=each[0].storage if each else "drive",
        in_flight_mean=in_use_ns / wall_ns if in_use_ns is not None and wall_ns else None,
        device_time_share=(
            device_ns / in_use_ns if is_known and device_ns is not None and in_use_ns else None
        ),
        response_shares={
            n: weighted([(e.response_shares.get(n, 0), w) for e, w in of_times]) or 0 for n in names
        },
        unhindered_share=weighted([(e.unhindered_share, w) for e, w in of_times]),
        on_time_share=None if pace is None else pace.on_time_fraction,
        is_end_late=(
            None
            if pace is None
            else is_late(pace.end_late_ns, pace.offered_per_s, pace.delivered_per_s)
        ),
        throttle=None if throttled is None else throttled.throttle,
        throttle_share=None if throttled is None else throttled.throttle_share,
        **together,
    )


def straggler(parts: Sequence[PartRun]) -> Straggler | None:
    """Return the rank that ended last if it held up the others, and why; null if it did not."""
    ended = [(part.run.summary.wall_ns or 0, part) for part in parts if part.run is not None]
    if len(ended) < 2:  # noqa: PLR2004 - one has no other
        return None
    longest, last = max(ended, key=lambda one: one[0])
    others = [part for _, part in ended if part is not last]
    usual = median(wall for wall, part in ended if part is not last)
    behind = int(longest - usual)
    if behind < max(BEHIND_NS, BEHIND_SHARE * usual):
        return None
    return Straggler(rank=last.rank, behind_ns=behind, reason=_why(last, others, behind))


def _why(last: PartRun, others: Sequence[PartRun], behind_ns: int) -> str:
    """Return why a rank ended last: the largest difference from the other ranks."""
    still_ns = last.report.stood_still_ns or 0
    if still_ns >= behind_ns / 2:
        return f"its process did not run for {format_duration(still_ns)}: stopped, or without a CPU"
    for what, mine, usual in (
        ("bytes", last.bytes, median(part.bytes for part in others)),
        ("operations", last.operations, median(part.operations for part in others)),
    ):
        if usual and mine > MORE * usual:
            return f"it has {mine / usual:.2g} times the {what} of the median rank"
    slow = [(mine / usual, said) for said, mine, usual in _times(last, others) if usual]
    if slow and max(slow)[0] > MORE:
        times, said = max(slow)
        return f"its {said} took {times:.2g} times as long as the median rank's, on average"
    mine, *theirs = (
        part.run.summary.errors or 0 for part in (last, *others) if part.run is not None
    )
    if mine > MORE * median(theirs):
        return f"{mine:,} of its operations failed"
    late_ns = last.report.begun_late_ns or 0
    if late_ns >= behind_ns / 2:
        return f"it began {format_duration(late_ns)} late"
    return (
        "the reason is not known: its share, service times and start are like those of the others"
    )


def _times(last: PartRun, others: Sequence[PartRun]) -> list[tuple[str, float, float]]:
    """Return the mean service time of each kind of operation.

    What it is, the last rank's, the median of the others.
    """
    found = []
    for f in last.figures:
        same = [
            g.latency.mean_ns
            for part in others
            for g in part.figures
            if (g.tier, g.op) == (f.tier, f.op)
        ]
        known = [time for time in same if time is not None]
        if f.latency.mean_ns is not None and known:
            found.append((f"{f.op}s on {f.tier}", f.latency.mean_ns, median(known)))
    return found
