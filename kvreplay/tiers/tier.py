"""The interface of a tier, the tiers that C serves without Python, and the file names of objects.

A tier on several drives has each object whole on one, which its key names, or its id where there
are no keys.

Objects as files lie in directories of our own, or are named as serving engines name theirs
(`--layout`). Only vLLM's layout also writes as that engine does.
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
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.core.units import format_bytes, format_duration, format_rate

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
    """What `--layout` takes."""

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
"""The path below the root, of the 16 hexadecimal digits of an object's id and of those of its hash.
"""


def mixed(object_id: int) -> int:
    """Return 64 bits for an object id in which any digit tells ids apart, as in a hash."""
    product = (object_id + 1) * SPREAD & _MASK
    return product ^ (product >> 32)


def path_function(layout: FileLayout, root: str) -> Callable[[int], str]:
    """Return the function that gives an object's path below `root`."""
    name = _NAMES[layout]
    return lambda object_id: f"{root}/{name(f'{object_id:016x}', f'{mixed(object_id):016x}')}"


def name_template(layout: FileLayout) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """Return an object's path below the root with zeros for its digits, and of each.

    Where, its shift, if of the hash.

    The form for compiled code.
    """
    # A character that no path has for each digit: first those of the id.
    marks = "".join(chr(at) for at in range(2 * _DIGITS))
    path, digits = _NAMES[layout](marks[:_DIGITS], marks[_DIGITS:]), []
    for at, mark in enumerate(path):
        if mark in marks:
            digits.append((at, 4 * (_DIGITS - 1 - ord(mark) % _DIGITS), ord(mark) >= _DIGITS))
    return "".join("0" if mark in marks else mark for mark in path).encode(), digits


def make_directories(layout: FileLayout, root: str, objects: int) -> None:
    """Make the directories that ids below `objects` need in `root`, where a layout has few.

    Else writes make them.
    """
    if layout is FileLayout.HASHED:
        # To make and to remove one can take milliseconds; of a thousand ids nearly all have some.
        is_few = objects < 4 * _SUBDIRECTORIES
        for index in (
            {mixed(at) >> 56 for at in range(objects)} if is_few else range(_SUBDIRECTORIES)
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
    """How storage tiers do I/O: fields of `Config`, by their names there."""

    is_buffered: bool = False
    """Through the page cache instead of O_DIRECT; only for `--buffered`."""
    fsync: str = "never"
    """`never`, or `close`.

    Fdatasync before a written file is closed, within the operation's time.
    """
    advice: str = "none"
    """The posix_fadvise advice for buffered files.

    `none`, `sequential` when one is opened, or `dontneed`.
    """
    is_kept: bool = False
    """Leave files at the end."""
    is_taking_over: bool = False
    """Files that were left are not removed at the start, but by `FileTier.take_over`."""
    is_destroying: bool = False
    """Whether block devices may be overwritten; only for `--destroy-data`."""
    overwritten: str | None = None
    """Signatures on block devices that may be lost, with commas between them.

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
    """Maximum length of each object that later writes extend, by object id."""
    ahead_bytes: int = 0
    """How much may be written before deletes that the trace has before it."""
    together_bytes: Sequence[int] = ()
    """Peak of each drive, over all tiers that share its space."""
    objects: int = sys.maxsize
    """One more than the highest id of an object, or more."""


Handle = Any
"""What the library of a tier that Python serves names an open object by."""


class TierKind(IntEnum):
    """How the engine does a tier's operations, by the numbers of replay.h."""

    NOTHING = 0
    """They take no time, and nothing moves."""
    EXTENTS = 1
    """Objects are extents of open files or devices."""
    FILES = 2
    """Each object is a file of its own."""
    MEMORY = 3
    """Objects lie in memory; threads copy to and from there."""
    MODELLED = 4
    """Nothing moves, and a model says the times."""
    PYTHON = 5
    """The tier's own methods do them."""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How long operations take: each direction is one first-come server."""

    read_bytes_per_s: int
    write_bytes_per_s: int
    latency_ns: int
    """Latency of one operation, which begins when the server is done with it."""
    concurrency: int = 0
    """Operations served at once, which bounds their rate by the latency; 0 is unbounded."""
    source: str
    """Where the numbers come from."""

    @property
    def least_ns(self) -> int:
        """For how long an operation has the server to itself, at least.

        More if its bytes take longer.
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
"""One directory, file or device of a tier, or its memory, as the engine finds it."""


@dataclass(frozen=True, slots=True)
class Native:
    """A tier that is open, as the engine finds it."""

    kind: TierKind
    drives: Sequence[ctypes.Structure] = ()
    """Its drives, as structs NativeDrive."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """More of the struct Tier of replay.h, by its names."""
    layout: FileLayout | None = None
    service: Service | None = None
    drive_of: np.ndarray | None = None
    """uint8 an object id; None where there is one drive."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of an open file or device."""

    fd: int
    start: int
    length: int


class Tier:
    """A place that holds objects; what its kind does not say otherwise is as here.

    Where `native` names no other way, operations are done by its own methods, `reserve` to
    `delete`, from many threads.
    """

    name: str
    target: str
    engine: str
    """The name of its I/O path in the tables."""
    alignment = 1
    """Offsets and lengths asked of it are padded to this many bytes."""
    is_simulated = False
    """Whether nothing moves."""
    has_times = True
    """Whether its operations have times: measured ones, or a model's."""
    service: Service | None = None
    """The model of its times."""
    has_ring = False
    """Whether a ring does its operations; then it is on storage."""
    is_copied = False
    """Whether threads copy its data to and from memory."""
    is_of_gpu = False
    """Whether its I/O passes through a GPU, which `pin` and `stage` prepare."""
    drives: Sequence[Drive] = ()
    """The directories, files and devices that it lies on; none if it is not on storage."""
    write_streams = 0
    """How many streams each request of a ring may name; 0: none."""
    _holding = Holding([0])

    def expect(self, holding: Holding) -> None:
        """Take note, before `open`, of what the replay will store there."""
        self._holding = holding

    def place(self) -> bool:
        """Take note, before `open`, that writes have streams.

        Return whether it can tell drives of them.
        """
        return False

    def open(self, peak_bytes: int) -> None:
        """Claim the target and check that `peak_bytes` fit; DeviceError if they do not."""

    def pin(self, arena: Arena) -> None:
        """Make the engine's buffers ready for the GPU, before anything runs.

        DeviceError if that fails.
        """

    def native(self) -> Native:
        """Return how the engine does its operations, once it is open."""
        return Native(TierKind.PYTHON)

    def facts(self) -> dict[str, object]:
        """Return the facts of this tier for run.json."""
        return {"is_simulated": self.is_simulated}

    def warnings(self) -> list[str]:
        """Return the warnings for a reader of the figures, when the run is over."""
        return []

    def close(self) -> None:
        """Give up the target and remove our own files."""

    def path(self, object_id: int) -> str | None:
        """Return where an object lies, if that has a name."""

    def why_no_room(self, object_id: int) -> str | None:
        """Return why an object found no room, as far as the tier knows."""

    def why_failed(self, code: int) -> str:
        """Return words for the failure of an operation that ended with errno `code`."""
        return os.strerror(code)

    def reserve(self, object_id: int, end: int) -> None:
        """Allocate space for an object up to byte `end`, before its write is submitted.

        Not measured.
        """

    def stage(self, data: memoryview) -> None:
        """Copy generated data to where its write starts from, such as the GPU; not measured."""

    def begin(self, op: int, object_id: int) -> Handle:
        """Return a handle for reading or writing the object; part of the operation's time."""
        raise NotImplementedError

    def write(self, handle: Handle, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`."""
        raise NotImplementedError

    def read(self, handle: Handle, offset: int, into: memoryview) -> int:
        """Read up to `len(into)` bytes from `offset`; return how many came."""
        raise NotImplementedError

    def end(self, op: int, handle: Handle) -> None:
        """Finish with a handle; part of the operation's time."""

    def delete(self, object_id: int) -> None:
        """Remove the object and free what it took."""
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
        self._found: dict[str, object] = {}
        """Facts of the filesystem and the device.

        They are read when the tier is opened, because the target may be gone by the end.
        """

    def region(self, peak_bytes: int) -> AbstractContextManager[Region]:
        """Return the region to be written full.

        A file of `peak_bytes` in a directory, else all there is.
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
            f"{self.target}: the replay holds up to {format_bytes(peak_bytes)} there, but only "
            f"{format_bytes(free_bytes)} is free; replay less with --limit"
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
    """Return uint8 an object id, which of `drives` it lies on, and the rule.

    By key, or by id without objects table.

    It follows from the trace alone, so that a later run, or `recover`, finds objects where they
    lie.
    """
    if objects_path(trace).is_file():
        return drive_by_key(trace, drives), BY_KEY
    batches = open_table(trace, TRACE).batches(["object_id"])
    ids = 1 + max(
        (pc.max(batch.column("object_id")).as_py() for batch in batches if len(batch)), default=-1
    )
    return drive_by_id(ids, drives), BY_ID


def drive_by_key(trace: Path, drives: int) -> np.ndarray:
    """Return uint8 an object id: which of `drives` its key in the objects table names."""
    parts = [np.zeros(0, np.uint8)]
    for batch in open_table(objects_path(trace), OBJECTS).batches(["key"]):
        hashes = (
            blake2b(key.encode(), digest_size=8).digest() for key in batch.column("key").to_pylist()
        )
        parts.append(
            np.array([int.from_bytes(found, "little") % drives for found in hashes], np.uint8)
        )
    return np.concatenate(parts)


def drive_by_id(ids: int, drives: int) -> np.ndarray:
    """Return uint8 for each of the ids 0 to `ids`: which of `drives` it names (BY_ID).

    Neighbours, which are often moved together, lie on different drives, each of which holds as many
    of them; the mixing keeps ids at any fixed distance from falling on one drive.
    """
    runs: np.ndarray = np.arange(-(-ids // drives), dtype=np.uint64)
    # SplitMix64's output for each run as its state before. Source: Steele, Lea, Flood 2014.
    mixed = runs + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    first = ((mixed ^ mixed >> np.uint64(31)) % np.uint64(drives)).astype(np.int64)
    return ((first[:, None] + np.arange(drives)) % drives).astype(np.uint8).reshape(-1)[:ids]


class SeveralDrives(Tier):
    """A tier whose objects lie on `drives`, all of one kind."""

    def __init__(self, name: str, drives: Sequence[Drive], drive_of: np.ndarray, rule: str) -> None:
        """Store the tier `name` on `drives`; `drive_of` says by object id on which, by `rule`."""
        self.name, self.target = name, ",".join(drive.target for drive in drives)
        self.alignment = max(drive.alignment for drive in drives)
        self.drive_of, self.rule, self.drives, self._of = (
            drive_of,
            rule,
            drives,
            memoryview(drive_of.data),
        )
        self.has_ring = all(drive.has_ring for drive in drives)

    @property
    def engine(self) -> str:
        """The name of its I/O path in the tables."""
        return self.drives[0].engine

    @engine.setter
    def engine(self, name: str) -> None:
        for drive in self.drives:
            drive.engine = name

    def expect(self, holding: Holding) -> None:
        """Pass on to each drive what it is to hold."""
        for at, drive in enumerate(self.drives):
            grown = {obj: size for obj, size in holding.grown.items() if self._of[obj] == at}
            drive.expect(
                Holding(
                    holding.peak_bytes[at : at + 1],
                    grown,
                    holding.ahead_bytes,
                    objects=holding.objects,
                )
            )
        self._peaks = holding.together_bytes

    def open(self, peak_bytes: int) -> None:
        """Open all drives."""
        for drive, peak in zip(self.drives, self._peaks, strict=True):
            drive.open(peak)

    def drive(self, object_id: int) -> Drive:
        """Return the drive that an object lies on."""
        return self.drives[self._of[object_id]]

    def place(self) -> bool:
        """Let each drive know that writes have streams."""
        for drive in self.drives:
            drive.place()
        self.has_ring = all(drive.has_ring for drive in self.drives)
        self.write_streams = min(drive.write_streams for drive in self.drives)
        return True

    def native(self) -> Native:
        """Return how the engine finds all drives."""
        each = [drive.native() for drive in self.drives]
        fields = {**each[0].fields, "write_streams": self.write_streams}
        drives = [drive for of in each for drive in of.drives]
        return replace(each[0], drives=drives, fields=fields, drive_of=self.drive_of)

    def path(self, object_id: int) -> str | None:
        """Return where an object lies, if it is a file."""
        return self.drive(object_id).path(object_id)

    def why_no_room(self, object_id: int) -> str | None:
        """Return why an object finds no extent on its drive."""
        return self.drive(object_id).why_no_room(object_id)

    def facts(self) -> dict[str, object]:
        """Return the facts that all drives share, null where they differ, and those of each drive."""
        each = [drive.facts() for drive in self.drives]
        shared = {
            name: value if all(f[name] == value for f in each) else None
            for name, value in each[0].items()
        }
        drives = [
            {"target": drive.target, **facts}
            for drive, facts in zip(self.drives, each, strict=True)
        ]
        return shared | {"placement": self.rule, "drives": drives}

    def close(self) -> None:
        """Give up all drives, whatever happens to one of them."""
        with ExitStack() as stack:
            for drive in self.drives:
                stack.callback(drive.close)
