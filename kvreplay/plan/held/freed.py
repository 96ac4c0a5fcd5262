"""Freed memory goes back to the kernel at once: what lives for a moment, batches of rows above all, does not add up."""

from __future__ import annotations

import ctypes
import functools

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MAPPED_BYTES = 256 << 10
"""What is as large is mapped by itself: glibc would otherwise, in time, take it from heaps that only grow."""
_TRIMMED_BYTES = 4 << 20


@functools.cache
def return_freed() -> None:
    """Have glibc return what is freed, Arrow's batches as well (`cli`); other C libraries are left as they are."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return
    for option, value in (
        (_M_MMAP_THRESHOLD, _MAPPED_BYTES),
        (_M_TRIM_THRESHOLD, _TRIMMED_BYTES),
        (_M_ARENA_MAX, 2),
    ):
        set_option(option, value)
