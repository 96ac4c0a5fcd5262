"""Start an engine's driver in its own interpreter, watch it, and collect its record."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import msgspec

import engine_drivers
from engine_drivers.recorder import Settings
from kvreplay.run.engine_record import STRACE, EngineRecord, read_events, read_strace
from kvreplay.run.real_engines import ENGINES, EngineKind
from kvreplay.tiers import claims
from kvtrace.core.errors import DeviceError
from kvtrace.core.units import printable

DRIVER = Path(engine_drivers.__file__).with_name("start.py")
FILES = "engine"
"""The folder of an engine's files, in the directory that we claim."""
POLL_S = 0.1
_ENDS_S = 10
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ERROR = re.compile(r"[\w.]*(?:Error|Exception|Exit|Interrupt)\b")


@contextmanager
def engine_directory(target: Path, *, is_kept: bool) -> Iterator[Path]:
    """Lock `target` and yield an empty folder for an engine below it.

    Remove the folder afterwards unless `is_kept`.

    DeviceError if the target is not empty, not ours, or not a place for data.
    """
    claim = claims.claim(target)
    folder = claim.scratch / FILES
    try:
        # By the marker all files there are ours: leftovers of a run that was killed or kept.
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
        except OSError as error:
            raise DeviceError(f"{folder}: {error.strerror}") from None
        yield folder
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
        claims.release(claim, is_kept=is_kept)


def serve(
    kind: EngineKind,
    python: Path,
    settings: Settings,
    log: Path,
    interrupted: Callable[[], str | None],
    show: Callable[[float], None],
) -> EngineRecord:
    """Let an engine serve requests by `settings`, and write its own output to `log`.

    `show` takes the number of requests served.
    """
    engine, staging = ENGINES[kind], Path(settings.events).parent
    settings_file, strace_file = staging / "settings.json", staging / "strace"
    settings_file.write_bytes(msgspec.json.encode(asdict(settings)))
    command = [str(python), str(DRIVER), engine.driver, str(settings_file)]
    if engine.is_straced:
        command = [*STRACE, str(strace_file), *command]
    to_monotonic_ns = time.monotonic_ns() - time.time_ns()
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our driver, in the interpreter that the user named
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stopped_by = _watch(process, Path(settings.events), interrupted, show)
    record = read_events(Path(settings.events))
    if engine.is_straced:
        directory = Path(settings.directory)
        record.operations = read_strace(strace_file, directory, to_monotonic_ns, record.requests)
        record.audited = None
    record.interrupted_by = stopped_by
    if process.returncode and not stopped_by:
        # The last line of the engine's output that names an error.
        lines = [
            _COLOURS.sub("", line).strip() for line in log.read_text(errors="replace").splitlines()
        ]
        messages = [line for line in lines if _ERROR.match(line)] or [
            line for line in lines if line
        ]
        record.failure = printable(messages[-1]) if messages else f"ended with {process.returncode}"
    return record


def _watch(
    process: subprocess.Popen[bytes],
    events: Path,
    interrupted: Callable[[], str | None],
    show: Callable[[float], None],
) -> str | None:
    """Wait until the process ends, or end it if a signal came; return that signal's name."""
    served, position = 0, 0
    try:
        while process.poll() is None:
            if (stopped_by := interrupted()) is not None:
                _end(process)
                return stopped_by
            with contextlib.suppress(FileNotFoundError), events.open("rb") as lines:
                lines.seek(position)
                content = lines.read()
                position, served = position + len(content), served + content.count(b'["request"')
            show(served)
            time.sleep(POLL_S)
    except BaseException:
        _end(process)
        raise
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the driver and all processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_ENDS_S)
