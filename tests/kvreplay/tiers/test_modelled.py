"""Simulated tiers: the time that the model says, to the nanosecond, and marked wherever it is shown."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, trace_meta, write_trace

from kvreplay.config.config import named
from kvreplay.engine import ring
from kvreplay.tiers.modelled import ASSUMED, Service, SimulatedTier, service_of
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OPS
from kvtrace.core.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path

READ, WRITE, DELETE = 0, 1, 2
MIB = 1 << 20


def service(**fields: Any) -> Service:
    return Service(
        **({"read_bytes_per_s": 10**9, "write_bytes_per_s": 5 * 10**8, "latency_ns": 100, "source": "-"} | fields)
    )


def row(op: str, obj: int, length: int, *, tier: int = 0, stage: int | None = None) -> Any:
    return (0, op, tier, "load", obj, 0, length, None if stage is None else 1, stage, 0)


def test_each_direction_is_a_first_come_server() -> None:
    tier = SimulatedTier("gpu", service())
    # 1,000 bytes at 1 GB/s take 1,000 ns; the second waits for the first, the write for neither.
    assert tier.serve(READ, 1000, 0) == 1100
    assert tier.serve(READ, 1000, 400) == 2100
    assert tier.serve(WRITE, 1000, 400) == 2500
    # The read server was free at 2,000.
    assert tier.serve(READ, 500, 3000) == 3600
    assert tier.serve(DELETE, 1000, 3000) == 3000


def test_concurrency_bounds_the_rate_of_short_operations() -> None:
    tier = SimulatedTier("gpu", service(latency_ns=1000, concurrency=4))
    # Four at once of 1,000 ns each: one every 250 ns, though 10 bytes take 10.
    assert [tier.serve(READ, 10, 0) for _ in range(3)] == [1250, 1500, 1750]


def test_no_model_is_no_time() -> None:
    assert SimulatedTier("gpu").serve(READ, 10**12, 5) == 5


MODEL = {
    "hierarchy": {
        "tiers": [
            {"name": "gpu", "read_bandwidth": "2GB", "write_bandwidth": 10**9, "latency": "3us", "concurrency": 2},
            {"name": "nvme", "read_bandwidth": "7GB", "write_bandwidth": None, "latency": None},
        ]
    }
}


def test_the_service_is_the_options_else_the_traces_else_assumed() -> None:
    with_model, without = trace_meta(), trace_meta()
    with_model = type(with_model)(table="trace", program="kvtrace", argv=[], config=MODEL)
    assert service_of("gpu", {}, with_model, "") == service(
        read_bytes_per_s=2 * 10**9,
        write_bytes_per_s=10**9,
        latency_ns=3000,
        concurrency=2,
        source="the trace's service model",
    )
    stated = {"bandwidth": "1GB", "write_bandwidth": "500MB", "latency": "100ns"}
    assert service_of("gpu", stated, with_model, "") == service(source="--tier")
    assert service_of("cpu", {}, without, "") is ASSUMED["cpu"]


@pytest.mark.parametrize(
    ("tier", "options", "message"),
    [
        ("nvme", {}, "the trace models no bandwidths of tier nvme"),
        ("gpu", {"latency": "1us"}, "name a bandwidth too"),
        ("gpu", {"read_bandwidth": "1GB"}, "name both"),
        ("gpu", {"bandwidth": "0"}, "a bandwidth must be > 0"),
        ("gpu", {"bandwidth": "fast"}, "'fast' is not a size"),
        ("gpu", {"bandwidth": "1GB", "concurrency": "x"}, "concurrency is a whole number"),
        ("gpu", {"speed": "1"}, "unknown option 'speed'"),
    ],
)
def test_what_is_no_service_is_refused(tier: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--tier x: {message}"):
        service_of(tier, options, trace_meta(), "--tier x")


def test_targets_that_are_no_path() -> None:
    assert named("sim") == ("sim", {})
    assert named("sim:bandwidth=1GB,latency=2us") == ("sim", {"bandwidth": "1GB", "latency": "2us"})
    assert named("./sim") is None
    for text, message in (("sim:fast", "write its options like this"), ("ram:x=1", "ram takes no options")):
        with pytest.raises(ConfigError, match=message):
            named(text)


@pytest.mark.parametrize("engine", ["threads", "uring"])
def test_a_modelled_replay_is_marked_in_every_output(tmp_path: Path, engine: str) -> None:
    if engine == "uring" and ring.refusal() is not None:
        pytest.skip(f"no io_uring: {ring.refusal()}")
    rows = [row("write", 0, MIB, stage=0), row("read", 0, MIB, stage=1), row("delete", 0, MIB, stage=2)]
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
    assert (figures["gpu", "read"]["is_simulated"], figures["gpu", "read"]["latency"]["max_ns"]) == (True, 1_976_562)
    assert figures["gpu", "read"]["bandwidth_bytes_per_s"] == pytest.approx(MIB / 1_976_562e-9)
    assert figures["cpu", "write"]["is_simulated"] is False
    assert manifest["tiers"]["gpu"]["service"]["source"] == "--tier"
    assert any(
        note.startswith("tier gpu is SIMULATED: no data moved; its times are a model's: reads at 1.07 GB/s")
        for note in manifest["notes"]
    )
    assert manifest["mlperf"]["latencies"] == [] or all(x["tier"] != "gpu" for x in manifest["mlperf"]["latencies"])
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert "tier gpu is SIMULATED" in shown


def test_the_terminal_marks_what_is_simulated(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0, MIB), row("write", 1, 4096, tier=1)])
    done = run_cli("kvreplay", "run", trace, "--tier", "gpu=sim", "--tier", "cpu=ram", "-o", tmp_path / "run")
    assert "tier gpu is SIMULATED" in done.stdout
    assert re.search(r"^gpu +write \(simulated\)", done.stdout, re.MULTILINE)
    assert "assumed: copies within HBM3" in done.stdout
    both = ["--tier", "gpu=sim", "--tier", "cpu=ram", "--trials", "2", "-o", tmp_path / "trials"]
    repeated = run_cli("kvreplay", "run", trace, *both).stdout
    assert "tier gpu is SIMULATED: no figure counts it" in repeated
    assert re.search(r"^cpu +write +mean_ns", repeated, re.MULTILINE)
    assert not re.search(r"^gpu", repeated, re.MULTILINE)
