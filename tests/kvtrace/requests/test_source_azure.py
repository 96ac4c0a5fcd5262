"""Azure CSVs of every year: times with and without fraction and zone, order, and faults by line."""

from __future__ import annotations

import pytest
from conftest import TRACES
from phrases import show_each, shows

from kvtrace.core.errors import TraceError
from kvtrace.requests.columns import azure

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("times", "expected"), [
    (("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319601"), 52_000_100),
    (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00"), 990_070_000),
    (("2024-05-10 00:00:00Z", "2024-05-10 02:00:01.5+02:00"), 1_500_000_000),
    (("2023-12-31 23:59:59", "2024-01-01 00:00:00"), 1_000_000_000),
])  # fmt: skip
def test_every_kind_of_time_is_read(tmp_path, times, expected):
    found = azure.read(write(tmp_path / "a.csv", f"{HEAD}{times[0]},10,1\n{times[1]},20,2\n"))
    assert found.arrival_ns.tolist() == [0, expected]
    assert (found.input_tokens.tolist(), found.output_tokens.tolist()) == ([10, 20], [1, 2])
    assert found.block_tokens == 0
    assert found.session_id is None
    assert found.block_offsets.tolist() == [0, 0, 0]
    assert show_each(found.notes, ["no sessions, turns or block ids"])


def test_columns_are_found_by_name(tmp_path):
    # The multimodal file has its images before the tokens.
    text = (
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens,Region\n"
        "2024-10-15 00:00:00,2,100,3,eu\n2024-10-15 00:00:01,,50,4,eu\n"
    )
    found = azure.read(write(tmp_path / "m.csv", text))
    assert found.input_tokens.tolist() == [100, 50]
    assert found.origin["images"] == 2
    assert found.origin["unknown_columns"] == ["Region"]
    assert any("2 images" in note for note in found.notes)
    assert any("Region" in note for note in found.notes)


def test_rows_out_of_order_are_sorted_and_counted(tmp_path):
    rows = (
        "2023-11-16 00:00:02,1,1\n2023-11-16 00:00:00,2,2\n2023-11-16 00:00:02,3,3\n2023-11-16"
        " 00:00:01,4,4\n"
    )
    found = azure.read(write(tmp_path / "a.csv", HEAD + rows))
    assert found.arrival_ns.tolist() == [0, 10**9, 2 * 10**9, 2 * 10**9]
    assert found.input_tokens.tolist() == [2, 4, 1, 3]
    assert found.origin["out_of_order"] == 2
    assert any("2 times" in note for note in found.notes)


@pytest.mark.parametrize(("text", "message"), [
    ("", "empty:"),
    (HEAD, "request"),
    ("TIME,ContextTokens,GeneratedTokens\n", "row 1: … 'TIMESTAMP'"),
    ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", "row 1: … 'ContextTokens'"),
    (HEAD + "2023-11-16 00:00:00,5,1\nyesterday,5,1\n", "row 3, column TIMESTAMP: "),
    (HEAD + "2023-11-16 00:00:00,-5,1\n", "row 2, column ContextTokens: -5 … 0 … 2147483647 tokens"),
    (HEAD + "2023-11-16 00:00:00,5,2147483648\n", "row 2, column GeneratedTokens: 2147483648 … 0"),
    (HEAD + "2023-11-16 00:00:00,5,99999999999999999999\n", "row 2, column GeneratedTokens: "),
    (HEAD + "2023-11-16 00:00:00,5.5,1\n", "row 2, column ContextTokens: "),
    (HEAD + "2023-11-16 00:00:00,,1\n", "row 2, column ContextTokens:"),
    (HEAD + "2023-11-16 00:00:00,5\n", "row 2: … 3 columns … 2"),
    (HEAD + "2023-11-16 00:00:00,5,1\n2023-11-16 00:00:01+00:00,5,1\n", "row 3, column TIMESTAMP: "),
    (HEAD + "9999-11-16 00:00:00,5,1\n", "row 2, column TIMESTAMP: "),
    (HEAD + "1700-01-01 00:00:00,5,1\n2200-01-01 00:00:00,5,1\n", "clock"),
])  # fmt: skip
def test_bad_rows_are_named(tmp_path, text, message):
    with pytest.raises(TraceError) as caught:
        azure.read(write(tmp_path / "a.csv", text))
    assert shows(str(caught.value), message)


def test_a_binary_file_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00\x01\n1,2,3\n")
    with pytest.raises(TraceError, match="text file"):
        azure.read(path)


@pytest.mark.traces
def test_the_2023_code_trace():
    found = azure.read(TRACES / "azure_2023_code.csv")
    assert len(found) == 8819
    # 18:17:03.97996 to 19:14:19.928016
    assert int(found.arrival_ns[-1]) == 3_435_948_056_000
    assert int(found.input_tokens.sum()) == 18_059_974
    assert found.origin["out_of_order"] == 0
