"""Configuration: TOML into frozen structs that refuse unknown fields, single overrides, and a hash."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvtrace.core.errors import ConfigError

T = TypeVar("T")


def load_toml(path: Path) -> dict[str, Any]:
    """Return the tables of the TOML file at `path`; ConfigError if it is missing or not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None


def to_struct(tree: dict[str, Any], kind: type[T], where: str) -> T:
    """Return `tree` as a `kind`; ConfigError, naming the field and `where` it came from, if it does not fit."""
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


def override(tree: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return a copy of `tree` with each `a.b.c=value` of `settings` applied; values are TOML, else text.

    A list of tables is entered by the `name` of its entry: `tiers.nvme.capacity=2TiB`.
    """
    tree = msgspec.json.decode(msgspec.json.encode(tree))
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting}: write it as KEY=VALUE, for example tiers.nvme.capacity=2TiB")
        *parents, leaf = path.strip().split(".")
        node: Any = tree
        for name in parents:
            node = _child(node, name, setting)
        if not isinstance(node, dict):
            raise ConfigError(f"--set {setting}: {'.'.join(parents)} is not a table")
        node[leaf] = _value(text.strip())
    return tree


def _child(node: Any, name: str, setting: str) -> Any:
    if isinstance(node, list):
        named = {entry.get("name"): entry for entry in node if isinstance(entry, dict)}
        if name in named:
            return named[name]
        raise ConfigError(f"--set {setting}: no entry {name!r}; there is {', '.join(map(str, named))}")
    if isinstance(node, dict) and name in node:
        return node[name]
    raise ConfigError(f"--set {setting}: there is no {name!r} to set")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def sha256(tree: object) -> str:
    """Return the SHA-256 of `tree` as canonical JSON (sorted keys), in hexadecimal."""
    return hashlib.sha256(msgspec.json.encode(tree, order="deterministic")).hexdigest()
