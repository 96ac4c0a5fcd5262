"""Which directories a replay may use: empty ones and its own, one replay at a time; only its own files are removed.

All objects lie in one scratch directory with a marker file. By the marker a later run knows the leftovers of a killed
one; a lock on it keeps two runs apart.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from kvreplay.tiers.directio import refused
from kvreplay.tiers.layout import DIRECTORY_NAME, FILE_NAME
from kvreplay.tiers.space import read_header
from kvtrace.core.errors import DeviceError

SCRATCH = "kvreplay-scratch"
MARKER = "KVREPLAY"
_OTHER_FILES = frozenset({"probe.kv", "precondition.kv"})
_MARKER_TEXT = b"Written by kvreplay: everything in this directory is its own and will be deleted.\n"
# Nothing in or below these is a place for benchmark data …
_SYSTEM_TREES = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
# … and these hold others' files, but a directory below may be ours.
_SYSTEM_PATHS = {
    *("/", "/dev/shm", "/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp"),  # noqa: S108 - to be refused
    *("/var", "/var/cache", "/var/lib", "/var/log", "/var/tmp"),  # noqa: S108 - to be refused
}
_MEMORY_FILES = "/dev/shm/"  # noqa: S108 - a directory below it is no device
_NOT_DATA = frozenset({"lost+found", SCRATCH})
_OF_RANKS = re.compile(r"rank-\d{4,}")


@dataclass(frozen=True, slots=True)
class Claim:
    """A target directory that is ours until `release`."""

    scratch: Path
    lock: int
    """The open descriptor of the marker, which holds the lock."""
    found_leftovers: int
    """Files of an earlier, killed or kept run that were removed."""


def check_shared(path: Path) -> Path:
    """Return `path` resolved if ranks may each make a directory of their own there; errors as of `check_target`."""
    return check_target(path, _OF_RANKS)


def check_target(path: Path, ours: re.Pattern[str] | None = None) -> Path:
    """Return `path` resolved if a replay may write there; DeviceError, saying what would do, if not.

    Names that fit `ours` may be there.
    """
    if not path.exists():
        if path.is_relative_to("/dev"):
            raise DeviceError(f"{path}: no such device; lsblk lists those of this machine")
        raise DeviceError(f"{path}: no such directory; make an empty one first (mkdir {path})")
    resolved = path.resolve()
    mode = resolved.stat().st_mode
    if stat.S_ISBLK(mode):
        raise DeviceError(f"{path} is a block device, where a directory is wanted; name a directory")
    if not stat.S_ISDIR(mode):
        raise DeviceError(f"{path} is not a directory; name an empty directory, ram or null")
    if str(resolved) in _SYSTEM_PATHS or resolved == Path.home() or _is_system(resolved):
        raise DeviceError(f"{path} is a system path; name an empty directory made for the replay")
    there = set(os.listdir(resolved)) - _NOT_DATA  # noqa: PTH208 - names, not paths
    foreign = sorted(name for name in there if ours is None or not ours.fullmatch(name))
    if foreign:
        raise DeviceError(
            f"{path} is not empty ({foreign[0]}{' and more' if len(foreign) > 1 else ''}) and not ours; "
            "name an empty directory"
        )
    if not os.access(resolved, os.W_OK | os.X_OK):
        raise DeviceError(f"{path}: no permission to write there")
    return resolved


def _is_system(resolved: Path) -> bool:
    text = str(resolved)
    in_tree = any(text == tree or text.startswith(tree + "/") for tree in _SYSTEM_TREES)
    return in_tree and not text.startswith(_MEMORY_FILES)


def check_file(path: Path) -> None:
    """Raise DeviceError, saying what would do, unless `path` is a file of ours or may become one."""
    parent = path.parent
    if not parent.is_dir():
        raise DeviceError(f"{parent}: no such directory; make it first (mkdir {parent})")
    if str(parent.resolve()) == "/" or _is_system(parent.resolve()):
        raise DeviceError(f"{path} lies in a system path; name a file in a directory made for the replay")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DeviceError(f"{path} is not a regular file; name a new one")
    if path.exists() and read_header(path) is None:
        raise DeviceError(f"{path} is not ours (it does not begin as kvreplay's files do); name a new file")
    if not os.access(path if path.exists() else parent, os.W_OK):
        raise DeviceError(f"{path}: no permission to write there")


def claim_file(path: Path, flags: int) -> int:
    """Open the file at `path` for this run alone, making it if it is not there; return its descriptor.

    Raises:
        DeviceError: it is not ours, another run holds it, or it cannot be opened so.

    """
    check_file(path)
    is_new = not path.exists()
    # One that another program makes meanwhile is not ours.
    making = os.O_CREAT | os.O_EXCL if is_new else 0
    try:
        fd = os.open(path, os.O_RDWR | making | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600)
    except OSError as error:
        if is_new and error.errno != errno.EEXIST:
            # The kernel makes the file before it finds that O_DIRECT does not go.
            path.unlink(missing_ok=True)
        raise refused(str(path), error) from None
    if not _is_locked(fd, path):
        raise DeviceError(f"{path} is in use by another kvreplay; wait for it or name another file")
    return fd


def _is_locked(fd: int, path: Path) -> bool:
    """Lock the open file `path`; return False, with `fd` closed, if another run holds it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The run before us may have removed the file between our open and our lock.
        is_ours = path.exists() and os.fstat(fd).st_ino == path.stat().st_ino
    except BlockingIOError:
        is_ours = False
    except OSError as error:
        os.close(fd)
        raise DeviceError(f"{path}: cannot be locked: {error.strerror}") from None
    if not is_ours:
        os.close(fd)
    return is_ours


def claim(path: Path) -> Claim:
    """Lock `path` for this run and remove what an earlier run of ours left there.

    Raises:
        DeviceError: the path is unsafe, another run holds it, or its scratch directory is not ours.

    """
    scratch = check_target(path) / SCRATCH
    marker = scratch / MARKER
    try:
        if scratch.is_symlink() or (scratch.exists() and not scratch.is_dir()):
            raise DeviceError(f"{scratch} is not a directory of ours; remove it or name another directory")
        if scratch.is_dir() and not marker.is_file() and any(scratch.iterdir()):
            raise DeviceError(f"{scratch} has no marker file {MARKER}, so it is not ours; remove it yourself")
        scratch.mkdir(exist_ok=True)
        lock = os.open(marker, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DeviceError(f"{scratch}: {error.strerror}") from None
    if not _is_locked(lock, marker):
        raise DeviceError(f"{path} is in use by another kvreplay; wait for it or name another directory")
    try:
        os.pwrite(lock, _MARKER_TEXT, 0)
        leftovers = clean(scratch)
    except OSError as error:
        os.close(lock)
        raise DeviceError(f"{scratch}: {error.strerror}") from None
    return Claim(scratch, lock, leftovers)


def clean(scratch: Path) -> int:
    """Remove our object files and subdirectories of `scratch`, nothing else; return how many files went."""
    removed = 0
    for entry in list(os.scandir(scratch)):
        if entry.is_dir(follow_symlinks=False) and DIRECTORY_NAME.fullmatch(entry.name):
            removed += clean(Path(entry.path))
            if not any(Path(entry.path).iterdir()):
                Path(entry.path).rmdir()
        elif entry.is_file(follow_symlinks=False) and (FILE_NAME.fullmatch(entry.name) or entry.name in _OTHER_FILES):
            os.unlink(entry.path)  # noqa: PTH108 - millions of them
            removed += 1
    return removed


def release(held: Claim, *, is_kept: bool) -> None:
    """Remove our files unless `is_kept`, then give up the lock; files that are not ours stay."""
    try:
        if not is_kept:
            clean(held.scratch)
            if [entry.name for entry in os.scandir(held.scratch)] == [MARKER]:
                (held.scratch / MARKER).unlink()
                held.scratch.rmdir()
    except FileNotFoundError:
        # Someone removed the directory under us: nothing of ours is left there.
        return
    finally:
        os.close(held.lock)
