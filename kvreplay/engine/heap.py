"""Stacks and heaps of numbers in compiled code, by the address of a `tables.LIST`."""

from __future__ import annotations

from typing import Any

from kvreplay.engine.tables import list_at
from kvtrace.core.compiled import inner, int64s


@inner
def put(stack: int, number: int) -> None:
    """Put `number` on a stack."""
    numbers = list_at(stack)
    int64s(numbers.items)[numbers.count] = number
    numbers.count += 1


@inner
def take(stack: int) -> int:
    """Take a number off a stack."""
    numbers = list_at(stack)
    numbers.count -= 1
    return int64s(numbers.items)[numbers.count]


@inner
def count(numbers: int) -> int:
    """Return how many numbers there are."""
    return list_at(numbers).count


@inner
def least(heap: int) -> int:
    """Return the least number of a heap."""
    return int64s(list_at(heap).items)[0]


@inner
def item(numbers: int, at: int) -> int:
    """Return number `at`, in no order that means anything in a heap but for the first."""
    return int64s(list_at(numbers).items)[at]


@inner
def push(heap: int, number: int) -> None:
    """Put `number` into a heap."""
    numbers = list_at(heap)
    items, at = int64s(numbers.items), numbers.count
    numbers.count += 1
    while at and items[(at - 1) >> 1] > number:
        items[at] = items[(at - 1) >> 1]
        at = (at - 1) >> 1
    items[at] = number


@inner
def pop(heap: int) -> int:
    """Take the least number out of a heap."""
    numbers = list_at(heap)
    items = int64s(numbers.items)
    found = items[0]
    numbers.count -= 1
    _sift(items, numbers.count, 0, items[numbers.count])
    return found


@inner
def remove(heap: int, number: int) -> None:
    """Take `number` out of a heap."""
    numbers = list_at(heap)
    items, kept = int64s(numbers.items), 0
    for i in range(numbers.count):
        if items[i] != number:
            items[kept] = items[i]
            kept += 1
    numbers.count = kept
    for at in range(kept // 2 - 1, -1, -1):
        _sift(items, kept, at, items[at])


@inner
def _sift(items: Any, size: int, at: int, number: int) -> None:
    """Put `number` at `at` of a heap of `size` or below it."""
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and items[child + 1] < items[child]:
            child += 1
        if items[child] >= number:
            break
        items[at] = items[child]
        at = child
    items[at] = number
