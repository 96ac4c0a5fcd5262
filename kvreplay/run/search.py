"""Which speed or number of users a sweep tries next, and what it comes to: no clock and no I/O.

The values that were asked for go first, rising, to the first that is lost. If none is, the greatest is doubled; if the
least is lost, it is halved; between the last kept and the first lost the sweep bisects. These two are tried again at
last, and the median decides; the search goes on where it decides otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import sqrt

import msgspec

from kvtrace.core.units import format_duration

DOUBLINGS = 4
"""Beyond the greatest value asked for."""
HALVINGS = 6
TRIALS = 3
"""At the values that decide."""
PRECISION = 1.1
"""The first lost over the last kept: closer values are not told apart."""

OURS = "submission"
"""The cause that is not the load's."""
FEW_OPERATIONS = 100
"""Of fewer one alone is more than may be late."""
_CAUSES = {
    "drive": "the drive",
    "dependencies": "waits for earlier operations of the same request or object",
    "queue": "the queue limit",
    "data": "making data",
    OURS: "our own submission",
}


class Axis(StrEnum):
    """What rises from run to run."""

    QUEUE_DEPTH = "queue_depth"
    SPEED = "speed"
    USERS = "users"

    @property
    def option(self) -> str:
        """The option that names its values."""
        return {Axis.QUEUE_DEPTH: "--queue-depths", Axis.SPEED: "--speeds", Axis.USERS: "--users"}[self]


class SweepPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a sweep."""

    value: float
    run: str
    verdict: str
    throughput_bytes_per_s: float | None
    """Object bytes read and written on tiers where bytes move / measured time of the run."""
    operations_per_s: float | None
    operations: int | None = None
    """That completed in the run."""
    read_p99_ns: int | None
    """Of the slowest tier: response time in an open loop, service time in a closed one; null if one has too few."""
    read_p99_lacks: str | None = None
    """Why it is null, and how long the run would have to be."""
    write_p99_ns: int | None
    kept_pace: bool | None
    """Null in a closed loop."""
    cause: str | None = None
    """What kept an open loop from its pace, as in the run's `pace`."""
    is_within_target: bool | None = None
    """Whether read_p99_ns is within the target; null without one, or if it is not known."""
    late_p99_ns: int | None
    trials: int = 1
    """Runs at this value: more where they decide what an open loop sustains; the other fields are the median's."""
    held_trials: int | None = None
    """Those that were held; null in a closed loop."""

    @property
    def is_held(self) -> bool:
        """Whether an open loop kept pace and is not known to have missed the target."""
        return bool(self.kept_pace) and self.is_within_target is not False


def next_value(axis: Axis, asked: Sequence[float], points: Sequence[SweepPoint]) -> float | None:
    """Return what to try after `points`, an open loop's in the order of their runs; None if the search is over."""
    held = [p.value for p in points if p.is_held]
    lost = [p.value for p in points if not p.is_held]
    tried = {p.value for p in points}
    if not lost:
        rest = [value for value in asked if value not in tried]
        beyond = len(points) - len(asked)
        return rest[0] if rest else 2 * max(held) if beyond < DOUBLINGS else None
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
        return (
            f"sustains no {axis.value} tried: {_said(axis, points[0])} {_lost(points[0], target_ns)}{_few(points[0])}"
        )
    best = held[-1]
    unknown = target_ns is not None and best.is_within_target is None
    claim = "cannot be judged by --read-p99 at" if unknown else "sustains"
    after = "; nothing tried was more than it sustains" if lost is None else ""
    if lost is not None:
        after = f"; at the next step, {_said(axis, lost)}, it {_lost(lost, target_ns)}"
    return f"{claim} {_said(axis, best)}: {_read(best)}{after}{_few(best)}"


def _said(axis: Axis, point: SweepPoint) -> str:
    users = f"{point.value:g} user{'' if point.value == 1 else 's'} (speed 1)"
    return users if axis is Axis.USERS else f"speed {point.value:g}"


def _few(point: SweepPoint) -> str:
    if point.operations is None or point.operations >= FEW_OPERATIONS:
        return ""
    return f"; with only {point.operations} operations one that is late decides: a longer trace tells more"


def _trials(point: SweepPoint) -> str:
    return "" if point.trials == 1 else f" (held in {point.held_trials} of {point.trials} trials)"


def _read(point: SweepPoint) -> str:
    if point.read_p99_ns is not None:
        return f"read response p99 {format_duration(point.read_p99_ns)}{_trials(point)}"
    return f"read response p99 is not known ({point.read_p99_lacks or 'no reads'}){_trials(point)}"


def _lost(point: SweepPoint, target_ns: int | None) -> str:
    if point.kept_pace:
        return f"keeps pace, but {_read(point)} exceeds {format_duration(target_ns)}"
    cause = f" (cause: {_CAUSES.get(point.cause, point.cause)})" if point.cause else ""
    return f"falls behind{cause}, {_read(point)}"
