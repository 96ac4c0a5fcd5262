"""Simulated tiers.

The time that the model says, to the nanosecond, and marked wherever it is shown.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import run_cli, trace_meta, write_trace
from phrases import pattern, shows
from rings import ENGINES, drive, engine_of, rows_of
from whole import read_table

from kvreplay.engine.native_engine import refusal
from kvreplay.plan.tier_targets import named
from kvreplay.tiers.modelled import ASSUMED, Service, SimulatedTier, service_of
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from pathlib import Path

READ, WRITE, DELETE = 0, 1, 2
MIB = 1 << 20


def service(**fields: Any) -> Service:
    return Service(
        **(
            {
                "read_bytes_per_s": 10**9,
                "write_bytes_per_s": 5 * 10**8,
                "latency_ns": 100,
                "source": "-",
            }
            | fields
        )
    )


def row(op: str, obj: int, length: int, *, tier: int = 0, stage: int | None = None) -> Any:
    return (0, op, tier, "load", obj, 0, length, None if stage is None else 1, stage, 0)


def served(done: Any, occupied_ns: int, latency_ns: int) -> list[int]:
    """Return when operations of one direction must have ended, by when each was submitted."""
    found, busy = [], 0
    for row in np.sort(done, order="completed_ns"):
        busy = max(busy, int(row["submitted_ns"])) + occupied_ns
        found.append(busy + latency_ns)
    return found


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 4, 32])
def test_each_direction_is_a_first_come_server(name: str, depth: int) -> None:
    tier = SimulatedTier("gpu", service(latency_ns=200_000))
    # 50,000 bytes at 1 GB/s take 50 us, at half of that 100 us; a delete takes no time.
    stated = [
        {"op": (READ, WRITE, READ, DELETE)[i % 4], "object_id": i, "length_bytes": 50_000}
        for i in range(120)
    ]
    rows = rows_of(stated)
    driven = drive(engine_of(name, depth), rows, [tier])
    done = rows.all
    assert (driven.failure, driven.completed) == (None, 120)
    for op, occupied_ns in ((READ, 50_000), (WRITE, 100_000)):
        of = done[done["op"] == op]
        assert sorted(of["completed_ns"].tolist()) == served(of, occupied_ns, 200_000)
        took = of["completed_ns"] - of["submitted_ns"]
        assert took.min() >= occupied_ns + 200_000
        if depth == 1:
            assert set(took.tolist()) == {occupied_ns + 200_000}, "nobody waits for the server"
        elif depth == 32:
            # Four threads on a busy machine may come one by one.
            assert took.max() > occupied_ns + 200_000, "but beside others"
    gone = done[done["op"] == DELETE]
    assert (gone["completed_ns"] == gone["submitted_ns"]).all()


@pytest.mark.parametrize("name", ENGINES)
def test_concurrency_bounds_the_rate_of_short_operations(name: str) -> None:
    tier = SimulatedTier("gpu", service(latency_ns=1_000_000, concurrency=4))
    # Four at once of 1 ms each: one every 250 us, though 10 bytes take 10 ns.
    rows = rows_of([{"op": READ, "object_id": i, "length_bytes": 10} for i in range(40)])
    drive(engine_of(name, 16), rows, [tier])
    assert sorted(rows.all["completed_ns"].tolist()) == served(rows.all, 250_000, 1_000_000)


@pytest.mark.parametrize("name", ENGINES)
def test_no_model_is_no_time(name: str) -> None:
    rows = rows_of([{"op": i % 3, "object_id": i, "length_bytes": 10**12} for i in range(3000)])
    driven = drive(engine_of(name, 1), rows, [SimulatedTier("gpu")])
    assert driven.completed == 3000
    assert (rows.all["submitted_ns"] == rows.all["completed_ns"]).all()
    assert (np.diff(rows.all["completed_ns"]) >= 0).all()


MODEL = {
    "hierarchy": {
        "tiers": [
            {
                "name": "gpu",
                "read_bandwidth": "2GB",
                "write_bandwidth": 10**9,
                "latency": "3us",
                "concurrency": 2,
            },
            {"name": "nvme", "read_bandwidth": "7GB", "write_bandwidth": None, "latency": None},
        ]
    }
}


def test_service_is_from_options_else_the_trace_else_assumed() -> None:
    with_model, without = trace_meta(), trace_meta()
    with_model = type(with_model)(table="trace", program="kvtrace", argv=[], config=MODEL)
    found = service_of("gpu", {}, with_model, "")
    assert shows(found.source, "service model")
    assert found == service(
        read_bytes_per_s=2 * 10**9,
        write_bytes_per_s=10**9,
        latency_ns=3000,
        concurrency=2,
        source=found.source,
    )
    stated = {"bandwidth": "1GB", "write_bandwidth": "500MB", "latency": "100ns"}
    assert service_of("gpu", stated, with_model, "") == service(source="--tier")
    assert service_of("cpu", {}, without, "") is ASSUMED["cpu"]


@pytest.mark.parametrize(
    ("tier", "options", "message"),
    [
        ("nvme", {}, "bandwidths of tier nvme"),
        ("gpu", {"latency": "1us"}, "bandwidth"),
        ("gpu", {"read_bandwidth": "1GB"}, "name both"),
        ("gpu", {"bandwidth": "0"}, "bandwidth … > 0"),
        ("gpu", {"bandwidth": "fast"}, "'fast'"),
        ("gpu", {"bandwidth": "1GB", "concurrency": "x"}, "whole number"),
        ("gpu", {"speed": "1"}, "'speed'"),
    ],
)
def test_what_is_no_service_is_refused(tier: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--tier x: .*{pattern(message)}"):
        service_of(tier, options, trace_meta(), "--tier x")


def test_targets_that_are_no_path() -> None:
    assert named("sim") == ("sim", {})
    assert named("sim:bandwidth=1GB,latency=2us") == ("sim", {"bandwidth": "1GB", "latency": "2us"})
    assert named("./sim") is None
    for text, message in (
        ("sim:fast", "options"),
        ("ram:x=1", "no options"),
    ):
        with pytest.raises(ConfigError, match=pattern(message)):
            named(text)


@pytest.mark.first(engine=1)
@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_a_modelled_replay_is_marked_in_every_output(tmp_path: Path, engine: str) -> None:
    if engine == "uring" and refusal() is not None:
        pytest.skip(f"no io_uring: {refusal()}")
    rows = [
        row("write", 0, MIB, stage=0),
        row("read", 0, MIB, stage=1),
        row("delete", 0, MIB, stage=2),
    ]
    trace = write_trace(tmp_path / "t.parquet", [*rows, row("write", 1, 4096, tier=1)])
    (tmp_path / "d").mkdir()
    targets = ["--tier", "gpu=sim:bandwidth=1GiB,latency=1ms", "--tier", f"cpu={tmp_path / 'd'}"]
    run_cli(
        "kvreplay",
        "run",
        trace,
        *targets,
        "--buffered",
        "--engine",
        engine,
        "--queue-depth",
        "1",
        "-o",
        tmp_path / "run",
    )
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    assert [(o["engine"], o["bytes"]) for o in ops[:3]] == [("sim", None)] * 3
    # 1 MiB at 1 GiB/s and 1 ms; one operation at a time, so none waits for the server.
    took = [o["completed_ns"] - o["submitted_ns"] for o in ops[:3]]
    assert took == [976_562 + 1_000_000, 976_562 + 1_000_000, 0]
    assert ops[1]["submitted_ns"] >= ops[0]["completed_ns"]
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    figures = {(f["tier"], f["op"]): f for f in manifest["summary"]["figures"]}
    assert (
        figures["gpu", "read"]["is_simulated"],
        figures["gpu", "read"]["latency"]["max_ns"],
    ) == (True, 1_976_562)
    assert figures["gpu", "read"]["bandwidth_bytes_per_s"] == pytest.approx(MIB / 1_976_562e-9)
    assert figures["cpu", "write"]["is_simulated"] is False
    assert manifest["tiers"]["gpu"]["service"]["source"] == "--tier"
    assert any(
        shows(note, "tier gpu … SIMULATED … reads at 1.07 GB/s") for note in manifest["notes"]
    )
    assert manifest["mlperf"]["latencies"] == [] or all(
        x["tier"] != "gpu" for x in manifest["mlperf"]["latencies"]
    )
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert shows(shown, "tier gpu … SIMULATED")


@pytest.mark.full
def test_the_terminal_marks_what_is_simulated(tmp_path: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", 0, MIB), row("write", 1, 4096, tier=1)]
    )
    done = run_cli(
        "kvreplay", "run", trace, "--tier", "gpu=sim", "--tier", "cpu=ram", "-o", tmp_path / "run"
    )
    assert shows(done.stdout, "tier gpu … SIMULATED")
    assert re.search(r"^gpu +write \(simulated\)", done.stdout, re.MULTILINE)
    assert "within HBM3" in done.stdout
    both = ["--tier", "gpu=sim", "--tier", "cpu=ram", "--trials", "2", "-o", tmp_path / "trials"]
    repeated = run_cli("kvreplay", "run", trace, *both).stdout
    assert shows(repeated, "tier gpu … SIMULATED")
    assert re.search(r"^cpu +write +mean_ns", repeated, re.MULTILINE)
    assert not re.search(r"^gpu", repeated, re.MULTILINE)
