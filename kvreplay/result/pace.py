"""Whether an open loop kept to the trace's times, and what its operations waited for instead.

A response time is completion - due time. It is split, operation by operation, into the wait for earlier operations of
its request or object, the wait from then to its submission, and the service time. The second part is shared out by
what the engine counted: time at the queue depth, time without data; what is left is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvreplay.engine.job import Driven
from kvreplay.plan.pacing import KEPT_PACE_FRACTION
from kvreplay.result.counted.count import OPS, PER_MIB, SERVICE
from kvreplay.result.counted.operations import CountedOperations
from kvreplay.result.counted.times import Times
from kvtrace.core.run.figures import Distribution, Pace
from kvtrace.core.units import NS_PER_S

MIB = 1 << 20

SLIP_NS = 10_000_000
"""An end that is later by no more has not slipped."""
DELIVERED_SHARE = 0.95
"""Of the offered rate: a run that delivers less fell behind."""
OUR_SHARE = 0.05
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
    found = Times(limit=len(values))
    found.add(values)
    return found.distribution(0)


def pace(found: CountedOperations, driven: Driven | None = None) -> Pace | None:
    """Judge an open loop by its operations that were submitted; None for a closed loop or if none was.

    `driven` tells what waits before submission were for.
    """
    run = found.run[0]
    sent = int(run["counted_sent"])
    if not found.is_open_loop or not sent:
        return None
    own = int(run["late_by_itself"]) / sent
    end_late, offered, delivered = end_of(found, range(len(found.kinds)))
    has_slipped = is_late(end_late, offered, delivered)
    causes = _causes(found, driven)
    ours = sum(causes.get(name, 0.0) for name in OURS)
    is_kept = not has_slipped and (own <= KEPT_PACE_FRACTION or (bool(causes) and ours <= OUR_SHARE))
    # An end in time was not the drive's: what counts is why operations were submitted late.
    named = causes if has_slipped else {name: share for name, share in causes.items() if name != DRIVE}
    return Pace(
        kept_pace=is_kept,
        late_fraction=int(run["late"]) / sent,
        late_by_itself_fraction=own,
        lateness=found.lateness,
        response=found.response,
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


def end_of(found: CountedOperations, at: Sequence[int]) -> tuple[int | None, float | None, float | None]:
    """Return by how much the end of the kinds `at` was late, and the rates offered and delivered."""
    kinds, count = found.kinds, found.total("good", at)
    if not count:
        return None, None, None
    completed = max(int(kinds["last_ns"][i]) for i in at)
    # The last is the first row that completed then.
    last = min((i for i in at if kinds["last_ns"][i] == completed), key=lambda i: int(kinds["last_row"][i]))
    first_due, last_due = int(kinds["first_due_ns"][list(at)].min()), int(kinds["last_due_ns"][list(at)].max())
    late = max(0, completed - last_due - _usual_ns(found, last))
    span = last_due - first_due
    offered = count * NS_PER_S / span if span else None
    return late, offered, count * NS_PER_S / (span + late) if span + late else None


def _usual_ns(found: CountedOperations, last: int) -> int:
    """Return what the last operation of kind `last` takes unhindered: of its tier and kind, one of the quickest 5 %."""
    service, moved = int(found.kinds["last_service_ns"][last]), int(found.kinds["last_bytes"][last])
    like = [i for i in found.at(int(found.places.tier_of[last // OPS])) if i % OPS == last % OPS]
    usual = found.quick(SERVICE, QUICK_PERCENT, like)
    if found.count(PER_MIB, like):
        usual = max(usual, found.quick(PER_MIB, QUICK_PERCENT, like) * moved / MIB)
    return int(min(service, usual))


def _causes(found: CountedOperations, driven: Driven | None) -> dict[str, float]:
    """Return the shares of the response times, added up, by what they were."""
    total, waited = float(found.response_ns), float(found.run["waited_ns"][0])
    if total <= 0:
        return {}
    parts = {DRIVE: float(found.total("service_ns")), DEPENDENCIES: float(found.run["depended_ns"][0])}
    if driven is None:
        parts[UNKNOWN] = waited
    else:
        some = found.order.waited_ns or 1
        held = min(1.0, driven.held_ns / some)
        lacking = min(1.0 - held, driven.lacking_ns / some)
        parts |= {QUEUE: waited * held, DATA: waited * lacking, SUBMISSION: waited * (1 - held - lacking)}
    return {name: max(0.0, part) / total for name, part in parts.items()}


def percent(share: float) -> str:
    """Return a share of 1 as a percentage that never rounds to none or all."""
    if 0 < share < 0.001:  # noqa: PLR2004 - what one decimal would show as 0
        return "< 0.1 %"
    if 0.999 < share < 1:  # noqa: PLR2004 - what one decimal would show as 100
        return "> 99.9 %"
    return f"{share * 100:.1f} %"
