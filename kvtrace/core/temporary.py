"""Temporary files and folders, with the process that owns them in their names.

A process that is killed cannot remove its temporary files. Their names tell which process made
them:

    .report.html.5f3a91c0-1234-98765.tmp     a file, beside its final name
    .kvdistill-5f3a91c0-1234-98765-0         a folder

The first time that a process makes a temporary name in a folder, it removes the files there that
belong to ended processes of this host. It keeps the files of other users and of other hosts,
because it cannot see their processes.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import stat
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

_OWNER = r"(?P<host>[0-9a-f]{8})-(?P<pid>[0-9]+)-(?P<start>[0-9]+)"
_NAME = re.compile(rf"\..*\.{_OWNER}\.tmp|\.?[a-z]+-{_OWNER.replace('?P<', '?P<of_')}-[0-9]+")
_NAME_BYTES = 180
"""Bytes of a final name that are part of its temporary name. File systems limit names to 255 bytes.
"""
_START_FIELD = 19
"""The start time of a process in ticks, in /proc/PID/stat, counted from the field after the name.
"""
_numbers = itertools.count()
_swept: set[tuple[int, Path]] = set()
_live: set[Path] = set()
"""Paths that this process has made and not yet removed."""


def start_ticks(pid: int) -> int | None:
    """Return the start of process `pid` in ticks since boot; None if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The fields follow the program's name, which may contain spaces and brackets.
    return int(fields.rpartition(")")[2].split()[_START_FIELD])


@cache
def host_digest() -> str:
    """Return 8 hexadecimal digits of the host and of this process's name spaces.

    They are those of process numbers and of time: both numbers of an owner depend on them, as the
    kernel states when a process began by the clock of the process that asks.
    """
    spaces = []
    for kind in ("pid", "time"):
        try:
            spaces.append(os.readlink(f"/proc/self/ns/{kind}"))  # noqa: PTH115 - no file is there
        except OSError:
            spaces.append("")
    return blake2b(" ".join([os.uname().nodename, *spaces]).encode(), digest_size=4).hexdigest()


@cache
def _owner_of(pid: int) -> str:
    """Return the owner in the names of temporary files: host, process number and start time."""
    return f"{host_digest()}-{pid}-{start_ticks(pid) or 0}"


def temporary_name(path: Path) -> Path:
    """Return the name under which this process writes the file at `path`."""
    name = os.fsencode(path.name)[:_NAME_BYTES].decode(errors="ignore")
    return path.with_name(f".{name}.{_owner_of(os.getpid())}.tmp")


def is_left_behind(entry: os.DirEntry[str]) -> bool:
    """Return whether `entry` is a temporary file or folder of an ended process of this host and
    user.
    """
    match = _NAME.fullmatch(entry.name)
    if match is None:
        return False
    host, pid, start = (match[name] or match[f"of_{name}"] for name in ("host", "pid", "start"))
    if host != host_digest() or start_ticks(os.getpid()) is None:
        return False
    if start_ticks(int(pid)) == int(start):
        return False
    return entry.stat(follow_symlinks=False).st_uid == os.geteuid()


def sweep(folder: Path) -> None:
    """Remove temporary files of ended processes from `folder`, once per process and folder."""
    key = os.getpid(), folder.absolute()
    if key in _swept:
        return
    _swept.add(key)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_left_behind(entry):
                    _remove(Path(entry.path))


def _remove(path: Path) -> None:
    """Remove a file, a link or a folder. The target of a link stays."""
    with suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def remove_live() -> None:
    """Remove all temporary files of this process, which ends at once."""
    for path in list(_live):
        _remove(path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the temporary name of the file at `path`, where an empty file has been made.

    Anything else of that name, such as a link to another file, is removed first. The file is
    removed at the end, unless the caller has renamed it.
    """
    sweep(path.parent)
    temporary = temporary_name(path)
    temporary.unlink(missing_ok=True)
    _live.add(temporary)
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        yield temporary
    finally:
        _live.discard(temporary)
        temporary.unlink(missing_ok=True)


def _new_folder(prefix: str, parent: Path | None) -> Path:
    """Make a folder named by `prefix` and its owner, in `parent` or the system's own."""
    import tempfile

    folder = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(folder)
    while True:
        path = folder / f"{prefix}{_owner_of(os.getpid())}-{next(_numbers)}"
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            _live.add(path)
            return path


def _remove_folder(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    _live.discard(path)


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, which is removed at the end.

    `prefix` is letters and a hyphen; a dot before it hides the folder. Without `parent`, the folder
    is in the system's temporary folder.
    """
    path = _new_folder(prefix, parent)
    try:
        yield path
    finally:
        _remove_folder(path)


class TemporaryFolder:
    """A folder that is deleted with the last reference to this object, or as the program ends."""

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """Make the folder, named as those of `temporary_folder`."""
        self.path = _new_folder(prefix, parent)
        self._removal = weakref.finalize(self, _remove_folder, self.path)

    def remove(self) -> None:
        """Remove the folder now."""
        self._removal()

    def keep_until_exit(self) -> None:
        """Keep the folder until the program ends.

        A lazy frame names a file but has no reference to this object. Its file must not be deleted
        while the frame may still read it.
        """
        _KEPT.append(self)


_KEPT: list[TemporaryFolder] = []
