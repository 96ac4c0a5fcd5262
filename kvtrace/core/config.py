"""Configuration: TOML as frozen structs without unknown fields, single overrides, and a hash."""

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
    """The smallest and largest value of a knob, or of each value in its list.

    A field declares them in its type: Annotated[int, Bounds(0, 9)]. For a value that is written as
    text, such as `10m`, they bound the number that `read` parses from it.
    """

    minimum: float
    maximum: float
    words: str = ""
    """The bounds as an error words them; by default the two numbers."""
    read: Callable[[Any], Any] = lambda value: value

    def refusal(self, value: object) -> str:
        """Return the error for `value`, to follow the knob's name; empty if it is in bounds."""
        if self.minimum <= self.read(value) <= self.maximum:
            return ""
        words = self.words or f">= {self.minimum}, and at most {self.maximum}"
        return f"(={value}) must be {words}"


@cache
def bounds_of(kind: type[msgspec.Struct]) -> dict[str, Bounds]:
    """Return the bounds of the fields of `kind` that have bounds, by field."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: bounds for name, hint in hints.items() if (bounds := _bounds(hint)) is not None}


def _bounds(hint: object) -> Bounds | None:
    """Return the bounds in a type hint, at any depth; the outermost come first."""
    arguments = get_args(hint)
    for argument in arguments:
        if isinstance(argument, Bounds):
            return argument
    for argument in arguments:
        bounds = _bounds(argument)
        if bounds is not None:
            return bounds
    return None


def check_bounds(holder: msgspec.Struct, where: str, prefix: str = "") -> None:
    """Raise ConfigError for a value of `holder`, or of a struct in it, that is out of bounds.

    The error names `where` the values come from, and the knob as --set names it.
    """
    bounds_by_name = bounds_of(type(holder))
    for name in holder.__struct_fields__:
        value = getattr(holder, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, msgspec.Struct):
                entry = f"{item.name}." if hasattr(item, "name") else ""
                check_bounds(item, where, f"{prefix}{name}.{entry}")
            elif item is not None and name in bounds_by_name:
                refusal = bounds_by_name[name].refusal(item)
                if refusal:
                    raise ConfigError(f"{where}: {prefix}{name}{refusal}")


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
    """Return the tables of the TOML in `text`.

    ValueError if it cannot be parsed; the errors of TOML and of UTF-8 are ValueErrors, too.
    """
    # Python's parser needs memory that grows with the square of the number of parts of a key.
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise ValueError(f"a line with more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_struct(tree: JsonObject, kind: type[T], where: str) -> T:
    """Return `tree` as a `kind`.

    ConfigError, which names the field and `where` the tree comes from, if it does not fit.
    """
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        suggestion = ""
        if unknown := _UNKNOWN.search(str(error)):
            names = _field_names(msgspec.inspect.type_info(kind))
            suggestion = nearest(unknown[1], names)
        raise ConfigError(f"{where}: {error}{suggestion}") from None


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a suggestion for an unknown `name`, to follow an error: "; did you mean ...?".

    It has all `names` that begin with `name`, or else the most similar one; it is empty if none is
    similar. Only the last part of a dotted name is compared, unless `name` is dotted, too. If
    several names have the same last part, the one with the fewest dots counts.

    >>> nearest("chunk_token", ["chunk_tokens", "tiers.NAME.policy"])
    '; did you mean chunk_tokens?'
    >>> nearest("policy", ["chunk_tokens", "tiers.NAME.policy"])
    '; did you mean tiers.NAME.policy?'
    """
    # The fewest dots last, because later names replace earlier ones with the same last part.
    deepest_first = sorted(set(names), key=lambda candidate: (-candidate.count("."), candidate))
    full_names = {}
    for candidate in deepest_first:
        compared = candidate if "." in name else candidate.rpartition(".")[2]
        full_names[compared] = candidate
    matches = [compared for compared in full_names if compared.startswith(name)]
    matches = matches or difflib.get_close_matches(name, full_names, n=1)
    if not matches:
        return ""
    return f"; did you mean {' or '.join(full_names[match] for match in matches)}?"


def _field_names(kind: msgspec.inspect.Type, within: str = "") -> Iterator[str]:
    """Yield the field names of the struct `kind` and of the structs in it, as --set names them."""
    if isinstance(kind, msgspec.inspect.StructType):
        for field in kind.fields:
            yield within + field.encode_name
            yield from _field_names(field.type, f"{within}{field.encode_name}.")
    elif isinstance(kind, msgspec.inspect.VarTupleType):
        yield from _field_names(kind.item_type, f"{within}NAME.")
    elif isinstance(kind, msgspec.inspect.UnionType):
        for alternative in kind.types:
            yield from _field_names(alternative, within)


def override(tree: JsonObject, settings: Iterable[str]) -> JsonObject:
    """Return a copy of `tree` with each `a.b.c=value` of `settings` applied.

    Values are parsed as TOML; a value that is not TOML is text. In a list of tables, the `name` of
    an entry selects it: `tiers.nvme.capacity=2TiB`.
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
"""Settings whose names end so are bytes, or bytes per second."""
_LEAST_BARE_BYTES = 1 << 16
"""Smaller capacities and bandwidths need a unit, since a user hardly means bytes."""


def check_units(settings: list[str] | None) -> list[str] | None:
    """Return the settings of a command line; ConfigError for a small size without a unit.

    A user who writes `tiers.cpu.capacity=8` means GiB, but would get 8 bytes.
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
    """Return `key=value` as `--set` accepts it. Sizes in whole bytes get the unit B."""
    if key.endswith(_SIZES) and isinstance(value, int) and value:
        return f"{key}={value}B"
    return f"{key}={as_text(value)}"


def as_text(value: object) -> str:
    """Return a value as a command line accepts it and `override` parses it; a dash for None."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _child(node: Any, name: str, setting: str) -> Any:
    """Return the value `name` of a table, or the entry of this `name` in a list of tables.

    ConfigError, which names the `setting`, if there is none.
    """
    if isinstance(node, list):
        entries = {entry.get("name"): entry for entry in node if isinstance(entry, dict)}
        if name in entries:
            return entries[name]
        raise ConfigError(
            f"{named_setting(setting)}: no entry {name!r}; there is"
            f" {', '.join(map(str, entries))}{nearest(name, map(str, entries))}"
        )
    if isinstance(node, dict) and name in node:
        return node[name]
    names = node if isinstance(node, dict) else ()
    raise ConfigError(
        f"{named_setting(setting)}: there is no {name!r} to set{nearest(name, names)}"
    )


def sha256(tree: object) -> str:
    """Return the SHA-256 of `tree` as canonical JSON (sorted keys), in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(tree, order="deterministic")).hexdigest()
