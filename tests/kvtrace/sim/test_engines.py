"""The file tiers of SGLang and LMCache against their own code: what each request of a real trace moved, by object.

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
MODEL = ENGINES / "tinier-config.json"
TOKEN_BYTES, TRACE_BLOCK_TOKENS = 256, 512
OPERATIONS = ("write", "read", "delete")
FILES = 2
THREADS = 6
Objects = dict[int, dict[str, list[tuple[int, int]]]]
"""By request and operation."""


def done_by_engine(path: str) -> Objects:
    """Return what the engine did: lines of operation, request, first object, step to the next, and how many."""
    found: Objects = defaultdict(lambda: defaultdict(list))
    with gzip.open(ENGINES / f"{path}-ops.txt.gz", "rt") as lines:
        for line in lines:
            operation, request, first, step, count = line.split()
            writer, place = map(int, first.split(":"))
            found[int(request)][operation] += [(writer, place + int(step) * i) for i in range(int(count))]
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


def done_by_ours(folder: Path, preset: str, count: int, tokens: int, *capacities: int) -> Objects:
    """Return the same of our trace's files; a deletion is of the request whose operation comes after it."""
    trace = folder / "t.parquet"
    knobs: list[str] = []
    for tier, objects in zip(("gpu", "cpu", "nvme"), capacities, strict=True):
        knobs += ["--set", f"tiers.{tier}.capacity={objects * tokens * TOKEN_BYTES}"]
    more = ("--source", "mooncake", "--max-requests", count, "--preset", preset, "--gpu", "instant", *knobs)
    run_cli("kvtrace", "gen", CONVERSATION, *more, "--model", MODEL, "-o", trace)

    found: Objects = defaultdict(lambda: defaultdict(list))
    names, named, seen = first_had(count, tokens), {}, Counter()
    deleted: list[tuple[int, int]] = []
    columns = pq.read_table(trace, columns=["op", "tier", "request_id", "object_id"]).to_pydict()
    for op, tier, request, number in zip(*columns.values(), strict=True):
        if op == "delete" and tier == FILES:
            deleted.append(named[number])
        if request is None or tier != FILES:
            continue
        if op == "write" and number not in named:
            named[number] = names[request][seen[request]]
            seen[request] += 1
        found[request]["delete"] += deleted
        deleted = []
        found[request][op].append(named[number])
    return found


def test_sglang_writes_reads_and_deletes_the_same_pages_in_the_same_order(tmp_path):
    theirs = done_by_engine("sglang/sglang-0.5.23-files8192-200")
    ours = done_by_ours(tmp_path, "sglang-hicache", 200, 64, 0, 0, 8192)
    for request in range(200):
        for operation in OPERATIONS:
            assert ours[request][operation] == theirs[request][operation], (operation, request)
    assert sum(len(did["delete"]) for did in theirs.values()) == 33_661


def test_lmcache_writes_reads_and_deletes_the_same_chunks(tmp_path):
    theirs = done_by_engine("lmcache/lmcache-0.5.6-cpu512-disk4096-300")
    ours = done_by_ours(tmp_path, "lmcache-disk", 300, 256, 0, 512, 4096)
    for request in range(300):
        did, done = theirs[request], ours[request]
        assert done["read"] == did["read"], request
        assert sorted(done["write"]) == sorted(did["write"]), request
        # Six threads write a prompt's chunks, so that which of it are the oldest is chance by so many places.
        gone, to_go = done["delete"], did["delete"]
        assert len(gone) == len(to_go), request
        assert len(set(gone) - set(to_go)) <= THREADS, request
    assert sum(len(did["delete"]) for did in theirs.values()) == 11_817
