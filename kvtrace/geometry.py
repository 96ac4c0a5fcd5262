"""Tokens and blocks into cached objects: which objects a request's prompt consists of, and how large they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.sources import Requests

MAX_OBJECTS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Chains:
    """The objects of each request, in prompt order, numbered densely by first appearance.

    `slots[offsets[n]:offsets[n + 1]]` are the objects of request n; object k holds `tokens[k]` tokens.
    """

    offsets: NDArray[np.int64]
    slots: NDArray[np.int32]
    tokens: NDArray[np.int64]


def block_chains(requests: Requests) -> Chains:
    """Return the source's own blocks as objects, the partial last one included."""
    slots, count = _dense(requests.block_ids)
    return Chains(requests.block_offsets, slots, np.full(count, requests.block_tokens, dtype=np.int64))


def chunk_chains(requests: Requests, chunk_tokens: int) -> Chains:
    """Return the full chunks of `chunk_tokens` tokens of each prompt; a partial last chunk is not stored.

    Block ids are prefix-chained, so a chunk is named by the last block it reaches into and its place there.
    """
    block = requests.block_tokens
    if block % chunk_tokens and chunk_tokens % block:
        raise ConfigError(
            f"chunk_tokens(={chunk_tokens}) must divide, or be a multiple of, the source's blocks of {block} tokens"
        )
    counts = requests.input_tokens // chunk_tokens
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    last_token = (place + 1) * chunk_tokens - 1
    ids = requests.block_ids[np.repeat(requests.block_offsets[:-1], counts) + last_token // block]
    per_block = max(1, block // chunk_tokens)
    slots, count = _dense(ids * per_block + place % per_block)
    return Chains(offsets, slots, np.full(count, chunk_tokens, dtype=np.int64))


def turn_chains(requests: Requests) -> Chains:
    """Return one object a request, holding its whole prompt; nothing is shared, and an empty prompt has none."""
    is_some = requests.input_tokens > 0
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(is_some)])
    return Chains(offsets, np.arange(offsets[-1], dtype=np.int32), requests.input_tokens[is_some])


def _dense(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return `ids` renumbered from 0 by first appearance, and how many are distinct."""
    distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if len(distinct) > MAX_OBJECTS:
        raise ConfigError(f"{len(distinct)} objects; at most {MAX_OBJECTS} fit a simulation")
    number = np.empty(len(distinct), dtype=np.int32)
    number[np.argsort(first, kind="stable")] = np.arange(len(distinct), dtype=np.int32)
    return number[inverse], len(distinct)
