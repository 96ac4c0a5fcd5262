"""What was written of an object beyond what is whole from its start on: a list of extents; compiled.

Functions take the `Living` that has all lists, and an object's entry in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.compiled import inner

EXTENT = np.dtype([("start", "i8"), ("end", "i8"), ("next", "i8")])
"""Of a list in the order of their starts, with gaps between them; `next` is 0 at its end."""


@inner
def free_extent(living: Any, which: int) -> int:
    """Give an extent back; return the one after it."""
    after = living.extents[which].next
    living.extents[which].next, living.state.free_extent = living.state.free_extent, which
    return after


@inner
def note_written(living: Any, entry: Any, start: int, end: int) -> None:
    """Note that an object was written from `start` to `end`."""
    extents = living.extents
    if start <= entry.written:
        entry.written = max(entry.written, end)
        while entry.extents != 0 and extents[entry.extents].start <= entry.written:
            entry.written = max(entry.written, extents[entry.extents].end)
            entry.extents = free_extent(living, entry.extents)
        return
    before, here = np.int64(0), np.int64(entry.extents)
    while here != 0 and extents[here].end < start:
        before, here = here, np.int64(extents[here].next)
    while here != 0 and extents[here].start <= end:
        start, end = min(start, extents[here].start), max(end, extents[here].end)
        here = free_extent(living, here)
    new = np.int64(living.state.free_extent)
    if new != 0:
        living.state.free_extent = extents[new].next
    else:
        living.state.extents_used += 1
        new = np.int64(living.state.extents_used)
    extent = extents[new]
    extent.start, extent.end, extent.next = start, end, here
    if before != 0:
        extents[before].next = new
    else:
        entry.extents = new


@inner
def is_written(living: Any, entry: Any, start: int, end: int) -> bool:
    """Return whether all of an object from `start` to `end` was written."""
    if end <= entry.written:
        return True
    here = np.int64(entry.extents)
    while here != 0 and living.extents[here].end < end:
        here = np.int64(living.extents[here].next)
    return here != 0 and living.extents[here].start <= start
