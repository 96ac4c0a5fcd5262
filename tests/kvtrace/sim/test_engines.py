"""Presets against the engines' own code: what each request of a real trace moved there, block by block.

`tests/golden/engines` holds what the engines did, recorded while their own schedulers and storage tiers served
requests of Mooncake's conversation trace. A block is named there by the request that first wrote it and its place.
"""

from __future__ import annotations

import gzip
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import TRACES, run_cli

from kvtrace.requests import mooncake

pytestmark = pytest.mark.traces

ENGINES = Path(__file__).parents[2] / "golden" / "engines"
CONVERSATION = TRACES / "mooncake_conversation.jsonl"
# A token of 256 bytes: vLLM's blocks of 16 tokens, and its files, are 4 KiB.
TINY = (
    '{"model_type": "llama", "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, '
    '"head_dim": 64, "hidden_size": 64, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"}'
)
BLOCK_TOKENS, TRACE_BLOCK_TOKENS, BLOCK_BYTES = 16, 512, 4096
CPU, FILES = 1, 2
Blocks = dict[int, dict[str, list[tuple[int, int]]]]


def done_by_vllm(name: str) -> Blocks:
    """Return what vLLM did for each request: lines of operation, request, first block, step to the next, and count."""
    found: Blocks = defaultdict(lambda: defaultdict(list))
    with gzip.open(ENGINES / "vllm" / f"{name}-ops.txt.gz", "rt") as lines:
        for line in lines:
            operation, request, block, step, count = line.split()
            writer, first = map(int, block.split(":"))
            found[int(request)][operation] += [(writer, first + int(step) * i) for i in range(int(count))]
    return found


def first_written(count: int) -> dict[int, list[tuple[int, int]]]:
    """Return the names of the blocks that each of the first `count` requests is the first to have."""
    requests = mooncake.read(CONVERSATION)
    seen: set[tuple[int, int]] = set()
    names: dict[int, list[tuple[int, int]]] = defaultdict(list)
    of_one = TRACE_BLOCK_TOKENS // BLOCK_TOKENS
    for n in range(count):
        ids = requests.block_ids[requests.block_offsets[n] : requests.block_offsets[n + 1]].tolist()
        for k in range(int(requests.input_tokens[n]) // BLOCK_TOKENS):
            if (block := (ids[k // of_one], k % of_one)) not in seen:
                seen.add(block)
                names[n].append((n, k))
    return names


def done_by_ours(trace: Path, count: int) -> Blocks:
    """Return the same of our trace; a deletion in the CPU tier is of the request whose write comes after it."""
    found: Blocks = defaultdict(lambda: defaultdict(list))
    names, named, seen = first_written(count), {}, Counter()
    waiting: list[tuple[int, int]] = []
    columns = pq.read_table(trace, columns=["op", "tier", "request_id", "object_id"]).to_pydict()
    for op, tier, request, number in zip(*columns.values(), strict=True):
        if op == "delete" and tier == CPU:
            waiting.append(named[number])
        if request is None:
            continue
        if op == "write" and number not in named:
            named[number] = names[request][seen[request]]
            seen[request] += 1
        of = found[request]
        of["evict"] += waiting
        waiting = []
        if op == "read":
            of["load"].append(named[number])
        if op == "read" and tier == FILES:
            of["promote"].append(named[number])
        if op == "write" and tier == FILES:
            of["files"].append(named[number])
    return found


@pytest.mark.parametrize(
    ("golden", "preset", "count", "cpu_blocks"),
    [
        # Some prompts are larger than the CPU tier.
        ("vllm-0.32.0-cpu4096-300", "vllm-offload-cpu", 300, 4096),
        ("vllm-0.32.0-fs-cpu2048-100", "vllm-fs", 100, 2048),
    ],
)
def test_vllm_evicts_and_loads_the_same_blocks_in_the_same_order(tmp_path, golden, preset, count, cpu_blocks):
    model, trace = tmp_path / "config.json", tmp_path / "t.parquet"
    model.write_text(TINY)
    knobs = ("--set", "tiers.gpu.capacity=0", "--set", f"tiers.cpu.capacity={cpu_blocks * BLOCK_BYTES}")
    more = ("--source", "mooncake", "--max-requests", count, "--preset", preset, "--gpu", "instant", *knobs)
    run_cli("kvtrace", "gen", CONVERSATION, *more, "--model", model, "-o", trace)
    theirs, ours = done_by_vllm(golden), done_by_ours(trace, count)
    for operation in ("evict", "load", "promote"):
        for request in range(count):
            assert ours[request][operation] == theirs[request][operation], (operation, request)
    assert sum(len(done["evict"]) for done in theirs.values()) > 90_000
    if preset == "vllm-fs":
        # What is stored is written to a file once, by whichever of 32 threads, unless it is there already.
        written = [block for done in ours.values() for block in done["files"]]
        assert sorted(written) == sorted({block for done in theirs.values() for block in done["store"]})
