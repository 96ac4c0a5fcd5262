"""One trace at rising queue depths (closed loop), speeds or users (open loop), up to saturation,
and its knee.

The rule is fixed and stated with the result, so that two people who sweep find the same knee. Which
value comes next is decided without a clock or I/O (`next_value`). The values that were asked for go
first, rising, to the first that is not sustained. If none fails, the greatest is doubled, unless
more users ask no more of the storage; if the least fails, it is halved; between the last sustained
and the first failed value the sweep bisects. These two are tried again at last, and the median
decides; the search goes on where it decides otherwise.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.plan.output_directory import check_output, forgotten, make_directory
from kvreplay.plan.replay_config import Config
from kvreplay.result.cause import DEPENDENCIES, DRIVE, SUBMISSION, is_late
from kvreplay.result.figures import measured_figures, worst_percentile
from kvreplay.result.verdict import limiting
from kvreplay.run.replay import Replay, Replaying, replay
from kvreplay.tiers.make_tiers import make_tiers
from kvreplay.tiers.tier import Tier
from kvtrace import __version__
from kvtrace.core import statistics
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.files import write_json
from kvtrace.core.metadata import Metadata
from kvtrace.core.parameters import named
from kvtrace.core.run.figures import LimitCause, RunVerdict, Summary
from kvtrace.core.run.run_file import (
    SWEEP_FILE,
    ProgramError,
    run_program,
)
from kvtrace.core.run.sweep_file import (
    Axis,
    LoadSweep,
    SweepPoint,
)
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.core.units import counted, format_duration, format_rate, per_second, percent

DOUBLINGS = 4
"""Beyond the greatest value asked for."""
DOUBLINGS_OF_ONE = 14
"""Where one value was asked for: the search finds the rest by itself."""
HALVINGS = 6
TRIALS = 3
"""At the values that decide."""
PRECISION = 1.1
"""The first lost over the last kept: closer values are not told apart."""

FEW_OPERATIONS = 100
"""With fewer operations, a single late one exceeds the allowed share."""
_LIMITS = {
    LimitCause.PROCESSOR: ("CPU time used by other programs", "is"),
    LimitCause.THROTTLE: ("a throttle above the device", "is"),
}
"""Words of a sweep that differ from those of a run."""
_UNCLEAR = "bottleneck above it not identified"
FULL = 0.8
"""With this share of its places in use, the queue depth determined the load."""


DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
GAIN = 0.05
"""A step that gains less has saturated.

Users that ask for less more have something else that sets their pace.
"""
KNEE_SHARE = 0.9
TRACE_FILE = "trace.parquet"
"""In a sweep's folder: the trace that was made for it."""
P99_NEEDS = 100
"""Operations, for a p99 by nearest rank."""


_KEPT_PACE = (
    "the greatest {} up to which every load was sustained: at least 95 % of it delivered by its"
    " end and, with --read-p99, a read response time p99 within it; after the values given a sweep"
    " doubles until failure, or halves until success, then bisects (it stops where twice as many"
    f" add no load); the last sustained and the first failed value are run {TRIALS} times (not"
    " again after two failures), and the median decides"
)
RULES = {
    Axis.QUEUE_DEPTH: (
        f"the least queue depth with {KNEE_SHARE:.0%} of the greatest throughput; a sweep ends when"
        f" two steps in a row gain less than {GAIN:.0%} over the best before"
    ),
    Axis.SPEED: _KEPT_PACE.format("speed"),
    Axis.USERS: _KEPT_PACE.format("number of users"),
}


def has_users(meta: Metadata) -> bool:
    """Return whether a trace is one of synthetic users, so that its command makes it with more of
    them.
    """
    return (
        meta.program == "kvtrace"
        and meta.argv[1:2] == ["gen"]
        and isinstance(meta.config.get("users"), int)
    )


def sweep(
    asked: Replay,
    axis: Axis,
    values: list[float],
    *,
    is_made: bool = False,
    read_p99_target_ns: int | None = None,
    done: Callable[[SweepPoint], None] = lambda _point: None,
    replaying: Replaying = replay,
) -> tuple[LoadSweep, KvError | None]:
    """Replay at each of `values`, rising, until saturated (an open loop as `next_value` says).

    Keep runs in the output.

    A trace that `is_made` for this sweep is moved there.

    Returns the sweep, which sweep.json holds too, and why it is partial or None.
    """
    config, trace, output = asked.config, asked.trace, asked.output
    _check_values(asked, axis, values, read_p99_target_ns)
    check_output(output, is_forced=asked.is_forced)
    meta = open_table(trace, TRACE).meta
    tiers = make_tiers(config, meta, trace, output)
    if axis is Axis.USERS and not has_users(meta):
        raise ConfigError(
            f"{named('users')}: {trace} has no synthetic users to have more of; sweep its speed"
            f" with {named('speeds')}"
        )
    make_directory(output, SWEEP_FILE)
    if is_made:
        shutil.move(objects_path(trace), objects_path(output / TRACE_FILE))
        trace = Path(shutil.move(trace, output / TRACE_FILE))
    trials: dict[float, list[SweepPoint]] = {}
    points: list[SweepPoint] = []
    error, value = None, values[0] if values else None
    while value is not None:
        of_value = trials.setdefault(value, [])
        name = _name(axis, value, len(of_value) + 1)
        if axis is Axis.USERS:
            trace = output / f"{_name(axis, value)}.parquet"
            if not of_value:
                generate(meta, int(value), trace)
        made = [] if points or not (is_made or axis is Axis.USERS) else [trace, output / TRACE_FILE]
        with forgotten(output, made):
            at = _at(config, axis, value)
            outcome = replaying(replace(asked, config=at, trace=trace, output=output / name))
        error = outcome.error
        if (
            axis is Axis.SPEED
            and not points
            and (pace := outcome.summary.pace)
            and pace.offered_per_s is None
        ):
            error = error or ConfigError(
                f"{name}: all operations are due at once, at no rate: sweep {named('queue_depths')}"
            )
        if error is not None:
            break
        of_value.append(
            point(value, name, outcome.summary, read_p99_target_ns, outcome.run.window.window, axis)
        )
        done(of_value[-1])
        points = [decided(found) for found in trials.values()]
        if of_value[-1].window is None:  # nothing is evicted: greater loads are replayed whole, too
            config = replace(config, window=None)
        value = _next(axis, values, points)
    points.sort(key=lambda point: point.value)
    found = _found(axis, points, read_p99_target_ns, [t for t in tiers if t is not None])
    if error is not None:
        found = msgspec.structs.replace(found, answer=f"PARTIAL: {found.answer}")
    about = {"program": "kvreplay", "version": __version__, "argv": asked.argv}
    write_json(output / SWEEP_FILE, about | msgspec.to_builtins(found))
    return found, error


def _found(
    axis: Axis, points: list[SweepPoint], read_p99_target_ns: int | None, tiers: list[Tier]
) -> LoadSweep:
    """Return the result of a sweep from its rising `points`."""
    is_over, best = is_saturated(axis, points), knee(axis, points)
    simulated = [tier.name for tier in tiers if tier.is_simulated]
    if axis is Axis.QUEUE_DEPTH:
        answer, limit = (
            reached(points, best, is_saturated=is_over),
            limit_of_closed(points, is_saturated=is_over),
        )
    else:
        answer, limit = (
            sustained(axis, points, read_p99_target_ns) + windows_said(axis, points),
            limit_of_open(points),
        )
    return LoadSweep(
        axis=axis,
        points=points,
        knee=best,
        is_saturated=is_over,
        rule=RULES[axis],
        answer=f"SIMULATED: {answer}" if len(simulated) == len(tiers) else answer,
        limit=limit,
        read_p99_target_ns=read_p99_target_ns,
        simulated_tiers=simulated,
    )


def _name(axis: Axis, value: float, trial: int = 1) -> str:
    repeated = "" if trial == 1 else f"-trial-{trial}"
    return f"{'qd' if axis is Axis.QUEUE_DEPTH else axis}-{value:g}{repeated}"


def _next(axis: Axis, values: list[float], points: list[SweepPoint]) -> float | None:
    """Return the next value to try; None at the end."""
    if axis is not Axis.QUEUE_DEPTH:
        return next_value(axis, values, points) or to_repeat(points)
    is_over = is_saturated(axis, points) or len(points) == len(values)
    return None if is_over else values[len(points)]


def _check_values(
    asked: Replay, axis: Axis, values: list[float], read_p99_target_ns: int | None
) -> None:
    """Refuse options that a replay at any of `values` refuses, before a directory is made."""
    bounds = {"read_p99": read_p99_target_ns, "queue_depth": asked.config.queue_depth}
    if axis is Axis.QUEUE_DEPTH and (
        given := [name for name, bound in bounds.items() if bound is not None]
    ):
        raise ConfigError(
            f"{named(given[0])} bounds an open loop; give {named('speeds')} or {named('users')}"
            " with it"
        )
    values_text = named(axis.parameter, ",".join(f"{value:g}" for value in values))
    if axis is not Axis.SPEED and any(value != int(value) or value < 1 for value in values):
        raise ConfigError(f"{values_text}: give whole numbers from 1")
    least, many = (2, "two or more") if axis is Axis.QUEUE_DEPTH else (1, "some")
    if len(values) < least or sorted(set(values)) != values:
        raise ConfigError(f"{values_text}: give {many} that rise, such as 1,2,4,8")
    for value in values:
        replace(asked, config=_at(asked.config, axis, value)).check_options()


def _at(config: Config, axis: Axis, value: float) -> Config:
    if axis is Axis.QUEUE_DEPTH:
        return replace(config, queue_depth=int(value), speed=None)
    return replace(config, speed=value if axis is Axis.SPEED else 1.0)


def point(
    value: float, run: str, summary: Summary, read_p99_target_ns: int | None = None, window: str | None = None,
    axis: Axis = Axis.SPEED,
) -> SweepPoint:  # fmt: skip
    """Return the point of the sweep that a finished run makes, of a `window` of its trace."""
    moved = [f for f in measured_figures(summary.figures) if f.op != "delete"]
    span = summary.measured_ns if moved else 0
    # Few users may ask for all at once, which is no rate; a speed that leaves no time between
    # operations asks too much.
    pace, names = summary.pace, product(("read", "write"), ("p50_ns", "p99_ns", "p99_9_ns"))
    rate = (
        None if pace is None else pace.delivered_per_s if axis is Axis.USERS else pace.offered_per_s
    )
    times: dict[str, Any] = {
        f"{op}_{name}": worst_percentile(summary.figures, op, name) for op, name in names
    }
    read_p99_ns = times["read_p99_ns"]
    is_judged = read_p99_target_ns is not None and read_p99_ns is not None
    return SweepPoint(
        value=value,
        run=run,
        verdict=summary.verdict,
        window=window,
        throughput_bytes_per_s=per_second(sum(f.bytes or 0 for f in moved), span),
        operations_per_s=per_second(sum(f.operations or 0 for f in moved), span),
        operations=summary.operations,
        asked_bytes_per_s=tiers_rate(summary, "asked_bytes_per_s"),
        read_p99_lacks=_lacking(summary),
        is_within_target=(read_p99_ns or 0) <= (read_p99_target_ns or 0) if is_judged else None,
        **times,
        judgement=summary.judgement,
        kept_pace=pace.kept_pace if pace else None,
        is_delivered=(
            not is_late(pace.end_late_ns, pace.offered_per_s, pace.delivered_per_s)
            if pace and rate
            else None
        ),
        late_by_itself_fraction=pace.late_by_itself_fraction if pace else None,
        cause=pace.cause if pace else None,
        late_p99_ns=pace.lateness.p99_ns if pace else None,
    )


def tiers_rate(summary: Summary, name: str) -> float | None:
    """Return the rate `name` of an open loop's tiers added up; None if it is not known of one."""
    counted = {f.tier for f in measured_figures(summary.figures)}
    tiers = (
        []
        if summary.judgement is None
        else [t for t in summary.judgement.tiers if t.tier in counted]
    )
    return statistics.total(
        [getattr(t, name) for t in tiers if t.asked_operations_per_s is not None]
    )


def _lacking(summary: Summary) -> str | None:
    """Return why the p99 of reads is not known, and how long the run would have to be.

    None if it is.
    """
    counts = [f.judged.count for f in measured_figures(summary.figures) if f.op == "read"]
    if not counts:
        return "no tier was read"
    least = min(counts)
    if least >= P99_NEEDS:
        return None
    longer = (
        f"a trace (or --limit) {P99_NEEDS / least:.1f} times as long"
        if least
        else "a longer trace (or --limit)"
    )
    return f"{counted(least, 'read')} on a tier where a p99 needs {P99_NEEDS}: take {longer}"


def is_saturated(axis: Axis, points: list[SweepPoint]) -> bool:
    """Return whether the sweep may end at the last of `points`."""
    if axis is not Axis.QUEUE_DEPTH:
        return any(not point.is_held for point in points) or asks_no_more(points)
    return _gains_no_more([p.throughput_bytes_per_s or 0.0 for p in points])


def _gains_no_more(rates: list[float]) -> bool:
    """Return whether each of the last two steps of `rates` gained less than GAIN over the best
    before it.
    """
    return len(rates) > 2 and all(rates[at] < max(rates[:at]) * (1 + GAIN) for at in (-2, -1))  # noqa: PLR2004


def knee(axis: Axis, points: list[SweepPoint]) -> float | None:
    """Return the knee by the rule of `axis`; None if no point qualifies."""
    if axis is not Axis.QUEUE_DEPTH:
        held = [found.value for found in takewhile(lambda found: found.is_held, points)]
        return held[-1] if held else None
    rates = [(p.value, p.throughput_bytes_per_s or 0.0) for p in points]
    greatest = max((rate for _, rate in rates), default=0.0)
    return next((value for value, rate in rates if rate and rate >= KNEE_SHARE * greatest), None)


def generate(meta: Metadata, users: int, path: Path) -> None:
    """Write to `path` the trace that the command of `meta` makes with so many users.

    ConfigError if kvtrace refuses; the message is its own.
    """
    try:
        run_program(
            "kvtrace",
            [*with_users(meta.argv[1:], users), "-o", str(path), "--force"],
            is_noted=False,
        )
    except ProgramError as error:
        raise ConfigError(f"{named('users', users)}: {error}") from None


def with_users(argv: list[str], users: int) -> list[str]:
    """Return `argv` with --users `users`, where it stands already or at the end.

    All else must stay the same.
    """
    found = [
        (
            str(users)
            if before == "--users"
            else f"--users={users}"
            if argument.startswith("--users=")
            else argument
        )
        for before, argument in zip(["", *argv], argv, strict=False)
    ]
    is_there = any(argument == "--users" or argument.startswith("--users=") for argument in argv)
    return found if is_there else [*found, "--users", str(users)]


def next_value(axis: Axis, asked: Sequence[float], points: Sequence[SweepPoint]) -> float | None:
    """Return the value to try after `points` (an open loop's, in run order).

    None at the end of the search.
    """
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
        if [p.cause for p in points[-2:]] == [SUBMISSION, SUBMISSION]:
            # Half of the load does not help where it is the machine that is too busy for us.
            return None
        half = _stepped(axis, least / 2)
        return None if len(lost) > HALVINGS or half in tried or half <= 0 else half
    greatest = max(below)
    middle = _stepped(axis, math.sqrt(greatest * least))
    if axis is Axis.USERS:
        middle = max(middle, greatest + 1)
    return None if least / greatest <= PRECISION or middle >= least or middle in tried else middle


def asks_no_more(points: Sequence[SweepPoint]) -> bool:
    """Return whether the last two rising `points` of an open loop added no load."""
    asked = [p.asked_bytes_per_s for p in sorted(points, key=lambda point: point.value)]
    return None not in asked and _gains_no_more([rate for rate in asked if rate is not None])


def to_repeat(points: Sequence[SweepPoint]) -> float | None:
    """Return which value of an open loop's `points` to try again.

    None if the deciding ones have all their trials.

    They are the last that is held and the first that is lost; one that most of its trials have lost
    is decided.
    """
    rising = sorted(points, key=lambda point: point.value)
    first = next((at for at, point in enumerate(rising) if not point.is_held), len(rising))
    deciding = [
        p
        for p in rising[max(0, first - 1) : first + 1]
        if 2 * (p.trials - (p.held_trials or 0)) <= TRIALS
    ]
    return next((p.value for p in deciding if p.trials < TRIALS), None)


def decided(trials: Sequence[SweepPoint]) -> SweepPoint:
    """Return the median of the trials at one value.

    Of those that are not held, longer ones are the worse.
    """
    worse = sorted(trials, key=lambda p: (not p.is_held, p.read_p99_ns or 0, p.late_p99_ns or 0))
    middle = worse[len(trials) // 2]
    held = None if middle.kept_pace is None else sum(point.is_held for point in trials)
    return msgspec.structs.replace(middle, trials=len(trials), held_trials=held)


def _stepped(axis: Axis, value: float) -> float:
    """Return `value` as an axis has it: a whole number of users, or a speed with three digits."""
    return float(int(value)) if axis is Axis.USERS else float(f"{value:.3g}")


def sustained(axis: Axis, points: Sequence[SweepPoint], target_ns: int | None) -> str:
    """Describe the result of an open loop's rising `points` in one sentence."""
    lost = next((p for p in points if not p.is_held), None)
    held = [p for p in points if p.is_held and (lost is None or p.value < lost.value)]
    if not points:
        return "nothing was tried"
    if not held:
        first = points[0]
        cause = limit_of_open(points)
        limit = "bottleneck not identified" if cause is None else _limit(cause, points)
        return (
            f"the knee is below the lowest load tried, {_said(axis, first)}: there it"
            f" {_lost(first, target_ns)}; {limit}{_few(first)}"
        )
    best = held[-1]
    unknown = target_ns is not None and best.is_within_target is None
    claim = "cannot be judged by --read-p99 at" if unknown else "sustains"
    after = "every load tried was sustained"
    if lost is None and asks_no_more(points):
        after = (
            f"more users add no load ({format_rate(points[-1].asked_bytes_per_s)} at"
            f" {_said(axis, points[-1])}, {format_rate(points[-2].asked_bytes_per_s)} at"
            f" {_said(axis, points[-2])}): compute sets the pace"
        )
    if lost is not None:
        after = (
            f"{limit_above(limit_of_open(points), points)}: at {_said(axis, lost)} it"
            f" {_lost(lost, target_ns)}"
        )
    return f"{claim} {_said(axis, best)}; {_read(best)} at the knee; {after}{_few(best)}"


def limit_of_open(points: Sequence[SweepPoint]) -> LimitCause | None:
    """Return the bottleneck above the last sustained point of an open loop's rising `points`.

    None if not identified.

    That is what the first of the lost that decides says.
    """
    lost = next((at for at, p in enumerate(points) if not p.is_held), len(points))
    judged = (p.judgement for p in points[lost:] if not p.is_held and p.judgement is not None)
    causes = (_cause(found, was_held=lost > 0) for found in judged)
    return next((cause for cause in causes if cause is not None), None)


def _cause(found: RunVerdict, *, was_held: bool) -> LimitCause | None:
    """Return what held a run back, `found` being its verdict, given whether less load was held.

    Requests that were served in time at less load depend on as much there: if what they wait for
    takes longer, that is the drive's doing where more of the time was its than ours.
    """
    if found.cause not in (None, LimitCause.DEPENDENCIES) or not was_held:
        return found.cause
    shares = found.evidence.response_shares
    ours = sum(share for name, share in shares.items() if name not in (DRIVE, DEPENDENCIES))
    return LimitCause.DRIVE if shares.get(DRIVE, 0.0) > ours else None


def limit_of_closed(points: Sequence[SweepPoint], *, is_saturated: bool) -> LimitCause | None:
    """Return the bottleneck of the last of a closed loop's `points`; None if not identified.

    Where each depth was in use and more of it moved no more, that is the drive's limit: one run
    alone cannot tell.
    """
    if not is_saturated or points[-1].judgement is None:
        return None
    found = points[-1].judgement
    if found.cause not in (None, LimitCause.QUEUE_LIMIT):
        return found.cause
    in_flight, shares = (
        found.evidence.in_flight_mean,
        (found.evidence.blocked_share, found.evidence.starved_share),
    )
    is_full = in_flight is not None and in_flight >= FULL * found.evidence.queue_depth
    is_ours = (found.evidence.submitter_busy_share or 0) >= FULL or None in shares
    return LimitCause.DRIVE if is_full and not is_ours else None


def limit_above(cause: LimitCause | None, points: Sequence[SweepPoint]) -> str:
    """Describe the bottleneck above the knee of `points`."""
    return _UNCLEAR if cause is None else f"{_limit(cause, points)} above it"


def _limit(cause: LimitCause, points: Sequence[SweepPoint]) -> str:
    storage = next(
        (p.judgement.evidence.storage for p in reversed(points) if p.judgement is not None), "drive"
    )
    what, verb = _LIMITS.get(cause) or limiting(cause, storage)
    return f"{what} {verb} the limit"


def reached(points: Sequence[SweepPoint], knee: float | None, *, is_saturated: bool) -> str:
    """Describe the result of a closed loop's rising `points` in one sentence."""
    at = next((p for p in points if p.value == knee), None)
    if at is None:
        return "no knee: no point of the sweep qualifies (queue depth)"
    above = limit_above(limit_of_closed(points, is_saturated=is_saturated), points)
    if not is_saturated:
        above = "the sweep did not saturate, so the knee may lie beyond"
    rate = format_rate(at.throughput_bytes_per_s)
    return (
        f"reaches {rate} at queue depth {at.value:g}; {_read(at, 'service')} at the knee;"
        f" {above}{_few(at)}"
    )


def progress_of(axis: Axis, point: SweepPoint, target_ns: int | None) -> str:
    """Describe one run of a sweep in a line."""
    if axis is Axis.QUEUE_DEPTH:
        return f"{format_rate(point.throughput_bytes_per_s)}, {_read(point, 'service')}"
    asked = (
        "" if point.asked_bytes_per_s is None else f", {format_rate(point.asked_bytes_per_s)} asked"
    )
    return (
        f"sustained, {_read(point)}{asked}"
        if point.is_held
        else f"{_lost(point, target_ns)}{asked}"
    )


def _said(axis: Axis, point: SweepPoint) -> str:
    return (
        counted(point.value, "user")
        if axis is Axis.USERS
        else f"{point.value:g} x the trace's speed"
    )


def windows_said(axis: Axis, points: Sequence[SweepPoint]) -> str:
    """Return which of the rising `points` replayed their whole trace, from empty tiers.

    Their loads evict nothing.
    """
    whole = [p for p in points if p.window is None]
    part = next((p.window for p in points if p.window is not None), None)
    return (
        f"; windows differ: whole trace up to {_said(axis, whole[-1])}, {part} above"
        if whole and part
        else ""
    )


def _few(point: SweepPoint) -> str:
    if point.operations is None or point.operations >= FEW_OPERATIONS:
        return ""
    return (
        f"; with only {counted(point.operations, 'operation')} a single late one decides: use a"
        " longer trace"
    )


def _aside(point: SweepPoint) -> str:
    """Return what is to be known of a point's times.

    Its trials, and waits for the replayer that they contain.
    """
    said = ["of the slower trial"] if point.trials == 2 else []  # noqa: PLR2004 - there is no median run of two
    said += (
        [] if point.trials == 1 else [f"sustained in {point.held_trials} of {point.trials} trials"]
    )
    share = point.late_by_itself_fraction or 0.0
    if share >= 0.001 and not point.kept_pace:  # noqa: PLR2004 - of less, no decimal would be left
        said.append(f"replayer added delay to {percent(share)} of operations")
    return f" ({'; '.join(said)})" if said else ""


def _read(point: SweepPoint, what: str = "response") -> str:
    if point.read_p99_ns is not None:
        return f"read {what} p99 {format_duration(point.read_p99_ns)}{_aside(point)}"
    return f"read {what} p99 is not known ({point.read_p99_lacks or 'no reads'}){_aside(point)}"


def _lost(point: SweepPoint, target_ns: int | None) -> str:
    if point.keeps_up:
        return f"keeps up, but {_read(point)} exceeds {format_duration(target_ns)}"
    return f"falls behind, {_read(point)}"
