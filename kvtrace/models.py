"""Model shapes and the KV bytes they take: what turns tokens into bytes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.errors import ConfigError

_TABLE = Path(__file__).with_name("models.toml")


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shape of one model's KV cache; `latent_dim` marks multi-head latent attention."""

    source: str
    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int = 0
    """Elements a token and layer under MLA: kv_lora_rank + qk_rope_head_dim."""
    dtype_bytes: int = 2
    max_context_tokens: int


def load_models() -> dict[str, ModelShape]:
    """Return every model we ship, by name."""
    return {name: to_struct(tree, ModelShape, f"models.toml: {name}") for name, tree in load_toml(_TABLE).items()}


def find_model(name: str) -> ModelShape:
    """Return the model called `name`; ConfigError with the known names if there is none."""
    models = load_models()
    if name not in models:
        raise ConfigError(f"unknown model {name!r}; known are {', '.join(models)}")
    return models[name]


def bytes_per_token(model: ModelShape) -> int:
    """Return the KV bytes one token occupies across all layers, before any tensor-parallel split."""
    elements = model.latent_dim or 2 * model.kv_heads * model.head_dim
    return model.layers * elements * model.dtype_bytes


def bytes_per_token_per_rank(model: ModelShape, ranks: int) -> int:
    """Return the KV bytes one token occupies on each of `ranks` tensor-parallel ranks.

    Key-value heads are split; with more ranks than heads each rank holds one whole head, so heads are
    replicated. A latent (MLA) is the same on every rank and is never divided.
    """
    if model.latent_dim:
        return bytes_per_token(model)
    heads = max(1, -(-model.kv_heads // ranks))
    return model.layers * 2 * heads * model.head_dim * model.dtype_bytes


def stored_ranks(model: ModelShape, ranks: int) -> int:
    """Return how many ranks store an object of their own: one under MLA, whose latent is the same on all."""
    return 1 if model.latent_dim else ranks
