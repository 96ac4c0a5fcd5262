"""A prefix of a trace: so many rows, so much trace time, or so many bytes moved."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import DURATIONS_NS, parse_bytes, parse_duration_ns

_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """Where to stop: at the first bound that is reached; a null bound is none."""

    rows: int | None = None
    span_ns: int | None = None
    moved_bytes: int | None = None

    def __str__(self) -> str:
        """Describe the limit for provenance; empty if there is none."""
        parts = [(self.rows, "rows"), (self.span_ns, "ns"), (self.moved_bytes, "bytes")]
        return ", ".join(f"{value} {unit}" for value, unit in parts if value is not None)

    def within(self, other: Limit) -> Limit:
        """Return the stricter of both limits, bound by bound."""
        names = ("rows", "span_ns", "moved_bytes")
        return Limit(*(_least(getattr(self, name), getattr(other, name)) for name in names))


def _least(a: int | None, b: int | None) -> int | None:
    return min((v for v in (a, b) if v is not None), default=None)


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` names: `10000` or `10000rows`, `30s` of trace time, or `2GiB` moved."""
    if text is None:
        return Limit()
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"--limit {text!r}: write rows (10000), trace time (30s) or bytes (2GiB)")
    number, unit = match[1], match[2].lower()
    if unit in ("", "row", "rows"):
        if "." in number:
            raise ConfigError(f"--limit {text!r}: rows are whole; write for example 10000, 30s or 2GiB")
        limit = Limit(rows=int(number))
    elif unit == "m":
        raise ConfigError(f"--limit {text!r} could be minutes or MiB; write {number}min or {number}MiB")
    elif unit in DURATIONS_NS:
        limit = Limit(span_ns=parse_duration_ns(text))
    else:
        limit = Limit(moved_bytes=parse_bytes(text))
    if 0 in (limit.rows, limit.span_ns, limit.moved_bytes):
        raise ConfigError(f"--limit {text!r} would leave nothing; write more than 0")
    return limit
