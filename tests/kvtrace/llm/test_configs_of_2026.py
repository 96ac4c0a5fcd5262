"""Configurations released in 2026: bytes of a token by hand, or a refusal, never half."""

import json

import pytest

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.shape import (
    bytes_per_token,
    growing_bytes_per_token,
    state_bytes,
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


def shape_of(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return find_model(str(path))


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
