"""The workbook begins with MLPerf's sheets.

Its names, its order, its layout; empty where we do not measure.
"""

from __future__ import annotations

import shutil

import msgspec
import pytest
from conftest import run_cli
from kvdistill_rows import change_run, write_hand, write_run
from openpyxl import load_workbook
from run_files import distribution, figures
from test_report_parts import write_probe

from kvdistill.reports.output import report
from kvtrace.core.document.mlperf_sheets import run_parameters
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import read_run

PARAMETERS = """Timestamp, Model, Num Users, Duration (s), GPU Memory per Card (GiB), Num GPUs, Tensor Parallel,
Total GPU Memory (GiB), CPU Memory (GiB), Generation Mode, Performance Profile, Multi-turn, Prefix Caching, RAG Enabled,
Autoscaling, Seed, Max Concurrent Allocs, Request Rate, Max Requests, Dataset Path, Cache Dir, Storage Capacity (GiB),
Precondition, Precondition Size (GiB), Precondition Threads, Trace Speedup, Replay Cycles"""
POINTS = ("P50", "P95", "P99", "P99.9", "P99.99")
BY_TIER = ("GPU", "CPU", "Storage")
METRICS = [
    *("Total Requests", "Total Tokens", "Elapsed Time (s)", "Avg Throughput (tok/s)", "Storage Throughput (tok/s)"),
    "Requests/sec",
    *(f"{what} Latency {point} (ms)" for what in ("E2E", "Storage") for point in ("Mean", *POINTS)),
    *(f"Gen Latency {point} (ms)" for point in ("Mean", *POINTS[:3])),
    *(
        f"Storage Tier {op} {part} {point} (ms)"
        for part in ("Total", "Device", "Host") for op in ("Read", "Write") for point in POINTS
    ),
    *("Cache Hit Rate", "Read/Write Ratio", "Total Read (GiB)", "Total Write (GiB)"),
    *(f"Tier {tier} KV Bytes {done} (GiB)" for done in ("Written", "Read") for tier in BY_TIER),
    *(f"Tier {tier} {op} Bandwidth (GiB/s)" for tier in BY_TIER for op in ("Read", "Write")),
    *(f"{tier} Entries" for tier in BY_TIER),
    "Multi-turn Hit Rate",
]  # fmt: skip
QOS = [
    "QoS Level",
    "Total Requests",
    "Latency P95 (ms)",
    "Latency P99 (ms)",
    "SLA Met",
    "SLA Compliance",
]
TRACED = ["Metric", "Description", "Samples", "P50", "P95", "P99", "Min Bucket", "Max Bucket"]
SHEETS = [
    "Summary",
    "Run Parameters",
    "Performance Metrics",
    "QoS Metrics",
    "Device Tracing",
    "Trace Histograms",
]


def sheet(book, name):
    """Return a sheet as pandas reads it: the first row is the header."""
    header, *rows = (list(row) for row in book[name].iter_rows(values_only=True))
    return header, rows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_run(tmp_path_factory.mktemp("sheets") / "run", [2_000_000] * 100)
    read = figures(4.0 * (1 << 30), bytes=3 << 30)
    write = figures(2.0 * (1 << 30), op="write", bytes=1 << 30)
    summary = msgspec.to_builtins(read_run(folder).summary)
    found = {"tier": "nvme", "kind": "storage", "reason": "together"}
    throughput = {"tokens": 50, "storage_io_ns": 1, "storage_throughput_tokens_per_s": 7.0, "reason": None,
                  "wall_clock_throughput_tokens_per_s": 5.0}  # fmt: skip
    change_run(
        folder,
        summary=summary | {"wall_ns": 10**10, "figures": [msgspec.to_builtins(f) for f in (read, write)]},
        mlperf={
            "latencies": [found | {"op": "read", "total": msgspec.to_builtins(distribution(2_500_000, 100))}],
            "throughput": throughput, "criteria": [], "qos_compliance": None, "qos_reason": None, "qos_definition": "",
        },
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def book(run):
    """The workbook of the run and of a trace."""
    run_cli("kvdistill", "report", run, write_hand(run.parent), "-o", run.parent / "r.xlsx")
    return load_workbook(run.parent / "r.xlsx")


def test_names_order_and_layout_are_the_benchmarks(book):
    assert book.sheetnames[:6] == SHEETS
    asked = [name.strip() for name in PARAMETERS.replace("\n", " ").split(",")]
    header, (row,) = sheet(book, "Summary")
    assert header == [*asked, *METRICS, "Run"]
    assert row[-1] == "run"
    for name, names in (("Run Parameters", asked), ("Performance Metrics", METRICS)):
        header, rows = sheet(book, name)
        assert header == [
            "Metric" if name.startswith("Perf") else "Parameter",
            "Value",
            "Unit",
            "Note",
        ]
        assert [row[0] for row in rows] == names
    assert sheet(book, "QoS Metrics")[0][:6] == QOS
    assert sheet(book, "Device Tracing")[0][:8] == TRACED
    assert sheet(book, "Trace Histograms")[0][:4] == [
        "Histogram",
        "Bucket Low",
        "Bucket High",
        "Count",
    ]


def test_values_use_the_units_of_names_and_null_is_empty(book):
    lines = {
        name: (value, unit) for name, value, unit, _note in sheet(book, "Performance Metrics")[1]
    }
    assert lines["Elapsed Time (s)"] == (10, "s")
    assert lines["Storage Throughput (tok/s)"] == (7, "tok/s")
    assert lines["Storage Tier Read Total P99 (ms)"] == (2.5, "ms")
    # 3 GiB in the 10 s of the run, as the benchmark counts it, whatever the span of the reads.
    assert lines["Tier Storage Read Bandwidth (GiB/s)"] == (0.3, "GiB/s")
    assert (lines["Tier Storage KV Bytes Read (GiB)"], lines["Read/Write Ratio"]) == (
        (3, "GiB"),
        (3, "ratio"),
    )
    for unknown in ("E2E Latency P95 (ms)", "Gen Latency Mean (ms)", "Storage Tier Read Device P95 (ms)", "GPU Entries",
                    "Tier GPU Read Bandwidth (GiB/s)", "Storage Tier Write Total P50 (ms)"):  # fmt: skip
        assert lines[unknown][0] is None


def test_capacities_of_a_fleet_are_of_all_its_nodes(run):
    """They were those of one node, and called total."""
    names = ("requests", "computed_tokens", "computing_ns", "lookups", "local_hits", "shared_hits")
    counts = dict.fromkeys(names, [0] * 4)
    fleet = {
        "nodes": 4,
        "router": "prefix",
        "computed_tokens": 0,
        "duplicate_bytes": 0,
        "by_node": counts,
    }
    fleet |= {"hit_ratio": None, "local_hit_ratio": None, "shared_hit_ratio": None}
    fleet |= {"imbalance": {"requests": None, "computing_ns": None}}
    tiers = [
        TierFacts("gpu", 1 << 30, 1),
        TierFacts("cpu", 6 << 30, 2),
        TierFacts("nvme", 5 << 30, 1),
    ]
    tiers.append(TierFacts("fs", 1 << 40))
    found = read_run(run)
    trace = msgspec.structs.replace(found.trace.metadata, stats={"fleet": fleet}, tiers=tiers)
    asked = run_parameters(
        msgspec.structs.replace(found, trace=msgspec.structs.replace(found.trace, metadata=trace))
    )
    assert (asked["Total GPU Memory (GiB)"][0], asked["CPU Memory (GiB)"][0]) == (4, 12)
    assert asked["Storage Capacity (GiB)"][0] == 4 * 5 + 1024


def test_the_probes_figures_bear_the_benchmarks_names(run, tmp_path):
    probed = write_probe(shutil.copytree(run, tmp_path / "run"))
    run_cli("kvdistill", "report", probed, "-o", tmp_path / "r.xlsx")
    book = load_workbook(tmp_path / "r.xlsx")
    rows = {row[0]: row for row in sheet(book, "Device Tracing")[1]}
    # 3 requests of 1024 to 2048 ns in the queue; too few for a p95.
    assert rows["Q2D Read (us)"][2:9] == [3, 1.0245, None, None, 1.024, 2.048, "us"]
    assert rows["Block Size Read (KiB)"][2:9] == [3, 4, None, None, 4, 8, "KiB"]
    assert rows["Queue Depth Read"][2:9] == [3, 1, None, None, 1, 4, "count"]
    bins = [row[:5] for row in sheet(book, "Trace Histograms")[1] if row[0] == "Queue Depth Read"]
    assert bins == [["Queue Depth Read", 1, 2, 2, "count"], ["Queue Depth Read", 2, 4, 1, "count"]]


def test_runs_share_sheets_and_traces_alone_have_none(run, tmp_path):
    other = write_run(tmp_path / "other", [1000])
    run_cli("kvdistill", "report", run, other, "-o", tmp_path / "r.xlsx")
    book = load_workbook(tmp_path / "r.xlsx")
    assert [row[-1] for row in sheet(book, "Summary")[1]] == ["run", "other"]
    header, rows = sheet(book, "Performance Metrics")
    assert header == ["Metric", "Value", "Unit", "Note", "other"]
    assert [row[4] for row in rows if row[0] == "Elapsed Time (s)"] == [
        report(other).run.summary.wall_ns / 1e9
    ]
    run_cli("kvdistill", "report", write_hand(tmp_path), "-o", tmp_path / "t.xlsx")
    assert not set(SHEETS) & set(load_workbook(tmp_path / "t.xlsx").sheetnames)
