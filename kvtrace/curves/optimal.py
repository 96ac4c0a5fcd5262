"""What no eviction or admission policy can exceed: Belady's optimum, which knows all references beforehand.

A full cache gives up what is used next the latest, the incoming object included, which is then not stored; what is not
used again is not stored at all (L. A. Belady, IBM Systems Journal, 1966; R. L. Mattson et al., 1970). Objects are of
one size. Prompts are prefixes, so that a later block of a prompt is never used before an earlier one: the optimum gives
up the later ones first, and all that it finds is in the leading run of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from kvtrace.core.compiled import inner, njit
from kvtrace.curves.uses import Uses
from kvtrace.sim.chains import Chains
from kvtrace.sim.records import NONE, UNBOUNDED

OPTIMAL: Final = "optimal"
"""Its name where policies are named."""


def optimal_uses(chains: Chains, capacities: Sequence[int | None]) -> list[Uses]:
    """Return, for each capacity in objects (None: unlimited), what the optimal cache does with `chains` in order."""
    references, count = len(chains.slots), len(chains.tokens)
    following = np.empty(references, np.int64)
    _following(chains.slots, np.full(count, NONE), following)
    found = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        live, heap = np.zeros(count, np.int8), np.empty(references, np.int64)
        found.append(Uses(*_optimal(chains.offsets, chains.slots, following, live, heap, limit)))
    return found


@njit
def _following(chain: Any, last: Any, following: Any) -> int:
    """Enter for each reference the index of the next one to the same object, or NONE."""
    for i in range(len(chain) - 1, -1, -1):
        slot = chain[i]
        following[i] = last[slot]
        last[slot] = i
    return 0


@njit
def _optimal(offsets: Any, chain: Any, following: Any, live: Any, heap: Any, limit: int) -> tuple[int, int]:
    """Return hits and inserts.

    `heap` holds the next references of the objects that are there, the latest first. Those that came meanwhile stay in
    it, below all others, and no object that is not there has one above them: the first is always an object's that is.
    """
    hits, inserts, used, waiting = 0, 0, 0, 0
    for request in range(len(offsets) - 1):
        is_leading = True
        for i in range(offsets[request], offsets[request + 1]):
            slot, later = chain[i], following[i]
            if live[slot]:
                hits += is_leading
                if later == NONE:
                    live[slot] = 0
                    used -= 1
                else:
                    waiting = _push(heap, waiting, later)
                continue
            is_leading = False
            if later == NONE:
                continue
            if used == limit:
                if heap[0] <= later:
                    continue
                live[chain[heap[0]]] = 0
                waiting = _pop(heap, waiting)
                used -= 1
            live[slot] = 1
            used += 1
            inserts += 1
            waiting = _push(heap, waiting, later)
    return hits, inserts


@inner
def _push(heap: Any, waiting: int, value: int) -> int:
    """Put `value` into the heap of `waiting` values, the largest first, and return how many there are."""
    at = waiting
    while at > 0 and heap[(at - 1) // 2] < value:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = value
    return waiting + 1


@inner
def _pop(heap: Any, waiting: int) -> int:
    """Take the largest value out of the heap, and return how many are left."""
    value, waiting = heap[waiting - 1], waiting - 1
    at, below = 0, 1
    while below < waiting:
        if below + 1 < waiting and heap[below + 1] > heap[below]:
            below += 1
        if heap[below] <= value:
            break
        heap[at] = heap[below]
        at, below = below, 2 * below + 1
    heap[at] = value
    return waiting
