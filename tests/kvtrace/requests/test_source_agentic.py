"""Agentic conversation files.

Ids kept apart, sub-agents as sessions, starts at 0 or drawn, faults by place.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import TRACES
from phrases import shows

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests.conversations import agentic
from kvtrace.sim.chains import chunk_chains


def rng():
    return np.random.default_rng(7)


def ask(t, tokens, ids, output=3, kind="n"):
    return {
        "t": t,
        "type": kind,
        "model": "m",
        "in": tokens,
        "out": output,
        "hash_ids": ids,
        "stop": "end_turn",
    }


def write(path, requests, **fields):
    whole = {
        "id": path.stem,
        "models": ["m"],
        "block_size": 64,
        "hash_id_scope": "local",
        "requests": requests,
    }
    path.write_text(json.dumps({**whole, **fields}), encoding="utf-8")
    return path


@pytest.fixture
def two(tmp_path):
    write(tmp_path / "b.json", [ask(0.0, 70, [1]), ask(2.5, 128, [1, 2])])
    write(tmp_path / "a.json", [ask(0.0, 64, [1]), ask(1.0, 192, [1, 2, 3], kind="s")])
    return tmp_path


def test_conversations_start_together_and_share_nothing(two):
    found = agentic.read(two, rng())
    assert found.arrival_ns.tolist() == [0, 0, 10**9, 2_500_000_000]
    assert found.input_tokens.tolist() == [64, 70, 192, 128]
    assert found.session_id.tolist() == [0, 1, 0, 1]
    assert found.turn.tolist() == [0, 0, 1, 1]
    assert found.block_tokens == 64
    assert found.block_offsets.tolist() == [0, 1, 2, 5, 7]
    ids = found.block_ids.tolist()
    assert (ids[0], ids[1]) == (ids[2], ids[5])
    assert len(set(ids)) == 5
    assert found.origin["unnamed_tokens"] == 6
    assert found.origin["files"] == ["a.json", "b.json"]
    assert shows(found.notes, "2 conversations")


def test_starts_are_drawn_from_the_seed(two):
    one, again = (agentic.read(two, rng(), conversation_rate_per_s=0.1) for _ in range(2))
    gap = round(np.random.default_rng(7).exponential(1e10, size=1)[0])
    assert (
        one.arrival_ns.tolist()
        == again.arrival_ns.tolist()
        == sorted([0, 10**9, gap, gap + 2_500_000_000])
    )
    assert any("Poisson at 0.1" in note for note in one.notes)


def test_global_ids_are_shared_between_files(tmp_path):
    write(tmp_path / "a.json", [ask(0.0, 64, [5])], hash_id_scope="global")
    write(tmp_path / "b.json", [ask(1.0, 128, [5, 6])], hash_id_scope="global")
    write(tmp_path / "c.json", [ask(2.0, 64, [5])])
    ids = agentic.read(tmp_path, rng()).block_ids.tolist()
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_subagents_are_sessions_with_their_conversations_ids(tmp_path):
    # Their times count from where they start, as in kv-cache-tester itself: all 63 in 710 of its
    # files begin at 0.
    inner = {"t": 1.0, "type": "subagent", "agent_id": "x", "requests": [
        ask(0.5, 64, [1]),
        {"t": 0.6, "type": "subagent", "requests": [ask(0.15, 64, [9])]},
        ask(2.0, 128, [1, 4]),
    ]}  # fmt: skip
    path = write(tmp_path / "a.json", [ask(0.0, 64, [1]), inner, ask(2.0, 128, [1, 2])])
    found = agentic.read(path, rng())
    assert found.arrival_ns.tolist() == [0, 1_500_000_000, 1_750_000_000, 2 * 10**9, 3 * 10**9]
    assert found.session_id.tolist() == [0, 1, 2, 0, 1]
    assert found.turn.tolist() == [0, 0, 0, 1, 1]
    ids = found.block_ids.tolist()
    assert ids[0] == ids[1] == ids[3] == ids[5]
    assert len(set(ids)) == 4
    assert found.origin["subagents"] == 2
    assert found.origin["conversations"] == 1


def test_times_that_go_backwards_are_sorted_and_counted(tmp_path):
    path = write(tmp_path / "a.json", [ask(0.0, 64, [1]), ask(2.0, 64, [2]), ask(1.0, 64, [3])])
    found = agentic.read(path, rng())
    assert (found.arrival_ns.tolist(), found.turn.tolist()) == ([0, 10**9, 2 * 10**9], [0, 2, 1])
    assert shows(found.notes, "1 times")


def test_ends_of_prompts_without_an_id_make_no_chunk(tmp_path):
    # 160 tokens are 2.5 blocks; 16-token chunks of the last half block have no id to be named by.
    found = agentic.read(
        write(tmp_path / "a.json", [ask(0.0, 160, [1, 2]), ask(1.0, 192, [1, 2, 3])]), rng()
    )
    chains = chunk_chains(found, 16)
    assert chains.offsets.tolist() == [0, 8, 20]
    assert chains.slots.tolist() == [*range(8), *range(12)]


@pytest.mark.parametrize(("requests", "fields", "message"), [
    ([], {}, "request"),
    ([ask(0, 64, [])], {}, "column requests[0].hash_ids: 0 ids … 64 … 64 … 1"),
    ([ask(0, 64, [1]), {"t": 1.0, "type": "n", "in": 5, "out": 1}], {}, "column requests[1]:"),
    ([{"t": 0, "type": "subagent", "requests": [ask(0, 64, [])]}], {}, "column requests[0].requests[0].hash_ids: "),
    ([ask(-1, 64, [1])], {}, "column requests.t: … `float`"),
    ([ask(0, -64, [1])], {}, "column requests.in: … `int`"),
    ([ask(0, 2**40, [1])], {}, "column requests.in: … `int` … 2147483647"),
    ([ask(0, 64, [1])], {"block_size": 0}, "column block_size: 0"),
    ([ask(0, 64, [1])], {"hash_id_scope": "here"}, "column hash_id_scope: 'here'"),
])  # fmt: skip
def test_bad_files_are_named(tmp_path, requests, fields, message):
    with pytest.raises(TraceError) as caught:
        agentic.read(write(tmp_path / "a.json", requests, **fields), rng())
    assert shows(str(caught.value), message)


def test_files_must_agree_on_the_block_size(tmp_path):
    write(tmp_path / "a.json", [ask(0, 64, [1])])
    write(tmp_path / "b.json", [ask(0, 32, [1])], block_size=32)
    with pytest.raises(TraceError, match=r"32 tokens.*64"):
        agentic.read(tmp_path, rng())


def test_nothing_there(tmp_path):
    with pytest.raises(TraceError, match=r"no \*\.json there"):
        agentic.read(tmp_path, rng())
    with pytest.raises(TraceError, match="no such file"):
        agentic.read(tmp_path / "a.json", rng())
    (tmp_path / "a.json").write_text('{"block_size"', encoding="utf-8")
    with pytest.raises(TraceError, match="not JSON: "):
        agentic.read(tmp_path, rng())


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf"), 1e-12])
def test_rates_that_cannot_be(two, rate):
    with pytest.raises(ConfigError):
        agentic.read(two, rng(), conversation_rate_per_s=rate)


@pytest.mark.traces
def test_the_24_conversations():
    found = agentic.read(TRACES / "agentic", rng())
    assert (len(found), len(np.unique(found.session_id))) == (555, 24)
    assert (len(found.block_ids), len(np.unique(found.block_ids))) == (1_027_648, 72_064)
    assert found.origin["rechained_ids"] == 0
    assert int(found.input_tokens.sum()) == 65_787_244
