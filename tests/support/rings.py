"""What the tests of the engine share.

Rows laid out, an engine driven, and the data that it must have written.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pytest

from kvreplay.engine.job import Driven, Job
from kvreplay.engine.native_engine import Engine, refusal
from kvreplay.engine.share import OfTier, Share
from kvreplay.plan.contents import DataSource
from kvreplay.plan.row_ring import DELETE, WRITE, RowRing
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding, Native, StorageOptions, Tier, TierKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class PlainFiles(FileTier):
    """Files by Python's calls, which a test changes."""

    has_ring = False

    def native(self) -> Native:
        """Return that its own methods do its operations."""
        return Native(TierKind.PYTHON)

    def begin(self, _op: int, object_id: int) -> int:
        """Open the object's file."""
        return os.open(self.path(object_id), os.O_RDWR | os.O_CREAT, 0o600)

    def write(self, handle: int, offset: int, data: memoryview) -> None:
        """Write all of `data`."""
        assert os.pwrite(handle, data, offset) == len(data)

    def read(self, handle: int, offset: int, into: memoryview) -> int:
        """Read what is there."""
        return os.preadv(handle, [into], offset)

    def end(self, _op: int, handle: int) -> None:
        """Close the file."""
        os.close(handle)

    def delete(self, object_id: int) -> None:
        """Remove the object's file."""
        Path(self.path(object_id)).unlink()


T = TypeVar("T", ExtentTier, FileTier, RamTier)
IO = 16384
REFUSED = refusal()
needs_uring = pytest.mark.skipif(REFUSED is not None, reason=f"no io_uring: {REFUSED}")
SEED = 3
DATA = DataSource(SEED)
ENGINES = ["threads", pytest.param("uring", marks=needs_uring)]


def parted(rings: int, tiers: int = 4) -> Share:
    """Return the share of `rings` rings to which objects of every tier go in turn, by their ids."""
    if rings == 1:
        return Share("asked")
    return Share("asked", (OfTier((0,), (rings,), 1),) * tiers, (("all",),) * rings)


def engine_of(name: str, depth: int, io_bytes: int = IO, rings: int = 1, **options: Any) -> Engine:
    """Return the engine `name`."""
    return Engine(depth, io_bytes, rings=parted(rings) if name == "uring" else None, **options)


def rows_of(rows: Sequence[dict[str, Any]], *, is_open_loop: bool = False) -> RowRing:
    """Return rows by what they say.

    A write's version is its number and 1, a read's the last write's of its object.
    """
    newest: dict[tuple[int, int], int] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("op", "tier", "object_id", "offset_bytes", "length_bytes", "version")
    }
    extra = {name for row in rows for name in row} - set(columns)
    columns |= {name: [] for name in extra}
    for number, row in enumerate(rows):
        key = row.get("tier", 0), row.get("object_id", 0)
        if row["op"] == WRITE:
            newest[key] = number + 1
        for name, values in columns.items():
            default = -1 if name in ("request", "stage", "stream") else 0
            values.append(row.get(name, default) if name != "version" else newest.get(key, 0))
        if row["op"] == DELETE:
            newest.pop(key, None)
    return RowRing.of(
        {name: np.array(values) for name, values in columns.items()}, is_open_loop=is_open_loop
    )


def drive(engine: Engine, rows: RowRing, tiers: Sequence[Any], **job: Any) -> Driven:
    """Do `rows` on `tiers`."""
    interrupted = job.pop("interrupted", lambda: None)
    is_open_loop = bool((rows.all["due_ns"] >= 0).any())
    made = Job(
        rows, tiers, job.pop("data", DATA), is_open_loop=is_open_loop, stall_ns=20 * 10**9, **job
    )
    return engine.drive(made, interrupted, lambda _done: None)


def content(obj: int, version: int, length: int, offset: int = 0) -> bytes:
    """Return what a version of an object holds from `offset` on."""
    expected = bytearray(length)
    DATA.fill(memoryview(expected), obj, version, offset)
    return bytes(expected)


@contextmanager
def opened(tier: T, nbytes: int) -> Iterator[T]:
    """Yield `tier` with room for objects of `nbytes` together."""
    tier.expect(Holding([nbytes]))
    tier.open(nbytes)
    try:
        yield tier
    finally:
        tier.close()


def files_in(
    directory: Path, kind: type[FileTier] = FileTier, **options: Any
) -> AbstractContextManager[FileTier]:
    """Open files below a new directory, through the page cache, so that any filesystem will do."""
    directory.mkdir()
    return opened(kind("nvme", directory, StorageOptions(is_buffered=True, **options)), 0)


def space_in(path: Path, nbytes: int, **options: Any) -> AbstractContextManager[ExtentTier]:
    """Open extents of a file of a quarter more than `nbytes`, through the page cache."""
    return opened(ExtentTier("space", path, StorageOptions(is_buffered=True, **options)), nbytes)


def memory_of(
    nbytes: int, io_bytes: int = IO, *, is_verified: bool = False
) -> AbstractContextManager[RamTier]:
    """Open memory for objects of `nbytes` together."""
    return opened(RamTier("cpu", io_bytes, is_verified=is_verified), nbytes)


def held(tier: ExtentTier | RamTier, obj: int, length: int) -> bytes:
    """Return what lies where an object of extents or memory begins."""
    if isinstance(tier, ExtentTier):
        return os.pread(tier.native().drives[0].fd, length, tier.space.start(obj))
    assert tier._space is not None
    start = tier._space.start(obj)
    found: bytes = tier._memory[start : start + length].tobytes()
    return found


class PythonFiles(Tier):
    """A tier whose operations are Python's: notes each call; object 0 cannot be opened."""

    name = target = "guarded"
    engine, alignment = "threads", 4096

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, int]] = []
        """What, object, offset, bytes."""
        self.most: dict[int, int] = {}
        """By object: calls that moved its bytes at once."""
        self._now: dict[int, int] = {}
        self._lock = threading.Lock()

    def reserve(self, object_id: int, end: int) -> None:
        self._note("reserve", object_id, 0, end)

    def begin(self, _op: int, object_id: int) -> int:
        if object_id == 0:
            raise PermissionError(13, "Permission denied")
        self._note("begin", object_id)
        return object_id

    def write(self, handle: int, offset: int, data: memoryview) -> None:
        self._moved("write", handle, offset, len(data))

    def read(self, handle: int, offset: int, into: memoryview) -> int:
        self._moved("read", handle, offset, len(into))
        return len(into)

    def end(self, _op: int, handle: int) -> None:
        self._note("end", handle)

    def delete(self, object_id: int) -> None:
        self._note("delete", object_id)

    def _note(self, what: str, obj: int, offset: int = 0, nbytes: int = 0) -> None:
        with self._lock:
            self.calls.append((what, obj, offset, nbytes))

    def _moved(self, what: str, obj: int, offset: int, nbytes: int) -> None:
        with self._lock:
            self._now[obj] = self._now.get(obj, 0) + 1
            self.most[obj] = max(self.most.get(obj, 0), self._now[obj])
        threading.Event().wait(0.001)
        with self._lock:
            self._now[obj] -= 1
        self._note(what, obj, offset, nbytes)

    def of(self, *what: str) -> list[tuple[str, int, int, int]]:
        """Return the calls of these kinds."""
        return [call for call in self.calls if call[0] in what]
