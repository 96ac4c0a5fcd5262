"""Damaged pages are found before another library reads them, and large files by several threads."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_trace

from kvtrace.core import table_files
from kvtrace.core.errors import TraceError
from kvtrace.core.page_checksums import verify_pages
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table, open_verified

ROWS = [(i * 1000, "write", 2, "store", i, 0, 4096 + i, i, 0, 0) for i in range(200)]


@pytest.fixture
def groups_of_50_rows(monkeypatch):
    monkeypatch.setattr(table_files, "ROW_GROUP_ROWS", 50)


@pytest.mark.usefixtures("groups_of_50_rows")
def test_whole_pages_have_checksums(tmp_path):
    assert verify_pages(write_trace(tmp_path / "t.parquet", ROWS))


def test_pages_of_another_writer_may_have_none(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2, 3], "b": ["x", "y", "x"]}), path)
    assert not verify_pages(path)


@pytest.mark.usefixtures("groups_of_50_rows")
def test_no_flipped_bit_reaches_a_query(tmp_path):
    path = write_trace(tmp_path / "t.parquet", ROWS)
    data = path.read_bytes()
    footer_begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    query = f"FROM read_parquet('{path}')"
    whole_rows = duckdb.sql(query).fetchall()
    undetected = []
    for offset in range(4, footer_begin, 7):
        damaged = data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]
        path.write_bytes(damaged)
        try:
            open_verified(path, TRACE)
            rows = duckdb.sql(query).fetchall()
        except (TraceError, duckdb.Error):
            continue
        if rows != whole_rows:
            undetected.append(offset)
    assert undetected == []


@pytest.mark.usefixtures("groups_of_50_rows")
def test_a_damaged_page_names_the_first_row_of_its_group(tmp_path):
    path = write_trace(tmp_path / "t.parquet", ROWS)
    column = pq.read_metadata(path).row_group(2).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(TraceError, match="row 100"):
        verify_pages(path)


@pytest.mark.usefixtures("groups_of_50_rows")
def test_large_batches_have_the_same_rows(tmp_path):
    reader = open_table(write_trace(tmp_path / "t.parquet", ROWS), TRACE)
    for columns in (None, ["length_bytes", "op", "node"]):
        batches = list(reader.large_batches(columns))
        assert [batch.num_rows for batch in batches] == [50] * 4
        assert pa.Table.from_batches(batches) == pa.Table.from_batches(reader.batches(columns))


@pytest.mark.usefixtures("groups_of_50_rows")
@pytest.mark.parametrize("row", [0, 49, 120, 199])
def test_large_batches_name_the_first_wrong_row(tmp_path, row):
    rows = [list(row) for row in ROWS]
    rows[row][6] = -1
    rows[199][4] = 2**31
    reader = open_table(write_trace(tmp_path / "t.parquet", [tuple(row) for row in rows]), TRACE)
    with pytest.raises(TraceError, match=f"row {row}, column"):
        list(reader.large_batches())


@pytest.mark.usefixtures("groups_of_50_rows")
def test_large_batches_add_up_the_bytes_of_all_groups(tmp_path):
    rows = [(*row[:6], 2**55, *row[7:]) for row in ROWS]
    reader = open_table(write_trace(tmp_path / "t.parquet", rows), TRACE)
    with pytest.raises(TraceError, match=r"column length_bytes:.*4"):
        list(reader.large_batches())
