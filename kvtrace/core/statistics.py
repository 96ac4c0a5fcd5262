"""Figures that the three programs define alike.

Percentiles, histograms in slots, ratios of trials, wear.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median, variance
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from kvtrace.core import np
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.units import DAYS_PER_YEAR, parse_bytes

if TYPE_CHECKING:
    # Heavy, and not needed by programs that only name a percentile.
    from numpy.typing import NDArray

QUANTILES: Final = {"p50": 5000, "p95": 9500, "p99": 9900, "p99_9": 9990, "p99_99": 9999}
"""Percentiles in ten-thousandths: in floating point 1 / (1 - 0.9999) is not 10,000."""
_WHOLE = 10_000
_Number = TypeVar("_Number", int, float)


def total(values: Sequence[_Number | None]) -> _Number | None:
    """Return the sum of `values`; null if there are none, or one of them is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of `values`; null if there are none, or one of them is not known."""
    return (
        None
        if None in values or not values
        else fmean(value for value in values if value is not None)
    )


def nearest_rank(count: int, part: int) -> int | None:
    """Return the rank, from 1, of the percentile `part` (ten-thousandths) of `count` values.

    Null with fewer than 1 / (1 - q) values, which cannot tell it.
    """
    return -(-count * part // _WHOLE) if count * (_WHOLE - part) >= _WHOLE else None


V = TypeVar("V")


def at_rank(counted: Sequence[tuple[V, int]], rank: int | None) -> V | None:
    """Return the value of ascending (value, count) pairs at `rank`, from 1.

    Null if the rank is null.
    """
    done = 0
    for value, count in counted:
        done += count
        if rank is not None and done >= rank:
            return value
    return None


def gap_ns(square_gaps: float, span_ns: int) -> int:
    """Return the mean length of the gap in which a moment of `span_ns` lies.

    `square_gaps` are its gaps, squared and added up. The result is the time from one burst to the
    next, and next to nothing for a steady load: what follows the last due time.
    """
    return int(square_gaps / span_ns) if span_ns else 0


_SUB_BITS = 4
SLOTS: Final = (64 - _SUB_BITS) << _SUB_BITS
"""Slots of a histogram of 63-bit values: exact below 32, at most 1/16 of the value wide above."""


class Slot(msgspec.Struct, frozen=True):
    """The number of values from `low` on and below `below`."""

    low: int
    below: int
    count: int


def slot_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slot of each value; none may be negative."""
    # frexp's exponent is the number of bits; it rounds up only beyond 2**53, where a slot is 2**49
    # wide.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - _SUB_BITS, 0)
    slots: NDArray[np.int64] = (shift << _SUB_BITS) + (values >> shift)
    return slots


def bounds(slot: int, bits: int = _SUB_BITS) -> tuple[int, int]:
    """Return the bounds of `slot`, of 2^`bits` for each power of two.

    Its first value, and the first one beyond it.
    """
    if slot < 2 << bits:
        return slot, slot + 1
    shift = (slot >> bits) - 1
    return (slot - (shift << bits)) << shift, (slot - (shift << bits) + 1) << shift


def to_slots(counts: NDArray[np.int64]) -> list[Slot]:
    """Return the slots that hold anything, ascending; `counts` has one count a slot."""
    return [Slot(*bounds(at), count) for at, count in enumerate(counts.tolist()) if count]


def count(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of `values` lie in each of the SLOTS slots."""
    return np.bincount(slot_of(values), minlength=SLOTS)


CONFIDENCE: Final = 0.95
FEWEST_TRIALS: Final = 3
"""With fewer, an interval says little; with one there is none."""
SMALL: Final = 0.05
"""A difference that is worth more trials."""
_MOST_TRIALS: Final = 1000
_WIDEST: Final = 600.0
"""Of an interval's half, in logarithms.

What two trials that have nothing in common give is more than a float holds.
"""

DEFINITION: Final = (
    "ratio: of the medians; its interval: of the ratio of geometric means, by Welch's t on the"
    " trials' logarithms, so wide that the intervals of all figures of the headline hold together"
    " at 95 %; differs: the interval does not hold 1; trials_needed: a side, for intervals of 5 %"
    " to each side, as far as these trials spread"
)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure compares with the same one of the first side.

    Null where the trials do not tell.
    """

    value: float | None
    """The ratio of the medians."""
    low: float | None
    high: float | None
    differs: bool | None
    trials_needed: int | None = None
    """How many a side would make the interval reach SMALL to each side; null beyond 1,000."""


UNKNOWN = Ratio(value=None, low=None, high=None, differs=None)


def ratio(first: Sequence[float | None], other: Sequence[float | None], together: int = 1) -> Ratio:
    """Return how the trials of `other` compare with those of `first`, a figure a trial, null where
    it is not known.

    The interval holds the ratio, and is so wide that `together` such intervals are all right at
    CONFIDENCE (Bonferroni). There is none if a side has one trial or a figure that is not above 0.

    >>> ratio([100.0, 101.0, 99.0], [120.0, 118.0, 122.0]).value
    1.2
    """
    a, b = ([value for value in values if value is not None] for values in (first, other))
    if not a or not b or len(a) < len(first) or len(b) < len(other) or not median(a):
        return UNKNOWN
    value = median(b) / median(a)
    if min(len(a), len(b)) == 1 or min(*a, *b) <= 0:
        return Ratio(value=value, low=None, high=None, differs=None)
    logs = [[math.log(figure) for figure in side] for side in (a, b)]
    parts = [variance(side) / len(side) for side in logs]
    reach, centre = 0.0, fmean(logs[1]) - fmean(logs[0])
    if error := math.sqrt(sum(parts)):
        # Welch and Satterthwaite: as many degrees of freedom as the side of which less is known
        # leaves.
        freedom = sum(parts) ** 2 / sum(
            part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True)
        )
        reach = min(_student(freedom, together) * error, _WIDEST)
    low, high = min(math.exp(centre - reach), value), max(math.exp(centre + reach), value)
    both = sum(variance(side) for side in logs)
    reaches = (
        (n, _student(2 * n - 2, together) * math.sqrt(both / n)) for n in range(2, _MOST_TRIALS + 1)
    )
    needed = next((n for n, reach in reaches if reach <= math.log1p(SMALL)), None)
    return Ratio(
        value=value, low=low, high=high, differs=not low <= 1 <= high, trials_needed=needed
    )


@cache
def _student(freedom: float, together: int) -> float:
    """Return the Student's t that is exceeded, to both sides, by 1 - CONFIDENCE over `together`.

    By its area as an angle's: P(|T| < t) is the part below atan(t / sqrt(n)) of the integral of
    cos**(n - 1).
    """
    angles = np.linspace(0, math.pi / 2, 4001)
    heights = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(heights[1:] + heights[:-1])))
    inside = 1 - (1 - CONFIDENCE) / together
    return math.sqrt(freedom) * math.tan(float(np.interp(inside, area / area[-1], angles)))


MAX_SPREAD: Final = 0.1
"""Above it, trials disagree."""
_SHOWN_WORST = 3


def spread(values: Sequence[float | None]) -> float | None:
    """Return (greatest - least) / median.

    Null with one trial, one that is not known, or a median of 0.
    """
    known = [value for value in values if value is not None]
    if len(known) < max(len(values), 2) or not median(known):
        return None
    return (max(known) - min(known)) / median(known)


def disagreements(spreads: Sequence[tuple[str, float]]) -> list[str]:
    """Return a line that names the figures whose spread is above MAX_SPREAD, the worst first.

    None if there are none.

    `spreads` has the name and the spread of each figure that should repeat.
    """
    bad = sorted(((found, name) for name, found in spreads if found > MAX_SPREAD), reverse=True)
    if not bad:
        return []
    worst = ", ".join(f"{name} {found:.0%}" for found, name in bad[:_SHOWN_WORST])
    more = ", …" if len(bad) > _SHOWN_WORST else ""
    return [
        (
            f"RESULTS VARY by more than {MAX_SPREAD:.0%} from run to run in {len(bad)} of"
            f" {len(spreads)} figures that should repeat: {worst}{more}"
        )
    ]


def differing(sides: Sequence[JsonObject]) -> dict[str, list[object]]:
    """Return the settings that are not the same on all `sides`, one value a side.

    Nested names are joined by a dot.
    """
    flat = [_flat(side) for side in sides]
    names = dict.fromkeys(name for side in flat for name in side)
    values = {name: [side.get(name) for side in flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _flat(tree: object, prefix: str = "") -> JsonObject:
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: JsonObject = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat


SECONDS_PER_DAY = 86_400
DRAM: Final = ("cpu", "dram", "host")
_DWPD = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?)\s*DWPD\s*,\s*([0-9]+(?:\.[0-9]+)?)\s*y\s*", re.IGNORECASE
)


def is_memory(tier: str) -> bool:
    """Return whether tiers of that name, in any case, are no drives: they do not wear."""
    return tier.lower() in ("gpu", "hbm", *DRAM)


@dataclass(frozen=True, slots=True)
class Endurance:
    """What a drive may be written in its life.

    So many of its own size a day over `years`, or `total_bytes`.
    """

    writes_per_day: float | None = None
    years: float | None = None
    total_bytes: int | None = None

    def rated_bytes(self, capacity_bytes: int | None) -> float | None:
        """Return what a drive so large may be written.

        Null if its size is not known, and counts.
        """
        if (
            self.total_bytes is not None
            or not self.writes_per_day
            or not self.years
            or capacity_bytes is None
        ):
            return self.total_bytes
        return self.writes_per_day * self.years * DAYS_PER_YEAR * capacity_bytes

    def life_years(self, capacity_bytes: int | None, written_bytes_per_day: float) -> float | None:
        """Return how long a drive lasts that is written so much.

        Null if nothing is, or its size is not known.
        """
        rated = self.rated_bytes(capacity_bytes)
        if rated is None or not written_bytes_per_day:
            return None
        return rated / (written_bytes_per_day * DAYS_PER_YEAR)


def parse_endurance(text: str | None) -> Endurance | None:
    """Return what `--endurance` says; ConfigError if it is not well said."""
    if text is None:
        return None
    if match := _DWPD.fullmatch(text):
        writes, years = float(match[1]), float(match[2])
        found = Endurance(writes_per_day=writes, years=years)
        is_some = writes > 0 and years > 0
    else:
        try:
            found = Endurance(total_bytes=parse_bytes(text))
        except ConfigError as error:
            raise ConfigError(
                f"{named('endurance', text)}: write 1DWPD,5y, or bytes in all, such as 14PB"
                f" ({error})"
            ) from None
        is_some = bool(found.total_bytes)
    if not is_some:
        raise ConfigError(f"{named('endurance', text)}: must be > 0")
    return found
