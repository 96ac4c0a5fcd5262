"""The protocols of tiers: what an engine asks of any tier, and of storage, io_uring and GPU tiers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from kvreplay.data.buffers import Arena
from kvreplay.tiers.layout import FileLayout


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """How storage tiers do I/O."""

    is_direct: bool = True
    """O_DIRECT for files; false only for `--buffered`."""
    fsync: str = "never"
    """`never`, or `close`: fdatasync before a written file is closed, within the operation's time."""
    advice: str = "none"
    """What buffered files are advised by posix_fadvise: `none`, `sequential` when one is opened, or `dontneed`."""
    is_kept: bool = False
    """Leave files at the end."""
    is_destroying: bool = False
    """Whether block devices may be overwritten; only for `--destroy-data`."""
    overwritten: str | None = None
    """Signatures on block devices that may be lost, with commas between them; only for `--overwrite-signature`."""
    is_discarding: bool = False
    """Whether a delete discards its extent of a block device; only for `--discard`."""
    layout: FileLayout = FileLayout.HASHED
    """How files are named."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What a replay will hold on a tier."""

    peak_bytes: Sequence[int]
    """By drive: the most at once, every object as long as it will get."""
    grown: Mapping[int, int] = field(default_factory=dict)
    """By id of an object that is written on beyond its end: how long it gets at most."""
    ahead_bytes: int = 0
    """How much may be written before deletes that the trace has before it."""
    together_bytes: Sequence[int] = ()
    """By drive: the most at once of all tiers that share its space."""


@dataclass(frozen=True, slots=True)
class RingFiles:
    """How compiled code finds the files of a tier."""

    layout: FileLayout
    directories: Sequence[int]
    """By drive: the descriptor of the directory that the layout's names lie below."""
    drive_of: Any = None
    """uint8 an object id; None where there is one drive."""


NOWHERE = -1
FD_SHIFT = 48
"""A place is a descriptor, then where in its file an object begins."""


def place(fd: int, start: Any) -> Any:
    """Return a descriptor and where an object begins as one number; for an array of starts, an array."""
    return fd << FD_SHIFT | start


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an open file or device."""

    fd: int
    start: int
    length: int


class Tier(Protocol):
    """A place that holds objects; everything but `open` and `close` is called from many threads."""

    name: str
    target: str
    engine: str
    """The contract's name of the path that does its I/O."""
    alignment: int
    """Offsets and lengths asked of it are padded to this many bytes."""
    is_simulated: bool
    """Whether nothing moves."""

    def open(self, peak_bytes: int) -> None:
        """Claim the target and check that `peak_bytes` fit; DeviceError if they do not."""

    def reserve(self, object_id: int, end: int) -> None:
        """Make room for an object up to byte `end`, before its write is submitted; not measured."""

    def begin(self, op: int, object_id: int) -> Any:
        """Return a handle for reading or writing the object; part of the operation's time."""

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`."""

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        """Read up to `len(into)` bytes from `offset`; return how many came."""

    def end(self, op: int, handle: Any) -> None:
        """Finish with a handle; part of the operation's time."""

    def delete(self, object_id: int) -> None:
        """Remove the object and free what it took."""

    def facts(self) -> dict[str, Any]:
        """Return what run.json says of this tier."""

    def close(self) -> None:
        """Give up the target and remove our own files."""


@runtime_checkable
class PlannedTier(Tier, Protocol):
    """A tier that makes its room before the replay begins."""

    def expect(self, holding: Holding) -> None:
        """Take note, before `open`, of what the replay will store there."""


@runtime_checkable
class StorageTier(PlannedTier, Protocol):
    """A tier on storage."""

    @property
    def drives(self) -> Sequence[Drive]:
        """What it lies on: itself, unless it is several."""


@runtime_checkable
class Drive(StorageTier, Protocol):
    """A tier on one directory, file or device."""

    def region(self, peak_bytes: int) -> AbstractContextManager[Region]:
        """Return the region to be written full: a file of `peak_bytes` in a directory, else all there is."""


def drives_of(tiers: list[Tier | None]) -> Iterator[Drive]:
    """Yield every directory, file and device that the tiers lie on."""
    for tier in tiers:
        if isinstance(tier, StorageTier):
            yield from tier.drives


@runtime_checkable
class RingExtents(Protocol):
    """A tier whose objects are extents of open files, which a ring reads and writes in place."""

    engine: str
    is_synced: bool
    """Whether a write is synchronized before it counts as done."""
    is_discarding: bool
    """Whether a delete asks something of the device."""

    def ring_extent(self, object_id: int) -> tuple[int, int]:
        """Return the descriptor of the object's file and where in it the object begins; OSError if there is none."""

    def ring_reserve(self, objects: Any, ends: Any) -> tuple[Any, list[tuple[int, OSError]]]:
        """Do what `reserve` does for each of `objects` up to byte `ends` (int64).

        Returns the `place` of each (int64; NOWHERE: none), and the index of each that failed, and why.
        """

    def ring_places(self, objects: int) -> Any:
        """Return int64 for each of `objects`: its `place`, or NOWHERE."""

    def delete(self, object_id: int) -> None:
        """Give the object's space back."""


@runtime_checkable
class CopiedTier(Protocol):
    """A tier whose objects lie in memory, so that threads of compiled code may do its operations."""

    is_copied: bool
    """Whether they may, in this run."""

    def copy_sink(self) -> tuple[int, int]:
        """Address and size of the place that reads are copied to, in turn."""

    def copy_place(self, object_id: int) -> int:
        """Return the object's address; OSError if it has none."""

    def copy_places(self, objects: int) -> Any:
        """Return int64 for each of `objects`: its address, or NOWHERE."""


def copied(tier: Tier | None) -> CopiedTier | None:
    """Return `tier` if threads of compiled code may do its operations, else None."""
    return tier if isinstance(tier, CopiedTier) and tier.is_copied else None


@runtime_checkable
class RingTier(Protocol):
    """A tier of files, on which the kernel can do whole operations from an io_uring."""

    engine: str
    is_synced: bool
    """Whether a written file is synchronized before it is closed."""
    has_ring: bool
    """Whether a ring may do its operations; not where they are to be certain calls of the system."""
    opened_advice: int | None
    """What to advise of a file's pages once it is open, for posix_fadvise(2); None: nothing."""
    closing_advice: int | None
    """And before it is closed."""

    def ring_path(self, object_id: int) -> bytes:
        """Return the path of the object's file."""

    def ring_flags(self, op: int) -> int:
        """Return how to open it, for open(2); without O_CLOEXEC, which places of a ring do not take."""

    def ring_files(self) -> RingFiles:
        """Return how compiled code finds the objects' files."""


def on_ring(tier: Tier | None) -> RingTier | None:
    """Return `tier` if a ring may do its operations on files, else None."""
    return tier if isinstance(tier, RingTier) and tier.has_ring else None


@runtime_checkable
class DeviceTier(Protocol):
    """A tier whose data passes through a GPU."""

    def pin(self, arenas: Sequence[Arena]) -> None:
        """Make the engine's buffers ready for the GPU, before anything runs; DeviceError if that fails."""

    def stage(self, data: memoryview) -> None:
        """Copy generated data to where its write starts from, such as the GPU; not measured."""


@runtime_checkable
class WholeTier(Protocol):
    """A tier whose operations each are one request, however many buffers their data takes."""

    def begin_whole(self, op: int, object_id: int, start: int, end: int, *, is_split: bool) -> Any:
        """Do what `begin` does for bytes `start` to `end`; `is_split`: their data takes several buffers."""

    def end_whole(self, op: int, handle: Any) -> None:
        """Send what the buffers of a split write brought; part of the operation's time, which begins with it."""

    def take_retries(self) -> int:
        """Return how many requests the calling thread sent again since it last asked."""


class ModelledTier(Protocol):
    """A tier where nothing moves, and operations take the time that a model says."""

    def wait(self, op: int, length_bytes: int, now_ns: int) -> int:
        """Sleep while the operation takes; return when it is done by the model, on the monotonic clock."""


def modelled(tier: Tier | None) -> ModelledTier | None:
    """Return `tier` if a model says its times, else None."""
    return tier if getattr(tier, "is_timed", False) else None  # type: ignore[return-value]


def has_times(tier: Tier) -> bool:
    """Return whether its operations have times: measured ones, or a model's."""
    return not tier.is_simulated or modelled(tier) is not None
