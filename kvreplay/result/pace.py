"""Whether an open loop kept to the trace's times, and what its operations waited for instead.

A response time is completion - due time. It is split, operation by operation, into the wait for earlier operations of
its request or object, the wait from then to its submission, and the service time. The second part is shared out by
what the engine's threads counted (`_before_submission`); what is left is ours. An operation is late by its response
time: `CountedOperations.late`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvreplay.engine.job import Driven, ThreadUse
from kvreplay.plan.pacing import KEPT_PACE_FRACTION
from kvreplay.result.counted.operations import OPS, PER_MIB, QUICK_PERCENT, RESPONSE, SERVICE, CountedOperations
from kvreplay.result.counted.times import Times
from kvreplay.tiers.tier import copied
from kvtrace.core.run.figures import Distribution, Pace
from kvtrace.core.units import NS_PER_S

MIB = 1 << 20

SLIP_NS = 10_000_000
"""An end that is later by no more has not slipped."""
DELIVERED_SHARE = 0.95
"""Of the offered rate: a run that delivers less fell behind."""
MOST_TOUCH_NS = 2_000
"""What a fault takes at most, of a small page."""
DRIVE, DEPENDENCIES, QUEUE, BLOCK_QUEUE, BUFFERS, DATA, MEMORY, PROCESSOR, COPYING, SUBMISSION, UNKNOWN = (
    "drive", "dependencies", "queue", "block queue", "buffers", "data", "memory", "processor", "copying", "submission",
    "before submission",
)  # fmt: skip


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
    sent, good = int(run["counted_sent"]), found.total("good")
    if not found.is_open_loop or not sent:
        return None
    every = range(len(found.kinds))
    end_late, offered, delivered = end_of(found, every)
    late, _ = found.late()
    on_time = 1 - late / good if good else None
    is_kept = not is_late(end_late, offered, delivered) and on_time is not None and 1 - on_time <= KEPT_PACE_FRACTION
    causes, unhindered = shares_of(found, driven, every)
    named = delays_of(causes, unhindered)
    return Pace(
        kept_pace=is_kept,
        late_fraction=int(run["late"]) / sent,
        late_by_itself_fraction=int(run["late_by_itself"]) / sent,
        lateness=found.lateness,
        response=found.response,
        offered_per_s=offered,
        delivered_per_s=delivered,
        end_late_ns=end_late,
        cause=None if is_kept or not named else max(named, key=lambda name: named[name]),
        causes=causes,
        held_share=None if driven is None or not driven.wall_ns else min(1.0, driven.held_ns / driven.wall_ns),
        on_time_fraction=on_time,
        unhindered_share=unhindered,
    )


def is_late(end_late_ns: int | None, offered: float | None, delivered: float | None) -> bool:
    """Return whether an end has slipped so far that less was delivered than was offered; parameters as in `Pace`."""
    return (end_late_ns or 0) > SLIP_NS and (delivered or 0) < DELIVERED_SHARE * (offered or float("inf"))


def delays_of(shares: dict[str, float], unhindered: float | None) -> dict[str, float]:
    """Return of the `shares` of response times what was delay: service only beyond what it takes unhindered."""
    return shares | {DRIVE: max(0.0, shares[DRIVE] - (unhindered or 0.0))} if DRIVE in shares else shares


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


def shares_of(
    found: CountedOperations, driven: Driven | None, at: Sequence[int]
) -> tuple[dict[str, float], float | None]:
    """Return the shares of the response times of the kinds `at`, added up, by what they were.

    And what share the operations would have taken unhindered.
    """
    total = float(found.sum_of(RESPONSE, at))
    if total <= 0:
        return {}, None
    parts = {DRIVE: float(found.total("service_ns", at)), DEPENDENCIES: float(found.total("depended_ns", at))}
    for is_copied in (False, True):
        of = [i for i in at if copied(found.tiers[int(found.places.tier_of[i // OPS])]) is is_copied]
        waited = found.total("waited_ns", of) if of else 0
        if not waited:
            continue
        for name, share in _before_submission(driven, found.order.waited_ns, waited, is_copied=is_copied).items():
            parts[name] = parts.get(name, 0.0) + share * waited
    unhindered = min(parts[DRIVE], found.late(at)[1])
    return {name: max(0.0, part) / total for name, part in parts.items()}, unhindered / total


def _before_submission(driven: Driven | None, waited_ns: int, added_ns: int, *, is_copied: bool) -> dict[str, float]:
    """Return what waits before submission were for, as shares of them, by what the threads counted.

    In `waited_ns` of the run's time something could have gone and had not; all waits are `added_ns`. What one thread
    that serves all does is time that all wait for; of a worker for one operation only that one waits.
    """
    if driven is None:
        return {UNKNOWN: 1.0}
    rings = driven.of("copier") if is_copied else driven.of("ring")
    threads, of = (rings, waited_ns * len(rings)) if rings else (driven.of("worker"), added_ns)
    spent = [Spent.of(each, driven.wall_ns) for each in threads]
    measured = {
        QUEUE: 0.0 if is_copied else driven.held_ns / max(1, waited_ns),
        BLOCK_QUEUE: sum(each.blocked_ns for each in threads if each.kind == "ring") / max(1, of),
        BUFFERS: 0.0 if is_copied else driven.growing_ns / max(1, waited_ns),
        MEMORY: sum(each.touching_ns for each in spent) / max(1, of),
        DATA: sum(each.making_ns for each in spent) / max(1, of),
        COPYING: sum(each.copying_ns for each in spent) / max(1, of),
        # The last, because not all of it delayed something.
        PROCESSOR: sum(each.stood_ns for each in spent) / max(1, of),
    }
    found, left = dict[str, float](), 1.0
    for name, share in measured.items():
        if share > 0:
            found[name] = min(left, share)
            left -= found[name]
    return found | {SUBMISSION: left}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a thread did with its time, apart: what the engine timed by the clock contains waits for a processor."""

    stood_ns: float
    """Ready to run, or in the middle of something, and without a processor."""
    touching_ns: float
    """Having the kernel give pages: who copies asks it for hardly anything else."""
    making_ns: float
    copying_ns: float
    checking_ns: float

    @classmethod
    def of(cls, use: ThreadUse, wall_ns: int) -> Spent:
        """Tell apart what `use` says of a thread that ran for `wall_ns`.

        In the middle of something a thread stood for as long as that took beyond the processor time it got. The kernel
        counts that as waiting, too, unless it is the machine beneath that took the processor.
        """
        # A worker's time in a tier's own methods was not timed, and may be sleep.
        timed_ns = 0 if use.kind == "worker" else max(0, wall_ns - use.asleep_ns - use.enter_ns)
        stood_ns = max(0, timed_ns - use.user_ns - use.system_ns)
        runs = 1 - stood_ns / timed_ns if timed_ns else 1.0
        making_ns, copying_ns, touching_ns = use.making_ns * runs, use.copying_ns * runs, 0.0
        if use.kind == "copier":
            touching_ns = use.touching_ns * runs
            faults_ns = max(0.0, min(use.system_ns - touching_ns, use.minor_faults * MOST_TOUCH_NS))
            # They come within what was timed as something else.
            left = 1 - min(1.0, faults_ns / max(1.0, making_ns + copying_ns))
            making_ns, copying_ns, touching_ns = making_ns * left, copying_ns * left, touching_ns + faults_ns
        return cls(max(stood_ns, use.waited_ns or 0), touching_ns, making_ns, copying_ns, use.checking_ns * runs)


def percent(share: float) -> str:
    """Return a share of 1 as a percentage that never rounds to none or all."""
    if 0 < share < 0.001:  # noqa: PLR2004 - what one decimal would show as 0
        return "< 0.1 %"
    if 0.999 < share < 1:  # noqa: PLR2004 - what one decimal would show as 100
        return "> 99.9 %"
    return f"{share * 100:.1f} %"
