"""Check that a replay may write to a path: not the system's, and no directory of foreign files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from kvtrace.core.errors import DeviceError

SCRATCH, MEASURED = "kvreplay-scratch", "kvreplay-drive.dat"
"""Names in a target: the folder of object files, and the file by which a drive is measured."""
# Nothing in or below these is a place for benchmark data …
_SYSTEM_TREES = (
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/proc",
    "/run",
    "/sbin",
    "/sys",
    "/usr",
)
# … and these have files of others, but a directory below may be ours.
_SYSTEM_PATHS = {
    *("/", "/dev/shm", "/home", "/media", "/mnt"),  # noqa: S108 - to be refused
    *("/opt", "/root", "/srv", "/tmp"),  # noqa: S108 - to be refused
    *("/var", "/var/cache", "/var/lib", "/var/log", "/var/tmp"),  # noqa: S108 - to be refused
}
_MEMORY_FILES = "/dev/shm/"  # noqa: S108 - a directory below it is no device
_NOT_DATA = frozenset({"lost+found", SCRATCH, MEASURED})
_OF_RANKS = re.compile(r"rank-\d{4,}")


def check_target(path: Path, *, is_shared: bool = False) -> Path:
    """Return `path` resolved if a replay may write there.

    With `is_shared`, folders of ranks may be there.

    DeviceError, with a remedy, if it may not.
    """
    if not path.exists():
        if path.is_relative_to("/dev"):
            raise DeviceError(f"{path}: no such device; lsblk lists those of this machine")
        raise DeviceError(f"{path}: no such directory; make an empty one first (mkdir {path})")
    resolved = path.resolve()
    mode = resolved.stat().st_mode
    if stat.S_ISBLK(mode):
        raise DeviceError(f"{path} is a block device, but a directory is needed; name a directory")
    if not stat.S_ISDIR(mode):
        raise DeviceError(f"{path} is not a directory; name an empty directory, ram or null")
    if str(resolved) in _SYSTEM_PATHS or resolved == Path.home() or is_system_path(resolved):
        raise DeviceError(f"{path} is a system path; name an empty directory made for the replay")
    names = set(os.listdir(resolved)) - _NOT_DATA  # noqa: PTH208 - names, not paths
    foreign = sorted(name for name in names if not (is_shared and _OF_RANKS.fullmatch(name)))
    if foreign:
        raise DeviceError(
            f"{path} is not empty ({foreign[0]}{' and more' if len(foreign) > 1 else ''}) and not"
            " kvreplay's; name an empty directory"
        )
    if not os.access(resolved, os.W_OK | os.X_OK):
        raise DeviceError(f"{path}: no permission to write there")
    return resolved


def is_system_path(resolved: Path) -> bool:
    """Return whether a path lies in a directory of the system."""
    text = str(resolved)
    in_tree = any(text == tree or text.startswith(tree + "/") for tree in _SYSTEM_TREES)
    return (in_tree and not text.startswith(_MEMORY_FILES)) or "lost+found" in resolved.parts
