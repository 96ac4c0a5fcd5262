"""What a config.json leaves to its class: defaults of transformers, older names, and Falcon's way to say its heads."""

from __future__ import annotations

from typing import Any, Final

from kvtrace.model.hf_layers import Fields

_GEMMA3: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 6,
    "max_position_embeddings": 131_072,
}
# What each class of transformers takes for a field that a config.json leaves out; released files rely on it.
_DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "gemma3_text": _GEMMA3,
    "opt": {"max_position_embeddings": 2048},
    "falcon": {"max_position_embeddings": 2048},
    "jamba": {"num_key_value_heads": 8, "max_position_embeddings": 262_144},
}
# The names by which Falcon was released before transformers had it, and whether all of that name are of the new layout.
_FALCON: Final = {"falcon": False, "RefinedWeb": True, "RefinedWebModel": False}
_OLD_NAMES: Final = {
    "n_layer": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_kv_heads",
}
_WITH_OLD_NAMES: Final = {*_FALCON, "exaone"}


def completed(text: Fields, notes: list[str]) -> Fields:
    """Return `text` with what its class adds; `notes` takes which values that were."""
    kind = text.text("model_type") or ""
    tree = {name: value for name, value in text.tree.items() if value is not None}
    if kind in _WITH_OLD_NAMES:
        for old, name in _OLD_NAMES.items():
            if old in tree:
                tree.setdefault(name, tree[old])
    if kind in _FALCON:
        tree.setdefault("num_key_value_heads", _falcon_heads(Fields(tree, text.where), is_new=_FALCON[kind]))
        text.use("multi_query", "new_decoder_architecture", "num_kv_heads")
        kind = "falcon"
    defaults = {n: value for n, value in _DEFAULTS.get(kind, {}).items() if n not in tree}
    if "layer_types" in tree:
        defaults.pop("sliding_window_pattern", None)
    if defaults:
        said = ", ".join(f"{name} {value:,}" for name, value in defaults.items())
        notes.append(f"config.json leaves to its class: {said}")
    whole: dict[str, Any] = text.tree | tree | defaults
    return Fields(whole, text.where, text.used)


def _falcon_heads(text: Fields, *, is_new: bool) -> int:
    """Falcon names its key-value heads in the new layout only; before it there is one, or one a head."""
    if is_new or text.get("new_decoder_architecture"):
        return text.integer("num_kv_heads")
    is_single = text.get("multi_query")
    return 1 if is_single is None or is_single else text.integer("num_attention_heads")
