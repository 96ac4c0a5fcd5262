"""The model that a log of an engine is of: its KV bytes a token as logged, its parameters if we know its name."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.core.errors import ConfigError
from kvtrace.model.catalogue import find_model
from kvtrace.model.layers import Full, KvDtype
from kvtrace.model.shape import ModelShape, check

_ANY_CONTEXT_TOKENS = 2**31


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
    return name, msgspec.structs.replace(shape, **weights)
