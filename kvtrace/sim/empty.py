"""Empty tables for a World: contexts, tiers, slots, and the lists that slots are in."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from kvtrace.core.native.structs import Structure
from kvtrace.native.records import LINK, NONE, NOTE, QUEUE, QUEUES, SLOT, TIER


def new_contexts(count: int) -> Any:
    """Return World.contexts, of which only what is used takes memory, by the page: numpy would ask for huge pages."""
    try:
        memory = mmap.mmap(-1, max(1, 8 * count))
    except OSError as error:
        raise MemoryError(str(error)) from None
    with suppress(OSError):  # of a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int64)[:count]


def make_rows(columns: Any, rows: int) -> None:
    """Make new, empty columns of so many `rows`."""
    for name, dtype in columns.tables.items():
        setattr(columns, name, np.empty(rows, dtype))


class Rooms:
    """The memory of tables that grow: its pages are moved, for copying gigabytes takes longer than filling them."""

    def __init__(self) -> None:
        self._memory: dict[str, mmap.mmap] = {}

    def extend(self, owner: Structure, name: str, more: int) -> Any:
        """Make the table `name` of `owner` longer by `more` entries, of zeros; return those."""
        table = getattr(owner, name)
        count, dtype = len(table), table.dtype
        size_bytes = (count + more) * dtype.itemsize
        if name in self._memory:
            del table
            setattr(owner, name, np.empty(0, dtype))
        if name not in self._memory or not _is_moved(self._memory[name], size_bytes):
            before = table if name not in self._memory else np.frombuffer(self._memory[name], dtype)
            memory = self._memory[name] = _take(size_bytes)
            np.frombuffer(memory, dtype)[:count] = before
        setattr(owner, name, np.frombuffer(self._memory[name], dtype))
        return getattr(owner, name)[count:]


def _is_moved(memory: mmap.mmap, size_bytes: int) -> bool:
    """Make `memory` longer where it lies or elsewhere; return whether that was done: not if somebody looks at it."""
    try:
        memory.resize(size_bytes)
    except OSError as error:
        raise MemoryError(str(error)) from None
    except BufferError:
        # A view that waits to be collected, or is another thread's: it keeps what it sees.
        return False
    return True


def _take(size_bytes: int) -> mmap.mmap:
    try:
        memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(str(error)) from None
    with suppress(OSError):  # of a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def new_tiers(limits: Sequence[int], largest: Sequence[int]) -> tuple[Any, Any]:
    """Return empty tiers that hold `limits` bytes and take objects of up to `largest`, and their lists.

    They are LRU, and service takes no time.
    """
    tiers, queues = np.zeros(len(limits), TIER), np.zeros(len(limits) * QUEUES, QUEUE)
    tiers["limit"], tiers["low"], tiers["largest"] = limits, limits, largest
    tiers["hand"] = tiers["free_group"] = tiers["goal"] = NONE
    queues["head"] = queues["tail"] = NONE
    return tiers, queues


def new_slots(sizes: Any) -> Any:
    """Return one slot an object of `sizes` bytes, live in no tier and held by nobody."""
    slots = np.zeros(len(sizes), SLOT)
    slots["object"], slots["size"], slots["home"] = np.arange(len(sizes)), sizes, NONE
    return slots


def new_links(slots: int, tiers: int, *, has_policies: bool) -> tuple[Any, Any]:
    """Return the links of `slots` slots in `tiers` tiers, and their notes if any tier's policy is not LRU."""
    links, notes = np.zeros(slots * tiers, LINK), np.zeros(slots * tiers if has_policies else 0, NOTE)
    unlink(links)
    unnote(notes)
    return links, notes


def unlink(links: Any) -> None:
    """Let slots with these links be in no list."""
    links["newer"] = links["older"] = NONE


def unnote(notes: Any) -> None:
    """Let slots with these notes be in no list of a policy, and no group be one."""
    notes["place"] = notes["top"] = NONE
