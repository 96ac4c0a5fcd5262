"""The rows of a trace once more, as far as its operations were taken: what a plan does not keep of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from kvreplay.plan.loader import BATCH_ROWS
from kvreplay.plan.repeat import Repeated
from kvtrace.core.tables import Reader

if TYPE_CHECKING:
    import pyarrow as pa


class TraceRows:
    """Reads on in a trace, in order."""

    def __init__(self, reader: Reader, columns: Sequence[str]) -> None:
        """Begin with the first row."""
        self.row = 0
        """The next one."""
        self._batches = iter(reader.batches(columns))
        self._rest: pa.RecordBatch | None = None

    def up_to(self, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows before `row`; `row` has come to the first of a batch when it is yielded, beyond it later."""
        while self.row < row:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return
            batch = self._rest.slice(0, min(row - self.row, BATCH_ROWS))
            self._rest = self._rest.slice(batch.num_rows)
            yield batch
            self.row += batch.num_rows

    def close(self) -> None:
        """Read no more."""
        if hasattr(self._batches, "close"):
            self._batches.close()


class LeastLater:
    """The least request that may still follow in a trace: all before it are known as a whole."""

    def __init__(self, reader: Reader, rows: int) -> None:
        """Look through the first `rows` rows of the trace, or of what is repeated."""
        self._rows, self._step = 0, 0
        if isinstance(reader, Repeated):
            rows, self._rows, self._step, reader = reader.rows, reader.rows, reader.requests, reader.once
        starts, least, at = list[int](), list[int](), 0
        for batch in reader.batches(("request_id",)):
            found = pc.min(batch.column("request_id")).as_py()
            starts.append(at)
            least.append(np.iinfo(np.int64).max if found is None else found)
            at += batch.num_rows
            if at >= rows:
                break
        self._starts = np.array(starts, np.int64)
        # Of each batch and all that come after it; after the last, the next repeat's.
        self._least = np.minimum.accumulate(np.array(least[::-1], np.int64))[::-1]

    def after(self, row: int) -> int:
        """Return the least request of the rows from `row` on."""
        repeat = row // self._rows if self._rows else 0
        batch = int(np.searchsorted(self._starts, row - repeat * self._rows, side="right")) - 1
        least = int(self._least[batch])
        return (min(least, self._step) if self._rows else least) + repeat * self._step
