"""Prefix chains from block ids: whatever a source's ids stand for, ours stand for whole prefixes.

Some sources hash each block together with all before it, some hash its content alone. The simulation needs the
former, so ids that are seen behind different prefixes are renamed by the prefix they end.
"""

from __future__ import annotations

import numpy as np

from kvtrace.requests.requests import Ints, dense

_START = -1


def prefix_chains(ids: Ints, offsets: Ints) -> tuple[Ints, int]:
    """Return `ids` such that an equal id means an equal prefix, and how many ids had several prefixes.

    Request n has `ids[offsets[n]:offsets[n + 1]]`. If every id always follows the same id, they are prefix
    chains already and are returned as they are.
    """
    before = _before(ids, offsets)
    order = np.lexsort((before, ids))
    sorted_ids, sorted_before = ids[order], before[order]
    differs = (sorted_ids[1:] == sorted_ids[:-1]) & (sorted_before[1:] != sorted_before[:-1])
    ambiguous = len(np.unique(sorted_ids[1:][differs]))
    return (ids, 0) if ambiguous == 0 else (_renamed(ids, offsets), ambiguous)


def unnamed_notes(tokens: int) -> list[str]:
    """Return what is to be said of so many `tokens` of prompts that no block id covers; nothing of none."""
    return [f"{tokens} tokens at the ends of prompts have no block id and are never reused"] if tokens else []


def rechained_notes(ids: int) -> list[str]:
    """Return what is to be said of so many block `ids` that `prefix_chains` renamed; nothing of none."""
    return [f"{ids} block ids stand behind more than one prefix, and were renamed by it"] if ids else []


def _before(ids: Ints, offsets: Ints) -> Ints:
    before = np.empty_like(ids)
    before[1:] = ids[:-1]
    starts = offsets[:-1][np.diff(offsets) > 0]
    before[starts] = _START
    return before


def _renamed(ids: Ints, offsets: Ints) -> Ints:
    """Name each block by (name of the prefix before it, its id), place by place through all prompts at once."""
    numbers, distinct = dense(ids)
    names = np.empty_like(ids)
    lengths = np.diff(offsets)
    longest_first = np.argsort(-lengths, kind="stable")
    ordered_lengths = lengths[longest_first]
    starts = offsets[:-1][longest_first]
    used = 0
    prefix = np.full(len(lengths), _START, dtype=np.int64)
    for place in range(int(ordered_lengths[0])):
        alive = int(np.searchsorted(-ordered_lengths, -place, side="left"))
        at = starts[:alive] + place
        # A prefix number is below the count of blocks, so the pair fits 64 bits while their product does.
        found, count = dense((prefix[:alive] + 1) * distinct + numbers[at])
        prefix[:alive] = names[at] = found + used
        used += count
    return names
