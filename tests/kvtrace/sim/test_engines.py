"""Presets against the engines' own code: what each request of a real trace moved there, object by object.

`tests/golden/engines` holds what the engines did, recorded while their own schedulers and storage tiers served
requests of Mooncake's conversation trace. An object is named there by the request that first had it and its place.
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
TOKEN_BYTES, TRACE_BLOCK_TOKENS = 256, 512
CPU, FILES = 1, 2
THREADS = 6
Objects = dict[int, dict[tuple[str, int], list[tuple[int, int]]]]
"""By request, and by operation and tier."""


def done_by_engine(path: str, meaning: dict[str, tuple[str, int]]) -> Objects:
    """Return what the engine did: lines of operation, request, first object, step to the next, and how many."""
    found: Objects = defaultdict(lambda: defaultdict(list))
    with gzip.open(ENGINES / f"{path}-ops.txt.gz", "rt") as lines:
        for line in lines:
            operation, request, first, step, count = line.split()
            writer, place = map(int, first.split(":"))
            found[int(request)][meaning[operation]] += [(writer, place + int(step) * i) for i in range(int(count))]
    return found


def first_had(count: int, tokens: int) -> dict[int, list[tuple[int, int]]]:
    """Return the names of the objects of `tokens` that each of the first `count` requests is the first to have."""
    requests = mooncake.read(CONVERSATION)
    seen: set[tuple[int, int]] = set()
    names: dict[int, list[tuple[int, int]]] = defaultdict(list)
    of_one = TRACE_BLOCK_TOKENS // tokens
    for n in range(count):
        ids = requests.block_ids[requests.block_offsets[n] : requests.block_offsets[n + 1]].tolist()
        for k in range(int(requests.input_tokens[n]) // tokens):
            if (part := (ids[k // of_one], k % of_one)) not in seen:
                seen.add(part)
                names[n].append((n, k))
    return names


def done_by_ours(folder: Path, preset: str, count: int, tokens: int, *capacities: int | None) -> Objects:
    """Return the same of our trace; a deletion is of the request whose operation comes after it."""
    model, trace = folder / "config.json", folder / "t.parquet"
    model.write_text(TINY)
    knobs: list[str] = []
    for tier, objects in zip(("gpu", "cpu", "nvme"), capacities, strict=False):
        if objects is not None:
            knobs += ["--set", f"tiers.{tier}.capacity={objects * tokens * TOKEN_BYTES}"]
    more = ("--source", "mooncake", "--max-requests", count, "--preset", preset, "--gpu", "instant", *knobs)
    run_cli("kvtrace", "gen", CONVERSATION, *more, "--model", model, "-o", trace)

    found: Objects = defaultdict(lambda: defaultdict(list))
    names, named, seen = first_had(count, tokens), {}, Counter()
    deleted: list[tuple[int, tuple[int, int]]] = []
    columns = pq.read_table(trace, columns=["op", "tier", "request_id", "object_id"]).to_pydict()
    for op, tier, request, number in zip(*columns.values(), strict=True):
        if op == "delete":
            deleted.append((tier, named[number]))
        if request is None:
            continue
        if op == "write" and number not in named:
            named[number] = names[request][seen[request]]
            seen[request] += 1
        for where, name in deleted:
            found[request]["delete", where].append(name)
        deleted = []
        found[request][op, tier].append(named[number])
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
    evict, load, promote, store = ("delete", CPU), ("load", 0), ("read", FILES), ("store", 0)
    theirs = done_by_engine(f"vllm/{golden}", {"evict": evict, "load": load, "promote": promote, "store": store})
    ours = done_by_ours(tmp_path, preset, count, 16, 0, cpu_blocks)
    for request in range(count):
        did, done = theirs[request], ours[request]
        assert (done[evict], done[promote]) == (did[evict], did[promote]), request
        # What it loads to the GPU was in the CPU tier, or came there from files just before.
        assert done["read", CPU] + done["read", FILES] == did[load], request
    assert sum(len(did[evict]) for did in theirs.values()) > 90_000
    if preset == "vllm-fs":
        # What is stored is written to a file once, by whichever of its threads, unless it is there already.
        written = [block for done in ours.values() for block in done["write", FILES]]
        assert sorted(written) == sorted({block for did in theirs.values() for block in did[store]})


def test_sglang_writes_reads_and_deletes_the_same_pages_in_the_same_order(tmp_path):
    meaning = {op: (op, FILES) for op in ("write", "read", "delete")}
    theirs = done_by_engine("sglang/sglang-0.5.23-files8192-200", meaning)
    ours = done_by_ours(tmp_path, "sglang-hicache", 200, 64, 0, 0, 8192)
    for request in range(200):
        for operation in meaning.values():
            assert ours[request][operation] == theirs[request][operation], (operation, request)
    assert sum(len(did["delete", FILES]) for did in theirs.values()) == 33_661


def test_lmcache_writes_reads_and_deletes_the_same_chunks(tmp_path):
    meaning = {op: (op, FILES) for op in ("write", "read", "delete")}
    theirs = done_by_engine("lmcache/lmcache-0.5.6-cpu512-disk4096-300", meaning)
    ours = done_by_ours(tmp_path, "lmcache-disk", 300, 256, 0, 512, 4096)
    for request in range(300):
        did, done = theirs[request], ours[request]
        assert done["read", FILES] == did["read", FILES], request
        assert sorted(done["write", FILES]) == sorted(did["write", FILES]), request
        # Six threads write a prompt's chunks, so that which of it are the oldest is chance by so many places.
        gone, to_go = done["delete", FILES], did["delete", FILES]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS, request
    assert sum(len(did["delete", FILES]) for did in theirs.values()) == 11_817
