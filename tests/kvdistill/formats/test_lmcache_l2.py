"""LMCache's trace of its L2 adapter: an operation an object, and what is not read is counted."""

import struct

import msgspec
import pytest
from phrases import show_counts, shows
from test_imports import figures, rows_of, run_import

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import OBJECTS, OPS, TRACE

HEADER = {
    "type": "header",
    "magic": b"LMCT",
    "format_version": 1,
    "level": "l2",
    "trace_schema_version": 1,
    "t_mono_start": 100.0,
    "t_wall_start": 1_795_955_283.0,
    "sm_config_json": "",
    "sm_config_digest": "",
}
S = 10**9


def write(path, *records, header=HEADER):
    encoded = [msgspec.msgpack.encode(frame) for frame in (header, *records)]
    path.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in encoded))
    return path


def record(second, name, **args):
    fields = {"type": "record", "t_mono": float(second), "t_wall": 0.0}
    return fields | {"qualname": f"l2.{name}", "args": args}


def keys(*hashes):
    """Keys as LMCache's codec writes them."""
    fields = {"model_name": "m", "kv_rank": 3, "object_group_id": 1}
    return [
        {"__t__": "ObjectKey", "v": fields | {"chunk_hash": bytes([number])}} for number in hashes
    ]


def task(second, kind, number, *hashes, size=4096):
    sizes = [size] * len(hashes)
    return record(
        second,
        f"{kind}.submitted",
        adapter_index=0,
        task_id=number,
        keys=keys(*hashes),
        object_sizes=sizes,
    )


def ended(second, kind, number, **args):
    return record(second, f"{kind}.completed", adapter_index=0, task_id=number, **args)


def stored(second, number, succeeded, failed=0):
    return ended(second, "store", number, succeeded_count=succeeded, failed_count=failed)


RECORDS = [
    task(0, "store", 1, 1, 2),
    task(0.5, "store", 2, 3, 4),
    stored(1, 1, 2),
    record(2, "lookup_task.submitted", request_id=1, task_id=1, keys=keys(1, 2, 9)),
    record(2.25, "lookup_task.completed", request_id=1, task_id=1, hit_indices=[0, 1]),
    task(3, "load_task", 1, 1, 2, 9),
    ended(3.5, "load_task", 1, request_id=1, success_indices=[0, 1]),
    stored(4, 2, 1, failed=1),
    record(5, "unlock.submitted", request_id=1, keys=keys(1, 2)),
    record(6, "delete.submitted", keys=keys(1)),
    task(7, "store", 3, 5),
    stored(8, 3, 0, failed=1),
    task(9, "store", 4, 6),
    stored(9, 77, 1),
    record(10, "trace.end", recorder_dropped_count=2, event_bus_dropped_count=1),
]


def test_objects_of_tasks_are_operations(tmp_path):
    account = run_import("lmcache-l2", [write(tmp_path / "l2.lct", *RECORDS)], tmp_path / "out")
    assert (account.rows_read, account.rows_kept) == (10, 7)
    ops = rows_of(
        tmp_path / "out" / "ops.parquet",
        OPS,
        "submitted_ns",
        "completed_ns",
        "op",
        "bytes",
        "outcome",
    )
    assert ops == [
        (0, S, "write", 4096, "ok"),
        (0, S, "write", 4096, "ok"),
        (3 * S, 3.5 * S, "read", 4096, "ok"),
        (3 * S, 3.5 * S, "read", 4096, "ok"),
        (3 * S, 3.5 * S, "read", None, "error"),
        (6 * S, None, "delete", 0, "ok"),
        (7 * S, 8 * S, "write", None, "error"),
    ]
    names = rows_of(tmp_path / "out" / "trace.objects.parquet", OBJECTS, "key", "size_bytes")
    assert names[0] == ("m/3/1/01", 4096)
    trace = rows_of(tmp_path / "out" / "trace.parquet", TRACE, "object_id", "op")
    assert trace[0][0] == trace[2][0] == trace[5][0]
    assert figures(tmp_path / "out")["l2", "read"]["bytes"] == 2 * 4096


def test_what_an_l2_trace_does_not_give_is_counted(tmp_path):
    path = write(tmp_path / "l2.lct", *RECORDS)
    account = run_import("lmcache-l2", [path], tmp_path / "out")
    assert show_counts(account.left_out, {"some objects failed": 2, "without a completion": 1})
    assert shows(
        account.notes, "1 l2.lookup_task.completed … 1 l2.lookup_task.submitted … 1 l2.unlock"
    )
    assert shows(account.notes, "1 completion … submission")
    assert shows(account.notes, "3 records were lost")
    cut = run_import("lmcache-l2", [write(tmp_path / "c.lct", *RECORDS[:3])], tmp_path / "cut")
    assert shows(cut.notes, "c.lct: without … end")


@pytest.mark.parametrize(
    ("records", "header", "message"),
    [
        ([], HEADER, "no operation"),
        (RECORDS, HEADER | {"level": "storage"}, "level 'storage', expected LMCT, 1 and l2"),
        ([task(0, "store", 1, 1, size=-1)], HEADER, "row 1.*object_sizes"),
        ([record(0, "store.submitted", keys=keys(1))], HEADER, "row 1.*object_sizes"),
        ([record(0, "store.submitted", keys=[{"chunk_hash": b""}])], HEADER, "row 1.*keys"),
        ([record(0, "load_task.completed", task_id="x")], HEADER, "row 1.*task_id"),
    ],
    ids=["empty", "level", "size", "no-size", "key", "task"],
)
def test_a_damaged_l2_trace_is_refused(tmp_path, records, header, message):
    path = write(tmp_path / "l2.lct", *records, header=header)
    with pytest.raises(TraceError, match=message):
        run_import("lmcache-l2", [path], tmp_path / "out")


def test_the_source_of_prompts_names_the_reader_of_l2_traces(tmp_path):
    from kvtrace.requests.lmcache_logs import lmcache_trace

    with pytest.raises(TraceError, match="kvdistill import lmcache-l2"):
        lmcache_trace.read(write(tmp_path / "l2.lct", *RECORDS))
