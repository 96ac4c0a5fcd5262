"""What the application saw of its files: times by kind, and what each interface was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvreplay.probes.histogram import SLOTS, Histogram, cells, histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("read", "write", "fsync", "fdatasync", "write_to_fsync", "fadvise_to_read")
CALLS = (
    "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2",
    "fsync", "fdatasync", "io_submit", "io_uring",
)  # fmt: skip
_COUNTS = ("count", "bytes", "errors", "without_io", "without_io_bytes")
"""`enum kind`, `enum call` and `enum call_count` of app.bpf.c."""
_NEEDS = {"io_submit": {"HAS_AIO"}, "io_uring": {"HAS_URING", "HAS_URING_SQE"}}
"""Asynchronous calls, and which macro says that they are seen."""
_MOVES_NOTHING = ("fsync", "fdatasync")


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """What one interface was asked for, in one direction."""

    kind: str
    call: str
    count: int
    """Those that succeeded."""
    errors: int
    bytes: int | None
    """Read or written; null for a synchronization."""
    without_io: int | None
    """Of `count`, those that queued no I/O themselves; null where the call does not wait for its I/O."""
    without_io_bytes: int | None


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """What the application saw; kinds without anything are absent."""

    times: dict[str, Histogram]
    """By KINDS."""
    calls: list[Calls]
    unseen: list[str]
    """Interfaces that this kernel has no tracepoints for, so that their calls are in no figure."""
    not_followed: int
    """Asynchronous I/Os beyond the first 128 of one io_submit."""


def application(programs: Any, has: set[str]) -> Application:
    """Return the figures in the maps of the attached `programs`; `has` are the macros they were made with."""
    times, sums, counts = (cells(programs[name]) for name in ("app_times", "app_sums", "app_counts"))
    found = {name: histogram(times[i * SLOTS : (i + 1) * SLOTS], sums[i]) for i, name in enumerate(KINDS)}
    return Application(
        times={name: times for name, times in found.items() if times.count},
        calls=list(_calls(counts)),
        unseen=[call for call, macros in _NEEDS.items() if not has & macros],
        not_followed=cells(programs["app_not_followed"])[0],
    )


def _calls(counts: Sequence[int]) -> list[Calls]:
    found = []
    for i, kind in enumerate(KINDS):
        for j, call in enumerate(CALLS):
            at = (i * len(CALLS) + j) * len(_COUNTS)
            of: dict[str, int | None] = dict(zip(_COUNTS, counts[at : at + len(_COUNTS)], strict=True))
            if not any(of.values()):
                continue
            if call in _NEEDS or kind in _MOVES_NOTHING:
                of |= {"without_io": None, "without_io_bytes": None}
            if kind in _MOVES_NOTHING:
                of["bytes"] = None
            found.append(msgspec.convert({"kind": kind, "call": call, **of}, Calls))
    return found
