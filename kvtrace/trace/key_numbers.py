"""Number names by first appearance, millions of them, in little memory.

A name is known by its 128-bit hash in an open-addressing table (two names in a billion would share one with a
chance of 10^-21); the names themselves go to a temporary file, in the order of their numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from kvtrace.core.compiled import njit

if TYPE_CHECKING:
    import pyarrow as pa

_SEEDS = (1, 2)


class KeyNumbers:
    """Names seen so far; `sizes` holds the largest size seen of each."""

    def __init__(self, directory: Path) -> None:
        """Keep the names in a temporary file in `directory`; it has no name and goes with the process."""
        import pyarrow as pa

        self.count = 0
        self.sizes = np.zeros(1024, dtype=np.int64)
        # The number at each place, or -1; and each number's hash, in two halves.
        self._table = np.full(4096, -1, dtype=np.int32)
        self._hashes = np.zeros((2, 1024), dtype=np.int64)
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - __exit__ closes it
        self._schema = pa.schema([pa.field("key", pa.string())])
        self._spool = pa.ipc.new_stream(self._file, self._schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))

    def __enter__(self) -> Self:
        """Return itself; the end of the block closes the temporary file."""
        return self

    def __exit__(self, *_failure: object) -> None:
        self._spool.close()
        self._file.close()

    def number(self, names: pa.StringArray) -> Any:
        """Return the int64 numbers of `names`, which differ from each other; new ones get the next numbers."""
        import polars as pl
        import pyarrow as pa

        series = pl.Series(values=pl.from_arrow(names))
        low, high = (series.hash(seed).to_numpy().view(np.int64) for seed in _SEEDS)
        self._grow(len(names))
        ids = np.empty(len(names), dtype=np.int64)
        before = self.count
        self.count = int(_number(self._table, self._hashes, low, high, ids, before))
        is_new = pa.array(ids >= before)
        self._spool.write_batch(pa.RecordBatch.from_arrays([names.filter(is_new)], schema=self._schema))
        return ids

    def enlarge(self, ids: Any, sizes: Any) -> None:
        """Remember `sizes` of the objects `ids` where they are larger than any before."""
        np.maximum.at(self.sizes, ids, sizes)

    def _grow(self, more: int) -> None:
        wanted = self.count + more
        room = len(self._table)
        while room < 2 * wanted:
            room *= 2
        if room > len(self._table):
            self._table = np.full(room, -1, dtype=np.int32)
            _place_all(self._table, self._hashes, self.count)
        if wanted > len(self.sizes):
            length = max(wanted, len(self.sizes) * 3 // 2)
            self.sizes = np.pad(self.sizes, (0, length - len(self.sizes)))
            self._hashes = np.pad(self._hashes, ((0, 0), (0, length - self._hashes.shape[1])))

    def batches(self) -> Iterator[pa.StringArray]:
        """Yield all names in the order of their numbers; none can be numbered afterwards."""
        import pyarrow as pa

        self._spool.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield batch.column(0)


@njit
def _place(table: Any, hashes: Any, low: int, high: int) -> int:
    """Return where the number of a hash stands in `table`, or the empty place where it would."""
    mask = len(table) - 1
    at = low & mask
    while table[at] >= 0 and (hashes[0, table[at]] != low or hashes[1, table[at]] != high):
        at = (at + 1) & mask
    return at


@njit
def _number(table: Any, hashes: Any, low: Any, high: Any, ids: Any, count: int) -> int:
    for i in range(len(ids)):
        at = _place(table, hashes, low[i], high[i])
        if table[at] < 0:
            hashes[0, count], hashes[1, count] = low[i], high[i]
            table[at] = count
            count += 1
        ids[i] = table[at]
    return count


@njit
def _place_all(table: Any, hashes: Any, count: int) -> None:
    for number in range(count):
        table[_place(table, hashes, hashes[0, number], hashes[1, number])] = number
