"""What vLLM 0.33's SimpleCPUOffloadConnector finds on its GPU and reads from its disk.

The counts are those of the real scheduler and connector, of a GPU of 66 blocks and a disk of 4,095:
hits are at most all tokens but one, and a store that has finished frees its blocks first first, so
that the GPU keeps the end of a prompt, which is no prefix.
"""

import json

import polars as pl
import pytest
from conftest import run_cli

MODEL = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "hidden_size": 64,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
BLOCK_BYTES = 16 * 512


@pytest.mark.parametrize(
    ("prompts", "writes_and_reads"),
    [
        # Whole blocks: the last one has the last token, and is computed again.
        (
            [(512, [1]), (1024, [2, 3]), (1024, [4, 5]), (512, [1])],
            [(32, 0), (64, 0), (64, 0), (0, 31)],
        ),
        ([(512, [1]), (1024, [2, 3]), (512, [1])], [(32, 0), (64, 0), (0, 31)]),
        # Of 511 tokens 31 blocks are whole, and the GPU has the last three of them.
        ([(511, [1]), (1023, [2, 3]), (1023, [1, 4])], [(31, 0), (63, 0), (32, 31)]),
    ],
)
def test_the_disk_is_read_behind_a_gap_on_the_gpu(tmp_path, prompts, writes_and_reads):
    log, config, trace = (tmp_path / name for name in ("r.jsonl", "config.json", "t.parquet"))
    config.write_text(json.dumps(MODEL))
    rows = [
        {"timestamp": 1000 * i, "input_length": tokens, "output_length": 1, "hash_ids": ids}
        for i, (tokens, ids) in enumerate(prompts)
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    sizes = {"gpu": 66 * BLOCK_BYTES, "nvme": 4095 * BLOCK_BYTES}
    settings = [a for t, size in sizes.items() for a in ("--set", f"tiers.{t}.capacity={size}")]
    run_cli(
        "kvtrace", "gen", log, "--source", "mooncake", "--preset", "vllm-disk", "--gpu", "instant",
        "--model", config, *settings, "-o", trace,
    )  # fmt: skip
    of_disk = pl.read_parquet(trace).filter(pl.col("tier").cast(pl.Int64) == 1)
    found = [
        tuple(
            len(of_disk.filter((pl.col("request_id") == i) & (pl.col("op") == op)))
            for op in ("write", "read")
        )
        for i in range(len(prompts))
    ]
    assert found == writes_and_reads
