"""ShareGPT JSON.

Turns that carry their history, tokens estimated and told, arrivals drawn from the caller's seed.
"""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
from phrases import shows

from kvtrace.core.errors import ConfigError, ProbeUnavailable, TraceError
from kvtrace.requests.conversations import encoder, sharegpt

CHARACTERS = {"tokenizer": "characters"}


def rng():
    return np.random.default_rng(7)


def talk(*messages):
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in messages]}


def write(path, conversations):
    path.write_text(json.dumps(conversations), encoding="utf-8")
    return path


FOUR_TURNS = talk(
    ("system", "s" * 8), ("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 3), ("human", "d" * 5),
    ("gpt", "e" * 4), ("human", "never answered"),
)  # fmt: skip


def test_prompts_carry_their_history(tmp_path):
    found = sharegpt.read(write(tmp_path / "s.json", [FOUR_TURNS]), rng(), **CHARACTERS)
    # 2 + 10; then 20 more, and questions of 3 and 5 characters: 1 and 2 tokens.
    assert found.input_tokens.tolist() == [12, 35]
    assert found.output_tokens.tolist() == [20, 1]
    assert found.session_id.tolist() == [0, 0]
    assert found.turn.tolist() == [0, 1]
    assert found.block_tokens == 0
    assert found.origin["unanswered"] == 1
    assert shows(found.notes, "1 last questions")
    assert shows(found.notes, "characters / 4")
    assert any("Poisson at 1" in note for note in found.notes)


def test_conversations_go_on_together_and_each_in_order(tmp_path):
    talks = [
        talk(*[(who, "abcd" * (k + 1)) for _ in range(k % 4 + 1) for who in ("human", "gpt")])
        for k in range(40)
    ]
    path = write(tmp_path / "s.json", talks)
    found = sharegpt.read(path, rng(), live_conversations=5, **CHARACTERS)
    assert len(found) == sum(k % 4 + 1 for k in range(40)) == 100
    started = []
    going = set()
    for session, turn, tokens in zip(found.session_id, found.turn, found.input_tokens, strict=True):
        if session not in started:
            started.append(session)
        going.add(session)
        # Turn t of conversation k has asked t + 1 times and been answered t times, k + 1 tokens
        # each.
        assert tokens == (2 * turn + 1) * (session + 1)
        if turn == session % 4:
            going.remove(session)
        assert len(going) <= 5
    assert not going
    assert sorted(started) == list(range(40))
    assert (np.diff(found.arrival_ns) >= 0).all()


def test_the_rate_is_the_one_asked_for(tmp_path):
    path = write(tmp_path / "s.json", [talk(("human", "hi"), ("gpt", "ho"))] * 4000)
    found = sharegpt.read(path, rng(), request_rate_per_s=20.0, **CHARACTERS)
    mean_s = found.arrival_ns[-1] / 1e9 / 3999
    assert abs(mean_s - 0.05) < 0.004  # five standard errors of the mean of 3,999 exponential gaps


def test_the_same_seed_gives_the_same_requests(tmp_path):
    path = write(tmp_path / "s.json", [FOUR_TURNS, FOUR_TURNS, FOUR_TURNS])
    one, two = (sharegpt.read(path, rng(), **CHARACTERS) for _ in range(2))
    other = sharegpt.read(path, np.random.default_rng(8), **CHARACTERS)
    assert one.arrival_ns.tolist() == two.arrival_ns.tolist()
    assert one.arrival_ns.tolist() != other.arrival_ns.tolist()


def test_conversations_may_be_limited(tmp_path):
    path = write(tmp_path / "s.json", [FOUR_TURNS, FOUR_TURNS, FOUR_TURNS])
    assert len(sharegpt.read(path, rng(), max_conversations=2, **CHARACTERS)) == 4


def test_what_makes_no_turn_is_counted(tmp_path):
    talks = [
        talk(), talk(("human", "alone")), talk(("gpt", "aaaa"), ("human", "bbbb"), ("gpt", "cccc")),
        talk(("someone", "dddd"), ("gpt", "eeee")),
    ]  # fmt: skip
    found = sharegpt.read(
        write(tmp_path / "s.json", talks), rng(), live_conversations=1, **CHARACTERS
    )
    assert found.input_tokens.tolist() == [2, 1]
    counts = {
        k: found.origin[k]
        for k in ("conversations", "empty_conversations", "unanswered", "unasked")
    }
    assert counts == {"conversations": 2, "empty_conversations": 2, "unanswered": 1, "unasked": 1}
    assert found.origin["unknown_speakers"] == 1


@pytest.mark.parametrize(("text", "message"), [
    ("", "empty"),
    ("[", "not JSON: "),
    ('{"a": 1}', "JSON"),
    ("[]", "no conversation"),
    ('[{"conversations": []}, {"conversations": [{"from": "human", "value": 5}]}]',
     "row 1, column conversations.value: … `str` … `int`"),
    ('[{"id": "a"}]', "row 0: … `conversations`"),
])  # fmt: skip
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "s.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TraceError) as caught:
        sharegpt.read(path, rng(), **CHARACTERS)
    assert shows(str(caught.value), message)


@pytest.mark.parametrize("options", [
    {"request_rate_per_s": 0.0}, {"request_rate_per_s": float("inf")}, {"request_rate_per_s": float("nan")},
    {"request_rate_per_s": 1e-12}, {"live_conversations": 0}, {"max_conversations": 0}, {"tokenizer": "words"},
])  # fmt: skip
def test_options_that_cannot_be(tmp_path, options):
    path = write(tmp_path / "s.json", [FOUR_TURNS])
    with pytest.raises(ConfigError):
        sharegpt.read(path, rng(), **{**CHARACTERS, **options})


class Encoding:
    def encode(self, text, disallowed_special):
        assert disallowed_special == ()
        return text.split()


def test_tiktoken_counts_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "tiktoken", types.SimpleNamespace(get_encoding=lambda _name: Encoding())
    )
    for name in ("auto", "tiktoken"):
        encode, per_token, words = encoder(name)
        assert (encode("three short words"), per_token) == (("three", "short", "words"), 1)
        assert words == "tiktoken's cl100k_base"


@pytest.mark.parametrize("is_installed", [False, True])
def test_without_tiktoken_characters_are_counted_or_it_is_said(monkeypatch, is_installed):
    def offline(_name):
        raise OSError("no network")

    module = types.SimpleNamespace(get_encoding=offline) if is_installed else None
    monkeypatch.setitem(sys.modules, "tiktoken", module)
    encode, per_token, words = encoder("auto")
    assert (encode("12345"), per_token) == ("12345", 4)
    assert shows(words, "characters / 4")
    with pytest.raises(ProbeUnavailable, match="pip install tiktoken"):
        encoder("tiktoken")
