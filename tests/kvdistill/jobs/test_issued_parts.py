"""The statistical job issues the I/Os that kvreplay issues: operations in parts of --io-bytes."""

from __future__ import annotations

import pytest
from conftest import run_cli
from kvdistill_rows import distil_rows, io, stat_job
from test_fio_jobs import V, options_of

from kvdistill.jobs.issued_parts import as_issued
from kvdistill.jobs.job import MIB, JobOptions


def profile_of(tmp_path, rows):
    return distil_rows(tmp_path, rows).profile


def test_an_operation_of_three_parts_arrives_as_a_burst(tmp_path):
    """Writes of 3 MiB every 10 ms: three I/Os of 1 MiB at once, as many in flight."""
    rows = [io(10 * i, "write", i, 3 * MIB, request=None, stage=None) for i in range(100)]
    job = options_of(stat_job(profile_of(tmp_path, rows), JobOptions(version=V)), "write")
    assert (job["bs"], job["iodepth"], job["thinktime_blocks"]) == (str(MIB), "3", "3")
    assert job["number_ios"] == "300"


def test_a_stage_is_filled_anew_when_it_has_completed(tmp_path):
    """Requests of five stages of two writes of 2 MiB: four I/Os of 1 MiB at once."""
    rows = [
        io(500 * r, "write", 10 * r + 2 * s + k, 2 * MIB, request=r, stage=s)
        for r in range(20)
        for s in range(5)
        for k in range(2)
    ]
    job = options_of(stat_job(profile_of(tmp_path, rows), JobOptions(version=V)), "write")
    assert (job["bs"], job["number_ios"]) == (str(MIB), "400")
    assert (job["iodepth"], job["iodepth_low"], job["iodepth_batch_complete_min"]) == (
        "4", "1", "4",
    )  # fmt: skip


@pytest.mark.parametrize("part", [MIB, 4 * MIB])
def test_bytes_are_kept_by_parts_of_each_length(tmp_path, part):
    rows = [io(10 * i, ("read", "write")[i % 2], i, (2 * i + 1) * MIB // 2) for i in range(40)]
    profile = profile_of(tmp_path, rows)
    issued = as_issued(profile, JobOptions(io_bytes=part))
    for side, whole in ((issued.read, profile.read), (issued.write, profile.write)):
        assert sum(size.io_bytes * size.ops for size in side.sizes) == whole.io_bytes
        assert side.ops == sum(-(-s.io_bytes // part) * s.ops for s in whole.sizes)
        assert max(size.io_bytes for size in side.sizes) == part


def test_what_a_device_saw_is_not_taken_apart(tmp_path):
    from blocks import write_blocks

    write_blocks(
        tmp_path / "blocks.parquet", [(20 * i, "R", i * 2 * MIB, 2 * MIB) for i in range(60)]
    )
    run_cli("kvdistill", "fio", tmp_path / "blocks.parquet", "-o", tmp_path / "jobs")
    text = (tmp_path / "jobs" / "stat.fio").read_text()
    assert options_of(text, "read")["bs"] == str(2 * MIB)
