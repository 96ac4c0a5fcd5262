"""The warm-up: the start of a run that its figures exclude."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtrace.core import np
from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError
from kvtrace.core.metrics.native import NONE, NOT_DONE
from kvtrace.core.parameters import named
from kvtrace.core.units import parse_duration_ns

_ROWS = re.compile(r"\s*([0-9]+)\s*(?:rows?)?\s*")


@dataclass(frozen=True, slots=True)
class Warmup:
    """The length of a warm-up, in rows or in time. Exactly one of the two is set."""

    rows: int | None = None
    time_ns: int | None = None

    def is_measured(self, rows: Array) -> Array:
        """Return for each of `rows` (OPERATION_ROW) whether figures count it."""
        due_ns = rows["due_ns"]
        begun_ns = np.where(due_ns == NONE, rows["submitted_ns"], due_ns)
        return self.counts(rows["trace_row"], begun_ns)

    def counts(self, position: Array, begun_ns: Array) -> Array:
        """Return whether figures count each row, by its position in the replayed rows, from 0.

        `begun_ns` is the due time of each row, in a closed loop its submission, or -1.
        """
        if self.rows is not None:
            is_measured: Array = position >= self.rows
            return is_measured
        is_after: Array = (begun_ns >= self.time_ns) | (begun_ns == NOT_DONE)
        return is_after


def parse_warmup(text: str | None) -> Warmup | None:
    """Return the warm-up in `text`, such as `1000`, `1000rows` or `30s`; None for no text.

    ConfigError for any other text, and for a length of 0.
    """
    if text is None:
        return None
    match = _ROWS.fullmatch(text)
    try:
        warmup = (
            Warmup(rows=int(match.group(1))) if match else Warmup(time_ns=parse_duration_ns(text))
        )
    except ConfigError:
        raise ConfigError(
            f"{named('warmup', repr(text))}: write rows (1000) or time (30s)"
        ) from None
    if 0 in (warmup.rows, warmup.time_ns):
        raise ConfigError(
            f"{named('warmup', repr(text))} must be more than 0, such as 30s; or leave out"
            f" {named('warmup')}"
        )
    return warmup
