"""What one kind of layer keeps for the tokens it has seen: elements, bytes, and how ranks share them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvtrace.core.errors import ConfigError


class KvDtype(StrEnum):
    """What one element of a cache is stored as."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    FP8_DS_MLA = "fp8_ds_mla"
    """vLLM's packed latent: 512 fp8 values, four fp32 scales, 64 bf16 rotary values."""

    @property
    def element_bytes(self) -> int:
        """Bytes an element; ValueError for the packed latent, which is a record of mixed elements."""
        return _ELEMENT_BYTES[self]


_ELEMENT_BYTES = {KvDtype.FP32: 4, KvDtype.FP16: 2, KvDtype.BF16: 2, KvDtype.FP8: 1, KvDtype.INT8: 1}
_ALIASES = {
    **dict.fromkeys(("float32", "float"), KvDtype.FP32),
    **dict.fromkeys(("float16", "half"), KvDtype.FP16),
    "bfloat16": KvDtype.BF16,
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), KvDtype.FP8),
}
# 512 x 1 B + 4 x 4 B + 64 x 2 B.
DS_MLA_RECORD_BYTES = 656
_DS_MLA_SHAPE = (512, 64)
# The indexer keeps one fp32 scale for each so many fp8 values.
INDEX_SCALE_VALUES = 128


def parse_dtype(name: str, where: str) -> KvDtype:
    """Return the dtype called `name`, also as vLLM or torch call it; ConfigError, naming `where`, if unknown."""
    plain = name.removeprefix("torch.").lower()
    if plain in _ALIASES:
        return _ALIASES[plain]
    try:
        return KvDtype(plain)
    except ValueError:
        known = ", ".join(KvDtype)
        raise ConfigError(f"{where}: unknown element type {name!r}; known are {known}") from None


def share(count: int, ranks: int) -> int:
    """Return how many of `count` heads the fullest of `ranks` ranks holds: at least one, so heads replicate."""
    return max(1, -(-count // ranks))


class _Heads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    layers: int
    kv_heads: int
    head_dim: int
    """Width of a key; of a value too, without `value_dim`."""
    value_dim: int | None = None

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:
        """Return the bytes a token takes on one of `ranks` ranks, in all layers of the group."""
        return self.layers * share(self.kv_heads, ranks) * self.pair_elements * dtype.element_bytes

    @property
    def pair_elements(self) -> int:
        """Elements of one head's key and value together."""
        return self.head_dim + (self.head_dim if self.value_dim is None else self.value_dim)

    def formula(self, dtype: KvDtype, ranks: int) -> str:
        """Return `token_bytes` as a product to read."""
        heads = share(self.kv_heads, ranks)
        width = f"2 (K, V) x {heads} heads x {self.head_dim}"
        if self.value_dim not in (None, self.head_dim):
            width = f"{heads} heads x ({self.head_dim} K + {self.value_dim} V)"
        return f"{self.layers} layers x {width.replace(' 1 heads', ' 1 head')} x {dtype.element_bytes} B"


class Full(_Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="full"):
    """Attention over every earlier token: multi-head, grouped-query or multi-query, by its `kv_heads`."""


class Sliding(_Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="sliding"):
    """Attention over the last `window_tokens` tokens only."""

    window_tokens: int


class Chunked(_Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="chunked"):
    """Attention within aligned spans of `window_tokens` tokens, as in Llama 4."""

    window_tokens: int


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="mla"):
    """Multi-head latent attention: one compressed vector and one rotary key, the same on every rank."""

    layers: int
    latent_dim: int
    """kv_lora_rank."""
    rope_dim: int
    """qk_rope_head_dim."""

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - every rank holds the whole latent
        """Return the bytes a token takes in all layers of the group, on any rank."""
        return self.layers * self._record_bytes(dtype)

    def _record_bytes(self, dtype: KvDtype) -> int:
        if dtype is KvDtype.FP8_DS_MLA:
            return DS_MLA_RECORD_BYTES
        return (self.latent_dim + self.rope_dim) * dtype.element_bytes

    @property
    def is_ds_mla(self) -> bool:
        """Whether vLLM's packed record fits this latent."""
        return (self.latent_dim, self.rope_dim) == _DS_MLA_SHAPE

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - the same on every rank
        """Return `token_bytes` as a product to read."""
        if dtype is KvDtype.FP8_DS_MLA:
            return f"{self.layers} layers x {DS_MLA_RECORD_BYTES} B (512 fp8 + 4 fp32 scales + 64 bf16)"
        return f"{self.layers} layers x ({self.latent_dim} latent + {self.rope_dim} rotary) x {dtype.element_bytes} B"


class Indexer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="indexer"):
    """The keys with which DeepSeek sparse attention picks tokens: fp8 with fp32 scales whatever the cache's dtype."""

    layers: int
    index_dim: int

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - fp8 always, the same on every rank
        """Return the bytes a token takes in all layers of the group, on any rank."""
        return self.layers * (self.index_dim + 4 * -(-self.index_dim // INDEX_SCALE_VALUES))

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - fp8 always, the same on every rank
        """Return `token_bytes` as a product to read."""
        scales = -(-self.index_dim // INDEX_SCALE_VALUES)
        return f"{self.layers} layers x ({self.index_dim} fp8 + {scales} fp32 scale)"


class Recurrent(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="recurrent"
):
    """A state of fixed size instead of tokens: Mamba 2, gated delta net (GDN), Kimi delta attention (KDA).

    A layer keeps a matrix for each head and the last inputs of a short convolution: some go with the heads, some
    with the key groups. Shapes as in vLLM's `mamba_utils`.
    """

    layers: int
    heads: int
    head_elements: int
    """Of one head's matrix."""
    conv_head_elements: int
    """Of the convolution, a head: width x (kernel - 1)."""
    groups: int
    conv_group_elements: int
    """Of the convolution, a key group: both its widths x (kernel - 1)."""
    state_dtype: KvDtype
    conv_dtype: KvDtype = KvDtype.BF16

    def state_bytes(self, ranks: int) -> int:
        """Return the bytes of one state on one of `ranks` ranks, in all layers of the group."""
        heads, groups = share(self.heads, ranks), share(self.groups, ranks)
        conv = heads * self.conv_head_elements + groups * self.conv_group_elements
        matrices = heads * self.head_elements * self.state_dtype.element_bytes
        return self.layers * (matrices + conv * self.conv_dtype.element_bytes)

    def formula(self, ranks: int) -> str:
        """Return `state_bytes` as a sum of products to read."""
        heads, groups = share(self.heads, ranks), share(self.groups, ranks)
        conv = heads * self.conv_head_elements + groups * self.conv_group_elements
        return (
            f"{self.layers} layers x ({heads} heads x {self.head_elements:,} x {self.state_dtype.element_bytes} B"
            f" + convolution {conv:,} x {self.conv_dtype.element_bytes} B)"
        )


TokenLayers = Full | Sliding | Chunked | Latent | Indexer
"""Layers that keep something for each token."""
Layers = TokenLayers | Recurrent
