"""`probe.json`.

Its content as one struct that its writer, `kvreplay probe`, and all its readers share.

Null is what was not measured: an import of another tool's text knows less than the probes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvtrace.core.files import find_json
from kvtrace.core.json_types import JsonObject
from kvtrace.core.run.run_file import PROBE_FILE
from kvtrace.core.simulation_stats import Count
from kvtrace.core.units import NS_PER_S, format_duration, format_io_size, format_rate

_FOUR_DIGITS = 1000
LAYERS = ("q2d", "requeued", "d2c")


class Bucket(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    """The number of values in [`from_`, `below`)."""

    from_: Count
    below: Count | None
    """Null of the last bucket of a tool that has no end for it."""
    count: Count


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of times in ns; null where there are too few values."""

    count: Count
    mean_ns: float | None
    """From their exact sum."""
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    p99_9_ns: float | None
    p99_99_ns: float | None
    longest_below_ns: Count | None
    """The longest was shorter than this.

    Null if there are none, or if the last slot was reached.
    """
    log2_ns: list[Bucket]
    fine_ns: list[Bucket] = []


class Sized(msgspec.Struct, frozen=True):
    """How many requests had this many bytes."""

    bytes: Count
    count: Count


class DepthCount(msgspec.Struct, frozen=True):
    """How many requests found this many in flight, themselves included."""

    in_flight: Count
    count: Count


class Second(msgspec.Struct, frozen=True):
    """Completions without an error in the second from `from_ns` after the start."""

    from_ns: Count
    requests: Count
    bytes: Count


class ZoneCount(msgspec.Struct, frozen=True):
    """Requests issued to one zone of a disk, by their start."""

    device: str | None
    from_bytes: Count
    requests: Count
    bytes: Count | None


class DirectionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one direction."""

    queued: Count | None = None
    issued: Count | None = None
    issued_bytes: Count | None = None
    completed: Count | None = None
    completed_bytes: Count | None = None
    errors: Count | None = None
    requeues: Count | None = None
    requests_merged: Count | None = None
    bios: Count | None = None
    bio_bytes: Count | None = None
    bios_merged: Count | None = None
    splits: Count | None = None
    lost_events: Count | None = None
    """Not in blocks.parquet, but in every figure here."""
    lost_requests: Count | None = None
    """In no figure but `queued`: the table of requests was full."""
    ends_not_seen: Count | None = None
    """Issued, but not in `completed` or D2C.

    The kernel did not run the probe at their completion.
    """
    lost_zones: Count | None = None
    """Not in `heat`: its table was full."""
    q2d: Histogram
    d2c: Histogram
    requeued: Histogram | None = None
    block_sizes: list[Sized]
    in_flight_at_dispatch: list[DepthCount]
    per_second: list[Second] = []
    """Seconds without a completion are absent."""
    heat: list[ZoneCount] = []
    """Zones without a request are absent."""


class BlockFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Block requests of the processes that pass the filter; empty directions are absent."""

    directions: dict[str, DirectionFigures]
    zone_bytes: Count | None = None
    """How long a stretch of `heat` is."""
    in_flight_at_end: Count | None = None
    """Requests issued and not completed when the probes were taken off."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one interface in one direction."""

    kind: str
    call: str | None = None
    count: Count | None = None
    """Those that succeeded."""
    errors: Count | None = None
    bytes: Count | None = None
    """Read or written; null for a synchronization."""
    direct: Count | None = None
    """Of `count`, those on a file or device that was opened with O_DIRECT.

    The others go by way of the page cache.
    """
    without_io: Count | None = None
    """Of `count`, those that queued no I/O themselves.

    Null where the call does not wait for its I/O.
    """
    without_io_bytes: Count | None = None


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The application's calls; empty kinds are absent."""

    times: dict[str, Histogram] = {}
    """By kind of call.

    `read` and `write` are of calls that queued I/O, or, asynchronous, may have.
    """
    calls: list[Calls] = []
    unseen: list[str] = []
    """Interfaces that this kernel has no tracepoints for, so that their calls are in no figure."""
    not_followed: Count | None = None
    """Asynchronous I/Os beyond the first 128 of one io_submit."""


class ProbeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: whose requests, on which disks, and what was found."""

    program: str | None = None
    version: str | None = None
    argv: list[str] = []
    config: JsonObject = {}
    config_sha256: str | None = None
    started: str | None = None
    start_monotonic_ns: int | None = None
    duration_ns: Count | None = None
    was_stopped: bool | None = None
    """By a signal, before its time."""
    event_rows: Count | None = None
    """Of blocks.parquet; null without."""
    block: BlockFigures
    application: Application | None = None
    """Null where the kernel has no tracepoints of system calls."""
    definitions: dict[str, str] = {}
    host: JsonObject = {}

    def __post_init__(self) -> None:
        """Refuse disks that are no names; the rest of `config` is free."""
        msgspec.convert(self.config.get("devices"), list[str] | None)

    @property
    def devices(self) -> list[str]:
        """The disks that it was about; none: all."""
        return self.config.get("devices") or []


def find_probe(folder: Path) -> ProbeFile | None:
    """Return the content of probe.json in `folder`, or None if there is no such file.

    TraceError if it is damaged, or of another version.
    """
    return find_json(
        folder / PROBE_FILE, ProbeFile, misfit="not of this version of kvreplay: {}; measure again"
    )


def probe_answer(found: ProbeFile) -> str:
    """Return in one line what the device was asked for; "" where nothing was seen."""
    seconds, told = (found.duration_ns or 0) / NS_PER_S, []
    for direction, of in found.block.directions.items():
        count, moved, p99_ns = of.completed, of.completed_bytes, of.d2c.p99_ns
        if count and seconds:
            per_s = count / seconds
            rate = (
                f"{per_s:,.4g} requests/s" if per_s < _FOUR_DIGITS else f"{per_s:,.0f} requests/s"
            )
            if moved:
                rate += (
                    f" of {format_io_size(round(moved / count))} on average,"
                    f" {format_rate(moved / seconds)}"
                )
            known = f"p99 {format_duration(p99_ns)} in driver and device"
            told.append(
                f"{direction}: {rate},"
                f" {'p99 not known (fewer than 100)' if p99_ns is None else known}"
            )
    return (
        "; ".join(told) + f" (block requests in {format_duration(found.duration_ns)})"
        if told
        else ""
    )
