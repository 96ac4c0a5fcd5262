"""Request sources: each reads or makes what users asked, one source a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a file, as columns in order of arrival; the n-th row is request n.

    `block_ids[block_offsets[n]:block_offsets[n + 1]]` is the prefix chain of request n, a block of
    `block_tokens` tokens each, the last one perhaps partial.
    """

    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    block_offsets: Ints
    block_ids: Ints
    block_tokens: int
    origin: dict[str, Any]
    """What the metadata says of the source: kind, file name, SHA-256, counts."""
    notes: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)
