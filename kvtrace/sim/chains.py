"""Tokens and blocks into cached objects: which objects a request's prompt consists of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError
from kvtrace.core.memory import require_memory
from kvtrace.core.parameters import named
from kvtrace.native.numbering import MAX_OBJECTS, Numbers, grown
from kvtrace.requests.int_columns import (
    NONE,
    batches_of_runs,
    dense,
    offsets_of,
    run_positions,
)
from kvtrace.requests.requests import Requests


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
        """The number of times that requests name each object, cached for later simulations."""
        return np.bincount(self.slots, minlength=len(self.tokens)).astype(np.int32)


def block_chains(requests: Requests) -> Chains:
    """Return the source's own blocks as objects, the partial last one included."""
    numbers = Numbers(len(requests.block_ids))
    numbers.add(requests.block_ids)
    return _chains(numbers, requests.block_offsets, requests.block_tokens)


def chunk_chains(requests: Requests, chunk_tokens: int, *, with_partial: bool = False) -> Chains:
    """Return the chunks of `chunk_tokens` tokens of each prompt, with a partial last one on request.

    Block ids are prefix-chained, so a chunk is named by the last block that it overlaps and its
    index in that block; a partial chunk also by its number of tokens. Tokens at the end of a prompt
    that no block id covers make no chunk. Without ids, a chunk is named by its conversation (or its
    request, if it has none) and its index.
    """
    tokens, block_tokens = requests.input_tokens, requests.block_tokens
    if block_tokens:
        if block_tokens % chunk_tokens and chunk_tokens % block_tokens:
            raise ConfigError(
                f"chunk_tokens(={chunk_tokens}) must divide, or be a multiple of, the source's"
                f" blocks of {block_tokens} tokens"
            )
        tokens = np.minimum(tokens, np.diff(requests.block_offsets) * block_tokens)
        if not with_partial and block_tokens % chunk_tokens == 0:
            chains = _chunks_of_blocks(requests, tokens // chunk_tokens, chunk_tokens)
            if chains is not None:
                return chains
    partial_tokens = tokens % chunk_tokens * (with_partial & (tokens == requests.input_tokens))
    counts = tokens // chunk_tokens + (partial_tokens > 0)
    offsets = offsets_of(counts)
    _require_memory(int(offsets[-1]), chunk_tokens)
    numbers = Numbers(int(offsets[-1]))
    if block_tokens:
        # Names are multiplied by chunk_tokens if chunks are partial, so they must be small.
        ids = dense(requests.block_ids)[0] if with_partial else requests.block_ids
        partial = partial_tokens if with_partial else None
        for first, end in batches_of_runs(offsets):
            rows = slice(first, end)
            numbers.add(_names_by_block(requests, ids, rows, counts[rows], chunk_tokens, partial))
    else:
        conversation = conversations(requests)[0]
        names_each = int(counts.max(initial=0)) + 1
        for first, end in batches_of_runs(offsets):
            batch_counts = counts[first:end]
            numbers.add(run_positions(conversation[first:end] * names_each, batch_counts))
    return _chains(numbers, offsets, chunk_tokens)


def _names_by_block(
    requests: Requests,
    ids: NDArray[np.int64],
    rows: slice,
    counts: NDArray[np.int64],
    chunk_tokens: int,
    partial_tokens: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """Return the names of the `counts` chunks of each of the requests `rows`, by their blocks `ids`.

    `partial_tokens` are the tokens of each request's last chunk, 0 if it is a whole one; None
    without partial chunks.
    """
    chunk_index = run_positions(np.zeros_like(counts), counts)
    last_block = ((chunk_index + 1) * chunk_tokens - 1) // requests.block_tokens
    if partial_tokens is not None:
        blocks = np.diff(requests.block_offsets)[rows]
        last_block = np.minimum(last_block, np.repeat(blocks - 1, counts))
    per_block = max(1, requests.block_tokens // chunk_tokens)
    first_blocks = np.repeat(requests.block_offsets[:-1][rows], counts)
    names: NDArray[np.int64] = ids[first_blocks + last_block] * per_block + chunk_index % per_block
    if partial_tokens is not None:
        has_partial = partial_tokens[rows] > 0
        names *= chunk_tokens
        names[np.cumsum(counts)[has_partial] - 1] += partial_tokens[rows][has_partial]
    return names


def _chains(numbers: Numbers, offsets: NDArray[np.int64], tokens: int) -> Chains:
    """Return numbered names as chains of objects of `tokens` tokens each."""
    return Chains(offsets, numbers.numbers, np.broadcast_to(np.int64(tokens), numbers.count))


def _chunks_of_blocks(
    requests: Requests, counts: NDArray[np.int64], chunk_tokens: int
) -> Chains | None:
    """Return the first `counts` chunks of each prompt, of which a block has a whole number.

    The first prompt that has a block numbers its chunks one after the other, so that numbering the
    blocks is enough. None if a later prompt has more chunks of the block than the first one.
    """
    per_block = requests.block_tokens // chunk_tokens
    blocks = -(-counts // per_block)
    block_offsets = offsets_of(blocks)
    numbering = Numbers(int(block_offsets[-1]))
    chunks = np.zeros(0, dtype=np.int64)
    for first, end in batches_of_runs(block_offsets):
        count_before = numbering.count
        batch_blocks = blocks[first:end]
        positions = run_positions(requests.block_offsets[first:end], batch_blocks)
        numbers = numbering.add(requests.block_ids[positions])
        block_chunks = _chunks_of_each_block(counts[first:end], batch_blocks, per_block)
        # Numbers are given in order of first appearance.
        highest = np.maximum.accumulate(np.maximum(numbers, count_before - 1))
        is_new = np.diff(highest, prepend=count_before - 1) > 0
        chunks = grown(chunks, numbering.count, 0)
        chunks[count_before : numbering.count] = block_chunks[is_new]
        if (block_chunks > chunks[numbers]).any():
            return None
    chunks = chunks[: numbering.count]
    count = int(chunks.sum())
    if count > MAX_OBJECTS:
        raise ConfigError(f"more than {MAX_OBJECTS} objects, the maximum of a simulation")
    first_numbers = np.cumsum(chunks) - chunks
    offsets = offsets_of(counts)
    _require_memory(int(offsets[-1]), chunk_tokens)
    slots = np.empty(offsets[-1], dtype=np.int32)
    for first, end in batches_of_runs(block_offsets):
        numbers = numbering.numbers[block_offsets[first] : block_offsets[end]]
        block_chunks = _chunks_of_each_block(counts[first:end], blocks[first:end], per_block)
        first_places = np.cumsum(block_chunks) - block_chunks
        batch = slots[offsets[first] : offsets[end]]
        batch[:] = np.repeat(first_numbers[numbers] - first_places, block_chunks)
        batch += np.arange(len(batch), dtype=np.int32)
    return Chains(offsets, slots, np.broadcast_to(np.int64(chunk_tokens), count))


def _chunks_of_each_block(
    counts: NDArray[np.int64], blocks: NDArray[np.int64], per_block: int
) -> NDArray[np.int64]:
    """Return the number of chunks of each block of prompts of `counts` chunks and `blocks` blocks.

    The last block of a prompt may have fewer than `per_block`.
    """
    block_chunks = np.full(int(blocks.sum()), per_block, dtype=np.int64)
    has_blocks = blocks > 0
    last_chunks = counts - (blocks - 1) * per_block
    block_chunks[np.cumsum(blocks)[has_blocks] - 1] = last_chunks[has_blocks]
    return block_chunks


def _require_memory(references: int, chunk_tokens: int) -> None:
    """Raise OutOfMemory unless the objects of all prompts, `references` together, fit."""
    require_memory(
        references * _REFERENCE_BYTES,
        f"the simulation of {references:,} chunks of {chunk_tokens} tokens in all prompts",
        f"simulate fewer requests ({named('max_requests')}), or larger chunks",
    )


_REFERENCE_BYTES = 4
"""Memory of the number of an object of a prompt."""


def conversations(requests: Requests) -> tuple[NDArray[np.int64], int]:
    """Return the conversation of each request, numbered densely from 0, and their count.

    A request without a session is a conversation of its own.
    """
    count = len(requests)
    if requests.session_id is None:
        return np.arange(count), count
    names = np.where(requests.session_id == NONE, -1 - np.arange(count), requests.session_id)
    return dense(names)
