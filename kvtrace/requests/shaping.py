"""Transformations of any source: time scale, repetition, superposed copies, prompt limit, jitter, turns that follow.

Each is recorded in the notes. A turn that follows comes a pause after the simulated answer before it, instead of at its
recorded time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_duration
from kvtrace.requests.requests import MAX_BLOCK_ID, MAX_NS, NONE, Ints, Requests, Waits, dense, runs_of

MAX_REQUESTS = 2**31 - 1
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
        times = requests.arrival_ns
        distinct, group = np.unique(times, return_inverse=True)
        width = np.full(len(distinct), wanted.jitter_ns, dtype=np.int64)
        width[:-1] = np.minimum(width[:-1], np.diff(distinct))
        moves = np.floor(rng.random(len(times)) * width[group]).astype(np.int64)
        # In order within each time, so that requests stay in theirs.
        moves = moves[np.lexsort((moves, group))]
        requests = _noted(
            replace(requests, arrival_ns=times + moves, answered_ns=_moved(requests.answered_ns, moves)),
            f"times were spread evenly at random over ticks of {format_duration(wanted.jitter_ns)}, in the same order",
        )
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
    offsets, ids = runs_of(requests.block_ids, requests.block_offsets[:-1][rows], lengths)
    names = ("arrival_ns", "input_tokens", "output_tokens", "session_id", "turn", "qos", "kind", "answered_ns")
    taken: dict[str, Any] = {name: _rows(getattr(requests, name), rows) for name in names}
    waits = None if requests.waits is None else requests.waits.kept(rows)
    return replace(requests, block_offsets=offsets, block_ids=ids, waits=waits, **taken)


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
    offsets, ids = runs_of(requests.block_ids, requests.block_offsets[:-1], lengths)
    tokens = np.minimum(requests.input_tokens, limit)
    clipped = replace(requests, input_tokens=tokens, block_offsets=offsets, block_ids=ids)
    return _noted(clipped, f"{count} prompts over {limit} tokens were clipped to their first {limit}")


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
    if n * needed > MAX_REQUESTS or int(requests.arrival_ns[-1]) + period * needed > MAX_NS:
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
        session_id=_sessions_of_copies(requests.session_id, needed),
        answered_ns=_moved(every.answered_ns, cycle * period),
        waits=None if requests.waits is None else requests.waits.repeated(needed, period),
    )
    blocks = f", with {cycle_ids} block ids" if requests.block_tokens else ""
    new = "; each time its conversations are new ones" if requests.session_id is not None else ""
    return _noted(repeated, f"the trace comes {cycles} times, {format_duration(period)} apart{blocks}{new}")


_PARTS = 10**9
_COLUMNS = ("input_tokens", "output_tokens", "turn", "qos", "kind")


def superpose(requests: Requests, copies: int, common: float, shift_ns: int, rng: np.random.Generator) -> Requests:
    """Return `requests` and copies of them, `copies` in all, in order of arrival.

    Each copy but the first comes later by what `rng` draws for it, evenly up to `shift_ns`. Its sessions are its own,
    and its blocks, but for the most used ones that make up at most a share `common` of all references.
    """
    count, references = len(requests), len(requests.block_ids)
    if common and not requests.block_tokens:
        raise ConfigError("a share of common prefixes is of the blocks of a file that names them; this one does not")
    if count * copies > MAX_REQUESTS:
        raise ConfigError(f"scale(={copies}) of {count} requests are more than a trace can hold")
    shifts = np.zeros(copies, dtype=np.int64)
    shifts[1:] = np.floor(rng.random(copies - 1) * (shift_ns + 1)).astype(np.int64)
    if int(requests.arrival_ns[-1]) + shift_ns > MAX_NS:
        raise ConfigError(f"scale shift(={shift_ns} ns) puts requests beyond the clock of a trace")
    numbers, names = dense(requests.block_ids)
    is_common, shared = _most_used(numbers, names, common)
    own, owned = np.cumsum(~is_common) - 1, int(np.count_nonzero(~is_common))
    if names * copies > MAX_BLOCK_ID:
        raise ConfigError(f"scale(={copies}) of {names} blocks are more than a trace can number")
    times = (requests.arrival_ns[None, :] + shifts[:, None]).reshape(-1)
    # Of equal times the earlier copy first, and within one its own order.
    order = np.argsort(times, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    lengths = np.diff(requests.block_offsets)
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths[order % count])])
    # One copy at a time, so that little more is held than what is returned.
    ids = np.empty(references * copies, dtype=np.int64)
    within = np.arange(references) - np.repeat(requests.block_offsets[:-1], lengths)
    for copy in range(copies):
        starts = offsets[place[copy * count : (copy + 1) * count]]
        # Common blocks keep their numbers, then come those of each copy.
        renamed = np.where(is_common, np.arange(names), names + copy * owned + own)
        ids[np.repeat(starts, lengths) + within] = renamed[numbers]
    more: dict[str, Any] = {name: _rows(getattr(requests, name), order % count) for name in _COLUMNS}
    share = f"{100 * shared / max(references, 1):.1f} % of all references to blocks"
    note = (
        f"the requests come {copies} times over each other, each copy later by up to {format_duration(shift_ns)}"
        + ("; its sessions are its own" if requests.session_id is not None else "")
        + (f"; its blocks too, but for the most used prefixes, {share}" if requests.block_tokens else "")
    )
    return replace(
        requests,
        arrival_ns=times[order],
        block_offsets=offsets,
        block_ids=ids,
        session_id=_rows(_sessions_of_copies(requests.session_id, copies), order),
        answered_ns=None
        if requests.answered_ns is None
        else (requests.answered_ns[None, :] + shifts[:, None]).reshape(-1)[order],
        waits=_waits(requests, shifts, order),
        notes=(*requests.notes, note),
        **more,
    )


def _most_used(numbers: Ints, names: int, common: float) -> tuple[Any, int]:
    """Return which of the blocks, numbered by first appearance, are common, and how many references are to them."""
    uses = np.bincount(numbers, minlength=names)
    by_use = np.argsort(-uses, kind="stable")
    # In integers, so that a share that comes out whole is taken whole.
    most = round(common * _PARTS) * len(numbers) // _PARTS
    taken = int(np.searchsorted(np.cumsum(uses[by_use]), most, side="right"))
    is_common = np.zeros(names, dtype=bool)
    is_common[by_use[:taken]] = True
    return is_common, int(uses[by_use[:taken]].sum())


def _sessions_of_copies(sessions: Ints | None, copies: int) -> Ints | None:
    """Return the sessions of copies one after the other: each copy's are its own."""
    if sessions is None:
        return None
    numbers, count = dense(sessions[sessions != NONE])
    found = np.full((copies, len(sessions)), NONE, dtype=np.int64)
    found[:, sessions != NONE] = numbers + count * np.arange(copies)[:, None]
    return found.reshape(-1)


def _waits(requests: Requests, shifts: Ints, order: Ints) -> Any:
    """Return who waits for whom within each copy; None if the source does not say."""
    if requests.waits is None:
        return None
    every = requests.waits.repeated(len(shifts), 0)
    least = every.not_before_ns + np.repeat(shifts, len(requests))
    return replace(every, not_before_ns=least).kept(order)


class Turns(StrEnum):
    """When the later turns of a file's sessions arrive."""

    FOLLOW = "follow"
    """A pause after the simulated answer that they follow ended: a closed loop."""
    AS_RECORDED = "as-recorded"
    """At the file's times, however long answers take: an open loop."""


def choose(requests: Requests, turns: Turns | None) -> tuple[Requests, Waits | None]:
    """Return `requests` with notes on their `turns`, and their waits if these follow.

    Without a choice they follow if the file has no times for them. ConfigError if none can.
    """
    is_asked = turns is Turns.FOLLOW
    if not is_asked and not (turns is None and requests.untimed):
        return requests, None
    waits = waits_of(requests)
    if not len(waits):
        if is_asked:
            raise ConfigError("--turns follow: no request has a turn of its session before it; leave the option out")
        return requests, None
    notes = tuple(note for note in requests.notes if note != requests.untimed)
    return replace(requests, notes=(*notes, _note(requests, waits))), waits


def waits_of(requests: Requests) -> Waits:
    """Return which requests follow which: as the source says, or each the one before it of its session.

    The pause is the recorded time from the end of the one answer to the arrival of the next turn, none if that came
    earlier; where the end is not recorded, from the one arrival to the next.
    """
    if requests.waits is not None:
        return requests.waits
    sessions, arrivals = requests.session_id, requests.arrival_ns
    row = before = np.zeros(0, dtype=np.int64)
    if sessions is not None:
        order = np.argsort(sessions, kind="stable")
        order = order[sessions[order] != NONE]
        is_next = sessions[order[1:]] == sessions[order[:-1]]
        row, before = order[1:][is_next], order[:-1][is_next]
    ended = arrivals if requests.answered_ns is None else requests.answered_ns
    delay = np.maximum(0, arrivals[row] - ended[before])
    return Waits(row, before, delay, np.zeros(len(row), dtype=bool), np.zeros(len(requests), dtype=np.int64))


def _note(requests: Requests, waits: Waits) -> str:
    pause = requests.pause
    if not pause and requests.answered_ns is None:
        pause = "the recorded time between their arrivals, in which the answer's own time is: the source lacks that"
    pause = pause or "the recorded time from the end of that answer on"
    return (
        f"closed loop: {waits.followers} of {len(requests)} requests follow others and arrive a pause after the "
        f"simulated answer before them ended, the others at their recorded time; the pause is {pause}"
    )
