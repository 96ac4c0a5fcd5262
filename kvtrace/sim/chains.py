"""Tokens and blocks into cached objects: which objects a request's prompt consists of."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I4, I8, StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.native.records import WORLD
from kvtrace.requests.requests import NONE, Requests, dense

MAX_OBJECTS = 2**31 - 1
_BATCH = 1 << 18

_number = function("table_number_names", StructAt, I8, int, I4, returns=int)
_forget = function("table_free", StructAt)


@dataclass(frozen=True)
class Chains:
    """The objects of each request, in prompt order, numbered densely by first appearance.

    `slots[offsets[n]:offsets[n + 1]]` are the objects of request n; object k holds `tokens[k]`
    tokens.
    """

    offsets: NDArray[np.int64]
    slots: NDArray[np.int32]
    tokens: NDArray[np.int64]

    @cached_property
    def uses(self) -> NDArray[np.int32]:
        """How often requests name each object; one simulation after another asks for it."""
        return np.bincount(self.slots, minlength=len(self.tokens)).astype(np.int32)


def block_chains(requests: Requests) -> Chains:
    """Return the source's own blocks as objects, the partial last one included."""
    numbers = Numbers(len(requests.block_ids))
    numbers.add(requests.block_ids)
    return numbers.chains(requests.block_offsets, requests.block_tokens)


def chunk_chains(requests: Requests, chunk_tokens: int, *, with_partial: bool = False) -> Chains:
    """Return the chunks of `chunk_tokens` tokens of each prompt, a partial last one only if so
    said.

    Block ids are prefix-chained, so a chunk is named by the last block it reaches into and its
    place there, and a partial one by its tokens besides. The end of a prompt that has no block id
    makes no chunk. Without ids, a chunk is named by its conversation (or its request, if it has
    none) and its place.
    """
    tokens, block, ids = requests.input_tokens, requests.block_tokens, requests.block_ids
    if block:
        if block % chunk_tokens and chunk_tokens % block:
            raise ConfigError(
                f"chunk_tokens(={chunk_tokens}) must divide, or be a multiple of, the source's"
                f" blocks of {block} tokens"
            )
        tokens = np.minimum(tokens, np.diff(requests.block_offsets) * block)
    partial = tokens % chunk_tokens * (with_partial & (tokens == requests.input_tokens))
    counts = tokens // chunk_tokens + (partial > 0)
    ids = dense(ids)[0] if with_partial else ids  # so that a name times the tokens of a chunk fits
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    owner = None if block else conversations(requests)[0]
    numbers = Numbers(int(offsets[-1]))
    # Of about _BATCH objects at a time, so that what is made of them on the way stays small.
    starts = np.searchsorted(offsets, np.arange(0, offsets[-1], _BATCH), side="left")
    bounds = np.unique(np.concatenate([starts, np.array([0, len(offsets) - 1])])).tolist()
    for first, end in pairwise(bounds):
        of = counts[first:end]
        place = np.arange(offsets[end] - offsets[first]) - np.repeat(
            offsets[first:end] - offsets[first], of
        )
        if owner is not None:
            numbers.add(np.repeat(owner[first:end], of) * (int(counts.max(initial=0)) + 1) + place)
            continue
        last_block = ((place + 1) * chunk_tokens - 1) // block
        if with_partial:
            last_block = np.minimum(
                last_block, np.repeat(np.diff(requests.block_offsets)[first:end] - 1, of)
            )
        per_block = max(1, block // chunk_tokens)
        names = (
            ids[np.repeat(requests.block_offsets[first:end], of) + last_block] * per_block
            + place % per_block
        )
        if with_partial:
            names *= chunk_tokens
            names[np.cumsum(of)[partial[first:end] > 0] - 1] += partial[first:end][
                partial[first:end] > 0
            ]
        numbers.add(names)
    return numbers.chains(offsets, chunk_tokens)


def conversations(requests: Requests) -> tuple[NDArray[np.int64], int]:
    """Return a dense number for each request that only the requests of its conversation share, and
    how many there are.

    A request of no conversation has one of its own.
    """
    count = len(requests)
    if requests.session_id is None:
        return np.arange(count), count
    names = np.where(requests.session_id == NONE, -1 - np.arange(count), requests.session_id)
    return dense(names)


def grown(array: Array, wanted: int, fill: int) -> Array:
    """Return `array` with at least `wanted` rows, new ones of `fill`.

    It grows to twice its length or more.
    """
    if wanted <= len(array):
        return array
    more = max(wanted - len(array), len(array))
    return np.concatenate([array, np.full((more, *array.shape[1:]), fill, dtype=array.dtype)])


class Numbers:
    """Gives names, int64, numbers from 0 by first appearance.

    4 bytes a name, and 16 to 32 more a distinct one.
    """

    def __init__(self, capacity: int) -> None:
        self.count = self._done = 0
        self.found = np.empty(capacity, dtype=np.int32)
        self._known = Structure(WORLD, "Table")
        weakref.finalize(self, _forget, self._known)

    def add(self, names: NDArray[np.int64]) -> None:
        """Assign numbers to the next `names`."""
        self.count = int(_number(self._known, names, len(names), self.found[self._done :]))
        self._done += len(names)
        if self.count > MAX_OBJECTS:
            raise ConfigError(
                f"more than {MAX_OBJECTS} objects, which are the most that fit a simulation"
            )

    def of(self, names: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the numbers of `names`."""
        self.found, self._done = np.empty(len(names), dtype=np.int32), 0
        self.add(names)
        return self.found

    def chains(self, offsets: NDArray[np.int64], tokens: int) -> Chains:
        """Return what was numbered as chains of objects of so many `tokens`."""
        return Chains(offsets, self.found, np.broadcast_to(np.int64(tokens), self.count))
