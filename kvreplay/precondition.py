"""`--precondition`: write the drive full before it is measured, as long use would have.

A fresh or trimmed drive writes faster than it will a day later. So a file as large as the tier's peak is
written from end to end, then once more in random order, and removed.
"""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from time import monotonic_ns
from typing import TYPE_CHECKING

import msgspec

from kvtrace.core.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvreplay.shaping import Fill
    from kvreplay.tiers.files import FileTier

RANDOM_BYTES = 64 << 10
MAX_THREADS = 8
_OBJECT = 2**31 - 1
"""An id that no object has, for the data's seed."""


class Preconditioned(msgspec.Struct, frozen=True, kw_only=True):
    """What was written before the run to bring the drive into a lasting state."""

    tier: str
    file_bytes: int
    written_bytes: int
    """Twice the file: once from end to end, once in random order."""
    sequential_io_bytes: int
    random_io_bytes: int
    wall_ns: int
    is_whole: bool
    """False if it was interrupted."""


def precondition(
    tier: FileTier, peak_bytes: int, io_bytes: int, depth: int, fill: Fill, *,
    interrupted: Callable[[], str | None], progress: Callable[[float], None],
) -> Preconditioned:  # fmt: skip
    """Write `peak_bytes`, rounded up to the I/O size, twice on the drive of `tier`, then remove it.

    Raises:
        DeviceError: the drive refuses.

    """
    import numpy as np

    size = -(-peak_bytes // io_bytes) * io_bytes
    small = min(RANDOM_BYTES, io_bytes)
    order = np.random.Generator(np.random.SFC64(0)).permutation(size // small) * small
    path, started = tier.scratch_file("precondition.kv"), monotonic_ns()
    done = 0
    try:
        fd = os.open(path, tier.write_flags, 0o600)
        try:
            for turn, (step, places) in enumerate(((io_bytes, range(0, size, io_bytes)), (small, order.tolist()))):
                writer = _Writer(fd, step, turn, fill, interrupted)
                for more in writer.write(places, min(depth, MAX_THREADS)):
                    done += more
                    progress(done)
                os.fdatasync(fd)
        finally:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - beside os.open
    except OSError as error:
        raise DeviceError(f"--precondition: {tier.target}: {error.strerror or error}") from None
    return Preconditioned(
        tier=tier.name, file_bytes=size, written_bytes=done, sequential_io_bytes=io_bytes, random_io_bytes=small,
        wall_ns=monotonic_ns() - started, is_whole=done == 2 * size,
    )  # fmt: skip


class _Writer:
    """Writes blocks of one size at given places of a file, from several threads."""

    def __init__(self, fd: int, step: int, turn: int, fill: Fill, interrupted: Callable[[], str | None]) -> None:
        self._fd, self._step, self._turn, self._fill = fd, step, turn, fill
        self._interrupted = interrupted

    def write(self, places: Iterable[int], threads: int) -> Iterator[int]:
        """Write at all of `places`, unless interrupted; yield the bytes of each round."""
        waiting = iter(places)
        with ThreadPoolExecutor(threads) as pool:
            buffers = [mmap.mmap(-1, self._step) for _ in range(threads)]
            # One round at a time, so that an interruption is seen soon.
            while not self._interrupted():
                round_ = [(buffer, at) for buffer, at in zip(buffers, waiting, strict=False)]
                yield sum(pool.map(self._one, round_))
                if len(round_) < threads:
                    break

    def _one(self, job: tuple[mmap.mmap, int]) -> int:
        buffer, at = job
        self._fill(memoryview(buffer), _OBJECT, self._turn, at)
        done = os.pwrite(self._fd, buffer, at)
        if done != self._step:
            raise OSError(5, "the device takes no more bytes")
        return done
