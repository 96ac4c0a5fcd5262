"""Which kind each layer of a Hugging Face config.json is, and what its recurrent layers keep.

Models say it in many ways: one function a way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kvtrace.core.errors import ConfigError
from kvtrace.model.layers import KvDtype, Recurrent, parse_dtype


@dataclass(frozen=True, slots=True)
class Fields:
    """An object of a JSON file that records which fields were read, so that unread ones can be refused."""

    tree: dict[str, Any]
    where: str
    used: set[str] = field(default_factory=set)

    def error(self, name: str, message: str) -> ConfigError:
        """Return the error that says what is wrong with the field `name`."""
        return ConfigError(f"{self.where}: {name}: {message}")

    def use(self, *names: str) -> None:
        """Record `names` as read."""
        self.used.update(names)

    def get(self, name: str) -> Any:
        """Return the value of `name`; None if it is null or absent."""
        self.used.add(name)
        return self.tree.get(name)

    def integer(self, name: str, least: int = 1) -> int:
        """Return the whole number `name`; ConfigError if it is absent, something else, or less than `least`."""
        value = self.get(name)
        if value is None:
            raise self.error(name, "is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(name, f"must be a whole number >= {least}, not {value!r}")
        return value

    def count(self, name: str) -> int:
        """Return the whole number `name`, 0 if it is absent or null."""
        return 0 if self.get(name) is None else self.integer(name, least=0)

    def text(self, name: str) -> str | None:
        """Return the text `name`, None if it is absent or null; ConfigError if it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, f"must be text, not {value!r}")
        return value

    def nested(self, name: str) -> Fields | None:
        """Return the object `name`, None if it is absent or null; ConfigError if it is something else."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"must be an object, not {value!r}")
        return Fields(value, f"{self.where}: {name}")

    def numbers(self, name: str) -> list[int]:
        """Return the list of whole numbers `name`; ConfigError if it is something else."""
        value = self.get(name)
        if not isinstance(value, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            raise self.error(name, f"must be a list of whole numbers, not {value!r}")
        return value


class LayerKind(StrEnum):
    """What a layer keeps."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    RECURRENT = "recurrent"
    NONE = "no-cache"
    """A feed-forward layer that counts as one."""


_NAMED = {
    **dict.fromkeys(("full_attention", "attention", "deepseek_sparse_attention"), LayerKind.FULL),
    "sliding_attention": LayerKind.SLIDING,
    "chunked_attention": LayerKind.CHUNKED,
    **dict.fromkeys(("linear_attention", "mamba"), LayerKind.RECURRENT),
    **dict.fromkeys(("moe", "mlp"), LayerKind.NONE),
}
_LETTERS = {"*": LayerKind.FULL, "M": LayerKind.RECURRENT, "-": LayerKind.NONE, "E": LayerKind.NONE}
# Classes in which `sliding_window` is for every layer, and those in which every n-th layer is full.
_ALL_SLIDE = {"mistral", "mixtral", "phi3", "starcoder2"}
_PATTERN = {"gemma2": 2, "gpt_oss": 2}
_MOST_LAYERS = 10_000
# Llama 4's default for no_rope_layer_interval.
_NO_ROPE_INTERVAL = 4


def layer_kinds(text: Fields, notes: list[str]) -> list[LayerKind]:
    """Return the kind of each layer that keeps a cache of its own, in order; `notes` takes what to know."""
    if text.tree.get("compress_ratios"):
        raise text.error("compress_ratios", "may change what is cached: compressed attention is not supported")
    layers = text.integer("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise text.error("num_hidden_layers", f"{layers}; at most {_MOST_LAYERS}")
    kinds = _said(text, layers)
    if shared := text.count("num_kv_shared_layers"):
        if shared >= layers:
            raise text.error("num_kv_shared_layers", f"{shared} of {layers} layers cannot share")
        notes.append(f"the last {shared} layers share the cache of earlier ones (num_kv_shared_layers)")
        kinds = kinds[:-shared]
    return kinds


def _said(text: Fields, layers: int) -> list[LayerKind]:
    ways: tuple[tuple[str, Callable[[Fields, int], list[LayerKind]]], ...] = (
        ("layer_types", lambda t, n: _named(t, "layer_types", n)),
        ("layers_block_type", lambda t, n: _named(t, "layers_block_type", n)),
        ("hybrid_override_pattern", _lettered),
        ("attn_type_list", _typed),
        ("linear_attn_config", _kimi),
        ("attn_layer_indices", _indexed),
        ("attn_layer_period", _periodic),
        ("full_attention_interval", _interval),
        ("attention_chunk_size", _llama4),
        ("sliding_window", _sliding),
    )
    found = next((kinds(text, layers) for name, kinds in ways if text.get(name) is not None), None)
    # SmolLM 3 lists layers without rotary positions, which cache all the same.
    text.use("no_rope_layers", "no_rope_layer_interval", "full_attention_interval", "attention_chunk_size")
    return [LayerKind.FULL] * layers if found is None else found


def _named(text: Fields, field: str, layers: int) -> list[LayerKind]:
    names = text.get(field)
    if not isinstance(names, list) or len(names) != layers:
        raise text.error(field, f"must name each of {layers} layers")
    unknown = [name for name in names if not isinstance(name, str) or name not in _NAMED]
    if unknown:
        raise text.error(field, f"unknown kind of layer {unknown[0]!r}; known are {', '.join(_NAMED)}")
    return [_NAMED[name] for name in names]


def _lettered(text: Fields, layers: int) -> list[LayerKind]:
    letters = text.text("hybrid_override_pattern") or ""
    if len(letters) != layers or set(letters) - set(_LETTERS):
        raise text.error("hybrid_override_pattern", f"must be {layers} letters of {''.join(_LETTERS)}")
    return [_LETTERS[letter] for letter in letters]


def _typed(text: Fields, layers: int) -> list[LayerKind]:
    types = text.numbers("attn_type_list")
    if types != [1] * layers:
        raise text.error("attn_type_list", f"only 1 (softmax attention) for each of {layers} layers is supported")
    return [LayerKind.FULL] * layers


def _kimi(text: Fields, layers: int) -> list[LayerKind]:
    """Kimi Linear counts its layers from 1."""
    config = text.nested("linear_attn_config")
    if config is None:
        raise ValueError(text.where)
    full, recurrent = config.numbers("full_attn_layers"), config.numbers("kda_layers")
    if sorted(full + recurrent) != list(range(1, layers + 1)):
        raise config.error("kda_layers", f"with full_attn_layers must name each of 1 to {layers} once")
    return [LayerKind.FULL if n in set(full) else LayerKind.RECURRENT for n in range(1, layers + 1)]


def _indexed(text: Fields, layers: int) -> list[LayerKind]:
    full = set(text.numbers("attn_layer_indices"))
    if not full <= set(range(layers)):
        raise text.error("attn_layer_indices", f"must be layers, from 0 to {layers - 1}")
    return [LayerKind.FULL if n in full else LayerKind.RECURRENT for n in range(layers)]


def _periodic(text: Fields, layers: int) -> list[LayerKind]:
    """Jamba: of each `attn_layer_period` layers the one at `attn_layer_offset` is attention."""
    period, offset = text.integer("attn_layer_period"), text.integer("attn_layer_offset", least=0)
    return [LayerKind.FULL if n % period == offset else LayerKind.RECURRENT for n in range(layers)]


def _interval(text: Fields, layers: int) -> list[LayerKind]:
    if text.get("linear_num_value_heads") is None:
        raise text.error("full_attention_interval", "says where full layers are, but not what the others are")
    return _every(text.integer("full_attention_interval"), layers, LayerKind.RECURRENT)


def _llama4(text: Fields, layers: int) -> list[LayerKind]:
    if text.text("model_type") != "llama4_text":
        raise text.error("attention_chunk_size", "which layers it is for is not said: add layer_types")
    flags = text.get("no_rope_layers")
    if not flags:
        interval = text.get("no_rope_layer_interval")
        return _every(
            _NO_ROPE_INTERVAL if interval is None else text.integer("no_rope_layer_interval"), layers, LayerKind.CHUNKED
        )
    if not isinstance(flags, list) or len(flags) != layers or any(flag not in (0, 1) for flag in flags):
        raise text.error("no_rope_layers", f"must be 0 (full) or 1 (chunked) for each of {layers} layers")
    return [LayerKind.CHUNKED if flag else LayerKind.FULL for flag in flags]


def _sliding(text: Fields, layers: int) -> list[LayerKind]:
    kind = text.text("model_type") or ""
    is_used = text.get("use_sliding_window")
    if is_used is False or (is_used is None and kind.startswith(("qwen2", "qwen3"))):
        return [LayerKind.FULL] * layers
    if is_used:
        first = text.integer("max_window_layers", least=0)
        return [LayerKind.FULL if n < first else LayerKind.SLIDING for n in range(layers)]
    for name in ("sliding_window_pattern", "_sliding_window_pattern"):
        if isinstance(text.get(name), str):
            return _patterned(text, name, layers)
        if text.get(name) is not None:
            return _every(text.integer(name), layers, LayerKind.SLIDING)
    if kind in _PATTERN:
        return _every(_PATTERN[kind], layers, LayerKind.SLIDING)
    if kind in _ALL_SLIDE:
        return [LayerKind.SLIDING] * layers
    raise text.error("sliding_window", "which layers it is for is not said: add layer_types")


def _patterned(text: Fields, field: str, layers: int) -> list[LayerKind]:
    """EXAONE 4: L for local and G for global, over and over; the last layer is global whatever it says."""
    letters = text.text(field) or ""
    if not letters or set(letters) - set("LG"):
        raise text.error(field, f"must be a number, or letters L and G, not {letters!r}")
    kinds = [LayerKind.SLIDING if letters[n % len(letters)] == "L" else LayerKind.FULL for n in range(layers)]
    return [*kinds[:-1], LayerKind.FULL]


def _every(interval: int, layers: int, other: LayerKind) -> list[LayerKind]:
    """Return every `interval`-th layer full, the rest `other`."""
    return [LayerKind.FULL if (n + 1) % interval == 0 else other for n in range(layers)]


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
    elif text.get("mamba_expand") is not None and text.get("mamba_d_head") is None:
        # Mamba 1 (Jamba): each of the widened channels is a head of `mamba_d_state` values, and its convolution's own.
        return Recurrent(
            layers=layers,
            heads=text.integer("mamba_expand") * text.integer("hidden_size"),
            head_elements=text.integer("mamba_d_state"),
            conv_head_elements=text.integer("mamba_d_conv") - 1,
            groups=1,
            conv_group_elements=0,
            state_dtype=_state_dtype(text, conv_dtype, notes),
            conv_dtype=conv_dtype,
        )
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
        layers=layers,
        heads=heads,
        head_elements=width * state,
        conv_head_elements=width * taps,
        groups=groups,
        conv_group_elements=2 * state * taps,
        state_dtype=dtype,
        conv_dtype=conv_dtype,
    )


def _state_dtype(text: Fields, otherwise: KvDtype, notes: list[str], default: str = "vLLM's default") -> KvDtype:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        if (said := text.text(name)) is not None:
            return parse_dtype(said, f"{text.where}: {name}")
    notes.append(f"recurrent states are taken as {otherwise}, {default}: config.json does not say (mamba_ssm_dtype)")
    return otherwise
