from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from conftest import run_cli, trace_meta, write_trace
from data_only import without_comments
from kvdistill_rows import HAND, MS, distil_rows, write_hand
from kvdistill_rows import io as row
from phrases import shows

from kvdistill.formats.oplog import COMMON, Style
from kvdistill.jobs.store_jobs import (
    MIX_STEPS,
    StoreMix,
    StoreOptions,
    sai3_workload,
    size_classes,
    size_histogram,
    warp_job,
)
from kvdistill.profile.profile import SizeCount, total_variation
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.schema import OBJECTS
from kvtrace.core.tables import create, objects_path, open_table

GOLDEN = Path(__file__).parents[2] / "golden" / "kvdistill"
COMMANDS = {
    "warp": ("mixed.yml", "oplog.csv.zst", "populate.csv.zst"),
    "sai3": ("workload.yaml", "oplog.tsv.zst", "populate.tsv.zst"),
}


def text_of(path: Path) -> str:
    if path.suffix != ".zst":
        return path.read_text()
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read().decode()


def log_rows(path: Path) -> list[dict[str, str]]:
    header, *lines = [line for line in text_of(path).splitlines() if not line.startswith("#")]
    return [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]


def settings(job: str) -> str:
    """Return `job` without its comments."""
    return "\n".join(line for line in job.splitlines() if not line.lstrip().startswith("#"))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The hand trace written by every command, as a user would."""
    folder = tmp_path_factory.mktemp("jobs")
    write_hand(folder)
    made = {}
    for command in COMMANDS:
        extra = ["--csv"] if command == "warp" else []
        done = run_cli(
            "kvdistill",
            command,
            "hand.parquet",
            "--tier",
            "nvme",
            "-o",
            command,
            *extra,
            "--json",
            cwd=folder,
        )
        made[command] = (folder / command, json.loads(done.stdout), done.stderr)
    return made


@pytest.mark.parametrize(
    ("command", "name"), [(c, n) for c, names in COMMANDS.items() for n in names]
)
def test_golden(written, command, name):
    text = without_comments(text_of(written[command][0] / name))
    golden = GOLDEN / f"{command}.{name.removesuffix('.zst')}"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_what_is_lost_is_in_the_json_on_stderr_and_in_the_head(written, command):
    folder, result, stderr = written[command]
    assert set(result["files"]) == {f.name for f in folder.iterdir()}
    assert result["lost"]
    head = " ".join(text_of(folder / COMMANDS[command][0]).replace("#", " ").split())
    for line in result["lost"]:
        assert f"lost: {line}\n" in stderr
        assert " ".join(line.split()) in head


def test_the_op_log_row_by_row(written):
    folder, result, _ = written["sai3"]
    rows = log_rows(folder / "oplog.tsv.zst")
    assert [(r["start"], r["op"], r["file"], r["bytes"]) for r in rows] == [
        ("1970-01-01T00:00:00.010000000Z", "PUT", "chunk/000000000000", "6000"),
        ("1970-01-01T00:00:00.010000000Z", "PUT", "chunk/000000000001", "3145728"),
        ("1970-01-01T00:00:00.012000000Z", "GET", "chunk/000000000002", "8192"),
        ("1970-01-01T00:00:00.020000000Z", "GET", "chunk/000000000001", "3145728"),
        ("1970-01-01T00:00:00.030000000Z", "GET", "chunk/000000000000", "2000"),
        ("1970-01-01T00:00:00.040000000Z", "DELETE", "chunk/000000000000", "0"),
        ("1970-01-01T00:00:00.050000000Z", "PUT", "chunk/000000000003", "4096"),
        ("1970-01-01T00:00:00.060000000Z", "GET", "chunk/000000000003", "4096"),
        ("1970-01-01T00:00:00.110000000Z", "GET", "chunk/000000000001", "1048576"),
    ]
    assert [r["idx"] for r in rows] == [str(i) for i in range(9)]
    # A trace has no ends: they are empty, not 0.
    assert {(r["first_byte"], r["end"], r["duration_ns"], r["error"]) for r in rows} == {
        ("", "", "", "")
    }
    assert {(r["endpoint"], r["n_objects"]) for r in rows} == {("s3://kvdistill/", "1")}
    # Object 2 is read before it is written.
    (before,) = log_rows(folder / "populate.tsv.zst")
    assert (before["op"], before["file"], before["bytes"]) == ("PUT", "chunk/000000000002", "8192")
    log = result["log"]
    assert (log["gets"], log["puts"], log["deletes"], log["populated"]) == (5, 3, 1, 1)
    # 2000 of 6000 and 1 of 3 MiB are read: 4000 bytes and 2 MiB more.
    assert shows(log["lost"], "2 reads … 2.10 MB")


def test_warp_s_csv_differs_by_two_columns(written):
    sai3 = log_rows(written["sai3"][0] / "oplog.tsv.zst")
    warp = log_rows(written["warp"][0] / "oplog.csv.zst")
    assert Style.WARP.columns == (
        "idx", "thread", "op", "client_id", "n_objects", "bytes", "endpoint", "file", "error", "start", "first_byte",
        "last_byte", "end", "duration_ns", "cat",
    )  # fmt: skip
    same = [name for name in COMMON if name != "endpoint"]
    assert [[r[n] for n in same] for r in warp] == [[r[n] for n in same] for r in sai3]
    assert {(r["last_byte"], r["cat"], r["endpoint"]) for r in warp} == {
        ("", "0", "http://127.0.0.1:9000")
    }


def test_hosts_share_the_objects(tmp_path):
    rows = [row(i, op, i % 50, 4096) for i, op in enumerate(["write"] * 50 + ["read"] * 100)]
    write_trace(tmp_path / "t.parquet", rows)
    done = run_cli(
        "kvdistill",
        "sai3",
        tmp_path / "t.parquet",
        "--tier",
        "nvme",
        "-o",
        tmp_path,
        "--hosts",
        3,
        "--json",
    )
    names = json.loads(done.stdout)["log"]["files"]
    assert names == ["oplog-1-of-3.tsv.zst", "oplog-2-of-3.tsv.zst", "oplog-3-of-3.tsv.zst"]
    parts = [log_rows(tmp_path / name) for name in names]
    assert sum(len(p) for p in parts) == 150
    files = [{r["file"] for r in p} for p in parts]
    assert all(len(f) >= 5 for f in files)
    assert sum(len(f) for f in files) == len(set.union(*files)) == 50
    for part in parts:
        assert [r["start"] for r in part] == sorted(r["start"] for r in part)
        assert [r["idx"] for r in part] == [str(i) for i in range(len(part))]


def test_reads_of_deleted_objects_and_partial_writes_count(tmp_path):
    rows = [
        row(0, "delete", 1, 10), row(1, "write", 0, 4096), row(2, "write", 0, 4096, offset=4096),
        row(3, "delete", 0, 8192), row(4, "read", 0, 8192), row(5, "delete", 0, 8192),
    ]  # fmt: skip
    write_trace(tmp_path / "t.parquet", rows)
    done = run_cli(
        "kvdistill", "sai3", tmp_path / "t.parquet", "--tier", "nvme", "-o", tmp_path, "--json"
    )
    log = json.loads(done.stdout)["log"]
    assert shows(log["lost"], "1 read")
    # Object 1 was never written; object 0 was deleted before, and read since: the read counts as
    # its last use.
    assert shows(log["lost"], "1 delete")
    assert shows(log["lost"], "1 write … PUT")
    assert log["populated"] == 0


def test_warp_sizes_are_exact_and_no_bucket_is_empty():
    # A bucket draws from the bound before up to below its own bound.
    sizes = [SizeCount(131072, 30), SizeCount(262144, 25)]
    assert size_histogram(sizes) == "131072:0,131073:30,262144:0,262145:25"
    # A bound that is there already is not said twice: warp would divide an empty range.
    assert size_histogram([SizeCount(100, 1), SizeCount(101, 2)]) == "100:0,101:1,102:2"


def test_classes_keep_the_bytes():
    sizes = [SizeCount(1000 + i, 1 + i % 3) for i in range(100)]
    classes = size_classes(sizes, 7)
    assert len(classes) == 7
    assert sum(s.ops for s in classes) == sum(s.ops for s in sizes)
    exact = sum(s.ops * s.io_bytes for s in sizes)
    assert abs(sum(s.ops * s.io_bytes for s in classes) - exact) <= sum(s.ops for s in sizes) / 2
    assert size_classes(sizes, 100) == sizes
    # A common size keeps a class to itself.
    assert SizeCount(5000, 900) in size_classes(
        [*(SizeCount(i, 1) for i in range(1, 101)), SizeCount(5000, 900)], 10
    )


def test_total_variation():
    a, b = [SizeCount(1, 3), SizeCount(2, 1)], [SizeCount(1, 1), SizeCount(3, 1)]
    # Shares: 0.75 and 0.25 against 0.5 at 1 and 0.5 at 3.
    assert total_variation(a, b) == pytest.approx(0.5)
    assert total_variation(a, a) == 0


def test_warp_never_deletes_more_than_it_writes(tmp_path):
    rows = [row(i, "write", i, 4096) for i in range(3)] + [
        row(10 + i, "delete", i, 4096) for i in range(3)
    ]
    rows += [row(20 + i, "delete", i, 4096) for i in range(2)] + [row(30, "read", 3, 4096)]
    job = warp_job(distil_rows(tmp_path, rows).profile, StoreOptions())
    # 1 GET, 3 PUTs, 3 of 5 DELETEs in a deck of 1000.
    assert "distribution: {get: 143, stat: 0, put: 429, delete: 428}" in job.text
    assert shows(job.lost, "2 … 5 deletes")
    # Those that are left out are in no rate: 7 in 30 ms.
    assert "rps-limit: 233.333\n" in job.text


def test_deletes_that_outlast_other_operations_keep_their_span(tmp_path):
    rows = [row(i, "write", i, 4096) for i in range(11)] + [
        row(1000 * (1 + i), "delete", i, 4096) for i in range(11)
    ]
    profile = distil_rows(tmp_path, rows).profile
    warp, sai3 = warp_job(profile, StoreOptions()).text, sai3_workload(profile, StoreOptions()).text
    # 11 writes in 10 ms, 11 deletes in 11 s.
    for text, rate in ((warp, "rps-limit: 2\n"), (sai3, "iops: 2\n")):
        assert rate in text
        assert 'duration: "11000ms"' in text
        assert shows(" ".join(text.replace("#", "").split()), "11 deletes (over 11.0 s … 10.0 ms")


def test_what_is_rarer_than_warp_s_resolution_is_told(tmp_path):
    rows = [row(i, "read", 0, 4096) for i in range(5000)] + [row(6000, "write", 1, 4096)]
    job = warp_job(distil_rows(tmp_path, rows).profile, StoreOptions())
    assert "distribution: {get: 1000, stat: 0, put: 0, delete: 0}" in job.text
    assert shows(job.lost, "1 PUTs … 0.1 %")


def test_one_direction_and_one_object(tmp_path):
    profile = distil_rows(tmp_path, [row(i * 10, "read", 0, 70_000) for i in range(51)]).profile
    warp, sai3 = warp_job(profile, StoreOptions()).text, sai3_workload(profile, StoreOptions()).text
    assert "distribution: {get: 1000, stat: 0, put: 0, delete: 0}" in warp
    # Not padded to sectors: 70,000 is what an object store gets.
    assert 'size: "70000:0,70001:51"' in warp
    # 51 reads in half a second.
    assert "rps-limit: 102\n" in warp
    assert "op: put" not in sai3
    assert 'path: "get-70000/prepared-*.dat"' in sai3
    writes = distil_rows(tmp_path, [row(i * 10, "write", i, 512) for i in range(51)]).profile
    warp = warp_job(writes, StoreOptions()).text
    assert "distribution: {get: 0, stat: 0, put: 1000, delete: 0}" in warp
    # As many as there were, whatever a page of each takes in a file.
    assert "objects: 51\n" in warp
    assert "prepare:" not in sai3_workload(writes, StoreOptions()).text


def test_one_instant_leaves_rates_and_durations_out_and_says_so(tmp_path):
    profile = distil_rows(tmp_path, [row(7, "read", i, 4096) for i in range(5)]).profile
    jobs = {
        "warp": warp_job(profile, StoreOptions()).text,
        "sai3": sai3_workload(profile, StoreOptions()).text,
    }
    absent = {"warp": ("duration", "rps-limit", "advanced"), "sai3": ("duration", "iops")}
    for name, text in jobs.items():
        assert "one instant" in text
        assert not [word for word in absent[name] if word in settings(text)], name


def test_without_stages_the_concurrency_is_left_out_and_says_so(tmp_path):
    rows = [row(i, "read", i, 4096, request=None, stage=None) for i in range(50)]
    profile = distil_rows(tmp_path, rows).profile
    for text, name in (
        (warp_job(profile, StoreOptions()).text, "concurrent:"),
        (sai3_workload(profile, StoreOptions()).text, "concurrency:"),
    ):
        assert "no stages" in text
        assert name not in settings(text)


def test_names_with_spaces_stay_and_unloggable_ones_are_refused(tmp_path):
    trace = write_hand(tmp_path)
    table = objects_path(trace)
    batches = list(open_table(table, OBJECTS).batches())

    def rename(name):
        with create(table, OBJECTS, trace_meta(OBJECTS)) as out:
            for batch in batches:
                keys = [
                    name if i == 1 else key for i, key in enumerate(batch.column("key").to_pylist())
                ]
                out.write(batch.set_column(1, batch.schema.field(1), pa.array(keys)))

    rename("a name with spaces")
    run_cli("kvdistill", "sai3", trace, "--tier", "nvme", "-o", tmp_path / "out")
    assert log_rows(tmp_path / "out" / "oplog.tsv.zst")[1]["file"] == "a name with spaces"
    rename("a\ttab")
    done = run_cli(
        "kvdistill", "sai3", trace, "--tier", "nvme", "-o", tmp_path / "new", check=False
    )
    assert done.returncode == 3
    assert "object 1" in done.stderr
    assert not list((tmp_path / "new").iterdir())


def test_an_empty_trace_is_refused_and_leaves_nothing(tmp_path):
    write_trace(tmp_path / "t.parquet", [])
    done = run_cli(
        "kvdistill",
        "warp",
        tmp_path / "t.parquet",
        "--tier",
        "nvme",
        "-o",
        tmp_path / "o",
        check=False,
    )
    assert done.returncode == 3
    assert "tier 'nvme'" in done.stderr
    assert not list((tmp_path / "o").iterdir())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: StoreOptions(bucket="A b"), "bucket="), (lambda: StoreOptions(host="a b"), "host="),
        (lambda: StoreOptions(target="s3://bucket"), "target="), (lambda: StoreOptions(target="bucket/"), "target="),
    ],
)  # fmt: skip
def test_bad_options_are_refused(make, name):
    with pytest.raises(ConfigError, match=name):
        make()


def test_time_that_goes_back_is_refused(tmp_path):
    with pytest.raises(TraceError, match="row 1"):
        distil_rows(tmp_path, [row(2, "read", 0, 4096), row(1, "read", 0, 4096)])


def test_a_log_starts_when_the_trace_was_recorded(tmp_path):
    start_ns = 1_700_000_000 * 10**9
    write_trace(
        tmp_path / "t.parquet", [row(1.5, "read", 0, 4096)], source={"first_unix_ns": start_ns}
    )
    run_cli("kvdistill", "sai3", tmp_path / "t.parquet", "--tier", "nvme", "-o", tmp_path)
    (only,) = log_rows(tmp_path / "oplog.tsv.zst")
    assert only["start"] == "2023-11-14T22:13:20.001500000Z"
    assert MS == 1_000_000


def of_warp(text: str) -> StoreMix:
    """Return what warp's file asks for.

    Of a bucket of sizes up to below its bound, the bound before is a byte less.
    """
    mix = re.search(r"distribution: \{get: (\d+), stat: 0, put: (\d+), delete: (\d+)\}", text)
    size, rate = re.search(r'size: "([0-9:,]+)"', text), re.search(r"rps-limit: ([0-9.]+)", text)
    get, put, delete = counts = tuple(map(int, mix.groups()))
    bars = [tuple(map(int, bar.split(":"))) for bar in size[1].split(",")]
    sizes = [SizeCount(bound - 1, weight) for bound, weight in bars if weight]
    assert get + put + delete == MIX_STEPS
    return StoreMix(
        sizes if get else [], sizes if put else [], counts, float(rate[1]) if rate else None
    )


def of_sai3(text: str) -> StoreMix:
    """Return what sai3-bench's file asks for.

    An entry an operation and size, each with its weight.
    """
    found = {"get": [], "put": [], "delete": []}
    for entry in text.partition("workload:\n")[2].split("  - op: ")[1:]:
        weight = re.search(r"weight: (\d+)", entry)
        size = re.search(r"object_size: (\d+)|get-(\d+)/", entry)
        found[entry.split()[0]].append(
            SizeCount(int(size[1] or size[2]) if size else 0, int(weight[1]))
        )
    rate = re.search(r"iops: (\d+)", text)
    counts = tuple(sum(s.ops for s in found[op]) for op in ("get", "put", "delete"))
    return StoreMix(found["get"], found["put"], counts, float(rate[1]) if rate else None)


@pytest.mark.parametrize("limit", [None, "3"])
def test_a_job_asks_for_what_its_file_says(tmp_path, limit):
    profile = distil_rows(
        tmp_path, [*HAND, row(120, "delete", 9, 1), row(900, "write", 4, 70_000)], limit
    ).profile
    for job, read in (
        (warp_job(profile, StoreOptions()), of_warp),
        (sai3_workload(profile, StoreOptions()), of_sai3),
    ):
        assert job.requested == read(job.text)
