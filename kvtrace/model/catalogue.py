"""Models by name: those of models.toml, and any Hugging Face config.json."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.model.huggingface import read_model
from kvtrace.model.layers import parse_dtype
from kvtrace.model.shape import ModelShape, check, with_kv_dtype

_TABLE = Path(__file__).with_name("models.toml")
_TUNED = {"instruct", "chat", "it", "hf", "base"}


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
