"""A GPU as a tier needs it: memory, pinning of host buffers, and copies timed by the device's own events.

CuPy stands behind it; `Device` is the seam, so that all but these few calls is tested without a GPU.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Protocol

from kvtrace.core.errors import DeviceError, ProbeUnavailable

INSTALL = "pip install 'kvtrace[gpu]'"


class Copy(IntEnum):
    """The direction of a copy, by CUDA's numbers (cudaMemcpyKind)."""

    H2D = 1
    D2H = 2
    D2D = 3


class Memory(Protocol):
    """Memory of the device; it is freed when nothing refers to it any more."""

    @property
    def ptr(self) -> int:
        """Its address."""


class Device(Protocol):
    """One GPU; everything may be called from many threads."""

    name: str

    def memory_bytes(self) -> tuple[int, int]:
        """Return the bytes that are free, and all."""

    def allocate(self, nbytes: int) -> Memory:
        """Return new memory; MemoryError if it does not fit."""

    def as_array(self, memory: Memory, nbytes: int) -> Any:
        """Return `memory` as an array of bytes that other libraries for the GPU take."""

    def pin(self, address: int, nbytes: int) -> None:
        """Lock host memory for copies without a bounce; OSError if the driver refuses."""

    def unpin(self, address: int) -> None:
        """Undo `pin`."""

    def copy(self, to: int, source: int, nbytes: int, kind: Copy) -> int:
        """Copy, wait for it, and return how long it took by the device's events, ns; OSError if it fails."""


class CudaDevice:
    """A GPU by CuPy: a stream and two events for each thread, memory from a pool."""

    def __init__(self, number: int) -> None:
        """Take GPU `number`.

        Raises:
            ProbeUnavailable: CuPy is not installed.
            DeviceError: no such GPU.

        """
        try:
            import cupy
        except ImportError as error:
            raise ProbeUnavailable(f"a gpu tier needs CuPy ({error}): {INSTALL}; or simulate it: gpu=sim") from None
        self._cupy, self._runtime, self._number = cupy, cupy.cuda.runtime, number
        try:
            count = self._runtime.getDeviceCount()
        except self._runtime.CUDARuntimeError as error:
            raise DeviceError(f"no GPU: {error}; simulate it: gpu=sim") from None
        if number >= count:
            raise DeviceError(f"gpu:device={number}: there are {count}; number them from 0")
        self._local = threading.local()
        self._use()
        properties = self._runtime.getDeviceProperties(number)
        self.name = properties["name"].decode()
        # Freed memory stays with the pool: cudaFree waits for all that runs, and would be in a delete's time.
        self._pool = cupy.cuda.MemoryPool()

    def _use(self) -> Any:
        local = self._local
        if not hasattr(local, "stream"):
            # The current device is a thread's own.
            self._cupy.cuda.Device(self._number).use()
            local.stream = self._cupy.cuda.Stream(non_blocking=True)
            local.start, local.end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        return local

    def memory_bytes(self) -> tuple[int, int]:
        """Return the bytes that are free, and all, as the driver says."""
        self._use()
        free, total = self._runtime.memGetInfo()
        return int(free), int(total)

    def allocate(self, nbytes: int) -> Memory:
        """Return memory from the pool; CuPy's OutOfMemoryError is a MemoryError."""
        self._use()
        memory: Memory = self._pool.malloc(nbytes)
        return memory

    def as_array(self, memory: Memory, nbytes: int) -> Any:
        """Return a CuPy array over `memory`."""
        return self._cupy.ndarray((nbytes,), dtype=self._cupy.uint8, memptr=memory)

    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory with the driver."""
        self._use()
        self._checked(lambda: self._runtime.hostRegister(address, nbytes, 0))

    def unpin(self, address: int) -> None:
        """Unregister it."""
        self._use()
        self._checked(lambda: self._runtime.hostUnregister(address))

    def copy(self, to: int, source: int, nbytes: int, kind: Copy) -> int:
        """Copy on this thread's stream between two events."""
        local = self._use()

        def timed() -> int:
            local.start.record(local.stream)
            self._runtime.memcpyAsync(to, source, nbytes, int(kind), local.stream.ptr)
            local.end.record(local.stream)
            local.end.synchronize()
            return int(self._cupy.cuda.get_elapsed_time(local.start, local.end) * 1e6)

        took_ns: int = self._checked(timed)
        return took_ns

    def _checked(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._runtime.CUDARuntimeError as error:
            raise OSError(errno.EIO, f"CUDA: {error}") from None
