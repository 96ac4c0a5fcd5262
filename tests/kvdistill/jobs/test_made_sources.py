"""Jobs whose source another of our programs makes first.

`kvdistill fio --gen`, `kvreplay probe --fio`.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from conftest import run_cli, run_process
from phrases import shows

GEN = "--preset lmcache-disk --model tiny-1b --users 8 --duration 5s --set tiers.gpu.capacity=0"


@pytest.mark.full
def test_jobs_of_a_trace_that_gen_makes_first(tmp_path):
    done = run_cli("kvdistill", "fio", "--gen", GEN, "-o", "jobs", cwd=tmp_path)
    assert "trace.parquet" in done.stdout
    assert "simulated:" in done.stderr  # what gen says of the trace
    # The same in two steps.
    run_cli("kvtrace", "gen", *GEN.split(), "-o", "trace.parquet", cwd=tmp_path)
    run_cli("kvdistill", "fio", "trace.parquet", "--tier", "nvme", "-o", "apart", cwd=tmp_path)
    body = [(tmp_path / folder / "stat.fio").read_text() for folder in ("jobs", "apart")]
    assert body[0] == body[1]


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ((), "INPUT … --gen", 2),
        (("t.parquet", "--gen", GEN), "INPUT … --gen", 2),
        (("--gen", "--users '3"), "--gen --users '3:", 2),
        (
            ("--gen", "--preset lmcache-dsk"),
            "preset 'lmcache-dsk' … lmcache-disk",
            2,
        ),
    ],
)
def test_one_source_and_what_gen_refuses(tmp_path, arguments, said, code):
    done = run_cli("kvdistill", "fio", *arguments, "-o", "jobs", cwd=tmp_path, check=False)
    assert done.returncode == code
    assert shows(done.stderr, said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.full
@pytest.mark.fio
@pytest.mark.bpf
def test_a_process_is_profiled_and_has_its_job_in_one_command(tmp_path):
    job = [
        "fio",
        "--name=x",
        "--rw=randread",
        "--bs=64k",
        "--size=16m",
        "--direct=1",
        "--time_based",
        "--runtime=60",
    ]
    with subprocess.Popen(job, cwd=tmp_path, stdout=subprocess.DEVNULL) as load:
        try:
            done = run_process(
                "kvreplay",
                "probe",
                "--comm",
                "fio",
                "--duration",
                "3s",
                "--fio",
                "jobs",
                cwd=tmp_path,
            )
        finally:
            load.terminate()
    # The first line is the answer.
    assert re.search(
        r"p99.*device",
        done.stdout,
    )
    assert "Jobs" in done.stdout
    assert "bs=65536" in (tmp_path / "jobs/stat.fio").read_text()
