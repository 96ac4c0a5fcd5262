"""Damaged and hostile files, one of each kind that once did harm.

One line each, in little memory.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from conftest import run_cli, trace_meta, write_trace
from phrases import pattern, shows

from kvtrace.core import csv_tables, metadata, parquet_tables
from kvtrace.core.app import emit_json
from kvtrace.core.config import load_toml, override
from kvtrace.core.document.document import Chapter, Document, Sheet, parameters
from kvtrace.core.document.export import csv_lines, markdown
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.schema import OBJECTS, REQUESTS, TRACE, arrow_schema
from kvtrace.core.tables import create, open_checked, open_table
from kvtrace.core.units import printable

ROW = (0, "write", 2, "store", 0, 0, 4096, 0, 0, 0)
DEEP = b"[" * 100_000


def rows_of(path):
    return [row for batch in open_table(path).batches() for row in batch.to_pylist()]


def with_meta(path, meta: bytes):
    """Write the Parquet file at `path` anew, with `meta` for its metadata."""
    table = pq.read_table(path).replace_schema_metadata({b"kvtrace": meta})
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
@pytest.mark.parametrize(
    "meta",
    [b'{"schema_version":1,"table":"\xff"}', DEEP, b'{"schema_version":1,"x":' + DEEP, b"nul"],
)
@pytest.mark.parametrize("command", ["info", "validate"])
def test_metadata_that_is_no_text_or_no_json(tmp_path, suffix, meta, command):
    path = write_trace(tmp_path / f"t{suffix}", [ROW])
    if suffix == ".parquet":
        with_meta(path, meta)
    else:
        text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
        start = text.rindex(b"# end ")
        path.write_bytes(zstandard.compress(text[:start] + b"# end " + meta + b"\n"))
    done = run_cli("kvtrace", command, path, check=False)
    assert done.returncode == 3
    assert shows(done.stderr, f"kvtrace: error: {path}: … metadata")


@pytest.mark.parametrize(
    "changed",
    [
        {"stats": {"tiers": 5}}, {"stats": {"tiers": ["gpu"]}}, {"source": {"first_unix_ns": "now"}},
        {"stats": {"lookups": "8"}}, {"model": {"name": 3}},
        {"source": {"block_tokens": -1}}, {"rows": 2**70}, {"tiers": [{"name": "a\x1b[2J"}]}, {"preset": "a\nb"},
        {"tiers": [{"name": "gpu", "capacity_bytes": -1}]}, {"tiers": [{"name": "x" * 300}]},
    ],
)  # fmt: skip
def test_metadata_of_wrong_types_and_names(changed):
    data = json.loads(metadata.encode(trace_meta())) | changed
    with pytest.raises(TraceError, match="metadata"):
        metadata.decode(json.dumps(data).encode(), "t.parquet")


def test_a_footer_that_says_more_rows_than_the_file_can_hold(tmp_path):
    path = write_trace(tmp_path / "t.parquet", [ROW])
    meta = json.loads(pq.ParquetFile(path).metadata.metadata[b"kvtrace"])
    with_meta(path, json.dumps(meta | {"rows": 10**12}).encode())
    with pytest.raises(TraceError, match=r"1000000000000 rows.*1"):
        open_table(path)


def test_a_row_group_that_unpacks_to_more_than_it_may(tmp_path, monkeypatch):
    path = write_trace(tmp_path / "t.parquet", [ROW] * 1000)
    monkeypatch.setattr(parquet_tables, "MAX_GROUP_BYTES", 1000)
    with pytest.raises(TraceError, match="1000 bytes"):
        open_table(path)


@pytest.mark.parametrize("part", [b"\0", b"\n", b"0,chunk,other,1\n"])
def test_a_zstd_bomb(tmp_path, monkeypatch, part):
    monkeypatch.setattr(csv_tables, "_ALWAYS_ALLOWED_BYTES", 1 << 20)
    monkeypatch.setattr(csv_tables, "MAX_LINE_BYTES", 1 << 20)
    head = b'# kvtrace {"table":"objects","schema_version":1}\nobject_id,key,kind,size_bytes\n'
    path = tmp_path / "t.csv.zst"
    path.write_bytes(zstandard.compress(head + part * (100_000_000 // len(part))))
    assert path.stat().st_size < 40_000
    with pytest.raises(TraceError, match=r"t\.csv\.zst.*1000|line"):
        open_table(path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
def test_no_flipped_bit_becomes_another_number(tmp_path, suffix):
    rows = [(i * 1000, "write", 2, "store", i, 0, 4096 + i, i, 0, 0) for i in range(200)]
    path = write_trace(tmp_path / f"t{suffix}", rows)
    whole, data = (rows_of(path), open_table(path).meta), path.read_bytes()
    wrong = []
    for at in range(4, len(data), max(1, len(data) // 600)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            wrong += [at] if (rows_of(path), open_table(path).meta) != whole else []
        except TraceError:
            continue
    assert wrong == []


def test_text_that_is_not_utf8(tmp_path):
    path = tmp_path / "o.parquet"
    held = pa.array([b"\xff\xfe"], pa.binary())
    key = pa.Array.from_buffers(pa.string(), 1, held.buffers())
    kind = pa.array(["chunk"]).dictionary_encode()
    rows = pa.table(
        {"object_id": [0], "key": key, "kind": kind, "size_bytes": pa.array([1], pa.int64())}
    )
    pq.write_table(
        rows.replace_schema_metadata({b"kvtrace": metadata.encode(trace_meta(OBJECTS, rows=1))}),
        path,
    )
    with pytest.raises(TraceError, match=r"row 0, column key:.*UTF8"):
        open_checked(path, OBJECTS)


def test_a_column_whose_name_is_not_utf8(tmp_path):
    path = write_trace(tmp_path / "t.parquet", [ROW])
    path.write_bytes(path.read_bytes().replace(b"object_id", b"obj\xe5ct_id"))
    with pytest.raises(TraceError, match=r"t.parquet: .*utf-8"):
        open_table(path)


def test_bytes_that_add_up_to_more_than_can_be_reckoned_with(tmp_path):
    path = write_trace(
        tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 2**50, 0, 0, 0)] * 5000
    )
    with pytest.raises(TraceError, match=r"column length_bytes:.*4"):
        open_checked(path, TRACE)


@pytest.mark.parametrize(
    "text", ["[1_0]", "(1 2)", "[1 2", "[٣]", "[99999999999999999999]", "[1  2]"]
)
def test_a_list_in_a_csv_is_one_or_an_error(tmp_path, text):
    path = tmp_path / "r.csv.zst"
    row = {
        "arrival_ns": 0,
        "request_id": 0,
        "session_id": None,
        "turn": None,
        "input_tokens": 1,
        "output_tokens": 1,
    }
    row |= {"block_ids": [12], "qos": None, "kind": "trace"}
    with create(path, REQUESTS, trace_meta(REQUESTS)) as out:
        out.write(pa.RecordBatch.from_pylist([row], schema=arrow_schema(REQUESTS)))
    plain = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    path.write_bytes(zstandard.compress(plain.replace(b"[12]", text.encode())))
    with pytest.raises(TraceError, match=r"row 0, column block_ids:.*64"):
        rows_of(path)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 100_000, "a." * 100_000 + "b = 1", "x = " + "9" * 5000]
)
def test_toml_that_is_nested_or_long(tmp_path, text):
    path = tmp_path / "p.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"p\.toml: not valid TOML: "):
        load_toml(path)
    # As the value of an option it is text like any other.
    assert override({"a": 1}, [f"a={text}"])["a"] == text


@pytest.mark.parametrize(("data", "said"), [
    (DEEP, "JSON:"), (b'"\xff"', "JSON: … UTF-8"), (b"{", "not JSON: "),
    (b'"text"', "`int` … `str`"),
])  # fmt: skip
def test_json_that_is_none(data, said):
    with pytest.raises(TraceError, match=pattern(said)):
        decode_json(data, int if b"text" in data else object, "a.json")


HOSTILE = "=cmd|' /C calc'!A0\x1b[2J\u202e"


def test_names_that_a_terminal_or_a_spreadsheet_would_act_on(capsys):
    table = parameters("a table", Sheet.SUMMARY, {HOSTILE: HOSTILE, "+1": "@SUM(A1)", "-x": -1.5})
    documents = [Document(HOSTILE, HOSTILE, [Chapter(HOSTILE, [table], [HOSTILE])], [HOSTILE])]
    cells = [line.split(",") for line in csv_lines(documents).splitlines()]
    assert cells[1][0] == cells[1][3] == cells[1][6] == "'=cmd|' /C calc'!A0\\u001b[2J\\u202e"
    assert [row[3] for row in cells[2:]] == ["'+1", "'-x"]
    assert [row[6] for row in cells[2:]] == ["'@SUM(A1)", "-1.5"]
    assert "\x1b" not in markdown(documents)
    emit_json({"name": "\x9b31m\x7f"})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"name": "\x9b31m\x7f"}
    assert shown.isascii()
    assert printable("é a\tb\n漢") == "é a\tb\n漢"


def test_a_terminal_shows_names_by_their_codes(tmp_path):
    done = run_cli("kvtrace", "info", tmp_path / "a\x1b[2J.parquet", check=False)
    assert shows(done.stderr, "a\\u001b[2J.parquet:")
    assert done.stderr.rstrip("\n").isprintable()
