"""The installed fio: its version and known bugs, the buffers it needs, how to run it and read its JSON.

Buffers: a device takes a limited number of memory segments a request. Of a buffer in 4 KiB pages that lie anywhere, 1
MiB is 256 segments, but a device may take 254 (virtio) or 127 (NVMe): the block layer then splits the I/O. A huge page
is one segment. fio asks the kernel for them with iomem=mmaphuge, which fails where none are reserved; glibc does for
any buffer, where its tunable says so. Shorter I/Os arrive whole in any case, but take longer to issue page by page: a
closed loop is slower, and its gaps are others (docs/concepts/fio-jobs.md).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.units import format_io_size


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
            "--check-duration or --check-bytes"
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


SAFE_BYTES = 256 << 10
"""I/Os up to this have no more pages than any device of our time takes pieces."""
PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
TUNABLE = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""The variable of the environment by which glibc 2.35 and later asks for transparent huge pages."""


def huge_pages(jobs: Iterable[tuple[int, int]]) -> int:
    """Return how many huge pages jobs of (depth, largest I/O in bytes) take."""
    return sum(-(-(depth * largest + 4096) // HUGE_BYTES) for depth, largest in jobs)


def free_huge_pages(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Return how many huge pages of 2 MiB are reserved and free on this machine."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    if fields.get("Hugepagesize", "").split()[:1] != [str(HUGE_BYTES >> 10)]:
        return 0
    return int(fields.get("HugePages_Free", "0"))


def buffer_lines(largest: int, *, is_reserved: bool) -> list[str]:
    """Return the options of a job whose I/Os are up to `largest` bytes."""
    if largest <= PAGE_BYTES:
        return []
    return ["iomem=mmaphuge"] if is_reserved else ["iomem_align=2m"]


def run_line(job: str, largest: int, *, is_reserved: bool) -> str:
    """Return the command that runs `job`."""
    return f"fio {job}" if largest <= PAGE_BYTES or is_reserved else f"{'='.join(TUNABLE)} fio {job}"


def buffer_needs(largest: int, pages: int, *, is_reserved: bool) -> list[str]:
    """Return the lines of a job's head on its memory."""
    if largest <= PAGE_BYTES:
        return []
    reserved = f"{pages} huge pages reserved (sysctl vm.nr_hugepages={pages})"
    tunable = "the variable GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (glibc 2.35; transparent huge pages not 'never')"
    why = (
        f"without huge pages, I/Os over {format_io_size(SAFE_BYTES)} may reach the device in parts"
        if largest > SAFE_BYTES
        else "without huge pages, I/Os take longer to issue"
    )
    if is_reserved:
        return [f"{reserved}; or {tunable} and iomem_align=2m in place of iomem=mmaphuge: {why}"]
    return [f"{tunable}; or {reserved} and iomem=mmaphuge in place of iomem_align=2m: {why}"]
