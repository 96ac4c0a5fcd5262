"""Block requests as a trace: what kvreplay is given of what a probe saw."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from blocks import MS, write_blocks
from conftest import run_cli

from kvdistill.formats.formats import Format, ImportOptions
from kvdistill.formats.importing import import_files
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.metadata import describe
from kvtrace.core.schema import BLOCKS
from kvtrace.core.tables import create

MIB = 1 << 20
ROWS = [
    (3.0, "WS", 8 * MIB, MIB),
    (5.0, "RS", 8 * MIB, 4096),
    (5.5, "RS", 8 * MIB - 8192, 8192),
    (6.0, "DS", 0, MIB),
    (9.0, "RS", 8 * MIB, 8192),
]


def import_blocks(path, out, tier=None):
    return import_files([path], ImportOptions(Format.BLOCKS, tier), out, ["kvdistill"])


def test_requests_are_operations_on_the_places_they_begin_at(tmp_path):
    write_blocks(tmp_path / "blocks.parquet", ROWS)
    found = import_blocks(tmp_path, tmp_path / "out")
    assert found.files == ["trace.objects.parquet", "trace.parquet"]
    assert (found.rows_read, found.rows_kept, sum(found.left_out.values())) == (
        5,
        4,
        1,
    ), "the discard is left out"
    rows = pq.read_table(tmp_path / "out" / "trace.parquet").to_pylist()
    # At 8 MiB begins one place, 8 KiB before it another, whatever the lengths: numbers rise with
    # addresses.
    assert [(r["ts_ns"] / MS, r["op"], r["object_id"], r["offset_bytes"], r["length_bytes"]) for r in rows] == [
        (0, "write", 1, 0, MIB), (2, "read", 1, 0, 4096), (2.5, "read", 0, 0, 8192), (6, "read", 1, 0, 8192),
    ]  # fmt: skip
    objects = pq.read_table(tmp_path / "out" / "trace.objects.parquet").to_pylist()
    assert [o["size_bytes"] for o in objects] == [8192, MIB]


def test_an_absent_device_is_refused_and_present_ones_are_named(tmp_path):
    path = write_blocks(tmp_path / "blocks.parquet", ROWS)
    with pytest.raises(ConfigError, match="device 'sdb'"):
        import_blocks(path, tmp_path / "out", "sdb")
    with pytest.raises(ConfigError, match="2 files"):
        import_files([path, path], ImportOptions(Format.BLOCKS), tmp_path / "out", ["kvdistill"])


def test_what_was_imported_can_be_replayed(tmp_path):
    write_blocks(tmp_path / "blocks.parquet", ROWS)
    run_cli("kvdistill", "import", "blocks", tmp_path / "blocks.parquet", "-o", tmp_path / "out")
    trace, run = tmp_path / "out" / "trace.parquet", tmp_path / "run"
    run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"vda={tmp_path / 'replay.dat'}",
        "--speed",
        "1",
        "-o",
        run,
    )
    ops = pq.read_table(run / "ops.parquet").to_pylist()
    assert [(op["op"], op["bytes"], op["outcome"]) for op in sorted(ops, key=lambda op: op["row"])] == [
        ("write", MIB, "ok"), ("read", 4096, "ok"), ("read", 8192, "ok"), ("read", 8192, "ok"),
    ]  # fmt: skip


def test_a_table_of_blocks_in_csv_is_refused(tmp_path):
    with create(tmp_path / "b.csv.zst", BLOCKS, describe(BLOCKS, "kvreplay", [], {})):
        pass
    with pytest.raises(TraceError, match="kvtrace convert"):
        import_blocks(tmp_path / "b.csv.zst", tmp_path / "out")
