"""Block ids of prompts, which name prefixes.

A block id here stands for the whole prefix that it ends. Some sources hash each block with all blocks
before it, others its content only; ids of the latter are renamed by prefix:

    for each position, over all prompts: name = number of (name of the prefix before, id)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from kvtrace.requests.int_columns import (
    NONE,
    Ints,
    column,
    dense,
    offsets_of,
    run_positions,
    runs_of,
)
from kvtrace.requests.notes import counted

T = TypeVar("T")

_START = -1
"""Stands for the id before the first one of a request."""
_PIECE_IDS = 1 << 20
"""How many ids are compared at once, which bounds memory."""
_SPARSE_IDS = 4
"""How many numbers an id may take on average before a table by number would be too large."""


def full_blocks(units: Sequence[T], block_tokens: int, per_token: int = 1) -> Iterator[Sequence[T]]:
    """Yield the full blocks of a prompt; what is in a block names it.

    A token takes `per_token` units, and the last one perhaps fewer.
    """
    step = block_tokens * per_token
    end = -(-len(units) // per_token) // block_tokens * step
    return (units[start : start + step] for start in range(0, end, step))


class BlockIds:
    """The block ids of requests in the order of a log: one array, of which each has a run.

    A log may have a billion ids, which as a list for each request would take twice the memory.
    """

    def __init__(self) -> None:
        self._ids, self._ends = array("q"), array("q")

    def append(self, ids: Iterable[int]) -> None:
        """Add the ids of the next request."""
        self._ids.extend(array("q", ids))
        self._ends.append(len(self._ids))

    def __getitem__(self, row: int) -> array[int]:
        """Return a copy of the ids of the request `row`."""
        return self._ids[self._ends[row - 1] if row else 0 : self._ends[row]]

    @property
    def lengths(self) -> Ints:
        """The number of ids of each request."""
        return np.diff(column(self._ends), prepend=0)

    @property
    def next_id(self) -> int:
        """The least number above all ids."""
        return int(column(self._ids).max(initial=-1)) + 1

    def with_new_ids(self, missing: Ints) -> BlockIds:
        """Return the ids with so many new ones behind those of each request."""
        if not missing.any():
            return self
        lengths = self.lengths
        ends = np.cumsum(lengths + missing)
        is_old = np.ones(ends[-1], dtype=bool)
        is_old[run_positions(ends - missing, missing)] = False
        ids = np.empty(ends[-1], dtype=np.int64)
        ids[is_old] = column(self._ids)
        ids[~is_old] = np.arange(self.next_id, self.next_id + int(missing.sum()))
        result = BlockIds()
        result._ids.frombytes(ids.tobytes())
        result._ends.frombytes(ends.astype(np.int64).tobytes())
        return result

    def reordered(self, order: Ints) -> tuple[Ints, Ints]:
        """Return the offsets and the ids of the requests in `order`."""
        lengths, ids = self.lengths, column(self._ids)
        if (order[1:] > order[:-1]).all():  # Most logs are in order, and need no copy.
            return offsets_of(lengths), ids
        starts = column(self._ends) - lengths
        return runs_of(ids, starts[order], lengths[order])


class PrefixChains(NamedTuple):
    """Block ids that name prefixes, and the ids of the file that did not."""

    ids: Ints
    renamed: int
    """Number of distinct ids that follow more than one prefix, and were renamed."""
    first_request: int
    """The first request with an id that followed another prefix before; NONE if there is none."""

    def notes(self, row: int = 0) -> list[str]:
        """Return a note on renamed ids, if there are any; `row` is that request's row in the file.

        Without a row, the note names the request.
        """
        place = f"row {row}" if row else f"request {self.first_request}"
        text = f"block ids occur after more than one prefix, first in {place}"
        treatment = "they were renamed by prefix, so that only equal prefixes are shared"
        return counted((self.renamed, f"{text}: {treatment}"))


def prefix_chains(ids: Ints, offsets: Ints) -> PrefixChains:
    """Return ids that name prefixes.

    Request n has `ids[offsets[n]:offsets[n + 1]]`. If each id always follows the same id, they name
    prefixes already and are returned unchanged. Otherwise a block is named by (name of the prefix
    before it, its id).
    """
    conflicts = _conflicts(ids, offsets)
    if not len(conflicts):
        return PrefixChains(ids, 0, NONE)
    first_request = int(np.searchsorted(offsets, conflicts.min(), side="right")) - 1
    # Position by position, over all prompts at once.
    numbers, distinct = dense(ids)
    names = np.empty_like(ids)
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    ordered_lengths = lengths[longest_first]
    starts = offsets[:-1][longest_first]
    names_used = 0
    prefix = np.full(len(lengths), _START, dtype=np.int64)
    for position in range(int(ordered_lengths[0])):
        active_count = int(np.searchsorted(-ordered_lengths, -position, side="left"))
        positions = starts[:active_count] + position
        # A prefix number is below the count of blocks, so the pair fits 64 bits while their product
        # does.
        pair_numbers, count = dense((prefix[:active_count] + 1) * distinct + numbers[positions])
        prefix[:active_count] = names[positions] = pair_numbers + names_used
        names_used += count
    return PrefixChains(names, len(np.unique(ids[conflicts])), first_request)


def _conflicts(ids: Ints, offsets: Ints) -> Ints:
    """Return the positions of the ids that follow another id than at their first occurrence."""
    ambiguous_ids = _ambiguous_ids(ids, offsets)
    if not len(ambiguous_ids):
        return np.zeros(0, dtype=np.int64)
    positions = np.flatnonzero(np.isin(ids, ambiguous_ids))
    before = _ids_before(ids, offsets, positions)
    # A stable sort begins the run of each id with its first occurrence.
    order = np.argsort(ids[positions], kind="stable")
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = np.diff(ids[positions][order]) != 0
    before_first = before[order][is_first][np.cumsum(is_first) - 1]
    conflicts: Ints = positions[order[before[order] != before_first]]
    return conflicts


def _ambiguous_ids(ids: Ints, offsets: Ints) -> Ints:
    """Return the ids that follow more than one other id.

    Most logs have none. A log may have a billion ids, so positions are taken in pieces. Beside `ids`
    memory is needed for one id before each number from the least to the largest id.
    """
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    least, span = int(ids.min()), int(ids.max()) - int(ids.min()) + 1
    numbers, distinct = ids, span
    if span > _SPARSE_IDS * len(ids):
        (numbers, distinct), least = dense(ids), 0

    def pieces() -> Iterator[Ints]:
        for start in range(0, len(ids), _PIECE_IDS):
            yield np.arange(start, min(start + _PIECE_IDS, len(ids)))

    # Of several occurrences in a piece, NumPy may keep any: all are compared with the one it keeps.
    one_before = np.empty(distinct, dtype=np.int64)
    for piece in pieces():
        one_before[numbers[piece] - least] = _ids_before(ids, offsets, piece)
    others = [
        piece[_ids_before(ids, offsets, piece) != one_before[numbers[piece] - least]]
        for piece in pieces()
    ]
    return np.unique(ids[np.concatenate(others)])


def _ids_before(ids: Ints, offsets: Ints, positions: Ints) -> Ints:
    """Return the id before each of the increasing `positions`; _START at the start of a request."""
    before = ids[positions - 1]
    starts = offsets[:-1]
    nearest = np.searchsorted(starts, positions)
    before[starts[np.minimum(nearest, len(starts) - 1)] == positions] = _START
    return before
