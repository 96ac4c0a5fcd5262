"""Writing a file or device full, beside any replay: to lay its space out, or to bring a drive into a lasting state."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvreplay.data.shaping import Fill
    from kvreplay.tiers.tier import Region

MAX_THREADS = 8


class BulkWriter:
    """Writes blocks of a region, from several threads."""

    def __init__(
        self, region: Region, threads: int, fill: Fill, stream: int, interrupted: Callable[[], str | None]
    ) -> None:
        """Write data of `fill`; `stream` numbers what is written full, so that no two hold the same data."""
        self._region, self._threads, self._fill = region, min(threads, MAX_THREADS), fill
        # An id that no object has.
        self._object = -1 - stream
        self._interrupted = interrupted

    def write(self, places: Iterable[int], step: int, turn: int) -> Iterator[int]:
        """Write up to `step` bytes at each of `places` in the region, unless interrupted; yield how much was written.

        What is written differs from `turn` to `turn`.
        """
        waiting = iter(places)
        with ThreadPoolExecutor(self._threads) as pool:
            buffers = [mmap.mmap(-1, step) for _ in range(self._threads)]
            # One round at a time, so that an interruption is seen soon.
            while not self._interrupted():
                jobs = [(buffer, at, turn) for buffer, at in zip(buffers, waiting, strict=False)]
                yield sum(pool.map(self._one, jobs))
                if len(jobs) < self._threads:
                    break

    def _one(self, job: tuple[mmap.mmap, int, int]) -> int:
        buffer, at, turn = job
        block = memoryview(buffer)[: min(len(buffer), self._region.length - at)]
        self._fill(block, self._object, turn, self._region.start + at)
        done = os.pwritev(self._region.fd, [block], self._region.start + at)
        if done != len(block):
            raise OSError(5, "the device takes no more bytes")
        return done


def lay_out(
    region: Region, threads: int, fill: Fill, stream: int, *,
    interrupted: Callable[[], str | None], progress: Callable[[float], None],
) -> int:  # fmt: skip
    """Write all of `region` once, from its start; return how much was written; OSError if the drive refuses."""
    done = 0
    for more in BulkWriter(region, threads, fill, stream, interrupted).write(
        range(0, region.length, LAY_OUT_BYTES), LAY_OUT_BYTES, 0
    ):
        done += more
        progress(done)
    os.fdatasync(region.fd)
    return done


LAY_OUT_BYTES = 1 << 20
