"""The knobs of a preset as people may set them, read from the structs that hold them: type, default, meaning."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from enum import EnumType
from typing import Any

import msgspec

from kvtrace.checkpoint import training
from kvtrace.core.config import load_toml, to_struct
from kvtrace.sim.presets.preset import PRESETS, RANGES, Preset, load_preset, preset_names
from kvtrace.sim.presets.tier import TierSetting

_HIDDEN = {"description", "name"}


class Basis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a preset was made from; for people, and in no trace."""

    engine: str
    version: str
    read: str
    """Which of its source files were read."""
    executed: str
    """What was run beside it, when, and what did not come out equal."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing that `--set` takes."""

    name: str
    """As in `--set name=value`."""
    value: Any
    """What it is in the preset."""
    default: Any
    """What it is where the preset says nothing; null without, and where nothing is meant."""
    type: str
    """Its values if they are a closed set, else int, float, bool, text, or bytes."""
    least: float | None
    most: float | None
    """Between which it must be; null where nothing or another knob bounds it."""
    meaning: str


_TRAINING = Basis(
    engine="mixed-precision training",
    version="Adam",
    read="MLPerf Storage's checkpointing rules (Rules.md, table 2); sizes are held against it in docs/validation.md",
    executed="nothing: a trainer's files differ in number and name, not in their bytes",
)


def load_basis(name: str) -> Basis | None:
    """Return what the preset called `name`, one of ours, is based on; None if it does not say."""
    if name == training.PRESET:
        return _TRAINING
    tree = load_toml(PRESETS / f"{name}.toml").get("basis")
    return None if tree is None else to_struct(tree, Basis, f"preset {name}: basis")


def knobs_of(name: str) -> list[Knob]:
    """Return the knobs of the preset called `name`, those of its tiers after its own.

    ConfigError if there is no such preset.
    """
    if name == training.PRESET:
        return list(_knobs("", training.Training(), training.Training))
    preset = load_preset(name)
    found = list(_knobs("", preset, Preset))
    for tier in preset.tiers:
        found += _knobs(f"tiers.{tier.name}.", tier, TierSetting)
    for field in ("workload", "load", "fleet"):
        inner = getattr(preset, field)
        found += _knobs(f"{field}.", inner, type(inner))
    return found


def _knobs(prefix: str, holder: Any, kind: type[msgspec.Struct]) -> Iterator[Knob]:
    meanings = _meanings(kind)
    for field in msgspec.structs.fields(kind):
        value = getattr(holder, field.name)
        if field.name in _HIDDEN or isinstance(value, msgspec.Struct) or field.name == "tiers":
            continue
        default = None if field.default is msgspec.NODEFAULT else field.default
        least, most = RANGES.get(f"{kind.__name__}.{field.name}", (None, None))
        yield Knob(prefix + field.name, value, default, _type(field.type), least, most, meanings.get(field.name, ""))


def _type(kind: Any) -> str:
    """Return the name of a type for people: the values of a closed set, and `text` for what is read from text."""
    if isinstance(kind, EnumType):
        return " | ".join(kind)
    parts = [part for part in getattr(kind, "__args__", (kind,)) if part is not type(None)]
    if getattr(kind, "__origin__", None) is tuple:
        return "list"
    if set(parts) == {str, int}:
        return "size"
    names = {str: "text", int: "int", float: "float", bool: "bool"}
    return " | ".join(names[part] if part in names else _type(part) for part in parts)


def _meanings(kind: type) -> dict[str, str]:
    """Return what the class's source says beneath each of its fields."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    found, name = {}, None
    for node in body.body if isinstance(body, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[name] = " ".join(str(node.value.value).split())
            name = None
        else:
            name = None
    return found


def description_of(name: str) -> str:
    """Return what the preset called `name` is; ConfigError if there is none."""
    return training.DESCRIPTION if name == training.PRESET else load_preset(name).description


def listing() -> list[dict[str, Any]]:
    """Return every preset we ship: name, description, and what it is based on; that of training comes last."""
    return [
        {"name": name, "description": description_of(name), **msgspec.to_builtins(load_basis(name))}
        for name in (*preset_names(), training.PRESET)
    ]
