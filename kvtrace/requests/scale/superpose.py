"""More of the same traffic: copies of a file's requests over each other, shifted, with names of their own.

Some prompts are the same whoever asks: system prompts, shared documents. So the copies share the most used prefixes, as
many as make up a stated share of all references to blocks. A prefix is used at least as often as what goes on from it,
so that of a block that is shared all before it are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_duration
from kvtrace.requests.requests import MAX_BLOCK_ID, MAX_NS, NONE, Ints, Requests, dense

MAX_REQUESTS = 2**31 - 1
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
    own = np.cumsum(~is_common) - 1
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
        ids[np.repeat(starts, lengths) + within] = _renamed(numbers, is_common, own, copy)
    more: dict[str, Any] = {name: _of(getattr(requests, name), order % count) for name in _COLUMNS}
    note = (
        f"the requests come {copies} times over each other, each copy later by up to {format_duration(shift_ns)}"
        + ("; its sessions are its own" if requests.session_id is not None else "")
        + (f"; its blocks too, but for the most used {_share(shared, references)}" if requests.block_tokens else "")
    )
    return replace(
        requests,
        arrival_ns=times[order],
        block_offsets=offsets,
        block_ids=ids,
        session_id=_sessions(requests.session_id, copies, order),
        answered_ns=_shifted(requests.answered_ns, shifts, order),
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


def _renamed(numbers: Ints, is_common: Any, own: Ints, copy: int) -> Ints:
    """Return the blocks of one copy: common ones by their number, then those of each copy."""
    names, owned = len(is_common), int(np.count_nonzero(~is_common))
    renamed = np.where(is_common, np.arange(names), names + copy * owned + own)
    found: Ints = renamed[numbers]
    return found


def _share(shared: int, references: int) -> str:
    return f"prefixes, {100 * shared / max(references, 1):.1f} % of all references to blocks"


def _of(values: Ints | None, rows: Ints) -> Ints | None:
    return None if values is None else values[rows]


def _sessions(sessions: Ints | None, copies: int, order: Ints) -> Ints | None:
    if sessions is None:
        return None
    numbers, count = dense(sessions[sessions != NONE])
    found = np.full((copies, len(sessions)), NONE, dtype=np.int64)
    found[:, sessions != NONE] = numbers + count * np.arange(copies)[:, None]
    return found.reshape(-1)[order]


def _shifted(times: Ints | None, shifts: Ints, order: Ints) -> Ints | None:
    return None if times is None else (times[None, :] + shifts[:, None]).reshape(-1)[order]


def _waits(requests: Requests, shifts: Ints, order: Ints) -> Any:
    """Return who waits for whom within each copy; None if the source does not say."""
    if requests.waits is None:
        return None
    every = requests.waits.repeated(len(shifts), 0)
    least = every.not_before_ns + np.repeat(shifts, len(requests))
    return replace(every, not_before_ns=least).kept(order)
