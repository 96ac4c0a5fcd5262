"""Counts of values in slots of a histogram: exact below 32, at most 1/16 of the value wide above."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvdistill.profile.profile import Slot

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SUB_BITS = 4
SLOTS = (64 - _SUB_BITS) << _SUB_BITS


def slot_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slot of each value, which must not be negative."""
    # frexp's exponent is the number of bits; it rounds up only beyond 2**53, where a slot is 2**49 wide.
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - _SUB_BITS, 0)
    slots: NDArray[np.int64] = (shift << _SUB_BITS) + (values >> shift)
    return slots


def bounds(slot: int) -> tuple[int, int]:
    """Return the first value of `slot`, and the first one beyond it."""
    if slot < 2 << _SUB_BITS:
        return slot, slot + 1
    shift = (slot >> _SUB_BITS) - 1
    return (slot - (shift << _SUB_BITS)) << shift, (slot - (shift << _SUB_BITS) + 1) << shift


def to_slots(counts: NDArray[np.int64]) -> list[Slot]:
    """Return the slots that have counts, ascending."""
    return [Slot(*bounds(int(i)), int(counts[i])) for i in np.flatnonzero(counts)]


def count(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many of `values` lie in each slot."""
    return np.bincount(slot_of(values), minlength=SLOTS)
