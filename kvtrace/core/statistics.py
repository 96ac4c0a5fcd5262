"""Statistics that the three programs share: percentiles, histograms, ratios of trials, drive
endurance.
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
"""Percentiles in ten-thousandths. They are integers because 1 / (1 - 0.9999) is not exactly 10,000
in floating point.
"""
_WHOLE = 10_000
_Number = TypeVar("_Number", int, float)


def total(values: Sequence[_Number | None]) -> _Number | None:
    """Return the sum of `values`; null if there are none, or one of them is null."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers and len(numbers) == len(values) else None


def mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of `values`; null if there are none, or one of them is null."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def nearest_rank(count: int, quantile: int) -> int | None:
    """Return the rank, from 1, of a `quantile` (in ten-thousandths) of `count` values.

    Null with fewer than 1 / (1 - quantile) values, which are too few for it.
    """
    if count * (_WHOLE - quantile) < _WHOLE:
        return None
    # The quotient, rounded up.
    return -(-count * quantile // _WHOLE)


V = TypeVar("V")


def at_rank(counted: Sequence[tuple[V, int]], rank: int | None) -> V | None:
    """Return the value at `rank`, counted from 1, of ascending (value, count) pairs.

    Null if the rank is null.
    """
    if rank is None:
        return None
    cumulative = 0
    for value, count in counted:
        cumulative += count
        if cumulative >= rank:
            return value
    return None


def gap_ns(square_gaps: float, span_ns: int) -> int:
    """Return the mean length of the gap that contains a random moment of `span_ns`.

    `square_gaps` is the sum of the squared gaps between due times. The result is the time between
    two bursts of a load that comes in bursts, and almost 0 for a steady load. It extends a schedule
    beyond its last due time.
    """
    return int(square_gaps / span_ns) if span_ns else 0


_SUB_BITS = 4
SLOTS: Final = (64 - _SUB_BITS) << _SUB_BITS
"""Slots of a histogram of 63-bit values: exact below 32, at most 1/16 of the value wide above."""


class Slot(msgspec.Struct, frozen=True):
    """The number of values in [`low`, `below`)."""

    low: int
    below: int
    count: int


def slot_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slot of each value. No value may be negative."""
    # frexp's exponent is the number of bits. A float rounds up to the next power of two only beyond
    # 2**53, where a slot is 2**49 wide.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - _SUB_BITS, 0)
    slots: NDArray[np.int64] = (shift << _SUB_BITS) + (values >> shift)
    return slots


def bounds(slot: int, bits: int = _SUB_BITS) -> tuple[int, int]:
    """Return the first value of `slot`, and the first value beyond it.

    Each power of two has 2^`bits` slots.
    """
    if slot < 2 << bits:
        return slot, slot + 1
    shift = (slot >> bits) - 1
    return (slot - (shift << bits)) << shift, (slot - (shift << bits) + 1) << shift


def to_slots(counts: NDArray[np.int64]) -> list[Slot]:
    """Return the slots that contain values, ascending; `counts` has one count per slot."""
    return [Slot(*bounds(index), count) for index, count in enumerate(counts.tolist()) if count]


def count(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of `values` in each of the SLOTS slots."""
    return np.bincount(slot_of(values), minlength=SLOTS)


CONFIDENCE: Final = 0.95
FEWEST_TRIALS: Final = 3
"""With fewer trials, an interval says little; one trial has no interval."""
SMALL: Final = 0.05
"""A relative difference for which more trials are worthwhile."""
_MOST_TRIALS: Final = 1000
_WIDEST: Final = 600.0
"""Limit of half the interval, in logarithms. The interval of two unrelated trials would overflow a
float.
"""

DEFINITION: Final = (
    "ratio: of the medians; its interval: of the ratio of geometric means, by Welch's t on the"
    " trials' logarithms, so wide that the intervals of all figures of the headline hold together"
    " at 95 %; differs: the interval does not hold 1; trials_needed: a side, for intervals of 5 %"
    " to each side, as far as these trials spread"
)


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of a figure to the same figure of the first side.

    A value is null if the trials do not determine it.
    """

    value: float | None
    """The ratio of the medians."""
    low: float | None
    high: float | None
    differs: bool | None
    trials_needed: int | None = None
    """Trials per side at which the interval would extend SMALL to each side; null beyond 1,000."""


UNKNOWN = Ratio(value=None, low=None, high=None, differs=None)


def ratio(
    first: Sequence[float | None], second: Sequence[float | None], together: int = 1
) -> Ratio:
    """Return the ratio of a figure in the `second` trials to the same figure in the `first`.

    Each side has one value per trial, null where it is unknown. The interval is so wide that
    `together` such intervals contain all their ratios at CONFIDENCE (Bonferroni). It is null if a
    side has one trial, or a value of 0 or less.

    >>> ratio([100.0, 101.0, 99.0], [120.0, 118.0, 122.0]).value
    1.2
    """
    first_values = [value for value in first if value is not None]
    second_values = [value for value in second if value is not None]
    if not first_values or len(first_values) < len(first) or not median(first_values):
        return UNKNOWN
    if not second_values or len(second_values) < len(second):
        return UNKNOWN
    value = median(second_values) / median(first_values)
    if min(len(first_values), len(second_values)) == 1:
        return Ratio(value=value, low=None, high=None, differs=None)
    if min(*first_values, *second_values) <= 0:
        return Ratio(value=value, low=None, high=None, differs=None)
    logs = [[math.log(figure) for figure in side] for side in (first_values, second_values)]
    centre = fmean(logs[1]) - fmean(logs[0])
    half_width = _half_width(logs, together)
    low = min(math.exp(centre - half_width), value)
    high = max(math.exp(centre + half_width), value)
    return Ratio(
        value=value,
        low=low,
        high=high,
        differs=not low <= 1 <= high,
        trials_needed=_trials_needed(logs, together),
    )


def _half_width(logs: Sequence[Sequence[float]], together: int) -> float:
    """Return half the width of the interval of the difference of two sides' means.

    It is Welch's, with Satterthwaite's degrees of freedom: the side with the larger error counts
    most.
    """
    squared_errors = [variance(side) / len(side) for side in logs]
    error = math.sqrt(sum(squared_errors))
    if not error:
        return 0.0
    freedom = sum(squared_errors) ** 2 / sum(
        squared_error**2 / (len(side) - 1)
        for squared_error, side in zip(squared_errors, logs, strict=True)
    )
    return min(_student(freedom, together) * error, _WIDEST)


def _trials_needed(logs: Sequence[Sequence[float]], together: int) -> int | None:
    """Return the trials per side at which half the interval's width is at most SMALL.

    The variances are taken from these trials. None beyond _MOST_TRIALS.
    """
    summed_variance = sum(variance(side) for side in logs)
    for trials in range(2, _MOST_TRIALS + 1):
        half_width = _student(2 * trials - 2, together) * math.sqrt(summed_variance / trials)
        if half_width <= math.log1p(SMALL):
            return trials
    return None


@cache
def _student(freedom: float, together: int) -> float:
    """Return the two-sided Student's t for a confidence of 1 - (1 - CONFIDENCE) / `together`.

    With t = sqrt(n) * tan(angle), P(|T| < t) is the share of the integral of cos**(n - 1) from 0 to
    pi / 2 that lies below the angle. The integral is summed over 4,001 angles.
    """
    angles = np.linspace(0, math.pi / 2, 4001)
    heights = np.cos(angles) ** (freedom - 1)
    area = np.concatenate(([0.0], np.cumsum(heights[1:] + heights[:-1])))
    inside = 1 - (1 - CONFIDENCE) / together
    return math.sqrt(freedom) * math.tan(float(np.interp(inside, area / area[-1], angles)))


MAX_SPREAD: Final = 0.1
"""Above this spread, trials disagree."""
_SHOWN_WORST = 3


def spread(values: Sequence[float | None]) -> float | None:
    """Return (greatest - least) / median.

    Null with fewer than two values, with a value that is null, or with a median of 0.
    """
    numbers = [value for value in values if value is not None]
    if len(numbers) < max(len(values), 2) or not median(numbers):
        return None
    return (max(numbers) - min(numbers)) / median(numbers)


def _plain_name(figure: str) -> str:
    """Return the name of a figure without its unit: "nvme read latency p50"."""
    for unit in ("_ns", "_bytes_per_s"):
        figure = figure.removesuffix(unit)
    return figure.replace("_per_s", " a second").replace("_", " ")


def disagreements(spreads: Sequence[tuple[str, float]]) -> list[str]:
    """Return one line that names the figures with a spread above MAX_SPREAD, the worst first.

    The list is empty if there are none. `spreads` has the name and the spread of each figure that
    should repeat.
    """
    wide = sorted(
        ((figure_spread, name) for name, figure_spread in spreads if figure_spread > MAX_SPREAD),
        reverse=True,
    )
    if not wide:
        return []
    worst = ", ".join(
        f"{_plain_name(name)} by {figure_spread * 100:.0f} %"
        for figure_spread, name in wide[:_SHOWN_WORST]
    )
    ellipsis = ", …" if len(wide) > _SHOWN_WORST else ""
    line = (
        f"RESULTS VARY by more than {MAX_SPREAD * 100:.0f} % from run to run in {len(wide)} of"
        f" {len(spreads)} figures that should repeat: {worst}{ellipsis}"
    )
    return [line]


def differing(sides: Sequence[JsonObject]) -> dict[str, list[object]]:
    """Return the settings that are not the same on all `sides`, with one value per side.

    The names of nested settings are joined by dots.
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
    """Return whether tiers of this name, in any case, are memory, which does not wear."""
    return tier.lower() in ("gpu", "hbm", *DRAM)


@dataclass(frozen=True, slots=True)
class Endurance:
    """The bytes that a drive may be written in its life.

    They are rated in drive writes per day (DWPD) over `years`, or as `total_bytes`.
    """

    writes_per_day: float | None = None
    years: float | None = None
    total_bytes: int | None = None

    def rated_bytes(self, capacity_bytes: int | None) -> float | None:
        """Return the bytes that a drive of this capacity may be written.

        Null if the rating is in DWPD and the capacity is unknown.
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
        """Return the life of a drive that is written at this rate.

        Null if nothing is written, or if the rated bytes are unknown.
        """
        rated = self.rated_bytes(capacity_bytes)
        if rated is None or not written_bytes_per_day:
            return None
        return rated / (written_bytes_per_day * DAYS_PER_YEAR)


def parse_endurance(text: str | None) -> Endurance | None:
    """Return the endurance that `--endurance` gives; ConfigError if it cannot be parsed."""
    if text is None:
        return None
    if match := _DWPD.fullmatch(text):
        writes, years = float(match[1]), float(match[2])
        endurance = Endurance(writes_per_day=writes, years=years)
        is_positive = writes > 0 and years > 0
    else:
        try:
            endurance = Endurance(total_bytes=parse_bytes(text))
        except ConfigError as error:
            raise ConfigError(
                f"{named('endurance', text)}: write 1DWPD,5y, or bytes in all, such as 14PB"
                f" ({error})"
            ) from None
        is_positive = bool(endurance.total_bytes)
    if not is_positive:
        raise ConfigError(f"{named('endurance', text)}: must be > 0")
    return endurance
