"""Which part of a trace is distilled: one tier's rows, from its first operation, up to a limit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.schema import TRACE, enum_code
from kvtrace.core.units import DURATIONS_NS, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.core.metadata import Metadata
    from kvtrace.core.traceio import Reader

_DELETE = enum_code(TRACE, "op", "delete")


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
        return Limit(
            _least(self.rows, other.rows), _least(self.span_ns, other.span_ns),
            _least(self.moved_bytes, other.moved_bytes),
        )  # fmt: skip


def _least(a: int | None, b: int | None) -> int | None:
    return min((v for v in (a, b) if v is not None), default=None)


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` names: `10000` or `10000rows`, `30s` of trace time, or `2GiB` moved."""
    if text is None:
        return Limit()
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*", text)
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


def tier_index(meta: Metadata, name: str) -> int:
    """Return the index of the tier called `name`; ConfigError with the tiers there are if there is none."""
    names = [tier.name for tier in meta.tiers]
    if name not in names:
        raise ConfigError(f"no tier {name!r} in this trace; it has {', '.join(names) or 'none'}")
    return names.index(name)


def tier_rows(reader: Reader, tier: int, limit: Limit, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of `tier` within `limit`, in order, as numpy arrays by column name.

    `op` is its code in the contract; nulls of `request_id` and `stage` are -1. TraceError if time goes back.
    """
    import numpy as np

    wanted = ["ts_ns", "op", "tier", "length_bytes", *columns]
    names = [name for name in TRACE.names if name in wanted]
    seen, moved, first, last, row = 0, 0, None, None, 0
    for batch in reader.batches(names):
        ts = batch.column(names.index("ts_ns")).to_numpy()
        keep = np.flatnonzero(batch.column(names.index("tier")).to_numpy() == tier)
        _check_order(ts, last, row)
        last, row = (ts[-1] if len(ts) else last), row + len(ts)
        if not len(keep):
            continue
        part = {name: _numpy(batch.column(i))[keep] for i, name in enumerate(names) if name != "tier"}
        first = part["ts_ns"][0] if first is None else first
        total = moved + np.cumsum(np.where(part["op"] == _DELETE, 0, part["length_bytes"]))
        stop = min(
            len(keep),
            len(keep) if limit.rows is None else limit.rows - seen,
            len(keep) if limit.span_ns is None else int(np.searchsorted(part["ts_ns"], first + limit.span_ns)),
            len(keep) if limit.moved_bytes is None else int(np.searchsorted(total, limit.moved_bytes, "right")),
        )
        if stop:
            yield {name: values[:stop] for name, values in part.items()}
        if stop < len(keep):
            return
        seen, moved = seen + stop, int(total[-1])


def _check_order(ts: Any, last: Any, row: int) -> None:
    import numpy as np

    back = np.flatnonzero(np.diff(ts) < 0)
    if last is not None and len(ts) and ts[0] < last:
        raise TraceError("time goes back here; sort the trace by ts_ns", row=row, column="ts_ns")
    if len(back):
        raise TraceError("time goes back here; sort the trace by ts_ns", row=row + int(back[0]) + 1, column="ts_ns")


def _numpy(array: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return array.indices.to_numpy()
    if array.null_count:
        array = array.fill_null(-1)
    return array.to_numpy(zero_copy_only=False)
