"""The installed fio: its version and known bugs, how to run it and read its JSON."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable


class FioVersion(NamedTuple):
    """A version of fio; builds past a release count as that release."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return it as fio writes it."""
        return f"{self.major}.{self.minor}"


REAPS_WHILE_WAITING = FioVersion(3, 37)
"""The first fio whose libaio replay completes operations while it waits for the next one's time."""
MULTIPLIES_RATE_IOPS = FioVersion(3, 42)
"""The first fio whose linear rate_iops is right with bssplit."""
HANGS_IN_IO_URING = FioVersion(3, 41)
"""The first fio whose replay hangs with io_uring."""
READS_IOLOG_3 = FioVersion(3, 31)
"""The first fio that reads iologs with timestamps."""

HOW_TO_GET = (
    "install it (Debian, Ubuntu: apt-get install fio; Fedora: dnf install fio) or see https://fio.readthedocs.io"
)


def parse_version(text: str) -> FioVersion:
    """Return the version in `text`, such as `3.33` or `fio-3.42-12-gabcdef`."""
    match = re.fullmatch(r"(?:fio-)?([0-9]+)\.([0-9]+)(?:[.-].*)?", text.strip())
    if match is None:
        raise ConfigError(f"--fio-version {text}: write it as 3.33")
    version = FioVersion(int(match[1]), int(match[2]))
    if version < READS_IOLOG_3:
        raise ConfigError(f"fio {version} cannot replay a log with times; version {READS_IOLOG_3} or later can")
    return version


def installed() -> FioVersion | None:
    """Return the version of the fio on the path; null if there is none."""
    program = shutil.which("fio")
    if program is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - found on the path
    return parse_version(done.stdout)


def run_fio(
    job: Path,
    timeout_s: float,
    *,
    program: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run fio, or `program`, on `job` in its folder and return its JSON.

    Raises:
        ProbeUnavailable: there is no fio.
        DeviceError: fio failed, or did not end within `timeout_s`.

    """
    import msgspec

    program = program or shutil.which("fio")
    if program is None:
        raise ProbeUnavailable(f"fio is not installed; {HOW_TO_GET}")
    command = [program, "--output-format=json", job.name]
    try:
        done = subprocess.run(  # noqa: S603 - found on the path
            command,
            cwd=job.parent,
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"fio did not end {job.name} within {timeout_s:.0f} s; the target is too slow: check less with "
            "--check-seconds or --check-bytes"
        ) from None
    # fio writes warnings before the JSON, to the same stream.
    start = re.search(r"^\{", done.stdout, re.MULTILINE)
    try:
        result: dict[str, Any] = msgspec.json.decode(done.stdout[start.start() :]) if start else {}
    except msgspec.DecodeError:
        result = {}
    failed = [job["error"] for job in result.get("jobs", []) if job.get("error")]
    if done.returncode or failed or not result:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith("fio:")]
        raise DeviceError(f"fio could not run {job.name}: {said[-1] if said else f'exit code {done.returncode}'}")
    return result
