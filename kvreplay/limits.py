"""How much of a trace a run replays: a prefix by rows, trace time or bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_bytes, parse_duration_ns

_TIMES = ("ns", "us", "µs", "ms", "s", "min", "h", "d")
_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """A bound on the replayed prefix; at most one of the three is set."""

    rows: int | None = None
    time_ns: int | None = None
    bytes: int | None = None


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` names: `10000`, `10000rows`, `30s` of trace time, or `2GiB` moved."""
    if text is None:
        return Limit()
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"--limit {text!r}: write rows (10000), trace time (30s) or bytes (2GiB)")
    number, unit = match.group(1), match.group(2).lower()
    if unit in ("", "rows", "row"):
        if "." in number:
            raise ConfigError(f"--limit {text!r}: rows are whole; write for example 10000, 30s or 2GiB")
        limit = Limit(rows=int(number))
    elif unit == "m":
        raise ConfigError(f"--limit {text!r} could be minutes or MiB; write {number}min or {number}MiB")
    elif unit in _TIMES:
        limit = Limit(time_ns=parse_duration_ns(text))
    else:
        limit = Limit(bytes=parse_bytes(text))
    if 0 in (limit.rows, limit.time_ns, limit.bytes):
        raise ConfigError(f"--limit {text!r} would replay nothing; write more than 0")
    return limit
