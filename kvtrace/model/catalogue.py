"""Models by name: those of models.toml, any Hugging Face config.json, and the one that an engine's log names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.model.huggingface import read_model
from kvtrace.model.shape import Full, KvDtype, ModelShape, check, parse_dtype, with_kv_dtype

_TABLE = Path(__file__).with_name("models.toml")
_TUNED = {"instruct", "chat", "it", "hf", "base"}
_ANY_CONTEXT_TOKENS = 2**31


@cache
def load_models() -> dict[str, ModelShape]:
    """Return every model we ship, by name."""
    models = {name: to_struct(tree, ModelShape, f"models.toml: {name}") for name, tree in load_toml(_TABLE).items()}
    for name, model in models.items():
        check(model, f"models.toml: {name}")
    return models


def find_model(name: str, kv_dtype: str | None = None) -> ModelShape:
    """Return the model called `name`, or that of the Hugging Face config.json at that path.

    A name is one of ours, or a Hugging Face one such as meta-llama/Llama-3.1-70B-Instruct. `kv_dtype` replaces the
    dtype of the cache. ConfigError, with the nearest names, if there is no such model.
    """
    models, path = load_models(), Path(name)
    if name not in models and (name.endswith(".json") or path.is_dir()):
        return read_model(path / "config.json" if path.is_dir() else path, kv_dtype)
    if own := known_as(name, models):
        return models[own] if kv_dtype is None else with_kv_dtype(models[own], parse_dtype(kv_dtype, "--kv-dtype"))
    near = difflib.get_close_matches(_plain(name), {_plain(model): model for model in models}, n=3)
    nearest = [model for model in models if _plain(model) in near]
    hint = f"the nearest are {', '.join(nearest)}" if nearest else f"known are {', '.join(models)}"
    raise ConfigError(f"unknown model {name!r}; {hint}, or a path to a config.json (`kvtrace models` lists all)")


def known_as(name: str, models: Iterable[str]) -> str | None:
    """Return which of `models` `name` means: the same, or the same but for its maker, its case and how it was tuned."""
    models = list(models)
    return name if name in models else next((own for own in models if _plain(own) == _plain(name)), None)


def _plain(name: str) -> str:
    """Return `name` without its maker, capitals, hyphens and tuning: meta-llama/Llama-3.1-70B-Instruct: llama3.170b."""
    words = re.split(r"[-_ ]+", name.rsplit("/", 1)[-1].lower().removeprefix("meta-"))
    while len(words) > 1 and words[-1] in _TUNED:
        words.pop()
    return "".join(words)


def logged_model(origin: dict[str, Any]) -> tuple[str, ModelShape] | None:
    """Return the model that a source's `origin` names and its shape; None if it does not say what a token takes.

    Of the shape only the bytes are known, and those of one rank: each of several ranks stores as many.
    """
    said = origin.get("model") or (origin.get("of") or {}).get("model")
    if not isinstance(said, dict):
        return None
    name, size = str(said.get("name") or "unnamed"), said.get("kv_bytes_per_token_per_rank")
    if not isinstance(size, int) or size <= 1:
        return None
    group = Full(layers=1, kv_heads=1, head_dim=size // 2, value_dim=size - size // 2)
    shape = ModelShape(
        source="the log of an engine",
        groups=(group,),
        max_context_tokens=_ANY_CONTEXT_TOKENS,
        kv_dtype=KvDtype.INT8,
        notes=(f"{size} bytes of KV a token and rank, as logged; how they divide into layers and heads is not known",),
    )
    check(shape, f"the logged model {name}")
    try:
        known = find_model(name)
    except ConfigError:
        return name, shape
    weights = {n: getattr(known, n) for n in ("parameters", "active_parameters", "weight_bytes", "max_context_tokens")}
    return name, msgspec.structs.replace(shape, computed_as=known.groups, **weights)
