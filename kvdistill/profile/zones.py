"""Zones of equal mass: where operations start in the address space, as fio's `zoned_abs` can say it.

Mass is bytes, not operations: a job draws sizes and places independently, so a place full of small objects
would otherwise get operations of all sizes and come out hotter than it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.profile.profile import Zone

if TYPE_CHECKING:
    from numpy.typing import NDArray

PERCENT = 100


def equal_mass_zones(starts: NDArray[np.int64], moved_bytes: NDArray[np.int64], granule_bytes: int) -> list[Zone]:
    """Return zones from address 0 on, about 1 % of the bytes each, whole percent that sum to 100.

    `starts` are ascending granule-aligned addresses, `moved_bytes` what is moved by operations that start in
    each. A granule that alone holds 2 % or more gets a zone of its own, so that a hot object stays as hot as it is.
    """
    if not len(starts):
        return []
    done = np.cumsum(moved_bytes)
    marks = np.searchsorted(done * PERCENT, np.arange(1, PERCENT + 1) * done[-1])
    hits = np.bincount(marks, minlength=len(starts))
    zones: list[Zone] = []
    end, counted = 0, 0
    for i in np.flatnonzero(hits):
        start, percent = int(starts[i]), int(hits[i])
        if percent > 1 and start > end:
            before = int(done[i - 1]) - counted if i else 0
            cold = min(round(before * PERCENT / int(done[-1])), percent - 1)
            zones.append(Zone(cold, start - end))
            end, percent = start, percent - cold
        zones.append(Zone(percent, start + granule_bytes - end))
        end, counted = start + granule_bytes, int(done[i])
    return zones


def percentages(weights: Any, whole: int = PERCENT) -> list[int]:
    """Return whole shares of `weights` that sum to exactly `whole`, by largest remainder.

    Ties are spread over the weights, so that equal ones do not all gain at one end. Weights must be
    non-negative and not all 0.
    """
    weights = [int(w) for w in weights]
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights(={weights[:8]}…) must be >= 0 and not all 0.")
    shares = [w * whole // total for w in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * whole % total), _spread(i)))
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


def _spread(index: int) -> int:
    """Return a key that orders indices by halving: 0, 512, 256, 768, … of 1024."""
    return int(f"{index:010b}"[::-1], 2)
