"""`kvtrace breakeven` of several models and GPUs, of measured drives, and its energy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import run_cli
from drive_files import write_drive

import kvtrace as kt
from kvtrace.core.errors import ConfigError, TraceError

MODELS, GPUS = ("llama3.1-8b", "llama3.1-70b"), ("h100", "a100")
STORE = "qlc=3GB/s,100us"


def test_each_engine_has_the_figures_that_it_has_alone() -> None:
    found = kt.compare_engines(models=MODELS, gpus=GPUS, stores=[STORE], tensor_parallel=4)
    alone = [
        kt.break_even(model=model, gpu=gpu, stores=[STORE], tensor_parallel=4)
        for model in MODELS
        for gpu in GPUS
    ]
    assert found.engines == alone
    assert found.to_polars().height == sum(len(engine.points) for engine in alone)
    for engine in alone:
        assert engine.name in found.answer


def test_engines_are_compared_at_lengths_that_all_have() -> None:
    found = kt.compare_engines(models=["llama2-7b", "llama3.1-8b"], stores=[STORE])
    lengths = [[point.tokens for point in engine.points] for engine in found.engines]
    assert lengths == [[1024, 2048, 4096]] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"models": []},
        {"models": ["llama3.1-8b", ""]},
        {"gpus": ["h100", "h100"]},
        {"gpus": ["h100", "abacus"]},
    ],
)
def test_engines_that_cannot_be_compared_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kt.compare_engines(**arguments)


def test_a_store_may_have_the_name_of_a_column() -> None:
    found = kt.compare_engines(gpus=GPUS, stores=["engine=7GB/s"])
    rows = found.document().chapters[0].tables[0].rows
    assert [row[0] for row in rows] == [engine.name for engine in found.engines]


def test_energy_is_power_times_time() -> None:
    """Four H100 of 700 W compute; a drive of 20 W reads. Without a power there is no energy."""
    result = kt.break_even(
        model="llama3.1-70b",
        tensor_parallel=4,
        stores=["qlc=3GB/s,100us,20W", "object=25GB/s,30ms"],
    )
    for point in result.points:
        assert point.compute_j == pytest.approx(4 * 700 * point.compute_ns / 1e9)
        load_s = 1e-4 + point.tokens * 327_680 / 3e9
        assert point.load_j == {"qlc": pytest.approx(20 * load_s), "object": None}


def test_loads_at_a_time_do_not_multiply_the_energy_of_a_store() -> None:
    alone, shared = (
        kt.break_even(stores=["qlc=3GB/s,20W"], loads=loads).points[0].load_j["qlc"]
        for loads in (1, 4)
    )
    assert shared == pytest.approx(alone)


@pytest.mark.parametrize("name", ["", "mine="])
def test_a_drive_file_is_a_store(tmp_path: Any, name: str) -> None:
    path = tmp_path / "disk.json"
    drive = write_drive(path)
    reading = [cell for cell in drive.cells if cell.read_share == 1]
    fastest = max(reading, key=lambda cell: cell.bytes_per_s or 0)
    (alone,) = (cell for cell in reading if (cell.io_bytes, cell.depth) == (fastest.io_bytes, 1))
    (verdict,) = kt.break_even(stores=[f"{name}sim:{path}"]).verdicts
    store = verdict.store
    assert store.name == name.rstrip("=") or store.name == "disk"
    assert store.bandwidth_bytes_per_s == fastest.bytes_per_s
    assert alone.read is not None
    assert fastest.bytes_per_s is not None
    transfer_ns = fastest.io_bytes / fastest.bytes_per_s * 1e9
    assert store.latency_ns == pytest.approx(max(0, alone.read.mean_ns - transfer_ns), abs=1)


def test_a_damaged_drive_file_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "disk.json"
    write_drive(path)
    damaged = json.loads(path.read_text())
    damaged["cells"][0]["bytes_per_s"] = 1e12
    path.write_text(json.dumps(damaged))
    with pytest.raises(TraceError):
        kt.break_even(stores=[f"sim:{path}"])


@pytest.mark.parametrize(
    "store", ["a=3GB/s,20W,30W", "a=3GB/s,0W", "a=3GB/s,1us,2us", "a=3GB/s,nanW"]
)
def test_a_store_with_contradictory_details_is_refused(store: str) -> None:
    with pytest.raises(ConfigError):
        kt.break_even(stores=[store])


def test_the_command_compares_and_draws(tmp_path: Any) -> None:
    page = tmp_path / "engines.html"
    options = ("--model", ",".join(MODELS), "--gpu", ",".join(GPUS), "--store", STORE)
    shown = run_cli("kvtrace", "breakeven", *options, "--plot", page).stdout
    found = json.loads(run_cli("kvtrace", "breakeven", *options, "--json").stdout)
    assert shown.splitlines()[0] == found["answer"]
    assert [(engine["model"], engine["gpu"]) for engine in found["engines"]] == [
        (model, gpu) for model in MODELS for gpu in GPUS
    ]
    text = page.read_text()
    gpus_of = {"llama3.1-8b": "", "llama3.1-70b": "4 x "}  # What holds the weights.
    assert all(f"{model} on {gpus_of[model]}{gpu}" in text for model in MODELS for gpu in GPUS)
