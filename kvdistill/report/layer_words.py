"""What the layers of a run say, in plain words: whether the device was touched, and which layer took the time."""

from __future__ import annotations

from typing import Any

from kvtrace.core.units import format_bytes, format_duration

NEARLY_ALL, NEARLY_NONE = 0.98, 0.001
"""Of the objects' bytes, from which on, and below which, the device moved all and none of them."""
DOMINATES = 0.5
_LAYERS = {
    "at_device": "at the device (driver, drive)",
    "queued": "queued in the kernel (plug, scheduler)",
    "above": "above the block layer (filesystem, copies, the replay's own waits)",
}
_VERBS = {"read": "reads", "write": "writes"}


def findings(
    moved: list[dict[str, Any]],
    inside: list[dict[str, Any]],
    calls: list[dict[str, Any]],
    probe: dict[str, Any],
    run: dict[str, Any],
) -> list[str]:
    """Return one sentence a finding, of the rows of `Layers`, the probes' result and the run's own summary."""
    is_buffered = bool((run.get("config") or {}).get("is_buffered"))
    said = [_touched(row, is_buffered=is_buffered) for row in moved if row["object_bytes"]]
    said += [_answered(calls)]
    said += [_dominant(row) for row in inside if row["latency_ns"]]
    return [line for line in [*said, *_faults(probe)] if line]


def _touched(row: dict[str, Any], *, is_buffered: bool) -> str:
    name, ratio = _VERBS[row["op"]], row["amplification"]
    objects, device = format_bytes(row["object_bytes"]), format_bytes(row["device_bytes"])
    later = ", or written back later by the kernel's own threads, which the probes do not see"
    if ratio < NEARLY_NONE:
        reason = "in the page cache" + later if row["op"] == "write" else "from the page cache or unwritten extents"
        return f"{name}: answered WITHOUT touching the device: {objects} of objects, {device} at the device ({reason})"
    if ratio < NEARLY_ALL:
        left = later if row["op"] == "write" and is_buffered else ""
        return (
            f"{name}: {1 - ratio:.1%} of the objects' bytes did not touch the device: {objects} of objects, {device} "
            f"at the device (page cache or unwritten extents{left})"
        )
    padding = row["io_bytes"] / row["object_bytes"]
    why = f"; padding to whole blocks alone is {padding:.3f}" if padding > 1 else ""
    return f"{name}: the device moved {ratio:.3f} bytes for each byte of the objects ({device} for {objects}){why}"


def _answered(calls: list[dict[str, Any]]) -> str:
    known = [c for c in calls if c["kind"] == "read" and c["without_io"] is not None]
    total, without = sum(c["count"] for c in known), sum(c["without_io"] for c in known)
    if not without:
        return ""
    return f"{without:,} of {total:,} read calls that wait for their data queued no I/O themselves"


def _dominant(row: dict[str, Any]) -> str:
    shares = {part: row[f"{part}_share"] for part in _LAYERS}
    part = max(shares, key=lambda name: shares[name])
    parts = ", ".join(f"{shares[name]:.1%} {words}" for name, words in _LAYERS.items())
    judged = "dominates" if shares[part] > DOMINATES else "is the largest part, none dominates"
    deep = row["in_flight_mean"]
    crowd = (
        f"; {deep:.1f} operations were in flight, and requests of any of them count for each"
        if deep is not None and deep > 1.1  # noqa: PLR2004 - more than one at a time
        else ""
    )
    time = format_duration(row["latency_ns"])
    return f"{_VERBS[row['op']]}: time {_LAYERS[part]} {judged}: of {time} in the mean, {parts}{crowd}"


def _faults(probe: dict[str, Any]) -> list[str]:
    directions = probe["block"]["directions"].values()
    said = {
        "errors": "requests failed at the device",
        "requeues": "times the driver, busy, gave a request back",
        "splits": "I/Os were cut because the disk takes no longer ones",
        "lost_events": "requests are missing from blocks.parquet, and so from the parts of the latency",
        "ends_not_seen": "completions were not shown by the kernel: their device time is in no figure",
    }
    counts = {name: sum(d[name] for d in directions) for name in said}
    return [f"{count:,} {said[name]}" for name, count in counts.items() if count]
