"""Models by name: those of models.toml, and any Hugging Face config.json."""

from __future__ import annotations

from pathlib import Path

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.model.huggingface import read_model
from kvtrace.model.layers import parse_dtype
from kvtrace.model.shape import ModelShape, check, with_kv_dtype

_TABLE = Path(__file__).with_name("models.toml")


def load_models() -> dict[str, ModelShape]:
    """Return every model we ship, by name."""
    models = {name: to_struct(tree, ModelShape, f"models.toml: {name}") for name, tree in load_toml(_TABLE).items()}
    for name, model in models.items():
        check(model, f"models.toml: {name}")
    return models


def find_model(name: str, kv_dtype: str | None = None) -> ModelShape:
    """Return the model called `name`, or that of the Hugging Face config.json at that path.

    `kv_dtype` replaces the dtype of the cache. ConfigError, with the known names, if there is no such model.
    """
    models, path = load_models(), Path(name)
    if name in models:
        return models[name] if kv_dtype is None else with_kv_dtype(models[name], parse_dtype(kv_dtype, "--kv-dtype"))
    if name.endswith(".json") or path.is_dir():
        return read_model(path / "config.json" if path.is_dir() else path, kv_dtype)
    raise ConfigError(f"unknown model {name!r}; known are {', '.join(models)}, or a path to a config.json")
