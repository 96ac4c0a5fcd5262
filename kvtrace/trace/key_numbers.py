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

from kvtrace.core.native.library import I4, I8, function

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_SEEDS = (1, 2)
_HASH = np.dtype([("low", I8), ("high", I8)])
_number = function("keys_number", I4, int, _HASH, int, int, I8, I8, I8, returns=int)
_place_all = function("keys_place_all", I4, int, _HASH, int)


class KeyNumbers:
    """Names seen so far; `sizes` holds the largest size seen of each."""

    def __init__(self, directory: Path) -> None:
        """Keep the names in a temporary file in `directory`; it has no name and goes with the process."""
        import pyarrow as pa

        self.count = 0
        self.sizes: NDArray[np.int64] = np.zeros(1024, dtype=np.int64)
        # The number at each place, or -1; and each number's hash.
        self._table = np.full(4096, -1, dtype=np.int32)
        self._hashes: NDArray[np.void] = np.zeros(1024, dtype=_HASH)
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
        self.count = _number(self._table, len(self._table), self._hashes, before, len(names), low, high, ids)
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
            _place_all(self._table, room, self._hashes, self.count)
        if wanted > len(self.sizes):
            more = max(wanted, len(self.sizes) * 3 // 2) - len(self.sizes)
            self.sizes, self._hashes = np.pad(self.sizes, (0, more)), np.pad(self._hashes, (0, more))

    def batches(self) -> Iterator[pa.StringArray]:
        """Yield all names in the order of their numbers; none can be numbered afterwards."""
        import pyarrow as pa

        self._spool.close()
        self._file.seek(0)
        for batch in pa.ipc.open_stream(self._file):
            yield batch.column(0)
