"""Trace rows as the compiled simulation makes them: an array a column."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.structures import Structure, table


class RowColumns(Structure):
    """Trace rows, a table a column; request and stage NONE for background work."""

    ts_ns = table("i8")
    op = table("i1")
    tier = table("i1")
    phase = table("i1")
    object_id = table("i8")
    length_bytes = table("i8")
    request_id = table("i8")
    stage = table("i4")
    rank = table("i2")

    def room_for(self, rows: int) -> None:
        """Make new, empty columns of so many `rows`."""
        for name, field in self.fields.items():
            setattr(self, name, np.empty(rows, field.dtype))

    def use(self, columns: dict[str, Any]) -> None:
        """Write into `columns`, which nobody else needs."""
        for name, column in columns.items():
            setattr(self, name, column)
