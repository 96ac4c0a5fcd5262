"""What sources are made into.

Limits, jitter, time scale, cycles and cuts, worked by hand on small requests.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from phrases import show_each, shows

from kvtrace.core.errors import ConfigError
from kvtrace.requests.block_ids import BlockIds, prefix_chains
from kvtrace.requests.requests import Requests, take
from kvtrace.requests.reshape import CycleIds, OverLimit, Reshaping, reshape


def ints(*values):
    return np.array(values, dtype=np.int64)


def rng():
    return np.random.default_rng(3)


REQUESTS = Requests(
    arrival_ns=ints(0, 10, 10, 40), input_tokens=ints(8, 4, 12, 6), output_tokens=ints(1, 2, 3, 4),
    block_offsets=ints(0, 2, 3, 6, 8), block_ids=ints(5, 6, 7, 5, 6, 8, 7, 9), block_tokens=4,
    origin={"kind": "test"}, notes=("first",), session_id=ints(3, -1, 3, 8), turn=ints(0, -1, 1, 0),
    qos=ints(0, 1, -1, 2), kind=ints(0, 1, 2, 3),
)  # fmt: skip


def test_nothing_asked_changes_nothing():
    assert reshape(REQUESTS, Reshaping(), rng()) is REQUESTS


def test_rows_are_taken_with_their_blocks():
    found = take(REQUESTS, ints(3, 0, 0))
    assert found.arrival_ns.tolist() == [40, 0, 0]
    assert found.block_offsets.tolist() == [0, 2, 4, 6]
    assert found.block_ids.tolist() == [7, 9, 5, 6, 5, 6]
    assert (found.session_id.tolist(), found.turn.tolist()) == ([8, 3, 3], [0, 0, 0])
    assert (found.qos.tolist(), found.kind.tolist()) == ([2, 0, 0], [3, 0, 0])


def test_prompts_over_the_limit_are_dropped():
    found = reshape(REQUESTS, Reshaping(max_input_tokens=6), rng())
    assert found.input_tokens.tolist() == [4, 6]
    assert found.block_ids.tolist() == [7, 7, 9]
    assert show_each(found.notes, ["first", "2 prompts over 6 tokens"])
    assert found.origin == {"kind": "test", "shape": {"max_input_tokens": 6}}


def test_prompts_over_the_limit_are_clipped():
    found = reshape(REQUESTS, Reshaping(max_input_tokens=5, over_limit=OverLimit.CLIP), rng())
    assert found.input_tokens.tolist() == [5, 4, 5, 5]
    # 5 tokens are one block and a part of the next.
    assert found.block_offsets.tolist() == [0, 2, 3, 5, 7]
    assert found.block_ids.tolist() == [5, 6, 7, 5, 6, 7, 9]
    assert shows(found.notes[-1], "3 prompts over 5 tokens")
    assert found.origin["shape"] == {"max_input_tokens": 5, "over_limit": "clip"}


def test_a_limit_that_nothing_passes_is_refused():
    with pytest.raises(ConfigError, match="prompt"):
        reshape(REQUESTS, Reshaping(max_input_tokens=3), rng())
    assert reshape(REQUESTS, Reshaping(max_input_tokens=12), rng()).notes == ("first",)


def test_jitter_stays_within_the_tick_and_the_order():
    times = np.repeat(ints(0, 3000, 5999, 9000), 250)
    many = replace(
        REQUESTS, arrival_ns=times, input_tokens=np.arange(1000), output_tokens=np.arange(1000),
        block_offsets=np.zeros(1001, dtype=np.int64), block_ids=ints(), block_tokens=0,
        session_id=None, turn=None, qos=None, kind=None,
    )  # fmt: skip
    found = reshape(many, Reshaping(jitter_ns=3000), rng())
    moved = found.arrival_ns - times
    assert (np.diff(found.arrival_ns) >= 0).all()
    assert found.input_tokens.tolist() == list(range(1000))
    # The second tick is one nanosecond shorter: its requests stay before 5999.
    widths = np.repeat(ints(3000, 2999, 3000, 3000), 250)
    assert (moved >= 0).all()
    assert (moved < widths).all()
    assert moved.max() > 2900
    assert (
        found.arrival_ns.tolist()
        == reshape(many, Reshaping(jitter_ns=3000), rng()).arrival_ns.tolist()
    )
    other = reshape(many, Reshaping(jitter_ns=3000), np.random.default_rng(4))
    assert found.arrival_ns.tolist() != other.arrival_ns.tolist()


def test_jitter_never_reaches_the_next_time():
    close = replace(REQUESTS, arrival_ns=ints(0, 0, 1, 1))
    found = reshape(close, Reshaping(jitter_ns=10**9), rng())
    assert found.arrival_ns[:2].tolist() == [0, 0]
    assert 1 < found.arrival_ns[2] < found.arrival_ns[3] <= 10**9


def test_times_are_scaled():
    found = reshape(REQUESTS, Reshaping(time_scale=2.5), rng())
    assert found.arrival_ns.tolist() == [0, 25, 25, 100]
    assert shows(found.notes[-1], "2.5")


def test_cycles_of_distinct_blocks():
    found = reshape(REQUESTS, Reshaping(cycles=2), rng())
    # 40 ns, and a mean interval of 13.
    assert found.arrival_ns.tolist() == [0, 10, 10, 40, 53, 63, 63, 93]
    ids = found.block_ids.reshape(2, 8)
    assert (ids[1] - ids[0]).tolist() == [5] * 8
    assert len(np.unique(ids[0])) == 5
    assert not set(ids[0]) & set(ids[1])
    assert found.session_id.tolist() == [0, -1, 0, 1, 2, -1, 2, 3]
    assert found.turn.tolist() == [0, -1, 1, 0] * 2
    assert found.input_tokens.tolist() == [8, 4, 12, 6] * 2
    assert shows(found.notes[-1], "2 times … 53 ns … distinct")


def test_cycles_of_the_same_blocks():
    found = reshape(REQUESTS, Reshaping(cycles=3, cycle_ids=CycleIds.SAME), rng())
    assert found.block_ids.tolist() == [5, 6, 7, 5, 6, 8, 7, 9] * 3
    assert found.block_offsets.tolist() == [0, 2, 3, 6, 8, 10, 11, 14, 16, 18, 19, 22, 24]
    # Its conversations are new ones all the same.
    assert found.session_id[[0, 4, 8]].tolist() == [0, 2, 4]


def test_one_request_comes_every_second():
    one = take(REQUESTS, ints(0))
    assert reshape(one, Reshaping(cycles=3), rng()).arrival_ns.tolist() == [0, 10**9, 2 * 10**9]


def test_cuts_come_last():
    found = reshape(REQUESTS, Reshaping(cycles=10**9, max_requests=5), rng())
    assert found.arrival_ns.tolist() == [0, 10, 10, 40, 53]
    assert shows(found.notes[-1], "5 requests")
    assert reshape(REQUESTS, Reshaping(max_requests=4), rng()).notes == ("first",)


@pytest.mark.parametrize("options", [
    {"time_scale": 0.0}, {"time_scale": -1.0}, {"time_scale": float("nan")}, {"time_scale": float("inf")},
    {"cycles": 0}, {"max_requests": 0}, {"max_input_tokens": 0}, {"jitter_ns": -1},
])  # fmt: skip
def test_shapes_that_cannot_be(options):
    with pytest.raises(ConfigError):
        Reshaping(**options)


def test_what_outlasts_the_clock_is_refused():
    late = replace(REQUESTS, arrival_ns=ints(0, 1, 2, 2**60))
    with pytest.raises(ConfigError, match=r"time scale\(=4\)"):
        reshape(late, Reshaping(time_scale=4), rng())
    with pytest.raises(ConfigError, match="trace"):
        reshape(late, Reshaping(cycles=4), rng())
    with pytest.raises(ConfigError, match="trace"):
        reshape(REQUESTS, Reshaping(cycles=2**30), rng())


def test_prefix_chains_are_left_alone_and_others_are_made():
    offsets = ints(0, 2, 2, 5)
    chains = prefix_chains(ints(1, 2, 1, 2, 3), offsets)
    assert (chains.ids.tolist(), chains.renamed, chains.first_request) == ([1, 2, 1, 2, 3], 0, -1)
    assert not chains.notes()
    # 2 first, then behind 1: it has two prefixes, and so has 3 behind it.
    chains = prefix_chains(ints(2, 3, 1, 2, 3), offsets)
    assert (chains.renamed, chains.first_request) == (1, 2)
    assert len(set(chains.ids.tolist())) == 5
    assert prefix_chains(ints(), ints(0, 0)).renamed == 0


@pytest.mark.parametrize("piece_ids", [1, 7, 1 << 20])
@pytest.mark.parametrize("step", [1, 2**40])
@pytest.mark.parametrize("seed", range(5))
def test_equal_names_mean_equal_prefixes(seed, step, piece_ids, monkeypatch):
    monkeypatch.setattr("kvtrace.requests.block_ids._PIECE_IDS", piece_ids)
    draw = np.random.default_rng(seed)
    prompts = [
        tuple((draw.integers(0, 3, size=draw.integers(0, 7)) * step).tolist()) for _ in range(60)
    ]
    offsets = np.cumsum([0, *map(len, prompts)])
    ids, renamed, first_request = prefix_chains(
        np.array([i for p in prompts for i in p], dtype=np.int64), offsets
    )
    parents, conflicts = {}, []
    for row, prompt in enumerate(prompts):
        for parent, block in zip((None, *prompt), prompt, strict=False):
            if parents.setdefault(block, parent) != parent:
                conflicts.append((row, block))
    assert renamed == len({block for _, block in conflicts})
    assert first_request == conflicts[0][0]
    by_prefix, by_name = {}, {}
    for prompt, start in zip(prompts, offsets, strict=False):
        for place in range(len(prompt)):
            prefix, name = prompt[: place + 1], int(ids[start + place])
            assert by_prefix.setdefault(prefix, name) == name
            assert by_name.setdefault(name, prefix) == prefix


@pytest.mark.parametrize("seed", range(20))
def test_block_ids_are_those_of_lists(seed):
    draw = np.random.default_rng(seed)
    lists = [draw.integers(0, 9, size=draw.integers(0, 5)).tolist() for _ in range(12)]
    missing = draw.integers(0, 3, size=12) * draw.integers(0, 2)
    order = np.arange(12) if seed % 2 else draw.permutation(12)
    blocks = BlockIds()
    for ids in lists:
        blocks.append(ids)
    assert blocks.lengths.tolist() == [len(ids) for ids in lists]
    offsets, found = blocks.with_new_ids(missing).reordered(order)
    next_id = max((max(ids) for ids in lists if ids), default=-1) + 1
    for row, count in enumerate(missing):
        lists[row] = [*lists[row], *range(next_id, next_id + count)]
        next_id += count
    expected = [lists[row] for row in order]
    assert offsets.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert found.tolist() == [block for ids in expected for block in ids]
