"""What profiles are distilled from, each by hand.

A run's operations, block events, a probe's result, a profile.
"""

from __future__ import annotations

import json
import subprocess

import pyarrow as pa
import pytest
from conftest import run_cli, trace_meta
from kvdistill_rows import HAND, MS, change_run, data_note, distil_rows, io, write_hand, write_run
from phrases import Saying, pattern, show_each, shows

from kvdistill.profile.profile import Idle, InFlight, SizeCount, Slot, SourceKind
from kvdistill.profile.sources import distil_source
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.limit import Limit, parse_limit
from kvtrace.core.run.figures import Evidence, LimitCause, RunVerdict
from kvtrace.core.schema import BLOCKS, arrow_schema
from kvtrace.core.tables import create

KIB, MIB = 1 << 10, 1 << 20

# issue and completion in ms, device, sector, bytes, flags.
BLOCK_ROWS = [
    (0, 4, "vda", 2048, 4096, "R"),
    (2, 6, "vda", 1 << 30, 1 << 20, "WS"),
    (10, 12, "vda", 2048, 4096, "RA"),
    (11, None, "vda", 2056, 8192, "R"),
    (12, 13, "vda", 0, 4096, "FF"),
    (13, 14, "vda", 1 << 29, 1 << 20, "D"),
    (1, 2, "vdb", 0, 4096, "R"),
]


def write_blocks(folder, rows=BLOCK_ROWS, queued=None):
    issue, complete, device, sector, length, rwbs = zip(*rows, strict=True)
    columns = {
        "insert_ns": queued or [None] * len(rows), "issue_ns": [i * MS for i in issue],
        "complete_ns": [None if c is None else c * MS for c in complete], "device": device, "sector": sector,
        "bytes": length, "rwbs": rwbs, "pid": [None] * len(rows), "comm": [None] * len(rows),
        "error": [None] * len(rows),
    }  # fmt: skip
    schema = arrow_schema(BLOCKS)
    with create(folder / "blocks.parquet", BLOCKS, trace_meta(BLOCKS)) as out:
        out.write(pa.RecordBatch.from_arrays([pa.array(columns[n], schema.field(n).type) for n in schema.names],
                                             schema=schema))  # fmt: skip
    return folder / "blocks.parquet"


def test_block_events_by_hand(tmp_path):
    profile = distil_source(write_blocks(tmp_path), "vda", Limit(), tmp_path).profile
    assert (profile.origin.kind, profile.tier, profile.start_ns, profile.span_ns) == (
        SourceKind.BLOCKS,
        "vda",
        0,
        11 * MS,
    )
    assert profile.read.sizes == [SizeCount(4096, 2), SizeCount(8192, 1)]
    assert profile.write.sizes == [SizeCount(1 << 20, 1)]
    assert (profile.delete_ops, profile.delete_bytes) == (1, 1 << 20)
    # The stretches at 1 MiB and 512 GiB are packed: the first MiB, then the second.
    assert profile.space.span_bytes == 2 * MIB
    # None from 6 to 10 ms; one from 0 to 2, 4 to 6 and 10 to 12; two from 2 to 4. What has no end
    # is not timed.
    assert profile.depth.mean == (6 + 2 * 2) / 12
    assert profile.depth.shares == [InFlight(0, 4 / 12), InFlight(1, 6 / 12), InFlight(2, 2 / 12)]
    assert (profile.depth.max, profile.depth.timed_share) == (2, 0.75)
    assert (profile.depth.read_mean, profile.depth.write_mean) == (6 / 12, 4 / 12)
    assert profile.idle == Idle(stretches=1, total_ns=4 * MS, p50_ns=None)
    assert profile.data is None


def test_a_request_arrives_when_queued_not_when_issued_last(tmp_path):
    # One at a time at the device, the second given back until the first is done; both were there
    # from the start.
    rows = [
        (0, 4, "vda", 2048, 4096, "R"),
        (4, 8, "vda", 4096, 4096, "R"),
        (9, 10, "vda", 0, 4096, "R"),
    ]
    profile = distil_source(
        write_blocks(tmp_path, rows, [0, 1 * MS, None]), "vda", Limit(), tmp_path
    ).profile
    assert (profile.arrivals.gap_mean_ns, profile.span_ns) == (4.5 * MS, 9 * MS)
    assert profile.depth.shares == [InFlight(0, 0.1), InFlight(1, 0.6), InFlight(2, 0.3)]
    assert profile.depth.mean == (4 + 7 + 1) / 10


def test_arrivals_and_reuse_by_hand(tmp_path):
    rows = [io(0, "write", 0, 4096), io(0, "write", 1, 8192), io(10, "read", 0, 4096), io(14, "read", 1, 8192),
            io(40, "read", 0, 4096)]  # fmt: skip
    profile = distil_rows(tmp_path, rows).profile
    arrivals = profile.arrivals
    assert (arrivals.instants, arrivals.bursts) == (4, [Slot(1, 2, 3), Slot(2, 3, 1)])
    assert arrivals.gap_mean_ns == 40 * MS / 3
    assert [slot.count for slot in arrivals.gaps] == [1, 1, 1]
    assert all(
        s.low <= gap * MS < s.below for s, gap in zip(arrivals.gaps, (4, 10, 26), strict=True)
    )
    assert (sum(arrivals.read_ops), sum(arrivals.write_bytes)) == (3, 12288)
    # 0 is read after 1 was written (8 KiB between), 1 after 0 (4 KiB), and 0 after 1 again.
    assert profile.locality.read.first_ops == 0
    assert [(s.low, s.count) for s in profile.locality.read.distances] == [(4096, 1), (8192, 2)]
    assert profile.locality.write.first_ops == 2
    assert profile.space.end_live_bytes == profile.space.peak_reserved_bytes == 12 * KIB


def test_one_microsecond_has_no_arrivals(tmp_path):
    rows = [io(0.0001, "write", 0, 4096), io(0.0006, "write", 1, 4096)]
    profile = distil_rows(tmp_path, rows).profile
    assert (profile.span_ns, profile.arrivals) == (500, None)


def test_one_instant_has_no_arrivals_and_no_streams(tmp_path):
    profile = distil_rows(tmp_path, [io(7, "read", i, 4096) for i in range(5)]).profile
    assert (profile.arrivals, profile.streams, profile.depth, profile.idle) == (
        None,
        [],
        None,
        None,
    )


def test_a_change_of_rate_is_a_phase(tmp_path):
    # 100 reads in the first second, then 50 writes a second for two.
    rows = [io(i * 10, "read", i % 3, 4096) for i in range(100)]
    rows += [io(1000 + i * 20, "write", i % 3, 4096) for i in range(100)]
    found = distil_rows(tmp_path, rows).profile.streams
    assert [(s.name, s.read.ops, s.write.ops, s.loop.pace) for s in found] == [
        ("read", 100, 0, "even"), ("write", 0, 100, "even"),
    ]  # fmt: skip
    assert [(s.start_ns, s.span_ns) for s in found] == [(0, 1000 * MS), (1000 * MS, 2000 * MS)]


def steady_writes(at_ms, gap_ms, count):
    return [io(at_ms + i * gap_ms, "write", 3 + i % 3, 4096) for i in range(count)]


@pytest.mark.parametrize("most", [1000, 100])
@pytest.mark.parametrize(
    ("writes", "per_s"),
    [
        (steady_writes(5, 20, 100), 50),
        (steady_writes(1505, 20, 25), 50),  # none is among the first 100 operations
        (steady_writes(505, 0, 1) + steady_writes(1505, 20, 25), None),  # a single one is
        (steady_writes(5, 20, 30), 50),  # all are, though not all reads
    ],
)
def test_streams_keep_their_rate_beyond_what_is_fitted(tmp_path, monkeypatch, most, writes, per_s):
    # 200 reads at 100 a second, and writes, of which the first 1000 or 100 operations are fitted.
    monkeypatch.setattr("kvdistill.profile.streams.MAX_OPS", most)
    rows = [io(i * 10, "read", i % 3, 4096) for i in range(200)]
    profile = distil_rows(tmp_path, sorted(rows + writes)).profile
    counts = [sum(getattr(s, side).ops for s in profile.streams) for side in ("read", "write")]
    assert counts == [200, len(writes)]
    for name, rate in (("read", 100), ("write", per_s)):
        streams = [s for s in profile.streams if getattr(s, name).ops]
        ops = sum(getattr(s, name).ops for s in streams)
        if rate is not None:
            assert ops / (sum(s.span_ns for s in streams) / 1e9) == pytest.approx(rate, 0.03)
        assert all(s.span_ns > 1 for s in streams if getattr(s, name).ops > 1)


def test_a_run_is_distilled_from_what_was_timed(tmp_path):
    run = write_run(tmp_path / "run", [500_000] * 10)
    profile = distil_source(run, None, Limit(), tmp_path).profile
    assert (profile.origin.kind, profile.tier, profile.read.ops, profile.span_ns) == (
        "ops",
        "nvme",
        10,
        9 * MS,
    )
    # Half of each millisecond up to the last, of which only that half is seen.
    assert profile.depth.mean == pytest.approx(5 / 9.5)
    assert profile.idle == Idle(stretches=9, total_ns=9 * MS // 2, p50_ns=500_000)
    assert any("no offsets" in note for note in profile.origin.notes)
    assert profile.data is None
    cut = write_run(
        tmp_path / "cut", [500_000] * 10, outcome=["ok"] * 7 + ["error", "corrupt", "skipped"]
    )
    cut = distil_source(cut, None, Limit(), tmp_path).profile
    assert (cut.read.ops, cut.origin.notes[0]) == (
        7,
        Saying("3 reads"),
    )
    # What was not to be done, such as rows of other nodes, failed as little.
    others = write_run(
        tmp_path / "node",
        [500_000] * 9,
        outcome=["ok", "ok", "skipped"] * 3,
        engine=["uring", "uring", "none"] * 3,
    )
    others = distil_source(others, None, Limit(), tmp_path).profile
    assert (others.read.ops, [note for note in others.origin.notes if "failed" in note]) == (6, [])
    change_run(run, data=data_note(2, 4))
    run_cli("kvdistill", "fio", run, "-o", tmp_path / "jobs", "--mode", "stat")
    job = (tmp_path / "jobs" / "stat.fio").read_text()
    assert "buffer_compress_percentage=75\ndedupe_percentage=50\n" in job
    assert shows(job, "1 or less 99 % … 0.526")
    assert "\niodepth=1\n" in job


@pytest.mark.parametrize(
    ("cause", "is_said"), [(LimitCause.PROCESSOR, True), (LimitCause.DRIVE, False)]
)
def test_a_run_limited_by_its_host_warns_that_fio_may_be_faster(tmp_path, cause, is_said):
    said = {
        "sentence": "",
        "has_reached": None,
        "cause": cause,
        "reason": "in flight 7.4 of 8",
        "tiers": [],
    }
    judged = RunVerdict(**said, tier="nvme", evidence=Evidence(queue_depth=8))
    run = write_run(tmp_path / "run", [500_000] * 10, judgement=judged)
    notes = distil_source(run, None, Limit(), tmp_path).profile.origin.notes
    phrases = ["nvme … in flight 7.4 of 8"] * is_said
    assert show_each([note for note in notes if "faster" in note], phrases)


NO_TIMES = {
    f"{name}_ns": None for name in ("p50", "p95", "p99", "p99_9", "p99_99", "longest_below")
} | {"log2_ns": []}
PROBE = {
    "program": "kvreplay", "version": "0.1.0", "config": {"comm": "vllm", "devices": ["nvme0n1"]},
    "config_sha256": "ab",
    "duration_ns": 2_000_000_000,
    "block": {
        "directions": {
            "read": {
                "issued": 100, "issued_bytes": 100 << 20, "block_sizes": [{"bytes": 1 << 20, "count": 100}],
                "in_flight_at_dispatch": [{"in_flight": 1, "count": 60}, {"in_flight": 3, "count": 40}],
                "d2c": NO_TIMES | {"count": 100, "mean_ns": 1e7}, "q2d": NO_TIMES | {"count": 100, "mean_ns": 2e6},
            },
        },
    },
}  # fmt: skip


def test_a_probe_of_any_process_becomes_a_statistical_job(tmp_path):
    (tmp_path / "probe.json").write_text(json.dumps(PROBE))
    profile = distil_source(tmp_path, None, Limit(), tmp_path).profile
    assert (profile.tier, profile.span_ns, profile.read.ops) == ("nvme0n1", 2 * 10**9, 100)
    # 100 requests of 2 ms in the queue and 10 ms at the device, in 2 s.
    assert (profile.depth.mean, profile.depth.max) == (0.6, 3)
    assert (profile.space, profile.arrivals, profile.locality, profile.streams) == (
        None,
        None,
        None,
        [],
    )
    refused = run_cli("kvdistill", "fio", tmp_path, "-o", tmp_path / "jobs", check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--space" in refused.stderr
    run_cli("kvdistill", "fio", tmp_path, "-o", tmp_path / "jobs", "--space", "1GiB")
    job = (tmp_path / "jobs" / "stat.fio").read_text()
    assert "random_distribution" in job
    assert "rate_iops=50\nrate_process=poisson\n" in job
    assert sorted(f.name for f in (tmp_path / "jobs").iterdir()) == [
        "prefill.fio",
        "profile.json",
        "stat.fio",
    ]
    for mode in ("replay", "reuse"):
        done = run_cli(
            "kvdistill",
            "fio",
            tmp_path,
            "-o",
            tmp_path / "jobs",
            "--force",
            "--mode",
            mode,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "probe.json" in done.stderr


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"config": {"devices": [259]}}, "probe.json … `str` … `int`"),
        ({"block": {"directions": {"discard": NO_TIMES | {
            "issued": 3, "block_sizes": [], "in_flight_at_dispatch": [],
            "d2c": NO_TIMES | {"count": 0, "mean_ns": None}, "q2d": NO_TIMES | {"count": 0, "mean_ns": None},
        }}}}, "discard requests"),
    ],
)  # fmt: skip
def test_what_a_probe_did_not_measure_is_not_taken_for_0(tmp_path, changed, why):
    (tmp_path / "probe.json").write_text(json.dumps(PROBE | changed))
    with pytest.raises(TraceError, match=pattern(why)):
        distil_source(tmp_path, None, Limit(), tmp_path)


def test_flushes_of_a_probe_are_those_that_completed(tmp_path):
    # The kernel passes them on by requests of no process: none was seen to be issued.
    times = NO_TIMES | {"count": 0, "mean_ns": None}
    flush = {
        "completed": 26,
        "block_sizes": [],
        "in_flight_at_dispatch": [],
        "d2c": times,
        "q2d": times,
    }
    directions = PROBE["block"]["directions"] | {"flush": flush}
    (tmp_path / "probe.json").write_text(json.dumps(PROBE | {"block": {"directions": directions}}))
    assert distil_source(tmp_path, None, Limit(), tmp_path).profile.flush_ops == 26


def test_a_profile_is_read_back_and_gives_the_same_jobs(tmp_path):
    distilled = distil_rows(tmp_path, HAND)
    write_json(tmp_path / "profile.json", distilled.profile)
    found = distil_source(tmp_path / "profile.json", None, Limit(), tmp_path)
    assert found.profile == distilled.profile
    assert found.ios is None


def test_profile_writes_what_it_prints(tmp_path):
    done = run_cli(
        "kvdistill",
        "profile",
        write_hand(tmp_path),
        "--tier",
        "nvme",
        "-o",
        tmp_path / "p.json",
        "--json",
    )
    written = json.loads((tmp_path / "p.json").read_text())
    assert json.loads(done.stdout) == written


def test_what_cannot_be_distilled_is_one_line(tmp_path):
    blocks = write_blocks(tmp_path)
    with pytest.raises(ConfigError, match=r"tier.*vda, vdb"):
        distil_source(blocks, None, Limit(), tmp_path)
    with pytest.raises(ConfigError, match=r"'sda'.*vda, vdb"):
        distil_source(blocks, "sda", Limit(), tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"ops\.parquet"):
        distil_source(tmp_path / "empty", None, Limit(), tmp_path)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(TraceError, match=r"not a probe\.json"):
        distil_source(tmp_path / "x.json", None, Limit(), tmp_path)
    (tmp_path / "x.json").write_text('{"origin": 1, "format": 1}')
    with pytest.raises(TraceError, match="format 1"):
        distil_source(tmp_path / "x.json", None, Limit(), tmp_path)
    with pytest.raises(ConfigError, match="limit"):
        distil_source(tmp_path / "x.json", None, parse_limit("5s"), tmp_path)


@pytest.mark.full
@pytest.mark.root
@pytest.mark.bpf
@pytest.mark.fio
def test_a_known_fio_job_comes_back_from_its_own_block_events(tmp_path):
    from probe_load import FILE_BYTES, LOAD, place_on_disk, probed

    with place_on_disk() as (folder, disk):
        command = [
            str(folder / LOAD), "--output-format=json", "--name=job", f"--filename={folder / 'data'}", "--direct=1",
            "--ioengine=libaio", "--iodepth=4", "--rw=randrw", "--rwmixread=70", "--bssplit=64k/30:128k/70",
            f"--size={FILE_BYTES}", "--number_ios=230", "--io_size=1G", "--norandommap", "--rate_iops=400,200",
            "--rate_process=poisson",
        ]  # fmt: skip
        with probed(tmp_path / "out", "--comm", LOAD, "--dev", disk):
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        (job,) = json.loads(said)["jobs"]
        done = run_cli(
            "kvdistill", "fio", tmp_path / "out", "--tier", disk.name, "-o", tmp_path / "jobs", "--mode", "replay",
            "--mode", "reuse", "--check-null", "--json",
        )  # fmt: skip
    result = json.loads(done.stdout)
    profile = result["profile"]
    for name in ("read", "write"):
        # fio's own program, its libraries and the filesystem's maps may be read, too: a few MiB
        # where they were not cached. An I/O over two extents is two requests.
        found = {size["io_bytes"]: size["ops"] for size in profile[name]["sizes"]}
        large, asked = sum(n for size, n in found.items() if size >= 65536), job[name]
        assert asked["total_ios"] - 8 <= large <= asked["total_ios"] + 100
        assert 0 <= profile[name]["io_bytes"] - asked["io_bytes"] <= 16 << 20
    assert 0 < profile["depth"]["mean"] <= 8
    replay, reuse = result["closeness"]["comparisons"]
    passed = {v["name"]: v["passes"] for v in replay["verdicts"]}
    assert passed["same I/Os"] is passed["block-size mismatch"] is passed["read share"] is True
    assert reuse["fio"]["size_tv"] == 0
    assert reuse["fio"]["ios"] == replay["source"]["ios"]
