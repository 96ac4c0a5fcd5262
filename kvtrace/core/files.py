"""JSON that others may have written, decoded with one line for whatever is wrong with it; and outputs.

Outputs are written under a temporary name beside their final one, and renamed when whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.units import DURATIONS_NS, parse_bytes, parse_duration_ns

T = TypeVar("T")


def decode_json(
    data: Any, kind: type[T] | msgspec.json.Decoder[T], path: object, *, row: int | None = None, misfit: str = "{}"
) -> T:
    """Return the JSON in `data` (bytes) as a `kind`.

    Raises:
        TraceError: it is no JSON, no UTF-8, nested too deeply, or no `kind`; it names `path`, `row` and the field, and
            `misfit` says more, around what is wrong.

    """
    try:
        return (kind if isinstance(kind, msgspec.json.Decoder) else msgspec.json.Decoder(kind)).decode(data)
    except msgspec.ValidationError as error:
        message, field = place_of(error)
        raise TraceError(misfit.format(message), path=path, row=row, column=field) from None
    except UnicodeDecodeError as error:
        why = f"its text is not UTF-8 ({error.reason})"
    except RecursionError:
        why = "nested too deeply"
    except msgspec.DecodeError as error:
        why = str(error)
    raise TraceError(misfit.format(f"not JSON: {why}"), path=path, row=row)


def place_of(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """Return the message of a msgspec error and the field it is about: "... - at `$.hash_ids[0]`" is about hash_ids."""
    message, _, place = str(error).partition(" - at `$")
    names = [name for name in place.rstrip("`").replace("[", ".[").split(".") if name and not name.startswith("[")]
    return message, ".".join(names) or None


def read_json(path: Path, kind: type[T], *, misfit: str = "{}") -> T:
    """Return the JSON file at `path` as a `kind`; TraceError as of `decode_json`, or if it cannot be read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", path=path) from None
    return decode_json(data, kind, path, misfit=misfit)


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


_FORM = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ]*)\s*")


@dataclass(frozen=True, slots=True)
class Limit:
    """Where to begin, and where to stop: at the first bound that is reached; a null bound is none."""

    rows: int | None = None
    span_ns: int | None = None
    moved_bytes: int | None = None
    begin_ns: int = 0
    """From the first row."""
    busiest_ns: int | None = None
    """Instead of a beginning: the window of this length that moves most; whoever reads rows finds it."""
    node: int | None = None
    """Of a fleet's trace, rows of this node alone; whoever reads rows leaves the others out."""

    def __str__(self) -> str:
        """Describe the limit for provenance; empty if there is none."""
        parts = [(self.rows, "rows"), (self.span_ns, "ns"), (self.moved_bytes, "bytes")]
        said = ", ".join(f"{value} {unit}" for value, unit in parts if value is not None)
        if self.busiest_ns is not None:
            return f"{said}{', ' * bool(said)}the busiest {self.busiest_ns} ns"
        if self.begin_ns:
            return f"{said or 'all'} from {self.begin_ns} ns on"
        return said

    def within(self, other: Limit) -> Limit:
        """Return the stricter of both limits, bound by bound; the window begins where this one does."""
        return replace(
            self,
            rows=_least(self.rows, other.rows),
            span_ns=_least(self.span_ns, other.span_ns),
            moved_bytes=_least(self.moved_bytes, other.moved_bytes),
        )


def _least(a: int | None, b: int | None) -> int | None:
    return min((v for v in (a, b) if v is not None), default=None)


def parse_limit(text: str | None) -> Limit:
    """Return the limit that `text` names: `10000` or `10000rows`, `30s` of trace time, or `2GiB` moved."""
    if text is None:
        return Limit()
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"--limit {text!r}: write rows (10000), trace time (30s) or bytes (2GiB)")
    number, unit = match[1], match[2].lower()
    if unit in ("", "row", "rows"):
        if "." in number:
            raise ConfigError(f"--limit {text!r}: rows are whole; write for example 10000, 30s or 2GiB")
        limit = Limit(rows=int(number))
    elif unit == "m":
        raise ConfigError(f"--limit {text!r} could be minutes or MiB; write {number}min or {number}MiB")
    elif unit in DURATIONS_NS:
        limit = Limit(span_ns=parse_duration_ns(text))
    else:
        limit = Limit(moved_bytes=parse_bytes(text))
    if 0 in (limit.rows, limit.span_ns, limit.moved_bytes):
        raise ConfigError(f"--limit {text!r} would leave nothing; write more than 0")
    return limit


def parse_window(limit: str | None, begin: str | None, end: str | None, busiest: str | None) -> Limit:
    """Return the window of `--limit`, `--from`, `--to` and `--busiest`, times from the first row on."""
    found = parse_limit(limit)
    if busiest is not None:
        if begin is not None or end is not None:
            raise ConfigError("--busiest finds where to begin and end: leave --from and --to out")
        length = parse_duration_ns(busiest)
        if length <= 0:
            raise ConfigError(f"--busiest {busiest}: it must be more than 0")
        return replace(found, busiest_ns=length)
    begin_ns = 0 if begin is None else parse_duration_ns(begin)
    if end is None:
        return replace(found, begin_ns=begin_ns)
    span_ns = parse_duration_ns(end) - begin_ns
    if span_ns <= 0:
        raise ConfigError(f"--to {end} is not after --from {begin or '0s'}")
    return replace(found, begin_ns=begin_ns).within(Limit(span_ns=span_ns))
