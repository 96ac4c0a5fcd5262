"""A Hugging Face config.json is enough to add a model, or an error that names the field."""

from __future__ import annotations

import json

import pytest
from conftest import run_cli
from phrases import pattern, shows

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import (
    bytes_per_token,
    growing_bytes_per_token,
    pieces,
    state_bytes,
    windowed_bytes_per_token,
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "attention_bias": False, "attention_dropout": 0.0, "torch_dtype": "bfloat16", "vocab_size": 128256,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}  # fmt: skip
MISTRAL = LLAMA | {
    "model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768, "rope_scaling": None,
}  # fmt: skip
QWEN2 = {
    "model_type": "qwen2", "hidden_size": 3584, "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "max_position_embeddings": 32768, "max_window_layers": 28, "sliding_window": 131072,
    "use_sliding_window": False, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880, "initial_context_length": 4096,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
    "num_attention_heads": 64, "num_hidden_layers": 24, "num_key_value_heads": 8, "sliding_window": 128,
    "swiglu_limit": 7.0, "dtype": "bfloat16", "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152, "num_attention_heads": 4,
    "num_hidden_layers": 26, "num_key_value_heads": 1, "sliding_window": 512, "sliding_window_pattern": 6,
    "max_position_embeddings": 32768, "query_pre_attn_scalar": 256, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA4 = {
    "model_type": "gemma4", "dtype": "bfloat16", "vision_config": {"model_type": "gemma4_vision", "head_dim": 72},
    "text_config": {
        "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "num_key_value_heads": 8,
        "num_global_key_value_heads": 2, "attention_k_eq_v": True, "num_attention_heads": 16, "hidden_size": 2816,
        "num_hidden_layers": 30, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
        "sliding_window": 1024, "num_kv_shared_layers": 0, "max_position_embeddings": 262144,
    },
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
        "interleave_moe_layer_step": 1, "max_position_embeddings": 10485760, "no_rope_layers": [],
        "num_attention_heads": 40, "num_hidden_layers": 48, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_attention_heads": 128, "num_key_value_heads": 128,
    "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
DEEPSEEK_DSA = DEEPSEEK | {
    "model_type": "deepseek_v32", "index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144,
    "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN35 = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        **QWEN3_NEXT, "model_type": "qwen3_5_moe_text", "num_hidden_layers": 60, "linear_num_value_heads": 64,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 15, "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
    },
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "attention_head_dim": 128, "chunk_size": 128, "conv_kernel": 4, "expand": 2,
    "hidden_size": 4096, "hybrid_override_pattern": "M-M*-M", "mamba_head_dim": 64, "mamba_hidden_act": "silu",
    "mamba_num_heads": 128, "mamba_proj_bias": False, "n_groups": 8, "num_attention_heads": 32,
    "num_hidden_layers": 6, "num_key_value_heads": 8, "ssm_state_size": 128, "max_position_embeddings": 8192,
    "sliding_window": None, "torch_dtype": "bfloat16", "use_mamba_kernels": True,
}  # fmt: skip
GRANITE = {
    "model_type": "granitemoehybrid", "hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 4,
    "num_hidden_layers": 4, "layer_types": ["mamba", "mamba", "attention", "mamba"], "mamba_chunk_size": 256,
    "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 2,
    "mamba_n_groups": 1, "mamba_n_heads": 48, "mamba_proj_bias": False, "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}  # fmt: skip
KIMI = {
    "model_type": "kimi_linear", "dtype": "bfloat16", "head_dim": 72, "hidden_size": 2304, "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": [4, 8], "head_dim": 128, "kda_layers": [1, 2, 3, 5, 6, 7], "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "model_max_length": 1048576, "num_attention_heads": 32, "num_hidden_layers": 8, "num_key_value_heads": 32,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 0,
}  # fmt: skip
MINIMAX = LLAMA | {
    "model_type": "minimax_m2", "attn_type_list": [1] * 62, "num_hidden_layers": 62, "head_dim": 128,
}  # fmt: skip
LLAMA2 = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 4096, "torch_dtype": "float16",
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "max_position_embeddings": 4096, "sliding_window": 2047, "torch_dtype": "bfloat16",
}  # fmt: skip


# As released, vision and generation fields left out: google/gemma-3-12b-it, -27b-it and -4b-it,
# facebook/opt-6.7b, tiiuae/falcon-7b, -40b (both its names), ai21labs/Jamba-v0.1,
# LGAI-EXAONE/EXAONE-4.0-32B, EXAONE-3.5-7.8B-Instruct.
GEMMA3_12B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip
GEMMA3_27B = GEMMA3_12B | {
    "text_config": {
        "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
        "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    },
}  # fmt: skip
GEMMA3_4B = GEMMA3_12B | {
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
}  # fmt: skip
OPT = {
    "_remove_final_layer_norm": False, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "do_layer_norm_before": True, "ffn_dim": 16384, "hidden_size": 4096, "max_position_embeddings": 2048,
    "model_type": "opt", "num_attention_heads": 32, "num_hidden_layers": 32, "torch_dtype": "float16",
    "vocab_size": 50272, "word_embed_proj_dim": 4096,
}  # fmt: skip
FALCON_7B = {
    "alibi": False, "architectures": ["FalconForCausalLM"], "bias": False, "hidden_size": 4544, "model_type": "falcon",
    "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71, "num_hidden_layers": 32,
    "num_kv_heads": 71, "parallel_attn": True, "torch_dtype": "bfloat16", "vocab_size": 65024,
}  # fmt: skip
FALCON_40B = FALCON_7B | {
    "hidden_size": 8192, "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60,
    "num_kv_heads": 8,
}  # fmt: skip
REFINED_WEB = {
    "hidden_size": 8192, "model_type": "RefinedWeb", "n_head": 128, "n_head_kv": 8, "n_layer": 60,
    "torch_dtype": "bfloat16", "max_position_embeddings": 2048,
}  # fmt: skip
JAMBA = {
    "architectures": ["JambaForCausalLM"], "attn_layer_offset": 4, "attn_layer_period": 8, "expert_layer_offset": 1,
    "expert_layer_period": 2, "hidden_size": 4096, "intermediate_size": 14336, "mamba_conv_bias": True,
    "mamba_d_conv": 4, "mamba_d_state": 16, "mamba_dt_rank": 256, "mamba_expand": 2, "mamba_proj_bias": False,
    "max_position_embeddings": 262144, "model_type": "jamba", "num_attention_heads": 32, "num_experts": 16,
    "num_experts_per_tok": 2, "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": None,
    "torch_dtype": "bfloat16", "use_mamba_kernels": True,
}  # fmt: skip
EXAONE4 = {
    "architectures": ["Exaone4ForCausalLM"], "model_type": "exaone4", "hidden_size": 5120, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
    "sliding_window_pattern": "LLLG", "torch_dtype": "bfloat16",
}  # fmt: skip
EXAONE35 = {
    "model_type": "exaone", "hidden_size": 4096, "num_layers": 32, "num_attention_heads": 32, "head_dim": 128,
    "num_key_value_heads": 8, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    def make(config: object, kv_dtype: str | None = None):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return find_model(str(path), kv_dtype)

    return make


@pytest.mark.parametrize(
    ("config", "growing", "windowed", "state"),
    [
        (LLAMA, 131_072, 0, 0),
        (LLAMA2, 524_288, 0, 0),
        (MISTRAL, 0, 131_072, 0),
        (MISTRAL | {"sliding_window": None}, 131_072, 0, 0),
        (QWEN2, 28 * 2 * 4 * 128 * 2, 0, 0),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 21}, 21 * 2048, 7 * 2048, 0),
        (GPT_OSS, 24_576, 24_576, 0),
        # Four of 26 layers are full: the 6th, 12th, 18th and 24th.
        (GEMMA3, 4 * 2 * 256 * 2, 22 * 2 * 256 * 2, 0),
        (GEMMA4, 20_480, 204_800, 0),
        # Without keys as values, its full layers have the heads of the others.
        (
            GEMMA4 | {"text_config": GEMMA4["text_config"] | {"attention_k_eq_v": False}},
            4 * 20_480,
            204_800,
            0,
        ),
        # The last six layers, five of them windowed, cache nothing of their own.
        (
            GEMMA4 | {"text_config": GEMMA4["text_config"] | {"num_kv_shared_layers": 6}},
            4 * 4_096,
            20 * 8_192,
            0,
        ),
        (LLAMA4, 49_152, 147_456, 0),
        (
            LLAMA4 | {"text_config": LLAMA4["text_config"] | {"no_rope_layers": [1, 0] * 24}},
            98_304,
            98_304,
            0,
        ),
        (
            LLAMA4 | {"text_config": LLAMA4["text_config"] | {"attention_chunk_size": None}},
            196_608,
            0,
            0,
        ),
        (DEEPSEEK, 70_272, 0, 0),
        (DEEPSEEK_DSA, 78_324, 0, 0),
        (DEEPSEEK_DSA | {"indexer_types": ["full"] + ["shared"] * 60}, 70_272 + 132, 0, 0),
        (QWEN3_NEXT, 24_576, 0, 36 * (32 * 128 * 128 * 2 + 3 * 8192 * 2)),
        (QWEN35, 30_720, 0, 45 * 4_268_032),
        # Three mamba layers: 128 heads x 64 x 128 x 2 B + 3 x (8,192 + 2 x 8 x 128) x 2 B.
        (NEMOTRON, 2 * 8 * 128 * 2, 0, 3 * (2_097_152 + 61_440)),
        (NEMOTRON | {"mamba_ssm_cache_dtype": "float32"}, 4096, 0, 3 * (4_194_304 + 61_440)),
        # 48 heads x 64 x 128 x 2 B + 3 x (3,072 + 2 x 128) x 2 B.
        (GRANITE, 2 * 4 * 128 * 2, 0, 3 * (786_432 + 19_968)),
        # 32 heads x 128 x 128 x 4 B + 3 x 3 x 4,096 x 2 B.
        (KIMI, 2 * 576 * 2, 0, 6 * (2_097_152 + 73_728)),
        (MINIMAX, 253_952, 0, 0),
        (PHI3, 0, 32 * 2 * 32 * 96 * 2, 0),
        # Keys of 128 and values of 64.
        (LLAMA | {"head_dim": 128, "v_head_dim": 64}, 32 * 8 * 192 * 2, 0, 0),
        (GEMMA3_12B, 65_536, 327_680, 0),
        (GEMMA3_27B, 81_920, 425_984, 0),
        (GEMMA3_4B, 5 * 4_096, 29 * 4_096, 0),
        (OPT, 524_288, 0, 0),
        (FALCON_7B, 32 * 2 * 64 * 2, 0, 0),
        (FALCON_7B | {"multi_query": False}, 32 * 2 * 71 * 64 * 2, 0, 0),
        (FALCON_40B, 60 * 2 * 8 * 64 * 2, 0, 0),
        (REFINED_WEB, 60 * 2 * 8 * 64 * 2, 0, 0),
        # 28 layers of 8,192 channels: 16 values and 3 taps each.
        (JAMBA, 4 * 2 * 8 * 128 * 2, 0, 28 * 8192 * (16 + 3) * 2),
        (EXAONE4, 16 * 4_096, 48 * 4_096, 0),
        # The last layer is global whatever the pattern says.
        (EXAONE4 | {"num_hidden_layers": 6}, 2 * 4_096, 4 * 4_096, 0),
        (EXAONE4 | {"sliding_window": None}, 64 * 4_096, 0, 0),
        (EXAONE35, 131_072, 0, 0),
    ],
)
def test_bytes_of_a_config(model, config, growing, windowed, state):
    found = model(config)
    assert growing_bytes_per_token(found) == growing
    assert windowed_bytes_per_token(found) == windowed
    assert state_bytes(found) == state


def test_a_config_gives_window_context_and_origin(model):
    found = model(MISTRAL)
    assert [p.window_tokens for p in pieces(found)] == [4096]
    assert found.max_context_tokens == 32768
    assert found.source.startswith("config.json, model_type mistral, SHA-256 ")
    assert model(KIMI).max_context_tokens == 1_048_576
    assert model(LLAMA4).max_context_tokens == 10_485_760
    assert [p.kind for p in pieces(model(LLAMA4))] == ["growing", "chunked"]


def test_what_a_class_adds_is_noted(model):
    found = model(GEMMA3_12B)
    assert found.max_context_tokens == 131_072
    said = "head_dim 256, sliding_window_pattern 6, max_position_embeddings 131,072"
    assert shows(found.notes, f"config.json … {said}")
    assert model(FALCON_7B).max_context_tokens == 2048


def test_what_is_assumed_is_noted(model):
    assert model(LLAMA).notes == ()
    assert any("multi-token-prediction" in note for note in model(DEEPSEEK).notes)
    assert any(shows(note, "bf16 … vLLM") for note in model(QWEN3_NEXT).notes)
    assert not any("taken as" in note for note in model(QWEN35).notes)


@pytest.mark.parametrize(
    ("change", "kv_dtype", "element_bytes"),
    [
        ({"torch_dtype": "float32"}, None, 2),
        ({"torch_dtype": None, "dtype": "float16"}, None, 2),
        ({}, "fp8", 1),
        ({"torch_dtype": None}, "int8", 1),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, None, 1),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "bf16", 2),
        ({"quantization_config": {"kv_cache_scheme": None}}, None, 2),
        ({"quantization_config": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, None, 1),
    ],
)
def test_the_dtype_of_the_cache(model, change, kv_dtype, element_bytes):
    assert bytes_per_token(model(LLAMA | change, kv_dtype)) == 32 * 2 * 8 * 128 * element_bytes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"num_hidden_layers": None}, "num_hidden_layers: … missing"),
        (
            LLAMA | {"num_hidden_layers": "32"},
            "num_hidden_layers: … 1 … '32'",
        ),
        (LLAMA | {"num_hidden_layers": 10**12}, "num_hidden_layers: 1000000000000; at most"),
        (MISTRAL | {"num_key_value_heads": None}, "num_key_value_heads: … missing"),
        (LLAMA | {"num_key_value_heads": [8, 4]}, "num_key_value_heads:"),
        (
            LLAMA | {"num_key_value_heads": 0},
            "num_key_value_heads: … 1 … 0",
        ),
        (LLAMA | {"num_attention_heads": 24}, "head_dim: … hidden_size"),
        (
            GEMMA3 | {"model_type": "gemma9", "head_dim": None},
            "head_dim: … gemma9",
        ),
        (
            EXAONE4 | {"sliding_window_pattern": "LLX"},
            "sliding_window_pattern:",
        ),
        (FALCON_40B | {"num_kv_heads": None}, "num_kv_heads: … missing"),
        (JAMBA | {"attn_layer_offset": None}, "attn_layer_offset: … missing"),
        (LLAMA | {"max_position_embeddings": None}, "max_position_embeddings: … missing"),
        (LLAMA | {"torch_dtype": "int4"}, "torch_dtype: … 'int4'"),
        (LLAMA | {"torch_dtype": 16}, "torch_dtype:"),
        (
            LLAMA | {"quantization_config": {"kv_cache_scheme": {"num_bits": 4, "type": "float"}}},
            "kv_cache_scheme",
        ),
        (
            LLAMA | {"quantization_config": {"kv_cache_quant_algo": "NVFP2"}},
            "kv_cache_quant_algo: unknown element",
        ),
        (LLAMA | {"quantization_config": [1]}, "quantization_config:"),
        (LLAMA | {"text_config": 3}, "text_config:"),
        (LLAMA | {"is_encoder_decoder": True}, "is_encoder_decoder"),
        (LLAMA | {"sliding_window": 4096}, "sliding_window:"),
        (
            LLAMA | {"attention_chunk_size": 8192},
            "attention_chunk_size:",
        ),
        (
            QWEN2 | {"use_sliding_window": True, "max_window_layers": None},
            "max_window_layers: … missing",
        ),
        (GPT_OSS | {"layer_types": ["full_attention"]}, "layer_types: … 24 layers"),
        (
            GPT_OSS | {"layer_types": ["full_attention", "wavelet"] * 12},
            "layer_types: … 'wavelet'",
        ),
        (GPT_OSS | {"layer_types": [[], {}] * 12}, "layer_types:"),
        (GPT_OSS | {"sliding_window": None}, "sliding_window: … missing"),
        (
            LLAMA4 | {"text_config": LLAMA4["text_config"] | {"no_rope_layers": [[]] * 48}},
            "no_rope_layers: must be 0",
        ),
        (DEEPSEEK | {"qk_rope_head_dim": None}, "qk_rope_head_dim: … missing"),
        (DEEPSEEK | {"index_topk": 2048}, "index_head_dim: … missing"),
        (DEEPSEEK_DSA | {"index_head_dim": 100}, "index_head_dim: 100"),
        (DEEPSEEK_DSA | {"indexer_types": ["full"]}, "indexer_types: must be"),
        (DEEPSEEK_DSA | {"index_topk_freq": 4}, "index_topk_freq: which layers"),
        (LLAMA | {"index_head_dim": 128}, "index_head_dim: … kv_lora_rank"),
        (DEEPSEEK | {"compress_ratios": [4, 128]}, "compress_ratios:"),
        (LLAMA | {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads: may change"),
        (LLAMA | {"hybrid_layer_pattern": [0, 1]}, "hybrid_layer_pattern: may change"),
        (LLAMA | {"cross_attention_layers": [3]}, "cross_attention_layers: may change"),
        (LLAMA | {"num_kv_shared_layers": 32}, "num_kv_shared_layers: 32 of 32"),
        (MINIMAX | {"attn_type_list": [0] + [1] * 61}, "attn_type_list: only 1"),
        (
            QWEN3_NEXT | {"linear_num_value_heads": None},
            "full_attention_interval:",
        ),
        (QWEN3_NEXT | {"linear_key_head_dim": None}, "linear_key_head_dim: … missing"),
        (
            NEMOTRON | {"hybrid_override_pattern": "M-M*-X"},
            "hybrid_override_pattern: … 6 letters",
        ),
        (NEMOTRON | {"hybrid_override_pattern": "M-M--M"}, "layer"),
        (NEMOTRON | {"mamba_num_heads": None}, "layer_types:"),
        (GRANITE | {"mamba_d_head": "auto"}, "mamba_d_head: … 'auto'"),
        (
            KIMI | {"linear_attn_config": KIMI["linear_attn_config"] | {"kda_layers": [1]}},
            "kda_layers: with",
        ),
        ([1, 2], "object"),
    ],
)
def test_a_field_that_is_not_understood_is_named_in_an_error(model, config, message):
    with pytest.raises(ConfigError, match=f"config.json: .*{pattern(message)}"):
        model(config)


def test_a_file_that_is_no_json(tmp_path):
    half = rb'{"model_type": "\ud800"}'
    for content in (b"{", b"\xff\xfe", b"", b"[" * 100_000, half):
        path = tmp_path / "config.json"
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"config\.json: not JSON"):
            find_model(str(path))


def test_a_directory_means_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert bytes_per_token(find_model(str(tmp_path))) == 131_072
    (tmp_path / "tiny-1b").mkdir()
    with pytest.raises(TraceError, match=r"tiny-1b/config\.json:"):
        find_model(str(tmp_path / "tiny-1b"))


def test_the_command_takes_a_config(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(DEEPSEEK_DSA))
    out = json.loads(
        run_cli("kvtrace", "models", path, "--tp", 8, "--kv-dtype", "fp8_ds_mla", "--json").stdout
    )
    assert (out["bytes_per_token"], out["stored_ranks"]) == (61 * (656 + 132), 1)
    path.write_text(json.dumps(DEEPSEEK_DSA | {"index_stride": 4}))
    done = run_cli("kvtrace", "models", path, check=False)
    assert done.returncode == 2
    assert shows(done.stderr, f"kvtrace: error: {path}: index_stride:")
