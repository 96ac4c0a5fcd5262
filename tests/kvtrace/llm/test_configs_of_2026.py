"""Configurations released in 2026: bytes of a token by hand, or a refusal, never half."""

import json

import pytest

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import (
    bytes_per_token,
    fixed_bytes,
    growing_bytes_per_token,
    pieces,
    state_bytes,
    tokens_that_fit,
    windowed_bytes_per_token,
)

COMMON = {"torch_dtype": "bfloat16", "max_position_embeddings": 131072}
LONGCAT = COMMON | {
    "model_type": "longcat_flash_ngram",
    "hidden_size": 3072,
    "num_layers": 14,
    "num_attention_heads": 32,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
HUNYUAN = COMMON | {
    "model_type": "hunyuan_v1_dense",
    "head_dim": 128,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "cla_share_factor": 2,
    "use_cla": False,
}
TRINITY = COMMON | {
    "model_type": "afmoe",
    "head_dim": 128,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
    "global_attn_every_n_layers": 4,
    "sliding_window": 2048,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
}
LFM2 = COMMON | {
    "model_type": "lfm2",
    "conv_L_cache": 3,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "layer_types": ["conv"] * 10 + ["full_attention"] * 6,
}
QWEN_OMNI = {
    "model_type": "qwen3_omni_moe",
    "dtype": "bfloat16",
    "thinker_config": {
        "model_type": "qwen3_omni_moe_thinker",
        "text_config": {
            "model_type": "qwen3_omni_moe_text",
            "head_dim": 128,
            "hidden_size": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 48,
            "num_key_value_heads": 4,
            "max_position_embeddings": 65536,
        },
    },
    "talker_config": {"text_config": {"num_hidden_layers": 20}},
}
INTERN_VL = {
    "model_type": "internvl_chat",
    "torch_dtype": "bfloat16",
    "llm_config": COMMON
    | {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
    },
}
MAMBA_FREE = TRINITY | {"mamba_d_state": 128, "mamba_num_heads": 64}


def shape_of(tmp_path, config, kv_dtype=None):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return find_model(str(path), kv_dtype)


@pytest.mark.parametrize(
    ("config", "growing", "windowed", "state"),
    [
        # 14 layers x 2 blocks x (512 + 64) x 2 bytes.
        (LONGCAT, 32_256, 0, 0),
        (LONGCAT | {"num_hidden_layers": 14}, 32_256, 0, 0),
        (LONGCAT | {"num_hidden_layers": 28}, 32_256, 0, 0),
        # 2 x 32 layers x 8 heads x 128 x 2 bytes.
        (HUNYUAN, 131_072, 0, 0),
        # 2 x 8 full layers x 4 heads x 128 x 2 bytes; 24 layers with a window.
        (TRINITY, 16_384, 49_152, 0),
        # Fields of Mamba layers that the model has not.
        (MAMBA_FREE, 16_384, 49_152, 0),
        # 2 x 6 layers x 8 heads x 64 x 2 bytes; 10 convolutions of 2 x 2,048 x 2 bytes.
        (LFM2, 12_288, 0, 81_920),
        # 2 x 48 layers x 4 heads x 128 x 2 bytes: the thinker's, not the talker's.
        (QWEN_OMNI, 98_304, 0, 0),
        # 2 x 28 layers x 4 heads x 128 x 2 bytes.
        (INTERN_VL, 57_344, 0, 0),
    ],
    ids=[
        "longcat",
        "longcat-layers",
        "longcat-blocks",
        "hunyuan",
        "trinity",
        "no-mamba",
        "lfm2",
        "qwen-omni",
        "internvl",
    ],
)
def test_bytes_of_a_token_equal_hand_arithmetic(tmp_path, config, growing, windowed, state):
    shape = shape_of(tmp_path, config)
    assert growing_bytes_per_token(shape) == growing
    assert windowed_bytes_per_token(shape) == windowed
    assert bytes_per_token(shape) == growing + windowed
    assert state_bytes(shape) == state


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (LONGCAT | {"num_layers": None, "num_hidden_layers": 14}, "num_layers"),
        (LONGCAT | {"num_hidden_layers": 15}, "num_hidden_layers"),
        (HUNYUAN | {"use_cla": True}, "cla_share_factor"),
        ({**TRINITY, "layer_types": None, "mamba_d_state": 128}, "layer_types"),
        (LFM2 | {"layer_types": ["mamba"] * 10 + ["full_attention"] * 6}, "conv_L_cache"),
    ],
    ids=["layers-unknown", "layers-unlike", "shared-cache", "unlisted", "mamba-and-conv"],
)
def test_what_is_not_understood_is_refused(tmp_path, config, field):
    with pytest.raises(ConfigError, match=field):
        shape_of(tmp_path, config)


DEEPSEEK_V4 = COMMON | {
    "model_type": "deepseek_v4",
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "hidden_size": 4096,
    "head_dim": 512,
    "index_head_dim": 128,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    # The last entry is of the layer that predicts a second token, which is not counted.
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
}


def test_deepseek_v4_in_fp8_by_pages_of_vllm(tmp_path):
    shape = shape_of(tmp_path, DEEPSEEK_V4, "fp8")
    # Of 256 tokens: 64 entries of 448 fp8 + 64 bf16 + 8 B of scales (37,376 B) and 64 indexer keys
    # of 132 B (8,448 B), each padded to a multiple of 576 B; of ratio 128, two entries (1,168 B).
    indexed, plain = 37_440 + 8_640, 1_728
    assert growing_bytes_per_token(shape) == (21 * indexed + 20 * plain) / 256 == 3915
    # Pages of 64 tokens of the window, and states of fp32 for 8 tokens (twice 1,024 numbers, and
    # twice 256 of the indexer's) or 128 tokens (1,024 numbers) in pages of 4 and 8 tokens.
    window = 2 * 43 * 37_440
    states = 21 * (2 * 32_832 + 2 * 8_640) + 20 * 16 * 32_832
    assert fixed_bytes(shape) == window + states == 15_467_904
    assert state_bytes(shape) == states
    # Every rank would hold the same: one of them stores it.
    assert [piece.copies for piece in pieces(shape, 8)] == [1, 1, 1]


def test_deepseek_v4_in_bf16_has_no_padding(tmp_path):
    shape = shape_of(tmp_path, DEEPSEEK_V4)
    assert growing_bytes_per_token(shape) == 21 * (1024 + 256) / 4 + 20 * 1024 / 128 == 6880


def test_compressions_without_a_known_state_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="compress_ratios"):
        shape_of(tmp_path, DEEPSEEK_V4 | {"compress_ratios": [0, 8] * 22})
    with pytest.raises(ConfigError, match="compress_ratios"):
        shape_of(tmp_path, DEEPSEEK_V4 | {"compress_ratios": [4] * 42})


HEADS = COMMON | {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 1024,
    "head_dim": 128,
}
STATE = {
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
}


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        # MiniMax M3: three of four layers keep one index key, as wide as bf16 has it.
        (
            HEADS
            | {
                "sparse_attention_config": {
                    "use_sparse_attention": True,
                    "sparse_index_dim": 128,
                    "sparse_num_index_heads": 4,
                    "sparse_attention_freq": [0, 1, 1, 1],
                }
            },
            4 * 2 * 2 * 128 * 2 + 3 * 128 * 2,
        ),
        (
            HEADS | {"sparse_attention_config": {"use_sparse_attention": False}},
            4 * 2 * 2 * 128 * 2,
        ),
        # Qwen 4: the full layers keep one index key for four tokens.
        (
            HEADS
            | STATE
            | {
                "layer_types": ["linear_attention", "full_attention"] * 2,
                "indexer_n_heads": 4,
                "indexer_kv_heads": 1,
                "indexer_head_dim": 128,
                "indexer_budget": 2048,
                "indexer_compress_ratio": 4,
            },
            2 * 2 * 2 * 128 * 2 + 2 * 128 * 2 // 4,
        ),
        # GLM 5.3: latents without a rotary part, and one indexer key for four tokens, which the
        # linear layers have not, although their types are listed.
        (
            COMMON
            | {
                "num_hidden_layers": 4,
                "num_attention_heads": 8,
                "hidden_size": 1024,
                "kv_lora_rank": 512,
                "qk_rope_head_dim": 0,
                "layer_types": ["linear_attention", "deepseek_sparse_attention"] * 2,
                "linear_attn_config": {
                    "num_heads": 8,
                    "head_dim": 128,
                    "short_conv_kernel_size": 4,
                },
                "index_head_dim": 128,
                "index_topk": 2048,
                "index_kpool": 4,
                "index_kpool_always_select_tail": True,
                "indexer_types": ["full"] * 4,
            },
            2 * 512 * 2 + 2 * 132 // 4,
        ),
        # MiMo V2: keys and values of different widths; two of four layers slide.
        (
            HEADS
            | {
                "model_type": "mimo_v2",
                "head_dim": 192,
                "v_head_dim": 128,
                "sliding_window": 128,
                "sliding_window_size": 128,
                "swa_num_key_value_heads": 4,
                "swa_head_dim": 192,
                "swa_v_head_dim": 128,
                "hybrid_layer_pattern": [0, 1, 1, 0],
            },
            2 * 2 * (192 + 128) * 2,
        ),
        # NVFP4: half a byte a value, and a byte of scale for 16.
        (
            HEADS | {"quantization_config": {"kv_cache_quant_algo": "NVFP4"}},
            4 * 2 * 2 * 128 * 9 // 16,
        ),
    ],
)
def test_new_kinds_of_cache_by_hand(tmp_path, config, per_token):
    assert growing_bytes_per_token(shape_of(tmp_path, config)) == per_token


def test_nvfp4_needs_heads_of_whole_scales(tmp_path):
    with pytest.raises(ConfigError, match="multiple of 16"):
        shape_of(tmp_path, HEADS | {"head_dim": 72}, "nvfp4")


def test_tokens_that_fit_count_windows_once(tmp_path):
    shape = shape_of(tmp_path, TRINITY)
    fixed = 2048 * 24 * 2 * 4 * 128 * 2
    assert fixed_bytes(shape) == fixed
    assert tokens_that_fit(shape, fixed + 3000 * 16_384) == 3000
    assert tokens_that_fit(shape, 10 * (16_384 + 49_152)) == 10


WINDOWED = HEADS | {
    "model_type": "gemma4_text",
    "sliding_window": 512,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
SPARSE = HEADS | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}


def test_layers_may_have_heads_of_their_own(tmp_path):
    own = {"01": {"head_dim": 256, "num_key_value_heads": 1}, "2": {"head_dim": 64}}
    shape = shape_of(tmp_path, WINDOWED | {"per_layer_config": own})
    # Layer 1 is full and has one head of 256, layer 3 two of 128.
    assert growing_bytes_per_token(shape) == 2 * (1 * 256 + 2 * 128) * 2
    # Layers 0 and 2 have windows: two heads of 128 and of 64.
    assert windowed_bytes_per_token(shape) == 2 * 2 * (128 + 64) * 2


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (WINDOWED | {"per_layer_config": {"1": {"sliding_window": 64}}}, "sliding_window"),
        (WINDOWED | {"per_layer_config": {"full": {"head_dim": 64}}}, "per_layer_config"),
        (HEADS | {"total_ut_steps": 4}, "total_ut_steps"),
        (HEADS | {"n_recurrent_loops": 2}, "n_recurrent_loops"),
        (
            HEADS
            | {
                "sparse_attention_config": {
                    "use_sparse_attention": True,
                    "sparse_index_dim": 128,
                    "sparse_attention_freq": [0, 1, 1, 1],
                    "sparse_disable_index_value": [0, 0, 1, 1],
                }
            },
            "sparse_disable_index_value",
        ),
        (HEADS | {"num_self_decoder_layers": 1}, "num_self_decoder_layers"),
        (HEADS | {"kv_sharing_interval": 2}, "kv_sharing_interval"),
    ],
    ids=[
        "own-window",
        "not-a-layer",
        "steps",
        "loops",
        "index-values",
        "halves",
        "interval",
    ],
)
def test_what_may_change_the_cache_is_refused(tmp_path, config, field):
    with pytest.raises(ConfigError, match=field):
        shape_of(tmp_path, config)


def test_a_single_pass_changes_nothing(tmp_path):
    shape = shape_of(tmp_path, HEADS | {"n_recurrent_loops": 1})
    assert growing_bytes_per_token(shape) == 4 * 2 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("config", "kv_dtype", "expected", "note"),
    [
        (HEADS, None, "fp8", None),
        (HEADS, "bf16", "bf16", None),
        (HEADS | {"quantization_config": {"kv_cache_quant_algo": None}}, None, "bf16", None),
        (
            HEADS | {"quantization_config": {"quant_algo": "NVFP4"}},
            None,
            "bf16",
            "kv_cache_quant_algo FP8, and config.json nothing",
        ),
        (SPARSE, None, "fp8", "656 B a token and layer"),
        (SPARSE, "bf16", "bf16", None),
    ],
    ids=["alone", "chosen", "config-says-none", "config-is-silent", "sparse", "sparse-bf16"],
)
def test_the_file_of_modelopt_beside_a_config(tmp_path, config, kv_dtype, expected, note):
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')
    shape = shape_of(tmp_path, config, kv_dtype)
    assert shape.kv_dtype == expected
    said = [text for text in shape.notes if "hf_quant_config" in text or "656 B" in text]
    assert len(said) == (note is not None)
    assert all(note in text for text in said)


def test_latents_of_a_type_that_vllm_does_not_cache_are_noted(tmp_path):
    assert not any("taken as cached" in text for text in shape_of(tmp_path, LONGCAT).notes)
    unknown = SPARSE | {"model_type": "sarvam_mla"}
    assert any("for sarvam_mla" in text for text in shape_of(tmp_path, unknown).notes)


STEP_35 = COMMON | {
    "model_type": "step3p5",
    "num_hidden_layers": 45,
    "num_attention_heads": 64,
    "num_attention_groups": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "sliding_window": 512,
    # The last three are of layers that predict further tokens.
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12,
    "num_nextn_predict_layers": 3,
    "attention_other_setting": {
        "attention_type": "sliding_attention",
        "num_attention_heads": 96,
        "num_attention_groups": 4,
        "head_dim": 128,
    },
}
FALCON_H1 = COMMON | {
    "model_type": "falcon_h1",
    "num_hidden_layers": 72,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 5120,
    "mamba_d_ssm": 4096,
    "mamba_n_heads": 32,
    "mamba_d_head": 128,
    "mamba_d_state": 256,
    "mamba_n_groups": 2,
    "mamba_d_conv": 4,
    "mamba_use_mlp": True,
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.3, 0.25, 0.2, 0.5, 0.3],
}
DEEPSEEK_OCR = {
    "model_type": "deepseek_vl_v2",
    "torch_dtype": "bfloat16",
    "language_config": COMMON
    | {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 12,
        "num_attention_heads": 10,
        "num_key_value_heads": 10,
        "hidden_size": 1280,
        "kv_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "use_mla": False,
    },
}
PALIGEMMA_2 = {
    "model_type": "paligemma",
    "text_config": {
        "model_type": "gemma2",
        "torch_dtype": "bfloat16",
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
}


@pytest.mark.parametrize(
    ("config", "growing", "windowed", "state"),
    [
        # 12 full layers of 8 heads, and 33 of 4 heads with a window.
        (STEP_35, 12 * 2 * 8 * 128 * 2, 33 * 2 * 4 * 128 * 2, 0),
        (STEP_35 | {"layer_types": STEP_35["layer_types"][:45]}, 49_152, 67_584, 0),
        # Step 3: one head of 256.
        (
            COMMON
            | {
                "model_type": "step3_text",
                "num_hidden_layers": 61,
                "num_attention_heads": 64,
                "num_attention_groups": 1,
                "head_dim": 256,
                "hidden_size": 7168,
            },
            61 * 2 * 256 * 2,
            0,
            0,
        ),
        # Each layer has attention, and a state of 32 heads x 128 x 256 with 3 steps of a convolution.
        (
            FALCON_H1,
            72 * 2 * 4 * 128 * 2,
            0,
            72 * (32 * 128 * 256 + 3 * (4096 + 2 * 2 * 256)) * 2,
        ),
        (DEEPSEEK_OCR, 12 * 2 * 10 * 128 * 2, 0, 0),
        (PALIGEMMA_2, 13 * 2 * 4 * 256 * 2, 13 * 2 * 4 * 256 * 2, 0),
        # A float of 4 bits with a scale for 16 values is NVFP4.
        (
            HEADS
            | {
                "quantization_config": {
                    "kv_cache_scheme": {"type": "float", "num_bits": 4, "group_size": 16}
                }
            },
            4 * 2 * 2 * 128 * 9 // 16,
            0,
            0,
        ),
        # As compressed-tensors named it before 0.6; and ModelOpt's word for no quantization.
        (
            HEADS | {"compression_config": {"kv_cache_scheme": {"type": "float", "num_bits": 8}}},
            4 * 2 * 2 * 128,
            0,
            0,
        ),
        (
            HEADS | {"quantization_config": {"kv_cache_quant_algo": "NONE"}},
            4 * 2 * 2 * 128 * 2,
            0,
            0,
        ),
        (HEADS | {"torch_dtype": "auto"}, 4 * 2 * 2 * 128 * 2, 0, 0),
        # Qwen 2.5 Omni leaves the width of a head to hidden_size.
        (
            HEADS | {"model_type": "qwen2_5_omni_text", "head_dim": None},
            4 * 2 * 2 * 128 * 2,
            0,
            0,
        ),
        # vLLM and SGLang serve what was trained in 32 bits in 16.
        (HEADS | {"torch_dtype": "float32"}, 4 * 2 * 2 * 128 * 2, 0, 0),
    ],
    ids=[
        "step-3.5",
        "step-3.5-trimmed",
        "step-3",
        "falcon-h1",
        "deepseek-ocr",
        "paligemma-2",
        "float-of-4-bits",
        "compression-config",
        "quantization-none",
        "auto",
        "qwen-2.5-omni",
        "float32",
    ],
)
def test_layouts_that_releases_have(tmp_path, config, growing, windowed, state):
    shape = shape_of(tmp_path, config)
    assert growing_bytes_per_token(shape) == growing
    assert windowed_bytes_per_token(shape) == windowed
    assert state_bytes(shape) == state


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (STEP_35 | {"num_nextn_predict_layers": 2}, "layer_types"),
        (
            STEP_35 | {"attention_other_setting": {"attention_type": "linear_attention"}},
            "attention_type",
        ),
        # A latent that is said not to be one would be cached as heads.
        (
            LONGCAT | {"model_type": "deepseek_v2", "num_hidden_layers": 14, "use_mla": False},
            "use_mla",
        ),
        (
            HEADS
            | {
                "quantization_config": {
                    "kv_cache_scheme": {"type": "float", "num_bits": 4, "group_size": 32}
                }
            },
            "kv_cache_scheme",
        ),
    ],
    ids=["types-of-other-layers", "other-attention", "latent-unused", "mxfp4"],
)
def test_layouts_that_no_release_has_are_refused(tmp_path, config, field):
    with pytest.raises(ConfigError, match=field):
        shape_of(tmp_path, config)
