"""The layers of a run, worked by hand.

Three reads of which the device's part is known to the nanosecond.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from conftest import trace_meta
from kvdistill_rows import MS, write_run
from phrases import Saying

from kvdistill.report.probe import layer_chapter, layers
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import BLOCKS, arrow_schema
from kvtrace.core.tables import create

US = 1000
NO_FAULT = {"errors": 0, "requeues": 0, "splits": 0, "lost_events": 0, "ends_not_seen": 0}


def histogram(count):
    return {"count": count, "mean_ns": 1.0, "p50_ns": 1.0, "p95_ns": None, "p99_ns": None, "p99_9_ns": None,
            "p99_99_ns": None, "longest_below_ns": None, "log2_ns": []}  # fmt: skip


def direction(requests, size, **faults):
    return {"issued": requests, "issued_bytes": requests * size, "q2d": histogram(requests),
            "d2c": histogram(requests), "block_sizes": [], "in_flight_at_dispatch": []} | NO_FAULT | faults  # fmt: skip


def write_probe(folder, directions, calls=()):
    application = {"times": {"read": histogram(3)}, "calls": list(calls)}
    content = {"block": {"directions": directions}, "application": application}
    (folder / "probe.json").write_text(json.dumps(content))


def write_blocks(folder, rows):
    """Write requests given as rwbs, insert, issue and complete in ns; None for a time not seen."""
    columns = {
        "rwbs": [r[0] for r in rows], "insert_ns": [r[1] for r in rows], "issue_ns": [r[2] for r in rows],
        "complete_ns": [r[3] for r in rows], "device": ["vda"] * len(rows), "sector": [0] * len(rows),
        "bytes": [4096] * len(rows), "pid": [1] * len(rows), "comm": ["kvreplay"] * len(rows), "error": [0] * len(rows),
    }  # fmt: skip
    schema = arrow_schema(BLOCKS)
    arrays = [pa.array(columns[c.name], schema.field(c.name).type) for c in BLOCKS.columns]
    with create(folder / "blocks.parquet", BLOCKS, trace_meta(BLOCKS)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=schema))


@pytest.fixture
def run(tmp_path):
    """Reads of 100, 200 and 300 µs, submitted at 10 µs past each millisecond."""
    return write_run(tmp_path / "run", [100 * US, 200 * US, 300 * US])


def at(ms, us):
    return ms * MS + us * US


def test_the_parts_add_up_to_the_latency(run):
    write_probe(run, {"read": direction(5, 4096)})
    write_blocks(run, [
        # The first read, 10 to 110 µs: queued 20 to 30, at the device 30 to 90.
        ("RS", at(0, 20), at(0, 30), at(0, 90)),
        # The second, 1010 to 1210: two overlapping requests are at the device together from 1040 to
        # 1160.
        ("RS", at(1, 20), at(1, 40), at(1, 100)), ("RS", at(1, 30), at(1, 60), at(1, 160)),
        # The third, 2010 to 2310: the device began before it and ends after it; a hole of 50 µs
        # between.
        ("RSM", at(2, 0), at(2, 0), at(2, 100)), ("RS", at(2, 150), at(2, 150), at(2, 400)),
        # Neither a write nor a request without a completion is the reads'.
        ("WS", at(0, 0), at(0, 0), at(3, 0)), ("RS", at(0, 0), at(0, 0), None),
    ])  # fmt: skip
    found = layers(run)
    # At the device: 60 + 120 + 90 + 160 of 600 µs; only queued: 10 + 20.
    assert found.inside == [{
        "op": "read", "operations": 3, "latency_ns": 210 * US, "in_flight_mean": 600 / 2300, "waiting_ns": 10 * US,
        "at_device_ns": 430 * US / 3, "queued_ns": 10 * US, "above_ns": 140 * US / 3,
        "waiting_share": 30 / 630, "at_device_share": 430 / 630, "queued_share": 30 / 630, "above_share": 140 / 630,
    }]  # fmt: skip
    assert found.moved == [{
        "op": "read", "operations": 3, "object_bytes": 12_000, "io_bytes": 12_288, "call_bytes": 0,
        "device_bytes": 20_480, "amplification": 20_480 / 12_000, "requests": 5, "requests_per_operation": 5 / 3,
    }]  # fmt: skip
    assert [(t["layer"], t["count"]) for t in found.times] == [
        ("object response", 3), ("application", 3), ("q2d", 5), ("d2c", 5),
    ]  # fmt: skip
    assert found.times[0]["p50_ns"] == 210 * US
    assert found.findings == [
        (Saying("1.707 bytes … 20.5 kB … 12.0 kB … 1.024")),
        Saying("210 µs … 4.8% before … 68.3% at the device … 4.8% queued … 22.2% above"),
    ]
    tables = {t.title: t for t in layer_chapter(found).tables}
    assert [len(t.rows) for t in tables.values()] == [2, 1, 4, 1]
    assert tables["Read and write amplification"].rows[0][6] == 20_480 / 12_000


def test_reads_that_never_touched_the_device_are_said_so(run):
    calls = [
        {
            "kind": "read",
            "call": "preadv",
            "count": 3,
            "bytes": 12_000,
            "errors": 0,
            "without_io": 3,
        },
        {
            "kind": "read",
            "call": "io_uring",
            "count": 1,
            "bytes": 10,
            "errors": 0,
            "without_io": None,
        },
    ]
    write_probe(run, {}, calls)
    found = layers(run)
    assert (found.moved[0]["device_bytes"], found.moved[0]["amplification"], found.moved[0]["call_bytes"]) == (
        0, 0, 12_010,
    )  # fmt: skip
    assert found.inside == []  # without events nobody knows when the device worked
    assert found.findings == [
        (Saying("WITHOUT … 12.0 kB … 0 B")),
        Saying("3 of 3"),
    ]


def test_bytes_of_the_page_cache_and_probe_faults_are_reported(run):
    write_probe(run, {"read": direction(1, 3000, requeues=2, ends_not_seen=1)})
    assert layers(run).findings == [
        (Saying("75.0% … 12.0 kB … 3.00 kB")),
        Saying("2 requeues"),
        Saying("1 completion"),
    ]


def test_a_run_without_probes_has_no_layers(run):
    assert layers(run) is None
    (run / "probe.json").write_text('{"block": {}}')
    with pytest.raises(TraceError, match="this version"):
        layers(run)
