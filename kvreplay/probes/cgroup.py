"""Which cgroup a path names, as the kernel knows it: an id, and how deep below the root of version 2 it lies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvtrace.core.errors import ConfigError

_MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A cgroup of version 2."""

    number: int
    """The kernel's id, which is the directory's inode number."""
    level: int
    """How many are above it; the root has none."""


def find_cgroup(path: Path, mounts: Path = _MOUNTS) -> Cgroup:
    """Return the cgroup at `path`: a directory, or one as /proc/PID/cgroup has it after `0::`.

    Raises:
        ConfigError: there is no cgroup of version 2 at `path`.

    """
    lines = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    roots = [Path(fields[1]) for fields in lines if fields[2] == "cgroup2"]
    if not roots:
        raise ConfigError(f"--cgroup {path}: no cgroup2 is mounted: mount -t cgroup2 none /sys/fs/cgroup")
    root = roots[0]
    directory = path.resolve() if path.is_dir() else root / path.as_posix().lstrip("/")
    if not directory.is_dir() or not directory.is_relative_to(root):
        raise ConfigError(f"--cgroup {path}: no cgroup of version 2; name a directory below {root}")
    return Cgroup(directory.stat().st_ino, len(directory.relative_to(root).parts))
