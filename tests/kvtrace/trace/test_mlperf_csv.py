from __future__ import annotations

import pyarrow as pa
import pytest
import zstandard
from conftest import trace_batch, trace_meta, write_trace
from phrases import shows
from simulated import kvtrace
from whole import read_table

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import OBJECTS, TRACE, Phase, arrow_schema
from kvtrace.core.tables import create, objects_path, open_table
from kvtrace.trace import mlperf_csv

HEADER = "Timestamp,Operation,Object_Size_Bytes,Tier,Key,Phase"
GOOD = [
    "1700000000.000001,Write,4096,Tier-0,user_1_turn_1,Prefill",
    "1700000000.000003,Read,4096,Tier-0,user_1_turn_1,Decode",
    "1700000000.250000,Read,4096,Tier-0,user_1_turn_1,Evict",
    "1700000000.250000,Write,4096,Tier-1,user_1_turn_1,Evict",
    "1700000001.000000,Write,8192,Tier-2,user_2_turn_1,Prefill",
    "1700000002.500000,Read,512,Tier-2,user_2_turn_1,Prefill",
]


def write(path, lines):
    text = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(zstandard.compress(text) if path.name.endswith(".zst") else text)
    return path


def text_of(path):
    data = path.read_bytes()
    return (
        zstandard.ZstdDecompressor().stream_reader(data).read() if path.suffix == ".zst" else data
    ).decode()


def load(source, tmp_path):
    target = tmp_path / "t.parquet"
    state = mlperf_csv.read_into(source, target, ["kvtrace", "convert"], lambda _: None)
    return state, target, [tuple(row.values()) for row in read_table(target, TRACE).to_pylist()]


@pytest.mark.parametrize("name", ["m.csv", "m.csv.zst"])
def test_an_import_is_exact(tmp_path, name):
    state, target, rows = load(write(tmp_path / name, [HEADER, *GOOD]), tmp_path)
    assert rows == [
        (0, "write", 0, "prefill", 0, 0, 4096, None, None, 0),
        (2_000, "read", 0, "decode", 0, 0, 4096, None, None, 0),
        (249_999_000, "read", 0, "demote", 0, 0, 4096, None, None, 0),
        (249_999_000, "write", 1, "demote", 0, 0, 4096, None, None, 0),
        (999_999_000, "write", 2, "prefill", 1, 0, 8192, None, None, 0),
        (2_499_999_000, "read", 2, "load", 1, 0, 512, None, None, 0),
    ]
    assert [tuple(o.values()) for o in read_table(objects_path(target), OBJECTS).to_pylist()] == [
        (0, "user_1_turn_1", "other", 4096), (1, "user_2_turn_1", "other", 8192),
    ]  # fmt: skip
    meta = open_table(target).meta
    assert [t.name for t in meta.tiers] == ["gpu", "cpu", "nvme"]
    assert {t.capacity_bytes for t in meta.tiers} == {None}
    assert meta.source == {
        "kind": "mlperf-csv",
        "file": name,
        "first_unix_ns": 1_700_000_000_000_001_000,
    }
    assert not meta.is_simulated
    assert (meta.seed, meta.preset, meta.stats) == (None, None, None)
    assert len(state.notes()) == 1
    assert shows(meta.notes[0], "deletes")


def test_many_blocks_are_one_trace(tmp_path, monkeypatch):
    monkeypatch.setattr(mlperf_csv, "BLOCK_BYTES", 100)
    lines = [f"{1700000000 + i}.5,Write,{i},Tier-1,key_{i % 7},Prefill" for i in range(100)]
    _, target, rows = load(write(tmp_path / "m.csv", [HEADER, *lines]), tmp_path)
    assert [(r[0], r[4], r[6]) for r in rows] == [(i * 10**9, i % 7, i) for i in range(100)]
    assert read_table(objects_path(target), OBJECTS).column("size_bytes").to_pylist() == [
        98,
        99,
        93,
        94,
        95,
        96,
        97,
    ]


def test_times_that_go_back_are_raised_and_counted(tmp_path):
    lines = [
        "10.5,Write,1,Tier-0,a,Prefill",
        "10.25,Write,1,Tier-0,b,Prefill",
        "10.75,Write,1,Tier-0,c,Prefill",
        "9,Write,1,Tier-0,d,Prefill",
    ]
    state, target, rows = load(write(tmp_path / "m.csv", [HEADER, *lines]), tmp_path)
    assert [r[0] for r in rows] == [0, 0, 250_000_000, 250_000_000]
    assert (state.raised_rows, state.raised_most_ns) == (2, 1_750_000_000)
    assert shows(open_table(target).meta.notes[1], "2 of 4 rows … 1.75 s")


def test_phases_we_do_not_know_are_kept_as_other_and_noted(tmp_path):
    lines = [line.replace("Decode", "Warmup") for line in GOOD] + [
        "1700000009,Read,1,Tier-0,k,Prefill_decode"
    ]
    state, _, rows = load(write(tmp_path / "m.csv", [HEADER, *lines]), tmp_path)
    assert [rows[1][3], rows[6][3]] == ["other", "load"]
    assert state.notes()[1:] == ["phase 'Warmup' (1 row) is 'other' here"]


def test_a_quoted_key(tmp_path):
    lines = [HEADER, '1,Write,5,Tier-0,"a,""b""",Prefill']
    _, target, _ = load(write(tmp_path / "m.csv", lines), tmp_path)
    assert read_table(objects_path(target), OBJECTS).column("key").to_pylist() == ['a,"b"']


def test_lines_may_end_as_on_windows(tmp_path):
    path = tmp_path / "m.csv"
    path.write_bytes("\r\n".join([HEADER, *GOOD, ""]).encode())
    assert [r[3] for r in load(path, tmp_path)[2]] == [
        "prefill",
        "decode",
        "demote",
        "demote",
        "prefill",
        "load",
    ]


def test_a_header_alone_is_an_empty_trace(tmp_path):
    assert load(write(tmp_path / "m.csv", [HEADER]), tmp_path)[2] == []


BAD = {
    "tier": (
        "1,Write,5,Tier-7,k,Prefill",
        "column Tier: … 'Tier-7' … Tier-0, Tier-1",
    ),
    "operation": (
        "1,Peek,5,Tier-0,k,Prefill",
        "column Operation: … 'Peek'",
    ),
    "negative size": ("1,Read,-5,Tier-0,k,Prefill", "column Object_Size_Bytes:"),
    "size overflows": (
        "1,Read,99999999999999999999,Tier-0,k,Prefill",
        "column Object_Size_Bytes: CSV",
    ),
    # What no table may hold: it was written, and no program could read it.
    "size beyond a trace's": (
        "1,Read,1125899906842625,Tier-0,k,Prefill",
        "column Object_Size_Bytes: … 1",
    ),
    "time beyond a trace's": (
        "4611686019,Read,5,Tier-0,k,Prefill",
        "column Timestamp: 4.61169e+09",
    ),
    "no key": ("1,Read,5,Tier-0,,Prefill", "column Key: empty"),
    "size is a fraction": (
        "1,Read,1.5,Tier-0,k,Prefill",
        "column Object_Size_Bytes: CSV",
    ),
    "no size": ("1,Read,,Tier-0,k,Prefill", "column Object_Size_Bytes: CSV"),
    "no time": (",Read,5,Tier-0,k,Prefill", "column Timestamp: CSV"),
    "not a time": ("noon,Read,5,Tier-0,k,Prefill", "column Timestamp: CSV"),
    "nan": ("nan,Read,5,Tier-0,k,Prefill", "column Timestamp: nan"),
    "infinite": ("inf,Read,5,Tier-0,k,Prefill", "column Timestamp: inf"),
    "time overflows": ("1e300,Read,5,Tier-0,k,Prefill", "column Timestamp: 1e+300"),
    "negative time": ("-1,Read,5,Tier-0,k,Prefill", "column Timestamp: -1"),
    "too few columns": ("1,Read,5,Tier-0", "6 columns … 4"),
    "too many columns": ("1,Read,5,Tier-0,a,b,Prefill", "6 columns … 7"),
}


@pytest.mark.parametrize(("line", "message"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("block_bytes", [64, 8 << 20])
def test_a_bad_line_is_named(tmp_path, monkeypatch, capsys, line, message, block_bytes):
    monkeypatch.setattr(mlperf_csv, "BLOCK_BYTES", block_bytes)
    source = write(tmp_path / "m.csv", [HEADER, *GOOD[:5], line, GOOD[5]])
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "t.parquet") == 3
    error = capsys.readouterr().err
    assert shows(error, f"{source}, row 5")
    assert shows(error, message)
    assert len(error.splitlines()) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.csv"]


@pytest.mark.parametrize("name", ["m.csv", "m.csv.zst"])
@pytest.mark.parametrize("cut", [1, 20, 3000])
def test_a_truncated_file_is_refused(tmp_path, name, cut):
    lines = [
        f"{1700000000 + i}.{i % 7},Write,{i * 37 % 91},Tier-1,key_{i * i % 977},Prefill"
        for i in range(20_000)
    ]
    source = write(tmp_path / name, [HEADER, *lines])
    source.write_bytes(source.read_bytes()[:-cut])
    with pytest.raises(TraceError, match="truncated"):
        load(source, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_small_truncated_zst_is_refused_as_a_command(tmp_path, monkeypatch, capsys):
    source = write(tmp_path / "m.csv.zst", [HEADER, *GOOD])
    source.write_bytes(source.read_bytes()[:-30])
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "t.parquet") == 3
    assert f"{source}: truncated" in capsys.readouterr().err


def test_damaged_zst_is_refused(tmp_path):
    lines = [
        f"{1700000000 + i},Write,{i * 37 % 91},Tier-1,key_{i * i % 977},Prefill"
        for i in range(20_000)
    ]
    source = write(tmp_path / "m.csv.zst", [HEADER, *lines])
    data = bytearray(source.read_bytes())
    data[5000:5100] = b"\xff" * 100
    source.write_bytes(data)
    with pytest.raises(TraceError):
        load(source, tmp_path)


def test_without_the_header_it_is_no_trace(tmp_path, monkeypatch, capsys):
    source = write(tmp_path / "m.csv.zst", GOOD)
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "t.parquet") == 3
    assert "kvtrace" in capsys.readouterr().err
    source = write(tmp_path / "m.csv", GOOD)
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "t.parquet") == 2
    assert "unknown file type" in capsys.readouterr().err


ROWS = [
    (0, "write", 0, "prefill", 0, 0, 4096, 0, 0, 0),
    (1_500, "write", 2, "store", 0, 0, 4096, 0, 1, 0),
    (2_000, "read", 0, "demote", 0, 0, 4096, None, None, 0),
    (2_000, "write", 1, "demote", 0, 0, 4096, None, None, 0),
    (2_000, "delete", 0, "demote", 0, 0, 4096, None, None, 0),
    (3_000_000_000, "read", 1, "load", 0, 100, 50, 1, 0, 0),
    (3_000_000_000, "write", 0, "promote", 0, 0, 4096, 1, 1, 3),
    (61_000_001_000, "read", 0, "decode", 0, 0, 4096, 1, 2, 0),
]


def test_an_export_is_exact_and_says_what_it_loses(tmp_path, monkeypatch, capsys):
    source = write_trace(tmp_path / "t.parquet", ROWS)
    for name in ("m.csv", "m.csv.zst"):
        assert kvtrace(monkeypatch, "convert", source, tmp_path / name, "--to", "mlperf") == 0
        assert shows(
            capsys.readouterr().err,
            "1 delete … 5 request ids … 1 offset … 2 phases … 1 rank … 1 sub-microsecond",
        )
        assert text_of(tmp_path / name).splitlines() == [
            HEADER,
            "0.000000,Write,4096,Tier-0,chunk/000000000000,Prefill",
            "0.000001,Write,4096,Tier-2,chunk/000000000000,Prefill",
            "0.000002,Read,4096,Tier-0,chunk/000000000000,Evict",
            "0.000002,Write,4096,Tier-1,chunk/000000000000,Evict",
            "3.000000,Read,50,Tier-1,chunk/000000000000,Prefill",
            "3.000000,Write,4096,Tier-0,chunk/000000000000,Prefill",
            "61.000001,Read,4096,Tier-0,chunk/000000000000,Decode",
        ]


def test_an_export_says_that_nodes_and_streams_are_lost(tmp_path):
    """Of a fleet each node holds its own copy of an object: without nodes they are one."""
    source, extras = tmp_path / "t.parquet", ("node", "stream")
    columns = trace_batch(ROWS[:4])
    arrays = [
        *columns.columns,
        pa.array([0, 1, 2, 0], pa.int32()),
        pa.array([None, 0, 5, None], pa.int16()),
    ]
    with create(source, TRACE, trace_meta(), extras) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(TRACE, extras)))
    lost = mlperf_csv.write_from(source, tmp_path / "m.csv", lambda _: None)
    assert (lost["nodes"], lost["streams"]) == (2, 2)


@pytest.mark.parametrize("op", ["read", "write"])
def test_the_lost_phases_are_those_that_do_not_come_back(tmp_path, op):
    rows = [
        (at * 1000, op, 0, str(phase), 0, 0, 8, None, None, 0) for at, phase in enumerate(Phase)
    ]
    lost = mlperf_csv.write_from(
        write_trace(tmp_path / "s.parquet", rows), tmp_path / "m.csv", lambda _: None
    )
    _, _, back = load(tmp_path / "m.csv", tmp_path)
    assert (
        lost["phases"]
        == sum(row[3] != phase for row, phase in zip(back, Phase, strict=True))
        == len(Phase) - 3
    )


def test_objects_without_a_name_are_named_by_number(tmp_path):
    source = write_trace(
        tmp_path / "t.parquet", [(0, "write", 0, "prefill", i, 0, 1, None, None, 0) for i in (0, 3)]
    )
    mlperf_csv.write_from(source, tmp_path / "m.csv", lambda _: None)
    assert [line.split(",")[4] for line in text_of(tmp_path / "m.csv").splitlines()[1:]] == [
        "chunk/000000000000", "chunk/000000000003",
    ]  # fmt: skip
    objects_path(source).unlink()
    mlperf_csv.write_from(source, tmp_path / "m.csv", lambda _: None)
    assert [line.split(",")[4] for line in text_of(tmp_path / "m.csv").splitlines()[1:]] == [
        "object/0",
        "object/3",
    ]


def test_what_was_imported_is_exported_unchanged(tmp_path):
    source = write(tmp_path / "m.csv", [HEADER, *GOOD])
    _, target, _ = load(source, tmp_path)
    lost = mlperf_csv.write_from(target, tmp_path / "again.csv", lambda _: None)
    assert (tmp_path / "again.csv").read_bytes() == source.read_bytes()
    assert lost == {
        "deletes": 0, "request ids": 0, "offsets": 0, "phases": 0, "ranks": 0, "sub-microsecond times": 0,
    }  # fmt: skip


@pytest.mark.parametrize("shift", [0, 7_777_000])
def test_export_import_export_is_the_same(tmp_path, shift):
    source = write_trace(tmp_path / "s.parquet", [(row[0] + shift, *row[1:]) for row in ROWS])
    mlperf_csv.write_from(source, tmp_path / "a.csv.zst", lambda _: None)
    _, target, _ = load(tmp_path / "a.csv.zst", tmp_path)
    mlperf_csv.write_from(target, tmp_path / "b.csv.zst", lambda _: None)
    assert (tmp_path / "a.csv.zst").read_bytes() == (tmp_path / "b.csv.zst").read_bytes()


def test_info_takes_an_import(tmp_path, monkeypatch, capsys):
    _, target, _ = load(write(tmp_path / "m.csv", [HEADER, *GOOD]), tmp_path)
    assert kvtrace(monkeypatch, "info", target) == 0
    out = capsys.readouterr().out
    assert "6 rows over 2.50 s, 2 objects" in out
    assert "not simulated" in out
    assert "≤ 4.10 kB" in out
