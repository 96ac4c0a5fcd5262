"""The interface of a tier, tiers of several drives, and the file names of objects.

A tier on several drives stores each object on one of them. The object's key selects the drive, or
its id if the trace has no objects table.

Objects stored as files lie in directories of kvreplay's own, or are named as serving engines name
theirs (`--layout`). Only vLLM's layout also makes the system calls of its engine.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.plan.buffers import Arena
from kvreplay.plan.row_ring import REPLAY
from kvtrace.core import np, pc
from kvtrace.core.errors import DeviceError
from kvtrace.core.parameters import named
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.core.units import (
    BYTES_PER_GB,
    BYTES_PER_MB,
    format_bytes,
    format_duration,
    format_rate,
)

if TYPE_CHECKING:
    from kvreplay.tiers.directio import DirectIo

_MASK = (1 << 64) - 1
# SplitMix64's multiplier: odd, so that no two ids meet, and neighbours part in their first digits.
SPREAD = 0xBF58476D1CE4E5B9
_SUBDIRECTORIES = 256
_VLLM_ROOT = "kvreplay_000000000000_r0"
DIRECTORY_NAME = re.compile(r"[0-9a-f]{2,3}|[0-9a-f]{2}_g0|" + _VLLM_ROOT)
"""Names of the directories that a layout makes."""
FILE_NAME = re.compile(
    r"[0-9a-f]{16}\.kv|[0-9a-f]{64}\.bin(_[0-9]+\.tmp)?|kvreplay@1@0@[0-9a-f]{16}@bfloat16\.pt"
)


class FileLayout(StrEnum):
    """Values of `--layout`."""

    HASHED = "hashed"
    FLAT = "flat"
    VLLM = "vllm"
    LMCACHE = "lmcache"


MEANINGS = {
    FileLayout.HASHED: "256 subdirectories by a hash of the object: 3f/000000000000002a.kv",
    FileLayout.FLAT: "one directory: 000000000000002a.kv",
    FileLayout.VLLM: (
        "as vLLM's file tier: <model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<hash, 64 digits>.bin;"
        " and written as it does, measured: access, makedirs, a new temporary file, one write,"
        " close, rename"
    ),
    FileLayout.LMCACHE: (
        "as LMCache's disk backend, one directory: <model>@<world size>@<worker>@<hash>@<dtype>.pt"
    ),
}


_DIGITS = 16
_NAMES: dict[FileLayout, Callable[[str, str], str]] = {
    FileLayout.HASHED: lambda obj, digest: f"{digest[:2]}/{obj}.kv",
    FileLayout.FLAT: lambda obj, _digest: f"{obj}.kv",
    FileLayout.VLLM: lambda obj, digest: (
        f"{_VLLM_ROOT}/{digest[:3]}/{digest[3:5]}_g0/{digest}{'0' * 32}{obj}.bin"
    ),
    FileLayout.LMCACHE: lambda _obj, digest: f"kvreplay@1@0@{digest}@bfloat16.pt",
}
"""Functions that build an object's path below the root.

Their arguments are the 16 hexadecimal digits of the object's id, and those of its hash.
"""


def mixed(object_id: int) -> int:
    """Return a 64-bit hash of an object id; neighbouring ids differ in any of its digits."""
    product = (object_id + 1) * SPREAD & _MASK
    return product ^ (product >> 32)


def path_function(layout: FileLayout, root: str) -> Callable[[int], str]:
    """Return the function that gives an object's path below `root`."""
    name = _NAMES[layout]
    return lambda object_id: f"{root}/{name(f'{object_id:016x}', f'{mixed(object_id):016x}')}"


def name_template(layout: FileLayout) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """Return an object's path below the root as a template for compiled code.

    The path has zeros for all digits. Beside it, for each digit: its index in the path, the bits
    by which the number is shifted right for it, and whether the number is the hash, not the id.
    """
    # Each digit is marked by a character that no path has: first the id's digits, then the hash's.
    marks = "".join(chr(code) for code in range(2 * _DIGITS))
    path = _NAMES[layout](marks[:_DIGITS], marks[_DIGITS:])
    digits = []
    for index, mark in enumerate(path):
        if mark in marks:
            shift = 4 * (_DIGITS - 1 - ord(mark) % _DIGITS)
            digits.append((index, shift, ord(mark) >= _DIGITS))
    return "".join("0" if mark in marks else mark for mark in path).encode(), digits


def make_directories(layout: FileLayout, root: str, objects: int) -> None:
    """Make the directories in `root` that ids below `objects` need, if the layout has few of them.

    For layouts with many, writes make the directories.
    """
    if layout is FileLayout.HASHED:
        # Making and removing a directory can take milliseconds, so a few objects get only the
        # directories they need. A thousand objects use nearly all of them.
        is_few = objects < 4 * _SUBDIRECTORIES
        for index in (
            {mixed(object_id) >> 56 for object_id in range(objects)}
            if is_few
            else range(_SUBDIRECTORIES)
        ):
            path = f"{root}/{index:02x}"
            try:
                os.mkdir(path)  # noqa: PTH102 - beside the paths of objects
            except FileExistsError:
                if os.path.islink(path) or not os.path.isdir(path):  # noqa: PTH112, PTH114 - beside the paths of objects
                    raise DeviceError(
                        f"{path} is in the way and not kvreplay's; move it elsewhere"
                    ) from None


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Options of I/O on storage tiers, named as the fields of `Config`."""

    is_buffered: bool = False
    """Whether I/O goes through the page cache instead of O_DIRECT (`--buffered`)."""
    fsync: str = "never"
    """`never`, or `close`: fdatasync before a written file is closed, within the operation's time.
    """
    advice: str = "none"
    """The posix_fadvise advice for buffered files.

    `none`, `sequential` when a file is opened, or `dontneed` when it is closed.
    """
    is_kept: bool = False
    """Whether files stay at the end."""
    is_taking_over: bool = False
    """Whether files of an earlier run stay at the start, until `FileTier.take_over`."""
    is_destroying: bool = False
    """Whether block devices may be overwritten; only for `--destroy-data`."""
    overwritten: str | None = None
    """Signatures on block devices that may be overwritten, separated by commas.

    Only for `--overwrite-signature`.
    """
    is_discarding: bool = False
    """Whether a delete discards its extent of a block device; only for `--discard`."""
    layout: FileLayout = FileLayout.HASHED
    """How files are named."""


@dataclass(frozen=True, slots=True)
class Holding:
    """The space that a replay needs on a tier."""

    peak_bytes: Sequence[int]
    """Peak of each drive, with every object at its final length."""
    grown: Mapping[int, int] = field(default_factory=dict)
    """Final length of each object that later writes extend, by object id."""
    ahead_bytes: int = 0
    """Bytes that may be written before deletes that precede them in the trace."""
    together_bytes: Sequence[int] = ()
    """Peak of each drive, over all tiers that share its space."""
    objects: int = sys.maxsize
    """One more than the highest id of an object, or more."""
    is_populated: bool = False
    """Whether objects are written before the window begins."""

    def advice(self, tier: str, free_bytes: int) -> str:
        """Return what to do if the space on `tier` is `free_bytes`, which are too few.

        The objects of a replay from the start of the trace are not more than the bytes that it
        reads and writes. Those of a later window are mostly at most twice as many, because the
        objects that it deletes are written first. A tenth is left for what a filesystem needs for
        itself.
        """
        fitting_bytes = free_bytes * 9 // 10
        limited = fitting_bytes // 2 if self.is_populated else fitting_bytes
        if limited < BYTES_PER_MB:
            return f"replay less with {named('limit')}"
        advice = f"replay less with {named('limit', _whole_size(limited))}"
        if sum(self.together_bytes) > sum(self.peak_bytes):
            return advice  # A smaller tier is not enough: others share the space.
        smaller = f"kvtrace gen --set tiers.{tier}.capacity={_whole_size(fitting_bytes)}"
        return f"{advice}, or make the trace with a smaller tier ({smaller})"


def _whole_size(nbytes: int) -> str:
    """Return a size as an option takes it, rounded down to whole MB or GB."""
    if nbytes < 10 * BYTES_PER_GB:
        return f"{nbytes // BYTES_PER_MB}MB"
    return f"{nbytes // BYTES_PER_GB}GB"


Handle = Any
"""The name that a Python tier's library gives to an open object."""


class TierKind(IntEnum):
    """The engine's ways to perform a tier's operations, by the numbers of replay.h."""

    NOTHING = 0
    """Operations take no time, and no data moves."""
    EXTENTS = 1
    """Objects are extents of open files or devices."""
    FILES = 2
    """Each object is a file of its own."""
    MEMORY = 3
    """Objects lie in memory; threads copy to and from there."""
    MODELLED = 4
    """No data moves, and a model gives the times."""
    PYTHON = 5
    """The tier's own methods perform the operations."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A model of operation times: each direction is one first-come, first-served server."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int
    """Latency of one operation, added after its time on the server."""
    concurrency: int = 0
    """Operations served at once, which bounds their rate by the latency; 0 is unbounded."""
    source: str
    """Origin of the numbers."""

    @property
    def least_ns(self) -> int:
        """The minimum time for which an operation occupies the server.

        Its bytes may take longer.
        """
        return self.latency_ns // self.concurrency if self.concurrency else 0

    def __str__(self) -> str:
        at_once = f", {self.concurrency} at once" if self.concurrency else ""
        return (
            f"reads at {format_rate(self.read_bytes_per_s)}, writes at"
            f" {format_rate(self.write_bytes_per_s)}, latency"
            f" {format_duration(self.latency_ns)}{at_once} ({self.source})"
        )


NativeDrive = REPLAY.struct("Drive")
"""The C struct of one directory, file or device of a tier, or of its memory."""


@dataclass(frozen=True, slots=True)
class Native:
    """The description of an open tier for the C engine."""

    kind: TierKind
    drives: Sequence[ctypes.Structure] = ()
    """Structs of the type NativeDrive."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """Further fields of the struct Tier of replay.h."""
    layout: FileLayout | None = None
    service: Service | None = None
    drive_of: np.ndarray | None = None
    """Index of each object's drive: uint8, by object id. None if there is one drive."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an open file or device."""

    fd: int
    start: int
    length: int


class Tier:
    """A place that stores objects, with the defaults of all kinds of tiers.

    Unless `native` returns another kind than PYTHON, many threads perform operations by the methods
    `reserve` to `delete`.
    """

    name: str
    target: str
    engine: str
    """Name of the I/O path in the tables."""
    alignment = 1
    """Offsets and lengths of I/O are padded to multiples of this many bytes."""
    is_simulated = False
    """Whether no data moves."""
    has_times = True
    """Whether operations have times: measured ones, or a model's."""
    service: Service | None = None
    """The model of operation times."""
    has_ring = False
    """Whether an io_uring may perform the operations; then the tier is on storage."""
    is_copied = False
    """Whether threads copy its data to and from memory."""
    is_of_gpu = False
    """Whether its I/O passes through a GPU, which `pin` and `stage` prepare."""
    drives: Sequence[Drive] = ()
    """The directories, files and devices that it lies on; none if it is not on storage."""
    write_streams = 0
    """Number of write streams that io_uring requests may name; 0 if there are none."""
    _holding = Holding([0])

    def expect(self, holding: Holding) -> None:
        """Note, before `open`, the space that the replay needs there."""
        self._holding = holding

    def place(self) -> bool:
        """Note, before `open`, that writes have streams.

        Return whether the tier can pass streams on to drives.
        """
        return False

    def open(self, peak_bytes: int) -> None:
        """Claim the target and check that `peak_bytes` fit; DeviceError if they do not."""

    def pin(self, arena: Arena) -> None:
        """Make the engine's buffers ready for the GPU, before anything runs.

        DeviceError if that fails.
        """

    def native(self) -> Native:
        """Return the description for the C engine of the open tier."""
        return Native(TierKind.PYTHON)

    def facts(self) -> dict[str, object]:
        """Return the facts of this tier for run.json."""
        return {"is_simulated": self.is_simulated}

    def warnings(self) -> list[str]:
        """Return warnings about the figures, after the run."""
        return []

    def close(self) -> None:
        """Release the target and remove our own files."""

    def path(self, object_id: int) -> str | None:
        """Return the path or URI of an object, if it has one."""

    def why_no_room(self, object_id: int) -> str | None:
        """Return the reason why an object found no space, if the tier knows it."""

    def why_failed(self, code: int) -> str:
        """Return a description of the failure of an operation that ended with errno `code`."""
        return os.strerror(code)

    def reserve(self, object_id: int, end: int) -> None:
        """Allocate space for an object up to byte `end`, before its write is submitted.

        Not measured.
        """

    def stage(self, data: memoryview) -> None:
        """Copy generated data to the memory that its write reads, such as the GPU's.

        Not measured.
        """

    def begin(self, op: int, object_id: int) -> Handle:
        """Return a handle for reading or writing the object; part of the operation's time."""
        raise NotImplementedError

    def write(self, handle: Handle, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`."""
        raise NotImplementedError

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        """Read up to `len(into)` bytes from `offset`; return the number of bytes read."""
        raise NotImplementedError

    def end(self, op: int, handle: Handle) -> None:
        """Close a handle; part of the operation's time."""

    def delete(self, object_id: int) -> None:
        """Remove the object and free its space."""
        raise NotImplementedError


class Drive(Tier):
    """A tier on one directory, file or device."""

    engine = "threads"
    has_ring = True

    def __init__(self, name: str, path: Path, options: StorageOptions) -> None:
        """Store the tier `name` at `path`."""
        self.name, self.target, self._path, self._options = name, str(path), path, options
        self.drives = (self,)
        self.is_buffered, self.is_synced = options.is_buffered, options.fsync == "close"
        self._direct: DirectIo | None = None
        self._device_facts: dict[str, object] = {}
        """Facts of the filesystem and the device.

        They are read when the tier is opened, because the target may be gone by the end.
        """

    def region(self, peak_bytes: int) -> AbstractContextManager[Region]:
        """Return the region that preconditioning fills.

        A new file of `peak_bytes` in a directory, else the whole file or device.
        """
        raise NotImplementedError

    def facts(self) -> dict[str, object]:
        """Return the facts of direct I/O, as far as the kernel confirmed it."""
        return {
            "is_simulated": False,
            "is_direct": self._direct is not None and self._direct.is_confirmed,
            "direct_io": msgspec.to_builtins(self._direct),
            "fsync": self._options.fsync,
        }

    def _too_small(self, peak_bytes: int, free_bytes: int) -> DeviceError:
        return DeviceError(
            f"{self.target}: the replay needs up to {format_bytes(peak_bytes)} there, but only "
            f"{format_bytes(free_bytes)} is free; {self._holding.advice(self.name, free_bytes)}"
        )


def drives_of(tiers: Sequence[Tier | None]) -> Iterator[Drive]:
    """Yield every directory, file and device that the tiers lie on."""
    return (drive for tier in tiers if tier is not None for drive in tier.drives)


MAX_DRIVES = 255
BY_KEY = "by the object's key: blake2b of it, 8 bytes, little-endian, modulo the number of drives"
BY_ID = (
    "by the object's id, since no objects table gives keys: of N drives, N ids from a multiple q N"
    " on lie on N different ones, in order from drive mixed(q) modulo N on (SplitMix64's mixing)"
)


def spread(trace: Path, drives: int) -> tuple[np.ndarray, str]:
    """Return the drive index of each object (uint8, by object id), and the rule that gives it.

    The object's key selects the drive, or its id if there is no objects table. The result follows
    from the trace alone, so that a later run, or `recover`, finds the objects.
    """
    if objects_path(trace).is_file():
        return drive_by_key(trace, drives), BY_KEY
    batches = open_table(trace, TRACE).batches(["object_id"])
    ids = 1 + max(
        (pc.max(batch.column("object_id")).as_py() for batch in batches if len(batch)), default=-1
    )
    return drive_by_id(ids, drives), BY_ID


def drive_by_key(trace: Path, drives: int) -> np.ndarray:
    """Return the drive index of each object (uint8, by object id), from its key."""
    chunks = [np.zeros(0, np.uint8)]
    for batch in open_table(objects_path(trace), OBJECTS).batches(["key"]):
        hashes = (
            blake2b(key.encode(), digest_size=8).digest() for key in batch.column("key").to_pylist()
        )
        chunks.append(
            np.array([int.from_bytes(digest, "little") % drives for digest in hashes], np.uint8)
        )
    return np.concatenate(chunks)


def drive_by_id(ids: int, drives: int) -> np.ndarray:
    """Return the drive index (uint8) of each of the ids 0 to `ids`, by the rule BY_ID.

    Neighbouring objects are often read or written together, so they are spread evenly over the
    drives. The mixing keeps ids at a fixed distance from all falling on one drive.
    """
    runs: np.ndarray = np.arange(-(-ids // drives), dtype=np.uint64)
    # SplitMix64's output, with the run's index as its state. Source: Steele, Lea, Flood 2014.
    mixed = runs + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    first = ((mixed ^ mixed >> np.uint64(31)) % np.uint64(drives)).astype(np.int64)
    return ((first[:, None] + np.arange(drives)) % drives).astype(np.uint8).reshape(-1)[:ids]


class SeveralDrives(Tier):
    """A tier on several drives, all of one kind."""

    def __init__(self, name: str, drives: Sequence[Drive], drive_of: np.ndarray, rule: str) -> None:
        """Store the tier `name` on `drives`.

        `drive_of` is the drive's index by object id, and `rule` describes how it was chosen.
        """
        self.name, self.target = name, ",".join(drive.target for drive in drives)
        self.alignment = max(drive.alignment for drive in drives)
        self.drive_of, self.rule, self.drives = drive_of, rule, drives
        self._drive_indices = memoryview(drive_of.data)
        self.has_ring = all(drive.has_ring for drive in drives)

    @property
    def engine(self) -> str:
        """Name of the I/O path in the tables."""
        return self.drives[0].engine

    @engine.setter
    def engine(self, name: str) -> None:
        for drive in self.drives:
            drive.engine = name

    def expect(self, holding: Holding) -> None:
        """Pass on to each drive the space that its objects need."""
        for index, drive in enumerate(self.drives):
            grown = {
                object_id: size
                for object_id, size in holding.grown.items()
                if self._drive_indices[object_id] == index
            }
            drive.expect(
                Holding(
                    holding.peak_bytes[index : index + 1],
                    grown,
                    holding.ahead_bytes,
                    holding.together_bytes[index : index + 1],
                    holding.objects,
                    holding.is_populated,
                )
            )
        self._peaks = holding.together_bytes

    def open(self, peak_bytes: int) -> None:
        """Open all drives."""
        for drive, peak in zip(self.drives, self._peaks, strict=True):
            drive.open(peak)

    def drive(self, object_id: int) -> Drive:
        """Return the drive that an object lies on."""
        return self.drives[self._drive_indices[object_id]]

    def place(self) -> bool:
        """Tell each drive that writes have streams."""
        for drive in self.drives:
            drive.place()
        self.has_ring = all(drive.has_ring for drive in self.drives)
        self.write_streams = min(drive.write_streams for drive in self.drives)
        return True

    def native(self) -> Native:
        """Return the description of all drives for the C engine."""
        natives = [drive.native() for drive in self.drives]
        fields = {**natives[0].fields, "write_streams": self.write_streams}
        drives = [drive for native in natives for drive in native.drives]
        return replace(natives[0], drives=drives, fields=fields, drive_of=self.drive_of)

    def path(self, object_id: int) -> str | None:
        """Return the path of an object, if it is a file."""
        return self.drive(object_id).path(object_id)

    def why_no_room(self, object_id: int) -> str | None:
        """Return the reason why an object finds no extent on its drive."""
        return self.drive(object_id).why_no_room(object_id)

    def facts(self) -> dict[str, object]:
        """Return the facts that all drives share, null where they differ, and those of each drive."""
        drive_facts = [drive.facts() for drive in self.drives]
        shared = {
            name: value if all(facts[name] == value for facts in drive_facts) else None
            for name, value in drive_facts[0].items()
        }
        drives = [
            {"target": drive.target, **facts}
            for drive, facts in zip(self.drives, drive_facts, strict=True)
        ]
        return shared | {"placement": self.rule, "drives": drives}

    def close(self) -> None:
        """Close all drives, even if closing one of them fails."""
        with ExitStack() as stack:
            for drive in self.drives:
                stack.callback(drive.close)
