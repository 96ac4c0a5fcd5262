"""Configuration.

TOML into frozen structs that refuse unknown fields, single overrides, and a hash.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import msgspec.inspect

from kvtrace.core.errors import ConfigError, need_file
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import setting as named_setting

T = TypeVar("T")
_MOST_DOTS = 200
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The smallest and largest value of a knob, or of each in its list, as its type says.

    Annotated[int, Bounds(0, 9)].

    What is written as text, such as `10m`, is bounded by the number that `read` makes of it.
    """

    least: float
    most: float
    words: str = ""
    """How an error says them; by default as two numbers."""
    read: Callable[[Any], Any] = lambda value: value

    def refusal(self, value: object) -> str:
        """Return what an error says of `value`, behind the knob's name; nothing if it is within."""
        if self.least <= self.read(value) <= self.most:
            return ""
        return f"(={value}) must be {self.words or f'>= {self.least}, and at most {self.most}'}"


@cache
def bounds_of(kind: type[msgspec.Struct]) -> dict[str, Bounds]:
    """Return the bounds of those fields of `kind` that have some."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: bounds for name, hint in hints.items() if (bounds := _bounds(hint)) is not None}


def _bounds(hint: object) -> Bounds | None:
    parts = get_args(hint)
    own = next((part for part in parts if isinstance(part, Bounds)), None)
    return own or next(filter(None, map(_bounds, parts)), None)


def check_bounds(holder: msgspec.Struct, where: str, prefix: str = "") -> None:
    """Raise ConfigError, naming `where` and the knob as --set has it, for a value of `holder` that
    is out of bounds.
    """
    for name in holder.__struct_fields__:
        value = getattr(holder, name)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, msgspec.Struct):
                check_bounds(
                    one, where, f"{prefix}{name}.{f'{one.name}.' if hasattr(one, 'name') else ''}"
                )
            elif (
                one is not None
                and name in (known := bounds_of(type(holder)))
                and (why := known[name].refusal(one))
            ):
                raise ConfigError(f"{where}: {prefix}{name}{why}")


def load_toml(path: Path) -> JsonObject:
    """Return the tables of the TOML file at `path`.

    TraceError if it is missing, ConfigError if it is not TOML.
    """
    need_file(path)
    try:
        return _toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def _toml(text: str) -> JsonObject:
    """Return what `text` holds.

    ValueError, of which TOML's and UTF-8's own are, if it cannot be read.
    """
    # Python's parser takes memory by the square of a key's length in parts.
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line with more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_struct(tree: JsonObject, kind: type[T], where: str) -> T:
    """Return `tree` as a `kind`.

    ConfigError, naming the field and `where` it came from, if it does not fit.
    """
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        unknown = _UNKNOWN.search(str(error))
        names = _field_names(msgspec.inspect.type_info(kind)) if unknown else ()
        raise ConfigError(
            f"{where}: {error}{nearest(unknown[1], names) if unknown else ''}"
        ) from None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ".

    Did you mean ...?" with those of `names` that begin with `name`, else the one most like it; or
    nothing.

    Of dotted names the last part is compared, unless `name` is dotted, too; the outermost counts.

    >>> nearest("chunk_token", ["chunk_tokens", "tiers.NAME.policy"])
    '; did you mean chunk_tokens?'
    >>> nearest("policy", ["chunk_tokens", "tiers.NAME.policy"])
    '; did you mean tiers.NAME.policy?'
    """
    by_depth = sorted(set(names), key=lambda each: (-each.count("."), each))
    whole = {each if "." in name else each.rpartition(".")[2]: each for each in by_depth}
    found = [last for last in whole if last.startswith(name)] or difflib.get_close_matches(
        name, whole, n=1
    )
    return f"; did you mean {' or '.join(whole[last] for last in found)}?" if found else ""


def _field_names(kind: msgspec.inspect.Type, within: str = "") -> Iterator[str]:
    """Yield the names of the fields of the struct `kind`, and of those that it holds, as --set has
    them.
    """
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield within + field.encode_name
            yield from _field_names(field.type, f"{within}{field.encode_name}.")
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        yield from _field_names(kind.item_type, f"{within}NAME.")
    elif isinstance(kind, msgspec.inspect.UnionType):
        for one in kind.types:
            yield from _field_names(one, within)


def override(tree: JsonObject, settings: Iterable[str]) -> JsonObject:
    """Return a copy of `tree` with each `a.b.c=value` of `settings` applied.

    Values are TOML, else text.

    A list of tables is entered by the `name` of its entry: `tiers.nvme.capacity=2TiB`.
    """
    tree = msgspec.json.decode(msgspec.json.encode(tree))
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(
                f"{named_setting(setting)}: write it as KEY=VALUE, for example"
                " tiers.nvme.capacity=2TiB"
            )
        *parents, leaf = path.strip().split(".")
        node: Any = tree
        for name in parents:
            node = _child(node, name, setting)
        if not isinstance(node, dict):
            raise ConfigError(f"{named_setting(setting)}: {'.'.join(parents)} is not a table")
        try:
            node[leaf] = _toml(f"v = {text.strip()}")["v"]
        except ValueError:
            node[leaf] = text.strip()
    return tree


_SIZES = ("capacity", "bandwidth")
"""Ends of the names of settings that are bytes, or bytes per second."""
_LEAST_BARE_BYTES = 1 << 16
"""Smaller capacities and bandwidths need a unit: they were hardly meant in bytes."""


def check_units(settings: list[str] | None) -> list[str] | None:
    """Return the settings of a command line; ConfigError for a small size without a unit.

    `tiers.cpu.capacity=8` was meant in GiB, and would be 8 bytes.
    """
    for setting in settings or ():
        key, _, text = setting.partition("=")
        number = text.strip()
        is_bare = key.strip().endswith(_SIZES) and number.isdigit()
        if is_bare and 0 < int(number) < _LEAST_BARE_BYTES:
            raise ConfigError(
                f"{named_setting(setting)}: {number} has no unit; write {number}B, {number}MiB or"
                f" {number}GiB"
            )
    return settings


def as_setting(key: str, value: object) -> str:
    """Return `key=value` as `--set` takes it: sizes in whole bytes get their unit."""
    if key.endswith(_SIZES) and isinstance(value, int) and value:
        return f"{key}={value}B"
    return f"{key}={as_text(value)}"


def as_text(value: object) -> str:
    """Return a value as a command line takes it, and `override` reads it; a dash for none."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _child(node: Any, name: str, setting: str) -> Any:
    if isinstance(node, list):
        named = {entry.get("name"): entry for entry in node if isinstance(entry, dict)}
        if name in named:
            return named[name]
        raise ConfigError(
            f"{named_setting(setting)}: no entry {name!r}; there is"
            f" {', '.join(map(str, named))}{nearest(name, map(str, named))}"
        )
    if isinstance(node, dict) and name in node:
        return node[name]
    known = node if isinstance(node, dict) else ()
    raise ConfigError(
        f"{named_setting(setting)}: there is no {name!r} to set{nearest(name, known)}"
    )


def sha256(tree: object) -> str:
    """Return the SHA-256 of `tree` as canonical JSON (sorted keys), in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(tree, order="deterministic")).hexdigest()
