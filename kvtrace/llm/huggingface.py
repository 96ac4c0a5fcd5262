"""Read the shape of a model from its Hugging Face config.json: layers, heads and dtype.

Nothing is guessed: fields mean the same as in the classes of transformers and in the releases. A
field that would change the cache, but is unknown here, is a ConfigError that names the field.

The functions come in this order: the cache of the model; the kind of each layer and the state of
recurrent ones (models describe it in many ways, with one function for each); the defaults and older
names that a config.json leaves to its class in transformers; the number of parameters, accurate
enough for computing times.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from kvtrace.core.errors import ConfigError, need_file
from kvtrace.core.files import find_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named as named_parameter
from kvtrace.core.text import read_bounded
from kvtrace.llm import shape as shapes

# Classes of transformers in which a missing num_key_value_heads means one for each attention head.
_MULTI_HEAD_DEFAULT = {"llama", "phi3", "olmo", "olmo2", "opt"}
_PLAIN_NAMES = """
llama mistral mixtral qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text phi3 phi starcoder2 granite
granitemoe granitemoehybrid bamba olmo olmo2 olmoe stablelm cohere cohere2 smollm3 opt falcon RefinedWeb
RefinedWebModel nemotron-nas jamba lfm2 olmo3 exaone exaone4 exaone4_5_text exaone_moe apertus apertus1p5_text dots1
ernie4_5 ernie4_5_moe ernie4_5_vl_moe_text flex_olmo glm4_moe glm4v_text glm4v_moe_text glm_ocr_text granite_swa
granitemoe_swa granitemoeshared hunyuan_v1_dense hunyuan_v1_moe lfm2_moe minimax ministral nanochat olmo_hybrid
phi4_multimodal phimoe qwen3_moe qwen3_omni_moe_text arctic deepseek dots_ocr internlm2 internlm3 minicpm minicpmo
minicpmv nemotron qwen2_5_omni_text qwen2_audio
"""
# Classes in which a missing head_dim means hidden_size / num_attention_heads.
_PLAIN_HEAD_DIM = frozenset(_PLAIN_NAMES.split())
# What a set field of such a name says may change the cache; those we read are struck off first.
_SUSPECT = re.compile(
    r"^(swa_|index|indexer|mamba_|ssm_|linear_|lightning|rwkv|kda_|gdn_|conv_|compress|cla_|use_cla|cross_attention_l"
    r"|kv_|num_kv|multi_query|attn_layer|attn_type|attention_type|block_types|block_configs|layer_group|layers_block"
    r"|hybrid_|no_rope|global_|local_attention|num_global|num_key_value|attention_window|attention_chunk"
    r"|per_layer_)"
    r"|sliding|window|pattern|^sparse_attention"
    r"|self_decoder|cross_decoder|yoco|cross_layer|layer_sharing|share_kv|kv_shar|shared_kv|kv_reuse|reuse_kv"
)
# Passes over the same layers, each of which may keep a cache of its own; a single one changes nothing.
_LOOPS = re.compile(r"loop|ut_steps$|_cycles$|recurrence")
# Suspects by name that leave the cache as it is.
_HARMLESS = re.compile(
    r"^mtp_|_act$|_activation$|_bias$|_kernels$|_chunk_size$|_norm|_dt_|_eps$|_expand$|_multipliers?$"
    r"|^(compression_config|index_n_heads|index_topk|indexer_rope_interleave|index_share_for_mtp_iteration|kv_channels"
    r"|global_partial_rotary_factor|global_rope|mamba_ssm_dtype|mamba_ssm_cache_dtype|max_window_layers"
    r"|use_sliding_window|sliding_window|_?sliding_window_pattern|swa_rope_theta|swa_num_attention_heads"
    r"|num_sliding_attention_heads|activation_sparsity_pattern|(linear|kda)_(lower_bound|safe_gate|a_log_max"
    r"|allow_neg_eigval))$"
)
# What only says in other words which layer is of which kind, where each is named.
_FOLLOWS_FROM_NAMES = re.compile(r"_pattern$|^layer_group_size$|^no_rope_layers$")


def read_model(path: Path, kv_dtype: str | None = None) -> shapes.ModelShape:
    """Return the shape of the model that the config.json at `path` describes.

    `kv_dtype` replaces the dtype of the cache. ConfigError names the file and the field that cannot
    be used.
    """
    need_file(path)
    try:
        data = read_bounded(path)
        # Released files hold Infinity, which is no JSON to a strict reader.
        tree = json.loads(data)
        # Python takes half of a surrogate pair for a character, but can neither print nor save it.
        json.dumps(tree, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: not a model's config.json: it holds no object")
    config = Fields(tree, str(path))
    if config.tree.get("is_encoder_decoder"):
        raise config.error("is_encoder_decoder", "encoder-decoder models are not supported")
    notes: list[str] = []
    text = completed(_language_model(config), notes)
    model_dtype = _model_dtype(text, config, notes)
    groups = _groups(text, model_dtype, notes)
    is_recurrent = any(isinstance(group, shapes.Recurrent) for group in groups)
    _refuse_unread_fields(text, is_recurrent=is_recurrent)
    if text.optional_integer("num_nextn_predict_layers", 0) or text.optional_integer(
        "mtp_num_hidden_layers", 0
    ):
        notes.append("multi-token-prediction layers are not counted")
    kind = text.text("model_type") or config.text("model_type") or "unnamed"
    is_named_so = text.get("max_position_embeddings") is None and "model_max_length" in text.tree
    context = "model_max_length" if is_named_so else "max_position_embeddings"
    quantized = config if kv_dtype else _with_quantization(config, path, notes)
    used_dtype = _kv_dtype(kv_dtype, quantized, text, model_dtype)
    if used_dtype is shapes.KvDtype.FP8 and any(isinstance(g, shapes.Indexer) for g in groups):
        notes.append(
            "latents in fp8: where FlashMLA's sparse kernel reads them, vLLM keeps 656 B a token and"
            f" layer ({named_parameter('kv_dtype')} fp8_ds_mla)"
        )
    parameters, active = count_parameters(text)
    model = shapes.ModelShape(
        parameters=parameters,
        active_parameters=active,
        source=f"config.json, model_type {kind}, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}",
        groups=groups,
        max_context_tokens=text.integer(context),
        kv_dtype=used_dtype,
        notes=tuple(notes),
    )
    shapes.check(model, str(path))
    return model


def _refuse_unread_fields(text: Fields, *, is_recurrent: bool) -> None:
    """Raise ConfigError for a field that may change the cache, and that nothing has read."""
    for name, value in text.tree.items():
        if value in (None, False, 0, [], {}, "") or name in text.used:
            continue
        if not is_recurrent and name.startswith(_RECURRENT_FIELDS) and _names_each_layer(text):
            continue  # It lists its layers, and none of them has such a state.
        if _FOLLOWS_FROM_NAMES.search(name) and _names_each_layer(text):
            continue
        is_suspect = _SUSPECT.search(name) and not _HARMLESS.search(name)
        if is_suspect or (_LOOPS.search(name) and value != 1):
            raise text.error(
                name,
                "may change what is cached, and is not supported; if it does not, remove it from a"
                " copy",
            )


_QUANTIZATION_FILE = "hf_quant_config.json"
"""ModelOpt's file beside a config.json. vLLM reads it where there is no `quantization_config`."""


def _with_quantization(config: Fields, path: Path, notes: list[str]) -> Fields:
    """Return `config`, with the quantization of ModelOpt's file beside it if it has none itself."""
    file = path.with_name(_QUANTIZATION_FILE)
    quantization = (find_json(file, JsonObject) or {}).get("quantization")
    if not isinstance(quantization, dict) or quantization.get("kv_cache_quant_algo") is None:
        return config
    algorithm = quantization["kv_cache_quant_algo"]
    own = config.tree.get("quantization_config")
    if own is None:
        tree = config.tree | {"quantization_config": {"kv_cache_quant_algo": algorithm}}
        return Fields(tree, config.where, config.used)
    if isinstance(own, dict) and not ({"kv_cache_scheme", "kv_cache_quant_algo"} & own.keys()):
        notes.append(
            f"{_QUANTIZATION_FILE} says kv_cache_quant_algo {algorithm}, and config.json nothing:"
            f" taken as not quantized, as vLLM does; or {named_parameter('kv_dtype')}"
        )
    return config


_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Objects that hold the language model of one that also sees or hears, by their names."""
_RECURRENT_FIELDS = ("mamba_", "ssm_", "linear_", "conv_", "kda_", "gdn_")
"""Beginnings of the names of fields that only recurrent layers use."""


def _language_model(config: Fields) -> Fields:
    """Return the part of a config.json that describes the language model.

    A model that thinks and talks has two; the one that reads the prompt is its thinker.
    """
    for name in _NESTED:
        if (inner := config.nested(name)) is not None:
            return _language_model(inner)
    return config


def _names_each_layer(text: Fields) -> bool:
    """Return whether a config.json lists the kind of each layer."""
    return any(
        isinstance(text.tree.get(name), list) for name in ("layer_types", "layers_block_type")
    )


class LayerKind(StrEnum):
    """The kind of cache of a layer."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    RECURRENT = "recurrent"
    NONE = "no-cache"
    """A feed-forward layer that counts as one."""


_LATENT_CACHED = frozenset(
    (
        *("axk1", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"),
        *("glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear", "longcat_flash"),
        *("longcat_flash_ngram", "pangu_ultra_moe"),
    )
)
"""Model types whose latent vLLM caches, by `is_deepseek_mla` of its model_arch_config_convertor.py.
"""


def _groups(
    text: Fields, model_dtype: shapes.KvDtype, notes: list[str]
) -> tuple[shapes.Layers, ...]:
    if text.get("compress_ratios"):
        return _compressed(text, notes)
    kinds = layer_kinds(text, notes)
    # Latent and recurrent layers have these fields too, and do not go by them.
    text.use("num_key_value_heads")
    if text.tree.get("kv_source_layers") == list(range(len(kinds))):
        text.use("kv_source_layers")  # No layer shares the cache of another.
    if not text.get("use_cla"):
        text.use("cla_share_factor")  # of layers that share a cache, which this model has not
    is_latent = text.get("kv_lora_rank") is not None
    if is_latent and text.get("use_mla") is False:
        raise text.error("use_mla", "false, but there is a latent (kv_lora_rank)")
    if text.get("index_head_dim") is not None and not is_latent:
        raise text.error("index_head_dim", "an indexer without kv_lora_rank is not supported")
    groups = _latent(text, kinds, notes) if is_latent else _with_heads(text, kinds)
    if recurrent := _recurrent_layer_count(text, kinds):
        groups.append(recurrent_layers(text, recurrent, model_dtype, notes))
    if not is_latent:
        groups += _index_keys(text, kinds, model_dtype)
    return tuple(groups)


def _recurrent_layer_count(text: Fields, kinds: list[LayerKind]) -> int:
    """Return how many layers keep a recurrent state: all of Falcon-H1's, beside their attention."""
    if text.text("model_type") in _PARALLEL_MAMBA:
        text.use("mamba_d_ssm", "mamba_use_mlp")
        return len(kinds)
    return kinds.count(LayerKind.RECURRENT)


_PARALLEL_MAMBA: Final = frozenset(("falcon_h1",))
"""Classes whose layers all have attention and Mamba side by side."""
_ATTENTION_KINDS = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.CHUNKED)
_HEAD_FIELDS = frozenset(("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim"))
# What a layer may have of its own without any effect on its cache.
_OTHER_FIELDS_OF_A_LAYER = re.compile(r"intermediate_size$|expert|_act$|^rope_|_rope_theta$")


def _with_heads(text: Fields, kinds: list[LayerKind]) -> list[shapes.Layers]:
    """Return the groups of layers whose keys and values have heads.

    Layers of one kind are one group, unless some have heads or widths of their own.
    """
    overrides = _layer_overrides(text)
    counts = Counter(
        (kind, tuple(sorted(overrides.get(number, {}).items())))
        for number, kind in enumerate(kinds)
        if kind in _ATTENTION_KINDS
    )
    groups: list[shapes.Layers] = []
    for (kind, override), layers in sorted(
        counts.items(), key=lambda item: _ATTENTION_KINDS.index(item[0][0])
    ):
        fields = Fields(text.tree | dict(override), text.where, text.used)
        heads = _heads(fields, is_full=kind is LayerKind.FULL)
        match kind:
            case LayerKind.FULL:
                groups.append(shapes.Full(layers=layers, **heads))
            case LayerKind.SLIDING:
                window = text.integer("sliding_window")
                groups.append(shapes.Sliding(layers=layers, window_tokens=window, **heads))
            case _:
                chunk = text.integer("attention_chunk_size")
                groups.append(shapes.Chunked(layers=layers, window_tokens=chunk, **heads))
    return groups


def _layer_overrides(text: Fields) -> dict[int, dict[str, int]]:
    """Return the fields of heads that layers have of their own, by the number of the layer.

    transformers lists layers that differ from the others in `per_layer_config`.
    """
    config = text.nested("per_layer_config")
    overrides: dict[int, dict[str, int]] = {}
    for name in config.tree if config is not None else ():
        layer = config.nested(name) if config is not None else None
        if layer is None or not name.isdecimal():
            raise text.error("per_layer_config", f"must be an object by layers, not by {name!r}")
        unknown = [
            field_name
            for field_name in layer.tree
            if field_name not in _HEAD_FIELDS and not _OTHER_FIELDS_OF_A_LAYER.search(field_name)
        ]
        if unknown:
            raise layer.error(unknown[0], "may change what is cached, and is not supported")
        overrides[int(name)] = {
            field_name: layer.integer(field_name) for field_name in _HEAD_FIELDS & layer.tree.keys()
        }
    return overrides


def _index_keys(
    text: Fields, kinds: list[LayerKind], model_dtype: shapes.KvDtype
) -> list[shapes.Layers]:
    """Return the keys with which layers with heads pick blocks of tokens: MiniMax M3's, Qwen 4's."""
    groups: list[shapes.Layers] = []
    config = text.nested("sparse_attention_config")
    if config is not None and config.get("use_sparse_attention"):
        frequencies = config.numbers("sparse_attention_freq")
        layers = sum(1 for flag in frequencies if flag)
        without_value = config.get("sparse_disable_index_value")
        if without_value is not None and without_value != frequencies:
            raise config.error(
                "sparse_disable_index_value", "index values beside index keys are not supported"
            )
        dim = config.integer("sparse_index_dim")
        if layers:
            groups.append(shapes.IndexKeys(layers=layers, index_dim=dim, index_dtype=model_dtype))
    if text.get("indexer_head_dim") is not None:
        text.use("indexer_n_heads", "indexer_budget")
        pooled_tokens = text.optional_integer("indexer_compress_ratio", 0) or 1
        dim = text.integer("indexer_kv_heads") * text.integer("indexer_head_dim")
        groups.append(
            shapes.IndexKeys(
                layers=kinds.count(LayerKind.FULL),
                index_dim=dim,
                pooled_tokens=pooled_tokens,
                index_dtype=model_dtype,
            )
        )
    return groups


_INDEXED_RATIO = 4
"""DeepSeek V4's layers of this compression have an indexer, and entries that overlap."""
_COMPRESSOR_PAGE_TOKENS = {4: 4, 128: 8}
"""Tokens of a compressor's state in a page of vLLM's, by the compression."""


def _compressed(text: Fields, notes: list[str]) -> tuple[shapes.Layers, ...]:
    """Return DeepSeek V4's groups.

    Every layer keeps the entries of a window. A layer of ratio r keeps one entry for r tokens, and
    of the tokens since then what its compressor needs: values and scores, of two entries where they
    overlap. Entries of ratio 4 are picked by an indexer with a compressor of its own.

    Source: the caches that vLLM 0.33 allocates for the model.
    """
    layers = text.integer("num_hidden_layers")
    # Entries beyond the layers are of the layers that predict further tokens.
    ratios = text.numbers("compress_ratios")[:layers]
    if len(ratios) < layers or set(ratios) - {0, *_COMPRESSOR_PAGE_TOKENS}:
        allowed = ", ".join(str(ratio) for ratio in (0, *_COMPRESSOR_PAGE_TOKENS))
        raise text.error("compress_ratios", f"must be one of {allowed} for each of {layers} layers")
    if text.integer("num_key_value_heads") != 1:
        raise text.error("num_key_value_heads", "compressed attention has one head")
    text.use("index_n_heads", "index_topk", "compress_rope_theta")
    head_dim, rope_dim = text.integer("head_dim"), text.integer("qk_rope_head_dim", minimum=0)
    window_tokens = text.integer("sliding_window")
    groups: list[shapes.Layers] = []
    states: list[shapes.Layers] = []
    for ratio, page_tokens in _COMPRESSOR_PAGE_TOKENS.items():
        count = ratios.count(ratio)
        if not count:
            continue
        has_indexer = ratio == _INDEXED_RATIO
        index_dim = text.integer("index_head_dim") if has_indexer else None
        groups.append(
            shapes.Compressed(
                layers=count,
                compressed_tokens=ratio,
                head_dim=head_dim,
                rope_dim=rope_dim,
                index_dim=index_dim,
            )
        )
        # Where entries overlap, a token counts in two, and the state is as long as both.
        overlap = 2 if has_indexer else 1
        states += [
            shapes.CompressorState(
                layers=count,
                state_tokens=overlap * ratio,
                state_dim=2 * overlap * dim,
                page_tokens=page_tokens,
            )
            for dim in (head_dim, index_dim)
            if dim is not None
        ]
    window = shapes.LatentWindow(
        layers=layers, window_tokens=window_tokens, head_dim=head_dim, rope_dim=rope_dim
    )
    notes.append(
        "compressed attention: bytes a token are those of full pages of 256 tokens, rounded up; a"
        " request also takes its windows and its compressors' states, whatever its length"
    )
    return (*groups, window, *states)


def _heads(text: Fields, *, is_full: bool) -> JsonObject:
    """Return the heads of a group: query and key heads, key width, and value width if different."""
    kind = text.text("model_type") or ""
    heads_field, query_field = "num_key_value_heads", "num_attention_heads"
    # Gemma 4: its full layers have widths of their own, and heads of their own where keys are
    # values.
    if (
        is_full
        and text.get("attention_k_eq_v")
        and text.get("num_global_key_value_heads") is not None
    ):
        heads_field = "num_global_key_value_heads"
    if text.get(heads_field) is None and kind in _MULTI_HEAD_DEFAULT:
        heads_field = "num_attention_heads"
    width_field = (
        "global_head_dim" if is_full and text.get("global_head_dim") is not None else "head_dim"
    )
    value_field = "v_head_dim"
    text.use("num_global_key_value_heads", "global_head_dim")
    # MiMo: its windowed layers have heads and widths of their own.
    if not is_full and text.get("swa_num_key_value_heads") is not None:
        heads_field, width_field, value_field = (
            "swa_num_key_value_heads",
            "swa_head_dim",
            "swa_v_head_dim",
        )
        query_field = "swa_num_attention_heads"
    heads = text.integer(heads_field)
    if text.get("head_dim") is None and text.get("attention_head_dim") is not None:
        width_field = "attention_head_dim"
    width = (
        _plain_head_dim(text, kind) if text.get(width_field) is None else text.integer(width_field)
    )
    value = text.optional_integer(value_field)
    return {
        "query_heads": text.optional_integer(query_field),
        "kv_heads": heads,
        "head_dim": width,
        "value_dim": None if value == width else value,
    }


def _plain_head_dim(text: Fields, kind: str) -> int:
    if kind not in _PLAIN_HEAD_DIM:
        raise text.error(
            "head_dim",
            f"is missing, and what a {kind or 'model without model_type'} means by that is not"
            " known here; add it",
        )
    hidden, heads = text.integer("hidden_size"), text.integer("num_attention_heads")
    if hidden % heads:
        raise text.error(
            "head_dim",
            f"is missing, and hidden_size(={hidden}) is no multiple of {heads} heads; add it",
        )
    return hidden // heads


def _latent(text: Fields, kinds: list[LayerKind], notes: list[str]) -> list[shapes.Layers]:
    """Return the group of layers with a latent, and that of their indexers."""
    layers = kinds.count(LayerKind.FULL)
    if not layers:
        raise text.error("kv_lora_rank", "no layer has full attention for it to be of")
    for kind in (LayerKind.SLIDING, LayerKind.CHUNKED):
        if kind in kinds:
            raise text.error(
                "kv_lora_rank", f"latent attention with {kind} layers is not supported"
            )
    if (model_type := text.text("model_type")) not in _LATENT_CACHED:
        notes.append(
            "the latent is taken as cached; an engine without latent attention for"
            f" {model_type or 'this model'} caches its heads instead, several times as much"
        )
    rope = text.integer("qk_rope_head_dim", minimum=0)
    names = {
        "query_heads": "num_attention_heads",
        "nope_dim": "qk_nope_head_dim",
        "value_dim": "v_head_dim",
    }
    widths = {name: text.optional_integer(field) for name, field in names.items()}
    groups: list[shapes.Layers] = [
        shapes.Latent(
            layers=layers, latent_dim=text.integer("kv_lora_rank"), rope_dim=rope, **widths
        )
    ]
    return groups + _indexer(text, kinds)


def _indexer(text: Fields, kinds: list[LayerKind]) -> list[shapes.Layers]:
    """Return the group of the indexers of layers with a latent, if they have any."""
    if text.get("index_head_dim") is None:
        if text.get("index_topk") is not None:
            raise text.error("index_head_dim", "is missing, but there is an indexer (index_topk)")
        return []
    width = text.integer("index_head_dim")
    if width % shapes.INDEX_SCALE_VALUES:
        raise text.error(
            "index_head_dim",
            f"{width} is not a multiple of the {shapes.INDEX_SCALE_VALUES} values to a scale",
        )
    indexers = kinds.count(LayerKind.FULL)
    types = text.get("indexer_types")
    if types is not None:
        if (
            not isinstance(types, list)
            or len(types) != len(kinds)
            or any(t not in ("full", "shared") for t in types)
        ):
            raise text.error(
                "indexer_types", f"must be `full` or `shared` for each of {len(kinds)} layers"
            )
        # Types are listed for all layers; those without full attention have no indexer.
        indexers = sum(
            kind is LayerKind.FULL and type_ == "full"
            for kind, type_ in zip(kinds, types, strict=True)
        )
        text.use("index_topk_freq", "index_skip_topk_offset")
    elif text.get("index_topk_freq") == 1:
        text.use("index_skip_topk_offset")
    elif text.get("index_topk_freq") is not None:
        raise text.error(
            "index_topk_freq", "which layers share an indexer is not said: add indexer_types"
        )
    text.use("index_kpool", "index_kpool_always_select_tail", "index_kpool_compress")
    if not indexers:
        return []
    return [
        shapes.Indexer(
            layers=indexers,
            index_dim=width,
            query_heads=text.optional_integer("index_n_heads"),
            top_tokens=text.optional_integer("index_topk"),
            pooled_tokens=text.optional_integer("index_kpool") or 1,
        )
    ]


def _model_dtype(text: Fields, config: Fields, notes: list[str]) -> shapes.KvDtype:
    for fields in (text, config):
        for name in ("dtype", "torch_dtype"):
            if fields.get(name) not in (None, "auto"):
                dtype = shapes.parse_dtype(fields.text(name) or "", f"{fields.where}: {name}")
                if dtype is not shapes.KvDtype.FP32:
                    return dtype
                # vLLM and SGLang cast what was trained in 32 bits, unless they are told not to.
                notes.append(
                    f"{name} float32: engines serve such a model in 16 bits, so its cache is taken as"
                    f" bf16; or {named_parameter('kv_dtype', 'fp32')}"
                )
                return shapes.KvDtype.BF16
    notes.append(
        "config.json names no dtype (torch_dtype): taken as bf16, as such models are released; or"
        " --kv-dtype"
    )
    return shapes.KvDtype.BF16


def _kv_dtype(
    chosen: str | None, config: Fields, text: Fields, model_dtype: shapes.KvDtype
) -> shapes.KvDtype:
    if chosen is not None:
        return shapes.parse_dtype(chosen, named_parameter("kv_dtype"))
    # Releases of compressed-tensors before 0.6 called it compression_config, which vLLM reads, too.
    names = ("quantization_config", "compression_config")
    quantised = next(
        (found for name in names for part in (config, text) if (found := part.nested(name))), None
    )
    if quantised is None:
        return model_dtype
    if isinstance(quantised.get("kv_cache_scheme"), str):
        return shapes.parse_dtype(
            quantised.text("kv_cache_scheme") or "", f"{quantised.where}: kv_cache_scheme"
        )
    if (scheme := quantised.nested("kv_cache_scheme")) is not None:
        dtypes = {
            ("float", 8): shapes.KvDtype.FP8,
            ("int", 8): shapes.KvDtype.INT8,
            # NVFP4 has a scale for 16 values; what has one for another number is something else.
            ("float", 4): shapes.KvDtype.NVFP4,
        }
        key = (scheme.text("type"), scheme.integer("num_bits"))
        is_other = key == ("float", 4) and scheme.get("group_size") != shapes.NVFP4_SCALE_VALUES
        if key not in dtypes or is_other:
            raise quantised.error(
                "kv_cache_scheme", f"unknown scheme {key}: set {named_parameter('kv_dtype')}"
            )
        return dtypes[key]
    algorithm = quantised.text("kv_cache_quant_algo")
    if algorithm is not None and algorithm.lower() != "none":
        return shapes.parse_dtype(algorithm, f"{quantised.where}: kv_cache_quant_algo")
    return model_dtype


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file that records which fields were read, so that unread ones can be
    refused.
    """

    tree: JsonObject
    where: str
    used: set[str] = field(default_factory=set)

    def error(self, name: str, message: str) -> ConfigError:
        """Return an error about the field `name`."""
        return ConfigError(f"{self.where}: {name}: {message}")

    def use(self, *names: str) -> None:
        """Record `names` as read."""
        self.used.update(names)

    def get(self, name: str) -> Any:
        """Return the value of `name`; None if it is null or absent."""
        self.used.add(name)
        return self.tree.get(name)

    def integer(self, name: str, minimum: int = 1) -> int:
        """Return the whole number `name`.

        ConfigError if it is absent, something else, or less than `minimum`.
        """
        value = self.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(name, f"must be a whole number >= {minimum}, not {value!r}")
        return value

    def optional_integer(self, name: str, minimum: int = 1) -> int | None:
        """Return the whole number `name`, None if it is absent or null."""
        return None if self.get(name) is None else self.integer(name, minimum)

    def text(self, name: str) -> str | None:
        """Return the text `name`, None if it is absent or null.

        ConfigError if it is something else.
        """
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"must be text, not {value!r}")
        return value

    def nested(self, name: str) -> Fields | None:
        """Return the object `name`, None if it is absent or null.

        ConfigError if it is something else.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def numbers(self, name: str) -> list[int]:
        """Return the list of whole numbers `name`; ConfigError if it is something else."""
        value = self.get(name)
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) for v in value
        ):
            raise self.error(name, f"must be a list of whole numbers, not {value!r}")
        return value


_NAMED = {
    **dict.fromkeys(
        ("full_attention", "attention", "deepseek_sparse_attention", "indexed_attention"),
        LayerKind.FULL,
    ),
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    **dict.fromkeys(("linear_attention", "mamba", "conv"), LayerKind.RECURRENT),
    **dict.fromkeys(("moe", "mlp"), LayerKind.NONE),
}
_INDEX_FIELDS = ("index_head_dim", "indexer_head_dim")
_LETTERS = {"*": LayerKind.FULL, "M": LayerKind.RECURRENT, "-": LayerKind.NONE, "E": LayerKind.NONE}
# Classes in which `sliding_window` is for every layer, and those in which every n-th layer is full.
_ALL_SLIDE = {"mistral", "mixtral", "phi3", "starcoder2"}
_PATTERN = {"gemma2": 2, "gpt_oss": 2}
_MOST_LAYERS = 10_000
# Llama 4's default for no_rope_layer_interval.
_NO_ROPE_INTERVAL = 4


def layer_kinds(text: Fields, notes: list[str]) -> list[LayerKind]:
    """Return the kind of each layer that keeps a cache of its own, in order.

    `notes` takes what to know.
    """
    layers = text.integer("num_hidden_layers")
    if text.tree.get("compress_ratios"):
        return [LayerKind.FULL] * min(layers, _MOST_LAYERS)
    if layers > _MOST_LAYERS:
        raise text.error("num_hidden_layers", f"{layers}; at most {_MOST_LAYERS}")
    kinds = _said(text, layers)
    if shared := text.optional_integer("num_kv_shared_layers", 0):
        if shared >= layers:
            raise text.error("num_kv_shared_layers", f"{shared} of {layers} layers cannot share")
        notes.append(
            f"the last {shared} layers share the cache of earlier ones (num_kv_shared_layers)"
        )
        kinds = kinds[:-shared]
    return kinds


_WAYS = """
layer_types layers_block_type hybrid_override_pattern attn_type_list linear_attn_config attn_layer_indices
attn_layer_period full_attention_interval attention_chunk_size sliding_window
"""
"""The fields that say which layer is of which kind; the first that is there counts."""


def _said(text: Fields, layers: int) -> list[LayerKind]:  # noqa: C901, PLR0911, PLR0912 - a case a way
    # SmolLM 3 lists layers without rotary positions, which cache all the same.
    text.use(
        "no_rope_layers",
        "no_rope_layer_interval",
        "full_attention_interval",
        "attention_chunk_size",
    )
    way = next((name for name in _WAYS.split() if text.get(name) is not None), "")
    match way:
        case "layer_types" | "layers_block_type":
            names = text.get(way)
            if not isinstance(names, list) or len(names) != layers:
                raise text.error(way, f"must name each of {layers} layers")
            if unknown := [
                name for name in names if not isinstance(name, str) or name not in _NAMED
            ]:
                raise text.error(
                    way, f"unknown kind of layer {unknown[0]!r}; known are {', '.join(_NAMED)}"
                )
            if "indexed_attention" in names and not any(map(text.tree.get, _INDEX_FIELDS)):
                raise text.error(way, "indexed_attention, but the keys of its indexer are unknown")
            # What follows from the list.
            text.use("global_attn_every_n_layers", "full_attn_idxs")
            return [_NAMED[name] for name in names]
        case "hybrid_override_pattern":
            letters = text.text(way) or ""
            if len(letters) != layers or set(letters) - set(_LETTERS):
                raise text.error(way, f"must be {layers} letters of {''.join(_LETTERS)}")
            return [_LETTERS[letter] for letter in letters]
        case "attn_type_list":
            if text.numbers(way) != [1] * layers:
                raise text.error(
                    way, f"only 1 (softmax attention) for each of {layers} layers is supported"
                )
        case "linear_attn_config":  # of Kimi Linear, which counts its layers from 1
            config = text.nested(way)
            assert config is not None, "it is the way"
            full, recurrent = config.numbers("full_attn_layers"), config.numbers("kda_layers")
            if sorted(full + recurrent) != list(range(1, layers + 1)):
                raise config.error(
                    "kda_layers", f"with full_attn_layers must name each of 1 to {layers} once"
                )
            return [
                LayerKind.FULL if n in set(full) else LayerKind.RECURRENT
                for n in range(1, layers + 1)
            ]
        case "attn_layer_indices":
            full = text.numbers(way)
            if not set(full) <= set(range(layers)):
                raise text.error(way, f"must be layers, from 0 to {layers - 1}")
            return [
                LayerKind.FULL if n in set(full) else LayerKind.RECURRENT for n in range(layers)
            ]
        case "attn_layer_period":  # of Jamba: of so many layers the one at the offset is attention
            period, offset = text.integer(way), text.integer("attn_layer_offset", minimum=0)
            return [
                LayerKind.FULL if n % period == offset else LayerKind.RECURRENT
                for n in range(layers)
            ]
        case "full_attention_interval":
            if text.get("linear_num_value_heads") is None:
                raise text.error(way, "says where full layers are, but not what the others are")
            return _every(text.integer(way), layers, LayerKind.RECURRENT)
        case "attention_chunk_size":
            return _llama4(text, layers)
        case "sliding_window":
            return _sliding(text, layers)
    return [LayerKind.FULL] * layers


def _llama4(text: Fields, layers: int) -> list[LayerKind]:
    if text.text("model_type") != "llama4_text":
        raise text.error(
            "attention_chunk_size", "the layers with a window are unknown: add layer_types"
        )
    flags = text.get("no_rope_layers")
    if not flags:
        interval = text.optional_integer("no_rope_layer_interval")
        return _every(
            _NO_ROPE_INTERVAL if interval is None else interval, layers, LayerKind.CHUNKED
        )
    if (
        not isinstance(flags, list)
        or len(flags) != layers
        or any(flag not in (0, 1) for flag in flags)
    ):
        raise text.error(
            "no_rope_layers", f"must be 0 (full) or 1 (chunked) for each of {layers} layers"
        )
    return [LayerKind.CHUNKED if flag else LayerKind.FULL for flag in flags]


def _sliding(text: Fields, layers: int) -> list[LayerKind]:
    kind = text.text("model_type") or ""
    is_used = text.get("use_sliding_window")
    if is_used is False or (is_used is None and kind.startswith(("qwen2", "qwen3"))):
        return [LayerKind.FULL] * layers
    if is_used:
        first = text.integer("max_window_layers", minimum=0)
        return [LayerKind.FULL if n < first else LayerKind.SLIDING for n in range(layers)]
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        if isinstance(text.get(name), str):
            letters = text.text(name) or ""
            if not letters or set(letters) - set("LG"):
                raise text.error(name, f"must be a number, or letters L and G, not {letters!r}")
            kinds = [
                LayerKind.SLIDING if letters[n % len(letters)] == "L" else LayerKind.FULL
                for n in range(layers)
            ]
            return [*kinds[:-1], LayerKind.FULL]
        if text.get(name) is not None:
            return _every(text.integer(name), layers, LayerKind.SLIDING)
    if kind in _PATTERN:
        return _every(_PATTERN[kind], layers, LayerKind.SLIDING)
    if kind in _ALL_SLIDE:
        return [LayerKind.SLIDING] * layers
    raise text.error("sliding_window", "the layers with a window are unknown: add layer_types")


def _every(interval: int, layers: int, other_kind: LayerKind) -> list[LayerKind]:
    return [LayerKind.FULL if (n + 1) % interval == 0 else other_kind for n in range(layers)]


# Heads, their width, state, groups, convolution kernel: of a gated delta net; of Mamba 2 as
# Nemotron-H names them, and as Bamba and Granite do. Then those of Kimi's delta attention: in an
# object of their own, or, as transformers writes them, beside all other fields.
_RECURRENT = [names.split() for names in (
    "linear_num_value_heads linear_value_head_dim linear_key_head_dim linear_num_key_heads linear_conv_kernel_dim",
    "mamba_num_heads mamba_head_dim ssm_state_size n_groups conv_kernel",
    "mamba_n_heads mamba_d_head mamba_d_state mamba_n_groups mamba_d_conv",
)]  # fmt: skip
_KDA = ["num_heads", "head_dim", "head_dim", "num_heads", "short_conv_kernel_size"]
_FLAT_KDA = ["linear_num_heads", *["linear_head_dim"] * 2, "linear_num_heads"]
_FLAT_KDA.append("linear_conv_kernel_dim")


def recurrent_layers(
    text: Fields, layers: int, conv_dtype: shapes.KvDtype, notes: list[str]
) -> shapes.Recurrent:
    """Return the group of `layers` recurrent layers.

    ConfigError if it is of a kind not known here.
    """
    if text.get("conv_L_cache") is not None:
        return _convolutions(text, layers, conv_dtype)
    fields, state_dtype, default = text, conv_dtype, "vLLM's default"
    names = next((n for n in _RECURRENT if text.get(n[0]) is not None), None)
    if names is None and (kda := text.nested("linear_attn_config")) is not None:
        fields, names, state_dtype, default = kda, _KDA, shapes.KvDtype.FP32, "as vLLM keeps KDA's"
    if names is None and text.get("linear_num_heads") is not None:
        names, state_dtype, default = _FLAT_KDA, shapes.KvDtype.FP32, "as vLLM keeps KDA's"
    if names is not None:
        if fields.get(names[1]) == "auto":
            raise fields.error(names[1], "must be a whole number, not 'auto'")
        heads, width, state, groups, kernel = (fields.integer(n) for n in names)
    elif text.get("mamba_expand") is not None and text.get("mamba_d_head") is None:
        # Mamba 1 (Jamba): each of the widened channels is a head of `mamba_d_state` values, and its
        # convolution's own.
        heads, groups, width = text.integer("mamba_expand") * text.integer("hidden_size"), 0, 1
        state, kernel = text.integer("mamba_d_state"), text.integer("mamba_d_conv")
    else:
        raise text.error("layer_types", "the state of its recurrent layers is not in a known form")
    taps = kernel - 1
    dtype_field = next(
        (
            name
            for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
            if text.text(name) is not None
        ),
        None,
    )
    if dtype_field is None:
        reason = f"{default}: config.json has no mamba_ssm_dtype"
        notes.append(f"recurrent states are taken as {state_dtype}, {reason}")
    else:
        state_dtype = shapes.parse_dtype(
            text.text(dtype_field) or "", f"{text.where}: {dtype_field}"
        )
    return shapes.Recurrent(
        layers=layers,
        heads=heads,
        head_elements=width * state,
        conv_head_elements=width * taps,
        groups=max(1, groups),
        conv_group_elements=2 * state * taps if groups else 0,
        state_dtype=state_dtype,
        conv_dtype=conv_dtype,
    )


def _convolutions(text: Fields, layers: int, conv_dtype: shapes.KvDtype) -> shapes.Recurrent:
    """Return the short convolutions of LFM2: each keeps its last inputs, and no matrix."""
    names = text.get("layer_types") or []
    if "conv" not in names or {"mamba", "linear_attention"} & set(names):
        raise text.error("conv_L_cache", "is of layers `conv`, beside no other recurrent ones")
    return shapes.Recurrent(
        layers=layers,
        heads=text.integer("hidden_size"),
        head_elements=0,
        conv_head_elements=text.integer("conv_L_cache") - 1,
        groups=1,
        conv_group_elements=0,
        state_dtype=conv_dtype,
        conv_dtype=conv_dtype,
    )


# What each class of transformers takes for a field that a config.json leaves out; released files
# rely on it.
_DEFAULTS: Final[dict[str, dict[str, int]]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131_072,
    },
    "gemma2": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
    },
    "opt": {"max_position_embeddings": 2048},
    "falcon": {"max_position_embeddings": 2048},
    "jamba": {"num_key_value_heads": 8, "max_position_embeddings": 262_144},
}


# The names by which Falcon was released before transformers had it, and whether all of that name
# are of the new layout.
_FALCON: Final = {"falcon": False, "RefinedWeb": True, "RefinedWebModel": False}
_OLD_NAMES: Final = {
    "n_layer": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_head_kv": "num_kv_heads",
}
_WITH_OLD_NAMES: Final = {*_FALCON, "exaone"}


def completed(text: Fields, notes: list[str]) -> Fields:  # noqa: C901 - a case a family
    """Return `text` with what its class adds; `notes` takes which values that were."""
    kind = text.text("model_type") or ""
    tree = {name: value for name, value in text.tree.items() if value is not None}
    for old, name in _OLD_NAMES.items() if kind in _WITH_OLD_NAMES else ():
        if old in tree:
            tree.setdefault(name, tree[old])
    if kind in _FALCON:
        tree.setdefault(
            "num_key_value_heads", _falcon_heads(Fields(tree, text.where), is_new=_FALCON[kind])
        )
        text.use("multi_query", "new_decoder_architecture", "num_kv_heads")
        kind = "falcon"
    if kind == "nemotron_h" and "num_hidden_layers" not in tree:
        tree["num_hidden_layers"] = len(
            tree.get("layers_block_type") or tree.get("hybrid_override_pattern") or ()
        )
    if kind == "nemotron-nas":
        tree |= _of_blocks(text)
    if kind == "deepseek_v2":
        tree = _without_latent(tree)
    if kind.startswith("step3"):
        tree |= _step_heads(text) | _step_kinds(tree)
    if kind.startswith(_LONGCAT):
        tree["num_hidden_layers"] = _longcat_blocks(text)
        text.use("num_layers")
        notes.append("each layer has two blocks of latent attention, and both are cached")
    if kind.startswith("mimo_v2"):
        # It marks its windowed layers by 1.
        names, flags = (
            {0: "full_attention", 1: "sliding_attention"},
            text.numbers("hybrid_layer_pattern"),
        )
        if set(flags) - set(names):
            raise text.error(
                "hybrid_layer_pattern", "must be 0 (full) or 1 (sliding) for each layer"
            )
        tree.setdefault("layer_types", [names[flag] for flag in flags])
        text.use("sliding_window_size")
    defaults = {n: value for n, value in _DEFAULTS.get(kind, {}).items() if n not in tree}
    if "layer_types" in tree:
        defaults.pop("sliding_window_pattern", None)
    if defaults:
        default_values = ", ".join(f"{name} {value:,}" for name, value in defaults.items())
        notes.append(f"config.json omits defaults of its class: {default_values}")
    merged: JsonObject = text.tree | tree | defaults
    return Fields(merged, text.where, text.used)


_LONGCAT = "longcat_flash"


def _longcat_blocks(text: Fields) -> int:
    """Return the attention blocks of LongCat-Flash, which has two in each of its `num_layers`.

    Its num_hidden_layers counts blocks where transformers wrote it, and layers where others did,
    so that it alone does not say how many there are.
    """
    layers, blocks = text.integer("num_layers"), text.optional_integer("num_hidden_layers")
    if blocks not in (None, layers, 2 * layers):
        raise text.error(
            "num_hidden_layers", f"{blocks} is neither num_layers(={layers}) nor twice as many"
        )
    return 2 * layers


def _without_latent(tree: JsonObject) -> JsonObject:
    """Return the fields of a DeepSeek V2 without a latent, such as DeepSeek-OCR's.

    Its parts of a head are 0, and heads are as wide as a plain model's. Others are unchanged.
    """
    parts = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    if any(tree.get(part) for part in ("kv_lora_rank", *parts)):
        return tree
    plain: JsonObject = tree | dict.fromkeys(parts)
    hidden, heads = tree.get("hidden_size"), tree.get("num_attention_heads")
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads == 0:
        plain.setdefault("head_dim", hidden // heads)
    return plain


def _step_heads(text: Fields) -> JsonObject:
    """Return the heads of Step 3 and 3.5 by the usual names; layers with a window have their own."""
    fields: JsonObject = {}
    if text.get("num_key_value_heads") is None:
        fields["num_key_value_heads"] = text.integer("num_attention_groups")
    other = text.nested("attention_other_setting")
    if other is not None:
        if other.text("attention_type") != "sliding_attention":
            raise other.error("attention_type", "only sliding_attention is supported")
        fields["swa_num_key_value_heads"] = other.integer("num_attention_groups")
        fields["swa_num_attention_heads"] = other.integer("num_attention_heads")
        fields["swa_head_dim"] = other.integer("head_dim")
    return fields


def _step_kinds(tree: JsonObject) -> JsonObject:
    """Return the kinds of the layers of Step 3.5, which also lists those that predict further tokens."""
    layers, types = tree.get("num_hidden_layers"), tree.get("layer_types")
    predictors = tree.get("num_nextn_predict_layers")
    if not (isinstance(types, list) and isinstance(layers, int) and isinstance(predictors, int)):
        return {}
    return {"layer_types": types[:layers] if len(types) == layers + predictors else types}


def _falcon_heads(text: Fields, *, is_new: bool) -> int:
    """Return the key-value heads of Falcon, which are named in the new layout only.

    The old layout has one, or one for each head.
    """
    if is_new or text.get("new_decoder_architecture"):
        return text.integer("num_kv_heads")
    is_single = text.get("multi_query")
    return 1 if is_single is None or is_single else text.integer("num_attention_heads")


def _of_blocks(text: Fields) -> JsonObject:
    """Return the fields of Nemotron's searched models (NAS) from their list of blocks.

    A block lists attention and network of a layer, which may be missing, and their widths.
    """
    blocks = text.get("block_configs")
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise text.error("block_configs", "must be a list of one object a layer")
    names: list[str] = []
    groups: set[int] = set()
    inner = 0
    for number, block in enumerate(blocks):
        block_fields = Fields(block, f"{text.where}: block_configs[{number}]")
        attention, network = block_fields.nested("attention"), block_fields.nested("ffn")
        if attention is None:
            raise block_fields.error("attention", "is missing")
        if unlike := [
            n
            for n in ("window_length", "num_sink_tokens", "sparsify")
            if attention.get(n) is not None
        ]:
            raise attention.error(unlike[0], "may change what is cached, and is not supported")
        is_none = bool(attention.get("no_op") or attention.get("replace_with_linear"))
        names.append("mlp" if is_none else "full_attention")
        if not is_none:
            groups.add(attention.integer("n_heads_in_group"))
        multiple = network.get("ffn_mult") if network is not None else None
        inner += (
            int(2 * multiple * text.integer("hidden_size") / 3)
            if isinstance(multiple, int | float)
            else 0
        )
    if len(groups) != 1:
        raise text.error(
            "block_configs", f"one n_heads_in_group is supported, not {sorted(groups)}"
        )
    return {
        "layers_block_type": names,
        "num_key_value_heads": text.integer("num_attention_heads") // groups.pop(),
        "intermediate_size": inner // len(blocks),
    }


_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts")
_USED = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts")
_SHARED = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
# A gated feed-forward network has three matrices, one with squared ReLU two.
_GATED, _PLAIN = 3, 2


def count_parameters(fields: Fields) -> tuple[int, int]:
    """Return all parameters and those active for a token; zeros if the usual fields are not there.

    Attention, recurrence, feed-forward networks, experts and embeddings are counted; biases, norms,
    routers and what else is special to a family are left out.
    """
    text = Fields(fields.tree, fields.where)  # What is read here does not count as understood.
    hidden, heads = _count(text, "hidden_size"), _count(text, "num_attention_heads")
    if not (hidden and heads and _count(text, "num_hidden_layers")):
        return 0, 0
    kinds = layer_kinds(text, [])
    # A token looks its embedding up, but computes with all of the output's.
    common = 2 * _count(text, "vocab_size") * hidden
    common += _recurrent_layer_count(text, kinds) * _recurrence(text, hidden)
    common += sum(k not in (LayerKind.RECURRENT, LayerKind.NONE) for k in kinds) * _attention(
        text, hidden, heads
    )
    dense, sparse = _networks(text, kinds)
    inner = _count(text, "intermediate_size_mlp", "intermediate_size", "ffn_dim") or 4 * hidden
    common += dense * _matrices(text) * hidden * inner
    total, active = _experts(text, hidden)
    return common + sparse * total, common + sparse * active


def _attention(text: Fields, hidden: int, heads: int) -> int:
    if text.get("compress_ratios"):
        # DeepSeek V4: queries and outputs by way of narrower spaces, one head of keys.
        values = heads * _count(text, "head_dim")
        query, out = _count(text, "q_lora_rank") or hidden, _count(text, "o_lora_rank") or hidden
        groups = _count(text, "o_groups") or 1
        output = out * values + hidden * groups * out
        return hidden * query + query * values + output + hidden * _count(text, "head_dim")
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
    """Return the parameters of a recurrent layer's projections: queries, keys, values, a gate."""
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
        blocks = ()  # such a layer may lack attention, but has a network
    if LayerKind.NONE in kinds and blocks:
        return sum(b in ("mlp", "-") for b in blocks), sum(b in ("moe", "E") for b in blocks)
    layers = _count(text, "num_hidden_layers")
    if not _count(text, *_EXPERTS):
        return layers, 0
    listed = text.get("moe_layer_freq")
    if isinstance(listed, list):
        sparse = sum(1 for frequency in listed if frequency)
    elif step := _count(text, "interleave_moe_layer_step", "expert_layer_period"):
        sparse = layers // step
    else:
        sparse = layers - min(layers, _count(text, "first_k_dense_replace"))
    # Gemma 4 has both in each layer.
    return layers if text.get("enable_moe_block") else layers - sparse, sparse


def _experts(text: Fields, hidden: int) -> tuple[int, int]:
    """Return the parameters of a layer's experts: all, and those that a token uses."""
    number = _count(text, *_EXPERTS)
    inner = _count(text, "moe_intermediate_size", "intermediate_size")
    # Experts may compute in a narrower space, with projections into and out of it.
    narrow = _count(text, "moe_latent_size", "routed_expert_hidden_size")
    expert_parameters = _matrices(text) * (narrow or hidden) * inner
    is_llama4 = text.tree.get("model_type") == "llama4_text"
    shared_count = _count(text, "n_shared_experts", "num_shared_experts") or int(is_llama4)
    shared = _matrices(text) * hidden * (_count(text, *_SHARED) or shared_count * inner)
    always = shared + 2 * hidden * narrow
    return always + number * expert_parameters, always + min(
        number, _count(text, *_USED)
    ) * expert_parameters


def _matrices(text: Fields) -> int:
    return _PLAIN if text.get("mlp_hidden_act") == "relu2" else _GATED


def _count(text: Fields, *names: str) -> int:
    """Return the first of `names` that is a whole number above 0; 0 if none is."""
    values = [text.get(name) for name in names]
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)
