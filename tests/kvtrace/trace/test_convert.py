from __future__ import annotations

import pytest
from conftest import write_trace
from phrases import shows
from simulated import kvtrace
from whole import read_table

from kvtrace.core.schema import OBJECTS, REQUESTS
from kvtrace.core.tables import create, objects_path, open_table

ROWS = [
    (0, "write", 2, "prefill", 0, 0, 4096, 0, 0, 0),
    (5, "read", 2, "load", 0, 0, 4096, 1, 0, 0),
    (9, "delete", 2, "evict", 0, 0, 4096, None, None, 0),
]


def names(directory):
    return sorted(p.name for p in directory.iterdir())


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A generated trace with its objects and requests."""
    path = tmp_path / "t.parquet"
    options = [
        "--users",
        4,
        "--duration",
        "20s",
        "--set",
        "tiers.gpu.capacity=2GiB",
        "--set",
        "tiers.cpu.capacity=0",
    ]
    assert (
        kvtrace(monkeypatch, "gen", *options, "-o", path, "--requests-out", tmp_path / "r.parquet")
        == 0
    )
    return path


def test_there_and_back_is_the_same_bytes(made, tmp_path, monkeypatch):
    (tmp_path / "back").mkdir()
    csv, back = tmp_path / "c.csv.zst", tmp_path / "back" / "t.parquet"
    assert kvtrace(monkeypatch, "convert", made, csv) == 0
    assert kvtrace(monkeypatch, "convert", csv, back) == 0
    assert back.read_bytes() == made.read_bytes()
    assert objects_path(back).read_bytes() == objects_path(made).read_bytes()
    assert open_table(csv).meta == open_table(made).meta
    assert kvtrace(monkeypatch, "validate", csv) == 0
    # And a second time from the CSV.
    assert kvtrace(monkeypatch, "convert", back, tmp_path / "c2.csv.zst") == 0
    assert (tmp_path / "c2.csv.zst").read_bytes() == csv.read_bytes()


@pytest.mark.parametrize(("name", "table"), [("r", REQUESTS), ("t.objects", OBJECTS)])
@pytest.mark.usefixtures("made")
def test_other_tables_convert_too(tmp_path, monkeypatch, name, table):
    csv, back = tmp_path / "x.csv.zst", tmp_path / "x.parquet"
    assert kvtrace(monkeypatch, "convert", tmp_path / f"{name}.parquet", csv) == 0
    assert read_table(csv, table).num_rows > 0
    assert kvtrace(monkeypatch, "convert", csv, back) == 0
    assert back.read_bytes() == (tmp_path / f"{name}.parquet").read_bytes()
    assert not (tmp_path / "x.objects.csv.zst").exists()


def test_requests_with_blocks_convert(tmp_path, monkeypatch):
    source = tmp_path / "m.jsonl"
    source.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [4, 2]}\n' * 2
    )
    options = ["--source", "mooncake", source, "--requests-out", tmp_path / "r.csv.zst"]
    assert kvtrace(monkeypatch, "gen", *options, "-o", tmp_path / "t.parquet") == 0
    assert kvtrace(monkeypatch, "convert", tmp_path / "r.csv.zst", tmp_path / "r.parquet") == 0
    assert read_table(tmp_path / "r.parquet", REQUESTS).column("block_ids").to_pylist() == [
        [4, 2],
        [4, 2],
    ]


def test_a_trace_without_its_objects_converts(tmp_path, monkeypatch):
    source = write_trace(tmp_path / "t.parquet", ROWS)
    objects_path(source).unlink()
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "t.csv.zst") == 0
    assert names(tmp_path) == ["t.csv.zst", "t.parquet"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["t.parquet", "t.parquet", "--force"], 2, "the input"),
        (["t.parquet", "link.parquet", "--force"], 2, "the input"),
        (["t.parquet", "t.json"], 2, "*.parquet or *.csv.zst"),
        (["t.parquet", ".parquet"], 2, "unknown file type"),
        (
            ["t.parquet", "t.parquet.zst", "--to", "mlperf"],
            2,
            "*.csv or *.csv.zst",
        ),
        (
            ["t.parquet", "t.csv", "--to", "warp"],
            2,
            "--to warp:",
        ),
        (["none.parquet", "u.csv.zst"], 3, "none.parquet:"),
        (["t.txt", "u.csv.zst"], 2, "t.txt:"),
        (["t.parquet", "none/u.csv.zst"], 4, "directory"),
        (
            ["t.objects.parquet", "u.csv", "--to", "mlperf"],
            3,
            "'objects' … 'trace'",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(tmp_path, monkeypatch, capsys, arguments, code, message):
    write_trace(tmp_path / "t.parquet", ROWS)
    (tmp_path / "link.parquet").symlink_to(tmp_path / "t.parquet")
    (tmp_path / "t.txt").write_text("hello")
    before = names(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert kvtrace(monkeypatch, "convert", *arguments) == code
    shown = capsys.readouterr()
    assert shows(shown.err, message)
    assert len(shown.err.splitlines()) == 1
    assert names(tmp_path) == before


def test_damage_found_late_leaves_nothing(tmp_path, monkeypatch, capsys):
    source = write_trace(tmp_path / "t.csv.zst", [(i, *ROWS[0][1:]) for i in range(5000)])
    source.write_bytes(source.read_bytes()[:-30])
    before = names(tmp_path)
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "u.parquet") == 3
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert names(tmp_path) == before


def test_damaged_objects_leave_nothing(tmp_path, monkeypatch):
    source = write_trace(tmp_path / "t.parquet", ROWS)
    objects_path(source).write_bytes(b"hello")
    assert kvtrace(monkeypatch, "convert", source, tmp_path / "u.csv.zst") == 3
    assert names(tmp_path) == ["t.objects.parquet", "t.parquet"]


def test_an_existing_target_is_replaced_whole(tmp_path, monkeypatch):
    source = write_trace(tmp_path / "t.parquet", ROWS)
    target = write_trace(tmp_path / "u.csv.zst", ROWS[:1])
    assert kvtrace(monkeypatch, "convert", source, target, "--force") == 0
    with create(
        tmp_path / "same.csv.zst", open_table(source).table, open_table(source).meta
    ) as out:
        for batch in open_table(source).batches():
            out.write(batch)
    assert target.read_bytes() == (tmp_path / "same.csv.zst").read_bytes()
