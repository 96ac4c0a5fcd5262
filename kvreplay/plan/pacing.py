"""When an operation may start: at once (closed loop), or at its time in the trace (open loop).

Deadlines are absolute, counted from the run's start, so that one late operation delays no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kvtrace.core.errors import ConfigError

LATE_NS = 1_000_000
"""An operation later than this counts as late."""
KEPT_PACE_FRACTION = 0.01
"""An open loop kept pace if no more than this part of its operations was late."""


class Pacer(Protocol):
    """Turns trace times into due times of the run."""

    @property
    def name(self) -> str:
        """Which loop it is: closed or open."""

    @property
    def speed(self) -> float | None:
        """How much faster than the trace; null in a closed loop."""

    def due_ns(self, ts_ns: Any) -> Any:
        """Return int64 nanoseconds from the run's start for each of `ts_ns`; None if rows are due at once."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """An operation starts as soon as the queue has room and what it waits for is done."""

    name: str = "closed"
    speed: float | None = None

    def due_ns(self, ts_ns: Any) -> Any:
        """Return None: nothing is scheduled."""
        return None


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """An operation starts at its trace time divided by `speed`."""

    speed: float = 1.0
    name: str = "open"

    def due_ns(self, ts_ns: Any) -> Any:
        """Return when rows are due, to the nanosecond below."""
        import numpy as np

        if self.speed == 1.0:
            return ts_ns
        return np.floor_divide(ts_ns, self.speed).astype(np.int64)


def choose(*, speed: float | None, as_fast_as_possible: bool) -> Pacer:
    """Return the pacer that the options ask for: open loop if a speed is given, else closed."""
    if speed is None:
        return ClosedLoop()
    if as_fast_as_possible:
        raise ConfigError("--speed and --as-fast-as-possible exclude each other; give one")
    if not 0 < speed < float("inf"):
        raise ConfigError(f"--speed {speed:g}: give a factor above 0; 2 replays twice as fast as the trace")
    return OpenLoop(speed)
