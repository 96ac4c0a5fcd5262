"""The content of `probe.json`, which `kvreplay probe` writes.

A value that was not measured is null: an import of another tool's output has fewer values than the
probes.
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
    """Null for the last bucket, if the tool gives it no upper bound."""
    count: Count


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of times in ns. A value is null if there are too few times for it."""

    count: Count
    mean_ns: float | None
    """The exact sum / count."""
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    p99_9_ns: float | None
    p99_99_ns: float | None
    longest_below_ns: Count | None
    """The longest time was shorter than this. Null without times, or if the last slot was reached.
    """
    log2_ns: list[Bucket]
    fine_ns: list[Bucket] = []


class Sized(msgspec.Struct, frozen=True):
    """The number of requests of one size."""

    bytes: Count
    count: Count


class DepthCount(msgspec.Struct, frozen=True):
    """The number of requests dispatched with so many in flight, themselves included."""

    in_flight: Count
    count: Count


class Second(msgspec.Struct, frozen=True):
    """Completions without an error in the second that starts `from_ns` after the start."""

    from_ns: Count
    requests: Count
    bytes: Count


class ZoneCount(msgspec.Struct, frozen=True):
    """Requests that start in one zone of a disk."""

    device: str | None
    from_bytes: Count
    requests: Count
    bytes: Count | None


class DirectionFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one direction, such as reads."""

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
    """Events that are missing in blocks.parquet, but are in every figure here."""
    lost_requests: Count | None = None
    """Requests in no figure but `queued`, because the table of requests was full."""
    ends_not_seen: Count | None = None
    """Requests issued, but missing in `completed` and D2C, because the kernel did not run the probe
    at their completion.
    """
    lost_zones: Count | None = None
    """Requests missing in `heat`, because its table was full."""
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
    """Block requests of the processes that pass the filter.

    A direction without requests is absent.
    """

    directions: dict[str, DirectionFigures]
    zone_bytes: Count | None = None
    """Length of a zone of `heat`."""
    in_flight_at_end: Count | None = None
    """Requests issued and not completed when the probes were detached."""


class Calls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one interface in one direction."""

    kind: str
    call: str | None = None
    count: Count | None = None
    """Calls that succeeded."""
    errors: Count | None = None
    bytes: Count | None = None
    """Bytes read or written; null for a synchronization."""
    direct: Count | None = None
    """Of `count`, the calls on a file or device that was opened with O_DIRECT. The others use the
    page cache.
    """
    without_io: Count | None = None
    """Of `count`, the calls that queued no I/O themselves; null if the call does not wait for its
    I/O.
    """
    without_io_bytes: Count | None = None


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The application's system calls. A kind without calls is absent."""

    times: dict[str, Histogram] = {}
    """By kind of call. `read` and `write` contain the calls that queued I/O, and asynchronous calls
    that may have queued it.
    """
    calls: list[Calls] = []
    unseen: list[str] = []
    """Interfaces for which this kernel has no tracepoints. Their calls are in no figure."""
    not_followed: Count | None = None
    """Asynchronous I/Os beyond the first 128 of one io_submit."""


class ProbeFile(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement: the processes, the disks and the figures."""

    program: str | None = None
    version: str | None = None
    argv: list[str] = []
    config: JsonObject = {}
    config_sha256: str | None = None
    started: str | None = None
    start_monotonic_ns: int | None = None
    duration_ns: Count | None = None
    was_stopped: bool | None = None
    """True if a signal ended it early."""
    event_rows: Count | None = None
    """Rows of blocks.parquet; null without that file."""
    block: BlockFigures
    application: Application | None = None
    """Null if the kernel has no tracepoints of system calls."""
    definitions: dict[str, str] = {}
    host: JsonObject = {}

    def __post_init__(self) -> None:
        """Refuse disks that are not names. The other fields of `config` are free."""
        msgspec.convert(self.config.get("devices"), list[str] | None)

    @property
    def devices(self) -> list[str]:
        """The disks that were measured; empty for all disks."""
        return self.config.get("devices") or []


def find_probe(folder: Path) -> ProbeFile | None:
    """Return the content of probe.json in `folder`, or None if there is no such file.

    TraceError if it is damaged, or of another version.
    """
    return find_json(
        folder / PROBE_FILE, ProbeFile, misfit="not of this version of kvreplay: {}; measure again"
    )


def format_probe_answer(probe: ProbeFile) -> str:
    """Return one line with the rate, size and latency of the requests in each direction.

    Empty if no request completed.
    """
    seconds = (probe.duration_ns or 0) / NS_PER_S
    clauses = []
    for direction, figures in probe.block.directions.items():
        if figures.completed and seconds:
            clauses.append(f"{direction}: {_format_direction(figures, seconds)}")
    if not clauses:
        return ""
    return "; ".join(clauses) + f" (block requests in {format_duration(probe.duration_ns)})"


def _format_direction(figures: DirectionFigures, seconds: float) -> str:
    """Return the rate, mean size, bandwidth and p99 of requests that completed in `seconds`."""
    count = figures.completed or 0
    requests_per_s = count / seconds
    digits = ",.4g" if requests_per_s < _FOUR_DIGITS else ",.0f"
    rate = f"{requests_per_s:{digits}} requests/s"
    if figures.completed_bytes:
        mean_bytes = round(figures.completed_bytes / count)
        bandwidth = format_rate(figures.completed_bytes / seconds)
        rate += f" of {format_io_size(mean_bytes)} on average, {bandwidth}"
    p99_ns = figures.d2c.p99_ns
    if p99_ns is None:
        return f"{rate}, p99 not known (fewer than 100)"
    return f"{rate}, p99 {format_duration(p99_ns)} in driver and device"
