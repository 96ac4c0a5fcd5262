"""Wait for what another process does, however busy the machine is: pytest's own timeout bounds it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any


def wait_for(process: subprocess.Popen[Any], condition: Callable[[], object], what: str) -> None:
    """Return when `condition` holds; fail, with `what` was waited for, if `process` ends before."""
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"{what}: the process left with {process.returncode}: {process.communicate()}")
        time.sleep(0.02)
