"""The bottleneck of a run, decided from `Evidence` alone, and the delays of an open loop.

A response time is the completion minus the due time. For each operation it is split into the wait
for earlier operations of its request or object, the wait from then to its submission, and the
service time. The second component is attributed by the counters of the engine's threads
(`_before_submission`); the remainder is the replayer's. An operation is late by its response time
(`OperationRecorder.late`). If the measurements do not decide, the cause is null and the reason
names the measurement that would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvreplay.engine.job import Driven, ThreadUse
from kvreplay.plan.pacing import KEPT_PACE_FRACTION
from kvreplay.tiers.tier import Tier
from kvtrace.core.metrics.native import OPS_A_PLACE
from kvtrace.core.metrics.recorder import (
    LATENESS,
    RESPONSE,
    OperationRecorder,
)
from kvtrace.core.run.figures import Evidence, LimitCause, Pace
from kvtrace.core.units import format_duration, percent

SLIP_NS = 10_000_000
"""An end that is at most this late counts as in time."""
DELIVERED_SHARE = 0.95
"""A run that delivers a smaller share of the offered rate fell behind."""
MAX_TOUCH_NS = 2_000
"""Upper limit of the time of one fault of a small page."""
DRIVE, DEPENDENCIES, QUEUE, BLOCK_QUEUE, BUFFERS, DATA, MEMORY, PROCESSOR, COPYING, SUBMISSION, UNKNOWN = (
    "drive", "dependencies", "queue", "block queue", "buffers", "data", "memory", "processor", "copying", "submission",
    "before submission",
)  # fmt: skip


def pace(recorder: OperationRecorder[Tier], driven: Driven | None = None) -> Pace | None:
    """Judge whether an open loop kept pace; None for a closed loop, or if nothing was submitted.

    `driven` has the causes of waits before submission.
    """
    run = recorder.run[0]
    sent, good = int(run["counted_sent"]), recorder.total("good")
    if not recorder.is_open_loop or not sent:
        return None
    every = range(len(recorder.kinds))
    end_late, offered, delivered, _ = recorder.delivery(every)
    late, _ = recorder.count_late()
    on_time = 1 - late / good if good else None
    is_end_late = is_late(end_late, offered, delivered)
    is_kept = not is_end_late and good > 0 and late <= KEPT_PACE_FRACTION * good
    causes, unhindered = shares_of(recorder, driven, every)
    delay_shares = delays_of(causes, unhindered, is_end_late=is_end_late)
    return Pace(
        kept_pace=is_kept,
        late_fraction=int(run["late"]) / sent,
        late_by_itself_fraction=int(run["late_by_itself"]) / sent,
        lateness=recorder.distribution(LATENESS),
        response=recorder.distribution(RESPONSE),
        offered_per_s=offered,
        delivered_per_s=delivered,
        end_late_ns=end_late,
        cause=None
        if is_kept or not delay_shares
        else max(delay_shares, key=lambda name: delay_shares[name]),
        causes=causes,
        held_share=(
            None
            if driven is None or not driven.wall_ns
            else min(1.0, driven.depth_limited_ns / driven.wall_ns)
        ),
        on_time_fraction=on_time,
        unhindered_share=unhindered,
    )


def is_late(end_late_ns: int | None, offered: float | None, delivered: float | None) -> bool:
    """Return whether the end was so late that the delivered rate fell short of the offered one.

    Parameters are as in `Pace`. A load that was due all at once offers no rate, so it cannot fall
    behind.
    """
    return (
        offered is not None
        and (end_late_ns or 0) > SLIP_NS
        and (delivered or 0) < DELIVERED_SHARE * offered
    )


def delays_of(
    shares: dict[str, float], unhindered: float | None, *, is_end_late: bool
) -> dict[str, float]:
    """Return the delays among the `shares` of response times.

    Service counts beyond its unhindered part. Waits for earlier operations count only if the end
    was late: an operation that waited was due when the earlier one ended.
    """
    delays = dict(shares)
    if DRIVE in delays:
        delays[DRIVE] = max(0.0, delays[DRIVE] - (unhindered or 0.0))
    if not is_end_late:
        delays.pop(DEPENDENCIES, None)
    return delays


def shares_of(
    recorder: OperationRecorder[Tier], driven: Driven | None, kinds: Sequence[int]
) -> tuple[dict[str, float], float | None]:
    """Return the share of each component of the summed response times of `kinds`.

    The second value is the share that the operations would have taken unhindered.
    """
    total = float(recorder.times.total(*recorder.slots(RESPONSE, kinds)))
    if total <= 0:
        return {}, None
    components = {
        DRIVE: float(recorder.total("service_ns", kinds)),
        DEPENDENCIES: float(recorder.total("depended_ns", kinds)),
    }
    for is_copied in (False, True):
        tiers = [tier is not None and tier.is_copied for tier in recorder.tiers]
        selected_kinds = [
            i for i in kinds if tiers[recorder.tier_of[i // OPS_A_PLACE]] is is_copied
        ]
        waited = recorder.total("waited_ns", selected_kinds) if selected_kinds else 0
        if not waited:
            continue
        causes = (
            {UNKNOWN: 1.0}
            if driven is None
            else _before_submission(recorder, driven, waited, is_copied=is_copied)
        )
        for name, share in causes.items():
            components[name] = components.get(name, 0.0) + share * waited
    unhindered = min(components[DRIVE], recorder.count_late(kinds)[1])
    return {
        name: max(0.0, component_ns) / total for name, component_ns in components.items()
    }, unhindered / total


def counted_share(recorder: OperationRecorder[Tier], driven: Driven | None) -> float:
    """Return the share of the run's time that figures count, which is less than 1 with a warm-up.

    The counters of threads and devices cover the whole run.
    """
    run = recorder.run[0]
    if driven is None or not (run["left_out"] and run["counted_sent"]):
        return 1.0
    return max(1, driven.wall_ns - int(run["from_ns"])) / max(1, driven.wall_ns)


def _before_submission(
    recorder: OperationRecorder[Tier], driven: Driven, added_ns: int, *, is_copied: bool
) -> dict[str, float]:
    """Return the causes of the waits before submission as shares of `added_ns`, their sum.

    The shares follow from the counters of the threads. All operations wait for a thread that serves
    all of them; only one operation waits for a worker.
    """
    run_share = counted_share(recorder, driven)
    waited_ns, added_ns = int(recorder.order.waited_ns / run_share), int(added_ns / run_share)
    rings = driven.of("copier") if is_copied else driven.of("ring")
    # The time against which the threads' activities are measured, summed over the threads.
    if rings:
        threads, total_ns = rings, waited_ns * len(rings)
    else:
        threads, total_ns = driven.of("worker"), added_ns
    total_ns = max(1, total_ns)
    spent = [Spent.of(thread, driven.wall_ns) for thread in threads]
    blocked_ns = sum(thread.blocked_ns for thread in threads if thread.kind == "ring")
    measured = {
        QUEUE: 0.0 if is_copied else driven.depth_limited_ns / max(1, waited_ns),
        BLOCK_QUEUE: blocked_ns / total_ns,
        BUFFERS: 0.0 if is_copied else driven.growing_ns / max(1, waited_ns),
        MEMORY: sum(times.touching_ns for times in spent) / total_ns,
        DATA: sum(times.making_ns for times in spent) / total_ns,
        COPYING: sum(times.copying_ns for times in spent) / total_ns,
        # The last, because not all of it delayed something.
        PROCESSOR: sum(times.stood_ns for times in spent) / total_ns,
    }
    shares, unexplained = dict[str, float](), 1.0
    for name, share in measured.items():
        if share > 0:
            shares[name] = min(unexplained, share)
            unexplained -= shares[name]
    return shares | {SUBMISSION: unexplained}


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one thread by activity, waits for a processor separated from the engine's clock
    times.
    """

    stood_ns: float
    """Time in which the thread was ready to run or active, but had no processor."""
    touching_ns: float
    """Time of page faults on buffers; copying threads make hardly any other system calls."""
    making_ns: float
    copying_ns: float
    checking_ns: float

    @classmethod
    def of(cls, use: ThreadUse, wall_ns: int) -> Spent:
        """Split the time in `use` of a thread that ran for `wall_ns`.

        During an activity, a thread lacked a processor for the activity's time minus the CPU time
        that it got. The kernel counts that as waiting, too, unless a hypervisor took the processor.
        """
        # A worker's time in a tier's own methods was not timed, and may be sleep.
        timed_ns = 0 if use.kind == "worker" else max(0, wall_ns - use.asleep_ns - use.enter_ns)
        stood_ns = max(0, timed_ns - use.user_ns - use.system_ns)
        runs = 1 - stood_ns / timed_ns if timed_ns else 1.0
        making_ns, copying_ns, touching_ns = use.making_ns * runs, use.copying_ns * runs, 0.0
        if use.kind == "copier":
            touching_ns = use.touching_ns * runs
            faults_ns = max(0.0, min(use.system_ns - touching_ns, use.minor_faults * MAX_TOUCH_NS))
            # The faults' time is part of the times of the other activities.
            remainder = 1 - min(1.0, faults_ns / max(1.0, making_ns + copying_ns))
            making_ns, copying_ns = making_ns * remainder, copying_ns * remainder
            touching_ns += faults_ns
        return cls(
            max(stood_ns, use.waited_ns), touching_ns, making_ns, copying_ns, use.checking_ns * runs
        )


DOMINANT = 0.5
"""A cause with a smaller share of the lost time does not limit the run by itself."""
NOTABLE = 0.1
"""A smaller share of the lost time is not taken for a cause of other delays."""
BUSY = 0.9
"""A device or thread that was busy for a smaller share of its time could have done more."""
SCARCE = 0.25
"""Processors are scarce if threads lacked one for at least this share of their time.

A queue that was full meanwhile is not the limit, unless the device was BUSY.
"""
FULL = 0.9
"""A queue of which at least this share was in use limited the run."""
IDLE = 0.5
"""I/Os did not wait for a device that was busy for a smaller share of the time."""
FLAT, RISING = 0.1, 0.5
"""Gains in throughput from doubling the operations in flight.

A drive at its limit gains at most the first, a drive below it at least the second.
"""
SLOWED = 8.0
"""Ratio of service times under load to those at low depth that shows a drive at its limit.

Even where service times grow from the first I/O on, doubling the depth then gained only 10 %.
"""
REACHED = 0.9
"""A limit above the device counts as reached from this share of it on."""
QUEUE_FULL = 0.7
"""A device's queue counts as full if on average this share of it is in use.

The remaining entries are between one request and the next.
"""


_COMPONENT_NAMES = {DRIVE: "service"}
"""Words for a component whose name does not fit all tiers."""

Cause = tuple[LimitCause | None, str | None]
"""The bottleneck and the evidence for it.

If the bottleneck is unknown, it is None, with the reason why. Both are None if nothing limited the
run.
"""


def judge(
    evidence: Evidence, *, is_open: bool, has_reached: bool | None, copies: bool, does_io: bool
) -> Cause:
    """Return the bottleneck of a run and the evidence for it.

    `copies` tells whether threads copy to and from the tier in question, `does_io` whether its
    operations take time at all.
    """
    if has_reached:
        return None, None
    if is_open:
        return _open(evidence, copies=copies)
    if does_io:
        return _closed(evidence, copies=copies)
    # If operations on the tier take no time, all time is the replayer's.
    return _unread(evidence) or (
        LimitCause.REPLAYER,
        f"the tier itself takes no time{_busy(evidence)}",
    )


def _open(evidence: Evidence, *, copies: bool) -> Cause:
    """Judge an open loop by the largest component of its delays.

    Only the excess of service times over unhindered ones counts as delay.
    """
    shares = delays_of(
        evidence.response_shares,
        evidence.unhindered_share,
        is_end_late=bool(evidence.is_end_late),
    )
    total = sum(shares.values())
    if not total:
        return None, "the reason why operations waited is unknown"
    if _is_taken(evidence) and not (_is_throttled(evidence) or _queue_delays(evidence)):
        return LimitCause.PROCESSOR, f"{_others(evidence)}{_share_text(evidence, *_STOOD)}"
    top = max(shares, key=lambda name: shares[name])
    if (
        evidence.is_end_late
        and not copies
        and not _is_throttled(evidence)
        and _is_queue_full(evidence)
    ):
        # Whatever operations waited for, the drive would not have served more of them.
        return LimitCause.DRIVE, _drive_reason(evidence)
    waited = {name: f"{percent(share / total)} of the delays was" for name, share in shares.items()}
    breakdown = ""
    if shares[top] < DOMINANT * total:
        ranked = sorted(shares.items(), key=lambda item: -item[1])
        components = [
            f"{_COMPONENT_NAMES.get(name, name)} {percent(share / total)}"
            for name, share in ranked
            if share
        ]
        breakdown = f"; of the delays: {', '.join(components)}"
    if copies and top in (DRIVE, QUEUE, DEPENDENCIES):
        is_chain = (
            shares.get(DEPENDENCIES, 0.0) >= DOMINANT * total
            and (evidence.copy_busy_share or 0.0) < DOMINANT
        )
        return _by(top, evidence, waited[top]) if is_chain else _and(_copies(evidence), breakdown)
    if top == DEPENDENCIES and not _is_drive(evidence):
        # Find the delay of the operations that others waited for: the largest of the other
        # components, if it is notable. Unhindered service times are not a delay.
        known_shares = {
            name: share
            for name, share in shares.items()
            if name != DRIVE or evidence.unhindered_share is not None
        }
        other_shares = {name: share for name, share in known_shares.items() if name != top}
        root = max(other_shares, key=lambda name: other_shares[name], default=top)
        # A queue that was full most of the time delays chains, however short each single wait is.
        is_full = _queue_delays(evidence)
        if is_full or (
            other_shares
            and other_shares[root]
            >= max(DOMINANT * sum(other_shares.values()), NOTABLE * sum(known_shares.values()))
        ):
            root = QUEUE if is_full else root
            behind = f"; {waited[top]} waiting for earlier operations, themselves delayed by this"
            return _and(_by(root, evidence, waited.get(root, "")), behind)
    return _and(_by(top, evidence, waited[top]), breakdown)


def _by(top: str, evidence: Evidence, waited: str) -> Cause:
    """Judge a run by the largest component of its delays.

    A limit above the device may cause waits for the device.
    """
    if top in (BLOCK_QUEUE, BUFFERS, DEPENDENCIES, QUEUE, DRIVE) and _is_throttled(evidence):
        usage = (
            ""
            if evidence.throttle_share is None
            else f", of which {evidence.throttle_share * 100:.0f} % was used"
        )
        return (
            LimitCause.THROTTLE,
            f"{evidence.throttle}{usage}; {_in_flight(evidence)}{_of_device(evidence)}",
        )
    if top in (BUFFERS, DEPENDENCIES) and _is_drive(evidence):
        return LimitCause.DRIVE, _drive_reason(evidence)
    if top not in _DOING:
        return _BY_TOP[top](evidence, waited)
    cause, activity, share, template = _DOING[top]
    return cause, f"{waited} {activity}{_share_text(evidence, share, template)}"


def _and(cause: Cause, remark: str) -> Cause:
    return cause[0], f"{cause[1]}{remark}"


def _queue_delays(evidence: Evidence) -> bool:
    """Return True if due operations waited for the queue most of the time, and the submitting
    thread was not busy.
    """
    return (evidence.held_share or 0.0) >= DOMINANT and (
        evidence.submitter_busy_share or 0.0
    ) < BUSY


def _is_scarce(evidence: Evidence) -> bool:
    """Return whether the threads lacked processors while the device could have done more."""
    return (evidence.processor_share or 0.0) >= SCARCE and (
        evidence.device_busy_share or 0.0
    ) < BUSY


def _is_taken(evidence: Evidence) -> bool:
    """Return whether other programs had most of the processors, and the tier needs processors.

    Copies to and from memory, and a device in memory, need processors. A drive completes I/Os by
    itself; then the threads' waits show whether they lacked processors.
    """
    is_processed = _is_in_memory(evidence) or evidence.storage == "device in memory"
    return is_processed and (evidence.others_processor_share or 0.0) >= DOMINANT


def _others(evidence: Evidence) -> str:
    """Return the share of the processors' time that other programs took, in words."""
    return f"other programs took {percent(evidence.others_processor_share or 0.0)} of the processors' time"


_STOOD = ("processor_share", ": kvreplay's threads were runnable without a CPU for {} of the time")


def _share_text(evidence: Evidence, share: str, template: str) -> str:
    """Return `template` filled with the value of a share; empty if the share is unknown."""
    value: float | None = getattr(evidence, share)
    return "" if value is None else template.format(percent(value))


def _queue_full(evidence: Evidence) -> str:
    return f"the block layer's queue was full for {percent(evidence.queue_full_share or 0.0)} of the time"


def _late_submission(evidence: Evidence, waited: str) -> Cause:
    """Judge late submission: the thread was late, or busy while the queue had room."""
    if unread := _unread(evidence):
        return unread
    reason = f"{waited} late submission" if waited else _in_flight(evidence)
    if _is_cached(evidence):
        copies = percent(evidence.kernel_share or 0.0)
        return (
            LimitCause.DRIVE,
            f"{reason}, the submitting thread copying in the kernel {copies} of the time",
        )
    return LimitCause.REPLAYER, f"{reason}{_busy(evidence)}"


def _late_buffers(evidence: Evidence, waited: str) -> Cause:
    """Judge a run that waited for memory of its buffers.

    The buffers touched before the run were all in use, and more had to be faulted in.
    """
    busy = min(1.0, evidence.device_busy_share or 0.0)
    if busy >= BUSY:
        # A device that is busy all the time gains nothing from more in flight.
        return LimitCause.DRIVE, f"{_in_flight(evidence)}, device busy {percent(busy)} of the time"
    reason = f"{waited} waiting for buffers whose memory was still being faulted in; {_in_flight(evidence)}"
    return (
        (LimitCause.PROCESSOR, f"{reason}{_share_text(evidence, *_STOOD)}")
        if _is_scarce(evidence)
        else (LimitCause.REPLAYER, reason)
    )


def _closed(evidence: Evidence, *, copies: bool) -> Cause:
    """Judge a closed loop by the largest use of its queue.

    If the queue had room, the activity of the thread that fills it decides.
    """
    blocked, queue_full_share, busy = (
        evidence.blocked_share or 0.0,
        evidence.held_share or 0.0,
        evidence.submitter_busy_share or 0.0,
    )
    chain = f"{_in_flight(evidence)}; {percent(blocked)} of the queue's time was"
    if copies:
        is_chain = blocked >= DOMINANT and (evidence.copy_busy_share or 0.0) < DOMINANT
        return _by(DEPENDENCIES, evidence, chain) if is_chain else _copies(evidence)
    if evidence.in_flight_mean is None:
        return None, "the queue depth reached is unknown"
    # If no due operation waited for the queue, the depth was not a limit.
    is_free = evidence.held_share == 0 and not _is_drive(evidence)
    full, unread = (
        0.0 if is_free else evidence.in_flight_mean / evidence.queue_depth,
        _unread(evidence),
    )
    # The activities of the submitting threads, if they are a cause of their own.
    shares = {
        DATA: evidence.starved_share or 0.0,
        PROCESSOR: evidence.processor_share or 0.0,
        BLOCK_QUEUE: evidence.queue_full_share or 0.0,
    }
    doing = max(shares, key=lambda name: shares[name])
    generation = f"the submitting thread generated data for {percent(shares[DATA])} of the time"
    submitter: dict[str, Cause] = {
        DATA: (LimitCause.DATA, f"{_in_flight(evidence)}, {generation}"),
        PROCESSOR: (
            LimitCause.PROCESSOR,
            f"{_in_flight(evidence)}{_share_text(evidence, *_STOOD)}",
        ),
        BLOCK_QUEUE: _by(BLOCK_QUEUE, evidence, ""),
    }
    cases: list[tuple[bool, Callable[[], Cause | None]]] = [
        (_is_scarce(evidence), lambda: submitter[PROCESSOR]),
        (full >= FULL or _queue_delays(evidence), lambda: _by(QUEUE, evidence, "")),
        (unread is not None, lambda: unread),
        (shares[doing] >= DOMINANT, lambda: submitter[doing]),
        (blocked >= DOMINANT, lambda: _by(DEPENDENCIES, evidence, chain)),
        (
            busy >= BUSY or (busy >= DOMINANT and busy > queue_full_share),
            lambda: _late_submission(evidence, ""),
        ),
        (full >= 1 - DOMINANT, lambda: _by(QUEUE, evidence, "")),
        (blocked >= NOTABLE, lambda: _by(DEPENDENCIES, evidence, chain)),
    ]
    return next((say() for holds, say in cases if holds), None) or (
        None,
        f"{_in_flight(evidence)}{_busy(evidence)}",
    )


def _unread(evidence: Evidence) -> Cause | None:
    share = evidence.unread_share or 0.0
    if share < DOMINANT:
        return None
    reason = (
        f"{percent(share)} of the queue was idle because the next rows of the trace were not yet"
        " read"
    )
    return LimitCause.REPLAYER, reason


def _copies(evidence: Evidence) -> Cause:
    """Judge a tier in memory by the activities of the threads that copy."""
    if evidence.copy_busy_share is None:
        return None, "the share of time for which the copying threads were busy is unknown"
    if unread := _unread(evidence):
        return unread
    shares = {
        MEMORY: evidence.touch_share or 0.0,
        DATA: evidence.starved_share or 0.0,
        PROCESSOR: evidence.processor_share or 0.0,
        COPYING: (evidence.copying_share or 0.0) + (evidence.checking_share or 0.0),
    }
    top = max(shares, key=lambda name: shares[name])
    reason = f"the copying threads were busy {percent(evidence.copy_busy_share)} of the time"
    if top != COPYING and shares[top] >= DOMINANT * evidence.copy_busy_share > 0:
        cause, activity, *_ = _DOING[top]
        return cause, f"{reason}, {percent(shares[top])} {activity}"
    if evidence.copy_busy_share >= BUSY:
        return LimitCause.COPY_THREADS, reason
    if (evidence.submitter_busy_share or 0) >= BUSY:
        return LimitCause.REPLAYER, f"{reason}{_busy(evidence)}"
    return LimitCause.COPY_THREADS, f"{reason}, and some of them had all operations due at once"


def _full(evidence: Evidence, _waited: str) -> Cause:
    """Judge a run with a full queue."""
    queue_text = _share_text(evidence, "held_share", ", queue full {} of the time")
    if _is_replayer_busy(evidence):
        return LimitCause.REPLAYER, f"{_in_flight(evidence)}{_busy(evidence)}{_of_device(evidence)}"
    if evidence.queue_depth == 1:
        return LimitCause.QUEUE_LIMIT, f"one in flight at a time{queue_text}{_of_device(evidence)}"
    if _is_drive(evidence):
        return LimitCause.DRIVE, _drive_reason(evidence)
    if _is_scarce(evidence):
        return LimitCause.PROCESSOR, f"{_in_flight(evidence)}{_share_text(evidence, *_STOOD)}"
    finding = "no greater depth was tried: run kvreplay sweep --queue-depths"
    if (
        evidence.doubling_gain is not None
        and evidence.doubling_gain >= RISING
        and (evidence.slowdown or 0) < SLOWED
    ):
        finding = f"twice the depth gives {percent(evidence.doubling_gain)} more throughput"
    return (
        LimitCause.QUEUE_LIMIT,
        f"{_in_flight(evidence)}{queue_text}{_of_device(evidence)}; {finding}",
    )


def _served(evidence: Evidence, _waited: str) -> Cause:
    """Judge a run with free entries in the queue, in which service times were the delays."""
    if _is_queue_full(evidence):
        return LimitCause.DRIVE, _drive_reason(evidence)
    if _is_replayer_busy(evidence):
        return LimitCause.REPLAYER, f"{_in_flight(evidence)}{_busy(evidence)}{_of_device(evidence)}"
    if (evidence.processor_share or 0.0) >= DOMINANT:
        return (
            LimitCause.PROCESSOR,
            f"{_in_flight(evidence)}{_share_text(evidence, *_STOOD)}{_of_device(evidence)}",
        )
    if _is_device_idle(evidence) and not _is_in_memory(evidence):
        above = "most of the service time was spent in filesystem and block layer"
        return LimitCause.KERNEL, f"{_in_flight(evidence)}{_of_device(evidence)}: {above}"
    service = evidence.response_shares.get(DRIVE, 0.0)
    return (
        LimitCause.DRIVE,
        f"service time {percent(service)} of response, {_in_flight(evidence)}{_of_device(evidence)}",
    )


def _is_throttled(evidence: Evidence) -> bool:
    """Return whether a limit above the device, such as a control group's, limited the run.

    That is so if its rate was reached, or I/Os spent most of their time above the device.
    """
    return evidence.throttle is not None and (
        (evidence.throttle_share or 0.0) >= REACHED or _is_device_idle(evidence)
    )


def _is_cached(evidence: Evidence) -> bool:
    """Return whether the submitting thread was busy copying to and from the page cache."""
    kernel = evidence.kernel_share or 0.0
    running = max(
        kernel, (evidence.submitter_busy_share or 0.0) - (evidence.processor_share or 0.0)
    )
    return _is_in_memory(evidence) and kernel >= DOMINANT * running > 0


def _is_in_memory(evidence: Evidence) -> bool:
    return evidence.storage in ("memory", "page cache")


def _is_replayer_busy(evidence: Evidence) -> bool:
    """Return whether the submitting thread was busy while the device was not."""
    return (
        _is_device_idle(evidence)
        and (evidence.submitter_busy_share or 0) >= BUSY
        and not _is_cached(evidence)
    )


def _is_device_idle(evidence: Evidence) -> bool:
    """Return whether the device is known not to have delayed I/Os.

    Kernels count a device's busy time in ticks, and some count too little of it. They count the
    time of its requests in nanoseconds, so that is preferred.
    """
    if evidence.device_time_share is not None:
        return evidence.device_time_share < IDLE
    return evidence.device_busy_share is not None and evidence.device_busy_share < IDLE


def _is_queue_full(evidence: Evidence) -> bool:
    """Return whether the block layer's queue was full, so that I/Os waited above it."""
    if evidence.device_busy_share is not None and evidence.device_busy_share < BUSY:
        return False
    limit, mean = evidence.device_queue_limit, evidence.device_queue_mean
    is_full = limit is not None and mean is not None and mean >= QUEUE_FULL * limit
    return is_full or (evidence.queue_full_share or 0.0) >= DOMINANT


def _is_drive(evidence: Evidence) -> bool:
    """Return whether the drive was at its limit: a higher depth would not give more throughput."""
    if _is_queue_full(evidence):
        return True
    if _is_device_idle(evidence):
        return False
    if evidence.doubling_gain is not None and evidence.doubling_gain <= FLAT:
        return True
    is_rising = evidence.doubling_gain is not None and evidence.doubling_gain >= RISING
    return (evidence.slowdown or 0) >= SLOWED and not is_rising


def _drive_reason(evidence: Evidence) -> str:
    reason = f"{_in_flight(evidence)}{_of_device(evidence)}"
    if _is_queue_full(evidence):
        if (evidence.queue_full_share or 0.0) >= NOTABLE:
            return f"{reason}; {_queue_full(evidence)}"
        at_device = f"{evidence.device_queue_mean:.3g} requests at the device"
        return f"{reason}; {at_device}, whose queue takes {evidence.device_queue_limit}"
    if evidence.doubling_gain is not None and evidence.doubling_gain <= FLAT:
        return f"{reason}; twice the depth gives {percent(max(0.0, evidence.doubling_gain))} more throughput"
    return f"{reason}; service times {evidence.slowdown:.0f} times those at a low queue depth"


def _in_flight(evidence: Evidence) -> str:
    mean = evidence.in_flight_mean
    return f"in flight {'unknown' if mean is None else f'{mean:.3g}'} of {evidence.queue_depth}"


def _busy(evidence: Evidence) -> str:
    return _share_text(
        evidence, "submitter_busy_share", ", the submitting thread busy {} of the time"
    )


def _latency(evidence: Evidence) -> str:
    """Return the mean service time, and the one that the load needs, in words."""
    mean_ns, needed_ns = evidence.mean_service_ns, evidence.needed_service_ns
    latency = "" if mean_ns is None else f", which take {format_duration(mean_ns)} each on average"
    latency += _of_device(evidence) if latency else ""
    if needed_ns is not None:
        needed = format_duration(needed_ns)
        return f"{latency}; about {needed} would keep up, a greater queue depth not"
    return f"{latency}; a shorter latency would help, a greater queue depth not"


def _of_device(evidence: Evidence) -> str:
    if _is_in_memory(evidence):
        return ""
    if evidence.device_time_share is not None and evidence.device_time_share <= 1:
        return f", device time {percent(evidence.device_time_share)} of service time"
    if evidence.device_busy_share is None:
        return ""
    return f", device busy {percent(min(1.0, evidence.device_busy_share))} of the time"


_DOING = {
    DATA: (LimitCause.DATA, "generating the data of writes", "starved_share", ""),
    MEMORY: (
        LimitCause.MEMORY, "page faults in the tier's memory", "touch_share",
        ", {} of the time of the copying threads",
    ),
    PROCESSOR: (LimitCause.PROCESSOR, "waiting for a processor", *_STOOD),
    COPYING: (
        LimitCause.COPY_THREADS, "copies of others", "copy_busy_share", ", the copying threads busy {} of the time"
    ),
}  # fmt: skip
"""Activities of threads that operations wait for.

Each has a cause, words for the activity, the field of its share, and words for that share.
"""
_BY_TOP: dict[str, Callable[[Evidence, str], Cause]] = {
    BLOCK_QUEUE: lambda evidence, waited: (
        LimitCause.DRIVE,
        (
            f"{waited and f'{waited} submission that blocked in the kernel: '}"
            f"{_queue_full(evidence)}{_of_device(evidence)}"
        ),
    ),
    SUBMISSION: _late_submission,
    DEPENDENCIES: lambda evidence, waited: (
        LimitCause.DEPENDENCIES,
        f"{waited} waiting for earlier operations of the same request or object{_latency(evidence)}",
    ),
    QUEUE: _full,
    BUFFERS: _late_buffers,
    DRIVE: _served,
    UNKNOWN: lambda _evidence, waited: (
        None,
        f"{waited} before submission; the reason is unknown because the run was killed",
    ),
}
"""The judges of all other components of delay."""
