"""Transformations of requests, each with a note on what it changed.

They limit prompts, jitter arrivals, scale times, repeat, superpose and cut requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypedDict, cast

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.units import NS_PER_S, format_duration
from kvtrace.requests.int_columns import NONE, Ints, dense, offsets_of, runs_of, shifted
from kvtrace.requests.requests import MAX_BLOCK_ID, MAX_NS, Requests, take

MAX_REQUESTS = 2**31 - 1
SCALE_SHIFT_NS = 60 * NS_PER_S
_COLUMNS = ("input_tokens", "output_tokens", "turn", "qos", "kind")
"""Columns that each copy of a request has in common."""
_PARTS = 10**9
"""Parts of a whole, in which a share is counted."""


class CopiedColumns(TypedDict, total=False):
    """Columns of `Requests` that each copy of a request has in common."""

    input_tokens: Ints
    output_tokens: Ints
    turn: Ints | None
    qos: Ints | None
    kind: Ints | None


class CycleIds(StrEnum):
    """The block ids of later cycles of a trace: the same, or distinct ones."""

    SAME = "same"
    DISTINCT = "distinct"


class OverLimit(StrEnum):
    """The treatment of a prompt over the limit."""

    CLIP = "clip"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Transformations of a source, applied in this order.

    Limit prompts, jitter, scale times, repeat, superpose, cut.
    """

    max_input_tokens: int | None = None
    over_limit: OverLimit = OverLimit.DROP
    jitter_ns: int = 0
    """Times are spread over ticks of this length."""
    time_scale: float = 1.0
    """Times are multiplied by this: 0.5 is twice as fast."""
    cycles: int = 1
    cycle_ids: CycleIds = CycleIds.DISTINCT
    scale: int = 1
    """Number of superposed copies, each with its own blocks and sessions."""
    scale_common: float = 0.0
    """The hottest prefixes, up to this share of all references, are common to the copies."""
    scale_shift_ns: int = SCALE_SHIFT_NS
    """Maximum delay of each copy but the first."""
    max_requests: int | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for values out of range."""
        if not 1e-6 <= self.time_scale <= 1e6:  # noqa: PLR2004 - a million times faster or slower
            raise ConfigError(f"time scale(={self.time_scale:g}) must be from 0.000001 to 1000000")
        for name in ("cycles", "scale", "max_requests", "max_input_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name.replace('_', ' ')}(={value}) must be > 0")
        for name in ("jitter_ns", "scale_shift_ns"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name.removesuffix('_ns').replace('_', ' ')}(={getattr(self, name)} ns) must"
                    " be >= 0"
                )
        if not 0 <= self.scale_common <= 1:
            raise ConfigError(f"scale common(={self.scale_common:g}) must be from 0 to 1")
        if self.scale == 1 and (self.scale_common or self.scale_shift_ns != SCALE_SHIFT_NS):
            raise ConfigError(
                f"scale common and scale shift are for copies: add {named_parameter('scale')},"
                " such as 64"
            )
        if self.over_limit is not OverLimit.DROP and self.max_input_tokens is None:
            raise ConfigError(
                f"{named_parameter('over_limit', self.over_limit)} needs the limit: give"
                f" {named_parameter('max_input_tokens')}, such as 8192"
            )
        if self.cycle_ids is not CycleIds.DISTINCT and self.cycles == 1:
            raise ConfigError(
                f"{named_parameter('cycle_ids', self.cycle_ids)} is for later cycles: add"
                f" {named_parameter('cycles')}, such as 2"
            )

    def as_config(self) -> JsonObject:
        """Return the fields that are not at their defaults."""
        defaults = msgspec.to_builtins(Reshaping())
        return {
            name: value
            for name, value in msgspec.to_builtins(self).items()
            if value != defaults[name]
        }


def reshape(requests: Requests, reshaping: Reshaping, rng: np.random.Generator) -> Requests:
    """Return `requests` transformed by `reshaping`, with a note for each change.

    `rng` samples jitter and shifts.
    """
    if reshaping.max_input_tokens is not None:
        requests = _limit(requests, reshaping.max_input_tokens, reshaping.over_limit)
    if reshaping.jitter_ns:
        times = requests.arrival_ns
        distinct, tick_numbers = np.unique(times, return_inverse=True)
        tick_ns = np.full(len(distinct), reshaping.jitter_ns, dtype=np.int64)
        tick_ns[:-1] = np.minimum(tick_ns[:-1], np.diff(distinct))
        jitter_ns = np.floor(rng.random(len(times)) * tick_ns[tick_numbers]).astype(np.int64)
        # Sorted within each time, so that requests keep their order.
        jitter_ns = jitter_ns[np.lexsort((jitter_ns, tick_numbers))]
        answered = None if requests.answered_ns is None else requests.answered_ns + jitter_ns
        requests = _add_note(
            replace(requests, arrival_ns=times + jitter_ns, answered_ns=answered),
            f"times were spread evenly at random over ticks of {format_duration(reshaping.jitter_ns)},"
            " in the same order",
        )
    if (factor := reshaping.time_scale) != 1:
        if float(requests.arrival_ns[-1]) * factor > MAX_NS:
            raise ConfigError(f"time scale(={factor:g}) puts requests beyond the clock of a trace")
        times, answered, waits = (
            np.rint(requests.arrival_ns * factor),
            requests.answered_ns,
            requests.waits,
        )
        if answered is not None:
            answered = np.rint(np.clip(answered * factor, -MAX_NS, MAX_NS)).astype(np.int64)
        waits = None if waits is None else waits.scaled(factor)
        requests = replace(
            requests, arrival_ns=times.astype(np.int64), answered_ns=answered, waits=waits
        )
        requests = _add_note(requests, f"times were multiplied by {factor:g}")
    if reshaping.cycles > 1:
        limit = reshaping.max_requests if reshaping.scale == 1 else None
        requests = _repeat(requests, reshaping.cycles, reshaping.cycle_ids, limit)
    if reshaping.scale > 1:
        requests = superpose(
            requests, reshaping.scale, reshaping.scale_common, reshaping.scale_shift_ns, rng
        )
    if reshaping.max_requests is not None and reshaping.max_requests < len(requests):
        cut = f"cut after {reshaping.max_requests} request{'s' * (reshaping.max_requests > 1)}"
        requests = _add_note(take(requests, np.arange(reshaping.max_requests)), cut)
    changes = reshaping.as_config()
    return replace(requests, origin={**requests.origin, "shape": changes}) if changes else requests


def _add_note(requests: Requests, note: str) -> Requests:
    return replace(requests, notes=(*requests.notes, note))


def _limit(requests: Requests, limit: int, over_limit: OverLimit) -> Requests:
    is_over = requests.input_tokens > limit
    count = int(np.count_nonzero(is_over))
    if not count:
        return requests
    if over_limit is OverLimit.DROP:
        rows_within = np.flatnonzero(~is_over)
        if not len(rows_within):
            raise ConfigError(f"max input tokens(={limit}): every prompt is longer")
        note = (
            f"{count} prompts over {limit} tokens were dropped, which leaves gaps in their"
            " conversations"
        )
        return _add_note(take(requests, rows_within), note)
    lengths = np.diff(requests.block_offsets)
    if requests.block_tokens:
        lengths = np.minimum(
            lengths, -(-np.minimum(requests.input_tokens, limit) // requests.block_tokens)
        )
    offsets, ids = runs_of(requests.block_ids, requests.block_offsets[:-1], lengths)
    tokens = np.minimum(requests.input_tokens, limit)
    clipped = replace(requests, input_tokens=tokens, block_offsets=offsets, block_ids=ids)
    return _add_note(
        clipped, f"{count} prompts over {limit} tokens were clipped to their first {limit}"
    )


def _repeat(requests: Requests, cycles: int, cycle_ids: CycleIds, limit: int | None) -> Requests:
    """Return `requests` repeated `cycles` times.

    A cycle starts one mean interval after the last request of the previous one.
    """
    n = len(requests)
    span = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    period = span + (round(span / (n - 1)) if span else NS_PER_S)
    needed = min(cycles, -(-limit // n)) if limit is not None else cycles
    last_shift_ns = period * (needed - 1)
    if n * needed > MAX_REQUESTS or int(requests.arrival_ns[-1]) + last_shift_ns > MAX_NS:
        raise ConfigError(f"cycles(={cycles}) of {n} requests are more than a trace can hold")
    numbers, count = requests.block_ids, 0
    if cycle_ids is CycleIds.DISTINCT and requests.block_tokens:
        numbers, count = dense(requests.block_ids)
        if count * needed > MAX_BLOCK_ID:
            raise ConfigError(
                f"cycles(={cycles}) of {count} blocks are more than a trace can number"
            )
    repeated = _copy_requests(
        requests, np.arange(needed) * period, lambda cycle: numbers + cycle * count
    )
    blocks = f", with {cycle_ids} block ids" if requests.block_tokens else ""
    new = "; each cycle has new conversations" if requests.session_id is not None else ""
    return _add_note(
        repeated,
        f"the requests are repeated {cycles} times, {format_duration(period)} apart{blocks}{new}",
    )


def _copy_requests(requests: Requests, shifts_ns: Ints, ids_of: Callable[[int], Ints]) -> Requests:
    """Return one shifted copy of `requests` for each of `shifts_ns`, in order of arrival.

    `ids_of` returns the block ids of a copy; each copy has its own sessions.
    """
    count, lengths = len(requests), np.diff(requests.block_offsets)
    times = shifted(requests.arrival_ns, shifts_ns)
    # Equal times are ordered by copy, and within a copy as in the source.
    order = np.argsort(times, kind="stable")
    new_rows = np.empty(len(order), dtype=np.int64)
    new_rows[order] = np.arange(len(order))
    offsets = offsets_of(lengths[order % count])
    # One copy at a time, which bounds memory.
    ids = np.empty(offsets[-1], dtype=np.int64)
    position_in_chain = np.arange(len(requests.block_ids)) - np.repeat(
        requests.block_offsets[:-1], lengths
    )
    for copy_number in range(len(shifts_ns)):
        ids[
            np.repeat(offsets[new_rows[copy_number * count : (copy_number + 1) * count]], lengths)
            + position_in_chain
        ] = ids_of(copy_number)
    columns = {name: values for name in _COLUMNS if (values := getattr(requests, name)) is not None}
    copied_columns = {name: values[order % count] for name, values in columns.items()}
    if (sessions := requests.session_id) is not None:
        numbers, conversations = dense(sessions[sessions != NONE])
        session_ids = np.full((len(shifts_ns), count), NONE, dtype=np.int64)
        session_ids[:, sessions != NONE] = (
            numbers + conversations * np.arange(len(shifts_ns))[:, None]
        )
        sessions = session_ids.reshape(-1)[order]
    answered, waits = requests.answered_ns, requests.waits
    return replace(
        requests,
        arrival_ns=times[order],
        block_offsets=offsets,
        block_ids=ids,
        session_id=sessions,
        answered_ns=None if answered is None else shifted(answered, shifts_ns)[order],
        waits=None if waits is None else waits.repeated(shifts_ns).select(order),
        **cast("CopiedColumns", copied_columns),
    )


def superpose(
    requests: Requests, copies: int, common: float, shift_ns: int, rng: np.random.Generator
) -> Requests:
    """Return `copies` superposed copies of `requests`, in order of arrival.

    Each copy but the first is delayed by a uniform random time up to `shift_ns`. It has its own
    sessions and blocks, except the hottest blocks with up to a share `common` of all references.
    """
    count, references = len(requests), len(requests.block_ids)
    if common and not requests.block_tokens:
        raise ConfigError(
            f"{named_parameter('scale_common')} needs block ids in the file; this one has none"
        )
    if count * copies > MAX_REQUESTS:
        raise ConfigError(f"scale(={copies}) of {count} requests are more than a trace can hold")
    shifts = np.zeros(copies, dtype=np.int64)
    shifts[1:] = np.floor(rng.random(copies - 1) * (shift_ns + 1)).astype(np.int64)
    if int(requests.arrival_ns[-1]) + shift_ns > MAX_NS:
        raise ConfigError(f"scale shift(={shift_ns} ns) puts requests beyond the clock of a trace")
    numbers, block_count = dense(requests.block_ids)
    uses = np.bincount(numbers, minlength=block_count)
    by_use = np.argsort(-uses, kind="stable")
    # In integers, so that a whole share is not rounded down.
    max_common = round(common * _PARTS) * references // _PARTS
    most_used = by_use[: int(np.searchsorted(np.cumsum(uses[by_use]), max_common, side="right"))]
    is_common = np.zeros(block_count, dtype=bool)
    is_common[most_used] = True
    own_numbers, own_count = np.cumsum(~is_common) - 1, int(np.count_nonzero(~is_common))
    if block_count * copies > MAX_BLOCK_ID:
        raise ConfigError(
            f"scale(={copies}) of {block_count} blocks are more than a trace can number"
        )
    # Common blocks keep their numbers; the numbers of each copy follow.
    superposed = _copy_requests(
        requests,
        shifts,
        lambda copy: np.where(
            is_common, np.arange(block_count), block_count + copy * own_count + own_numbers
        )[numbers],
    )
    share_text = (
        f"{100 * int(uses[most_used].sum()) / max(references, 1):.1f} % of all references to blocks"
    )
    note = (
        f"the requests are superposed {copies} times, each copy later by up to"
        f" {format_duration(shift_ns)}"
        + (", with its own sessions" if requests.session_id is not None else "")
        + (
            f"; blocks are its own, except the hottest prefixes, {share_text}"
            if requests.block_tokens
            else ""
        )
    )
    return _add_note(superposed, note)
