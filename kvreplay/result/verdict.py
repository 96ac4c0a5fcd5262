"""The verdict of a run: offered load, delivered load and bottleneck, as a sentence and as fields.

`levels_of` shows how a tier's service times depend on the number of operations in flight: the same
drive under less load, from one run. If twice as many in flight give twice the throughput, the drive
could take more; if they give the same throughput, it is saturated. Both follow from Little's law
(in flight = rate x service time) at two levels of load.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from kvreplay.engine.job import Driven
from kvreplay.plan.row_ring import READ, WRITE
from kvreplay.result.cause import Spent, counted_share, is_late, judge, shares_of
from kvreplay.tiers.host import FILESYSTEMS_IN_MEMORY, in_memory, layers, queue_number, throttles
from kvreplay.tiers.modelled import DriveModel, SimulatedTier
from kvreplay.tiers.objects import ObjectTier
from kvreplay.tiers.tier import Tier
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metrics.recorder import OperationRecorder
from kvtrace.core.run.drive_file import DriveFile
from kvtrace.core.run.figures import Evidence, LimitCause, Pace, RunVerdict, Summary, TierRate
from kvtrace.core.run.run_file import DeviceIo, RunBegun
from kvtrace.core.units import (
    NS_PER_S,
    format_bytes,
    format_duration,
    format_rate,
    per_second,
    percent,
)

ALL = 0.99
"""A run that delivers this share of the offered load delivered all of it.

The remainder is rounding at the start and the end of the run.
"""
THROTTLED = (0.25, 1.5)
"""Range of the traffic, as multiples of a throttle's limit, in which it may limit the run.

Kernels let less through if I/Os come one by one, and more before the throttle takes effect.
"""
_WORDS = {
    None: ("bottleneck not identified", "what they waited for was not identified"),
    LimitCause.QUEUE_LIMIT: (
        "limited by the queue depth of {limit}",
        "they waited for the queue depth limit of {limit}",
    ),
    LimitCause.PROCESSOR: (
        "other programs used CPU time it needed",
        "they waited for CPU time that others used",
    ),
    LimitCause.THROTTLE: (
        "it was throttled above the {storage}",
        "they were throttled above the {storage}",
    ),
}
"""Sentences by cause: for a run, and for its late operations."""
OTHERS = 1.1
"""Maximum busy time of a device, as a multiple of the time in which operations were in flight.

A device that was busy for longer worked for other programs, too.
"""
SINGLE = 0.9
"""Minimum share of a tier's bytes that operations of a single I/O must transfer.

Then each operation in flight uses one entry of the queue.
"""


def verdict(
    recorder: OperationRecorder[Tier],
    driven: Driven | None,
    judged: Pace | None,
    device_io: dict[str, DeviceIo],
    queue_depth: int,
    because: str,
) -> RunVerdict:
    """Return the verdict of a run.

    `judged` is its pace, and `because` the reason for its depth. The others are as in `summary`.
    """
    tiers = [
        (i, t)
        for i, t in enumerate(recorder.tiers)
        if t is not None and recorder.total("good", recorder.kinds_of(i))
    ]
    rates = [_rate(recorder, index, tier) for index, tier in tiers]
    # The tier whose operations took and waited for the most time; real tiers come before simulated
    # ones. Waits for earlier operations, which may be another tier's, do not count.
    index, tier = max(
        tiers,
        key=lambda candidate: (
            not candidate[1].is_simulated,
            sum(
                recorder.total(name, recorder.kinds_of(candidate[0]))
                for name in ("service_ns", "waited_ns")
            ),
            -candidate[0],
        ),
        default=(None, None),
    )
    evidence = _evidence(recorder, index, driven, judged, queue_depth, device_io)
    does_io, is_copied = tier is not None and tier.has_times, tier is not None and tier.is_copied
    name = None if tier is None else tier.name
    run_verdict = judged_run(
        evidence, rates, name, judged, copies=is_copied, does_io=does_io, because=because
    )
    before, after = "FELL BEHIND: " if judged is not None and evidence.is_end_late else "", ""
    if name is None:
        before = "open loop: " if recorder.is_open_loop else "closed loop: "
        after = " after the warm-up" if recorder.run[0]["left_out"] else ""
    return msgspec.structs.replace(run_verdict, sentence=f"{before}{run_verdict.sentence}{after}")


def judged_run(
    evidence: Evidence,
    rates: list[TierRate],
    tier: str | None,
    pace: Pace | None,
    *,
    copies: bool,
    does_io: bool,
    because: str,
    in_all: str = "",
) -> RunVerdict:
    """Return the verdict of one run, or of all ranks together, about `tier`.

    Parameters are as in `judge`. `rates` are the tiers' loads, `because` is the reason for the
    queue depth, and `in_all` is a remark on the depth for several ranks.
    """
    has_reached = None if pace is None else pace.kept_pace
    rate = next((tier_rate for tier_rate in rates if tier_rate.tier == tier), None)
    make_verdict = partial(
        RunVerdict, has_reached=has_reached, tier=tier, tiers=rates, evidence=evidence
    )
    if rate is None:
        return make_verdict(sentence="nothing completed", cause=None, reason="nothing completed")
    cause, reason = judge(
        evidence, is_open=pace is not None, has_reached=has_reached, copies=copies, does_io=does_io
    )
    limit = f"{evidence.queue_depth} ({because})"
    if pace is not None:
        sentence = _delivered(rate, pace, cause, reason, evidence, limit)
    else:
        bottleneck = (
            ""
            if reason is None
            else f": {_words(cause, rate, limit, evidence.storage)[0]} ({reason})"
        )
        sentence = (
            f"{named(rate)} reached {reached_of(rate)} at queue depth"
            f" {evidence.queue_depth}{in_all}{bottleneck}"
        )
    return make_verdict(sentence=sentence, cause=cause, reason=reason)


def _rate(recorder: OperationRecorder[Tier], index: int, tier: Tier) -> TierRate:
    """Return the offered and the delivered load of `tier`, over its completed operations."""
    kinds = recorder.kinds_of(index)
    count = recorder.total("good", kinds)
    moved_bytes = recorder.total("moved_bytes", kinds) if tier.has_times else 0
    if recorder.is_open_loop:
        late, offered, reached, _ = recorder.delivery(kinds)
    else:
        late, offered, reached = None, None, per_second(count, recorder.span_ns(kinds))
    error = tier.error if isinstance(tier, SimulatedTier) else None
    return TierRate(
        tier=tier.name,
        is_simulated=tier.is_simulated,
        asked_bytes_per_s=(
            offered * recorder.total("due_bytes", kinds) / recorder.total("due", kinds)
            if offered and moved_bytes
            else None
        ),
        reached_bytes_per_s=reached * moved_bytes / count if reached and moved_bytes else None,
        asked_operations_per_s=offered,
        reached_operations_per_s=reached,
        end_late_ns=late,
        measured_over_predicted=None if error is None else error.bandwidth,
        p99_measured_over_predicted=None if error is None else error.p99,
    )


def _evidence(
    recorder: OperationRecorder[Tier],
    index: int | None,
    driven: Driven | None,
    judged: Pace | None,
    queue_depth: int,
    device_io: dict[str, DeviceIo],
) -> Evidence:
    facts: JsonObject = {}
    tier = None if index is None else recorder.tiers[index]
    kinds = [] if index is None else recorder.kinds_of(index)
    if judged is not None and index is not None:
        shares, unhindered = shares_of(recorder, driven, kinds)
        facts = {
            "response_shares": shares,
            "unhindered_share": unhindered,
            "held_share": judged.held_share,
        }
        facts["is_end_late"] = is_late(
            judged.end_late_ns, judged.offered_per_s, judged.delivered_per_s
        )
        facts["on_time_share"] = judged.on_time_fraction
    facts |= _latencies(recorder, kinds, judged)
    if index is not None and tier is not None and tier.has_times:
        moves = recorder.order.levels(index)
        # If nearly all operations are of one I/O, each uses one entry of the queue.
        if len(moves) and recorder.total("single_bytes", kinds) >= SINGLE * recorder.total(
            "moved_bytes", kinds
        ):
            gain, slowdown = levels_of(
                moves["submitted_ns"], moves["completed_ns"], moves["length_op"]
            )
            facts |= {"doubling_gain": gain, "slowdown": slowdown}
        facts["doubling_gain"] = _gain_of(recorder, index, driven, facts.get("doubling_gain"))
        facts |= _of_devices(
            tier, device_io, recorder.order.covered_ns(index) / counted_share(recorder, driven)
        )
        if driven is not None:
            facts["throttle"], facts["throttle_share"] = _throttle(recorder, index, tier)
    device_ns = facts.pop("device_ns", None)
    if driven is not None and driven.wall_ns:
        facts["others_processor_share"] = driven.others_share
        facts |= _of_threads(driven, is_copied=tier is not None and tier.is_copied)
        places = driven.wall_ns * queue_depth
        if judged is None:
            facts["held_share"] = min(1.0, driven.depth_limited_ns / driven.wall_ns)
        if driven.in_use_ns is not None:
            facts["in_flight_mean"] = driven.in_use_ns / driven.wall_ns
            alone = [t for t in recorder.tiers if t is not None and t.has_times and not t.is_copied]
            if device_ns is not None and len(alone) == 1 and driven.in_use_ns:
                facts["device_time_share"] = device_ns / driven.in_use_ns
        if driven.blocked_ns is not None and judged is None:
            facts["unread_share"] = min(1.0, driven.unread_ns / places)
            facts["blocked_share"] = min(1.0, driven.blocked_ns / places)
    return Evidence(queue_depth=queue_depth, storage=storage_of(tier), **facts)


def _latencies(
    recorder: OperationRecorder[Tier], kinds: Sequence[int], judged: Pace | None
) -> JsonObject:
    """Return the mean service time, and the approximate one with which an open loop would keep up.

    Operations that wait for each other take the sum of their service times. So a load that took
    twice its time needs service times of half the length.
    """
    completed = recorder.total("good", kinds)
    if not completed:
        return {}
    mean_ns = recorder.total("service_ns", kinds) / completed
    facts: JsonObject = {"mean_service_ns": mean_ns}
    if (
        judged is not None
        and is_late(judged.end_late_ns, judged.offered_per_s, judged.delivered_per_s)
        and judged.offered_per_s
        and judged.delivered_per_s
    ):
        facts["needed_service_ns"] = mean_ns * judged.delivered_per_s / judged.offered_per_s
    return facts


def _gain_of(
    recorder: OperationRecorder[Tier], index: int, driven: Driven | None, measured: float | None
) -> float | None:
    """Return the `measured` gain of twice the depth, else the gain by the tier's model.

    The model is evaluated at the mean number in flight while the tier had work. That counts I/Os
    for a measured drive, and operations for other models.
    """
    tier, kinds = (
        recorder.tiers[index],
        recorder.kinds_of(index, READ) + recorder.kinds_of(index, WRITE),
    )
    moved_bytes, read_bytes = (
        recorder.total("moved_bytes", selected_kinds)
        for selected_kinds in (kinds, recorder.kinds_of(index, READ))
    )
    at_work = recorder.order.covered_ns(index) / counted_share(recorder, driven)
    in_flight = (driven.in_use_ns or 0) / max(1, at_work) if driven else 0.0
    if not isinstance(tier, SimulatedTier) or measured is not None:
        return measured
    if not (moved_bytes and in_flight):
        return measured
    mean_bytes = moved_bytes / recorder.total("good", kinds)
    return tier.gain(mean_bytes, recorder.io_bytes, read_bytes / moved_bytes, in_flight)


def _of_threads(driven: Driven, *, is_copied: bool) -> JsonObject:
    """Return the activities of the submitting threads as shares of the time.

    If the tier `is_copied`, these are the threads that copy.
    """
    rings, copiers, wall_ns = driven.of("ring"), driven.of("copier"), driven.wall_ns
    threads = copiers if is_copied else driven.of("ring", "worker")

    def share(each_ns: Sequence[float]) -> float:
        return min(1.0, sum(each_ns) / len(each_ns) / wall_ns)

    facts: JsonObject = {}
    if threads:
        spent = [Spent.of(thread, wall_ns) for thread in threads]
        facts["starved_share"] = share([thread.making_ns for thread in spent])
        facts["checking_share"] = share([thread.checking_ns for thread in spent])
        facts["processor_share"] = share([thread.stood_ns for thread in spent])
        if is_copied:
            facts["touch_share"] = share([thread.touching_ns for thread in spent])
            facts["copying_share"] = share([thread.copying_ns for thread in spent])
    if rings:
        # Data is generated ahead only while nothing is due or in flight.
        idle_ns = [thread.asleep_ns + thread.preparing_ns for thread in rings]
        facts["submitter_busy_share"] = max(0.0, 1 - share(idle_ns))
        facts["kernel_share"] = share([thread.system_ns for thread in rings])
        facts["queue_full_share"] = min(1.0, max(thread.blocked_ns for thread in rings) / wall_ns)
    if copiers:
        facts["copy_busy_share"] = max(0.0, 1 - share([thread.asleep_ns for thread in copiers]))
    return facts


def _throttle(
    recorder: OperationRecorder[Tier], index: int, tier: Tier
) -> tuple[str | None, float | None]:
    """Return the throttle above a tier's devices with the nearest limit, and its usage.

    The throttle is in the kernel's words; the usage is the traffic as a share of the limit. Limits
    are those at the end of the run.
    """
    covered_ns, nearest = recorder.order.covered_ns(index), ("", 0.0)
    for number, drive in enumerate(tier.drives):
        for limit in throttles(Path(drive.target)):
            kinds = recorder.kinds_of(index, WRITE if limit.is_write else READ, number)
            # Each operation is at least one I/O.
            amount = recorder.total("io_bytes" if limit.is_bytes else "good", kinds)
            share = amount * NS_PER_S / covered_ns / limit.per_s if covered_ns else 0.0
            if nearest[1] < share <= THROTTLED[1]:
                nearest = limit.where, share
    return nearest if nearest[1] >= THROTTLED[0] else (None, None)


def storage_of(tier: Tier | None) -> str:
    """Return the kind of storage beneath a tier, in words."""
    if tier is None or isinstance(tier, ObjectTier):
        return "drive" if tier is None else "object store"
    if tier.is_copied:
        return "memory"
    if any(drive.is_buffered for drive in tier.drives):
        return "page cache"
    beneath = next(
        (memory_name for drive in tier.drives if (memory_name := in_memory(Path(drive.target)))),
        None,
    )
    if beneath is None:
        return "drive"
    return "memory" if beneath in FILESYSTEMS_IN_MEMORY else "device in memory"


def _of_devices(tier: Tier, device_io: dict[str, DeviceIo], at_work_ns: float) -> JsonObject:
    """Return the utilization of the devices beneath a tier while its operations were in flight.

    For several devices, it is that of the busiest. If a device was busy for longer than operations
    were in flight, other programs used it, and its utilization by this run is unknown.
    """
    drives = {name: device_io.get(name) for name in (tier.name, *(d.name for d in tier.drives))}
    measured = {
        n: d
        for n, d in drives.items()
        if d is not None and d.busy_ns is not None and d.device_ns is not None
    }
    if not measured or not at_work_ns:
        return {}
    fullest = max(measured, key=lambda name: measured[name].device_ns or 0)
    target = next((d.target for d in tier.drives if d.name == fullest), None)
    busy = max((d.busy_ns or 0) for d in measured.values()) / at_work_ns
    share = {
        "device_busy_share": min(1.0, busy),
        "device_queue_mean": (measured[fullest].device_ns or 0) / at_work_ns,
        "device_queue_limit": None if target is None else queue_number(Path(target), "nr_requests"),
    }
    return {"device_ns": sum(d.device_ns or 0 for d in measured.values())} | (
        share if busy <= OTHERS else {}
    )


def named(rate: TierRate) -> str:
    """Return a tier's name, marked if it is simulated."""
    return f"{rate.tier} (SIMULATED)" if rate.is_simulated else rate.tier


def _delivered(
    rate: TierRate,
    judged: Pace,
    cause: LimitCause | None,
    reason: str | None,
    evidence: Evidence,
    limit: str,
) -> str:
    """Describe an open loop: the delivered load, the share on time, and the cause of delays."""
    is_behind = bool(evidence.is_end_late)
    delivered = f"{named(rate)} delivered {_of_asked(rate, is_behind=is_behind)}"
    if is_behind:
        delivered += f", ended {format_duration(judged.end_late_ns)} late"
    on_time = judged.on_time_fraction
    if on_time is None:
        return delivered
    if judged.kept_pace:
        return f"{delivered}; {percent(on_time)} of operations on time"
    p99_ns = None if judged.response is None else judged.response.p99_ns
    times = "" if p99_ns is None else f" (response p99 {format_duration(p99_ns)})"
    delivered += f"; {percent(1 - on_time)} of operations late by more than 1 ms{times}"
    if reason is None:
        return delivered
    behind_text, late_text = _words(cause, rate, limit, evidence.storage)
    return f"{delivered}: {behind_text if is_behind else late_text} ({reason})"


def _words(cause: LimitCause | None, rate: TierRate, limit: str, storage: str) -> tuple[str, str]:
    """Return the sentences on the cause: one for a run that fell behind, one for late operations."""
    if cause in _WORDS:
        run_text, late_text = _WORDS[cause]
        return run_text.format(limit=limit, storage=storage), late_text.format(
            limit=limit, storage=storage
        )
    assert cause is not None, "None has an entry in _WORDS"
    subject, verb = limiting(cause, "tier's model" if rate.is_simulated else storage)
    return f"{subject} {verb} the limit", f"they waited for {subject}"


def limiting(cause: LimitCause, storage: str) -> tuple[str, str]:
    """Return words for the limit, and the verb `is` or `are`; `storage` names the tier's storage."""
    if cause is LimitCause.DEPENDENCIES:
        return f"the latency of the {storage}, times operations that wait for each other,", "is"
    limit_name = storage if cause is LimitCause.DRIVE else cause.value
    return (
        limit_name if cause is LimitCause.DATA else f"the {limit_name}",
        "are" if cause is LimitCause.COPY_THREADS else "is",
    )


def reached_of(rate: TierRate) -> str:
    """Format the rate that a tier reached; that of a drive file is a range of predictions."""
    if rate.reached_bytes_per_s is not None:
        if rate.measured_over_predicted is None:
            return format_rate(rate.reached_bytes_per_s)
        low, high = (
            format_rate(rate.reached_bytes_per_s * ratio) for ratio in rate.measured_over_predicted
        )
        return f"{low} to {high} (by the error of 90 % of its drive file's held-out cells)"
    return (
        "-"
        if rate.reached_operations_per_s is None
        else f"{rate.reached_operations_per_s:,.0f} op/s"
    )


def _of_asked(rate: TierRate, *, is_behind: bool) -> str:
    """Return words for the delivered load of a tier, and its share of the offered load."""
    offered, reached = rate.asked_bytes_per_s, rate.reached_bytes_per_s
    is_bytes = offered is not None and reached is not None
    if not is_bytes:
        offered, reached = rate.asked_operations_per_s, rate.reached_operations_per_s
    if offered is None or reached is None:
        return f"{reached_of(rate)} of all asked at once"
    share = reached / offered
    if share >= ALL and not is_behind:
        return f"all of the {format_rate(offered) if is_bytes else f'{offered:,.0f} op/s'} asked"
    delivered_text, offered_text = (
        map(format_rate, (reached, offered))
        if is_bytes
        else (f"{rate_value:,.0f} op/s" for rate_value in (reached, offered))
    )
    # A common unit is written once: 1.90 of 3.00 GB/s.
    text = (
        f"{delivered_text.removesuffix(offered_text[offered_text.index(' ') :])} of {offered_text}"
    )
    return f"{text} asked ({percent(min(1.0, share))})"


MIN_OPERATIONS = 8
"""Minimum number of operations of one kind and length at a level, for a median."""
MIN_LOW_OPERATIONS = 4
"""The same at the lowest level.

Few operations are served before the queue has filled, and only a large ratio counts there.
"""
MAX_KINDS = 16
MIN_LEVEL = 4
"""Minimum number in flight, so that half of it can be compared."""
FULL, HALF, LOW = 0.8, (0.35, 0.6), 0.125
"""Levels, as shares of the usual maximum in flight."""
_USUAL_PERCENT = 95
DISAGREE = 0.4
"""If the two estimates of the gain differ by more, neither is used."""


def levels_of(
    submitted: np.ndarray, completed: np.ndarray, kind: np.ndarray
) -> tuple[float | None, float | None]:
    """Return `doubling_gain` and `slowdown` of `Evidence`, for operations of one I/O each.

    Operations are in the order of submission. `kind` (int64) encodes operation and length; only
    operations of one kind are compared.
    """
    service = completed - submitted
    if not len(service) or (service <= 0).any():
        return None, None
    ends = np.sort(completed)
    at_start = np.arange(1, len(service) + 1) - np.searchsorted(ends, submitted, side="right")
    # For each operation: the number in flight, integrated over its time.
    times = np.concatenate([submitted, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.cumsum(np.where(order < len(submitted), 1, -1))
    passed = np.concatenate([[0], np.cumsum(level[:-1] * np.diff(times))]).astype(np.float64)
    meanwhile = (
        np.interp(completed, times, passed) - np.interp(submitted, times, passed)
    ) / service
    usual = float(np.percentile(at_start, _USUAL_PERCENT))
    if usual < MIN_LEVEL:
        return None, None
    gains = [_gain(level, usual, service, kind) for level in (at_start, meanwhile)]
    slowdown = _ratio(
        service,
        kind,
        at_start >= FULL * usual,
        at_start <= max(1.0, LOW * usual),
        MIN_LOW_OPERATIONS,
    )
    gains_known = [gain for gain in gains if gain is not None]
    is_agreed = len(gains_known) == len(gains) and abs(gains_known[0] - gains_known[1]) <= DISAGREE
    return (sum(gains_known) / len(gains_known) if is_agreed else None), slowdown


def _gain(level: np.ndarray, usual: float, service: np.ndarray, kind: np.ndarray) -> float | None:
    full, half = level >= FULL * usual, (level >= HALF[0] * usual) & (level <= HALF[1] * usual)
    slower = _ratio(service, kind, full, half)
    if slower is None:
        return None
    gain = float(np.mean(level[full]) / np.mean(level[half]))
    # The gain from this increase in flight, converted to the gain from doubling.
    return float((gain / slower) ** (1 / np.log2(gain)) - 1)


def _ratio(
    service: np.ndarray,
    kind: np.ndarray,
    upper: np.ndarray,
    lower: np.ndarray,
    min_count: int = MIN_OPERATIONS,
) -> float | None:
    """Return the ratio of median service times at the upper and the lower level.

    It is the weighted mean over the kinds with enough operations at both levels.
    """
    ratios, weights = [], []
    kinds, counts = np.unique(kind[lower], return_counts=True)
    for kind_index in kinds[np.argsort(-counts, kind="stable")[:MAX_KINDS]]:
        above, below = service[upper & (kind == kind_index)], service[lower & (kind == kind_index)]
        if len(above) >= MIN_OPERATIONS and len(below) >= min_count:
            ratios.append(float(np.median(above) / np.median(below)))
            weights.append(min(len(above), len(below)))
    return float(np.average(ratios, weights=weights)) if ratios else None


EXPECTED = (0.9, 1.1)
"""Range of the ratio of measured to expected throughput that needs no explanation."""
_OURS = (
    LimitCause.REPLAYER, LimitCause.DATA, LimitCause.PROCESSOR, LimitCause.KERNEL, LimitCause.DEPENDENCIES,
)  # fmt: skip


_NEW_FILES = (
    "this run makes a new file for each object, but the drive was measured on one file written"
    " before: writes to newly allocated blocks are slower; a run on a preallocated file"
    " (nvme=FILE.dat) shows by how much"
)


def beside_drive(path: Path, run: RunBegun, summary: Summary) -> list[str]:
    """Return five lines: the drive file's prediction for the run's load, the measurement, and the
    reason for the difference.

    There is only one line if they cannot be compared: no tier on storage, or an unknown queue
    depth.
    """
    judged, first = summary.judgement, f"{path.name}: "
    if judged is None:
        return [f"{first}nothing to compare"]
    transfers = [
        f for f in summary.figures if f.tier == judged.tier and f.op != "delete" and f.bytes
    ]
    drives = [facts for name, facts in run.drives() if name == judged.tier and "is_direct" in facts]
    in_flight, depth = judged.evidence.in_flight_mean, judged.evidence.queue_depth
    observed = next((r.reached_bytes_per_s for r in judged.tiers if r.tier == judged.tier), None)
    if not (transfers and in_flight and observed) or len(drives) != 1:
        return [
            (
                f"{first}nothing to compare: {judged.tier} is not one drive, or its queue depth is"
                " unknown"
            )
        ]
    facts, drive, total = drives[0], DriveFile.read(path), sum(f.bytes or 0 for f in transfers)
    share = sum(f.bytes or 0 for f in transfers if f.op == "read") / total
    size = min(
        total / max(1, sum(f.operations or 0 for f in transfers)), run.engine.io_bytes or total
    )
    model, target, filesystem = (
        DriveModel(drive.cells),
        Path(facts["target"]),
        facts.get("filesystem"),
    )
    # With less than one in flight on average, the drive was idle for the rest of the time.
    expected = model.at(size, max(1.0, in_flight), share)[0] * min(1.0, in_flight)
    ratio, longest_kib, beneath = (
        observed / expected,
        queue_number(target, "max_sectors_kb"),
        layers(target),
    )
    longest = None if longest_kib is None else longest_kib << 10
    is_split, is_full = longest is not None and longest < size, in_flight >= FULL * depth
    is_met = EXPECTED[0] <= ratio <= EXPECTED[1]
    load = (
        f"I/Os of {format_bytes(size)}, {in_flight:.3g} in flight, {percent(share)} of bytes read"
    )
    takes = "not seen" if longest is None else f"{format_bytes(longest)} a request"
    deepest = max(cell.depth for cell in drive.cells)
    best = format_rate(model.at(size, deepest, share)[0])
    above = judged.reason or "the whole load asked was delivered"
    reasons = [
        (
            not facts["is_direct"],
            "O_DIRECT did not reach a drive: a cache answered, or a layer not seen",
        ),
        (judged.cause is LimitCause.THROTTLE, f"a control group's limit: {judged.reason}"),
        (
            (facts.get("device"), facts.get("device_model")) != (drive.device, drive.model),
            f"another drive: {beneath}",
        ),
        (is_met and is_full, "the drive is the limit: it performs as measured"),
        (is_met, f"the drive performs as measured; the queue was kept short: {above}"),
        (judged.cause in _OURS, f"{judged.cause}, above the drive: {judged.reason}"),
        (ratio < 1 and not str(facts.get("layout")).startswith("extents"), _NEW_FILES),
        (" over " in beneath, f"a layer above the drive, such as RAID: {beneath}"),
        (is_split and ratio < 1, "I/Os are split above the drive"),
        (
            filesystem != drive.filesystem,
            f"the filesystem, {filesystem}: the drive was measured on another",
        ),
        (
            True,
            (
                "the drive itself: its state has changed since it was measured, or other programs"
                " use it"
            ),
        ),
    ]
    reason = next(text for holds, text in reasons if holds)
    queue = f"queue {'' if is_full else 'not '}full: {in_flight:.3g} of {depth}"
    return [
        f"{first}expected {format_rate(expected)} for this load: {load} ({drive})",
        (
            f"{first}observed {format_rate(observed)}, {ratio:.2f} of it; the drive reaches {best}"
            f" at depth {deepest}"
        ),
        (
            f"{first}O_DIRECT"
            f" {'is in use' if facts['is_direct'] else 'is NOT in use, or not confirmed'} on"
            f" {beneath}"
        ),
        f"{first}{queue}; I/Os {'ARE' if is_split else 'not'} split ({takes})",
        f"{first}why: {reason}",
    ]
