"""Blocks that generated tokens fill take GPU memory, as in vLLM's block pool."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from conftest import run_cli
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import preset_of, requests_of, simulate

from kvtrace.requests.requests import Requests
from kvtrace.requests.users import ServingMode, Workload
from kvtrace.sim.presets.preset import load_preset
from kvtrace.sim.presets.tier import Recency
from kvtrace.sim.simulation import Load

BLOCK = 16
LLAMA_8B_BYTES = 131_072
"""KV cache of a token of llama3.1-8b."""


class PagedGpu:
    """The free queue of vLLM's block pool, for requests one after the other.

    A block is free at the front if no prefix names it, else at the end, the last one of a request
    first. A request takes blocks from the front, but for those of its prefix that are still there.
    """

    def __init__(self, blocks: int) -> None:
        self.free: list[object] = [None] * blocks

    def serve(self, prefix: list[object], tokens: int, output: int) -> int:
        """Serve a prompt of `tokens`, whose whole blocks `prefix` names; return its hits."""
        hits = 0
        while hits < len(prefix) and prefix[hits] in self.free:
            hits += 1
        for name in prefix[:hits]:
            self.free.remove(name)
        computed = tokens + max(0, output - 1)  # The last token is never an input.
        unnamed = [object() for _ in range(computed // BLOCK - len(prefix))]
        partial = [None] * (computed % BLOCK > 0)
        taken = [*prefix, *unnamed, *partial]
        del self.free[: len(taken) - hits]
        self.free = [*partial, *self.free, *reversed([*prefix, *unnamed])]
        return hits


def hits_of(rows, count):
    """Return how many objects each of `count` requests read in the first tier."""
    reads = Counter(row[6] for row in rows if row[1:3] == ("read", 0))
    return [reads[n] for n in range(count)]


def gpu_preset(*blocks, **fields):
    """Return a preset of a GPU of so many blocks, of a byte a token, and the tiers below it."""
    sizes = [None if count is None else count * BLOCK for count in blocks]
    return preset_of(*sizes, chunk_tokens=BLOCK, is_gpu=True, recency=Recency.TAIL_FIRST, **fields)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_hits_equal_those_of_a_paged_gpu_cache(data):
    blocks = data.draw(st.integers(12, 40))
    names: dict[tuple[int, ...], int] = {}
    rows, expected, gpu = [], [], PagedGpu(blocks)
    # Prompts are walks down one tree, so that they share prefixes; each request fits the GPU.
    walks = st.lists(st.integers(0, 1), min_size=1, max_size=6)
    for n in range(data.draw(st.integers(2, 12))):
        walk = data.draw(walks)
        ids = [names.setdefault(tuple(walk[: i + 1]), len(names)) for i in range(len(walk))]
        tokens = len(ids) * BLOCK - data.draw(st.sampled_from([0, 1, 9]))
        output = data.draw(st.sampled_from([0, 1, 2, 17, 40, 96]))
        rows.append((n, tokens, output, ids))
        expected.append(gpu.serve(list(ids[: tokens // BLOCK]), tokens, output))
    load = Load(requests=requests_of(rows, block_tokens=BLOCK))
    assert hits_of(simulate(gpu_preset(blocks), load)[1], len(rows)) == expected


@pytest.mark.parametrize(
    ("preset", "hit_tokens"), [("vllm-offload-cpu", 288), ("kvbm", 288), ("lmcache-disk", 256)]
)
def test_an_answer_displaces_the_end_of_an_older_prompt(tmp_path, preset, hit_tokens):
    # 88 blocks: A takes 38 and frees the unfilled one, B 70, of which 19 were A's last 19.
    log, trace = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    prompts = [(1, [1, 2]), (512, [3, 4]), (1, [1, 2])]
    log.write_text("".join(
        json.dumps({"timestamp": 60_000 * n, "input_length": 600, "output_length": output, "hash_ids": ids}) + "\n"
        for n, (output, ids) in enumerate(prompts)
    ))  # fmt: skip
    sizes = {"gpu": 88 * BLOCK * LLAMA_8B_BYTES, "cpu": 0}
    knobs = [part for t, size in sizes.items() for part in ("--set", f"tiers.{t}.capacity={size}")]
    run = run_cli(
        "kvtrace", "gen", log, "--source", "mooncake", "--preset", preset, "--model",
        "llama3.1-8b", *knobs, "-o", trace, "--json",
    )  # fmt: skip
    gpu = json.loads(run.stdout)["stats"]["tiers"][0]
    assert gpu["read_bytes"] == hit_tokens * LLAMA_8B_BYTES


def test_an_answer_takes_memory_as_it_is_generated():
    # Seven blocks. The second request generates 48 tokens in 480 ns: its blocks are taken after 0,
    # 160 and 320 ns, the last one from the first request, as the next one at that node sees.
    times = {"decode_ns_per_token": 10, "prefill_in_turn": False}
    for third_at, hits in ((300, 4), (400, 3)):
        asked = [(0, 0, [1, 2, 3, 4]), (1, 48, [9]), (third_at, 0, [1, 2, 3, 4])]
        requests = requests_of(
            [(at, len(ids) * BLOCK, output, ids) for at, output, ids in asked], block_tokens=BLOCK
        )
        _, rows, *_ = simulate(gpu_preset(7, **times), Load(requests=requests))
        generated = [row[0] for row in rows if row[3] == "decode"]
        assert generated == ([1, 300, 481] if hits == 4 else [1, 400, 400])
        assert hits_of(rows, 3) == [0, 0, hits]


def conversation(rows):
    """Return requests of one conversation, (arrival_ns, input tokens, output tokens)."""
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]
    return Requests(
        *columns, np.zeros(len(rows) + 1, np.int64), np.zeros(0, np.int64), 0, {}, (),
        session_id=np.zeros(len(rows), np.int64),
    )  # fmt: skip


def test_the_next_turn_finds_and_stores_the_answer():
    # The first turn computes 20 + 44 tokens: two blocks of its answer go on from the prompt's
    # one, and a third is full but for the token that is never an input.
    preset = gpu_preset(100, None)
    requests = conversation([(0, 20, 45), (10, 80, 1)])
    simulation, rows, *_ = simulate(preset, Load(requests=requests))
    first = [row for row in rows if row[6] == 0]
    assert Counter(row[1:4] for row in first) == {
        ("write", 0, "prefill"): 1, ("write", 1, "store"): 1, ("write", 0, "decode"): 3,
    }  # fmt: skip
    second = [row for row in rows if row[6] == 1]
    # 80 tokens are five blocks: four are found, three of which are generated, and stored now.
    assert Counter(row[1:4] for row in second) == {
        ("read", 0, "load"): 4, ("write", 0, "prefill"): 1, ("write", 1, "store"): 4,
    }  # fmt: skip
    assert simulation.stats().tiers[1].written_bytes == 5 * BLOCK


def test_answers_take_memory_only_where_requests_run():
    assert load_preset("vllm-fs").holds_answers
    assert not load_preset("mlperf").holds_answers
    assert not load_preset("vllm-fs", ["tiers.gpu.capacity=0"]).holds_answers
    alone = Workload(mode=ServingMode.PREFILL_ONLY)
    assert not gpu_preset(64, workload=alone).holds_answers
