"""Commands import only the libraries that they need: a small command starts soon, in little memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import run_cli

HEAVY = (
    *("bokeh", "dask", "distributed", "duckdb", "kvreplay", "matplotlib", "numpy", "openpyxl"),
    *("pandas", "polars", "pyarrow", "pydantic", "rich", "scipy", "tiktoken"),
)
SMALL = "--limit 30 --users 4 --preset lmcache-disk --model tiny-1b --quiet"
CODE = f"""
import importlib, sys
try:
    importlib.import_module(sys.argv[1] + ".cli").app(sys.argv[2:], standalone_mode=False)
except SystemExit:
    pass
print(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("imports")
    run_cli("kvtrace", "gen", *SMALL.split(), "-o", "t.parquet", cwd=path)
    return path


@pytest.mark.parametrize(
    ("command", "libraries"),
    [
        ("kvtrace --help", ""),
        ("kvreplay --help", "kvreplay"),
        ("kvdistill --help", ""),
        ("kvtrace models", "rich"),
        ("kvtrace info t.parquet", "numpy pyarrow rich"),
        ("kvtrace validate t.parquet", "numpy pyarrow"),
        (f"kvtrace gen {SMALL} -o g.parquet", "numpy pyarrow rich"),
        ("kvdistill report t.parquet", "duckdb numpy pyarrow rich"),
        ("kvdistill sql t.parquet -q bytes_by_tier_and_phase", "duckdb numpy pyarrow rich"),
        ("kvdistill fio t.parquet --tier nvme --mode stat -o jobs", "duckdb numpy pyarrow rich"),
        ("kvdistill fio t.parquet --tier nvme -o all_jobs", "duckdb numpy pyarrow rich"),
    ],
)
def test_a_command_imports_no_library_in_vain(folder, command, libraries):
    done = subprocess.run(
        [sys.executable, "-c", CODE, *command.split()],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    assert set(done.stderr.splitlines()[-1].split()) <= set(libraries.split())
