"""What all ranks together were asked and reached, what held them back, and which of them held up the others."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from kvreplay.mpi.pooled.part import PartRun
from kvreplay.result.cause import judge
from kvreplay.result.verdict import delivered_of, limit_of, named, reached_of
from kvtrace.core.run.figures import Evidence, Figures, LimitCause, Pace, RunVerdict, TierRate
from kvtrace.core.run.run_file import DeviceIo, RunFile, Straggler
from kvtrace.core.statistics import mean, total
from kvtrace.core.units import NS_PER_S, format_duration

BEHIND_SHARE, BEHIND_NS = 0.05, 50_000_000
"""Of the median rank's time, and in all: who ends later by less holds nobody up."""
_MEANS = (
    "held_share",
    "starved_share",
    "unread_share",
    "blocked_share",
    "submitter_busy_share",
    "copy_busy_share",
    "unhindered_share",
    "queue_full_share",
    "kernel_share",
    "processor_share",
    "touch_share",
    "copying_share",
    "checking_share",
)
"""Shares of `Evidence` of which all ranks together have the average."""
_MOST = (
    "device_busy_share",
    "is_end_late",
    "device_queue_mean",
    "device_queue_limit",
)
"""Of these they have what the rank with the most has."""
MORE = 1.2
"""Times what the median rank has, or takes."""


def pooled_verdict(
    parts: Sequence[PartRun],
    figures: Sequence[Figures],
    pace: Pace | None,
    device_io: dict[str, DeviceIo],
    late: Straggler | None,
) -> RunVerdict:
    """Return the verdict of all ranks; `late` is the one that held them up."""
    runs = [part.run for part in parts if part.run is not None]
    tier = _slowest(figures)
    rates = [_rate(name, figures, runs) for name in dict.fromkeys(f.tier for f in figures if f.operations)]
    rate = next((each for each in rates if each.tier == tier), None)
    evidence = _evidence(runs, device_io, tier, pace)
    cause: LimitCause | None = None
    reason: str | None = "nothing completed"
    if rate is not None:
        of_tier = [f for f in figures if f.tier == tier]
        cause, reason = judge(
            evidence,
            is_open=pace is not None,
            has_reached=None if pace is None else pace.kept_pace,
            copies=any(f.engine in ("memory", "gpu") for f in of_tier),
            does_io=any(f.latency.count for f in of_tier),
        )
    return RunVerdict(
        sentence=_sentence(rate, pace, cause, reason, evidence, len(runs), late),
        has_reached=None if pace is None else pace.kept_pace,
        tier=tier,
        cause=cause,
        reason=reason,
        tiers=rates,
        evidence=evidence,
    )


def _slowest(figures: Sequence[Figures]) -> str | None:
    """Return the tier whose operations took the most time, what is no simulation first."""
    spent: dict[tuple[bool, str], float] = {}
    for f in figures:
        key = not f.is_simulated, f.tier
        spent[key] = spent.get(key, 0.0) + (f.latency.mean_ns or 0.0) * f.latency.count
    return max(spent, key=lambda key: (key[0], spent[key]))[1] if spent else None


def _rate(tier: str, figures: Sequence[Figures], runs: Sequence[RunFile]) -> TierRate:
    """Return what a tier was asked and reached on all ranks, over the time that they took together."""
    told = [r for run in runs if run.summary.judgement is not None for r in run.summary.judgement.tiers]
    known = [r for r in told if r.tier == tier]
    of_tier = [f for f in figures if f.tier == tier]
    is_open = any(r.end_late_ns is not None for r in known)
    span = _span(of_tier, runs, tier)
    moved = sum(f.bytes or 0 for f in of_tier if f.op != "delete")
    operations = sum(f.operations or 0 for f in of_tier)
    reached = [r.reached_bytes_per_s for r in known], [r.reached_operations_per_s for r in known]
    return TierRate(
        tier=tier,
        is_simulated=of_tier[0].is_simulated,
        asked_bytes_per_s=total([r.asked_bytes_per_s for r in known]),
        reached_bytes_per_s=total(reached[0]) if is_open else (moved * NS_PER_S / span if span and moved else None),
        asked_operations_per_s=total([r.asked_operations_per_s for r in known]),
        reached_operations_per_s=total(reached[1]) if is_open else (operations * NS_PER_S / span if span else None),
        end_late_ns=max((r.end_late_ns or 0 for r in known), default=0) if is_open else None,
    )


def _span(of_tier: Sequence[Figures], runs: Sequence[RunFile], tier: str) -> int | None:
    """Return how long a tier was at work on all ranks: reads and writes overlap, so the longest of them at least."""
    spans = [f.span_ns for f in of_tier if f.span_ns]
    walls = [run.summary.wall_ns or 0 for run in runs if any(f.tier == tier for f in run.summary.figures)]
    return max([*spans, *walls], default=0) or None


def _evidence(runs: Sequence[RunFile], device_io: dict[str, DeviceIo], tier: str | None, pace: Pace | None) -> Evidence:
    """Return the ranks' evidence together: what is counted added up, shares of time on average.

    Ranks on one device saw all that it did, each; here it counts once.
    """
    each = [run.summary.judgement.evidence for run in runs if run.summary.judgement is not None]
    walls = [run.summary.wall_ns or 0 for run in runs]
    in_use_ns = total(
        [None if e.in_flight_mean is None else e.in_flight_mean * w for e, w in zip(each, walls, strict=False)]
    )
    device_ns = total([moved.device_ns for name, moved in device_io.items() if name.split(":")[0].split()[0] == tier])
    is_known = all(e.device_time_share is not None for e in each)
    gains = [e.doubling_gain for e in each if e.doubling_gain is not None]
    slowdowns = [e.slowdown for e in each if e.slowdown is not None]
    throttled = max((e for e in each if e.throttle is not None), key=lambda e: e.throttle_share or 0.0, default=None)
    names = sorted({name for e in each for name in e.response_shares})
    together: dict[str, Any] = {name: mean([getattr(e, name) for e in each]) for name in _MEANS}
    together |= {name: _most([getattr(e, name) for e in each]) for name in _MOST}
    return Evidence(
        queue_depth=sum(e.queue_depth for e in each),
        storage=each[0].storage if each else "drive",
        in_flight_mean=total([e.in_flight_mean for e in each]),
        device_time_share=device_ns / in_use_ns if is_known and device_ns is not None and in_use_ns else None,
        doubling_gain=median(gains) if len(gains) == len(each) and gains else None,
        slowdown=median(slowdowns) if len(slowdowns) == len(each) and slowdowns else None,
        response_shares={n: sum(e.response_shares.get(n, 0) for e in each) / len(each) for n in names},
        on_time_share=None if pace is None else pace.on_time_fraction,
        throttle=None if throttled is None else throttled.throttle,
        throttle_share=None if throttled is None else throttled.throttle_share,
        **together,
    )


def _most(each: Sequence[Any]) -> Any:
    return max((one for one in each if one is not None), default=None)


def _sentence(
    rate: TierRate | None,
    pace: Pace | None,
    cause: LimitCause | None,
    reason: str | None,
    evidence: Evidence,
    count: int,
    late: Straggler | None,
) -> str:
    who = f"{count} rank{'' if count == 1 else 's'}"
    if rate is None:
        return f"{who}: nothing completed"
    limit = f"{evidence.queue_depth} (all ranks)"
    behind = "" if late is None else f"; rank {late.rank} ended {format_duration(late.behind_ns)} later: {late.reason}"
    if pace is None:
        held = "" if reason is None else f": {limit_of(cause, rate, limit, evidence.storage)} ({reason})"
        at = f"at queue depth {evidence.queue_depth} in all"
        return f"{who}: {named(rate)} reached {reached_of(rate)} {at}{held}{behind}"
    said = delivered_of(rate, pace, cause, reason, evidence.storage, limit, is_behind=bool(evidence.is_end_late))
    return f"{who}{' FELL BEHIND' if evidence.is_end_late else ''}: {said}{behind}"


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
    """Return why a rank ended last, by what differs most from the others."""
    still_ns = 0 if last.told is None else last.told.stood_still_ns or 0
    if still_ns >= behind_ns / 2:
        return f"its process stood still for {format_duration(still_ns)}, stopped or without a processor"
    for what, mine, usual in (
        ("bytes", last.bytes, median(part.bytes for part in others)),
        ("operations", last.operations, median(part.operations for part in others)),
    ):
        if usual and mine > MORE * usual:
            return f"it was dealt {mine / usual:.2g} times the {what} of the median rank"
    slow = [(mine / usual, said) for said, mine, usual in _times(last, others) if usual]
    if slow and max(slow)[0] > MORE:
        times, said = max(slow)
        return f"its {said} took {times:.2g} times as long as the median rank's, on average"
    late_ns = 0 if last.told is None else last.told.begun_late_ns or 0
    if late_ns >= behind_ns / 2:
        return f"it began {format_duration(late_ns)} late"
    return "why is not known: its share, its service times and its start are those of the others"


def _times(last: PartRun, others: Sequence[PartRun]) -> list[tuple[str, float, float]]:
    """Return the mean service time of each kind of operation: what it is, the last rank's, the median of the others."""
    found = []
    for f in [] if last.run is None else last.run.summary.figures:
        same = [
            g.latency.mean_ns
            for part in others
            if part.run is not None
            for g in part.run.summary.figures
            if (g.tier, g.op) == (f.tier, f.op) and g.latency.mean_ns is not None
        ]
        if f.latency.mean_ns is not None and same:
            found.append((f"{f.op}s on {f.tier}", f.latency.mean_ns, median(same)))
    return found
