from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from conftest import TRACES, trace_batch, trace_meta, write_trace
from phrases import shows
from simulated import kvtrace
from whole import read_table

from kvtrace.core.metadata import TierFacts
from kvtrace.core.schema import OBJECTS, TRACE, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import create, objects_path, open_table
from kvtrace.trace import inventory as ledger

K = 1 << 20
HALF = 1 << 29


def w(ts, obj, size=K, request=0, stage=0, tier=2, offset=0, rank=0):
    return (ts, "write", tier, "prefill", obj, offset, size, request, stage, rank)


def r(ts, obj, size=K, request=0, stage=0, tier=2, offset=0):
    return (ts, "read", tier, "load", obj, offset, size, request, stage, 0)


def d(ts, obj, size=K, tier=2):
    return (ts, "delete", tier, "evict", obj, 0, size, None, None, 0)


VALID = [
    w(0, 0), w(0, 1, stage=1), w(5, 1, tier=0, stage=1), r(7, 1, tier=0, stage=2), w(8, 0, size=K, offset=K, stage=3),
    r(9, 0, size=2 * K, request=1), d(9, 0, size=2 * K), d(9, 1, tier=0), r(12, 1, request=2),
    w(12, 0, request=2, stage=1),
]  # fmt: skip

BROKEN = {
    "TIME_BACKWARDS": ([w(9, 0), w(8, 1)], 1, "ts_ns", "8 ns … 9 ns"),
    "OVERFLOW": (
        [w(0, n, size=2, offset=2**50) for n in range(2**12 + 1)], 2**12 - 1, "length_bytes",
        "tier nvme … 4611686018427396096 bytes … 2^62",
    ),
    "REQUEST_NOT_DENSE": (
        [w(0, 0), w(0, 1, request=10**12)], 1, "request_id", "request 1000000000000 … 0",
    ),
    "READ_ABSENT": ([w(0, 0), r(0, 0, tier=1)], 1, "object_id", "reads object 0 … tier cpu"),
    "READ_PAST_END": (
        [w(0, 0), r(0, 0, size=K, offset=1)], 1, "length_bytes",
        "reads object 0 … 1048577; nvme … 1048576 bytes",
    ),
    "WRITE_GAP": (
        [w(0, 0), w(0, 0, offset=K + 1)], 1, "offset_bytes", "writes object 0 … 1048577; nvme … 1048576",
    ),
    "OVER_CAPACITY": (
        [w(0, 0, size=HALF), w(0, 1, size=HALF), w(0, 2, size=1)], 2, "length_bytes",
        "tier nvme … 1073741825 bytes … 1073741824",
    ),
    "DELETE_ABSENT": (
        [w(0, 0), d(0, 0), d(0, 0)], 2, "object_id", "object 0 … tier nvme",
    ),
    "DELETE_SIZE": (
        [w(0, 0), d(0, 0, size=4)], 1, "length_bytes", "4 bytes … object 0; tier nvme … 1048576",
    ),
    "STAGE_MISSING": ([w(0, 0, stage=None)], 0, "stage", "request 0 … stage"),
    "STAGE_ALONE": ([w(0, 0, request=None)], 0, "stage", "stage 0"),
    "STAGE_FIRST": ([w(0, 0, stage=1)], 0, "stage", "request 0 … stage 1 … 0"),
    "STAGE_BACK": (
        [w(0, 0), w(0, 1, stage=1), w(0, 2)], 2, "stage", "request 0 … stage 0 … 1",
    ),
    "STAGE_GAP": (
        [w(0, 0), w(0, 1, stage=2)], 1, "stage", "request 0 … stage 2 … 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
def test_a_valid_trace(tmp_path, monkeypatch, capsys, suffix):
    path = write_trace(tmp_path / f"t{suffix}", VALID)
    assert kvtrace(monkeypatch, "validate", path) == 0
    assert shows(capsys.readouterr().out, "valid, 10 rows, 2 objects")
    assert kvtrace(monkeypatch, "validate", path, "--json") == 0
    assert '"is_valid": true' in capsys.readouterr().out


def test_objects_and_requests_are_those_that_rows_name(tmp_path, monkeypatch, capsys):
    path = write_trace(tmp_path / "t.parquet", [w(0, 0), w(5, 9, request=3), d(6, 9)])
    assert kvtrace(monkeypatch, "validate", path) == 0
    assert shows(capsys.readouterr().out, "valid, 3 rows, 2 objects")
    assert kvtrace(monkeypatch, "info", path) == 0
    assert "3 rows over 6 ns, 2 objects, 2 requests" in capsys.readouterr().out


def test_one_is_singular(tmp_path, monkeypatch, capsys):
    path = write_trace(tmp_path / "t.parquet", [w(0, 0)])
    assert kvtrace(monkeypatch, "validate", path) == 0
    assert shows(capsys.readouterr().out, "valid, 1 row, 1 object")
    assert kvtrace(monkeypatch, "info", path) == 0
    assert "1 row over 0 s, 1 object, 1 request" in capsys.readouterr().out


def test_requests_that_move_nothing_are_counted_as_gen_does(tmp_path, monkeypatch, capsys):
    """Of three requests, two of which fill no chunk, it said `1 request`."""
    asked, path = tmp_path / "r.jsonl", tmp_path / "t.parquet"
    line = '{{"timestamp": {0}, "input_length": {1}, "output_length": 1, "hash_ids": {2}}}\n'
    asked.write_text(line.format(0, 9, [1]) + line.format(1, 1024, [2, 3]) + line.format(2, 9, [4]))
    # In the memory of a GPU each would take blocks.
    options = ["--preset", "lmcache-disk", "--model", "tiny-1b", "--set", "tiers.gpu.capacity=0"]
    assert kvtrace(monkeypatch, "gen", asked, *options, "-o", path) == 0
    assert kvtrace(monkeypatch, "info", path) == 0
    assert shows(capsys.readouterr().out, "4 objects … 1 … 3 requests")


def test_every_fault_has_a_test():
    assert set(BROKEN) == set(ledger.FAULTS)


@pytest.mark.parametrize("code", BROKEN, ids=lambda c: ledger.FAULTS[c][1][:24])
def test_a_fault_is_one_line_with_its_place(tmp_path, monkeypatch, capsys, code):
    rows, row, column, message = BROKEN[code]
    path = tmp_path / "t.parquet"
    with create(path, TRACE, trace_meta()) as out:
        out.write(trace_batch(rows))
    # Writes without gaps cannot reach so far: the reader bounds what they add up to.
    assert kvtrace(monkeypatch, "info" if code == "OVERFLOW" else "validate", path) == 3
    shown = capsys.readouterr()
    assert shows(shown.err, f"kvtrace: error: {path}, row {row}, column {column}: … {message}")
    assert len(shown.err.splitlines()) == 1
    assert shown.out == ""


@pytest.mark.parametrize(
    ("row", "column", "message"),
    [
        (w(-1, 0), "ts_ns", "-1"),
        (w(0, 1, tier=3), "tier", "3 … gpu, cpu, nvme … 0 … 2"),
        (w(0, 1, size=-4), "length_bytes", "-4"),
        (
            w(0, 1, size=2**62),
            "length_bytes",
            "4611686018427387904 … 0 … 1125899906842624",
        ),
        (
            w(0, 2**31 - 1),
            "object_id",
            "2147483647 … 0 … 2 rows",
        ),
    ],
)
@pytest.mark.parametrize("command", ["validate", "info"])
def test_what_no_row_may_hold_is_refused_by_the_reader(
    tmp_path, monkeypatch, capsys, command, row, column, message
):
    path = write_trace(tmp_path / "t.parquet", [w(0, 0), row])
    assert kvtrace(monkeypatch, command, path) == 3
    assert shows(capsys.readouterr().err, f"{path}, row 1, column {column}: {message}")


def test_the_row_of_a_fault_counts_from_the_start_of_the_file(tmp_path, monkeypatch, capsys):
    rows = [w(i, 0) for i in range(200_000)]
    rows[150_001] = r(150_001, 5)
    path = write_trace(tmp_path / "t.parquet", rows)
    assert kvtrace(monkeypatch, "validate", path) == 3
    assert shows(capsys.readouterr().err, f"{path}, row 150001, column object_id: … object 5")


def test_only_the_first_fault_is_told(tmp_path, monkeypatch, capsys):
    path = write_trace(tmp_path / "t.parquet", [w(5, 0), r(5, 1), w(4, 0)])
    assert kvtrace(monkeypatch, "validate", path) == 3
    assert "row 1, column object_id" in capsys.readouterr().err


def test_rows_that_the_simulation_counted_but_the_file_lacks(tmp_path, monkeypatch, capsys):
    stats = {
        "tiers": [
            {"name": "gpu", "live_bytes": 0},
            {"name": "cpu"},
            {"name": "nvme", "live_bytes": 3 * K},
        ]
    }
    path = write_trace(tmp_path / "t.parquet", [w(0, 0), w(0, 1)], stats=stats)
    assert kvtrace(monkeypatch, "validate", path) == 3
    expected = f"{path}: tier nvme … 2097152 bytes … 3145728"
    assert shows(capsys.readouterr().err, f"kvtrace: error: {expected}")


def test_an_unbounded_tier_takes_anything(tmp_path, monkeypatch):
    tiers = [TierFacts("a"), TierFacts("b"), TierFacts("c")]
    path = write_trace(tmp_path / "t.parquet", [w(0, i, size=2**50) for i in range(4)], tiers=tiers)
    assert kvtrace(monkeypatch, "validate", path) == 0


def test_a_trace_without_rows_is_valid(tmp_path, monkeypatch, capsys):
    path = write_trace(tmp_path / "t.parquet", [])
    assert kvtrace(monkeypatch, "validate", path) == 0
    assert kvtrace(monkeypatch, "info", path) == 0
    assert shows(capsys.readouterr().out, "0 rows over … 0 objects")


# The objects table.


def with_objects(path, rows, objects):
    """Write `rows` as a trace, and beside it a table of `objects`: id, kind, size."""
    write_trace(path, rows)
    ids, kinds, sizes = zip(*objects, strict=True)
    codes = np.array([enum_code(OBJECTS, "kind", kind) for kind in kinds], dtype=np.int8)
    arrays = [
        pa.array(ids, pa.int64()), pa.array([f"key/{i}" for i in range(len(ids))]), enum_array(OBJECTS, "kind", codes),
        pa.array(sizes, pa.int64()),
    ]  # fmt: skip
    with create(objects_path(path), OBJECTS, trace_meta(OBJECTS)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(OBJECTS)))
    return path


RETRIEVED = (9, "read", 2, "retrieve", 1, 0, K, 1, 0, 0)
TABLES = {
    "as it is": ([(0, "chunk", 2 * K), (1, "document", K)], None),
    "unknown size": ([(0, "chunk", None), (1, "document", K)], None),
    "one that no tier took": ([(0, "chunk", 2 * K), (1, "document", K), (7, "chunk", 9)], None),
    "another size": ([(0, "chunk", K), (1, "document", K)], ("row 0, column size_bytes: object 0 … 1048576 bytes … 2097152")),
    "a missing object": ([(0, "chunk", 2 * K)], "object 1"),
    "another kind": ([(0, "chunk", 2 * K), (1, "turn", K)], ("row 1, column kind: object 1 … turn … document")),
    "twice": ([(0, "chunk", 2 * K), (1, "document", K), (1, "document", K)], ("row 2, column object_id: object 1")),
    "out of order": ([(1, "document", K), (0, "chunk", 2 * K)], "row 1, column object_id: object 0"),
}  # fmt: skip


@pytest.mark.parametrize(("objects", "message"), TABLES.values(), ids=TABLES.keys())
def test_the_objects_table_is_compared(tmp_path, monkeypatch, capsys, objects, message):
    rows = [w(0, 0), w(0, 1), w(8, 0, offset=K), RETRIEVED, d(9, 0, size=2 * K)]
    path = with_objects(tmp_path / "t.parquet", rows, objects)
    assert kvtrace(monkeypatch, "validate", path) == (0 if message is None else 3)
    err = capsys.readouterr().err
    assert err == "" if message is None else shows(err, f"{objects_path(path)} … {message}")


def test_a_trace_without_an_objects_table_is_said_to_be_so(tmp_path, monkeypatch, capsys):
    path = write_trace(tmp_path / "t.parquet", VALID)
    objects_path(path).unlink()
    assert kvtrace(monkeypatch, "validate", path) == 0
    assert shows(capsys.readouterr().out, "2 objects")


@pytest.mark.parametrize("preset", ["lmcache-disk", "mlperf"])
def test_requests_that_were_cut_off_make_no_objects(tmp_path, monkeypatch, preset):
    (tmp_path / "inline.jsonl").write_text(INLINE)
    path = tmp_path / "t.parquet"
    options = ["--source", "mooncake", tmp_path / "inline.jsonl", "--limit", 2, "--preset", preset]
    options += ["--set", "tiers.gpu.capacity=0"]  # where answers would be objects, too
    assert kvtrace(monkeypatch, "gen", *options, "-o", path) == 0
    assert kvtrace(monkeypatch, "validate", path) == 0
    # 1200 tokens are 4 chunks of 256, and 700 share the first 512 with them and none more; or a
    # turn each.
    assert read_table(objects_path(path), OBJECTS).num_rows == (
        4 if preset == "lmcache-disk" else 2
    )


# Everything `gen` writes is valid.

INLINE = """\
{"timestamp": 0, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, 2]}
{"timestamp": 10, "input_length": 700, "output_length": 0, "hash_ids": [0, 3]}
{"timestamp": 10, "input_length": 0, "output_length": 3, "hash_ids": []}
{"timestamp": 3000, "input_length": 1536, "output_length": 99, "hash_ids": [0, 1, 4]}
{"timestamp": 3100, "input_length": 1024, "output_length": 9, "hash_ids": [0, 1]}
"""
CAPACITIES = {
    "as shipped": [],
    "small": ["tiers.gpu.capacity=2GiB", "tiers.cpu.capacity=3GiB", "tiers.nvme.capacity=5GiB"],
    # Without DRAM there is none to stage in.
    "no gpu or cpu": [
        "tiers.gpu.capacity=0",
        "tiers.cpu.capacity=0",
        "tiers.cpu.staging=false",
        "tiers.nvme.capacity=200MiB",
    ],
    "a slow model": [
        "prefill_ns_per_token=100000",
        "decode_ns_per_token=1000000",
        "tiers.gpu.capacity=1GiB",
    ],
}


@pytest.mark.star
@pytest.mark.parametrize("settings", CAPACITIES.values(), ids=CAPACITIES.keys())
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "load", ["users", "inline", pytest.param("first 1000", marks=pytest.mark.traces)]
)
@pytest.mark.parametrize("preset", ["lmcache-disk", "mlperf"])
def test_what_gen_writes_is_valid(tmp_path, monkeypatch, preset, load, ranks, settings):
    (tmp_path / "inline.jsonl").write_text(INLINE)
    source = {
        "users": ["--users", 6, "--duration", "20s"],
        "inline": ["--source", "mooncake", tmp_path / "inline.jsonl"],
        "first 1000": [
            "--source",
            "mooncake",
            TRACES / "mooncake_arxiv_first1000.jsonl",
            "--limit",
            250,
        ],
    }[load]
    knobs = [word for setting in settings for word in ("--set", setting)]
    path = tmp_path / "t.parquet"
    assert (
        kvtrace(monkeypatch, "gen", *source, "--preset", preset, "--tp", ranks, *knobs, "-o", path)
        == 0
    )
    meta = open_table(path, TRACE).meta
    assert meta.rows > 0
    assert kvtrace(monkeypatch, "validate", path) == 0
    # One row less, and it is not: what the simulation counted, or a read or a delete, says so.
    rows = read_table(path, TRACE)
    last = max(i for i, op in enumerate(rows.column("op").to_pylist()) if op != "read")
    with create(tmp_path / "less.parquet", TRACE, meta) as out:
        for part in (rows.slice(0, last), rows.slice(last + 1)):
            for batch in part.to_batches():
                out.write(batch)
    assert kvtrace(monkeypatch, "validate", tmp_path / "less.parquet") == 3


def test_metadata_may_be_without_stats(tmp_path, monkeypatch):
    with create(tmp_path / "t.parquet", TRACE, trace_meta(stats=None)):
        pass
    assert kvtrace(monkeypatch, "validate", tmp_path / "t.parquet") == 0
