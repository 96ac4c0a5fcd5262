"""What a run did for checkpoints, as run.json holds it: each save and restore, and what they did to others.

Null is what was not measured.
"""

from __future__ import annotations

import msgspec

from kvtrace.core.run.figures import Distribution

DEFINITIONS = {
    "duration_ns": "from the first submission of a save or restore to its last completion, its marker included",
    "stall_ns": "how long training waits for it if it does nothing meanwhile: from when it was due, in a closed loop "
    "from its first submission, to its last completion",
    "bandwidth_bytes_per_s": "object bytes / duration_ns",
    "during": "operations of others that were under way at any moment of a save or restore, in an open loop from when "
    "they were due; without: all others",
}


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A save or a restore."""

    kind: str
    """save or restore."""
    request_id: int | None
    """Its request in the trace; null if the trace gives it none."""
    ts_ns: int | None = None
    """When it begins in the trace; null in runs of earlier versions."""
    scheduled_ns: int | None
    """When it was due, from the start of the run; null in a closed loop."""
    submitted_ns: int | None
    """Its first submission; null if there was none."""
    completed_ns: int | None
    """Its last completion; null unless all of it completed."""
    duration_ns: int | None
    stall_ns: int | None
    bytes: int
    """Object bytes that completed."""
    bandwidth_bytes_per_s: float | None
    operations: int
    unfinished: int
    """Operations that failed or were not reached."""


class CheckpointKind(msgspec.Struct, frozen=True, kw_only=True):
    """All saves, or all restores."""

    kind: str
    count: int
    """Those that completed."""
    unfinished: int
    bytes: int
    """Of those that completed."""
    duration: Distribution
    bandwidth_bytes_per_s: float | None
    """Bytes / durations added up."""
    stall_ns: int | None
    """Added up."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """How long operations of others took while checkpoints were saved or restored, and otherwise."""

    tier: str
    op: str
    measure: str
    """response, in an open loop; else latency."""
    during: Distribution
    without: Distribution

    def compared(self) -> tuple[str, int, int] | None:
        """Return the highest of the percentiles to p99 that both have, and both; None if there is none."""
        for name in ("p99", "p95", "p50"):
            during, without = getattr(self.during, f"{name}_ns"), getattr(self.without, f"{name}_ns")
            if during is not None and without is not None:
                return name, during, without
        return None


class CheckpointFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did for checkpoints."""

    each: list[Checkpoint]
    """In the order in which they were due."""
    kinds: list[CheckpointKind]
    busy_ns: int
    """Time in which at least one was under way."""
    stall_share: float | None
    """Stalls added up, of the run's time."""
    beside: list[Beside]
    """By tier and op of others; empty if there were none."""
    definitions: dict[str, str]
