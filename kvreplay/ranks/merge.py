"""Merge the runs of the ranks into one run.

The merged run has figures, a verdict, notes, and the straggler: the rank that ended last, with the
reason. Everything is read from the files that the ranks wrote, so the result after a crash is the
same as after a run.
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
    RankReport,
    RankRun,
    merge_checkpoints,
    merge_figures,
    merge_pace,
    record_ranks,
    weighted,
)
from kvreplay.result.cause import is_late
from kvreplay.result.figures import (
    max_known,
    min_known,
    mlperf_figures,
    sum_fields,
    worst_percentile,
)
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
    seal,
)
from kvtrace.core.schema import TRACE
from kvtrace.core.statistics import mean, total
from kvtrace.core.tables import open_table
from kvtrace.core.units import counted, format_bytes, format_duration, per_second

_POLL_S = 0.1


def merge_ranks(output: Path, *, because: str | None = None, wait_s: float = 0.0) -> RunFile:
    """Write run.json of all ranks to `output`, from their files there, and return it.

    `because` is the reason why the run was ended, if it was. `wait_s` is how long to wait for ranks
    that are still writing. The run of a rank that died is first recovered from its journal.

    RankLost if no rank left a run.
    """
    order = read_json(output / RANKS_FILE, Ordered, misfit="not of this version of kvreplay: {}")
    folders = [output / RANK_FOLDER.format(rank) for rank in range(order.count)]
    until = time.monotonic() + wait_s
    while time.monotonic() < until and not all(
        (folder / RANK_FILE).is_file() for folder in folders
    ):
        time.sleep(_POLL_S)
    rank_runs = []
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
        run_file = find_run(folder) if (folder / OPS_FILE).is_file() else None
        rank_runs.append(RankRun(rank, host, folder, run_file, report, has_ended, trouble))
    first_ns = min_known([rank_run.report.start_ns for rank_run in rank_runs]) or 0
    rank_runs = [
        replace(rank_run, late_ns=max(0, (rank_run.report.start_ns or first_ns) - first_ns))
        for rank_run in rank_runs
    ]
    if not any(rank_run.run for rank_run in rank_runs):
        troubles = [rank_run.trouble for rank_run in rank_runs]
        reason = "; ".join(filter(None, [because, *troubles]))
        raise RankLost(f"{output}: no rank left a run that could be merged: {reason}")
    run = _build_run(order, rank_runs, because)
    write_json(output / RUN_FILE, seal(run))
    return run


# Long: one field a line.
def _build_run(order: Ordered, rank_runs: Sequence[RankRun], because: str | None) -> RunFile:
    """Return the merged run of all ranks."""
    runs = [rank_run.run for rank_run in rank_runs if rank_run.run is not None]
    first = runs[0]
    tiers = [tier.name for tier in first.trace.metadata.tiers]
    ranked = record_ranks(rank_runs, tiers, order.config.criteria)
    recorder, requests = ranked.recorder, ranked.requests
    figures = merge_figures(rank_runs, recorder)
    pace = merge_pace(runs, recorder)
    late = straggler(rank_runs)
    device_io = _device_io(rank_runs)
    judgement = merged_verdict(rank_runs, figures, pace, device_io, late, recorder, tiers)
    summaries = [run.summary for run in runs]
    counts = sum_fields(summaries, "errors", "absent_deletes")
    rows, once = sum(run.window.rows for run in runs), total([run.window.rows_once for run in runs])
    replayed = sum((run.window.rows_once or 0) * (run.summary.trace_times or 0) for run in runs)
    summary = recorder.summary(
        RunFacts(
            verdict=sentence(judgement, rank_runs, counts["errors"]),
            judgement=judgement,
            pace=pace,
            wall_ns=max_known([rank_summary.wall_ns for rank_summary in summaries]) or None,
            trace_times=replayed / once if once else None,
            warmup=order.config.warmup,
            has_row_numbers=False,
            skipped_rows=sum_by_name([rank_summary.skipped_rows for rank_summary in summaries]),
            absent_deletes=counts["absent_deletes"],
            definitions=first.summary.definitions | DEFINITIONS,
        )
    )
    summary = msgspec.structs.replace(summary, figures=figures)
    path = Path(order.trace)
    is_whole = all(rank_run.report.is_whole for rank_run in rank_runs) and len(runs) == order.count
    metadata = open_table(path, TRACE).meta if path.exists() else first.trace.metadata
    status, reason = _status(rank_runs, because)
    config = msgspec.to_builtins(order.config)

    def took_ns(names: list[str]) -> int | None:
        kinds = [
            kind
            for name in names
            for op in (READ, WRITE)
            for kind in recorder.kinds_of(tiers.index(name), op)
        ]
        return recorder.span_ns(kinds)

    simulated = {tier_figures.tier for tier_figures in figures if tier_figures.is_simulated}
    real_targets = {
        name: str(facts.get("target"))
        for name, facts in first.tiers.items()
        if name not in simulated
    }
    populated = [run.populated for run in runs if run.populated is not None]
    partition = next(
        (rank_run.report.partition for rank_run in rank_runs if rank_run.has_ended), None
    )
    if partition is not None:
        left_out = sum(
            rank_run.report.partition.deletes_left_out
            for rank_run in rank_runs
            if rank_run.report.partition is not None
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
            name: (
                _merge_tier_facts([run.tiers[name] for run in runs if name in run.tiers])
                | {"target": order.config.tiers.get(name)}
            )
            for name in first.tiers
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
            msgspec.structs.replace(note, tier=f"{note.tier} of rank {rank_run.rank}")
            for rank_run in rank_runs
            for note in (rank_run.run.preconditioned if rank_run.run is not None else [])
        ],
        populated=(
            None
            if not populated
            else Populated(
                **sum_fields(populated, "objects", "bytes"),
                wall_ns=max(rank_populated.wall_ns for rank_populated in populated),
            )
        ),
        prepared=max(
            (run.prepared for run in runs if run.prepared),
            key=lambda prepared: prepared.total_ns,
            default=None,
        ),
        data=first.data,
    )
    mlperf = None
    if requests is not None:
        mlperf = mlperf_figures(
            metadata,
            real_targets,
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
                *run_notes(order, rank_runs, partition, summary),
                *histogram_notes(figures, requests),
            ],
            requests=requests,
            mlperf=mlperf,
            checkpoints=merge_checkpoints(rank_runs, ranked, tiers, summary.wall_ns),
            ranks=RanksNote(
                count=order.count,
                library=order.library,
                partition=partition,
                start=start_note(rank_runs),
                is_exact=ranked.is_exact,
                ranks=[rank_note(rank_run) for rank_run in rank_runs],
                straggler=late,
                combined=combined_note(rank_runs),
            ),
        ),
    )


def _status(rank_runs: Sequence[RankRun], because: str | None) -> tuple[str, str | None]:
    """Return the status of the merged run, and the reason if it is not complete."""
    cut = [rank_run for rank_run in rank_runs if rank_run.status in ("partial", "lost")]
    if not cut:
        failed = [rank_run for rank_run in rank_runs if rank_run.status == "failed operations"]
        return ("failed operations", _reason(failed[0])) if failed else ("complete", None)
    if because is None or any(rank_run.report.orphaned_ns is not None for rank_run in cut):
        because = describe_first_exit(rank_runs) or because
    return "partial", f"interrupted by {because}" if because else _reason(cut[0])


def _reason(rank_run: RankRun) -> str:
    return f"rank {rank_run.rank}: {rank_run.reason or 'it left nothing'}"


def merged_error(run: RunFile, output: Path) -> KvError | None:
    """Return the error of the merged run in `output`, if it is partial or operations failed."""
    if run.status == "complete":
        return None
    if run.status == "failed operations":
        return FailedOperations(
            f"{counted(run.summary.errors or 0, 'operation')} failed; {run.reason}"
        )
    reason = run.reason or ""
    message = f"{reason}; the partial run is in {output}"
    if "rank" not in reason:
        return Interrupted(message)
    return RankLost(message) if "an error of rank" not in reason else DeviceError(message)


def _verification(runs: Sequence[RunFile]) -> Verification | None:
    verifications = [run.verification for run in runs if run.verification is not None]
    if not verifications:
        return None
    return Verification(
        block_bytes=verifications[0].block_bytes,
        **sum_fields(
            verifications, "checked_blocks", "unwritten_blocks", "corrupt_blocks", "check_ns"
        ),
        by_fault=sum_by_name([verification.by_fault for verification in verifications]),
        located=[block for verification in verifications for block in verification.located],
    )


def _merge_tier_facts(facts_by_rank: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of a tier or drive: the first rank's, with bytes written before the run.

    Those bytes are added up over all ranks.
    """
    written = total([facts.get("written_first_bytes") for facts in facts_by_rank])
    merged = facts_by_rank[0]
    if written is not None:
        merged = merged | {"written_first_bytes": written}
    drives = [facts["drives"] for facts in facts_by_rank if "drives" in facts]
    if drives:
        merged = merged | {
            "drives": [_merge_tier_facts(of_ranks) for of_ranks in zip(*drives, strict=True)]
        }
    return merged


def _device_io(rank_runs: Sequence[RankRun]) -> dict[str, DeviceIo]:
    """Return the I/O counters of each device of each host.

    Ranks that share a device counted the same I/O, so the maximum of each counter is taken.
    """
    by_device: dict[tuple[str, str], tuple[str, list[DeviceIo]]] = {}
    for rank_run in rank_runs:
        if rank_run.run is None:
            continue
        devices: dict[str, object] = {}
        for name, facts in rank_run.run.drives():
            for alias in (name, f"{name}:{facts.get('target')}"):
                devices[alias] = facts.get("device")
        for name, counters in rank_run.run.device_io.items():
            device = devices.get(name) or name
            key = rank_run.host, str(device)
            by_device.setdefault(key, (name.partition(":")[0], []))[1].append(counters)
    names = [name for name, _ in by_device.values()]
    merged = {}
    for (host, device), (name, rank_counters) in by_device.items():
        label = name if names.count(name) == 1 else f"{name} on {host}:{device}"
        merged[label] = DeviceIo(
            **{
                field: max_known([getattr(counters, field) for counters in rank_counters])
                for field in DeviceIo.__struct_fields__
            }
        )
    return merged


DEFINITIONS = {
    "ranks": (
        "counts and bytes are summed over all ranks; rates are over the time from the first rank's"
        " first submission to the last rank's last completion, by the common clock"
    ),
    "percentiles": (
        "nearest rank over the completed operations of all ranks together; null with fewer than 1"
        " / (1 - q) of them; beyond 10 million from histograms, which add up exactly and are at"
        f" most {ERROR:.2%} off"
    ),
    "device_io": (
        "if ranks share a device of a host, the highest counters of any of them, not their sum"
    ),
}
TOGETHER_NS = 50_000
"""The start skew of ranks that have a processor each is at most this."""
TIGHT_NS = 250_000_000
"""An MPI process that ended this long before the others ended by itself, not by the launcher."""


def sentence(verdict: RunVerdict, rank_runs: Sequence[RankRun], errors: int) -> str:
    """Return the verdict sentence, preceded by lost ranks and failed operations."""
    lost = [str(rank_run.rank) for rank_run in rank_runs if rank_run.status == "lost"]
    missing = (
        f"rank{'' if len(lost) == 1 else 's'} {', '.join(lost)} of {len(rank_runs)} LOST; "
        if lost
        else ""
    )
    failed = f"{counted(errors, 'operation')} FAILED; " if errors else ""
    return f"{missing}{failed}{verdict.sentence}"


def rank_note(rank_run: RankRun) -> RankNote:
    """Return the entry of a rank in run.json."""
    report, summary = rank_run.report, None if rank_run.run is None else rank_run.run.summary
    wall = None if summary is None else summary.wall_ns
    nodes = None if report.partition is None else report.partition.nodes
    report_fields = (
        "cpus",
        "clock_offset_ns",
        "clock_error_ns",
        "clock_drift_ns",
        "begun_late_ns",
        "stood_still_ns",
    )
    return RankNote(
        rank=rank_run.rank,
        folder=rank_run.folder.name,
        host=rank_run.host,
        nodes=None if nodes is None else nodes[rank_run.rank],
        status=rank_run.status,
        reason=rank_run.reason if rank_run.status != "complete" else None,
        operations=None if summary is None else summary.operations,
        errors=None if summary is None else summary.errors,
        bytes=None if summary is None else rank_run.bytes,
        wall_ns=wall,
        bandwidth_bytes_per_s=per_second(rank_run.bytes, wall),
        read_p99_ns=worst_percentile(rank_run.figures, "read", "p99_ns"),
        write_p99_ns=worst_percentile(rank_run.figures, "write", "p99_ns"),
        first_submission_ns=(
            rank_run.first_submission_ns if any(f.operations for f in rank_run.figures) else None
        ),
        **{name: getattr(report, name) for name in report_fields},
    )


def start_note(rank_runs: Sequence[RankRun]) -> StartNote:
    """Return the start skew of the ranks."""
    late = [rank_run.report.begun_late_ns for rank_run in rank_runs if not rank_run.report.is_idle]
    errors = [
        rank_run.report.clock_error_ns for rank_run in rank_runs if not rank_run.report.is_idle
    ]
    is_open = any(
        rank_run.run is not None and rank_run.run.pacing.loop == "open" for rank_run in rank_runs
    )
    return StartNote(
        skew_ns=_spread(late),
        first_submission_skew_ns=(
            None if is_open else _spread([rank_run.first_submission_ns for rank_run in rank_runs])
        ),
        clock_error_ns=max_known(errors),
    )


def _spread(values: Sequence[int | None]) -> int | None:
    """Return the range of `values`, without unknown ones; None if all are unknown."""
    known_values = [value for value in values if value is not None]
    return max(known_values) - min(known_values) if known_values else None


def combined_note(rank_runs: Sequence[RankRun]) -> CombinedNote:
    """Combine the ranks by MLPerf's rule: storage only, so tiers in memory are left out."""
    storage_figures = [
        [figures for figures in rank_run.figures if figures.engine not in IN_MEMORY]
        for rank_run in rank_runs
        if rank_run.run is not None
    ]

    def sum_bandwidth(op: str) -> float | None:
        rates = [
            figures.bandwidth_bytes_per_s
            for rank_figures in storage_figures
            for figures in rank_figures
            if figures.op == op and not figures.is_simulated
        ]
        return total([rate for rate in rates if rate is not None])

    def worst(op: str) -> int | None:
        percentiles = [
            worst_percentile(rank_figures, op, "p95_ns") for rank_figures in storage_figures
        ]
        return None if None in percentiles else max_known(percentiles)

    return CombinedNote(
        read_bandwidth_bytes_per_s=sum_bandwidth("read"),
        write_bandwidth_bytes_per_s=sum_bandwidth("write"),
        read_p95_ns=worst("read"),
        write_p95_ns=worst("write"),
    )


def run_notes(
    order: Ordered, rank_runs: Sequence[RankRun], partition: PartitionNote | None, summary: Summary
) -> list[str]:
    """Return the notes of a merged run: on its partition, on its ranks, and the ranks' own notes.

    A note of several ranks is listed once.
    """
    notes = [] if partition is None else [_partition_note(order.count, partition)]
    notes += skipped_notes(summary)
    for rank_run in rank_runs:
        if rank_run.status == "idle":
            notes.append(
                f"rank {rank_run.rank} has no part of the trace: there are fewer parts than ranks"
            )
        elif rank_run.status == "lost":
            remark = (
                "; its figures come from its journal, whose last seconds may be missing"
                if rank_run.run
                else ""
            )
            notes.append(f"rank {rank_run.rank} is LOST{remark}")
    cpus = [
        (rank_run.report.cpus, rank_run.run.host.get("cpus") or 0)
        for rank_run in rank_runs
        if rank_run.run is not None
    ]
    bound = [
        (rank_cpus, host_cpus)
        for rank_cpus, host_cpus in cpus
        if rank_cpus is not None and rank_cpus < host_cpus
    ]
    if bound:
        rank_cpus, host_cpus = min(bound)
        few = (
            f"{rank_cpus} of {host_cpus} CPUs only"
            if len(set(bound)) == 1
            else f"as few as {rank_cpus} of {host_cpus} CPUs"
        )
        notes.append(
            f"{counted(len(bound), 'rank')} may run on {few}: the launcher bound them, which slows"
            " a replay of several threads; start them with mpirun --bind-to none"
        )
    notes += crowded_hosts(rank_runs)
    ranks_by_note: dict[str, list[int]] = {}
    for rank_run in rank_runs:
        for note in [] if rank_run.run is None else rank_run.run.notes:
            ranks_by_note.setdefault(note, []).append(rank_run.rank)
    for note, ranks in ranks_by_note.items():
        if note.startswith(("skipped", HISTOGRAM_NOTE)):
            # The merged run has a note of its own on these.
            continue
        prefix = (
            ""
            if len(ranks) == len(rank_runs)
            else f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}: "
        )
        notes.append(f"{prefix}{note}")
    return notes


def crowded_hosts(rank_runs: Sequence[RankRun]) -> list[str]:
    """Return a note for each host with more ranks than processors, if the ranks did not begin
    together.
    """
    skew_ns = start_note(rank_runs).skew_ns or 0
    if skew_ns <= TOGETHER_NS:
        return []
    # The number of processors that each rank of a host may use.
    rank_cpus_by_host: dict[str, list[int]] = {}
    host_cpus: dict[str, int] = {}
    for rank_run in rank_runs:
        if rank_run.report.cpus is not None and not rank_run.report.is_idle:
            rank_cpus_by_host.setdefault(rank_run.host, []).append(rank_run.report.cpus)
            host_cpus[rank_run.host] = (
                0 if rank_run.run is None else rank_run.run.host.get("cpus") or 0
            )
    return [
        f"{len(rank_cpus)} ranks share {max(rank_cpus)} CPUs of {host}: a rank without a free CPU"
        f" at the common start begins once it is scheduled; the ranks began"
        f" {format_duration(skew_ns)} apart"
        for host, rank_cpus in rank_cpus_by_host.items()
        # If the host has as many processors as all ranks may use, each rank may have its own.
        if len(rank_cpus) > max(rank_cpus) and sum(rank_cpus) > host_cpus[host]
    ]


def sum_by_name(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the sums of the counts of all ranks, by name."""
    sums = Counter[str]()
    for rank_counts in counts:
        sums.update(rank_counts)
    return dict(sums)


def _partition_note(count: int, partition: PartitionNote) -> str:
    """Return the sentence on the partition and on the dependencies that it cut."""
    words = {"node": "nodes", "user": "users", "object": "objects"}
    ranks = counted(count, "rank")
    sentence = f"{partition.distributed:,} {words[partition.by]} were distributed over {ranks} ({partition.because})"
    cut = []
    if partition.shared_objects:
        cut.append(
            f"{partition.shared_objects:,} objects are used by several ranks: each has its own copy,"
            f" and {partition.shared_rows:,} rows ({format_bytes(partition.shared_bytes)}) do not wait for"
            " the rank that wrote first"
        )
    if partition.split_requests:
        cut.append(
            f"{partition.split_requests:,} requests are split over ranks, whose stages do not wait for"
            " each other"
        )
    if partition.deletes_left_out:
        cut.append(
            f"{partition.deletes_left_out:,} deletes were left out, of objects that another rank wrote"
            " again"
        )
    return "; ".join([sentence, *(cut or ["no dependencies were cut"])])


def describe_first_exit(rank_runs: Sequence[RankRun]) -> str | None:
    """Return a description of the first end of an MPI process; None if it is unknown.

    When one rank ends, the launcher ends the others: either by a signal first, which they report,
    or by killing them at once. In the latter case, the times of their ends decide.
    """
    dead = [rank_run.rank for rank_run in rank_runs if not rank_run.has_ended]
    if len(dead) == 1:
        return f"the exit of rank {dead[0]}"
    exits = sorted(
        (ns, rank_run.rank)
        for rank_run in rank_runs
        if (ns := rank_run.report.orphaned_ns) is not None
    )
    orphans = {rank for _, rank in exits}
    unwarned = [
        rank_run.rank
        for rank_run in rank_runs
        if rank_run.rank in orphans and ORPHANED in (rank_run.reason or "")
    ]
    if not exits or not unwarned:
        return "SIGTERM" if exits else None
    if len(unwarned) == 1 or len(exits) == 1 or exits[1][0] - exits[0][0] > TIGHT_NS:
        return (
            f"the exit of rank {unwarned[0] if len(unwarned) == 1 else exits[0][1]}'s MPI process"
        )
    return f"the end of all MPI processes within {format_duration(exits[-1][0] - exits[0][0])}"


BEHIND_SHARE, BEHIND_NS = 0.05, 50_000_000
"""A rank is behind if it ends later than the median rank by both: a share of its time, and ns."""
_MERGED_OTHERWISE = (
    "device_busy_share",
    "device_time_share",
    "on_time_share",
    "throttle_share",
    "unhindered_share",
)
_MEANS = [
    name
    for name in Evidence.__struct_fields__
    if (name.endswith("_share") and name not in _MERGED_OTHERWISE) or name.endswith("_service_ns")
]
"""Fields of `Evidence` whose merged value is the average over the ranks."""
_MAXIMA = ("device_busy_share", "device_queue_mean", "device_queue_limit")
"""Figures whose merged value is the maximum over the ranks."""
_MEDIANS = ("doubling_gain", "slowdown")
"""Figures whose merged value is the median over the ranks."""
IN_MEMORY = ("memory", "gpu")
"""Engines of tiers in memory, which are not storage."""
MORE = 1.2
"""A rank stands out from this multiple of the median rank's value on."""


def merged_verdict(
    rank_runs: Sequence[RankRun],
    figures: Sequence[Figures],
    pace: Pace | None,
    device_io: dict[str, DeviceIo],
    late: Straggler | None,
    recorder: OperationRecorder[TableTier],
    tiers: Sequence[str],
) -> RunVerdict:
    """Return the verdict of all ranks.

    `late` is the rank that ended last, if it delayed the others; `tiers` are the trace's names.
    """
    runs = [rank_run.run for rank_run in rank_runs if rank_run.run is not None]
    time_ns: dict[tuple[bool, str], float] = {}
    for f in figures:
        key = not f.is_simulated, f.tier
        time_ns[key] = time_ns.get(key, 0.0) + (f.latency.mean_ns or 0.0) * f.latency.count
    # The tier whose operations took the most time; real tiers come before simulated ones.
    tier = max(time_ns, key=lambda key: (key[0], time_ns[key]))[1] if time_ns else None
    names = dict.fromkeys(f.tier for f in figures if f.operations)
    rates = [
        _rate(name, figures, runs, recorder, recorder.kinds_of(tiers.index(name))) for name in names
    ]
    evidence = _evidence(runs, device_io, tier, pace)
    tier_figures = [f for f in figures if f.tier == tier]
    judged = judged_run(
        evidence,
        rates,
        tier,
        pace,
        copies=any(f.engine in IN_MEMORY for f in tier_figures),
        does_io=any(f.latency.count for f in tier_figures),
        because="all ranks",
        in_all=" in all",
    )
    ranks = counted(len(runs), "rank")
    ranks += " FELL BEHIND" if pace is not None and evidence.is_end_late and rates else ""
    behind = (
        ""
        if late is None
        else f"; rank {late.rank} ended {format_duration(late.behind_ns)} later: {late.reason}"
    )
    return msgspec.structs.replace(
        judged, sentence=f"{ranks}: {judged.sentence}{behind if rates else ''}"
    )


def _rate(
    tier: str,
    figures: Sequence[Figures],
    runs: Sequence[RunFile],
    recorder: OperationRecorder[TableTier],
    kinds: Sequence[int],
) -> TierRate:
    """Return the offered and the delivered load of a tier on all ranks.

    `kinds` are the recorder's kinds of operations on the tier.
    """
    tier_figures = [f for f in figures if f.tier == tier]
    rates_of_ranks = [
        rate
        for run in runs
        if run.summary.judgement is not None
        for rate in run.summary.judgement.tiers
        if rate.tier == tier
    ]
    late_ns = max_known([rate.end_late_ns for rate in rates_of_ranks])
    nbytes = sum(f.bytes or 0 for f in tier_figures if f.op != "delete")
    operations = sum(f.operations or 0 for f in tier_figures)
    offered_per_s, span_ns = None, recorder.span_ns(kinds)
    if recorder.is_open_loop:
        _, offered_per_s, _, span_ns = recorder.delivery(kinds)
    return TierRate(
        tier=tier,
        is_simulated=tier_figures[0].is_simulated,
        asked_bytes_per_s=offered_per_s * nbytes / operations if offered_per_s and nbytes else None,
        asked_operations_per_s=offered_per_s,
        reached_bytes_per_s=per_second(nbytes or None, span_ns),
        reached_operations_per_s=per_second(operations, span_ns),
        end_late_ns=(late_ns or 0) if recorder.is_open_loop else None,
        # All ranks have the same drive file.
        measured_over_predicted=next(
            (rate.measured_over_predicted for rate in rates_of_ranks), None
        ),
        p99_measured_over_predicted=next(
            (rate.p99_measured_over_predicted for rate in rates_of_ranks), None
        ),
    )


def _evidence(
    runs: Sequence[RunFile], device_io: dict[str, DeviceIo], tier: str | None, pace: Pace | None
) -> Evidence:
    """Return the merged evidence of all ranks: counts are summed, shares of time averaged.

    Each rank on a device counted all I/O of that device; here it counts once.
    """
    judged = [
        (verdict.evidence, run.summary)
        for run in runs
        if (verdict := run.summary.judgement) is not None
    ]
    evidences = [evidence for evidence, _ in judged]
    wall_ns = max_known([summary.wall_ns for _, summary in judged])
    # Time in which queue slots were in use, summed over all slots of all ranks.
    in_use_ns = total(
        [
            None
            if evidence.in_flight_mean is None
            else evidence.in_flight_mean * (summary.wall_ns or 0)
            for evidence, summary in judged
        ]
    )
    responses = [
        (evidence, f.response)
        for evidence, summary in judged
        for f in summary.figures
        if f.tier == tier and f.response
    ]
    # A rank's shares of response times are weighted by the sum of its response times.
    weights = [
        (evidence, (response.mean_ns or 0) * response.count) for evidence, response in responses
    ]
    device_ns = total(
        [
            counters.device_ns
            for name, counters in device_io.items()
            if name.split(":")[0].split()[0] == tier
        ]
    )
    is_known = all(evidence.device_time_share is not None for evidence in evidences)
    throttled = max(
        (evidence for evidence in evidences if evidence.throttle is not None),
        key=lambda evidence: evidence.throttle_share or 0.0,
        default=None,
    )
    names = sorted({name for evidence in evidences for name in evidence.response_shares})
    merged: dict[str, Any] = {
        name: mean([getattr(evidence, name) for evidence in evidences]) for name in _MEANS
    }
    merged |= {
        name: max_known([getattr(evidence, name) for evidence in evidences]) for name in _MAXIMA
    }
    for name in _MEDIANS:
        values = [value for evidence in evidences if (value := getattr(evidence, name)) is not None]
        merged[name] = median(values) if values and len(values) == len(evidences) else None
    return Evidence(
        queue_depth=sum(evidence.queue_depth for evidence in evidences),
        storage=evidences[0].storage if evidences else "drive",
        in_flight_mean=in_use_ns / wall_ns if in_use_ns is not None and wall_ns else None,
        device_time_share=(
            device_ns / in_use_ns if is_known and device_ns is not None and in_use_ns else None
        ),
        response_shares={
            name: weighted(
                [(evidence.response_shares.get(name, 0), weight) for evidence, weight in weights]
            )
            or 0
            for name in names
        },
        unhindered_share=weighted(
            [(evidence.unhindered_share, weight) for evidence, weight in weights]
        ),
        on_time_share=None if pace is None else pace.on_time_fraction,
        is_end_late=(
            None
            if pace is None
            else is_late(pace.end_late_ns, pace.offered_per_s, pace.delivered_per_s)
        ),
        throttle=None if throttled is None else throttled.throttle,
        throttle_share=None if throttled is None else throttled.throttle_share,
        **merged,
    )


def straggler(rank_runs: Sequence[RankRun]) -> Straggler | None:
    """Return the rank that ended last, if it delayed the others, with the reason; else None."""
    endings = [
        (rank_run.run.summary.wall_ns or 0, rank_run)
        for rank_run in rank_runs
        if rank_run.run is not None
    ]
    if len(endings) < 2:  # noqa: PLR2004 - a single rank delays no other
        return None
    longest_ns, last = max(endings, key=lambda pair: pair[0])
    other_runs = [rank_run for _, rank_run in endings if rank_run is not last]
    median_ns = median(wall_ns for wall_ns, rank_run in endings if rank_run is not last)
    behind_ns = int(longest_ns - median_ns)
    if behind_ns < max(BEHIND_NS, BEHIND_SHARE * median_ns):
        return None
    reason = _straggler_reason(last, other_runs, behind_ns)
    return Straggler(rank=last.rank, behind_ns=behind_ns, reason=reason)


def _straggler_reason(last: RankRun, other_runs: Sequence[RankRun], behind_ns: int) -> str:
    """Return the reason why a rank ended last: its largest difference from the other ranks."""
    suspended_ns = last.report.stood_still_ns or 0
    if suspended_ns >= behind_ns / 2:
        duration = format_duration(suspended_ns)
        return f"its process did not run for {duration}: stopped, or without a CPU"
    for unit, value, median_value in (
        ("bytes", last.bytes, median(rank_run.bytes for rank_run in other_runs)),
        ("operations", last.operations, median(rank_run.operations for rank_run in other_runs)),
    ):
        if median_value and value > MORE * median_value:
            return f"it has {value / median_value:.2g} times the {unit} of the median rank"
    ratios = [
        (mean_ns / median_ns, kind)
        for kind, mean_ns, median_ns in _service_times(last, other_runs)
        if median_ns
    ]
    if ratios and max(ratios)[0] > MORE:
        ratio, kind = max(ratios)
        return f"its {kind} took {ratio:.2g} times as long as the median rank's, on average"
    errors, *other_errors = (
        rank_run.run.summary.errors or 0
        for rank_run in (last, *other_runs)
        if rank_run.run is not None
    )
    if errors > MORE * median(other_errors):
        return f"{errors:,} of its operations failed"
    late_ns = last.report.begun_late_ns or 0
    if late_ns >= behind_ns / 2:
        return f"it began {format_duration(late_ns)} late"
    return "the reason is unknown: its share, service times and start are like the others'"


def _service_times(last: RankRun, other_runs: Sequence[RankRun]) -> list[tuple[str, float, float]]:
    """Return the mean service times of each kind of operation.

    Each entry has the kind, the last rank's mean, and the median of the other ranks' means.
    """
    times = []
    for figures in last.figures:
        means = [
            other_figures.latency.mean_ns
            for rank_run in other_runs
            for other_figures in rank_run.figures
            if (other_figures.tier, other_figures.op) == (figures.tier, figures.op)
        ]
        known_means = [mean_ns for mean_ns in means if mean_ns is not None]
        if figures.latency.mean_ns is not None and known_means:
            kind = f"{figures.op}s on {figures.tier}"
            times.append((kind, figures.latency.mean_ns, median(known_means)))
    return times
