"""What sizes to ask of fio's random map so that those that are wanted come out.

The map lets no place come twice before all have come: an operation that would run into a used place is cut short. The
more of the map is used, the more are. So the sizes that a source of that kind shows are not those of its program.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_OPS = 100_000
_ROUNDS = 8
_SEED = 42


def wanted_sizes(blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int) -> NDArray[np.float64]:
    """Return the weights to ask for, so that sizes of `blocks` places come out as `weights` over `ops` operations.

    The map has `places`; the same weights come back if they cannot be told any better.
    """
    weights = weights / weights.sum()
    asked, best, least = weights.copy(), weights, np.inf
    for _ in range(_ROUNDS):
        made = cut_sizes(blocks, asked, places, min(ops, _MOST_OPS))
        distance = float(np.abs(made - weights).sum() / 2)
        if distance < least:
            best, least = asked, distance
        # A size that comes out too often, since longer ones are cut to it, is asked for less.
        asked = np.maximum(asked + (weights - made), 0)
        asked /= asked.sum()
    return best


def cut_sizes(blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int) -> NDArray[np.float64]:
    """Return the shares in which sizes come out of a map of `places` if they are asked for in shares `weights`."""
    rng = np.random.default_rng(_SEED)
    asked = rng.choice(blocks, ops, p=weights)
    starts = rng.integers(0, places, ops)
    used, left = bytearray(places), places
    counts = dict.fromkeys(blocks.tolist(), 0)
    done = 0
    for start, length in zip(starts.tolist(), asked.tolist(), strict=True):
        if not left:
            used, left = bytearray(places), places
        begin = used.find(0, start)
        if begin < 0:
            begin = used.find(0)
        end = used.find(1, begin, begin + length)
        end = min(begin + length, places) if end < 0 else end
        used[begin:end] = b"\1" * (end - begin)
        left -= end - begin
        done += 1
        if end - begin in counts:
            counts[end - begin] += 1
    return np.array([counts[b] for b in blocks.tolist()], dtype=np.float64) / done
