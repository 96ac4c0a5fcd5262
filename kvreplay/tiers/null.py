"""A tier that moves nothing: it takes its place in the order of operations and is marked in every output."""

from __future__ import annotations

from typing import Any


class NullTier:
    """Accepts every operation at once; its times say nothing about any device."""

    engine = "none"
    alignment = 1
    is_simulated = True
    target = "null"

    def __init__(self, name: str) -> None:
        """Name the tier."""
        self.name = name

    def open(self, peak_bytes: int) -> None:
        """Do nothing: there is room for everything."""

    def reserve(self, object_id: int, end: int) -> None:
        """Do nothing."""

    def begin(self, op: int, object_id: int) -> None:
        """Do nothing."""

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        """Do nothing."""

    def read(self, handle: Any, offset: int, into: memoryview) -> int:  # noqa: ARG002 - the protocol's
        """Claim that everything came."""
        return len(into)

    def end(self, op: int, handle: Any) -> None:
        """Do nothing."""

    def delete(self, object_id: int) -> None:
        """Do nothing."""

    def facts(self) -> dict[str, Any]:
        """Say that nothing moved."""
        return {"is_simulated": True, "note": "no data moved; its times are only moments in the replay"}

    def close(self) -> None:
        """Do nothing."""
