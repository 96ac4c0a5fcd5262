"""Numbers for ids, so that tables can be as long as there are ids: an id is its own number unless ids are sparse."""

from __future__ import annotations

from typing import Any

import numpy as np

_SPARE = 1 << 20
"""Places that may stay empty in any case."""


class Numbering:
    """Numbers ids of 0 and more, in batches."""

    def __init__(self, rows: int) -> None:
        """Expect the ids of at most `rows` rows: those below twice as many stand for themselves."""
        self._direct = 2 * rows + _SPARE
        self._sparse: dict[int, int] = {}
        self._most = -1

    @property
    def count(self) -> int:
        """One more than the highest number yet."""
        return self._direct + len(self._sparse) if self._sparse else self._most + 1

    def of(self, ids: Any) -> Any:
        """Return the numbers of `ids`; negative ones are returned as they are."""
        most = int(ids.max()) if len(ids) else -1
        if most < self._direct:
            self._most = max(self._most, most)
            return ids
        numbers = ids.astype(np.int64)
        beyond = ids >= self._direct
        names, which = np.unique(ids[beyond], return_inverse=True)
        found = [self._sparse.setdefault(name, self._direct + len(self._sparse)) for name in names.tolist()]
        numbers[beyond] = np.array(found, np.int64)[which]
        return numbers
