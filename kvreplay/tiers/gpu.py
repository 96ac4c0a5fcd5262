"""GPU memory: objects lie on the device, and every operation is one copy, timed by the device as well.

By default data crosses between pinned host buffers and the GPU, as a demotion's or a promotion's does; with
`gpu:copy=device` it stays there, as a hit in the GPU's own cache does.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvreplay.data.buffers import Arena
from kvreplay.tiers.device import Copy, Device, Memory
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.units import NS_PER_S, format_bytes

PAGE_BYTES = 4096
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


def address_of(buffer: memoryview) -> int:
    """Return where `buffer` lies."""
    import numpy as np

    return int(np.frombuffer(buffer, dtype=np.uint8).ctypes.data)


class Pins:
    """The engine's host buffers, pinned for as long as a tier is open."""

    def __init__(self, device: Device) -> None:
        """Pin nothing yet."""
        self._device, self._pinned = device, list[int]()
        self.nbytes = 0

    def add(self, arenas: Sequence[Arena]) -> None:
        """Pin `arenas`; DeviceError if the driver refuses."""
        for arena in arenas:
            address = arena.address
            try:
                self._device.pin(address, arena.nbytes)
            except OSError as error:
                raise DeviceError(
                    f"{format_bytes(arena.nbytes)} of buffers cannot be pinned for the GPU: {error.strerror}; "
                    "lower --queue-depth or --io-bytes"
                ) from None
            self._pinned.append(address)
            self.nbytes += arena.nbytes

    def close(self) -> None:
        """Unpin all."""
        while self._pinned:
            self._device.unpin(self._pinned.pop())


class GpuTier:
    """Objects in the memory of one GPU."""

    engine = "gpu"
    is_simulated = False

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
        self._objects: dict[int, tuple[Memory, int]] = {}
        self._transfers = Transfers()
        self._pins: Pins | None = None

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
        self._pins = Pins(device)
        if turn_bytes:
            self._place = device.allocate(turn_bytes)
            self._turn = itertools.cycle(range(0, turn_bytes, self._io_bytes))

    def pin(self, arenas: Sequence[Arena]) -> None:
        """Pin the engine's buffers, which copies go to and from."""
        assert self._pins is not None, "the tier is open"
        if not self._is_within:
            self._pins.add(arenas)

    def stage(self, data: memoryview) -> None:
        """Do nothing: data is copied from where it was made."""

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

    def begin(self, op: int, object_id: int) -> tuple[Memory, int]:
        """Return the object's memory and its length."""
        held = self._objects.get(object_id)
        if held is None:
            raise FileNotFoundError(2, f"object {object_id} is not in tier {self.name}")
        return held

    def write(self, handle: tuple[Memory, int], offset: int, data: memoryview) -> None:
        """Copy `data`, or as much from elsewhere on the device, into the object."""
        to = handle[0].ptr + offset
        if self._is_within:
            self._copy(to, self._place.ptr + next(self._turn), len(data), Copy.D2D)
        else:
            self._copy(to, address_of(data), len(data), Copy.H2D)

    def read(self, handle: tuple[Memory, int], offset: int, into: memoryview) -> int:
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

    def end(self, op: int, handle: Any) -> None:
        """Do nothing: a copy has completed when it returns."""

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
            "pinned_bytes": self._pins.nbytes if self._pins else 0,
            "transfers": self._transfers.facts(),
            "note": "latencies are the host's, launch and wait included; transfers has the device's own times",
        }

    def close(self) -> None:
        """Unpin the buffers and free everything."""
        if self._pins is not None:
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
