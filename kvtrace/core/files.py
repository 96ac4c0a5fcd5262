"""JSON input with one-line errors, and outputs that appear only when complete.

An output is written under a temporary name beside its final name, and renamed when it is complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvtrace.core.errors import DeviceError, TraceError
from kvtrace.core.parameters import named
from kvtrace.core.temporary import temporary_file
from kvtrace.core.text import as_utf8, read_bounded

T = TypeVar("T")
MANIFEST = "dataset.json"
"""The file in the folder of a trace dataset that makes it whole."""
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def decode_json(
    data: bytes | str,
    kind: type[T] | msgspec.json.Decoder[T],
    path: object,
    *,
    row: int | None = None,
    misfit: str = "{}",
) -> T:
    """Return the JSON in `data` as a `kind`.

    TraceError if it is not JSON, not UTF-8, nested too deeply, or not a `kind`. The error names
    `path`, `row` and the field; `misfit` is a format for its message.
    """
    decoder = kind if isinstance(kind, msgspec.json.Decoder) else msgspec.json.Decoder(kind)
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        message, field = place_of(error)
        raise TraceError(misfit.format(message), path=path, row=row, column=field) from None
    except UnicodeDecodeError as error:
        reason = f"its text is not UTF-8 ({error.reason})"
    except RecursionError:
        reason = "nested too deeply"
    except msgspec.DecodeError as error:
        reason = str(error)
    raise TraceError(misfit.format(f"not JSON: {reason}"), path=path, row=row)


def place_of(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """Return the message of a msgspec error and the field that it concerns.

    "... - at `$.hash_ids[0]`" concerns hash_ids.
    """
    message, _, place = str(error).partition(" - at `$")
    names = [
        name
        for name in place.rstrip("`").replace("[", ".[").split(".")
        if name and not name.startswith("[")
    ]
    return message, ".".join(names) or None


def read_json(path: Path, kind: type[T], *, misfit: str = "{}") -> T:
    """Return the JSON file at `path` as a `kind`.

    The file is UTF-8, or UTF-16 with a byte order mark. TraceError as of `decode_json`, or if it
    cannot be read.
    """
    try:
        data = read_bounded(path)
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", path=path) from None
    return decode_json(as_utf8(data), kind, path, misfit=misfit)


def find_json(path: Path, kind: type[T], *, misfit: str = "{}") -> T | None:
    """Return the JSON file at `path` as `read_json` does, or None if there is no such file."""
    return read_json(path, kind, misfit=misfit) if path.is_file() else None


def at(value: Any, *names: str) -> Any:
    """Return the value at the path `names` in nested objects, which are JSON or structs.

    Null if there is none.
    """
    for name in names:
        value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
    return value


def check_new(path: Path, how: str = "with -o", *, is_forced: bool) -> None:
    """Raise DeviceError if there is a file or a trace dataset at `path`, unless `is_forced`.

    The error says `how` to name another file.
    """
    if (path.is_file() or (path / MANIFEST).is_file()) and not is_forced:
        raise DeviceError(
            f"{path} exists already; name another {how}, or add {named('force')} to overwrite it"
        )


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on any
    failure.

    DeviceError if the folder is missing, `path` is a folder, or the disk reports an error.
    """
    path = Path(path)
    if path.is_dir():
        raise DeviceError(f"{path} is a directory; name a file")
    if not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; create it first")
    if path.exists() and not path.is_file():
        raise DeviceError(f"{path} is not a regular file; name another output")
    try:
        with temporary_file(path) as temporary:
            yield temporary
            os.replace(temporary, path)  # noqa: PTH105 - atomic, and clobbers like mv
    except OSError as error:
        if error.errno is None:
            raise  # Arrow's, such as that zstd lacks memory
        raise DeviceError(f"cannot write {path}: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, which appears only when complete."""
    with aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Write `value`, which may contain msgspec structs, to `path` as indented JSON.

    The file appears only when complete.
    """
    write_text(path, msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def exchange_names(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders at one instant; return whether that was possible.

    Not every filesystem can: NFS cannot. Source: rename(2), RENAME_EXCHANGE.
    """
    import ctypes  # Most commands need it for nothing else.

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:  # Another library of C than GNU's
        return False
    names = (os.fsencode(first.absolute()), os.fsencode(second.absolute()))
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Constants of fcntl.h and stdio.h of Linux."""
