"""What held a run back, from what was measured: a decision on `Evidence` alone.

Where the measurements do not decide, the cause is null and the reason says what would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvreplay.result.pace import DATA, DEPENDENCIES, DRIVE, OURS, QUEUE, SUBMISSION, UNKNOWN, percent
from kvtrace.core.run.verdict import Evidence, LimitCause

DOMINANT = 0.5
"""Of what was lost: less is no cause of its own."""
NOTABLE = 0.1
"""Of what was lost: less delayed nothing else."""
BUSY = 0.9
"""Of its time: a device, a thread or threads that were busy for less could have done more."""
IDLE = 0.5
"""A device that was busy for less was not what I/Os waited for."""
FLAT, RISING = 0.1, 0.5
"""Gains from doubling what is in flight: at most, where the drive is at its limit; at least, where it is not."""
SLOWED = 8.0
"""Service times this much longer under load: even where they grow from the first I/O on, doubling gained 10 %."""


Cause = tuple[LimitCause | None, str | None]
"""The cause and what it was seen by; None and why it is not known; or None twice if nothing held the run back."""


def judge(evidence: Evidence, *, is_open: bool, has_reached: bool | None, copies: bool, does_io: bool) -> Cause:
    """Return what held a run back.

    `copies` says whether the tier in question is copied to and from by threads, `does_io` whether anything takes time
    there at all.
    """
    if has_reached:
        return None, None
    if is_open:
        return _open(evidence, copies=copies)
    return _closed(evidence, copies=copies) if does_io else _timeless(evidence)


def _open(found: Evidence, *, copies: bool) -> Cause:
    """Judge an open loop by what most of its response times was; if its end is in time, of what came before service."""
    shares = {name: s for name, s in found.response_shares.items() if found.is_end_late or name != DRIVE}
    total = sum(shares.values())
    if not total:
        return None, "what operations waited for is not known"
    top = max(shares, key=lambda name: shares[name])
    if shares[top] < DOMINANT * total:
        parts = ", ".join(f"{name} {percent(part / total)}" for name, part in sorted(shares.items()) if part)
        return None, f"no part of the delays is half of them: {parts}"
    if copies and top in (DRIVE, QUEUE, DEPENDENCIES):
        return _copies(found)
    of = "response times" if found.is_end_late else "delays"
    waited = {name: f"{percent(share / total)} of the {of} was" for name, share in shares.items()}
    root = None if top != DEPENDENCIES or _is_drive(found) else _root(found.response_shares)
    if root is not None:
        cause, reason = _BY_TOP[root](found, waited[root])
        return cause, f"{reason}; {waited[top]} waiting for earlier operations, themselves delayed by this"
    return _BY_TOP[top](found, waited[top])


def _root(shares: Mapping[str, float]) -> str | None:
    """Return what of our own delayed the operations that others waited for, or None.

    It is most of what was no such wait.
    """
    rest = {name: share for name, share in shares.items() if name != DEPENDENCIES}
    root = max(rest, key=lambda name: rest[name], default=None)
    if root not in OURS or rest[root] < max(DOMINANT * sum(rest.values()), NOTABLE * sum(shares.values())):
        return None
    return root


def _late_data(_found: Evidence, waited: str) -> Cause:
    return LimitCause.DATA, f"{waited} waiting for the data of writes"


def _late_submission(found: Evidence, waited: str) -> Cause:
    busy = found.submitter_busy_share
    if _is_unread(found):
        return _unread(found)
    if busy is not None and busy < IDLE:
        return None, (
            f"{waited} late submission, with the submitting thread idle {percent(1 - busy)} of the time: others may "
            "have had its processor"
        )
    return LimitCause.REPLAYER, f"{waited} late submission{_busy(found)}"


def _late_dependencies(found: Evidence, waited: str) -> Cause:
    if _is_drive(found):
        return LimitCause.DRIVE, _drive_reason(found)
    chain = f"{waited} waiting for earlier operations of the same request or object"
    return LimitCause.DEPENDENCIES, f"{chain}: more in flight would not help, sooner answers would"


def _closed(found: Evidence, *, copies: bool) -> Cause:
    """Judge a closed loop by what most of its queue was."""
    starved, blocked = found.starved_share or 0.0, found.blocked_share or 0.0
    if copies and starved < DOMINANT:
        return _copies(found)
    if found.in_flight_mean is None:
        return None, "what was in flight is not known"
    waited = f"{_in_flight(found)}; {percent(blocked)} of the queue's time was"
    for share, cause in (
        (starved, (LimitCause.DATA, f"{percent(starved)} of the queue stood idle for want of the data of writes")),
        (found.unread_share or 0.0, _unread(found)),
        (blocked, _late_dependencies(found, waited)),
    ):
        if share >= DOMINANT:
            return cause
    if found.in_flight_mean >= (1 - DOMINANT) * found.queue_depth:
        return _full(found, "")
    is_busy = (found.submitter_busy_share or 0) >= BUSY
    return LimitCause.REPLAYER if is_busy else None, f"{_in_flight(found)}{_busy(found)}"


def _is_unread(found: Evidence) -> bool:
    return (found.unread_share or 0.0) >= DOMINANT


def _unread(found: Evidence) -> Cause:
    share = percent(found.unread_share or 0.0)
    return LimitCause.REPLAYER, f"{share} of the queue stood idle because the next rows of the trace were not there yet"


def _timeless(found: Evidence) -> Cause:
    """Judge a closed loop on a tier where nothing takes time."""
    if _is_unread(found):
        return _unread(found)
    if (found.submitter_busy_share or 0) >= BUSY:
        return LimitCause.REPLAYER, f"nothing takes time on the tier{_busy(found)}"
    return None, f"nothing takes time on the tier{_busy(found)}"


def _copies(found: Evidence) -> Cause:
    if found.copy_busy_share is None:
        return None, "how busy the threads that copy were is not known"
    said = f"the threads that copy were busy {percent(found.copy_busy_share)} of the time"
    if found.copy_busy_share >= BUSY:
        return LimitCause.COPY_THREADS, said
    if (found.submitter_busy_share or 0) >= BUSY:
        return LimitCause.REPLAYER, f"{said}{_busy(found)}"
    return None, said


def _full(found: Evidence, _waited: str) -> Cause:
    """Judge a run in which as much was in flight as might be."""
    if _is_ours(found):
        return LimitCause.REPLAYER, f"{_in_flight(found)}{_busy(found)}{_of_device(found)}"
    if found.queue_depth == 1:
        return LimitCause.QUEUE_LIMIT, f"one in flight at a time{_of_device(found)}"
    if _is_drive(found):
        return LimitCause.DRIVE, _drive_reason(found)
    if found.doubling_gain is not None and found.doubling_gain >= RISING and (found.slowdown or 0) < SLOWED:
        gained = f"twice as much in flight moved {percent(found.doubling_gain)} more"
        return LimitCause.QUEUE_LIMIT, f"{_in_flight(found)}{_of_device(found)}; {gained}"
    held = "" if found.held_share is None else f", which bound {percent(found.held_share)} of the time"
    tells = f"kvreplay sweep --queue-depths tells whether the {found.storage} could take more"
    return None, f"{_in_flight(found)}{held}{_of_device(found)}; {tells}"


def _served(found: Evidence, _waited: str) -> Cause:
    """Judge a run whose response times were service times, with room in the queue."""
    if _is_ours(found):
        return LimitCause.REPLAYER, f"{_in_flight(found)}{_busy(found)}{_of_device(found)}"
    if _is_device_idle(found):
        return None, (
            f"{_in_flight(found)}{_of_device(found)}: most of it was spent between us and the device (filesystem, "
            "kernel), which is not measured"
        )
    return LimitCause.DRIVE, f"{_in_flight(found)}{_of_device(found)}"


def _is_ours(found: Evidence) -> bool:
    """Return whether the submitting thread was busy while the device was not."""
    return _is_device_idle(found) and (found.submitter_busy_share or 0) >= BUSY


def _is_device_idle(found: Evidence) -> bool:
    """Return whether the device is known not to be what I/Os waited for.

    Kernels count its busy time in ticks, and some too little of it; the time of its requests they count in nanoseconds.
    """
    if found.device_time_share is not None:
        return found.device_time_share < IDLE
    return found.device_busy_share is not None and found.device_busy_share < IDLE


def _is_drive(found: Evidence) -> bool:
    """Return whether more in flight would not have moved more."""
    if _is_device_idle(found):
        return False
    if found.doubling_gain is not None and found.doubling_gain <= FLAT:
        return True
    is_rising = found.doubling_gain is not None and found.doubling_gain >= RISING
    return (found.slowdown or 0) >= SLOWED and not is_rising


def _drive_reason(found: Evidence) -> str:
    said = f"{_in_flight(found)}{_of_device(found)}"
    if found.doubling_gain is not None and found.doubling_gain <= FLAT:
        return f"{said}; twice as much in flight moved {percent(max(0.0, found.doubling_gain))} more"
    return f"{said}; service times {found.slowdown:.0f} times those of an idle {found.storage}"


def _in_flight(found: Evidence) -> str:
    mean = found.in_flight_mean
    return f"in flight {'unknown' if mean is None else f'{mean:.3g}'} of {found.queue_depth}"


def _busy(found: Evidence) -> str:
    share = found.submitter_busy_share
    return "" if share is None else f", the submitting thread busy {percent(share)} of the time"


def _of_device(found: Evidence) -> str:
    if found.device_time_share is not None and found.device_time_share <= 1:
        return f", device time {percent(found.device_time_share)} of service time"
    if found.device_busy_share is None:
        return ""
    return f", device busy {percent(min(1.0, found.device_busy_share))} of the time"


def _unknown(_found: Evidence, waited: str) -> Cause:
    return None, f"{waited} before submission; what for is not known of a killed run"


_BY_TOP: dict[str, Callable[[Evidence, str], Cause]] = {
    DATA: _late_data,
    SUBMISSION: _late_submission,
    DEPENDENCIES: _late_dependencies,
    QUEUE: _full,
    DRIVE: _served,
    UNKNOWN: _unknown,
}
"""How to judge a run by what most of its delays was."""
