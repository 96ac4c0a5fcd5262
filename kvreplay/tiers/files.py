"""A directory of files, one an object, in 256 subdirectories; O_DIRECT unless `--buffered` says otherwise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay import directio, safety
from kvreplay.drives import firmware
from kvreplay.host import filesystem_facts
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from kvreplay.tiers import Options

_WRITE = 1
_SUBDIRECTORIES = 256
# Odd, so that neighbouring ids spread over all subdirectories.
_SPREAD = 0x9E3779B1


class FileTier:
    """Objects as files in a scratch directory below the target."""

    alignment = directio.ALIGNMENT
    is_simulated = False

    def __init__(self, name: str, directory: Path, options: Options) -> None:
        """Store the tier `name` below `directory`."""
        self.engine = "threads"
        self.name, self.target, self._options = name, str(directory), options
        self._directory, self.is_synced = directory, options.fsync == "close"
        direct = os.O_DIRECT if options.is_direct else 0
        self._read_flags = os.O_RDONLY | os.O_CLOEXEC | direct
        self.write_flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | direct
        self._claim: safety.Claim | None = None
        self._direct: directio.DirectIo | None = None
        self._prefixes: list[str] = []
        self._filesystem: dict[str, Any] = {}
        self._firmware: str | None = None

    def open(self, peak_bytes: int) -> None:
        """Claim the directory, remove leftovers, check the space, and confirm O_DIRECT."""
        self._claim = safety.claim(self._directory)
        scratch = self._claim.scratch
        # Now, because the directory may be gone by the end.
        self._filesystem = filesystem_facts(self._directory)
        self._firmware = firmware(self._directory)
        space = os.statvfs(scratch)
        free_bytes = space.f_bavail * space.f_frsize
        if peak_bytes > free_bytes:
            raise DeviceError(
                f"--tier {self.name}={self.target}: the replay holds up to {format_bytes(peak_bytes)} there, "
                f"but only {format_bytes(free_bytes)} is free; replay less with --limit"
            )
        if self._options.is_direct:
            self._direct = directio.probe(scratch, self.target)
        for index in range(_SUBDIRECTORIES):
            (scratch / f"{index:02x}").mkdir(exist_ok=True)
        self._prefixes = [f"{scratch}/{index:02x}/" for index in range(_SUBDIRECTORIES)]

    def scratch_file(self, name: str) -> str:
        """Return where a file of ours other than an object lies; `safety.clean` must know its name."""
        assert self._claim is not None, "the tier is open"
        return f"{self._claim.scratch}/{name}"

    def path(self, object_id: int) -> str:
        """Return where an object lies."""
        return f"{self._prefixes[(object_id * _SPREAD >> 16) & 255]}{object_id:016x}{safety.OBJECT_SUFFIX}"

    def ring_path(self, object_id: int) -> bytes:
        """Return where an object lies, for a ring."""
        return self.path(object_id).encode()

    def ring_flags(self, op: int) -> int:
        """Return how to open an object's file, for a ring."""
        return (self.write_flags if op == _WRITE else self._read_flags) & ~os.O_CLOEXEC

    def reserve(self, object_id: int, end: int) -> None:
        """Do nothing: files grow as they are written."""

    def begin(self, op: int, object_id: int) -> int:
        """Open the object's file."""
        flags = self.write_flags if op == _WRITE else self._read_flags
        return os.open(self.path(object_id), flags, 0o600)

    def write(self, handle: int, offset: int, data: memoryview) -> None:
        """Write all of `data`."""
        done = os.pwritev(handle, [data], offset)
        while done < len(data):
            more = os.pwritev(handle, [data[done:]], offset + done)
            if more == 0:
                raise OSError(5, "the device takes no more bytes")
            done += more

    def read(self, handle: int, offset: int, into: memoryview) -> int:
        """Read until `into` is full or the file ends."""
        done = os.preadv(handle, [into], offset)
        while 0 < done < len(into) and done % self.alignment == 0:
            more = os.preadv(handle, [into[done:]], offset + done)
            if more == 0:
                break
            done += more
        return done

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
            "removed_leftover_files": self._claim.found_leftovers if self._claim else None,
            **self._filesystem,
            "device_firmware": self._firmware,
        }

    def close(self) -> None:
        """Remove our files and give up the directory."""
        if self._claim is not None:
            held, self._claim = self._claim, None
            safety.release(held, is_kept=self._options.is_kept)
