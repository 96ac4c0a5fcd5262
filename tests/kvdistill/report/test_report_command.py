from __future__ import annotations

import json

import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, MS, io, write_hand, write_run

from kvdistill.report.output import report
from kvdistill.report.run import RunReport
from kvdistill.report.trace import TraceReport
from kvtrace.core.errors import ConfigError, TraceError


def test_the_hand_trace(tmp_path):
    found = report(write_hand(tmp_path))
    assert isinstance(found, TraceReport)
    assert (found.subject.preset, found.subject.seed, found.subject.rows) == ("by-hand", 42, 10)
    assert (found.span_ns, found.requests) == (105 * MS, 6)
    nvme = found.tiers[2]
    # 6000 + 3 MiB written; 6000 deleted, 4096 written. Object 2 is only read, 8192 of it: it lay
    # there before.
    assert nvme == {
        "name": "nvme", "capacity_bytes": 1 << 30, "peak_live_bytes": 8192 + 6000 + (3 << 20),
        "end_live_bytes": 8192 + 4096 + (3 << 20), "hits": None, "hit_ratio": None,
    }  # fmt: skip
    assert found.tiers[0]["peak_live_bytes"] is None
    assert {
        (o["tier"], o["op"], o["phase"]): (o["ops"], o["bytes"], o["objects"])
        for o in found.operations
    } == {
        ("cpu", "write", "store"): (1, 6000, 1),
        ("nvme", "delete", "evict"): (1, 6000, 1),
        ("nvme", "read", "load"): (5, 8192 + (3 << 20) + 2000 + 4096 + (1 << 20), 4),
        ("nvme", "write", "store"): (3, 6000 + (3 << 20) + 4096, 3),
    }
    assert found.bucket_ns == 105 * MS // 48 + 1
    assert len(found.over_time) == 2 * 48
    assert sum(b["reads"] for b in found.over_time) == 5
    assert sum(b["written_bytes"] for b in found.over_time) == 6000 + 6000 + (3 << 20) + 4096


def test_sizes_have_percentiles_only_where_there_are_enough(tmp_path):
    rows = [io(i, "read", i, 4096 if i < 98 else 8192 * (i - 97)) for i in range(100)]
    (sizes,) = report(write_trace(tmp_path / "t.parquet", rows)).sizes
    assert (sizes["p50_bytes"], sizes["p99_bytes"], sizes["max_bytes"]) == (4096, 8192, 16384)
    assert sizes["top"][0] == {"length_bytes": 4096, "ops": 98, "share": 0.98}
    (sizes,) = report(write_trace(tmp_path / "t.parquet", rows[:99])).sizes
    assert (sizes["p50_bytes"], sizes["p99_bytes"]) == (4096, None)


def test_live_bytes_follow_growth_overwrites_and_lives(tmp_path):
    rows = [
        io(1, "write", 0, 4096), io(2, "write", 0, 4096, offset=4096), io(3, "write", 0, 4096),
        io(4, "delete", 0, 8192), io(5, "write", 0, 4096), io(6, "delete", 9, 4096),
    ]  # fmt: skip
    nvme = report(write_trace(tmp_path / "t.parquet", rows)).tiers[2]
    assert (nvme["peak_live_bytes"], nvme["end_live_bytes"]) == (8192, 4096)
    # What is deleted and was never written lay there before: how much did is not known, and is not
    # 0.
    nvme = report(write_trace(tmp_path / "d.parquet", rows[-1:])).tiers[2]
    assert (nvme["peak_live_bytes"], nvme["end_live_bytes"]) == (None, None)


def test_info_and_report_count_populated_objects_from_the_start(tmp_path):
    # 0 lies there until it is deleted, 4 KiB of 1 until it is written on; 2 comes when 0 is gone; 3
    # is read when gone.
    rows = [
        io(1, "write", 3, 4096), io(2, "delete", 3, 4096), io(3, "read", 3, 4096), io(4, "read", 0, 65536),
        io(5, "delete", 0, 65536), io(6, "write", 2, 8192), io(7, "read", 1, 4096),
        io(8, "write", 1, 4096, offset=4096),
    ]  # fmt: skip
    trace = write_trace(tmp_path / "t.parquet", rows)
    (told,) = json.loads(run_cli("kvtrace", "info", "--json", trace).stdout)["tiers"][2:]
    nvme = report(trace).tiers[2]
    sizes = (4096 + 65536 + 4096, 4096 + 8192 + 8192)
    assert (told["peak_live_bytes"], told["live_bytes_at_end"]) == sizes
    assert (nvme["peak_live_bytes"], nvme["end_live_bytes"]) == sizes
    # As much as a replay must have room for, without what was deleted before it was read.
    later = write_trace(tmp_path / "later.parquet", rows[3:])
    how = ("--tier", "nvme=sim:bandwidth=7GB,latency=80us", "--json", "-o", tmp_path / "run")
    made = run_cli("kvreplay", "run", later, *how)
    assert json.loads(made.stdout)["window"]["peak_bytes"]["nvme"] == 65536 + 4096


def test_hits_come_from_the_simulation(tmp_path):
    stats = {"tiers": [{"name": "nvme", "hits": 3, "hit_ratio": 0.25}]}
    nvme = report(write_trace(tmp_path / "t.parquet", HAND, stats=stats)).tiers[2]
    assert (nvme["hits"], nvme["hit_ratio"]) == (3, 0.25)


def test_one_instant_has_no_rate(tmp_path):
    found = report(write_trace(tmp_path / "t.parquet", [io(5, "read", 0, 4096)]))
    assert (found.span_ns, found.bucket_ns) == (0, None)
    assert "no rate" in run_cli("kvdistill", "report", tmp_path / "t.parquet").stdout


def test_an_empty_trace(tmp_path):
    found = report(write_trace(tmp_path / "t.parquet", []))
    assert (found.span_ns, found.operations, found.over_time, found.requests) == (None, [], [], 0)
    assert run_cli("kvdistill", "report", tmp_path / "t.parquet").returncode == 0


def test_a_run_has_percentiles_only_where_there_are_enough(tmp_path):
    # Latencies 1 … 1000 µs: by nearest rank p50 is the 500th.
    found = report(write_run(tmp_path / "run", [i * 1000 for i in range(1, 1001)]))
    assert isinstance(found, RunReport)
    (latency,) = found.latency
    assert latency == {
        "tier": "nvme", "op": "read", "count": 1000, "mean_ns": 500_500.0, "p50_ns": 500_000, "p95_ns": 950_000,
        "p99_ns": 990_000, "p99_9_ns": 999_000, "p99_99_ns": None, "max_ns": 1_000_000,
    }  # fmt: skip
    assert (found.lateness[0]["p50_ns"], found.lateness[0]["max_ns"]) == (10_000, 10_000)
    (figures,) = found.figures
    # From 10 µs to 999 ms + 10 µs + 1 ms.
    assert figures["span_ns"] == 1000 * MS
    assert (figures["bytes"], figures["io_bytes"]) == (4_000_000, 4_096_000)
    assert (figures["bandwidth_bytes_per_s"], figures["operations_per_s"]) == (4e6, 1000)
    assert (found.run.program, found.run.summary.verdict) == ("kvreplay", "fine")


def test_one_operation_has_no_percentile(tmp_path):
    (latency,) = report(write_run(tmp_path / "run", [7000])).latency
    assert (latency["p50_ns"], latency["max_ns"]) == (None, 7000)


def test_failed_and_simulated_operations_have_no_latency(tmp_path):
    failed = report(write_run(tmp_path / "failed", [1000, 2000], outcome="error"))
    assert (failed.latency, failed.figures[0]["errors"], failed.figures[0]["operations"]) == (
        [],
        2,
        0,
    )
    assert failed.figures[0]["bandwidth_bytes_per_s"] is None
    simulated = report(write_run(tmp_path / "simulated", [1000, 2000], engine="sim"))
    assert (simulated.latency, simulated.figures[0]["operations_per_s"]) == ([], None)


def test_the_terminal_report_and_its_json(tmp_path):
    trace = write_hand(tmp_path)
    shown = run_cli("kvdistill", "report", trace).stdout
    assert "by-hand" in shown
    assert ["nvme", "delete", "evict", "1", "6.00", "kB", "1"] in [
        line.split() for line in shown.splitlines()
    ]
    found = json.loads(run_cli("kvdistill", "report", trace, "--json").stdout)
    assert found["subject"]["preset"] == "by-hand"
    shown = run_cli("kvdistill", "report", write_run(tmp_path / "run", [5000, 6000])).stdout
    assert shown.startswith("run\nfine\n")


def test_what_is_no_report_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="run of kvreplay"):
        report(tmp_path)
    with pytest.raises(TraceError, match="no such file"):
        report(tmp_path / "none.parquet")
    write_hand(tmp_path)
    with pytest.raises(TraceError, match=r"'objects'.*'trace'"):
        report(tmp_path / "hand.objects.parquet")
