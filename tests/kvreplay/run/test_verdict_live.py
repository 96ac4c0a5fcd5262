"""Verdicts of replays whose limit is known: a loop device in memory, busy processors, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli
from loop_devices import loop_device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.root, pytest.mark.full, pytest.mark.alone]

LOAD = (
    "--preset lmcache-disk --users 9 --duration 5s --model tiny-1b --seed 7 --set chunk_tokens=128"
    " --set tiers.gpu.capacity=64MiB --set tiers.cpu.capacity=96MiB --set tiers.nvme.capacity=900MiB"
    " --set workload.think_time=2s"
)
CHAINS = (
    "--preset vllm-fs --users 4 --duration 5s --model tiny-1b --seed 12"
    " --set tiers.gpu.capacity=96MiB --set tiers.cpu.capacity=256MiB --set workload.think_time=2s"
)
OTHERS = {None, "processor", "data generation"}
"""Limits of this machine, which other work on it may cause in any test."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "trace.parquet"
    run_cli("kvtrace", "gen", *LOAD.split(), "-o", path)
    return path


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A loop device over a tmpfs: as fast as memory, with a block layer of its own."""
    folder = tmp_path_factory.mktemp("memory")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        with loop_device(folder / "image", 2 << 30) as path:
            yield path
    finally:
        subprocess.run(["umount", folder], check=False)


def verdict(trace: Path, output: Path, *options: object) -> dict[str, Any]:
    """Replay `trace` and return its verdict."""
    run_cli("kvreplay", "run", trace, "--destroy-data", *options, "-o", output)
    found: dict[str, Any] = json.loads((output / "run.json").read_text())["summary"]["judgement"]
    return found


def test_a_light_load_keeps_pace(trace: Path, device: Path, tmp_path: Path) -> None:
    found = verdict(trace, tmp_path / "run", "--tier", f"nvme={device}", "--speed", 1)
    assert not found["evidence"]["is_end_late"]
    assert found["cause"] in OTHERS | {"drive"}


def test_busy_processors_are_named(trace: Path, device: Path, tmp_path: Path) -> None:
    # A scheduler wakes a sleeper first, so that equals of the replay hardly delay it: the busy
    # processes have a higher priority.
    with ExitStack() as stack:
        for _ in range(2 * (os.cpu_count() or 1)):
            busy = subprocess.Popen(["nice", "-n", "-5", sys.executable, "-c", "while True: pass"])
            stack.callback(busy.wait)
            stack.callback(busy.kill)
        found = verdict(trace, tmp_path / "run", "--tier", f"nvme={device}", "--speed", 1)
    assert found["cause"] in (None, "processor")
    assert found["evidence"]["processor_share"] > 0.05


def test_an_overloaded_device_names_its_latency(trace: Path, device: Path, tmp_path: Path) -> None:
    found = verdict(trace, tmp_path / "run", "--tier", f"nvme={device}", "--speed", 64)
    assert not found["has_reached"]
    assert found["cause"] in OTHERS | {"drive", "latency of dependent operations"}
    if found["cause"] == "latency of dependent operations":
        assert "would keep up" in found["reason"]


def test_a_closed_loop_says_what_more_depth_gives(
    trace: Path, device: Path, tmp_path: Path
) -> None:
    found = verdict(
        trace, tmp_path / "run", "--tier", f"nvme={device}", "--as-fast-as-possible",
        "--queue-depth", 2,
    )  # fmt: skip
    assert found["cause"] in OTHERS | {"queue limit", "drive", "latency of dependent operations"}
    if found["cause"] == "queue limit":
        assert "depth" in found["reason"]


def test_memory_never_waits_for_dependencies(trace: Path, tmp_path: Path) -> None:
    found = verdict(trace, tmp_path / "run", "--tier", "cpu=ram", "--speed", 1)
    assert not found["evidence"]["is_end_late"]
    assert found["cause"] in OTHERS | {"copy threads", "first touch of memory"}


@pytest.mark.parametrize("speed", [1, 20])
def test_chains_on_a_disk_wait_for_its_latency(tmp_path: Path, speed: int) -> None:
    """vLLM's files are read one after the other, and wait for the disk's latency, times their number."""
    trace = tmp_path / "chains.parquet"
    run_cli("kvtrace", "gen", *CHAINS.split(), "-o", trace)
    (tmp_path / "target").mkdir()
    found = verdict(
        trace, tmp_path / "run", "--tier", f"nvme={tmp_path / 'target'}", "--speed", speed
    )
    assert found["cause"] in OTHERS | {"drive", "filesystem", "latency of dependent operations"}
    shares = found["evidence"]["response_shares"]
    assert {"drive", "dependencies"} <= shares.keys()
    assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
    if found["cause"] == "latency of dependent operations":
        assert "each on average" in found["reason"]
