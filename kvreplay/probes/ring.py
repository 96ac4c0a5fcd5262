"""The events that the programs put into the kernel's ring buffer, taken out many at once."""

from __future__ import annotations

import mmap

import numpy as np

from kvreplay.probes.layout import EVENT

RING_BYTES = 4096 * 4096
"""As in block.bpf.h: 0.19 million events until they are taken."""
_RECORD = np.dtype([("length", "<u4"), ("page", "<u4"), ("event", EVENT)])
"""Each event has a header (BPF_RINGBUF_HDR_SZ); all are equally long."""
_BUSY = 1 << 31
"""In the length of one that is still being written."""


class EventRing:
    """The kernel's ring buffer: a page with how far we are, one with how far it is, and the data, mapped twice."""

    def __init__(self, descriptor: int) -> None:
        """Map the ring buffer behind `descriptor`."""
        page = mmap.PAGESIZE
        consumer = mmap.mmap(descriptor, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._data = mmap.mmap(descriptor, page + 2 * RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        self._ours = np.frombuffer(consumer, "<u8", 1)
        self._kernels = np.frombuffer(self._data, "<u8", 1)

    def take(self) -> bytes:
        """Return the events that are there, packed EVENT records, and make room for others."""
        at = int(self._ours[0])
        number = (int(self._kernels[0]) - at) // _RECORD.itemsize
        # The second mapping follows the first one: what goes over the end is in one piece.
        records = np.frombuffer(self._data, _RECORD, number, mmap.PAGESIZE + at % RING_BYTES)
        busy = np.flatnonzero(records["length"] & _BUSY)
        done = int(busy[0]) if len(busy) else number
        taken = records["event"][:done].tobytes()
        self._ours[0] = at + done * _RECORD.itemsize
        return taken
