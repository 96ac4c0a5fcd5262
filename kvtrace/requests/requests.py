"""Request sources: each reads or makes what users asked, one source a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


NONE = -1
"""Stands for null in `session_id`, `turn` and `qos`."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a file, as columns in order of arrival; the n-th row is request n.

    `block_ids[block_offsets[n]:block_offsets[n + 1]]` is the prefix chain of request n, a block of
    `block_tokens` tokens each. The last block may be partial, or the source may give ids to whole blocks only:
    then the last `input_tokens` modulo `block_tokens` tokens of a prompt have no id, and nothing can reuse them.
    A source without ids has `block_tokens` 0 and no blocks; its requests share a prefix only within a session,
    whose prompts carry their history.
    """

    arrival_ns: Ints
    input_tokens: Ints
    output_tokens: Ints
    block_offsets: Ints
    block_ids: Ints
    block_tokens: int
    origin: dict[str, Any]
    """What the metadata says of the source: kind, file name, SHA-256, block_tokens, counts."""
    notes: tuple[str, ...]
    session_id: Ints | None = None
    """Dense conversation numbers; None if the source has none, NONE for a request without."""
    turn: Ints | None = None
    """Which turn of its conversation each request is, from 0; None or NONE likewise."""
    qos: Ints | None = None
    """The service class asked for, a code of the requests table's closed set; None or NONE likewise."""
    kind: Ints | None = None
    """The kind of user, a code of the requests table's closed set; None if all are `trace`."""

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_ns)
