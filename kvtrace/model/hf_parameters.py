"""How many parameters a Hugging Face config.json describes: near enough for how long they take to compute with."""

from __future__ import annotations

from dataclasses import dataclass

from kvtrace.model.hf_layers import Fields, LayerKind, layer_kinds

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")
_SHARED = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
# A gated feed-forward network has three matrices, one with squared ReLU two.
_GATED, _PLAIN = 3, 2


def count_parameters(fields: Fields) -> tuple[int, int]:
    """Return all parameters and those active for a token; zeros if the usual fields are not there.

    Attention, recurrence, feed-forward networks, experts and embeddings are counted; biases, norms, routers and what
    else is special to a family are left out.
    """
    text = Fields(fields.tree, fields.where)  # What is read here does not count as understood.
    hidden, heads = _count(text, "hidden_size"), _count(text, "num_attention_heads")
    if not (hidden and heads and _count(text, "num_hidden_layers")):
        return 0, 0
    kinds = layer_kinds(text, [])
    # A token looks its embedding up, but computes with all of the output's.
    common = 2 * _count(text, "vocab_size") * hidden
    common += kinds.count(LayerKind.RECURRENT) * _recurrence(text, hidden)
    common += sum(k not in (LayerKind.RECURRENT, LayerKind.NONE) for k in kinds) * _attention(text, hidden, heads)
    dense, sparse = _networks(text, kinds)
    inner = _count(text, "intermediate_size_mlp", "intermediate_size", "ffn_dim") or 4 * hidden
    common += dense * _matrices(text) * hidden * inner
    experts = _experts(text, hidden)
    return common + sparse * experts.whole, common + sparse * experts.active


def _attention(text: Fields, hidden: int, heads: int) -> int:
    width = _count(text, "head_dim") or hidden // heads
    latent = _count(text, "kv_lora_rank")
    if not latent:
        return 2 * hidden * width * (heads + (_count(text, "num_key_value_heads") or heads))
    value = _count(text, "v_head_dim") or width
    key = _count(text, "qk_nope_head_dim") or width
    query = _count(text, "q_lora_rank") or hidden
    rope = _count(text, "qk_rope_head_dim")
    projections = hidden * query + query * heads * (key + rope) + hidden * (latent + rope)
    return projections + latent * heads * (key + value) + heads * value * hidden


def _recurrence(text: Fields, hidden: int) -> int:
    """Projections into and out of a recurrent layer: queries, keys, values, a gate."""
    if heads := _count(text, "linear_num_value_heads"):
        keys = _count(text, "linear_num_key_heads") * _count(text, "linear_key_head_dim")
        return hidden * (2 * keys + 3 * heads * _count(text, "linear_value_head_dim"))
    if kda := text.tree.get("linear_attn_config"):
        inner = Fields(kda, text.where)
        return 5 * hidden * _count(inner, "num_heads") * _count(inner, "head_dim")
    channels = _count(text, "mamba_num_heads") * _count(text, "mamba_head_dim")
    return 3 * hidden * (channels or (_count(text, "mamba_expand") or 2) * hidden)


def _networks(text: Fields, kinds: list[LayerKind]) -> tuple[int, int]:
    """Return how many layers have one feed-forward network, and how many experts."""
    blocks = text.get("layers_block_type") or list(text.get("hybrid_override_pattern") or ())
    if "full_attention" in blocks:
        blocks = ()  # Attention may be left out of such a layer, the network is not.
    if LayerKind.NONE in kinds and blocks:
        return sum(b in ("mlp", "-") for b in blocks), sum(b in ("moe", "E") for b in blocks)
    layers = _count(text, "num_hidden_layers")
    if not _count(text, *_EXPERTS):
        return layers, 0
    listed = text.get("moe_layer_freq")
    if isinstance(listed, list):
        sparse = sum(1 for one in listed if one)
    elif step := _count(text, "interleave_moe_layer_step", "expert_layer_period"):
        sparse = layers // step
    else:
        sparse = layers - min(layers, _count(text, "first_k_dense_replace"))
    # Gemma 4 has both beside each other.
    return layers if text.get("enable_moe_block") else layers - sparse, sparse


@dataclass(frozen=True, slots=True)
class _Experts:
    """Parameters of a layer's experts."""

    whole: int
    active: int


def _experts(text: Fields, hidden: int) -> _Experts:
    number = _count(text, *_EXPERTS)
    inner = _count(text, "moe_intermediate_size", "intermediate_size")
    # Experts may compute in a narrower space, with projections into and out of it.
    narrow = _count(text, "moe_latent_size", "routed_expert_hidden_size")
    each = _matrices(text) * (narrow or hidden) * inner
    is_llama4 = text.tree.get("model_type") == "llama4_text"
    shared_count = _count(text, "n_shared_experts", "num_shared_experts") or int(is_llama4)
    shared = _matrices(text) * hidden * (_count(text, *_SHARED) or shared_count * inner)
    always = shared + 2 * hidden * narrow
    return _Experts(always + number * each, always + min(number, _count(text, *_USED)) * each)


def _matrices(text: Fields) -> int:
    return _PLAIN if text.get("mlp_hidden_act") == "relu2" else _GATED


def _count(text: Fields, *names: str) -> int:
    """Return the first of `names` that is a whole number above 0; 0 if none is."""
    values = [text.get(name) for name in names]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)
