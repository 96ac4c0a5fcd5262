"""How fast a trace wears a drive out: written bytes a day, and drive writes per day."""

from __future__ import annotations

from typing import Any

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, parse_bytes

SECONDS_PER_DAY = 86_400


def endurance(stats: dict[str, Any], span_ns: int | None, drive_size: str | None) -> list[dict[str, Any]]:
    """Return, for the slowest tier, what it writes a day at the simulated rate; drive writes per day of `drive_size`.

    What was written before the start is not of that rate. Empty if the span is zero or unknown, or if there is only
    one tier: then no storage is simulated.
    """
    size_bytes = parse_bytes(drive_size) if drive_size is not None else None
    if size_bytes == 0:
        raise ConfigError(f"--drive-size {drive_size}: must be > 0")
    tiers = stats.get("tiers") or []
    if not span_ns or len(tiers) < 2:  # noqa: PLR2004 - a memory tier and a storage tier
        return []
    last = tiers[-1]
    per_day = (last["written_bytes"] - last["populated_bytes"]) * SECONDS_PER_DAY * NS_PER_S // span_ns
    return [
        {
            "name": last["name"],
            "written_bytes_per_day": per_day,
            "drive_writes_per_day": per_day / size_bytes if size_bytes else None,
        }
    ]
