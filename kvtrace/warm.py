"""Compile, once a version, all that kvtrace and kvdistill compile: `python -m kvtrace.warm`.

Python's own byte code is written too, which each start makes anew where Python is told not to write it. Each command
that compiles is run on something tiny, in this process; its result is thrown away and its code kept, so that no command
ever waits for it. `make` does this when it sets up.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib
import io
import os
import sys
import tempfile
from pathlib import Path

from kvtrace.core.app import log
from kvtrace.core.errors import KvError

REQUESTS = "".join(
    f'{{"timestamp": {n}, "input_length": 1024, "output_length": 64, "hash_ids": [{n % 3}, {3 + n % 2}]}}\n'
    for n in range(20)
)
"""As Mooncake writes them: blocks of 512 tokens."""

SMALL = "--model tiny-1b --set tiers.gpu.capacity=256MiB --set tiers.cpu.capacity=512MiB"

STEPS = (
    f"kvtrace gen --users 4 --duration 10s {SMALL} -o t.parquet",
    f"kvtrace gen requests.jsonl --source mooncake --preset lmcache-disk {SMALL} -o f.parquet",
    f"kvtrace gen --request-rate 5/s --duration 2s {SMALL} -o o.parquet",
    f"kvtrace gen --users 2 --duration 2s --set workload.overlap=true {SMALL} -o w.parquet",
    f"kvtrace gen --users 2 --duration 2s --set workload.rag_share=1.0 {SMALL} -o r.parquet",
    *(
        f"kvtrace sim requests.jsonl --source mooncake --capacity-blocks 2 --policy {policy}"
        for policy in ("lru", "lfu", "fifo", "clock", "s3fifo", "sieve", "arc", "ttl --ttl 1s")
    ),
    "kvtrace mrc requests.jsonl --source mooncake",
    f"kvtrace size requests.jsonl --source mooncake --preset lmcache-disk {SMALL} --target-hit 10%",
    "kvtrace validate t.parquet",
    "kvtrace convert t.parquet t.csv --to mlperf",
    "kvtrace convert t.csv i.parquet",
    "kvdistill fio t.parquet --tier cpu -o fio",
    "kvdistill report t.parquet",
)
"""Commands that, one after another, call all that is compiled."""


def warm() -> None:
    """Run the steps in a folder that goes afterwards, and say on stderr which is next."""
    log("compiling for this machine, once a version: about 25 s")
    for program in ("kvtrace", "kvreplay", "kvdistill"):
        compileall.compile_dir(Path(__file__).parents[1] / program, quiet=2)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("requests.jsonl").write_text(REQUESTS, encoding="utf-8")
            Path("scratch").mkdir()
            for number, step in enumerate(STEPS, 1):
                log(f"  {number} of {len(STEPS)}: {' '.join(step.split()[:2])}")
                _run(step)
        finally:
            os.chdir(before)


def _run(step: str) -> None:
    program, *arguments = step.split()
    app = importlib.import_module(f"{program}.cli").app
    silent, argv = io.StringIO(), sys.argv
    sys.argv = [program, *arguments]
    try:
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            app(arguments, standalone_mode=False, prog_name=program)
    except KvError as error:
        # Some machines cannot run all of it: what is missing is compiled by the first command that can.
        log(f"  not compiled: {error}")
    finally:
        sys.argv = argv


if __name__ == "__main__":
    warm()
