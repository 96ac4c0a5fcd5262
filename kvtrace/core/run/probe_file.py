"""`probe.json`: the fields that others than its writer look at, with the types that they must have.

Its content is handed on as it stands, so that a probe of a later version may hold more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.files import read_json
from kvtrace.core.metadata import Count
from kvtrace.core.run.run_file import PROBE_FILE
from kvtrace.core.units import NS_PER_S, format_duration, format_io_size, format_rate

_FOUR_DIGITS = 1000
_MISFIT = "not of this version of kvreplay: {}; measure again"


class _Bin(msgspec.Struct, rename={"low": "from"}):
    low: Count
    below: Count
    count: Count


class _Histogram(msgspec.Struct):
    count: Count
    log2_ns: list[_Bin]
    mean_ns: float | None
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    p99_9_ns: float | None
    p99_99_ns: float | None
    longest_below_ns: float | None


class _Sized(msgspec.Struct):
    bytes: Count
    count: Count


class _Deep(msgspec.Struct):
    in_flight: Count
    count: Count


class _Direction(msgspec.Struct, kw_only=True):
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
    lost_requests: Count | None = None
    ends_not_seen: Count | None = None
    q2d: _Histogram
    d2c: _Histogram
    requeued: _Histogram | None = None
    block_sizes: list[_Sized]
    in_flight_at_dispatch: list[_Deep]


class _Block(msgspec.Struct):
    directions: dict[str, _Direction]


class _Call(msgspec.Struct):
    kind: str
    call: str | None = None
    count: Count | None = None
    errors: Count | None = None
    bytes: Count | None = None
    direct: Count | None = None
    without_io: Count | None = None
    without_io_bytes: Count | None = None


class _Application(msgspec.Struct):
    times: dict[str, _Histogram] | None = None
    calls: list[_Call] | None = None


class _Config(msgspec.Struct):
    devices: list[str] | None = None


class _ProbeFile(msgspec.Struct, kw_only=True):
    argv: list[str] | None = None
    version: str | None = None
    config: _Config | None = None
    duration_ns: Count | None = None
    block: _Block
    application: _Application | None = None


def find_probe(folder: Path) -> dict[str, Any] | None:
    """Return the content of probe.json in `folder`, or None if there is no such file.

    Raises:
        TraceError: it is damaged, or of another version.

    """
    path = folder / PROBE_FILE
    if not path.is_file():
        return None
    read_json(path, _ProbeFile, misfit=_MISFIT)
    return read_json(path, dict[str, Any], misfit=_MISFIT)


def probe_answer(found: dict[str, Any]) -> str:
    """Return in one line what the device was asked for, from the content of probe.json; "" where nothing was seen."""
    seconds = (found.get("duration_ns") or 0) / NS_PER_S
    told = [_told(name, of, seconds) for name, of in found["block"]["directions"].items() if of.get("completed")]
    return "; ".join(told) + f" (block requests in {format_duration(found['duration_ns'])})" if told and seconds else ""


def _told(direction: str, of: dict[str, Any], seconds: float) -> str:
    count, moved, p99_ns = of["completed"], of.get("completed_bytes"), of["d2c"]["p99_ns"]
    rate = (
        f"{count / seconds:,.4g} requests/s" if count / seconds < _FOUR_DIGITS else f"{count / seconds:,.0f} requests/s"
    )
    size = f" of {format_io_size(round(moved / count))} on average, {format_rate(moved / seconds)}" if moved else ""
    tail = "p99 not known (fewer than 100)" if p99_ns is None else f"p99 {format_duration(p99_ns)} in driver and device"
    return f"{direction}: {rate}{size}, {tail}"
