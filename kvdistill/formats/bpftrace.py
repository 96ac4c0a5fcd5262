"""The text that bpftrace prints of the MLPerf benchmark's storage_latency_stack.bt: histograms, as a probe.json.

Its buckets are powers of two (`[512, 1K)`, `[0]`, `[1]`, `(..., 0)`, `[8M, ...)`), in microseconds, KiB or requests;
the map's name says which. A percentile within a bucket is not known, and null: its bounds are given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvdistill.formats.formats import Account, Imported, ImportOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.statistics import QUANTILES, nearest_rank

if TYPE_CHECKING:
    import duckdb

_MAP = re.compile(r"@(\w+):\s*")
_SCALAR = re.compile(r"@(\w+)(?:\[[^\]]*\])?:\s+-?\d+\s*")
_BOUND = r"(\d+)([KMGT]?)"
_RANGE = re.compile(rf"\[{_BOUND}, {_BOUND}\)\s+(\d+)\s+\|.*")
_SINGLE = re.compile(rf"\[{_BOUND}\]\s+(\d+)\s+\|.*")
_ABOVE = re.compile(rf"\[{_BOUND}, \.\.\.\)\s+(\d+)\s+\|.*")
_BELOW = re.compile(rf"\(\.\.\., {_BOUND}\)\s+(\d+)\s+\|.*")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_MOST = 1 << 50
"""No time, size or count of a bucket is larger, whatever its unit."""
_US, _KIB, _GIB = 1000, 1 << 10, 1 << 30
_LAYERS = {"q2d": "q2d", "d2c": "d2c", "bssplit": "block_size_bins", "qd": "in_flight_bins", "lba": "heat"}
_BLOCK = re.compile(r"(q2d|d2c|bssplit|qd|lba)_(read|write)(?:_us|_kb|_gb)?")
_CALLS = {
    "vfs_read_us": "read",
    "vfs_write_us": "write",
    "fsync_us": "fsync",
    "write_to_fsync_us": "write_to_fsync",
    "fadvise_to_read_us": "fadvise_to_read",
}
_SCALES = {"q2d": _US, "d2c": _US, "bssplit": _KIB, "qd": 1, "lba": _GIB}
_ZONE_BYTES = 10 * _GIB
_UNKNOWN = (
    "queued",
    "issued_bytes",
    "completed",
    "completed_bytes",
    "errors",
    "requeues",
    "requests_merged",
    "bios",
    "bio_bytes",
    "bios_merged",
    "splits",
    "lost_events",
    "lost_requests",
    "ends_not_seen",
    "lost_zones",
)
DEFINITIONS = {
    "q2d": "from when a request was inserted into the scheduler's queue to its issue; nothing without a scheduler",
    "d2c": "from the issue of a request to its completion, matched by device and sector",
    "block_size_bins": "requests by their bytes when issued",
    "in_flight_bins": "requests by how many of their direction were in flight when they were issued",
    "application": "read, write: time within vfs_read and vfs_write; gaps: on the same thread",
    "percentiles": "null: they lie somewhere in the bucket that percentiles_within gives",
}


def read(files: Sequence[Path], _options: ImportOptions, _db: duckdb.DuckDBPyConnection) -> Imported:
    """Import the text of one tracing session; of several files, all must hold different histograms.

    Raises:
        TraceError: a file is missing, holds no histogram, or one that another holds too.

    """
    account = Account()
    maps: dict[str, list[dict[str, Any]]] = {}
    for path in files:
        for name, buckets in _maps(path, account).items():
            if not _BLOCK.fullmatch(name) and name not in _CALLS:
                example = f"{path.name}: @{name}, {sum(b['count'] for b in buckets):,} values"
                account.leave_out("histograms that the script does not have", 1, example)
                continue
            if name in maps:
                raise TraceError(f"@{name} is there twice; import sessions one by one", path=path)
            below = [b for b in buckets if b["from"] is None]
            account.leave_out("below 0, which is no time", sum(b["count"] for b in below), f"{path.name}: @{name}")
            maps[name] = [b for b in buckets if b["from"] is not None]
    if not maps:
        raise TraceError("holds no histogram of storage_latency_stack.bt", path=files[0])
    account.kept = sum(len(buckets) for buckets in maps.values())
    account.notes += [
        "buckets are powers of two, so percentiles are null; percentiles_within gives the bucket that each lies in",
        "the script counts block requests of all processes and devices unless it was filtered, and a requeue twice",
        "the script's depths never come down again after a requeue or an error: take them for bounds",
    ]
    application = {kind: _times(maps[name]) for name, kind in _CALLS.items() if name in maps}
    probe: dict[str, Any] = {
        "duration_ns": None,
        "event_rows": None,
        "block": {"directions": _directions(maps), "zone_bytes": _ZONE_BYTES, "in_flight_at_end": None},
        "application": {"times": application, "calls": [], "not_followed": None} if application else None,
        "definitions": DEFINITIONS,
    }
    return Imported(account, [], [], probe=probe)


def _maps(path: Path, account: Account) -> dict[str, list[dict[str, Any]]]:
    """Return the buckets of each histogram in the text, bounds in the map's own unit."""
    if not path.is_file():
        raise TraceError("no such file" if not path.exists() else "not a regular file", path=path)
    maps: dict[str, list[dict[str, Any]]] = {}
    current: list[dict[str, Any]] | None = None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            text = line.strip()
            head = _MAP.fullmatch(text)
            if head:
                if head[1] in maps:
                    raise TraceError(f"@{head[1]} is there twice; import sessions one by one", path=path, row=number)
                current = maps[head[1]] = []
            elif text.startswith(("[", "(")) and current is not None:
                bucket = _bucket(text)
                if bucket is None or any(value is not None and value > _MOST for value in bucket.values()):
                    raise TraceError(f"{text[:60]!r} is no bucket of a histogram", path=path, row=number)
                current.append(bucket)
                account.rows += 1
            elif text and not _SCALAR.fullmatch(text):
                current = None
    return {name: buckets for name, buckets in maps.items() if buckets}


def _bucket(text: str) -> dict[str, Any] | None:
    """Return a line's bounds (null where it has none) and count; null if it is no bucket."""
    if found := _RANGE.fullmatch(text):
        return {"from": _number(found[1], found[2]), "below": _number(found[3], found[4]), "count": int(found[5])}
    if found := _SINGLE.fullmatch(text):
        value = _number(found[1], found[2])
        return {"from": value, "below": value + 1, "count": int(found[3])}
    if found := _ABOVE.fullmatch(text):
        return {"from": _number(found[1], found[2]), "below": None, "count": int(found[3])}
    if found := _BELOW.fullmatch(text):
        return {"from": None, "below": _number(found[1], found[2]), "count": int(found[3])}
    return None


def _number(digits: str, suffix: str) -> int:
    return int(digits) * _SCALE[suffix]


def _scaled(buckets: list[dict[str, Any]], scale: int) -> list[dict[str, Any]]:
    """Return `buckets` in another unit, without the empty ones."""
    return [
        {"from": b["from"] * scale, "below": None if b["below"] is None else b["below"] * scale, "count": b["count"]}
        for b in buckets
        if b["count"]
    ]


def _directions(maps: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return what is known of each direction, as a probe.json of kvreplay has it; the rest is null or empty."""
    directions: dict[str, dict[str, Any]] = {}
    for name, buckets in maps.items():
        found = _BLOCK.fullmatch(name)
        if found is None:
            continue
        layer, direction = found[1], found[2]
        of = directions.setdefault(direction, _unknown())
        if layer in ("q2d", "d2c"):
            of[layer] = _times(buckets)
        elif layer == "lba":
            of["heat"] = [
                {"device": None, "from_bytes": b["from"], "requests": b["count"], "bytes": None}
                for b in _scaled(buckets, _GIB)
            ]
        else:
            of[_LAYERS[layer]] = _scaled(buckets, _SCALES[layer])
        if layer == "bssplit":
            of["issued"] = sum(b["count"] for b in buckets)
    return directions


def _unknown() -> dict[str, Any]:
    empty: dict[str, list[Any]] = {"block_sizes": [], "in_flight_at_dispatch": [], "per_second": [], "heat": []}
    return {"issued": None, **dict.fromkeys(_UNKNOWN), "q2d": _times([]), "d2c": _times([]), **empty}


def _times(buckets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a histogram of microseconds in ns, with what is known of its percentiles."""
    scaled = _scaled(buckets, _US)
    count = sum(b["count"] for b in scaled)
    ranks = {name: nearest_rank(count, part) for name, part in QUANTILES.items()}
    return {
        "count": count,
        "mean_ns": None,
        **{f"{name}_ns": None for name in QUANTILES},
        "longest_below_ns": scaled[-1]["below"] if scaled else None,
        "log2_ns": scaled,
        "fine_ns": [],
        "percentiles_within": {name: None if rank is None else _within(scaled, rank) for name, rank in ranks.items()},
    }


def _within(buckets: list[dict[str, Any]], rank: int) -> dict[str, Any]:
    """Return the bounds of the bucket that holds `rank`."""
    seen = 0
    for bucket in buckets:
        seen += bucket["count"]
        if seen >= rank:
            return {"from": bucket["from"], "below": bucket["below"]}
    raise ValueError(f"rank(={rank}) must be <= {seen}.")
