"""A window of a trace: where it begins, and after how many rows, time or bytes it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvtrace.core import np
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.units import DURATIONS_NS, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.core.arrays import Array


ALL = "all"
"""The value of kvreplay's --window for the whole trace."""
STEADIEST = "steady:60s, else all"
"""The default value of --window for a sweep of loads."""
STEADIEST_LENGTHENED = "steady:60s or longer, else all"
"""The default value of --window for a comparison of drives in a closed loop."""
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """The begin of a window and its bounds; it ends at the first bound reached.

    A bound that is null does not limit.
    """

    rows: int | None = None
    span_ns: int | None = None
    """Length in trace time."""
    moved_bytes: int | None = None
    """Bytes read and written."""
    begin_ns: int = 0
    """Begin, counted from the time of the first row."""
    busiest_ns: int | None = None
    """Length of the window that moves the most bytes, to be used instead of a begin.

    The code that reads the rows finds the begin.
    """
    window: str | None = None
    """A window as kvreplay's --window names it; the code that reads the rows finds it, too."""
    node: int | None = None
    """The only node of a fleet's trace whose rows are read; null: all."""

    def __str__(self) -> str:
        """Describe the limit for provenance; empty if there is none."""
        quantities = [(self.rows, "rows"), (self.span_ns, "ns"), (self.moved_bytes, "bytes")]
        bounds = [f"{value} {unit}" for value, unit in quantities if value is not None]
        if self.busiest_ns is not None:
            return ", ".join([*bounds, f"the busiest {self.busiest_ns} ns"])
        if self.begin_ns:
            return f"{', '.join(bounds) or 'all'} from {self.begin_ns} ns on"
        return ", ".join(bounds)

    def within(self, outer: Limit) -> Limit:
        """Return this limit with each bound no larger than that of `outer`; its begin is kept."""
        return replace(
            self,
            rows=_stricter(self.rows, outer.rows),
            span_ns=_stricter(self.span_ns, outer.span_ns),
            moved_bytes=_stricter(self.moved_bytes, outer.moved_bytes),
        )


def _stricter(bound: int | None, outer_bound: int | None) -> int | None:
    """Return the smaller of two bounds; null does not limit."""
    if bound is None or outer_bound is None:
        return outer_bound if bound is None else bound
    return min(bound, outer_bound)


_STEPS_PER_WINDOW = 20
"""A busiest window begins at a multiple of its length divided by this."""


def busiest_begin_ns(moves: Iterable[tuple[Array, Array]], length_ns: int) -> int:
    """Return the begin of the window of `length_ns` that moves the most bytes.

    `moves` are pairs of arrays: the times of operations, from 0, and their bytes. The bytes are
    counted in steps of time, and each window consists of whole steps.
    """
    step_ns = max(1, length_ns // _STEPS_PER_WINDOW)
    bytes_by_step = np.zeros(0, dtype=np.int64)
    for ts_ns, moved_bytes in moves:
        batch_bytes = np.bincount(ts_ns // step_ns, moved_bytes).astype(np.int64)
        new_steps = max(0, len(batch_bytes) - len(bytes_by_step))
        bytes_by_step = np.pad(bytes_by_step, (0, new_steps))
        bytes_by_step[: len(batch_bytes)] += batch_bytes
    steps = len(bytes_by_step)
    bytes_before_step = np.concatenate([[0], np.cumsum(bytes_by_step)])
    begins = np.arange(max(1, steps - _STEPS_PER_WINDOW + 1))
    ends = np.minimum(begins + _STEPS_PER_WINDOW, steps)
    bytes_by_window = bytes_before_step[ends] - bytes_before_step[begins]
    return step_ns * int(bytes_by_window.argmax())


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` describes; null has no bounds.

    `text` is a number of rows (`10000` or `10000rows`), trace time (`30s`) or bytes moved (`2GiB`).
    """
    if text is None:
        return Limit()
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{named('limit', repr(text))}: write rows (10000), trace time (30s) or bytes (2GiB)"
        )
    number, unit = match[1], match[2].lower()
    if unit in ("", "row", "rows"):
        if "." in number:
            raise ConfigError(
                f"{named('limit', repr(text))}: rows must be whole; write for example 10000, 30s"
                " or 2GiB"
            )
        limit = Limit(rows=int(number))
    elif unit == "m":
        raise ConfigError(
            f"{named('limit', repr(text))} could be minutes or MiB; write {number}min or"
            f" {number}MiB"
        )
    elif unit in DURATIONS_NS:
        limit = Limit(span_ns=parse_duration_ns(text))
    else:
        limit = Limit(moved_bytes=parse_bytes(text))
    if 0 in (limit.rows, limit.span_ns, limit.moved_bytes):
        raise ConfigError(f"{named('limit', repr(text))} must be more than 0, such as 10000")
    return limit
