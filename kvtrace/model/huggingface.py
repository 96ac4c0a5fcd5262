"""A model from its Hugging Face config.json: what it says of its layers, heads and dtype, and nothing guessed.

Fields as the classes of transformers and the releases themselves use them. What would change the cache and is
not understood here is a ConfigError that names the field.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from kvtrace.core.errors import ConfigError
from kvtrace.model.hf_classes import completed
from kvtrace.model.hf_layers import Fields, LayerKind, layer_kinds, recurrent_layers
from kvtrace.model.hf_parameters import count_parameters
from kvtrace.model.layers import (
    INDEX_SCALE_VALUES,
    Chunked,
    Full,
    Indexer,
    KvDtype,
    Latent,
    Layers,
    Sliding,
    parse_dtype,
)
from kvtrace.model.shape import ModelShape, check

# Classes of transformers in which a missing num_key_value_heads means one for each attention head.
_MULTI_HEAD_DEFAULT = {"llama", "phi3", "olmo", "olmo2", "opt"}
_PLAIN_NAMES = """
llama mistral mixtral qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text phi3 phi starcoder2 granite
granitemoe granitemoehybrid bamba olmo olmo2 olmoe stablelm cohere cohere2 smollm3 opt falcon RefinedWeb
RefinedWebModel nemotron-nas jamba exaone exaone4 exaone4_5_text exaone_moe
"""
# Classes in which a missing head_dim means hidden_size / num_attention_heads.
_PLAIN_HEAD_DIM = frozenset(_PLAIN_NAMES.split())
# What a set field of such a name says may change the cache; those we read are struck off first.
_SUSPECT = re.compile(
    r"^(swa_|index|indexer|mamba_|ssm_|linear_|lightning|rwkv|kda_|gdn_|conv_|compress|cla_|use_cla|cross_attention_l"
    r"|kv_|num_kv|multi_query|attn_layer|attn_type|attention_type|block_types|block_configs|layer_group|layers_block"
    r"|hybrid_|no_rope|global_|local_attention|num_global|num_key_value|attention_window|attention_chunk)"
    r"|sliding|window|pattern|^sparse_attention"
)
# Suspects by name that leave the cache as it is.
_HARMLESS = re.compile(
    r"^mtp_|_act$|_activation$|_bias$|_kernels$|_chunk_size$|_norm|_dt_|_eps$|_expand$"
    r"|^(index_n_heads|index_topk|indexer_rope_interleave|index_share_for_mtp_iteration|kv_channels"
    r"|global_partial_rotary_factor|global_rope|mamba_ssm_dtype|mamba_ssm_cache_dtype|max_window_layers"
    r"|use_sliding_window|sliding_window|_?sliding_window_pattern|swa_rope_theta|swa_num_attention_heads)$"
)


def read_model(path: Path, kv_dtype: str | None = None) -> ModelShape:
    """Return the shape of the model that the config.json at `path` describes.

    `kv_dtype` replaces the dtype of the cache. ConfigError names the file and the field that cannot be used.
    """
    whole, digest = _load(path)
    config = Fields(whole, str(path))
    if config.tree.get("is_encoder_decoder"):
        raise config.error("is_encoder_decoder", "encoder-decoder models are not supported")
    notes: list[str] = []
    text = completed(config.nested("text_config") or config, notes)
    model_dtype = _model_dtype(text, config, notes)
    groups = _groups(text, model_dtype, notes)
    _refuse_unread(text)
    if text.count("num_nextn_predict_layers") or text.count("mtp_num_hidden_layers"):
        notes.append("multi-token-prediction layers are not counted")
    kind = text.text("model_type") or config.text("model_type") or "unnamed"
    is_named_so = text.get("max_position_embeddings") is None and "model_max_length" in text.tree
    context = "model_max_length" if is_named_so else "max_position_embeddings"
    parameters, active = count_parameters(text)
    model = ModelShape(
        parameters=parameters,
        active_parameters=active,
        source=f"config.json, model_type {kind}, SHA-256 {digest[:16]}",
        groups=groups,
        max_context_tokens=text.integer(context),
        kv_dtype=_kv_dtype(kv_dtype, config, text, model_dtype),
        notes=tuple(notes),
    )
    check(model, str(path))
    return model


def _load(path: Path) -> tuple[dict[str, Any], str]:
    try:
        data = path.read_bytes()
        # Released files hold Infinity, which is no JSON to a strict reader.
        tree = json.loads(data)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: not a model's config.json: it holds no object")
    return tree, hashlib.sha256(data).hexdigest()


def _groups(text: Fields, model_dtype: KvDtype, notes: list[str]) -> tuple[Layers, ...]:
    kinds = layer_kinds(text, notes)
    # Latent and recurrent layers have these fields too, and do not go by them.
    text.use("num_key_value_heads")
    counts = Counter(kinds)
    groups: list[Layers] = []
    is_latent = text.get("kv_lora_rank") is not None
    if full := counts[LayerKind.FULL]:
        if is_latent:
            groups += _latent(text, kinds, full)
        else:
            heads, width, value = _heads(text, is_full=True)
            groups.append(Full(layers=full, kv_heads=heads, head_dim=width, value_dim=value))
    elif is_latent:
        raise text.error("kv_lora_rank", "no layer has full attention for it to be of")
    for kind, field, struct in (
        (LayerKind.SLIDING, "sliding_window", Sliding),
        (LayerKind.CHUNKED, "attention_chunk_size", Chunked),
    ):
        if counts[kind]:
            if is_latent:
                raise text.error("kv_lora_rank", f"latent attention with {kind} layers is not supported")
            heads, width, value = _heads(text, is_full=False)
            window = text.integer(field)
            groups.append(
                struct(layers=counts[kind], kv_heads=heads, head_dim=width, value_dim=value, window_tokens=window)
            )
    if counts[LayerKind.RECURRENT]:
        groups.append(recurrent_layers(text, counts[LayerKind.RECURRENT], model_dtype, notes))
    if text.get("index_head_dim") is not None and not is_latent:
        raise text.error("index_head_dim", "an indexer without kv_lora_rank is not supported")
    return tuple(groups)


def _heads(text: Fields, *, is_full: bool) -> tuple[int, int, int | None]:
    """Return key-value heads, key width, and the value's width if it differs."""
    kind = text.text("model_type") or ""
    heads_field = "num_key_value_heads"
    # Gemma 4: its full layers have widths of their own, and heads of their own where keys are values.
    if is_full and text.get("attention_k_eq_v") and text.get("num_global_key_value_heads") is not None:
        heads_field = "num_global_key_value_heads"
    if text.get(heads_field) is None and kind in _MULTI_HEAD_DEFAULT:
        heads_field = "num_attention_heads"
    width_field = "global_head_dim" if is_full and text.get("global_head_dim") is not None else "head_dim"
    value_field = "v_head_dim"
    text.use("num_global_key_value_heads", "global_head_dim")
    # MiMo: its windowed layers have heads and widths of their own.
    if not is_full and text.get("swa_num_key_value_heads") is not None:
        heads_field, width_field, value_field = "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"
    heads = text.integer(heads_field)
    if text.get("head_dim") is None and text.get("attention_head_dim") is not None:
        width_field = "attention_head_dim"
    width = _plain_head_dim(text, kind) if text.get(width_field) is None else text.integer(width_field)
    value = None if text.get(value_field) is None else text.integer(value_field)
    return heads, width, None if value == width else value


def _plain_head_dim(text: Fields, kind: str) -> int:
    if kind not in _PLAIN_HEAD_DIM:
        raise text.error(
            "head_dim",
            f"is missing, and what a {kind or 'model without model_type'} means by that is not known here; add it",
        )
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    if hidden % heads:
        raise text.error("head_dim", f"is missing, and hidden_size(={hidden}) is no multiple of {heads} heads; add it")
    return hidden // heads


def _latent(text: Fields, kinds: list[LayerKind], layers: int) -> list[Layers]:
    rope = text.integer("qk_rope_head_dim", least=0)
    groups: list[Layers] = [Latent(layers=layers, latent_dim=text.integer("kv_lora_rank"), rope_dim=rope)]
    if text.get("index_head_dim") is None:
        if text.get("index_topk") is not None:
            raise text.error("index_head_dim", "is missing, but there is an indexer (index_topk)")
        return groups
    width = text.integer("index_head_dim")
    if width % INDEX_SCALE_VALUES:
        raise text.error("index_head_dim", f"{width} is no multiple of the {INDEX_SCALE_VALUES} values to a scale")
    indexers = layers
    types = text.get("indexer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != len(kinds) or any(t not in ("full", "shared") for t in types):
            raise text.error("indexer_types", f"must be `full` or `shared` for each of {len(kinds)} layers")
        indexers = types.count("full")
        text.use("index_topk_freq", "index_skip_topk_offset")
    elif text.get("index_topk_freq") == 1:
        text.use("index_skip_topk_offset")
    elif text.get("index_topk_freq") is not None:
        raise text.error("index_topk_freq", "which layers share an indexer is not said: add indexer_types")
    if indexers:
        groups.append(Indexer(layers=indexers, index_dim=width))
    return groups


def _model_dtype(text: Fields, config: Fields, notes: list[str]) -> KvDtype:
    for fields in (text, config):
        for name in ("dtype", "torch_dtype"):
            if fields.get(name) is not None:
                return parse_dtype(fields.text(name) or "", f"{fields.where}: {name}")
    notes.append("config.json names no dtype (torch_dtype): taken as bf16, as such models are released; or --kv-dtype")
    return KvDtype.BF16


def _kv_dtype(chosen: str | None, config: Fields, text: Fields, model_dtype: KvDtype) -> KvDtype:
    """Return the dtype of the cache: as chosen, as the checkpoint is quantised for, or the model's own."""
    if chosen is not None:
        return parse_dtype(chosen, "--kv-dtype")
    quantised = config.nested("quantization_config") or text.nested("quantization_config")
    if quantised is None:
        return model_dtype
    if isinstance(quantised.get("kv_cache_scheme"), str):
        return parse_dtype(quantised.text("kv_cache_scheme") or "", f"{quantised.where}: kv_cache_scheme")
    if (scheme := quantised.nested("kv_cache_scheme")) is not None:
        found = {("float", 8): KvDtype.FP8, ("int", 8): KvDtype.INT8}
        key = (scheme.text("type"), scheme.integer("num_bits"))
        if key not in found:
            raise quantised.error("kv_cache_scheme", f"unknown scheme {key}: say it with --kv-dtype")
        return found[key]
    if (algorithm := quantised.text("kv_cache_quant_algo")) is not None:
        return parse_dtype(algorithm, f"{quantised.where}: kv_cache_quant_algo")
    return model_dtype


def _refuse_unread(text: Fields) -> None:
    """Raise ConfigError for the first set field that we did not read and that may change the cache."""
    for name, value in text.tree.items():
        is_set = value not in (None, False, 0, [], {}, "")
        if is_set and name not in text.used and _SUSPECT.search(name) and not _HARMLESS.search(name):
            raise text.error(
                name, "may change what is cached, and is not understood; if it does not, remove it from a copy"
            )
