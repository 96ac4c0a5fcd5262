"""GPU memory as a tier, and `--gds`: files read and written straight to and from GPU memory.

Objects of the GPU tier lie on the device, and every operation is copies of at most an I/O each,
which the engine's threads make like those of DRAM (native/threads.c). By default data crosses
between pinned host buffers and the GPU, as in a demotion or a promotion. With `gpu:copy=device` it
stays on the GPU, as in a hit of the GPU's own cache. GDS uses cuFile by kvikio. If cuFile cannot
transfer directly, data goes through host memory, and the run reports which it was.

The GPU tier calls NVIDIA's driver (libcuda.so.1) itself, so nothing else needs to be installed.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.plan.buffers import PAGE_BYTES, Arena, address_of
from kvreplay.plan.row_ring import REPLAY
from kvreplay.tiers.extents import SPARE_SHARE, Space
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import RamTier, copy_threads
from kvreplay.tiers.tier import Handle, Native, StorageOptions, TierKind
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, how_to_add
from kvtrace.core.parameters import entry, named
from kvtrace.core.units import format_bytes

SINK_BYTES = 256 << 20
"""Size of the memory that copies within the GPU use in turn.

A smaller one would stay in the GPU's cache.
"""
DRIVER_BYTES = 256 << 20
"""Free GPU memory that is left to the driver."""
UNIT_BYTES = 512
"""Objects begin at multiples of it, unless they are verified by pages."""
OPTIONS = ("device", "copy")
KINDS = ("h2d", "d2h", "d2d")
"""Directions of copies, by the numbers of replay.h."""
GpuStruct, CopierStruct = map(REPLAY.struct, ("Gpu", "GpuCopier"))


class CudaDevice:
    """A GPU, used through CUDA's driver; `close` frees all its resources."""

    def __init__(self, number: int, driver: Any = None) -> None:
        """Open GPU `number` by its `driver`, libcuda.so.1.

        ProbeUnavailable if there is no driver; DeviceError if there is no such GPU.
        """
        try:
            self._driver = driver or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise ProbeUnavailable(
                f"a gpu tier needs NVIDIA's driver ({error}); or simulate it: gpu=sim"
            ) from None
        count, device, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128)
        try:
            self._call("cuInit", 0)
            self._call("cuDeviceGetCount", ctypes.byref(count))
        except OSError as error:
            raise DeviceError(f"no GPU: {error.strerror}; simulate it: gpu=sim") from None
        if number >= count.value:
            raise DeviceError(f"gpu:device={number}: there are {count.value}; number them from 0")
        self._call("cuDeviceGet", ctypes.byref(device), number)
        self._call("cuDeviceGetName", name, len(name), device)
        self.name, self._resources = name.value.decode(), list[tuple[str, Any]]()
        self._context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self._resources.append(("cuDevicePrimaryCtxRelease_v2", device))

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code == _OUT_OF_MEMORY:
            raise MemoryError(self.error_name(code))
        if code:
            raise OSError(errno.EIO, self.error_name(code))

    def _acquire(self, name: str, release_name: str, *arguments: object) -> int:
        """Call the driver's function `name`, and remember the function that frees its result."""
        resource = ctypes.c_void_p()
        self.use()
        self._call(name, ctypes.byref(resource), *arguments)
        self._resources.append((release_name, resource))
        return resource.value or 0

    def error_name(self, code: int) -> str:
        """Return the driver's name of an error."""
        name = ctypes.c_char_p()
        self._driver.cuGetErrorName(code, ctypes.byref(name))
        return f"CUDA: {(name.value or str(code).encode()).decode()}"

    def use(self) -> None:
        """Make it the calling thread's GPU."""
        self._call("cuCtxSetCurrent", self._context)

    def memory_bytes(self) -> tuple[int, int]:
        """Return the free and the total bytes of its memory, as the driver reports them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.use()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, nbytes: int) -> int:
        """Allocate `nbytes` of its memory and return their address; MemoryError if they do not fit."""
        return self._acquire("cuMemAlloc_v2", "cuMemFree_v2", ctypes.c_size_t(nbytes))

    def copier(self, staging_bytes: int) -> Any:
        """Return the GPU resources of one copying thread: a stream, two events, pinned host memory."""
        stream = self._acquire("cuStreamCreate", "cuStreamDestroy_v2", _NON_BLOCKING)
        begins, ends = (self._acquire("cuEventCreate", "cuEventDestroy_v2", 0) for _ in range(2))
        staging = 0
        if staging_bytes:
            size = ctypes.c_size_t(staging_bytes)
            staging = self._acquire("cuMemHostAlloc", "cuMemFreeHost", size, 0)
        return CopierStruct(stream, begins, ends, staging)

    def struct(self, copiers: Any, *, is_within: bool) -> Any:
        """Return the C struct of the driver's functions, for `copiers` of the engine."""
        function_names = {
            "use": "cuCtxSetCurrent",
            "record": "cuEventRecord",
            "copy": "cuMemcpyAsync",
            "wait": "cuEventSynchronize",
            "elapsed": "cuEventElapsedTime",
        }
        addresses = {
            field: ctypes.cast(getattr(self._driver, name), ctypes.c_void_p).value
            for field, name in function_names.items()
        }
        return GpuStruct(
            context=self._context,
            copier=ctypes.addressof(copiers),
            is_within=is_within,
            **addresses,
        )

    def pin(self, arena: Arena) -> None:
        """Pin host buffers for copies and cuFile; DeviceError if the driver refuses."""
        self.use()
        try:
            self._call(
                "cuMemHostRegister_v2",
                ctypes.c_void_p(arena.address),
                ctypes.c_size_t(arena.nbytes),
                0,
            )
        except (OSError, MemoryError) as error:
            raise DeviceError(
                f"{format_bytes(arena.nbytes)} of buffers cannot be pinned for the GPU: {error}; "
                f"lower {named('queue_depth')} or {named('io_bytes')}"
            ) from None
        self._resources.append(("cuMemHostUnregister", ctypes.c_void_p(arena.address)))

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Copy between any two memories and wait for the end; OSError if the copy fails."""
        self.use()
        self._call(
            "cuMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(nbytes)
        )

    def close(self) -> None:
        """Free all resources.

        The driver may refuse after an error of the GPU, which no longer matters.
        """
        self._driver.cuCtxSetCurrent(self._context)
        while self._resources:
            release_name, resource = self._resources.pop()
            getattr(self._driver, release_name)(resource)


_OUT_OF_MEMORY, _NON_BLOCKING = 2, 1


class GpuTier(RamTier):
    """Objects in the memory of one GPU, in one piece that is allocated before the replay begins."""

    engine = "gpu"

    def __init__(
        self,
        name: str,
        number: int,
        io_bytes: int,
        make_device: Callable[[int], CudaDevice] = CudaDevice,
        *,
        is_within: bool = False,
        is_verified: bool = False,
    ) -> None:
        """Store objects of the tier `name` on GPU `number`.

        With `is_within`, copies stay on the device.
        """
        super().__init__(name, io_bytes, is_verified=is_verified)
        self.target = f"gpu:{number}"
        self._number, self._make_device, self._is_within = number, make_device, is_within
        self._open_resources = ExitStack()
        self._copiers: Any = ()
        self._gpu: Any = None

    def open(self, peak_bytes: int) -> None:
        """Open the GPU, check that the trace's peak fits its free memory, and allocate memory for
        objects and copies.
        """
        self._device = device = self._open_resources.enter_context(
            closing(self._make_device(self._number))
        )
        sink_bytes = max(2, SINK_BYTES // self._io_bytes) * self._io_bytes if self._is_within else 0
        staging_bytes = 0 if self._is_within else self._io_bytes
        free, total = device.memory_bytes()
        if peak_bytes + sink_bytes > free:
            raise DeviceError(
                f"{entry('tiers', self.name, 'gpu')}: the replay needs up to"
                f" {format_bytes(peak_bytes + sink_bytes)} there, but {device.name} has"
                f" {format_bytes(free)} free; {self._holding.advice(self.name, free - sink_bytes)}"
            )
        unit = PAGE_BYTES if self._is_verified else UNIT_BYTES
        # Free extents lie scattered, as on a file.
        spare = min(
            int(peak_bytes * SPARE_SHARE) + PAGE_BYTES,
            max(0, free - peak_bytes - sink_bytes - DRIVER_BYTES),
        )
        size = -(-(peak_bytes + spare) // unit) * unit
        try:
            self._address = device.allocate(size)
            self._sink_region = (device.allocate(sink_bytes) if sink_bytes else 0, sink_bytes)
            copiers = [device.copier(staging_bytes) for _ in range(copy_threads())]
        except MemoryError as error:
            raise DeviceError(
                f"{entry('tiers', self.name, 'gpu')}: {device.name} has no room for"
                f" {format_bytes(size + sink_bytes)} in one piece ({error});"
                f" {self._holding.advice(self.name, free - sink_bytes)}"
            ) from None
        self._touched_bytes = size
        self._space = Space(size, unit, 0)
        self._space.expect(self._holding.grown)
        self._copiers = (CopierStruct * len(copiers))(*copiers)
        self._gpu = device.struct(self._copiers, is_within=self._is_within)
        self._facts = {"device_bytes": total, "pinned_bytes": staging_bytes * len(copiers)}

    def native(self) -> Native:
        """Return its description for the C engine."""
        if self._gpu is None:
            return super().native()
        sink, sink_bytes = self._sink_region
        tier_fields = {"sink": sink, "sink_bytes": sink_bytes, "gpu": ctypes.addressof(self._gpu)}
        return dataclasses.replace(super().native(), fields=tier_fields)

    def why_failed(self, code: int) -> str:
        """Return the driver's name of the GPU's last error, if it had one."""
        is_known = self._gpu is not None and self._gpu.error
        return self._device.error_name(self._gpu.error) if is_known else super().why_failed(code)

    def facts(self) -> dict[str, object]:
        """Return the facts of the GPU and of its copies in each direction.

        Copies that populate the tier are included.
        """
        transfers = {
            direction: {
                counter: sum(getattr(copier, counter)[index] for copier in self._copiers)
                for counter in ("copies", "bytes", "event_ns")
            }
            for index, direction in enumerate(KINDS)
        }
        return {
            "is_simulated": False,
            "device": self._device.name,
            "copy": "device" if self._is_within else "host",
            "copy_threads": len(self._copiers),
            **self._facts,
            "transfers": {
                direction: counters
                for direction, counters in transfers.items()
                if counters["copies"]
            },
            "note": (
                "latencies are the host's; event_ns is between GPU events around each copy, its"
                " launch included"
            ),
        }

    def close(self) -> None:
        """Free everything."""
        self._space = None
        self._open_resources.close()


def gpu_options(options: Mapping[str, str], option: str, *, is_verified: bool) -> tuple[int, bool]:
    """Return the number of the GPU, and whether copies stay on it.

    ConfigError, which quotes the text `option` of the tier, for an invalid option.
    """
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"{option}: unknown option {name!r}; gpu takes {', '.join(OPTIONS)}")
    number, copy = options.get("device", "0"), options.get("copy", "host")
    if not number.isdigit():
        raise ConfigError(f"{option}: device is a number from 0")
    if copy not in ("host", "device"):
        raise ConfigError(
            f"{option}: copy is host (to and from pinned host memory) or device (within the GPU)"
        )
    if copy == "device" and is_verified:
        raise ConfigError(
            f"{option}: {named('verify')} needs the data, which copy=device does not move to it;"
            " leave one out"
        )
    return int(number), copy == "device"


_WRITE = 1
KVIKIO_NEEDED = (
    "--gds needs kvikio ({}): "
    + how_to_add("gds")
    + "; and NVIDIA's driver with nvidia-fs for direct I/O"
)


class CuFilePath(msgspec.Struct, frozen=True, kw_only=True):
    """The path of cuFile's data: direct, or through host memory."""

    is_direct: bool
    """Whether GPUDirect Storage is available and in use."""
    allows_compat: bool | None
    """Whether cuFile may fall back to host memory for files it cannot reach directly (cufile.json).

    Null if unknown.
    """
    library: str
    note: str


class Kvikio:
    """The library kvikio, which calls cuFile."""

    def __init__(self) -> None:
        """Load the library.

        ProbeUnavailable, with the package to install, if it or cuFile is missing.
        """
        try:
            import kvikio
            import kvikio.cufile_driver
            import kvikio.defaults
        except (ImportError, OSError, RuntimeError) as error:
            raise ProbeUnavailable(
                KVIKIO_NEEDED.format(" ".join(str(error).split())[:100])
            ) from None
        self._kvikio = kvikio

    def open(self, path: str, mode: str) -> Any:
        """Open a file; kvikio takes the modes r, w (truncates) and r+."""
        return self._kvikio.CuFile(path, mode)

    def data_path(self) -> CuFilePath:
        """Return the path that data takes."""
        properties = self._kvikio.cufile_driver.properties
        try:
            has_driver, allows = (
                bool(properties.is_gds_available),
                bool(properties.allow_compat_mode),
            )
        except (AttributeError, RuntimeError):
            has_driver, allows = False, None
        is_direct = has_driver and not self._kvikio.defaults.is_compat_mode_preferred()
        fallback = (
            "; cuFile may still bounce on a filesystem that it cannot reach (allow_compat_mode)"
        )
        direct = f"GPUDirect Storage{fallback if allows else ''}"
        note = direct if is_direct else "compat mode: data went through host memory"
        return CuFilePath(
            is_direct=is_direct,
            allows_compat=allows,
            library=f"kvikio {self._kvikio.__version__}",
            note=note,
        )


class Mirror:
    """Memory of a GPU that mirrors buffers of the host, as libraries for GPUs take an array."""

    def __init__(self, arena: Arena, gpu_address: int) -> None:
        """Mirror `arena` at `gpu_address`."""
        self.start, self.end = arena.address, arena.address + arena.nbytes
        self.gpu_address = gpu_address
        self.__cuda_array_interface__ = {
            "shape": (arena.nbytes,),
            "typestr": "|u1",
            "data": (gpu_address, False),
            "strides": None,
            "version": 3,
        }


class GdsTier(FileTier):
    """A directory of files that cuFile reads and writes."""

    engine = "gds"
    has_ring = False
    is_of_gpu = True

    def __init__(
        self,
        name: str,
        directory: Path,
        options: StorageOptions,
        make_device: Callable[[int], CudaDevice] = CudaDevice,
        make_library: Callable[[], Any] = Kvikio,
        *,
        is_verified: bool,
    ) -> None:
        """Move the objects of the tier `name`, files below `directory`, to and from GPU 0."""
        super().__init__(name, directory, options)
        self._make_device, self._make_library, self._is_verified = (
            make_device,
            make_library,
            is_verified,
        )
        self._open_resources = ExitStack()
        self._mirrors: list[Mirror] = []

    def place(self) -> bool:
        """Return False: cuFile passes no streams on to a drive."""
        return False

    def native(self) -> Native:
        """Return its description: the methods below perform its operations."""
        return Native(TierKind.PYTHON)

    def open(self, peak_bytes: int) -> None:
        """Load the library and open the GPU, then claim the directory."""
        self._library = self._make_library()
        self._device = self._open_resources.enter_context(closing(self._make_device(0)))
        super().open(peak_bytes)

    def pin(self, arena: Arena) -> None:
        """Pin the engine's buffers, and allocate their mirror on the device."""
        self._device.pin(arena)
        try:
            self._mirrors.append(Mirror(arena, self._device.allocate(arena.nbytes)))
        except MemoryError:
            raise DeviceError(
                f"{self._device.name} has no {arena.nbytes >> 20} MiB free for {named('is_gds')};"
                f" lower {named('queue_depth')} or {named('io_bytes')}"
            ) from None

    def _mirror(self, buffer: memoryview) -> tuple[Mirror, int]:
        """Return the mirror that contains `buffer`, and the offset of `buffer` in it."""
        address = address_of(buffer)
        for mirror in self._mirrors:
            if mirror.start <= address < mirror.end:
                return mirror, address - mirror.start
        raise AssertionError("the buffer is pinned")

    def stage(self, data: memoryview) -> None:
        """Copy generated data to the device, where its write reads it; not measured."""
        mirror, mirror_offset = self._mirror(data)
        self._device.copy(mirror.gpu_address + mirror_offset, address_of(data), len(data))

    def begin(self, op: int, object_id: int) -> Handle:
        """Open the object's file, without truncating an existing one."""
        path = self.path(object_id)
        self._device.use()
        mode = "r" if op != _WRITE else "r+" if Path(path).exists() else "w"
        return _checked(lambda: self._library.open(path, mode))

    def write(self, handle: Handle, offset: int, data: memoryview) -> None:
        """Write the mirror of `data`, which was staged."""
        mirror, mirror_offset = self._mirror(data)
        written = _checked(lambda: handle.raw_write(mirror, len(data), offset, mirror_offset))
        if written != len(data):
            raise OSError(errno.EIO, f"short write: {written} of {len(data)} bytes")

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        """Read into the mirror of `into`; copy that to the host only if it is to be verified."""
        mirror, mirror_offset = self._mirror(into)
        nbytes = int(_checked(lambda: handle.raw_read(mirror, len(into), offset, mirror_offset)))
        if self._is_verified and nbytes:
            self._device.copy(address_of(into), mirror.gpu_address + mirror_offset, nbytes)
        return nbytes

    def end(self, op: int, handle: Handle) -> None:
        """Close the file, after fdatasync if that is the policy."""
        try:
            if op == _WRITE and self.is_synced:
                os.fdatasync(handle.fileno())
        finally:
            handle.close()

    def delete(self, object_id: int) -> None:
        """Remove the object's file."""
        Path(self.path(object_id)).unlink()

    def facts(self) -> dict[str, object]:
        """Return the directory's facts, and the path that data took."""
        data_path = msgspec.to_builtins(self._library.data_path())
        return {**super().facts(), "gds": {"device": self._device.name, **data_path}}

    def close(self) -> None:
        """Unpin the buffers, free the mirrors, release the directory."""
        self._open_resources.close()
        super().close()


def _checked(call: Callable[[], Any]) -> Any:
    """Return the result of `call`, and turn a RuntimeError into the OSError that engines expect."""
    try:
        return call()
    except RuntimeError as error:
        raise OSError(errno.EIO, f"cuFile: {' '.join(str(error).split())}") from None
