"""Wait for what another process does, however busy the machine is.

Pytest's own timeout bounds it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa


def wait_for(process: subprocess.Popen[Any], condition: Callable[[], object], what: str) -> None:
    """Return when `condition` holds; fail, with `what` was waited for, if `process` ends before."""
    while not condition():
        if process.poll() is not None:
            raise AssertionError(
                f"{what}: the process left with {process.returncode}: {process.communicate()}"
            )
        time.sleep(0.02)


def rows_in(journal: Path) -> int:
    """Return how many rows the journal of a run has so far.

    Its size does not say it: a busy disk has one a batch.
    """
    rows = 0
    with (
        suppress(OSError, pa.ArrowInvalid, StopIteration),
        pa.ipc.open_stream(journal.read_bytes()) as stream,
    ):
        while True:
            rows += stream.read_next_batch().num_rows
    return rows
