"""Bytes of every shipped model against the published table, and stored and read bytes worked by
hand.
"""

from __future__ import annotations

import json

import pytest
from conftest import run_cli
from phrases import pattern, shows

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model, load_models
from kvtrace.llm.shape import (
    Full,
    KvDtype,
    Latent,
    ModelShape,
    Sliding,
    bytes_per_token,
    bytes_per_token_per_rank,
    check,
    chunk_bytes,
    growing_bytes_per_token,
    parse_dtype,
    pieces,
    read_bytes,
    replication,
    state_bytes,
    stored_bytes,
    stored_ranks,
    windowed_bytes_per_token,
)

# name: layers, growing and windowed bytes a token.
TABLE = {
    "tiny-1b": (12, 24_576, 0),
    "mistral-7b": (32, 0, 131_072),
    "llama2-7b": (32, 524_288, 0),
    "llama3.1-8b": (32, 131_072, 0),
    "llama3.1-70b-instruct": (80, 327_680, 0),
    "llama3.1-405b": (126, 516_096, 0),
    "llama4-scout": (48, 49_152, 147_456),
    "llama4-maverick": (48, 49_152, 147_456),
    "qwen3-8b": (36, 147_456, 0),
    "qwen3-32b": (64, 262_144, 0),
    "qwen3-30b-a3b": (48, 98_304, 0),
    "qwen3-235b-a22b": (94, 192_512, 0),
    "qwen3-coder-480b": (62, 253_952, 0),
    "qwen3-next": (48, 24_576, 0),
    "qwen3.5-397b": (60, 30_720, 0),
    "gpt-oss-120b": (36, 36_864, 36_864),
    "gpt-oss-20b": (24, 24_576, 24_576),
    "gemma4-26b": (30, 20_480, 204_800),
    "deepseek-v3": (61, 70_272, 0),
    "kimi-k2": (61, 70_272, 0),
    "deepseek-v3.2": (61, 78_324, 0),
    "glm-5": (78, 100_152, 0),
    "minimax-m2.5": (62, 253_952, 0),
    "llama3.2-1b": (16, 32_768, 0),
    "llama3.2-3b": (28, 114_688, 0),
    "llama3.3-70b": (80, 327_680, 0),
    "mixtral-8x7b": (32, 131_072, 0),
    "mixtral-8x22b": (56, 229_376, 0),
    "qwen2.5-7b": (28, 57_344, 0),
    "qwen2.5-32b": (64, 262_144, 0),
    "qwen2.5-72b": (80, 327_680, 0),
    "phi-4": (40, 204_800, 0),
    "gemma3-4b": (34, 20_480, 118_784),
    "gemma3-12b": (48, 65_536, 327_680),
    "gemma3-27b": (62, 81_920, 425_984),
    "qwen3.5-35b-a3b": (40, 20_480, 0),
    "qwen3.5-27b": (64, 65_536, 0),
    "qwen3.5-122b-a10b": (48, 24_576, 0),
    "kimi-k2.5": (61, 70_272, 0),
    "glm-5.2": (78, 92_628, 0),
    "minimax-m2.7": (62, 253_952, 0),
    "nemotron-3-nano": (29, 6_144, 0),
    "nemotron-3-super": (48, 8_192, 0),
    "gemma4-31b": (60, 81_920, 819_200),
    "mimo-v2-flash": (48, 23_040, 199_680),
    "llama3.3-nemotron-super-49b": (49, 200_704, 0),
    "qwen2.5-14b": (48, 196_608, 0),
    "phi-4-mini": (32, 131_072, 0),
    "falcon-40b": (60, 122_880, 0),
}
MLPERF = {
    "tiny-1b": 24_576, "mistral-7b": 131_072, "llama2-7b": 524_288, "llama3.1-8b": 131_072,
    "llama3.1-70b-instruct": 327_680, "deepseek-v3": 70_272, "qwen3-32b": 262_144, "gpt-oss-120b": 73_728,
    "gpt-oss-20b": 49_152,
}  # fmt: skip

# Bytes a token at 131,072 tokens by the catalogue of kvcache-simulator 0.1.3, from PyPI.
PEER = {
    "deepseek-v3": 70_272, "gemma4-26b": 22_080, "gemma4-31b": 88_320, "kimi-k2.5": 70_272, "llama3.1-8b": 131_072,
    "llama3.1-70b-instruct": 327_680, "llama3.3-70b": 327_680, "minimax-m2.5": 253_952, "minimax-m2.7": 253_952,
    "qwen2.5-7b": 57_344, "qwen2.5-14b": 196_608, "qwen2.5-32b": 262_144, "qwen2.5-72b": 327_680, "qwen3-8b": 147_456,
    "qwen3-30b-a3b": 98_304, "qwen3-32b": 262_144, "qwen3-235b-a22b": 192_512,
}  # fmt: skip


@pytest.mark.parametrize(("name", "bytes_a_token"), PEER.items())
def test_another_catalogue_has_the_same_bytes(name, bytes_a_token):
    # What must be there to go on after so many tokens: of windows, their own length.
    assert read_bytes(find_model(name), 131_072, chunk_tokens=1) == 131_072 * bytes_a_token


def test_the_table_is_met_exactly():
    models = load_models()
    found = {
        n: (m.layers, growing_bytes_per_token(m), windowed_bytes_per_token(m))
        for n, m in models.items()
    }
    assert found == TABLE
    assert all(m.source for m in models.values())


def test_the_first_nine_models_keep_the_benchmarks_names():
    models = load_models()
    assert {n: bytes_per_token(models[n]) for n in list(models)[:9]} == MLPERF


def test_llama2_takes_its_own_context():
    assert load_models()["llama2-7b"].max_context_tokens == 4096


def test_states_of_recurrent_layers():
    # 64 heads x 128 x 128 x 4 B = 4,194,304; convolution 3 x (64 x 128 + 2 x 16 x 128) x 2 B =
    # 73,728.
    assert state_bytes(find_model("qwen3.5-397b")) == 45 * (4_194_304 + 73_728) == 45 * 4_268_032
    # 32 heads x 128 x 128 x 2 B = 1,048,576; convolution 3 x (32 x 128 + 2 x 16 x 128) x 2 B =
    # 49,152.
    assert state_bytes(find_model("qwen3-next")) == 36 * (1_048_576 + 49_152)
    # Four ranks: 16 heads and 4 key groups each.
    assert state_bytes(find_model("qwen3.5-397b"), 4) == 45 * 4_268_032 // 4
    assert state_bytes(find_model("llama3.1-8b")) == 0


def test_a_state_with_each_short_chunk_is_not_what_vllm_stores():
    """vLLM logs `Setting attention block size to 544 tokens` for Qwen3-Next.

    Ceil(1,097,728 / 2,048 / 16) * 16.
    """
    (said,) = find_model("qwen3-next").entry_notes(16, 1)
    assert "544 tokens (--set chunk_tokens=544," in said
    assert (
        find_model("qwen3-next").entry_notes(544, 1)
        == find_model("llama3.1-8b").entry_notes(16, 1)
        == []
    )


@pytest.mark.parametrize(
    ("name", "ranks", "per_rank", "stored", "factor"),
    [
        ("llama3.1-70b-instruct", 8, 40_960, 8, 1.0),
        ("llama3.1-70b-instruct", 16, 40_960, 16, 2.0),
        ("qwen3-235b-a22b", 8, 94 * 2 * 1 * 128 * 2, 8, 2.0),
        ("qwen3-235b-a22b", 4, 94 * 2 * 1 * 128 * 2, 4, 1.0),
        ("qwen3-235b-a22b", 2, 94 * 2 * 2 * 128 * 2, 2, 1.0),
        ("qwen3.5-397b", 8, 15 * 2 * 256 * 2, 8, 4.0),
        # Two full heads and eight windowed ones: 8 x (5 x 2 x 512 x 2 + 25 x 2 x 256 x 2) over
        # 225,280.
        ("gemma4-26b", 8, 10_240 + 25_600, 8, 8 * 35_840 / 225_280),
        ("deepseek-v3", 8, 70_272, 1, 1.0),
        ("deepseek-v3.2", 16, 78_324, 1, 1.0),
    ],
)
def test_ranks_split_heads_replicate_them_or_share_a_latent(name, ranks, per_rank, stored, factor):
    model = find_model(name)
    assert bytes_per_token_per_rank(model, ranks) == per_rank
    assert stored_ranks(model, ranks) == stored
    assert replication(model, ranks) == factor
    assert stored_bytes(model, 512, ranks=ranks, chunk_tokens=256) >= 512 * per_rank * stored


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("fp32", 4), ("fp16", 2), ("bf16", 2), ("fp8", 1), ("int8", 1), ("float8_e4m3fn", 1)],
)
def test_the_dtype_scales_every_element(dtype, expected):
    assert bytes_per_token(find_model("llama3.1-8b", dtype)) == 32 * 2 * 8 * 128 * expected
    assert bytes_per_token(find_model("deepseek-v3", dtype)) == 61 * 576 * expected


def test_states_and_indexers_keep_their_own_dtype():
    assert state_bytes(find_model("qwen3.5-397b", "fp8")) == 45 * 4_268_032
    assert bytes_per_token(find_model("deepseek-v3.2", "fp8")) == 61 * (576 + 132)


def test_the_packed_latent_is_656_bytes_a_layer():
    assert bytes_per_token(find_model("deepseek-v3", "fp8_ds_mla")) == 61 * 656
    assert bytes_per_token(find_model("deepseek-v3.2", "fp8_ds_mla")) == 61 * (656 + 132)
    with pytest.raises(ConfigError, match="kv_dtype: fp8_ds_mla packs"):
        find_model("llama3.1-8b", "fp8_ds_mla")


@pytest.mark.parametrize("name", ["fp4", "", "bf32", "auto"])
def test_an_unknown_dtype_is_an_error(name):
    with pytest.raises(ConfigError, match="kv_dtype:"):
        find_model("llama3.1-8b", name)


def test_dtypes_have_many_names():
    assert parse_dtype("torch.bfloat16", "x") is parse_dtype("bfloat16", "x") is KvDtype.BF16


def test_a_key_and_a_value_may_differ_in_width():
    # 10 layers x 4 heads x (192 + 128) x 2 B.
    group = Full(layers=10, kv_heads=4, head_dim=192, value_dim=128)
    assert bytes_per_token(shape(group)) == 10 * 4 * 320 * 2
    assert bytes_per_token_per_rank(shape(group), 8) == 10 * 1 * 320 * 2


def shape(*groups: object, **fields: object) -> ModelShape:
    return ModelShape(source="test", groups=groups, max_context_tokens=1 << 20, **fields)  # type: ignore[arg-type]


# gpt-oss-120b: 36,864 B a token of full layers, and again of layers with a window of 128.
@pytest.mark.parametrize(
    ("tokens", "chunk", "stored", "read"),
    [
        # 62 chunks of 16; the window is 8 of them.
        (1000, 16, 62 * 16 * 73_728, 62 * 16 * 36_864 + 8 * 16 * 36_864),
        # The window lies within one chunk of 256, which is read whole.
        (1024, 256, 1024 * 73_728, 1024 * 36_864 + 256 * 36_864),
        # ceil(128 / 48) = 3 chunks.
        (480, 48, 480 * 73_728, 480 * 36_864 + 144 * 36_864),
        # Shorter than the window: everything.
        (96, 16, 96 * 73_728, 96 * 73_728),
        # Less than a chunk: nothing is stored.
        (255, 256, 0, 0),
        (0, 256, 0, 0),
    ],
)
def test_a_sliding_window_is_stored_whole_and_read_at_its_end(tokens, chunk, stored, read):
    model = find_model("gpt-oss-120b")
    assert stored_bytes(model, tokens, chunk_tokens=chunk) == stored
    assert read_bytes(model, tokens, chunk_tokens=chunk) == read


# llama4-scout: 49,152 B of full layers; 147,456 B of layers in spans of 8,192 tokens.
@pytest.mark.parametrize(
    ("tokens", "chunk", "windowed_tokens"),
    [
        (8192, 256, 0),
        (8448, 256, 256),
        (16128, 256, 7936),
        (4096, 256, 4096),
        # 39 chunks = 9,984 tokens; the span began at 8,192, a chunk's edge.
        (10_000, 256, 1792),
        # 3 chunks of 3,000: the span began within the third, which is read whole.
        (9000, 3000, 3000),
    ],
)
def test_a_chunked_layer_is_read_back_to_where_its_span_began(tokens, chunk, windowed_tokens):
    full = tokens // chunk * chunk
    expected = full * 49_152 + windowed_tokens * 147_456
    assert read_bytes(find_model("llama4-scout"), tokens, chunk_tokens=chunk) == expected


def test_a_state_is_stored_with_each_chunk_and_read_once():
    model, state = find_model("qwen3.5-397b"), 45 * 4_268_032
    assert stored_bytes(model, 1024, chunk_tokens=256) == 1024 * 30_720 + 4 * state
    assert read_bytes(model, 1024, chunk_tokens=256) == 1024 * 30_720 + state
    assert read_bytes(model, 200, chunk_tokens=256) == 0


def test_all_ranks_store_and_read_but_a_latent_once():
    assert read_bytes(find_model("deepseek-v3"), 512, ranks=8, chunk_tokens=256) == 512 * 70_272
    assert (
        read_bytes(find_model("qwen3-235b-a22b"), 512, ranks=8, chunk_tokens=256)
        == 2 * 512 * 192_512
    )
    # Kimi Linear's kind: the latent once, a state on each rank.
    kimi = find_model("qwen3.5-397b").groups[1]
    model = shape(Latent(layers=20, latent_dim=512, rope_dim=64), kimi)
    expected = 256 * 20 * 576 * 2 + 4 * (45 * 4_268_032 // 4)
    assert chunk_bytes(model, 256, ranks=4) == expected


def test_each_piece_is_padded_to_pages():
    # 16 tokens x 61 x 576 x 2 B = 1,124,352 B, 274.5 pages of 4 KiB.
    assert (
        stored_bytes(find_model("deepseek-v3"), 32, chunk_tokens=16, page_bytes=4096)
        == 2 * 275 * 4096
    )
    # A rank's 3 tokens x 18 x 2 x 1 x 64 x 2 B = 13,824 B = 3.375 pages, twice: full and sliding
    # layers.
    assert chunk_bytes(find_model("gpt-oss-120b"), 3, ranks=8, page_bytes=4096) == 8 * 2 * 4 * 4096
    assert read_bytes(
        find_model("gpt-oss-120b"), 300, ranks=8, chunk_tokens=3, page_bytes=4096
    ) == (8 * (100 + 43) * 4 * 4096)


def test_pieces_say_what_a_read_needs_of_a_chunk():
    growing, sliding = pieces(find_model("gemma4-26b"), 2)
    assert (growing.kind, growing.bytes_per_token, growing.window_tokens, growing.copies) == (
        "growing",
        10_240,
        None,
        2,
    )
    assert (sliding.kind, sliding.bytes_per_token, sliding.window_tokens) == (
        "sliding",
        102_400,
        1024,
    )
    assert [sliding.needed_chunks(n, 256) for n in (0, 1, 4, 5, 99)] == [0, 1, 4, 4, 4]
    assert [growing.needed_chunks(n, 256) for n in (0, 5)] == [0, 5]


def test_an_unknown_model_names_those_known():
    with pytest.raises(ConfigError, match=r"model 'zzz'.*tiny-1b, .*config\.json"):
        find_model("zzz")
    with pytest.raises(ConfigError, match=r"llama3.1-75b.*llama3.1-70b-instruct"):
        find_model("llama3.1-75b")


@pytest.mark.parametrize(
    "name",
    [
        "llama3.1-70b",
        "Llama-3.1-70B",
        "meta-llama/Llama-3.1-70B-Instruct",
        "Meta-Llama-3.1-70B-Instruct",
    ],
)
def test_a_model_is_found_by_what_people_call_it(name):
    assert find_model(name) == find_model("llama3.1-70b-instruct")


def test_a_quantised_model_is_another():
    with pytest.raises(ConfigError, match=r"llama3.1-70b-instruct"):
        find_model("meta-llama/Llama-3.1-70B-Instruct-FP8")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (shape(Full(layers=0, kv_heads=8, head_dim=128)), "layers(=0) … >= 1"),
        (shape(Full(layers=2, kv_heads=8, head_dim=2**30)), "head_dim(=1073741824)"),
        (shape(Full(layers=2**13, kv_heads=2**13, head_dim=128)), "token"),
        (shape(find_model("qwen3-next").groups[1]), "layer"),
        (
            shape(
                Full(layers=1, kv_heads=1, head_dim=64),
                Latent(layers=1, latent_dim=512, rope_dim=64),
            ),
            "attention",
        ),
        (
            shape(Latent(layers=1, latent_dim=256, rope_dim=64), kv_dtype=KvDtype.FP8_DS_MLA),
            "fp8_ds_mla packs",
        ),
        (
            shape(Sliding(layers=1, kv_heads=1, head_dim=64, window_tokens=0)),
            "window_tokens(=0)",
        ),
    ],
)
def test_shapes_that_cannot_be(model, message):
    with pytest.raises(ConfigError, match=f"here: .*{pattern(message)}"):
        check(model, "here")


def test_ranks_must_be_positive():
    with pytest.raises(ValueError, match="ranks"):
        pieces(find_model("tiny-1b"), 0)


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_command_prints_the_arithmetic():
    out = words(run_cli("kvtrace", "models", "llama3.1-70b-instruct", "--tp", 8).stdout)
    assert shows(out, "full 80 layers x 2 (K, V) x 8 heads x 128 x 2 B … 327,680")
    assert shows(out, "full 80 layers x 2 (K, V) x 1 head x 128 x 2 B … 40,960")
    assert shows(out, "8 ranks … 327,680 B … 1")
    assert shows(out, "8 ranks … 10,485,760 … 10.5 MB")
    assert "stored, dense 2,684,354,560 2.68 GB" in out


def test_show_reports_what_windows_and_partial_chunks_leave_out():
    out = words(
        run_cli("kvtrace", "models", "gpt-oss-120b", "--tokens", 1000, "--chunk", 16).stdout
    )
    assert "62 chunks; 8 tokens" in out
    assert f"read {62 * 16 * 36_864 + 8 * 16 * 36_864:,} " in out
    assert shows(out, "growing 62 … sliding 8")
    assert "4 ranks" in words(run_cli("kvtrace", "models", "llama3.1-8b", "--tp", 4).stdout)


def test_the_command_says_what_padding_adds():
    out = words(run_cli("kvtrace", "models", "deepseek-v3", "--chunk", 16, "--page", "4KiB").stdout)
    assert shows(out, "1,126,400 … 1.13 MB … 1,124,352")


def test_the_command_prints_json():
    listed = json.loads(run_cli("kvtrace", "models", "--json").stdout)["models"]
    assert {m["name"]: m["bytes_per_token"] for m in listed} == {
        n: g + w for n, (_, g, w) in TABLE.items()
    }
    one = json.loads(
        run_cli(
            "kvtrace", "models", "qwen3-235b-a22b", "--tp", 8, "--kv-dtype", "fp8", "--json"
        ).stdout
    )
    assert (one["bytes_per_token_per_rank"], one["stored_ranks"], one["replication_factor"]) == (
        24_064,
        8,
        2.0,
    )
    assert one["groups"][0]["formula_per_rank"] == "94 layers x 2 (K, V) x 1 head x 128 x 1 B"


def test_the_command_lists_every_model():
    out = run_cli("kvtrace", "models").stdout
    assert all(f"\n{name} " in out for name in TABLE)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nope",), "model 'nope'"),
        (("tiny-1b", "--kv-dtype", "fp4"), "--kv-dtype: … 'fp4'"),
        (("tiny-1b", "--tokens", "0"), "--tokens 0: … > 0"),
        (("tiny-1b", "--chunk", "-1"), "--chunk -1: … > 0"),
        (("tiny-1b", "--page", "0"), "--page 0: … > 0"),
        (("tiny-1b", "--page", "4x"), "unit 'x'"),
    ],
)
def test_the_command_refuses(args, message):
    done = run_cli("kvtrace", "models", *args, check=False)
    assert done.returncode == 2
    assert shows(done.stderr, message)
    assert done.stderr.count("\n") == 1
