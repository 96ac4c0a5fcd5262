"""The recurrent layers of a config.json: gated delta nets, Kimi delta attention, and Mamba 2 under two namings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.model.layers import KvDtype, Recurrent, parse_dtype

if TYPE_CHECKING:
    from kvtrace.model.hf_fields import Fields

# num_heads, head_dim, state, groups, convolution kernel: as Nemotron-H names them, and as Bamba and Granite do.
_MAMBA2 = (
    ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
)


def recurrent_layers(text: Fields, layers: int, model_dtype: KvDtype | None, notes: list[str]) -> Recurrent:
    """Return the group of `layers` recurrent layers; ConfigError if it is of a kind not known here."""
    conv_dtype = model_dtype or KvDtype.BF16
    if model_dtype is None:
        notes.append("the convolution's state is taken as bf16: config.json gives no dtype")
    if text.get("linear_num_value_heads") is not None:
        heads, width = text.integer("linear_num_value_heads"), text.integer("linear_value_head_dim")
        groups, state = text.integer("linear_num_key_heads"), text.integer("linear_key_head_dim")
        taps = text.integer("linear_conv_kernel_dim") - 1
        dtype = _state_dtype(text, conv_dtype, notes)
    elif (kda := text.nested("linear_attn_config")) is not None:
        heads = groups = kda.integer("num_heads")
        width = state = kda.integer("head_dim")
        taps = kda.integer("short_conv_kernel_size") - 1
        dtype = _state_dtype(text, KvDtype.FP32, notes, default="as vLLM keeps KDA's")
    else:
        names = next((n for n in _MAMBA2 if text.get(n[0]) is not None), None)
        if names is None:
            raise text.error("layer_types", "what its recurrent layers keep is not said in a form known here")
        if text.get(names[1]) == "auto":
            raise text.error(names[1], "must be a whole number, not 'auto'")
        heads, width, state, groups = (text.integer(n) for n in names[:4])
        taps = text.integer(names[4]) - 1
        dtype = _state_dtype(text, conv_dtype, notes)
    return Recurrent(
        layers=layers, heads=heads, head_elements=width * state, conv_head_elements=width * taps,
        groups=groups, conv_group_elements=2 * state * taps, state_dtype=dtype, conv_dtype=conv_dtype,
    )  # fmt: skip


def _state_dtype(text: Fields, otherwise: KvDtype, notes: list[str], default: str = "vLLM's default") -> KvDtype:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if (said := text.text(name)) is not None:
            return parse_dtype(said, f"{text.where}: {name}")
    notes.append(f"recurrent states are taken as {otherwise}, {default}: config.json does not say (mamba_ssm_dtype)")
    return otherwise
