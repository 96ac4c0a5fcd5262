"""How near the `gpu` tier comes to the driver's own copies: pinned host memory to the GPU, back, and within it.

The driver's side is one stream of copies between two events, as NVIDIA's bandwidthTest does it; ours is the tier's
writes and reads from four threads, by the wall clock. Printed are medians of three, and of each pair's ratio.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvreplay.plan.buffers import Arena
from kvreplay.tiers.gpu import Copy, CudaDevice, GpuTier
from kvtrace.core.errors import KvError

RUNS, THREADS = 3, 4
SIZES = (256 << 10, 1 << 20, 4 << 20, 16 << 20)
TOTAL_BYTES = 8 << 30
OBJECTS = 64
READ, WRITE = 0, 1


def driver(device: CudaDevice, cupy: Any, arena: Arena, size: int, kind: Copy) -> float:
    """Return GB/s of back-to-back copies of `size` on one stream."""
    memory, other = device.allocate(OBJECTS * size), device.allocate(OBJECTS * size)
    stream, start, end = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(), cupy.cuda.Event()
    count = TOTAL_BYTES // size
    start.record(stream)
    for index in range(count):
        here, there = memory.ptr + index % OBJECTS * size, other.ptr + index % OBJECTS * size
        host = arena.address + index % THREADS * arena.slot_bytes
        to, source = {Copy.H2D: (here, host), Copy.D2H: (host, here), Copy.D2D: (here, there)}[kind]
        cupy.cuda.runtime.memcpyAsync(to, source, size, int(kind), stream.ptr)
    end.record(stream)
    end.synchronize()
    return count * size / (cupy.cuda.get_elapsed_time(start, end) / 1e3) / 1e9


def tier(held: GpuTier, arena: Arena, size: int, op: int) -> float:
    """Return GB/s of the tier's operations from all threads."""

    def work(lane: int) -> None:
        view = arena.view(arena.address + lane * arena.slot_bytes, size)
        for index in range(lane, count, THREADS):
            handle = held.begin(op, index % OBJECTS)
            if op == WRITE:
                held.write(handle, 0, view)
            else:
                held.read(handle, 0, view)

    count = TOTAL_BYTES // size
    with ThreadPoolExecutor(THREADS) as pool:
        started = time.perf_counter()
        list(pool.map(work, range(THREADS)))
        return count * size / (time.perf_counter() - started) / 1e9


def main() -> None:
    try:
        device = CudaDevice(0)
    except KvError as error:
        print(f"skipped: no GPU ({error})")
        return
    import cupy

    print(f"gpu tier, {THREADS} threads, against the driver's copies on {device.name}, GB/s")
    print("size       copy  tier   driver  ratio")
    for size in SIZES:
        arena = Arena(THREADS, size)
        for is_within, ops in ((False, ((WRITE, Copy.H2D), (READ, Copy.D2H))), (True, ((READ, Copy.D2D),))):
            held = GpuTier("gpu", 0, size, lambda _: device, is_within=is_within)
            held.open(OBJECTS * size)
            # Plain memory would go through the driver's own bounce buffers, on both sides.
            held.pin(arena)
            for index in range(OBJECTS):
                held.reserve(index, size)
            for op, kind in ops:
                pairs = [(tier(held, arena, size, op), driver(device, cupy, arena, size, kind)) for _ in range(RUNS)]
                ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
                ratio = statistics.median(a / b for a, b in pairs)
                print(f"{size >> 10:6d} KiB {kind.name}  {ours:6.1f}  {theirs:6.1f}   {ratio:.2f}")
            held.close()


if __name__ == "__main__":
    main()
