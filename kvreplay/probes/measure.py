"""One standalone measurement: attach, wait, detach, and write probe.json and blocks.parquet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvreplay.probes.program import Filter
from kvreplay.probes.result import DEFINITIONS
from kvreplay.probes.session import Found, Session
from kvreplay.tiers.host import host_facts
from kvtrace.core.app import noted_signals
from kvtrace.core.errors import DeviceError
from kvtrace.core.files import write_json
from kvtrace.core.metadata import describe
from kvtrace.core.run.run_file import BLOCKS_FILE, PROBE_FILE
from kvtrace.core.schema import BLOCKS
from kvtrace.core.tables import create
from kvtrace.core.units import NS_PER_S

ATTACHED = "probes attached"
"""Said once it measures."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one measurement found."""

    content: dict[str, Any]
    """As in probe.json."""
    found: Found


def check_output(path: Path) -> None:
    """Raise DeviceError unless a measurement may be written to `path`: new, empty, or an earlier one."""
    if path.exists() and not path.is_dir():
        raise DeviceError(f"{path} is not a directory; name the result's directory with -o")
    if not path.exists() and not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; make it first")
    if path.is_dir() and any(path.iterdir()) and not (path / PROBE_FILE).is_file():
        raise DeviceError(f"{path} is not empty and holds no result of kvreplay probe; name another with -o")


def measure(
    wanted: Filter,
    output: Path,
    duration_ns: int | None,
    argv: list[str],
    *,
    has_events: bool,
    tell: Callable[[str], None],
) -> Measurement:
    """Measure for `duration_ns`, or until SIGINT or SIGTERM, and write the result to `output`.

    `tell` takes a line when the probes are attached.

    Raises:
        ConfigError, DeviceError, ProbeUnavailable: before anything was measured.

    """
    check_output(output)
    configuration = {
        "comm": wanted.comm,
        "pid": wanted.pid,
        "cgroup": None if wanted.cgroup is None else str(wanted.cgroup),
        "devices": [d.name for d in wanted.disks],
        "duration_ns": duration_ns,
        "has_events": has_events,
    }
    meta = describe(BLOCKS, "kvreplay", argv, configuration)
    with _directory(output):
        with ExitStack() as stack:
            writer = stack.enter_context(create(output / BLOCKS_FILE, BLOCKS, meta)) if has_events else None
            session = stack.enter_context(Session(wanted, writer))
            started = datetime.now(UTC)
            with noted_signals() as caught:
                # Who reads this may send the signal at once.
                tell(ATTACHED)
                was_stopped = _wait(session, duration_ns, caught)
            found = session.finish()
            rows = None if writer is None else writer.rows
        content = {
            "program": meta.program,
            "version": meta.version,
            "argv": meta.argv,
            "config": configuration,
            "config_sha256": meta.config_sha256,
            "started": started.isoformat(),
            "start_monotonic_ns": session.start_ns,
            "duration_ns": session.duration_ns,
            "was_stopped": was_stopped,
            "event_rows": rows,
            "block": found.block,
            "application": found.application,
            "definitions": DEFINITIONS,
            "host": host_facts(),
        }
        write_json(output / PROBE_FILE, content)
    return Measurement(content, found)


@contextmanager
def _directory(path: Path) -> Iterator[None]:
    """Make `path` ready for a result; if none comes, leave no empty directory."""
    path.mkdir(exist_ok=True)
    # An old result must not stand beside new events.
    (path / PROBE_FILE).unlink(missing_ok=True)
    (path / BLOCKS_FILE).unlink(missing_ok=True)
    try:
        yield
    finally:
        if not any(path.iterdir()):
            path.rmdir()


def _wait(session: Session, duration_ns: int | None, caught: Callable[[], str | None]) -> bool:
    """Poll until the time is over or a signal that was `caught` asks to end; return whether one did."""
    end = None if duration_ns is None else time.monotonic() + duration_ns / NS_PER_S
    while not caught() and (end is None or time.monotonic() < end):
        session.poll()
    return caught() is not None
