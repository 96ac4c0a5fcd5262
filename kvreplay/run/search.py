"""Which speed or number of users a sweep tries next, and what it comes to: no clock and no I/O.

The values that were asked for go first, rising, to the first that is lost. If none is, the greatest is doubled, unless
more users ask no more of the storage; if the least is lost, it is halved; between the last kept and the first lost the
sweep bisects. These two are tried again at last, and the median decides; the search goes on where it decides otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec

from kvreplay.result.pace import DEPENDENCIES, DRIVE, percent
from kvtrace.core.run.figures import LimitCause, RunVerdict
from kvtrace.core.run.sweep_file import Axis, SweepPoint
from kvtrace.core.units import format_duration, format_rate

DOUBLINGS = 4
"""Beyond the greatest value asked for."""
DOUBLINGS_OF_ONE = 14
"""Where one value was asked for: the search finds the rest by itself."""
ASKS_MORE = 1.05
"""What twice the users ask of the storage, at least, beside the most before: else something else sets the pace."""
HALVINGS = 6
TRIALS = 3
"""At the values that decide."""
PRECISION = 1.1
"""The first lost over the last kept: closer values are not told apart."""

OURS = "submission"
"""The cause that is not the load's."""
FEW_OPERATIONS = 100
"""Of fewer one alone is more than may be late."""
_LIMITS = {
    LimitCause.DRIVE: "the {storage} is",
    LimitCause.REPLAYER: "the replayer is",
    LimitCause.QUEUE_LIMIT: "the queue limit is",
    LimitCause.DATA: "making data is",
    LimitCause.DEPENDENCIES: "dependencies in the trace are",
    LimitCause.COPY_THREADS: "the copy threads are",
    LimitCause.PROCESSOR: "the processor, which others had, is",
    LimitCause.MEMORY: "the first touch of memory is",
    LimitCause.THROTTLE: "a throttle above the device is",
    LimitCause.KERNEL: "the kernel above the device is",
}
_UNCLEAR = "what limits above it is unclear"
FULL = 0.8
"""Of its places in use: a queue depth was what set the load."""


def next_value(axis: Axis, asked: Sequence[float], points: Sequence[SweepPoint]) -> float | None:
    """Return what to try after `points`, an open loop's in the order of their runs; None if the search is over."""
    held = [p.value for p in points if p.is_held]
    lost = [p.value for p in points if not p.is_held]
    tried = {p.value for p in points}
    if not lost:
        rest = [value for value in asked if value not in tried]
        most = DOUBLINGS_OF_ONE if len(asked) == 1 else DOUBLINGS
        is_over = len(points) - len(asked) >= most or asks_no_more(points)
        return rest[0] if rest else None if is_over else 2 * max(held)
    least = min(lost)
    below = [value for value in held if value < least]
    if not below:
        if [p.cause for p in points[-2:]] == [OURS, OURS]:
            # Half of the load does not help where it is the machine that is too busy for us.
            return None
        half = _stepped(axis, least / 2)
        return None if len(lost) > HALVINGS or half in tried or half <= 0 else half
    greatest = max(below)
    middle = _stepped(axis, sqrt(greatest * least))
    if axis is Axis.USERS:
        middle = max(middle, greatest + 1)
    return None if least / greatest <= PRECISION or middle >= least or middle in tried else middle


def asks_no_more(points: Sequence[SweepPoint]) -> bool:
    """Return whether, of an open loop's `points`, each of the last two that rise asked no more than those before."""
    asked = [p.asked_bytes_per_s for p in sorted(points, key=lambda point: point.value)]
    known = [rate for rate in asked if rate is not None]
    if len(known) < len(asked) or len(known) < 3:  # noqa: PLR2004 - two steps
        return False
    return all(known[at] < max(known[:at]) * ASKS_MORE for at in (-2, -1))


def to_repeat(points: Sequence[SweepPoint]) -> float | None:
    """Return which value of an open loop's `points` is to be tried again; None if those that decide have their trials.

    They are the last that is held and the first that is lost.
    """
    rising = sorted(points, key=lambda point: point.value)
    first = next((at for at, point in enumerate(rising) if not point.is_held), len(rising))
    return next((p.value for p in rising[max(0, first - 1) : first + 1] if p.trials < TRIALS), None)


def decided(trials: Sequence[SweepPoint]) -> SweepPoint:
    """Return the median of the trials at one value: of those that are not held, longer ones are the worse."""

    def badness(point: SweepPoint) -> tuple[bool, float, float]:
        return not point.is_held, point.read_p99_ns or 0, point.late_p99_ns or 0

    median = sorted(trials, key=badness)[len(trials) // 2]
    held = None if median.kept_pace is None else sum(point.is_held for point in trials)
    return msgspec.structs.replace(median, trials=len(trials), held_trials=held)


def _stepped(axis: Axis, value: float) -> float:
    """Return `value` as an axis has it: a whole number of users, or a speed with three digits."""
    return float(int(value)) if axis is Axis.USERS else float(f"{value:.3g}")


def sustained(axis: Axis, points: Sequence[SweepPoint], target_ns: int | None) -> str:
    """Return what an open loop's `points`, rising, came to, in one sentence."""
    lost = next((p for p in points if not p.is_held), None)
    held = [p for p in points if p.is_held and (lost is None or p.value < lost.value)]
    if not points:
        return "nothing was tried"
    if not held:
        first = points[0]
        cause = limit_of_open(points)
        limit = "what limits it is unclear" if cause is None else f"{_LIMITS[cause]} the limit"
        return (
            f"the knee is below the lowest load tried, {_said(axis, first)}: there it {_lost(first, target_ns)}; "
            f"{limit}{_few(first)}"
        )
    best = held[-1]
    unknown = target_ns is not None and best.is_within_target is None
    claim = "cannot be judged by --read-p99 at" if unknown else "sustains"
    after = "nothing tried was more than it sustains"
    if lost is None and asks_no_more(points):
        after = (
            f"more users ask no more of it ({format_rate(points[-1].asked_bytes_per_s)} at {_said(axis, points[-1])}, "
            f"{format_rate(points[-2].asked_bytes_per_s)} at {_said(axis, points[-2])}): computing sets the pace"
        )
    if lost is not None:
        after = f"{limit_above(limit_of_open(points), points)}: at {_said(axis, lost)} it {_lost(lost, target_ns)}"
    return f"{claim} {_said(axis, best)}; {_read(best)} at the knee; {after}{_few(best)}"


def limit_of_open(points: Sequence[SweepPoint]) -> LimitCause | None:
    """Return what limits an open loop's `points`, rising, above the last that is held; None if it is not known.

    That is what the first of the lost that decides says.
    """
    lost = next((at for at, p in enumerate(points) if not p.is_held), len(points))
    judged = (p.judgement for p in points[lost:] if not p.is_held and p.judgement is not None)
    causes = (_cause(found, was_held=lost > 0) for found in judged)
    return next((cause for cause in causes if cause is not None), None)


def _cause(found: RunVerdict, *, was_held: bool) -> LimitCause | None:
    """Return what held a run back, `found` being its verdict, given whether less load was held.

    Requests that were served in time at less load depend on as much there: if what they wait for takes longer, that is
    the drive's doing where more of the time was its than ours.
    """
    if found.cause not in (None, LimitCause.DEPENDENCIES) or not was_held:
        return found.cause
    shares = found.evidence.response_shares
    ours = sum(share for name, share in shares.items() if name not in (DRIVE, DEPENDENCIES))
    return LimitCause.DRIVE if shares.get(DRIVE, 0.0) > ours else None


def limit_of_closed(points: Sequence[SweepPoint], *, is_saturated: bool) -> LimitCause | None:
    """Return what limits the last of a closed loop's `points`; None if it is not known.

    Where each depth was in use and more of it moved no more, that is the drive's limit: one run alone cannot tell.
    """
    if not is_saturated or points[-1].judgement is None:
        return None
    found = points[-1].judgement
    if found.cause not in (None, LimitCause.QUEUE_LIMIT):
        return found.cause
    in_flight, shares = found.evidence.in_flight_mean, (found.evidence.blocked_share, found.evidence.starved_share)
    is_full = in_flight is not None and in_flight >= FULL * found.evidence.queue_depth
    is_ours = (found.evidence.submitter_busy_share or 0) >= FULL or None in shares
    return LimitCause.DRIVE if is_full and not is_ours else None


def limit_above(cause: LimitCause | None, points: Sequence[SweepPoint]) -> str:
    """Return what is said of the limit above a knee of `points`."""
    if cause is None:
        return _UNCLEAR
    storage = next((p.judgement.evidence.storage for p in reversed(points) if p.judgement is not None), "drive")
    return f"{_LIMITS[cause].format(storage=storage)} the limit above it"


def reached(points: Sequence[SweepPoint], knee: float | None, *, is_saturated: bool) -> str:
    """Return what a closed loop's `points`, rising, came to, in one sentence."""
    at = next((p for p in points if p.value == knee), None)
    if at is None:
        return "no knee: no point of the sweep qualifies (queue depth)"
    above = limit_above(limit_of_closed(points, is_saturated=is_saturated), points)
    if not is_saturated:
        above = "the sweep did not saturate, so the knee may lie beyond"
    rate = format_rate(at.throughput_bytes_per_s)
    return f"reaches {rate} at queue depth {at.value:g}; {_read(at, 'service')} at the knee; {above}{_few(at)}"


def progress_of(axis: Axis, point: SweepPoint, target_ns: int | None) -> str:
    """Return what one run of a sweep came to, in a line."""
    if axis is Axis.QUEUE_DEPTH:
        return f"{format_rate(point.throughput_bytes_per_s)}, {_read(point, 'service')}"
    asked = "" if point.asked_bytes_per_s is None else f", {format_rate(point.asked_bytes_per_s)} asked"
    return f"held, {_read(point)}{asked}" if point.is_held else f"{_lost(point, target_ns)}{asked}"


def _said(axis: Axis, point: SweepPoint) -> str:
    if axis is Axis.USERS:
        return f"{point.value:g} user{'' if point.value == 1 else 's'}"
    return f"{point.value:g} x the trace's speed"


def _few(point: SweepPoint) -> str:
    if point.operations is None or point.operations >= FEW_OPERATIONS:
        return ""
    return f"; with only {point.operations} operations one that is late decides: a longer trace tells more"


def _aside(point: SweepPoint) -> str:
    """Return what is to be known of a point's times: its trials, and waits for the replayer that they contain."""
    said = [] if point.trials == 1 else [f"held in {point.held_trials} of {point.trials} trials"]
    share = point.late_by_itself_fraction
    if share is not None and not point.kept_pace:
        said.append(f"{percent(share)} of operations waited for the replayer, too")
    return f" ({'; '.join(said)})" if said else ""


def _read(point: SweepPoint, what: str = "response") -> str:
    if point.read_p99_ns is not None:
        return f"read {what} p99 {format_duration(point.read_p99_ns)}{_aside(point)}"
    return f"read {what} p99 is not known ({point.read_p99_lacks or 'no reads'}){_aside(point)}"


def _lost(point: SweepPoint, target_ns: int | None) -> str:
    if point.keeps_up:
        return f"keeps up, but {_read(point)} exceeds {format_duration(target_ns)}"
    return f"falls behind, {_read(point)}"
