"""GPU memory as a tier, and `--gds`: files read and written straight to and from GPU memory.

Objects of the GPU tier lie on the device, and every operation is one copy, timed by the device as well. By default data
crosses between pinned host buffers and the GPU, as a demotion's or a promotion's does; with `gpu:copy=device` it stays
there, as a hit in the GPU's own cache does. GDS goes through cuFile by kvikio; where that cannot go direct it goes
through host memory, and the run says which it was.

CuPy stands behind it; `Device` is the seam, so that all but these few calls is tested without a GPU.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvreplay.plan.buffers import PAGE_BYTES, Arena, address_of
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions, Tier
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, how_to_add
from kvtrace.core.units import NS_PER_S, format_bytes

TURN_BYTES = 256 << 20
"""Copies within the GPU go to and from a place this large in turn: a small one would stay in its cache."""
OPTIONS = ("device", "copy")
LESS = "replay less with --limit, or make the trace with a smaller tier (kvtrace gen --set tiers.{}.capacity=40GiB)"


class Transfers:
    """What was copied in each direction, and how long the device took."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._lock = threading.Lock()
        self._totals = {kind: [0, 0, 0] for kind in Copy}

    def add(self, kind: Copy, nbytes: int, device_ns: int) -> None:
        """Count one copy."""
        with self._lock:
            total = self._totals[kind]
            total[0] += 1
            total[1] += nbytes
            total[2] += device_ns

    def facts(self) -> dict[str, Any]:
        """Return, by direction, counts and the rate while the copies ran, one at a time; populating is among them."""
        return {
            kind.name.lower(): {
                "copies": copies,
                "bytes": nbytes,
                "device_ns": ns,
                "device_bytes_per_s": nbytes * NS_PER_S / ns if ns else None,
            }
            for kind, (copies, nbytes, ns) in self._totals.items()
            if copies
        }


class Pins:
    """The engine's host buffers, pinned for as long as a tier is open."""

    def __init__(self) -> None:
        """Pin nothing yet."""
        self._pinned: list[tuple[Device, int]] = []
        self.nbytes = 0

    def add(self, device: Device, arena: Arena) -> None:
        """Pin `arena` for `device`; DeviceError if the driver refuses."""
        try:
            device.pin(arena.address, arena.nbytes)
        except OSError as error:
            raise DeviceError(
                f"{format_bytes(arena.nbytes)} of buffers cannot be pinned for the GPU: {error.strerror}; "
                "lower --queue-depth or --io-bytes"
            ) from None
        self._pinned.append((device, arena.address))
        self.nbytes += arena.nbytes

    def close(self) -> None:
        """Unpin all."""
        while self._pinned:
            device, address = self._pinned.pop()
            device.unpin(address)


class GpuTier(Tier):
    """Objects in the memory of one GPU."""

    engine = "gpu"
    is_of_gpu = True

    def __init__(
        self,
        name: str,
        number: int,
        io_bytes: int,
        make_device: Callable[[int], Device],
        *,
        is_within: bool = False,
        is_verified: bool = False,
    ) -> None:
        """Hold objects for the tier `name` on GPU `number`; `is_within`: copies stay on the device.

        A verified tier holds whole blocks.
        """
        self.name, self.target = name, f"gpu:{number}"
        self.alignment = PAGE_BYTES if is_verified else 1
        self._number, self._io_bytes, self._make_device = number, io_bytes, make_device
        self._is_within = is_within
        self._objects: dict[int, tuple[Any, int]] = {}
        self._transfers = Transfers()
        self._pins = Pins()

    def open(self, peak_bytes: int) -> None:
        """Take the GPU and check that the trace's peak fits its free memory."""
        self._device = device = self._make_device(self._number)
        turn_bytes = max(2, TURN_BYTES // self._io_bytes) * self._io_bytes if self._is_within else 0
        free, self._total_bytes = device.memory_bytes()
        if peak_bytes + turn_bytes > free:
            raise DeviceError(
                f"--tier {self.name}=gpu: the replay holds up to {format_bytes(peak_bytes + turn_bytes)} there, but "
                f"{device.name} has {format_bytes(free)} free; {LESS.format(self.name)}"
            )
        if turn_bytes:
            self._place = device.allocate(turn_bytes)
            self._turn = itertools.cycle(range(0, turn_bytes, self._io_bytes))

    def pin(self, arena: Arena) -> None:
        """Pin the engine's buffers, which copies go to and from."""
        if not self._is_within:
            self._pins.add(self._device, arena)

    def reserve(self, object_id: int, end: int) -> None:
        """Allocate the object's memory, or grow it."""
        held = self._objects.get(object_id)
        if held is not None and held[1] >= end:
            return
        try:
            grown = self._device.allocate(end)
        except MemoryError:
            free, _ = self._device.memory_bytes()
            raise MemoryError(
                f"{format_bytes(end)} do not fit the {format_bytes(free)} that {self._device.name} has free; "
                f"{LESS.format(self.name)}"
            ) from None
        if held is not None:
            self._device.copy(grown.ptr, held[0].ptr, held[1], Copy.D2D)
        self._objects[object_id] = (grown, end)

    def begin(self, op: int, object_id: int) -> tuple[Any, int]:
        """Return the object's memory and its length."""
        held = self._objects.get(object_id)
        if held is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        return held

    def write(self, handle: tuple[Any, int], offset: int, data: memoryview) -> None:
        """Copy `data`, or as much from elsewhere on the device, into the object."""
        to = handle[0].ptr + offset
        if self._is_within:
            self._copy(to, self._place.ptr + next(self._turn), len(data), Copy.D2D)
        else:
            self._copy(to, address_of(data), len(data), Copy.H2D)

    def read(self, handle: tuple[Any, int], offset: int, into: memoryview) -> int:
        """Copy out of the object, to `into` or elsewhere on the device."""
        length = min(len(into), handle[1] - offset)
        source = handle[0].ptr + offset
        if self._is_within:
            self._copy(self._place.ptr + next(self._turn), source, length, Copy.D2D)
        else:
            self._copy(address_of(into), source, length, Copy.D2H)
        return length

    def _copy(self, to: int, source: int, nbytes: int, kind: Copy) -> None:
        self._transfers.add(kind, nbytes, self._device.copy(to, source, nbytes, kind))

    def delete(self, object_id: int) -> None:
        """Give the object's memory back to the pool."""
        if self._objects.pop(object_id, None) is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")

    def facts(self) -> dict[str, Any]:
        """Return the GPU, how data moves, and what the device's events say of it."""
        return {
            "is_simulated": False,
            "device": self._device.name,
            "device_bytes": self._total_bytes,
            "copy": "device" if self._is_within else "host",
            "pinned_bytes": self._pins.nbytes,
            "transfers": self._transfers.facts(),
            "note": "latencies are the host's, launch and wait included; transfers has the device's own times",
        }

    def close(self) -> None:
        """Unpin the buffers and free everything."""
        self._pins.close()
        self._objects.clear()


def gpu_options(options: Mapping[str, str], said: str, *, is_verified: bool) -> tuple[int, bool]:
    """Return the number of the GPU, and whether copies stay on it; ConfigError, quoting `said`, for what is none."""
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{said}: unknown option {name!r}; gpu takes {', '.join(OPTIONS)}")
    number, copy = options.get("device", "0"), options.get("copy", "host")
    if not number.isdigit():
        raise ConfigError(f"{said}: device is a number from 0")
    if copy not in ("host", "device"):
        raise ConfigError(f"{said}: copy is host (to and from pinned host memory) or device (within the GPU)")
    if copy == "device" and is_verified:
        raise ConfigError(f"{said}: --verify needs the data, which copy=device does not move to it; leave one out")
    return int(number), copy == "device"


INSTALL = how_to_add("gpu")


class Copy(IntEnum):
    """The direction of a copy, by CUDA's numbers (cudaMemcpyKind)."""

    H2D = 1
    D2H = 2
    D2D = 3


class Device(Protocol):
    """One GPU; everything may be called from many threads."""

    name: str

    def memory_bytes(self) -> tuple[int, int]:
        """Return the bytes that are free, and all."""

    def allocate(self, nbytes: int) -> Any:
        """Return memory at `ptr` that lives as long as something refers to it; MemoryError if it does not fit."""

    def as_array(self, memory: Any, nbytes: int) -> Any:
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
        """Take GPU `number`; ProbeUnavailable if CuPy is not installed; DeviceError if there is no such GPU."""
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

    def allocate(self, nbytes: int) -> Any:
        """Return memory from the pool; CuPy's OutOfMemoryError is a MemoryError."""
        self._use()
        return self._pool.malloc(nbytes)

    def as_array(self, memory: Any, nbytes: int) -> Any:
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
        return _checked(call, self._runtime.CUDARuntimeError, "CUDA")


_WRITE = 1
WANTED = "--gds needs kvikio ({}): " + how_to_add("gds") + "; and NVIDIA's driver with nvidia-fs for direct I/O"


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How cuFile does its I/O here."""

    is_direct: bool
    """Whether GPUDirect Storage is there and in use."""
    allows_compat: bool | None
    """Whether cuFile may still fall back on a file it cannot reach directly (cufile.json); null if unknown."""
    library: str
    note: str


class Kvikio:
    """The library."""

    def __init__(self) -> None:
        """Load it; ProbeUnavailable, naming what to install, if it or cuFile is missing."""
        try:
            import kvikio
            import kvikio.cufile_driver
            import kvikio.defaults
        except (ImportError, OSError, RuntimeError) as error:
            raise ProbeUnavailable(WANTED.format(" ".join(str(error).split())[:100])) from None
        self._kvikio = kvikio

    def open(self, path: str, mode: str) -> Any:
        """Open a file; kvikio takes the modes r, w (truncates) and r+."""
        return self._kvikio.CuFile(path, mode)

    def way(self) -> Way:
        """Return how I/O goes."""
        properties = self._kvikio.cufile_driver.properties
        try:
            has_driver, allows = bool(properties.is_gds_available), bool(properties.allow_compat_mode)
        except (AttributeError, RuntimeError):
            has_driver, allows = False, None
        is_direct = has_driver and not self._kvikio.defaults.is_compat_mode_preferred()
        fallback = "; cuFile may still bounce on a filesystem that it cannot reach (allow_compat_mode)"
        direct = f"GPUDirect Storage{fallback if allows else ''}"
        note = direct if is_direct else "compat mode: data went through host memory"
        return Way(is_direct=is_direct, allows_compat=allows, library=f"kvikio {self._kvikio.__version__}", note=note)


class GdsTier(FileTier):
    """A directory's files by cuFile."""

    engine = "gds"
    has_ring = False
    is_of_gpu = True

    def __init__(
        self,
        name: str,
        directory: Path,
        options: StorageOptions,
        make_device: Callable[[int], Device],
        make_library: Callable[[], Any] = Kvikio,
        *,
        is_verified: bool,
    ) -> None:
        """Move the objects of the tier `name`, files below `directory`, to and from GPU 0."""
        super().__init__(name, directory, options)
        self._make_device, self._make_library, self._is_verified = make_device, make_library, is_verified
        self._mirrors: list[tuple[int, int, Any, int]] = []
        self._pins = Pins()

    def place(self) -> bool:
        """Return that cuFile tells a drive of no stream."""
        return False

    def open(self, peak_bytes: int) -> None:
        """Load the library and take the GPU, then claim the directory."""
        self._library = self._make_library()
        self._device = self._make_device(0)
        super().open(peak_bytes)

    def pin(self, arena: Arena) -> None:
        """Make a mirror on the device of the engine's buffers, and pin them."""
        self._pins.add(self._device, arena)
        try:
            memory = self._device.allocate(arena.nbytes)
        except MemoryError:
            raise DeviceError(
                f"{self._device.name} has no {arena.nbytes >> 20} MiB free for --gds; lower --queue-depth or --io-bytes"
            ) from None
        array = self._device.as_array(memory, arena.nbytes)
        self._mirrors.append((arena.address, arena.nbytes, array, memory.ptr))

    def _mirror(self, buffer: memoryview) -> tuple[Any, int, int]:
        """Return the array on the device that mirrors `buffer`, where in it, and the address there."""
        address = address_of(buffer)
        for start, nbytes, array, pointer in self._mirrors:
            if start <= address < start + nbytes:
                return array, address - start, pointer + address - start
        raise AssertionError("a buffer is in one of the arenas")

    def stage(self, data: memoryview) -> None:
        """Copy generated data to the device, whence writes start; not measured."""
        self._device.copy(self._mirror(data)[2], address_of(data), len(data), Copy.H2D)

    def begin(self, op: int, object_id: int) -> Any:
        """Open the object's file; an existing one is not truncated."""
        path = self.path(object_id)
        mode = "r" if op != _WRITE else "r+" if Path(path).exists() else "w"
        return _checked(lambda: self._library.open(path, mode))

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        """Write the mirror of `data`, which was staged."""
        array, place, _ = self._mirror(data)
        went = _checked(lambda: handle.raw_write(array, len(data), offset, place))
        if went != len(data):
            raise OSError(errno.EIO, f"the device took only {went} of {len(data)} bytes")

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        """Read into the mirror of `into`; back to the host only to be verified."""
        array, place, pointer = self._mirror(into)
        came = int(_checked(lambda: handle.raw_read(array, len(into), offset, place)))
        if self._is_verified and came:
            self._device.copy(address_of(into), pointer, came, Copy.D2H)
        return came

    def end(self, op: int, handle: Any) -> None:
        """Close the file, after fdatasync if that is the policy."""
        try:
            if op == _WRITE and self.is_synced:
                os.fdatasync(handle.fileno())
        finally:
            handle.close()

    def facts(self) -> dict[str, Any]:
        """Return the directory's facts, and which way data took."""
        way = msgspec.to_builtins(self._library.way())
        return {**super().facts(), "gds": {"device": self._device.name, **way}}

    def close(self) -> None:
        """Unpin the buffers, free the mirrors, give up the directory."""
        self._pins.close()
        self._mirrors.clear()
        super().close()


def _checked(call: Callable[[], Any], kind: type[Exception] = RuntimeError, library: str = "cuFile") -> Any:
    """Return what `call` gives; the errors of a `library` are of a `kind` of its own, an engine takes OSErrors."""
    try:
        return call()
    except kind as error:
        raise OSError(errno.EIO, f"{library}: {' '.join(str(error).split())}") from None
