"""A directory of files, one an object, named as a layout says; O_DIRECT unless `--buffered` says otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.tiers import claims, directio
from kvreplay.tiers.devices import firmware
from kvreplay.tiers.host import filesystem_facts
from kvreplay.tiers.layout import MEANINGS, Directories, FileLayout, path_function
from kvreplay.tiers.tier import Holding, Region, RingFiles, StorageOptions
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import format_bytes

_WRITE = 1


class FileTier:
    """Objects as files in a scratch directory below the target."""

    alignment = directio.ALIGNMENT
    is_simulated = False

    def __init__(self, name: str, directory: Path, options: StorageOptions) -> None:
        """Store the tier `name` below `directory`."""
        self.engine = "threads"
        self.name, self.target, self._options = name, str(directory), options
        self._directory, self.is_synced = directory, options.fsync == "close"
        direct = os.O_DIRECT if options.is_direct else 0
        self._read_flags = os.O_RDONLY | os.O_CLOEXEC | direct
        self._write_flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | direct
        self._claim: claims.Claim | None = None
        self._direct: directio.DirectIo | None = None
        self.has_room = options.layout is not FileLayout.VLLM
        self._directories: Directories | None = None
        self._scratch_fd = -1
        self._filesystem: dict[str, Any] = {}
        self._firmware: str | None = None

    def expect(self, holding: Holding) -> None:
        """Do nothing: files grow and go as they are written and deleted."""

    def open(self, peak_bytes: int) -> None:
        """Claim the directory, remove leftovers, check the space, and confirm O_DIRECT."""
        self._claim = claims.claim(self._directory)
        scratch = self._claim.scratch
        # Now, because the directory may be gone by the end.
        self._filesystem = filesystem_facts(self._directory)
        self._firmware = firmware(self._directory)
        space = os.statvfs(scratch)
        free_bytes = space.f_bavail * space.f_frsize
        if peak_bytes > free_bytes:
            raise DeviceError(
                f"{self.target}: the replay holds up to {format_bytes(peak_bytes)} there, "
                f"but only {format_bytes(free_bytes)} is free; replay less with --limit"
            )
        if self._options.is_direct:
            self._direct = directio.probe(scratch, self.target)
        self._directories = Directories(self._options.layout, str(scratch))
        self._path_of = path_function(self._options.layout, str(scratch))
        self._scratch_fd = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def drives(self) -> list[FileTier]:
        """Itself: it has one."""
        return [self]

    @contextmanager
    def region(self, peak_bytes: int) -> Iterator[Region]:
        """Yield a new file of `peak_bytes`, rounded up, to be written full; remove it afterwards."""
        assert self._claim is not None, "the tier is open"
        path = f"{self._claim.scratch}/precondition.kv"
        fd = os.open(path, self._write_flags, 0o600)
        try:
            yield Region(fd, 0, -(-peak_bytes // self.alignment) * self.alignment)
        finally:
            os.close(fd)
            os.unlink(path)  # noqa: PTH108 - beside os.open

    def path(self, object_id: int) -> str:
        """Return where an object lies."""
        return self._path_of(object_id)

    def ring_path(self, object_id: int) -> bytes:
        """Return where an object lies, for a ring."""
        return self.path(object_id).encode()

    def ring_flags(self, op: int) -> int:
        """Return how to open an object's file, for a ring."""
        return (self._write_flags if op == _WRITE else self._read_flags) & ~os.O_CLOEXEC

    def ring_files(self) -> RingFiles:
        """Return how compiled code finds the objects' files."""
        return RingFiles(self._options.layout, [self._scratch_fd])

    def reserve(self, object_id: int, end: int) -> None:
        """Make the object's directory if the layout has too many to make them all at first."""
        if self._directories is not None:
            self._directories.make_for(object_id)

    def begin(self, op: int, object_id: int) -> int:
        """Open the object's file."""
        flags = self._write_flags if op == _WRITE else self._read_flags
        return os.open(self.path(object_id), flags, 0o600)

    def write(self, handle: int, offset: int, data: memoryview) -> None:
        """Write all of `data`."""
        directio.write_whole(handle, offset, data)

    def read(self, handle: int, offset: int, into: memoryview) -> int:
        """Read until `into` is full or the file ends."""
        return directio.read_whole(handle, offset, into)

    def end(self, op: int, handle: int) -> None:
        """Close the file, after fdatasync if that is the policy."""
        try:
            if op == _WRITE and self._options.fsync == "close":
                os.fdatasync(handle)
        finally:
            os.close(handle)

    def delete(self, object_id: int) -> None:
        """Remove the object's file."""
        os.unlink(self.path(object_id))  # noqa: PTH108 - measured

    def facts(self) -> dict[str, Any]:
        """Return filesystem, device, and what was confirmed of direct I/O."""
        return {
            "is_simulated": False,
            "is_direct": self._options.is_direct,
            "direct_io": msgspec.to_builtins(self._direct),
            "fsync": self._options.fsync,
            "alignment_bytes": self.alignment,
            "layout": MEANINGS[self._options.layout],
            "removed_leftover_files": self._claim.found_leftovers if self._claim else None,
            **self._filesystem,
            "device_firmware": self._firmware,
        }

    def close(self) -> None:
        """Remove our files and give up the directory."""
        if self._scratch_fd >= 0:
            os.close(self._scratch_fd)
            self._scratch_fd = -1
        if self._claim is not None:
            held, self._claim = self._claim, None
            claims.release(held, is_kept=self._options.is_kept)
