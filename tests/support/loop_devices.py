"""Loop devices over sparse files, for tests that write to block devices; they need root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def losetup(*arguments: object) -> str:
    """Run losetup and return what it prints; skip the test where it is impossible."""
    try:
        done = subprocess.run(
            ["losetup", *map(str, arguments)], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def loop_device(backing: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a loop device over the sparse file `backing`, and detach it at the end."""
    with backing.open("wb") as file:
        file.truncate(size_bytes)
    device = losetup("--find", "--show", backing)
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)
