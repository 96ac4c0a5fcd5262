"""Tokens and blocks into cached objects: which objects a request's prompt consists of, and how large they are."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.sources import NONE

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
    new: NDArray[np.int64]
    """How many of each request's last objects are its own, so that nothing can have cached them before."""


def block_chains(requests: Requests) -> Chains:
    """Return the source's own blocks as objects, the partial last one included."""
    slots, count = _dense(requests.block_ids)
    return Chains(
        requests.block_offsets, slots, np.full(count, requests.block_tokens, dtype=np.int64), _none_new(requests)
    )


def chunk_chains(requests: Requests, chunk_tokens: int) -> Chains:
    """Return the full chunks of `chunk_tokens` tokens of each prompt; a partial last chunk is not stored.

    Block ids are prefix-chained, so a chunk is named by the last block it reaches into and its place there.
    The end of a prompt that has no block id makes no chunk. Without ids, a chunk is named by its conversation
    (or its request, if it has none) and its place.
    """
    tokens = requests.input_tokens
    if requests.block_tokens:
        tokens = np.minimum(tokens, np.diff(requests.block_offsets) * requests.block_tokens)
    counts = tokens // chunk_tokens
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    if requests.block_tokens:
        ids = _block_names(requests, chunk_tokens, counts, place)
    else:
        owner, _ = _dense(_conversations(requests))
        ids = np.repeat(owner.astype(np.int64), counts) * (int(counts.max(initial=0)) + 1) + place
    slots, count = _dense(ids)
    return Chains(offsets, slots, np.full(count, chunk_tokens, dtype=np.int64), _none_new(requests))


def _block_names(
    requests: Requests, chunk_tokens: int, counts: NDArray[np.int64], place: NDArray[np.int64]
) -> NDArray[np.int64]:
    block = requests.block_tokens
    if block % chunk_tokens and chunk_tokens % block:
        raise ConfigError(
            f"chunk_tokens(={chunk_tokens}) must divide, or be a multiple of, the source's blocks of {block} tokens"
        )
    last_token = (place + 1) * chunk_tokens - 1
    per_block = max(1, block // chunk_tokens)
    ids = requests.block_ids[np.repeat(requests.block_offsets[:-1], counts) + last_token // block]
    names: NDArray[np.int64] = ids * per_block + place % per_block
    return names


def _conversations(requests: Requests) -> NDArray[np.int64]:
    """Return a number for each request that it shares with the other requests of its conversation only."""
    alone = np.arange(len(requests))
    if requests.session_id is None:
        return alone
    sessions = requests.session_id
    return np.where(sessions == NONE, alone + sessions.max(initial=NONE) + 1, sessions)


def turn_chains(requests: Requests) -> Chains:
    """Return one object a request, with its new tokens, behind those of the earlier turns of its conversation.

    New tokens are what the prompt adds to the conversation so far; a request without any makes no object.
    """
    owner = _conversations(requests)
    so_far: dict[int, int] = {}
    entries: dict[int, list[int]] = {}
    offsets, chain = [0], array("i")
    tokens: list[int] = []
    news: list[int] = []
    for conversation, asked, answered in zip(
        owner.tolist(), requests.input_tokens.tolist(), requests.output_tokens.tolist(), strict=True
    ):
        mine = entries.setdefault(conversation, [])
        new = max(0, asked - so_far.get(conversation, 0))
        if new:
            mine.append(len(tokens))
            tokens.append(new)
        news.append(int(new > 0))
        chain.extend(mine)
        offsets.append(len(chain))
        so_far[conversation] = asked + answered
    slots = np.frombuffer(chain, dtype=np.int32) if chain else np.zeros(0, dtype=np.int32)
    return Chains(np.array(offsets, dtype=np.int64), slots, np.array(tokens, dtype=np.int64), np.array(news))


def _none_new(requests: Requests) -> NDArray[np.int64]:
    return np.zeros(len(requests), dtype=np.int64)


def _dense(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Return `ids` renumbered from 0 by first appearance, and how many are distinct."""
    distinct, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    if len(distinct) > MAX_OBJECTS:
        raise ConfigError(f"{len(distinct)} objects; at most {MAX_OBJECTS} fit a simulation")
    number = np.empty(len(distinct), dtype=np.int32)
    number[np.argsort(first, kind="stable")] = np.arange(len(distinct), dtype=np.int32)
    return number[inverse], len(distinct)
