"""Any window of a source, and its statistics over just that."""

from __future__ import annotations

import json

import pytest
from conftest import run_cli, write_trace
from kvdistill_rows import MS, io

from kvdistill.profile.sources import distil_source
from kvdistill.queries.window import parse_window
from kvtrace.core.errors import ConfigError

# A second of writes, then reads of 64 KiB that come ever closer together, then few.
ROWS = [io(i * 10, "write", i, 4096) for i in range(100)]
ROWS += [io(1000 + i * 20, "read", i % 5, 65536) for i in range(50)]
ROWS += [io(2000 + i * 5, "read", i % 5, 65536) for i in range(200)]
ROWS += [io(3000 + i * 100, "read", i % 5, 65536) for i in range(10)]


@pytest.mark.parametrize(
    ("window", "reads", "writes", "start_ms"),
    [
        ((None, "1s", "2s", None), 50, 0, 1000),
        ((None, "900ms", None, None), 260, 10, 900),
        ((None, None, "1s", None), 0, 100, 0),
        (("20", "2s", None, None), 20, 0, 2000),
        ((None, None, None, "1s"), 200, 0, 2000),
        ((None, None, None, "100s"), 260, 100, 0),
    ],
)
def test_a_window_is_what_it_says(tmp_path, window, reads, writes, start_ms):
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    profile = distil_source(trace, "nvme", parse_window(*window), tmp_path).profile
    assert (profile.read.ops, profile.write.ops) == (reads, writes)
    assert profile.start_ns == start_ms * MS
    assert profile.locality.ops == reads + writes
    assert profile.origin.limit


def test_windows_that_are_none_are_refused():
    for wrong in ((None, "2s", "1s", None), (None, "1s", None, "5s"), (None, None, None, "0s")):
        with pytest.raises(ConfigError):
            parse_window(*wrong)


def test_the_command_takes_a_window(tmp_path):
    trace = write_trace(tmp_path / "t.parquet", ROWS)
    done = run_cli(
        "kvdistill",
        "profile",
        trace,
        "--tier",
        "nvme",
        "--from",
        "1s",
        "--to",
        "2s",
        "-o",
        tmp_path / "p.json",
        "--json",
    )
    assert json.loads(done.stdout)["read"]["ops"] == 50
