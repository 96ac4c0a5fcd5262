"""Qwen-Bailian JSONL.

Conversations by parent links, block ids made prefix chains, faults by line.
"""

from __future__ import annotations

import json

import pytest
from phrases import show_each, shows

from kvtrace.core.errors import TraceError
from kvtrace.requests.columns import bailian
from kvtrace.requests.registry import detect


def line(chat, parent, time_s, tokens, ids, *, turn=1, output=5, kind="text"):
    return {
        "chat_id": chat, "parent_chat_id": parent, "timestamp": time_s, "input_length": tokens,
        "output_length": output, "type": kind, "turn": turn, "hash_ids": ids,
    }  # fmt: skip


def write(path, lines):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines), encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path):
    # Two conversations: 10 -> 12 -> {13, 14}, and 11 alone. Chat 15 names a parent that is not
    # there.
    return write(tmp_path / "b.jsonl", [
        line(10, -1, 1.5, 40, [1, 2, 3]),
        line(11, -1, 1.5, 16, [9]),
        line(12, 10, 2.0, 48, [1, 2, 4], turn=2),
        line(13, 12, 3.25, 64, [1, 2, 4, 5], turn=3, output=7),
        line(14, 12, 3.5, 50, [1, 2, 4, 6], turn=3, kind="search"),
        line(15, 99, 4.0, 0, [], turn=4),
    ])  # fmt: skip


def test_lines_become_requests(trace):
    found = bailian.read(trace)
    assert found.arrival_ns.tolist() == [
        0,
        0,
        500_000_000,
        1_750_000_000,
        2_000_000_000,
        2_500_000_000,
    ]
    assert found.input_tokens.tolist() == [40, 16, 48, 64, 50, 0]
    assert found.output_tokens.tolist() == [5, 5, 5, 7, 5, 5]
    assert found.session_id.tolist() == [0, 1, 0, 0, 0, 2]
    assert found.turn.tolist() == [0, 0, 1, 2, 2, 3]
    assert found.block_tokens == 16
    assert found.block_offsets.tolist() == [0, 3, 4, 7, 11, 15, 15]
    assert found.block_ids.tolist() == [1, 2, 3, 9, 1, 2, 4, 1, 2, 4, 5, 1, 2, 4, 6]


def test_what_is_odd_is_counted(trace):
    found = bailian.read(trace)
    assert found.origin["conversations"] == 3
    assert found.origin["orphans"] == 1
    assert found.origin["types"] == {"search": 1, "text": 5}
    assert found.origin["rechained_ids"] == 0
    assert found.origin["unnamed_tokens"] == 0
    assert any("1 requests" in note for note in found.notes)


def test_ids_of_contents_become_prefix_chains(tmp_path):
    # Block 7 stands behind 1, behind 2, and twice in the last prompt: four different prefixes.
    path = write(tmp_path / "c.jsonl", [
        line(1, -1, 0, 32, [1, 7]), line(2, -1, 1, 32, [2, 7]), line(3, -1, 2, 48, [1, 7, 7]),
    ])  # fmt: skip
    found = bailian.read(path)
    one, two = found.block_ids[0:2].tolist(), found.block_ids[2:4].tolist()
    three = found.block_ids[4:7].tolist()
    assert three[:2] == one
    assert len({*one, *two, *three}) == 5
    assert found.origin["rechained_ids"] == 1
    assert shows(found.notes, "1 block ids … row 2")


def test_ids_may_be_of_whole_blocks_only(tmp_path):
    found = bailian.read(write(tmp_path / "w.jsonl", [line(1, -1, 0, 40, [1, 2])]))
    assert found.origin["unnamed_tokens"] == 8


def test_unknown_types_are_told(tmp_path):
    found = bailian.read(write(tmp_path / "t.jsonl", [line(1, -1, 0, 16, [1], kind="video")]))
    assert show_each(found.notes, ["1 requests … video"])


@pytest.mark.parametrize(("lines", "message"), [
    ([line(1, -1, 0, 33, [1])], "row 1, column hash_ids: 1 ids … 33 … 16 … 3"),
    ([line(1, -1, 0, 16, [1]), line(1, -1, 1, 16, [1])], "row 2, column chat_id: … 1"),
    ([line(1, -1, 5, 16, [1]), line(2, -1, 4, 16, [1])], "row 2, column timestamp:"),
    ([line(1, -1, -1, 16, [1])], "row 1, column timestamp: … `float`"),
    ([line(1, -1, 0, -1, [])], "row 1, column input_length: … `int` … 0"),
    ([line(1, -1, 0, 2**31, [1])], "row 1, column input_length: … `int` … 2147483647"),
    ([line(1, -1, 1e30, 16, [1])], "row 1, column timestamp:"),
    ([line(1, -1, 0, 16, [-4])], "row 1, column hash_ids: "),
    ([line(1, -1, 0, 16, [1], turn=0)], "row 1, column turn:"),
    ([{"chat_id": 1}], "row 1:"),
    ([], "request"),
])  # fmt: skip
def test_bad_lines_are_named(tmp_path, lines, message):
    with pytest.raises(TraceError) as caught:
        bailian.read(write(tmp_path / "b.jsonl", lines))
    assert shows(str(caught.value), message)


def without_ids(*fields):
    row = line(*fields, [])
    del row["hash_ids"]
    return row


def test_a_file_without_ids_has_conversations_only(tmp_path):
    path = write(
        tmp_path / "n.jsonl",
        [
            without_ids(1, -1, 0, 100),
            without_ids(2, -1, 1, 50),
            without_ids(3, 1, 2, 160),
            without_ids(4, 1, 3, 90),
        ],
    )
    assert detect(path) == "bailian"
    found = bailian.read(path)
    assert (found.block_tokens, found.session_id.tolist()) == (0, [0, 1, 0, 0])
    assert found.input_tokens.tolist() == [100, 50, 160, 90]
    assert shows(found.notes, "no hash_ids … conversation")
    assert shows(found.notes, "1 chats branch off")
    assert shows(found.notes, "1 later prompts … shorter")


def test_a_prompt_without_ids_among_others_is_never_reused(tmp_path):
    rows = [line(1, -1, 0, 32, [1, 2]), without_ids(2, -1, 1, 40), line(3, -1, 2, 32, [1, 2])]
    found = bailian.read(write(tmp_path / "m.jsonl", rows))
    assert found.block_offsets.tolist() == [0, 2, 4, 6]
    assert len(set(found.block_ids.tolist())) == 4
    assert shows(found.notes, "1 requests … no hash_ids")
    assert shows(found.notes, "2 blocks … no id")
