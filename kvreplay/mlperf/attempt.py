"""What is about to be run of one option: where, how often, how long, and what the places it uses have room for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from kvreplay.config.config import Config, named
from kvreplay.config.tiers import FILE_SUFFIX, paths_of
from kvreplay.mlperf.options import SEED, LockedOption
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.units import format_bytes

STORAGE, MEMORY = "nvme", "cpu"
"""The tiers of the options' presets that hold anything."""
SHARE_OF_FREE = 0.95
"""Of the free space, which the benchmark takes as its storage tier (kv_cache/cache.py)."""
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class UnderTest:
    """The storage under test, and where results go."""

    target: str
    free_bytes: int
    """On the filesystems of the directories and files, and all of block devices."""
    filesystems: frozenset[int] | None
    """Device numbers; None if block devices hold the cache, which no results can lie on."""
    results_filesystem: int
    size_bytes: int | None = None
    """Of files that are there, and devices: the tier's, whatever is free."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One option as it is about to be run."""

    option: LockedOption
    config: Config
    """Of its replays."""
    place: UnderTest
    trials: int
    runtime_ns: int
    pause_ns: int
    seed_base: int = SEED
    rank: int = 0
    options: int = 1
    """How many are run, one after the other."""
    asked_bytes: int | None = None
    """The capacity that --capacity gave the storage tier."""

    @property
    def seed(self) -> int:
        """That of this client: the benchmark's wrapper adds the rank to the base (mlperf_wrapper.py)."""
        return self.seed_base + self.rank

    @property
    def capacity_bytes(self) -> int:
        """What the storage tier holds at most, and so the space that may be needed."""
        if self.asked_bytes is not None:
            return self.asked_bytes
        whole = self.place.free_bytes if self.place.size_bytes is None else self.place.size_bytes
        return int(whole * SHARE_OF_FREE) // _MIB * _MIB

    @property
    def space(self) -> str:
        """What is needed against what is there."""
        room = self.place.free_bytes if self.place.size_bytes is None else self.place.size_bytes
        return f"at most {format_bytes(self.capacity_bytes)} on {self.place.target}, {format_bytes(room)} free there"


def targets_of(tiers: dict[str, str], option: LockedOption) -> dict[str, str]:
    """Return the targets of an option: the storage that is named, and memory for its CPU tier.

    Raises:
        ConfigError: no storage is named, or a tier that the options do not have.

    """
    target = tiers.get(STORAGE)
    if target is None or set(tiers) - {STORAGE, MEMORY}:
        raise ConfigError(f"--tier {STORAGE}=TARGET names the storage under test, such as {STORAGE}=/mnt/drive")
    if named(target):
        raise ConfigError(f"--tier {STORAGE}={target}: the storage under test is a directory, a *.dat file or a device")
    if tiers.get(MEMORY, "ram") != "ram":
        raise ConfigError(f"--tier {MEMORY}={tiers[MEMORY]}: the options' CPU tier is memory; leave it out")
    return {STORAGE: target} | ({MEMORY: "ram"} if option.cpu_gib else {})


def place_of(target: str, output: Path) -> UnderTest:
    """Return what is known of the storage `target` and of where `output` will lie; DeviceError if that is nowhere."""
    free, sizes, filesystems = {}, [], set()
    try:
        for path in paths_of(target):
            if path.is_block_device():
                sizes.append(_size_of(path))
                continue
            holder = path if path.exists() else path.parent
            found = os.statvfs(holder)
            filesystems.add(holder.stat().st_dev)
            free[holder.stat().st_dev] = found.f_bavail * found.f_frsize
            if path.is_file() and path.suffix == FILE_SUFFIX:
                sizes.append(path.stat().st_size)
        results = (output if output.exists() else output.resolve().parent).stat().st_dev
    except OSError as error:
        raise DeviceError(f"{error.filename}: {error.strerror}; make it first") from None
    room = sum(free.values())
    return UnderTest(target, room, frozenset(filesystems) or None, results, sum(sizes) if sizes else None)


def _size_of(device: Path) -> int:
    with device.open("rb") as file:
        return file.seek(0, os.SEEK_END)
