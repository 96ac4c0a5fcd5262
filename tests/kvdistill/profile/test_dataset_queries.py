"""Queries, reports and jobs of a trace dataset: those of the same trace in a file."""

from __future__ import annotations

import json

import msgspec
import polars as pl
import pytest
from conftest import run_cli
from trace_datasets import write_both

import kvdistill
import kvtrace as kt
from kvdistill.queries import dataset_view
from kvtrace.core import dataset
from kvtrace.core.csv_tables import decompress
from kvtrace.core.dataset import DatasetReader
from kvtrace.core.errors import TraceError

PART_ROWS, GROUP_ROWS = 1000, 250
GROUPS = range(0, PART_ROWS, GROUP_ROWS)
"""The first row of each row group of a part."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return a trace of one file, and its dataset of several parts of several row groups."""
    return write_both(tmp_path_factory.mktemp("traces"), PART_ROWS, GROUP_ROWS)


@pytest.fixture
def opened_parts(monkeypatch):
    """Return the list of the numbers of parts that are opened from now on."""
    opened, open_part = [], DatasetReader.open_part

    def note(reader, index):
        opened.append(index)
        return open_part(reader, index)

    monkeypatch.setattr(DatasetReader, "open_part", note)
    return opened


STATEMENTS = (
    "SELECT * EXCLUDE (origin) FROM trace ORDER BY row",
    "SELECT op, tier, count(*), sum(row), max(length_bytes) FROM trace GROUP BY ALL ORDER BY ALL",
    "SELECT row, op FROM trace WHERE op = 'read' AND ts_ns > 5000000000 ORDER BY row",
    "SELECT row FROM trace WHERE ts_ns < 1000000000 OR ts_ns > 19000000000 ORDER BY row",
    "SELECT count(*) FROM trace WHERE request_id IS NULL OR stage IN (0, 2)",
    "SELECT row FROM trace WHERE row BETWEEN 900 AND 1100 ORDER BY row",
    "SELECT count(*) FROM trace WHERE tier = 'nvme' AND object_id = 7",
    "SELECT key, count(*) FROM trace JOIN objects USING (object_id) GROUP BY ALL ORDER BY ALL",
    "SELECT count(*), min(node) FROM trace WHERE node = 0",
    "SELECT count(*) FROM trace WHERE ts_ns = 'read_ts_ns'.length()",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_query_of_a_dataset_answers_as_that_of_a_file(traces, statement):
    whole, parts = (kvdistill.connect(trace).sql(statement).fetchall() for trace in traces)
    assert parts == whole


def test_a_view_of_a_file_and_a_dataset_has_the_rows_of_both(traces):
    whole, parts = traces
    counts = kvdistill.connect(whole, parts).sql(
        "SELECT origin, count(*), max(row) FROM trace GROUP BY ALL ORDER BY ALL"
    )
    rows = (len(whole), len(whole) - 1)
    assert sorted(counts.fetchall()) == sorted([(str(whole.path), *rows), (str(parts.path), *rows)])


def test_a_query_of_a_time_opens_only_parts_that_have_it(traces, opened_parts):
    whole, parts = traces
    times = whole.to_polars()["ts_ns"]
    # Within the third part, and up to its last row.
    begin, end = times[2 * PART_ROWS + 10], times[3 * PART_ROWS - 1]
    expected = times.is_between(begin, end).sum()
    last = (times <= end).sum() - 1
    statement = f"SELECT count(*) FROM trace WHERE ts_ns BETWEEN {begin} AND {end}"  # noqa: S608
    assert kvdistill.connect(parts).sql(statement).fetchall() == [(expected,)]
    assert set(opened_parts) == set(range(2, last // PART_ROWS + 1))


def test_a_query_reads_only_row_groups_that_may_match(traces, monkeypatch):
    whole, parts = traces
    time = int(whole.to_polars()["ts_ns"][1300])
    read, choose = [], dataset_view.DatasetView._groups

    def note(view, *arguments):
        groups = choose(view, *arguments)
        read.extend(group.id for group in groups)
        return groups

    monkeypatch.setattr(dataset_view.DatasetView, "_groups", note)
    statement = f"SELECT min(row) FROM trace WHERE ts_ns = {time}"  # noqa: S608
    ((row,),) = kvdistill.connect(parts).sql(statement).fetchall()
    assert int(whole.to_polars()["ts_ns"][row]) == time
    times = [whole.to_polars()["ts_ns"][PART_ROWS + first :][:GROUP_ROWS] for first in GROUPS]
    may_match = [group.min() <= time <= group.max() for group in times]
    assert set(read) == {index for index, is_read in enumerate(may_match) if is_read}
    assert not all(may_match)


def test_a_damaged_part_is_named_if_a_query_reads_it(traces, tmp_path):
    _whole, parts = traces
    copy = parts.save(tmp_path / "copy")
    path = max(copy.path.glob("part-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    for arguments in (("sql", copy.path, "SELECT * FROM trace", "--json"), ("report", copy.path)):
        answer = run_cli("kvdistill", *arguments, check=False)
        assert answer.returncode == 3
        assert answer.stderr.strip().count("\n") == 0
        assert path.name in answer.stderr


def test_a_damaged_part_that_no_query_reads_is_harmless(traces, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PART_ROWS", PART_ROWS)
    copy = traces[0].save(tmp_path / "copy")
    path = copy.path / "part-00001.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    first = "SELECT count(*) AS n FROM trace WHERE ts_ns < {}".format(  # noqa: S608
        traces[0].to_polars()["ts_ns"][9]
    )
    answer = run_cli("kvdistill", "sql", copy.path, first, "--json")
    assert json.loads(answer.stdout)[0]["n"] <= 9
    with (
        pytest.raises(TraceError, match="part-00001"),
        kvdistill.run_query(copy, sql="SELECT sum(length_bytes) FROM trace") as batches,
    ):
        batches.read_all()


def test_an_incomplete_dataset_in_a_folder_is_an_error(traces, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "PART_ROWS", PART_ROWS)
    copy = traces[0].save(tmp_path / "copy")
    names = kvdistill.connect(tmp_path).sql("SELECT DISTINCT origin FROM trace").fetchall()
    assert names == [(str(copy.path),)]
    (copy.path / "dataset.json").unlink()
    with pytest.raises(TraceError, match="incomplete"):
        kvdistill.connect(tmp_path)


def test_reports_and_profiles_are_those_of_a_file(traces):
    whole, parts = (
        json.loads(run_cli("kvdistill", "report", trace.path, "--json").stdout) for trace in traces
    )
    for report in (whole, parts):
        report["subject"].pop("file")
    assert parts == whole
    profiles = [msgspec.to_builtins(kvdistill.distil(trace, tier="nvme")) for trace in traces]
    for profile in profiles:
        profile["origin"].pop("file")
    assert profiles[0] == profiles[1]


def test_an_op_log_of_a_dataset_is_that_of_a_file(traces, tmp_path):
    logs = []
    for name, trace in zip(("whole", "parts"), traces, strict=True):
        out = tmp_path / name
        run_cli("kvdistill", "sai3", trace.path, "--tier", "nvme", "-o", out)
        (log,) = out.glob("oplog*.zst")
        lines = b"".join(decompress(log)).split(b"\n")
        logs.append([line for line in lines if not line.startswith(b"#")])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 1


def test_a_profile_from_a_time_on_omits_earlier_parts(traces, opened_parts):
    times = traces[0].to_polars().filter(pl.col("tier") == "nvme")["ts_ns"]
    begin_ns = 10_000_000_000
    profiles = [
        msgspec.to_builtins(kvdistill.distil(trace, tier="nvme", begin=f"{begin_ns}ns"))
        for trace in traces
    ]
    for profile in profiles:
        profile["origin"].pop("file")
    assert profiles[0] == profiles[1]
    whole = traces[0].to_polars()["ts_ns"]
    first_part = (whole < times[0] + begin_ns).sum() // PART_ROWS
    # The first part tells when the tier has its first row.
    assert set(opened_parts) == {0, *range(first_part, -(-len(whole) // PART_ROWS))}
    assert first_part > 2


def test_a_query_of_a_dataset_without_rows_has_none(tmp_path):
    columns = {"ts_ns": pl.Int64, "op": pl.String, "tier": pl.String, "object_id": pl.Int64}
    rows = pl.DataFrame(schema=columns | {"length_bytes": pl.Int64})
    trace = kt.Trace.from_polars(rows, tiers={"nvme": None}).save(tmp_path / "d")
    count = "SELECT count(*) FROM trace WHERE ts_ns < 5"
    assert kvdistill.connect(trace).sql(count).fetchall() == [(0,)]
