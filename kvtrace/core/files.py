"""Outputs are written under a temporary name beside their final one, and renamed when whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.errors import DeviceError


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it there on success, remove it on any failure.

    Raises:
        DeviceError: the directory is missing, the target is a directory, or the disk refuses.

    """
    path = Path(path)
    if path.is_dir():
        raise DeviceError(f"{path} is a directory; name a file")
    if not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; make it first")
    if path.exists() and not path.is_file():
        raise DeviceError(f"{path} is not a regular file; name another output")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)  # noqa: PTH105 - atomic, and clobbers like mv
    except OSError as error:
        raise DeviceError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, aside and renamed."""
    with aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value`, which may hold msgspec structs, to `path` as indented JSON, aside and renamed."""
    write_text(path, msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")
