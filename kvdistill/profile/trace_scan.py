"""Count the operations of a trace in one pass: by tier, operation and phase, over time, and live.

Memory is bounded by the number of objects: 8 bytes a tier, and a bit for each combination of tier,
operation and phase.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.locality import LiveBytes
from kvdistill.queries.database import Row
from kvtrace.core import pa
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.schema import TRACE, numbers
from kvtrace.core.tables import Reader

_COLUMNS = ("ts_ns", "op", "tier", "phase", "object_id", "offset_bytes", "length_bytes")
_OPS, _PHASES = (TRACE.column(name).values for name in ("op", "phase"))
_CELL = np.dtype([("operations", I8), ("bytes", I8)])
_SEEN = np.dtype(np.uint64)
_count = function("locality_count", int, I1, I1, I1, I8, I8, int, int, int, _CELL, I8, _SEEN)
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Windows:
    """Equal windows of time."""

    first_ns: int
    bucket_ns: int
    buckets: int


class TraceScan:
    """The counts of a trace."""

    def __init__(self, reader: Reader, path: Path, windows: Windows) -> None:
        """Read all rows of `reader`; errors name `path`.

        TraceError at the first row that a reader refuses, or if a tier holds more than 2^62 bytes.
        """
        names = [tier.name for tier in reader.meta.tiers]
        self.tiers = list(dict.fromkeys(names))
        """The names of the tiers, fastest first."""
        self._windows = windows
        # Tiers of one name count as one.
        self._tier_numbers = np.array([self.tiers.index(name) for name in names], I1)
        shape = (len(self.tiers), len(_OPS), len(_PHASES))
        self._words = -(-max(1, int(np.prod(shape))) // _WORD_BITS)
        self._counts = np.zeros((windows.buckets, *shape), _CELL)
        self._objects = np.zeros(shape, I8)
        self._seen = np.zeros(0, _SEEN)
        live = LiveBytes(len(names), path)
        for batch in reader.large_batches(_COLUMNS):
            if batch.num_rows:
                live.apply(batch)
                self._apply(batch)
        self._seen = np.zeros(0, _SEEN)
        self.live_bytes = live.by_tier()
        """The peak and the final live bytes of each tier of the metadata."""

    def _apply(self, batch: pa.RecordBatch) -> None:
        """Count the rows of `batch`, window by window."""
        columns = {name: numbers(batch.column(name)) for name in ("ts_ns", "object_id")}
        needed = (int(columns["object_id"].max()) + 1) * self._words
        if (missing := needed - len(self._seen)) > 0:
            more = np.zeros(max(missing, len(self._seen)), _SEEN)
            self._seen = np.concatenate([self._seen, more])
        codes = {name: numbers(batch.column(name), I1) for name in ("op", "phase", "tier")}
        columns |= codes | {"tier": self._tier_numbers[codes["tier"]]}
        columns["length_bytes"] = numbers(batch.column("length_bytes"))
        windows = (columns["ts_ns"] - self._windows.first_ns) // self._windows.bucket_ns
        if np.any(np.diff(windows) < 0):
            order = np.argsort(windows, kind="stable")
            windows = windows[order]
            columns = {name: values[order] for name, values in columns.items()}
        edges = [0, *(np.flatnonzero(np.diff(windows)) + 1).tolist(), len(windows)]
        for begin, end in pairwise(edges):
            rows = {name: np.ascontiguousarray(v[begin:end]) for name, v in columns.items()}
            _count(
                end - begin,
                *(rows[name] for name in ("op", "tier", "phase", "object_id", "length_bytes")),
                len(_OPS),
                len(_PHASES),
                self._words,
                self._counts[int(windows[begin])],
                self._objects,
                self._seen,
            )

    def operations(self) -> list[Row]:
        """Return operations, bytes and distinct objects by tier, operation and phase."""
        operations, bytes_ = (self._counts[name].sum(axis=0) for name in ("operations", "bytes"))
        cells = [
            (tier, op, phase)
            for tier in range(len(self.tiers))
            for op, phase in product(_by_name(_OPS), _by_name(_PHASES))
            if operations[tier, op, phase]
        ]
        return [
            {
                "tier": self.tiers[cell[0]],
                "op": _OPS[cell[1]],
                "phase": _PHASES[cell[2]],
                "ops": int(operations[cell]),
                "bytes": int(bytes_[cell]),
                "objects": int(self._objects[cell]),
            }
            for cell in cells
        ]

    def accesses(self) -> dict[str, int]:
        """Return the number of reads and writes of each tier that has any operation."""
        by_op = self._counts["operations"].sum(axis=(0, 3))
        return {
            name: int(by_op[index, [_OPS.index("read"), _OPS.index("write")]].sum())
            for index, name in enumerate(self.tiers)
            if by_op[index].any()
        }

    def over_time(self) -> list[Row]:
        """Return the operations and bytes of each window, for each tier that has any operation."""
        operations, bytes_ = (self._counts[name].sum(axis=3) for name in ("operations", "bytes"))
        return [
            {
                "tier": name,
                "start_ns": self._windows.first_ns + bucket * self._windows.bucket_ns,
                **_by_op(operations[bucket, index], ("reads", "writes", "deletes")),
                **_by_op(bytes_[bucket, index], ("read_bytes", "written_bytes")),
            }
            for index, name in enumerate(self.tiers)
            if operations[:, index].any()
            for bucket in range(self._windows.buckets)
        ]


def _by_name(values: Sequence[str]) -> list[int]:
    """Return the codes of `values` in the order of their names."""
    return sorted(range(len(values)), key=lambda code: values[code])


def _by_op(figures: NDArray[np.int64], names: Sequence[str]) -> Row:
    """Return the figures of reads, writes and deletes under `names`, which may omit the last."""
    codes = [_OPS.index(op) for op in ("read", "write", "delete")]
    return {name: int(figures[code]) for name, code in zip(names, codes, strict=False)}
