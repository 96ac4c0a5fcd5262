"""`--layout vllm`.

The system calls on the filesystem are those of vLLM's own file tier, call by call.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from conftest import write_trace
from phrases import shows
from whole import read_table

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvtrace.core.schema import OPS

SAMPLE = Path(__file__).parents[2] / "golden" / "engines" / "vllm" / "strace-fs.txt"
CALLS = "access,faccessat,faccessat2,openat,mkdir,mkdirat,read,readv,pread64,preadv,write,pwrite64,pwritev,close,"
CALLS += "rename,renameat,renameat2,unlink,fsync,fdatasync,ftruncate,fallocate"
LINE = re.compile(r"(?P<thread>\d+) +(?P<call>\w+)\((?P<said>.*?)(\) += (?P<result>-?\d+).*)?$")
SAME = {
    "readv": "read",
    "faccessat": "access",
    "faccessat2": "access",
    "renameat": "rename",
    "renameat2": "rename",
}
BLOCK = 8192


def strace(output: Path, *command: object) -> str | None:
    """Return the calls of `command` thread by thread, each after the thread's number.

    None if it or strace fails.
    """
    traced = [
        "strace",
        "-ff",
        "-qq",
        "-e",
        f"trace={CALLS}",
        "-e",
        "signal=none",
        "-o",
        str(output),
    ]
    if subprocess.run([*traced, *map(str, command)], check=False, capture_output=True).returncode:
        return None
    of_threads = sorted(output.parent.glob(f"{output.name}.*"))
    return "".join(
        f"{path.suffix[1:]} {line}\n"
        for path in of_threads
        for line in path.read_text().splitlines()
    )


def operations(text: str) -> list[tuple[str, ...]]:
    """Return the operations on blocks, each as its calls with the flags of the open.

    Look-ups are access alone.
    """
    found, of_fd, current = [], {}, defaultdict(list)
    for line in text.splitlines():
        if (match := LINE.match(line)) is None:
            continue
        thread, call, said = match["thread"], match["call"], match["said"]
        call = SAME.get(call, call)
        is_block = ".bin" in said
        if call == "openat" and is_block:
            flags = re.search(r"O_[A-Z_|]+", said)[0].split("|")
            current[thread].append("openat " + "|".join(sorted(set(flags) - {"O_CLOEXEC"})))
            of_fd[thread] = match["result"]
        elif is_block or (thread in of_fd and said.split(",")[0] == of_fd[thread]):
            current[thread].append(call)
        else:
            continue
        calls = current[thread]
        is_read = calls[0].startswith("openat") and call == "close"
        if call == "rename" or is_read or calls[:2] == ["access", "access"]:
            found.append(tuple(calls[:1] if calls[:2] == ["access", "access"] else calls))
            current[thread] = calls[1:] if calls[:2] == ["access", "access"] else []
            of_fd.pop(thread, None)
    return found


def of_vllm() -> set[tuple[str, ...]]:
    return {calls for calls in operations(SAMPLE.read_text()) if len(calls) > 1}


def rows(count: int) -> list[Any]:
    written = [(i, "write", 2, "store", i, 0, BLOCK, None, None, 0) for i in range(count)]
    return written + [
        (count + i, "read", 2, "load", i, 0, BLOCK, None, None, 0) for i in range(count)
    ]


def test_the_sample_is_understood():
    assert of_vllm() == {
        ("access", "openat O_CREAT|O_DIRECT|O_EXCL|O_TRUNC|O_WRONLY", "write", "close", "rename"),
        ("openat O_DIRECT|O_RDONLY", "read", "close"),
    }


@pytest.mark.full
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_a_replay_makes_the_same_calls(tmp_path):
    if strace(tmp_path / "probe", "true") is None:
        pytest.skip("strace may not trace here")
    trace, files = write_trace(tmp_path / "t.parquet", rows(7)), tmp_path / "files"
    files.mkdir()
    main = "import sys; from kvreplay.cli import main; sys.argv[0] = 'kvreplay'; main()"
    options = [
        "run",
        trace,
        "--tier",
        f"nvme={files}",
        "--layout",
        "vllm",
        "-o",
        tmp_path / "run",
        "--queue-depth",
        2,
    ]
    text = strace(tmp_path / "calls", sys.executable, "-c", main, *options)
    assert text is not None
    ours = operations(text)
    assert set(ours) == of_vllm()
    assert len(ours) == 2 * 7
    # A directory of its own for each block, made as it is written.
    names = re.findall(r'rename\w*\(.*/([0-9a-f]{3})/([0-9a-f]{2})_g0/[0-9a-f]{64}\.bin"', text)
    made = set(re.findall(r'mkdir\w*\(.*/([0-9a-f]{3})/([0-9a-f]{2})_g0"', text))
    assert set(names) == made
    assert len(made) == 7


@pytest.mark.parametrize("length", [BLOCK, 3 << 20])
def test_replayed_vllm_calls_verify_and_leave_no_temporary_file(tmp_path, length):
    same = [(ts, op, 2, phase, i, 0, length, None, None, 0) for ts, op, _, phase, i, *_ in rows(5)]
    again = [
        (20, "write", 2, "store", 0, 0, length, None, None, 0),
        (21, "read", 2, "load", 0, 0, length, None, None, 0),
    ]
    trace = write_trace(tmp_path / "t.parquet", [*same, *again])
    (tmp_path / "d").mkdir()
    config = Config(
        tiers={"nvme": str(tmp_path / "d")}, layout="vllm", is_verified=True, is_kept=True
    )
    finished = replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))
    assert finished.run.verification.corrupt_blocks == 0
    outcomes = read_table(tmp_path / "run" / "ops.parquet", OPS)["outcome"].to_pylist()
    assert outcomes == ["ok"] * 12
    left = [path.name for path in (tmp_path / "d").rglob("*") if path.is_file()]
    assert sum(name.endswith(".bin") for name in left) == 5
    assert not any(name.endswith(".tmp") for name in left)


def test_a_write_that_fails_leaves_no_file(tmp_path):
    long, limits = 5 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)
    # Object 9 grows: it is written on in place. What lies behind a shorter write stays, as of
    # object 8.
    parts = [(9, 0, BLOCK), (9, BLOCK, BLOCK), (9, 0, BLOCK), (8, 0, 2 * BLOCK), (8, 0, BLOCK)]
    first = (0, "write", 2, "store", 0, 0, long, None, None, 0)
    more = [(1, "write", 2, "store", obj, at, length, None, None, 0) for obj, at, length in parts]
    last = [(2, "read", 2, "load", obj, 0, 2 * BLOCK, None, None, 0) for obj in (9, 8)]
    trace = write_trace(tmp_path / "t.parquet", [first, *more, *last])
    (tmp_path / "d").mkdir()
    how = {
        "layout": "vllm",
        "is_kept": True,
        "is_verified": True,
        "on_error": "continue",
        "is_buffered": True,
    }
    config = Config(tiers={"nvme": str(tmp_path / "d")}, **how)
    resource.setrlimit(resource.RLIMIT_FSIZE, (long - BLOCK, limits[1]))
    try:
        finished = replay(Replay(config, trace, tmp_path / "run", []))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert shows(str(finished.error), "object 0: … too large")
    assert finished.run.verification.corrupt_blocks == 0
    outcomes = read_table(tmp_path / "run" / "ops.parquet", OPS)["outcome"].to_pylist()
    assert outcomes == ["error", *["ok"] * 7]
    left = [path for path in (tmp_path / "d").rglob("*") if ".bin" in path.name]
    assert [(path.suffix, path.stat().st_size) for path in left] == [(".bin", 2 * BLOCK)] * 2
