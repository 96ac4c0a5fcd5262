from __future__ import annotations

import json
from importlib import resources

import pyarrow as pa
import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, write_hand

from kvtrace.core.schema import TRACE, arrow_schema
from kvtrace.core.tables import create, open_table

COUNT = "SELECT op, count(*) AS n FROM trace GROUP BY op ORDER BY op"


def sql(*arguments, check=True):
    return run_cli("kvdistill", "sql", *arguments, check=check)


@pytest.mark.parametrize("name", ["t.parquet", "t.csv.zst", "it's [x]*?.parquet"])
def test_trace_and_objects_are_views_of_any_file(tmp_path, name):
    trace = write_trace(tmp_path / name, HAND)
    assert json.loads(sql(trace, COUNT, "--json").stdout) == [
        {"op": "delete", "n": 1}, {"op": "read", "n": 5}, {"op": "write", "n": 4},
    ]  # fmt: skip
    joined = (
        "SELECT key, count(*) AS n FROM trace JOIN objects USING (object_id) GROUP BY key ORDER"
        " BY key"
    )
    assert (
        sql(trace, joined, "--csv").stdout
        == "key,n\nchunk/000000000000,4\nchunk/000000000001,3\nchunk/000000000002,1\nchunk/000000000003,2\n"
    )


def test_several_files_and_folders_are_one_view(tmp_path):
    a, b = write_trace(tmp_path / "a.parquet", HAND), write_trace(tmp_path / "b.csv.zst", HAND)
    one = "SELECT count(*) AS n FROM trace"
    assert json.loads(sql(a, b, one, "--json").stdout) == [{"n": 20}]
    assert json.loads(sql(tmp_path, one, "--json").stdout) == [{"n": 20}]


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
def test_traces_of_a_fleet_and_of_one_node_are_one_view(tmp_path, suffix):
    one = write_trace(tmp_path / f"one{suffix}", HAND)
    fleet = tmp_path / f"fleet{suffix}"
    reader = open_table(one, TRACE)
    with create(fleet, TRACE, reader.meta, ("node",)) as out:
        for batch in reader.batches():
            nodes = pa.array([3] * batch.num_rows, pa.int32())
            out.write(
                pa.RecordBatch.from_arrays(
                    [*batch.columns, nodes], schema=arrow_schema(TRACE, ("node",))
                )
            )
    by_node = (
        "SELECT node, count(*) AS n, count(stream) AS placed FROM trace GROUP BY node ORDER BY node"
    )
    for files in ((one, fleet), (fleet, one)):
        found = json.loads(sql(*files, by_node, "--json").stdout)
        assert found == [{"node": 0, "n": 10, "placed": 0}, {"node": 3, "n": 10, "placed": 0}]


def test_the_table_shows_only_so_many_rows_and_says_so(tmp_path):
    done = sql(write_hand(tmp_path), "SELECT ts_ns FROM trace ORDER BY ts_ns", "--max-rows", "2")
    assert done.stdout.split() == ["ts_ns", "5000000", "10000000"]
    assert "first 2 rows" in done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "SELEC 1", "SELECT * FROM nothing", "SELECT 1; SELECT 2", "", "CREATE TABLE x (a INT)", "SET threads = 1",
        "COPY (SELECT 1) TO 'out.csv'", "COPY (SELECT 1) TO '{trace}' (USE_TMP_FILE false)", "ATTACH 'x.db'",
        "SELECT * FROM read_csv('/etc/passwd')", "SELECT 1 / (SELECT 1 UNION ALL SELECT 2)",
    ],
)  # fmt: skip
def test_what_does_not_just_read_is_one_line(tmp_path, statement):
    trace = write_hand(tmp_path)
    before = trace.read_bytes()
    done = run_cli(
        "kvdistill", "sql", trace, statement.format(trace=trace), check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvdistill: error:")
    assert done.stderr.count("\n") == 1
    assert trace.read_bytes() == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["hand.objects.parquet", "hand.parquet"]


def test_files_that_are_none_of_ours_are_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not")
    assert sql(tmp_path / "x.parquet", "SELECT 1", check=False).returncode == 3
    assert sql(tmp_path / "none.parquet", "SELECT 1", check=False).returncode == 3
    assert sql(tmp_path / "x.txt", "SELECT 1", check=False).returncode != 0
    assert sql("SELECT 1", check=False).returncode == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert sql(empty, "SELECT 1", check=False).returncode == 2


def test_every_named_query_says_what_it_answers():
    files = [
        f
        for f in resources.files("kvdistill.queries").joinpath("sql").iterdir()
        if f.name.endswith(".sql")
    ]
    assert len(files) >= 8
    assert all(f.read_text().startswith("-- ") for f in files)
