"""BurstGPT CSVs: both headers, files, directories and globs, failures dropped, faults by line."""

from __future__ import annotations

import pytest
from conftest import TRACES
from phrases import shows

from kvtrace.core.errors import TraceError
from kvtrace.requests.columns import burstgpt

OLD = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
NEW = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_the_old_header(tmp_path):
    rows = (
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n45,GPT-4,10,3,99,API"
        " log\n"
    )
    found = burstgpt.read(write(tmp_path / "b.csv", OLD + rows))
    assert found.arrival_ns.tolist() == [0, 40 * 10**9]
    assert found.input_tokens.tolist() == [472, 10]
    assert found.output_tokens.tolist() == [18, 3]
    assert (found.session_id, found.turn, found.block_tokens) == (None, None, 0)
    assert (
        found.origin["failures"],
        found.origin["wrong_totals"],
        found.origin["conversations"],
    ) == (1, 1, None)
    assert shows(found.notes, "1 failed requests")
    assert shows(found.notes, "1 rows … total")
    assert found.origin["unknown_columns"] == []


def test_the_new_header_has_sessions(tmp_path):
    rows = (
        "0,b,1.5,ChatGPT,10,5,15,Conversation log\n"
        "1,,0.2,GPT-4,7,7,14,API log\n"
        "2,a,1.0,ChatGPT,3,4,7,Conversation log\n"
        "3,b,1.0,ChatGPT,20,1,21,Conversation log\n"
        "4,b,1.0,ChatGPT,20,1,21,Conversation log\n"
    )
    found = burstgpt.read(write(tmp_path / "b.csv", NEW + rows))
    assert found.session_id.tolist() == [0, -1, 1, 0, 0]
    assert found.turn.tolist() == [0, -1, 0, 1, 2]
    assert found.origin["conversations"] == 2
    # The last prompt, 20 tokens, is shorter than the 21 of the turn before it.
    assert shows(found.notes, "1 later prompts")
    assert any("history" in note for note in found.notes)


def test_a_session_column_without_sessions_is_none(tmp_path):
    found = burstgpt.read(write(tmp_path / "b.csv", NEW + "0,,1,GPT-4,7,7,14,API log\n"))
    assert found.session_id is None


def test_unknown_columns_are_told_and_order_does_not_matter(tmp_path):
    text = "Response tokens,Region,Timestamp,Request tokens\n2,eu,7,1\n4,us,6,3\n"
    found = burstgpt.read(write(tmp_path / "b.csv", text))
    assert found.input_tokens.tolist() == [3, 1]
    assert found.arrival_ns.tolist() == [0, 10**9]
    assert (found.origin["unknown_columns"], found.origin["out_of_order"]) == (["Region"], 1)


@pytest.mark.parametrize("name", [".", "part*.csv"])
def test_directories_and_globs_are_merged_on_one_clock(tmp_path, name):
    write(tmp_path / "part1.csv", OLD + "0,m,1,1,2,l\n9,m,2,1,3,l\n")
    write(tmp_path / "part2.csv", NEW + "4,s,1,m,3,1,4,l\n")
    found = burstgpt.read(tmp_path / name)
    assert found.input_tokens.tolist() == [1, 3, 2]
    assert found.arrival_ns.tolist() == [0, 4 * 10**9, 9 * 10**9]
    assert found.session_id.tolist() == [-1, 0, -1]
    assert found.origin["files"] == ["part1.csv", "part2.csv"]
    assert shows(found.notes, "2 files … seconds")


@pytest.mark.parametrize(("text", "message"), [
    ("", "empty:"),
    (OLD, "request"),
    (OLD + "5,m,1,0,1,l\n", "no request"),
    ("Timestamp,Model\n1,m\n", "row 1: … 'Request tokens' … 'Response tokens'"),
    (OLD + "5,m,1,1,2,l\n-1,m,1,1,2,l\n", "row 3, column Timestamp: -1.0 … 0 … 2147483648 seconds"),
    (OLD + "nan,m,1,1,2,l\n", "row 2, column Timestamp: nan"),
    (OLD + "1e300,m,1,1,2,l\n", "row 2, column Timestamp: 1e+300"),
    (OLD + "5,m,-1,1,0,l\n", "row 2, column Request tokens: -1"),
    (OLD + "5,m,x,1,0,l\n", "row 2, column Request tokens:"),
    (OLD + ",m,1,1,2,l\n", "row 2, column Timestamp: empty"),
])  # fmt: skip
def test_bad_rows_are_named(tmp_path, text, message):
    path = write(tmp_path / "b.csv", text)
    with pytest.raises(TraceError) as caught:
        burstgpt.read(path)
    assert str(caught.value).startswith(str(path))
    assert shows(str(caught.value), message)


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "x*.csv"):
        with pytest.raises(TraceError, match=r"no \*\.csv there"):
            burstgpt.read(path)
    with pytest.raises(TraceError, match="no such file"):
        burstgpt.read(tmp_path / "x.csv")


@pytest.mark.traces
def test_the_sample():
    found = burstgpt.read(TRACES / "burstgpt_sample54.csv")
    assert (len(found), found.origin["failures"]) == (51, 3)
    assert int(found.arrival_ns[-1]) == 3293 * 10**9
    assert int(found.output_tokens.sum()) == 18_367
