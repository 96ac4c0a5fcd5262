"""The config.json of models as released.

What is cached, and how many parameters by the model's own name.

What is said of layers, heads, experts and dtype, without tokenizers, vision and training. From the
files that the package aiconfigurator-core 0.12.0 holds, as on Hugging Face; a layer list is written
as what it repeats.
"""

from __future__ import annotations

import json

import pytest

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model, load_models
from kvtrace.llm.shape import (
    Recurrent,
    growing_bytes_per_token,
    pieces,
    state_bytes,
    windowed_bytes_per_token,
)

S, F, SHARED = "sliding_attention", "full_attention", "shared"

NEMOTRON_NANO = {
    "model_type": "nemotron_h", "hidden_size": 2688, "num_attention_heads": 32, "num_hidden_layers": 52,
    "num_key_value_heads": 2, "head_dim": 128, "hybrid_override_pattern": "MEMEM*E" * 5 + "MEMEMEM*EMEMEMEME",
    "intermediate_size": 1856, "conv_kernel": 4, "expand": 2, "mamba_head_dim": 64, "mamba_num_heads": 64,
    "mamba_ssm_cache_dtype": "float32", "max_position_embeddings": 262144, "mlp_hidden_act": "relu2",
    "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712, "n_groups": 8, "n_routed_experts": 128,
    "n_shared_experts": 1, "num_experts_per_tok": 6, "ssm_state_size": 128, "torch_dtype": "bfloat16",
    "time_step_limit": [0.0, float("inf")], "vocab_size": 131072,
}  # fmt: skip
NEMOTRON_SUPER = NEMOTRON_NANO | {
    "hidden_size": 4096, "num_hidden_layers": 88, "hybrid_override_pattern":
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    "intermediate_size": 2688, "mamba_num_heads": 128, "moe_intermediate_size": 2688, "moe_latent_size": 1024,
    "moe_shared_expert_intermediate_size": 5376, "mtp_hybrid_override_pattern": "*E", "n_routed_experts": 512,
    "num_experts_per_tok": 22, "num_nextn_predict_layers": 1,
}  # fmt: skip
NEMOTRON_NAS = {
    "model_type": "nemotron-nas", "hidden_size": 8192, "intermediate_size": None, "num_attention_heads": 64,
    "num_hidden_layers": 80, "num_key_value_heads": None, "max_position_embeddings": 131072, "vocab_size": 128256,
    "torch_dtype": "bfloat16", "block_configs": [
        {"attention": {"n_heads_in_group": 8, "no_op": False, "window_length": None}, "ffn": {"ffn_mult": 5.25}}
    ] * 49 + [
        {"attention": {"n_heads_in_group": None, "no_op": True, "window_length": None}, "ffn": {"ffn_mult": 1.3125}}
    ] * 31,
}  # fmt: skip
MIMO = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "intermediate_size": 16384,
    "max_position_embeddings": 262144, "swa_rope_theta": 10000, "sliding_window": 128, "sliding_window_size": 128,
    "attention_chunk_size": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8, "swa_head_dim": 192,
    "swa_v_head_dim": 128, "hybrid_layer_pattern": [0, 1, 1, 1, 1] + [0, 1, 1, 1, 1, 1] * 7 + [0],
    "moe_layer_freq": [0] + [1] * 47, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "torch_dtype": "bfloat16", "vocab_size": 152576,
}  # fmt: skip
GPT_OSS_120B = {
    "model_type": "gpt_oss", "experts_per_token": 4, "head_dim": 64, "hidden_size": 2880, "intermediate_size": 2880,
    "layer_types": [S, F] * 18, "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
    "num_hidden_layers": 36, "num_key_value_heads": 8, "num_local_experts": 128, "sliding_window": 128,
    "vocab_size": 201088, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
GLM_5 = {
    "model_type": "glm_moe_dsa", "dtype": "bfloat16", "first_k_dense_replace": 3, "head_dim": 64, "hidden_size": 6144,
    "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048, "intermediate_size": 12288, "kv_lora_rank": 512,
    "max_position_embeddings": 202752, "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
    "v_head_dim": 256, "vocab_size": 154880,
}  # fmt: skip
GLM_52 = GLM_5 | {
    "indexer_types": ["full"] * 3 + [SHARED, SHARED, SHARED, "full"] * 18 + [SHARED] * 3, "index_topk_freq": 4,
    "index_skip_topk_offset": 3, "layer_types": ["deepseek_sparse_attention"] * 78,
    "max_position_embeddings": 1048576,
}  # fmt: skip
LLAMA4_MAVERICK = {
    "model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
        "interleave_moe_layer_step": 2, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "max_position_embeddings": 1048576, "no_rope_layers": [1, 1, 1, 0] * 12, "num_attention_heads": 40,
        "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 128,
        "torch_dtype": "bfloat16", "vocab_size": 202048,
    },
}  # fmt: skip
QWEN35_397B = {
    "model_type": "qwen3_5_moe", "text_config": {
        "model_type": "qwen3_5_moe_text", "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256,
        "hidden_size": 4096, "layer_types": (["linear_attention"] * 3 + [F]) * 15, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 64,
        "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144,
        "moe_intermediate_size": 1024, "mtp_num_hidden_layers": 1, "num_attention_heads": 32, "num_experts": 512,
        "num_experts_per_tok": 10, "num_hidden_layers": 60, "num_key_value_heads": 2,
        "shared_expert_intermediate_size": 1024, "vocab_size": 248320,
    },
}  # fmt: skip
GEMMA4_26B = {
    "model_type": "gemma4", "dtype": "bfloat16", "text_config": {
        "model_type": "gemma4_text", "attention_k_eq_v": True, "enable_moe_block": True, "global_head_dim": 512,
        "head_dim": 256, "hidden_size": 2816, "intermediate_size": 2112, "layer_types": ([S] * 5 + [F]) * 5,
        "max_position_embeddings": 262144, "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
        "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0,
        "sliding_window": 1024, "top_k_experts": 8, "vocab_size": 262144,
    },
}  # fmt: skip
MINIMAX_M3 = {
    "model_type": "minimax_m3", "head_dim": 128, "hidden_size": 6144, "max_position_embeddings": 1048576,
    "num_attention_heads": 64, "num_hidden_layers": 60, "num_key_value_heads": 4, "torch_dtype": "bfloat16",
    "sparse_attention_config": {"sparse_index_dim": 128, "sparse_topk_blocks": 16, "use_sparse_attention": True},
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    def make(config: object):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return find_model(str(path))

    return make


@pytest.mark.parametrize(
    ("config", "growing", "windowed", "state", "billions", "active_billions"),
    [
        # Six full layers of 2 heads; 23 states of 64 heads x 64 x 128 x 4 B + 3 x (4,096 + 2 x 8 x
        # 128) x 2 B.
        (NEMOTRON_NANO, 6 * 1024, 0, 23 * (2_097_152 + 36_864), 31.6, 3.6),
        # 40 states of twice the heads.
        (NEMOTRON_SUPER, 8 * 1024, 0, 40 * (4_194_304 + 61_440), 120, 12),
        # 49 of 80 layers have attention.
        (NEMOTRON_NAS, 49 * 4096, 0, 0, 49.9, 49.9),
        # Keys of 192 and values of 128: 9 full layers of 4 heads, 39 windowed ones of 8.
        (MIMO, 9 * 4 * 320 * 2, 39 * 8 * 320 * 2, 0, 309, 15),
        (GPT_OSS_120B, 36_864, 36_864, 0, 116.8, 5.7),
        (GLM_5, 78 * (1152 + 132), 0, 0, 744, 40),
        (GLM_52, 78 * 1152 + 21 * 132, 0, 0, 744, 40),
        (LLAMA4_MAVERICK, 49_152, 147_456, 0, 400, 17),
        (QWEN35_397B, 30_720, 0, 192_061_440, 397, 17),
        (GEMMA4_26B, 20_480, 204_800, 0, 26, 4.2),
    ],
)
def test_a_released_config(model, config, growing, windowed, state, billions, active_billions):
    found = model(config)
    assert (growing_bytes_per_token(found), windowed_bytes_per_token(found)) == (growing, windowed)
    assert state_bytes(found) == state
    assert found.parameters == pytest.approx(billions * 1e9, rel=0.02)
    assert found.active_parameters == pytest.approx(active_billions * 1e9, rel=0.1)


@pytest.mark.parametrize(
    ("config", "name", "query_heads"),
    [
        (NEMOTRON_NANO, "nemotron-3-nano", [32]),
        (NEMOTRON_NAS, "llama3.3-nemotron-super-49b", [64]),
        (MIMO, "mimo-v2-flash", [64, 64]),
        (MIMO | {"swa_num_attention_heads": 32}, None, [64, 32]),
        (MIMO | {"num_attention_heads": None, "swa_num_attention_heads": None}, None, [None, None]),
        (GPT_OSS_120B, "gpt-oss-120b", [64, 64]),
        (GLM_5, "glm-5", [64, 32]),
        (GLM_52, "glm-5.2", [64, 32]),
        (LLAMA4_MAVERICK, "llama4-maverick", [40, 40]),
        (QWEN35_397B, "qwen3.5-397b", [32]),
        (GEMMA4_26B, "gemma4-26b", [16, 16]),
    ],
)
def test_a_released_config_says_how_wide_attention_is(model, config, name, query_heads):
    groups = [g for g in model(config).groups if not isinstance(g, Recurrent)]
    assert [g.query_heads for g in groups] == query_heads
    if name is not None:
        assert groups == [g for g in load_models()[name].groups if not isinstance(g, Recurrent)]


def test_the_width_of_latent_attention(model):
    latent, indexer = model(GLM_5).groups
    assert (latent.nope_dim, latent.rope_dim, latent.value_dim) == (192, 64, 256)
    assert indexer.top_tokens == 2048


def test_what_a_released_config_leaves_out_is_noted(model):
    assert model(GPT_OSS_120B).kv_dtype == "bf16"
    assert any("dtype" in note for note in model(GPT_OSS_120B).notes)
    assert [piece.window_tokens for piece in pieces(model(MIMO)) if piece.window_tokens] == [128]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        # It does not say which layers keep keys of an index.
        (MINIMAX_M3, "sparse_attention_config"),
        (NEMOTRON_NAS | {"block_configs": 3}, "block_configs"),
        (NEMOTRON_NAS | {"block_configs": [{"ffn": None}]}, "attention"),
        (NEMOTRON_NAS | {"block_configs": [{"attention": {"window_length": 8}}]}, "window_length"),
        (NEMOTRON_NAS | {"block_configs": [{"attention": {"no_op": True}}] * 80}, "block_configs"),
        (MIMO | {"hybrid_layer_pattern": [2] * 48}, "hybrid_layer_pattern"),
        (
            NEMOTRON_NANO | {"num_hidden_layers": None, "hybrid_override_pattern": None},
            "num_hidden_layers",
        ),
    ],
)
def test_what_is_not_understood_of_it_is_refused_by_name(model, config, field):
    with pytest.raises(ConfigError, match=f"{field}:"):
        model(config)
