"""A window of a trace.

From when on, and how many rows, how much trace time, or how many bytes moved.
"""

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


ALL, STEADIEST = "all", "steady:60s, else all"
"""Of kvreplay's --window.

The whole trace; and what drives are held against each other on by default.
"""
_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """Where to begin, and where to stop.

    At the first bound that is reached; a null bound is none.
    """

    rows: int | None = None
    span_ns: int | None = None
    moved_bytes: int | None = None
    begin_ns: int = 0
    """From the first row."""
    busiest_ns: int | None = None
    """Instead of a beginning.

    The window of this length that moves most; whoever reads rows finds it.
    """
    part: str | None = None
    """The same for a later part of a trace, as kvreplay's --window names it."""
    node: int | None = None
    """Of a fleet's trace, rows of this node alone; whoever reads rows leaves the others out."""

    def __str__(self) -> str:
        """Describe the limit for provenance; empty if there is none."""
        parts = [(self.rows, "rows"), (self.span_ns, "ns"), (self.moved_bytes, "bytes")]
        said = ", ".join(f"{value} {unit}" for value, unit in parts if value is not None)
        if self.busiest_ns is not None:
            return f"{said}{', ' * bool(said)}the busiest {self.busiest_ns} ns"
        if self.begin_ns:
            return f"{said or 'all'} from {self.begin_ns} ns on"
        return said

    def within(self, other: Limit) -> Limit:
        """Return the stricter of both limits, bound by bound.

        The window begins where this one does.
        """

        def least(name: str) -> int | None:
            both = getattr(self, name), getattr(other, name)
            return min((bound for bound in both if bound is not None), default=None)

        return replace(
            self, rows=least("rows"), span_ns=least("span_ns"), moved_bytes=least("moved_bytes")
        )


_STEPS = 20
"""A busiest window begins at a multiple of this part of its length."""


def busiest_begin_ns(moves: Iterable[tuple[Array, Array]], length_ns: int) -> int:
    """Return when the window of `length_ns` begins that moves most.

    `moves` are times, from 0, and bytes, as arrays.
    """
    step = max(1, length_ns // _STEPS)
    moved = np.zeros(0, dtype=np.int64)
    for ts_ns, moved_bytes in moves:
        found = np.bincount(ts_ns // step, moved_bytes).astype(np.int64)
        moved = np.pad(moved, (0, max(0, len(found) - len(moved))))
        moved[: len(found)] += found
    done = np.concatenate([[0], np.cumsum(moved)])
    begins = np.arange(max(1, len(moved) - _STEPS + 1))
    return step * int((done[np.minimum(begins + _STEPS, len(moved))] - done[begins]).argmax())


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` names.

    `10000` or `10000rows`, `30s` of trace time, or `2GiB` moved.
    """
    if text is None:
        return Limit()
    match = _FORM.fullmatch(text)
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
            f"{named('limit', repr(text))} could be minutes or MiB; write {number}min or {number}MiB"
        )
    elif unit in DURATIONS_NS:
        limit = Limit(span_ns=parse_duration_ns(text))
    else:
        limit = Limit(moved_bytes=parse_bytes(text))
    if 0 in (limit.rows, limit.span_ns, limit.moved_bytes):
        raise ConfigError(f"{named('limit', repr(text))} must be more than 0, such as 10000")
    return limit
