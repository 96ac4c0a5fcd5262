"""The verdict of a run: what was asked, what was reached, and what held it back, in one sentence and in fields."""

from __future__ import annotations

from typing import Any

from kvreplay.engine.job import Driven
from kvreplay.result.cause import judge
from kvreplay.result.counted.operations import CountedOperations
from kvreplay.result.levels import levels_of
from kvreplay.result.pace import SLIP_NS, end_of, is_late, percent
from kvreplay.tiers.tier import Tier, copied, has_times
from kvtrace.core.run.figures import Pace
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.run.verdict import Evidence, LimitCause, RunVerdict, TierRate
from kvtrace.core.units import NS_PER_S, format_duration, format_rate, format_rate_of

OBJECT_ENGINE = "s3dlio"
"""The engine of operations that are requests to an object store."""
SINGLE = 0.9
"""Of a tier's bytes: moved by operations of one I/O, so that operations in flight are places of the queue."""


def verdict(
    found: CountedOperations,
    driven: Driven | None,
    judged: Pace | None,
    *,
    queue_depth: int,
    because: str,
    moved: dict[str, DeviceIo],
) -> RunVerdict:
    """Return the verdict of a run; parameters as of `figures.summarize`, `judged` its pace."""
    tiers, is_open = found.tiers, found.is_open_loop
    rates = [
        _rate(found, index, tier)
        for index, tier in enumerate(tiers)
        if tier is not None and found.total("good", found.at(index))
    ]
    index = _slowest(found)
    tier = None if index is None else tiers[index]
    has_reached = judged.kept_pace if judged is not None else None
    evidence = _evidence(found, index, driven, judged, queue_depth, moved)
    cause: LimitCause | None = None
    reason: str | None = "nothing completed"
    if tier is not None:
        cause, reason = judge(
            evidence,
            is_open=is_open,
            has_reached=has_reached,
            copies=copied(tier) is not None,
            does_io=has_times(tier),
        )
    rate = next((r for r in rates if tier is not None and r.tier == tier.name), None)
    return RunVerdict(
        sentence=_sentence(rate, judged, cause, reason, evidence, is_open=is_open, because=because),
        has_reached=has_reached,
        tier=None if tier is None else tier.name,
        cause=cause,
        reason=reason,
        tiers=rates,
        evidence=evidence,
    )


def _rate(found: CountedOperations, index: int, tier: Tier) -> TierRate:
    """Return what `tier` was asked and reached, of its operations that completed."""
    at = found.at(index)
    count = found.total("good", at)
    moved = found.total("moved_bytes", at) if has_times(tier) else 0
    each = moved / count
    if found.is_open_loop:
        late, asked, reached = end_of(found, at)
    else:
        first, last = found.span(at) or (0, 0)
        late, asked, reached = None, None, count * NS_PER_S / (last - first) if last > first else None
    return TierRate(
        tier=tier.name,
        is_simulated=tier.is_simulated,
        asked_bytes_per_s=asked * each if asked and moved else None,
        reached_bytes_per_s=reached * each if reached and moved else None,
        asked_operations_per_s=asked,
        reached_operations_per_s=reached,
        end_late_ns=late,
    )


def _slowest(found: CountedOperations) -> int | None:
    """Return the index of the tier whose operations took the most time, what is no simulation first."""
    each = [
        (not tier.is_simulated, found.total("service_ns", found.at(index)), -index)
        for index, tier in enumerate(found.tiers)
        if tier is not None and found.total("good", found.at(index))
    ]
    return -max(each)[2] if each else None


def _evidence(
    found: CountedOperations,
    index: int | None,
    driven: Driven | None,
    judged: Pace | None,
    queue_depth: int,
    moved: dict[str, DeviceIo],
) -> Evidence:
    known: dict[str, Any] = {}
    if judged is not None:
        known = {"response_shares": judged.causes, "held_share": judged.held_share}
        known["is_end_late"] = is_late(judged.end_late_ns, judged.offered_per_s, judged.delivered_per_s)
    tier = None if index is None else found.tiers[index]
    if index is not None and tier is not None and has_times(tier):
        known |= _levels(found, index)
        known |= _of_devices(found, index, tier, moved)
    if driven is not None and driven.wall_ns:
        places = driven.wall_ns * queue_depth
        known["starved_share"] = min(1.0, driven.starved_ns / places)
        if driven.in_use_ns is not None:
            known["in_flight_mean"] = driven.in_use_ns / driven.wall_ns
            alone = [t for t in found.tiers if t is not None and has_times(t) and copied(t) is None]
            device_ns = known.pop("device_ns", None)
            if device_ns is not None and len(alone) == 1 and driven.in_use_ns:
                known["device_time_share"] = device_ns / driven.in_use_ns
        if driven.blocked_ns is not None and judged is None:
            known["unread_share"] = min(1.0, driven.unread_ns / places)
            known["blocked_share"] = min(1.0, driven.blocked_ns / places)
        if driven.idle_ns is not None:
            known["submitter_busy_share"] = max(0.0, 1 - driven.idle_ns / driven.wall_ns)
        if driven.copying_ns is not None and driven.copy_threads:
            known["copy_busy_share"] = min(1.0, driven.copying_ns / driven.wall_ns / driven.copy_threads)
    known.pop("device_ns", None)
    return Evidence(queue_depth=queue_depth, storage=storage_of(None if tier is None else tier.engine), **known)


def storage_of(engine: str | None) -> str:
    """Return what a tier whose operations go by `engine` lies on, in words."""
    return "object store" if engine == OBJECT_ENGINE else "drive"


def _levels(found: CountedOperations, index: int) -> dict[str, Any]:
    """Return what doubling gained, if a place of the queue is an operation: nearly all were of one I/O."""
    moves, at = found.order.levels(index), found.at(index)
    if not len(moves) or found.total("single_bytes", at) < SINGLE * found.total("moved_bytes", at):
        return {}
    gain, slowdown = levels_of(moves["submitted_ns"], moves["completed_ns"], moves["length_op"])
    return {"doubling_gain": gain, "slowdown": slowdown}


def _of_devices(found: CountedOperations, index: int, tier: Tier, moved: dict[str, DeviceIo]) -> dict[str, Any]:
    """Return how busy the devices beneath a tier were while its operations were in flight, the busiest of several."""
    drives = [moved.get(name) for name in (tier.name, *(d.name for d in getattr(tier, "drives", [])))]
    known = [d for d in drives if d is not None and d.busy_ns is not None and d.device_ns is not None]
    at_work = found.order.covered_ns(index)
    if not known or not at_work:
        return {}
    busy = min(1.0, max((d.busy_ns or 0) for d in known) / at_work)
    return {"device_busy_share": busy, "device_ns": sum(d.device_ns or 0 for d in known)}


def _sentence(
    rate: TierRate | None,
    judged: Pace | None,
    cause: LimitCause | None,
    reason: str | None,
    evidence: Evidence,
    *,
    is_open: bool,
    because: str,
) -> str:
    if rate is None:
        return f"{'open loop' if is_open else 'closed loop'}: nothing completed"
    model, queue_depth = " (SIMULATED)" if rate.is_simulated else "", evidence.queue_depth
    held = (
        ""
        if reason is None
        else f": {limit_of(cause, rate, f'{queue_depth} ({because})', evidence.storage)} ({reason})"
    )
    if not is_open or judged is None:
        reached = reached_of(rate)
        return f"{rate.tier}{model} reached {reached} at queue depth {queue_depth}{held}"
    late = f"{percent(judged.late_fraction)} of operations were late by more than 1 ms"
    if judged.kept_pace:
        return f"{rate.tier}{model} reached the {_asked(rate)} asked and kept pace: {late}"
    slipped = ""
    if (judged.end_late_ns or 0) > SLIP_NS:
        slipped = f"ended {format_duration(judged.end_late_ns)} late, "
    ours = f"{percent(judged.late_by_itself_fraction)} beyond what they depend on"
    return f"FELL BEHIND: {rate.tier}{model} sustained {_of_asked(rate)} asked{held}; {slipped}{late}, {ours}"


def limit_of(cause: LimitCause | None, rate: TierRate, limit: str, storage: str) -> str:
    """Return what held a run back in a few words; `limit` is that of the queue, `storage` what the tier lies on."""
    if cause is None:
        return "what held it back is unclear"
    if cause is LimitCause.DRIVE:
        return "the tier's model is the limit" if rate.is_simulated else f"the {storage} is the limit"
    if cause is LimitCause.QUEUE_LIMIT:
        return f"the queue limit of {limit} held it back"
    if cause in (LimitCause.DEPENDENCIES, LimitCause.COPY_THREADS):
        of_trace = " in the trace" if cause is LimitCause.DEPENDENCIES else ""
        return f"{'' if of_trace else 'the '}{cause.value}{of_trace} are the limit"
    return f"{'' if cause is LimitCause.DATA else 'the '}{cause.value} is the limit"


def reached_of(rate: TierRate) -> str:
    """Return what a tier reached, with its unit."""
    if rate.reached_bytes_per_s is not None:
        return format_rate(rate.reached_bytes_per_s)
    return "-" if rate.reached_operations_per_s is None else f"{rate.reached_operations_per_s:,.0f} op/s"


def _asked(rate: TierRate) -> str:
    if rate.asked_bytes_per_s is not None:
        return format_rate(rate.asked_bytes_per_s)
    return "load" if rate.asked_operations_per_s is None else f"{rate.asked_operations_per_s:,.0f} op/s"


def _of_asked(rate: TierRate) -> str:
    if rate.asked_bytes_per_s is not None and rate.reached_bytes_per_s is not None:
        return format_rate_of(rate.reached_bytes_per_s, rate.asked_bytes_per_s)
    if rate.asked_operations_per_s is None:
        return f"{reached_of(rate)} of all at once"
    reached = rate.reached_operations_per_s
    return f"{'-' if reached is None else f'{reached:,.0f}'} of {rate.asked_operations_per_s:,.0f} op/s"
