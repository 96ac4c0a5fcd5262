"""Where a stream's operations go, as the simplest law that the counts support.

Sequential runs first, then what is left: each place once, uniform, zipf, pareto, or else zones. A law is kept if draws
from it are used as unevenly as the source's places; zipf and pareto are fio's own generators, hashed over the places.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import Law, Places

_LOOK_BACK = 32
"""Operations back that a sequential one may continue: several are in flight, and a process may have several runs."""
_SEQUENTIAL, _RANDOM = 0.98, 0.03
_EQUAL_RUNS_CV = 0.3
_ALIGNED = 0.999
_SECTOR_BYTES, _MOST_ALIGN_BYTES = 512, 1 << 20
_HOT_PARTS = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Hottest parts of the used places, at which the shares of operations of two streams are compared."""
_FITS, _HOPELESS = 0.02, 0.3
_NEAR = 1.02
_SKEWED = 1.1
"""Variance by mean of the uses of a place, of which uniform draws have 1: beyond it some may be hot."""
_TOO_EVEN = 0.5
"""Variance by mean of how often a place is covered, below which none comes twice before all have come."""
_MOST_PLACES = 1 << 19
_GOLDEN = np.uint64(0x61C8864680B583EB)
"""fio's hash multiplies ranks by this."""
_THETAS = np.concatenate([np.arange(0.2, 1.0, 0.1), np.arange(1.05, 2.5, 0.1)])
_PARETO_HS = np.concatenate([np.arange(0.02, 0.1, 0.02), np.arange(0.1, 0.5, 0.05)])
_SEED = 42


def fit_places(address: NDArray[np.int64], length: NDArray[np.int64]) -> Places:
    """Return the law of operations at `address`, in order of arrival."""
    follows = _follows(address, length)
    share = float(follows.mean())
    runs = None
    if share >= _SEQUENTIAL:
        share = 1.0
    elif share <= _RANDOM:
        share = 0.0
    else:
        runs = _run_ops(follows)
    chosen = ~follows if 0 < share < 1 else np.ones(len(address), dtype=bool)
    align = _align(address[chosen])
    begin = int(address.min()) // align * align
    span = int((address + length).max()) - begin
    law, theta, places = Law.UNIFORM, None, 0
    if share < 1:
        law, theta, places = _law(address[chosen] - begin, length[chosen], align, span)
    if law in (Law.ZIPF, Law.PARETO):
        span = places * align
    return Places(
        sequential_share=share,
        run_ops=runs,
        law=law,
        theta=theta,
        align_bytes=align,
        begin_bytes=begin,
        span_bytes=span,
    )


def _follows(address: NDArray[np.int64], length: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which operations begin where one of the last ended."""
    end, follows = address + length, np.zeros(len(address), dtype=bool)
    for back in range(1, min(_LOOK_BACK, len(address) - 1) + 1):
        follows[back:] |= address[back:] == end[:-back]
    return follows


def _run_ops(follows: NDArray[np.bool_]) -> int | None:
    """Return the operations in a run if all but the last are about as long."""
    runs = np.diff(np.flatnonzero(~follows))
    if len(runs) < 2 or runs.std() > _EQUAL_RUNS_CV * runs.mean():  # noqa: PLR2004 - one tells nothing
        return None
    return max(1, round(float(np.median(runs))))


def _align(address: NDArray[np.int64]) -> int:
    """Return the largest power of two that all but a few addresses are multiples of."""
    align = _MOST_ALIGN_BYTES
    while align > _SECTOR_BYTES and (address % align == 0).mean() < _ALIGNED:
        align //= 2
    return align


def _law(address: NDArray[np.int64], length: NDArray[np.int64], align: int, span: int) -> tuple[Law, float | None, int]:
    """Return the law, its parameter, and over how many places it is."""
    uses = np.unique(address, return_counts=True)[1]
    n = len(address)
    if n == len(uses):
        return Law.ONCE, None, 0
    # Of very many places, several are looked at as one, which no law but those of equal places survives.
    coarse = max(1, -(-(span // align) // _MOST_PLACES))
    if coarse > 1:
        align *= coarse
        uses = np.unique(address // align, return_counts=True)[1]
    places = max(span // align, len(uses))
    # Each place is covered by a Poisson number of uniform draws, whatever their lengths.
    covered = _covered(address, length, align, places)
    if covered.var() < _TOO_EVEN * covered.mean():
        return Law.ONCE, None, 0
    mean = n / places
    spread = (float(np.square(uses.astype(np.float64)).sum()) / places - mean**2) / mean
    if spread < _SKEWED or _unlike(uses, np.full(places, 1 / places), n) <= _FITS:
        return Law.UNIFORM, None, 0
    # fio's generators count places in the smallest size.
    if coarse > 1 or int(length.min()) != align:
        return Law.ZONES, None, 0
    # Ranks are hashed: over a power of two each has a place of its own, else several share one. The last few places of
    # a file may not have been used.
    whole = 1 << (places - 1).bit_length()
    counts = [places, *([whole] if whole <= _NEAR * places else [])]
    laws = ((Law.ZIPF, _THETAS), (Law.PARETO, _PARETO_HS))
    distance, law, theta, count = min((*_best(uses, n, c, law, values), c) for c in counts for law, values in laws)
    return (law, theta, count) if distance <= _FITS else (Law.ZONES, None, places)


def _covered(address: NDArray[np.int64], length: NDArray[np.int64], align: int, places: int) -> Any:
    """Return how often each place is covered by an operation."""
    steps = np.zeros(places + 1, dtype=np.int64)
    np.add.at(steps, np.minimum(address // align, places), 1)
    np.add.at(steps, np.minimum(-(-(address + length) // align), places), -1)
    return np.cumsum(steps)[:-1]


def _best(uses: Any, n: int, places: int, law: Law, values: Any) -> tuple[float, Law, float]:
    """Return how far `law` is from `uses` at the best of `values`, and that, refined."""
    found = [_distance(uses, n, places, law, float(value)) for value in values]
    at = int(np.argmin(found))
    step = float(np.diff(values[max(0, at - 1) : at + 2]).max()) / 2
    distance, value = found[at], float(values[at])
    while distance < _HOPELESS and step > 0.005:  # noqa: PLR2004 - finer than what so few draws tell
        for near in (value - step, value + step):
            if near > 0 and abs(near - 1) > 1e-3 and (law is not Law.PARETO or near < 0.5):  # noqa: PLR2004 - of zipf and pareto
                other = _distance(uses, n, places, law, near)
                if other < distance:
                    distance, value = other, near
        step /= 2
    return distance, law, round(value, 3)


def _distance(uses: Any, n: int, places: int, law: Law, value: float) -> float:
    return _unlike(uses, likely(law, value, places), n)


def _unlike(uses: Any, p: Any, n: int) -> float:
    """Return how far the shares of the hottest places, and the number used, are from draws with probabilities `p`."""
    drawn = np.random.default_rng(_SEED).poisson(p * n)
    drawn = drawn[drawn > 0]
    if not len(drawn):  # of two or three operations it may draw none, and tells nothing
        return 1.0
    mine, theirs = _hot_shares(uses), _hot_shares(drawn)
    return max(float(np.abs(mine - theirs).max()), abs(len(drawn) / len(uses) - 1) / 2)


def _hot_shares(uses: Any) -> Any:
    done = np.cumsum(np.sort(uses)[::-1]) / uses.sum()
    return np.array([done[max(0, round(len(uses) * part) - 1)] for part in _HOT_PARTS])


def likely(law: Law, value: float, places: int) -> NDArray[np.float64]:
    """Return how likely fio's zipf or pareto generator takes each of `places`.

    Ranks are hashed over the places, so that several may share one and some have none.
    """
    if law is Law.ZIPF:
        ranks = np.arange(1, places + 1, dtype=np.float64)
        zeta_n, zeta_2 = float((ranks**-value).sum()), 1 + 0.5**value
        eta = (1 - (2 / places) ** (1 - value)) / (1 - zeta_2 / zeta_n)
        below = ((ranks / places) ** (1 - value) - 1 + eta) / eta
        below[0] = 1 / zeta_n
        if places > 1:
            below[1] = max(zeta_2 / zeta_n, below[1])
    else:
        power = np.log(value) / np.log(1 - value)
        below = (np.arange(1, places + 1, dtype=np.float64) / max(1, places - 1)) ** (1 / power)
    share = np.diff(np.clip(np.maximum.accumulate(below), 0, 1), prepend=0)
    with np.errstate(over="ignore"):
        place = (np.arange(places, dtype=np.uint64) * _GOLDEN) % np.uint64(places)
    return np.bincount(place.astype(np.int64), share / share.sum(), places).astype(np.float64)
