"""Put a tier's objects into one address space by first fit, and each operation at its object's address.

Two passes over the trace: the first learns how long each object gets and which are read before they are
written (those exist from the start); the second walks the rows through the allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import AddressSpace
from kvtrace.core.allocator import GRANULE_BYTES, FreeSpace, give, new_space, take
from kvtrace.core.compiled import allocating
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import MOST, TRACE, enum_code

SECTOR_BYTES = 512
"""O_DIRECT takes offsets and lengths in multiples of this."""

_READ, _WRITE, _DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
_LIVE, _PEAK, _STRAY_DELETES, _COUNTERS = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Objects:
    """Facts of a tier's objects after the first pass, by object id."""

    reserved_bytes: NDArray[np.int64]
    """Longest extent ever touched, in whole granules; 0 if never read or written."""
    prior: NDArray[np.int64]
    """Objects read before they are written, in order of their first read."""
    deletes: int


@dataclass(frozen=True, slots=True)
class ObjectPlacement:
    """The address space after the last operation."""

    space: AddressSpace
    stray_deletes: int
    """Deletes of objects that were not there: nothing to free."""


def survey(rows: Callable[[], Iterator[dict[str, Any]]]) -> Objects:
    """Return the facts of the objects in `rows`."""
    ends = np.zeros(1 << 16, dtype=np.int64)
    known = np.zeros(1 << 16, dtype=np.int8)
    prior: list[NDArray[np.int64]] = []
    deletes = 0
    for part in rows():
        objects, ops = part["object_id"], part["op"]
        if objects.max() >= len(ends):
            room = max(int(objects.max()) + 1, 2 * len(ends))
            ends, known = _grown(ends, room), _grown(known, room)
        found = np.empty(len(objects), dtype=np.int64)
        count = _survey(ops, objects, part["offset_bytes"], part["length_bytes"], ends, known, found)
        prior.append(found[:count].copy())
        deletes += int((ops == _DELETE).sum())
    reserved = -(-ends // GRANULE_BYTES) * GRANULE_BYTES
    if reserved.sum(dtype=np.float64) > MOST:
        raise TraceError("the objects are longer together than can be reckoned with", column="offset_bytes")
    return Objects(reserved, np.concatenate(prior) if prior else np.empty(0, np.int64), deletes)


def _grown(array: Any, room: int) -> Any:
    grown = np.zeros(room, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


@allocating
def _survey(ops: Any, objects: Any, offsets: Any, lengths: Any, ends: Any, known: Any, found: Any) -> int:
    count = 0
    for i in range(len(ops)):
        if ops[i] == _DELETE:
            continue
        o = objects[i]
        ends[o] = max(ends[o], offsets[i] + lengths[i])
        if known[o] == 0:
            known[o] = 1
            if ops[i] == _READ:
                found[count] = o
                count += 1
    return count


def place(
    rows: Callable[[], Iterator[dict[str, Any]]], objects: Objects, sink: Callable[[dict[str, Any]], None]
) -> ObjectPlacement:
    """Walk `rows` through the allocator and hand each batch, with what was placed, to `sink`.

    `sink` gets the rows' arrays plus `address` (bytes; -1 for deletes) and `io_bytes` (the length widened to
    whole sectors; 0 for deletes).
    """
    free = new_space(min(objects.deletes, len(objects.reserved_bytes)) + 2)
    base = np.full(len(objects.reserved_bytes), -1, dtype=np.int64)
    counters = np.zeros(_COUNTERS, dtype=np.int64)
    _place_prior(objects.prior, objects.reserved_bytes, base, free, counters)
    prior_bytes = int(counters[_LIVE])
    for part in rows():
        address = np.empty(len(part["op"]), dtype=np.int64)
        io_bytes = np.empty(len(part["op"]), dtype=np.int64)
        _place(
            part["op"],
            part["object_id"],
            part["offset_bytes"],
            part["length_bytes"],
            objects.reserved_bytes,
            base,
            free,
            counters,
            address,
            io_bytes,
        )
        sink(part | {"address": address, "io_bytes": io_bytes})
    space = AddressSpace(
        span_bytes=free.span_bytes,
        peak_live_bytes=int(counters[_PEAK]),
        prior_objects=len(objects.prior),
        prior_bytes=prior_bytes,
        end_live_bytes=int(counters[_LIVE]),
    )
    return ObjectPlacement(space, int(counters[_STRAY_DELETES]))


@allocating
def _place_prior(prior: Any, reserved: Any, base: Any, free: FreeSpace, counters: Any) -> None:
    for o in prior:
        if reserved[o] > 0:
            base[o] = take(free, reserved[o])
            counters[_LIVE] += reserved[o]
    counters[_PEAK] = counters[_LIVE]


@allocating
def _place(
    ops: Any,
    objects: Any,
    offsets: Any,
    lengths: Any,
    reserved: Any,
    base: Any,
    free: FreeSpace,
    counters: Any,
    address: Any,
    io_bytes: Any,
) -> None:
    for i in range(len(ops)):
        o = objects[i]
        if ops[i] == _DELETE:
            address[i], io_bytes[i] = -1, 0
            if o < len(base) and base[o] >= 0:
                give(free, base[o], reserved[o])
                counters[_LIVE] -= reserved[o]
                base[o] = -1
            else:
                counters[_STRAY_DELETES] += 1
            continue
        if base[o] < 0 and reserved[o] > 0:
            base[o] = take(free, reserved[o])
            counters[_LIVE] += reserved[o]
            counters[_PEAK] = max(counters[_PEAK], counters[_LIVE])
        low = offsets[i] // SECTOR_BYTES * SECTOR_BYTES
        high = -(-(offsets[i] + lengths[i]) // SECTOR_BYTES) * SECTOR_BYTES
        address[i] = base[o] + low
        io_bytes[i] = high - low if lengths[i] > 0 else 0
