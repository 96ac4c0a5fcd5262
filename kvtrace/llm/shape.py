"""Model shapes and the size of their KV cache, in bytes stored and bytes read.

A model is groups of equal layers. A chunk of tokens is stored as one piece for all layers that need
every token, one for each group that needs a window only, and one state for the recurrent layers.

Each kind of layer defines the elements and bytes that it keeps for a token, and how ranks share
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import msgspec

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.units import format_bytes


class KvDtype(StrEnum):
    """The element type of a cache."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    NVFP4 = "nvfp4"
    """4-bit values with an fp8 scale for each 16 of them, of keys and values with heads."""
    FP8_DS_MLA = "fp8_ds_mla"
    """vLLM's packed latent: 512 fp8 values, four fp32 scales, 64 bf16 rotary values."""

    @property
    def element_bytes(self) -> int:
        """Bytes an element.

        KeyError for NVFP4 and for the packed latent, which have no whole bytes an element.
        """
        return _ELEMENT_BYTES[self]

    def bytes_of(self, elements: int) -> int:
        """Return the bytes of `elements` values with their scales."""
        if self is KvDtype.NVFP4:
            return elements // 2 + elements // NVFP4_SCALE_VALUES
        return elements * self.element_bytes

    def per_element(self) -> str:
        """Return the bytes an element in words, for a formula."""
        if self is KvDtype.NVFP4:
            return f"(1/2 + 1/{NVFP4_SCALE_VALUES}) B"
        return f"{self.element_bytes} B"


_ELEMENT_BYTES = {
    KvDtype.FP32: 4,
    KvDtype.FP16: 2,
    KvDtype.BF16: 2,
    KvDtype.FP8: 1,
    KvDtype.INT8: 1,
}
_ALIASES = {
    **dict.fromkeys(("float32", "float"), KvDtype.FP32),
    **dict.fromkeys(("float16", "half"), KvDtype.FP16),
    "bfloat16": KvDtype.BF16,
    **dict.fromkeys(("fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), KvDtype.FP8),
}
NVFP4_SCALE_VALUES = 16
# 512 x 1 B + 4 x 4 B + 64 x 2 B.
DS_MLA_RECORD_BYTES = 656
_DS_MLA_SHAPE = (512, 64)
# The indexer keeps one fp32 scale for each so many fp8 values.
INDEX_SCALE_VALUES = 128


def parse_dtype(name: str, where: str) -> KvDtype:
    """Return the dtype called `name`, also as vLLM or torch call it.

    ConfigError, naming `where`, if unknown.
    """
    plain = name.removeprefix("torch.").lower()
    if plain in _ALIASES:
        return _ALIASES[plain]
    try:
        return KvDtype(plain)
    except ValueError:
        known_dtypes = ", ".join(KvDtype)
        raise ConfigError(
            f"{where}: unknown element type {name!r}; known are {known_dtypes}"
        ) from None


def share(count: int, ranks: int) -> int:
    """Return how many of `count` heads the fullest of `ranks` ranks holds.

    At least one, so heads replicate.
    """
    return max(1, -(-count // ranks))


class _Heads(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    layers: int
    kv_heads: int
    head_dim: int
    """Width of a key; of a value too, without `value_dim`."""
    value_dim: int | None = None
    query_heads: int | None = None
    """num_attention_heads, by which attention takes time.

    Null where it is not known, as in the next two kinds.
    """

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:
        """Return the bytes a token takes on one of `ranks` ranks, in all layers of the group."""
        elements = self.layers * share(self.kv_heads, ranks) * self.pair_elements
        return dtype.bytes_of(elements)

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
        return (
            f"{self.layers} layers x {width.replace(' 1 heads', ' 1 head')} x {dtype.per_element()}"
        )


class Full(
    _Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="full"
):
    """Attention over every earlier token.

    Multi-head, grouped-query or multi-query, by its `kv_heads`.
    """


class Sliding(
    _Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="sliding"
):
    """Attention over the last `window_tokens` tokens only."""

    window_tokens: int


class Chunked(
    _Heads, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="chunked"
):
    """Attention within aligned spans of `window_tokens` tokens, as in Llama 4."""

    window_tokens: int


class Latent(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="mla",
):
    """Multi-head latent attention.

    One compressed vector and one rotary key, the same on every rank.
    """

    layers: int
    latent_dim: int
    """kv_lora_rank."""
    rope_dim: int
    """qk_rope_head_dim."""
    query_heads: int | None = None
    nope_dim: int | None = None
    """qk_nope_head_dim.

    With `rope_dim` the width of a head's query, and of its key where the latent is expanded.
    """
    value_dim: int | None = None
    """v_head_dim: likewise that of a value."""

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - every rank holds the whole latent
        """Return the bytes a token takes in all layers of the group, on any rank."""
        if dtype is KvDtype.FP8_DS_MLA:
            return self.layers * DS_MLA_RECORD_BYTES
        return self.layers * (self.latent_dim + self.rope_dim) * dtype.element_bytes

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - the same on every rank
        """Return `token_bytes` as a product to read."""
        if dtype is KvDtype.FP8_DS_MLA:
            return (
                f"{self.layers} layers x {DS_MLA_RECORD_BYTES} B (512 fp8 + 4 fp32 scales + 64"
                " bf16)"
            )
        return (
            f"{self.layers} layers x ({self.latent_dim} latent + {self.rope_dim} rotary) x"
            f" {dtype.element_bytes} B"
        )


class Indexer(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="indexer",
):
    """The keys with which DeepSeek sparse attention picks tokens.

    They are fp8 with fp32 scales whatever the cache's dtype.
    """

    layers: int
    index_dim: int
    query_heads: int | None = None
    """index_n_heads."""
    top_tokens: int | None = None
    """index_topk: how many tokens it picks for a query of each latent layer."""
    pooled_tokens: int = 1
    """Tokens that share one key (index_kpool of GLM 5.3)."""

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - fp8 always, the same on every rank
        """Return the bytes a token takes in all layers of the group, rounded up, on any rank."""
        key_bytes = self.index_dim + 4 * -(-self.index_dim // INDEX_SCALE_VALUES)
        return -(-self.layers * key_bytes // self.pooled_tokens)

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - fp8 always, the same on every rank
        """Return `token_bytes` as a product to read."""
        scales = -(-self.index_dim // INDEX_SCALE_VALUES)
        return f"{self.layers} layers x ({self.index_dim} fp8 + {scales} fp32 scale)" + _pooled(
            self.pooled_tokens
        )


def _pooled(tokens: int) -> str:
    return "" if tokens == 1 else f" / {tokens} tokens"


class IndexKeys(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="index_keys",
):
    """The keys with which attention with heads picks blocks of tokens: MiniMax M3, Qwen 4.

    Engines keep them in the model's dtype, whatever the dtype of the cache, on every rank.
    """

    layers: int
    index_dim: int
    """Width of all keys of a token in one layer."""
    pooled_tokens: int = 1
    """Tokens that share one key."""
    index_dtype: KvDtype = KvDtype.BF16

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - the same on every rank
        """Return the bytes a token takes in all layers of the group, rounded up, on any rank."""
        return -(-self.layers * self.index_dtype.bytes_of(self.index_dim) // self.pooled_tokens)

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - the same on every rank
        """Return `token_bytes` as a product to read."""
        product = f"{self.layers} layers x {self.index_dim} x {self.index_dtype.per_element()}"
        return product + _pooled(self.pooled_tokens)


# DeepSeek V4's cache as vLLM lays it out: pages of 256 tokens; of an fp8 entry the rotary part is
# bf16, and 8 bytes of scales go with it; pages are padded to a multiple of 576 bytes.
_V4_BLOCK_TOKENS = 256
_V4_SCALE_BYTES = 8
_V4_ALIGNMENT = 576
_V4_INDEX_SCALE_BYTES = 4


def _v4_page_bytes(size_bytes: int, dtype: KvDtype) -> int:
    return pad(size_bytes, _V4_ALIGNMENT) if dtype is KvDtype.FP8 else size_bytes


def _v4_entry_bytes(head_dim: int, rope_dim: int, dtype: KvDtype) -> int:
    if dtype is KvDtype.FP8:
        rope_bytes = rope_dim * KvDtype.BF16.element_bytes
        return head_dim - rope_dim + rope_bytes + _V4_SCALE_BYTES
    return dtype.bytes_of(head_dim)


class Compressed(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="compressed",
):
    """DeepSeek V4's compressed attention: one entry for each `compressed_tokens` tokens.

    Keys are values, one head, the same on every rank. Layers that pick entries by an indexer keep
    one of its keys for each entry, too.
    """

    layers: int
    compressed_tokens: int
    """compress_ratios: 4 or 128."""
    head_dim: int
    rope_dim: int
    index_dim: int | None = None
    """Width of an indexer's key; null in layers without one."""

    def _block_bytes(self, dtype: KvDtype) -> int:
        """Return the bytes of one layer's page of 256 tokens."""
        entries = _V4_BLOCK_TOKENS // self.compressed_tokens
        entry_bytes = _v4_entry_bytes(self.head_dim, self.rope_dim, dtype)
        block_bytes = _v4_page_bytes(entries * entry_bytes, dtype)
        if self.index_dim is not None:
            index_bytes = dtype.bytes_of(self.index_dim)
            if dtype is KvDtype.FP8:
                index_bytes += _V4_INDEX_SCALE_BYTES
            block_bytes += _v4_page_bytes(entries * index_bytes, dtype)
        return block_bytes

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - the same on every rank
        """Return the bytes a token takes in all layers of the group, rounded up, on any rank."""
        return -(-self.layers * self._block_bytes(dtype) // _V4_BLOCK_TOKENS)

    def formula(self, dtype: KvDtype, ranks: int) -> str:  # noqa: ARG002 - the same on every rank
        """Return `token_bytes` as a product to read."""
        return (
            f"{self.layers} layers x {self._block_bytes(dtype):,} B / {_V4_BLOCK_TOKENS} tokens"
            f" (one entry for {self.compressed_tokens} tokens)"
        )


class LatentWindow(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="latent_window",
):
    """DeepSeek V4's uncompressed entries of the last `window_tokens` tokens, in every layer."""

    layers: int
    window_tokens: int
    head_dim: int
    rope_dim: int

    _PAGE_TOKENS: ClassVar[int] = 64

    def token_bytes(self, dtype: KvDtype, ranks: int) -> int:  # noqa: ARG002 - the same on every rank
        """Return the bytes a token takes in all layers of the group, rounded up, on any rank."""
        entry_bytes = _v4_entry_bytes(self.head_dim, self.rope_dim, dtype)
        page_bytes = _v4_page_bytes(self._PAGE_TOKENS * entry_bytes, dtype)
        return -(-self.layers * page_bytes // self._PAGE_TOKENS)

    def formula(self, dtype: KvDtype, ranks: int) -> str:
        """Return `token_bytes` as a product to read."""
        return f"{self.layers} layers x {self.token_bytes(dtype, ranks) / self.layers:g} B"


class CompressorState(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="compressor_state",
):
    """The state of DeepSeek V4's compressors: fp32 values and scores of the last tokens, from which
    the next entry is made. It has a fixed size, and is the same on every rank.
    """

    layers: int
    state_tokens: int
    state_dim: int
    """fp32 numbers a token."""
    page_tokens: int
    """Tokens in a page of vLLM's."""

    def _layer_bytes(self, dtype: KvDtype) -> int:
        page_bytes = self.page_tokens * self.state_dim * KvDtype.FP32.element_bytes
        return self.state_tokens // self.page_tokens * _v4_page_bytes(page_bytes, dtype)

    def state_bytes(self, dtype: KvDtype) -> int:
        """Return the bytes of one state in all layers of the group, on any rank.

        The state itself is fp32; pages of an fp8 cache are padded.
        """
        return self.layers * self._layer_bytes(dtype)

    def formula(self, dtype: KvDtype) -> str:
        """Return `state_bytes` as a product to read."""
        return f"{self.layers} layers x {self._layer_bytes(dtype):,} B ({self.state_tokens} tokens)"


class Recurrent(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    tag_field="kind",
    tag="recurrent",
):
    """A state of fixed size instead of tokens.

    Mamba 2, gated delta net (GDN), Kimi delta attention (KDA).

    A layer keeps a matrix for each head and the last inputs of a short convolution: some go with
    the heads, some with the key groups. Shapes as in vLLM's `mamba_utils`.
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
            f"{self.layers} layers x ({heads} heads x {self.head_elements:,} x"
            f" {self.state_dtype.element_bytes} B + convolution {conv:,} x"
            f" {self.conv_dtype.element_bytes} B)"
        )


Layers = (
    Full
    | Sliding
    | Chunked
    | Latent
    | Indexer
    | IndexKeys
    | Compressed
    | LatentWindow
    | CompressorState
    | Recurrent
)
GROWING_KINDS = (Full, Latent, Indexer, IndexKeys, Compressed)
"""Kinds of layers that need every token."""
_SLIDING_KINDS = (Sliding, LatentWindow)
_BESIDE_ATTENTION = (Indexer, IndexKeys, LatentWindow, CompressorState)
"""Kinds that belong to attention layers of another kind, and are no layers of their own."""

# With these, bytes of any prefix on all ranks still fit 64 bits.
_MOST = 2**24
_MOST_BYTES_PER_TOKEN = 2**30
_MOST_STATE_BYTES = 2**40


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The shape of one model's KV cache."""

    source: str
    groups: tuple[Layers, ...]
    max_context_tokens: int
    kv_dtype: KvDtype = KvDtype.BF16
    notes: tuple[str, ...] = ()
    """What is assumed or left out."""
    parameters: int = 0
    """All of them, as the model's card says; 0 if that is not known."""
    active_parameters: int = 0
    """Of a mixture of experts: those that one token uses; 0 is all."""
    weight_bytes: float = 2.0
    """Bytes a parameter takes in the GPU's memory, as released."""
    computed_as: tuple[Layers, ...] = ()
    """The layers by which it computes, where `groups` have their bytes alone, as an engine logs
    them.
    """

    @property
    def layers(self) -> int:
        """Number of layers with a cache or a state; an indexer belongs to its attention layer."""
        windows = [g.layers for g in self.groups if isinstance(g, LatentWindow)]
        if windows:
            # Every layer of DeepSeek V4 has a window, whatever else it keeps.
            return sum(windows)
        return sum(g.layers for g in self.groups if not isinstance(g, _BESIDE_ATTENTION))

    def entry_notes(self, chunk_tokens: int, ranks: int) -> list[str]:
        """Return notes on turn entries (`chunk_tokens` 0), or on chunks with a recurrent state each.

        vLLM gives both kinds of layers pages of one size: a block has enough tokens, a multiple of
        16, to take as many bytes in an attention layer as a state in a recurrent one.
        """
        if not chunk_tokens:
            note = (
                "turn entries charge every attention layer for every token, and hold no recurrent"
                " states"
            )
            return [note] * ({piece.kind for piece in pieces(self)} != {PieceKind.GROWING})
        recurrent = sum(g.layers for g in self.groups if isinstance(g, Recurrent))
        size, token_bytes = (
            state_bytes(self, ranks),
            bytes_per_token_per_rank(self, ranks) * max(1, recurrent),
        )
        min_chunk_tokens = -(-size * (self.layers - recurrent) // (token_bytes * 16)) * 16
        note = (
            f"each chunk of {chunk_tokens} tokens is stored with a recurrent state of"
            f" {format_bytes(size)}; vLLM makes the blocks of such a model as long as its state is"
            f" large: {min_chunk_tokens:,} tokens (--set chunk_tokens={min_chunk_tokens}, or the next multiple of FILE's"
            " blocks)"
        )
        return [note] * (chunk_tokens < min_chunk_tokens and recurrent > 0)


class PieceKind(StrEnum):
    """The kind of a piece of a chunk's cache."""

    GROWING = "growing"
    """Layers that need every token."""
    SLIDING = "sliding"
    CHUNKED = "chunked"
    STATE = "state"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one rank's cache that is stored as separate objects, and read by its own rule."""

    kind: PieceKind
    bytes_per_token: int
    state_bytes: int
    """Bytes of a recurrent state, for any number of tokens; else 0."""
    window_tokens: int | None
    copies: int
    """The number of ranks that store an object of their own."""

    def size_bytes(self, tokens: int) -> int:
        """Return the bytes of this piece of `tokens` tokens on one rank."""
        return tokens * self.bytes_per_token + self.state_bytes

    def needed_chunks(self, chunks: int, chunk_tokens: int) -> int:
        """Return the number of last chunks of a prefix that must be read to resume after it."""
        if self.kind is PieceKind.GROWING:
            return chunks
        if self.window_tokens is None:
            return min(1, chunks)
        if self.kind is PieceKind.SLIDING:
            return min(chunks, -(-self.window_tokens // chunk_tokens))
        tokens = chunks * chunk_tokens
        return chunks - (tokens - tokens % self.window_tokens) // chunk_tokens


def check(model: ModelShape, where: str) -> None:
    """Raise ConfigError, naming `where`, for invalid sizes or layouts of `model`."""
    for complaint in _complaints(model):
        raise ConfigError(f"{where}: {complaint}")


_MAY_BE_ZERO = ("rope_dim", "head_elements", "conv_head_elements", "conv_group_elements")


def _complaints(model: ModelShape) -> Iterator[str]:
    groups = [g for g in model.groups if not isinstance(g, Recurrent | CompressorState)]
    if not groups:
        yield "no layer has a cache by token; a recurrent-only model has no chunks"
    for group in model.groups:
        for field in group.__struct_fields__:
            value = getattr(group, field)
            minimum = 0 if field in _MAY_BE_ZERO else 1
            if isinstance(value, int) and not minimum <= value <= _MOST:
                yield f"{field}(={value}) must be >= {minimum}, and at most {_MOST}"
    if not 0 < model.max_context_tokens <= 2**31:
        yield f"max_context_tokens(={model.max_context_tokens}) must be > 0"
    if len({isinstance(g, Latent | Indexer) for g in groups if not isinstance(g, IndexKeys)}) > 1:
        yield "latent attention and attention with heads in one model are not supported"
    yield from _dtype_complaints(model.kv_dtype, groups)
    if (size := bytes_per_token(model)) > _MOST_BYTES_PER_TOKEN:
        yield f"{size} bytes a token; at most {_MOST_BYTES_PER_TOKEN}"
    if (state := state_bytes(model)) > _MOST_STATE_BYTES:
        yield f"{state} bytes a state; at most {_MOST_STATE_BYTES}"


def _dtype_complaints(dtype: KvDtype, groups: Sequence[Layers]) -> Iterator[str]:
    """Yield the reasons why `groups` cannot be stored as `dtype`."""
    match dtype:
        case KvDtype.FP8_DS_MLA:
            is_packed = all(
                isinstance(g, Indexer)
                or (isinstance(g, Latent) and (g.latent_dim, g.rope_dim) == _DS_MLA_SHAPE)
                for g in groups
            )
            if not is_packed:
                yield "fp8_ds_mla packs multi-head latents of 512 + 64 only; use fp8"
        case KvDtype.NVFP4:
            if not all(isinstance(g, _Heads | IndexKeys) for g in groups):
                yield "nvfp4 is for keys and values with heads only"
            widths = [w for g in groups if isinstance(g, _Heads) for w in (g.head_dim, g.value_dim)]
            if any(width is not None and width % NVFP4_SCALE_VALUES for width in widths):
                yield f"nvfp4 needs heads whose width is a multiple of {NVFP4_SCALE_VALUES}"
        case KvDtype.INT8 if any(isinstance(g, Compressed) for g in groups):
            yield "compressed attention is not stored as int8; use fp8"


def bytes_per_token(model: ModelShape) -> int:
    """Return the KV bytes one token occupies across all layers, before any tensor-parallel split."""
    return bytes_per_token_per_rank(model, 1)


def growing_bytes_per_token(model: ModelShape) -> int:
    """Return the KV bytes one token occupies in layers that need every token, before any split."""
    return sum(p.bytes_per_token for p in pieces(model) if p.kind is PieceKind.GROWING)


def windowed_bytes_per_token(model: ModelShape) -> int:
    """Return the KV bytes one token occupies in sliding-window and chunked layers, before any
    split.
    """
    return bytes_per_token(model) - growing_bytes_per_token(model)


def fixed_bytes(model: ModelShape) -> int:
    """Return the KV bytes that a long request takes whatever its length, before any split.

    They are windows filled with tokens, and recurrent states. A request of n tokens takes n times
    `growing_bytes_per_token`, and this once its length is beyond every window.
    """
    windows = [p for p in pieces(model) if p.window_tokens is not None]
    return state_bytes(model) + sum(
        p.window_tokens * p.bytes_per_token for p in windows if p.window_tokens
    )


def tokens_that_fit(model: ModelShape, capacity_bytes: int) -> int | None:
    """Return the longest request, in tokens, that fits `capacity_bytes` with its KV cache.

    It holds each window once, and one recurrent state. Null if no length is too long.
    """

    def request_bytes(tokens: int) -> int:
        windows = [p for p in pieces(model) if p.window_tokens is not None]
        windowed = sum(min(tokens, p.window_tokens or tokens) * p.bytes_per_token for p in windows)
        return tokens * growing_bytes_per_token(model) + windowed + state_bytes(model)

    longest = model.max_context_tokens
    if growing_bytes_per_token(model):
        longest = capacity_bytes // growing_bytes_per_token(model)
    elif request_bytes(longest) <= capacity_bytes:
        return None
    shortest = 0
    # The size of a request never falls with its length.
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if request_bytes(middle) <= capacity_bytes:
            shortest = middle
        else:
            longest = middle - 1
    return shortest


def bytes_per_token_per_rank(model: ModelShape, ranks: int) -> int:
    """Return the KV bytes one token occupies on each of `ranks` tensor-parallel ranks, every layer
    charged.

    Key-value heads are split; with more ranks than heads each rank holds one whole head, so heads
    are replicated. A latent (MLA) is the same on every rank and is never divided.
    """
    return sum(p.bytes_per_token for p in pieces(model, ranks))


def stored_ranks(model: ModelShape, ranks: int) -> int:
    """Return the number of ranks that store their own objects.

    It is one for MLA and compressed attention: entries are the same on all ranks.
    """
    return 1 if any(isinstance(g, Latent | Compressed) for g in model.groups) else ranks


def replication(model: ModelShape, ranks: int) -> float:
    """Return the bytes stored by `ranks` ranks, relative to one rank; 1.0 without replicated heads."""
    return (
        bytes_per_token_per_rank(model, ranks) * stored_ranks(model, ranks) / bytes_per_token(model)
    )


def state_bytes(model: ModelShape, ranks: int = 1) -> int:
    """Return the bytes of one recurrent or compressor's state on each of `ranks` ranks."""
    recurrent = sum(g.state_bytes(ranks) for g in model.groups if isinstance(g, Recurrent))
    return recurrent + sum(
        g.state_bytes(model.kv_dtype) for g in model.groups if isinstance(g, CompressorState)
    )


def _kv_heads(group: Layers) -> int:
    return group.kv_heads if isinstance(group, _Heads) else 1


def _divides_heads(heads: int, ranks: int) -> bool:
    return heads % ranks == 0 or ranks % heads == 0


def divides_over(model: ModelShape, ranks: int) -> bool:
    """Tell whether the key-value heads of `model` can be split over `ranks`, or be replicated."""
    return all(_divides_heads(_kv_heads(group), ranks) for group in model.groups)


def _check_heads(model: ModelShape, ranks: int) -> None:
    """Raise ConfigError if key-value heads can neither be split over `ranks` nor be replicated.

    Engines refuse such a number of ranks, too: vLLM in `get_num_kv_heads`, SGLang likewise.
    """
    for group in model.groups:
        heads = _kv_heads(group)
        if not _divides_heads(heads, ranks):
            divisors = [str(count) for count in range(1, heads + 1) if heads % count == 0]
            raise ConfigError(
                f"{named('tensor_parallel', ranks)}: {heads} key-value heads do not divide over"
                f" {ranks} ranks; take {', '.join(divisors)} or a multiple of {heads}"
            )


def pieces(model: ModelShape, ranks: int = 1) -> tuple[Piece, ...]:
    """Return the pieces in which a chunk of tokens is stored, by the rules of their reads."""
    if ranks < 1:
        raise ValueError(f"ranks(={ranks}) must be > 0")
    _check_heads(model, ranks)
    dtype, copies = model.kv_dtype, stored_ranks(model, ranks)
    piece_list = []
    growing = sum(g.token_bytes(dtype, ranks) for g in model.groups if isinstance(g, GROWING_KINDS))
    if growing:
        piece_list.append(Piece(PieceKind.GROWING, growing, 0, None, copies))
    for g in model.groups:
        if isinstance(g, (*_SLIDING_KINDS, Chunked)):
            kind = PieceKind.CHUNKED if isinstance(g, Chunked) else PieceKind.SLIDING
            piece_list.append(Piece(kind, g.token_bytes(dtype, ranks), 0, g.window_tokens, copies))
    if state := state_bytes(model, ranks):
        # A recurrent state is split over the ranks, also beside MLA; a compressor's is not.
        is_split = any(isinstance(g, Recurrent) for g in model.groups)
        piece_list.append(Piece(PieceKind.STATE, 0, state, None, ranks if is_split else copies))
    return tuple(piece_list)


def layers_by_kind(model: ModelShape) -> list[int]:
    """Return how many layers each of the `pieces` has."""
    growing = sum(g.layers for g in model.groups if isinstance(g, GROWING_KINDS))
    windows = [g.layers for g in model.groups if isinstance(g, (*_SLIDING_KINDS, Chunked))]
    states = sum(g.layers for g in model.groups if isinstance(g, Recurrent | CompressorState))
    return [*([growing] if growing else []), *windows, *([states] if states else [])]


def pad(size_bytes: int, page_bytes: int) -> int:
    """Return `size_bytes` rounded up to whole pages."""
    return -(-size_bytes // page_bytes) * page_bytes


def chunk_bytes(model: ModelShape, chunk_tokens: int, ranks: int = 1, page_bytes: int = 1) -> int:
    """Return the bytes of a chunk on disk for all ranks, with each piece padded to whole pages."""
    return sum(p.copies * pad(p.size_bytes(chunk_tokens), page_bytes) for p in pieces(model, ranks))


def stored_bytes(
    model: ModelShape, tokens: int, *, chunk_tokens: int, ranks: int = 1, page_bytes: int = 1
) -> int:
    """Return the bytes of a prefix of `tokens` tokens on disk, for all ranks.

    Only whole chunks are stored, each with its own state, and each piece padded to whole pages.
    """
    return tokens // chunk_tokens * chunk_bytes(model, chunk_tokens, ranks, page_bytes)


def read_bytes(
    model: ModelShape, tokens: int, *, chunk_tokens: int, ranks: int = 1, page_bytes: int = 1
) -> int:
    """Return the bytes read to resume after a prefix of `tokens` tokens, for all ranks.

    Layers that need every token are read whole. Sliding-window layers are read for the last ceil(W
    / C) chunks of C tokens, chunked layers back to the start of their span (nothing if it just
    ended), states once. Latents are read once and broadcast. A store that keeps only these bytes
    also stores as many.
    """
    return sum(
        p.copies
        * p.needed_chunks(tokens // chunk_tokens, chunk_tokens)
        * pad(p.size_bytes(chunk_tokens), page_bytes)
        for p in pieces(model, ranks)
    )
