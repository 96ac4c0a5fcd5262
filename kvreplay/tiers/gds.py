"""`--gds`: files read and written straight to and from GPU memory by cuFile, through kvikio.

Where cuFile cannot go direct it takes the way through host memory; the run says which it was.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvreplay.data.buffers import Arena
from kvreplay.tiers.device import Copy, Device
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.gpu import Pins, address_of
from kvreplay.tiers.tier import Holding
from kvtrace.core.errors import DeviceError, ProbeUnavailable

_WRITE = 1
WANTED = "--gds needs kvikio ({}): pip install 'kvtrace[gds]', and NVIDIA's driver with nvidia-fs for direct I/O"


class CuFile(Protocol):
    """An open file of kvikio."""

    def raw_read(self, buf: Any, size: int, file_offset: int, dev_offset: int) -> int:
        """Read into device memory; return how many bytes came."""

    def raw_write(self, buf: Any, size: int, file_offset: int, dev_offset: int) -> int:
        """Write from device memory; return how many bytes went."""

    def fileno(self) -> int:
        """Return its descriptor."""

    def close(self) -> None:
        """Close it."""


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

    def open(self, path: str, mode: str) -> CuFile:
        """Open a file; kvikio takes the modes r, w (truncates) and r+."""
        opened: CuFile = self._kvikio.CuFile(path, mode)
        return opened

    def way(self) -> Way:
        """Return how I/O goes."""
        properties = self._kvikio.cufile_driver.properties
        try:
            has_driver, allows = bool(properties.is_gds_available), bool(properties.allow_compat_mode)
        except (AttributeError, RuntimeError):
            has_driver, allows = False, None
        is_direct = has_driver and not self._kvikio.defaults.is_compat_mode_preferred()
        fallback = (
            "; cuFile may still bounce on a filesystem that it cannot reach (allow_compat_mode)" if allows else ""
        )
        note = f"GPUDirect Storage{fallback}" if is_direct else "compat mode: data went through host memory"
        return Way(is_direct=is_direct, allows_compat=allows, library=f"kvikio {self._kvikio.__version__}", note=note)


class GdsTier:
    """A directory's files by cuFile; what a directory is, `files` knows."""

    engine = "gds"
    is_simulated = False

    def __init__(
        self,
        files: FileTier,
        make_device: Callable[[int], Device],
        make_library: Callable[[], Any] = Kvikio,
        *,
        is_synced: bool,
        is_verified: bool,
    ) -> None:
        """Move the objects of `files` to and from GPU 0."""
        self._files, self.name, self.target, self.alignment = files, files.name, files.target, files.alignment
        self._make_device, self._make_library = make_device, make_library
        self._is_synced, self._is_verified = is_synced, is_verified
        self._mirrors: list[tuple[int, int, Any, int]] = []
        self._pins: Pins | None = None

    @property
    def drives(self) -> list[FileTier]:
        """The directory."""
        return self._files.drives

    def expect(self, holding: Holding) -> None:
        """Tell the directory."""
        self._files.expect(holding)

    def open(self, peak_bytes: int) -> None:
        """Load the library and take the GPU, then claim the directory."""
        self._library = self._make_library()
        self._device = self._make_device(0)
        self._pins = Pins(self._device)
        self._files.open(peak_bytes)

    def pin(self, arenas: Sequence[Arena]) -> None:
        """Make a mirror on the device of each of the engine's arenas, and pin them."""
        assert self._pins is not None, "the tier is open"
        self._pins.add(arenas)
        for arena in arenas:
            try:
                memory = self._device.allocate(arena.nbytes)
            except MemoryError:
                raise DeviceError(
                    f"{self._device.name} has no {arena.nbytes >> 20} MiB free for --gds; lower --queue-depth or "
                    "--io-bytes"
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

    def reserve(self, object_id: int, end: int) -> None:
        """Leave it to the directory."""
        self._files.reserve(object_id, end)

    def begin(self, op: int, object_id: int) -> CuFile:
        """Open the object's file; an existing one is not truncated."""
        path = self._files.path(object_id)
        mode = "r" if op != _WRITE else "r+" if Path(path).exists() else "w"
        opened: CuFile = _checked(lambda: self._library.open(path, mode))
        return opened

    def write(self, handle: CuFile, offset: int, data: memoryview) -> None:
        """Write the mirror of `data`, which was staged."""
        array, place, _ = self._mirror(data)
        went = _checked(lambda: handle.raw_write(array, len(data), offset, place))
        if went != len(data):
            raise OSError(errno.EIO, f"the device took only {went} of {len(data)} bytes")

    def read(self, handle: CuFile, offset: int, into: memoryview) -> int:
        """Read into the mirror of `into`; back to the host only to be verified."""
        array, place, pointer = self._mirror(into)
        came = int(_checked(lambda: handle.raw_read(array, len(into), offset, place)))
        if self._is_verified and came:
            self._device.copy(address_of(into), pointer, came, Copy.D2H)
        return came

    def end(self, op: int, handle: CuFile) -> None:
        """Close the file, after fdatasync if that is the policy."""
        try:
            if op == _WRITE and self._is_synced:
                os.fdatasync(handle.fileno())
        finally:
            handle.close()

    def path(self, object_id: int) -> str:
        """Return where an object lies."""
        return self._files.path(object_id)

    def delete(self, object_id: int) -> None:
        """Remove the object's file."""
        self._files.delete(object_id)

    def facts(self) -> dict[str, Any]:
        """Return the directory's facts, and which way data took."""
        way = msgspec.to_builtins(self._library.way())
        return {**self._files.facts(), "gds": {"device": self._device.name, **way}}

    def close(self) -> None:
        """Unpin the buffers, free the mirrors, give up the directory."""
        if self._pins is not None:
            self._pins.close()
        self._mirrors.clear()
        self._files.close()


def _checked(call: Callable[[], Any]) -> Any:
    """Return what `call` gives; kvikio's own errors are RuntimeErrors, an engine takes OSErrors."""
    try:
        return call()
    except RuntimeError as error:
        raise OSError(errno.EIO, f"cuFile: {' '.join(str(error).split())}") from None
