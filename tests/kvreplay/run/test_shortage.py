"""Too little memory.

Refused before the start with both figures, and never taken for a damaged trace.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import write_trace
from phrases import pattern, shows

from kvreplay.plan import memory_check
from kvreplay.plan.memory_check import PROCESS_ADDRESS_BYTES, PROCESS_BYTES, ROW_BYTES, check_memory
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvtrace.core import memory, mounts
from kvtrace.core.errors import OutOfMemory, TraceError
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table

KIB, MIB = 1 << 10, 1 << 20


def trace_of(tmp_path: Path, count: int = 10) -> Path:
    rows = [(i, "write", 2, "store", i, 0, 4096, None, None, 0) for i in range(count)]
    return write_trace(tmp_path / "t.parquet", rows)


def test_a_replay_over_available_memory_names_both_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, buffers = 1_000_000, 74 * MIB
    need = PROCESS_BYTES + rows * ROW_BYTES + buffers
    monkeypatch.setattr(memory, "available_bytes", lambda: need)
    check_memory(rows, buffers)
    monkeypatch.setattr(memory, "available_bytes", lambda: need - 1)
    said = "429 MB … 1,000,000 rows, 77.6 MB … 429 MB"
    with pytest.raises(OutOfMemory, match=pattern(said)):
        check_memory(rows, buffers)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    check_memory(rows, buffers)


def test_a_limit_on_the_process_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = PROCESS_ADDRESS_BYTES + 10 * ROW_BYTES
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    check_memory(10)
    with pytest.raises(OutOfMemory, match=r"address space .*ulimit -v"):
        check_memory(11)


def test_what_is_available_is_the_least_of_all_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/self/mountinfo": "24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
        "/proc/self/cgroup": "0::/",
        "/proc/meminfo": f"MemTotal: {300 * KIB} kB\nMemAvailable: {200 * KIB} kB\n",
        "/sys/fs/cgroup/memory.max": str(100 * MIB),
        "/sys/fs/cgroup/memory.current": str(80 * MIB),
        "/sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {30 * MIB}\n",
    }
    for module in (memory, mounts):
        monkeypatch.setattr(module, "sys_text", lambda path: files.get(str(path)))
    monkeypatch.setattr(Path, "is_dir", lambda _path: True)
    assert memory.available_bytes() == 50 * MIB
    # A batch system's job is a group below the top, without a namespace of its own.
    files |= {
        "/proc/self/cgroup": "1:cpu:/elsewhere\n0::/slurm/job_7/step_0",
        "/sys/fs/cgroup/slurm/job_7/memory.max": str(60 * MIB),
        "/sys/fs/cgroup/slurm/job_7/memory.current": str(20 * MIB),
    }
    assert memory.available_bytes() == 40 * MIB
    files |= {"/sys/fs/cgroup/memory.max": "max", "/sys/fs/cgroup/slurm/job_7/memory.max": "max"}
    assert memory.available_bytes() == 200 * MIB
    # Version 1 has a hierarchy for each controller, or for several together.
    files |= {
        "/proc/self/mountinfo": "30 1 0:30 / /groups rw - cgroup cgroup rw,memory,hugetlb",
        "/proc/self/cgroup": "4:memory,hugetlb:/job\n0::/",
        "/groups/job/memory.limit_in_bytes": str(90 * MIB),
        "/groups/job/memory.usage_in_bytes": str(70 * MIB),
        "/groups/job/memory.stat": f"inactive_file 1\ntotal_inactive_file {5 * MIB}\n",
    }
    assert memory.available_bytes() == 25 * MIB


def test_a_limit_on_the_rows_makes_a_long_trace_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_check, "ROW_BYTES", 1 << 60)
    trace, run = trace_of(tmp_path), tmp_path / "run"
    with pytest.raises(OutOfMemory, match=r"\(10 rows, .*limit"):
        replay(Replay(Config(tiers={"nvme": "null"}), trace, run, []))
    monkeypatch.setattr(memory_check, "ROW_BYTES", 1)
    replay(Replay(Config(tiers={"nvme": "null"}, limit="2"), trace, run, []))


def test_rows_limited_by_time_or_bytes_are_budgeted_as_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_check, "ROW_BYTES", 1 << 60)
    trace, run = trace_of(tmp_path), tmp_path / "run"
    for limit in ("1s", "1GiB"):
        with pytest.raises(OutOfMemory, match=r"\(10 rows, .*limit"):
            replay(Replay(Config(tiers={"nvme": "null"}, limit=limit), trace, run, []))
    # Only those within the limit count, and only those of tiers that have a target.
    monkeypatch.setattr(memory_check, "ROW_BYTES", 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: PROCESS_BYTES + 8 * MIB + 3)
    replay(Replay(Config(tiers={"nvme": "null"}, limit="2ns"), trace, run, [], is_forced=True))
    with pytest.raises(OutOfMemory, match=r"\(10 rows"):
        replay(Replay(Config(tiers={"nvme": "null"}, limit="1s"), trace, run, [], is_forced=True))


def test_too_little_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = open_table(trace_of(tmp_path), TRACE)

    def failing(*_args: object, **_named: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    monkeypatch.setattr("kvtrace.core.row_check.RowCheck.check_batch", failing)
    with pytest.raises(MemoryError):
        list(reader.batches())  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "kvtrace.core.row_check.RowCheck.check_batch",
        lambda *_: (_ for _ in ()).throw(pa.ArrowInvalid("x")),
    )
    with pytest.raises(TraceError, match="damaged"):
        list(reader.batches())  # type: ignore[attr-defined]


@pytest.mark.first(limit_kib=2)
@pytest.mark.parametrize("limit_kib", [300_000, 500_000, 1_000_000, 1_700_000, 1_830_000])
def test_a_process_that_may_have_too_little_says_so(tmp_path: Path, limit_kib: int) -> None:
    """These gave `damaged after this row`, a crash, and `interrupted`."""
    trace = trace_of(tmp_path)
    arguments = ["run", str(trace), "--tier", "nvme=null", "-o", str(tmp_path / "run")]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit_kib * 1024, limit_kib * 1024))

    done = subprocess.run(
        [sys.executable, "-m", "kvreplay.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert done.returncode == 7
    assert shows(done.stderr, "1.88 GB … address space")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
