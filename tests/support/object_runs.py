"""Replays on object stores.

They run in the tests' own process where they may: s3dlio keeps credentials and addresses as it
first found them, by endpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from conftest import Row, run_cli, run_process, write_trace
from stores import BUCKET, KEY, SECRET

from kvtrace.core.metadata import TierFacts

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def environment(**more: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return clean | {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET} | more


def in_store(url: str, code: str) -> str:
    """Do something to a store beside a replay; return what it prints."""
    return subprocess.run(
        [sys.executable, "-c", f"import s3dlio\n{code}"],
        env=environment(AWS_ENDPOINT_URL=url), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip


def row(op: str, obj: int, length: int, offset: int = 0) -> Row:
    return (0, op, 0, "load", obj, offset, length, None, None, 0)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what a command said on stderr, but for the note that it compiles."""
    return [line for line in done.stderr.splitlines() if not line.startswith("compiling:")]


def object_run(
    folder: Path, rows: list[Row], *options: object, urls: tuple[str, ...] = (), target: str = f"{BUCKET}/runs/a",
    env: dict[str, str] | None = None, client: str = "s3dlio",
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Replay `rows` on the tier s3, into folder/run.

    In a process of its own if it is given an environment.
    """
    trace = write_trace(folder / "t.parquet", rows, tiers=[TierFacts("s3", 1 << 30)])
    endpoints = [word for url in urls for word in ("--endpoint", url)]
    words = [
        "run",
        trace,
        "--tier",
        f"s3=s3://{target}",
        *endpoints,
        "--s3-client",
        client,
        "--force",
        "--json",
        "-o",
        folder / "run",
    ]
    if env is not None:
        return run_process("kvreplay", *words, *options, check=False, env=env, cwd=folder)
    return run_cli("kvreplay", *words, *options, check=False)
