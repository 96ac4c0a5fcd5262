"""How many parameters a Hugging Face config.json describes: near enough for how long they take to compute with."""

from __future__ import annotations

from kvtrace.model.hf_layers import Fields

_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")


def count_parameters(fields: Fields) -> tuple[int, int]:
    """Return all parameters and those active for a token; zeros if the usual fields are not there.

    Every layer is charged attention with heads and a gated feed-forward network, or its experts; biases, norms and
    what is special to a family are left out.
    """
    text = Fields(fields.tree, fields.where)  # What is read here does not count as understood.
    hidden, layers = _count(text, "hidden_size"), _count(text, "num_hidden_layers")
    inner = _count(text, "intermediate_size", "ffn_dim") or 4 * hidden
    heads, vocabulary = _count(text, "num_attention_heads"), _count(text, "vocab_size")
    if not (hidden and layers and heads):
        return 0, 0
    width = _count(text, "head_dim") or hidden // heads
    attention = 2 * hidden * width * (heads + (_count(text, "num_key_value_heads") or heads))
    if latent := _count(text, "kv_lora_rank"):
        value = _count(text, "v_head_dim") or width
        key = _count(text, "qk_nope_head_dim") or width
        query = _count(text, "q_lora_rank") or hidden
        rope = _count(text, "qk_rope_head_dim")
        attention = hidden * query + query * heads * (key + rope) + hidden * (latent + rope)
        attention += latent * heads * (key + value) + heads * value * hidden
    experts = _count(text, *_EXPERTS)
    used = min(experts, _count(text, "num_experts_per_tok"))
    each = 3 * hidden * (_count(text, "moe_intermediate_size") or inner)
    shared = each * _count(text, "n_shared_experts")
    dense = min(layers, _count(text, "first_k_dense_replace")) if experts else layers
    common = 2 * vocabulary * hidden + layers * attention + dense * 3 * hidden * inner
    sparse = layers - dense
    return common + sparse * (shared + experts * each), common + sparse * (shared + used * each)


def _count(text: Fields, *names: str) -> int:
    """Return the first of `names` that is a whole number above 0; 0 if none is."""
    values = [text.get(name) for name in names]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)
