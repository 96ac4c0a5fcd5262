"""Damaged and hostile traces, runs and results of other tools.

One line each, and memory by their rows alone.
"""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import HAND, write_run

from kvtrace.core.schema import OPS, arrow_schema
from kvtrace.core.tables import create, open_table

HUGE = 2**31 - 1
COMMANDS = {
    "report": [], "profile": ["--tier", "nvme", "-o", "p.json"],
    "fio": ["--tier", "nvme", "-o", "jobs", "--fio-version", "3.33", "--force"],
    "sai3": ["--tier", "nvme", "-o", "jobs", "--force"], "warp": ["--tier", "nvme", "-o", "jobs", "--force"],
}  # fmt: skip


def kvdistill(command, source, folder):
    return run_cli("kvdistill", command, source, *COMMANDS[command], check=False, cwd=folder)


@pytest.mark.star
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("at", "value", "column"),
    [(4, HUGE, "object_id"), (6, -1, "length_bytes"), (6, 1 << 62, "length_bytes")],
)
def test_a_row_of_a_trace_that_cannot_be_is_one_line(tmp_path, command, at, value, column):
    row = list(HAND[2])
    row[at] = value
    done = kvdistill(
        command, write_trace(tmp_path / "t.parquet", [*HAND[:2], tuple(row), *HAND[3:]]), tmp_path
    )
    assert done.returncode == 3
    assert f"t.parquet, row 2, column {column}: {value}" in done.stderr
    assert done.stderr.count("\n") == 1


def change_ops(run, name, value):
    """Change a column of the last row of a run's operations."""
    reader = open_table(run / "ops.parquet", OPS)
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    rows[-1][name] = value
    schema = arrow_schema(OPS)
    import pyarrow as pa

    plain = pa.schema(
        [
            pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type)
            for f in schema
        ]
    )
    with create(run / "ops.parquet", OPS, reader.meta) as out:
        out.write(pa.Table.from_pylist(rows, plain).cast(schema).to_batches()[0])


def test_object_numbers_are_made_dense_before_they_index_tables(tmp_path):
    for name in ("plain", "huge"):
        write_run(tmp_path / name, [1000] * 200)
    # A run of a part of a long trace: its numbers may lie far above its rows.
    change_ops(tmp_path / "huge", "object_id", HUGE)
    for command in ("report", "profile", "fio", "warp", "sai3"):
        assert kvdistill(command, "huge", tmp_path).returncode == 0, command
    profiles = []
    for name in ("plain", "huge"):
        kvdistill("profile", name, tmp_path)
        profiles.append(json.loads((tmp_path / "p.json").read_text()))
    assert profiles[0] == profiles[1]


@pytest.mark.star
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "value"])
def test_damaged_operations_of_a_run_are_one_line(tmp_path, command, damage):
    run = write_run(tmp_path / "run", [1000] * 200)
    ops = run / "ops.parquet"
    if damage == "value":
        change_ops(run, "bytes", 1)
        table = pq.read_table(ops)
        at = table.schema.names.index("bytes")
        wrong = [*table.column("bytes").to_pylist()[:-1], -1]
        pq.write_table(table.set_column(at, table.schema.field(at), [wrong]), ops)
    else:
        data = ops.read_bytes()
        ops.write_bytes(data[:-30] if damage == "cut" else data[:40] + b"\xff" * 40 + data[80:])
    done = kvdistill(command, "run", tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("kvdistill: error: run/ops.parquet")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["report", "profile"])
def test_a_run_that_was_cut_off_names_the_recovery_command(tmp_path, command):
    run = write_run(tmp_path / "run", [1000] * 5)
    (run / "run.json").rename(run / "run.partial.json")
    done = kvdistill(command, "run", tmp_path)
    assert "kvreplay recover run" in done.stderr
    assert done.returncode == 3


@pytest.mark.parametrize("changed", [
    {"read": None}, {"read": {"total_ios": "many"}}, {"job options": []}, {"jobname": 3}, {"error": "x"},
    {"read": {"total_ios": 1}}, {"read": {"total_ios": 2**80}},
])  # fmt: skip
def test_json_of_fio_with_nulls_and_wrong_types_is_one_line(tmp_path, changed):
    job = {
        "jobname": None,
        "error": 0,
        "job options": None,
        "trim": None,
        "read": None,
        "write": None,
    }
    (tmp_path / "o.json").write_text(json.dumps({"jobs": [None, job | changed], "disk_util": None}))
    done = run_cli(
        "kvdistill", "import", "fio-json", "o.json", "-o", "out", check=False, cwd=tmp_path
    )
    assert done.returncode == 3
    assert done.stderr.startswith("kvdistill: error: o.json")
    assert not (tmp_path / "out").exists()
