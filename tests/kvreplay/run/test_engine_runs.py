"""`kvreplay engine` with a stand-in for LMCache.

What it records, what it leaves, and what goes wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from conftest import run_cli
from phrases import shows
from waiting import wait_for
from whole import read_table

from kvreplay.plan.target_safety import SCRATCH
from kvtrace.core.run.run_file import read_run
from kvtrace.core.schema import OBJECTS, OPS, SERVED

STANDIN = Path(__file__).parents[2] / "support" / "standin"
CHUNK_BYTES = 256 * 4 * 64
"""One layer, one head of 64."""
GEOMETRY = ("--layers", 1, "--kv-heads", 1, "--head-dim", 64, "--cpu", "1MiB")
PROMPTS = [(1100, [1, 2, 3]), (1024, [1, 2]), (600, [4, 5]), (1024, [1, 2])]
"""4, 4, 2 and 4 whole chunks.

The second prompt is the first one's head, and the fourth the same again.
"""


@pytest.fixture
def conversation(tmp_path):
    path = tmp_path / "conversation.jsonl"
    rows = [
        {"timestamp": 100 * n, "input_length": tokens, "output_length": 1, "hash_ids": blocks}
        for n, (tokens, blocks) in enumerate(PROMPTS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def drive(monkeypatch, tmp_path, conversation):
    """Return a function that runs `kvreplay engine lmcache` with the stand-in, its files below
    tmp_path/drive.
    """
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    (tmp_path / "drive").mkdir()

    def run(*options, trace=conversation, check=True):
        where = ("--tier", f"nvme={tmp_path / 'drive'}", "-o", tmp_path / "run")
        return run_cli(
            "kvreplay", "engine", "lmcache", trace, *where, *GEOMETRY, *options, check=check
        )

    return run


def done(folder):
    """Return operation, request, key and bytes of each row of a run's ops."""
    ops, keys = (
        read_table(folder / "ops.parquet", OPS),
        read_table(folder / "trace.objects.parquet", OBJECTS)["key"],
    )
    columns = (ops[name].to_pylist() for name in ("op", "request_id", "object_id", "bytes"))
    return [
        (op, request, str(keys[number]), length)
        for op, request, number, length in zip(*columns, strict=True)
    ]


def test_an_engine_run_has_its_objects_and_times(drive, tmp_path):
    said = drive()
    rows = done(tmp_path / "run")
    assert Counter((op, request) for op, request, _key, _bytes in rows) == {
        ("write", 0): 4, ("read", 1): 4, ("write", 2): 2, ("read", 3): 4,
    }  # fmt: skip
    assert {length for _op, _request, _key, length in rows} == {CHUNK_BYTES}
    written = [key for op, _request, key, _bytes in rows if op == "write"]
    assert [key for op, request, key, _bytes in rows if op == "read" and request == 1] == written[
        :4
    ]
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS)
    assert set(ops["engine"].to_pylist()) == {"other"}
    starts, ends = ops["submitted_ns"].to_pylist(), ops["completed_ns"].to_pylist()
    run = read_run(tmp_path / "run")
    assert all(
        0 <= start < end <= run.summary.wall_ns for start, end in zip(starts, ends, strict=True)
    )
    assert (run.status, run.trace.file, run.mlperf) == ("complete", "conversation.jsonl", None)
    assert shows(run.summary.verdict, "0.0-standin … 4 requests")
    found = {(f.op, f.operations, f.bytes) for f in run.summary.figures}
    assert found == {("write", 6, 6 * CHUNK_BYTES), ("read", 8, 8 * CHUNK_BYTES)}
    assert read_table(tmp_path / "run" / "requests.parquet", SERVED)["hits"].to_pylist() == [
        0,
        4,
        0,
        4,
    ]
    assert shows(said.stderr, "4 requests … 3,748 tokens … 959 kB … KV")
    assert "says a lot" not in said.stdout + said.stderr
    assert "streams" not in said.stdout + said.stderr
    assert not (tmp_path / "run" / "engine.log").exists()
    assert list((tmp_path / "drive").iterdir()) == []


def test_reports_comparisons_and_jobs_are_made_of_it(drive, tmp_path, conversation):
    drive()
    run = tmp_path / "run"
    assert "14 rows, 6 objects" in run_cli("kvtrace", "validate", run / "trace.parquet").stdout
    assert "served 4 requests" in run_cli("kvdistill", "report", run).stdout
    run_cli("kvdistill", "fio", run, "-o", tmp_path / "jobs")
    # The stand-in has no pool that its files go through.
    pool = ("--set", "tiers.cpu.capacity=0", "--set", "tiers.cpu.staging=false")
    sizes = ("--set", "tiers.gpu.capacity=0", *pool, "--gpu", "instant")
    golden = Path(__file__).parents[2] / "golden" / "engines" / "tinier-config.json"
    simulated = tmp_path / "sim.parquet"
    more = ("--source", "mooncake", "--preset", "lmcache-disk", "--model", golden, *sizes)
    run_cli("kvtrace", "gen", conversation, *more, "-o", simulated)
    run_cli(
        "kvreplay",
        "run",
        simulated,
        "--tier",
        f"nvme={tmp_path / 'drive'}",
        "--buffered",
        "-o",
        tmp_path / "again",
    )
    compared = json.loads(
        run_cli("kvdistill", "compare", run, tmp_path / "again", simulated, "--json").stdout
    )
    lines = {(line["op"], line["name"]): [side["median"] for side in line["sides"]] for line in compared["lines"]
             if line["tier"] == "nvme"}  # fmt: skip
    assert lines["write", "operations"] == [6, 6, 6]
    assert lines["read", "operations"] == [8, 8, 8]
    assert lines["write", "bytes"] == [6 * CHUNK_BYTES] * 3
    assert lines["read", "size_mean_bytes"] == [CHUNK_BYTES] * 3
    assert lines["read", "latency_p50_ns"][2] is None


def test_a_full_disk_tier_evicts_and_deletes_are_recorded(drive, tmp_path):
    drive("--disk", f"{5 * CHUNK_BYTES}B")
    rows = done(tmp_path / "run")
    assert Counter(op for op, *_rest in rows) == {"write": 10, "read": 4, "delete": 5}
    deleted = [(request, key) for op, request, key, _bytes in rows if op == "delete"]
    assert deleted[0] == (2, rows[0][2])


def test_a_prompt_that_is_found_whole_stores_nothing(drive, monkeypatch, tmp_path):
    # Of 300 tokens there are two chunks where the last, of 44, is stored too: LMCache refuses to
    # store behind those.
    monkeypatch.setenv("LMCACHE_SAVE_UNFULL_CHUNK", "true")
    trace = tmp_path / "twice.jsonl"
    rows = [
        {"timestamp": t, "input_length": 300, "output_length": 1, "hash_ids": [7]} for t in (0, 1)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drive(trace=trace)
    assert [(op, request) for op, request, *_rest in done(tmp_path / "run")] == [
        ("write", 0)
    ] * 2 + [("read", 1)] * 2


@pytest.mark.full
def test_a_requests_table_says_the_same_as_its_source(drive, tmp_path, conversation):
    drive()
    first = done(tmp_path / "run")
    run_cli("kvtrace", "import", conversation, "-o", tmp_path / "requests.parquet")
    drive("--force", trace=tmp_path / "requests.parquet")
    assert done(tmp_path / "run") == first


def test_only_so_many_requests_as_asked_are_served(drive, tmp_path):
    drive("--requests", 2)
    assert {request for _op, request, _key, _bytes in done(tmp_path / "run")} == {0, 1}


def test_files_that_no_one_timed_are_told_of(drive, monkeypatch, tmp_path):
    monkeypatch.setenv("STANDIN_TROUBLE", "untimed")
    drive()
    (note,) = [note for note in read_run(tmp_path / "run").notes if "unrecorded calls" in note]
    assert "4 writes" in note


@pytest.mark.parametrize(
    ("trouble", "said", "requests"),
    [
        (
            "raise",
            "2 requests: ValueError",
            {0, 1},
        ),
        ("full", "OSError: [Errno 28] No space left on device", {0}),
    ],
)
def test_a_failed_engine_is_one_line_and_its_calls_are_kept(
    drive, monkeypatch, tmp_path, trouble, said, requests
):
    monkeypatch.setenv("STANDIN_TROUBLE", trouble)
    ended = drive(check=False)
    assert ended.returncode == 4
    line = ended.stderr.splitlines()[-1]
    log = tmp_path / "run" / "engine.log"
    assert shows(line, said)
    assert f"{log}" in line
    assert "LMCache says a lot" in log.read_text()
    assert "Traceback" not in ended.stderr
    assert read_run(tmp_path / "run").status == "partial"
    assert {request for _op, request, _key, _bytes in done(tmp_path / "run")} == requests
    assert list((tmp_path / "drive").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("sglang",), "no sglang … --no-deps"),
        (("sglang", "--cpu", "1GiB"), "no sglang"),
        (
            ("mooncake", "--python", "/bin/false"),
            "--python /bin/false:",
        ),
        (("lmcache", "--python", "/no/such"), "/no/such:"),
        (("lmcache", "--cpu", "900PiB"), "--cpu: only"),
    ],
)
def test_what_cannot_be_driven_is_refused_with_the_way_out(
    monkeypatch, tmp_path, conversation, options, said
):
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))
    (tmp_path / "drive").mkdir()
    name, *more = options
    where = ("--tier", f"nvme={tmp_path / 'drive'}", "-o", tmp_path / "run")
    ended = run_cli("kvreplay", "engine", name, conversation, *where, *more, check=False)
    assert ended.returncode == 2
    assert shows(ended.stderr, said)
    assert list((tmp_path / "drive").iterdir()) == []


def test_a_directory_with_others_files_is_left_alone(drive, tmp_path):
    (tmp_path / "drive" / "theirs").write_text("precious")
    ended = drive("--force", check=False)
    assert ended.returncode == 4
    assert "theirs" in ended.stderr
    assert (tmp_path / "drive" / "theirs").read_text() == "precious"


@pytest.mark.full
def test_kept_files_are_named_and_the_next_run_removes_them(drive, tmp_path):
    drive("--keep")
    kept = tmp_path / "drive" / SCRATCH / "engine"
    assert len(list(kept.iterdir())) == 6
    assert any("left below" in note for note in read_run(tmp_path / "run").notes)
    drive("--force")
    assert list((tmp_path / "drive").iterdir()) == []


@pytest.mark.full
def test_an_interrupted_engine_ends_and_leaves_a_partial_run(monkeypatch, tmp_path, conversation):
    monkeypatch.setenv("STANDIN_TROUBLE", "slow")
    (tmp_path / "drive").mkdir()
    conversation.write_text(conversation.read_text() * 200)
    where = ["--tier", f"nvme={tmp_path / 'drive'}", "-o", tmp_path / "run", "--requests", 1000]
    command = [
        sys.executable,
        "-m",
        "kvreplay.cli",
        "engine",
        "lmcache",
        conversation,
        *where,
        *GEOMETRY,
    ]
    ours = os.environ | {"PYTHONPATH": f"{STANDIN}:{Path(__file__).parents[3]}"}
    process = subprocess.Popen(
        [str(part) for part in command], env=ours, stderr=subprocess.PIPE, text=True
    )
    events = (tmp_path / "run").glob
    wait_for(
        process,
        lambda: any(b'["op"' in p.read_bytes() for p in events(".engine-*/events.jsonl")),
        "first request",
    )
    process.send_signal(signal.SIGINT)
    _out, said = process.communicate()
    assert process.returncode == 130
    assert "by SIGINT" in said
    assert read_run(tmp_path / "run").status == "partial"
    assert list((tmp_path / "drive").iterdir()) == []
