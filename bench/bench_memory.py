"""How near the `ram` tier comes to plain copies of numpy: the same sizes, in the same minute, one thread.

Both copy between 1 GiB and a place of 128 MiB in turn, so that neither side stays in the processor's cache. Printed
are medians of three, and the median of each pair's ratio.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from kvreplay.tiers.ram import SINK_BYTES, RamTier

if TYPE_CHECKING:
    from collections.abc import Callable

RUNS = 3
TOTAL_BYTES = 1 << 30
SIZES = (64 << 10, 256 << 10, 1 << 20, 4 << 20)
READ, WRITE = 0, 1


def rate(copy: Callable[[int], object], count: int, size: int) -> float:
    """Return GB/s of `count` calls of `copy`, which takes the number of the object."""
    started = time.perf_counter()
    for index in range(count):
        copy(index)
    return count * size / (time.perf_counter() - started) / 1e9


def sides(size: int) -> dict[str, tuple[Callable[[int], object], Callable[[int], object]]]:
    """Return, by direction, the tier's copy and numpy's, over objects that are all there."""
    count, places = TOTAL_BYTES // size, SINK_BYTES // size
    tier = RamTier("cpu", size)
    tier.open(TOTAL_BYTES)
    sources = np.ones((places, size), np.uint8)
    views = [memoryview(row) for row in sources]
    for index in range(count):
        tier.reserve(index, size)
    plain, sink = np.ones((count, size), np.uint8), np.ones((places, size), np.uint8)

    def plain_read(index: int) -> None:
        sink[index % places] = plain[index]

    def plain_write(index: int) -> None:
        plain[index] = sources[index % places]

    return {
        "read": (lambda i: tier.read(tier.begin(READ, i), 0, views[0]), plain_read),
        "write": (lambda i: tier.write(tier.begin(WRITE, i), 0, views[i % places]), plain_write),
    }


def main() -> None:
    print(f"ram tier against numpy, GB/s; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print("size      op     tier  numpy  ratio")
    for size in SIZES:
        for op, (tier, plain) in sides(size).items():
            count = TOTAL_BYTES // size
            pairs = [(rate(tier, count, size), rate(plain, count, size)) for _ in range(RUNS)]
            ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            print(f"{size >> 10:5d} KiB {op:5s} {ours:5.1f}  {theirs:5.1f}   {ratio:.2f}")


if __name__ == "__main__":
    main()
