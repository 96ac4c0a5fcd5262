"""A trace as a folder of parts: the same rows as in one file, and each damage named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.dataset as pa_dataset
import pytest
from conftest import run_cli

import kvtrace as kt
from kvtrace.core import dataset
from kvtrace.core.dataset import MANIFEST
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.schema import OBJECTS, REQUESTS, TRACE
from kvtrace.core.tables import objects_path, open_table, requests_path

PART_ROWS = 500
SIMULATIONS = {
    "lmcache-disk": {"preset": "lmcache-disk", "users": 4},
    "vllm-fs": {"preset": "vllm-fs", "users": 4},
    "mooncake": {"preset": "mooncake", "users": 2},
    "fleet": {"preset": "vllm-fs", "users": 8, "nodes": 2, "router": "prefix"},
    "streams": {
        "preset": "lmcache-disk", "users": 4, "knobs": {"tiers.nvme.streams": "user-kind"},
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(dataset, "PART_ROWS", PART_ROWS)


@pytest.fixture
def simulated(tmp_path):
    """Return a trace of one file."""
    return kt.simulate(
        path=tmp_path / "t.parquet", duration="20s", model="tiny-1b", **SIMULATIONS["lmcache-disk"]
    )


@pytest.fixture
def folder(simulated, tmp_path):
    """Return the folder of the same trace as a dataset of several parts."""
    return simulated.save(tmp_path / "d").path


def contents_of(folder):
    return json.loads((folder / MANIFEST).read_text())["contents"]


def write_contents(folder, contents):
    """Write a manifest with these contents and their checksum."""
    text = json.dumps(contents)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(
        f'{{"kvtrace_dataset": 1, "sha256": "{digest}", "contents": {text}}}'
    )


@pytest.mark.parametrize("name", SIMULATIONS)
def test_a_dataset_has_the_rows_of_a_file_in_their_order(tmp_path, name):
    whole, parts = (
        kt.simulate(path=tmp_path / path, duration="20s", model="tiny-1b", **SIMULATIONS[name])
        for path in ("t.parquet", "d")
    )
    assert parts.metadata == whole.metadata
    assert len(list(parts.path.glob("part-*.parquet"))) == -(-len(whole) // PART_ROWS) > 1
    for path_of, table in (
        (objects_path, OBJECTS),
        (requests_path, REQUESTS),
        (lambda p: p, TRACE),
    ):
        reader, expected = (open_table(path_of(trace.path), table) for trace in (parts, whole))
        assert reader.read_all().equals(expected.read_all())
        assert reader.extras == expected.extras


def test_large_batches_of_a_dataset_have_the_rows_in_order(folder, simulated):
    rows = open_table(simulated.path, TRACE).read_all()
    batches = list(open_table(folder, TRACE).large_batches())
    assert [batch.num_rows for batch in batches[:-1]] == [PART_ROWS] * (len(rows) // PART_ROWS)
    assert rows.equals(rows.from_batches(batches))
    columns = ["ts_ns", "node"]  # a column that no part has gets its default
    (first, *_) = open_table(folder, TRACE).batches(columns)
    assert first.column("node").to_pylist() == [0] * first.num_rows


def test_a_trace_of_a_dataset_is_read_and_saved_as_any(folder, simulated, tmp_path):
    trace = kt.read_trace(f"{folder}/")
    assert trace.to_polars().equals(simulated.to_polars())
    assert trace.scan().collect().equals(simulated.to_polars())
    assert trace.to_arrow().equals(simulated.to_arrow())
    assert trace.objects().collect().equals(simulated.objects().collect())
    assert trace.requests().collect().equals(simulated.requests().collect())
    assert trace.save(tmp_path / "again.csv.zst").to_arrow().equals(simulated.to_arrow())
    assert trace.save(tmp_path / "again").to_arrow().equals(simulated.to_arrow())
    with pytest.raises(ConfigError, match="overwrite"):
        trace.save(tmp_path / "again")
    assert len(trace.save(tmp_path / "again", overwrite=True)) == len(simulated)


def test_any_tool_reads_the_parts(folder, simulated):
    rows, pattern = simulated.to_arrow().num_rows, str(folder / "part-*.parquet")
    files = sorted(folder.glob("part-*.parquet"))
    times = simulated.to_polars()["ts_ns"].to_list()
    assert pl.scan_parquet(pattern).select("ts_ns").collect()["ts_ns"].to_list() == times
    assert pa_dataset.dataset(files).to_table(["ts_ns"])["ts_ns"].to_pylist() == times
    assert duckdb.read_parquet(pattern).count("*").fetchall() == [(rows,)]


def test_a_part_has_a_span_of_time_and_a_note(folder, simulated):
    times = simulated.to_polars()["ts_ns"].to_list()
    for index, part in enumerate(contents_of(folder)["parts"]):
        rows = times[index * PART_ROWS : (index + 1) * PART_ROWS]
        assert (part["min_ts_ns"], part["max_ts_ns"]) == (rows[0], rows[-1])
        metadata = open_table(folder / part["name"], TRACE).meta
        assert (metadata.rows, metadata.stats) == (len(rows), None)
        assert f"from its row {index * PART_ROWS} on" in metadata.notes[0]


def test_commands_give_of_a_dataset_what_they_give_of_a_file(tmp_path):
    arguments = (
        "--users",
        4,
        "--duration",
        "20s",
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-disk",
    )
    for output in ("t.parquet", "d/"):
        run_cli("kvtrace", "gen", *arguments, "-o", tmp_path / output)
        run_cli("kvtrace", "convert", tmp_path / output, tmp_path / f"{output[0]}.csv.zst")
    for command in ("info", "validate"):
        answers = [
            json.loads(run_cli("kvtrace", command, tmp_path / name, "--json").stdout)
            for name in ("t.parquet", "d")
        ]
        assert answers[0].pop("file") != answers[1].pop("file")
        assert answers[0] == answers[1]
    texts = [(tmp_path / f"{name}.csv.zst").read_bytes() for name in ("t", "d")]
    assert texts[0] == texts[1]
    run_cli("kvtrace", "convert", tmp_path / "t.csv.zst", tmp_path / "back")
    assert run_cli("kvtrace", "validate", tmp_path / "back").returncode == 0
    names = {path.name for path in (tmp_path / "d").iterdir()}
    assert {"objects.parquet", "requests.parquet", MANIFEST} < names


def test_datasets_are_merged_as_files_are(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        trace = kt.simulate(
            path=tmp_path / f"{name}.parquet", duration="20s", users=2, model="tiny-1b", seed=seed,
            preset="lmcache-disk",
        )  # fmt: skip
        trace.save(tmp_path / name)
    whole = ("merge", tmp_path / "a.parquet", tmp_path / "b.parquet", "-o", tmp_path / "ab.parquet")
    run_cli("kvtrace", *whole)
    run_cli("kvtrace", "merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "ab")
    assert (
        kt.read_trace(tmp_path / "ab")
        .to_arrow()
        .equals(kt.read_trace(tmp_path / "ab.parquet").to_arrow())
    )
    assert run_cli("kvtrace", "validate", tmp_path / "ab").returncode == 0


def test_a_trace_of_checkpoints_can_be_a_dataset(tmp_path):
    arguments = ("--preset", "checkpoint", "--ranks", 64, "--every", "1min", "--duration", "10min")
    run_cli("kvtrace", "gen", *arguments, "-o", tmp_path / "d/")
    assert run_cli("kvtrace", "validate", tmp_path / "d").returncode == 0
    assert len(list((tmp_path / "d").glob("part-*.parquet"))) > 1


def change_contents(folder, change):
    """Rewrite the manifest with what `change` makes of the first two parts."""
    contents = contents_of(folder)
    change(*contents["parts"][:2])
    write_contents(folder, contents)


def swap(folder):
    """Swap two parts, and state the sizes that the files then have."""
    first, second = (folder / f"part-0000{index}.parquet" for index in (0, 1))
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)

    def exchange_sizes(one, other):
        one["file_bytes"], other["file_bytes"] = other["file_bytes"], one["file_bytes"]

    change_contents(folder, exchange_sizes)


def flip_a_bit(folder):
    path = folder / "part-00001.parquet"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def replace_text(folder, old, new):
    path = folder / MANIFEST
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


PART = "part-00001.parquet"
DAMAGE = {
    "missing": (PART, lambda folder: (folder / PART).unlink()),
    "truncated": (PART, lambda folder: os.truncate(folder / PART, 1000)),
    "swapped": ("part-00000.parquet", swap),
    "a bit": (PART, flip_a_bit),
    "overlapping": (
        PART,
        lambda folder: change_contents(
            folder, lambda one, other: other.update(min_ts_ns=one["max_ts_ns"] - 1)
        ),
    ),
    "earlier than said": (
        PART,
        lambda folder: change_contents(
            folder, lambda _one, other: other.update(min_ts_ns=other["min_ts_ns"] + 1)
        ),
    ),
    "other objects": (
        "objects.parquet",
        lambda folder: shutil.copyfile(folder / PART, objects_path(folder)),
    ),
    "no manifest": ("incomplete", lambda folder: (folder / MANIFEST).unlink()),
    "changed manifest": (MANIFEST, lambda folder: replace_text(folder, '"rows": 500', '"rows": 501')),
    "later version": (
        MANIFEST,
        lambda folder: replace_text(folder, '"kvtrace_dataset":1', '"kvtrace_dataset":2'),
    ),
    "part elsewhere": (
        MANIFEST,
        lambda folder: change_contents(
            folder, lambda one, _other: one.update(name=f"../{one['name']}")
        ),
    ),
}  # fmt: skip
"""The name in the error, and how the dataset is damaged."""


@pytest.mark.parametrize("kind", DAMAGE)
def test_validate_names_the_damaged_file_in_one_line(folder, kind):
    name, damage = DAMAGE[kind]
    damage(folder)
    answer = run_cli("kvtrace", "validate", folder, check=False)
    assert answer.returncode == 3
    (line,) = answer.stderr.strip().split("\n")
    assert name in line


def test_a_table_of_requests_is_not_read_from_a_dataset(folder):
    with pytest.raises(TraceError, match="requests"):
        open_table(folder, REQUESTS)


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_folder_of_other_files_is_never_written(tmp_path, options):
    other = tmp_path / "d" / "thesis.txt"
    other.parent.mkdir()
    other.write_text("kept")
    arguments = ("gen", "--users", 1, "--duration", "1s", "--model", "tiny-1b", *options)
    answer = run_cli("kvtrace", *arguments, "-o", other.parent, check=False)
    assert answer.returncode == 4
    assert "thesis.txt" in answer.stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["d", "thesis.txt"]


def test_a_dataset_is_replaced_with_force_only(folder):
    arguments = ("gen", "--users", 1, "--duration", "1s", "--model", "tiny-1b", "-o", folder)
    answer = run_cli("kvtrace", *arguments, check=False)
    assert answer.returncode == 4
    assert "--force" in answer.stderr
    run_cli("kvtrace", *arguments, "--force")
    assert run_cli("kvtrace", "validate", folder).returncode == 0
    assert len(list(folder.glob("part-*"))) == 1
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_a_dataset_with_another_file_in_it_is_not_replaced(folder, simulated):
    (folder / "notes.md").write_text("kept")
    with pytest.raises(DeviceError, match=r"notes\.md"):
        simulated.save(folder, overwrite=True)
    assert len(kt.read_trace(folder)) == len(simulated)


def test_an_empty_folder_becomes_the_dataset(tmp_path, simulated):
    (tmp_path / "empty").mkdir()
    assert len(simulated.save(tmp_path / "empty")) == len(simulated)


def test_a_write_that_fails_leaves_the_dataset_that_was_there(folder, simulated, monkeypatch):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dataset.DatasetEncoder, "write_manifest", fail)
    with pytest.raises(DeviceError, match="No space left"):
        simulated.save(folder, overwrite=True)
    assert len(kt.read_trace(folder)) == len(simulated)
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_a_trace_without_rows_is_a_dataset_of_one_part(tmp_path):
    rows = pl.DataFrame(
        schema={"ts_ns": pl.Int64, "op": pl.String, "tier": pl.String, "object_id": pl.Int64,
                "length_bytes": pl.Int64}
    )  # fmt: skip
    saved = kt.Trace.from_polars(rows, tiers={"nvme": None}).save(tmp_path / "d")
    assert saved.scan().collect().height == saved.to_arrow().num_rows == 0
    assert [path.name for path in (tmp_path / "d").glob("part-*")] == ["part-00000.parquet"]


def test_times_that_go_back_from_part_to_part_are_refused(tmp_path):
    count = 2 * PART_ROWS
    rows = pl.DataFrame(
        {
            "ts_ns": range(count, 0, -1), "op": ["write"] * count, "tier": ["nvme"] * count,
            "object_id": range(count), "length_bytes": [1] * count,
        }
    )  # fmt: skip
    trace = kt.Trace.from_polars(rows, tiers={"nvme": None})
    with pytest.raises(TraceError, match="time goes back"):
        trace.save(tmp_path / "d")
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_cannot_be_read_is_not_replaced(folder, simulated):
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(DeviceError, match="manifest is damaged"):
        simulated.save(folder, overwrite=True)
    (folder / MANIFEST).unlink()
    with pytest.raises(DeviceError, match="incomplete"):
        simulated.save(folder, overwrite=True)


@pytest.mark.parametrize("name", [".", "", "../d", "../../d"])
def test_the_working_directory_is_not_replaced(folder, simulated, monkeypatch, name):
    place = folder / "inner" if name.startswith("../..") else folder
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    with pytest.raises(DeviceError, match="working directory"):
        simulated.save(name, overwrite=True)
    assert len(kt.read_trace(folder)) == len(simulated)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_an_interrupt_at_the_rename_leaves_a_dataset(folder, simulated, monkeypatch, can_exchange):
    def interrupt(*_arguments):
        raise KeyboardInterrupt

    if not can_exchange:
        monkeypatch.setattr(dataset, "exchange_names", lambda *_names: False)
        rename = Path.rename
        monkeypatch.setattr(
            Path,
            "rename",
            lambda path, to: interrupt() if path.name == to.name == "d" else rename(path, to),
        )
    else:
        exchange = dataset.exchange_names
        monkeypatch.setattr(
            dataset, "exchange_names", lambda *names: exchange(*names) and interrupt()
        )
    with pytest.raises(KeyboardInterrupt):
        simulated.save(folder, overwrite=True)
    monkeypatch.undo()
    assert len(kt.read_trace(folder)) == len(simulated)


def test_a_name_with_a_pattern_is_one_trace(simulated, tmp_path):
    for name in ("y1.parquet", "y*.parquet", "x1", "x*", "br[1]"):
        simulated.save(tmp_path / name)
    for name in ("y*.parquet", "x*", "br[1]"):
        assert kt.read_trace(tmp_path / name).scan().collect().height == len(simulated)


def test_polars_opens_no_part_that_was_changed(folder):
    part = folder / "part-00001.parquet"
    data = bytearray(part.read_bytes())
    data[-20] ^= 1
    part.write_bytes(data)
    with pytest.raises(TraceError, match="part-00001"):
        kt.read_trace(folder).scan()
