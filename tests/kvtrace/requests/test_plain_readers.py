"""A plain second reader of each source agrees in requests, tokens, blocks, sessions and times."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from plain_requests import PAIRS, Own, S

from kvtrace.requests.conversations import sharegpt
from kvtrace.requests.registry import SOURCES

FILES = 25
"""Files a source in a plain run of the tests; `-m full` reads ten times as many."""


def numbered(names):
    """`names` as numbers by first appearance; None stays."""
    numbers = {}
    return [None if name is None else numbers.setdefault(name, len(numbers)) for name in names]


def prefixes(calls):
    """The chain of each call as numbers of prefixes, by first appearance."""
    numbers = {}
    chains = []
    for call in calls:
        before, chain = None, []
        for block in call.blocks:
            before = numbers.setdefault((before, block), len(numbers))
            chain.append(before)
        chains.append(chain)
    return chains


def check(source, seed, folder):
    pair, rng = PAIRS[source], Random(f"{source} {seed}")  # noqa: S311 - a test
    path = pair.make(folder / pair.file_name, rng)
    calls = pair.read(path)
    calls.sort(key=lambda call: call.time_ns)
    generators = [np.random.default_rng(1)] if pair.source == "agentic" else []
    requests = SOURCES[pair.source].load().read(path, *generators, **pair.options)
    # A table of kvtrace has its own clock; all other times count from the first request.
    start_ns = 0 if source == "requests" else calls[0].time_ns
    assert requests.arrival_ns.tolist() == [call.time_ns - start_ns for call in calls]
    assert requests.input_tokens.tolist() == [call.input_tokens for call in calls]
    assert requests.output_tokens.tolist() == [call.output_tokens for call in calls]
    offsets = requests.block_offsets.tolist()
    ids = numbered(requests.block_ids.tolist())
    chains = [ids[start:end] for start, end in itertools.pairwise(offsets)]
    if requests.block_tokens:
        assert chains == prefixes(calls)
    sessions = [call.session for call in calls]
    if any(session is not None for session in sessions):
        found = [None if number < 0 else number for number in requests.session_id.tolist()]
        assert numbered(found) == numbered(sessions)
    answered = [call.answered_ns for call in calls]
    if requests.answered_ns is not None and None not in answered:
        assert requests.answered_ns.tolist() == [ns - start_ns for ns in answered]


@pytest.mark.parametrize("source", PAIRS)
def test_a_plain_reader_agrees(tmp_path, source):
    for seed in range(FILES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(source, seed, folder)


@pytest.mark.full
@pytest.mark.parametrize("source", PAIRS)
def test_a_plain_reader_agrees_on_many_files(tmp_path, source):
    for seed in range(FILES, 10 * FILES):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check(source, seed, folder)


def test_every_source_has_a_plain_reader():
    # Requests of sharegpt and servegen are sampled: their own tests compare what is not.
    sampled = {"sharegpt", "servegen", "agentx"}
    assert {pair.source for pair in PAIRS.values()} == set(SOURCES) - sampled


@pytest.mark.parametrize("seed", range(FILES))
def test_turns_of_sharegpt_agree(tmp_path, seed):
    rng = Random(seed)  # noqa: S311 - a test
    conversations = []
    for number in range(rng.randint(1, 8)):
        speakers = [rng.choice(("human", "gpt", "system")) for _ in range(rng.randint(0, 8))]
        messages = [{"from": name, "value": "x" * rng.randrange(60)} for name in speakers]
        conversations.append({"id": str(number), "conversations": messages})
    conversations.append(
        {
            "id": "z",
            "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
        }
    )
    path = tmp_path / "s.json"
    path.write_text(json.dumps(conversations))
    turns = []
    for conversation in conversations:
        history, is_asked, of_conversation = 0, False, []
        for message in conversation["conversations"]:
            tokens = -(-len(message["value"]) // 4)
            if message["from"] == "gpt":
                of_conversation += [(history, tokens)] * is_asked
                is_asked = False
            is_asked |= message["from"] == "human"
            history += tokens
        turns += [tuple(of_conversation)] * bool(of_conversation)
    requests = sharegpt.read(path, np.random.default_rng(seed), tokenizer="characters")
    found = {}
    rows = zip(
        requests.session_id.tolist(),
        requests.turn.tolist(),
        requests.input_tokens.tolist(),
        requests.output_tokens.tolist(),
        strict=True,
    )
    for session, turn, prompt, answer in rows:
        assert turn == len(found.setdefault(session, []))
        found[session].append((prompt, answer))
    assert Counter(map(tuple, found.values())) == Counter(turns)


def test_own_blocks_are_unlike_all_others():
    assert Own() != Own()
    assert S == 10**9
