"""What run.json says of the ranks beside the figures: each of them, how they began, MLPerf's rule, what to know."""

from __future__ import annotations

from collections.abc import Sequence

from kvreplay.mpi.pooled.files import Ordered
from kvreplay.mpi.pooled.part import PartRun
from kvreplay.ranks.helper import ORPHANED
from kvreplay.result.counts import ERROR
from kvreplay.result.summarize import PERCENTILES
from kvtrace.core.run.figures import Figures, RunVerdict, Summary
from kvtrace.core.run.run_file import CombinedNote, DealNote, RankNote, StartNote
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration

DEFINITIONS = {
    "ranks": "counts and bytes of all ranks added up; rates over the time from the first rank's first submission to "
    "the last one's last completion, by the common clock",
    "percentiles": "nearest rank over the completed operations of all ranks pooled; null with fewer than 1 / (1 - q) "
    f"of them; beyond 10 million from histograms, which add up exactly and are at most {ERROR:.2%} off",
    "device_io": "of ranks that share a device of a host the one that saw most: it is not added up",
}
TOGETHER_NS = 50_000
"""Ranks that have a processor each begin so close together."""
TIGHT_NS = 250_000_000
"""An MPI process that ended so much before the others ended by itself."""


def sentence(verdict: RunVerdict, parts: Sequence[PartRun], errors: int) -> str:
    """Return the verdict, what failed and who is missing first."""
    gone = [str(part.rank) for part in parts if part.status == "lost"]
    missing = f"rank{'' if len(gone) == 1 else 's'} {', '.join(gone)} of {len(parts)} LOST; " if gone else ""
    failed = f"{errors:,} operations FAILED; " if errors else ""
    return f"{missing}{failed}{verdict.sentence}"


def of_rank(part: PartRun) -> RankNote:
    """Return what is known of a rank."""
    told, run = part.told, part.run
    summary = None if run is None else run.summary
    wall = None if summary is None else summary.wall_ns
    submissions = [] if run is None else [f for f in run.summary.figures if f.operations]
    reason = part.trouble or (told.error if told is not None else None) or (run.reason if run is not None else None)
    return RankNote(
        rank=part.rank,
        folder=part.folder.name,
        host=part.host,
        nodes=None if told is None or told.deal is None or told.deal.nodes is None else told.deal.nodes[part.rank],
        cpus=None if told is None else told.cpus,
        status=part.status,
        reason=reason if part.status != "complete" else None,
        operations=None if summary is None else summary.operations,
        errors=None if summary is None else summary.errors,
        bytes=part.bytes if run is not None else None,
        wall_ns=wall,
        bandwidth_bytes_per_s=part.bytes * NS_PER_S / wall if wall else None,
        read_p99_ns=None if run is None else _slowest(run.summary.figures, "read", "p99_ns"),
        write_p99_ns=None if run is None else _slowest(run.summary.figures, "write", "p99_ns"),
        clock_offset_ns=None if told is None else told.clock_offset_ns,
        clock_error_ns=None if told is None else told.clock_error_ns,
        clock_drift_ns=None if told is None else told.clock_drift_ns,
        begun_late_ns=None if told is None else told.begun_late_ns,
        first_submission_ns=part.first_submission_ns if submissions else None,
        stood_still_ns=None if told is None else told.stood_still_ns,
    )


def _slowest(figures: Sequence[Figures], op: str, quantile: str) -> int | None:
    found: list[int | None] = [getattr(f.judged, quantile) for f in figures if f.op == op and not f.is_simulated]
    known = [value for value in found if value is not None]
    return max(known) if known and len(known) == len(found) else None


def start(parts: Sequence[PartRun]) -> StartNote:
    """Return how closely together the ranks began."""
    told = [part.told for part in parts if part.told is not None and not part.told.is_idle]
    late = [t.begun_late_ns for t in told if t.begun_late_ns is not None]
    errors = [t.clock_error_ns for t in told if t.clock_error_ns is not None]
    is_open = any(part.run is not None and part.run.pacing.loop == "open" for part in parts)
    firsts = [first for part in parts if (first := part.first_submission_ns) is not None]
    return StartNote(
        skew_ns=max(late) - min(late) if late else None,
        first_submission_skew_ns=max(firsts) - min(firsts) if firsts and not is_open else None,
        clock_error_ns=max(errors) if errors else None,
    )


def combined(parts: Sequence[PartRun]) -> CombinedNote:
    """Return the ranks taken together by MLPerf's rule."""
    runs = [part.run for part in parts if part.run is not None]

    def added(op: str) -> float | None:
        rates = [
            f.bandwidth_bytes_per_s
            for run in runs
            for f in run.summary.figures
            if f.op == op and not f.is_simulated and f.bandwidth_bytes_per_s is not None
        ]
        return sum(rates) if rates else None

    def worst(op: str) -> int | None:
        known = [p for run in runs if (p := _slowest(run.summary.figures, op, "p95_ns")) is not None]
        return max(known) if len(known) == len(runs) and known else None

    return CombinedNote(
        read_bandwidth_bytes_per_s=added("read"),
        write_bandwidth_bytes_per_s=added("write"),
        read_p95_ns=worst("read"),
        write_p95_ns=worst("write"),
    )


def left_out(parts: Sequence[PartRun]) -> int:
    """Return how many deletes the ranks left out."""
    return sum(p.told.deal.deletes_left_out for p in parts if p.told is not None and p.told.deal is not None)


def of(order: Ordered, parts: Sequence[PartRun], deal: DealNote | None) -> list[str]:
    """Return what a reader of the figures must know: of the deal, of the ranks, and once what several say."""
    found = [] if deal is None else [_dealt(order.count, deal, left_out(parts))]
    found += _skipped([part.run.summary for part in parts if part.run is not None])
    for part in parts:
        if part.status == "idle":
            found.append(f"rank {part.rank} was dealt nothing: there are fewer to deal than ranks")
        elif part.status == "lost":
            kept = (
                "" if part.run is None else "; its figures are those of its journal, whose last seconds may be missing"
            )
            found.append(f"rank {part.rank} is LOST{kept}")
    bound = [
        p for p in parts if p.told is not None and p.run is not None and p.told.cpus < (p.run.host.get("cpus") or 0)
    ]
    if bound and bound[0].told is not None and bound[0].run is not None:
        found.append(
            f"{len(bound)} ranks may run on {bound[0].told.cpus} of {bound[0].run.host['cpus']} CPUs only: the "
            "launcher bound them, which slows a replay of several threads; mpirun --bind-to none does not"
        )
    found += crowded(parts)
    said: dict[str, list[int]] = {}
    for part in parts:
        for note in [] if part.run is None else part.run.notes:
            said.setdefault(note, []).append(part.rank)
    for note, ranks in said.items():
        if note.startswith(("skipped", PERCENTILES)):
            # Said once, of all ranks.
            continue
        who = "" if len(ranks) == len(parts) else f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}: "
        found.append(f"{who}{note}")
    return found


def crowded(parts: Sequence[PartRun]) -> list[str]:
    """Return of which hosts ranks outnumber the processors, where they did not begin together."""
    skew_ns = start(parts).skew_ns or 0
    if skew_ns <= TOGETHER_NS:
        return []
    cpus: dict[str, list[int]] = {}
    for part in parts:
        if part.told is not None and not part.told.is_idle:
            cpus.setdefault(part.host, []).append(part.told.cpus)
    return [
        f"{len(each)} ranks share {max(each)} CPUs of {host}: one that finds none free at the common instant begins "
        f"when the scheduler gives it one; the ranks began {format_duration(skew_ns)} apart"
        for host, each in cpus.items()
        if len(each) > max(each)
    ]


def _skipped(summaries: Sequence[Summary]) -> list[str]:
    """Return what the ranks left out of the trace."""
    rows = added([summary.skipped_rows for summary in summaries])
    deletes = sum(summary.absent_deletes for summary in summaries)
    found = []
    if rows:
        named = ", ".join(f"{name} ({count:,} rows)" for name, count in rows.items())
        found.append(f"skipped, because no --tier names them: {named}")
    if deletes:
        found.append(f"skipped {deletes:,} deletes of objects that were never there")
    return found


def added(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the counts of all ranks added up, by name."""
    found: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            found[name] = found.get(name, 0) + count
    return found


def _dealt(count: int, deal: DealNote, needless: int) -> str:
    words = {"node": "nodes", "user": "users", "object": "objects"}
    said = f"{deal.dealt:,} {words[deal.by]} were dealt to {count} rank{'' if count == 1 else 's'} ({deal.because})"
    cut = []
    if deal.shared_objects:
        cut.append(
            f"{deal.shared_objects:,} objects are touched by several: each rank has its own copy, and "
            f"{deal.shared_rows:,} rows ({format_bytes(deal.shared_bytes)}) do not wait for the rank that came first"
        )
    if deal.split_requests:
        cut.append(f"{deal.split_requests:,} requests lie on several, whose stages do not wait for each other there")
    if needless:
        cut.append(f"{needless:,} deletes were left out, of what another rank wrote again")
    return "; ".join([said, *(cut or ["nothing that depends on each other was cut apart"])])


def first_gone(parts: Sequence[PartRun]) -> str | None:
    """Return whose MPI process ended first, of ranks that lost theirs; null if that is not known.

    A launcher that ends the others tells them by a signal, or kills them at once: then the time tells.
    """
    dead = [part.rank for part in parts if part.told is None]
    orphans = [part for part in parts if part.told is not None and part.told.orphaned_ns is not None]
    unwarned = [part.rank for part in orphans if part.run is not None and ORPHANED in (part.run.reason or "")]
    if len(dead) == 1:
        return f"the death of rank {dead[0]}"
    if not orphans:
        return None
    if not unwarned:
        return "SIGTERM"
    when = sorted((p.told.orphaned_ns or 0, p.rank) for p in orphans if p.told is not None)
    if len(unwarned) == 1 or len(when) == 1 or when[1][0] - when[0][0] > TIGHT_NS:
        return f"the death of rank {unwarned[0] if len(unwarned) == 1 else when[0][1]}'s MPI process"
    return f"the end of all MPI processes within {format_duration(when[-1][0] - when[0][0])}"
