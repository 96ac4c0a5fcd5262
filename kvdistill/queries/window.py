"""Read the rows of one tier of a trace within a window, in order, as numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from kvdistill.queries.database import BATCH_ROWS
from kvtrace.core import pa, pq
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit, busiest_begin_ns, parse_limit
from kvtrace.core.metadata import Metadata
from kvtrace.core.parameters import named
from kvtrace.core.schema import OPS, TRACE, enum_code, numbers
from kvtrace.core.tables import Reader
from kvtrace.core.units import parse_duration_ns, positive

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
OK, ERROR = (enum_code(OPS, "outcome", value) for value in ("ok", "error"))
"""Codes of `op` and `outcome` in the tables."""
Columns = dict[str, NDArray[np.int64]]
"""Columns of rows by name, as 64-bit integers except those in `_KINDS`."""
_KINDS = {"op": "i1", "stage": "i4"}
"""Types of the columns that are shorter than 64 bits."""


@dataclass(frozen=True, slots=True)
class TierPlace:
    """A tier of a trace by its index.

    In a fleet with a tier for each node, `nodes` selects the nodes that share this tier.
    """

    tier: int
    nodes: range | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that `holds` reads."""
        return ("tier",) if self.nodes is None else ("tier", "node")

    def holds(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return a mask of the rows of `batch` that belong to this tier."""
        is_here = batch.column("tier").to_numpy() == self.tier
        if self.nodes is not None:
            node = batch.column("node").to_numpy()
            is_here &= (node >= self.nodes.start) & (node < self.nodes.stop)
        return is_here


def find_tier_place(meta: Metadata, name: str) -> TierPlace:
    """Return the tier called `name`, or, as `nvme@3`, the one that node 3 of a fleet uses.

    ConfigError if the tier does not exist, or `name` lacks the node.
    """
    names = [tier.name for tier in meta.tiers]
    tier, separator, node = (name, "", "") if name in names else name.rpartition("@")
    if tier not in names or (separator and not node.isdecimal()):
        raise ConfigError(f"no tier {name!r} in this trace; it has {', '.join(names) or 'none'}")
    index, instance_nodes = names.index(tier), meta.tiers[names.index(tier)].instance_nodes
    if instance_nodes is UNSET:
        if separator:
            raise ConfigError(
                f"tier {tier!r} of this trace is shared by all nodes: write {tier}, not {name}"
            )
        return TierPlace(index)
    nodes = 1 << 31 if meta.fleet is None else meta.fleet.nodes
    if not separator or int(node) >= nodes:
        raise ConfigError(
            f"tier {tier!r} has {meta.instances(meta.tiers[index])} instances: add a node, such as"
            f" {tier}@0"
        )
    first = int(node) // instance_nodes * instance_nodes
    return TierPlace(index, range(first, first + instance_nodes))


def tier_rows(
    reader: Reader, place: TierPlace, limit: Limit, columns: Sequence[str]
) -> Iterator[Columns]:
    """Yield the rows of `place` within `limit`, in order, as numpy arrays by column name.

    `op` is its code in the contract; nulls of `request_id` and `stage` are -1. TraceError if time
    goes back.
    """
    needed = ["ts_ns", "op", "length_bytes", *columns]
    names = [name for name in TRACE.names if name in needed]
    window, last, row = RowWindow(limit), None, 0

    def is_before_window(rows: int, last_ns: int) -> bool:
        nonlocal row
        is_before = window.begin_ns is not None and last_ns < window.begin_ns
        row += rows * is_before
        return is_before

    for batch in reader.large_batches([*names, *place.columns], is_before_window):
        ts = batch.column("ts_ns").to_numpy()
        matching = np.flatnonzero(place.holds(batch))
        reversed_rows = np.flatnonzero(np.diff(ts, prepend=ts[:1] if last is None else last) < 0)
        if len(reversed_rows):
            raise TraceError(
                "time goes back here; sort the trace by ts_ns",
                row=row + int(reversed_rows[0]),
                column="ts_ns",
            )
        last, row = (ts[-1] if len(ts) else last), row + len(ts)
        if not len(matching):
            continue
        rows = window.take(
            {name: numbers(batch.column(name), _KINDS.get(name, "i8"))[matching] for name in names}
        )
        if rows is not None:
            yield rows
        if window.is_over:
            return


def parse_window(
    limit: str | None, begin: str | None, end: str | None, busiest: str | None
) -> Limit:
    """Parse the window options of a command line; times count from the first operation.

    `limit` is rows, a time or bytes; the others are times, as units.py reads them.

    ConfigError if the options conflict or the window is empty.
    """
    window = parse_limit(limit)
    if busiest is not None:
        if begin is not None or end is not None:
            raise ConfigError(
                f"{named('busiest')} chooses the window itself: remove {named('begin')} and"
                f" {named('end')}"
            )
        return replace(window, busiest_ns=positive("busiest", parse_duration_ns)(busiest))
    begin_ns = 0 if begin is None else parse_duration_ns(begin)
    if end is None:
        return replace(window, begin_ns=begin_ns)
    span_ns = parse_duration_ns(end) - begin_ns
    if span_ns <= 0:
        raise ConfigError(f"{named('end', end)} is not after {named('begin', begin or '0s')}")
    return replace(window, begin_ns=begin_ns).within(Limit(span_ns=span_ns))


class RowWindow:
    """A filter that passes rows, in order of time, from the start of a limit to its end."""

    def __init__(self, limit: Limit) -> None:
        """Pass rows within `limit`; its times count from the first row."""
        self._limit = limit
        self._seen = self._bytes = 0
        self._first: int | None = None
        self.is_over = False

    @property
    def begin_ns(self) -> int | None:
        """The time at which the window begins; null until a row was seen."""
        return self._first

    def take(self, rows: Columns) -> Columns | None:
        """Return the rows of `part` (ts_ns, op, length_bytes and more) within the limit.

        Null if there are none.
        """
        limit = self._limit
        if self._first is None and len(rows["op"]):
            self._first = int(rows["ts_ns"][0]) + limit.begin_ns
        if limit.begin_ns and self._first is not None:
            begin = int(np.searchsorted(rows["ts_ns"], self._first))
            rows = {name: values[begin:] for name, values in rows.items()}
        count = len(rows["op"])
        total = self._bytes + np.cumsum(np.where(rows["op"] == DELETE, 0, rows["length_bytes"]))
        stop = min(
            count,
            count if limit.rows is None else limit.rows - self._seen,
            (
                count
                if limit.span_ns is None or self._first is None
                else int(np.searchsorted(rows["ts_ns"], self._first + limit.span_ns))
            ),
            (
                count
                if limit.moved_bytes is None
                else int(np.searchsorted(total, limit.moved_bytes, "right"))
            ),
        )
        self.is_over = stop < count
        self._seen, self._bytes = self._seen + stop, int(total[-1]) if count else self._bytes
        return {name: values[:stop] for name, values in rows.items()} if stop else None


def ordered_rows(path: Path, limit: Limit) -> Iterator[Columns]:
    """Yield the rows of the Parquet file `path`, in order of time, within `limit`, as numpy arrays
    by name.
    """
    window = RowWindow(limit)
    for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH_ROWS, use_threads=False):
        columns = zip(batch.schema.names, batch.columns, strict=True)
        rows = window.take(
            {name: column.to_numpy(zero_copy_only=False) for name, column in columns}
        )
        if rows is not None:
            yield rows
        if window.is_over:
            return


def find_busiest_window(limit: Limit, rows: Callable[[], Iterator[Columns]]) -> Limit:
    """Resolve the busiest window of `limit` from all `rows`; unchanged without one."""
    length = limit.busiest_ns
    if length is None:
        return limit

    def bytes_over_time() -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        first = None
        for batch in rows():
            if len(batch["op"]):
                first = batch["ts_ns"][0] if first is None else first
                yield (
                    batch["ts_ns"] - first,
                    np.where(batch["op"] == DELETE, 0, batch["length_bytes"]),
                )

    begin_ns = busiest_begin_ns(bytes_over_time(), length)
    return replace(limit, begin_ns=begin_ns, busiest_ns=None).within(Limit(span_ns=length))
