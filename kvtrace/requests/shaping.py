"""Transformations of any source: time scale, repetition, prompt limit, jitter. Each is recorded in the notes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_duration
from kvtrace.requests.requests import MAX_BLOCK_ID, MAX_NS, NONE, Ints, Requests, dense
from kvtrace.requests.scale.superpose import superpose

_MAX_REQUESTS = 2**31 - 1
SCALE_SHIFT_NS = 60 * NS_PER_S


class CycleIds(StrEnum):
    """Whether later cycles of a trace ask for the same blocks again, or for blocks of their own."""

    SAME = "same"
    DISTINCT = "distinct"


class OverLimit(StrEnum):
    """What happens to a prompt over the limit."""

    CLIP = "clip"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Reshaping:
    """How to transform a source, in this order: limit prompts, jitter, scale times, repeat, superpose, cut."""

    max_input_tokens: int | None = None
    over_limit: OverLimit = OverLimit.DROP
    jitter_ns: int = 0
    """Times are spread over ticks of this length."""
    time_scale: float = 1.0
    """Times are multiplied by this: 0.5 is twice as fast."""
    cycles: int = 1
    cycle_ids: CycleIds = CycleIds.DISTINCT
    scale: int = 1
    """So many copies over each other, with blocks and sessions of their own."""
    scale_common: float = 0.0
    """But for the most used prefixes, which make up at most this share of all references to blocks."""
    scale_shift_ns: int = SCALE_SHIFT_NS
    """Each copy but the first comes later, by up to so much."""
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
                    f"{name.removesuffix('_ns').replace('_', ' ')}(={getattr(self, name)} ns) must be >= 0"
                )
        if not 0 <= self.scale_common <= 1:
            raise ConfigError(f"scale common(={self.scale_common:g}) must be from 0 to 1")
        if self.scale == 1 and (self.scale_common or self.scale_shift_ns != SCALE_SHIFT_NS):
            raise ConfigError("scale common and scale shift are of the copies that --scale makes: give it, such as 64")

    def as_config(self) -> dict[str, Any]:
        """Return the fields that are not at their defaults."""
        plain = Reshaping()
        changed = {n: getattr(self, n) for n in self.__slots__ if getattr(self, n) != getattr(plain, n)}
        config: dict[str, Any] = msgspec.to_builtins(changed)
        return config


def reshape(requests: Requests, wanted: Reshaping, rng: np.random.Generator) -> Requests:
    """Return `requests` transformed as `wanted`, with a note for each change; `rng` draws jitter and shifts."""
    if wanted.max_input_tokens is not None:
        requests = _limit(requests, wanted.max_input_tokens, wanted.over_limit)
    if wanted.jitter_ns:
        requests = _jitter(requests, wanted.jitter_ns, rng)
    if wanted.time_scale != 1:
        requests = _scale(requests, wanted.time_scale)
    if wanted.cycles > 1:
        limit = wanted.max_requests if wanted.scale == 1 else None
        requests = _repeat(requests, wanted.cycles, wanted.cycle_ids, limit)
    if wanted.scale > 1:
        requests = superpose(requests, wanted.scale, wanted.scale_common, wanted.scale_shift_ns, rng)
    if wanted.max_requests is not None and wanted.max_requests < len(requests):
        kept = np.arange(wanted.max_requests)
        requests = _noted(take(requests, kept), f"cut after {wanted.max_requests} requests")
    changes = wanted.as_config()
    return replace(requests, origin={**requests.origin, "shape": changes}) if changes else requests


def take(requests: Requests, rows: Ints) -> Requests:
    """Return the requests of `rows`, in that order, with their blocks."""
    lengths = np.diff(requests.block_offsets)[rows]
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    gather = np.arange(offsets[-1]) + np.repeat(requests.block_offsets[:-1][rows] - offsets[:-1], lengths)
    names = ("arrival_ns", "input_tokens", "output_tokens", "session_id", "turn", "qos", "kind", "answered_ns")
    taken: dict[str, Any] = {name: _rows(getattr(requests, name), rows) for name in names}
    waits = None if requests.waits is None else requests.waits.kept(rows)
    return replace(requests, block_offsets=offsets, block_ids=requests.block_ids[gather], waits=waits, **taken)


def _rows(values: Ints | None, rows: Ints) -> Ints | None:
    return None if values is None else values[rows]


def _noted(requests: Requests, note: str) -> Requests:
    return replace(requests, notes=(*requests.notes, note))


def _limit(requests: Requests, limit: int, over: OverLimit) -> Requests:
    is_over = requests.input_tokens > limit
    count = int(np.count_nonzero(is_over))
    if not count:
        return requests
    if over is OverLimit.DROP:
        kept = np.flatnonzero(~is_over)
        if not len(kept):
            raise ConfigError(f"max input tokens(={limit}): every prompt is longer")
        note = f"{count} prompts over {limit} tokens were dropped, which leaves gaps in their conversations"
        return _noted(take(requests, kept), note)
    lengths = np.diff(requests.block_offsets)
    if requests.block_tokens:
        lengths = np.minimum(lengths, -(-np.minimum(requests.input_tokens, limit) // requests.block_tokens))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    gather = np.arange(offsets[-1]) + np.repeat(requests.block_offsets[:-1] - offsets[:-1], lengths)
    tokens = np.minimum(requests.input_tokens, limit)
    ids = requests.block_ids[gather]
    clipped = replace(requests, input_tokens=tokens, block_offsets=offsets, block_ids=ids)
    return _noted(clipped, f"{count} prompts over {limit} tokens were clipped to their first {limit}")


def _jitter(requests: Requests, tick_ns: int, rng: np.random.Generator) -> Requests:
    """Spread requests of one time over the tick that follows, or up to the next time if that is sooner."""
    times = requests.arrival_ns
    distinct, group = np.unique(times, return_inverse=True)
    width = np.full(len(distinct), tick_ns, dtype=np.int64)
    width[:-1] = np.minimum(width[:-1], np.diff(distinct))
    moves = np.floor(rng.random(len(times)) * width[group]).astype(np.int64)
    # In order within each time, so that requests stay in theirs.
    moves = moves[np.lexsort((moves, group))]
    return _noted(
        replace(requests, arrival_ns=times + moves, answered_ns=_moved(requests.answered_ns, moves)),
        f"times were spread evenly at random over ticks of {format_duration(tick_ns)}, in the same order",
    )


def _moved(times: Ints | None, by_ns: Ints) -> Ints | None:
    return None if times is None else times + by_ns


def _scale(requests: Requests, factor: float) -> Requests:
    if float(requests.arrival_ns[-1]) * factor > MAX_NS:
        raise ConfigError(f"time scale(={factor:g}) puts requests beyond the clock of a trace")
    times = np.rint(requests.arrival_ns * factor).astype(np.int64)
    answered, waits = requests.answered_ns, requests.waits
    scaled = replace(
        requests,
        arrival_ns=times,
        answered_ns=None if answered is None else np.rint(np.clip(answered * factor, -MAX_NS, MAX_NS)).astype(np.int64),
        waits=None if waits is None else waits.scaled(factor),
    )
    return _noted(scaled, f"times were multiplied by {factor:g}")


def _repeat(requests: Requests, cycles: int, cycle_ids: CycleIds, limit: int | None) -> Requests:
    """Return `requests` `cycles` times over; a cycle starts one mean interval after the last request before it."""
    n = len(requests)
    span = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    period = span + (round(span / (n - 1)) if span else NS_PER_S)
    needed = min(cycles, -(-limit // n)) if limit is not None else cycles
    if n * needed > _MAX_REQUESTS or int(requests.arrival_ns[-1]) + period * needed > MAX_NS:
        raise ConfigError(f"cycles(={cycles}) of {n} requests are more than a trace can hold")
    every = take(replace(requests, waits=None), np.tile(np.arange(n), needed))
    cycle = np.repeat(np.arange(needed), n)
    ids = every.block_ids
    if cycle_ids is CycleIds.DISTINCT and requests.block_tokens:
        numbers, count = dense(requests.block_ids)
        if count * needed > MAX_BLOCK_ID:
            raise ConfigError(f"cycles(={cycles}) of {count} blocks are more than a trace can number")
        ids = np.tile(numbers, needed) + np.repeat(np.arange(needed) * count, len(numbers))
    repeated = replace(
        every,
        arrival_ns=every.arrival_ns + cycle * period,
        block_ids=ids,
        session_id=_new_sessions(requests.session_id, needed),
        answered_ns=_moved(every.answered_ns, cycle * period),
        waits=None if requests.waits is None else requests.waits.repeated(needed, period),
    )
    blocks = f", with {cycle_ids} block ids" if requests.block_tokens else ""
    new = "; each time its conversations are new ones" if requests.session_id is not None else ""
    return _noted(repeated, f"the trace comes {cycles} times, {format_duration(period)} apart{blocks}{new}")


def _new_sessions(sessions: Ints | None, cycles: int) -> Ints | None:
    if sessions is None:
        return None
    is_named = sessions != NONE
    numbers = np.full(len(sessions), NONE, dtype=np.int64)
    numbers[is_named], count = dense(sessions[is_named])
    every = np.tile(numbers, cycles)
    return np.where(every == NONE, NONE, every + np.repeat(np.arange(cycles) * count, len(sessions)))
