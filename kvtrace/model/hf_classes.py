"""What a config.json leaves to its class: defaults of transformers, older names, and what a family says its own way."""

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
    if kind == "nemotron_h" and "num_hidden_layers" not in tree:
        tree["num_hidden_layers"] = len(tree.get("layers_block_type") or tree.get("hybrid_override_pattern") or ())
    if kind == "nemotron-nas":
        tree |= _of_blocks(text)
    if kind == "mimo_v2_flash":
        tree.setdefault("layer_types", _of_pattern(text))
        text.use("sliding_window_size")
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


def _of_pattern(text: Fields) -> list[str]:
    """MiMo marks its windowed layers by 1."""
    names = {0: "full_attention", 1: "sliding_attention"}
    flags = text.numbers("hybrid_layer_pattern")
    if set(flags) - set(names):
        raise text.error("hybrid_layer_pattern", "must be 0 (full) or 1 (sliding) for each layer")
    return [names[flag] for flag in flags]


def _of_blocks(text: Fields) -> dict[str, Any]:
    """Nemotron's searched models (NAS) say each layer's attention and network: which have none, and their widths."""
    blocks = text.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise text.error("block_configs", "must be a list of one object a layer")
    names: list[str] = []
    groups: set[int] = set()
    inner = 0
    for number, block in enumerate(blocks):
        of = Fields(block, f"{text.where}: block_configs[{number}]")
        attention, network = of.nested("attention"), of.nested("ffn")
        if attention is None:
            raise of.error("attention", "is missing")
        if unlike := [n for n in ("window_length", "num_sink_tokens", "sparsify") if attention.get(n) is not None]:
            raise attention.error(unlike[0], "may change what is cached, and is not understood")
        is_none = bool(attention.get("no_op") or attention.get("replace_with_linear"))
        names.append("mlp" if is_none else "full_attention")
        if not is_none:
            groups.add(attention.integer("n_heads_in_group"))
        multiple = network.get("ffn_mult") if network is not None else None
        inner += int(2 * multiple * text.integer("hidden_size") / 3) if isinstance(multiple, int | float) else 0
    if len(groups) != 1:
        raise text.error("block_configs", f"one n_heads_in_group is supported, not {sorted(groups)}")
    return {
        "layers_block_type": names,
        "num_key_value_heads": text.integer("num_attention_heads") // groups.pop(),
        "intermediate_size": inner // len(blocks),
    }
