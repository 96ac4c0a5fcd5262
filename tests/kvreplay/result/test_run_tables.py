"""The tables and figures beside the operations, against values worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import run_cli, trace_meta, write_trace
from phrases import pattern, shows
from taken import planned, take
from whole import read_table

from kvreplay.engine.setting import Setting
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.replay_config import Config, Criteria, read_criteria
from kvreplay.plan.window import compile_window
from kvreplay.result.figures import mlperf_figures
from kvreplay.tiers import claims
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.run.figures import Mlperf
from kvtrace.core.schema import SERIES, SERVED, TRACE
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Sequence

MS = 1_000_000
S = 1000 * MS
MIB = 1 << 20


def row(
    op: str,
    obj: int,
    length: int,
    request: int | None,
    stage: int | None,
    *,
    phase: str = "load",
    tier: int = 2,
) -> Any:
    return (0, op, tier, phase, obj, 0, length, request, stage, 0)


ROWS = [
    row("read", 0, 2 * MIB, 7, 0),
    row("read", 1, MIB, 7, 0),
    row("write", 2, MIB, 7, 1, phase="store"),
    row("read", 3, MIB, 7, 2, tier=0),
    row("read", 0, 2 * MIB, 9, 0, phase="decode"),
    row("delete", 2, MIB, None, None, phase="evict"),
    row("read", 4, MIB, 11, 0, tier=0),
]
# Planned are rows 0, 1, 2, 4, 5: tier 0 has no target. The read of request 9 fails.
TIMES: Sequence[tuple[int, int]] = ((0, 400), (100, 200), (600, 1200), (700, -1), (1300, 1400))


def setting(tmp_path: Path, **meta: Any) -> tuple[Setting, Any]:
    trace = write_trace(tmp_path / "t.parquet", ROWS, **meta)
    reader = open_table(trace, TRACE)
    tier = FileTier("nvme", tmp_path, StorageOptions())
    window = compile_window(reader, trace, {2: 4096}, Limit())
    submitted, completed = np.array(TIMES, dtype=np.int64).T * MS
    completed[3] = -1
    made = Setting(Config(tiers={}), Pacer(), reader, window, [None, None, tier], trace, [])
    return made, planned(
        made, submitted_ns=submitted, completed_ns=completed, outcome=[0, 0, 0, 1, 0]
    )


def test_a_request_is_served_while_an_operation_is_in_flight(tmp_path: Path) -> None:
    take(*setting(tmp_path), tmp_path / "run")
    found = read_table(tmp_path / "run" / "requests.parquet", SERVED).to_pylist()
    # Request 7: 0 to 400 ms, the second read within, and 600 to 1200: 1000 of its 1200 ms.
    assert found[0] == {
        "request_id": 7,
        "scheduled_ns": None,
        "submitted_ns": 0,
        "completed_ns": 1200 * MS,
        "storage_ns": S,
        "qos": None,
        "first_token_ns": None,
        "operations": 3,
        "unfinished": 0,
        "not_replayed": 1,
        "hits": 2,
        "hit_bytes": 3 * MIB,
        "read_bytes": 3 * MIB,
        "written_bytes": MIB,
    }
    assert found[1] == {
        "request_id": 9,
        "scheduled_ns": None,
        "submitted_ns": 700 * MS,
        "completed_ns": None,
        "storage_ns": None,
        "qos": None,
        "first_token_ns": None,
        "operations": 0,
        "unfinished": 1,
        "not_replayed": 0,
        "hits": 0,
        "hit_bytes": 0,
        "read_bytes": 0,
        "written_bytes": 0,
    }
    assert (found[2]["request_id"], found[2]["not_replayed"], found[2]["operations"]) == (11, 1, 0)
    assert len(found) == 3


def test_each_second_has_its_operations(tmp_path: Path) -> None:
    take(*setting(tmp_path), tmp_path / "run")
    found = read_table(tmp_path / "run" / "series.parquet", SERIES).to_pylist()
    assert found == [
        {
            "second": 0,
            "tier": 2,
            "drive": None,
            "op": "read",
            "operations": 2,
            "errors": 1,
            "bytes": 3 * MIB,
            "mean_ns": 250 * MS,
            "p99_ns": None,
            "max_ns": 400 * MS,
        },
        {
            "second": 1,
            "tier": 2,
            "drive": None,
            "op": "write",
            "operations": 1,
            "errors": 0,
            "bytes": MIB,
            "mean_ns": 600 * MS,
            "p99_ns": None,
            "max_ns": 600 * MS,
        },
        {
            "second": 1,
            "tier": 2,
            "drive": None,
            "op": "delete",
            "operations": 1,
            "errors": 0,
            "bytes": 0,
            "mean_ns": 100 * MS,
            "p99_ns": None,
            "max_ns": 100 * MS,
        },
    ]


def test_what_was_cut_off_in_flight_is_not_reached(tmp_path: Path) -> None:
    made, rows = setting(tmp_path)
    rows["outcome"][3:], rows["completed_ns"][3:], rows["submitted_ns"][4] = 3, -1, -1
    found = take(made, rows, tmp_path / "run").summary(None)
    assert (found.operations, found.errors, found.not_reached) == (3, 0, 2)


def test_latency_per_mib_scales_each_operation(tmp_path: Path) -> None:
    made, rows = setting(tmp_path)
    found = take(made, rows, tmp_path / "run").summary(None)
    by = {f.op: f.latency_per_mib for f in found.figures}
    # 400 ms for 2 MiB, 100 ms for 1 MiB.
    assert (by["read"].count, by["read"].mean_ns, by["read"].max_ns) == (2, 150 * MS, 200 * MS)
    assert (by["write"].max_ns, by["delete"].count) == (600 * MS, 0)


def judged(made: Setting, rows: Any, output: Path, criteria: Criteria) -> Mlperf:
    found = take(made, rows, output)
    targets = {t.name: t.target for t in made.tiers if t is not None and not t.is_simulated}
    whole, summary = made.is_whole_trace, found.summary(None)
    return mlperf_figures(
        made.reader.meta,
        targets,
        summary,
        criteria,
        found.requests,
        is_whole_trace=whole,
        took_ns=found.took_ns,
    )


STATS = {"output_tokens": 500, "lookups": 10, "tiers": [{"hits": 2}, {"hits": 1}, {"hits": 1}]}


def test_the_benchmarks_figures_are_by_its_definitions(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, stats=STATS)
    rows["outcome"][3], rows["completed_ns"][3] = 0, 1000 * MS
    found = judged(made, rows, tmp_path / "run", Criteria(hit_rate=0.5))
    # Reads of 400, 100 and 300 ms and a write of 600 ms; the delete is none of the benchmark's.
    assert found.throughput.storage_io_ns == 1400 * MS
    assert found.throughput.storage_throughput_tokens_per_s == pytest.approx(500 / 1.4)
    assert found.throughput.wall_clock_throughput_tokens_per_s is None
    assert [(x.op, x.kind, x.host, x.device) for x in found.latencies] == [
        ("read", "storage", None, None),
        ("write", "storage", None, None),
    ]
    verdicts = {c.name: (c.measured, c.verdict) for c in found.criteria}
    assert verdicts["hit_rate"] == (0.4, "fail")
    assert verdicts["storage_read_p95_ns"] == (None, "not measured")
    # 5 MiB of reads from 0 to 1000 ms, 1 MiB of writes from 600 to 1200 ms.
    assert verdicts["storage_bandwidth_bytes_per_s"] == (pytest.approx(6 * MIB / 1.2), "pass")


def test_hit_rate_is_not_measured_where_a_tier_has_no_hits(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, stats=STATS | {"tiers": [{"hits": 2}, {"name": "ckpt"}]})
    found = judged(made, rows, tmp_path / "run", Criteria(hit_rate=0.5))
    assert [(c.measured, c.verdict) for c in found.criteria if c.name == "hit_rate"] == [
        (None, "not measured")
    ]


def test_tokens_are_null_when_only_a_part_was_measured(tmp_path: Path) -> None:
    made, rows = setting(tmp_path, stats=STATS)
    found = judged(made, rows, tmp_path / "run", Criteria()).throughput
    assert (found.tokens, found.storage_throughput_tokens_per_s) == (None, None)
    assert shows(found.reason, "whole")


def test_p95_is_judged_at_the_threshold(tmp_path: Path) -> None:
    rows = [row("read", i, 4096, None, None, tier=1) for i in range(20)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {1: 1}, Limit())
    made = Setting(
        Config(tiers={}), Pacer(), reader, window, [None, RamTier("cpu", 4096), None], trace, []
    )
    rows = planned(made, submitted_ns=0, completed_ns=np.arange(1, 21) * MS, outcome=0)
    for limit, verdict in (("19ms", "fail"), ("20ms", "pass")):
        found = {
            c.name: c.verdict
            for c in judged(made, rows, tmp_path / "run", Criteria(cpu_p95=limit)).criteria
        }
        assert found["cpu_p95_ns"] == verdict


def test_in_an_open_loop_the_response_time_is_judged(tmp_path: Path) -> None:
    rows = [row("read", i, 4096, None, None, tier=1) for i in range(20)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    reader = open_table(trace, TRACE)
    window = compile_window(reader, trace, {1: 1}, Limit())
    made = Setting(
        Config(tiers={}), Pacer(1.0), reader, window, [None, RamTier("cpu", 4096), None], trace, []
    )
    # Each is in flight for 1 ms, and was due 500 ms before that: what a drive that is behind makes
    # of it.
    submitted = np.full(20, 500 * MS)
    rows = planned(
        made,
        submitted_ns=submitted,
        completed_ns=submitted + MS,
        outcome=0,
        due_ns=np.zeros(20, np.int64),
    )
    found = judged(made, rows, tmp_path / "run", Criteria())
    verdicts = {c.name: (c.measured, c.verdict) for c in found.criteria}
    assert verdicts["cpu_p95_ns"] == (501 * MS, "fail")
    assert found.latencies[0].total.p95_ns == MS
    assert found.latencies[0].response is not None
    assert found.latencies[0].response.p95_ns == 501 * MS


def test_criteria_come_from_a_file_that_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    for text, message in (
        ('cpu_p99 = "1ms"', "unknown field `cpu_p99`"),
        ('cpu_p95 = "quick"', "'quick'"),
        ("hit_rate = 'high'", "hit_rate"),
        ("[qos_batch]\np95 = '1s'", "qos_batch"),
        (
            "[qos_batch]\np95 = 'soon'\np99 = '1s'\np99_9 = '1s'\np99_99 = '1s'",
            "'soon'",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=pattern(message)):
            read_criteria(path)
    path.write_text('storage_read_p95 = "50ms"\nstorage_bandwidth = "1GB"\n')
    assert read_criteria(path) == Criteria(storage_read_p95="50ms", storage_bandwidth="1GB")
    assert Criteria().storage_read_p95 == "200ms"


def test_a_run_has_its_tables_with_provenance(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", i, 4096, i // 2, 0, tier=1) for i in range(8)]
    )
    (tmp_path / "c.toml").write_text('cpu_p95 = "1h"\n')
    run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        "cpu=ram",
        "--criteria",
        tmp_path / "c.toml",
        "-o",
        tmp_path / "run",
    )
    assert (
        read_table(tmp_path / "run" / "requests.parquet", SERVED).column("operations").to_pylist()
        == [2] * 4
    )
    assert (
        sum(
            read_table(tmp_path / "run" / "series.parquet", SERIES).column("operations").to_pylist()
        )
        == 8
    )
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["config"]["criteria"]["cpu_p95"] == "1h"
    meta = open_table(tmp_path / "run" / "requests.parquet", SERVED).meta
    assert (meta.table, meta.seed, meta.rows) == ("served", trace_meta().seed, 4)


def test_smart_data_is_null_with_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(claims, "block_device", lambda _: Path("/sys/block/sdx"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shows(claims.smart(tmp_path).reason, "smartctl nor nvme")
    tool = tmp_path / "smartctl"
    for answer, expected in (
        (
            '{"nvme_smart_health_information_log": {"percentage_used": 3}}',
            ({"percentage_used": 3}, None),
        ),
        (
            '{"smartctl": {"messages": [{"string": "Permission denied"}]}}',
            (None, "Permission denied"),
        ),
        ("xyz", (None, "smartctl … JSON")),
    ):
        tool.write_text(f"#!/bin/sh\ncat <<'EOF_'\n{answer}\nEOF_\n".replace("cat", "/bin/cat"))
        tool.chmod(0o755)
        found = claims.smart(tmp_path)
        assert found.values == expected[0]
        assert (found.reason is None) == (expected[1] is None)
        assert expected[1] is None or shows(found.reason, expected[1])
    assert shows(claims.smart(tmp_path / "absent").reason, "no block device")
