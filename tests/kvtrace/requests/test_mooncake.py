from __future__ import annotations

import hashlib
import itertools
import json

import pytest
from phrases import shows
from simulated import kvtrace

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.requests.mooncake import read


def line(timestamp=0, input_length=600, output_length=5, hash_ids=(1, 2), **other):
    fields = {"timestamp": timestamp, "input_length": input_length, "output_length": output_length}
    return json.dumps(fields | {"hash_ids": list(hash_ids)} | other)


GOOD = [line(1000, 1025, 7, [4, 5, 6]), line(1000, 0, 0, []), line(4000, 512, 9, [4])]


def write(tmp_path, lines):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def test_a_good_file(tmp_path):
    path = write(tmp_path, GOOD)
    requests = read(path)
    assert len(requests) == 3
    assert requests.arrival_ns.tolist() == [0, 0, 3_000_000_000]  # from the first request
    assert requests.input_tokens.tolist() == [1025, 0, 512]
    assert requests.output_tokens.tolist() == [7, 0, 9]
    assert requests.block_offsets.tolist() == [0, 3, 3, 4]
    assert requests.block_ids.tolist() == [4, 5, 6, 4]
    assert requests.block_tokens == 512
    assert requests.origin == {
        "kind": "mooncake", "file": "m.jsonl", "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "requests": 3,
        "block_tokens": 512, "time_unit": "ms", "block_references": 4,
    }  # fmt: skip


def test_blank_lines_and_a_missing_last_newline_are_accepted(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(f"\n{line(session_id='x', delay=3)}\n  \n{line(5)}")
    assert len(read(path)) == 2
    path.write_text(f"{line()}\n{line(5)}", encoding="utf-8-sig")
    assert len(read(path)) == 2


def test_fractions_of_a_millisecond_count(tmp_path):
    assert read(write(tmp_path, [line(0), line(0.25)])).arrival_ns.tolist() == [0, 250_000]


BAD = {
    "not JSON": ('{"timestamp": 0,', None, "not JSON: "),
    "a list": ("[1, 2]", None, "`object` … `array`"),
    "no ids": (
        '{"timestamp": 0, "input_length": 3, "output_length": 4}',
        None,
        "`hash_ids`",
    ),
    "too few ids": (
        line(hash_ids=[1]),
        "hash_ids",
        "1 ids … 600 … 512 … 2",
    ),
    "too many ids": (
        line(hash_ids=[1, 2, 3]),
        "hash_ids",
        "3 ids … 600 … 512 … 2",
    ),
    "an id twice": (line(hash_ids=[1, 1]), "hash_ids", "twice"),
    "a negative id": (line(hash_ids=[1, -2]), "hash_ids", "Expected `int` >= 0"),
    "an id that overflows": (line(hash_ids=[1, 2**60]), "hash_ids", "Expected `int` <="),
    "negative tokens": (line(input_length=-1), "input_length", "Expected `int` >= 0"),
    "tokens that overflow": (
        line(output_length=2**31),
        "output_length",
        "Expected `int` <= 2147483647",
    ),
    "64 bits are not enough": (line(output_length=2**70), "output_length", "Expected `int` <="),
    "float tokens": (line(input_length=600.5), "input_length", "`int` … `float`"),
    "text tokens": (line(input_length="600"), "input_length", "`int` … `str`"),
    "no time": (
        line(timestamp=None),
        None,
        "`timestamp` … session_id",
    ),
    "a negative time": (line(timestamp=-1), "timestamp", "`float` >= 0.0"),
    "a time that overflows": (line(timestamp=1e300), "timestamp", "`float` <="),
    "a time beyond the clock": (
        line(timestamp=3e12),
        "timestamp",
        "3e+12 ms",
    ),
    "time out of order": (
        line(999),
        "timestamp",
        "1000 … 999 ms",
    ),
    "not UTF-8": (b'{"timestamp": "\xff\xfe"}', None, "m.jsonl, row 4"),
}


@pytest.mark.parametrize(("text", "column", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_named(tmp_path, monkeypatch, capsys, text, column, message):
    path = tmp_path / "m.jsonl"
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes("\n".join([GOOD[0], "", GOOD[1], ""]).encode() + data + b"\n")
    with pytest.raises(TraceError) as caught:
        read(path)
    # Lines count from 1, and blank ones count.
    assert (caught.value.path, caught.value.row) == (path, 4)
    assert caught.value.column == column or message.startswith("m.jsonl")
    assert shows(str(caught.value), message)
    assert (
        kvtrace(monkeypatch, "gen", "--source", "mooncake", path, "-o", tmp_path / "t.parquet") == 3
    )
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shows(shown.err, f"{path}, row 4")
    assert len(shown.err.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_an_empty_file_is_refused(tmp_path, lines):
    with pytest.raises(TraceError, match="no request"):
        read(write(tmp_path, lines))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.jsonl"):
        with pytest.raises(TraceError, match=f"{path.name}:"):
            read(path)


def test_seconds_taken_for_milliseconds_are_noted(tmp_path):
    # Three requests a second, but written in seconds and read as milliseconds: 3,000 a second.
    path = write(tmp_path, [line(i // 3) for i in range(31)])
    notes = read(path).notes
    assert shows(notes[-1], "3,100 requests … --time-unit s")
    requests = read(path, time_unit="s")
    assert requests.arrival_ns[-1] == 10 * 10**9
    assert not any("requests a second" in note for note in requests.notes)


def test_times_that_overflow_in_another_unit(tmp_path):
    with pytest.raises(TraceError, match=r"row 1, column timestamp: 1.7e\+12 s"):
        read(write(tmp_path, [line(1_700_000_000_000)]), time_unit="s")


def test_blocks_of_another_size(tmp_path):
    path = write(tmp_path, [line(input_length=33, hash_ids=[1, 2, 3])])
    assert read(path, block_tokens=16).block_tokens == 16
    with pytest.raises(TraceError, match="block size"):
        read(path)


def test_an_unknown_time_unit_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unit 'us'"):
        read(write(tmp_path, GOOD), time_unit="us")


def test_the_block_size_of_the_rows_counts(tmp_path):
    path = write(tmp_path, [line(input_length=33, hash_ids=[1, 2, 3], block_size=16)])
    assert read(path).block_tokens == 16
    path = write(
        tmp_path, [line(block_size=512), line(input_length=33, hash_ids=[1, 2, 3], block_size=16)]
    )
    with pytest.raises(TraceError, match=r"row 2, column block_size: 16.*512 tokens"):
        read(path)


def test_fields_that_are_not_used_are_named(tmp_path):
    requests = read(write(tmp_path, [line(priority=3), line(5, tenant="a")]))
    assert shows(requests.notes[-1], "not used: … priority, tenant")


def row(session, input_length, output_length, ids, **other):
    fields = {
        "session_id": session,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": ids,
    }
    return json.dumps(fields | other)


def test_later_turns_that_say_what_they_add(tmp_path):
    # Blocks of 10. Both sessions begin with blocks 7 and 8; the rest of each prompt is its own.
    path = write(tmp_path, [
        row("a", 25, 6, [7, 8, 9], timestamp=100, block_size=10), row("a", 4, 3, [1], delay=50, block_size=10),
        row("b", 25, 1, [7, 8, 2], timestamp=120, block_size=10), row("a", 20, 3, [3, 4], delay=900, block_size=10),
    ])  # fmt: skip
    requests = read(path)
    assert (requests.arrival_ns // 10**6).tolist() == [0, 20, 50, 950]
    assert requests.session_id.tolist() == [0, 1, 0, 0]
    assert requests.turn.tolist() == [0, 0, 1, 2]
    # a: 25, then 25 + 6 + 4, then 35 + 3 + 20.
    assert requests.input_tokens.tolist() == [25, 25, 35, 58]
    offsets = requests.block_offsets.tolist()
    chains = [requests.block_ids[a:b].tolist() for a, b in itertools.pairwise(offsets)]
    assert chains == [[7, 8], [7, 8], [7, 8, 10], [7, 8, 10, 11, 12]]
    assert shows(requests.notes[0], "0 … 2")
    assert "2 later turns" in requests.notes[1] == requests.untimed
    # What is left of the time to the next turn once its delay is taken off is the answer's.
    assert (requests.answered_ns // 10**6).tolist() == [0, 20, 50, 950]
    assert not any("no sessions" in note for note in requests.notes)


def test_later_turns_with_whole_prompts(tmp_path):
    path = write(tmp_path, [
        row("a", 25, 6, [7, 8, 9], timestamp=0, block_size=10),
        row("a", 35, 3, [7, 8, 10, 11], timestamp=9, block_size=10),
    ])  # fmt: skip
    requests = read(path)
    assert requests.input_tokens.tolist() == [25, 35]
    assert requests.block_ids.tolist() == [7, 8, 9, 7, 8, 10, 11]
    assert (requests.session_id.tolist(), requests.turn.tolist()) == ([0, 0], [0, 1])
    assert "whole" in requests.notes[0]


def test_a_row_needs_a_time_or_a_session(tmp_path):
    path = write(tmp_path, ['{"input_length": 3, "output_length": 4, "hash_ids": [1]}'])
    with pytest.raises(TraceError, match=r"row 1:.*`timestamp`.*session_id"):
        read(path)


def test_an_id_behind_two_prefixes_is_renamed_and_named(tmp_path):
    # Block 2 follows 1, then 3: two prefixes, although each row is a prefix chain.
    path = write(
        tmp_path,
        [
            line(0, 600, hash_ids=[1, 2]),
            "",
            line(1, 600, hash_ids=[1, 2]),
            line(2, 1100, hash_ids=[3, 2, 4]),
        ],
    )
    requests = read(path)
    blocks = requests.block_ids.tolist()
    assert blocks[:2] == blocks[2:4]
    assert len(set(blocks)) == 5
    assert requests.origin["rechained_ids"] == 1
    assert shows(requests.notes, "1 block ids … row 4")
