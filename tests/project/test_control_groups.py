"""Commands in a control group with little memory answer or refuse in a line; the kernel kills none."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
OUT_OF_MEMORY = 7
ROOTS = {
    Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes",
    Path("/sys/fs/cgroup"): "memory.max",
}
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_with(tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs a command in a control group with a limit of memory in MiB."""
    root = next((root for root, limit in ROOTS.items() if (root / limit).exists()), None)
    if root is None and (Path("/sys/fs/cgroup/cgroup.controllers")).exists():
        root = Path("/sys/fs/cgroup")
    if root is None:
        pytest.skip("no control groups of memory here")
    group = root / f"kvtrace-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ROOTS[root]
        limit.write_text(str(1 << 30))
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")

    def run(limit_mib: int, *argv: str) -> subprocess.CompletedProcess[str]:
        limit.write_text(str(limit_mib * MIB))
        program, *rest = argv
        module = [program] if program == "-c" else ["-m", f"{program}.cli"]
        return subprocess.run(
            [sys.executable, *module, *rest],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )

    yield run
    group.rmdir()


GEN = (
    *("kvtrace", "gen", "--preset", "lmcache-disk", "--model", "tiny-1b", "--users", "20"),
    *("--duration", "60s", "-o", "t.parquet"),
)


@pytest.mark.parametrize(
    ("limit_mib", "code", "argv"),
    [
        (400, 2, ("kvreplay", "run", "t.parquet", "--tier", "nvme=s.dat", "--queue-depth", "1024")),
        (400, 4, ("kvreplay", "run", "t.parquet", "--tier", "nvme=ram")),
    ],
)
def test_buffers_and_memory_tiers_that_do_not_fit_are_refused(
    run_with: Run, limit_mib: int, code: int, argv: tuple[str, ...]
):
    assert run_with(4096, *GEN).returncode == 0
    done = run_with(limit_mib, *argv)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


FLEET = ("kvtrace", "gen", "--preset", "vllm-fs", "--nodes", "1000", "--users", "4000")


@pytest.mark.parametrize(
    "limit_mib",
    [300, *(pytest.param(mib, marks=pytest.mark.full) for mib in (600, 800, 1000, 1300))],
)
def test_a_simulation_that_does_not_fit_is_refused(run_with: Run, limit_mib: int):
    done = run_with(limit_mib, *FLEET, "--duration", "60s", "-o", "fleet.parquet")
    assert done.returncode == OUT_OF_MEMORY, (done.returncode, done.stderr)


@pytest.mark.full
@pytest.mark.parametrize(
    "argv",
    [
        ("kvdistill", "sql", "t.parquet", "SELECT object_id, count(*) FROM trace GROUP BY 1"),
        ("kvdistill", "report", "t.parquet", "-o", "report.html", "--force"),
        ("kvdistill", "fio", "t.parquet", "--tier", "nvme", "-o", "jobs", "--force"),
        ("kvtrace", "validate", "t.parquet"),
        ("kvreplay", "run", "t.parquet", "--tier", "nvme=null", "-o", "run", "--force"),
    ],
)
def test_an_analysis_fits_or_says_that_it_does_not(run_with: Run, argv: tuple[str, ...]):
    assert run_with(4096, *GEN).returncode == 0
    for limit_mib in (512, 256, 160):
        done = run_with(limit_mib, *argv)
        assert done.returncode in (0, OUT_OF_MEMORY), (limit_mib, done.returncode, done.stderr)
        assert done.returncode != -signal.SIGKILL


FILLS = """
import sys
sys.argv[0] = "kvtrace"
from kvtrace.core.signals import leave_on_signals
leave_on_signals("kvtrace", "__main__")
import numpy as np
from kvtrace.core.memory_guard import guard_memory
guard_memory()
kept = []
while True:
    {fill}
"""


@pytest.mark.parametrize(
    "fill",
    [
        "kept.append(np.ones(1 << 20))",
        "kept.append(np.repeat(np.arange(1 << 22), 2))",
        "kept.extend([i] for i in range(1 << 16))",
    ],
)
def test_a_program_that_fills_its_memory_ends_with_a_line(run_with: Run, fill: str):
    done = run_with(500, "-c", FILLS.format(fill=fill))
    assert (done.returncode, done.stdout) == (OUT_OF_MEMORY, ""), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["gen", "mrc", "size"])
def test_a_log_that_does_not_fit_is_refused(run_with: Run, tmp_path: Path, command: str):
    ids = list(range(400))
    with (tmp_path / "log.jsonl").open("w") as file:
        for row in range(40_000):
            line = {"timestamp": row, "input_length": 400, "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(line) + "\n")
    source = ("kvtrace", command, "log.jsonl", "--source", "mooncake", "--block-tokens", "1")
    options = {
        "gen": ("--preset", "vllm-fs", "--model", "tiny-1b", "-o", "t.parquet"),
        "mrc": (),
        "size": ("--preset", "vllm-fs", "--model", "tiny-1b", "--target-hit", "30%"),
    }
    done = run_with(250, *source, *options[command])
    assert done.returncode == OUT_OF_MEMORY, done.stderr
    assert "log.jsonl" in done.stderr
