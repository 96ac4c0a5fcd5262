from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import trace_batch, trace_meta, write_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from phrases import pattern
from whole import read_table

from kvtrace.core import table_files, table_names
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.row_check import DENSE_SLACK
from kvtrace.core.schema import BLOCKS, OBJECTS, OPS, REQUESTS, TABLES, TRACE, Table, arrow_schema
from kvtrace.core.tables import create, objects_path, open_table

if TYPE_CHECKING:
    from pathlib import Path

INTS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


def values(column) -> st.SearchStrategy:
    if column.values:
        cell = st.sampled_from(column.values)
    elif column.type in INTS:
        # The metadata names three tiers, and objects are numbered about as far as there are rows.
        most = {"tier": 2, "object_id": DENSE_SLACK}.get(column.name, column.most)
        cell = st.integers(
            -(2 ** (INTS[column.type] - 1)) if column.least is None else column.least, most
        )
    elif column.type == "string":
        cell = TEXT
    else:
        cell = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)
    return st.none() | cell if column.nullable else cell


def tables(table: Table) -> st.SearchStrategy:
    rows = st.lists(st.tuples(*(values(c) for c in table.columns)), max_size=20)
    return rows.map(
        lambda rows: pa.Table.from_arrays(
            [
                pa.array(
                    [r[i] for r in rows],
                    f.type if not pa.types.is_dictionary(f.type) else pa.string(),
                ).cast(f.type)
                for i, f in enumerate(arrow_schema(table))
            ],
            schema=arrow_schema(table),
        )
    )


@pytest.mark.parametrize("table", [TRACE, REQUESTS, OBJECTS, OPS, BLOCKS], ids=lambda t: t.name)
@pytest.mark.parametrize("suffix", table_names.SUFFIXES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_back(table, suffix, data, tmp_path_factory):
    rows = data.draw(tables(table))
    path = tmp_path_factory.mktemp("t") / f"t{suffix}"
    with create(path, table, trace_meta(table)) as out:
        for batch in rows.to_batches():
            out.write(batch)
        out.update(stats={"a": 1})
    assert read_table(path, table).to_pylist() == rows.to_pylist()
    meta = open_table(path, table).meta
    assert (meta.rows, meta.stats, meta.seed) == (rows.num_rows, {"a": 1}, 42)


ROWS = [
    (0, "write", 2, "prefill", 0, 0, 4096, 0, 0, 0),
    (5, "read", 2, "load", 0, 0, 4096, 1, 0, 0),
    (9, "delete", 2, "evict", 0, 0, 4096, None, None, 0),
]


def test_bytes_do_not_depend_on_how_rows_were_batched(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "ROW_GROUP_ROWS", 4)
    for name, size in (("a", 1), ("b", 3), ("c", 30)):
        with create(tmp_path / f"{name}.parquet", TRACE, trace_meta()) as out:
            for start in range(0, 30, size):
                out.write(
                    trace_batch([(i, *ROWS[0][1:]) for i in range(start, min(30, start + size))])
                )
    first = (tmp_path / "a.parquet").read_bytes()
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 8
    assert (tmp_path / "b.parquet").read_bytes() == first
    assert (tmp_path / "c.parquet").read_bytes() == first


@pytest.mark.parametrize("suffix", table_names.SUFFIXES)
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, suffix):
    path = write_trace(tmp_path / f"t{suffix}", ROWS)
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), create(path, TRACE, trace_meta()) as out:  # noqa: PT012 - fails inside
        out.write(trace_batch(ROWS))
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [path.name, objects_path(path).name]
    )


@pytest.mark.parametrize("suffix", table_names.SUFFIXES)
def test_a_truncated_file_says_so(tmp_path, suffix):
    path = write_trace(tmp_path / f"t{suffix}", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"t\.(parquet|csv\.zst)"):
        list(open_table(path, TRACE).batches())


@pytest.mark.parametrize("suffix", table_names.SUFFIXES)
def test_damage_in_the_middle_says_so(tmp_path, suffix):
    path = write_trace(tmp_path / f"t{suffix}", [(i, *ROWS[0][1:]) for i in range(5000)])
    data = bytearray(path.read_bytes())
    data[20:60] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(TraceError, match=path.name):
        list(open_table(path, TRACE).batches())


def test_a_schema_version_we_do_not_know_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    with create(path, TRACE, trace_meta()) as out:
        out.write(trace_batch(ROWS))
        out.update(schema_version=99)
    with pytest.raises(TraceError, match=r"version 99.*1.*2"):
        open_table(path, TRACE)


@pytest.mark.parametrize("suffix", table_names.SUFFIXES)
@pytest.mark.parametrize("extras", [(), ("node",), ("stream",), ("node", "stream")])
def test_extra_columns_stand_where_they_say_something(tmp_path, suffix, extras):
    path = tmp_path / f"t{suffix}"
    schema = arrow_schema(TRACE, extras)
    given = {
        "node": pa.array([7] * len(ROWS), pa.int32()),
        "stream": pa.array([None, *[3] * (len(ROWS) - 1)], pa.int16()),
    }
    rows = trace_batch(ROWS)
    batch = pa.RecordBatch.from_arrays(
        [*rows.columns, *(given[name] for name in extras)], schema=schema
    )
    with create(path, TRACE, trace_meta(), extras) as out:
        out.write(batch)
    reader = open_table(path, TRACE)
    assert reader.extras == extras
    assert reader.meta.schema_version == (2 if extras else 1)
    assert pa.Table.from_batches(reader.batches()).equals(pa.Table.from_batches([batch]))
    # Asked for by name, one that is not there has its default.
    found = pa.Table.from_batches(open_table(path, TRACE).batches(["stream", "node", "ts_ns"]))
    assert found.column_names == ["stream", "node", "ts_ns"]
    assert found["node"].to_pylist() == [7 if "node" in extras else 0] * len(ROWS)
    assert found["stream"].to_pylist() == (
        given["stream"].to_pylist() if "stream" in extras else [None] * len(ROWS)
    )
    alone = pa.Table.from_batches(open_table(path, TRACE).batches(["node"]))
    assert alone["node"].to_pylist() == found["node"].to_pylist()


def test_a_node_that_no_fleet_has_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    rows = trace_batch(ROWS)
    node = pa.array([-1] * len(ROWS), pa.int32())
    batch = pa.RecordBatch.from_arrays([*rows.columns, node], schema=arrow_schema(TRACE, ("node",)))
    with create(path, TRACE, trace_meta(), ("node",)) as out:
        out.write(batch)
    with pytest.raises(TraceError, match="node: -1"):
        list(open_table(path, TRACE).batches())


def test_another_table_is_refused(tmp_path):
    path = write_trace(tmp_path / "t.parquet", ROWS)
    with pytest.raises(TraceError, match=r"'trace'.*'ops'"):
        open_table(path, OPS)


def test_foreign_files_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_text("hello")
    (tmp_path / "c.csv.zst").write_text("hello")
    for name, message in (
        ("a.parquet", "no kvtrace metadata"),
        ("b.parquet", "not a readable"),
        ("c.csv.zst", "zstd"),
    ):
        with pytest.raises(TraceError, match=pattern(message)):
            open_table(tmp_path / name, TRACE)
    with pytest.raises(TraceError, match="no such file"):
        open_table(tmp_path / "none.parquet", TRACE)


def csv_with(tmp_path: Path, row: str) -> Path:
    import zstandard

    path = write_trace(tmp_path / "t.csv.zst", ROWS)
    text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode().split("\n")
    text[3] = row
    path.write_bytes(zstandard.compress("\n".join(text).encode()))
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("5,peek,2,load,0,0,4096,1,0,0", "row 1, column op: … 'peek'"),
        ("5,read,2,load,,0,4096,1,0,0", "row 1, column object_id:"),
        ("5,read,2,load,0,0,99999999999999999999,1,0,0", "CSV … int64"),
        ("5,read,300,load,0,0,4096,1,0,0", "CSV … int8"),
        ("5,read,2", "10 columns … 3"),
    ],
)
def test_a_bad_csv_row_is_named(tmp_path, row, message):
    with pytest.raises(TraceError, match=pattern(message)):
        list(open_table(csv_with(tmp_path, row), TRACE).batches())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/t.parquet", "none:"),
        ("t.txt", "file type"),
        ("d.parquet", "directory"),
    ],
)
def test_an_output_that_cannot_be_written_is_named(tmp_path, name, message):
    (tmp_path / "d.parquet").mkdir()
    with (
        pytest.raises((DeviceError, ConfigError), match=pattern(message)),
        create(tmp_path / name, TRACE, trace_meta()),
    ):
        pass


def test_every_table_is_declared():
    assert set(TABLES) == {
        "requests",
        "trace",
        "objects",
        "ops",
        "served",
        "series",
        "blocks",
        "events",
    }
