from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import run_cli, run_process, trace_meta, write_trace
from kvdistill_rows import io, write_hand, write_run
from phrases import shows
from whole import read_table

from kvdistill.commands.reports import split_query
from kvdistill.queries.sql import named_queries, named_query, run_statement
from kvtrace.core.errors import ConfigError, OutOfMemory
from kvtrace.core.run.figures import WarmupFacts
from kvtrace.core.schema import BLOCKS, REQUESTS, SERVED, TRACE, arrow_schema, enum_array
from kvtrace.core.tables import create

S = 1_000_000_000
MIB = 1 << 20


def ask(name, *paths):
    query = named_query(name)
    with run_statement(paths, query.sql, query.needs) as batches:
        rows = [row for batch in batches for row in batch.to_pylist()]
    return [{k: v for k, v in row.items() if k != "origin"} for row in rows]


def write_blocks(folder, rows):
    """insert, issue, complete (ns), bytes, rwbs, comm, error."""
    columns = list(zip(*rows, strict=True))
    values = dict(
        zip(
            ("insert_ns", "issue_ns", "complete_ns", "bytes", "rwbs", "comm", "error"),
            columns,
            strict=True,
        )
    )
    values |= {"device": ["vda"] * len(rows), "sector": [0] * len(rows), "pid": [1] * len(rows)}
    batch = pa.RecordBatch.from_pydict(
        {c.name: values[c.name] for c in BLOCKS.columns}, arrow_schema(BLOCKS)
    )
    with create(folder / "blocks.parquet", BLOCKS, trace_meta(BLOCKS)) as out:
        out.write(batch)


@pytest.fixture
def trace(tmp_path):
    """Two requests a minute apart.

    The second loads one of the two chunks of the first, of 1 and 3 MiB.
    """
    return write_trace(tmp_path / "t.parquet", [
        (0, "write", 0, "prefill", 0, 0, MIB, 0, 0, 0),
        (0, "write", 0, "prefill", 1, 0, 3 * MIB, 0, 0, 0),
        (S, "write", 2, "store", 0, 0, MIB, 0, 1, 0),
        (S, "write", 2, "store", 1, 0, 3 * MIB, 0, 1, 0),
        (60 * S, "read", 2, "load", 0, 0, MIB, 1, 0, 0),
        (60 * S, "write", 0, "prefill", 2, 0, 3 * MIB, 1, 1, 0),
        (61 * S, "read", 2, "load", 0, 0, MIB, 2, 0, 0),
        (71 * S, "delete", 2, "evict", 0, 0, MIB, None, None, 0),
    ])  # fmt: skip


def test_what_a_trace_answers(trace):
    minutes = ask("loaded_share_by_minute", trace)
    assert [(m["minute"], m["stored_objects"], m["loaded_share"]) for m in minutes] == [
        (0, 2, 0.0),
        (1, 1, 2 / 3),
    ]
    assert minutes[1]["loaded_byte_share"] == 2 / 5
    where = {(r["tier"], r["phase"]): (r["operations"], r["bytes"], r["share_of_tier"])
             for r in ask("bytes_by_tier_and_phase", trace)}  # fmt: skip
    assert where["nvme", "store"] == (2, 4 * MIB, 4 / 7)
    assert where["nvme", "evict"] == (1, MIB, 1 / 7)
    assert where["gpu", "prefill"] == (3, 7 * MIB, 1.0)
    assert [r for r in ask("demand_by_second", trace) if r["second"] == 1] == [
        {"tier": "nvme", "second": 1, "reads_per_s": 0, "writes_per_s": 2, "read_bytes_per_s": 0,
         "written_bytes_per_s": 4 * MIB},
    ]  # fmt: skip
    assert ask("hot_objects", trace) == [
        {
            "key": "chunk/000000000000",
            "kind": "chunk",
            "reads": 2,
            "read_bytes": 2 * MIB,
            "share_of_reads": 1.0,
        }
    ]
    # Read 59 s after the write and 1 s after that.
    (reuse,) = ask("reuse_intervals", trace)
    assert (reuse["tier"], reuse["reads"], reuse["rereads"]) == ("nvme", 2, 2)
    assert (reuse["p50_ns"], reuse["p95_ns"], reuse["max_ns"]) == (S, None, 59 * S)
    gpu, nvme = ask("object_lifetimes", trace)
    assert (gpu["ended"], gpu["still_live_or_never_written"], gpu["max_ns"]) == (0, 3, None)
    assert (nvme["ended"], nvme["still_live_or_never_written"], nvme["max_ns"]) == (1, 1, 70 * S)
    gpu, nvme = ask("writes_never_read", trace)
    assert gpu["never_read_share"] == 1
    assert (nvme["written_bytes"], nvme["never_read_bytes"], nvme["never_read_share"]) == (
        4 * MIB,
        3 * MIB,
        0.75,
    )
    gpu, nvme = ask("write_amplification", trace)
    assert (gpu["written_per_new_byte"], nvme["new_bytes"]) == (1, 7 * MIB)
    assert nvme["written_per_new_byte"] == 4 / 7
    sizes = {
        (r["tier"], r["op"], r["from_bytes"]): r["operations"] for r in ask("sizes_by_class", trace)
    }
    assert (sizes["gpu", "write", 2 * MIB], sizes["nvme", "read", MIB]) == (2, 2)
    most = ask("requests_with_most_bytes", trace)
    assert [(r["request_id"], r["read_bytes"], r["written_bytes"]) for r in most] == [
        (0, 0, 8 * MIB), (1, MIB, 3 * MIB), (2, MIB, 0),
    ]  # fmt: skip


def test_burstiness(tmp_path):
    # Gaps of 1, 3 and 2 s: mean 2, variance 2/3.
    rows = [io(t, "read", 0, 1) for t in (0, 1000, 4000, 6000)]
    (nvme,) = ask("burstiness", write_trace(tmp_path / "t.parquet", rows))
    assert (nvme["operations"], nvme["mean_gap_ns"], nvme["busiest_per_s"]) == (4, 2 * S, 1)
    assert nvme["gap_variation"] == pytest.approx((2 / 3) ** 0.5 / 2)
    assert nvme["mean_per_s"] == pytest.approx(4 / 6)


def test_what_requests_answer(tmp_path):
    n = 3
    values = {
        "arrival_ns": [0, 30 * S, 60 * S], "request_id": range(n), "session_id": [7, 7, None], "turn": [0, 1, None],
        "input_tokens": [10, 30, 20], "output_tokens": [1, 2, 3], "block_ids": [[1, 2], [1, 2, 3], None],
    }  # fmt: skip
    arrays = [
        enum_array(REQUESTS, c.name, [0] * n) if c.type == "enum"
        else pa.array(list(values[c.name]), arrow_schema(REQUESTS).field(c.name).type)
        for c in REQUESTS.columns
    ]  # fmt: skip
    path = tmp_path / "r.parquet"
    with create(path, REQUESTS, trace_meta(REQUESTS)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(REQUESTS)))
    assert ask("arrivals_by_minute", path) == [
        {"minute": 0, "requests": 2, "sessions": 1, "input_tokens": 40, "output_tokens": 3},
        {"minute": 1, "requests": 1, "sessions": 0, "input_tokens": 20, "output_tokens": 3},
    ]
    (lengths,) = ask("prompt_lengths", path)
    assert (
        lengths["mean_input_tokens"],
        lengths["p50_input_tokens"],
        lengths["max_input_tokens"],
    ) == (20, 20, 30)
    assert lengths["p99_input_tokens"] is None
    assert ask("shared_prefixes", path) == [
        {"blocks": 5, "distinct_blocks": 3, "seen_before": 1 - 3 / 5}
    ]


def test_what_a_run_answers(tmp_path):
    # One read of 4000 bytes each millisecond, 10 µs late; the last of 1000 takes 2 s, the others 1
    # … 999 µs.
    run = write_run(tmp_path / "run", [*(i * 1000 for i in range(1, 1000)), 2 * S], wall_ns=3 * S)
    slowest = ask("slowest_operations", run)
    assert len(slowest) == 20
    assert (slowest[0]["row"], slowest[0]["latency_ns"], slowest[1]["latency_ns"]) == (
        999,
        2 * S,
        999_000,
    )
    (size,) = ask("latency_by_size_class", run)
    assert (size["from_bytes"], size["operations"], size["p50_ns"], size["p99_ns"]) == (
        2048,
        1000,
        500_000,
        990_000,
    )
    (phase,) = ask("latency_by_phase", run)
    assert (phase["phase"], phase["max_ns"]) == ("load", 2 * S)
    (late,) = ask("lateness_by_second", run)
    assert (late["operations"], late["p50_ns"], late["max_ns"]) == (1000, 10_000, 10_000)
    # The 998th is submitted 997.01 ms in and takes 998 µs: it ends before the second does, as all
    # but two do.
    by_second = {
        r["second"]: (r["operations_per_s"], r["bytes_per_s"])
        for r in ask("bandwidth_by_second", run)
    }
    assert by_second == {0: (999, 999 * 4000), 2: (1, 4000)}
    in_flight = {r["second"]: r["in_flight_mean"] for r in ask("in_flight_by_second", run)}
    # 1 + … + 999 µs, and from 999.01 ms on the last one.
    assert in_flight[0] == pytest.approx((499_500 + 990) / 1e6)
    assert (in_flight[1], in_flight[2]) == (1, pytest.approx(0.99901))
    assert [(r["outcome"], r["operations"], r["bytes"]) for r in ask("outcomes", run)] == [
        ("ok", 1000, 4_000_000)
    ]
    (glance,) = ask("runs_at_a_glance", run)
    assert (glance["verdict"], glance["wall_s"], glance["engine"]) == ("fine", 3.0, "threads")


def test_requests_by_storage_time(tmp_path):
    run = write_run(tmp_path / "run", [1000])
    columns = {c.name: [None if c.nullable else 0] * 3 for c in SERVED.columns} | {
        "request_id": [0, 1, 2], "storage_ns": [5, None, 9], "scheduled_ns": [0, 0, 10], "submitted_ns": [1, None, 12],
        "completed_ns": [6, None, 30], "qos": ["batch", None, "batch"], "first_token_ns": [100, None, 300],
    }  # fmt: skip
    with create(run / "served.parquet", SERVED, trace_meta(SERVED)) as out:
        out.write(pa.RecordBatch.from_pydict(columns, arrow_schema(SERVED)))
    found = ask("requests_with_most_storage_time", run)
    assert [(r["request_id"], r["storage_ns"], r["lateness_ns"], r["span_ns"]) for r in found] == [
        (2, 9, 2, 18), (0, 5, 1, 5),
    ]  # fmt: skip
    batch, unknown = ask("latency_by_service_class", run)
    assert (batch["qos"], batch["requests"], batch["first_token_p50_ns"], batch["storage_max_ns"]) == (
        "batch", 2, 100, 9,
    )  # fmt: skip
    assert (unknown["qos"], unknown["requests"], unknown["first_token_p50_ns"]) == (None, 1, None)


@pytest.mark.parametrize("asked", ["10", "10ms"])
def test_latencies_are_of_what_was_measured_after_a_warm_up(tmp_path, asked):
    # Operation i is of request i and due at i ms; the first ten take a second each, the others 1
    # µs.
    left_out = WarmupFacts(asked=asked, operations=10, first_measured_row=10, measured_from_ns=None)
    (tmp_path / "runs").mkdir()
    run = write_run(tmp_path / "runs" / "warm", [S] * 10 + [1000] * 90, warmup=left_out)
    columns = {c.name: [None if c.nullable else 0] * 12 for c in SERVED.columns}
    columns |= {"request_id": range(12), "storage_ns": [S] * 10 + [1000] * 2, "qos": ["batch"] * 12}
    with create(run / "served.parquet", SERVED, trace_meta(SERVED)) as out:
        out.write(
            pa.RecordBatch.from_pydict(
                {name: list(of) for name, of in columns.items()}, arrow_schema(SERVED)
            )
        )
    (phase,) = ask("latency_by_phase", run)
    assert (phase["operations"], phase["max_ns"]) == (90, 1000)
    (size,) = ask("latency_by_size_class", run)
    assert (size["operations"], size["max_ns"]) == (90, 1000)
    assert [r["latency_ns"] for r in ask("slowest_operations", run)] == [1000] * 20
    assert [r["request_id"] for r in ask("requests_with_most_storage_time", run)] == [10, 11]
    (batch,) = ask("latency_by_service_class", run)
    assert (batch["requests"], batch["storage_max_ns"]) == (2, 1000)
    # What says that a warm-up is among it has it; and of several runs each has its own.
    assert [r["operations"] for r in ask("outcomes", run)] == [100]
    write_run(tmp_path / "runs" / "cold", [1000] * 5)
    assert sorted(r["operations"] for r in ask("latency_by_phase", tmp_path / "runs")) == [5, 90]
    # Without the operations nobody knows which requests were of the warm-up.
    with pytest.raises(ConfigError, match=r"measured_requests.*runs, served, tiers"):
        ask("latency_by_service_class", run / "served.parquet")


def test_what_probes_answer(tmp_path):
    run = write_run(tmp_path / "run", [100_000] * 2)
    write_blocks(run, [
        (0, 10, 30, 4096, "R", "a", 0), (0, 20, 60, 4096, "RA", "a", 0), (5, 10, 20, 8192, "WS", "b", 5),
        (S, S + 1, S + 2, 1 << 20, "DS", "b", 0),
    ])  # fmt: skip
    nothing = {"count": 0, "log2_ns": [], "longest_below_ns": None, "mean_ns": None} | {
        f"{name}_ns": None for name in ("p50", "p95", "p99", "p99_9", "p99_99")
    }
    counts = {"queued": 4, "issued": 5, "requeues": 1, "ends_not_seen": 2, "q2d": nothing, "d2c": nothing,
              "block_sizes": [], "in_flight_at_dispatch": []}  # fmt: skip
    (run / "probe.json").write_text(
        json.dumps({"program": "kvreplay", "block": {"directions": {"read": counts}}})
    )
    found = {r["direction"]: r for r in ask("device_latency", run)}
    assert set(found) == {"read", "write", "discard"}
    assert (
        found["read"]["q2d_p50_ns"],
        found["read"]["d2c_p50_ns"],
        found["read"]["d2c_max_ns"],
    ) == (10, 20, 40)
    who = [
        (r["comm"], r["rwbs"], r["requests"], r["bytes"], r["errors"])
        for r in ask("device_by_process", run)
    ]
    assert who[0] == ("b", "DS", 1, 1 << 20, 0)
    assert ("b", "WS", 1, 8192, 1) in who
    assert ask("device_bandwidth_by_second", run) == [
        {
            "device": "vda",
            "second": 0,
            "read_bytes_per_s": 8192,
            "written_bytes_per_s": 8192,
            "requests_per_s": 3,
        }
    ]
    reads, writes = ask("device_versus_object_latency", run)
    assert (reads["operations"], reads["object_mean_ns"], reads["device_requests"]) == (
        2,
        100_000,
        2,
    )
    assert (reads["q2d_mean_ns"], reads["d2c_mean_ns"]) == (15, 30)
    assert (writes["direction"], writes["operations"], writes["d2c_mean_ns"]) == ("write", None, 10)
    # Two reads of 4000 bytes took 8192 of the device.
    assert ask("read_amplification", run) == [
        {"direction": "read", "object_bytes": 8000, "device_bytes": 8192, "amplification": 1.024}
    ]
    # The kernel does not show the end of every request: what was issued was moved.
    (tmp_path / "unseen").mkdir()
    unseen = write_run(tmp_path / "unseen" / "run", [100_000] * 2)
    write_blocks(unseen, [(0, 10, 30, 4096, "R", "a", 0), (0, 20, None, 4096, "RA", "a", None)])
    assert [r["amplification"] for r in ask("read_amplification", unseen)] == [1.024]
    (requeues,) = ask("requeues_and_splits", run)
    assert (requeues["requeues"], requeues["requeues_per_issue"], requeues["splits"]) == (
        1,
        0.2,
        None,
    )
    assert requeues["ends_not_seen"] == 2


def test_every_query_says_what_it_answers_and_is_asked_here():
    queries = named_queries()
    assert len(queries) >= 25
    text = Path(__file__).read_text(encoding="utf-8")
    assert [q.name for q in queries if f'"{q.name}"' not in text] == []
    known = {
        "trace",
        "objects",
        "requests",
        "ops",
        "served",
        "series",
        "blocks",
        "runs",
        "tiers",
        "probes",
    }
    known |= {"measured", "measured_requests"}
    assert all(set(q.needs) <= known and len(q.answers) > 40 for q in queries)


def test_the_command(trace):
    listed = run_cli("kvdistill", "sql", "--list").stdout
    assert "loaded_share_by_minute (trace)" in listed
    assert "hit rate" in listed
    out = run_cli("kvdistill", "sql", trace, "--query", "loaded_share_by_minute", "--csv").stdout
    assert out.splitlines()[2].endswith(",1,2,1,0.6666666666666666,0.4")
    done = run_cli("kvdistill", "sql", trace, "-q", "slowest_operations", check=False)
    assert done.returncode == 2
    assert shows(done.stderr, "measured … objects, tiers, trace")
    done = run_cli("kvdistill", "sql", trace, "-q", "slowest_operation", check=False)
    assert "slowest_operations" in done.stderr
    assert (
        run_cli("kvdistill", "sql", trace, "-q", "hot_objects", "SELECT 1", check=False).returncode
        == 2
    )


def test_a_tier_is_its_name_and_a_sum_is_a_number(tmp_path):
    trace = write_hand(tmp_path)
    moved = (
        "SELECT tier, sum(length_bytes) AS moved FROM trace WHERE tier = 'nvme' AND op = 'write'"
        " GROUP BY tier"
    )
    (row,) = json.loads(run_cli("kvdistill", "sql", trace, moved, "--json").stdout)
    assert row == {"tier": "nvme", "moved": 6000 + (3 << 20) + 4096}
    tiers = run_cli(
        "kvdistill", "sql", trace, "SELECT DISTINCT tier FROM trace ORDER BY tier DESC", "--csv"
    ).stdout
    assert shows(tiers, "tier … nvme … cpu")
    wrong = run_cli("kvdistill", "sql", trace, "SELECT tiers FROM trace", check=False).stderr
    assert 'Candidate bindings: "tier"' in wrong


def test_folders_patterns_and_origins(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, [1000])
    by_origin = "SELECT origin, count(*) AS n FROM ops GROUP BY ALL ORDER BY ALL"
    expected = [{"origin": str(tmp_path / name), "n": 1} for name in ("a", "b")]
    assert json.loads(run_cli("kvdistill", "sql", tmp_path, by_origin, "--json").stdout) == expected
    assert (
        json.loads(run_cli("kvdistill", "sql", f"{tmp_path}/[ab]", by_origin, "--json").stdout)
        == expected
    )
    names = json.loads(run_cli("kvdistill", "sql", tmp_path / "a", "FROM tiers", "--json").stdout)
    assert names[2] == {
        "origin": str(tmp_path / "a"),
        "tier": "nvme",
        "place": 2,
        "capacity_bytes": 1 << 30,
    }
    done = run_cli("kvdistill", "sql", f"{tmp_path}/z*", "SELECT 1", check=False)
    assert (done.returncode, "this pattern" in done.stderr) == (2, True)


def test_sql_is_told_from_files(tmp_path):
    spaced = tmp_path / "a b.parquet"
    spaced.touch()
    assert split_query([str(spaced)]) == ([spaced], None)
    assert split_query(["a", "FROM trace"])[1] == "FROM trace"
    assert split_query(["a", ""])[1] == ""
    assert split_query([]) == ([], None)


@pytest.mark.full
def test_the_shell_needs_no_other_program(tmp_path):
    trace = write_hand(tmp_path)
    said = """
        SELECT count(*) AS n
        FROM trace; CREATE TABLE mine AS SELECT 7 AS seven;
        FROM nothing;
        SELECT percentile(length_bytes, 0.5) AS p50 FROM trace;
        COPY mine TO 'mine.csv';
        SELECT seven FROM mine"""
    done = run_process("kvdistill", "sql", trace, "--csv", env={"PATH": ""}, input=said)
    rows = read_table(trace, TRACE).to_pylist()
    half = sorted(row["length_bytes"] for row in rows)[-(-len(rows) // 2) - 1]
    assert done.stdout.splitlines() == ["n", str(len(rows)), "p50", str(half), "seven", "7"]
    refused, written = done.stderr.splitlines()
    assert shows(refused, "SQL: Catalog Error: … nothing")
    assert shows(refused, "objects, tiers, trace")
    assert written.startswith("SQL: Permission Error")
    assert not list(tmp_path.glob("mine*"))
    # It ends where it is told to.
    assert (
        run_process(
            "kvdistill", "sql", trace, "--csv", input="SELECT 1 AS a;\n.quit\nSELECT 2 AS a;\n"
        ).stdout
        == "a\n1\n"
    )


def test_an_unknown_query_is_an_error():
    with pytest.raises(ConfigError, match="query"):
        named_query("nothing_of_the_kind")


def test_columns_of_one_name_are_told_apart(tmp_path):
    trace = write_trace(
        tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, None, None, 0)]
    )
    done = run_cli("kvdistill", "sql", trace, "SELECT op, op, 1 AS op_1, rank FROM trace", "--json")
    assert json.loads(done.stdout) == [{"op": "write", "op_1": "write", "op_1_1": 1, "rank": 0}]
    for form in ([], ["--csv"]):
        shown = run_cli(
            "kvdistill", "sql", trace, "SELECT a.op, b.op FROM trace a, trace b", *form
        ).stdout
        assert shown.replace(",", " ").split() == ["op", "op_1", "write", "write"]


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT list(a.range) FROM range(3000000) a, trace",
        "SELECT a.range FROM range(3000000) a ORDER BY hash(a.range)",
    ],
)
def test_a_query_over_its_memory_limit_is_out_of_memory(tmp_path, monkeypatch, statement):
    trace = write_trace(
        tmp_path / "t.parquet", [(0, "write", 2, "store", 0, 0, 4096, None, None, 0)]
    )
    monkeypatch.setattr("kvdistill.queries.database.memory_limit_bytes", lambda: 16_000_000)
    with (
        pytest.raises(OutOfMemory, match=r"16\.0 MB") as raised,
        run_statement([trace], statement) as batches,
    ):
        batches.read_all()
    assert raised.value.exit_code == 7
