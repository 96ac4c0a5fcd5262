"""Traces in S3: datasets are read in place and in part, files are fetched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import run_cli
from stores import BUCKET, KEY, SECRET, rclone, stub
from trace_datasets import write_both

import kvdistill
import kvreplay
import kvtrace as kt
from kvtrace.core import remote
from kvtrace.core.errors import DeviceError, TraceError

PART_ROWS = 6000


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return a trace of one file, and its dataset of several parts."""
    return write_both(tmp_path_factory.mktemp("traces"), PART_ROWS)


@pytest.fixture
def credentials(monkeypatch):
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def store(traces, credentials, monkeypatch):  # noqa: ARG001 - the store refuses others
    """Yield a store in memory that has both traces."""
    with stub() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        for trace in traces:
            root = trace.path.parent
            for path in root.rglob("*.*"):
                key = f"/{BUCKET}/fleet/{path.relative_to(root)}"
                server.objects[key] = path.read_bytes()
        yield server


def requested_keys(store):
    """Return the list of the names of files that are requested from now on."""
    names = []

    def note(_method, key):
        names.append(key.rpartition("/")[2])

    store.answer = note
    return names


DATASET = f"s3://{BUCKET}/fleet/d/"
FILE = f"s3://{BUCKET}/fleet/t.parquet"


@pytest.mark.parametrize("url", [DATASET, FILE])
@pytest.mark.usefixtures("store")
def test_commands_read_a_trace_in_s3_as_a_local_one(traces, url):
    whole, _parts = traces
    for command in ("info", "validate"):
        local, fetched = (
            json.loads(run_cli("kvtrace", command, path, "--json").stdout)
            for path in (whole.path, url)
        )
        assert fetched.pop("file") == url.rstrip("/")
        local.pop("file")
        assert fetched == local
    statement = (
        "SELECT op, tier, count(*) AS n, sum(row) AS rows FROM trace GROUP BY ALL ORDER BY ALL"
    )
    local, fetched = (
        run_cli("kvdistill", "sql", path, statement, "--csv").stdout for path in (whole.path, url)
    )
    assert fetched == local
    local, fetched = (
        json.loads(run_cli("kvdistill", "report", path, "--json").stdout)
        for path in (whole.path, url)
    )
    assert fetched["subject"].pop("file") == url.rstrip("/").rpartition("/")[2]
    local["subject"].pop("file")
    assert fetched == local


@pytest.mark.parametrize("url", [DATASET, FILE])
@pytest.mark.usefixtures("store")
def test_the_library_reads_a_trace_in_s3(traces, url):
    whole, _parts = traces
    trace = kt.read_trace(url)
    assert trace.to_arrow().equals(whole.to_arrow())
    assert trace.scan().collect().equals(whole.to_polars())
    assert trace.objects().collect().equals(whole.objects().collect())
    assert trace.requests().collect().equals(whole.requests().collect())
    assert kvdistill.distil(url, tier="nvme").ops == kvdistill.distil(whole, tier="nvme").ops
    counts = [
        kvreplay.replay(source, tiers={"nvme": "ram"}, limit="3000rows").figures()["operations"]
        for source in (whole, url)
    ]
    assert counts[0].to_list() == counts[1].to_list()


def test_a_query_of_a_time_requests_only_parts_that_have_it(traces, store):
    times = traces[0].to_polars()["ts_ns"]
    end = times[PART_ROWS - 1]
    assert end < times[2 * PART_ROWS]
    names = requested_keys(store)
    ((rows,),) = (
        kvdistill.connect(DATASET)
        .sql(
            f"SELECT count(*) FROM trace WHERE ts_ns < {end}"  # noqa: S608
        )
        .fetchall()
    )
    assert rows == (times < end).sum()
    parts = {name for name in names if name.startswith("part-")}
    assert "part-00000.parquet" in parts
    assert parts <= {"part-00000.parquet", "part-00001.parquet"}


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (lambda data: data[:-10], "part-00001.parquet"),
        (lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:], "part-00001.parquet"),
        (lambda _data: None, "part-00001.parquet"),
    ],
    ids=["truncated", "a bit", "missing"],
)
def test_damage_in_s3_is_one_line_with_the_url(store, damage, name):
    key = f"/{BUCKET}/fleet/d/{name}"
    data = damage(store.objects.pop(key))
    if data is not None:
        store.objects[key] = data
    query = ("sql", DATASET, "SELECT max(ts_ns) FROM trace")
    for program, arguments in (("kvtrace", ("validate", DATASET)), ("kvdistill", query)):
        answer = run_cli(program, *arguments, check=False)
        assert answer.returncode == 3
        (line,) = answer.stderr.strip().split("\n")
        assert f"s3://{BUCKET}/fleet/d/{name}" in line


@pytest.mark.usefixtures("store")
def test_a_trace_that_is_not_there_is_one_line():
    for url in (f"s3://{BUCKET}/fleet/none/", f"s3://{BUCKET}/fleet/none.parquet"):
        answer = run_cli("kvtrace", "info", url, check=False)
        assert answer.returncode == 3
        (line,) = answer.stderr.strip().split("\n")
        assert url in line


def test_refused_credentials_are_in_no_message(store):
    store.answer = lambda _method, _key: 403
    with pytest.raises(TraceError, match="cannot be read from S3") as caught:
        kt.read_trace(DATASET)
    assert KEY not in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.usefixtures("store")
def test_outputs_are_not_written_to_s3():
    answer = run_cli("kvtrace", "gen", "--users", 1, "-o", DATASET, check=False)
    assert answer.returncode == 2
    assert "s3://" in answer.stderr


def test_a_file_that_does_not_fit_is_not_fetched(store, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda _path: usage)
    names = requested_keys(store)
    with pytest.raises(DeviceError, match=r"only 1\.00 kB"):
        kt.read_trace(FILE)
    # Sizes are asked for, and nothing else.
    assert names == ["t.parquet", "t.objects.parquet", "t.requests.parquet"]


@pytest.mark.usefixtures("credentials")
def test_a_real_server_has_the_same_rows(traces, monkeypatch, tmp_path):
    whole, parts = traces
    with rclone(tmp_path) as server:
        shutil.copytree(parts.path, server.folder / BUCKET / "fleet" / "d")
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        assert kt.read_trace(DATASET).to_arrow().equals(whole.to_arrow())
        rows = kvdistill.connect(DATASET).sql("SELECT count(*), sum(row) FROM trace").fetchall()
    assert rows == [(len(whole), sum(range(len(whole))))]


def test_a_full_disk_is_no_fault_of_the_store(store, monkeypatch):  # noqa: ARG001
    """Fetch a file into a folder whose disk takes nothing."""
    monkeypatch.setattr(remote, "_COPY_BYTES", 1 << 16)
    opened = Path.open

    def open_full(path, mode="r", **options):
        return opened(Path("/dev/full") if mode == "wb" else path, mode, **options)

    monkeypatch.setattr(Path, "open", open_full)
    with pytest.raises(DeviceError, match="TMPDIR"):
        kt.read_trace(f"s3://{BUCKET}/fleet/t.parquet")
