"""Files of sources: their names, their SHA-256, and the start from which a format is recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.text import as_utf8
from kvtrace.requests.requests import Requests

_START_BYTES = 1 << 16


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of the bytes of `paths`, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def files_of(path: Path, pattern: str) -> list[Path]:
    """Return the file at `path`, or those that `pattern` matches in that directory, or `path` as a
    glob, by name.

    TraceError if there is none.
    """
    if path.is_dir():
        matches = sorted(path.glob(pattern))
    elif not path.exists() and any(character in path.name for character in "*?["):
        matches = sorted(file for file in path.parent.glob(path.name) if file.is_file())
    else:
        need_file(path)
        return [path]
    if not matches:
        raise TraceError(f"no {pattern} there", path=path)
    return matches


@dataclass(frozen=True, slots=True)
class Start:
    """The first 64 KiB of a file, from which a source recognises its format.

    Byte order mark and leading blanks are removed.
    """

    path: Path
    text: bytes

    @property
    def line(self) -> bytes:
        """The first line."""
        return self.text.split(b"\n", 1)[0]

    def has_json_with(self, *names: str) -> bool:
        """Return whether the file begins as JSON, on one line or indented, that holds `names`."""
        is_json = self.text.startswith((b"{", b"["))
        return is_json and all(f'"{name}"'.encode() in self.text for name in names)

    def is_json_with(self, *names: str) -> bool:
        """Return whether the first line is a JSON object that holds all of `names`, quoted."""
        return self.text.startswith(b"{") and all(
            f'"{name}"'.encode() in self.line for name in names
        )

    @property
    def columns(self) -> set[str]:
        """The column names, if the first line is the header of a CSV."""
        names = self.line.decode(errors="replace").split(",")
        return {name.strip().strip('"') for name in names}


def start_of(path: Path) -> Start:
    """Return the start of the file at `path`."""
    with path.open("rb") as file:
        return Start(path, as_utf8(file.read(_START_BYTES)).lstrip())


class SourceFormat(NamedTuple):
    """One format among several that a module reads.

    A module of one format has these as functions.
    """

    read: Callable[..., Requests]
    is_own: Callable[[Start], bool]


def source(is_own: Callable[[Start], bool]) -> Callable[[Callable[..., Requests]], SourceFormat]:
    """Decorate a reader as a format; `is_own` recognises its files."""
    return lambda read: SourceFormat(read, is_own)
