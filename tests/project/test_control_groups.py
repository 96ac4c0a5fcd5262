"""Commands in a control group with little memory answer or refuse in a line; the kernel kills none."""

from __future__ import annotations

import contextlib
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
        return subprocess.run(
            [sys.executable, "-m", f"{program}.cli", *rest],
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
