"""Whether an open loop kept to the trace's times, and what its operations waited for instead.

A response time is completion - due time. It is split, operation by operation, into the wait for earlier operations of
its request or object, the wait from then to its submission, and the service time. The second part is shared out by
what the engine counted: time at the queue depth, time without data; what is left is ours.
"""

from __future__ import annotations

from typing import Any

from kvreplay.engine.job import NOT_DONE, OK, Driven, Record
from kvreplay.plan.pacing import KEPT_PACE_FRACTION, LATE_NS
from kvreplay.plan.plan import Plan
from kvtrace.core.run.figures import Distribution, Pace
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.core.units import NS_PER_S

SLIP_NS = 10_000_000
"""An end that is later by no more has not slipped."""
DELIVERED_SHARE = 0.95
"""Of the offered rate: a run that delivers less fell behind."""
OUR_SHARE = 0.1
"""Of the response times added up: a run that waited less for us kept pace, however many of its operations waited. Those
of 32 MiB, at the drive for 50 ms, are not submitted within 1 ms."""
QUICK_PERCENT = 5
"""Of service times: the quickest, which a queue that grows has not lengthened yet."""
DRIVE, DEPENDENCIES, QUEUE, DATA, SUBMISSION, UNKNOWN = (
    "drive", "dependencies", "queue", "data", "submission", "before submission",
)  # fmt: skip
OURS = (QUEUE, DATA, SUBMISSION, UNKNOWN)


def distribution(values: Any) -> Distribution:
    """Return the distribution of int64 `values` (ns): exact nearest-rank percentiles, or null."""
    import numpy as np

    count = len(values)
    if count == 0:
        return Distribution(0, *[None] * 7)
    ordered = np.sort(values)
    ranks = {
        f"{name}_ns": int(ordered[rank - 1]) if (rank := nearest_rank(count, part)) else None
        for name, part in QUANTILES.items()
    }
    return Distribution(count=count, mean_ns=float(ordered.mean()), max_ns=int(ordered[-1]), **ranks)


def pace(
    record: Record, due_ns: Any, is_measured: Any = True, *, plan: Plan | None = None, driven: Driven | None = None
) -> Pace | None:
    """Judge an open loop by its operations that were submitted; None for a closed loop or if none was.

    `plan` tells what the last operation takes; `driven` what waits before submission were for.
    """
    import numpy as np

    sent = (record.submitted_ns != NOT_DONE) & is_measured
    if due_ns is None or not sent.any():
        return None
    submitted, due, ready = record.submitted_ns[sent], due_ns[sent], record.ready_ns[sent]
    lateness = submitted - due
    free = np.maximum(due, ready)
    own = float(np.mean(submitted - free > LATE_NS))
    good = np.flatnonzero(sent & (record.outcome == OK) & (record.completed_ns != NOT_DONE))
    response = record.completed_ns[good] - due_ns[good]
    end_late, offered, delivered = end_of(record, due_ns, good, plan)
    has_slipped = is_late(end_late, offered, delivered)
    causes = _causes(record, due_ns, good, driven)
    ours = sum(causes.get(name, 0.0) for name in OURS)
    is_kept = not has_slipped and (own <= KEPT_PACE_FRACTION or (bool(causes) and ours <= OUR_SHARE))
    # An end in time was not the drive's: what counts is why operations were submitted late.
    named = causes if has_slipped else {name: share for name, share in causes.items() if name != DRIVE}
    return Pace(
        kept_pace=is_kept,
        late_fraction=float(np.mean(lateness > LATE_NS)),
        late_by_itself_fraction=own,
        lateness=distribution(lateness),
        response=distribution(response),
        offered_per_s=offered,
        delivered_per_s=delivered,
        end_late_ns=end_late,
        cause=None if is_kept or not named else max(named, key=lambda name: named[name]),
        causes=causes,
        held_share=None if driven is None or not driven.wall_ns else min(1.0, driven.held_ns / driven.wall_ns),
    )


def is_late(end_late_ns: int | None, offered: float | None, delivered: float | None) -> bool:
    """Return whether an end has slipped so far that less was delivered than was offered; parameters as in `Pace`."""
    return (end_late_ns or 0) > SLIP_NS and (delivered or 0) < DELIVERED_SHARE * (offered or float("inf"))


def end_of(record: Record, due_ns: Any, good: Any, plan: Plan | None) -> tuple[int | None, float | None, float | None]:
    """Return by how much the end of the rows `good` was late, and the rates offered and delivered."""
    if not len(good):
        return None, None, None
    completed, due = record.completed_ns[good], due_ns[good]
    last = int(completed.argmax())
    late = max(0, int(completed[last]) - int(due.max()) - _usual_ns(record, good, last, plan))
    span = int(due.max() - due.min())
    offered = len(good) * NS_PER_S / span if span else None
    return late, offered, len(good) * NS_PER_S / (span + late) if span + late else None


def _usual_ns(record: Record, good: Any, last: int, plan: Plan | None) -> int:
    """Return what an operation like `good[last]` takes unhindered: of its tier and kind, one of the quickest 5 %."""
    import numpy as np

    service = record.completed_ns[good] - record.submitted_ns[good]
    if plan is None:
        return int(np.percentile(service, QUICK_PERCENT))
    tier, op, length = plan.tier[good], plan.op[good], plan.length[good]
    like = (tier == tier[last]) & (op == op[last])
    by_length = np.percentile(service[like] / np.maximum(length[like], 1), QUICK_PERCENT) * length[last]
    return int(min(service[last], max(np.percentile(service[like], QUICK_PERCENT), by_length)))


def _causes(record: Record, due_ns: Any, good: Any, driven: Driven | None) -> dict[str, float]:
    """Return the shares of the response times of the rows `good`, added up, by what they were."""
    import numpy as np

    submitted, due = record.submitted_ns[good], due_ns[good]
    free = np.minimum(np.maximum(due, record.ready_ns[good]), submitted)
    total = float((record.completed_ns[good] - due).sum())
    if total <= 0:
        return {}
    waited = float((submitted - free).sum())
    parts = {
        DRIVE: float((record.completed_ns[good] - submitted).sum()),
        DEPENDENCIES: float((free - due).sum()),
    }
    if driven is None:
        parts[UNKNOWN] = waited
    else:
        some = covered_ns(free, submitted) or 1
        held = min(1.0, driven.held_ns / some)
        lacking = min(1.0 - held, driven.lacking_ns / some)
        parts |= {QUEUE: waited * held, DATA: waited * lacking, SUBMISSION: waited * (1 - held - lacking)}
    return {name: max(0.0, part) / total for name, part in parts.items()}


def covered_ns(starts: Any, ends: Any) -> int:
    """Return how much time the intervals cover together."""
    import numpy as np

    order = np.argsort(starts, kind="stable")
    start, reached = starts[order], np.maximum.accumulate(ends[order])
    before = np.append(start[:1], reached[:-1])
    return int(np.maximum(0, reached - np.maximum(start, before)).sum())


def percent(share: float) -> str:
    """Return a share of 1 as a percentage that never rounds to none or all."""
    if 0 < share < 0.001:  # noqa: PLR2004 - what one decimal would show as 0
        return "< 0.1 %"
    if 0.999 < share < 1:  # noqa: PLR2004 - what one decimal would show as 100
        return "> 99.9 %"
    return f"{share * 100:.1f} %"
