"""The memory of an open loop: all of its buffers from the start, and said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from conftest import write_trace

from kvreplay.result.run_tables import PARTIAL_OPS_FILE

MIB = 1 << 20
BURST = 300


def own_bytes(pid: int) -> int:
    """Return the bytes of memory that a process has of its own; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return sum(
        int(line.split()[1]) << 10
        for line in status.splitlines()
        if line.startswith(("RssAnon:", "RssShmem:"))
    )


def test_a_burst_takes_no_more_memory_than_the_start(tmp_path):
    # An operation each 20 ms for 2 s, and then as many at once as no second before had.
    rows = [(i * 20_000_000, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(100)]
    rows += [(2 * 10**9, "write", 2, "store", i, 0, MIB, i, 0, 0) for i in range(100, 100 + BURST)]
    rows += [(3 * 10**9, "write", 2, "store", 999, 0, 4096, 999, 0, 0)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "d").mkdir()
    command = ["run", trace, "--tier", "nvme=d", "--speed", "1", "--buffered", "-o", "run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvreplay.cli", *map(str, command)],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "run" / PARTIAL_OPS_FILE).exists():
        time.sleep(0.01)
    time.sleep(0.5)
    samples = []
    while process.poll() is None:
        samples.append(own_bytes(process.pid))
        time.sleep(0.02)
    _out, err = process.communicate()
    assert "I/O buffers take" in err
    assert process.returncode == 0
    quiet = samples[: len(samples) // 3]
    assert min(quiet) > BURST * MIB
    # What is written at the end, and the results in memory, take some.
    assert max(samples) < 1.15 * max(quiet)
