"""Buffers that keep long I/Os whole: a device takes so many pieces of memory a request, and 4 KiB pages are many.

Of a buffer in 4 KiB pages that lie anywhere, 1 MiB is 256 pieces, but a device may take 254 (virtio) or 127 (NVMe) a
request: the block layer then splits the I/O. Huge pages are one piece each. fio asks the kernel for them with
iomem=mmaphuge, which fails where none are reserved; glibc does for any buffer, where its tunable says so. Shorter I/Os
arrive whole in any case, but take longer to issue page by page: a closed loop is slower, and its gaps are others
(docs/concepts/fio-jobs.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvtrace.core.units import format_io_size

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
