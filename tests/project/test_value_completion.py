"""The shell offers values, too: presets, models, GPUs, queries, and the tiers of a trace."""

import os
import subprocess
import sys

import pytest
from conftest import write_trace


def offered(program: str, line: str, folder) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"from {program}.cli import app; app(prog_name='{program}')"],
        cwd=folder,
        env=os.environ
        | {
            f"_{program.upper()}_COMPLETE": "complete_bash",
            "COMP_WORDS": f"{program} {line}",
            "COMP_CWORD": str(len(line.split(" "))),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("program", "line", "values"),
    [
        ("kvtrace", "gen --preset vllm-f", ["vllm-fs"]),
        ("kvtrace", "size r.jsonl --model llama3.1-4", ["llama3.1-405b"]),
        ("kvtrace", "gen --gpu h", ["h100", "h200"]),
        ("kvtrace", "gen --router round", ["round-robin"]),
        ("kvtrace", "presets trt", ["trtllm"]),
        ("kvdistill", "sql t.parquet --query slowest", ["slowest_operations"]),
        ("kvdistill", "fio t.parquet --tier nv", ["nvme"]),
        ("kvdistill", "fio missing.parquet --tier nv", []),
    ],
)
def test_values_that_begin_with_what_was_typed(tmp_path, program, line, values):
    write_trace(tmp_path / "t.parquet", [(0, "write", 2, "store", 1, 0, 4096, 0, 0, 0)])
    assert offered(program, line, tmp_path) == values
