"""One tier on several drives: each object lies whole on one, which its key names, or its id where there are no keys."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kvreplay.tiers.tier import Drive, Holding, Native, Tier, TierKind
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import objects_path, open_table

MAX_DRIVES = 255
BY_KEY = "by the object's key: blake2b of it, 8 bytes, little-endian, modulo the number of drives"
BY_ID = (
    "by the object's id, since no objects table gives keys: of N drives, N ids from a multiple q N on lie on N "
    "different ones, in order from drive mixed(q) modulo N on (SplitMix64's mixing)"
)


def spread(trace: Path, drives: int) -> tuple[Any, str]:
    """Return uint8 an object id, which of `drives` it lies on, and the rule: by key, or by id without objects table.

    It follows from the trace alone, so that a later run, or `recover`, finds objects where they lie.
    """
    if objects_path(trace).is_file():
        return drive_by_key(trace, drives), BY_KEY
    return drive_by_id(_ids(trace), drives), BY_ID


def drive_by_key(trace: Path, drives: int) -> Any:
    """Return uint8 an object id: which of `drives` its key in the objects table names."""
    import numpy as np

    parts = [np.zeros(0, np.uint8)]
    for batch in open_table(objects_path(trace), OBJECTS).batches(["key"]):
        hashes = (blake2b(key.encode(), digest_size=8).digest() for key in batch.column("key").to_pylist())
        parts.append(np.array([int.from_bytes(found, "little") % drives for found in hashes], np.uint8))
    return np.concatenate(parts)


def drive_by_id(ids: int, drives: int) -> Any:
    """Return uint8 for each of the ids 0 to `ids`: which of `drives` it names (BY_ID).

    Neighbours, which are often moved together, lie on different drives, each of which holds as many of them; the
    mixing keeps ids at any fixed distance from falling on one drive.
    """
    import numpy as np

    runs: Any = np.arange(-(-ids // drives), dtype=np.uint64)
    first = (_mixed(runs) % np.uint64(drives)).astype(np.int64)
    return ((first[:, None] + np.arange(drives)) % drives).astype(np.uint8).reshape(-1)[:ids]


def _mixed(numbers: Any) -> Any:
    """Return SplitMix64's output for each number (uint64) as its state before. Source: Steele, Lea, Flood 2014."""
    import numpy as np

    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return mixed ^ mixed >> np.uint64(31)


def _ids(trace: Path) -> int:
    """Return one more than the highest object id in `trace`."""
    import pyarrow.compute as pc

    batches = open_table(trace, TRACE).batches(["object_id"])
    return 1 + max((pc.max(batch.column("object_id")).as_py() for batch in batches if len(batch)), default=-1)


class SeveralDrives(Tier):
    """A tier whose objects lie on `drives`, all of one kind."""

    def __init__(self, name: str, drives: Sequence[Drive], drive_of: Any, rule: str) -> None:
        """Store the tier `name` on `drives`; `drive_of` says by object id on which, by `rule`."""
        self.name, self.target = name, ",".join(drive.target for drive in drives)
        self.alignment = max(drive.alignment for drive in drives)
        self.drive_of, self.rule, self.drives, self._of = drive_of, rule, drives, memoryview(drive_of)
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
            drive.expect(Holding(holding.peak_bytes[at : at + 1], grown, holding.ahead_bytes))
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
        if any(of.kind is TierKind.PYTHON for of in each):
            return super().native()
        drives = [drive for of in each for drive in of.drives]
        return replace(each[0], drives=drives, drive_of=self.drive_of, write_streams=self.write_streams)

    def path(self, object_id: int) -> str | None:
        """Return where an object lies, if it is a file."""
        return self.drive(object_id).path(object_id)

    def why_no_room(self, object_id: int) -> str | None:
        """Return why an object finds no extent on its drive."""
        return self.drive(object_id).why_no_room(object_id)

    def facts(self) -> dict[str, Any]:
        """Return what all drives share, null where they differ, and each drive's own."""
        each = [drive.facts() for drive in self.drives]
        shared = {name: value if all(f[name] == value for f in each) else None for name, value in each[0].items()}
        drives = [{"target": drive.target, **facts} for drive, facts in zip(self.drives, each, strict=True)]
        return shared | {"placement": self.rule, "drives": drives}

    def close(self) -> None:
        """Give up all drives, whatever happens to one of them."""
        with ExitStack() as stack:
            for drive in self.drives:
                stack.callback(drive.close)
