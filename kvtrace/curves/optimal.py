"""What no eviction or admission policy can exceed: Belady's optimum, which knows all references beforehand.

A full cache gives up what is used next the latest, the incoming object included, which is then not stored; what is not
used again is not stored at all (L. A. Belady, IBM Systems Journal, 1966; R. L. Mattson et al., 1970). Objects are of
one size. Prompts are prefixes, so that a later block of a prompt is never used before an earlier one: the optimum gives
up the later ones first, and all that it finds is in the leading run of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvtrace.core.native.library import I1, I4, I8, function
from kvtrace.curves.uses import Uses
from kvtrace.native.records import NONE, UNBOUNDED
from kvtrace.sim.chains import Chains

OPTIMAL: Final = "optimal"
"""Its name where policies are named."""

_find_following = function("find_following", I4, int, I8, I8)
_use_optimally = function("use_optimally", I8, int, I4, I8, I1, I8, int, I8)


def optimal_uses(chains: Chains, capacities: Sequence[int | None]) -> list[Uses]:
    """Return, for each capacity in objects (None: unlimited), what the optimal cache does with `chains` in order."""
    references, count = len(chains.slots), len(chains.tokens)
    following = np.empty(references, np.int64)
    _find_following(chains.slots, references, np.full(count, NONE), following)
    found = []
    for capacity in capacities:
        limit = UNBOUNDED if capacity is None else capacity
        live, heap, uses = np.zeros(count, np.int8), np.empty(references, np.int64), np.zeros(2, np.int64)
        requests = len(chains.offsets) - 1
        _use_optimally(chains.offsets, requests, chains.slots, following, live, heap, limit, uses)
        found.append(Uses(*uses.tolist()))
    return found
