"""Configurations of late 2025 and 2026: bytes by a few lines of arithmetic for each kind of cache.

Each configuration is what its config.json says of the cache, and beside it stands what it takes by
the functions below, which know nothing of config.json. `RELEASED` are files as the package
aiconfigurator-core 0.12.0 holds them, `CLASSES` the defaults of classes of transformers 5.24.0,
which stand for the checkpoint that the class names; `REFUSED` is what cannot be known. The table of
docs/validation.md is made of them:

    PYTHONPATH=tests/support .venv/bin/python tests/kvtrace/llm/test_field_of_2026.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import growing_bytes_per_token, state_bytes, windowed_bytes_per_token

BF16, FP8, FP32 = 2, 1, 4


def heads(layers: int, kv_heads: int, key: int, value: int = 0, size: int = BF16) -> int:
    """Bytes of a token: a key and a value for each layer and head."""
    return layers * kv_heads * (key + (value or key)) * size


def latent(layers: int, rank: int, rope: int, size: int = BF16) -> int:
    """Bytes of a token: a compressed vector and a rotary key for each layer."""
    return layers * (rank + rope) * size


def fp8_index(layers: int, pooled: int = 1) -> float:
    """Bytes of a token: a key of 128 fp8 and a scale of fp32, for so many tokens together."""
    return layers * (128 + FP32) / pooled


def delta_net(layers: int, values: int, keys: int, width: tuple[int, int], size: int = FP32) -> int:
    """Bytes of a request: of each value head a matrix, and three steps of the convolution."""
    value, key = width
    return layers * (values * value * key * size + 3 * (values * value + 2 * keys * key) * BF16)


def mamba(layers: int, count: int, width: int, state: int) -> int:
    """Bytes of a request: fp32 states, and three steps of the convolution with its 8 groups."""
    return layers * (count * width * state * FP32 + 3 * (count * width + 2 * 8 * state) * BF16)


def compressors(by_4: int, by_128: int) -> int:
    """Bytes of a request: fp32 values and scores, of twice two entries where entries overlap."""
    return by_4 * 8 * 2 * 2 * (512 + 128) * FP32 + by_128 * 128 * 2 * 512 * FP32


@dataclass(frozen=True)
class Case:
    """A configuration, and what it takes by hand."""

    name: str
    config: dict[str, object]
    growing: float
    windowed: int = 0
    state: int = 0
    sidecar: dict[str, object] = field(default_factory=dict)
    """hf_quant_config.json beside it."""


def kinds(letters: str) -> list[str]:
    """Return `layer_types` of one letter each."""
    names = {"f": "full_attention", "s": "sliding_attention", "l": "linear_attention", "c": "conv"}
    names |= {"d": "deepseek_sparse_attention", "i": "indexed_attention"}
    names |= {"m": "mamba", "a": "attention", "e": "moe"}
    return [names[letter] for letter in letters]


def indexers(letters: str) -> list[str]:
    """Return `indexer_types` of one letter each."""
    return [{"f": "full", "s": "shared"}[letter] for letter in letters]


def of_heads(
    kind: str, layers: int | None, query_heads: int, kv_heads: int, head_dim: int, **more: object
) -> dict[str, object]:
    """Return a configuration of layers with heads."""
    return {
        "model_type": kind, "num_hidden_layers": layers, "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_size": query_heads * head_dim,
        "torch_dtype": "bfloat16", "max_position_embeddings": 262144,
    } | more  # fmt: skip


def of_latents(
    kind: str, layers: int, query_heads: int, rank: int, rope: int, **more: object
) -> dict[str, object]:
    """Return a configuration of layers with latents."""
    return {
        "model_type": kind, "num_hidden_layers": layers, "num_attention_heads": query_heads,
        "num_key_value_heads": query_heads, "kv_lora_rank": rank, "qk_rope_head_dim": rope, "hidden_size": 7168,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "torch_dtype": "bfloat16", "max_position_embeddings": 262144,
    } | more  # fmt: skip


def seeing(kind: str, text: dict[str, object]) -> dict[str, object]:
    """Return the configuration of a model that also sees, of which `text` is the part that reads."""
    return {"model_type": kind, "text_config": text, "vision_config": {"num_hidden_layers": 27}}


def in_fp8(config: dict[str, object]) -> dict[str, object]:
    """Return `config` with a cache of fp8, as ModelOpt writes it into config.json."""
    scheme = {"dynamic": False, "num_bits": 8, "type": "float"}
    return config | {"quantization_config": {"quant_algo": "NVFP4", "kv_cache_scheme": scheme}}


SIDECAR = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
INDEX = {"index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048}
M2 = of_heads("minimax_m2", 62, 48, 8, 128)
M3_SPARSE = [0] * 3 + [1] * 57
M3 = of_heads("minimax_m3", 60, 64, 4, 128, num_nextn_predict_layers=1, sparse_attention_config={
    "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4, "sparse_topk_blocks": 16,
    "sparse_attention_freq": M3_SPARSE, "sparse_disable_index_value": M3_SPARSE,
})  # fmt: skip
GATED = {
    "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
}  # fmt: skip


def qwen35(
    kind: str, layers: int, query_heads: int, kv_heads: int, values: int
) -> dict[str, object]:
    """Return a configuration of Qwen 3.5: every fourth layer is full, the others gated delta nets."""
    types = kinds("lllf" * (layers // 4))
    text = of_heads(f"{kind}_text", layers, query_heads, kv_heads, 256, layer_types=types, **GATED)
    return seeing(kind, text | {"linear_num_value_heads": values})


MIMO = of_heads(
    "mimo_v2_flash", 48, 64, 4, 192, v_head_dim=128, sliding_window=128, sliding_window_size=128,
    attention_chunk_size=128, swa_num_attention_heads=64, swa_num_key_value_heads=8, swa_head_dim=192,
    swa_v_head_dim=128, hybrid_layer_pattern=[0, 1, 1, 1, 1, *[0, 1, 1, 1, 1, 1] * 7, 0],
)  # fmt: skip
V32 = of_latents("deepseek_v32", 61, 128, 512, 64, num_nextn_predict_layers=1, **INDEX)
V4 = of_heads("deepseek_v4", 43, 64, 1, 512, qk_rope_head_dim=64, sliding_window=128, **INDEX)
V4_FLASH = V4 | {"compress_ratios": [0, 0, *[4, 128] * 20, 4, 0]}
V4_PRO = V4 | {"num_hidden_layers": 61, "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0]}
GEMMA = {"attention_k_eq_v": True, "global_head_dim": 512, "sliding_window": 1024}
GEMMA_26B = seeing("gemma4", of_heads(
    "gemma4_text", 30, 16, 8, 256, layer_types=kinds("sssssf" * 5), num_global_key_value_heads=2, **GEMMA,
))  # fmt: skip
GEMMA_31B = seeing("gemma4", of_heads(
    "gemma4_text", 60, 32, 16, 256, layer_types=kinds("sssssf" * 10), num_global_key_value_heads=4, **GEMMA,
))  # fmt: skip
K2 = seeing("kimi_k25", of_latents("kimi_k2", 61, 64, 512, 64))
K2_OF_DEEPSEEK = seeing("kimi_k25", of_latents("deepseek_v3", 61, 64, 512, 64))
K3_FULL = [*range(4, 93, 4), 93]
K3 = seeing("kimi_k3", of_latents("kimi_linear", 93, 96, 512, 64, mla_use_nope=True, linear_attn_config={
    "full_attn_layers": K3_FULL, "kda_layers": [n for n in range(1, 94) if n not in K3_FULL],
    "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4,
}))  # fmt: skip
GLM_5 = of_latents("glm_moe_dsa", 78, 64, 512, 64, **INDEX, num_nextn_predict_layers=1)
GLM_51_NVFP4 = in_fp8(GLM_5 | {"indexer_types": indexers("f" * 78)})
GLM_52 = GLM_5 | {
    "indexer_types": indexers("fff" + "sssf" * 18 + "sss"), "index_share_for_mtp_iteration": True,
    "index_topk_freq": 4, "index_skip_topk_offset": 3,
}  # fmt: skip
GLM_53_NVFP4 = in_fp8(GLM_52 | {"layer_types": kinds("d" * 78)})
MAMBA = {
    "conv_kernel": 4, "expand": 2, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "mamba_ssm_cache_dtype": "float32",
}  # fmt: skip
NANO_PATTERN = "MEMEM*E" * 5 + "MEMEMEM*EMEMEMEME"
NANO = of_heads(
    "nemotron_h", 52, 32, 2, 128, hybrid_override_pattern=NANO_PATTERN, mamba_num_heads=64, **MAMBA
)
SUPER = of_heads(
    "nemotron_h", 88, 32, 2, 128, mamba_num_heads=128, mtp_hybrid_override_pattern="*E", **MAMBA,
    hybrid_override_pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
)  # fmt: skip
LIGHTNING = of_heads(
    "nemotron_h", 52, 32, 2, 128, mamba_num_heads=64, mtp_layers_block_type=["attention", "moe"],
    layers_block_type=kinds(NANO_PATTERN.translate(str.maketrans("M*E", "mae"))), **MAMBA,
)  # fmt: skip
ULTRA_KINDS = "memememaemememaememememaememememaemememaememememaememememaemememaememememaememememaemememaememememaememememe"
ULTRA = of_heads(
    "nemotron_h", None, 64, 2, 128, mamba_num_heads=256, layers_block_type=kinds(ULTRA_KINDS), **MAMBA,
)  # fmt: skip
STEP = of_heads("step3p7", 45, 64, 8, 128, sliding_window=512, layer_types=kinds("fsss" * 11 + "f"))
NANO_STATE = mamba(23, 64, 64, 128)
SUPER_STATE = mamba(40, 128, 64, 128)
ULTRA_STATE = mamba(48, 256, 64, 128)

RELEASED = [
    Case("MiniMax-M2.5", M2, heads(62, 8, 128)),
    Case("MiniMax-M2.7", M2 | {"attn_type_list": [1] * 62}, heads(62, 8, 128)),
    Case("MiniMax-M2.5-NVFP4", in_fp8(M2), heads(62, 8, 128, size=FP8)),
    Case("MiniMax-M2.7-NVFP4", in_fp8(M2 | {"attn_type_list": [1] * 62}), heads(62, 8, 128, size=FP8)),
    # 57 layers keep an index key beside.
    Case("MiniMax-M3", M3, heads(60, 4, 128) + 57 * 128 * BF16),
    Case("MiniMax-M3-NVFP4", seeing("minimax_m3_vl", M3 | {"model_type": None}), heads(60, 4, 128) + 57 * 128 * BF16),
    Case("Qwen3-VL-2B", seeing("qwen3_vl", of_heads("qwen3_vl_text", 28, 16, 8, 128)), heads(28, 8, 128)),
    Case("Qwen3-VL-4B", seeing("qwen3_vl", of_heads("qwen3_vl_text", 36, 32, 8, 128)), heads(36, 8, 128)),
    Case("Qwen3-VL-32B", seeing("qwen3_vl", of_heads("qwen3_vl_text", 64, 64, 8, 128)), heads(64, 8, 128)),
    Case("Qwen3-VL-30B-A3B", seeing("qwen3_vl_moe", of_heads("qwen3_vl_moe_text", 48, 32, 4, 128)), heads(48, 4, 128)),
    Case("Qwen3-VL-235B-A22B", seeing("qwen3_vl_moe", of_heads("qwen3_vl_moe_text", 94, 64, 4, 128)), heads(94, 4, 128)),
    Case("Qwen3.5-27B", qwen35("qwen3_5", 64, 24, 4, 48), heads(16, 4, 256), 0, delta_net(48, 48, 16, (128, 128))),
    Case("Qwen3.5-35B-A3B", qwen35("qwen3_5_moe", 40, 16, 2, 32), heads(10, 2, 256), 0, delta_net(30, 32, 16, (128, 128))),
    Case("Qwen3.5-122B-A10B", qwen35("qwen3_5_moe", 48, 32, 2, 64), heads(12, 2, 256), 0, delta_net(36, 64, 16, (128, 128))),
    Case("Qwen3.5-397B-A17B", qwen35("qwen3_5_moe", 60, 32, 2, 64), heads(15, 2, 256), 0, delta_net(45, 64, 16, (128, 128))),
    Case(
        "Qwen3.5-122B-A10B-NVFP4", in_fp8(qwen35("qwen3_5_moe", 48, 32, 2, 64)),
        heads(12, 2, 256, size=FP8), 0, delta_net(36, 64, 16, (128, 128)),
    ),
    Case(
        "Qwen3.5-397B-A17B-NVFP4", in_fp8(qwen35("qwen3_5_moe", 60, 32, 2, 64)),
        heads(15, 2, 256, size=FP8), 0, delta_net(45, 64, 16, (128, 128)),
    ),
    Case(
        "Qwen3.6-27B-NVFP4", in_fp8(qwen35("qwen3_5", 64, 24, 4, 48)),
        heads(16, 4, 256, size=FP8), 0, delta_net(48, 48, 16, (128, 128)),
    ),
    # Its config.json says nothing of the cache, and the file beside it fp8: a note.
    Case(
        "Qwen3.6-35B-A3B-NVFP4",
        qwen35("qwen3_5_moe", 40, 16, 2, 32) | {"quantization_config": {"quant_algo": "MIXED_PRECISION"}},
        heads(10, 2, 256), 0, delta_net(30, 32, 16, (128, 128)), SIDECAR,
    ),
    Case("MiMo-V2-Flash", MIMO, heads(9, 4, 192, 128), heads(39, 8, 192, 128)),
    Case("DeepSeek-V3.2", V32, latent(61, 512, 64) + fp8_index(61)),
    Case("DeepSeek-V3.2-NVFP4", V32, latent(61, 512, 64, FP8) + fp8_index(61), sidecar=SIDECAR),
    # An entry of 512 and an index key of 128 for 4 tokens, an entry of 512 for 128.
    Case("DeepSeek-V4-Flash", V4_FLASH, 21 * 640 * BF16 / 4 + 20 * 512 * BF16 / 128, 43 * 512 * BF16, compressors(21, 20)),
    Case("DeepSeek-V4-Pro", V4_PRO, 30 * 640 * BF16 / 4 + 31 * 512 * BF16 / 128, 61 * 512 * BF16, compressors(30, 31)),
    Case("gemma-4-26B-A4B", GEMMA_26B, heads(5, 2, 512), heads(25, 8, 256)),
    Case("Gemma-4-26B-A4B-NVFP4", in_fp8(GEMMA_26B), heads(5, 2, 512, size=FP8), heads(25, 8, 256, size=FP8)),
    Case("Gemma-4-31B-IT-NVFP4", in_fp8(GEMMA_31B), heads(10, 4, 512, size=FP8), heads(50, 16, 256, size=FP8)),
    Case("Kimi-K2.5", K2, latent(61, 512, 64)),
    Case("Kimi-K2.5-NVFP4", in_fp8(K2_OF_DEEPSEEK), latent(61, 512, 64, FP8)),
    Case("Kimi-K2.6-NVFP4", in_fp8(K2_OF_DEEPSEEK), latent(61, 512, 64, FP8)),
    Case("Kimi-K2.7-Code-NVFP4", in_fp8(K2_OF_DEEPSEEK), latent(61, 512, 64, FP8)),
    Case("Kimi-K3", K3, latent(24, 512, 64), 0, delta_net(69, 96, 96, (128, 128))),
    Case("GLM-5", GLM_5, latent(78, 512, 64) + fp8_index(78)),
    Case("GLM-5-NVFP4", GLM_5, latent(78, 512, 64, FP8) + fp8_index(78), sidecar=SIDECAR),
    Case("GLM-5.1", GLM_5, latent(78, 512, 64) + fp8_index(78)),
    Case("GLM-5.1-NVFP4", GLM_51_NVFP4, latent(78, 512, 64, FP8) + fp8_index(78)),
    Case("GLM-5.2", GLM_52, latent(78, 512, 64) + fp8_index(21)),
    Case("GLM-5.2-NVFP4", GLM_53_NVFP4, latent(78, 512, 64, FP8) + fp8_index(21)),
    Case("GLM-5.3", GLM_52, latent(78, 512, 64) + fp8_index(21)),
    Case("GLM-5.3-NVFP4", GLM_53_NVFP4, latent(78, 512, 64, FP8) + fp8_index(21)),
    Case("Nemotron-3-Nano-30B-A3B-BF16", NANO, heads(6, 2, 128), 0, NANO_STATE),
    Case("Nemotron-3-Nano-30B-A3B-NVFP4", NANO, heads(6, 2, 128, size=FP8), 0, NANO_STATE, SIDECAR),
    Case("Nemotron-3-Super-120B-A12B-FP8", SUPER, heads(8, 2, 128, size=FP8), 0, SUPER_STATE, SIDECAR),
    Case("Nemotron-3-Super-120B-A12B-NVFP4", SUPER, heads(8, 2, 128, size=FP8), 0, SUPER_STATE, SIDECAR),
    Case("Nemotron-3.5-Lightning-30B-A3B-NVFP4", LIGHTNING, heads(6, 2, 128, size=FP8), 0, NANO_STATE, SIDECAR),
    Case("Nemotron-3-Ultra-550B-A55B-BF16", ULTRA, heads(12, 2, 128), 0, ULTRA_STATE),
    Case("Nemotron-3-Ultra-550B-A55B-NVFP4", ULTRA, heads(12, 2, 128, size=FP8), 0, ULTRA_STATE, SIDECAR),
    Case("Step-3.7-Flash", STEP, heads(12, 8, 128), heads(33, 8, 128)),
]  # fmt: skip

GATED_BF16 = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
}  # fmt: skip
DELTA = {"linear_head_dim": 128, "linear_conv_kernel_dim": 4}

CLASSES = [
    Case(
        "afmoe (arcee-ai/Trinity-Mini)",
        of_heads("afmoe", 32, 16, 16, 128, sliding_window=1024, layer_types=kinds("sssf" * 8), global_attn_every_n_layers=4),
        heads(8, 16, 128), heads(24, 16, 128),
    ),
    Case("axk1 (skt/A.X-K1)", of_latents("axk1", 61, 64, 512, 64), latent(61, 512, 64)),
    Case(
        "axk2 (skt/A.X-K2)", of_latents("axk2", 48, 32, 128, 32, **INDEX, layer_types=kinds("i" * 48)),
        latent(48, 128, 32) + fp8_index(48),
    ),
    Case(
        "bailing_hybrid (inclusionAI/Ling-3.0-Flash)",
        of_latents("bailing_hybrid", 42, 32, 512, 64, layer_types=kinds("lllllf" * 7), layer_group_size=6,
                   linear_num_heads=32, kda_safe_gate=True, kda_lower_bound=-5.0, **DELTA),
        latent(7, 512, 64), 0, delta_net(35, 32, 32, (128, 128)),
    ),
    Case(
        "beam (reflection/Beam-1.0-501B-A23B)",
        of_heads("beam", 52, 48, 8, 128, sliding_window=512, layer_types=kinds("sssssf" * 8 + "sssf")),
        heads(9, 8, 128), heads(43, 8, 128),
    ),
    Case(
        "cohere2_moe (CohereLabs/command-a-plus-05-2026)",
        of_heads("cohere2_moe", 40, 64, 64, 128, sliding_window=4096, layer_types=kinds("sssf" * 10)),
        heads(10, 64, 128), heads(30, 64, 128),
    ),
    Case(
        "cwm (facebook/cwm)", of_heads("cwm", 64, 48, 8, 128, sliding_window=8192, layer_types=kinds("fsss" * 16)),
        heads(16, 8, 128), heads(48, 8, 128),
    ),
    # The class leaves the width of a head to hidden_size.
    Case(
        "exaone_moe (LGAI-EXAONE/K-EXAONE-236B-A23B)",
        of_heads("exaone_moe", 32, 32, 32, 128, sliding_window=4096, layer_types=kinds("sssf" * 8)) | {"head_dim": None},
        heads(8, 32, 128), heads(24, 32, 128),
    ),
    # Attention and Mamba side by side in each layer; states of bf16, as it says nothing.
    Case(
        "falcon_h1 (tiiuae/Falcon-H1)",
        of_heads("falcon_h1", 32, 32, 8, 128, mamba_n_heads=128, mamba_d_head=8, mamba_d_state=256, mamba_d_conv=4,
                 mamba_n_groups=1, mamba_d_ssm=1024),
        heads(32, 8, 128), 0, 32 * (128 * 8 * 256 + 3 * (1024 + 2 * 256)) * BF16,
    ),
    Case(
        "flint (RecursiveSI/flint)",
        of_heads("flint", 49, 32, 4, 128, sliding_window=513, layer_types=kinds("f" + "fsss" * 11 + "fssf")),
        heads(14, 4, 128), heads(35, 4, 128),
    ),
    # The last 15 of 35 layers share the cache of earlier ones: 4 full and 16 windowed layers keep one.
    Case(
        "gemma3n (google/gemma-3n-E4B)",
        seeing("gemma3n", of_heads("gemma3n_text", 35, 8, 2, 256, sliding_window=512, layer_types=kinds("ssssf" * 7),
                                   num_kv_shared_layers=15, activation_sparsity_pattern=[0.95] * 10 + [0.0] * 25)),
        heads(4, 2, 256), heads(16, 2, 256),
    ),
    # Its full layers are 512 wide: transformers lists them one by one.
    Case(
        "gemma4",
        seeing("gemma4", of_heads("gemma4_text", 30, 8, 4, 256, sliding_window=512, layer_types=kinds("sssssf" * 5),
                                  per_layer_config={f"{n:02}": {"head_dim": 512} for n in range(5, 30, 6)})),
        heads(5, 4, 512), heads(25, 4, 256),
    ),
    Case("glm4_moe_lite", of_latents("glm4_moe_lite", 47, 20, 512, 64), latent(47, 512, 64)),
    # No rotary part, and an index key for 16 tokens together: 11,354.75 B.
    Case(
        "glm5_next (zai-org/GLM-5.3-Flash)",
        seeing("glm5_next", of_latents("glm5_next_text", 45, 64, 512, 0, **INDEX, layer_types=kinds("llli" * 11 + "l"),
                                       indexer_types=indexers("f" * 45), index_kpool=16, linear_num_heads=64,
                                       linear_lower_bound=-5.0, **DELTA)),
        latent(11, 512, 0) + fp8_index(11, pooled=16), 0, delta_net(34, 64, 64, (128, 128)),
    ),
    Case(
        "granite_swa (ibm-granite/granite-swash-2b)",
        of_heads("granite_swa", 24, 20, 4, 128, sliding_window=128, layer_types=kinds("fsss" * 6)) | {"head_dim": None},
        heads(6, 4, 128), heads(18, 4, 128),
    ),
    Case("hy_v3 (tencent/Hy3-preview)", of_heads("hy_v3", 80, 64, 8, 128), heads(80, 8, 128)),
    Case(
        "hy_v4 (tencent/Hy4-preview)",
        of_latents("hy_v4", 34, 32, 512, 64, **INDEX, layer_types=kinds("i" * 34), indexer_types=indexers("ff" + "sssf" * 8)),
        latent(34, 512, 64) + fp8_index(10),
    ),
    Case(
        "hy_v4_vl (tencent/Hy4)",
        seeing("hy_v4_vl", of_latents("hy_v4_vl_text", 78, 64, 512, 64, **INDEX, layer_types=kinds("i" * 78),
                                      indexer_types=indexers("ff" + "sssf" * 19))),
        latent(78, 512, 64) + fp8_index(21),
    ),
    Case("iquestcoder (IQuestLab/IQuest-Coder-V1-40B)", of_heads("iquestcoder", 80, 40, 8, 128), heads(80, 8, 128)),
    Case("jais2 (inceptionai/Jais-2-8B-Chat)", of_heads("jais2", 32, 26, 26, 128), heads(32, 26, 128)),
    Case(
        "kimi_linear (moonshotai/Kimi-Linear-48B-A3B)",
        of_latents("kimi_linear", 27, 32, 512, 64, layer_types=kinds("llll" + "flll" * 5 + "fll"), linear_num_heads=32, **DELTA),
        latent(6, 512, 64), 0, delta_net(21, 32, 32, (128, 128)),
    ),
    Case(
        "kolibri1 (Aleph-Alpha/Kolibri-1)",
        of_heads("kolibri1", 50, 48, 4, 128, sliding_window=513, layer_types=kinds("ssssf" * 10)),
        heads(10, 4, 128), heads(40, 4, 128),
    ),
    Case("laguna (poolside/laguna-XS.2)", of_heads("laguna", 40, 48, 8, 128, sliding_window=512, layer_types=kinds("f" * 40)),
         heads(40, 8, 128)),
    # Windows, full layers and gated delta nets in one model; states of bf16, as it says nothing.
    Case(
        "lara_mini (translated/Lara-4-Mini-Base)",
        of_heads("lara_mini", 34, 16, 4, 128, sliding_window=512, layer_types=kinds("lslfs" * 6 + "lslf"),
                 **GATED_BF16 | {"linear_num_key_heads": 8, "linear_num_value_heads": 16}),
        heads(7, 4, 128), heads(13, 4, 128), delta_net(14, 16, 8, (128, 128), BF16),
    ),
    # Convolutions over 7 tokens, which keep 6 of 2,048 values.
    Case(
        "lfm3 (LiquidAI/LFM3-1.7B)",
        of_heads("lfm3", 24, 16, 4, 128, sliding_window=256, conv_L_cache=7, layer_types=kinds("ccf" + "cscf" * 5 + "c")),
        heads(6, 4, 128), heads(5, 4, 128), 13 * 6 * 2048 * BF16,
    ),
    # Two blocks of attention a layer.
    Case(
        "longcat_flash (meituan-longcat/LongCat-Flash-Chat)",
        of_latents("longcat_flash", None, 64, 512, 64, num_layers=28), latent(2 * 28, 512, 64),
    ),
    Case("mellum (JetBrains/Mellum2-12B-A2.5B-Base)",
         of_heads("mellum", 28, 32, 4, 128, sliding_window=1024, layer_types=kinds("f" * 28)), heads(28, 4, 128)),
    Case("ministral3 (mistralai/Ministral-3-8B-Base-2512)", of_heads("ministral3", 34, 32, 8, 128), heads(34, 8, 128)),
    Case("mistral4 (mistralai/Mistral-Small-4-119B-2603)", of_latents("mistral4", 36, 32, 256, 64), latent(36, 256, 64)),
    Case(
        "mistral_large4 (mistralai/Mistral-Large-4-1T-A52B)",
        seeing("mistral_large4", of_latents("mistral_large4_text", 72, 64, 512, 64, **INDEX, layer_types=kinds("i" * 72),
                                            indexer_types=indexers("f" * 72), kv_source_layers=list(range(72)))),
        latent(72, 512, 64) + fp8_index(72),
    ),
    Case(
        "muse_glimmer (meta-models/Muse-Glimmer-30B)",
        seeing("muse_glimmer", of_heads("muse_glimmer_text", 52, 32, 2, 128, sliding_window=2048, layer_types=kinds("sssf" * 13))),
        heads(13, 2, 128), heads(39, 2, 128),
    ),
    Case(
        "muse_spark (meta-models/Muse-Spark-Open-816B-A42B)",
        seeing("muse_spark", of_heads("muse_spark_text", 62, 128, 16, 64, sliding_window=2048,
                                      layer_types=kinds("sf" + "sssf" * 15))),
        heads(16, 16, 64), heads(46, 16, 64),
    ),
    Case(
        "olmo3 (allenai/Olmo-3-7B-Instruct)",
        of_heads("olmo3", 32, 32, 32, 128, sliding_window=4096, layer_types=kinds("sssf" * 8)) | {"head_dim": None},
        heads(8, 32, 128), heads(24, 32, 128),
    ),
    # Values twice as wide as keys.
    Case(
        "olmo_hybrid (allenai/Olmo-Hybrid-7B)",
        of_heads("olmo_hybrid", 32, 30, 30, 128, layer_types=kinds("lllf" * 8), linear_num_key_heads=30,
                 linear_num_value_heads=30, linear_key_head_dim=96, linear_value_head_dim=192, linear_conv_kernel_dim=4,
                 linear_a_log_max=16.0, linear_allow_neg_eigval=True) | {"head_dim": None},
        heads(8, 30, 128), 0, delta_net(24, 30, 30, (192, 96), BF16),
    ),
    Case(
        "qwen3_next (Qwen/Qwen3-Next-80B-A3B)",
        of_heads("qwen3_next", 48, 16, 2, 256, layer_types=kinds("lllf" * 12), **GATED_BF16, linear_num_value_heads=32),
        heads(12, 2, 256), 0, delta_net(36, 32, 16, (128, 128), BF16),
    ),
    # As its repository has it: heads by other names, and kinds of three further layers.
    Case(
        "step3p5 (stepfun-ai/Step-3.5-Flash)",
        of_heads("step3p5", 45, 64, 8, 128, sliding_window=512, layer_types=kinds("fsss" * 12), num_nextn_predict_layers=3,
                 num_attention_groups=8, attention_other_setting={"attention_type": "sliding_attention",
                 "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128}) | {"num_key_value_heads": None},
        heads(12, 8, 128), heads(33, 8, 128),
    ),
    Case("sarvam_mla (sarvamai/sarvam-105b)", of_latents("sarvam_mla", 32, 64, 512, 64), latent(32, 512, 64)),
    Case("sarvam_moe (sarvamai/sarvam-30b)", of_heads("sarvam_moe", 19, 64, 4, 64), heads(19, 4, 64)),
    Case("seed_oss (ByteDance-Seed/Seed-OSS-36B)", of_heads("seed_oss", 64, 80, 8, 128), heads(64, 8, 128)),
    Case("smollm3 (HuggingFaceTB/SmolLM3-3B)",
         of_heads("smollm3", 36, 16, 4, 128, layer_types=kinds("f" * 36), no_rope_layers=[1, 1, 1, 0] * 9) | {"head_dim": None},
         heads(36, 4, 128)),
    Case("solar_open (upstage/Solar-Open-100B)", of_heads("solar_open", 48, 64, 8, 128), heads(48, 8, 128)),
    Case(
        "vaultgemma (google/vaultgemma-1b)",
        of_heads("vaultgemma", 26, 8, 4, 256, sliding_window=4096, layer_types=kinds("sf" * 13)),
        heads(13, 4, 256), heads(13, 4, 256),
    ),
    Case("youtu (tencent/Youtu-LLM-2B)", of_latents("youtu", 32, 16, 512, 64), latent(32, 512, 64)),
]  # fmt: skip

V4_CLASS_KINDS = ["heavily_compressed_attention"] * 2 + ["compressed_sparse_attention"] * 41
REFUSED = [
    (
        "deepseek_v4 (written by transformers)", V4 | {"layer_types": V4_CLASS_KINDS},
        "layer_types", "the compression of each kind stands in an object of its own",
    ),
    (
        "dory (nvidia/Nemotron-Labs-Dory1.0-4B)",
        of_heads("dory", 8, 16, 4, 256, sliding_window=1024, layer_types=kinds("sesesefe"), n_recurrent_loops=2),
        "n_recurrent_loops", "layers that are passed twice may keep a cache for each pass",
    ),
    (
        "dots3_note (dots-studio/dots3-note-prev)",
        of_latents("dots3_note_text", 6, 128, 512, 64, **INDEX, sliding_window=512, layer_types=kinds("iisssi")),
        "kv_lora_rank", "latents of a window, each wider than those of full layers",
    ),
    (
        "inkling (thinkingmachines/Inkling)", of_heads("inkling_text", 4, 16, 4, 128, layer_types=["hybrid_sliding"] * 4),
        "layer_types", "an unknown kind of layer",
    ),
    (
        "minimax_m3_vl (written by transformers)",
        of_heads("minimax_m3_vl_text", 60, 64, 4, 128, index_n_heads=4, index_head_dim=128, layer_types=kinds("f" * 60)),
        "index_head_dim", "which layers have an indexer is not said",
    ),
    (
        "qwen4_exp (Qwen/Qwen4-Exp)",
        of_heads("qwen4_exp_text", 40, 16, 2, 256, layer_types=kinds("llli" * 10), **GATED_BF16, linear_num_value_heads=32),
        "layer_types", "indexed layers, but not how wide their index keys are",
    ),
    (
        "unlimited_ocr (baidu/Unlimited-OCR)",
        of_heads("unlimited_ocr_text", 12, 10, 10, 128, sliding_window=128, layer_types=["reference_sliding_attention"] * 12),
        "layer_types", "an unknown kind of layer",
    ),
    (
        "zamba2 (Zyphra/Zamba2)", of_heads("zamba2", 4, 32, 32, 160, layers_block_type=["mamba", "mamba", "mamba", "hybrid"]),
        "layers_block_type", "layers that share weights, each with a cache of its own",
    ),
    (
        "zaya (Zyphra/ZAYA1-8B)", of_heads("zaya", 40, 8, 2, 128, layer_types=["hybrid"] * 40, cca_time0=2, cca_time1=2),
        "layer_types", "an unknown kind of layer",
    ),
]  # fmt: skip
PAGE = Path(__file__).parents[3] / "docs/validation.md"


def read(folder: Path, config: dict[str, object], sidecar: dict[str, object]):
    """Return the shape of the model of `config`, as `kvtrace models` reads it."""
    (folder / "config.json").write_text(json.dumps(config))
    if sidecar:
        (folder / "hf_quant_config.json").write_text(json.dumps(sidecar))
    return find_model(str(folder / "config.json"))


@pytest.mark.parametrize("case", RELEASED + CLASSES, ids=lambda case: case.name)
def test_a_configuration_takes_what_hand_arithmetic_says(tmp_path, case):
    shape = read(tmp_path, case.config, case.sidecar)
    # A part of a byte counts as one.
    assert growing_bytes_per_token(shape) == -(-case.growing // 1)
    assert windowed_bytes_per_token(shape) == case.windowed
    assert state_bytes(shape) == case.state


@pytest.mark.parametrize(
    ("config", "field_name"), [pytest.param(*row[1:3], id=row[0]) for row in REFUSED]
)
def test_what_cannot_be_known_is_refused_by_its_field(tmp_path, config, field_name):
    with pytest.raises(ConfigError, match=f"{field_name}: "):
        read(tmp_path, config, {})


HEADER = "| configuration | B a token | of windows, B a token | state, B a request |"


def table() -> str:
    """Return the table of these configurations, as docs/validation.md has it."""
    lines = [HEADER, "|---|---|---|---|"]
    for case in RELEASED + CLASSES:
        figures = (-(-case.growing // 1), case.windowed, case.state)
        lines.append(f"| {case.name} | {' | '.join(f'{int(figure):,}' for figure in figures)} |")
    lines += [
        f"| {name} | refused: `{field_name}` | {why} | |" for name, _, field_name, why in REFUSED
    ]
    return "\n".join(lines) + "\n"


def test_the_page_lists_these_configurations():
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    before, _, after = PAGE.read_text().partition(HEADER)
    PAGE.write_text(before + table() + after[after.index("\n\n") + 1 :])
