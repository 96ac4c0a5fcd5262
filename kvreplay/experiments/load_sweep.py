"""One trace at rising queue depths (closed loop), speeds or users (open loop), up to saturation,
and its knee.

The rule is fixed and stated with the result, so that different users find the same knee. The next
value is chosen without a clock or I/O (`next_value`). The given values come first, in rising order,
up to the first that is not sustained. If none fails, the greatest is doubled, unless more users add
no load. If the least fails, it is halved. Between the last sustained and the first failed value the
sweep bisects. These two are repeated at the end, and the median of the trials decides; if that
changes the result, the search goes on.
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
from kvreplay.result.cause import BUFFERS, DATA, DEPENDENCIES, DRIVE, SUBMISSION, is_late
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
from kvtrace.core.run.figures import LimitCause, Pace, RunVerdict, Summary
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
from kvtrace.core.units import (
    counted,
    format_duration,
    format_rate,
    per_second,
    percent,
)

DOUBLINGS = 4
"""Maximum doublings beyond the greatest given value."""
DOUBLINGS_OF_ONE = 14
"""Maximum doublings if a single value was given: the search finds the other values by itself."""
HALVINGS = 6
TRIALS = 3
"""Number of trials at the two deciding values."""
PRECISION = 1.1
"""The search ends when the first failed value is at most this multiple of the last sustained."""

MOSTLY = 0.5
"""A load of which the replayer delayed a larger share of operations was not offered."""
REPLAYERS_WORK = (SUBMISSION, DATA, BUFFERS)
"""Causes of delay that are work of the replayer."""
FEW_OPERATIONS = 100
"""With fewer operations, a single late one exceeds the allowed share."""
_LIMITS = {
    LimitCause.PROCESSOR: ("CPU time used by other programs", "is"),
    LimitCause.THROTTLE: ("a throttle above the device", "is"),
}
"""Words of a sweep that differ from those of a run."""
_UNCLEAR = "bottleneck above it not identified"
FULL = 0.8
"""If this share of the queue is in use, the queue depth determined the load."""


DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
GAIN = 0.05
"""A step that gains less has saturated.

If more users add less load than this, something other than storage limits them.
"""
KNEE_SHARE = 0.9
TRACE_FILE = "trace.parquet"
"""File in a sweep's folder: the trace that was made for it."""
P99_NEEDS = 100
"""Number of operations that a p99 by nearest rank needs."""


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
    """Return whether a trace has synthetic users, so that its command can make it with more."""
    return (
        meta.program == "kvtrace"
        and meta.argv[1:2] == ["gen"]
        and isinstance(meta.config.get("users"), int)
    )


def sweep(
    request: Replay,
    axis: Axis,
    values: list[float],
    *,
    is_made: bool = False,
    needs_reads: bool = False,
    read_p99_target_ns: int | None = None,
    on_point: Callable[[SweepPoint], None] = lambda _point: None,
    replaying: Replaying = replay,
) -> tuple[LoadSweep, KvError | None]:
    """Replay at each of `values`, rising, until saturated; in an open loop by `next_value`.

    Runs are kept in the output. A trace that `is_made` for this sweep is moved there. With
    `needs_reads` a load that evicts, but of which nothing is read, counts as not sustained.

    Returns the sweep, which is also written to sweep.json, and the error if it is partial.
    """
    config, trace, output = request.config, request.trace, request.output
    _check_values(request, axis, values, read_p99_target_ns)
    check_output(output, is_forced=request.is_forced)
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
        value_trials = trials.setdefault(value, [])
        name = _name(axis, value, len(value_trials) + 1)
        if axis is Axis.USERS:
            trace = output / f"{_name(axis, value)}.parquet"
            if not value_trials:
                generate(meta, int(value), trace)
        is_first_own = not points and (is_made or axis is Axis.USERS)
        own_traces = [trace, output / TRACE_FILE] if is_first_own else []
        with forgotten(output, own_traces):
            value_config = _config_at(config, axis, value)
            outcome = replaying(
                replace(request, config=value_config, trace=trace, output=output / name)
            )
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
        window = outcome.run.window.window
        measured = point(value, name, outcome.summary, read_p99_target_ns, window, axis)
        # A load that evicts nothing has no window: it needs more users before anything is read.
        lacks_reads = needs_reads and window is not None and not count_reads(outcome.summary)
        value_trials.append(msgspec.structs.replace(measured, lacks_reads=lacks_reads))
        on_point(value_trials[-1])
        points = [decided(trial_points) for trial_points in trials.values()]
        if (
            value_trials[-1].window is None
        ):  # nothing is evicted: greater loads are replayed whole, too
            config = replace(config, window=None)
        value = _next(axis, values, points)
    points.sort(key=lambda point: point.value)
    result = _result(axis, points, read_p99_target_ns, [t for t in tiers if t is not None])
    if error is not None:
        result = msgspec.structs.replace(result, answer=f"PARTIAL: {result.answer}")
    about = {"program": "kvreplay", "version": __version__, "argv": request.argv}
    write_json(output / SWEEP_FILE, about | msgspec.to_builtins(result))
    return result, error


def _result(
    axis: Axis, points: list[SweepPoint], read_p99_target_ns: int | None, tiers: list[Tier]
) -> LoadSweep:
    """Return the result of a sweep from its rising `points`."""
    is_over, best = is_saturated(axis, points), knee(axis, points)
    simulated = [tier.name for tier in tiers if tier.is_simulated]
    if axis is Axis.QUEUE_DEPTH:
        answer = reached(points, best, is_saturated=is_over)
        limit = limit_of_closed(points, is_saturated=is_over)
    else:
        answer = sustained(axis, points, read_p99_target_ns) + describe_windows(axis, points)
        limit = limit_of_open(points)
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
    request: Replay, axis: Axis, values: list[float], read_p99_target_ns: int | None
) -> None:
    """Refuse options that a replay at any of `values` refuses, before a directory is made."""
    bounds = {"read_p99": read_p99_target_ns, "queue_depth": request.config.queue_depth}
    if axis is Axis.QUEUE_DEPTH and (
        open_loop_options := [name for name, bound in bounds.items() if bound is not None]
    ):
        raise ConfigError(
            f"{named(open_loop_options[0])} bounds an open loop; give {named('speeds')} or {named('users')}"
            " with it"
        )
    values_text = named(axis.parameter, ",".join(f"{value:g}" for value in values))
    if axis is not Axis.SPEED and any(value != int(value) or value < 1 for value in values):
        raise ConfigError(f"{values_text}: give whole numbers from 1")
    min_count, words = (2, "two or more") if axis is Axis.QUEUE_DEPTH else (1, "some")
    if len(values) < min_count or sorted(set(values)) != values:
        raise ConfigError(f"{values_text}: give {words} that rise, such as 1,2,4,8")
    for value in values:
        replace(request, config=_config_at(request.config, axis, value)).check_options()


def _config_at(config: Config, axis: Axis, value: float) -> Config:
    if axis is Axis.QUEUE_DEPTH:
        return replace(config, queue_depth=int(value), speed=None)
    return replace(config, speed=value if axis is Axis.SPEED else 1.0)


def point(
    value: float, run: str, summary: Summary, read_p99_target_ns: int | None = None, window: str | None = None,
    axis: Axis = Axis.SPEED,
) -> SweepPoint:  # fmt: skip
    """Return the point of the sweep for a finished run of a `window` of its trace."""
    transfers = [f for f in measured_figures(summary.figures) if f.op != "delete"]
    span_ns = summary.measured_ns if transfers else 0
    # With few users all operations may be due at once, so the offered rate is unknown; whether the
    # load was delivered is then judged if there is a delivered rate.
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
        throughput_bytes_per_s=per_second(sum(f.bytes or 0 for f in transfers), span_ns),
        operations_per_s=per_second(sum(f.operations or 0 for f in transfers), span_ns),
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
        is_delayed_by_replayer=_is_delayed_by_replayer(pace) if pace else None,
        cause=pace.cause if pace else None,
        late_p99_ns=pace.lateness.p99_ns if pace else None,
    )


def _is_delayed_by_replayer(pace: Pace) -> bool:
    """Return whether most operations were submitted late by work of the replayer."""
    return (
        not pace.kept_pace
        and pace.late_by_itself_fraction > MOSTLY
        and pace.cause in REPLAYERS_WORK
    )


def tiers_rate(summary: Summary, name: str) -> float | None:
    """Return the sum over an open loop's tiers of the rate `name`; None if one is unknown."""
    counted = {f.tier for f in measured_figures(summary.figures)}
    tiers = (
        []
        if summary.judgement is None
        else [t for t in summary.judgement.tiers if t.tier in counted]
    )
    return statistics.total(
        [getattr(t, name) for t in tiers if t.asked_operations_per_s is not None]
    )


def count_reads(summary: Summary) -> int:
    """Return the number of completed reads from tiers that are measured."""
    figures = measured_figures(summary.figures)
    return sum(figure.operations or 0 for figure in figures if figure.op == "read")


def _lacking(summary: Summary) -> str | None:
    """Return why the p99 of reads is unknown, and how long a run has to be; None if it is known."""
    counts = [f.judged.count for f in measured_figures(summary.figures) if f.op == "read"]
    if not counts:
        return "no tier was read"
    min_reads = min(counts)
    if min_reads >= P99_NEEDS:
        return None
    remedy = (
        f"a trace (or --limit) {P99_NEEDS / min_reads:.1f} times as long"
        if min_reads
        else "a longer trace (or --limit)"
    )
    return f"{counted(min_reads, 'read')} on a tier where a p99 needs {P99_NEEDS}: take {remedy}"


def is_saturated(axis: Axis, points: list[SweepPoint]) -> bool:
    """Return whether the sweep may end at the last of `points`."""
    if axis is not Axis.QUEUE_DEPTH:
        return any(not point.is_held for point in points) or adds_no_load(points)
    return _gains_no_more([p.throughput_bytes_per_s or 0.0 for p in points])


def _gains_no_more(rates: list[float]) -> bool:
    """Return whether both of the last two steps of `rates` gained less than GAIN over the best
    before.
    """
    has_two_steps = len(rates) > 2  # noqa: PLR2004 - two steps lie between three rates
    return has_two_steps and all(
        rates[index] < max(rates[:index]) * (1 + GAIN) for index in (-2, -1)
    )


def knee(axis: Axis, points: list[SweepPoint]) -> float | None:
    """Return the knee by the rule of `axis`; None if no point qualifies."""
    if axis is not Axis.QUEUE_DEPTH:
        values = [point.value for point in takewhile(lambda point: point.is_held, points)]
        return values[-1] if values else None
    rates = [(p.value, p.throughput_bytes_per_s or 0.0) for p in points]
    greatest = max((rate for _, rate in rates), default=0.0)
    return next((value for value, rate in rates if rate and rate >= KNEE_SHARE * greatest), None)


def generate(meta: Metadata, users: int, path: Path) -> None:
    """Write to `path` the trace that the command in `meta` makes with `users`.

    ConfigError, with kvtrace's own message, if kvtrace refuses.
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
    """Return `argv` with the option --users set to `users`, in its place or at the end."""
    replaced = [
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
    return replaced if is_there else [*replaced, "--users", str(users)]


def next_value(
    axis: Axis, given_values: Sequence[float], points: Sequence[SweepPoint]
) -> float | None:
    """Return the value to try after `points` (an open loop's, in run order).

    None at the end of the search.
    """
    sustained_values = [p.value for p in points if p.is_held]
    failed_values = [p.value for p in points if not p.is_held]
    tried = {p.value for p in points}
    if not failed_values:
        untried = [value for value in given_values if value not in tried]
        if untried:
            return untried[0]
        max_doublings = DOUBLINGS_OF_ONE if len(given_values) == 1 else DOUBLINGS
        is_over = len(points) - len(given_values) >= max_doublings or adds_no_load(points)
        return None if is_over else 2 * max(sustained_values)
    first_failed = min(failed_values)
    below = [value for value in sustained_values if value < first_failed]
    if not below:
        if [p.cause for p in points[-2:]] == [SUBMISSION, SUBMISSION]:
            # If the machine is too busy to submit, half of the load does not help.
            return None
        half = _stepped(axis, first_failed / 2)
        return None if len(failed_values) > HALVINGS or half in tried or half <= 0 else half
    last_sustained = max(below)
    middle = _stepped(axis, math.sqrt(last_sustained * first_failed))
    if axis is Axis.USERS:
        middle = max(middle, last_sustained + 1)
    is_precise = first_failed / last_sustained <= PRECISION
    return None if is_precise or middle >= first_failed or middle in tried else middle


def adds_no_load(points: Sequence[SweepPoint]) -> bool:
    """Return whether the last two rising `points` of an open loop added no load."""
    offered = [p.asked_bytes_per_s for p in sorted(points, key=lambda point: point.value)]
    return None not in offered and _gains_no_more([rate for rate in offered if rate is not None])


def to_repeat(points: Sequence[SweepPoint]) -> float | None:
    """Return the value of an open loop's `points` to repeat; None if the deciding ones are settled.

    The deciding values are the last sustained and the first failed one. A value that failed in the
    majority of its trials is settled, too.
    """
    rising = sorted(points, key=lambda point: point.value)
    first_failed = next(
        (index for index, point in enumerate(rising) if not point.is_held), len(rising)
    )
    deciding = [
        p
        for p in rising[max(0, first_failed - 1) : first_failed + 1]
        if 2 * (p.trials - (p.held_trials or 0)) <= TRIALS
    ]
    return next((p.value for p in deciding if p.trials < TRIALS), None)


def decided(trials: Sequence[SweepPoint]) -> SweepPoint:
    """Return the median of the trials at one value.

    Trials are ranked by whether they were sustained, then by read p99, then by lateness.
    """
    ranked = sorted(trials, key=lambda p: (not p.is_held, p.read_p99_ns or 0, p.late_p99_ns or 0))
    middle = ranked[len(trials) // 2]
    sustained_trials = None
    if middle.kept_pace is not None:
        sustained_trials = sum(point.is_held for point in trials)
    return msgspec.structs.replace(middle, trials=len(trials), held_trials=sustained_trials)


def _stepped(axis: Axis, value: float) -> float:
    """Return `value` rounded for the axis: a whole number of users, or a speed of three digits."""
    return float(int(value)) if axis is Axis.USERS else float(f"{value:.3g}")


def sustained(axis: Axis, points: Sequence[SweepPoint], target_ns: int | None) -> str:
    """Describe the result of an open loop's rising `points` in one sentence."""
    failed = next((p for p in points if not p.is_held), None)
    sustained_points = [
        p for p in points if p.is_held and (failed is None or p.value < failed.value)
    ]
    if not points:
        return "nothing was tried"
    if not sustained_points:
        first = points[0]
        cause = limit_of_open(points)
        limit = "bottleneck not identified" if cause is None else _limit(cause, points)
        return (
            f"the knee is below the lowest load tried, {_load_text(axis, first)}: there it"
            f" {_lost(first, target_ns)}; {limit}{_few(first)}"
        )
    best = sustained_points[-1]
    unknown = target_ns is not None and best.is_within_target is None
    claim = "cannot be judged by --read-p99 at" if unknown else "sustains"
    after = "every load tried was sustained"
    if failed is None and adds_no_load(points):
        after = (
            f"more users add no load ({format_rate(points[-1].asked_bytes_per_s)} at"
            f" {_load_text(axis, points[-1])}, {format_rate(points[-2].asked_bytes_per_s)} at"
            f" {_load_text(axis, points[-2])}): compute sets the pace"
        )
    if failed is not None:
        after = (
            f"{limit_above(limit_of_open(points), points)}: at {_load_text(axis, failed)} it"
            f" {_lost(failed, target_ns)}"
        )
    return f"{claim} {_load_text(axis, best)}; {_read(best)} at the knee; {after}{_few(best)}"


def limit_of_open(points: Sequence[SweepPoint]) -> LimitCause | None:
    """Return the bottleneck above the last sustained point of an open loop's rising `points`.

    It is that of the first failed point with an identified bottleneck. None if there is none.
    """
    first_failed = next(
        (index for index, point in enumerate(points) if not point.is_held), len(points)
    )
    verdicts = (
        point.judgement
        for point in points[first_failed:]
        if not point.is_held and not point.lacks_reads and point.judgement is not None
    )
    causes = (_cause(verdict, was_sustained=first_failed > 0) for verdict in verdicts)
    return next((cause for cause in causes if cause is not None), None)


def _cause(verdict: RunVerdict, *, was_sustained: bool) -> LimitCause | None:
    """Return the bottleneck of a failed run; `was_sustained` tells if a lower load was sustained.

    At the lower load, operations depended on each other in the same way and were in time. So if
    they now wait for others that take longer, the drive is the cause, provided that more of the
    response time was the drive's than the replayer's.
    """
    if verdict.cause not in (None, LimitCause.DEPENDENCIES) or not was_sustained:
        return verdict.cause
    shares = verdict.evidence.response_shares
    replayer_share = sum(
        share for name, share in shares.items() if name not in (DRIVE, DEPENDENCIES)
    )
    return LimitCause.DRIVE if shares.get(DRIVE, 0.0) > replayer_share else None


def limit_of_closed(points: Sequence[SweepPoint], *, is_saturated: bool) -> LimitCause | None:
    """Return the bottleneck of the last of a closed loop's `points`; None if not identified.

    If the queue was in use and a higher depth gave no more throughput, the drive is the bottleneck.
    A single run cannot tell that.
    """
    if not is_saturated or points[-1].judgement is None:
        return None
    verdict = points[-1].judgement
    evidence = verdict.evidence
    if verdict.cause not in (None, LimitCause.QUEUE_LIMIT):
        return verdict.cause
    in_flight, shares = evidence.in_flight_mean, (evidence.blocked_share, evidence.starved_share)
    is_full = in_flight is not None and in_flight >= FULL * evidence.queue_depth
    is_replayer_busy = (evidence.submitter_busy_share or 0) >= FULL or None in shares
    return LimitCause.DRIVE if is_full and not is_replayer_busy else None


def limit_above(cause: LimitCause | None, points: Sequence[SweepPoint]) -> str:
    """Describe the bottleneck above the knee of `points`."""
    return _UNCLEAR if cause is None else f"{_limit(cause, points)} above it"


def _limit(cause: LimitCause, points: Sequence[SweepPoint]) -> str:
    storage = next(
        (p.judgement.evidence.storage for p in reversed(points) if p.judgement is not None), "drive"
    )
    subject, verb = _LIMITS.get(cause) or limiting(cause, storage)
    return f"{subject} {verb} the limit"


def reached(points: Sequence[SweepPoint], knee: float | None, *, is_saturated: bool) -> str:
    """Describe the result of a closed loop's rising `points` in one sentence."""
    best = next((p for p in points if p.value == knee), None)
    if best is None:
        return "no knee: no point of the sweep qualifies (queue depth)"
    above = limit_above(limit_of_closed(points, is_saturated=is_saturated), points)
    if not is_saturated:
        above = "the sweep did not saturate, so the knee may lie beyond"
    rate = format_rate(best.throughput_bytes_per_s)
    return (
        f"reaches {rate} at queue depth {best.value:g}; {_read(best, 'service')} at the knee;"
        f" {above}{_few(best)}"
    )


def progress_of(axis: Axis, point: SweepPoint, target_ns: int | None) -> str:
    """Describe one run of a sweep in a line."""
    if axis is Axis.QUEUE_DEPTH:
        return f"{format_rate(point.throughput_bytes_per_s)}, {_read(point, 'service')}"
    offered = (
        "" if point.asked_bytes_per_s is None else f", {format_rate(point.asked_bytes_per_s)} asked"
    )
    return (
        f"sustained, {_read(point)}{offered}"
        if point.is_held
        else f"{_lost(point, target_ns)}{offered}"
    )


def _load_text(axis: Axis, point: SweepPoint) -> str:
    return (
        counted(point.value, "user")
        if axis is Axis.USERS
        else f"{point.value:g} x the trace's speed"
    )


def describe_windows(axis: Axis, points: Sequence[SweepPoint]) -> str:
    """Return a note if some of the rising `points` replayed their whole trace, others a window.

    Loads that evict nothing have no steady window.
    """
    unwindowed = [p for p in points if p.window is None]
    window = next((p.window for p in points if p.window is not None), None)
    if not unwindowed or not window:
        return ""
    return f"; windows differ: whole trace up to {_load_text(axis, unwindowed[-1])}, {window} above"


def _few(point: SweepPoint) -> str:
    if point.operations is None or point.operations >= FEW_OPERATIONS:
        return ""
    return (
        f"; with only {counted(point.operations, 'operation')} a single late one decides: use a"
        " longer trace"
    )


def _aside(point: SweepPoint) -> str:
    """Return remarks on a point's times, in parentheses: its trials, and delays by the replayer."""
    remarks = ["of the slower trial"] if point.trials == 2 else []  # noqa: PLR2004 - there is no median run of two
    remarks += (
        [] if point.trials == 1 else [f"sustained in {point.held_trials} of {point.trials} trials"]
    )
    share = point.late_by_itself_fraction or 0.0
    if share >= 0.001 and not point.kept_pace:  # noqa: PLR2004 - less would be shown as 0.0 %
        remarks.append(f"replayer added delay to {percent(share)} of operations")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _read(point: SweepPoint, kind: str = "response") -> str:
    if point.read_p99_ns is not None:
        return f"read {kind} p99 {format_duration(point.read_p99_ns)}{_aside(point)}"
    return f"read {kind} p99 is unknown ({point.read_p99_lacks or 'no reads'}){_aside(point)}"


def _lost(point: SweepPoint, target_ns: int | None) -> str:
    if point.lacks_reads:
        window = point.window or "the whole trace"
        return f"says nothing about reads: storage is only written in {window}"
    if point.is_delayed_by_replayer:
        return (
            f"was not asked in time: kvreplay delayed {percent(point.late_by_itself_fraction or 0.0)}"
            f" of operations ({point.cause}), {_read(point)}"
        )
    if point.keeps_up:
        return f"delivers the load, but {_read(point)} exceeds {format_duration(target_ns)}"
    return f"falls behind, {_read(point)}"
