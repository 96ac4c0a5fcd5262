"""How the load of a day follows from that of a log: `--day-profile`.

Figures a day and a month (drive writes, life, costs of a bucket) are those of the log's rate,
around the clock, unless a profile says how the load varies over the day:

    24 weights, one an hour   the log is the busiest hour: mean weight / greatest weight
    "log"                     the log's own hours, once a day: its time / 24 h, at most 1
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.statistics import SECONDS_PER_DAY
from kvtrace.core.units import NS_PER_S, format_duration, percent

LOG: Final = "log"
HOURS: Final = 24
_DAY_NS: Final = SECONDS_PER_DAY * NS_PER_S


@dataclass(frozen=True, slots=True)
class DayProfile:
    """How much of the log's rate a day has on average."""

    weights: tuple[float, ...] | None = None
    """Load of each hour of a day, relative to each other; None for the log's own hours."""

    def share(self, load_ns: int) -> float:
        """Return the mean rate of a day over that of the log, over `load_ns`; at most 1."""
        if self.weights is None:
            return min(1.0, load_ns / _DAY_NS)
        # Each weight is divided: the sum of great ones is none.
        busiest = max(self.weights)
        return math.fsum(weight / busiest for weight in self.weights) / HOURS

    def describe(self, load_ns: int) -> str:
        """Return what is assumed, and the share, for a load of `load_ns`."""
        share = percent(self.share(load_ns))
        if self.weights is None:
            return f"the log's own hours once a day, {share} of its rate on average"
        return f"the log as the busiest hour of the day profile, {share} of its rate on average"


def read_day_profile(text: str | Path) -> DayProfile:
    """Return the profile that `text` names: "log", or a file of 24 weights.

    ConfigError if the file is missing, or does not hold 24 numbers of which one is above 0.
    """
    if text == LOG:
        return DayProfile()
    path = Path(text)
    form = f"write {HOURS} weights, one for each hour of a day, or say {LOG}"
    try:
        words = path.read_text(encoding="utf-8").replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{named('day_profile', text)}: {error}; {form}") from None
    try:
        weights = tuple(float(word) for word in words)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; {form}") from None
    if len(weights) != HOURS:
        raise ConfigError(f"{path}: {len(weights)} numbers; {form}")
    if not all(0 <= weight < math.inf for weight in weights):
        raise ConfigError(f"{path}: a weight is negative, or no finite number; {form}")
    if not any(weights):
        raise ConfigError(f"{path}: all weights are 0; {form}")
    return DayProfile(weights)


def day_share(profile: DayProfile | None, load_ns: int) -> float:
    """Return the mean rate of a day over that of the log; 1 without a profile."""
    return 1.0 if profile is None else profile.share(load_ns)


def extrapolation(load_ns: int, profile: DayProfile | None) -> str | None:
    """Return what figures a day and a month assume; None for a log of days without a profile."""
    if profile is not None:
        return f"extrapolated from {format_duration(load_ns)}: {profile.describe(load_ns)}"
    if load_ns >= _DAY_NS:
        return None
    return f"extrapolated from {format_duration(load_ns)}, at this rate around the clock"
